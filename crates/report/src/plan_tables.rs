//! Renders the tables of a capacity plan, for a terminal and for its page.

use plimsoll_judge::cost::UnitCosts;
use plimsoll_measure::findings::{Estimate, Held, Reading};
use plimsoll_plan::finding::{
    Disagreement, ExpectedLatency, FloorRow, PlanFinding, PlanOption, ScalingFinding, TriedReplicas,
};

use crate::figure::centile;
use crate::plan::{latency, named};
use crate::plan_envelope::signed;
use crate::table::TextTable;
use crate::{figure, words};

/// Limit of options at a terminal; the plan file and the page have all.
const OPTIONS: usize = 12;
/// Limit of tried replica numbers above the chosen one, at a terminal.
const NEAR: u32 = 3;

pub(crate) fn curve_table(plan: &PlanFinding) -> TextTable {
    let names: Vec<String> =
        plan.curve.first().map_or_else(Vec::new, |point| point.figures.iter().map(named).collect());
    let columns: Vec<&str> = std::iter::once("requests/s").chain(names.iter().map(String::as_str)).collect();
    let mut table = TextTable::new(&columns);
    for point in &plan.curve {
        let cells = point.figures.iter().map(|figure| latency(&figure.value));
        table.row(std::iter::once(figure::number(point.rate_per_s)).chain(cells));
    }
    table
}

/// Returns the word for the verdict of an SLO.
fn slo_word(held: Held) -> &'static str {
    match held {
        Held::Pass => "met",
        Held::Inconclusive => "inconclusive",
        Held::Fail => "missed",
    }
}

fn ceiling(expected: &ExpectedLatency) -> String {
    expected.limit_s.map(words::ms).unwrap_or_default()
}

/// Returns the expected figures of the plan.
pub(crate) fn expected_table(plan: &PlanFinding) -> TextTable {
    let mut table = TextTable::new(&["<ms", "ceiling", "<simulated [95 %]", "<"]);
    for row in plan.chosen.iter().flat_map(|chosen| &chosen.expected) {
        let verdict = row.held.map(|held| slo_word(held).to_owned()).unwrap_or_default();
        table.row([named(row), ceiling(row), latency(&row.value), verdict]);
    }
    table
}

/// Returns the numbers of replicas that were simulated.
pub(crate) fn tried_table(plan: &PlanFinding) -> TextTable {
    let Some(simulated) = &plan.simulated else { return TextTable::new(&[]) };
    let first = simulated.tried.first().map_or(&[][..], |tried| &tried.figures);
    let columns: Vec<String> = ["replicas".to_owned(), "schedules".to_owned()]
        .into_iter()
        .chain(first.iter().map(|row| format!("<{}, ms", named(row))))
        .chain(["<SLO".to_owned()])
        .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = TextTable::new(&columns);
    for tried in &simulated.tried {
        let mut row = vec![tried.replicas.to_string(), tried.seeds.to_string()];
        row.extend(tried.figures.iter().map(|figure| latency(&figure.value)));
        row.push(slo_word(tried.held).to_owned());
        if is_near(plan, tried) { table.row(row) } else { table.page_row(row) }
    }
    table
}

/// Returns whether a number is near enough to the answer for a terminal. The page has all.
fn is_near(plan: &PlanFinding, tried: &TriedReplicas) -> bool {
    plan.chosen.as_ref().is_none_or(|chosen| tried.replicas <= chosen.replicas.saturating_add(NEAR))
}

/// Counts the numbers that the terminal omits.
pub(crate) fn not_shown(plan: &PlanFinding) -> Option<String> {
    let tried = plan.simulated.iter().flat_map(|simulated| &simulated.tried);
    let far: Vec<u32> = tried.filter(|tried| !is_near(plan, tried)).map(|tried| tried.replicas).collect();
    let most = far.iter().max()?;
    let numbers = figure::counted(far.len() as u64, "more number");
    Some(format!("and {numbers}, up to {most}, on the page (--html)"))
}

/// Returns the reasons why simulated numbers of replicas are inconclusive, a sentence each.
pub(crate) fn undecided(plan: &PlanFinding) -> impl Iterator<Item = String> {
    let tried = plan.simulated.iter().flat_map(|simulated| &simulated.tried);
    tried.filter_map(|tried| Some(format!("{}: {}.", tried.replicas, tried.why.as_ref()?)))
}

/// Returns formula against simulation, figure by figure.
pub(crate) fn disagreement_table(plan: &PlanFinding) -> TextTable {
    let mut table = TextTable::new(&["<", "formula", "<simulated [95 %]", "formula is off by"]);
    for row in &plan.disagreements {
        let Disagreement { figure: name, formula, simulated, relative } = row;
        table.row([
            name.clone(),
            unit(name, *formula),
            estimate(simulated, |value| unit(name, value)),
            signed(*relative),
        ]);
    }
    table
}

