//! The lint of a budget file: contradictory ceilings, and rows that no measurement of their load could decide.
//!
//! An *error* is a row that cannot be met or cannot be shown to be met. A *warning* is a row that often stays inconclusive, or whose alert never
//! fires. A *note* is information. Rules of thumb ("a thousand requests") were rejected: the numbers invert the Beta bounds of the gate at the
//! measured design effect.

use serde::Serialize;

use super::file::{Budget, BudgetFile};
use super::row::RowPlan;
use crate::history::measured;
use plimsoll_math::far;
use plimsoll_measure::budget::{AmountUnit, shown, to_decide};
use plimsoll_measure::budget::{BudgetMetric, MetricKind};
use plimsoll_measure::findings::{Estimate, Findings, LevelFinding, Percentiles};
use plimsoll_measure::say::{ms, number};
use plimsoll_model::Load;

#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum LintSeverity {
    /// The row cannot be met, or cannot be shown to be met.
    Error,
    /// The row often stays inconclusive, or its alert never fires.
    Warning,
    Note,
}

/// A remark on a budget file.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Remark {
    /// Dotted path in the file.
    pub path: String,
    /// Kind of remark: a stable word.
    pub kind: &'static str,
    pub severity: LintSeverity,
    /// Problem and remedy.
    pub what: String,
}

/// The evidence in addition to the file.
#[derive(Copy, Clone, Default)]
pub struct LintEvidence<'a> {
    /// Run at the load of the file; `None` without one.
    pub run: Option<&'a Findings>,
    /// Output tokens per request; `None` if not given.
    pub output_tokens: Option<f64>,
}

/// Planned use of the allowed share by a healthy endpoint.
const PLANNED: f64 = 0.5;

/// Returns the remarks on a file, in file order.
pub fn lint(file: &BudgetFile, evidence: &LintEvidence<'_>) -> Vec<Remark> {
    let level = evidence.run.and_then(|findings| nearest_level(file, findings));
    let mut remarks = Vec::new();
    for plan in file.rows() {
        let (row, budget) = (&plan, &plan.row);
        let mut about = RowRemarks { path: plan.path.clone(), kind: "", remarks: &mut remarks };
        about.kind = "adds_up";
        adds_up(file, budget, tokens(evidence, level), &mut about);
        about.kind = "requests";
        can_be_judged(file, row, level, &mut about);
        about.kind = "sources";
        has_its_sources(file, budget, evidence.run, &mut about);
        about.kind = "floor";
        over_the_floor(row, evidence.run, &mut about);
        about.kind = "burn_alert";
        can_alert(file, row, &mut about);
        about.kind = "histogram_edge";
        has_an_edge(row, &mut about);
    }
    stages_fit(file, &mut remarks);
    remarks
}

struct RowRemarks<'a> {
    path: String,
    kind: &'static str,
    remarks: &'a mut Vec<Remark>,
}

impl RowRemarks<'_> {
    fn say(&mut self, key: &str, severity: LintSeverity, what: String) {
        let path = if key.is_empty() { self.path.clone() } else { format!("{}.{key}", self.path) };
        self.remarks.push(Remark { path, kind: self.kind, severity, what });
    }
}

/// Returns the level with the offered load nearest to the file's, or the last one.
pub(super) fn nearest_level<'a>(file: &BudgetFile, findings: &'a Findings) -> Option<&'a LevelFinding> {
    let rate = file.load.as_ref().and_then(|load| load.rate).map(|rate| rate.as_per_s());
    let mut open = findings.levels.iter().filter(|level| matches!(level.summary.load, Load::Open { .. }));
    let far =
        |level: &&LevelFinding, rate: f64| (level.summary.rates.offered_per_s.max(1e-9) / rate).ln().abs();
    match rate {
        Some(rate) => open.min_by(|a, b| far(a, rate).total_cmp(&far(b, rate))),
        None => measured(findings).last().or_else(|| open.next_back()),
    }
}

