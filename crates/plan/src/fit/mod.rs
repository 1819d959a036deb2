//! Fits an engine to a measured run: the simplest engine that reproduces the target's responses, with its error.
//!
//! A regression on the responses gives the cost of a step ([`steps`]). The time before the queue, and a common factor on
//! prompts and steps, come from the simulator in the loop on the run's arrivals ([`play`]). A third of the run's intervals
//! is held out, and the error on them is the band. Low load does not reveal the number of concurrent sequences, the size of
//! the KV cache and the tokens of a step. These limits come from the server's metrics endpoint or from the user; otherwise
//! they are assumed and named.
//!
//! Fitting a queueing formula to the latency curve was rejected, because it has no percentiles and covers one mix of
//! lengths. Its single slope does not predict longer prompts or the loss of a replica.
//!
//! Reading order: [`words`], [`rows`], [`steps`], [`play`], [`whole`] (endpoints without tokens), [`mod@limit`] (the
//! stability limit), and [`fit`] below.

pub mod limit;
pub mod play;
pub mod rows;
pub mod steps;
pub mod whole;
pub mod words;

use plimsoll_math::least_squares::Parameter;
use plimsoll_model::At;
use plimsoll_sim::catalogue::origin::{HeldOut, LoadRange, OriginSpec, ProfileBasis};
use plimsoll_sim::{BatchingSpec, EngineSpec, FleetSpec, ModeSpec, PolicySpec, StepSpec, WorldSpec};

pub use limit::limit;
pub use words::{FitError, FittedEngine, FittedRun, Residual, Setting, SettingOrigin, StatedTarget};

use play::ComparedKind;
use plimsoll_measure::findings::Metric;
use plimsoll_measure::say::number;
use plimsoll_measure::server_side::{ServerSide, Signal};
use rows::FitRows;
use steps::{FitAnswers, StepCost};

/// Largest relative error of a mean or median on held-out intervals that a fit may have.
const UNLIKE: f64 = 0.25;
/// vLLM's limits, assumed if none are configured.
const ASSUMED_SLOTS: u32 = 1024;
const ASSUMED_BUDGET: u32 = 8192;
/// KV blocks assumed if the size is unknown; this cache never fills.
const ASSUMED_BLOCKS: u32 = 1 << 20;

/// Fits an engine to a run.
///
/// # Errors
/// Fails if there are too few requests, only one concurrency, or no engine of this kind that reproduces the target.
pub fn fit(run: &FittedRun<'_>, told: &StatedTarget) -> Result<FittedEngine, FitError> {
    let rows = FitRows::of(run, told)?;
    let replicas = told.replicas.unwrap_or(rows.replicas as u32).max(1);
    if replicas > 1 && rows.replicas == 1 && rows.tokens {
        return Err(FitError::Ask(format!(
            "{replicas} replicas answered and no answer names its replica: their steps cannot be separated; fit to a run against \
             one of them"
        )));
    }
    let told = &StatedTarget { replicas: Some(replicas), ..told.clone() };
    let (engine, settings, others, metrics): (_, _, _, &[Metric]) = if rows.tokens {
        let limits = Limits::of(run, &rows, told);
        let (engine, settings, others) = batching(&rows, &limits, told)?;
        (engine, settings, others, &[Metric::Ttft, Metric::Tpot, Metric::E2e])
    } else {
        let (engine, settings) = whole::fit(&rows, told)?;
        (engine, settings, Vec::new(), &[Metric::E2e])
    };
    engine.validate()?;
    conclude(&rows, (engine, settings, others), metrics, told)
}

impl FittedEngine {
    /// Returns the assumed limits as a sentence, because most failures of an engine come from one of them. `None` if none
    /// is assumed.
    pub fn rests_on(&self) -> Option<String> {
        let assumed = |one: &Setting| {
            let (what, flag) = match one.name.as_str() {
                "max_seqs" => ("concurrent sequences", "--slots"),
                "kv_blocks" => ("KV blocks", "--kv-blocks"),
                "token_budget" => ("tokens a step", "--token-budget"),
                _ => return None,
            };
            (one.from == SettingOrigin::Assumed).then(|| format!("{} {what} ({flag})", number(one.value)))
        };
        let assumed: Vec<String> = self.settings.iter().filter_map(assumed).collect();
        let most = self.most_in_flight;
        (!assumed.is_empty()).then(|| {
            format!(
                "the breaking load assumes {}, because no flag sets the limit and no request reached it ({most} in flight at most)",
                assumed.join(" and ")
            )
        })
    }
}

