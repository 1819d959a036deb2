//! Model fallback lists: names that represent several models. This module rewrites a request for the chosen model;
//! `policy` chooses it.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri};
use plimsoll_policy::SettingError;
use serde_json::{Value, json};

use crate::error::conflict;
use crate::models::ServedModel;
use crate::paths::escaped;
use crate::request::{ParsedRequest, hash};

/// Response header with the model that answered a request for a name with a fallback list.
pub(crate) const MODEL: HeaderName = HeaderName::from_static("x-plimsoll-model");

/// The fallback lists of a configuration, by the hash of their names.
#[derive(Debug)]
pub struct Tiers {
    each: HashMap<u64, (ServedModel, Vec<Tier>)>,
}

/// A model in a fallback list.
#[derive(Debug)]
pub struct Tier {
    pub model: String,
    /// Name as a header value.
    pub header: HeaderValue,
    /// Name as a JSON string.
    json: String,
}

impl Tiers {
    /// Returns the fallback lists of a configuration.
    ///
    /// # Errors
    /// Fails if a model's name is not valid in a header.
    pub fn new(spec: &BTreeMap<String, Vec<String>>) -> Result<Tiers, SettingError> {
        let mut each = HashMap::new();
        for (alias, models) in spec {
            let tiers = models.iter().map(|model| Tier::new(model)).collect::<Result<_, _>>()?;
            each.insert(hash(alias.as_bytes()), (listed(alias), tiers));
        }
        Ok(Tiers { each })
    }

    /// Returns the lists as hashes, for the router.
    pub fn hashes(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        let of = |tiers: &[Tier]| tiers.iter().map(|tier| hash(tier.model.as_bytes())).collect();
        self.each.iter().map(move |(alias, (_, tiers))| (*alias, of(tiers)))
    }

    /// Returns the model that a request is sent to, or `None` if it is the requested name.
    pub fn of(&self, asked: &ParsedRequest, tier: u32) -> Option<&Tier> {
        self.each.get(&asked.model_hash?)?.1.get(tier as usize)
    }

    /// Returns the names as entries of a model list, sorted.
    pub fn entries(&self) -> Vec<ServedModel> {
        let mut entries: Vec<ServedModel> = self.each.values().map(|(entry, _)| entry.clone()).collect();
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        entries
    }

    /// Returns the model list entry of a name with a fallback list.
    pub fn entry(&self, alias: &str) -> Option<&Value> {
        self.each.get(&hash(alias.as_bytes())).map(|(entry, _)| &entry.entry)
    }
}

impl Tier {
    fn new(model: &str) -> Result<Tier, SettingError> {
        let header = HeaderValue::from_bytes(model.as_bytes()).or_else(|_| {
            conflict(
                "tiers",
                format!("{model:?} can't be in a header; use letters, digits, dashes and slashes"),
            )
        })?;
        Ok(Tier { model: model.to_owned(), header, json: Value::from(model).to_string() })
    }

    /// Returns the body with this model's name, as JSON or as a form field; all other bytes are unchanged.
    pub(crate) fn named_in(&self, body: &Bytes, asked: &ParsedRequest) -> Bytes {
        let is_json = body.get(asked.model_at.start) == Some(&b'"');
        let name = if is_json { &self.json } else { &self.model };
        match (body.get(..asked.model_at.start), body.get(asked.model_at.end..)) {
            (Some(before), Some(after)) => [before, name.as_bytes(), after].concat().into(),
            _ => body.clone(),
        }
    }

    /// Returns the path with this model's name.
    pub(crate) fn named_in_path(&self, path: &Uri, asked: &ParsedRequest) -> Option<Uri> {
        let text = path.to_string();
        let (before, after) = (text.get(..asked.model_at.start)?, text.get(asked.model_at.end..)?);
        format!("{before}{}{after}", escaped(&self.model)).parse().ok()
    }
}

fn listed(alias: &str) -> ServedModel {
    let entry = json!({"id": alias, "object": "model", "created": 0, "owned_by": "plimsoll"});
    ServedModel { id: alias.to_owned(), entry }
}
