//! How a policy or a fault is written on one line, `name:key=value,key=value`, and what may be wrong with it.
//!
//! Reading takes fields out one by one; what is left at the end is refused with the list of what was looked for. So the
//! code that reads is the list of what is allowed, and the two can't differ.

use std::collections::BTreeMap;
use std::str::FromStr;

use thiserror::Error;

/// A setting that can't be used.
#[derive(Clone, PartialEq, Eq, Debug, Error)]
pub enum SettingError {
    /// A name that is none of the allowed ones.
    #[error("unknown {what} {asked:?}; there are: {}", known.join(", "))]
    UnknownName {
        /// What it should name.
        what: &'static str,
        /// The name as written.
        asked: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// A key that nothing reads.
    #[error("{name}: unknown parameter {key:?}; allowed: {}", allowed.join(", "))]
    UnknownKey {
        /// Whose parameter.
        name: String,
        /// The key as written.
        key: String,
        /// The keys that are read.
        allowed: Vec<&'static str>,
    },
    /// Something needed was not said.
    #[error("{name}: {key} is missing: {want}")]
    Missing {
        /// Whose parameter.
        name: String,
        /// The key.
        key: &'static str,
        /// What to say.
        want: &'static str,
    },
    /// A value that can't be read or lies outside its range.
    #[error("{name}: {key}: {value:?} is not {want}")]
    Value {
        /// Whose parameter.
        name: String,
        /// The key.
        key: &'static str,
        /// The value as written.
        value: String,
        /// What would be accepted.
        want: &'static str,
    },
    /// The line itself can't be read.
    #[error("{text:?} is not name:key=value,key=value")]
    Form {
        /// The text as written.
        text: String,
    },
    /// Settings that can't be together, or not here.
    #[error("{name}: {why}")]
    Conflict {
        /// Whose.
        name: String,
        /// Which ones, and what to do.
        why: String,
    },
}

/// A name with its fields, as written.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Written {
    pub name: String,
    fields: BTreeMap<String, String>,
    looked_for: Vec<&'static str>,
}

impl Written {
    pub fn new(name: &str, fields: BTreeMap<String, String>) -> Written {
        Written { name: name.to_owned(), fields, looked_for: Vec::new() }
    }

    /// Reads `name` or `name:key=value,key=value`.
    ///
    /// # Errors
    /// A field without `=`, a key twice, or no name.
    pub fn parse(text: &str) -> Result<Written, SettingError> {
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
        Ok(Written::new(name, fields))
    }

    /// The value of a key, if it is there.
    ///
    /// # Errors
    /// It can't be read as `T`, or `accept` does not hold for it.
    pub fn take<T: FromStr>(
        &mut self,
        key: &'static str,
        want: &'static str,
        accept: impl FnOnce(&T) -> bool,
    ) -> Result<Option<T>, SettingError> {
        self.take_with(key, want, |text| text.parse().ok().filter(accept))
    }

    /// The value of a key, if it is there, as `read` reads it.
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

    /// That a key is missing which has no default.
    pub fn missing(&self, key: &'static str, want: &'static str) -> SettingError {
        SettingError::Missing { name: self.name.clone(), key, want }
    }

    /// Two settings that contradict each other.
    pub fn conflict(&self, why: impl Into<String>) -> SettingError {
        SettingError::Conflict { name: self.name.clone(), why: why.into() }
    }

    /// Ends the reading.
    ///
    /// # Errors
    /// A field is left that nobody looked for.
    pub fn finish(self) -> Result<(), SettingError> {
        match self.fields.into_keys().next() {
            None => Ok(()),
            Some(key) => Err(SettingError::UnknownKey { name: self.name, key, allowed: self.looked_for }),
        }
    }
}