/// Compares the engine with the held-out intervals and returns the finding.
fn conclude(
    rows: &FitRows,
    (mut engine, settings, others): (EngineSpec, Vec<Setting>, Vec<EngineSpec>),
    metrics: &[Metric],
    told: &StatedTarget,
) -> Result<FittedEngine, FitError> {
    let mut world = world(&engine, told);
    let played = play::all(&world, rows, told.seed).map_err(FitError::Simulation)?;
    let residuals = play::residuals(rows, &played, metrics, ComparedKind::HeldOut);
    unlike(&residuals)?;
    let (means, most_in_flight) = rows.in_flight();
    let source = format!(
        "{} intervals of the run kept out of the fit",
        rows.parts
            .iter()
            .flat_map(|p| p.ones.iter().map(|o| o.stretch).max())
            .map(|n| n.div_ceil(3))
            .sum::<usize>()
    );
    let band = play::band(rows, &played, metrics, source);
    let range = range(rows, &means);
    let mut notes = notes(rows, &settings);
    notes.push(format!(
        "fitted at {} to {} requests in flight (most {most_in_flight}): beyond that it is extrapolated, and a sweep would measure it (plimsoll sweep)",
        number(range.in_flight[0]),
        number(range.in_flight[1]),
    ));
    if let ModeSpec::Batching(batching) = &mut engine.mode {
        batching.origin = Some(Box::new(origin(rows, &residuals, &band, &range, &notes)));
    }
    world.engine = engine.clone();
    let requests = rows.answered().count() as u64;
    Ok(FittedEngine {
        engine,
        world,
        settings,
        others,
        band,
        residuals,
        range,
        most_in_flight,
        requests,
        notes,
    })
}

fn world(engine: &EngineSpec, told: &StatedTarget) -> WorldSpec {
    let fleet = FleetSpec { replicas: told.replicas.unwrap_or(1), ..FleetSpec::default() };
    WorldSpec { engine: engine.clone(), fleet, faults: Vec::new() }
}

/// Fails with the worst mean or median if its error exceeds [`UNLIKE`].
fn unlike(residuals: &[Residual]) -> Result<(), FitError> {
    let central = |one: &&Residual| matches!(one.percentile, None | Some(0.5));
    let worst = residuals.iter().filter(central).max_by(|a, b| a.off().abs().total_cmp(&b.off().abs()));
    match worst {
        Some(worst) if worst.off().abs() > UNLIKE || !worst.off().is_finite() => Err(FitError::Unlike {
            metric: worst.metric.clone(),
            figure: if worst.percentile.is_some() { "p50" } else { "mean" }.to_owned(),
            off: 100.0 * worst.off(),
            limit: 100.0 * UNLIKE,
            hint:
                "several replicas behind one address, other traffic on the target, or a machine that stalled"
                    .to_owned(),
        }),
        _ => Ok(()),
    }
}

/// The limits that no request's times reveal, each with its origin.
#[derive(Copy, Clone)]
struct Limits {
    slots: (u32, SettingOrigin),
    kv_blocks: (u32, SettingOrigin),
    token_budget: (u32, SettingOrigin),
}

impl Limits {
    fn of(run: &FittedRun<'_>, rows: &FitRows, told: &StatedTarget) -> Limits {
        let page = ServerSide::read(run.samples);
        let replicas = f64::from(told.replicas.unwrap_or(1));
        let (from, to) = (At(i64::MIN), At(i64::MAX));
        let gauge = |signal: Signal| page.gauge(signal).and_then(|series| series.max(from, to));
        let whole = |value: f64| (value >= 1.0).then_some(value.min(1e9) as u32);
        let choose = |told: Option<u32>, page: Option<u32>, assumed: u32| match (told, page) {
            (Some(told), _) => (told.max(1), SettingOrigin::Told),
            (None, Some(page)) => (page, SettingOrigin::Page),
            (None, None) => (assumed, SettingOrigin::Assumed),
        };
        let slots = gauge(Signal::MaxRunning).and_then(|all| whole(all / replicas));
        let blocks = gauge(Signal::KvBlocks).and_then(|blocks| {
            whole(blocks / replicas * gauge(Signal::KvBlockTokens).unwrap_or(16.0) / 16.0)
        });
        // A completed prompt shows that the KV cache has room for it.
        let longest = rows.answered().map(|one| one.prompt).fold(0.0, f64::max) as u32;
        Limits {
            slots: choose(told.slots, slots, ASSUMED_SLOTS),
            kv_blocks: choose(told.kv_blocks, blocks, ASSUMED_BLOCKS.max(longest / 4)),
            token_budget: choose(told.token_budget, None, ASSUMED_BUDGET),
        }
    }
}

