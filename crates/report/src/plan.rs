//! Renders a capacity plan: the number first, its expected figures, its breaking load, its cost, and then the reasons.

use maud::{Markup, html};
use plimsoll_measure::findings::{BudgetSpec, Estimate, Held, Reading};
use plimsoll_plan::finding::{
    Chosen, ExpectedLatency, PlanBounds, PlanCost, PlanFinding, Probability, ScalingFinding, Slots,
};

use crate::document::{Document, Phrase};
use crate::figure::centile;
use crate::html::chart::{self, Charts};
use crate::html::plan_charts;
use crate::plan_envelope::{fleet, load};
use crate::{cost, figure, plan_tables as tables, words};

/// Returns the plan for a terminal or a pipe.
pub fn render(plan: &PlanFinding) -> String {
    let said = headline(plan);
    let (first, rest) = said.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
    let mut document = Document::default();
    rest.iter().for_each(|sentence| document.says(sentence.as_str()));
    fill(&mut document, plan, &Charts::new());
    document.text(first)
}

/// Returns the plan as a separate page. `asked`: the command that repeats it.
pub fn page(plan: &PlanFinding, asked: &str) -> String {
    let charts = plan_charts::of(plan);
    let mut document = Document::default();
    said(&mut document, plan);
    fill(&mut document, plan, &charts);
    document.section("Repeat", |section| section.drawn(html! { @if !asked.is_empty() { pre { (asked) } } }));
    document.charted(&format!("Plimsoll plan: {}", plan.engine), &title(plan), &charts)
}

/// Adds the plan as a part of a run's page, whose `charts` include the plan's charts.
pub(crate) fn beside(document: &mut Document, plan: &PlanFinding, charts: &Charts) {
    document.section(title(plan), |section| said(section, plan));
    fill(document, plan, charts);
}

/// Returns the planned load, and the confidence.
fn title(plan: &PlanFinding) -> Phrase {
    let (word, class) = match plan.chosen.as_ref().map(|chosen| chosen.held) {
        _ if plan.simulated.is_none() => ("not simulated", "suspect"),
        Some(Held::Pass) => ("meets the SLO, simulated", "valid"),
        Some(Held::Inconclusive) => ("inconclusive", "suspect"),
        Some(Held::Fail) | None => ("misses the SLO", "invalid"),
    };
    let title = format!("Capacity plan for {}", plan.engine);
    Phrase::drawn(title.as_str(), html! { (title) " " span.badge.(class) { (word) } })
}

/// Adds the planned load, and the result in sentences.
fn said(document: &mut Document, plan: &PlanFinding) {
    let demand = load(plan.load.rate_per_s, plan.rules.peak);
    document.says(Phrase::from(format!("{demand} · {}", slo_text(&plan.slo))).soft());
    document.verdict(&headline(plan));
}

/// Adds the figures for a purchase decision, then their evidence.
fn fill(document: &mut Document, plan: &PlanFinding, charts: &Charts) {
    document.drawn(cards(plan));
    curve_section(document, plan, charts);
    // On the first screen, because the number is wrong if one of these does not apply.
    let assumptions = plan.assumptions.iter().map(|line| words::sentence(line));
    document.section("Assumptions: the answer changes if one is wrong", |section| section.list(assumptions));
    document.titled("Expected at the peak", tables::expected_table(plan));
    document.section("Replicas tried", |section| {
        section.small(
            "Every number is simulated with the same schedules, so the results differ only by the number.",
        );
        section.table(tables::tried_table(plan));
        section.terminal(|terminal| terminal.list(tables::not_shown(plan)));
        section.list(tables::undecided(plan));
    });
    document.section("Formula against simulation", |section| {
        section.small("Formulas give means quickly; simulation includes percentiles, bursts and routing. If they differ, the plan uses the simulation.");
        section.table(tables::disagreement_table(plan));
    });
    if let Some(bounds) = &plan.bounds {
        document.section("At least", |section| section.says(bounds_words(bounds)));
    }
    if let Some(slots) = &plan.slots {
        document.section("Slots", |section| section.says(slots_words(slots)));
    }
    document.titled("An isolated request", tables::floor_table(&plan.floor));
    document.section(cost_title(plan), |section| {
        section.table(tables::cost_table(plan));
        section.small("Paid by the hour, the whole price falls once on the requests, once on the input tokens and once on the output tokens: views of one sum, not parts of it.");
    });
    if let Some(scaling) = &plan.scaling {
        document.section(scaling_title(scaling), |section| {
            section.table(tables::scaling_table(scaling));
            section.says(words::sentence(&scaling.says));
        });
    }
    options(document, plan, charts);
    document.notes(plan.notes.iter().cloned());
}

