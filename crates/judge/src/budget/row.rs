//! A budget row with everything that its evaluation needs, resolved from the file once.
//!
//! The gate, the measurement plan, the lint, the watch, the canary and the exports all read this plan. Resolving scope, load, margin and
//! allowed share in each reader was rejected, because the readers disagreed about them.

use plimsoll_measure::columns::{Columns, UNKNOWN};
use plimsoll_measure::say::number;
use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::check::reserve;
use super::{
    Amount, AmountUnit, Budget, BudgetFile, BudgetMetric, BudgetScope, MetricKind, PromptBucket, Relative,
    RequestSlice, shown,
};

/// Effect of a row on the verdict.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum RowRole {
    /// The row decides, in the primary family.
    Decides,
    /// The row is judged with control of false discoveries, and decides nothing.
    Watched,
    /// The row has no limit, so it has no verdict.
    Tracked,
}

/// A budget row, resolved.
#[derive(Clone, PartialEq, Debug)]
pub struct RowPlan {
    /// Row as the file states it.
    pub row: Budget,
    /// Dotted path in the file, such as `budgets.3`.
    pub path: String,
    pub role: RowRole,
    pub scope: BudgetScope,
    /// Metric that is read; with engine scope, latencies count from the send time.
    pub metric: BudgetMetric,
    /// Ceiling or floor with its margin; `None` without one.
    pub limit: Option<f64>,
    /// Share of requests that may exceed the limit; `None` if no share of requests decides the row.
    pub allowed: Option<f64>,
    pub load: RowLoad,
}

/// The load at which a row is judged.
#[derive(Clone, PartialEq, Debug)]
pub struct RowLoad {
    /// Burst of the file; `None` for its steady load.
    pub burst: Option<String>,
    /// Kind of traffic; `None` for any traffic that is no burst.
    pub traffic: Option<String>,
    /// Requests per second; `None` for any.
    pub rate_per_s: Option<f64>,
    /// Arrivals of the burst in the short form of `--arrivals`; `None` for a steady load.
    pub arrivals: Option<String>,
    /// Planned duration; `None` if the file sets none.
    pub duration: Option<Span>,
}