impl Limits {
    /// Returns the limits with the observed concurrency, if the limit is assumed and the slowest first tokens fit that
    /// concurrency better.
    fn as_seen(&self, rows: &FitRows, told: &StatedTarget, engine: impl Fn(&Limits) -> EngineSpec) -> Limits {
        if self.slots.1 != SettingOrigin::Assumed {
            return *self;
        }
        let seen = Limits { slots: (rows.most_running(), SettingOrigin::Fitted), ..*self };
        let off = |limits: &Limits| -> Option<f64> {
            let played = play::all(&world(&engine(limits), told), rows, told.seed).ok()?;
            let all = play::residuals(rows, &played, &[Metric::Ttft], ComparedKind::All);
            let tail = all.into_iter().rfind(|one| one.percentile.is_some_and(|p| p >= 0.95))?;
            Some((tail.simulated_s / tail.measured_s).ln().abs())
        };
        match (off(self), off(&seen)) {
            (Some(free), Some(bound)) if free > WAITED && bound < CLEARLY * free => seen,
            _ => *self,
        }
    }
}

/// Error of the slowest first tokens (as a logarithm) without a limit that starts the search for a limit.
const WAITED: f64 = 0.05;
/// Share of that error that may remain with the limit.
const CLEARLY: f64 = 0.4;

/// Fits an engine that batches token by token.
fn batching(
    rows: &FitRows,
    limits: &Limits,
    told: &StatedTarget,
) -> Result<(EngineSpec, Vec<Setting>, Vec<EngineSpec>), FitError> {
    let answers = FitAnswers::of(rows, limits.token_budget.0);
    told_apart(&answers)?;
    let few = FitError::TooFew { found: answers.lived.len(), needed: rows::FEWEST };
    let seen = |one: &steps::AnswerSteps| !one.held_out;
    let (linear, off) = answers.fit(false, seen).ok_or(few)?;
    let bent = answers.fit(true, seen).filter(|(_, bent)| *bent < WORTH_BENDING * off && off > SMALL * SMALL);
    let overlaps = bent.is_some();
    let cost = bent.map_or(linear, |(cost, _)| cost);
    let (front_ms, prompts, all) = before_the_queue(rows, &cost, limits, told);
    let cost = scaled(&cost, prompts, all);
    let limits = &limits.as_seen(rows, told, |limits| engine(&cost, front_ms, limits, rows));
    let drawn = steps::others(&answers, &cost, overlaps);
    let engine = engine(&cost, front_ms, limits, rows);
    let others = drawn.iter().map(|cost| self::engine(cost, front_ms, limits, rows)).collect();
    Ok((engine, settings(&cost, front_ms, limits, &drawn, rows), others))
}

/// Ratio of squared errors on held-out intervals below which an overlapping step justifies its two parameters.
const WORTH_BENDING: f64 = 0.8;
/// Relative error below which the linear form is kept.
const SMALL: f64 = 0.004;
/// Least difference and ratio between the 5th and the 95th percentile of concurrent sequences. Below them, base and growth
/// of a step can't be distinguished.
const APART: f64 = 0.5;
const APART_RATIO: f64 = 1.25;

fn told_apart(answers: &FitAnswers) -> Result<(), FitError> {
    let [low, middle, high] = answers.batches();
    if high - low >= APART && high >= APART_RATIO * low {
        return Ok(());
    }
    Err(FitError::OneConcurrency {
        why: format!(
            "nine of ten answers had {} to {} sequences in their steps (median {})",
            number(low),
            number(high),
            number(middle)
        ),
    })
}

