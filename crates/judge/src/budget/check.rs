//! Errors in a budget file, each with its dotted path, so that the reader of the text can name line and column.
//!
//! The schema checks keys and names. This module checks units, sums, contradictions and references. The lint checks whether a row can be judged.

use std::collections::BTreeSet;

use plimsoll_workload::{SpecError, check};
use serde_json::Value;

use super::file::{BUDGET_VERSION, Budget, BudgetFile, BudgetKind};
use plimsoll_measure::budget::{Amount, AmountUnit};
use plimsoll_measure::budget::{BudgetMetric, StageBudget};
use plimsoll_measure::budget::{MetricKind, no_measure_of_load};
use plimsoll_measure::say::ms;

/// Checks keys and names against the schema.
///
/// # Errors
/// Fails at the first unknown key or name, with the nearest allowed one.
pub fn check_shape(value: &Value) -> Result<(), SpecError> {
    let budgets = value.get("budgets").and_then(Value::as_array);
    for (i, budget) in budgets.into_iter().flatten().enumerate() {
        let metric = budget.get("metric").and_then(Value::as_str);
        if let Some(why) = metric.and_then(no_measure_of_load) {
            return Err(conflict(&format!("budgets.{i}.metric"), why));
        }
    }
    check::against(value, || schemars::schema_for!(BudgetFile).to_value())
}

impl BudgetFile {
    /// Checks the file for contradictions.
    ///
    /// # Errors
    /// Fails at the first one.
    pub fn check(&self) -> Result<(), SpecError> {
        if self.version != BUDGET_VERSION {
            let want = "1: the only version this program reads";
            return Err(SpecError::value("version", self.version, want));
        }
        if self.budgets.is_empty() && self.stages.is_none() && self.batch.is_none() {
            return Err(missing("budgets", "at least one budget"));
        }
        self.check_policy()?;
        if let Some(Err(e)) = self.price.as_ref().map(|price| price.bill()) {
            return Err(conflict("price", e.to_string()));
        }
        match (self.kind, self.batch) {
            (BudgetKind::Batch, None) => {
                return Err(missing("batch", "`batch: {items: 100000, deadline: 8h}`"));
            }
            (BudgetKind::Interactive, Some(_)) => {
                return Err(conflict("batch", "items by a deadline belong to `kind: batch`"));
            }
            (BudgetKind::Batch, Some(batch)) if batch.items == 0 || batch.deadline.0 <= 0 => {
                return Err(conflict("batch", "items and deadline must be above 0"));
            }
            _ => {}
        }
        let mut ids = BTreeSet::new();
        for (i, budget) in self.budgets.iter().enumerate() {
            self.check_budget(budget, &format!("budgets.{i}"))?;
            if !ids.insert(budget.id.as_str()) {
                let what = format!("`{}` names two budgets; give each its own id", budget.id);
                return Err(conflict(&format!("budgets.{i}.id"), what));
            }
        }
        self.check_contradictions()?;
        self.stages.as_ref().map_or(Ok(()), check_stages)
    }

    fn check_policy(&self) -> Result<(), SpecError> {
        let share = |path: &str, value: f64| {
            if value > 0.0 && value <= 0.5 {
                Ok(())
            } else {
                Err(SpecError::value(path, value, "a chance above 0 and at most 0.5, such as 0.05"))
            }
        };
        share("policy.alpha", self.policy.alpha)?;
        share("policy.false_discovery", self.policy.false_discovery)?;
        for (i, id) in self.policy.primary.iter().enumerate() {
            let slices =
                self.stages.iter().flat_map(|stages| stages.slices.keys().map(|name| Self::stage_id(name)));
            let totals = self.stage_total(false).into_iter().map(|total| total.row.id);
            let allowed: Vec<String> =
                self.budgets.iter().map(|budget| budget.id.clone()).chain(totals).chain(slices).collect();
            if !allowed.contains(id) {
                return Err(SpecError::UnknownValue {
                    path: format!("policy.primary.{i}"),
                    value: id.clone(),
                    nearest: nearest(id, &allowed),
                    allowed,
                });
            }
        }
        Ok(())
    }

