//! Where a broken budget breaks: the one finding of the run that explains it best, with its figures.
//!
//! Asked in the order in which an answer would make the next question pointless: does a single request already exceed the
//! ceiling; do failures alone; does the level not keep up; is it past the onset; was the time lost before anything was sent; which stage
//! holds it. A guess lost: where the run holds none of this the row says what to measure.

use plimsoll_model::Load;

use super::judge::Judgement;
use super::select::{Chosen, MeasuredRun, Picks, stages_beyond, values};
use crate::budget::{BudgetMetric, Judged, Limit, Unit, of_values, shown};
use plimsoll_measure::columns::INFINITE;
use plimsoll_measure::findings::{CapacityLine, KeptUp};
use plimsoll_measure::order::seconds;
use plimsoll_measure::say::{number, percent};

/// `ttft p99 612 ms > 350 ms at 12 req/s: queueing past the onset at 9.8 req/s`.
pub(super) fn sentence(
    limit: &Limit<'_>,
    row: &Judgement,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> String {
    let first = row.measured_shown.split(" [").next().unwrap_or_default();
    let sign = if limit.floor { "<" } else { ">" };
    let limit_shown = row.limit_shown.trim_start_matches(['≤', '≥', ' ']);
    let measured = match row.measured.value() {
        Some(value) if value.is_infinite() => "falls among failed requests".to_owned(),
        None => match row.count {
            Some((count, allowed)) => format!(
                "is over {limit_shown} for {} of the requests ({} may be)",
                percent(count.over_least as f64 / count.n.max(1) as f64),
                percent(allowed)
            ),
            None => format!("breaks {limit_shown}"),
        },
        Some(_) => format!("{first} {sign} {limit_shown}"),
    };
    let load = chosen.offered_per_s();
    format!("{} {measured} at {} req/s: {}", row.what, number(load), cause(limit, run, baseline, chosen))
}

fn cause(
    limit: &Limit<'_>,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> String {
    let is_latency = limit.metric.judged() == Judged::Percentile;
    let causes: [&dyn Fn() -> Option<String>; 6] = [
        &|| is_latency.then(|| floor(limit, run, baseline)).flatten(),
        &|| errors(limit, chosen),
        &|| unstable(run, baseline, chosen),
        &|| past_onset(run, baseline, chosen),
        &|| is_latency.then(|| before_sending(limit, chosen)).flatten(),
        &|| is_latency.then(|| stage(limit, chosen)).flatten(),
    ];
    causes.iter().find_map(|cause| cause()).unwrap_or_else(|| {
        let onset = onset_of(run, baseline, chosen);
        match onset {
            Some(rate) => format!(
                "not queueing, the onset is at {} req/s; the run holds no stage times that say where the time goes",
                number(rate)
            ),
            None => "not located: the run holds no onset, no single-request level and no stage times; `plimsoll sweep` \
                     finds the first two"
                .to_owned(),
        }
    })
}

/// A request that waits for nobody already exceeds the ceiling.
fn floor(limit: &Limit<'_>, run: &MeasuredRun<'_>, baseline: Option<&MeasuredRun<'_>>) -> Option<String> {
    let (p, limit_s) = (limit.p?, limit.value?);
    for measured in [Some(run), baseline].into_iter().flatten() {
        let alone = |rows: &&plimsoll_measure::whole::LevelRows| {
            matches!(rows.level.load, Load::Closed { concurrency: 1 })
        };
        let Some(rows) = measured.levels.iter().find(alone) else { continue };
        let finding = measured.findings.levels.iter().find(|l| l.summary.level == rows.level.id)?;
        let single = Chosen { levels: vec![(rows, finding)], traffic: rows.level.traffic.clone() };
        let mut values = values(&single, limit.metric, Picks::default());
        if values.len() < 20 {
            continue;
        }
        // The median: half of all requests can't make it even alone.
        let at = plimsoll_math::quantile::rank(values.len(), 0.5) - 1;
        let median = seconds(*values.select_nth_unstable(at).1);
        if median > limit_s {
            return Some(format!(
                "a single request with no contention already takes {} (p50); no load is low enough for {}",
                shown(median, &Unit::Time),
                p.name()
            ));
        }
    }
    None
}

/// Failures alone use up what may exceed.
fn errors(limit: &Limit<'_>, chosen: &Chosen<'_>) -> Option<String> {
    let (mut failed, mut requests) = (0, 0);
    let mut most: Option<&plimsoll_measure::findings::ErrorCount> = None;
    for (_, finding) in &chosen.levels {
        let counts = &finding.summary.counts;
        failed += counts.failed - counts.cancelled.min(counts.failed);
        requests += counts.requests;
        most = most.or(counts.errors.first());
    }
    let share = failed as f64 / requests.max(1) as f64;
    let allowed = match limit.metric.judged() {
        Judged::Percentile => 1.0 - limit.p?.0,
        Judged::TailRatio => 0.01,
        Judged::Share if limit.metric != BudgetMetric::RetryRate => 0.0,
        _ => return None,
    };
    (share > allowed).then(|| {
        let how = most.map_or(String::new(), |error| {
            let status = error.status.map_or(String::new(), |status| format!(" {status}"));
            let text =
                if error.text.is_empty() { String::new() } else { format!(" “{}”", brief(&error.text)) };
            format!(", mostly {}{status}{text}", error.how.name())
        });
        format!("{} of the requests failed{how}", percent(share))
    })
}

fn brief(text: &str) -> String {
    let short: String = text.chars().take(60).collect();
    if short.len() < text.len() { short + "…" } else { short }
}

fn unstable(
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> Option<String> {
    let (_, level) = chosen.levels.iter().find(|(_, l)| l.summary.stability.verdict == KeptUp::Unstable)?;
    let stability = &level.summary.stability;
    let grows = stability.growth_share.is_none_or(|growth| growth.lower > stability.limit_share);
    if !grows {
        // Held unstable for what it turns away, not for a queue.
        return Some(stability.why.clone());
    }
    let growth =
        stability.growth_share.map_or(String::new(), |g| format!(" by {} of the arrivals", percent(g.value)));
    let limit = lines(run, baseline, chosen).and_then(|(lines, whose)| {
        Some(format!(", past the stability limit at {} req/s{whose}", number(lines.stability.rate()?.value)))
    });
    Some(format!("requests pile up{growth}{}", limit.unwrap_or_default()))
}

fn lines<'m>(
    run: &'m MeasuredRun<'_>,
    baseline: Option<&'m MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> Option<(&'m plimsoll_measure::findings::CapacityLines, &'static str)> {
    let of =
        |measured: &'m MeasuredRun<'_>| measured.findings.lines.iter().find(|l| l.traffic == chosen.traffic);
    of(run)
        .map(|lines| (lines, ""))
        .or_else(|| baseline.and_then(of).map(|lines| (lines, " (of the baseline)")))
}

fn onset_of(run: &MeasuredRun<'_>, baseline: Option<&MeasuredRun<'_>>, chosen: &Chosen<'_>) -> Option<f64> {
    Some(lines(run, baseline, chosen)?.0.onset.rate()?.value)
}

fn past_onset(
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    chosen: &Chosen<'_>,
) -> Option<String> {
    let (lines, whose) = lines(run, baseline, chosen)?;
    let offered = chosen.offered_per_s();
    match &lines.onset {
        CapacityLine::Found { rate, .. } if offered > rate.value => {
            Some(format!("queueing past the onset at {} req/s{whose}", number(rate.value)))
        }
        CapacityLine::Below { rate_per_s, .. } if offered >= *rate_per_s => {
            Some(format!("queueing: the onset lies below {} req/s{whose}", number(*rate_per_s)))
        }
        _ => None,
    }
}

/// Counted from the sent time it holds: what breaks it happened on this side of the wire.
fn before_sending(limit: &Limit<'_>, chosen: &Chosen<'_>) -> Option<String> {
    let after = limit.metric.after_send();
    if after == limit.metric {
        return None;
    }
    let (p, limit_s) = (limit.p?, limit.value?);
    let values = values(chosen, after, Picks::default());
    let count = of_values(&values, limit_s, p.0, chosen.length_s());
    let within = count.n > 0 && (count.over_most as f64) < (1.0 - p.0) * count.n as f64;
    within.then(|| {
        format!("counted from the instant of sending it holds; the time is lost before that, waiting for a connection or in the generator ({} {})", after.name(), p.name())
    })
}

/// The stage that holds most of the time of the requests over the ceiling.
fn stage(limit: &Limit<'_>, chosen: &Chosen<'_>) -> Option<String> {
    let limit_ns = (limit.value? * 1e9).min((INFINITE - 1) as f64) as i64;
    let stages = stages_beyond(chosen, limit.metric, limit_ns);
    let total: f64 = stages.iter().map(|(_, s)| s).sum();
    let (name, mean_s) = stages.first()?;
    (total > 0.0).then(|| {
        format!(
            "of the requests over it, {} holds {} of the time the server accounts for ({} on average)",
            name,
            percent(mean_s / total),
            shown(*mean_s, &Unit::Time)
        )
    })
}