/// Finds by replay the time before the queue (ms), and the factors on the cost of prompts and of whole steps.
fn before_the_queue(
    rows: &FitRows,
    cost: &StepCost,
    limits: &Limits,
    told: &StatedTarget,
) -> (f64, f64, f64) {
    let mut over: Vec<f64> = rows
        .answered()
        .map(|one| {
            (one.first - one.sent) as f64 / 1e3
                - cost.decode_step_us(1.0, 0.0)
                - cost.prefill_us * one.uncached
        })
        .collect();
    over.sort_by(f64::total_cmp);
    let start = (over[over.len() / 10] / 1e3).max(0.0);
    let most = (over[over.len() / 2] / 1e3).max(2.0 * start).max(0.01);
    let parameters = [
        Parameter { start, low: 0.0, high: 2.0 * most, step: 0.03 * most },
        Parameter { start: 0.0, low: -0.3, high: 0.3, step: 0.03 },
        Parameter { start: 0.0, low: -0.1, high: 0.1, step: 0.02 },
    ];
    let metrics = (&[Metric::Ttft, Metric::Tpot][..], 5, 5, told.seed);
    let at = play::polish(&parameters, rows, metrics, |at| {
        world(&engine(&scaled(cost, at[1].exp(), at[2].exp()), at[0], limits, rows), told)
    });
    (at[0], at[1].exp(), at[2].exp())
}

/// Returns the cost with steps multiplied by `all` and prompts also by `prompts`.
fn scaled(cost: &StepCost, prompts: f64, all: f64) -> StepCost {
    StepCost {
        base_us: cost.base_us * all,
        decode_us: cost.decode_us * all,
        prefill_us: cost.prefill_us * all * prompts,
        context_us: cost.context_us * all,
        weights_us: cost.weights_us * all,
        token_us: cost.token_us * all * prompts,
    }
}

/// Rounds to six significant digits: intervals are wider, and a file reproduces such values exactly.
fn six(value: f64) -> f64 {
    if value == 0.0 || !value.is_finite() {
        return value;
    }
    let places = (5 - value.abs().log10().floor() as i32).clamp(0, 12);
    format!("{value:.*}", places as usize).parse().unwrap_or(value)
}

fn engine(cost: &StepCost, front_ms: f64, limits: &Limits, rows: &FitRows) -> EngineSpec {
    let mut step = cost.spec();
    for value in [&mut step.base_us, &mut step.decode_us, &mut step.prefill_us, &mut step.context_ns] {
        *value = six(*value);
    }
    if let Some(overlap) = &mut step.overlap {
        (overlap.weights_us, overlap.token_us) = (six(overlap.weights_us), six(overlap.token_us));
    }
    let batching = BatchingSpec {
        policy: PolicySpec::default(),
        prefix_cache: !(rows.cached_known && rows.cached == 0.0),
        max_seqs: limits.slots.0,
        token_budget: limits.token_budget.0,
        chunked_prefill: true,
        long_prefill_threshold: 0,
        kv_blocks: Some(limits.kv_blocks.0),
        kv_watermark: 0.0,
        max_context: None,
        queue_limit: None,
        front_ms: six(front_ms),
        emit_us: 0.0,
        speculative: None,
        step: StepSpec::Linear(step),
        origin: None,
    };
    EngineSpec { name: "fitted".to_owned(), mode: ModeSpec::Batching(batching) }
}