    fn check_budget(&self, budget: &Budget, at: &str) -> Result<(), SpecError> {
        let place = |key: &str| format!("{at}.{key}");
        if budget.id.trim().is_empty() {
            return Err(missing(&place("id"), "a name such as ttft-p99"));
        }
        let judged = budget.metric.kind();
        match (judged, budget.p) {
            (MetricKind::Percentile, None) => {
                return Err(missing(&place("p"), "the percentile to check, such as 99"));
            }
            (MetricKind::Percentile, Some(_)) | (_, None) => {}
            (_, Some(_)) => {
                let what = format!("{} has no percentile; drop `p`", budget.metric.name());
                return Err(conflict(&place("p"), what));
            }
        }
        self.check_side(budget, at)?;
        let unit = budget.metric.unit();
        for (key, amount) in [("max", &budget.max), ("min", &budget.min)] {
            let Some(amount) = amount.as_ref().filter(|amount| !amount.unit.like(&unit)) else { continue };
            // A bare number is no share, because 1 could be a ratio of 1 or 1 %.
            let want = format!("{} of {}", unit.want(), budget.metric.name());
            return Err(SpecError::value(&place(key), amount, &want));
        }
        if let Some(amount) = &budget.max
            && unit == AmountUnit::Share
            && amount.value >= 1.0
        {
            return Err(SpecError::value(&place("max"), amount, "a share below 100%"));
        }
        check_margin(budget, at, &unit)?;
        if let Some(name) = budget.under.as_ref().filter(|name| !self.bursts.contains_key(*name)) {
            let allowed: Vec<String> = self.bursts.keys().cloned().collect();
            if allowed.is_empty() {
                let what = format!(
                    "`{name}` is no burst of this file: add `bursts: {{{name}: {{arrivals: gamma:3, rate: 5/s}}}}`"
                );
                return Err(conflict(&place("under"), what));
            }
            let (path, value) = (place("under"), name.clone());
            return Err(SpecError::UnknownValue { path, value, nearest: nearest(name, &allowed), allowed });
        }
        match budget.min_n_eff {
            Some(n) if !(n.is_finite() && n > 0.0) => {
                Err(SpecError::value(&place("min_n_eff"), n, "a number of effective requests above 0"))
            }
            _ => Ok(()),
        }
    }

    fn check_side(&self, budget: &Budget, at: &str) -> Result<(), SpecError> {
        let place = |key: &str| format!("{at}.{key}");
        let name = budget.metric.name();
        if budget.metric.has_floor() && budget.max.is_some() {
            return Err(conflict(
                &place("max"),
                format!("more {name} is better: give it a floor with `min`"),
            ));
        }
        if !budget.metric.has_floor() && budget.min.is_some() {
            return Err(conflict(
                &place("min"),
                format!("less {name} is better: give it a ceiling with `max`"),
            ));
        }
        if let Some(relative) = budget.relative {
            let has_change =
                budget.metric.kind() != MetricKind::TailRatio && budget.metric != BudgetMetric::Utilisation;
            if !has_change {
                let what = format!(
                    "a change against the baseline is judged for latencies, shares, rates, costs and the onset, not for {name}"
                );
                return Err(conflict(&place("relative"), what));
            }
            let (worse, such) =
                if budget.metric.has_floor() { (-relative.0, "-5%") } else { (relative.0, "+10%") };
            if worse < 0.0 {
                let what = format!(
                    "{relative} requires an improvement: give the allowed degradation, such as {such}"
                );
                return Err(conflict(&place("relative"), what));
            }
        }
        if budget.is_tracked() && budget.metric.kind() != MetricKind::Cost {
            let side = if budget.metric.has_floor() { "min" } else { "max" };
            return Err(missing(&place(side), &format!("the limit of {name}")));
        }
        Ok(())
    }

