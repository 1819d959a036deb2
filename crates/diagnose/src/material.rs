//! Significance of changes. Against a baseline, a change is significant if the ratio is large and beyond chance, or
//! if requests fail. Against a budget, a change is significant if a ceiling is broken with confidence. Without both,
//! latency is never significant, because each rule must bring its own evidence.

use plimsoll_math::proportion::{exceedance_bounds, newcombe};
use plimsoll_math::two_sample::holm;

use super::effect::StatisticChange;
use super::frame::Frames;
use super::seen::{DiagnosedLevel, RequestView};
use plimsoll_measure::findings::{Estimate, Metric};
use plimsoll_measure::say::{ms, number, percent, ratio_ends};

#[derive(Clone, PartialEq, Debug)]
pub struct MovedMetric {
    /// Metric name: `ttft`, `tpot`, `e2e` or `pause` (the longest gap of a response).
    pub metric: &'static str,
    /// Percentile as a fraction: 0.99 is p99.
    pub percentile: f64,
    pub effect: StatisticChange,
    /// Set if the change is large and beyond chance after Holm's correction.
    pub material: bool,
    /// Set if the change is large, regardless of chance.
    pub large: bool,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct MaterialChanges {
    pub moved: Vec<MovedMetric>,
    /// Increase of the share of failed requests over the baseline's share, or over zero; `None` if not significant.
    pub errors: Option<Estimate>,
    /// Ceilings of the budget that are broken with confidence, each with its description.
    pub broken: Vec<(Metric, String)>,
    /// Set if anything could be evaluated.
    pub judged: bool,
}

const COMPARED: [(&str, f64); 12] = [
    ("ttft", 0.5),
    ("ttft", 0.95),
    ("ttft", 0.99),
    ("tpot", 0.5),
    ("tpot", 0.95),
    ("tpot", 0.99),
    ("e2e", 0.5),
    ("e2e", 0.95),
    ("e2e", 0.99),
    ("pause", 0.5),
    ("pause", 0.95),
    ("pause", 0.99),
];

/// Ratio of the longest pause of a response from which it is significant.
const PAUSE: f64 = 1.5;
/// Minimum growth of the longest pause, in s: users do not notice less.
const PAUSE_S: f64 = 0.1;

/// Multiple of the significant ratio from which a change needs only its own proof, as a share of the joint error
/// probability. The correction exists for a dozen figures with one that is 10 % larger by accident; accidents rarely
/// double a figure.
const FAR: f64 = 1.5;
const FAR_SURE: f64 = 0.25;

pub fn metric(name: &str) -> fn(&RequestView) -> f64 {
    match name {
        "ttft" => |row| row.ttft,
        "tpot" => |row| row.tpot,
        "pause" => |row| row.gap_max,
        _ => |row| row.e2e,
    }
}

impl MaterialChanges {
    pub fn judge(frames: &Frames<'_>) -> MaterialChanges {
        let spec = frames.case.spec;
        let mut moved: Vec<MovedMetric> = Vec::new();
        for (name, percentile) in COMPARED {
            if let Some(effect) = frames.ratio(metric(name), percentile) {
                moved.push(MovedMetric { metric: name, percentile, effect, material: false, large: false });
            }
        }
        // The error probability is one-sided because only a worse metric can be significant.
        let worse = |m: &MovedMetric| match m.effect.ratio.value >= 1.0 {
            true => 0.5 * m.effect.p,
            false => 1.0 - 0.5 * m.effect.p,
        };
        let adjusted = holm(&moved.iter().map(worse).collect::<Vec<_>>());
        for (one, p) in moved.iter_mut().zip(adjusted) {
            let grown = one.effect.candidate - one.effect.base;
            let least = match one.metric {
                "pause" => PAUSE,
                _ if one.percentile > 0.9 => spec.material_p95,
                _ => spec.material_p50,
            };
            let long = one.metric != "pause" || grown >= PAUSE_S;
            one.large = one.effect.ratio.value >= least && long;
            let far = one.effect.ratio.value >= FAR * least && worse(one) < FAR_SURE * spec.alpha;
            one.material = one.large && (p < spec.alpha || far);
        }
        let errors = errors(frames);
        let broken = broken(frames);
        let judged = !moved.is_empty() || frames.case.budget.is_some();
        MaterialChanges { moved, errors, broken, judged }
    }

    /// Returns whether any change is significant.
    pub fn is(&self) -> bool {
        self.moved.iter().any(|m| m.material) || self.errors.is_some() || !self.broken.is_empty()
    }

    /// Returns the comparison of a metric.
    pub fn of(&self, metric: &str, percentile: f64) -> Option<&MovedMetric> {
        self.moved.iter().find(|m| m.metric == metric && (m.percentile - percentile).abs() < 1e-9)
    }

    /// Returns whether this metric may have changed: the change is large, but chance is not ruled out. A fault of a
    /// few seconds touches few intervals, and the rule that calls this brings its own evidence.
    pub fn may(&self, metric: &str) -> bool {
        self.moved.iter().any(|m| m.metric == metric && (m.material || m.large))
    }

    /// Returns whether this metric changed at any percentile.
    pub fn has(&self, metric: &str) -> bool {
        self.moved.iter().any(|m| m.metric == metric && m.material)
    }

