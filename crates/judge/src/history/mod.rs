//! History of a baseline: the results of successive runs, and the changes of their metrics.
//!
//! An entry is the result of one run or one gate, as one line of a file. Only results under equal load form a series; the
//! others are excluded and counted. A run that is entered twice counts once, because it is one result. The module [`change`]
//! defines a change.

pub mod change;

use plimsoll_model::Load;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use change::{ChangePoint, ChangeSpec, Observation, changes};
use plimsoll_measure::findings::{
    Findings, Lengths, LevelFinding, LevelSummary, Percentiles, Reading, Trust, unbounded,
};

/// Version of the layout of an entry.
pub const HISTORY_SCHEMA: u32 = 1;

/// One result of a history: a run's figures.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Entry")]
pub struct HistoryEntry {
    /// Version of the JSON layout of this object.
    pub schema: u32,
    /// Time of the measurement in UTC.
    pub measured: String,
    /// Identifier of the run behind the result.
    pub id: String,
    /// Folder of the run, as given.
    pub run: String,
    /// Version that was measured: as given, else as the engine reports it; `null` if unknown.
    pub version: Option<String>,
    /// Verdict of a gate: `pass`, `fail`, `inconclusive` or `invalid`; `null` without a gate.
    pub verdict: Option<String>,
    /// Trust in the result: valid, short, suspect or invalid.
    pub trust: Trust,
    /// Load of the measurement; results under different loads are not comparable.
    pub load: String,
    /// Figures of the result, one per metric.
    pub metrics: Vec<ResultFigure>,
    /// Warm-up that was cut, one sentence per level.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cut: Vec<String>,
}

/// One figure of a result; latencies are in seconds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResultFigure {
    /// Name in the series: `ttft p99`, or `burst: ttft p99` for traffic other than steady.
    pub name: String,
    /// Value; `"inf"` if it falls among failed requests.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub value: f64,
    /// Lower end of the 95 % interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub lower: f64,
    /// Upper end of the 95 % interval.
    #[serde(with = "unbounded")]
    #[schemars(with = "unbounded::Number")]
    pub upper: f64,
}

impl ResultFigure {
    /// Returns the standard error of the logarithm, from the bounded sides of the interval; 0 if both are unbounded.
    fn se(&self) -> f64 {
        let up = (self.upper / self.value).ln();
        let down = (self.value / self.lower).ln();
        let sides: Vec<f64> =
            [up, down].into_iter().filter(|side| side.is_finite() && *side >= 0.0).collect();
        if sides.is_empty() { 0.0 } else { sides.iter().sum::<f64>() / sides.len() as f64 / 1.959_964 }
    }
}

/// Returns the levels whose figures count: levels of runs, and sustained levels of sweeps.
pub fn measured(findings: &Findings) -> impl Iterator<Item = &LevelFinding> {
    findings.levels.iter().filter(|level| is_measured(&level.summary.purpose))
}

/// The parts of a measured level that a result needs. A reader of many runs fills it without reading the rest of their findings.
#[derive(Copy, Clone, Debug)]
pub struct LevelView<'a> {
    /// Kind of traffic, such as `steady`.
    pub traffic: &'a str,
    pub load: &'a Load,
    pub lengths: &'a Lengths,
    /// `ttft`, `tpot` and `e2e`; `None` where nothing streams.
    pub latencies: [Option<&'a Percentiles>; 3],
}

impl<'a> From<&'a LevelSummary> for LevelView<'a> {
    fn from(summary: &'a LevelSummary) -> LevelView<'a> {
        let LevelSummary { traffic, load, lengths, latency, .. } = summary;
        let latencies = [latency.ttft.as_ref(), latency.tpot.as_ref(), Some(&latency.e2e)];
        LevelView { traffic, load, lengths, latencies }
    }
}

/// Returns whether a level of this purpose was measured for its figures.
pub fn is_measured(purpose: &str) -> bool {
    matches!(purpose, "run" | "hold")
}

/// Returns the load of a run as a key that is equal for comparable results.
///
/// It contains the requested rate or concurrency, and the median requested lengths.
pub fn load_key<'a>(levels: impl IntoIterator<Item = LevelView<'a>>) -> String {
    let of = |level: LevelView<'a>| {
        let LevelView { load, lengths, traffic, .. } = level;
        let load = match load {
            Load::Open { rate_per_s } => format!("open loop, {}/s", short(*rate_per_s)),
            Load::Closed { concurrency } => format!("closed loop, {concurrency} in flight"),
            Load::Wave { requests } => format!("one wave of {requests}"),
            Load::Saturating { .. } => "saturating".into(),
        };
        let kind = if traffic == "steady" { String::new() } else { format!("{traffic}: ") };
        format!(
            "{kind}{load}, {} in, {} out",
            short(lengths.prompt.asked_p50),
            short(lengths.output.asked_p50)
        )
    };
    let mut keys: Vec<String> = levels.into_iter().map(of).collect();
    keys.dedup();
    keys.join("; ")
}

/// Returns a value rounded to two digits, so that redraws of one spec have equal loads.
fn short(value: f64) -> String {
    if value <= 0.0 || !value.is_finite() {
        return "0".into();
    }
    let unit = 10f64.powf(value.log10().floor() - 1.0);
    format!("{}", ((value / unit).round() * unit * 1e6).round() / 1e6)
}

