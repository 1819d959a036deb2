//! Renders a workload from a log: the used entries, the fidelity of the workload, and the effect of the difference.

use plimsoll_measure::faithful::{FidelityVerdict, Property, Reconstruction};
use plimsoll_plan::effect::EffectFinding;

use crate::document::Document;
use crate::figure::{self, counted};
use crate::table::TextTable;

pub fn text(made: &Reconstruction, effect: &Result<EffectFinding, String>) -> String {
    let mut page = Document::default();
    page.list(several_models(made));
    page.list(lists(made));
    page.section("Fidelity: the log compared with a run of the workload", |section| {
        properties(section, &made.properties);
    });
    page.section("What the difference does", |section| match effect {
        Ok(effect) => effects(section, effect),
        Err(why) => section.says(format!("Unknown: {why}.")),
    });
    page.text(&head(made))
}

fn head(made: &Reconstruction) -> String {
    let ended = &made.ended;
    let parts = [
        (ended.answered, "answered"),
        (ended.left, "left by their clients"),
        (ended.shed, "rejected (429, 503)"),
        (ended.failed, "failed"),
    ];
    let parts: Vec<String> = parts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, what)| format!("{} {what}", figure::count(*n)))
        .collect();
    format!(
        "{}: {} in {}, each at {}: {}",
        made.source,
        counted(made.requests, "request"),
        figure::duration_ns(made.span_s * 1e9),
        made.stamp,
        parts.join(", ")
    )
}

fn several_models(made: &Reconstruction) -> Option<String> {
    let names: Vec<String> =
        made.models.iter().map(|(name, n)| format!("{name} {}", figure::count(*n))).collect();
    (names.len() > 1).then(|| {
        let names = names.join(", ");
        format!("Several models, which the workload does not distinguish: {names} (select one with --model)")
    })
}

fn lists(made: &Reconstruction) -> Vec<String> {
    let mut taken = Vec::new();
    let ended = &made.ended;
    if made.refused > 0 {
        taken.push(format!(
            "{} refused as wrong (4xx) and no load: left out",
            counted(made.refused, "request")
        ));
    }
    if ended.retried > 0 {
        taken.push(format!("{} sent on more than once: one arrival each", counted(ended.retried, "request")));
    }
    if made.lengths_drawn > 0 {
        taken.push(format!(
            "lengths of {} are not in the log and were drawn",
            counted(made.lengths_drawn, "request")
        ));
    }
    if let Some(tick) = made.spread_s {
        taken.push(format!(
            "stamps are whole {}: spread within them",
            if tick == 1.0 { "seconds".to_owned() } else { figure::duration_ns(tick * 1e9) }
        ));
    }
    if made.sessions > 0 {
        taken.push(format!(
            "{} with dependent turns: a turn is due when its earlier turns and tools have ended; the comparison below assumes their recorded durations",
            counted(made.sessions, "session")
        ));
    }
    if made.begins_drawn {
        taken.push("the log has no session starts: they are drawn as a Poisson process".to_owned());
    }
    if made.waits_cut > 0 {
        taken.push(format!("{} cut to the configured maximum", counted(made.waits_cut, "wait")));
    }
    taken.push(format!("shared beginnings: {}", made.reuse));
    let limits = figure::percent(ended.shed as f64 / made.requests.max(1) as f64);
    if ended.shed * 100 > made.requests {
        taken.push(format!(
            "{limits} of the requests were rejected: the log shows the load under that limit, and the demand may be higher"
        ));
    }
    if made.kept_share < 0.999 {
        taken.push(format!(
            "the log kept {} of the requests, so the workload has that share of the rate; --speed {} restores the mean rate, but not the bursts",
            figure::percent(made.kept_share),
            figure::exact(1.0 / made.kept_share)
        ));
    }
    taken.extend(made.left_out.iter().map(|line| format!("left out: {line}")));
    taken.extend(made.blind.iter().cloned());
    taken
}

fn properties(page: &mut Document, all: &[Property]) {
    let mut table = TextTable::new(&["<property", "log", "workload", "apart", "<verdict"]);
    let number = |value: Option<f64>| value.map_or_else(|| "–".to_owned(), figure::number);
    for one in all {
        let verdict = match one.verdict {
            FidelityVerdict::Same => "same",
            FidelityVerdict::Differs => "differs",
            FidelityVerdict::Unknown => "unknown",
        };
        let apart = match (one.apart, one.measure) {
            (Some(apart), "relative" | "points") => figure::percent(apart),
            (apart, _) => apart.map_or_else(String::new, figure::number),
        };
        table.row([one.name.clone(), number(one.source), number(one.workload), apart, verdict.to_owned()]);
    }
    page.table(table);
    let unknown = all.iter().filter(|one| one.verdict == FidelityVerdict::Unknown);
    page.list(unknown.map(|one| format!("{}: {}", one.name, one.why.as_deref().unwrap_or_default())));
}

fn effects(page: &mut Document, effect: &EffectFinding) {
    page.says(format!(
        "{} of each on {}, which serves {} of this mix with its queue never empty",
        counted(effect.requests, "request"),
        effect.engine,
        figure::per_second(effect.limit_per_s)
    ));
    let mut table = TextTable::new(&["<at", "1/s", "ttft p99 log ms", "workload ms", "<"]);
    for at in &effect.at {
        let same = if at.agrees { "within 5 %" } else { "apart" };
        table.row([
            format!("{} of that", figure::percent(at.share)),
            figure::number(at.rate_per_s),
            figure::number(at.source_p99_s * 1e3),
            figure::number(at.workload_p99_s * 1e3),
            same.to_owned(),
        ]);
    }
    page.table(table);
    page.list(effect.breaks.as_ref().map(|property| format!("What breaks it: {property}.")));
    let otherwise = effect.otherwise.iter();
    page.list(
        otherwise.map(|other| format!("If {}: p99 of ttft × {}.", other.name, figure::number(other.ratio))),
    );
}
