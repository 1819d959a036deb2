//! A budget file held against a run: rows, a verdict, and what to say first.
//!
//! Reading order: `finding` (the words), `select` (which levels and requests), `judge` (one budget; `rates` and `against` of another kind), `locate` (where a broken one
//! breaks), and here the family. A verdict per file and never per level: what passes at half the promised load is no pass.

mod against;
mod finding;
mod judge;
mod locate;
mod look;
mod rates;
mod select;

use plimsoll_math::series;
use plimsoll_math::two_sample::holm;
use plimsoll_model::{Attempt, Manifest, Sample};

pub use finding::{GATE_SCHEMA, GateFinding, GateRow, GateVerdict, Role};
pub use look::{More, after_a_look};
pub use select::Measured;

use crate::budget::{
    Budget, BudgetFile, BudgetMetric, Judged, LEAST_WORTH, OnInconclusive, OnMissing, Policy, Unit, family,
    shown,
};
use crate::columns::INFINITE;
use crate::findings::{Held, Reading, Reason, Trust};
use crate::lines::LineSpec;
use crate::say::{count, number};
use crate::whole::analyse_rows;
use judge::{Judgement, metric_of, signed};
use select::{Chosen, Picks, stage_times, values};

impl<'a> Measured<'a> {
    /// Analyses a run as the budget needs it: what is good, and where the budget line lies, is what the file says.
    pub fn read(
        manifest: &'a Manifest,
        attempts: &'a [Attempt],
        samples: &[Sample],
        spec: &LineSpec,
        file: &BudgetFile,
    ) -> Measured<'a> {
        let budget = file.per_request();
        let said = !budget.latency.is_empty() || budget.error_rate.is_some();
        let spec = LineSpec { budget: said.then_some(budget), ..spec.clone() };
        let (findings, levels) = analyse_rows(manifest, attempts, samples, &spec);
        Measured { manifest, findings, levels }
    }
}

/// Holds a budget file against a run, and against a pinned baseline where there is one.
pub fn gate(file: &BudgetFile, run: &Measured<'_>, baseline: Option<&Measured<'_>>) -> GateFinding {
    gate_at(file, run, baseline, look::looks(run))
}

/// The same where it is looked at so many times in all: a first look that may be followed by a second one is one of two.
pub fn gate_at(
    file: &BudgetFile,
    run: &Measured<'_>,
    baseline: Option<&Measured<'_>>,
    times: usize,
) -> GateFinding {
    let policy = Policy { alpha: file.policy.alpha / times.max(1) as f64, ..file.policy.clone() };
    let file = &BudgetFile { policy, ..file.clone() };
    let mut looks: Vec<Look> = Vec::new();
    for (i, budget) in file.budgets.iter().enumerate() {
        looks.extend(look(file, budget, i, run, baseline));
    }
    looks.extend(batch(file, run));
    looks.extend(stages(file, run));
    settle(file, &mut looks);
    let trust = trust(run, &looks);
    let verdict = if trust == Trust::Invalid { GateVerdict::Invalid } else { verdict(&looks) };
    if trust == Trust::Invalid {
        unjudge(&mut looks);
    }
    let refusals = refusals(file, run, baseline, &looks, trust);
    let family = looks.iter().filter(|look| look.row.role == Role::Decides).count();
    let rows: Vec<GateRow> = looks.into_iter().map(|look| look.row).collect();
    GateFinding {
        schema: GATE_SCHEMA,
        verdict,
        headline: headline(verdict, &rows, family),
        refusals,
        budget: file.name.clone().unwrap_or_else(|| "budget".into()),
        run: run.manifest.id.clone(),
        baseline: baseline.map(|baseline| baseline.manifest.id.clone()),
        alpha: file.policy.alpha,
        looks: times,
        family,
        rows,
        validity: run.findings.validity.clone(),
    }
}

/// A row with what the family still needs to know of it.
struct Look {
    row: GateRow,
    budget: Option<Budget>,
    /// The sentence for a failure, made when it was still known where to look.
    defect: String,
    /// Its failure does not rest on a number of independent requests.
    outgrown: bool,
}

