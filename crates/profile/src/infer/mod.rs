//! The time of each request without tracing, from the client's timestamps and the server's metrics.
//!
//! Parts with client timestamps are *measured*: the wait before sending, connecting, from sending to the first token,
//! and from there to the last. The wait for the first token has three parts that only the server sees: the front end,
//! the queue, and the prefill. If the server reports them per request, they are *reported*. Otherwise they are
//! *inferred* from the best available source: [`track`] (the engine's steps, seen in other responses' tokens),
//! [`floor`] (isolated requests), or the metrics' means. The inference is fitted to the exact means of the metrics
//! ([`told`]), and has error bounds. Without a source the three are *unknown*, and their sum is still measured.
//!
//! Reading order: [`rows`], [`track`], [`floor`], [`told`], [`split`], `prompt` (a server that reports only prefill
//! times), [`finding`]. Then `sampled` (intervals and slices), `answers` (unstreamed responses), and [`infer`] below.

mod answers;
pub mod finding;
pub mod floor;
mod prompt;
pub mod rows;
mod sampled;
pub mod split;
pub mod told;
pub mod track;

use plimsoll_model::{At, Attempt};

pub use answers::{MeanStage, WholeAnswers};
pub use finding::{Bands, Basis, PartCeiling, PartFinding, PartSlice, WaitFinding};
pub use floor::ComputeFloor;
pub use plimsoll_measure::findings::BoundedValue;
pub use split::{Split, WaitPart, WaitSource};
pub use told::{ReportedMean, ReportedStages};
pub use track::Track;

use rows::ClientRow;
use sampled::SampledSplit;
use split::{KnownMeans, Shapes};

use plimsoll_measure::budget::StageBudget;

pub struct SplitCase<'a> {
    pub level: u32,
    /// Every attempt of the level, including warm-up, because its tokens show the engine's steps.
    pub attempts: &'a [&'a Attempt],
    /// Minimum due time of counted requests.
    pub from: At,
    /// Stage means from the server's metrics.
    pub told: ReportedStages,
    /// Floor of isolated requests from another level; `None` to use isolated requests of this one.
    pub floor: Option<ComputeFloor>,
    /// Whether parts are inferred although the server reports them, to measure the accuracy of an inference.
    pub ignore_reported: bool,
    /// Slices of a budget with their α; `None` without a budget.
    pub budget: Option<(&'a StageBudget, f64)>,
}

pub struct LevelSplit {
    pub finding: WaitFinding,
    /// Each split request: index of its record in [`SplitCase::attempts`], and its parts.
    pub splits: Vec<(usize, Split)>,
}

pub fn infer(case: &SplitCase<'_>) -> LevelSplit {
    let counted: Vec<&Attempt> = case.attempts.iter().copied().filter(|a| a.due >= case.from).collect();
    let left_out = rows::rows(&counted).1;
    let (rows, _) = rows::rows(case.attempts);
    // The metrics' means include every request that ended between two scrapes, also warm-up. Therefore all are split
    // first, and uncounted ones are removed afterwards.
    let mut notes = Vec::new();
    let told: Vec<Option<[f64; 3]>> = rows.iter().map(split::reported).collect();
    let reported = told.iter().flatten().count();
    // If nearly all requests have reported parts, the few others are left out and not estimated.
    let (mut rows, answer) = if !case.ignore_reported && !rows.is_empty() && reported * 20 >= rows.len() * 19
    {
        notes.push(format!("the server reports queue and prefill of {reported} of {} requests", rows.len()));
        let kept = rows.iter().zip(&told).filter(|(_, told)| told.is_some()).map(|(row, _)| row.clone());
        (kept.collect(), Some(Answer::reported(told.into_iter().flatten().collect())))
    } else {
        let whole = rows.len();
        let (rows, prompts) = match prompt::told(&rows).filter(|_| !case.ignore_reported) {
            Some((rows, prompts)) => (rows, Some(prompts)),
            None => (rows, None),
        };
        if prompts.is_some() {
            notes.push(format!(
                "the server reports prefill of {} of {whole} requests, but not their queue",
                rows.len()
            ));
        }
        let answer = guess(case, &rows, prompts.as_deref(), &mut notes);
        (rows, answer)
    };
    // Rows without reported parts may have been removed from the front.
    let skip = rows.partition_point(|row| row.due < case.from.0);
    let rows = rows.split_off(skip);
    let answer = answer.map(|answer| answer.without_first(skip));
    let left_out = left_out as u64;
    let finding = find(case, &rows, answer.as_ref(), (left_out, notes));
    let likely = answer.map(|answer| answer.likely);
    let places: std::collections::HashMap<*const Attempt, usize> =
        case.attempts.iter().enumerate().map(|(i, a)| (std::ptr::from_ref::<Attempt>(a), i)).collect();
    let splits = likely.map_or_else(Vec::new, |likely| {
        rows.iter()
            .zip(likely)
            .filter_map(|(row, wait)| {
                Some((*places.get(&std::ptr::from_ref(row.attempt))?, split::whole(row, wait)))
            })
            .collect()
    });
    LevelSplit { finding, splits }
}

