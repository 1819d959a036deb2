//! Renders the ranking of levers for a terminal: the first three in full, the rest in a table, then the excluded ones with reasons.

use plimsoll_measure::findings::{Estimate, Reading};
use plimsoll_plan::levers::evidence::SharesFrom;
use plimsoll_plan::levers::{
    Admission, FasterModel, FigureOrigin, Goal, Lever, LeverEvidence, LeverFinding, LeverOrder, LoadPlace,
    RankedLever, Redrawn, Term, catalogue,
};

use crate::document::Document;
use crate::figure::centile;
use crate::table::TextTable;
use crate::{figure, words};

/// Number of levers that are shown in full.
const IN_FULL: usize = 3;
/// Share of the latency that a model of twice the speed must save to count as the constraint.
const CONSTRAINT: f64 = 0.1;

/// Returns the ranking for a terminal or a pipe.
pub fn render(name: &str, finding: &LeverFinding) -> String {
    let mut page = Document::default();
    let goal = goal(&finding.goal);
    let ceiling = finding.goal.limit_s.map_or(String::new(), |s| format!(", ceiling {}", words::time(s)));
    page.list(evidence(&finding.evidence, finding.goal.metric.name()));
    page.list(finding.load.as_ref().map(place));
    page.list(finding.beside.iter().map(String::as_str));
    page.list([simulated(finding)]);
    page.list(finding.faster_model.as_ref().map(|faster| faster_model(faster, &goal)));
    let helpful = finding.ranked.iter().filter(|lever| lever.score > 0.0).count();
    let full = helpful.min(IN_FULL);
    page.apart(|page| {
        page.list((helpful == 0 && !finding.ranked.is_empty()).then_some("No lever is shown to help."));
    });
    for lever in &finding.ranked[..full] {
        let heading = format!("{}. {}", lever.place, title(lever));
        page.section(heading, |section| section.list(in_full(lever, &goal, finding.by)));
    }
    page.apart(|page| page.list(overlap(&finding.ranked[..helpful], &finding.evidence)));
    if let Some(found) = &finding.admission {
        let most = found.in_flight;
        let heading =
            format!("Admission control, which serves some by turning others away: at most {most} in flight");
        page.section(heading, |section| section.list(admission(found, &goal, finding.goal.limit_s)));
    }
    page.titled("The rest", rest(&finding.ranked[full..], finding.by, &goal));
    let mut bounds =
        TextTable::new(&["<lever", "saves at most", "<of the time, queueing not simulated again"]);
    for lever in &finding.bounded {
        bounds.row([lever.name.clone(), figure::percent(lever.at_most), lever.why.clone()]);
    }
    page.titled("Bounded only", bounds);
    let mut out = TextTable::new(&["<lever", "<why"]);
    finding.ruled_out.iter().for_each(|lever| out.row([lever.name.as_str(), &lever.why]));
    page.titled("Ruled out", out);
    let mut open = TextTable::new(&["<lever", "<why"]);
    finding.open.iter().for_each(|lever| open.row([lever.name.as_str(), &lever.why]));
    page.titled("Not measured in this run", open);
    let level = finding.evidence.level;
    page.text(&format!("Levers for {name}, level {level}: {goal} {}{ceiling}", now(&finding.now)))
}

/// Returns a note on levers that reduce one term of the latency, the largest of the slow requests.
///
/// Each was predicted separately, and savings of one are not available to another.
fn overlap(helpful: &[RankedLever], evidence: &LeverEvidence) -> Option<String> {
    let catalogue = catalogue::all();
    let moves = |lever: &RankedLever| {
        catalogue.iter().find(|known| known.id == lever.lever).map_or(&[][..], |known| known.moves)
    };
    let shared = |term: &Term| helpful.iter().filter(|lever| moves(lever).contains(term)).collect::<Vec<_>>();
    let spent = |term: &Term| {
        evidence.tail.iter().find(|part| part.term == *term).map_or(0.0, |part| part.share.value)
    };
    let terms = helpful.first().map_or(&[][..], moves);
    let several = terms.iter().map(|term| (term, shared(term))).filter(|(_, same)| same.len() > 1);
    let (term, same) = several.max_by(|(a, _), (b, _)| spent(a).total_cmp(&spent(b)))?;
    let names: Vec<&str> = same.iter().map(|lever| lever.name.as_str()).collect();
    let all = if names.len() > 2 { "all" } else { "both" };
    Some(format!(
        "Each is predicted separately. {} {all} move the same term, {}: their gains do not add up; simulate them together.",
        names.join(", "),
        term.name()
    ))
}

