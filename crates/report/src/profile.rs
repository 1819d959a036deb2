//! Where the time went, for a terminal: the stages of each latency, where its tail comes from, how far a faster stage would go.

use plimsoll_measure::findings::{Estimate, Held, Reading};
use plimsoll_profile::{
    CeilingAt, Ceilings, ChangeFinding, KnownBy, PathFinding, ProfileFinding, StageFinding, TailFinding,
    TailReason,
};

use crate::figure::centile;
use crate::figure::{self, counted};
use crate::table::Table;
use crate::text::TextPage;
use crate::words;

/// Names without a stage that are shown.
const UNMAPPED: usize = 8;
/// Parts of a gap under which a stage is not named in a sentence.
const NAMED: f64 = 0.05;

/// The whole profile.
pub fn render(name: &str, finding: &ProfileFinding) -> String {
    let mut page = TextPage::default();
    page.line(format!("Plimsoll profile: {name}"));
    page.wrapped(2, &read(finding));
    for sentence in says(finding) {
        page.wrapped(2, &sentence);
    }
    for path in &finding.paths {
        page.gap();
        of_path(&mut page, path);
    }
    unmapped(&mut page, finding);
    slices(&mut page, finding);
    for change in &finding.changes {
        page.gap();
        of_change(&mut page, change);
    }
    floors(&mut page, finding);
    if !finding.notes.is_empty() {
        page.gap();
        for note in &finding.notes {
            page.wrapped(2, &format!("Note: {note}."));
        }
    }
    page.text
}

