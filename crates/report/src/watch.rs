//! Renders verdicts that are valid at any time: a line after every pair, and the whole result at the end.

use plimsoll_judge::sequential::{InterleaveState, PairFinding, SequentialVerdict};

use plimsoll_measure::findings::Findings;

use crate::figure;
use crate::figure::centile;
use crate::table::TextTable;
use crate::words;

/// Returns the state after a pair, on one line.
pub fn line(looked: &InterleaveState, of: u32) -> String {
    let most = looked
        .metrics
        .iter()
        .flat_map(|at| at.percentiles.iter().map(move |p| (&at.metric, p)))
        .max_by(|a, b| a.1.evidence_worse.total_cmp(&b.1.evidence_worse));
    let most = most.map_or(String::new(), |(metric, p)| {
        format!(
            "most evidence of harm {} of {} ({metric} p{}) · ",
            figure::number(p.evidence_worse),
            figure::number(p.needed),
            centile(p.guard.percentile)
        )
    });
    let verdict = match &looked.verdict {
        SequentialVerdict::GoOn { .. } => "go on".into(),
        settled => said(settled),
    };
    format!("pair {} of {of} · {most}{verdict}", looked.pairs)
}

pub fn text(looked: &InterleaveState) -> String {
    let mut table =
        TextTable::new(&["<B against A", "allowed", "evidence worse", "evidence not worse", "<so far"]);
    for at in &looked.metrics {
        for p in &at.percentiles {
            table.row([
                format!("{} p{}", at.metric, centile(p.guard.percentile)),
                format!("+{}", figure::percent(p.guard.margin)),
                figure::number(p.evidence_worse),
                figure::number(p.evidence_not_worse),
                state(p).into(),
            ]);
        }
    }
    let needed = looked.metrics.iter().flat_map(|at| &at.percentiles).map(|p| p.needed).fold(0.0, f64::max);
    let mut text = format!("{}\n\nAt any time  {}\n", table.render(0).trim_end(), said(&looked.verdict));
    text.push_str(&format!(
        "             {} pairs; {} of evidence prove harm (false alarms over all interim analyses ≤ {})\n",
        looked.pairs,
        figure::number(needed),
        figure::percent(looked.alpha)
    ));
    if looked.pairs < looked.fewest_pairs {
        text.push_str(&format!(
            "             fewer than {} pairs can prove nothing: more --alternations, shorter --for\n",
            looked.fewest_pairs
        ));
    }
    text
}

/// Describes one arm: its name, its endpoint, its trust with the reason, and the folder of its run.
pub fn arm(name: &str, url: &str, findings: &Findings, folder: &str) -> String {
    let validity = &findings.validity;
    let why = validity.reasons.first().map_or(String::new(), |reason| format!(" ({})", reason.figure));
    format!("{name}  {url}  {}{why}  {folder}", words::trust(validity.verdict))
}

fn state(p: &PairFinding) -> &'static str {
    match (p.worse, p.not_worse) {
        (true, _) => "worse",
        (false, true) => "not worse",
        (false, false) => "open",
    }
}

fn said(verdict: &SequentialVerdict) -> String {
    match verdict {
        SequentialVerdict::Harm { why } => format!("HARM: {why}"),
        SequentialVerdict::Promote => "not worse than allowed".into(),
        SequentialVerdict::GoOn { why } => format!("go on: {why}"),
    }
}
