//! The levels and requests of a run that a row is about.
//!
//! A row with a load uses the lowest levels that offered it. Extrapolating to other loads was rejected, because latency is not linear in load.
//! A row without data is missing, and missing data never pass.

use plimsoll_model::{Load, Manifest};
use serde_json::Value;

use crate::budget::{BudgetFile, BudgetKind, BudgetMetric, RequestSlice, RowLoad, SelectedRequests};
use plimsoll_measure::columns::{ABSENT, Fate, INFINITE};
use plimsoll_measure::findings::{CapacityLine, CapacityLines, Estimate, Findings, LevelFinding, Reading};
use plimsoll_measure::say::number;
use plimsoll_measure::whole::LevelRows;

/// A run with the data that a gate may need.
pub struct MeasuredRun<'a> {
    pub manifest: &'a Manifest,
    pub findings: Findings,
    pub(super) levels: Vec<LevelRows>,
}

/// The levels of a row, and their traffic.
pub(super) struct SelectedLevels<'m> {
    pub levels: Vec<(&'m LevelRows, &'m LevelFinding)>,
    pub traffic: String,
}

impl SelectedLevels<'_> {
    /// Returns the length of the judged periods, s.
    pub fn length_s(&self) -> f64 {
        self.levels.iter().map(|(_, finding)| finding.summary.window.length_s).sum()
    }

    pub fn offered_per_s(&self) -> f64 {
        let requests: f64 = self.levels.iter().map(|(_, f)| f.summary.counts.requests as f64).sum();
        if self.length_s() > 0.0 { requests / self.length_s() } else { 0.0 }
    }

    pub fn ids(&self) -> Vec<u32> {
        self.levels.iter().map(|(rows, _)| rows.level.id).collect()
    }
}

/// Minimum offered load of a level, as a share of the row's load.
const CLOSE: f64 = 0.95;

impl<'a> MeasuredRun<'a> {
    pub(super) fn is_sweep(&self) -> bool {
        self.levels.iter().any(|rows| rows.level.purpose != "run")
    }

    /// Returns the lines of this traffic; `None` if the run is no sweep.
    pub(super) fn lines(&self, traffic: &str) -> Option<&CapacityLines> {
        self.findings.lines.iter().find(|lines| lines.traffic == traffic)
    }

    /// Returns the queueing onset of this traffic; an error names the reason why there is none.
    pub(super) fn onset(&self, traffic: &str) -> Result<Estimate, String> {
        match self.lines(traffic).map(|lines| &lines.onset) {
            Some(CapacityLine::Found { rate, .. }) => Ok(*rate),
            Some(CapacityLine::CannotTell { why }) => Err(why.clone()),
            Some(_) => Err("the sweep bounds the onset on one side only".into()),
            None => Err("the queueing onset takes a sweep on both sides: plimsoll sweep".into()),
        }
    }

    pub(super) fn finding(&self, id: u32) -> Option<&LevelFinding> {
        self.findings.levels.iter().find(|level| level.summary.level == id)
    }