/// The wait of every row, split: the likely split, and the splits at the ends of its error. Times in ns.
struct Answer {
    likely: Vec<[f64; 3]>,
    ends: Vec<Vec<[f64; 3]>>,
    source: WaitSource,
    /// Relative and absolute (ns) uncertainty of a fitted mean, for queue and prefill.
    edges: [Edge; 2],
    /// Set if the server reports prefill times per request.
    prompt_told: bool,
}

/// The uncertainty of a mean beyond the difference between shapes.
#[derive(Copy, Clone, Default)]
struct Edge {
    share: f64,
    ns: f64,
    /// Set if the mean is fitted to a reported one.
    pinned: bool,
    /// Residual uncertainty: [`RESIDUAL_STEPS`] or [`RESIDUAL_FLOOR`].
    residual: [f64; 4],
}

impl Answer {
    /// Returns the uncertainty of a part at a percentile beyond the difference between shapes: as a share, and in ns.
    fn half(&self, part: WaitPart, p: f64) -> (f64, f64) {
        let edge = match part {
            WaitPart::Prefill => self.edges[1],
            _ => self.edges[0],
        };
        let which = match p {
            p if p <= 0.5 => 1,
            p if p <= 0.95 => 2,
            _ => 3,
        };
        (edge.share + edge.residual[which], edge.ns)
    }

    /// Returns the answer without the first rows.
    fn without_first(mut self, skip: usize) -> Answer {
        self.likely.drain(..skip);
        self.ends.iter_mut().for_each(|end| drop(end.drain(..skip)));
        self
    }

    fn reported(told: Vec<[f64; 3]>) -> Answer {
        let edges = [Edge::default(); 2];
        Answer { likely: told, ends: Vec::new(), source: WaitSource::Reported, edges, prompt_told: true }
    }