    /// Returns the large changes that are not beyond chance. Far percentiles are left out because they are large by
    /// accident too often in a run of this length.
    fn open(&self) -> impl Iterator<Item = &MovedMetric> {
        self.moved.iter().filter(|m| m.large && !m.material && m.percentile < 0.96)
    }

    /// Returns whether a large change is not beyond chance.
    pub fn is_open(&self) -> bool {
        self.open().next().is_some()
    }

    /// Returns a phrase on the largest change or on the large changes that are not beyond chance. For runs without a
    /// significant change.
    pub fn not_shown(&self) -> String {
        let open: Vec<String> = self.open().map(MovedMetric::words).collect();
        match open.is_empty() {
            true => self.words(),
            false => format!("large, but too few requests to rule out chance: {}", open.join(", ")),
        }
    }

    /// Returns a phrase on the significant changes, or on the largest change if none is significant.
    pub fn words(&self) -> String {
        let mut parts: Vec<String> = Vec::new();
        let mut largest: Vec<&MovedMetric> = self.moved.iter().filter(|m| m.material).collect();
        largest.sort_by(|a, b| b.effect.ratio.value.total_cmp(&a.effect.ratio.value));
        parts.extend(largest.iter().take(2).map(|m| m.words()));
        parts.extend(self.errors.map(|errors| format!("{} of the requests fail", percent(errors.value))));
        parts.extend(self.broken.iter().take(2).map(|(_, says)| says.clone()));
        if parts.is_empty() {
            let most = self.moved.iter().max_by(|a, b| a.effect.ratio.value.total_cmp(&b.effect.ratio.value));
            return match most {
                Some(most) => format!("the largest change is {}", most.words()),
                None => "no failures, no stalls, no growing queue".to_owned(),
            };
        }
        parts.join(", ")
    }
}

impl MovedMetric {
    /// Returns the change in the form `ttft p95 × 1.8 [1.5, 2.2]`.
    pub fn words(&self) -> String {
        let StatisticChange { ratio, base, candidate, .. } = self.effect;
        format!(
            "{} p{} {} -> {} (× {} {})",
            self.metric,
            number(100.0 * self.percentile),
            ms(base),
            ms(candidate),
            number(ratio.value),
            ratio_ends(ratio.lower, ratio.upper)
        )
    }
}

/// Returns the number of failed requests, of all requests, and n_eff. Requests that the client cancelled on purpose
/// do not count.
pub fn failed(seen: &DiagnosedLevel<'_>) -> (f64, f64, f64) {
    let counted: Vec<bool> = seen.rows.iter().filter(|row| !row.cancelled).map(|row| !row.ok).collect();
    let n = counted.len() as f64;
    let k = counted.iter().filter(|failed| **failed).count() as f64;
    let design = plimsoll_math::quantile::design_effect(&counted, super::effect::STRETCHES).max(1.0);
    (k, n, n / design)
}

fn errors(frames: &Frames<'_>) -> Option<Estimate> {
    let spec = frames.case.spec;
    let (k, n, n_eff) = failed(frames.now());
    let share = k / n.max(1.0);
    let (value, lower, upper) = match frames.before() {
        Some(base) => {
            let (k0, n0, n0_eff) = failed(base);
            let before = k0 / n0.max(1.0);
            let between = newcombe((before * n0_eff, n0_eff), (share * n_eff, n_eff), 0.99);
            (share - before, between.lower, between.upper)
        }
        None => {
            let (lower, upper) = exceedance_bounds(share * n_eff, n_eff, 0.5 * spec.alpha);
            (share, lower, upper)
        }
    };
    // Only the existence of failures must be certain: a proof that their share is over the limit would need more
    // requests than users wait for.
    let material = value >= spec.material_errors && lower > 0.0;
    material.then_some(Estimate { value: share, lower, upper, n: n as u64, n_eff })
}

/// Returns the ceilings that are broken with confidence: the lower bound of the share over the ceiling exceeds the
/// allowed share.
fn broken(frames: &Frames<'_>) -> Vec<(Metric, String)> {
    let Some(budget) = frames.case.budget else { return Vec::new() };
    let mut broken = Vec::new();
    for ceiling in &budget.latency {
        let of = metric(ceiling.metric.name());
        let over: Vec<bool> =
            frames.now().rows.iter().map(of).filter(|x| !x.is_nan()).map(|x| x > ceiling.limit_s).collect();
        let n = over.len() as f64;
        let k = over.iter().filter(|over| **over).count() as f64;
        let n_eff = n / plimsoll_math::quantile::design_effect(&over, super::effect::STRETCHES).max(1.0);
        let (lower, _) = exceedance_bounds(k / n.max(1.0) * n_eff, n_eff, 0.05);
        if n >= 1.0 && lower > 1.0 - ceiling.percentile {
            let says = format!(
                "{} of the requests are over {} {} ({} may be)",
                percent(k / n),
                name(ceiling.metric),
                ms(ceiling.limit_s),
                percent(1.0 - ceiling.percentile)
            );
            broken.push((ceiling.metric, says));
        }
    }
    broken
}

fn name(metric: Metric) -> &'static str {
    metric.name()
}