/// Formats a figure in the unit of its name: replicas are counted, limits are rates, the rest are times.
fn unit(name: &str, value: f64) -> String {
    if name.contains("replicas") {
        figure::number(value).trim_end_matches(".00").to_owned()
    } else if name.contains("limit") || name.contains("break") {
        figure::per_second(value)
    } else {
        words::time(value)
    }
}

/// Returns each ceiling against isolated requests.
pub(crate) fn floor_table(rows: &[FloorRow]) -> TextTable {
    let mut table = TextTable::new(&["<ms", "ceiling", "isolated", "left for load"]);
    for row in rows {
        table.row([
            format!("{} p{}", row.metric.name(), centile(row.percentile)),
            words::ms(row.limit_s),
            words::ms(row.alone_s),
            figure::percent(1.0 - row.alone_s / row.limit_s),
        ]);
    }
    table
}

/// Returns the costs at the mean load and at the breaking load.
pub(crate) fn cost_table(plan: &PlanFinding) -> TextTable {
    let mut table =
        TextTable::new(&["<", "an hour", "<request", "<good request", "<M input tokens", "<M output tokens"]);
    let Some(found) = &plan.cost else { return table };
    let value = |reading: &Reading| reading.value().map_or("–".to_owned(), figure::number);
    let mut row = |name: &str, costs: &UnitCosts| {
        table.row([
            name.to_owned(),
            found.per_hour.map(figure::number).unwrap_or_default(),
            value(&costs.per_request),
            value(&costs.per_good_request),
            value(&costs.per_million_input),
            value(&costs.per_million_output),
        ]);
    };
    row("at the mean load", &found.at_mean);
    if let Some(at_break) = &found.at_break {
        row("where it breaks: the least it can be", at_break);
    }
    table
}

/// Returns the fleets on equal arrivals.
pub(crate) fn scaling_table(found: &ScalingFinding) -> TextTable {
    let first = found.rows.first().map_or(&[][..], |row| &row.figures);
    let columns: Vec<String> =
        ["<fleet", "<mean replicas", "most", "<cost an hour", "<requests missed", "while scaling up"]
            .into_iter()
            .map(str::to_owned)
            .chain(first.iter().map(|row| format!("<{}, ms", named(row))))
            .chain(["<SLO".to_owned()])
            .collect();
    let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
    let mut table = TextTable::new(&columns);
    for row in &found.rows {
        let mut cells = vec![
            row.fleet.clone(),
            estimate(&row.mean_replicas, figure::number),
            row.most_replicas.to_string(),
            row.per_hour.as_ref().map(|cost| estimate(cost, figure::number)).unwrap_or_default(),
            estimate(&row.missed, figure::percent),
            row.missed_scaling.map(figure::percent).unwrap_or_default(),
        ];
        cells.extend(row.figures.iter().map(|figure| latency(&figure.value)));
        cells.push(slo_word(row.held).to_owned());
        table.row(cells);
    }
    table
}

fn estimate(e: &Estimate, spell: impl Fn(f64) -> String) -> String {
    match e.lower < e.upper {
        true => figure::estimated(e, spell),
        false => spell(e.value),
    }
}

/// Returns the options next to the plan; refused ones are last, with their reason.
pub(crate) fn options_table(plan: &PlanFinding) -> TextTable {
    let first = plan.slo.latency.first();
    let ceiling = first
        .map_or("latency, ms".to_owned(), |c| format!("{} p{}, ms", c.metric.name(), centile(c.percentile)));
    let mut table = TextTable::new(&[
        "<",
        "<configuration",
        "replicas",
        "GPUs",
        "cost an hour",
        &ceiling,
        "tokens/s per user",
        "per GPU",
        "<how",
    ]);
    let (out, held): (Vec<_>, Vec<_>) = plan.options.iter().partition(|option| option.refused.is_some());
    for (place, option) in held.into_iter().chain(out).enumerate() {
        let number = |value: Option<f64>| value.map(figure::number).unwrap_or_default();
        let count = |value: Option<u32>| value.map(|n| n.to_string()).unwrap_or_default();
        let cells = [
            mark(option),
            option.name.clone(),
            count(option.replicas),
            count(option.gpus),
            number(option.per_hour),
            option.latency_s.map(words::ms).unwrap_or_default(),
            number(option.tokens_per_user),
            number(option.tokens_per_gpu),
            option.refused.as_ref().map_or(option.how.clone(), |why| format!("out: {why}")),
        ];
        if place < OPTIONS { table.row(cells) } else { table.page_row(cells) }
    }
    table
}

fn mark(option: &PlanOption) -> String {
    let on = |is: bool, mark: &'static str| if is { mark } else { "" };
    format!("{}{}", on(option.on_cost_front, "*"), on(option.on_token_front, "+"))
}
