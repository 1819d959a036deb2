//! Renders a latency profile: a bar per band of requests, the stages of each latency, the cause of its tail, the effect of faster stages.

use maud::{Markup, html};
use plimsoll_measure::findings::{Estimate, Held, Reading};
use plimsoll_profile::{
    CeilingAt, Ceilings, ChangeFinding, FloorFinding, KnownBy, PathFinding, ProfileFinding, Stage,
    StageFinding, TailFinding, TailReason,
};

use crate::document::{Document, Phrase};
use crate::figure::{self, centile, counted};
use crate::html::bars::{BARS_CSS, Piece, bar, swatch};
use crate::table::TextTable;
use crate::words;

/// Limit of shown names without a stage.
const UNMAPPED: usize = 8;
/// Share of a gap below which no sentence names a stage.
const NAMED: f64 = 0.05;

pub fn render(name: &str, finding: &ProfileFinding) -> String {
    document(finding).text(&format!("Plimsoll profile: {name}"))
}

pub fn page(name: &str, finding: &ProfileFinding) -> String {
    let heading = format!("Where the time of {name} went");
    document(finding).page(&format!("Plimsoll profile: {name}"), &heading.into(), BARS_CSS)
}

fn document(finding: &ProfileFinding) -> Document {
    let mut document = Document::default();
    document.says(Phrase::from(read(finding)).soft());
    document.verdict(&says(finding));
    for path in &finding.paths {
        of_path(&mut document, path);
    }
    unmapped(&mut document, finding);
    document.titled("Slices of the budget", slices(finding));
    for change in &finding.changes {
        of_change(&mut document, change);
    }
    document.section("The model without a server", |section| section.list(floors(finding)));
    document.notes(finding.notes.iter().cloned());
    document
}

/// Describes the input, in a sentence.
fn read(finding: &ProfileFinding) -> String {
    let count = &finding.count;
    let represented = if finding.stand_for > 1.001 * count.profiled as f64 {
        format!(
            ", which represent {} (sampled traces, weighted)",
            figure::count(finding.stand_for.round() as u64)
        )
    } else {
        String::new()
    };
    let out_of = match count.requests == count.profiled {
        true => String::new(),
        false => format!(" of {}", figure::count(count.requests)),
    };
    format!(
        "{} in {}: {}{out_of} profiled{represented}.",
        counted(count.spans, "span"),
        counted(count.traces, "trace"),
        counted(count.profiled, "request")
    )
}

/// Returns the results of the profile, in sentences.
fn says(finding: &ProfileFinding) -> Vec<String> {
    let mut says = Vec::new();
    for path in &finding.paths {
        match &path.tail {
            TailReason::Attributed(tail) => says.push(of_tail(path, tail)),
            TailReason::Refused { why } => {
                says.push(format!("The tail of {} is not attributed: {why}.", path.of.name()))
            }
        }
    }
    let unattributed = finding.paths.iter().flat_map(|path| {
        let found = path.stages.iter().find(|found| found.stage.name() == "unattributed");
        found.map(|found| (path.of.name(), found.of_mean))
    });
    for (name, share) in unattributed.filter(|(_, share)| *share > NAMED) {
        says.push(format!("{} of {name} has no stage; see below.", figure::percent(share)));
    }
    says
}

fn of_tail(path: &PathFinding, tail: &TailFinding) -> String {
    let parts = tail.parts.iter().filter(|part| part.share.abs() > NAMED).take(4);
    let sure = |gap: &Estimate| gap.lower > 0.0 || gap.upper < 0.0;
    let parts: Vec<String> = parts
        .map(|part| {
            let doubt = if sure(&part.gap) { "" } else { " (its interval contains 0)" };
            format!("{} {}{doubt}", part.stage, figure::percent(part.share))
        })
        .collect();
    let slowest = figure::percent(tail.slowest).replace(".0 %", " %");
    if tail.gap.value < 1e-6 {
        return format!(
            "The slowest {slowest} of {} ({}) take no longer than the middle ({}).",
            path.of.name(),
            counted(tail.tail_requests, "request"),
            words::time(tail.middle_mean_s)
        );
    }
    format!(
        "The slowest {slowest} of {} ({}) take {} more than the middle ({} against {}); of that {}.",
        path.of.name(),
        counted(tail.tail_requests, "request"),
        words::time(tail.gap.value),
        words::time(tail.tail_mean_s),
        words::time(tail.middle_mean_s),
        if parts.is_empty() { "no stage dominates".to_owned() } else { parts.join(", ") }
    )
}