    /// Returns the answer for reported prefill times without a further source: the front field contains all other
    /// time, and is shown as unknown.
    fn prompts(rows: &[ClientRow<'_>], told: &[f64]) -> Answer {
        let likely = rows.iter().zip(told).map(|(row, told)| [row.wait() as f64 - told, 0.0, *told]);
        let edges = [Edge::default(); 2];
        Answer {
            likely: likely.collect(),
            ends: Vec::new(),
            source: WaitSource::Prompts,
            edges,
            prompt_told: true,
        }
    }
}

/// Accepted ratio of a reported mean to the shape's own mean.
const BELIEVED: std::ops::RangeInclusive<f64> = 0.6..=1.7;
/// Relative uncertainty of a figure even if all shapes agree: mean, p50, p95, p99. Determined on simulated systems
/// with known ground truth, and checked on held-out ones (`cargo run --release -p plimsoll-profile --example infer`).
const RESIDUAL_STEPS: [f64; 4] = [0.02, 0.05, 0.06, 0.1];
/// Relative uncertainty if the spread is from a floor, which has little information on it.
const RESIDUAL_FLOOR: [f64; 4] = [0.05, 0.12, 0.2, 0.25];

/// Returns the best available split. `prompts` are the reported prefill times in ns, if there are any.
fn guess(
    case: &SplitCase<'_>,
    rows: &[ClientRow<'_>],
    prompts: Option<&[f64]>,
    notes: &mut Vec<String>,
) -> Option<Answer> {
    let no_more = || prompts.map(|told| Answer::prompts(rows, told));
    if rows.len() < 20 {
        notes.push(format!("{} whole streamed answers are too few to split their wait", rows.len()));
        return no_more();
    }
    // A mean over requests has less information than a reported prefill time.
    let without =
        |pins: KnownMeans| KnownMeans { prefill: pins.prefill.filter(|_| prompts.is_none()), ..pins };
    let pins = without(KnownMeans::of(rows, &case.told, false));
    let shapes = match Track::of(case.attempts) {
        Ok(track) => {
            let shapes = split::by_steps(rows, &track).filter(|shapes| believed(rows, shapes, &pins, notes));
            if shapes.is_some() {
                // With a reported mean queue, the front is the remainder, and not the estimate from the steps.
                let front = match pins.queue {
                    Some(_) => String::new(),
                    None => {
                        format!(
                            "; {} ms pass before the queue",
                            plimsoll_measure::say::number(track.front_ns as f64 / 1e6)
                        )
                    }
                };
                notes.push(format!(
                    "queue and prefill are read off the engine's steps, which the tokens of other answers show{front}"
                ));
            }
            shapes
        }
        Err(why) => {
            notes.push(format!("the engine's steps cannot be seen: {why}"));
            None
        }
    };
    let shapes = shapes.or_else(|| {
        let shapes = by_floor(case, rows, pins.prefill.is_some(), notes)
            .filter(|shapes| believed(rows, shapes, &pins, notes));
        shapes.or_else(|| by_means(rows, &pins, notes))
    });
    let Some(mut shapes) = shapes else { return no_more() };
    if let Some(told) = prompts {
        prompt::lay(&mut shapes, told);
    }
    // A gauge determines the mean less well than the steps.
    let pins = if shapes.source == WaitSource::Steps {
        pins
    } else {
        without(KnownMeans::of(rows, &case.told, true))
    };
    note_pins(&pins, rows.len(), notes);
    let edges = edges(&pins, rows.len(), &shapes);
    let likely = split::lay(rows, &shapes.likely, &pins);
    let ends = shapes.ends.iter().map(|shape| split::lay(rows, shape, &pins)).collect();
    Some(Answer { likely, ends, source: shapes.source, edges, prompt_told: prompts.is_some() })
}

/// Returns whether a shape agrees with the reported means. A shape that does not is of another engine.
fn believed(rows: &[ClientRow<'_>], shapes: &Shapes, pins: &KnownMeans, notes: &mut Vec<String>) -> bool {
    let Some((told, members)) = &pins.prefill else { return true };
    let mean = members.iter().map(|i| shapes.likely.prefill[*i]).sum::<f64>() / members.len().max(1) as f64;
    let ratio = told.mean_ns / mean.max(1.0);
    if BELIEVED.contains(&ratio) || rows.is_empty() {
        return true;
    }
    notes.push(format!(
        "not used: the {} would give a mean prefill of {} times the reported mean",
        if shapes.source == WaitSource::Steps { "steps" } else { "floor" },
        plimsoll_measure::say::number(1.0 / ratio)
    ));
    false
}

fn by_floor(
    case: &SplitCase<'_>,
    rows: &[ClientRow<'_>],
    told: bool,
    notes: &mut Vec<String>,
) -> Option<Shapes> {
    let own = || {
        let busy: Vec<(i64, i64)> = case
            .attempts
            .iter()
            .filter_map(|a| Some((a.sent?.0, a.end.map_or(i64::MAX, |at| at.0))))
            .collect();
        ComputeFloor::of(&floor::alone(rows, &busy))
    };
    let Some(floor) = case.floor.or_else(own) else {
        notes.push("no floor: no level at concurrency 1, and too few requests met an empty server".into());
        return None;
    };
    let gaps: Vec<f64> = rows
        .iter()
        .filter_map(|row| {
            let tokens = row.attempt.answer.tokens.streamed(&row.attempt.events).filter(|n| *n > 1)?;
            Some((row.last - row.first) as f64 / f64::from(tokens - 1))
        })
        .collect();
    let gap = gaps.iter().sum::<f64>() / gaps.len().max(1) as f64;
    let slower = if floor.gap_ns > 0.0 && gap > 0.0 { gap / floor.gap_ns } else { 1.0 };
    notes.push(format!(
        "baseline from {} requests served without overlap: {} ms and {} µs a prompt token; what a request waited over it is queue",
        floor.n,
        plimsoll_measure::say::number(floor.base_ns / 1e6),
        plimsoll_measure::say::number(floor.per_token_ns / 1e3)
    ));
    if !floor.lengths_differ {
        notes.push(
            "their prompts are of one length, so that prompt and front cannot be separated well: vary --isl"
                .into(),
        );
    }
    Some(split::by_floor(rows, &floor, slower, told))
}

fn by_means(rows: &[ClientRow<'_>], pins: &KnownMeans, notes: &mut Vec<String>) -> Option<Shapes> {
    let (Some((queue, _)), Some((prefill, _))) = (&pins.queue, &pins.prefill) else {
        notes.push("the queue is unknown: the server reports no mean of queue and prefill either".into());
        return None;
    };
    notes.push("only the server's means of queue and prefill are known: their spread is a guess".into());
    Some(split::by_means(rows, queue.mean_ns, prefill.mean_ns))
}

fn note_pins(pins: &KnownMeans, rows: usize, notes: &mut Vec<String>) {
    let told = [("queue", &pins.queue), ("prefill", &pins.prefill)];
    for (name, (told, members)) in told.iter().filter_map(|(name, pin)| Some((name, pin.as_ref()?))) {
        notes.push(format!(
            "the mean {name} is the server's own: {} ms over {:.0} requests that ended between its scrapes ({} of ours, of {rows})",
            plimsoll_measure::say::number(told.mean_ns / 1e6),
            told.count,
            members.len()
        ));
        if told.count > 1.05 * members.len() as f64 {
            notes.push(format!(
                "the server counts {:.0} requests and this run has {}: the server's mean includes other clients or the warm-up",
                told.count,
                members.len()
            ));
        }
    }
}

/// Returns the uncertainty from the edges of scrapes: requests that only one side counted, and rows outside all
/// scrapes.
fn edges(pins: &KnownMeans, rows: usize, shapes: &Shapes) -> [Edge; 2] {
    let residual = if shapes.source == WaitSource::Steps { RESIDUAL_STEPS } else { RESIDUAL_FLOOR };
    let of = |pin: &Option<(ReportedMean, Vec<usize>)>, ns: f64| {
        let Some((told, members)) = pin else { return Edge { share: 0.0, ns, pinned: false, residual } };
        let strangers = (told.count - members.len() as f64).abs() / told.count.max(1.0);
        let uncovered = 1.0 - members.len() as f64 / rows.max(1) as f64;
        // A foreign request may take several times the mean; a row outside all scrapes has the error of its shape.
        let share = 0.01 + 2.0 * strangers + 0.1 * uncovered;
        Edge { share, ns: told.half_ns, pinned: true, residual }
    };
    [of(&pins.queue, shapes.front_half), of(&pins.prefill, 0.0)]
}

fn find(
    case: &SplitCase<'_>,
    rows: &[ClientRow<'_>],
    answer: Option<&Answer>,
    (left_out, notes): (u64, Vec<String>),
) -> WaitFinding {
    let splits: Vec<Split> = match answer {
        Some(answer) => rows.iter().zip(&answer.likely).map(|(row, wait)| split::whole(row, *wait)).collect(),
        // The split of the wait is unknown: the front field contains all of it, and the three parts are shown as
        // unknown.
        None => rows.iter().map(|row| split::whole(row, [row.wait() as f64, 0.0, 0.0])).collect(),
    };
    let ends: Vec<Vec<Split>> = answer.map_or_else(Vec::new, |answer| {
        let one = |end: &Vec<[f64; 3]>| {
            rows.iter().zip(end).map(|(row, wait)| split::whole(row, *wait)).collect::<Vec<Split>>()
        };
        answer.ends.iter().map(one).collect()
    });
    let mut parts: Vec<PartFinding> = WaitPart::ALL
        .iter()
        .filter(|part| {
            **part != WaitPart::Connect || splits.iter().any(|split| split[WaitPart::Connect as usize] > 0.0)
        })
        .map(|part| part_finding(*part, &splits, &ends, answer))
        .collect();
    let known: Vec<WaitPart> =
        parts.iter().filter(|part| part.basis != Basis::Unknown).map(|part| part.part).collect();
    let bases: Vec<(WaitPart, Basis)> = parts.iter().map(|part| (part.part, part.basis)).collect();
    let length_s = match (rows.first(), rows.last()) {
        (Some(first), Some(last)) => (last.due - first.due) as f64 / 1e9,
        _ => 0.0,
    };
    let sampled = SampledSplit { splits: &splits, ends: &ends, length_s };
    for part in parts.iter_mut().filter(|part| part.basis != Basis::Unknown && !splits.is_empty()) {
        let of = part.part as usize;
        part.sampled = Some(sampled.times(|split| split[of]));
    }
    // Both are measured, even if their parts are unknown.
    let measured = |last: WaitPart, of: fn(&Split) -> f64| {
        let times = || PartFinding { sampled: Some(sampled.times(of)), ..sum_finding(&splits, last, of) };
        (!splits.is_empty()).then(times)
    };
    let slices = match case.budget {
        Some((budget, alpha)) if !splits.is_empty() => sampled.slices(budget, alpha, &bases, answer),
        _ => Vec::new(),
    };
    WaitFinding {
        level: case.level,
        requests: rows.len() as u64,
        left_out,
        source: answer.map(|answer| answer.source),
        notes,
        whole: measured(WaitPart::Tail, finding::total),
        wait: measured(WaitPart::Prefill, finding::wait),
        untold: match answer.map(|answer| answer.source) {
            None => measured(WaitPart::Prefill, finding::wait),
            Some(WaitSource::Prompts) => measured(WaitPart::Queue, finding::before_prompt),
            Some(_) => None,
        },
        bands: finding::bands(&splits),
        answers: if splits.is_empty() { answers::of(case.attempts, &case.told) } else { None },
        parts,
        ceilings: if splits.is_empty() { Vec::new() } else { finding::ceilings(&splits, &known) },
        slices,
    }
}

/// Returns the figures of several parts together; `last` is the last of them.
fn sum_finding(splits: &[Split], last: WaitPart, of: fn(&Split) -> f64) -> PartFinding {
    let [mean, p50, p95, p99] = finding::figures(splits, of).map(exact);
    let whole = |splits: &[Split]| splits.iter().map(finding::total).sum::<f64>().max(1.0);
    let tails = finding::slow_and_middle(splits);
    PartFinding {
        part: last,
        basis: Basis::Measured,
        mean,
        p50,
        p95,
        p99,
        share: Some(splits.iter().map(of).sum::<f64>() / whole(splits)),
        share_of_slowest: tails.map(|(slow, _)| of(&slow) / finding::total(&slow).max(1.0)),
        slowest_over_middle_s: tails.map(|(slow, middle)| (of(&slow) - of(&middle)) / 1e9),
        mean_told: false,
        sampled: None,
    }
}

fn exact(value: f64) -> Option<BoundedValue> {
    value.is_finite().then_some(BoundedValue { value, lower: value, upper: value })
}

fn part_finding(
    part: WaitPart,
    splits: &[Split],
    ends: &[Vec<Split>],
    answer: Option<&Answer>,
) -> PartFinding {
    let inside = matches!(part, WaitPart::Front | WaitPart::Queue | WaitPart::Prefill);
    let basis = match (inside, answer) {
        (false, _) => Basis::Measured,
        (true, Some(answer)) if answer.source == WaitSource::Reported => Basis::Reported,
        (true, Some(answer)) if answer.prompt_told && part == WaitPart::Prefill => Basis::Reported,
        (true, Some(answer)) if answer.source == WaitSource::Prompts => Basis::Unknown,
        (true, Some(_)) => Basis::Inferred,
        (true, None) => Basis::Unknown,
    };
    let empty = PartFinding {
        part,
        basis,
        mean: None,
        p50: None,
        p95: None,
        p99: None,
        share: None,
        share_of_slowest: None,
        slowest_over_middle_s: None,
        mean_told: false,
        sampled: None,
    };
    if basis == Basis::Unknown || splits.is_empty() {
        return empty;
    }
    let of = |split: &Split| split[part as usize];
    let figures = finding::figures(splits, of);
    let others: Vec<[f64; 4]> = ends.iter().map(|end| finding::figures(end, of)).collect();
    let edge = match (part, answer) {
        (WaitPart::Queue, Some(answer)) => answer.edges[0],
        (WaitPart::Prefill, Some(answer)) => answer.edges[1],
        (_, Some(answer)) => Edge { pinned: answer.edges.iter().all(|edge| edge.pinned), ..answer.edges[0] },
        (_, None) => Edge::default(),
    };
    // A part of the wait is at most the wait, at the mean and at each percentile.
    let most = finding::figures(splits, finding::wait);
    let bounded = |i: usize| {
        if basis != Basis::Inferred {
            return exact(figures[i]);
        }
        let found = bounds(figures[i], others.iter().map(|other| other[i]), edge, i);
        Some(BoundedValue { upper: found.upper.min(most[i]).max(found.value), ..found })
    };
    let sum = |all: &[Split]| all.iter().map(finding::total).sum::<f64>();
    let tails = finding::slow_and_middle(splits);
    PartFinding {
        mean: bounded(0),
        p50: bounded(1),
        p95: bounded(2),
        p99: bounded(3),
        share: Some(splits.iter().map(of).sum::<f64>() / sum(splits).max(1.0)),
        share_of_slowest: tails.map(|(slow, _)| of(&slow) / finding::total(&slow).max(1.0)),
        slowest_over_middle_s: tails.map(|(slow, middle)| (of(&slow) - of(&middle)) / 1e9),
        mean_told: basis == Basis::Inferred && edge.pinned,
        ..empty
    }
}

/// Returns a figure with bounds: the other shapes' figures, and the residual uncertainty.
fn bounds(value: f64, others: impl Iterator<Item = f64>, edge: Edge, which: usize) -> BoundedValue {
    let (mut lower, mut upper) = (value, value);
    for other in others {
        (lower, upper) = (lower.min(other), upper.max(other));
    }
    // A fitted mean does not depend on the shape.
    if which == 0 && edge.pinned {
        (lower, upper) = (value, value);
    }
    let residual = if which == 0 && edge.pinned { 0.0 } else { edge.residual[which] };
    let half = (edge.share + residual) * value + edge.ns / 1e9;
    BoundedValue { value, lower: (lower - half).max(0.0), upper: upper + half }
}