    /// Checks that the ceilings of a latency rise with the percentile.
    fn check_contradictions(&self) -> Result<(), SpecError> {
        for (i, high) in self.budgets.iter().enumerate() {
            let same = |other: &&Budget| {
                other.metric == high.metric
                    && other.slice == high.slice
                    && other.under == high.under
                    && other.scope == high.scope
            };
            for low in self.budgets.iter().filter(same) {
                let (Some(p), Some(q)) = (high.p, low.p) else { continue };
                let (Some(max), Some(least)) = (&high.max, &low.max) else { continue };
                if p.0 > q.0 && max.value < least.value {
                    let what = format!(
                        "{} is limited to {} while {} may be {}: a higher percentile can't have the lower limit",
                        high.metric_name(),
                        max.shown(),
                        low.metric_name(),
                        least.shown()
                    );
                    return Err(conflict(&format!("budgets.{i}.max"), what));
                }
            }
        }
        Ok(())
    }
}

fn check_margin(budget: &Budget, at: &str, unit: &AmountUnit) -> Result<(), SpecError> {
    let Some(margin) = &budget.margin else { return Ok(()) };
    let path = format!("{at}.margin");
    let Some(limit) = budget.max.as_ref().or(budget.min.as_ref()) else {
        return Err(conflict(&path, "a margin is kept from a ceiling or a floor, and there is none"));
    };
    if margin.unit != AmountUnit::Share && !margin.unit.like(unit) {
        let want = format!("{} or a share of the limit such as 5%", unit.want());
        return Err(SpecError::value(&path, margin, &want));
    }
    if reserve(limit, margin) >= limit.value {
        return Err(conflict(&path, format!("{margin} of {} leaves nothing", limit.shown())));
    }
    Ok(())
}

/// Returns the part of a limit that a margin keeps free. A share is a share of the limit, also if the limit is a share.
pub(crate) fn reserve(limit: &Amount, margin: &Amount) -> f64 {
    if margin.unit == AmountUnit::Share { margin.value * limit.value } else { margin.value }
}

/// Returns the margin of a total in s: a time, or a share of the total.
pub(super) fn margin_of(path: &str, margin: Option<&Amount>, total: &Amount) -> Result<f64, SpecError> {
    match margin {
        None => Ok(0.0),
        Some(margin) if margin.unit == AmountUnit::Share => Ok(reserve(total, margin)),
        Some(margin) => time(path, margin),
    }
}

pub(super) fn time(path: &str, amount: &Amount) -> Result<f64, SpecError> {
    match amount.unit {
        AmountUnit::Time => Ok(amount.value),
        _ => Err(SpecError::value(path, amount, AmountUnit::Time.want())),
    }
}

fn check_stages(stages: &StageBudget) -> Result<(), SpecError> {
    let total = time("stages.total", &stages.total)?;
    let mut sum = 0.0;
    for (name, slice) in &stages.slices {
        sum += time(&format!("stages.slices.{name}"), slice)?;
    }
    if stages.slices.is_empty() {
        return Err(missing("stages.slices", "the slice of each stage, such as `prefill: 400ms`"));
    }
    let margin = margin_of("stages.margin", stages.margin.as_ref(), &stages.total)?;
    // With tolerance, because sums of decimal milliseconds are rounded.
    if sum + margin <= total * (1.0 + 1e-9) {
        return Ok(());
    }
    let with = if margin > 0.0 {
        format!(" and {} of margin, {} in all", ms(margin), ms(sum + margin))
    } else {
        String::new()
    };
    Err(conflict(
        "stages.slices",
        format!(
            "the slices add up to {}{with}: {} more than the total of {}",
            ms(sum),
            ms(sum + margin - total),
            ms(total)
        ),
    ))
}

fn nearest(given: &str, allowed: &[String]) -> Option<String> {
    plimsoll_workload::nearest(given, allowed.iter().map(String::as_str)).map(str::to_owned)
}

pub(super) fn missing(path: &str, want: &str) -> SpecError {
    SpecError::Missing { path: path.to_owned(), want: want.to_owned() }
}

pub(super) fn conflict(path: &str, what: impl Into<String>) -> SpecError {
    SpecError::Conflict { path: path.to_owned(), what: what.into() }
}
