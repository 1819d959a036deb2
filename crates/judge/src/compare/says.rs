//! The verdict in sentences: the changes, their size and their certainty.
//!
//! A change that improves the average and breaks the tail is easily overlooked, so it has a separate sentence.

use super::finding::{
    ChangeVerdict, ComparedFigure, ComparedLevels, ComparedStage, Comparison, Effect, Scale, WorseWay,
};
use plimsoll_measure::say::{length, ms, number, percent};

/// Maximum number of rows per verdict that are named; the others are counted.
const NAMED: usize = 4;

/// Returns the sentences, the verdict first.
pub fn says(comparison: &Comparison) -> Vec<String> {
    let rows: Vec<&ComparedFigure> =
        comparison.groups.iter().flat_map(|group| &group.rows).chain(&comparison.lines).collect();
    let of = |change: ChangeVerdict| -> Vec<&ComparedFigure> {
        let own = |row: &&ComparedFigure| row.primary && row.verdict == change;
        let mut own: Vec<&ComparedFigure> = rows.iter().copied().filter(own).collect();
        own.sort_by(|a, b| margins(b).total_cmp(&margins(a)));
        own
    };
    let mut said: Vec<String> = comparison.groups.iter().flat_map(refused).collect();
    let (regressed, open, improved) =
        (of(ChangeVerdict::Regressed), of(ChangeVerdict::Inconclusive), of(ChangeVerdict::Improved));
    match comparison.verdict {
        ChangeVerdict::Regressed => said.push(format!("Regressed: {}.", list(&regressed))),
        ChangeVerdict::Inconclusive => said.extend(inconclusive(&open)),
        ChangeVerdict::Improved => said.push(format!("Improved: {}; nothing got worse.", list(&improved))),
        ChangeVerdict::NoChange => {
            said.push("No change: every figure of the family stays within its margin.".to_owned());
        }
    }
    if comparison.verdict != ChangeVerdict::Improved && !improved.is_empty() {
        said.push(format!("Improved: {}.", list(&improved)));
    }
    said.extend(comparison.groups.iter().flat_map(mix_alone));
    said.extend(
        comparison.groups.iter().flat_map(|group| group.stages.iter().filter_map(|s| local(s, group))),
    );
    said
}

/// Returns sentences on inconclusive rows: first the rows that lack requests, in one sentence with the time that they need.
fn inconclusive(open: &[&ComparedFigure]) -> Vec<String> {
    let (short, other): (Vec<&ComparedFigure>, Vec<&ComparedFigure>) =
        open.iter().copied().partition(|row| row.needs_s.is_some());
    let mut said = Vec::new();
    if let Some(longest_s) = short.iter().filter_map(|row| row.needs_s).max_by(f64::total_cmp) {
        let names: Vec<String> = short.iter().map(|row| name(row)).collect();
        said.push(format!(
            "Too short to compare {}: about {} of this load on each side would do, or ten alternations (plimsoll interleave).",
            names.join(", "),
            length(longest_s)
        ));
    }
    if !other.is_empty() || short.is_empty() {
        said.push(format!("Inconclusive: {}.", list(&other)));
    }
    said
}