fn of_path(document: &mut Document, path: &PathFinding) {
    let heading =
        format!("{}: critical path of {}, ms [95 %]", path.of.name(), counted(path.requests, "request"));
    document.section(heading, |section| {
        section.drawn(bars(path));
        let columns = ["<stage", "mean", "share", "of the tail", "p50", "p95", "p99", "<p99 [95 %]", "<"];
        let mut table = TextTable::new(&columns);
        for found in &path.stages {
            table.row(std::iter::once(named(found.stage)).chain(stage(found).map(Phrase::from)));
        }
        let times = &path.times;
        table.row([
            path.of.name().to_owned(),
            words::ms(times.mean_s),
            String::new(),
            String::new(),
            value(&times.p50),
            value(&times.p95),
            value(&times.p99),
            interval(&times.p99),
        ]);
        section.table(table);
        if let Some(why) = refusal(&times.p50).or_else(|| refusal(&times.p99)) {
            section.says(format!("A dash is not shown: {why}."));
        }
        if let TailReason::Attributed(tail) = &path.tail {
            section.titled(
                format!("Slowest {} against the middle fifth: added time", slowest(tail.slowest)),
                gap(tail),
            );
        }
        if let Some(found) = path.ceilings.as_ref().filter(|found| !found.rows.is_empty()) {
            ceilings(section, path, found);
        }
    });
}

/// Formats the share of the slowest: `1 %`.
fn slowest(share: f64) -> String {
    figure::percent(share).replace(".0 %", " %")
}

/// Returns the name of a stage, on a page with its colour.
fn named(stage: Stage) -> Phrase {
    Phrase::drawn(stage.to_string(), html! { (swatch(colour(stage))) code { (stage) } })
}

/// Returns one bar for the middle and one for the slowest, on one scale, so that the difference is visible.
fn bars(path: &PathFinding) -> Markup {
    let mean: Vec<(Stage, f64)> = path.stages.iter().map(|found| (found.stage, found.times.mean_s)).collect();
    let TailReason::Attributed(tail) = &path.tail else {
        return html! { div.bands { (stacked("mean", &mean, path.times.mean_s, path.times.mean_s)) } };
    };
    let slow = |found: &StageFinding| {
        found.tail_share.as_ref().and_then(Reading::value).unwrap_or(0.0) * tail.tail_mean_s
    };
    let more =
        |stage: Stage| tail.parts.iter().find(|part| part.stage == stage).map_or(0.0, |part| part.gap.value);
    let slowest_parts: Vec<(Stage, f64)> =
        path.stages.iter().map(|found| (found.stage, slow(found))).collect();
    let middle: Vec<(Stage, f64)> =
        slowest_parts.iter().map(|(stage, slow)| (*stage, (slow - more(*stage)).max(0.0))).collect();
    let widest = tail.tail_mean_s.max(path.times.mean_s);
    html! {
        div.bands {
            (stacked("middle fifth", &middle, tail.middle_mean_s, widest))
            (stacked("all, mean", &mean, path.times.mean_s, widest))
            (stacked(&format!("slowest {}", slowest(tail.slowest)), &slowest_parts, tail.tail_mean_s, widest))
        }
        p.legend { @for (stage, _) in &mean { span { (swatch(colour(*stage))) (stage) } } }
    }
}

fn stacked(name: &str, parts: &[(Stage, f64)], total_s: f64, widest_s: f64) -> Markup {
    let piece = |(stage, s): &(Stage, f64)| Piece {
        says: format!("{stage} {}", words::time(*s)),
        colour: colour(*stage),
        share: if widest_s > 0.0 { s / widest_s } else { 0.0 },
        inferred: false,
    };
    bar(name, parts.iter().map(piece), &words::time(total_s))
}

/// Returns the colour of a stage. Stages of one kind share a hue: before the model, the queue, the model, after it, unassigned.
fn colour(stage: Stage) -> &'static str {
    match stage {
        Stage::ClientWait => "#7a8ca3",
        Stage::Gateway => "#8f7fc4",
        Stage::Auth => "#b39ddb",
        Stage::RateLimit => "#d1a3d8",
        Stage::Embed => "#3f9c8f",
        Stage::Retrieve => "#57b8a5",
        Stage::Rerank => "#86cdbd",
        Stage::PromptAssembly => "#b4dfd2",
        Stage::Tokenise => "#c9b458",
        Stage::Preprocess => "#b8a04a",
        Stage::Queue => "#d9534f",
        Stage::BatchWait => "#e88a7d",
        Stage::Prefill => "#2f6fb5",
        Stage::Decode => "#6ba4df",
        Stage::Compute => "#4a86c8",
        Stage::ModelCall => "#5b7db1",
        Stage::Detokenise => "#e0cf86",
        Stage::Postprocess => "#e39b4d",
        Stage::Serialise => "#f0bd84",
        Stage::Network => "#9aa86b",
        Stage::Unattributed => "#a8a8a8",
    }
}

