//! The state that the requests of one serving thread share.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue, Method, Uri};
use http_body_util::BodyExt;
use plimsoll_math::rng::mix;
use plimsoll_model::{Arm, BudgetState};
use plimsoll_policy::{AdmissionSpec, HedgeSpec, split};
use tokio::sync::watch;

use super::context::RequestContext;
use super::{REQUEST_ID, forward};
use crate::active_config::ConfigHandle;
use crate::pool::ReplicaPool;
use crate::request::PromptBlocks;
use crate::stats::Stats;
use crate::traffic::TrafficRecorder;
use crate::upstream::Upstreams;

const MODELS: &str = "/v1/models";

/// The state that the requests of one thread share.
pub struct Worker {
    pub pool: Arc<ReplicaPool>,
    /// Connections of this thread to the replicas.
    pub upstreams: Rc<Upstreams>,
    pub stats: Arc<Stats>,
    pub rules: Arc<ConfigHandle>,
    pub admission: AdmissionSpec,
    /// Hedging settings; `None` if hedging is off.
    pub hedge: Option<HedgeSpec>,
    /// Counter of request numbers, shared by all threads.
    pub numbers: Arc<AtomicU64>,
    pub traffic: Option<Arc<TrafficRecorder>>,
    pub shadow: Option<ShadowTraffic>,
    pub traces: bool,
    /// Number of stop requests; above 0 the gateway stops.
    pub stop: watch::Receiver<u8>,
    /// Number of fallback replicas that a picker names after the choice.
    pub fallbacks: usize,
}

/// Replicas that get copies of requests and whose responses are discarded.
pub struct ShadowTraffic {
    /// Worker of the shadows, with separate counters and connections.
    pub worker: Rc<Worker>,
    /// Share of sessions that is copied.
    pub share: f64,
}

/// The parts of a request that change for its replica; `None` if unchanged.
#[derive(Default)]
pub(crate) struct TierRewrite {
    pub path: Option<Uri>,
    pub body: Option<bytes::Bytes>,
}

impl Worker {
    /// Returns the reason why the gateway is not ready, or `None` if it is ready.
    pub(crate) fn unready(&self) -> Option<&'static str> {
        let is_stopping = *self.stop.borrow() > 0;
        let stopping = is_stopping.then_some("the gateway stops");
        stopping.or_else(|| (!self.pool.any_usable()).then_some("no replica answers"))
    }

    /// Returns the client's request id, or a new one.
    pub(super) fn id(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(own) = headers.get(REQUEST_ID).filter(|own| own.len() <= 128) {
            return own.clone();
        }
        let number = self.numbers.fetch_add(1, Ordering::Relaxed);
        let seed = self.pool.clock.anchor().realtime_ns as u64;
        let text = format!("{:016x}", mix(seed.wrapping_add(number)));
        HeaderValue::from_str(&text).unwrap_or(HeaderValue::from_static("0"))
    }

    /// Returns the extent to which prompts are cut into blocks.
    pub(super) fn prompt_blocks(&self) -> PromptBlocks {
        match (&self.traffic, self.pool.needs_blocks) {
            (Some(_), _) => PromptBlocks::Whole,
            (None, true) => PromptBlocks::Blocks,
            (None, false) => PromptBlocks::No,
        }
    }

    /// Returns the merged model list, or the entry of a name with a fallback list, if one replica cannot answer.
    pub(crate) fn models(&self, context: &RequestContext) -> Option<String> {
        let request = &context.request;
        match request.path.path().strip_prefix(MODELS).filter(|_| request.method == Method::GET)? {
            "" => self.pool.models_page(),
            one => self.pool.tiers.entry(one.strip_prefix('/')?).map(ToString::to_string),
        }
    }

    /// Returns the path or body with the model of the chosen tier. A renamed body is the decompressed text.
    pub(crate) fn rewrite(&self, context: &RequestContext, tier: u32) -> TierRewrite {
        let (request, parsed) = (&context.request, &context.parsed);
        let Some(tier) = self.pool.tiers.of(parsed, tier) else { return TierRewrite::default() };
        match parsed.is_model_in_path {
            true => TierRewrite { path: tier.named_in_path(&request.path, parsed), body: None },
            false if request.body.is_empty() => TierRewrite::default(),
            false => TierRewrite { path: None, body: Some(tier.named_in(&request.text, parsed)) },
        }
    }

    /// Sends a copy to a shadow if the session is in the shadow share and the active SLO budget is green. The result
    /// is discarded.
    pub(crate) fn mirror(&self, context: &RequestContext) {
        let Some(shadow) = &self.shadow else { return };
        let is_green = self.budget_state().is_none_or(|state| state == BudgetState::Green);
        let is_one = split::arm(mix(context.split), shadow.share) == Arm::Canary;
        // A shadow does not store objects that another replica created.
        let goes_on = context.parsed.object.is_some();
        if context.request.method != Method::POST || !is_green || !is_one || goes_on {
            return;
        }
        let worker = Rc::clone(&shadow.worker);
        let copy = context.copy(&worker, worker.pool.clock.now());
        tokio::task::spawn_local(async move {
            let mut body = forward(&worker, copy).await.into_body();
            // The response is read as by a client, and discarded.
            while let Some(Ok(_)) = body.frame().await {}
        });
    }

    /// Returns the state of the active SLO budget, or `None` without a budget.
    pub(crate) fn budget_state(&self) -> Option<BudgetState> {
        self.traffic.as_ref().and_then(|traffic| traffic.budget.state())
    }
}
