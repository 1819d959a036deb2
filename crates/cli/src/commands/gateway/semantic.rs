//! Messages about the semantic cache: its settings, and changes of its state.

use std::sync::Arc;

use plimsoll_gateway::Reloader;
use plimsoll_gateway::cache::Cache;
use plimsoll_gateway::cache::semantic::{SameAnswer, Semantic, SemanticSpec};
use plimsoll_policy::{SimilarityRule, ThresholdStanding};
use plimsoll_report::figure::counted;

/// Describes the settings of the cache.
pub fn plan(spec: &SemanticSpec) -> String {
    let same = match &spec.same {
        SameAnswer::Text => "their words are".to_owned(),
        SameAnswer::Embedding(least) => format!("their embeddings are {least} similar"),
        SameAnswer::Judge(judge) => format!("{} at {} confirms it", judge.model, judge.url),
    };
    let fewest = SimilarityRule::fewest(spec.thresholds.len(), spec.max_false_hits, spec.confidence);
    format!(
        "Semantic cache: starts in shadow mode. It serves answers above the similarity at which at most {} are false with {} confidence, proven by {} or more comparisons. \
         Then {} of the similar requests are still compared. Answers are the same when {same}. Texts are embedded by {} at {}.",
        percent(spec.max_false_hits),
        percent(spec.confidence),
        counted(fewest, "near request"),
        percent(spec.audit),
        spec.embeddings.model,
        spec.embeddings.url,
    )
}

fn percent(share: f64) -> String {
    format!("{} %", (share * 1e6).round() / 1e4)
}

/// Reports when paraphrased prompts start or stop to get cached answers, and changes of the similarity
/// threshold.
#[derive(Default)]
pub struct SemanticWatch {
    cache: Option<Arc<Cache>>,
    before: Option<f64>,
}

impl SemanticWatch {
    /// Returns a message after a change.
    pub fn tick(&mut self, reloader: &Reloader) -> Option<String> {
        let cache = reloader.cache();
        let is_same = match (&cache, &self.cache) {
            (Some(now), Some(before)) => Arc::ptr_eq(now, before),
            _ => cache.is_none() && self.cache.is_none(),
        };
        if !is_same {
            (self.before, self.cache) = (None, cache);
        }
        let standing = self.cache.as_ref()?.semantic().and_then(Semantic::standing);
        let now = standing.map(|of| of.threshold);
        let before = std::mem::replace(&mut self.before, now);
        (now != before).then(|| match standing {
            Some(ThresholdStanding { threshold, compared, different, upper }) => format!(
                "semantic cache: gives answers from similarity {threshold} on; at most {} are false ({different} of {compared} compared)",
                percent(upper)
            ),
            None => "semantic cache: serves no answers, because its comparisons no longer prove enough; it continues to compare".to_owned(),
        })
    }
}