/// Returns the whole catalogue of levers.
pub fn list(levers: &[Lever]) -> String {
    let mut page = Vec::new();
    for lever in levers {
        let moves: Vec<&str> = lever.moves.iter().map(|term| term.name()).collect();
        let model = if lever.touches_model { " · touches the model" } else { "" };
        page.push(format!(
            "{} ({}): {}\n  moves {} · {} days · back {}{model}\n  returns {}\n  risk: {}\n  no help {}\n  first: {}",
            lever.name,
            lever.id,
            lever.changes,
            moves.join(", "),
            figure::number(lever.effort_days),
            lever.reversible.name(),
            lever.returns,
            lever.risk,
            lever.no_help,
            lever.first
        ));
    }
    page.push(
        "Days are conventions; a file of your own replaces them: plimsoll levers RUN --efforts FILE".into(),
    );
    page.join("\n")
}

fn goal(goal: &Goal) -> String {
    format!("{} p{}", goal.metric.name(), centile(goal.percentile))
}

fn now(reading: &Reading) -> String {
    match reading {
        Reading::Estimate(e) => figure::estimated(e, words::time),
        Reading::Refused { why, .. } => format!("not measured ({why})"),
    }
}

fn share(estimate: &Estimate) -> String {
    figure::percent(estimate.value)
}

fn evidence(evidence: &LeverEvidence, metric: &str) -> Vec<String> {
    let mut lines = Vec::new();
    let parts: Vec<String> =
        evidence.tail.iter().map(|part| format!("{} {}", part.term.name(), share(&part.share))).collect();
    match evidence.shares_from {
        SharesFrom::Server => {
            lines.push(format!("The slowest tenth by {metric}: {} (server's stages)", parts.join(", ")))
        }
        SharesFrom::Inferred => {
            lines.push(format!(
                "The slowest tenth by {metric}: {} (inferred, as profile does)",
                parts.join(", ")
            ));
        }
        SharesFrom::Unknown => lines.push("Shares of the time: not known from this run".into()),
    }
    let mut facts = Vec::new();
    if let Some(repeats) = &evidence.exact_repeats {
        facts.push(format!("{} of the prompts came before", share(repeats)));
    }
    if let Some(reuse) = &evidence.prefix_reuse {
        facts.push(format!("{} of their tokens began an earlier one", share(reuse)));
    }
    if let Some(cached) = evidence.cached_now {
        facts.push(format!("{} come from the server's cache", figure::percent(cached)));
    }
    if let Some(seen) = &evidence.occupancy {
        facts.push(format!(
            "{} sequences running (most {:.0} of {:.0})",
            figure::number(seen.running),
            seen.running_max,
            seen.max_seqs
        ));
    }
    if let Some(preempted) = evidence.preemptions.filter(|n| *n > 0.0) {
        facts.push(format!("{preempted:.0} preemptions"));
    }
    if !facts.is_empty() {
        lines.push(facts.join(" · "));
    }
    if let Some(roofline) = &evidence.roofline {
        lines.extend(roofline.words());
        lines.extend(roofline.advice());
    }
    lines
}

/// Describes the load relative to the onset, because the value of queueing changes depends on it.
fn place(load: &LoadPlace) -> String {
    let offered = figure::per_second(load.offered_per_s);
    let Some(onset) = load.onset_per_s else {
        return format!(
            "Load: {offered}; the queueing onset is unknown: run plimsoll sweep, then pass --level"
        );
    };
    let times = load.offered_per_s / onset.value;
    let means = match (load.offered_per_s > onset.upper, load.offered_per_s < onset.lower) {
        (true, _) => "past it: first shorten the queue or reduce the load",
        (_, true) => "below it: the queue is short, so a shorter queue saves little",
        _ => "at it, within the interval",
    };
    let (times, onset) = (figure::number(times), words::rate(&onset));
    format!("Load: {offered}, {times} × the queueing onset of {onset}: {means}")
}

fn simulated(finding: &LeverFinding) -> String {
    match &finding.fit {
        Some(fit) if fit.fits => {
            format!("Simulated: {}; {} schedules: {}", fit.why, finding.replications, drawn(finding))
        }
        Some(fit) => format!("Not simulated: {}", fit.why),
        None => {
            "Not simulated: no engine model for this target; name one with --profile to predict levers".into()
        }
    }
}

