//! Configures the metrics endpoints that are scraped during the load.
//!
//! This is a part of the scenario, because a value from a scraped metric depends on the scrape interval.

use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::units::{SpanText, span_text};

/// Usual ports of DCGM exporter, AMD's device metrics exporter, node_exporter and cAdvisor.
pub const EXPORTER_PORTS: [u16; 4] = [9400, 5000, 9100, 8080];

/// Metrics endpoints to scrape; default: the one found on the target's host.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScrapeSpec {
    /// Find the metrics endpoint on the target's host if none is configured; default true.
    pub discover: bool,
    /// URLs of metrics endpoints, such as `http://gpu-3:9400/metrics` or, with a name, `gpu=http://gpu-3:9400/metrics`.
    pub pages: Vec<String>,
    /// Ports of the target's host at which `discover` looks for exporters of GPUs, CPUs and containers. Its address must be
    /// loopback or private. Default: the usual ports of DCGM exporter, AMD's exporter, node_exporter and cAdvisor.
    #[serde(skip_serializing_if = "is_usual")]
    pub ports: Vec<u16>,
    /// Interval between two scrapes; default 1s.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub every: Span,
}

impl Default for ScrapeSpec {
    fn default() -> ScrapeSpec {
        let ports = EXPORTER_PORTS.to_vec();
        ScrapeSpec { discover: true, pages: Vec::new(), ports, every: Span::from_secs(1) }
    }
}

/// Left out of a stored scenario, so that scenarios of earlier versions stay equal.
fn is_usual(ports: &[u16]) -> bool {
    ports == EXPORTER_PORTS
}
