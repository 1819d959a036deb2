//! A budget file evaluated on a run: one row per budget, one verdict per file.
//!
//! Reading order: `finding` (output), `select` (levels and requests of a row), `judge` (one row; `rates` and `against` for other kinds of
//! metric). Then `locate` (place of a failure), `settle` (all rows together), `refusals` (other objections to the run). A verdict per level was
//! rejected, because a pass at half of the planned load is no pass.

mod against;
mod finding;
mod interim;
mod judge;
mod locate;
mod rates;
mod refusals;
mod select;
mod settle;

use plimsoll_measure::StreamedRun;
use plimsoll_measure::findings::{Reading, Trust};
use plimsoll_measure::lines::LineSpec;
use plimsoll_measure::whole::analyse_rows;
use plimsoll_model::{Attempt, Level, Manifest, Sample};

pub use finding::{GATE_SCHEMA, GateFinding, GateRow, GateVerdict};
pub use interim::{RemainingTime, after_interim};
pub use select::MeasuredRun;
pub use settle::benjamini_hochberg;

pub use crate::budget::RowRole;
use crate::budget::{BudgetFile, RowPlan};
use select::SelectedLevels;

impl<'a> MeasuredRun<'a> {
    /// Analyses a run with the ceilings of the file, which determine the good requests and the budget limit.
    pub fn read(
        manifest: &'a Manifest,
        attempts: &[Attempt],
        samples: &[Sample],
        spec: &LineSpec,
        file: &BudgetFile,
    ) -> MeasuredRun<'a> {
        let (findings, levels) = analyse_rows(manifest, attempts, samples, &with_budget(spec, file));
        MeasuredRun { manifest, findings, levels }
    }

    /// Analyses a run whose attempts were streamed and not kept.
    pub fn streamed(
        manifest: &'a Manifest,
        streamed: StreamedRun,
        samples: &[Sample],
        spec: &LineSpec,
        file: &BudgetFile,
    ) -> MeasuredRun<'a> {
        let (findings, levels) = streamed.rows(manifest, samples, &with_budget(spec, file));
        MeasuredRun { manifest, findings, levels }
    }
}

fn with_budget(spec: &LineSpec, file: &BudgetFile) -> LineSpec {
    let budget = file.per_request();
    let has_any = !budget.latency.is_empty() || budget.error_rate.is_some();
    LineSpec { budget: has_any.then_some(budget), ..spec.clone() }
}

#[derive(Copy, Clone)]
struct GateInput<'a> {
    file: &'a BudgetFile,
    run: &'a MeasuredRun<'a>,
    baseline: Option<&'a MeasuredRun<'a>>,
    /// Error probability on each side of this analysis.
    alpha: f64,
}

/// Evaluates a budget file on a run, and against a pinned baseline if there is one.
pub fn gate(file: &BudgetFile, run: &MeasuredRun<'_>, baseline: Option<&MeasuredRun<'_>>) -> GateFinding {
    gate_at(file, run, baseline, interim::analyses(run))
}

/// Evaluates a budget file as one of `analyses` analyses, which share the error probability.
pub fn gate_at(
    file: &BudgetFile,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    analyses: usize,
) -> GateFinding {
    let alpha = file.policy.alpha / analyses.max(1) as f64;
    let gate = GateInput { file, run, baseline, alpha };
    let mut judged: Vec<JudgedRow> = file.rows().flat_map(|plan| gate.rows(&plan)).collect();
    judged.extend(gate.batch());
    judged.extend(gate.stages());
    settle::settle(&gate, &mut judged);
    let trust = refusals::trust(run, &judged);
    let barred = refusals::bar(run, &mut judged);
    let verdict = match settle::verdict(&judged) {
        _ if trust == Trust::Invalid => GateVerdict::Invalid,
        // Also if inconclusive rows only warn.
        GateVerdict::Pass if barred => GateVerdict::Inconclusive,
        verdict => verdict,
    };
    if trust == Trust::Invalid {
        settle::unjudge(&mut judged);
    }
    let refusals = refusals::refusals(&gate, &judged, trust);
    let cut = refusals::cut(run, &judged);
    let family = judged.iter().filter(|one| one.row.role == RowRole::Decides).count();
    let rows: Vec<GateRow> = judged.into_iter().map(|one| one.row).collect();
    GateFinding {
        schema: GATE_SCHEMA,
        verdict,
        headline: settle::headline(verdict, &rows, family),
        refusals,
        cut,
        budget: file.name.clone().unwrap_or_else(|| "budget".into()),
        run: run.manifest.id.clone(),
        measured_s: measured_s(&run.manifest.levels),
        baseline: baseline.map(|baseline| baseline.manifest.id.clone()),
        alpha,
        analyses,
        family,
        rows,
        validity: run.findings.validity.clone(),
    }
}

/// Returns the time from the start of the first level to the end of the last, s.
fn measured_s(levels: &[Level]) -> f64 {
    let start = levels.iter().map(|level| level.start).min();
    let end = levels.iter().map(|level| level.drained.max(level.stop)).max();
    start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64())
}

/// A row with the data that the family needs.
struct JudgedRow {
    row: GateRow,
    /// Plan of the row; `None` for the batch and the slices of stages.
    plan: Option<RowPlan>,
    defect: String,
    /// Set if a failure is based on a growing queue and not on n_eff.
    outgrown: bool,
}

