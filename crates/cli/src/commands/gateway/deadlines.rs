//! Uses the ceilings of the active budget as time limits of requests (`admission.slo_from_budget`).
//!
//! A percentile ceiling allows some slower requests. The limit is therefore the largest ceiling of a class,
//! that of its highest percentile. A request over this limit is over every ceiling. The ceiling of a lower
//! percentile would reject requests that the budget allows.

use plimsoll_gateway::GatewaySpec;
use plimsoll_judge::budget::{BudgetFile, BudgetMetric, RequestSlice, RowPlan};

use crate::budget_file;
use crate::exit::Stop;

/// Returns the configuration with budget ceilings as the time limits of classes without a limit, if
/// `slo_from_budget` is set.
///
/// # Errors
/// Fails if there is no budget, the budget can't be read, or it has no ceiling on the time to first token.
pub fn with_deadlines(mut spec: GatewaySpec) -> Result<GatewaySpec, Stop> {
    if !spec.admission.slo_from_budget {
        return Ok(spec);
    }
    let Some(path) = &spec.budget else {
        return Err(Stop::usage("admission.slo_from_budget: there is no budget; name one in budget:"));
    };
    let file = budget_file::read(path)?.file;
    let mut found = false;
    for place in 0..spec.admission.classes.len() {
        if spec.admission.slo(place).is_none() {
            let class = &mut spec.admission.classes[place];
            class.slo_ttft_ms = ceiling_ms(&file, &class.name, place);
        }
        found |= spec.admission.slo(place).is_some();
    }
    if found {
        return Ok(spec);
    }
    let why = "admission.slo_from_budget takes a ceiling on ttft for all requests or a class, such as ttft p95 < 2s";
    Err(Stop::usage(format!("{}: {why}", path.display())))
}

/// Returns the largest TTFT ceiling of a class in ms, less its margin. A class without its own ceilings uses
/// the ceilings of all requests.
fn ceiling_ms(file: &BudgetFile, class: &str, place: usize) -> Option<f64> {
    let of = |slice: &RequestSlice| {
        let RequestSlice { class, model, route, prompt_tokens, load } = slice;
        let is_partly = model.is_some() || route.is_some() || prompt_tokens.is_some() || load.is_some();
        (!is_partly).then(|| class.clone())
    };
    let ceilings = |own: bool| {
        let is_its = move |plan: &RowPlan| match plan.row.slice.as_ref().map(of) {
            None | Some(Some(None)) => !own,
            Some(Some(Some(name))) => own && (name == class || name == place.to_string()),
            Some(None) => false,
        };
        let rows =
            file.rows().filter(|plan| plan.row.metric == BudgetMetric::Ttft && plan.load.burst.is_none());
        let most = rows.filter(is_its).filter_map(|plan| plan.limit);
        most.map(|most_s| most_s * 1e3).reduce(f64::max)
    };
    ceilings(true).or_else(|| ceilings(false))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use plimsoll_gateway::ReplicaSpec;

    use super::*;

    /// Returns the limits in ms of the two default classes with this budget.
    fn limits(budgets: &str, change: fn(&mut GatewaySpec)) -> Result<[Option<f64>; 2], String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("budget.yaml");
        fs::write(&path, format!("version: 1\nbudgets:\n{budgets}")).expect("written");
        let mut spec = GatewaySpec { budget: Some(path), ..GatewaySpec::default() };
        spec.replicas.push(ReplicaSpec::new("http://a:1", None));
        spec.admission.slo_from_budget = true;
        change(&mut spec);
        let spec = with_deadlines(spec).map_err(|stop| stop.to_string())?;
        spec.validate().expect("sound");
        Ok([0, 1].map(|class| spec.admission.slo(class).map(|slo| slo.as_secs_f64() * 1e3)))
    }

    #[test]
    fn the_highest_percentile_says_what_is_late_and_what_is_set_stays() {
        let all = "- {id: a, metric: ttft, p: p50, max: 300ms}\n- {id: b, metric: ttft, p: p95, max: 2s}\n- {id: c, metric: e2e, p: p95, max: 9s}\n";
        assert_eq!(limits(all, |_| {}), Ok([Some(2_000.0); 2]));
        let bulk = format!(
            "{all}- {{id: d, metric: ttft, p: p95, max: 20s, slice: {{class: bulk}}}}\n- {{id: e, metric: ttft, p: p95, max: 40s, slice: {{class: bulk, model: m}}}}\n"
        );
        assert_eq!(limits(&bulk, |_| {}), Ok([Some(2_000.0), Some(20_000.0)]));
        // A margin is subtracted, because the judge counts a request within the margin as late.
        let kept = all.replace("max: 2s", "max: 2s, margin: 500ms");
        assert_eq!(limits(&kept, |_| {}), Ok([Some(1_500.0); 2]));
        // A budget may name a class by its index.
        assert_eq!(
            limits(&bulk.replace("class: bulk}", "class: \"1\"}"), |_| {}),
            Ok([Some(2_000.0), Some(20_000.0)])
        );
        assert_eq!(
            limits(all, |spec| spec.admission.classes[1].slo_ttft_ms = Some(7.0)),
            Ok([Some(2_000.0), Some(7.0)])
        );
        assert_eq!(limits(all, |spec| spec.admission.slo_ttft_ms = Some(9.0)), Ok([Some(9.0); 2]));
        assert_eq!(
            limits(all, |spec| spec.admission.slo_from_budget = false),
            Ok([None; 2]),
            "not asked for"
        );
        assert!(limits(all, |spec| spec.budget = None).expect_err("no budget").contains("name one"));
        let none = "- {id: c, metric: e2e, p: p95, max: 9s}\n";
        assert!(limits(none, |_| {}).expect_err("no ceiling").contains("ceiling on ttft"));
    }
}