fn settings(
    cost: &StepCost,
    front_ms: f64,
    limits: &Limits,
    drawn: &[StepCost],
    rows: &FitRows,
) -> Vec<Setting> {
    let fitted = |name: &str, of: fn(&StepCost) -> f64, times: f64| {
        let mean = drawn.iter().map(of).sum::<f64>() / drawn.len().max(1) as f64;
        let square =
            drawn.iter().map(|one| (of(one) - mean).powi(2)).sum::<f64>() / drawn.len().max(1) as f64;
        Setting {
            name: name.to_owned(),
            value: times * of(cost),
            error: Some(times * square.sqrt()),
            from: SettingOrigin::Fitted,
            note: None,
        }
    };
    let mut all = vec![
        fitted("base_us", |c| c.base_us, 1.0),
        fitted("decode_us", |c| c.decode_us, 1.0),
        fitted("prefill_us", |c| c.prefill_us, 1.0),
        fitted("context_ns", |c| c.context_us, 1e3),
    ];
    if cost.weights_us > 0.0 {
        all.push(fitted("overlap.weights_us", |c| c.weights_us, 1.0));
        all.push(fitted("overlap.token_us", |c| c.token_us, 1.0));
    }
    let plain = |name: &str, value: f64, from: SettingOrigin, note: Option<String>| Setting {
        name: name.to_owned(),
        value,
        error: None,
        from,
        note,
    };
    all.push(plain("front_ms", front_ms, SettingOrigin::Fitted, None));
    let most = rows.in_flight().1;
    let assumed = |(value, from): (u32, SettingOrigin), flag: &str| {
        (from == SettingOrigin::Assumed).then(|| {
            format!(
                "no request of this run reached the limit ({most} in flight at most); {value} is assumed, and the breaking load \
                 depends on it: set {flag}"
            )
        })
    };
    let mut limit = |name: &str, limit: (u32, SettingOrigin), say: &str| {
        all.push(plain(name, f64::from(limit.0), limit.1, assumed(limit, say)));
    };
    limit("max_seqs", limits.slots, "--slots N");
    limit("kv_blocks", limits.kv_blocks, "--kv-blocks N");
    limit("token_budget", limits.token_budget, "--token-budget N");
    all
}

fn range(rows: &FitRows, in_flight: &[f64]) -> LoadRange {
    let span = |values: &[f64]| {
        let low = values.iter().copied().fold(f64::INFINITY, f64::min);
        [low, values.iter().copied().fold(0.0, f64::max)]
    };
    let mean = |of: fn(&rows::FitRequest) -> f64| -> Vec<f64> {
        rows.parts
            .iter()
            .map(|part| part.ones.iter().map(of).sum::<f64>() / part.ones.len().max(1) as f64)
            .collect()
    };
    LoadRange {
        prompt_tokens: span(&mean(|one| one.prompt)),
        output_tokens: span(&mean(|one| f64::from(one.output))),
        in_flight: span(in_flight),
    }
}

fn notes(rows: &FitRows, settings: &[Setting]) -> Vec<String> {
    let mut notes: Vec<String> = settings
        .iter()
        .filter_map(|one| one.note.as_ref().map(|note| format!("{}: {note}", one.name)))
        .collect();
    if rows.failed > 0 {
        notes.push(format!(
            "{} left out that failed",
            plimsoll_measure::say::count(rows.failed as u64, "request")
        ));
    }
    let named = rows.all().any(|one| !one.asked.blocks.is_empty());
    if rows.tokens && !rows.cached_known && named {
        notes.push(
            "the server does not report how many prompt tokens came from its cache: the fit assumes that prompts are computed whole".to_owned(),
        );
    }
    if rows.parts.iter().any(|part| part.closed) {
        notes.push("arrivals of a closed loop are replayed at the times at which they were sent".to_owned());
    }
    notes
}

/// Returns the origin in the engine's file: source, error and range of the fit.
fn origin(
    rows: &FitRows,
    residuals: &[Residual],
    band: &crate::spec::PredictionBand,
    range: &LoadRange,
    notes: &[String],
) -> OriginSpec {
    let held_out: Vec<HeldOut> = band
        .rows
        .iter()
        .map(|row| {
            let own = residuals.iter().filter(|one| one.metric == row.metric);
            let mut off: Vec<f64> = own.map(|one| 100.0 * one.off().abs()).collect();
            off.sort_by(f64::total_cmp);
            HeldOut {
                metric: row.metric.clone(),
                rows: row.rows,
                mean_percent: off.iter().sum::<f64>() / off.len().max(1) as f64,
                p90_percent: off.last().copied().unwrap_or(0.0),
                bias_log: row.bias_log,
                spread_log: row.spread_log,
            }
        })
        .collect();
    let tpot = held_out.iter().find(|one| one.metric == "tpot").or(held_out.first());
    OriginSpec {
        basis: ProfileBasis::Calibrated,
        protocol: if rows.parts.iter().any(|part| part.closed) { "closed loop" } else { "open loop" }
            .to_owned(),
        expected_error_percent: tpot.map_or(0.0, |one| one.mean_percent),
        notes: notes.to_vec(),
        held_out,
        range: Some(range.clone()),
        ..OriginSpec::default()
    }
}
