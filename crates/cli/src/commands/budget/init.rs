//! New budget files: presets, or the figures of a run with a margin.
//!
//! The text is not serialised, because half of it is comments. Without its measured figure a ceiling could not be explained later.

use std::fmt::Write as _;

use plimsoll_judge::budget::{ALPHA, Amount, AmountUnit, lint};
use plimsoll_judge::history::measured;
use plimsoll_measure::findings::{CapacityLine, Estimate, Findings, LevelFinding, LevelSummary, Trust};
use plimsoll_model::{Load, Manifest};
use plimsoll_report::figure;
use plimsoll_workload::format_span;

use crate::exit::Stop;
use crate::flags::Preset;

pub fn preset(preset: Preset) -> &'static str {
    match preset {
        Preset::Chat => include_str!("../../../presets/chat.yaml"),
        Preset::Search => include_str!("../../../presets/search.yaml"),
        Preset::Recommendation => include_str!("../../../presets/recommendation.yaml"),
        Preset::Code => include_str!("../../../presets/code.yaml"),
        Preset::Batch => include_str!("../../../presets/batch.yaml"),
    }
}

/// Minimum proposed error ceiling, because a lower one takes ten thousand requests to show.
const LEAST_ERRORS: f64 = 0.001;

/// Returns a budget file with the upper bounds of a run and a margin.
///
/// # Errors
/// Fails if the margin is out of range, or if the run has no valid percentile.
pub fn proposal(manifest: &Manifest, findings: &Findings, margin: f64) -> Result<String, Stop> {
    if !(0.0..=10.0).contains(&margin) {
        return Err(Stop::usage(format!("--margin {margin}: a share from 0 to 10, such as 0.2")));
    }
    if findings.validity.verdict == Trust::Invalid {
        return Err(Stop::usage(
            "this run is not a valid measurement (plimsoll show gives the reason): name a valid run",
        ));
    }
    let Some(level) = measured(findings).last() else {
        return Err(Stop::usage(
            "this run has no load with valid figures: name a run of plimsoll run, or of a sweep with --hold",
        ));
    };
    let budgets = latencies(level, margin);
    if budgets.is_empty() {
        return Err(Stop::usage("this run has no percentile: measure longer"));
    }
    let mut text = head(manifest, level, margin);
    for budget in budgets {
        text.push_str(&budget);
    }
    text.push_str(&errors(level, margin));
    text.push_str(&lines(findings));
    Ok(text)
}

fn head(manifest: &Manifest, level: &LevelFinding, margin: f64) -> String {
    let summary = &level.summary;
    let mut text = format!(
        "# Proposed from run {} of {}, {}: upper ends of the measured 95 % intervals + {}, rounded up.\n\
         # The comment above each row gives its measurement. Replace the limits by your users' needs.\n\
         version: 1\nname: proposed\nnote: from run {}\nload:\n  profile: {}\n",
        manifest.id,
        manifest.target.url,
        figure::date(manifest.clock.realtime_ns),
        figure::percent(margin),
        manifest.id,
        summary.traffic
    );
    if let Load::Open { rate_per_s } = summary.load {
        let rate = Amount { value: digits(rate_per_s, 4), unit: AmountUnit::Rate };
        let _ = writeln!(text, "  rate: {rate}");
    }
    let planned = manifest.levels.iter().find(|l| l.id == summary.level).map(|l| l.window());
    if let Some(window) = planned.filter(|_| matches!(summary.load, Load::Open { .. })) {
        let _ = writeln!(text, "  duration: {}", format_span(window));
    }
    text.push_str("budgets:\n");
    text
}

/// Returns a ceiling per measured percentile. That of `e2e` has room for `ttft` and `tpot` at their ceilings.
fn latencies(level: &LevelFinding, margin: f64) -> Vec<String> {
    let LevelSummary { latency, lengths, .. } = &level.summary;
    let output = &lengths.output;
    let tokens = output.reported_mean.unwrap_or(output.asked_mean).max(1.0);
    let mut found = Vec::new();
    for (p, name) in [(0.5, "p50"), (0.95, "p95"), (0.99, "p99")] {
        let at = |set: Option<&plimsoll_measure::findings::Percentiles>| {
            let estimate = *set?.at(p)?.estimate()?;
            estimate.upper.is_finite().then(|| (estimate, rounded_up(estimate.upper * (1.0 + margin))))
        };
        let (ttft, tpot, e2e) =
            (at(latency.ttft.as_ref()), at(latency.tpot.as_ref()), at(Some(&latency.e2e)));
        for (metric, of) in [("ttft", ttft), ("tpot", tpot)] {
            found.extend(of.map(|(estimate, max)| ceiling(metric, name, p, &estimate, max, "")));
        }
        let parts = ttft.zip(tpot).map(|((_, first), (_, each))| first + (tokens - 1.0) * each);
        if let Some((estimate, max)) = e2e {
            let (max, why) = match parts {
                Some(parts) if parts > max => {
                    (rounded_up(parts), format!("; raised to match ttft + {:.0} x tpot", tokens - 1.0))
                }
                _ => (max, String::new()),
            };
            found.push(ceiling("e2e", name, p, &estimate, max, &why));
        }
    }
    found
}