fn look(
    file: &BudgetFile,
    budget: &Budget,
    index: usize,
    run: &Measured<'_>,
    baseline: Option<&Measured<'_>>,
) -> Vec<Look> {
    let role = role(file, budget);
    let absolute = budget.max.is_some() || budget.min.is_some() || budget.relative.is_none();
    let make = |id: String, judged: Result<Judgement, String>, chosen: Option<&Chosen<'_, '_>>| {
        let defect = match (&judged, chosen) {
            (Ok(judgement), Some(chosen)) => locate::sentence(file, budget, judgement, run, baseline, chosen),
            _ => String::new(),
        };
        let what = budget.what();
        let outgrown = judged.as_ref().is_ok_and(|judgement| judgement.outgrown);
        let mut row = row(id, format!("budgets.{index}"), what, judged, chosen, (role, file.policy.alpha));
        if row.missing {
            let of_change = !absolute || row.id != budget.id;
            let change = budget.relative.filter(|_| of_change);
            row.limit_shown = change
                .map_or_else(|| judge::limit_words(budget), |change| judge::change_words(budget, change));
        }
        let slice = budget.slice.as_ref().map(|slice| slice.words()).unwrap_or_default();
        let under = budget.under.as_ref().map(|name| format!("under {name}")).unwrap_or_default();
        let slice = [under, slice].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(", ");
        Look {
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
    let mut looks = Vec::new();
    if absolute {
        let judged = judge::judge(file, budget, run, baseline, &chosen);
        looks.push(make(budget.id.clone(), judged, Some(&chosen)));
    }
    if budget.relative.is_some() {
        let id = if looks.is_empty() { budget.id.clone() } else { format!("{} relative", budget.id) };
        looks.push(make(id, against::relative(file, budget, run, baseline, &chosen), Some(&chosen)));
    }
    looks
}

fn role(file: &BudgetFile, budget: &Budget) -> Role {
    let primary = &file.policy.primary;
    match budget.is_tracked() {
        true => Role::Tracked,
        false if primary.is_empty() || primary.contains(&budget.id) => Role::Decides,
        false => Role::Watched,
    }
}

fn row(
    id: String,
    place: String,
    what: String,
    judged: Result<Judgement, String>,
    chosen: Option<&Chosen<'_, '_>>,
    (role, alpha): (Role, f64),
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
        design_effect: counted.and_then(|(count, _)| Some(count.n as f64 / count.worth?)),
        held: Held::Inconclusive,
        missing: judgement.is_none(),
        needed,
        needed_s: needed.zip(per_s).map(|(needed, per_s)| needed as f64 / per_s),
        why: judgement.map_or(missing, |j| j.note),
    }
}

fn batch(file: &BudgetFile, run: &Measured<'_>) -> Option<Look> {
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
        (Role::Decides, file.policy.alpha),
    );
    Some(Look { row, budget: None, defect, outgrown: false })
}

/// The total of the stages, and their slices where the rows carry stage times. The total is what is promised; a slice decides where
/// the policy names it (`stage prefill`), and is watched elsewhere: a stage may take more while another takes less.
fn stages(file: &BudgetFile, run: &Measured<'_>) -> Vec<Look> {
    let (Some(stages), Some(all)) = (&file.stages, file.stage_total()) else { return Vec::new() };
    let chosen = run.choose(file, &all);
    let mut looks = look(file, &all, 0, run, None);
    for look in &mut looks {
        look.row.place = "stages.total".into();
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
        let role = if named { Role::Decides } else { Role::Watched };
        let row = row(
            BudgetFile::stage_id(name),
            place,
            what,
            judged,
            chosen.as_ref().ok(),
            (role, file.policy.alpha),
        );
        looks.push(Look { row, budget: None, defect, outgrown: false });
    }
    looks
}

/// Share of the finished requests that may lack a stage before its slice can't be judged: the others are not like them.
const MOST_LACKING: f64 = 0.05;

/// The family: who passes, who fails among all the looks, and what that amounts to.
fn settle(file: &BudgetFile, looks: &mut [Look]) {
    let alpha = file.policy.alpha;
    let of = |role: Role, looks: &[Look]| -> Vec<usize> {
        (0..looks.len()).filter(|i| looks[*i].row.role == role && !looks[*i].row.missing).collect()
    };
    let chances =
        |at: &[usize], looks: &[Look]| -> Vec<f64> { at.iter().map(|i| looks[*i].row.p_fail).collect() };
    let primary = of(Role::Decides, looks);
    let adjusted = holm(&chances(&primary, looks));
    for (i, p) in primary.into_iter().zip(adjusted) {
        looks[i].row.p_fail_family = p;
        looks[i].row.held = family::verdict(looks[i].row.p_pass, alpha, p <= alpha);
    }
    let watched = of(Role::Watched, looks);
    let falls = family::benjamini_hochberg(&chances(&watched, looks), file.policy.false_discovery);
    for (i, falls) in watched.into_iter().zip(falls) {
        looks[i].row.p_fail_family = looks[i].row.p_fail;
        looks[i].row.held = family::verdict(looks[i].row.p_pass, alpha, falls);
    }
    for look in looks {
        finish(look, alpha);
    }
}

