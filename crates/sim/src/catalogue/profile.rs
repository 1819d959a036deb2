//! Named engines with the derivation of their figures.
//!
//! The derivation is computed from the specification on request, so that it always shows the figures of the
//! simulation.

use std::fmt::Write as _;

use crate::catalogue::batch_profiles;
use plimsoll_workload::closest;

use crate::catalogue::{self, NEAREST, list};
use crate::engine::scheduler::policy::PolicySpec;
use crate::engine::step_time::StepModel;
use crate::spec::error::{BLOCK_TOKENS, SimSpecError};
use crate::spec::law::LawSpec;
use crate::spec::{BatchingSpec, CannedSpec, EngineSpec, LinearSpec, ModeSpec, QueueSpec, StepSpec};

pub use crate::catalogue::list::{decode_step_ms, prefill_step_ms};

#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    pub name: String,
    pub summary: String,
    pub spec: EngineSpec,
}

/// Returns every profile in display order.
pub fn all() -> Vec<Profile> {
    let mut all = vec![
        profile("demo", "a small fast model, for the demonstration on any two cores", demo()),
        profile("canned", "drawn times at any load: TTFT 150 ms, gaps 20 ms (medians)", canned()),
        profile("mm8", "queue: 8 servers, exponential service of mean 10 ms", queue(8, exponential(10.0))),
        profile(
            "md8",
            "queue: 8 servers, every service 10 ms",
            queue(8, LawSpec::Deterministic { ms: 10.0 }),
        ),
        profile("mm4", "queue: 4 servers, exponential service of mean 10 ms", queue(4, exponential(10.0))),
    ];
    all.extend(list::CHECKED.iter().filter_map(|name| pair(name).ok()));
    all.extend(batch_profiles::all());
    all
}

/// Returns the profile of this name.
///
/// # Errors
/// Fails if there is none; the error names the unknown part and similar names.
pub fn find(name: &str) -> Result<Profile, SimSpecError> {
    let all = all();
    if let Some(listed) = all.iter().find(|profile| profile.name == name) {
        return Ok(listed.clone());
    }
    if name.contains('@') {
        return pair(name);
    }
    let nearest = closest(name, all.iter().map(|profile| profile.name.as_str()), NEAREST).join(", ");
    Err(SimSpecError::UnknownProfile { asked: name.to_owned(), why: format!("nearest: {nearest}") })
}

/// Returns a model on a GPU by name.
fn pair(name: &str) -> Result<Profile, SimSpecError> {
    let unknown = |why: String| SimSpecError::UnknownProfile { asked: name.to_owned(), why };
    let spec = catalogue::by_name(name).ok_or_else(|| unknown("it has no @".to_owned()))?;
    let spec = spec.map_err(|e| match e {
        SimSpecError::Unknown { what, asked, nearest } => {
            unknown(format!("no {what} {asked:?}, nearest: {nearest}"))
        }
        other => other,
    })?;
    let summary = list::summary(&spec);
    Ok(Profile { name: name.to_owned(), summary, spec })
}

impl Profile {
    /// Returns the origin of the figures as lines of text.
    pub fn derivation(&self) -> String {
        match &self.spec.mode {
            ModeSpec::Canned(canned) => format!(
                "first token after {}\nthen gaps of {}\nshaped after 2000 streams of a real server: p99 of the first \
                 token 2.5 times, of gaps 1.8 times the median\n",
                law_text(&canned.ttft),
                law_text(&canned.gap)
            ),
            ModeSpec::Queue(queue) => format!(
                "{} servers, service {}: capacity {:.0} requests/s\n",
                queue.servers,
                law_text(&queue.service),
                f64::from(queue.servers) / queue.service.mean_ms() * 1e3
            ),
            ModeSpec::Batching(batching) => batching_text(batching),
            ModeSpec::Dynamic(dynamic) => batch_profiles::derivation(&self.name, dynamic),
        }
    }
}

fn profile(name: &str, summary: &str, mode: ModeSpec) -> Profile {
    let spec = EngineSpec { name: name.to_owned(), mode };
    Profile { name: name.to_owned(), summary: summary.to_owned(), spec }
}

