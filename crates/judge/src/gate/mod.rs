//! A budget file held against a run: rows, a verdict, and what to say first.
//!
//! Reading order: `finding` (the words), `select` (which levels and requests), `judge` (one budget; `rates` and `against` of another kind), `locate` (where a broken one
//! breaks), `settle` (the family), `refusals` (what else speaks against the run), and here how they come together. A verdict per file and never per level: what passes at half the promised load is no pass.

mod against;
mod finding;
mod interim;
mod judge;
mod locate;
mod rates;
mod refusals;
mod select;
mod settle;

use plimsoll_model::{Attempt, Level, Manifest, Sample};

pub use finding::{GATE_SCHEMA, GateFinding, GateRow, GateVerdict, RowRole};
pub use interim::{More, after_interim};
pub use select::MeasuredRun;

use crate::budget::{Budget, BudgetFile, BudgetMetric, Limit, Policy};
use judge::Judgement;
use plimsoll_measure::Streamed;
use plimsoll_measure::findings::{Held, Reading, Trust};
use plimsoll_measure::lines::LineSpec;
use plimsoll_measure::say::count;
use plimsoll_measure::whole::analyse_rows;
use select::{Chosen, stage_times};

impl<'a> MeasuredRun<'a> {
    /// Analyses a run as the budget needs it: what is good, and where the budget line lies, is what the file says.
    pub fn read(
        manifest: &'a Manifest,
        attempts: &[Attempt],
        samples: &[Sample],
        spec: &LineSpec,
        file: &BudgetFile,
    ) -> MeasuredRun<'a> {
        let (findings, levels) = analyse_rows(manifest, attempts, samples, &spec_of(spec, file));
        MeasuredRun { manifest, findings, levels }
    }

    /// The same of a run whose attempts were not kept.
    pub fn streamed(
        manifest: &'a Manifest,
        streamed: Streamed,
        samples: &[Sample],
        spec: &LineSpec,
        file: &BudgetFile,
    ) -> MeasuredRun<'a> {
        let (findings, levels) = streamed.rows(manifest, samples, &spec_of(spec, file));
        MeasuredRun { manifest, findings, levels }
    }
}

fn spec_of(spec: &LineSpec, file: &BudgetFile) -> LineSpec {
    let budget = file.per_request();
    let said = !budget.latency.is_empty() || budget.error_rate.is_some();
    LineSpec { budget: said.then_some(budget), ..spec.clone() }
}

/// Holds a budget file against a run, and against a pinned baseline where there is one.
pub fn gate(file: &BudgetFile, run: &MeasuredRun<'_>, baseline: Option<&MeasuredRun<'_>>) -> GateFinding {
    gate_at(file, run, baseline, interim::analyses(run))
}

/// The same with so many analyses in all: an interim analysis that may be followed by a final one is one of two.
pub fn gate_at(
    file: &BudgetFile,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
    times: usize,
) -> GateFinding {
    let policy = Policy { alpha: file.policy.alpha / times.max(1) as f64, ..file.policy.clone() };
    let file = &BudgetFile { policy, ..file.clone() };
    let mut judged: Vec<JudgedRow> = Vec::new();
    for (i, budget) in file.budgets.iter().enumerate() {
        judged.extend(judge_budget(file, budget, i, run, baseline));
    }
    judged.extend(batch(file, run));
    judged.extend(stages(file, run));
    settle::settle(file, &mut judged);
    let trust = refusals::trust(run, &judged);
    let barred = refusals::bar(run, &mut judged);
    let verdict = match settle::verdict(&judged) {
        _ if trust == Trust::Invalid => GateVerdict::Invalid,
        // Not even where what is inconclusive only warns.
        GateVerdict::Pass if barred => GateVerdict::Inconclusive,
        verdict => verdict,
    };
    if trust == Trust::Invalid {
        settle::unjudge(&mut judged);
    }
    let refusals = refusals::refusals(file, run, baseline, &judged, trust);
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
        alpha: file.policy.alpha,
        analyses: times,
        family,
        rows,
        validity: run.findings.validity.clone(),
    }
}