/// Returns the output tokens per request: as given, else as the server reports them, else as the run requested.
fn tokens(evidence: &LintEvidence<'_>, level: Option<&LevelFinding>) -> Option<f64> {
    let of_run = level.map(|level| &level.summary.lengths.output);
    evidence.output_tokens.or_else(|| of_run.map(|output| output.reported_mean.unwrap_or(output.asked_mean)))
}

/// Checks TTFT + (n − 1) × TPOT ≤ E2E, for ceilings of the same requests at the same or a lower percentile. If both parts may be at their
/// ceilings, so may their sum.
fn adds_up(file: &BudgetFile, whole: &Budget, tokens: Option<f64>, about: &mut RowRemarks<'_>) {
    let (BudgetMetric::E2e, Some(p), Some(max)) = (whole.metric, whole.p, &whole.max) else { return };
    let part = |metric: BudgetMetric| {
        let same = file.budgets.iter().filter(|b| b.slice == whole.slice && b.under == whole.under);
        let held = same.filter(|b| b.metric == metric && b.p.is_some_and(|q| q.0 <= p.0));
        let held = held.filter_map(|b| Some((b, b.max.as_ref()?.value)));
        held.max_by(|a, b| a.1.total_cmp(&b.1))
    };
    let Some((first, ttft)) = part(BudgetMetric::Ttft) else { return };
    if ttft > max.value {
        let what = format!(
            "{} may be {} and {} only {}: the whole can't be shorter than its beginning",
            first.metric_name(),
            ms(ttft),
            whole.metric_name(),
            max.shown()
        );
        return about.say("max", LintSeverity::Error, what);
    }
    let Some((each, tpot)) = part(BudgetMetric::Tpot) else { return };
    let Some(n) = tokens else {
        let what = format!(
            "{} {} and {} {} fit under {} up to {} output tokens: give the answer length with --output-tokens or --run",
            first.metric_name(),
            ms(ttft),
            each.metric_name(),
            ms(tpot),
            max.shown(),
            number((1.0 + (max.value - ttft) / tpot).floor())
        );
        return about.say("max", LintSeverity::Note, what);
    };
    let sum = ttft + (n - 1.0).max(0.0) * tpot;
    if sum > max.value * (1.0 + 1e-9) {
        about.say(
            "max",
            LintSeverity::Error,
            format!(
                "{} {} + {} × {} {} is {} s at {} output tokens, past {} {}: raise it, or lower the parts",
                first.metric_name(),
                ms(ttft),
                number((n - 1.0).max(0.0)),
                each.metric_name(),
                ms(tpot),
                number(sum),
                number(n),
                whole.metric_name(),
                max.shown()
            ),
        );
    }
}

/// The effective requests that a row needs to pass.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct RequiredRequests {
    /// Number with which a ceiling of [`FAR`] times the slowest request passes because of its distance.
    pub far: f64,
    /// Number with which the row passes if none is over, regardless of the slowest.
    pub least: f64,
    /// Number with which the row passes if half of the allowed share is over.
    pub planned: f64,
}

/// Ceiling as a multiple of the slowest request, for the named number of requests.
const FAR: f64 = 3.0;

/// Returns the effective requests for an allowed share, by the bounds that judge it; a percentile p allows 1 − p. Returns `None` for an
/// allowed share of 0, which no count can show.
pub fn needed(allowed: f64, alpha: f64) -> Option<RequiredRequests> {
    let takes = |share: f64| to_decide(share, allowed, alpha);
    let far = far::needed(FAR, allowed, alpha)?.ceil();
    Some(RequiredRequests { far, least: takes(0.0)?, planned: takes(PLANNED * allowed)? })
}

/// Returns the design effect at this percentile, or at the next lower measured one.
pub fn design_effect(level: &LevelFinding, metric: BudgetMetric, p: f64) -> Option<f64> {
    let metric = metric.latency_of_ratio().unwrap_or(metric);
    let latency = &level.summary.latency;
    let set = latency.all().into_iter().find(|set| set.metric == metric.name());
    let of = |at: &Estimate| (at.n_eff > 0.0).then(|| (at.n as f64 / at.n_eff).max(1.0));
    match set {
        Some(set) => below(set, p).and_then(of),
        None => level.summary.counts.error_rate.as_ref().and_then(of),
    }
}

