//! Semantic cache: returns the cached response of a request with the same meaning, above a similarity threshold that
//! is proven and not configured.
//!
//! The semantic cache stores no responses. It indexes the texts whose responses the [cache](super) stores and finds
//! the nearest one. [`SimilarityRule`] decides whether a similarity is sufficient, and learns from compared
//! responses.

pub mod answer;
pub mod endpoint;
pub mod index;
pub mod question;
mod spec;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, RwLock};

use http::HeaderName;
use plimsoll_math::rng::Stream;
use plimsoll_policy::setting::SettingError;
use plimsoll_policy::{NearUse, SimilarityRule, ThresholdStanding};
use plimsoll_wire::prometheus::PrometheusPage;

use super::CacheKey;
use endpoint::{ASKED, SideModel, SideModelCall};
use index::{Index, cosine};
use question::SemanticQuery;
use spec::{EMBEDDINGS, JUDGE};
pub use spec::{EndpointSpec, SameAnswer, SemanticSpec};

/// Response header with the similarity between the request and the request that was answered.
pub(crate) const SIMILARITY: HeaderName = HeaderName::from_static("x-plimsoll-similarity");
/// Limit on the length of a compared response in bytes.
const LONGEST_ANSWER: usize = 32 << 10;

/// The metric labels of the outcomes of semantic lookups.
const USES: [(Option<NearUse>, &str); 6] = [
    (Some(NearUse::Far), "far"),
    (Some(NearUse::Shadow), "shadow"),
    (Some(NearUse::Audit), "audit"),
    (Some(NearUse::Serve), "served"),
    (Some(NearUse::Under), "under"),
    (None, "not_embedded"),
];

/// The relation between two compared responses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ComparedPair {
    /// Responses to a text and to its nearest neighbour.
    Near,
    Repeat,
}

/// The result of a comparison of two responses.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum AnswerMatch {
    Seen(bool),
    /// Answer of an auxiliary server; `None` if the server did not answer.
    Asked(Option<bool>),
}

const PAIRS: [(ComparedPair, &str); 2] = [(ComparedPair::Near, "near"), (ComparedPair::Repeat, "repeat")];
const SAME: [(Option<bool>, &str); 3] = [(Some(true), "yes"), (Some(false), "no"), (None, "unknown")];

pub struct Semantic {
    spec: SemanticSpec,
    embedder: SideModel,
    judge: Option<SideModel>,
    index: RwLock<Index>,
    rule: Mutex<SimilarityRule>,
    /// Set if the last comparison failed because an auxiliary server did not answer.
    blind: AtomicBool,
    repeats: Mutex<Stream>,
    uses: [AtomicU64; USES.len()],
    compared: [[AtomicU64; SAME.len()]; PAIRS.len()],
}

impl Semantic {
    /// Returns an empty semantic cache. Fails if the URL of an auxiliary server is invalid.
    pub fn new(spec: &SemanticSpec, seed: u64) -> Result<Semantic, SettingError> {
        let bound = (spec.max_false_hits, spec.confidence);
        Ok(Semantic {
            embedder: SideModel::new(EMBEDDINGS, &spec.embeddings)?,
            judge: spec.judge().map(|judge| SideModel::new(JUDGE, judge)).transpose()?,
            index: RwLock::new(Index::new(spec.entries)),
            rule: Mutex::new(SimilarityRule::new(&spec.thresholds, bound, spec.audit, seed)),
            blind: AtomicBool::new(false),
            repeats: Mutex::new(Stream::new(seed, "repeats", 0)),
            uses: Default::default(),
            compared: Default::default(),
            spec: spec.clone(),
        })
    }

    pub fn spec(&self) -> &SemanticSpec {
        &self.spec
    }

    fn rule(&self) -> MutexGuard<'_, SimilarityRule> {
        self.rule.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns whether cached responses are served. None is served while comparisons fail, because the share of false
    /// hits is unknown then.
    pub fn serves(&self) -> bool {
        !self.blind.load(Ordering::Relaxed) && self.rule().in_force().is_some()
    }

