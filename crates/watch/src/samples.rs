//! Rows of the scraper, of which only what is needed is kept.

use std::collections::HashMap;

use plimsoll_measure::server_side::{FAILED, SCRAPE, ServerSide};
use plimsoll_model::{At, Sample};

/// See the module.
#[derive(Clone, Default, Debug)]
pub(crate) struct Samples(Vec<Sample>);

impl Samples {
    /// Takes a row.
    pub fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// What they say.
    pub fn read(&self) -> ServerSide {
        ServerSide::read(&self.0)
    }

    /// Forgets what lies before, but for the values that stand then.
    pub fn forget_before(&mut self, at: At) {
        let mut last: HashMap<(String, String, String), Sample> = HashMap::new();
        let mut kept = Vec::with_capacity(self.0.len());
        for sample in self.0.drain(..) {
            let is_mark = sample.name == SCRAPE || sample.name == FAILED;
            if sample.at >= at {
                kept.push(sample);
            } else if !is_mark {
                last.insert((sample.source.clone(), sample.name.clone(), sample.labels.clone()), sample);
            }
        }
        // Known at the first scrape that is kept: a value stands until it changes.
        let first =
            kept.iter().filter(|sample| sample.name == SCRAPE).map(|sample| sample.at).min().unwrap_or(at);
        self.0 = last
            .into_values()
            .filter(|sample| !sample.value.is_nan())
            .map(|s| Sample { at: first, ..s })
            .collect();
        self.0.extend(kept);
        self.0.sort_by_key(|sample| sample.at);
    }
}