fn below(set: &Percentiles, p: f64) -> Option<&Estimate> {
    set.rows().into_iter().rev().filter(|(q, _)| *q <= p + 1e-9).find_map(|(_, reading)| reading.estimate())
}

/// Checks that the planned time has enough requests for the row at the measured design effect.
fn can_be_judged(file: &BudgetFile, row: &RowPlan, level: Option<&LevelFinding>, about: &mut RowRemarks<'_>) {
    let (budget, Some(allowed)) = (&row.row, row.allowed) else { return };
    let Some(RequiredRequests { far, least, planned }) = needed(allowed, file.policy.alpha) else {
        let what = "no number of requests proves that none fails: give the allowed share, such as 0.1%";
        return about.say("max", LintSeverity::Error, what.into());
    };
    let own = budget.min_n_eff.unwrap_or(0.0);
    let [far, least, planned] = [far, least, planned].map(|takes| takes.max(own));
    // Only latencies have a distance to the limit.
    let far = (budget.metric.kind() == MetricKind::Percentile).then_some(far);
    let effect = level.and_then(|level| design_effect(level, row.metric, 1.0 - allowed));
    let d = effect.unwrap_or(1.0);
    let measured = level.map(|level| level.summary.rates.offered_per_s).filter(|_| row.load.burst.is_none());
    let rate = row.load.rate_per_s.or(measured).filter(|rate| *rate > 0.0);
    let gaps = if budget.metric == BudgetMetric::EventGap || budget.metric == BudgetMetric::Itl {
        " gaps"
    } else {
        " requests"
    };
    let correlation = match effect {
        Some(d) if d > 1.05 => format!(" (one in {} counts, as measured)", number(d)),
        Some(_) => String::new(),
        None => " (if every request counts; --run measures that)".into(),
    };
    let takes = format!(
        "{} takes {}{gaps} to pass if none is over{}, {} if half of the allowed requests are{correlation}",
        budget.metric_name(),
        whole(least * d),
        far.map_or(String::new(), |far| format!(
            " ({} if the slowest takes a third of the limit)",
            whole(far * d)
        )),
        whole(planned * d)
    );
    let part = budget
        .slice
        .as_ref()
        .filter(|slice| slice.load.is_none())
        .map_or("", |_| ", counting only the slice");
    let Some(rate) = rate else {
        return about.say("", LintSeverity::Note, format!("{takes}{part}"));
    };
    let in_time = |n: f64| minutes(n * d / rate);
    let takes = format!("{takes}{part}: {} and {} at {}/s", in_time(least), in_time(planned), number(rate));
    let Some(time) = row.load.duration.map(|time| time.as_secs_f64()) else {
        return about.say("", LintSeverity::Note, takes);
    };
    let planned_n = rate * time;
    let plan = format!("{takes}; {} are planned", minutes(time));
    if planned_n < far.map_or(least, |_| far::LEAST.max(own)) {
        about.say("", LintSeverity::Error, format!("can't pass: {plan}"));
    } else if planned_n < least {
        about.say(
            "",
            LintSeverity::Warning,
            format!("passes only if the slowest is far under the limit: {plan}"),
        );
    } else if planned_n < least * d {
        about.say(
            "",
            LintSeverity::Warning,
            format!("could not have passed at the correlation of this run: {plan}"),
        );
    } else if planned_n < planned * d {
        about.say("", LintSeverity::Warning, format!("will often stay undecided: {plan}"));
    }
}

/// Returns a count, rounded up.
fn whole(n: f64) -> String {
    format!("{}", n.ceil())
}

fn minutes(seconds: f64) -> String {
    if seconds < 90.0 {
        format!("{} s", number(seconds.ceil()))
    } else {
        format!("{} min", number((seconds / 6.0).ceil() / 10.0))
    }
}

