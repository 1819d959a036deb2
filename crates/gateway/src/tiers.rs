//! Names that stand for several models: which of them a request is asked of, and what its body says then. Which one it is `policy` decides.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Uri};
use plimsoll_policy::SettingError;
use serde_json::{Value, json};

use crate::models::ServedModel;
use crate::paths::escaped;
use crate::request::{ParsedRequest, hash};

/// Which model answered, where a request's name stands for several.
pub(crate) const MODEL: HeaderName = HeaderName::from_static("x-plimsoll-model");

/// The aliases of a file, by the hashes of their names.
#[derive(Debug)]
pub struct Tiers {
    each: HashMap<u64, (ServedModel, Vec<Tier>)>,
}

/// A model behind an alias.
#[derive(Debug)]
pub struct Tier {
    pub model: String,
    /// The same as answers carry it.
    pub header: HeaderValue,
    /// The same as a body has it.
    json: String,
}

impl Tiers {
    /// Those of a file.
    ///
    /// # Errors
    /// A model's name can't be in a header.
    pub fn new(spec: &BTreeMap<String, Vec<String>>) -> Result<Tiers, SettingError> {
        let mut each = HashMap::new();
        for (alias, models) in spec {
            let tiers = models.iter().map(|model| Tier::new(model)).collect::<Result<_, _>>()?;
            each.insert(hash(alias.as_bytes()), (listed(alias), tiers));
        }
        Ok(Tiers { each })
    }

    /// As a router knows them.
    pub fn hashes(&self) -> impl Iterator<Item = (u64, Vec<u64>)> {
        let of = |tiers: &[Tier]| tiers.iter().map(|tier| hash(tier.model.as_bytes())).collect();
        self.each.iter().map(move |(alias, (_, tiers))| (*alias, of(tiers)))
    }

    /// The model that a request is asked of. `None` = the one that it names.
    pub fn of(&self, asked: &ParsedRequest, tier: u32) -> Option<&Tier> {
        self.each.get(&asked.model_hash?)?.1.get(tier as usize)
    }

    /// The aliases, as a list of models has them.
    pub fn entries(&self) -> Vec<ServedModel> {
        let mut entries: Vec<ServedModel> = self.each.values().map(|(entry, _)| entry.clone()).collect();
        entries.sort_by(|a, b| a.id.cmp(&b.id));
        entries
    }

    /// An alias, as it is shown to who asks for it.
    pub fn entry(&self, alias: &str) -> Option<&Value> {
        self.each.get(&hash(alias.as_bytes())).map(|(entry, _)| &entry.entry)
    }
}

impl Tier {
    fn new(model: &str) -> Result<Tier, SettingError> {
        let header = HeaderValue::from_bytes(model.as_bytes()).map_err(|_| SettingError::Conflict {
            name: "tiers".to_owned(),
            why: format!("{model:?} can't be in a header; use letters, digits, dashes and slashes"),
        })?;
        Ok(Tier { model: model.to_owned(), header, json: Value::from(model).to_string() })
    }

    /// A body that names this model, as JSON or as a form does; all other bytes are as they came.
    pub(crate) fn named_in(&self, body: &Bytes, asked: &ParsedRequest) -> Bytes {
        let is_json = body.get(asked.model_at.start) == Some(&b'"');
        let name = if is_json { &self.json } else { &self.model };
        match (body.get(..asked.model_at.start), body.get(asked.model_at.end..)) {
            (Some(before), Some(after)) => [before, name.as_bytes(), after].concat().into(),
            _ => body.clone(),
        }
    }

    /// A path that names this model.
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