    /// Returns the levels of this load; an error names the missing data.
    pub(super) fn select(&self, file: &BudgetFile, load: &RowLoad) -> Result<SelectedLevels<'_>, String> {
        let (Some(name), Some(traffic)) = (&load.burst, &load.traffic) else {
            return self.of_load(load.traffic.as_deref(), load, file);
        };
        let by_arrivals = load.arrivals.as_deref().is_some_and(|text| self.arrives(text));
        let named = self.levels.iter().any(|rows| rows.level.traffic == *traffic);
        match (named, by_arrivals) {
            (true, _) => self.of_load(Some(traffic), load, file),
            (false, true) if !self.is_sweep() => self.of_load(None, load, file),
            _ => Err(format!(
                "no level of the run is the burst `{name}`: run it with `plimsoll sweep --traffic {traffic}=…` or \
                 `plimsoll run --arrivals {}`",
                load.arrivals.as_deref().unwrap_or("gamma:3")
            )),
        }
    }

    fn of_load(
        &self,
        profile: Option<&str>,
        load: &RowLoad,
        file: &BudgetFile,
    ) -> Result<SelectedLevels<'_>, String> {
        let bursts: Vec<&str> =
            file.bursts.iter().map(|(name, b)| b.traffic.as_deref().unwrap_or(name)).collect();
        let of_kind = |traffic: &str| match profile {
            Some(profile) => traffic == profile,
            None => !bursts.contains(&traffic),
        };
        let own: Vec<&LevelRows> = self.levels.iter().filter(|rows| of_kind(&rows.level.traffic)).collect();
        let Some(first) = own.first() else {
            return Err(format!("no level of the run has {} traffic", profile.unwrap_or("steady")));
        };
        let traffic = first.level.traffic.clone();
        let own = own.into_iter().filter(|rows| rows.level.traffic == traffic);
        let held = match load.rate_per_s {
            None => self.at_any_rate(own.collect(), file)?,
            Some(rate) => at_rate(own.collect(), rate)?,
        };
        let levels: Vec<_> =
            held.into_iter().filter_map(|rows| Some((rows, self.finding(rows.level.id)?))).collect();
        if levels.iter().all(|(_, finding)| finding.summary.counts.requests == 0) {
            return Err("no request was due in the window".into());
        }
        let chosen = SelectedLevels { levels, traffic };
        match file.load.as_ref().and_then(|load| load.window) {
            Some(window) if chosen.length_s() < 0.999 * window.as_secs_f64() => Err(format!(
                "the level has {} s after its warm-up; the budget's window is {} s",
                number(chosen.length_s()),
                number(window.as_secs_f64())
            )),
            _ => Ok(chosen),
        }
    }

    /// Returns the levels for a row without a rate: all levels of a run, or the sustained levels of a sweep. A batch uses the saturating level: the one
    /// that was measured again, or the best one of the search.
    fn at_any_rate<'m>(
        &'m self,
        own: Vec<&'m LevelRows>,
        file: &BudgetFile,
    ) -> Result<Vec<&'m LevelRows>, String> {
        let of = |purpose: &str| own.iter().copied().filter(|rows| rows.level.purpose == purpose).collect();
        let run: Vec<&LevelRows> = of("run");
        let held: Vec<&LevelRows> = if run.is_empty() { of("hold") } else { run };
        if held.is_empty() && self.is_sweep() {
            return Err(
                "the run is a sweep of many loads: choose one in the budget file, `load: {rate: 12/s}`"
                    .into(),
            );
        }
        let (tried, steady): (Vec<&LevelRows>, Vec<&LevelRows>) =
            held.into_iter().partition(|rows| matches!(rows.level.load, Load::Saturating { .. }));
        match (tried.len(), file.kind) {
            _ if !steady.is_empty() => Ok(steady),
            (0 | 1, _) => Ok(tried),
            (n, BudgetKind::Interactive) => Err(format!(
                "the run searched for saturation at {n} loads, and its requests met different backlogs: gate a run at one load"
            )),
            (_, BudgetKind::Batch) => {
                let rate = |rows: &&LevelRows| self.finding(rows.level.id).and_then(|f| per_s(f).value());
                let best = tried
                    .into_iter()
                    .max_by(|a, b| rate(a).unwrap_or(0.0).total_cmp(&rate(b).unwrap_or(0.0)));
                Ok(best.into_iter().collect())
            }
        }
    }

    /// Returns the other levels of a search for saturation.
    pub(super) fn tried_beside(&self, traffic: &str, chosen: &LevelFinding) -> Vec<&LevelFinding> {
        if !matches!(chosen.summary.load, Load::Saturating { .. }) {
            return Vec::new();
        }
        let own = self.findings.levels.iter().filter(|level| level.summary.traffic == traffic);
        own.filter(|level| {
            matches!(level.summary.load, Load::Saturating { .. })
                && level.summary.level != chosen.summary.level
        })
        .collect()
    }

    /// Returns whether the scenario has these arrivals, given as the process and its first parameter.
    fn arrives(&self, text: &str) -> bool {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let name = if name == "onoff" { "on_off" } else { name };
        let arrivals = self.manifest.scenario.get("arrivals");
        let process = arrivals.and_then(|a| a.get("process")).and_then(Value::as_str);
        let cv = arrivals.and_then(|a| a.get("cv")).and_then(Value::as_f64);
        let asked = rest.split(',').next().and_then(|figure| figure.trim().parse::<f64>().ok());
        process == Some(name)
            && match (cv, asked) {
                (Some(cv), Some(asked)) => (cv - asked).abs() < 1e-9,
                _ => true,
            }
    }

    /// Returns the index of a class by its name in the scenario, or by its number.
    fn class(&self, name: &str) -> Option<u16> {
        let classes = self.manifest.scenario.get("classes").and_then(Value::as_array);
        let named = classes.and_then(|classes| {
            classes.iter().position(|class| class.get("name").and_then(Value::as_str) == Some(name))
        });
        named.map(|at| at as u16).or_else(|| name.parse().ok())
    }

    fn model(&self) -> Option<&str> {
        self.manifest.target.facts.get("model")?.as_deref()
    }

    /// Returns the classes with this model, one bit each; `None` for all.
    fn classes_of(&self, model: &str) -> Result<Option<u128>, String> {
        let classes = self.manifest.scenario.get("classes").and_then(Value::as_array);
        let own = |class: &'a Value| class.get("model").and_then(Value::as_str).or_else(|| self.model());
        let asked: Vec<Option<&str>> = match classes.filter(|classes| !classes.is_empty()) {
            Some(classes) => classes.iter().map(own).collect(),
            None => vec![self.model()],
        };
        if asked.iter().all(|asked| *asked == Some(model)) {
            return Ok(None);
        }
        let of = asked.iter().take(128).enumerate().filter(|(_, asked)| **asked == Some(model));
        match of.fold(0u128, |mask, (class, _)| mask | 1 << class) {
            0 => {
                let mut names: Vec<&str> =
                    asked.iter().map(|asked| asked.unwrap_or("an unknown model")).collect();
                names.dedup();
                Err(format!("the run used model {}, not {model}", names.join(", ")))
            }
            mask => Ok(Some(mask)),
        }
    }

    /// Returns the requests of a slice; an error names the reason why there are none.
    pub(super) fn requests(&self, slice: Option<&RequestSlice>) -> Result<SelectedRequests, String> {
        let Some(slice) = slice else { return Ok(SelectedRequests::default()) };
        let of_model = slice.model.as_deref().map_or(Ok(None), |model| self.classes_of(model))?;
        let url = &self.manifest.target.url;
        if let Some(route) = slice
            .route
            .as_deref()
            .filter(|route| !url.trim_end_matches('/').ends_with(route.trim_end_matches('/')))
        {
            return Err(format!("the run went to {url}, not to {route}"));
        }
        let class = match &slice.class {
            None => None,
            Some(name) => {
                Some(self.class(name).ok_or_else(|| format!("the run's scenario has no class {name}"))?)
            }
        };
        Ok(SelectedRequests { class, of_model, prompt_tokens: slice.prompt_tokens })
    }
}