/// Checks the baseline, price, sweep and burst that a row needs.
fn has_its_sources(file: &BudgetFile, budget: &Budget, run: Option<&Findings>, about: &mut RowRemarks<'_>) {
    if budget.relative.is_some() && file.baseline.is_none() {
        let what = "needs a baseline, and the file names none: add `baseline: NAME`, or run the gate with --baseline";
        about.say("relative", LintSeverity::Warning, what.into());
    }
    if budget.metric.kind() == MetricKind::Cost && file.price.is_none() {
        about.say(
            "metric",
            LintSeverity::Warning,
            "costs need a price: add `price:`, or give --price to the gate".into(),
        );
    }
    if budget.metric.kind() == MetricKind::Line && run.is_some_and(|run| run.lines.is_empty()) {
        let what = format!("{} is read from a sweep's lines, and this run is none", budget.metric.name());
        about.say("metric", LintSeverity::Warning, what);
    }
    let silent = budget.under.as_ref().and_then(|name| Some((name, file.bursts.get(name)?)));
    if let Some((name, burst)) = silent.filter(|(_, burst)| burst.rate.is_none() || burst.duration.is_none())
    {
        let lacks = if burst.rate.is_none() { "rate" } else { "duration" };
        let what = format!(
            "burst `{name}` has no {lacks}: whether it sends enough requests is unknown; add {lacks}"
        );
        about.say("under", LintSeverity::Warning, what);
    }
}

/// Checks the ceiling against the latency of isolated requests, because no load is faster.
fn over_the_floor(row: &RowPlan, run: Option<&Findings>, about: &mut RowRemarks<'_>) {
    let (Some(limit_s), Some(p), Some(run)) = (row.limit, row.row.p, run) else { return };
    let limit = shown(limit_s, &AmountUnit::Time);
    let alone = run.levels.iter().find(|level| level.summary.load == Load::Closed { concurrency: 1 });
    let Some(level) = alone.filter(|level| level.summary.purpose != "warmup") else { return };
    let latency = &level.summary.latency;
    let Some(set) = latency.all().into_iter().find(|set| set.metric == row.metric.name()) else { return };
    let found = set.rows().into_iter().rev().filter(|(q, _)| *q <= p.0 + 1e-9);
    let Some((q, floor)) = found.filter_map(|(q, reading)| Some((q, reading.estimate()?))).next() else {
        return;
    };
    if floor.lower > limit_s {
        about.say(
            "max",
            LintSeverity::Error,
            format!(
                "{limit} is below what one isolated request takes: {} p{} is {} ({} to {}) at concurrency 1; no load is low enough",
                row.metric.name(),
                number(100.0 * q),
                ms(floor.value),
                ms(floor.lower),
                ms(floor.upper)
            ),
        );
    } else if floor.upper > limit_s {
        let takes = ms(floor.value);
        let what = format!("{limit} is within the noise of what one isolated request takes, {takes}");
        about.say("max", LintSeverity::Warning, what);
    }
}

/// Burn rates of the usual alerts: 2 % of a month's budget in an hour, 5 % in six, 10 % in a day, 10 % in three days.
const BURNS: [(f64, &str); 4] =
    [(14.4, "page in 1 h"), (6.0, "page in 6 h"), (3.0, "ticket in 1 d"), (1.0, "ticket in 3 d")];

