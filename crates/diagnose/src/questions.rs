//! The five questions of the method, each with its figure or the missing data.

use super::effect::ALONE_NEEDED;
use super::frame::Frames;
use super::material::failed;
use super::seen::{DiagnosedLevel, RequestView};
use super::verdict::{Question, TargetChange, YesNo};
use plimsoll_math::quantile;
use plimsoll_measure::findings::{Estimate, Metric};
use plimsoll_measure::say::{chance, ms, number, percent, ratio_ends};

pub fn answer(frames: &Frames<'_>) -> Vec<Question> {
    vec![concurrency(frames), tail(frames), artefact(frames), alone(frames), errors(frames)]
}

pub(crate) fn question(asks: &str, answer: YesNo, says: String, value: Option<Estimate>) -> Question {
    Question { asks: asks.to_owned(), answer, says, value }
}

pub(crate) fn cant(asks: &str, says: &str) -> Question {
    question(asks, YesNo::CantTell, says.to_owned(), None)
}

/// Returns a percentile with its interval; `None` if there are too few values.
pub fn estimate(in_send_order: &[f64], p: f64) -> Option<Estimate> {
    let found = quantile::percentile(in_send_order, p, 0.95, super::effect::STRETCHES)?;
    let (lower, upper) = match found.interval {
        Ok(interval) => (interval.lower, interval.upper),
        Err(_) => return None,
    };
    Some(Estimate { value: found.value, lower, upper, n: found.n as u64, n_eff: found.worth.n_eff })
}

/// The median latency at one load.
struct LoadLatency {
    place: String,
    in_flight: f64,
    median: Estimate,
}

impl LoadLatency {
    fn read(seen: &DiagnosedLevel<'_>) -> Option<LoadLatency> {
        let median = estimate(&whole(&seen.rows), 0.5)?;
        let in_flight = seen.in_flight();
        let done = seen.rows.iter().filter(|row| row.ok).count() as f64 / seen.length;
        let place = format!("with {} in flight ({} requests/s)", number(in_flight), number(done));
        Some(LoadLatency { place, in_flight, median })
    }
}

/// Returns the latencies of whole responses.
fn whole(rows: &[RequestView]) -> Vec<f64> {
    rows.iter().filter(|row| row.output >= 1.0).map(|row| row.e2e).filter(|x| x.is_finite()).collect()
}