/// Returns the completed requests per second of a level, or items if requests contain several.
pub(super) fn per_s(level: &LevelFinding) -> Reading {
    let rates = &level.summary.rates;
    rates.items_per_s.clone().unwrap_or_else(|| rates.achieved_per_s.clone())
}

/// Returns the lowest levels that offered this load.
fn at_rate(own: Vec<&LevelRows>, rate: f64) -> Result<Vec<&LevelRows>, String> {
    let asked = |rows: &LevelRows| match rows.level.load {
        Load::Open { rate_per_s } => Some(rate_per_s),
        _ => None,
    };
    let enough = |rows: &&&LevelRows| asked(rows).is_some_and(|asked| asked >= CLOSE * rate);
    let least = own.iter().filter(enough).filter_map(|rows| asked(rows)).fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        let alike = |rows: &&LevelRows| {
            asked(rows).is_some_and(|asked| (CLOSE * rate..=1.001 * least.max(rate)).contains(&asked))
        };
        return Ok(own.into_iter().filter(alike).collect());
    }
    let most = own.iter().filter_map(|rows| asked(rows)).fold(0.0, f64::max);
    Err(if most > 0.0 {
        format!("the budget applies at {}/s; the run reached only {}/s", number(rate), number(most))
    } else {
        format!("the budget applies at {}/s; the run is a closed loop, which offers no rate", number(rate))
    })
}

/// Returns the selected requests of the levels.
fn each<'m>(
    chosen: &'m SelectedLevels<'m>,
    requests: SelectedRequests,
) -> impl Iterator<Item = (&'m LevelRows, usize)> {
    chosen.levels.iter().flat_map(move |(rows, _)| {
        (rows.window.0..rows.window.1)
            .filter(move |row| requests.contains(&rows.columns, *row))
            .map(move |row| (*rows, row))
    })
}

/// Returns the values of a latency in ns, in order of due times, without absent ones.
pub(super) fn values(
    chosen: &SelectedLevels<'_>,
    metric: BudgetMetric,
    requests: SelectedRequests,
) -> Vec<i64> {
    if matches!(metric, BudgetMetric::EventGap | BudgetMetric::Itl) {
        return gaps(chosen, metric, requests);
    }
    let mut values = Vec::new();
    for (rows, _) in &chosen.levels {
        let (from, to) = rows.window;
        let taken = (from..to).filter(|row| requests.is_all() || requests.contains(&rows.columns, *row));
        values.extend(taken.map(|row| metric.of_row(&rows.columns, row)).filter(|ns| *ns != ABSENT));
    }
    // Unstreamed responses lack the latency, so only failures would remain. The metric is then missing, not infinite.
    if values.iter().all(|ns| *ns == INFINITE)
        && !matches!(metric, BudgetMetric::E2e | BudgetMetric::E2eAfterSend | BudgetMetric::SessionE2e)
    {
        let finished = each(chosen, requests).any(|(rows, row)| rows.columns.fate[row].ended_well());
        if finished {
            return Vec::new();
        }
    }
    values
}