fn curve_section(document: &mut Document, plan: &PlanFinding, charts: &Charts) {
    if !charts.contains_key("curve") {
        return;
    }
    document.section("Latency against load", |section| {
        section.drawn(html! {
            p {
                "Simulated with the replicas that carry the load, without spares; bands are 95 % intervals. The headroom is from the peak to the breaking point. Loads beyond that point miss the SLO."
            }
            (chart::place(charts, "curve", "Latency of requests, ms"))
            details { summary { "The figures" } (tables::curve_table(plan).markup()) }
        });
    });
}

fn options(document: &mut Document, plan: &PlanFinding, charts: &Charts) {
    document.section("Options, cheapest first", |section| {
        section.drawn(html! { @if !plan.options.is_empty() { div.pair {
            (chart::place(charts, "pareto-cost", "Cost against latency"))
            (chart::place(charts, "pareto-tokens", "Tokens per user against tokens per GPU"))
        } } });
        section.table(tables::options_table(plan));
        if !plan.options.is_empty() {
            section.says("* no other is both cheaper and faster; + no other has both more tokens per user and more per GPU.");
        }
    });
}

fn cards(found: &PlanFinding) -> Markup {
    let Some(chosen) = &found.chosen else { return html! {} };
    let value = |reading: &Reading, spell: fn(f64) -> String| reading.value().map_or("–".to_owned(), spell);
    html! {
        div.cards {
            (card("replicas", &chosen_figure(chosen), &fleet(chosen.replicas, chosen.spare)))
            @if let Some(gpus) = chosen.gpus {
                (card("GPUs", &gpus.to_string(), &chosen.slots.map_or(String::new(), |n| format!("{} concurrent requests", figure::number(n)))))
            }
            (card("breaks at", &value(&chosen.breaks_at, figure::per_second), chosen.breaks_by.as_deref().unwrap_or_default()))
            (card("headroom over the peak", &value(&chosen.headroom, figure::percent), &format!("busy {} at the peak", figure::percent(chosen.utilisation))))
            @if let Some(cost) = &found.cost {
                @if let Some(hour) = cost.per_hour {
                    (card(&format!("{} an hour", cost.bill.currency), &figure::number(hour), &format!("{} a month of 730 h", figure::number(hour * 730.0))))
                }
                (card(&format!("{} per request", cost.bill.currency), &value(&cost.at_mean.per_request, figure::number), "at the mean load"))
            }
            @if let Some(chance) = &found.probability {
                (card("chance to meet the SLO", &figure::chance(chance.held), &chance.weakest))
            }
        }
    }
}

fn chosen_figure(chosen: &Chosen) -> String {
    chosen.replicas.saturating_add(chosen.spare).to_string()
}

fn card(name: &str, value: &str, why: &str) -> Markup {
    html! { div.card { div.name { (name) } div.figure { (value) } p.small.soft { (why) } } }
}

/// Returns the first sentences of a plan.
fn headline(plan: &PlanFinding) -> Vec<String> {
    let demand = load(plan.load.rate_per_s, plan.rules.peak);
    let slo = slo_text(&plan.slo);
    let Some(chosen) = &plan.chosen else {
        let mut said = vec![format!(
            "No number of replicas of {} was found that carries {demand} within {slo}.",
            plan.engine
        )];
        said.extend(
            plan.simulated.as_ref().and_then(|s| s.cannot_tell.as_ref()).map(|why| words::sentence(why)),
        );
        return said;
    };
    let mut said = vec![match chosen.held {
        Held::Pass => format!("{} {} {demand}.", counted(plan, chosen), verb(chosen, "carry")),
        Held::Fail => format!("{} {} not enough for {demand}.", counted(plan, chosen), verb(chosen, "are")),
        Held::Inconclusive if plan.simulated.is_none() => {
            format!(
                "At least {} for {demand}, by utilisation and Little's law; nothing was simulated.",
                counted(plan, chosen)
            )
        }
        Held::Inconclusive => format!("{} may carry {demand}: inconclusive.", counted(plan, chosen)),
    }];
    said.push(holds(plan, chosen, &slo));
    said.push(breaks(plan, chosen));
    said.extend(plan.cost.as_ref().and_then(cost_line));
    said.extend(plan.rests_on.iter().map(|line| words::sentence(line)));
    said.extend(plan.probability.as_ref().map(probability));
    said.extend(plan.simulated.as_ref().and_then(|s| s.cannot_tell.as_ref()).map(|why| words::sentence(why)));
    said
}