impl BudgetFile {
    /// Returns the rows in file order.
    pub fn rows(&self) -> impl Iterator<Item = RowPlan> + '_ {
        self.budgets.iter().enumerate().map(|(i, row)| self.row(row.clone(), format!("budgets.{i}")))
    }

    /// Returns the total of the stages as a row: the whole response, or the whole chain, at the percentile of the slices.
    pub fn stage_total(&self, is_chain: bool) -> Option<RowPlan> {
        let stages = self.stages.as_ref()?;
        let (p, total) = (Some(stages.p.0), stages.total.clone());
        let metric = if is_chain { BudgetMetric::SessionE2e } else { BudgetMetric::E2e };
        Some(self.row(Budget::ceiling("stages total", metric, p, total), "stages.total".to_owned()))
    }

    /// Returns the slice of a stage of a chain as a row: the response of the class with this name.
    pub fn stage_of_chain(&self, name: &str, p: f64, slice: &Amount) -> RowPlan {
        let ceiling = Budget::ceiling(Self::stage_id(name), BudgetMetric::E2e, Some(p), slice.clone());
        let class = RequestSlice { class: Some(name.to_owned()), ..RequestSlice::default() };
        let plan = self.row(Budget { slice: Some(class), ..ceiling }, format!("stages.slices.{name}"));
        RowPlan { role: self.stage_role(name), ..plan }
    }

    /// Returns the role of a slice. It is watched unless the policy names it, because a stage may take more while another
    /// one takes less.
    pub fn stage_role(&self, name: &str) -> RowRole {
        match self.policy.primary.contains(&Self::stage_id(name)) {
            true => RowRole::Decides,
            false => RowRole::Watched,
        }
    }

    fn row(&self, row: Budget, path: String) -> RowPlan {
        let scope = row.scope.unwrap_or(self.scope);
        let kept = |limit: &Amount| row.margin.as_ref().map_or(0.0, |margin| reserve(limit, margin));
        let ceiling = row.max.as_ref().map(|max| max.value - kept(max));
        let limit = ceiling.or_else(|| row.min.as_ref().map(|min| min.value + kept(min)));
        RowPlan {
            path,
            role: self.role(&row),
            scope,
            metric: if scope == BudgetScope::Engine { row.metric.after_send() } else { row.metric },
            limit,
            allowed: match row.metric.kind() {
                MetricKind::Percentile => row.p.map(|p| 1.0 - p.0),
                MetricKind::Share => limit,
                // p99 / p50 is judged by the requests over its p99.
                MetricKind::TailRatio => Some(0.01),
                MetricKind::Rate | MetricKind::Line | MetricKind::Cost | MetricKind::Gpu => None,
            },
            load: self.load_of(&row),
            row,
        }
    }

    fn role(&self, row: &Budget) -> RowRole {
        let primary = &self.policy.primary;
        match row.is_tracked() {
            true => RowRole::Tracked,
            false if primary.is_empty() || primary.contains(&row.id) => RowRole::Decides,
            false => RowRole::Watched,
        }
    }

    /// Returns the load without a burst.
    pub fn steady_load(&self) -> RowLoad {
        let load = self.load.clone().unwrap_or_default();
        RowLoad {
            burst: None,
            traffic: load.profile,
            rate_per_s: load.rate.map(|rate| rate.as_per_s()),
            arrivals: None,
            duration: load.duration,
        }
    }

    fn load_of(&self, row: &Budget) -> RowLoad {
        let load = match &row.under {
            None => self.steady_load(),
            Some(name) => {
                let burst = self.bursts.get(name).cloned().unwrap_or_default();
                RowLoad {
                    burst: Some(name.clone()),
                    traffic: Some(burst.traffic.unwrap_or_else(|| name.clone())),
                    rate_per_s: burst.rate.map(|rate| rate.as_per_s()),
                    arrivals: burst.arrivals,
                    duration: burst.duration,
                }
            }
        };
        let own = row.slice.as_ref().and_then(|slice| slice.load).map(|rate| rate.as_per_s());
        RowLoad { rate_per_s: own.or(load.rate_per_s), ..load }
    }
}

impl RowPlan {
    /// Returns whether the limit is a floor.
    pub fn is_floor(&self) -> bool {
        self.metric.has_floor()
    }

    /// Returns the metric with its percentile, such as `ttft p99`.
    pub fn metric_name(&self) -> String {
        named(self.metric, &self.row)
    }

    /// Returns the limit such as `≤ 350 ms`. With a margin the text is `≤ 315 ms (350 ms less 10 %)`, because the file has the other
    /// figure. For a share it is `≥ 94.5 % (90 % and 5 % of it)`, because 5 % could be percentage points.
    pub fn limit_text(&self) -> String {
        let Some(value) = self.limit else { return "–".to_owned() };
        let written = self.row.max.as_ref().or(self.row.min.as_ref());
        let unit = written.map_or_else(|| self.metric.unit(), |amount| amount.unit.clone());
        let kept = if self.is_floor() { "and" } else { "less" };
        let margin = written.zip(self.row.margin.as_ref()).map(|(written, margin)| {
            let is_share = written.unit == AmountUnit::Share && margin.unit == AmountUnit::Share;
            let of = if is_share { " of it" } else { "" };
            format!(" ({} {kept} {}{of})", written.shown(), margin.shown())
        });
        format!("{} {}{}", self.sign(), shown(value, &unit), margin.unwrap_or_default())
    }

    /// Returns the allowed change against a baseline, such as `≤ baseline +10 %` or `≥ baseline −5 %`.
    pub fn change_text(&self, Relative(allowed): Relative) -> String {
        let allowed =
            if self.is_floor() && allowed == 0.0 { "−0".to_owned() } else { signed(100.0 * allowed) };
        format!("{} baseline {allowed} %", self.sign())
    }

    /// Returns the row as the file names it, with its limit: `ttft p99 ≤ 350 ms`.
    pub fn words(&self) -> String {
        let limit = self.limit.map(|_| format!(" {}", self.limit_text()));
        format!("{}{}", self.row.metric_name(), limit.unwrap_or_default())
    }