/// Returns the gaps of all requests. A failed request counts as many infinite gaps as a completed one has on average. Otherwise an endpoint
/// that breaks its streams would improve its gaps.
fn gaps(chosen: &SelectedLevels<'_>, metric: BudgetMetric, requests: SelectedRequests) -> Vec<i64> {
    let mut values = Vec::new();
    let of_row = |rows: &LevelRows, row: usize| rows.columns.gaps(row, row + 1).len();
    let finished = || each(chosen, requests).filter(|(rows, row)| rows.columns.fate[*row] == Fate::Finished);
    let (whole, sum) = finished().fold((0, 0), |(n, sum), (rows, row)| (n + 1, sum + of_row(rows, row)));
    let usual = if sum == 0 { 0 } else { (sum / whole).max(1) };
    for (rows, row) in each(chosen, requests) {
        let columns = &rows.columns;
        // Tokens of one event arrive together, so gaps per token need one token per event.
        if metric == BudgetMetric::Itl && !columns.one_token_events {
            return Vec::new();
        }
        if !columns.fate[row].ended_well() && columns.fate[row] != Fate::Cancelled {
            values.extend(std::iter::repeat_n(INFINITE, usual));
            continue;
        }
        values.extend_from_slice(columns.gaps(row, row + 1));
    }
    values
}

/// Returns whether each request counts against a share metric, in order of due times, without cancelled requests.
pub(super) fn flags(
    chosen: &SelectedLevels<'_>,
    metric: BudgetMetric,
    requests: SelectedRequests,
) -> Vec<bool> {
    each(chosen, requests).filter_map(|(rows, row)| metric.counts_against(&rows.columns, row)).collect()
}

/// Returns the reported times of a stage in ns, and the number of completed requests without it. Failed requests are over every slice.
/// Cancelled requests count if they report the stage.
pub(super) fn stage_times(chosen: &SelectedLevels<'_>, stage: &str) -> (Vec<i64>, u64) {
    let (mut times, mut lacking, mut reported) = (Vec::new(), 0, false);
    for (rows, row) in each(chosen, SelectedRequests::default()) {
        let own = rows.columns.stages(row).filter(|(known, _)| *known == stage);
        let time = own.map(|(_, ns)| ns).reduce(|a, b| a + b);
        reported |= time.is_some();
        match (rows.columns.fate[row], time) {
            (Fate::Broken | Fate::Failed, _) => times.push(INFINITE),
            (_, Some(ns)) => times.push(ns),
            (Fate::Finished, None) => lacking += 1,
            (Fate::Cancelled, None) => {}
        }
    }
    // Without any report, failures do not make a stage.
    if reported { (times, lacking) } else { (Vec::new(), 0) }
}

/// Returns whether a stage can be a part of a latency. Stages after the first token are no part of `ttft`, stages before it no part of `tpot`.
/// Unknown stage names are kept.
fn is_part(stage: &str, metric: BudgetMetric) -> bool {
    let is = |names: &[&str]| names.contains(&stage.replace(['-', ' '], "_").as_str());
    match metric {
        BudgetMetric::Ttft | BudgetMetric::TtftAfterSend | BudgetMetric::Ttfb => {
            !is(&["decode", "post_processing", "response"])
        }
        BudgetMetric::Tpot | BudgetMetric::Itl | BudgetMetric::EventGap => {
            !is(&["gateway", "auth", "embedding", "search", "rerank", "prompt_assembly", "queue", "prefill"])
        }
        _ => true,
    }
}

/// Returns the mean time of each stage of this latency in s, largest first, over the requests above a limit.
pub(super) fn stages_beyond(
    chosen: &SelectedLevels<'_>,
    metric: BudgetMetric,
    limit_ns: i64,
) -> Vec<(String, f64)> {
    let mut sums: std::collections::BTreeMap<&str, i64> = std::collections::BTreeMap::new();
    let mut n = 0u64;
    for (rows, row) in each(chosen, SelectedRequests::default()) {
        let ns = metric.of_row(&rows.columns, row);
        let mut stages = rows.columns.stages(row).peekable();
        if ns <= limit_ns || ns == INFINITE || stages.peek().is_none() {
            continue;
        }
        n += 1;
        for (name, took) in stages.filter(|(name, _)| is_part(name, metric)) {
            *sums.entry(name).or_default() += took;
        }
    }
    let mean = |(name, sum): (&str, i64)| (name.to_owned(), sum as f64 / n.max(1) as f64 / 1e9);
    let mut stages: Vec<(String, f64)> = sums.into_iter().map(mean).collect();
    stages.sort_by(|a, b| b.1.total_cmp(&a.1));
    stages
}