/// Returns the figures that a history stores, from the last measured level of each kind of traffic.
///
/// They are p50, p95 and p99 of `ttft`, `tpot` and `e2e`.
pub fn figures<'a>(levels: impl IntoIterator<Item = LevelView<'a>>) -> Vec<ResultFigure> {
    let mut found: Vec<ResultFigure> = Vec::new();
    for LevelView { traffic, latencies, .. } in levels {
        for metric in latencies.into_iter().flatten() {
            for (p, reading) in [("p50", &metric.p50), ("p95", &metric.p95), ("p99", &metric.p99)] {
                let Reading::Estimate(at) = reading else { continue };
                let kind = if traffic == "steady" { String::new() } else { format!("{traffic}: ") };
                let name = format!("{kind}{} {p}", metric.metric);
                found.retain(|figure| figure.name != name);
                found.push(ResultFigure { name, value: at.value, lower: at.lower, upper: at.upper });
            }
        }
    }
    found
}

/// Returns the smallest relevant change of a figure, which is the margin of a comparison.
pub fn margin(name: &str) -> f64 {
    match name.rsplit(' ').next() {
        Some("p95") => 0.07,
        Some("p99" | "p99.9") => 0.10,
        _ => 0.05,
    }
}

/// The series of one figure in a history.
#[derive(Clone, PartialEq, Debug)]
pub struct MetricHistory {
    pub name: String,
    /// Results with the figure: index of the entry, and value.
    pub values: Vec<(usize, f64)>,
    /// Changes of the figure; their indices are indices of entries.
    pub changes: Vec<ChangePoint>,
}

impl MetricHistory {
    pub fn last(&self) -> Option<&ChangePoint> {
        self.changes.last()
    }
}

/// The evaluation of a history.
#[derive(Clone, PartialEq, Debug)]
pub struct HistoryLine {
    /// Entries with the load of the pinned run, in order of time; all indices refer to this list.
    pub entries: Vec<HistoryEntry>,
    /// Series of all figures, in the order of the latest result.
    pub courses: Vec<MetricHistory>,
    /// Number of entries with another load.
    pub other_load: usize,
    pub invalid: usize,
}

impl HistoryLine {
    /// Returns the figures whose last change is a regression after the entry `since`. All figures are latencies.
    pub fn worse(&self, since: usize) -> impl Iterator<Item = (&MetricHistory, &ChangePoint)> {
        let last = self.courses.iter().filter_map(|course| Some((course, course.last()?)));
        last.filter(move |(_, change)| change.ratio > 1.0 && change.at > since)
    }
}

/// Evaluates a list of entries in the order of their creation.
///
/// The load is that of the run `pinned`, so that one result at another load does not exclude all others. If `pinned` is not in
/// the list, the latest entry replaces it.
pub fn line(entries: &[HistoryEntry], pinned: &str, seed: u64) -> HistoryLine {
    let invalid = entries.iter().filter(|entry| entry.trust == Trust::Invalid).count();
    let mut once: Vec<&HistoryEntry> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.trust != Trust::Invalid) {
        if !once.iter().any(|known| known.id == entry.id) {
            once.push(entry);
        }
    }
    let own = once.iter().find(|entry| entry.id == pinned).or(once.last());
    let load = own.map(|entry| entry.load.clone()).unwrap_or_default();
    let (same, other): (Vec<&HistoryEntry>, Vec<&HistoryEntry>) =
        once.into_iter().partition(|entry| entry.load == load);
    let same: Vec<HistoryEntry> = same.into_iter().cloned().collect();
    let names = same.last().map(|entry| entry.metrics.iter().map(|m| m.name.clone()).collect::<Vec<_>>());
    let courses = names.unwrap_or_default().into_iter().map(|name| course(&same, name, seed)).collect();
    HistoryLine { entries: same, courses, other_load: other.len(), invalid }
}

fn course(entries: &[HistoryEntry], name: String, seed: u64) -> MetricHistory {
    let of = |entry: &HistoryEntry| entry.metrics.iter().find(|figure| figure.name == name).cloned();
    let found: Vec<(usize, ResultFigure)> =
        entries.iter().enumerate().filter_map(|(i, entry)| Some((i, of(entry)?))).collect();
    let largest =
        found.iter().map(|(_, f)| f.value).filter(|v| v.is_finite()).fold(f64::MIN_POSITIVE, f64::max);
    // A percentile among failures has no finite value. It counts as ten times the largest finite value, which is an outlier in
    // any unit.
    let series: Vec<Observation> = found
        .iter()
        .map(|(_, figure)| match figure.value.is_finite() {
            true => Observation { ln: figure.value.max(f64::MIN_POSITIVE).ln(), se: figure.se() },
            false => Observation { ln: (10.0 * largest).ln(), se: 0.0 },
        })
        .collect();
    let spec = ChangeSpec { margin: margin(&name), seed, ..ChangeSpec::default() };
    let at = |i: usize| found[i].0;
    let changes = changes(&series, &spec)
        .into_iter()
        .map(|change| ChangePoint {
            at: at(change.at),
            earliest: at(change.earliest),
            latest: at(change.latest),
            ..change
        })
        .collect();
    let values = found.iter().map(|(i, figure)| (*i, figure.value)).collect();
    MetricHistory { name, values, changes }
}
