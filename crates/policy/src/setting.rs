//! Configuration syntax of a policy or a fault on one line, `name:key=value,key=value`, and its errors.
//!
//! The parser takes fields one by one; a remaining field is rejected with the list of requested keys. The parsing
//! code thus is the list of allowed keys, and the two cannot differ.

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;

#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SettingError {
    #[error("unknown {what} {asked:?}; there are: {}", known.join(", "))]
    UnknownName {
        /// Kind of the name, for example "routing policy".
        what: &'static str,
        asked: String,
        known: Vec<&'static str>,
    },
    #[error("{name}: unknown parameter {key:?}; allowed: {}", allowed.join(", "))]
    UnknownKey {
        /// Name of the policy or section.
        name: String,
        key: String,
        allowed: Vec<&'static str>,
    },
    #[error("{name}: {key} is missing: {want}")]
    Missing {
        /// Name of the policy or section.
        name: String,
        key: &'static str,
        /// Expected value, with an example.
        want: &'static str,
    },
    /// The value is invalid or out of range.
    #[error("{name}: {key}: {value:?} is not {want}")]
    Value {
        /// Name of the policy or section.
        name: String,
        key: &'static str,
        value: String,
        want: &'static str,
    },
    /// The line has a syntax error.
    #[error("{text:?} is not name:key=value,key=value")]
    Form {
        /// Text of the setting in the configuration.
        text: String,
    },
    /// Settings that contradict each other, or are not allowed in this place.
    #[error("{name}: {why}")]
    Conflict {
        /// Name of the policy, section or key.
        name: String,
        /// Explanation with a remedy.
        why: String,
    },
}

/// A name with its fields, as in the configuration.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParsedSetting {
    pub name: String,
    fields: BTreeMap<String, String>,
    looked_for: Vec<&'static str>,
}

impl ParsedSetting {
    pub fn new(name: &str, fields: BTreeMap<String, String>) -> ParsedSetting {
        ParsedSetting { name: name.to_owned(), fields, looked_for: Vec::new() }
    }

    /// Parses `name` or `name:key=value,key=value`.
    ///
    /// # Errors
    /// Fails if a field has no `=`, a key occurs twice, or the name is missing.
    pub fn parse(text: &str) -> Result<ParsedSetting, SettingError> {
        let form = || SettingError::Form { text: text.to_owned() };
        let (name, rest) = text.trim().split_once(':').unwrap_or((text.trim(), ""));
        if name.is_empty() {
            return Err(form());
        }
        let mut fields = BTreeMap::new();
        for field in rest.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (key, value) = field.split_once('=').ok_or_else(form)?;
            if fields.insert(key.trim().to_owned(), value.trim().to_owned()).is_some() {
                return Err(form());
            }
        }
        Ok(ParsedSetting::new(name, fields))
    }

    /// Takes and parses the value of a key; returns `None` if the key is absent.
    ///
    /// # Errors
    /// Fails if the value is not a `T`, or `accept` returns false.
    pub fn take<T: FromStr>(
        &mut self,
        key: &'static str,
        want: &'static str,
        accept: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, SettingError> {
        self.take_with(key, want, |text| text.parse().ok().filter(accept))
    }

    /// Takes the value of a key and parses it with `read`; returns `None` if the key is absent. Fails if `read`
    /// returns `None`.
    pub fn take_with<T>(
        &mut self,
        key: &'static str,
        want: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<Option<T>, SettingError> {
        self.looked_for.push(key);
        let Some(value) = self.fields.remove(key) else { return Ok(None) };
        match read(&value) {
            Some(read) => Ok(Some(read)),
            None => Err(SettingError::Value { name: self.name.clone(), key, value, want }),
        }
    }

    /// Returns the error for a missing required key.
    pub fn missing(&self, key: &'static str, want: &'static str) -> SettingError {
        SettingError::Missing { name: self.name.clone(), key, want }
    }

    /// Returns the error for contradicting settings.
    pub fn conflict(&self, why: impl Into<String>) -> SettingError {
        SettingError::Conflict { name: self.name.clone(), why: why.into() }
    }

    /// Ends the parsing.
    ///
    /// # Errors
    /// Fails if an unknown field remains.
    pub fn finish(self) -> Result<(), SettingError> {
        match self.fields.into_keys().next() {
            None => Ok(()),
            Some(key) => Err(SettingError::UnknownKey { name: self.name, key, allowed: self.looked_for }),
        }
    }
}
