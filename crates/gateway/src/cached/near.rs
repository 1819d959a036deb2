//! What of a request's answer another one's may stand for: its neighbour is looked for, and a replica's answer held against the neighbour's.
//!
//! While nothing is served, a text is embedded beside its request's way to a replica and costs the client no time. Once something is, each request that the cache has no answer to
//! waits for its embedding.

use std::rc::Rc;
use std::sync::Arc;

use http::HeaderValue;
use plimsoll_model::Span;
use plimsoll_policy::NearUse;
use tokio::task::JoinHandle;

use crate::cache::flight::SharedFlight;
use crate::cache::semantic::endpoint::Asking;
use crate::cache::semantic::question::Question;
use crate::cache::semantic::{ComparedPair, answer};
use crate::cache::{Cache, CacheKey, limits_age};
use crate::proxy::{Call, Worker};
use crate::rules::Rules;

pub(super) struct Near {
    asked: Asked,
    held_against: HeldAgainst,
}

/// A request, once it is on its way.
#[derive(Clone)]
struct Asked {
    rules: Arc<Rules>,
    cache: Arc<Cache>,
    path: String,
    question: Question,
}

/// What a replica's answer is held against.
enum HeldAgainst {
    /// The nearest text's, which is being looked for.
    Looking(JoinHandle<Option<Neighbourhood>>),
    /// The nearest text's.
    Found(Option<Neighbourhood>),
    /// The one that the same request had before.
    Repeat(Arc<SharedFlight>),
}

/// Where a text lies.
struct Neighbourhood {
    vector: Box<[f32]>,
    /// The nearest text whose answer is kept, if there is one: how similar it is, its answer, and its age.
    nearest: Option<(f64, (Arc<SharedFlight>, Span))>,
    /// What becomes of the request by that.
    is_for: NearUse,
}

impl Near {
    /// Looks for the neighbour of a request that the cache has no answer to, and waits for it where its answer may be given.
    pub async fn look(
        worker: &Rc<Worker>,
        call: &Call,
        (cache, key): (&Arc<Cache>, CacheKey),
    ) -> Option<Near> {
        let semantic = cache.semantic()?;
        if cache.finds(key, call.terms.class, worker.pool.clock.now()) {
            return None;
        }
        let asked = Asked::new(call, cache).filter(|_| !limits_age(&call.message.headers))?;
        let may_serve = semantic.serves();
        let (looking, worker) = (asked.clone(), Rc::clone(worker));
        let looking =
            tokio::task::spawn_local(async move { looking.neighbourhood(&worker, key, may_serve).await });
        let held_against = match may_serve {
            true => HeldAgainst::Found(looking.await.ok().flatten()),
            false => HeldAgainst::Looking(looking),
        };
        Some(Near { asked, held_against })
    }

    /// The neighbour's answer, its age and how similar its text is, where the request gets that.
    pub fn serves(&mut self) -> Option<(Arc<SharedFlight>, Span, HeaderValue)> {
        let HeldAgainst::Found(Some(found)) = &mut self.held_against else { return None };
        let (similarity, (flight, age)) = found.nearest.take_if(|_| found.is_for == NearUse::Serve)?;
        Some((flight, age, HeaderValue::try_from(format!("{similarity:.4}")).ok()?))
    }

    /// A request whose answer is kept, and which is answered anew all the same, to see whether a replica says the same twice.
    pub fn repeats(call: &Call, cache: &Arc<Cache>, flight: &Arc<SharedFlight>) -> Option<Near> {
        let semantic = cache.semantic()?;
        let asked = Asked::new(call, cache)?;
        semantic.repeats().then(|| Near { asked, held_against: HeldAgainst::Repeat(Arc::clone(flight)) })
    }

    /// A replica's answer has come.
    pub async fn landed(self, worker: &Rc<Worker>, key: CacheKey, flight: &Arc<SharedFlight>) -> Option<()> {
        let Near { asked, held_against } = self;
        let semantic = asked.cache.semantic()?;
        flight.kept()?;
        let ours = answer::text(flight, &asked.path, semantic.longest_answer());
        let found = match held_against {
            HeldAgainst::Looking(looking) => looking.await.ok()?,
            HeldAgainst::Found(found) => found,
            HeldAgainst::Repeat(before) => {
                asked.compare(worker, ours.as_deref(), (&before, ComparedPair::Repeat, 1.0)).await;
                return None;
            }
        }?;
        if let (Some((similarity, (theirs, _))), NearUse::Shadow | NearUse::Audit) =
            (&found.nearest, found.is_for)
        {
            asked.compare(worker, ours.as_deref(), (theirs, ComparedPair::Near, *similarity)).await;
        }
        // What could not be compared is given to nobody.
        ours?;
        let now = worker.pool.clock.now();
        let is_kept = |key: &CacheKey| asked.cache.is_kept(key, now);
        semantic.remember((asked.question.context, key), found.vector, is_kept);
        Some(())
    }
}

impl Asked {
    fn new(call: &Call, cache: &Arc<Cache>) -> Option<Asked> {
        let message = &call.message;
        let path = message.path.path();
        let question = cache.question(path, &message.headers, &message.text, call.terms.tenant)?;
        Some(Asked {
            rules: Arc::clone(&call.rules),
            cache: Arc::clone(cache),
            path: path.to_owned(),
            question,
        })
    }

    fn asking<'a>(&'a self, worker: &'a Worker) -> Asking<'a> {
        Asking { upstreams: &worker.upstreams, rules: &self.rules, clock: worker.pool.clock }
    }

    async fn neighbourhood(&self, worker: &Worker, own: CacheKey, may_serve: bool) -> Option<Neighbourhood> {
        let semantic = self.cache.semantic()?;
        let vector = semantic.embed(&self.asking(worker), &self.question.text).await?;
        let now = worker.pool.clock.now();
        // Its own answer may have come meanwhile, and would prove nothing.
        let kept = |key: &CacheKey| if *key == own { None } else { self.cache.kept(key, now) };
        let nearest = semantic.nearest(&self.question.context, &vector, kept);
        let similarity = nearest.as_ref().map(|(similarity, _)| *similarity);
        Some(Neighbourhood { vector, nearest, is_for: semantic.decide(similarity, may_serve) })
    }

    /// Compares a replica's answer with another one and learns from it.
    async fn compare(
        &self,
        worker: &Worker,
        ours: Option<&str>,
        (theirs, pair, similarity): (&SharedFlight, ComparedPair, f64),
    ) -> Option<()> {
        let semantic = self.cache.semantic()?;
        let theirs = answer::text(theirs, &self.path, semantic.longest_answer())?;
        let same = semantic.same(&self.asking(worker), &self.question, (ours, &theirs)).await;
        semantic.compared(pair, similarity, same);
        Some(())
    }
}