    /// Returns the active threshold and its statistics; `None` if no responses are served.
    pub fn standing(&self) -> Option<ThresholdStanding> {
        if self.blind.load(Ordering::Relaxed) {
            return None;
        }
        let rule = self.rule();
        let in_force = rule.in_force()?;
        rule.standings().find(|of| of.threshold >= in_force)
    }

    /// Decides and counts the use of a neighbour with this similarity. `None` means no neighbour. `may_serve` is
    /// false if the request already went to a replica.
    pub fn decide(&self, similarity: Option<f64>, may_serve: bool) -> NearUse {
        let blind = self.blind.load(Ordering::Relaxed);
        let decided = match similarity.map(|similarity| self.rule().decide(similarity)) {
            Some(NearUse::Serve | NearUse::Under) if blind => NearUse::Shadow,
            Some(NearUse::Serve) if !may_serve => NearUse::Under,
            other => other.unwrap_or(NearUse::Far),
        };
        self.count(Some(decided));
        decided
    }

    fn count(&self, what: Option<NearUse>) {
        let place = USES.iter().position(|(of, _)| *of == what);
        place.iter().for_each(|place| {
            self.uses[*place].fetch_add(1, Ordering::Relaxed);
        });
    }

    /// Returns whether an identical, already answered request goes to a replica again, to measure how often answers
    /// differ.
    pub fn repeats(&self) -> bool {
        self.repeats.lock().unwrap_or_else(PoisonError::into_inner).chance(self.spec.audit)
    }

    /// Returns the embedding of a text. A failure is counted.
    pub async fn embed(&self, asking: &SideModelCall<'_>, text: &str) -> Option<Box<[f32]>> {
        let vector = self.embedder.embed(asking, &[text]).await.and_then(|mut each| each.pop());
        if vector.is_none() {
            self.count(None);
        }
        vector
    }

    /// Returns the nearest text of this context whose response is cached, and its similarity. `kept` returns the
    /// cached response of a key.
    pub fn nearest<T>(
        &self,
        context: &[u8; 32],
        vector: &[f32],
        kept: impl Fn(&CacheKey) -> Option<T>,
    ) -> Option<(f64, T)> {
        // Four attempts suffice, because `remember` removes most evicted entries.
        for _ in 0..4 {
            let found = self.index.read().unwrap_or_else(PoisonError::into_inner).nearest(context, vector);
            let (similarity, key) = found?;
            match kept(&key) {
                Some(kept) => return Some((similarity, kept)),
                None => self.index.write().unwrap_or_else(PoisonError::into_inner).forget(context, &key),
            }
        }
        None
    }

    /// Adds a text whose response is now cached.
    pub fn remember(
        &self,
        (context, key): ([u8; 32], CacheKey),
        vector: Box<[f32]>,
        is_kept: impl Fn(&CacheKey) -> bool,
    ) {
        let mut index = self.index.write().unwrap_or_else(PoisonError::into_inner);
        index.forget_oldest(is_kept);
        index.insert(context, key, vector);
    }

    /// Returns the limit on comparable responses in bytes. A longer response is never shared with similar requests.
    pub(crate) fn longest_answer(&self) -> usize {
        match self.spec.same {
            SameAnswer::Text | SameAnswer::Judge(_) => LONGEST_ANSWER,
            SameAnswer::Embedding(_) => self.spec.text_bytes,
        }
    }

    /// Compares two responses to a question. `ours` is `None` without comparable text; the responses then count as
    /// different.
    pub async fn same(
        &self,
        asking: &SideModelCall<'_>,
        question: &SemanticQuery,
        (ours, theirs): (Option<&str>, &str),
    ) -> AnswerMatch {
        let Some(ours) = ours else { return AnswerMatch::Seen(false) };
        if answer::same_words(ours, theirs) {
            return AnswerMatch::Seen(true);
        }
        let embedded = async |least: f64| {
            let each = self.embedder.embed(asking, &[ours, theirs]).await?;
            let [ours, theirs] = &each[..] else { return None };
            Some(cosine(ours, theirs)? >= least)
        };
        match (&self.spec.same, &self.judge) {
            (SameAnswer::Embedding(least), _) => AnswerMatch::Asked(embedded(*least).await),
            (SameAnswer::Judge(_), Some(judge)) => {
                AnswerMatch::Asked(judge.judge(asking, &question.text, [ours, theirs]).await)
            }
            (SameAnswer::Text | SameAnswer::Judge(_), _) => AnswerMatch::Seen(false),
        }
    }