/// Returns the verb for the number of replicas.
fn verb(chosen: &Chosen, many: &'static str) -> &'static str {
    match (chosen.replicas.saturating_add(chosen.spare), many) {
        (1, "carry") => "carries",
        (1, _) => "is",
        _ => many,
    }
}

fn counted(plan: &PlanFinding, chosen: &Chosen) -> String {
    let gpus = chosen
        .gpus
        .map_or(String::new(), |gpus| format!(" ({gpus} GPU{})", if gpus == 1 { "" } else { "s" }));
    format!("{}{gpus} of {}", fleet(chosen.replicas, chosen.spare), plan.engine)
}

/// Formats an SLO in one line: `ttft p99 < 500 ms, errors < 1 %`.
fn slo_text(slo: &BudgetSpec) -> String {
    let mut said: Vec<String> = slo
        .latency
        .iter()
        .map(|c| format!("{} p{} < {}", c.metric.name(), centile(c.percentile), words::time(c.limit_s)))
        .collect();
    said.extend(slo.error_rate.map(|share| format!("errors < {}", figure::percent(share))));
    said.join(", ")
}

fn holds(plan: &PlanFinding, chosen: &Chosen, slo: &str) -> String {
    let by = match chosen.decided_by.as_str() {
        "slo" => "the SLO decides the number",
        "utilisation" if one_fewer_holds(plan, chosen) => {
            "the ceiling on utilisation decides the number; one replica fewer would meet the SLO"
        }
        "utilisation" => "the ceiling on utilisation decides the number",
        "minimum" => "one replica is the minimum",
        other => other,
    };
    let verdict = match (plan.simulated.is_some(), chosen.held) {
        (false, _) => format!("SLO not simulated: {slo}"),
        (true, Held::Pass) => format!("SLO met in simulation: {slo}"),
        (true, Held::Inconclusive) => format!("Simulation inconclusive: {slo}"),
        (true, Held::Fail) => format!("SLO missed in simulation: {slo}"),
    };
    let busy = figure::percent(chosen.utilisation);
    let most = figure::percent(plan.rules.utilisation);
    format!("{verdict}; busy {busy} at the peak, {most} allowed: {by}.")
}

fn one_fewer_holds(plan: &PlanFinding, chosen: &Chosen) -> bool {
    let mut tried = plan.simulated.iter().flat_map(|answer| &answer.tried);
    tried.any(|tried| tried.replicas + 1 == chosen.replicas && tried.held == Held::Pass)
}

fn breaks(plan: &PlanFinding, chosen: &Chosen) -> String {
    let first = chosen.breaks_by.as_ref().map_or(String::new(), |what| format!(" ({what})"));
    match (&chosen.breaks_at, chosen.headroom.estimate()) {
        (Reading::Estimate(at), Some(room)) => format!(
            "Breaks at {}{first}: headroom {}{}.",
            rate(at),
            figure::percent(room.value),
            if plan.rules.peak == 1.0 { String::new() } else { " over the peak".to_owned() }
        ),
        (Reading::Estimate(at), None) => format!("Breaks at {}{first}.", rate(at)),
        (Reading::Refused { why, .. }, _) => format!("The breaking point is unknown: {why}."),
    }
}

/// Formats a rate, with its interval unless it has no width.
pub(crate) fn rate(e: &Estimate) -> String {
    match e.lower < e.upper {
        true => words::rate(e),
        false => figure::per_second(e.value),
    }
}

/// Formats the cost of a plan in one line: `59.8 USD an hour, 0.000166 per request, 2.1 per million output tokens`.
fn cost_line(found: &PlanCost) -> Option<String> {
    let currency = &found.bill.currency;
    let each = found.at_mean.per_request.value().map(|c| format!("{} per request", figure::number(c)));
    let tokens = found.at_mean.per_million_output.value().filter(|c| c.is_finite());
    let tokens = tokens.map(|c| format!("{} per million output tokens", figure::number(c)));
    let said: Vec<String> = [each, tokens].into_iter().flatten().collect();
    match found.per_hour {
        Some(hour) => Some(format!(
            "Costs {} {currency} an hour; at the mean load {}.",
            figure::number(hour),
            said.join(", ")
        )),
        None => (!said.is_empty()).then(|| format!("Costs {} ({currency}).", said.join(", "))),
    }
}

fn probability(found: &Probability) -> String {
    format!(
        "Probability that the plan meets the SLO: {}, from earlier prediction errors ({}); the weakest limit is {}.",
        figure::chance(found.held),
        found.band.source,
        found.weakest
    )
}

pub(crate) fn named(expected: &ExpectedLatency) -> String {
    let metric = expected.metric.name();
    expected.percentile.map_or_else(|| format!("{metric} mean"), |p| format!("{metric} p{}", centile(p)))
}

/// Formats a latency with its interval, or a dash if it is refused.
pub(crate) fn latency(reading: &Reading) -> String {
    match reading {
        Reading::Estimate(e) if e.lower < e.upper => words::latency(reading),
        Reading::Estimate(e) => words::ms(e.value),
        Reading::Refused { .. } => "–".to_owned(),
    }
}

/// Describes the lower bounds of every plan, in sentences.
fn bounds_words(bounds: &PlanBounds) -> String {
    if !bounds.limit_per_s.is_finite() {
        return "The engine has no stability limit: the times of its answers do not depend on the load."
            .to_owned();
    }
    format!(
        "One replica is stable up to {}, so the utilisation ceiling needs at least {}. An isolated request takes {} on average: by Little's law {} requests or more are in flight on each of {}.",
        figure::per_second(bounds.limit_per_s),
        bounds.replicas_for_utilisation,
        words::time(bounds.isolated_s),
        figure::number(bounds.in_flight),
        bounds.replicas
    )
}

/// Describes the binding limit, with its figures.
fn slots_words(slots: &Slots) -> String {
    let mut said = format!(
        "A replica runs at most {} concurrent requests, limited by {}: {}",
        figure::number(slots.slots),
        slots.binding.replace('_', " "),
        words::sentence(&slots.why)
    );
    if let (Some(weights), Some(kv)) = (slots.weights_gb, slots.kv_bytes_per_token) {
        said.push_str(&format!(
            " Weights take {} GB per GPU, a token {} kB of KV cache{}.",
            figure::number(weights),
            figure::number(kv / 1e3),
            slots.kv_tokens.map_or(String::new(), |n| format!(", {} tokens fit", figure::number(n)))
        ));
    }
    said
}

/// Returns the title `Cost in USD at 2.49 USD per GPU-hour, 28 GPUs (…)`, or an empty text.
fn cost_title(plan: &PlanFinding) -> String {
    plan.cost.as_ref().map_or(String::new(), |found| cost::title(&found.bill))
}

/// Returns the title of the scaling table: `Static against queue depth 4 (cold start 86.4 s)`.
fn scaling_title(found: &ScalingFinding) -> String {
    format!("Static against autoscaled: {} (cold start {})", found.policy, words::time(found.cold_start_s))
}

#[cfg(test)]
mod tests {
    use plimsoll_plan::finding::{LoadFinding, SimulatedAnswer, TriedReplicas, exact};
    use plimsoll_plan::spec::{EffortSpec, PlanRuleSpec};

    use super::*;

    fn tried(replicas: u32) -> TriedReplicas {
        let held = if replicas < 2 { Held::Fail } else { Held::Pass };
        TriedReplicas {
            replicas,
            seeds: 5,
            held,
            figures: Vec::new(),
            unanswered: exact(0.0),
            growth: exact(0.0),
            why: None,
        }
    }

    /// A plan of two replicas, with these numbers tried.
    fn plan(numbers: &[u32]) -> PlanFinding {
        let load = LoadFinding {
            source: "told".to_owned(),
            rate_per_s: 60.0,
            peak_per_s: 60.0,
            gap_cv: 1.0,
            busiest_minute: 1.0,
            prompt: [512.0; 3],
            output: [128.0; 3],
            requests: 1_000,
            window_s: 60.0,
        };
        let simulated = SimulatedAnswer {
            replicas: Some(2),
            cannot_tell: None,
            tried: numbers.iter().map(|replicas| tried(*replicas)).collect(),
            effort: EffortSpec::default(),
            requests: 1_000,
        };
        let chosen = Chosen {
            replicas: 2,
            spare: 0,
            gpus: None,
            slots: None,
            utilisation: 0.5,
            decided_by: "slo".to_owned(),
            held: Held::Pass,
            expected: Vec::new(),
            breaks_at: exact(100.0),
            breaks_by: None,
            headroom: exact(0.6),
            cold_start_s: None,
        };
        PlanFinding {
            engine: "demo".to_owned(),
            load,
            slo: BudgetSpec::default(),
            rules: PlanRuleSpec::default(),
            assumptions: vec!["the fleet is static".to_owned()],
            rests_on: Vec::new(),
            floor: Vec::new(),
            slots: None,
            bounds: None,
            simulated: Some(simulated),
            disagreements: Vec::new(),
            chosen: Some(chosen),
            cost: None,
            probability: None,
            scaling: None,
            options: Vec::new(),
            curve: Vec::new(),
            notes: Vec::new(),
        }
    }

    #[test]
    fn the_terminal_counts_the_numbers_that_it_leaves_out() {
        let text = render(&plan(&[1, 2, 5, 8, 16]));
        assert!(text.contains("and 2 more numbers, up to 16, on the page (--html)"), "{text}");
        assert!(!render(&plan(&[1, 2, 5])).contains("more number"));
        // And the assumptions precede the figures.
        let at = |said: &str| text.find(said).expect(said);
        assert!(at("Assumptions") < at("Replicas tried"), "{text}");
    }

    #[test]
    fn the_page_has_every_number_that_was_tried() {
        let page = page(&plan(&[1, 2, 5, 8, 16]), "");
        assert!(page.contains(">16<") && !page.contains("more numbers"), "{page}");
    }
}