/// Describes the origin of the schedules.
fn drawn(finding: &LeverFinding) -> &'static str {
    match finding.redrawn {
        Some(Redrawn::Blocks) => {
            "the run's own, and its arrivals in twelfths drawn with replacement (sessions, traces and closed loops have no other draw)"
        }
        Some(Redrawn::NearBlocks) => {
            "the run's own, and its arrivals in twelfths drawn with replacement from next to their places (sessions and traces have no \
             other draw)"
        }
        _ => "the run's own, and others drawn from its scenario with other seeds",
    }
}

/// Describes the trade-off of admission control, next to levers that serve every request.
fn admission(found: &Admission, goal: &str, limit_s: Option<f64>) -> Vec<String> {
    let mut lines = vec![format!(
        "rejected {} · {goal} of admitted requests {}, of all requests now {}",
        figure::estimated(&found.refused, figure::percent),
        figure::estimated(&found.answered_s, words::time),
        figure::estimated(&found.now_s, words::time)
    )];
    if let (Some(good), Some(limit_s)) = (&found.good, limit_s) {
        lines.push(format!(
            "answered within {}: {} in place of {}",
            words::time(limit_s),
            words::rate(&good.then_per_s),
            words::rate(&good.now_per_s)
        ));
    }
    lines.push(
        "Assumes: rejected requests are not retried; the figures apply to a run of this length, because the queue grows".into(),
    );
    lines
}

fn faster_model(faster: &FasterModel, goal: &str) -> String {
    let caveat = match faster.how {
        FigureOrigin::Simulated => "",
        FigureOrigin::Replayed => " (service time only; queueing not simulated again)",
    };
    let (twice, most) = (change(&faster.twice), format!("−{}", figure::percent(faster.at_most.max(0.0))));
    if faster.twice.upper < CONSTRAINT {
        format!(
            "The model is not the constraint: one twice as fast moves {goal} by {twice} only, one that takes no time \
             by {most} at most{caveat}"
        )
    } else {
        format!("A model twice as fast moves {goal} by {twice}, one that takes no time by {most}{caveat}")
    }
}

/// Formats a saved share as a change: `−8.9 % [−11.7, −6.1]`.
fn change(saved: &Estimate) -> String {
    let percent = |share: f64| match figure::percent(-share).replace(" %", "").replace('-', "−") {
        none if none == "−0" || none == "−0.0" => "0".to_owned(),
        some => some,
    };
    format!("{} % {}", percent(saved.value), figure::interval(&percent(saved.upper), &percent(saved.lower)))
}

fn title(lever: &RankedLever) -> String {
    match lever.setting.is_empty() {
        true => lever.name.clone(),
        false => format!("{}: {}", lever.name, lever.setting),
    }
}

fn in_full(lever: &RankedLever, goal: &str, by: LeverOrder) -> Vec<String> {
    let latency = format!("{goal} {}", change(&lever.latency));
    let cost = lever.cost.as_ref().map(|cost| format!("cost per request at this load {}", change(cost)));
    let mut gains = match (by, cost) {
        (LeverOrder::Latency, cost) => [Some(latency), cost],
        (LeverOrder::Cost, cost) => [cost, Some(latency)],
    }
    .into_iter()
    .flatten()
    .collect::<Vec<String>>();
    gains.push(format!("{} days", figure::number(lever.effort_days)));
    gains.push(format!("back {}", lever.reversible));
    let chance = lever.probability_of_best;
    let mut lines = vec![format!("{} · best per day with chance {chance:.2}", gains.join(" · "))];
    lines.extend(lever.assumes.as_ref().map(|assumes| format!("Assumes: {assumes}")));
    let model =
        if lever.touches_model { "; touches the model: check answers with plimsoll quality" } else { "" };
    lines.push(format!("Risk: {}{model}", words::sentence(&lever.risk).trim_end_matches('.')));
    lines.push(format!("Try first: {}", lever.first));
    lines
}

fn rest(levers: &[RankedLever], by: LeverOrder, goal: &str) -> TextTable {
    let header = [format!("<{goal} [95 %]"), "<cost per request at this load [95 %]".to_owned()];
    let order = if by == LeverOrder::Cost { [1, 0] } else { [0, 1] };
    let columns =
        ["", "<lever", &header[order[0]], &header[order[1]], "days", "best", "<"].map(str::to_owned);
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = TextTable::new(&columns);
    for lever in levers {
        let gains = [change(&lever.latency), lever.cost.as_ref().map(change).unwrap_or_default()];
        let note = if lever.score > 0.0 { "" } else { "no gain shown" };
        table.row([
            lever.place.to_string(),
            title(lever),
            gains[order[0]].clone(),
            gains[order[1]].clone(),
            figure::number(lever.effort_days),
            figure::percent(lever.probability_of_best),
            note.to_owned(),
        ]);
    }
    table
}