/// Returns the lowest and highest concurrency of the run that have a median. The first choice is isolated requests if
/// there are enough, and the analysed level if its queue permits a median. Otherwise the lightest and the heaviest of
/// the other levels are used.
fn extremes(frames: &Frames<'_>) -> Result<(LoadLatency, LoadLatency), &'static str> {
    let enough = frames.candidate.alone.len() >= ALONE_NEEDED;
    let alone = estimate(&whole(&frames.candidate.alone), 0.5).filter(|_| enough).map(|median| LoadLatency {
        place: "alone".to_owned(),
        in_flight: 1.0,
        median,
    });
    let own = LoadLatency::read(frames.now());
    let mut others: Vec<LoadLatency> = Vec::new();
    if alone.is_none() || own.is_none() {
        let side = &frames.case.candidate;
        let levels = super::frame::judged(side).into_iter().filter(|l| l.id != frames.now().level.id);
        others.extend(
            levels.filter_map(|level| LoadLatency::read(&DiagnosedLevel::read(level, side.attempts))),
        );
        others.sort_by(|a, b| a.in_flight.total_cmp(&b.in_flight));
    }
    let Some(many) = own.or_else(|| others.pop()) else {
        return Err("too few independent requests for a median");
    };
    let lighter = |few: &LoadLatency| few.in_flight < 0.5 * many.in_flight;
    let Some(few) = alone.or_else(|| others.into_iter().next().filter(lighter)) else {
        return Err(if enough {
            "too few independent requests for a median"
        } else {
            "too few isolated requests; add a level with one request in flight"
        });
    };
    Ok((few, many))
}

/// Compares the median latency at load with that of isolated requests, or of requests at low concurrency.
fn concurrency(frames: &Frames<'_>) -> Question {
    let asks = "does it scale with concurrency?";
    let (few, many) = match extremes(frames) {
        Ok(found) => found,
        Err(says) => return cant(asks, says),
    };
    let ratio = Estimate {
        value: many.median.value / few.median.value,
        lower: many.median.lower / few.median.upper,
        upper: many.median.upper / few.median.lower,
        n: few.median.n.min(many.median.n),
        n_eff: few.median.n_eff.min(many.median.n_eff),
    };
    let yes = if ratio.lower > 1.1 {
        YesNo::Yes
    } else if ratio.upper < 1.25 {
        YesNo::No
    } else {
        YesNo::CantTell
    };
    let says = format!(
        "median e2e {} {}, {} {}: × {} {}",
        ms(few.median.value),
        few.place,
        ms(many.median.value),
        many.place,
        number(ratio.value),
        ratio_ends(ratio.lower, ratio.upper)
    );
    question(asks, yes, says, Some(ratio))
}

fn tail(frames: &Frames<'_>) -> Question {
    let asks = "is the median fine and the tail blown?";
    if let (Some(middle), Some(tail)) = (frames.material.of("ttft", 0.5), frames.material.of("ttft", 0.95)) {
        let fine = middle.effect.ratio.upper < 1.25 && !middle.material;
        let blown = tail.material || tail.large && tail.effect.ratio.lower > 1.1;
        let yes = match (fine, blown) {
            (true, true) => YesNo::Yes,
            (_, false) if tail.effect.ratio.upper < 1.5 => YesNo::No,
            (false, true) => YesNo::No,
            _ => YesNo::CantTell,
        };
        return question(asks, yes, format!("{}; {}", middle.words(), tail.words()), Some(tail.effect.ratio));
    }
    let ttft = frames.now().finite(|row| row.ttft);
    let values = if ttft.is_empty() { frames.now().finite(|row| row.e2e) } else { ttft };
    match (estimate(&values, 0.5), estimate(&values, 0.95)) {
        (Some(middle), Some(tail)) => {
            let says = format!(
                "p95 {} is {} times the median {}; without a baseline the usual ratio is unknown",
                ms(tail.value),
                number(tail.value / middle.value),
                ms(middle.value)
            );
            question(asks, YesNo::CantTell, says, Some(tail))
        }
        _ => cant(asks, "too few independent requests for a median and a p95"),
    }
}

fn artefact(frames: &Frames<'_>) -> Question {
    let asks = "did latency move with the model artefact unchanged?";
    if frames.base.is_none() {
        return cant(asks, "there is no baseline; give one with --baseline");
    }
    // A change counts even if the whole run does not prove it, provided that its own interval does.
    let sure = |m: &super::material::MovedMetric| m.material || m.large && m.effect.ratio.lower > 1.1;
    let moved = frames.material.moved.iter().any(sure);
    let (answer, says) = unchanged(&super::changed::facts(frames.case), moved, &frames.material.words());
    question(asks, answer, says, None)
}

/// Returns whether latency changed with the artefact unchanged. `what` describes the change of latency.
pub fn unchanged(changed: &TargetChange, moved: bool, what: &str) -> (YesNo, String) {
    let model = |of: &[String]| -> Vec<String> {
        of.iter().filter(|fact| fact.starts_with("model")).cloned().collect()
    };
    let (differ, same) = (model(&changed.differ), model(&changed.same));
    let digest = same.iter().any(|fact| fact.starts_with("model_digest"));
    match (moved, differ.first(), digest || !same.is_empty()) {
        (false, ..) => (YesNo::No, format!("latency did not move: {what}")),
        (true, Some(differ), _) => (YesNo::No, format!("the model changed ({differ}); {what}")),
        (true, None, true) => {
            let sure = if digest { "" } else { " (by its name; its digest is unknown)" };
            (YesNo::Yes, format!("{}{sure}; {what}", same.join(", ")))
        }
        (true, None, false) => {
            (YesNo::CantTell, "latency moved, and which model answered is unknown on a side".to_owned())
        }
    }
}

fn alone(frames: &Frames<'_>) -> Question {
    let asks = "does a single request with no contention already exceed the budget?";
    let Some(budget) = frames.case.budget.filter(|budget| !budget.latency.is_empty()) else {
        return cant(asks, "there is no budget; give one with --budget");
    };
    if frames.candidate.alone.len() < ALONE_NEEDED {
        return cant(asks, "too few isolated requests; add a level with one request in flight");
    }
    let mut worst: Option<(f64, String, Estimate, Metric)> = None;
    for ceiling in &budget.latency {
        let of = super::material::metric(ceiling.metric.name());
        let values: Vec<f64> = frames.candidate.alone.iter().map(of).filter(|x| x.is_finite()).collect();
        let Some(found) = estimate(&values, 0.5) else { continue };
        let strain = found.value / ceiling.limit_s;
        let says = format!(
            "{} p50 isolated {} [{}, {}] against {}",
            ceiling.metric.name(),
            ms(found.value),
            ms(found.lower),
            ms(found.upper),
            ms(ceiling.limit_s)
        );
        if worst.as_ref().is_none_or(|(most, ..)| strain > *most) {
            worst = Some((strain, says, found, ceiling.metric));
        }
    }
    match worst {
        None => cant(asks, "none of the budget's metrics was measured on single requests"),
        Some((strain, says, found, _)) => {
            let limit = found.value / strain;
            let yes = match () {
                () if found.lower > limit => YesNo::Yes,
                () if found.upper <= limit => YesNo::No,
                () => YesNo::CantTell,
            };
            question(asks, yes, says, Some(found))
        }
    }
}

fn errors(frames: &Frames<'_>) -> Question {
    let asks = "do errors and retries climb with latency?";
    let (k, n, n_eff) = failed(frames.now());
    let rows = &frames.now().rows;
    let attempts: f64 =
        rows.iter().map(|row| f64::from(row.attempts)).sum::<f64>() / rows.len().max(1) as f64;
    let (lower, upper) = plimsoll_math::proportion::exceedance_bounds(k / n.max(1.0) * n_eff, n_eff, 0.025);
    let share = Estimate { value: k / n.max(1.0), lower, upper, n: n as u64, n_eff };
    let retries = match attempts {
        one if one <= 1.0 => "no request was retried".to_owned(),
        more => format!("{} attempts per request", number(more)),
    };
    let figures = format!("{} of the requests fail, {retries}", percent(share.value));
    if k == 0.0 && attempts < 1.005 {
        return question(asks, YesNo::No, figures, Some(share));
    }
    // Counts failures and retries in slow intervals.
    let (mut slow, mut bad) = (Vec::new(), Vec::new());
    let of = if rows.iter().any(|row| row.ttft.is_finite()) {
        |r: &RequestView| r.ttft
    } else {
        |r: &RequestView| r.e2e
    };
    let latency = super::effect::stretches(frames.now(), |row| if row.ok { of(row) } else { f64::NAN });
    let failing = super::effect::stretches(frames.now(), |row| {
        f64::from(u8::from(!row.ok && !row.cancelled || row.attempts > 1))
    });
    for (mut latency, failing) in latency.into_iter().zip(failing) {
        let Some(median) = quantile::order_statistic(&mut latency, 0.5) else { continue };
        slow.push(median);
        bad.push(failing.iter().sum::<f64>() / failing.len().max(1) as f64);
    }
    match super::effect::spearman(&slow, &bad) {
        Some((rho, p)) if p < 0.05 && rho > 0.0 => question(
            asks,
            YesNo::Yes,
            format!("{figures}; they rise with latency (rank correlation {})", number(rho)),
            Some(share),
        ),
        Some((rho, p)) => {
            let says = format!(
                "{figures}; they do not rise with latency (rank correlation {}, {})",
                number(rho),
                chance(p)
            );
            question(asks, YesNo::No, says, Some(share))
        }
        None => question(
            asks,
            YesNo::CantTell,
            format!("{figures}; too few intervals to correlate them with latency"),
            Some(share),
        ),
    }
}
