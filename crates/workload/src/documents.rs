//! Documents of a rerank or score request, texts of a pooling, classify or embeddings request: how many and how long, as laws.
//!
//! `10`, `uniform:5,50`, `20*lognormal:120,0.6`: how many, and how long each. Without a length the tokens of the prompt are shared out among them, so
//! that `sizes.prompt` is what a server reads in all; with one, `sizes.prompt` is the query's. They are drawn under a key of the request's own, as
//! pictures are ([`crate::media`]), so that the rest of a schedule is the same with and without them.

use std::fmt;

use plimsoll_math::rng::Stream;
use plimsoll_model::Protocol;

use crate::material::Material;
use crate::sizes::Size;
use crate::units::MAX_TOKENS;
use crate::{SpecError, as_text};

/// Most documents of a request; Cohere takes a thousand, and warns. A draw beyond it is cut.
const COUNT_MAX: u32 = 10_000;

const WANT: &str = "how many documents, and how long each: 10, uniform:5,50 or 20*lognormal:120,0.6";

/// How many, and how long each.
#[derive(Clone, PartialEq, Debug)]
pub struct Documents {
    pub count: Size,
    /// Tokens of each; none = the prompt's are shared out.
    pub length: Option<Size>,
}

/// The documents of one request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Drawn {
    pub count: u32,
    /// Tokens of each, where they have a law of their own.
    pub lengths: Option<Vec<u32>>,
}

impl Drawn {
    /// Tokens that a server reads with a query of so many before each; none = as many as the prompt has.
    pub(crate) fn read_with(&self, query: u32) -> Option<u32> {
        let own: u64 = self.lengths.as_ref()?.iter().map(|tokens| u64::from(*tokens)).sum();
        // Room for the query with each is bounded like the rest.
        let query = query.min(MAX_TOKENS / self.count.max(1));
        let all = own + u64::from(self.count) * u64::from(query);
        Some(u32::try_from(all).unwrap_or(u32::MAX))
    }
}

impl Documents {
    /// Reads the written form.
    pub fn parse(text: &str) -> Result<Documents, SpecError> {
        let (count, length) = match text.split_once('*') {
            Some((count, length)) => (count, Some(Size::parse(length.trim())?)),
            None => (text, None),
        };
        Ok(Documents { count: Size::parse(count.trim())?, length })
    }

    /// What a rerank or score request has where nothing is said.
    pub fn usual() -> Documents {
        Documents { count: Size::Fixed(10), length: None }
    }

    /// The laws that it draws from.
    pub(crate) fn laws(&self) -> impl Iterator<Item = &Size> {
        std::iter::once(&self.count).chain(&self.length)
    }

    pub(crate) fn validate(&self, protocol: Protocol) -> Result<(), SpecError> {
        if !protocol.takes_texts() {
            // Earlier versions wrote a number into every scenario.
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

    /// The documents of a request.
    pub(crate) fn draw(&self, stream: &mut Stream, material: &Material) -> Result<Drawn, SpecError> {
        let count = self.count.draw(stream, material)?.clamp(1, COUNT_MAX);
        let mut left = MAX_TOKENS;
        let lengths = self.length.as_ref().map(|law| {
            // A request of more tokens than a prompt may have is cut.
            let mut one = || {
                let tokens = law.draw(stream, material)?.min(left).max(1);
                left = left.saturating_sub(tokens);
                Ok(tokens)
            };
            (0..count).map(|_| one()).collect::<Result<Vec<u32>, SpecError>>()
        });
        Ok(Drawn { count, lengths: lengths.transpose()? })
    }

    /// Mean tokens of a request whose query (without a length: all of whose prompt) has so many on average.
    pub fn mean_tokens(&self, prompt: f64, query: bool, material: &Material) -> Result<f64, SpecError> {
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
