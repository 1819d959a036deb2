//! Limits of budgets: derived from the file once, for every row, text and alert.

use plimsoll_measure::budget::Unit;
use plimsoll_measure::say::number;

use super::check::reserve;
use super::{Amount, Budget, BudgetFile, BudgetMetric, Percentile, Relative, RequestSlice, Scope, shown};

/// A budget with its effective limit.
#[derive(Copy, Clone)]
pub struct Limit<'f> {
    /// Metric to evaluate; with the engine's scope it starts at the send time.
    pub metric: BudgetMetric,
    /// Ceiling minus margin, or floor plus margin; `None` if the budget has no absolute limit.
    pub value: Option<f64>,
    /// Set if the limit is a floor.
    pub floor: bool,
    /// Percentile of a latency; `None` for other metrics.
    pub p: Option<Percentile>,
    /// Requests that the budget applies to; `None` for all.
    pub slice: Option<&'f RequestSlice>,
    /// Limit as written in the file.
    pub amount: Option<&'f Amount>,
    /// Margin as written in the file.
    pub margin: Option<&'f Amount>,
}

impl Budget {
    /// Returns the ceiling minus margin, or the floor plus margin, for runs and live traffic.
    ///
    /// `None` if the budget has no absolute limit.
    pub fn held_to(&self) -> Option<f64> {
        let kept = |limit: &Amount| self.margin.as_ref().map_or(0.0, |margin| reserve(limit, margin));
        let most = self.max.as_ref().map(|max| max.value - kept(max));
        most.or_else(|| self.min.as_ref().map(|min| min.value + kept(min)))
    }
}

impl<'f> Limit<'f> {
    /// Returns the limit of a budget of this file.
    pub fn of(file: &BudgetFile, budget: &'f Budget) -> Limit<'f> {
        let metric = match budget.scope.unwrap_or(file.scope) {
            Scope::User => budget.metric,
            Scope::Engine => budget.metric.after_send(),
        };
        Limit {
            metric,
            value: budget.held_to(),
            floor: budget.metric.has_floor(),
            p: budget.p,
            slice: budget.slice.as_ref(),
            amount: budget.max.as_ref().or(budget.min.as_ref()),
            margin: budget.margin.as_ref(),
        }
    }

    /// Returns the evaluated metric with its percentile: `ttft p99`.
    pub fn what(&self) -> String {
        match self.p {
            Some(p) => format!("{} {}", self.metric.name(), p.name()),
            None => self.metric.name().to_owned(),
        }
    }

    /// Returns the limit as text, such as `≤ 350 ms`.
    ///
    /// With a margin it is `≤ 315 ms (350 ms less 10 %)`, because the file has the other value. With a share it is
    /// `≥ 94.5 % (90 % and 5 % of it)`, because 5 % could be read as percentage points.
    pub fn words(&self) -> String {
        let unit = self.amount.map_or_else(|| self.metric.unit(), |amount| amount.unit.clone());
        let Some(value) = self.value else { return "–".to_owned() };
        let kept = if self.floor { "and" } else { "less" };
        let margin = self.amount.zip(self.margin);
        let margin = margin.map(|(written, margin)| {
            let is_share = written.unit == Unit::Share && margin.unit == Unit::Share;
            let of = if is_share { " of it" } else { "" };
            format!(" ({} {kept} {}{of})", written.shown(), margin.shown())
        });
        format!("{} {}{}", self.sign(), shown(value, &unit), margin.unwrap_or_default())
    }

    /// Returns the allowed change from a baseline as text: `≤ baseline +10 %`, `≥ baseline −5 %`.
    pub fn change_words(&self, Relative(allowed): Relative) -> String {
        let allowed = if self.floor && allowed == 0.0 { "−0".into() } else { signed(100.0 * allowed) };
        format!("{} baseline {allowed} %", self.sign())
    }

    fn sign(&self) -> &'static str {
        if self.floor { "≥" } else { "≤" }
    }
}

/// Returns a number with its sign: `+10`, `−5`.
pub(crate) fn signed(x: f64) -> String {
    if x >= 0.0 { format!("+{}", number(x)) } else { format!("−{}", number(-x)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The margin of a share is a part of the share and not percentage points, and its text contains that.
    #[test]
    fn words_of_a_margin_say_what_it_is_a_part_of() {
        let words = |metric: BudgetMetric, value: f64, written: &Amount, margin: &Amount| {
            let (floor, value) = (metric.has_floor(), Some(value));
            let (amount, margin) = (Some(written), Some(margin));
            Limit { metric, value, floor, p: None, slice: None, amount, margin }.words()
        };
        let share = Amount::share;
        let goodput = words(BudgetMetric::Goodput, 0.945, &share(0.9), &share(0.05));
        assert_eq!(goodput, "≥ 94.5 % (90 % and 5 % of it)");
        let errors = words(BudgetMetric::ErrorRate, 0.009, &share(0.01), &share(0.1));
        assert_eq!(errors, "≤ 0.9 % (1 % less 10 % of it)");
        let ttft = words(BudgetMetric::Ttft, 0.315, &Amount::seconds(0.35), &share(0.1));
        assert_eq!(ttft, "≤ 315 ms (350 ms less 10 %)");
    }
}