/// Formats a share; a negligible one is zero.
fn share(share: f64) -> String {
    if share.abs() < 5e-5 { "0 %".to_owned() } else { figure::percent(share).replace('-', "−") }
}

/// Returns the table cells of a stage after its name.
fn stage(found: &StageFinding) -> [String; 8] {
    let how = match found.known {
        KnownBy::Traced => String::new(),
        known => known.name().to_owned(),
    };
    [
        words::ms(found.times.mean_s),
        share(found.of_mean),
        found.tail_share.as_ref().and_then(Reading::value).map(share).unwrap_or_default(),
        value(&found.times.p50),
        value(&found.times.p95),
        value(&found.times.p99),
        interval(&found.times.p99),
        how,
    ]
}

fn value(reading: &Reading) -> String {
    words::latency_cell(reading).0
}

fn interval(reading: &Reading) -> String {
    words::latency_cell(reading).1.unwrap_or_default()
}

fn refusal(reading: &Reading) -> Option<&str> {
    match reading {
        Reading::Refused { why, .. } => Some(why),
        Reading::Estimate(_) => None,
    }
}

fn gap(tail: &TailFinding) -> TextTable {
    let mut table = TextTable::new(&["<stage", "ms more", "<[95 %]", "of the gap"]);
    let row = |name: Phrase, gap: &Estimate, of_gap: String| {
        [name, words::ms(gap.value).into(), bounds(gap).into(), of_gap.into()]
    };
    for part in tail.parts.iter().filter(|part| part.gap.value != 0.0) {
        table.row(row(named(part.stage), &part.gap, share(part.share)));
    }
    table.row(row("all".into(), &tail.gap, "100 %".to_owned()));
    table
}

/// Formats the interval of a duration in ms.
fn bounds(e: &Estimate) -> String {
    figure::interval(&words::ms(e.lower), &words::ms(e.upper))
}

/// The percentile of a ceiling that is shown.
type CeilingColumn = fn(&CeilingAt) -> Option<f64>;

