//! Semantic lookup of a request: searches its nearest neighbour in meaning, and compares a replica's response with
//! the neighbour's.
//!
//! While no cached responses are served, the embedding runs concurrently with the request and adds no latency. Once
//! they are served, each cache miss waits for its embedding.

use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;
use plimsoll_model::Span;
use plimsoll_policy::NearUse;
use tokio::task::JoinHandle;

use crate::active_config::ActiveConfig;
use crate::cache::flight::SharedResponse;
use crate::cache::semantic::endpoint::SideModelCall;
use crate::cache::semantic::question::SemanticQuery;
use crate::cache::semantic::{ComparedPair, answer};
use crate::cache::{Cache, CacheKey, limits_age};
use crate::proxy::{RequestContext, Worker};

pub(super) struct SemanticLookup {
    asked: LookupRequest,
    held_against: ComparisonTarget,
}

/// The parts of a request that outlive the request.
#[derive(Clone)]
struct LookupRequest {
    rules: Arc<ActiveConfig>,
    cache: Arc<Cache>,
    path: String,
    question: SemanticQuery,
}

/// The reference that a replica's response is compared with.
enum ComparisonTarget {
    /// The nearest text's response; the lookup is in progress.
    Looking(JoinHandle<Option<NeighbourMatch>>),
    /// The nearest text's response; `None` if the lookup failed.
    Found(Option<NeighbourMatch>),
    /// The earlier response to the identical request.
    Repeat(Arc<SharedResponse>),
}

/// The embedding of a text and its nearest neighbour.
struct NeighbourMatch {
    vector: Box<[f32]>,
    /// Similarity, response and age of the nearest text with a cached response; `None` if there is no such text.
    nearest: Option<(f64, (Arc<SharedResponse>, Span))>,
    /// Decision on the use of the neighbour.
    is_for: NearUse,
}

impl SemanticLookup {
    /// Starts the lookup after a cache miss. Waits for the result if the neighbour's response may be served.
    pub async fn start(
        worker: &Rc<Worker>,
        context: &RequestContext,
        cache: &Arc<Cache>,
        key: CacheKey,
    ) -> Option<SemanticLookup> {
        let semantic = cache.semantic()?;
        if cache.finds(key, context.terms.class, worker.pool.clock.now()) {
            return None;
        }
        let asked = LookupRequest::new(context, cache).filter(|_| !limits_age(&context.request.headers))?;
        let may_serve = semantic.serves();
        let (looking, worker) = (asked.clone(), Rc::clone(worker));
        let looking =
            tokio::task::spawn_local(async move { looking.neighbourhood(&worker, key, may_serve).await });
        let held_against = match may_serve {
            true => ComparisonTarget::Found(looking.await.ok().flatten()),
            false => ComparisonTarget::Looking(looking),
        };
        Some(SemanticLookup { asked, held_against })
    }

    /// Returns the neighbour's response, its age and the similarity, if the response may be served.
    pub fn serves(&mut self) -> Option<(Arc<SharedResponse>, Span, HeaderValue)> {
        let ComparisonTarget::Found(Some(found)) = &mut self.held_against else { return None };
        let (similarity, (flight, age)) = found.nearest.take_if(|_| found.is_for == NearUse::Serve)?;
        Some((flight, age, HeaderValue::try_from(format!("{similarity:.4}")).ok()?))
    }

    /// Returns a lookup if a cached response is audited: a replica answers the identical request again.
    pub fn repeats(
        context: &RequestContext,
        cache: &Arc<Cache>,
        flight: &Arc<SharedResponse>,
    ) -> Option<SemanticLookup> {
        let semantic = cache.semantic()?;
        let asked = LookupRequest::new(context, cache)?;
        semantic
            .repeats()
            .then(|| SemanticLookup { asked, held_against: ComparisonTarget::Repeat(Arc::clone(flight)) })
    }

    /// Processes a replica's response: compares it with the reference and adds it to the index.
    pub async fn landed(
        self,
        worker: &Rc<Worker>,
        key: CacheKey,
        flight: &Arc<SharedResponse>,
    ) -> Option<()> {
        let SemanticLookup { asked, held_against } = self;
        let semantic = asked.cache.semantic()?;
        flight.kept()?;
        let ours = answer::text(flight, &asked.path, semantic.longest_answer());
        let found = match held_against {
            ComparisonTarget::Looking(looking) => looking.await.ok()?,
            ComparisonTarget::Found(found) => found,
            ComparisonTarget::Repeat(before) => {
                asked.compare(worker, ours.as_deref(), (&before, ComparedPair::Repeat, 1.0)).await;
                return None;
            }
        }?;
        if let (Some((similarity, (theirs, _))), NearUse::Shadow | NearUse::Audit) =
            (&found.nearest, found.is_for)
        {
            asked.compare(worker, ours.as_deref(), (theirs, ComparedPair::Near, *similarity)).await;
        }
        // A response that cannot be compared is never shared with similar requests.
        ours?;
        let now = worker.pool.clock.now();
        let is_kept = |key: &CacheKey| asked.cache.is_kept(key, now);
        semantic.remember((asked.question.context, key), found.vector, is_kept);
        Some(())
    }
}

impl LookupRequest {
    fn new(context: &RequestContext, cache: &Arc<Cache>) -> Option<LookupRequest> {
        let message = &context.request;
        let path = message.path.path();
        let question = cache.question(path, &message.headers, &message.text, context.terms.tenant)?;
        Some(LookupRequest {
            rules: Arc::clone(&context.rules),
            cache: Arc::clone(cache),
            path: path.to_owned(),
            question,
        })
    }

    fn asking<'a>(&'a self, worker: &'a Worker) -> SideModelCall<'a> {
        SideModelCall { upstreams: &worker.upstreams, rules: &self.rules, clock: worker.pool.clock }
    }

    async fn neighbourhood(&self, worker: &Worker, own: CacheKey, may_serve: bool) -> Option<NeighbourMatch> {
        let semantic = self.cache.semantic()?;
        let vector = semantic.embed(&self.asking(worker), &self.question.text).await?;
        let now = worker.pool.clock.now();
        // The request's own response is excluded, because a comparison with itself proves nothing.
        let kept = |key: &CacheKey| if *key == own { None } else { self.cache.kept(key, now) };
        let nearest = semantic.nearest(&self.question.context, &vector, kept);
        let similarity = nearest.as_ref().map(|(similarity, _)| *similarity);
        Some(NeighbourMatch { vector, nearest, is_for: semantic.decide(similarity, may_serve) })
    }

    /// Compares a replica's response with the reference and learns from the result.
    async fn compare(
        &self,
        worker: &Worker,
        ours: Option<&str>,
        (theirs, pair, similarity): (&SharedResponse, ComparedPair, f64),
    ) -> Option<()> {
        let semantic = self.cache.semantic()?;
        let theirs = answer::text(theirs, &self.path, semantic.longest_answer())?;
        let same = semantic.same(&self.asking(worker), &self.question, (ours, &theirs)).await;
        semantic.compared(pair, similarity, same);
        Some(())
    }
}