/// From the first level's start until the last was drained, s.
fn measured_s(levels: &[Level]) -> f64 {
    let start = levels.iter().map(|level| level.start).min();
    let end = levels.iter().map(|level| level.drained.max(level.stop)).max();
    start.zip(end).map_or(0.0, |(start, end)| (end - start).as_secs_f64())
}

/// A row with what the family still needs to know of it.
struct JudgedRow {
    row: GateRow,
    budget: Option<Budget>,
    /// The sentence for a failure, made when it was still known where to look.
    defect: String,
    /// Its failure does not rest on a number of independent requests.
    outgrown: bool,
}

fn judge_budget(
    file: &BudgetFile,
    budget: &Budget,
    index: usize,
    run: &MeasuredRun<'_>,
    baseline: Option<&MeasuredRun<'_>>,
) -> Vec<JudgedRow> {
    let (role, limit) = (role(file, budget), Limit::of(file, budget));
    let absolute = budget.max.is_some() || budget.min.is_some() || budget.relative.is_none();
    let make = |id: String, judged: Result<Judgement, String>, chosen: Option<&Chosen<'_>>| {
        let defect = match (&judged, chosen) {
            (Ok(judgement), Some(chosen)) => locate::sentence(&limit, judgement, run, baseline, chosen),
            _ => String::new(),
        };
        let what = budget.what();
        let outgrown = judged.as_ref().is_ok_and(|judgement| judgement.outgrown);
        let mut row = row(id, format!("budgets.{index}"), what, judged, chosen, (role, file.policy.alpha));
        if row.missing {
            let of_change = !absolute || row.id != budget.id;
            let change = budget.relative.filter(|_| of_change);
            row.limit_shown = change.map_or_else(|| limit.words(), |change| limit.change_words(change));
        }
        let slice = budget.slice.as_ref().map(|slice| slice.words()).unwrap_or_default();
        let under = budget.under.as_ref().map(|name| format!("under {name}")).unwrap_or_default();
        let slice = [under, slice].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        JudgedRow {
            row: GateRow { slice, owner: budget.owner.clone(), ..row },
            budget: Some(budget.clone()),
            defect,
            outgrown,
        }
    };
    let chosen = run.choose(file, budget);
    let chosen = match chosen {
        Ok(chosen) => chosen,
        Err(why) => return vec![make(budget.id.clone(), Err(why), None)],
    };
    let mut rows = Vec::new();
    if absolute {
        let judged = judge::judge(file, &limit, run, baseline, &chosen);
        rows.push(make(budget.id.clone(), judged, Some(&chosen)));
    }
    if budget.relative.is_some() {
        let id = if rows.is_empty() { budget.id.clone() } else { format!("{} relative", budget.id) };
        rows.push(make(id, against::relative(file, budget, run, baseline, &chosen), Some(&chosen)));
    }
    rows
}

fn role(file: &BudgetFile, budget: &Budget) -> RowRole {
    let primary = &file.policy.primary;
    match budget.is_tracked() {
        true => RowRole::Tracked,
        false if primary.is_empty() || primary.contains(&budget.id) => RowRole::Decides,
        false => RowRole::Watched,
    }
}

fn row(
    id: String,
    place: String,
    what: String,
    judged: Result<Judgement, String>,
    chosen: Option<&Chosen<'_>>,
    (role, alpha): (RowRole, f64),
) -> GateRow {
    let (judgement, missing) = match judged {
        Ok(judgement) => (Some(judgement), String::new()),
        Err(why) => (None, why),
    };
    let counted = judgement.as_ref().and_then(|j| j.count);
    let share = counted.map(|(count, allowed)| crate::budget::decide(&count, allowed, alpha).share);
    let needed = judgement.as_ref().and_then(|j| j.needed);
    let per_s = chosen.zip(counted).map(|(chosen, (count, _))| count.n as f64 / chosen.length_s().max(1e-9));
    GateRow {
        id,
        place,
        what: judgement.as_ref().map_or(what, |j| j.what.clone()),
        slice: String::new(),
        owner: None,
        role,
        levels: chosen.map(Chosen::ids).unwrap_or_default(),
        offered_per_s: chosen.map(Chosen::offered_per_s),
        limit: judgement.as_ref().and_then(|j| j.limit),
        limit_shown: judgement.as_ref().map_or("–".into(), |j| j.limit_shown.clone()),
        measured: judgement
            .as_ref()
            .map_or_else(|| Reading::refused(missing.clone(), 0), |j| j.measured.clone()),
        measured_shown: judgement.as_ref().map_or("missing".into(), |j| j.measured_shown.clone()),
        share_over: share,
        allowed: counted.map(|(_, allowed)| allowed),
        p_pass: judgement.as_ref().map_or(1.0, |j| j.p_pass),
        p_fail: judgement.as_ref().map_or(1.0, |j| j.p_fail),
        p_fail_family: 1.0,
        design_effect: counted.and_then(|(count, _)| Some(count.n as f64 / count.worth?.n_eff)),
        held: Held::Inconclusive,
        by: judgement.as_ref().and_then(|j| j.by),
        missing: judgement.is_none(),
        needed,
        needed_s: needed.zip(per_s).map(|(needed, per_s)| needed as f64 / per_s),
        why: judgement.map_or(missing, |j| j.note),
    }
}