fn finish(look: &mut Look, alpha: f64) {
    let row = &mut look.row;
    let worth = row.share_over.map(|share| share.n_eff);
    let least = look.budget.as_ref().and_then(|budget| budget.min_n_eff).unwrap_or(LEAST_WORTH);
    if row.role == Role::Tracked {
        row.held = if row.missing { Held::Inconclusive } else { Held::Pass };
        return;
    }
    if let Some(worth) = worth.filter(|worth| *worth < least && !(look.outgrown && row.held == Held::Fail)) {
        row.held = Held::Inconclusive;
        row.why =
            format!("{} effective requests; {} are the least to judge by", number(worth), number(least));
        if let Some(share) = row.share_over.filter(|share| share.n_eff > 0.0) {
            row.needed = Some((least * share.n as f64 / share.n_eff).ceil() as u64);
        }
    }
    if let Some(budget) = &look.budget {
        let strict = match row.missing {
            true => budget.on_missing == OnMissing::Fail,
            false => budget.on_inconclusive == OnInconclusive::Fail,
        };
        if row.held == Held::Inconclusive && strict {
            row.held = Held::Fail;
            let what =
                if row.missing { "missing data count as broken" } else { "inconclusive counts as broken" };
            row.why = if row.why.is_empty() { what.into() } else { format!("{}; {what}", row.why) };
            return;
        }
    }
    match row.held {
        Held::Fail => row.why = look.defect.clone(),
        Held::Inconclusive if row.missing => row.why = format!("missing: {}", row.why),
        Held::Inconclusive => row.why = undecided(row, alpha),
        Held::Pass => {}
    }
}

fn undecided(row: &GateRow, alpha: f64) -> String {
    let mut parts = Vec::new();
    if !row.why.is_empty() {
        parts.push(row.why.clone());
    }
    if row.p_fail <= alpha {
        parts.push("broken by itself, though not among all the budgets judged".to_owned());
    }
    match (row.needed, row.share_over) {
        (Some(needed), Some(share)) if needed > share.n => {
            let time = row
                .needed_s
                .map_or(String::new(), |s| format!(", a run of {} at this load", shown(s, &Unit::Time)));
            parts.push(format!("about {} would settle it{time}", count(needed - share.n, "more request")));
        }
        (None, Some(_)) if parts.is_empty() => {
            parts.push("so close to the limit that no number of requests would settle it".to_owned());
        }
        _ if parts.is_empty() => parts.push("the interval holds the limit".to_owned()),
        _ => {}
    }
    parts.join("; ")
}

fn verdict(looks: &[Look]) -> GateVerdict {
    let decides = || looks.iter().filter(|look| look.row.role == Role::Decides);
    let warns = |look: &Look| {
        !look.row.missing
            && look.budget.as_ref().is_some_and(|budget| budget.on_inconclusive == OnInconclusive::Warn)
    };
    if decides().any(|look| look.row.held == Held::Fail) {
        GateVerdict::Broken
    } else if decides().count() == 0 {
        // Where nothing was held to anything, nothing was shown to hold.
        GateVerdict::Inconclusive
    } else if decides().any(|look| look.row.held == Held::Inconclusive && !warns(look)) {
        GateVerdict::Inconclusive
    } else {
        GateVerdict::Pass
    }
}

/// How far what was judged may be trusted: the levels it came from, or the run where it came from none.
fn trust(run: &Measured<'_>, looks: &[Look]) -> Trust {
    let used: Vec<u32> = looks.iter().flat_map(|look| look.row.levels.iter().copied()).collect();
    let of_levels = run.findings.levels.iter().filter(|level| used.contains(&level.summary.level));
    let worst = of_levels.map(|level| level.validity.verdict).max();
    match (run.is_sweep(), worst) {
        (true, Some(worst)) => worst,
        (_, worst) => worst.unwrap_or_default().max(run.findings.validity.verdict),
    }
}

fn refusals(
    file: &BudgetFile,
    run: &Measured<'_>,
    baseline: Option<&Measured<'_>>,
    looks: &[Look],
    trust: Trust,
) -> Vec<String> {
    let mut said = doubts(run, looks, trust);
    if trust == Trust::Invalid {
        return said;
    }
    let Some(baseline) = baseline else { return said };
    let broken = looks.iter().filter(|look| look.row.held == Held::Fail && look.row.role == Role::Decides);
    for look in broken {
        let Some(budget) = look.budget.as_ref().filter(|budget| is_tail(budget)) else { continue };
        if let Some(line) = better_mean(file, budget, &look.row, run, baseline)
            && !said.contains(&line)
        {
            said.push(line);
        }
    }
    said
}

