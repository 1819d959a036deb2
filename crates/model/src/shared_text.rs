//! Provides text that many rows share, with one copy in memory.

use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, LazyLock};

use serde::{Deserialize, Serialize};

/// A text whose clones share one allocation, because each sample of a series repeats its name and labels. It has the size of one
/// pointer, because a run of hours has millions of samples with three texts each.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct SharedText(Arc<Box<str>>);

impl SharedText {
    /// Returns the text as a string slice.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Default for SharedText {
    /// Returns the empty text, whose clones share one allocation too.
    fn default() -> SharedText {
        static EMPTY: LazyLock<SharedText> = LazyLock::new(|| "".into());
        EMPTY.clone()
    }
}

impl Deref for SharedText {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for SharedText {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl From<&str> for SharedText {
    fn from(text: &str) -> SharedText {
        SharedText(Arc::new(text.into()))
    }
}

impl From<String> for SharedText {
    fn from(text: String) -> SharedText {
        SharedText(Arc::new(text.into()))
    }
}

impl From<SharedText> for String {
    fn from(text: SharedText) -> String {
        text.as_str().to_owned()
    }
}

impl PartialEq<str> for SharedText {
    fn eq(&self, text: &str) -> bool {
        self.as_str() == text
    }
}

impl PartialEq<&str> for SharedText {
    fn eq(&self, text: &&str) -> bool {
        self.as_str() == *text
    }
}

impl fmt::Display for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self)
    }
}

impl fmt::Debug for SharedText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}
