//! Renders costs as sentences and rows, for the terminal and the page.

use plimsoll_judge::cost::{Bill, CostFinding, Per, UnitCosts};
use plimsoll_measure::findings::{Findings, Reading};

use crate::document::Document;
use crate::table::TextTable;
use crate::{figure, words};

pub(crate) fn fill(document: &mut Document, found: &CostFinding, findings: &Findings) {
    let columns = ["<", "<request [95 %]", "<good request [95 %]", "<M input tokens", "<M output tokens"];
    let mut table = TextTable::new(&columns);
    rows(found, findings).into_iter().for_each(|row| table.row(row));
    document.section(title(&found.bill), |section| {
        section.table(table);
        section.list(sessions(found).into_iter().chain(energy(findings)).chain(missing(found)));
    });
}

/// Returns the title of a cost table: `cost at 2.49 USD per GPU-hour, 2 GPUs (2026-11-01, provider's list)`.
pub(crate) fn title(bill: &Bill) -> String {
    let (given, currency) = (&bill.given, &bill.currency);
    let many = |count: Option<u32>, what: &str| match count {
        Some(1) => format!(", 1 {what}"),
        Some(n) => format!(", {n} {what}s"),
        None => String::new(),
    };
    let price = match given.price.per {
        Per::Hour(hour) => format!("{hour} {currency} an hour"),
        Per::GpuHour(hour) => format!("{hour} {currency} per GPU-hour{}", many(given.gpus, "GPU")),
        Per::ReplicaHour(hour) => {
            format!("{hour} {currency} per replica-hour{}", many(given.replicas, "replica"))
        }
        Per::Mtok { input, output } => {
            format!("{input} {currency} per million input and {output} per million output tokens")
        }
    };
    let origin: Vec<&str> = [&given.date, &given.source].into_iter().flatten().map(String::as_str).collect();
    let origin = if origin.is_empty() { "undated price".to_owned() } else { origin.join(", ") };
    format!("Cost in {currency} at {price} ({origin})")
}

/// Returns one row per throughput with a cost: the budget limits first.
fn rows(cost: &CostFinding, findings: &Findings) -> Vec<[String; 5]> {
    let lines = cost.at_budget.iter().filter(|line| line.rate.is_some()).map(|line| {
        let at = line.rate.map_or(String::new(), |rate| figure::per_second(rate.value));
        row(format!("budget limit, {}, {at}", line.traffic), &line.costs)
    });
    let mut rows: Vec<[String; 5]> = lines.collect();
    // The levels of a sweep are search steps, not planned loads.
    if rows.is_empty() {
        for level in &cost.levels {
            let summary = findings.levels.iter().find(|l| l.summary.level == level.level);
            let load = summary.map_or(String::new(), |l| words::level(&l.summary));
            rows.push(row(format!("level {}, {load}", level.level), &level.costs));
        }
    }
    rows
}

/// Returns the cost of a session at each level with sessions.
fn sessions(cost: &CostFinding) -> Vec<String> {
    let of_level = |level: &plimsoll_judge::cost::LevelCost| {
        let reading = level.costs.per_session.as_ref()?;
        Some(format!("A session: {} at the load of level {}.", cell(reading), level.level))
    };
    cost.levels.iter().filter_map(of_level).collect()
}

/// Returns the energy per token at each level with a GPU exporter, because a price per hour contains no energy.
fn energy(findings: &Findings) -> Vec<String> {
    let levels = findings.server.iter().flat_map(|server| &server.levels);
    let of_level = |level: &plimsoll_measure::server_side::LevelReport| {
        let joules = crate::server::joules(level.gpu.as_ref()?);
        (!joules.is_empty()).then(|| format!("Energy at level {}: {}.", level.level, joules.join(", ")))
    };
    levels.filter_map(of_level).collect()
}

/// Returns the reason for a missing cost at a budget limit.
fn missing(cost: &CostFinding) -> Option<String> {
    let why = |reading: &Reading| match reading {
        Reading::Refused { why, .. } => Some(why.clone()),
        Reading::Estimate(_) => None,
    };
    let line = cost.at_budget.iter().find(|line| line.rate.is_none());
    let of_line = line.and_then(|line| why(&line.costs.per_request));
    match (of_line, cost.at_budget.is_empty()) {
        (Some(why), _) => Some(format!("Not at the budget limit: {why}.")),
        (None, true) => Some(
            "These are costs at the measured load. For planning, use the cost at the budget limit of a sweep."
                .into(),
        ),
        (None, false) => None,
    }
}

fn row(name: String, costs: &UnitCosts) -> [String; 5] {
    [
        name,
        cell(&costs.per_request),
        cell(&costs.per_good_request),
        value(&costs.per_million_input),
        value(&costs.per_million_output),
    ]
}

fn cell(reading: &Reading) -> String {
    match reading {
        Reading::Estimate(e) => figure::estimated(e, figure::number),
        Reading::Refused { .. } => "–".into(),
    }
}

fn value(reading: &Reading) -> String {
    reading.value().map_or("–".into(), figure::number)
}