/// The engine of the demonstration. It is fast enough that a minute contains the requests for a p99. It is slow
/// enough that two cores run the live server and its client.
///
/// * An isolated request takes 4.5 ms + one step with its prompt + three without = 7.1 ms. The thousand requests for
///   a p99 without contention take eight seconds, and they are the only reference for a queueing onset at p99.
/// * A full batch of 4-token outputs to 64-token prompts has 1.5 prompts and 4.5 decodes per step. A step takes 600
///   µs + 4.5 × 12 µs + 1.5 × 64 × 2 µs = 0.85 ms. With 4 steps per response the maximum is 6 / (4 × 0.85 ms) = 1 770
///   requests/s. The live server then wakes some 1 200 times per second.
/// * The front end's delay represents HTTP, tokenisation and hand-over, as in real servers. It also makes a queueing
///   onset visible. Without it, a request waits on average for half of *any* step in progress. That is 1.5 times an
///   idle engine's time to first token at a few percent of load.
/// * Few sequences keep the onset well below the limit, where a queue drains within milliseconds. At 900 requests/s,
///   n_eff of ten seconds then exceeds a thousand.
///
/// In virtual time (`cargo bench -p plimsoll-sim -- demo`), the isolated time to first token is 5.2 ms. The onset
/// (p99 at 1.5 times that) is near 1 040 requests/s with a p99 end to end of 10 ms. The saturated throughput is 1 770
/// requests/s. Lognormal lengths of sigma 0.5 about equal medians give 850 requests/s at 15 ms, and 1 560 requests/s.
fn demo() -> ModeSpec {
    ModeSpec::Batching(BatchingSpec {
        max_seqs: 6,
        token_budget: 512,
        chunked_prefill: true,
        long_prefill_threshold: 0,
        kv_blocks: Some(4096),
        kv_watermark: 0.0,
        max_context: Some(8192),
        queue_limit: Some(8192),
        policy: PolicySpec::default(),
        prefix_cache: true,
        front_ms: 4.5,
        emit_us: 0.0,
        speculative: None,
        origin: None,
        step: StepSpec::Linear(LinearSpec {
            base_us: 600.0,
            decode_us: 12.0,
            prefill_us: 2.0,
            context_ns: 5.0,
            overlap: None,
        }),
    })
}

/// The benchmark of other tools: a quiet server of 2000 streams had p50/p99 of 152/385 ms to the first token and
/// 20/36 ms between tokens. A lognormal through both has sigma ln(385/152)/2.326 = 0.40 and ln(36/20)/2.326 = 0.25.
fn canned() -> ModeSpec {
    ModeSpec::Canned(CannedSpec {
        ttft: LawSpec::Lognormal { median_ms: 150.0, sigma: 0.4 },
        gap: LawSpec::Lognormal { median_ms: 20.0, sigma: 0.25 },
    })
}

fn queue(servers: u32, service: LawSpec) -> ModeSpec {
    ModeSpec::Queue(QueueSpec { servers, service, queue_limit: None })
}

fn exponential(mean_ms: f64) -> LawSpec {
    LawSpec::Exponential { mean_ms }
}

fn law_text(law: &LawSpec) -> String {
    let cv = libm::sqrt(law.cv_squared());
    let kind = match law {
        LawSpec::Deterministic { ms } => return format!("{ms} ms"),
        LawSpec::Exponential { .. } => "exponential",
        LawSpec::Uniform { .. } => "uniform",
        LawSpec::Lognormal { .. } => "lognormal",
        LawSpec::Gamma { .. } => "gamma",
        LawSpec::Hyperexponential { .. } => "hyperexponential",
    };
    format!("{kind}, mean {:.2} ms, cv {cv:.2}", law.mean_ms())
}

fn batching_text(spec: &BatchingSpec) -> String {
    let mut text = String::new();
    let blocks = spec.blocks().unwrap_or(0);
    let _ = writeln!(
        text,
        "at most {} sequences, {} tokens a step{}; KV cache of {blocks} blocks = {} tokens",
        spec.max_seqs,
        spec.token_budget,
        if spec.chunked_prefill { ", prompts in chunks" } else { "" },
        u64::from(blocks) * u64::from(BLOCK_TOKENS),
    );
    match &spec.step {
        StepSpec::Linear(linear) => {
            let _ = writeln!(
                text,
                "step = {} µs + {} µs per decode + {} µs per prompt token + {} ns per token of context",
                linear.base_us, linear.decode_us, linear.prefill_us, linear.context_ns
            );
            if let Some(overlap) = &linear.overlap {
                let _ = writeln!(
                    text,
                    "       + √((weights {} µs)² + ({} µs × tokens)²): computing hides behind reading the weights",
                    overlap.weights_us, overlap.token_us
                );
            }
        }
        StepSpec::Roofline(roofline) => list::derivation(&mut text, roofline),
    }
    let room = u64::from(blocks) * u64::from(BLOCK_TOKENS);
    let mut model = StepModel::new(spec);
    let _ = write!(text, "step of b decodes at 1 024 tokens of context:");
    for batch in [1, 32, 128].into_iter().filter(|&batch| batch <= spec.max_seqs.min(spec.token_budget)) {
        if u64::from(batch) * 1024 > room {
            let _ = write!(text, "  b {batch}: no room");
        } else {
            let _ = write!(text, "  b {batch}: {:.1} ms", decode_step_ms(&mut model, batch, 1024));
        }
    }
    let _ = writeln!(text);
    let _ = write!(text, "one prompt in one step:");
    for prompt in [64, 1024, 8192].into_iter().filter(|&prompt| prompt <= spec.token_budget) {
        let _ = write!(text, "  {prompt} tokens: {:.1} ms", prefill_step_ms(&mut model, prompt));
    }
    let _ = writeln!(text, "\nbefore the queue (HTTP, tokenisation): {} ms", spec.front_ms);
    if let Some(origin) = &spec.origin {
        list::origin(&mut text, origin);
    }
    text
}