fn ceiling(metric: &str, name: &str, p: f64, at: &Estimate, max: f64, why: &str) -> String {
    let time = |s: f64| figure::duration_ns(s * 1e9).replace('\u{202f}', " ");
    format!(
        "  # {} ({} to {}), n = {}, n_eff = {}{why}\n  - {{id: {metric}-{name}, metric: {metric}, p: {}, max: {}}}\n",
        time(at.value),
        time(at.lower),
        time(at.upper),
        at.n,
        at.n_eff.floor(),
        100.0 * p,
        Amount::seconds(max)
    )
}

fn errors(level: &LevelFinding, margin: f64) -> String {
    let Some(rate) = &level.summary.counts.error_rate else { return String::new() };
    let max = rounded_up((rate.upper * (1.0 + margin)).max(LEAST_ERRORS));
    if max >= 1.0 {
        return String::new();
    }
    let needed = lint::needed(max, ALPHA).map_or(0.0, |needed| needed.planned);
    format!(
        "  # {} of {} requests ({} to {}); takes {needed} effective requests where half of it happens\n  - {{id: errors, metric: error_rate, max: {}}}\n",
        figure::percent(rate.value),
        rate.n,
        figure::percent(rate.lower),
        figure::percent(rate.upper),
        Amount::share(max)
    )
}

/// Returns the rows of a sweep: a floor below the onset, and the usual share of the stability limit.
fn lines(findings: &Findings) -> String {
    let Some(lines) =
        findings.lines.iter().find(|lines| lines.traffic == "steady").or(findings.lines.first())
    else {
        return String::new();
    };
    let mut text = String::new();
    if let CapacityLine::Found { rate, .. } = &lines.onset {
        let floor = Amount { value: rounded_down(rate.lower), unit: AmountUnit::Rate };
        let _ = write!(
            text,
            "  # queueing begins at {} ({} to {})\n  - {{id: before-queueing, metric: throughput_before_onset, min: {floor}}}\n",
            figure::per_second(rate.value),
            figure::per_second(rate.lower),
            figure::per_second(rate.upper)
        );
    }
    if let CapacityLine::Found { rate, .. } = &lines.stability {
        let _ = write!(
            text,
            "  # stable up to {} ({} to {}); 80 % is a convention, not a measurement\n  - {{id: utilisation, metric: utilisation, max: 80%}}\n",
            figure::per_second(rate.value),
            figure::per_second(rate.lower),
            figure::per_second(rate.upper)
        );
    }
    text
}

/// Returns the nearest number with this many digits.
fn digits(value: f64, count: i32) -> f64 {
    format!("{value:.*e}", count.max(1) as usize - 1).parse().unwrap_or(value)
}

/// Rounds up to two digits.
fn rounded_up(value: f64) -> f64 {
    rounded(value, f64::ceil)
}

/// Rounds down to two digits.
fn rounded_down(value: f64) -> f64 {
    rounded(value, f64::floor)
}

fn rounded(value: f64, way: fn(f64) -> f64) -> f64 {
    if value <= 0.0 || !value.is_finite() {
        return value;
    }
    // Divides by a whole power of ten, because 35 / 100 is exactly 0.35 and 35 × 0.01 is not.
    let places = 1 - value.log10().floor() as i32;
    let scale = 10f64.powi(places.abs());
    // A value within rounding of a step is that step.
    let steps = if places >= 0 { value * scale } else { value / scale };
    let steps = if (steps - steps.round()).abs() < 1e-9 { steps.round() } else { way(steps) };
    if places >= 0 { steps / scale } else { steps * scale }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ceilings_have_two_digits() {
        for (value, up, down) in
            [(0.3412, 0.35, 0.34), (12.1, 13.0, 12.0), (0.35, 0.35, 0.35), (1234.0, 1300.0, 1200.0)]
        {
            assert_eq!((rounded_up(value), rounded_down(value)), (up, down));
        }
    }
}