    /// Records a comparison of two responses. `similarity` is that of the two requests.
    pub fn compared(&self, pair: ComparedPair, similarity: f64, found: AnswerMatch) {
        let same = match found {
            AnswerMatch::Seen(same) => Some(same),
            AnswerMatch::Asked(same) => {
                self.blind.store(same.is_none(), Ordering::Relaxed);
                same
            }
        };
        let places =
            (PAIRS.iter().position(|(of, _)| *of == pair), SAME.iter().position(|(of, _)| *of == same));
        if let (Some(pair), Some(same)) = places {
            self.compared[pair][same].fetch_add(1, Ordering::Relaxed);
        }
        // Learning pauses while the server does not answer. Otherwise only equal texts would count, and the bound
        // would be too optimistic.
        if let (ComparedPair::Near, Some(same), false) = (pair, same, self.blind.load(Ordering::Relaxed)) {
            self.rule().learn(similarity, !same);
        }
    }

    /// Writes the metrics to a Prometheus page.
    pub fn write(&self, page: &mut PrometheusPage) {
        self.write_counts(page);
        let texts = self.index.read().unwrap_or_else(PoisonError::into_inner).len();
        page.gauge("plimsoll_gateway_semantic_texts", "Stored prompts.", [([], texts as f64)]);
        let (serving, standings): (_, Vec<ThresholdStanding>) =
            (self.standing(), self.rule().standings().collect());
        let help = "1: the cache answers similar prompts.";
        page.gauge("plimsoll_gateway_semantic_serving", help, [([], f64::from(u8::from(serving.is_some())))]);
        if let Some(serving) = serving {
            let help = "Minimum similarity of an answered prompt.";
            page.gauge("plimsoll_gateway_semantic_threshold", help, [([], serving.threshold)]);
        }
        let names: Vec<String> = standings.iter().map(|of| of.threshold.to_string()).collect();
        let mut each = |name: &str, help: &str, value: &dyn Fn(&ThresholdStanding) -> f64| {
            let of =
                names.iter().zip(&standings).map(|(name, of)| ([("threshold", name.as_str())], value(of)));
            page.gauge(name, help, of);
        };
        let help = "Upper bound of the share of false hits at or over a similarity.";
        each("plimsoll_gateway_semantic_false_hits_bound", help, &|of| of.upper);
        let help = "Comparisons at or over a similarity that its bound uses.";
        each("plimsoll_gateway_semantic_window_compared", help, &|of| of.compared as f64);
        let help = "Comparisons of the bound with different answers.";
        each("plimsoll_gateway_semantic_window_false", help, &|of| of.different as f64);
    }

    fn write_counts(&self, page: &mut PrometheusPage) {
        let value = |count: &AtomicU64| count.load(Ordering::Relaxed) as f64;
        let uses = USES.iter().zip(&self.uses).map(|((_, name), count)| ([("use", *name)], value(count)));
        let help = "Requests with a similar earlier prompt, by outcome.";
        page.counter("plimsoll_gateway_semantic_requests_total", help, uses);
        let compared = PAIRS.iter().zip(&self.compared).flat_map(|((_, pair), counts)| {
            SAME.iter()
                .zip(counts)
                .map(|((_, same), count)| ([("pair", *pair), ("same", *same)], value(count)))
        });
        let help = "Compared pairs of answers: to two similar prompts, or to one repeated request.";
        page.counter("plimsoll_gateway_semantic_compared_total", help, compared);
        let endpoints = [Some(&self.embedder), self.judge.as_ref()].into_iter().flatten();
        let asked = endpoints.flat_map(|of| {
            ASKED.iter().zip(of.counts()).map(|(what, n)| ([("endpoint", of.name()), ("outcome", *what)], n))
        });
        let help = "Requests to the embedding and judge endpoints, by outcome.";
        page.counter("plimsoll_gateway_semantic_asked_total", help, asked);
    }
}