fn batch(file: &BudgetFile, run: &MeasuredRun<'_>) -> Option<JudgedRow> {
    file.batch?;
    let all = Budget::ceiling("batch", BudgetMetric::Throughput, None, crate::budget::Amount::seconds(1.0));
    let chosen = run.choose(file, &all);
    let (judged, chosen) = match &chosen {
        Ok(chosen) => (rates::batch(file, run, chosen), Some(chosen)),
        Err(why) => (Err(why.clone()), None),
    };
    let defect = judged.as_ref().map(|j| format!("{}: {}", j.what, j.note)).unwrap_or_default();
    let row = row(
        "batch".into(),
        "batch".into(),
        "items by the deadline".into(),
        judged,
        chosen,
        (RowRole::Decides, file.policy.alpha),
    );
    Some(JudgedRow { row, budget: None, defect, outgrown: false })
}

/// The total of the stages, and their slices where the rows carry stage times. The total is what is promised; a slice decides where
/// the policy names it (`stage prefill`), and is watched elsewhere: a stage may take more while another takes less.
fn stages(file: &BudgetFile, run: &MeasuredRun<'_>) -> Vec<JudgedRow> {
    let (Some(stages), Some(all)) = (&file.stages, file.stage_total()) else { return Vec::new() };
    let chosen = run.choose(file, &all);
    let mut rows = judge_budget(file, &all, 0, run, None);
    for one in &mut rows {
        one.row.place = "stages.total".into();
    }
    for (name, slice) in &stages.slices {
        let judged = chosen.as_ref().map_err(Clone::clone).and_then(|chosen| {
            let mut j = judge::of_stage(name, stages.p, slice);
            let (times, lacking) = stage_times(chosen, name);
            if lacking as f64 > MOST_LACKING * (times.len() as f64 + lacking as f64) {
                return Err(format!(
                    "{} of {} report no `{name}`",
                    lacking,
                    count(times.len() as u64 + lacking, "request")
                ));
            }
            judge::latency(
                &mut j,
                &times,
                &format!("stage `{name}`"),
                stages.p.0,
                chosen.length_s(),
                file.policy.alpha,
            )?;
            if lacking > 0 {
                j.note = [j.note, format!("{} without it left out", count(lacking, "request"))]
                    .into_iter()
                    .filter(|part| !part.is_empty())
                    .collect::<Vec<_>>()
                    .join("; ");
            }
            Ok(j)
        });
        let what = format!("stage {name} {}", stages.p.name());
        let defect = match &judged {
            Ok(j) => format!(
                "{} {} > {}",
                j.what,
                j.measured_shown.split(" [").next().unwrap_or(""),
                slice.shown()
            ),
            Err(_) => String::new(),
        };
        let place = format!("stages.slices.{name}");
        let named = file.policy.primary.contains(&BudgetFile::stage_id(name));
        let role = if named { RowRole::Decides } else { RowRole::Watched };
        let row = row(
            BudgetFile::stage_id(name),
            place,
            what,
            judged,
            chosen.as_ref().ok(),
            (role, file.policy.alpha),
        );
        rows.push(JudgedRow { row, budget: None, defect, outgrown: false });
    }
    rows
}

/// Share of the finished requests that may lack a stage before its slice can't be judged: the others are not like them.
const MOST_LACKING: f64 = 0.05;