/// Why the measurement is not, or not quite, to be trusted: of the run and of the levels that were judged.
fn doubts(run: &Measured<'_>, looks: &[Look], trust: Trust) -> Vec<String> {
    if trust == Trust::Valid {
        return Vec::new();
    }
    let used = |id: u32| looks.iter().any(|look| look.row.levels.contains(&id));
    let levels =
        run.findings.levels.iter().filter(|level| trust == Trust::Invalid || used(level.summary.level));
    // Those of the levels that were judged first: of a sweep's dozen levels one line a check is enough.
    let reasons = levels.flat_map(|level| &level.validity.reasons).chain(&run.findings.validity.reasons);
    let mut checks: Vec<(&Reason, Vec<&str>)> = Vec::new();
    // What has too few requests for its own budget says so in its row; how many a p99 would take that nobody asks for is no doubt.
    for reason in reasons.filter(|reason| reason.verdict == trust && reason.check != "samples") {
        match checks.iter_mut().find(|(first, _)| first.check == reason.check) {
            Some((_, figures)) if figures.contains(&reason.figure.as_str()) => {}
            Some((_, figures)) => figures.push(&reason.figure),
            None => checks.push((reason, vec![&reason.figure])),
        }
    }
    let suspect = if trust == Trust::Suspect { "the measurement is suspect: " } else { "" };
    let line = |(reason, figures): (&Reason, Vec<&str>)| {
        let also = match figures.len() - 1 {
            0 => String::new(),
            n => format!(" (and on {})", count(n as u64, "other level")),
        };
        format!("{suspect}{}: {}{also}. {}", reason.check, reason.figure, reason.means)
    };
    checks.into_iter().map(line).collect()
}

/// Nothing is said to hold, or to be broken, by a measurement that is not the target's.
fn unjudge(looks: &mut [Look]) {
    for row in looks.iter_mut().map(|look| &mut look.row).filter(|row| row.role != Role::Tracked) {
        row.held = Held::Inconclusive;
        if !row.missing {
            row.why = String::new();
        }
    }
}

fn is_tail(budget: &Budget) -> bool {
    budget.metric.judged() == Judged::Percentile && budget.p.is_some_and(|p| p.0 >= 0.9)
}

/// Batches of a mean.
const MEAN_BATCHES: usize = 20;

/// "Improves the mean and breaks p99": in those words, where the mean really is lower than the baseline's.
fn better_mean(
    file: &BudgetFile,
    budget: &Budget,
    row: &GateRow,
    run: &Measured<'_>,
    baseline: &Measured<'_>,
) -> Option<String> {
    let metric = metric_of(file, budget);
    let mean = |measured: &Measured<'_>| {
        let chosen = measured.choose(file, budget).ok()?;
        let picks: Picks = measured.picks(budget.slice.as_ref()).ok()?;
        let finite = values(&chosen, metric, picks).into_iter().filter(|ns| *ns != INFINITE);
        series::mean(&finite.map(|ns| ns as f64 / 1e9).collect::<Vec<_>>(), MEAN_BATCHES, 0.9)
    };
    let (now, then) = (mean(run)?, mean(baseline)?);
    let half = |mean: &series::Mean| 0.5 * (mean.interval.upper - mean.interval.lower);
    let sure = then.value - now.value > libm::hypot(half(&now), half(&then));
    sure.then(|| {
        format!(
            "Refused: the change improves the mean of {} by {} % ({}, was {}) and breaks {}: {} against {}.",
            metric.name(),
            signed(100.0 * (1.0 - now.value / then.value)).trim_start_matches('+'),
            shown(now.value, &Unit::Time),
            shown(then.value, &Unit::Time),
            budget.p.map_or("its tail".into(), |p| p.name()),
            row.measured_shown.split(" [").next().unwrap_or_default(),
            row.limit_shown
        )
    })
}

fn headline(verdict: GateVerdict, rows: &[GateRow], family: usize) -> String {
    let of = |held: Held| rows.iter().filter(|row| row.role == Role::Decides && row.held == held).count();
    let budgets = count(family as u64, "budget");
    match verdict {
        GateVerdict::Pass if family == 1 && of(Held::Pass) == 1 => "The budget holds.".to_owned(),
        GateVerdict::Broken if family == 1 => "The budget is broken.".to_owned(),
        GateVerdict::Inconclusive if family == 1 => "The budget could not be decided.".to_owned(),
        GateVerdict::Pass if of(Held::Inconclusive) == 0 => format!("All {budgets} hold."),
        GateVerdict::Pass => format!("{} of {budgets} hold; the others only warn.", of(Held::Pass)),
        GateVerdict::Broken => format!("{} of {budgets} broken.", of(Held::Fail)),
        GateVerdict::Inconclusive if family == 0 => {
            "No budget of the file decides anything: all are tracked or watched.".to_owned()
        }
        GateVerdict::Inconclusive => {
            format!("{} of {budgets} could not be decided; none is broken.", of(Held::Inconclusive))
        }
        GateVerdict::Invalid => "The measurement is invalid: nothing is judged by it.".to_owned(),
    }
}