    fn sign(&self) -> &'static str {
        if self.is_floor() { "≥" } else { "≤" }
    }
}

impl Budget {
    /// Returns whether the row has no limit, so that it is shown and decides nothing.
    pub fn is_tracked(&self) -> bool {
        self.max.is_none() && self.min.is_none() && self.relative.is_none()
    }

    /// Returns the metric of the file with its percentile, such as `ttft p99`.
    pub fn metric_name(&self) -> String {
        named(self.metric, self)
    }
}

fn named(metric: BudgetMetric, row: &Budget) -> String {
    row.p.map_or_else(|| metric.name().to_owned(), |p| format!("{} {}", metric.name(), p.name()))
}

/// Returns a signed number with a typographic minus: `+10`, `−5`.
pub(crate) fn signed(x: f64) -> String {
    if x >= 0.0 { format!("+{}", number(x)) } else { format!("−{}", number(-x)) }
}

/// The requests that a row is about.
#[derive(Copy, Clone, Default, Debug)]
pub struct SelectedRequests {
    /// Class by its number in the scenario; `None` for all.
    pub class: Option<u16>,
    /// Classes of a model, one bit each; `None` for all.
    pub of_model: Option<u128>,
    /// Prompt lengths; `None` for all.
    pub prompt_tokens: Option<PromptBucket>,
}

impl SelectedRequests {
    /// Returns whether all requests are selected.
    pub fn is_all(&self) -> bool {
        self.class.is_none() && self.of_model.is_none() && self.prompt_tokens.is_none()
    }

    /// Returns whether the selection contains this request.
    pub fn contains(&self, columns: &Columns, row: usize) -> bool {
        let (prompt, class) = (columns.prompt[row], columns.class(row));
        let tokens = if prompt == UNKNOWN { columns.asked_prompt[row] } else { prompt };
        self.class.is_none_or(|own| own == class)
            && self.of_model.is_none_or(|mask| class < 128 && mask & 1 << class != 0)
            && self.prompt_tokens.is_none_or(|bucket| bucket.holds(tokens))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(metric: BudgetMetric, limit: Amount, margin: Amount) -> RowPlan {
        let p = (metric.kind() == MetricKind::Percentile).then_some(0.99);
        let mut row = Budget { margin: Some(margin), ..Budget::ceiling("row", metric, p, limit) };
        if metric.has_floor() {
            (row.min, row.max) = (row.max.take(), None);
        }
        BudgetFile::of(vec![row]).rows().next().expect("one row")
    }

    /// The margin of a share is a part of it and no points, and its text shows so.
    #[test]
    fn words_of_a_margin_say_what_it_is_a_part_of() {
        let share = Amount::share;
        let text = |metric, limit, margin| plan(metric, limit, margin).limit_text();
        assert_eq!(text(BudgetMetric::Goodput, share(0.9), share(0.05)), "≥ 94.5 % (90 % and 5 % of it)");
        assert_eq!(text(BudgetMetric::ErrorRate, share(0.01), share(0.1)), "≤ 0.9 % (1 % less 10 % of it)");
        assert_eq!(
            text(BudgetMetric::Ttft, Amount::seconds(0.35), share(0.1)),
            "≤ 315 ms (350 ms less 10 %)"
        );
    }

    /// The allowed share is that of the limit with its margin, for every reader.
    #[test]
    fn a_margin_narrows_the_allowed_share() {
        let errors = plan(BudgetMetric::ErrorRate, Amount::share(0.01), Amount::share(0.5));
        assert_eq!((errors.limit, errors.allowed), (Some(0.005), Some(0.005)));
        let ttft = plan(BudgetMetric::Ttft, Amount::seconds(0.4), Amount::share(0.5));
        assert_eq!((ttft.limit, ttft.allowed), (Some(0.2), Some(1.0 - 0.99)));
        let ratio = plan(
            BudgetMetric::TtftTailRatio,
            Amount { value: 3.0, unit: AmountUnit::Plain },
            Amount::share(0.1),
        );
        assert_eq!(ratio.allowed, Some(0.01));
    }
}