impl JudgedRow {
    /// Evaluates a row without data on these levels; an error names the missing data.
    fn new(
        blank: GateRow,
        selected: Result<&SelectedLevels<'_>, String>,
        judge: impl FnOnce(&mut JudgedRow, &SelectedLevels<'_>) -> Result<(), String>,
    ) -> JudgedRow {
        let mut one = JudgedRow { row: blank.clone(), plan: None, defect: String::new(), outgrown: false };
        let levels = selected.as_ref().map(|levels| (levels.ids(), levels.offered_per_s())).ok();
        let judged = selected.and_then(|levels| judge(&mut one, levels));
        if let Err(why) = judged {
            let measured = Reading::refused(why.clone(), 0);
            let row = GateRow { measured, measured_shown: "missing".into(), missing: true, why, ..blank };
            one = JudgedRow { row, defect: String::new(), ..one };
        }
        if let Some((ids, offered_per_s)) = levels {
            (one.row.levels, one.row.offered_per_s) = (ids, Some(offered_per_s));
        }
        one
    }
}

impl GateInput<'_> {
    /// Returns the rows of a plan: for its limit, and for its change against the baseline.
    fn rows(&self, plan: &RowPlan) -> Vec<JudgedRow> {
        let relative = plan.row.relative;
        let is_absolute = plan.row.max.is_some() || plan.row.min.is_some() || relative.is_none();
        let slice = plan.row.slice.as_ref().map(|slice| slice.words()).unwrap_or_default();
        let under = plan.row.under.as_ref().map(|name| format!("under {name}")).unwrap_or_default();
        let slice = [under, slice].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        let blank = |is_change: bool| {
            let id = &plan.row.id;
            let id = if is_change && is_absolute { format!("{id} relative") } else { id.clone() };
            let change = relative.filter(|_| is_change).map(|change| plan.change_text(change));
            GateRow {
                slice: slice.clone(),
                owner: plan.row.owner.clone(),
                limit_shown: change.unwrap_or_else(|| plan.limit_text()),
                ..GateRow::new(id, plan.path.clone(), plan.metric_name(), plan.role)
            }
        };
        let selected = self.run.select(self.file, &plan.load);
        let mut rows = Vec::new();
        for is_change in [false, true] {
            let is_asked = if is_change { relative.is_some() } else { is_absolute };
            // Without levels, one row reports the missing data of both.
            if !is_asked || (selected.is_err() && !rows.is_empty()) {
                continue;
            }
            let selected = selected.as_ref().map_err(Clone::clone);
            let row = JudgedRow::new(blank(is_change), selected, |one, levels| {
                match is_change {
                    false => judge::judge(self, plan, one, levels)?,
                    true => against::relative(self, plan, &mut one.row, levels)?,
                }
                one.defect = locate::sentence(self, plan, &one.row, levels);
                Ok(())
            });
            rows.push(JudgedRow { plan: Some(plan.clone()), ..row });
        }
        rows
    }

    fn batch(&self) -> Option<JudgedRow> {
        let batch = self.file.batch?;
        let selected = self.run.select(self.file, &self.file.steady_load());
        let blank =
            GateRow::new("batch".into(), "batch".into(), "items by the deadline".into(), RowRole::Decides);
        Some(JudgedRow::new(blank, selected.as_ref().map_err(Clone::clone), |one, levels| {
            rates::batch(&mut one.row, batch, self.run, levels)?;
            one.defect = format!("{}: {}", one.row.what, one.row.why);
            Ok(())
        }))
    }

    /// Returns the rows of the stages: the total, and the slices. The stages of a chain are its classes; otherwise the
    /// requests report the times of their stages.
    fn stages(&self) -> Vec<JudgedRow> {
        let is_chain = self.run.manifest.is_chain();
        let (Some(stages), Some(total)) = (&self.file.stages, self.file.stage_total(is_chain)) else {
            return Vec::new();
        };
        let alone = GateInput { baseline: None, ..*self };
        if is_chain {
            let slice = |(name, slice): (&String, &_)| self.file.stage_of_chain(name, stages.p.0, slice);
            let slices = stages.slices.iter().map(slice);
            let plans = std::iter::once(total).chain(slices);
            let mut rows: Vec<JudgedRow> = plans.flat_map(|plan| alone.rows(&plan)).collect();
            // The row's name is the class.
            rows.iter_mut().for_each(|one| one.row.slice.clear());
            return rows;
        }
        let selected = self.run.select(self.file, &total.load);
        let slice = |(name, slice): (&String, &_)| {
            let (id, role) = (BudgetFile::stage_id(name), self.file.stage_role(name));
            let what = format!("stage {name} {}", stages.p.name());
            let blank = GateRow::new(id, format!("stages.slices.{name}"), what, role);
            JudgedRow::new(blank, selected.as_ref().map_err(Clone::clone), |one, levels| {
                judge::stage(self, one, levels, (name, stages.p.0, slice))
            })
        };
        let slices: Vec<JudgedRow> = stages.slices.iter().map(slice).collect();
        alone.rows(&total).into_iter().chain(slices).collect()
    }
}