/// What was read, in a sentence.
pub fn read(finding: &ProfileFinding) -> String {
    let count = &finding.count;
    let stands = if finding.stand_for > 1.001 * count.profiled as f64 {
        format!(
            ", which stand for {} (sampled traces, weighted back)",
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
        "{} in {}: {}{out_of} profiled{stands}.",
        counted(count.spans, "span"),
        counted(count.traces, "trace"),
        counted(count.profiled, "request")
    )
}

/// What the profile amounts to, in sentences.
pub fn says(finding: &ProfileFinding) -> Vec<String> {
    let mut says = Vec::new();
    for path in &finding.paths {
        match &path.tail {
            TailReason::Attributed(tail) => says.push(of_tail(path, tail)),
            TailReason::Refused { why } => {
                says.push(format!("Where the tail of {} comes from is not said: {why}.", path.of.name()))
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
            let doubt = if sure(&part.gap) { "" } else { " (its interval holds none)" };
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
        if parts.is_empty() { "no stage is much".to_owned() } else { parts.join(", ") }
    )
}

fn of_path(page: &mut TextPage, path: &PathFinding) {
    page.line(format!(
        "{}: critical path of {}, ms [95 %]",
        path.of.name(),
        counted(path.requests, "request")
    ));
    let mut table =
        Table::new(&["<  stage", "mean", "share", "of the tail", "p50", "p95", "p99", "<p99 [95 %]", "<"]);
    for found in &path.stages {
        let cells = stage(found);
        table.row(std::iter::once(format!("  {}", found.stage)).chain(cells));
    }
    let times = &path.times;
    table.row([
        format!("  {}", path.of.name()),
        words::ms(times.mean_s),
        String::new(),
        String::new(),
        value(&times.p50),
        value(&times.p95),
        value(&times.p99),
        interval(&times.p99),
    ]);
    page.text.push_str(&table.render(0));
    if let Some(why) = refusal(&times.p50).or_else(|| refusal(&times.p99)) {
        page.wrapped(2, &format!("A dash is not shown: {why}."));
    }
    if let TailReason::Attributed(tail) = &path.tail {
        gap(page, tail);
    }
    if let Some(found) = path.ceilings.as_ref().filter(|found| !found.rows.is_empty()) {
        ceilings(page, path, found);
    }
}

/// A share; what is next to nothing is nothing.
pub(crate) fn share(share: f64) -> String {
    if share.abs() < 5e-5 { "0 %".to_owned() } else { figure::percent(share).replace('-', "−") }
}

/// The cells of a stage behind its name.
pub(crate) fn stage(found: &StageFinding) -> [String; 8] {
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

fn gap(page: &mut TextPage, tail: &TailFinding) {
    page.line(format!(
        "  Slowest {} against the middle fifth: what it takes more of",
        figure::percent(tail.slowest).replace(".0 %", " %")
    ));
    let mut table = Table::new(&["<    stage", "ms more", "<[95 %]", "of the gap"]);
    for part in tail.parts.iter().filter(|part| part.gap.value != 0.0) {
        table.row([
            format!("    {}", part.stage),
            words::ms(part.gap.value),
            bounds(&part.gap),
            share(part.share),
        ]);
    }
    table.row(["    all".to_owned(), words::ms(tail.gap.value), bounds(&tail.gap), "100 %".to_owned()]);
    page.text.push_str(&table.render(0));
}

/// The interval of a duration in ms.
pub(crate) fn bounds(e: &Estimate) -> String {
    figure::interval(&words::ms(e.lower), &words::ms(e.upper))
}

/// Which percentile of a ceiling is shown.
pub(crate) type CeilingColumn = fn(&CeilingAt) -> Option<f64>;

/// The highest of p99, p95 and p50 that every cell has.
pub(crate) fn ceiling_column(found: &Ceilings) -> (&'static str, CeilingColumn) {
    let columns: [(&'static str, CeilingColumn); 3] =
        [("p99", |at| at.p99.value()), ("p95", |at| at.p95.value()), ("p50", |at| at.p50.value())];
    let whole = |of: CeilingColumn| found.rows.iter().all(|row| row.at.iter().all(|at| of(at).is_some()));
    columns.into_iter().find(|(_, of)| whole(*of)).unwrap_or(columns[2])
}

fn ceilings(page: &mut TextPage, path: &PathFinding, found: &Ceilings) {
    let (name, of) = ceiling_column(found);
    page.line(format!(
        "  A faster stage: mean × faster, and {} {name} then, ms ({})",
        path.of.name(),
        found.label
    ));
    let factors: Vec<String> = found.rows[0].at.iter().map(|at| factor(at.factor)).collect();
    let mut header = vec!["<    stage".to_owned()];
    header.extend(factors);
    if found.rows.iter().any(|row| row.at.iter().any(|at| at.p99_with_queue_s.is_some())) {
        header.push("<p99 at 2 × with the queue".to_owned());
    }
    let columns: Vec<&str> = header.iter().map(String::as_str).collect();
    let mut table = Table::new(&columns);
    for row in &found.rows {
        let mut cells = vec![format!("    {}", row.stage)];
        for at in &row.at {
            let speed_up = faster(at);
            let then = of(at).map(words::ms);
            cells.push(then.map_or(speed_up.clone(), |then| format!("{speed_up}: {then}")));
        }
        let twice = row.at.iter().find(|at| at.factor == Some(2.0)).and_then(|at| at.p99_with_queue_s);
        cells.push(twice.map(words::ms).unwrap_or_default());
        table.row(cells);
    }
    page.text.push_str(&table.render(0));
    if let Some(caveat) = &found.queueing {
        page.wrapped(2, &format!("{}.", words::sentence(caveat).trim_end_matches('.')));
    }
}

/// `2 ×`, `gone`.
pub(crate) fn factor(factor: Option<f64>) -> String {
    factor.map_or_else(|| "gone".to_owned(), |factor| format!("{factor} ×"))
}

/// `1.54 ×`.
pub(crate) fn faster(at: &CeilingAt) -> String {
    at.speed_up.map_or_else(|| "∞".to_owned(), |times| format!("{} ×", figure::number(times)))
}

fn unmapped(page: &mut TextPage, finding: &ProfileFinding) {
    if finding.unmapped.is_empty() {
        return;
    }
    page.gap();
    page.line("Time without a stage, on the path to the last byte");
    let mut table = Table::new(&["<  span", "<service", "mean, ms", "of e2e", "spans", "<"]);
    for found in finding.unmapped.iter().take(UNMAPPED) {
        table.row([
            format!("  {}", found.name),
            found.service.clone().unwrap_or_default(),
            words::ms(found.mean_s),
            share(found.share),
            figure::count(found.spans),
            found.why.clone().unwrap_or_default(),
        ]);
    }
    page.text.push_str(&table.render(0));
    let more = finding.unmapped.len().saturating_sub(UNMAPPED);
    if more > 0 {
        page.line(format!("  and {more} more names"));
    }
    if finding.unmapped.iter().any(|found| found.why.is_none()) {
        page.line("  Name them with --rules FILE (plimsoll schema stages).");
    }
}

fn slices(page: &mut TextPage, finding: &ProfileFinding) {
    if finding.slices.is_empty() {
        return;
    }
    page.gap();
    page.line("Slices of the budget");
    let mut table = Table::new(&[
        "<  slice",
        "ms",
        "at",
        "measured",
        "mean uses",
        "<requests over [95 %]",
        "time over",
        "<verdict",
    ]);
    for slice in &finding.slices {
        let over = slice.requests_over.map(|e| {
            let ends = figure::interval(&figure::percent(e.lower), &figure::percent(e.upper));
            format!("{} {ends}", figure::percent(e.value))
        });
        let verdict = match (slice.stage, slice.verdict) {
            (None, _) => "no span of these traces is this stage".to_owned(),
            (_, Held::Inconclusive) => "too few requests to say".to_owned(),
            (_, held) => words::held(held).to_owned(),
        };
        table.row([
            format!("  {}", slice.name),
            words::ms(slice.slice_s),
            format!("p{}", centile(slice.p)),
            value(&slice.measured),
            slice.stage.map(|_| figure::percent(slice.used)).unwrap_or_default(),
            over.unwrap_or_default(),
            slice.stage.map(|_| figure::percent(slice.time_over)).unwrap_or_default(),
            verdict,
        ]);
    }
    page.text.push_str(&table.render(0));
}

fn of_change(page: &mut TextPage, change: &ChangeFinding) {
    page.line(format!(
        "{} against the baseline ({}): slowest {} and middle fifth, ms [95 %]",
        change.of.name(),
        counted(change.base_requests, "request"),
        figure::percent(change.slowest).replace(".0 %", " %")
    ));
    let mut table = Table::new(&["<  stage", "tail", "<", "middle", "<", "tail beyond the middle", "<"]);
    let row = |name: String, tail: &Estimate, middle: &Estimate, gap: Option<&Estimate>| {
        let signed = |e: &Estimate| format!("{}{}", if e.value > 0.0 { "+" } else { "" }, words::ms(e.value));
        [
            name,
            signed(tail),
            bounds(tail),
            signed(middle),
            bounds(middle),
            gap.map(signed).unwrap_or_default(),
            gap.map(bounds).unwrap_or_default(),
        ]
    };
    for part in &change.parts {
        table.row(row(format!("  {}", part.stage), &part.tail, &part.middle, Some(&part.gap)));
    }
    table.row(row("  all".to_owned(), &change.tail, &change.middle, None));
    page.text.push_str(&table.render(0));
    page.wrapped(2, &moved(change));
}

/// What moved the tail, in a sentence.
pub fn moved(change: &ChangeFinding) -> String {
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
    let whole = format!(
        "{}{} {}",
        if change.tail.value > 0.0 { "+" } else { "" },
        words::time(change.tail.value),
        figure::interval(&words::time(change.tail.lower), &words::time(change.tail.upper))
    );
    match parts.is_empty() {
        true => format!("The tail moved by {whole}; of no stage is it sure that it moved."),
        false => format!("The tail moved by {whole}; surely moved: {}.", parts.join(", ")),
    }
}

fn floors(page: &mut TextPage, finding: &ProfileFinding) {
    for floor in &finding.floors {
        page.gap();
        let measured = match (floor.measured_s, floor.ratio) {
            (Some(measured), Some(ratio)) => {
                format!(
                    "{} take {} here, {} × as long",
                    floor.against,
                    words::time(measured),
                    figure::number(ratio)
                )
            }
            _ => format!("no span of these traces is {}", floor.against),
        };
        page.wrapped(
            2,
            &format!(
                "The model without a server ({}, {} iterations): median {}; {measured}.",
                floor.from,
                floor.n,
                words::time(floor.floor_s)
            ),
        );
    }
}
