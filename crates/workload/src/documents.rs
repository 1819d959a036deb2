//! Draws the documents of a rerank or score request, and the texts of a pooling, classify or embeddings request.
//!
//! The text form has a number and a length: `10`, `uniform:5,50`, `20*lognormal:120,0.6`. Without a length, the prompt's
//! tokens are divided among the documents, so `sizes.prompt` is all that a server reads. With a length, `sizes.prompt` is
//! the query's length. Documents are drawn under a separate key per request, as images are ([`crate::media`]). The rest of
//! a schedule is therefore equal with and without them.

use std::fmt;

use plimsoll_math::rng::Stream;
use plimsoll_model::Protocol;

use crate::material::ParsedFiles;
use crate::sizes::Size;
use crate::units::MAX_TOKENS;
use crate::{SpecError, as_text};

/// Most documents of a request; larger draws are cut. Cohere accepts a thousand, with a warning.
const COUNT_MAX: u32 = 10_000;

const WANT: &str = "how many documents, and how long each: 10, uniform:5,50 or 20*lognormal:120,0.6";

/// The distributions of the number and length of documents.
#[derive(Clone, PartialEq, Debug)]
pub struct Documents {
    pub count: Size,
    /// Tokens per document; `None` = the prompt's tokens are divided among the documents.
    pub length: Option<Size>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct DrawnDocuments {
    pub count: u32,
    /// Tokens of each document; `None` = the prompt's tokens are divided.
    pub lengths: Option<Vec<u32>>,
}

impl DrawnDocuments {
    /// Returns the tokens that a server reads with a query of `query` tokens before each document; `None` = the tokens of
    /// the prompt.
    pub(crate) fn read_with(&self, query: u32) -> Option<u32> {
        let own: u64 = self.lengths.as_ref()?.iter().map(|tokens| u64::from(*tokens)).sum();
        // Bounded, because the query is repeated for each document.
        let query = query.min(MAX_TOKENS / self.count.max(1));
        let all = own + u64::from(self.count) * u64::from(query);
        Some(u32::try_from(all).unwrap_or(u32::MAX))
    }
}

impl Documents {
    /// Parses the text form, for example `20*lognormal:120,0.6`.
    pub fn parse(text: &str) -> Result<Documents, SpecError> {
        let (count, length) = match text.split_once('*') {
            Some((count, length)) => (count, Some(Size::parse(length.trim())?)),
            None => (text, None),
        };
        Ok(Documents { count: Size::parse(count.trim())?, length })
    }

    /// Returns the default for rerank and score requests: 10 documents.
    pub fn usual() -> Documents {
        Documents { count: Size::Fixed(10), length: None }
    }

    /// Returns the distributions of count and length.
    pub(crate) fn laws(&self) -> impl Iterator<Item = &Size> {
        std::iter::once(&self.count).chain(&self.length)
    }

    pub(crate) fn validate(&self, protocol: Protocol) -> Result<(), SpecError> {
        if !protocol.takes_texts() {
            // Earlier versions wrote a number into every scenario, so a bare number is accepted.
            return match self.length {
                Some(_) => Err(SpecError::Conflict {
                    path: String::new(),
                    what: format!(
                        "{} requests carry no documents; rerank, score, pooling, classify and embeddings do",
                        protocol.name()
                    ),
                }),
                None => Ok(()),
            };
        }
        let few = match (&self.count, &self.length) {
            (Size::Fixed(n) | Size::Uniform(_, n), _) if !(1..=COUNT_MAX).contains(n) => true,
            (_, Some(Size::Fixed(0))) => true,
            _ => false,
        };
        if few {
            return Err(SpecError::value(
                "",
                self,
                &format!("1 to {COUNT_MAX} documents of at least 1 token"),
            ));
        }
        Ok(())
    }

    /// Draws the documents of a request.
    pub(crate) fn draw(
        &self,
        stream: &mut Stream,
        material: &ParsedFiles,
    ) -> Result<DrawnDocuments, SpecError> {
        let count = self.count.draw(stream, material)?.clamp(1, COUNT_MAX);
        let mut left = MAX_TOKENS;
        let lengths = self.length.as_ref().map(|law| {
            // Cut, because a prompt's tokens are limited.
            let mut one = || {
                let tokens = law.draw(stream, material)?.min(left).max(1);
                left = left.saturating_sub(tokens);
                Ok(tokens)
            };
            (0..count).map(|_| one()).collect::<Result<Vec<u32>, SpecError>>()
        });
        Ok(DrawnDocuments { count, lengths: lengths.transpose()? })
    }

    /// Returns the mean tokens of a request, given the mean tokens of its query (without a length: of its prompt).
    pub fn mean_tokens(&self, prompt: f64, query: bool, material: &ParsedFiles) -> Result<f64, SpecError> {
        let Some(length) = &self.length else { return Ok(prompt) };
        let with = if query { prompt } else { 0.0 };
        Ok(self.count.mean(material)? * (length.mean(material)? + with))
    }
}

impl fmt::Display for Documents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.length {
            Some(length) => write!(f, "{}*{length}", self.count),
            None => write!(f, "{}", self.count),
        }
    }
}

as_text!(Documents, ["string", "integer"], "documents", WANT, ["10", "20*lognormal:120,0.6"]);