/// Checks the burn rates. With every request over, the burn rate is 1 / allowed, so an alert at a higher rate never fires.
fn can_alert(file: &BudgetFile, row: &RowPlan, about: &mut RowRemarks<'_>) {
    if !matches!(row.metric.kind(), MetricKind::Percentile | MetricKind::Share) {
        return;
    }
    let (budget, Some(allowed)) = (&row.row, row.allowed.filter(|allowed| *allowed > 0.0)) else { return };
    let most = 1.0 / allowed;
    let silent: Vec<String> = BURNS
        .iter()
        .filter(|(burn, _)| *burn >= most * (1.0 - 1e-9))
        .map(|(burn, name)| format!("{burn}× ({name})"))
        .collect();
    if silent.is_empty() {
        return;
    }
    // A higher percentile of the metric pages, so a median needs no alert.
    let higher =
        |other: &&Budget| other.metric == budget.metric && other.slice == budget.slice && other.p > budget.p;
    let (severity, advice) = match file.budgets.iter().find(higher) {
        Some(_) => (LintSeverity::Note, ""),
        None => (LintSeverity::Warning, "; add a budget on a higher percentile"),
    };
    let what = format!(
        "{} burns at most {}× even if every request is over: alerts at {} never fire{advice}",
        budget.metric_name(),
        number(most),
        silent.join(", ")
    );
    about.say(if budget.p.is_some() { "p" } else { "max" }, severity, what);
}

/// Upper edges of server histograms in s: for vLLM, and for OpenTelemetry's GenAI conventions.
const EDGES: [(BudgetMetric, &str, &[f64]); 5] = [
    (
        BudgetMetric::Ttft,
        "vLLM",
        &[
            0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
            40.0, 80.0, 160.0, 640.0, 2560.0,
        ],
    ),
    (
        BudgetMetric::Ttft,
        "OpenTelemetry",
        &[0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0],
    ),
    (
        BudgetMetric::Tpot,
        "OpenTelemetry",
        &[0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5],
    ),
    (
        BudgetMetric::E2e,
        "vLLM",
        &[
            0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
            480.0, 960.0, 1920.0, 7680.0,
        ],
    ),
    (
        BudgetMetric::E2e,
        "OpenTelemetry",
        &[0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92],
    ),
];

/// Checks that the ceiling is an edge of the usual histograms, because a histogram counts exactly at its edges only.
fn has_an_edge(row: &RowPlan, about: &mut RowRemarks<'_>) {
    let (Some(limit_s), MetricKind::Percentile) = (row.limit, row.metric.kind()) else { return };
    let mut off = Vec::new();
    for (_, whose, edges) in EDGES.iter().filter(|(metric, ..)| *metric == row.row.metric) {
        let above = edges.iter().position(|edge| *edge >= limit_s * (1.0 - 1e-9));
        match above {
            Some(i) if (edges[i] / limit_s - 1.0).abs() < 1e-9 => {}
            Some(0) => off.push(format!("{whose}'s begins at {}", ms(edges[0]))),
            Some(i) => off.push(format!("{whose}'s has {} and {}", ms(edges[i - 1]), ms(edges[i]))),
            None => off.push(format!("{whose}'s ends at {}", ms(edges[edges.len() - 1]))),
        }
    }
    if !off.is_empty() {
        let what = format!(
            "{} is no edge of the histograms that servers expose: {}; these histograms give its verdict only between two edges",
            shown(limit_s, &AmountUnit::Time),
            off.join(", ")
        );
        about.say("max", LintSeverity::Note, what);
    }
}

/// Checks the total of the stages against the ceilings of the whole response.
fn stages_fit(file: &BudgetFile, remarks: &mut Vec<Remark>) {
    let Some(stages) = &file.stages else { return };
    let whole = file
        .budgets
        .iter()
        .filter(|b| b.metric == BudgetMetric::E2e && b.slice.is_none() && b.under.is_none());
    let tighter = whole.filter(|b| b.p.is_some_and(|p| p.0 >= stages.p.0));
    for budget in
        tighter.filter(|b| b.max.as_ref().is_some_and(|max| max.value < stages.total.value * (1.0 - 1e-9)))
    {
        let max = budget.max.as_ref().map(|max| max.shown()).unwrap_or_default();
        remarks.push(Remark {
            path: "stages.total".into(),
            kind: "stages",
            severity: LintSeverity::Error,
            what: format!(
                "the stages may take {} at {}, and the whole only {max} at {}: lower the total or raise {}",
                stages.total.shown(),
                stages.p.name(),
                budget.p.map(|p| p.name()).unwrap_or_default(),
                budget.id
            ),
        });
    }
}
