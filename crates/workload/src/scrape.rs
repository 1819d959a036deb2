//! Which pages of servers are looked at while the load runs, and how often.
//!
//! It is a part of the scenario, because a figure read off a page means nothing without how often somebody looked.

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{SpanText, span_text};

/// What is scraped. No pages and `discover`: what the endpoint's own host shows.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeSpec {
    /// Look for the endpoint's own page where none is named.
    pub discover: bool,
    /// Pages, such as `http://gpu-3:9400/metrics` or, with a name of its own, `gpu=http://gpu-3:9400/metrics`.
    pub pages: Vec<String>,
    /// How often.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub every: Span,
}

impl Default for ScrapeSpec {
    fn default() -> ScrapeSpec {
        ScrapeSpec { discover: true, pages: Vec::new(), every: Span::from_secs(1) }
    }
}
