//! Configures the metrics endpoints that are scraped during the load.
//!
//! This is a part of the scenario, because a value from a scraped metric depends on the scrape interval.

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{SpanText, span_text};

/// Metrics endpoints to scrape; default: the one found on the target's host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeSpec {
    /// Find the metrics endpoint on the target's host if none is configured; default true.
    pub discover: bool,
    /// URLs of metrics endpoints, such as `http://gpu-3:9400/metrics` or, with a name, `gpu=http://gpu-3:9400/metrics`.
    pub pages: Vec<String>,
    /// Interval between two scrapes; default 1s.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub every: Span,
}

impl Default for ScrapeSpec {
    fn default() -> ScrapeSpec {
        ScrapeSpec { discover: true, pages: Vec::new(), every: Span::from_secs(1) }
    }
}