/// Returns sentences on metrics that are better in the median or the mean and worse in the tail.
///
/// An improvement of less than half the margin does not count, because no user would have deployed it.
fn refused(group: &ComparedLevels) -> Vec<String> {
    let tails = group.rows.iter().filter(|row| {
        row.primary
            && row.verdict == ChangeVerdict::Regressed
            && matches!(row.statistic.as_str(), "p95" | "p99")
    });
    let middle = |tail: &ComparedFigure| {
        group.rows.iter().find(|row| {
            row.metric == tail.metric
                && matches!(row.statistic.as_str(), "p50" | "mean" | "per request")
                && row
                    .effect
                    .is_some_and(|effect| effect.upper < 1.0 && effect.value < 1.0 / (1.0 + 0.5 * row.margin))
        })
    };
    let sentence = |tail: &ComparedFigure| {
        let middle = middle(tail)?;
        let what = match middle.statistic.as_str() {
            "p50" => "median",
            "mean" => "mean",
            _ => "typical request",
        };
        Some(format!(
            "Refused: the change improves the {what} of {} by {} and breaks its {}: {}.",
            tail.metric,
            percent(1.0 - middle.effect?.value),
            tail.statistic,
            amount(tail)
        ))
    };
    let mut said: Vec<String> = tails.filter_map(sentence).collect();
    // One sentence per metric is enough: the highest percentile.
    said.dedup_by(|later, earlier| {
        let metric =
            |text: &str| text.split(" of ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned);
        let same = metric(later) == metric(earlier);
        if same {
            std::mem::swap(later, earlier);
        }
        same
    });
    said
}

/// Returns a sentence on a metric that changed in the raw data and not at the base's mix.
fn mix_alone(group: &ComparedLevels) -> Vec<String> {
    let sentence = |row: &ComparedFigure| {
        let (raw, at_mix) = (row.as_it_came?, row.effect?);
        let direction = if raw.lower > 1.0 + row.margin {
            "worse"
        } else if raw.upper < 1.0 / (1.0 + row.margin) {
            "better"
        } else {
            return None;
        };
        (row.verdict == ChangeVerdict::NoChange || at_mix.lower <= 1.0 && at_mix.upper >= 1.0).then(|| {
            format!(
                "{} {} is {direction} in the raw data, {}, and is {} at the base's mix of classes and prompt lengths: the mix \
                 changed, not the target.",
                row.metric,
                row.statistic,
                interval(&raw),
                interval(&at_mix)
            )
        })
    };
    let broken = |row: &ComparedFigure| {
        let same = |other: &&ComparedFigure| other.metric == row.metric && other.primary;
        group.rows.iter().filter(same).any(|other| other.verdict == ChangeVerdict::Regressed)
    };
    group.rows.iter().filter(|row| row.primary && !broken(row)).filter_map(sentence).take(1).collect()
}

/// Returns a sentence on a stage that became faster while the whole did not.
fn local(stage: &ComparedStage, group: &ComparedLevels) -> Option<String> {
    if !stage.local_only {
        return None;
    }
    let e2e = group.rows.iter().find(|row| row.metric == "e2e" && row.statistic == "p50")?;
    let whole = match e2e.verdict {
        ChangeVerdict::NoChange => "the end to end did not move beyond its margin",
        _ => "no gain is shown end to end",
    };
    Some(format!(
        "Local speed-up, no global gain: {} takes {} of its time ({} to {}), but it is {} of the whole, so at most {} times \
         faster in all; {whole}: e2e p50 {}.",
        stage.name,
        percent(stage.effect.value),
        ms(stage.base_mean_s),
        ms(stage.candidate_mean_s),
        percent(stage.share),
        number(stage.ceiling),
        e2e.effect.as_ref().map_or_else(|| "unknown".to_owned(), interval)
    ))
}

/// Returns the effect of a row in margins, which is the order of the rows.
fn margins(row: &ComparedFigure) -> f64 {
    let Some(effect) = row.effect else { return 0.0 };
    match effect.scale {
        Scale::Ratio => effect.value.ln().abs() / row.margin.ln_1p(),
        Scale::Difference => effect.value.abs() / row.margin,
    }
}

fn list(rows: &[&ComparedFigure]) -> String {
    let mut named: Vec<String> = rows.iter().take(NAMED).map(|row| one(row)).collect();
    if rows.len() > NAMED {
        named.push(format!("{} more", rows.len() - NAMED));
    }
    named.join("; ")
}

fn one(row: &ComparedFigure) -> String {
    let name = name(row);
    match (&row.effect, &row.why) {
        (None, Some(why)) => format!("{name} ({why})"),
        (None, None) => name,
        (Some(_), Some(why)) if row.verdict == ChangeVerdict::Inconclusive => {
            format!("{name} {} ({why})", amount(row))
        }
        (Some(_), _) => format!("{name} {}", amount(row)),
    }
}

/// Returns metric and statistic; the statistic is left out if it is "rate".
pub fn name(row: &ComparedFigure) -> String {
    match row.statistic.as_str() {
        "rate" => row.metric.replace('_', " "),
        statistic => format!("{} {statistic}", row.metric),
    }
}

/// Returns the effect as text: `13 % worse (4 % to 22 %)`.
fn amount(row: &ComparedFigure) -> String {
    let Some(effect) = row.effect else { return "unknown".to_owned() };
    if effect.value == f64::INFINITY {
        return "infinite: failures reach down to it".to_owned();
    }
    if !effect.value.is_finite() || effect.scale == Scale::Difference || effect.value <= 0.0 {
        return interval(&effect);
    }
    let higher = effect.value >= 1.0;
    let word = match (row.worse, higher) {
        (WorseWay::Higher, true) | (WorseWay::Lower, false) => "worse",
        _ => "better",
    };
    format!("{} {word}, {}", percent((effect.value - 1.0).abs()), interval(&effect))
}

/// Returns the interval as text: `1.13 × (1.04 to 1.22)`, or in percentage points.
pub fn interval(effect: &Effect) -> String {
    match effect.scale {
        // An unbounded end has no number.
        Scale::Ratio if effect.lower <= 0.0 && effect.upper.is_finite() => {
            format!("{} × (up to {})", number3(effect.value), number3(effect.upper))
        }
        Scale::Ratio => {
            format!("{} × ({} to {})", number3(effect.value), number3(effect.lower), number3(effect.upper))
        }
        Scale::Difference => {
            let points = |share: f64| format!("{:+.2}", 100.0 * share);
            format!("{} points ({} to {})", points(effect.value), points(effect.lower), points(effect.upper))
        }
    }
}

/// Returns three decimals near one, because differences are small there.
fn number3(x: f64) -> String {
    if x.is_finite() && (0.1..10.0).contains(&x) { format!("{x:.3}") } else { number(x) }
}