/// Returns the highest of p99, p95 and p50 that every cell has.
fn ceiling_column(found: &Ceilings) -> (&'static str, CeilingColumn) {
    let columns: [(&'static str, CeilingColumn); 3] =
        [("p99", |at| at.p99.value()), ("p95", |at| at.p95.value()), ("p50", |at| at.p50.value())];
    let whole = |of: CeilingColumn| found.rows.iter().all(|row| row.at.iter().all(|at| of(at).is_some()));
    columns.into_iter().find(|(_, of)| whole(*of)).unwrap_or(columns[2])
}

fn ceilings(document: &mut Document, path: &PathFinding, found: &Ceilings) {
    let (name, of) = ceiling_column(found);
    let heading =
        format!("A faster stage: mean × faster, and {} {name} then, ms ({})", path.of.name(), found.label);
    let factors = found.rows[0].at.iter().map(|at| factor(at.factor));
    let header: Vec<String> = std::iter::once("<stage".to_owned())
        .chain(factors)
        .chain(["<p99 at 2 × with the queue".to_owned()])
        .collect();
    let columns: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = TextTable::new(&columns);
    for row in &found.rows {
        let cells = row.at.iter().map(|at| {
            let (speed_up, then) = (faster(at), of(at).map(words::ms));
            let text = then.as_ref().map_or(speed_up.clone(), |then| format!("{speed_up}: {then}"));
            Phrase::drawn(text, html! { (speed_up) @if let Some(then) = then { span.ci { (then) } } })
        });
        let twice = row.at.iter().find(|at| at.factor == Some(2.0)).and_then(|at| at.p99_with_queue_s);
        let queued = twice.map(words::ms).unwrap_or_default();
        table.row(std::iter::once(named(row.stage)).chain(cells).chain([queued.into()]));
    }
    document.section(heading, |section| {
        section.table(table);
        if let Some(caveat) = &found.queueing {
            section.says(Phrase::from(words::sentence(caveat)).class("suspect"));
        }
    });
}

/// Formats a factor: `2 ×`, or `gone` if the stage takes no time.
fn factor(factor: Option<f64>) -> String {
    factor.map_or_else(|| "gone".to_owned(), |factor| format!("{factor} ×"))
}

/// Formats a speed-up as a factor: `1.54 ×`.
fn faster(at: &CeilingAt) -> String {
    at.speed_up.map_or_else(|| "∞".to_owned(), |times| format!("{} ×", figure::number(times)))
}

fn unmapped(document: &mut Document, finding: &ProfileFinding) {
    document.section("Time without a stage, on the path to the last byte", |section| {
        let mut table = TextTable::new(&["<span", "<service", "mean, ms", "of e2e", "spans", "<"]);
        for (place, found) in finding.unmapped.iter().enumerate() {
            let cells = [
                found.name.clone(),
                found.service.clone().unwrap_or_default(),
                words::ms(found.mean_s),
                share(found.share),
                figure::count(found.spans),
                found.why.clone().unwrap_or_default(),
            ];
            if place < UNMAPPED { table.row(cells) } else { table.page_row(cells) }
        }
        section.table(table);
        let more = finding.unmapped.len().saturating_sub(UNMAPPED);
        section.terminal(|section| {
            if more > 0 {
                section.says(format!("and {more} more names"));
            }
        });
        if finding.unmapped.iter().any(|found| found.why.is_none()) {
            section.says("Name them with --rules FILE (plimsoll schema stages).");
        }
    });
}

fn slices(finding: &ProfileFinding) -> TextTable {
    let columns =
        ["<slice", "ms", "at", "measured", "mean uses", "<requests over [95 %]", "time over", "<verdict"];
    let mut table = TextTable::new(&columns);
    for slice in &finding.slices {
        let over = slice.requests_over.map(|e| figure::estimated(&e, figure::percent));
        let verdict = match (slice.stage, slice.verdict) {
            (None, _) => "no span of these traces is this stage".to_owned(),
            (_, Held::Inconclusive) => "too few requests".to_owned(),
            (_, held) => words::held(held).to_owned(),
        };
        table.row([
            slice.name.clone(),
            words::ms(slice.slice_s),
            format!("p{}", centile(slice.p)),
            value(&slice.measured),
            slice.stage.map(|_| figure::percent(slice.used)).unwrap_or_default(),
            over.unwrap_or_default(),
            slice.stage.map(|_| figure::percent(slice.time_over)).unwrap_or_default(),
            verdict,
        ]);
    }
    table
}

fn of_change(document: &mut Document, change: &ChangeFinding) {
    let heading = format!(
        "{} against the baseline ({}): slowest {} and middle fifth, ms [95 %]",
        change.of.name(),
        counted(change.base_requests, "request"),
        slowest(change.slowest)
    );
    let mut table = TextTable::new(&["<stage", "tail", "<", "middle", "<", "tail beyond the middle", "<"]);
    let row = |name: Phrase, tail: &Estimate, middle: &Estimate, gap: Option<&Estimate>| {
        let signed = |e: &Estimate| format!("{}{}", if e.value > 0.0 { "+" } else { "" }, words::ms(e.value));
        let figures = [
            signed(tail),
            bounds(tail),
            signed(middle),
            bounds(middle),
            gap.map(signed).unwrap_or_default(),
            gap.map(bounds).unwrap_or_default(),
        ];
        std::iter::once(name).chain(figures.map(Phrase::from))
    };
    for part in &change.parts {
        table.row(row(named(part.stage), &part.tail, &part.middle, Some(&part.gap)));
    }
    table.row(row("all".into(), &change.tail, &change.middle, None));
    document.section(heading, |section| {
        section.table(table);
        section.says(moved(change));
    });
}

/// Describes the cause of a change of the tail, in a sentence.
fn moved(change: &ChangeFinding) -> String {
    let sure = |e: &Estimate| e.lower > 0.0 || e.upper < 0.0;
    let parts: Vec<String> = change
        .parts
        .iter()
        .filter(|part| sure(&part.tail))
        .map(|part| {
            format!(
                "{} {}{}",
                part.stage,
                if part.tail.value > 0.0 { "+" } else { "" },
                words::time(part.tail.value)
            )
        })
        .collect();
    let sign = if change.tail.value > 0.0 { "+" } else { "" };
    let whole = format!("{sign}{}", figure::estimated(&change.tail, words::time));
    match parts.is_empty() {
        true => format!("The tail moved by {whole}; no stage moved significantly."),
        false => format!("The tail moved by {whole}; moved significantly: {}.", parts.join(", ")),
    }
}

/// Describes the time of the model without a server around it.
fn floors(finding: &ProfileFinding) -> Vec<String> {
    let floor = |floor: &FloorFinding| {
        let measured = match (floor.measured_s, floor.ratio) {
            (Some(measured), Some(ratio)) => format!(
                "{} take {} here, {} × as long",
                floor.against,
                words::time(measured),
                figure::number(ratio)
            ),
            _ => format!("no span of these traces is {}", floor.against),
        };
        format!("{}, {} iterations: median {}; {measured}.", floor.from, floor.n, words::time(floor.floor_s))
    };
    finding.floors.iter().map(floor).collect()
}
