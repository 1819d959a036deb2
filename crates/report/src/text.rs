//! Renders a run for the terminal, in the order of a reader's questions.
//!
//! The verdict comes first, then its evidence, then its trust, then the file locations. No colour carries
//! meaning, so that a pipe, a log and a colour-blind user get equal information.

use plimsoll_measure::findings::{
    BudgetFinding, BudgetRow, CapacityLine, CapacityLines, Curve, Findings, LevelFinding, LevelSummary,
    LoadKeptUp, PassedCheck, Percentiles, Reading, Trust, Validity,
};
use plimsoll_model::{Manifest, RunState};

use crate::document::Document;
use crate::endpoints::{self, GroupNames};
use crate::headline::headline;
use crate::table::TextTable;
use crate::words;
use crate::{cold_start, cost, figure, network, pareto, server};

/// The amount of detail in the output.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum TextDetail {
    /// One screen: the measurement, its leading figures, the evidence against them, and last the result.
    #[default]
    Short,
    /// Every metric, the server's figures, the network, and each passed check.
    Full,
}

/// Returns the result of a run, for a terminal or a pipe. The summary sentences are last, because they stay visible in a terminal.
pub fn render(manifest: &Manifest, findings: &Findings, detail: TextDetail) -> String {
    let full = detail == TextDetail::Full;
    let groups = GroupNames::of(manifest);
    let mut page = Document::default();
    head(&mut page, manifest);
    if let Some(found) = &findings.cold_start {
        cold_start::fill(&mut page, found);
    }
    findings.lines.iter().for_each(|lines| lines_of(&mut page, lines, detail));
    let curves = findings.curves.iter().filter(|curve| !curve.points.is_empty());
    curves.for_each(|found| curve(&mut page, found, detail));
    findings.pareto.iter().for_each(|curve| pareto::fill(&mut page, curve, full));
    // The curve of a sweep contains the levels' leading figures.
    if full || findings.curves.is_empty() {
        detailed(findings).into_iter().for_each(|found| level(&mut page, found, (manifest, &groups), detail));
    }
    if full {
        beside(&mut page, findings);
    }
    if let Some(found) = &findings.cost {
        cost::fill(&mut page, found, findings);
    }
    // For a valid or short run, the sentences below contain all of it.
    if full || matches!(findings.validity.verdict, Trust::Suspect | Trust::Invalid) {
        validity(&mut page, &findings.validity, detail);
    }
    page.verdict(&headline(findings));
    page.text(&title(manifest))
}

/// Returns one line with the target and the load.
fn title(manifest: &Manifest) -> String {
    let model = manifest.target.facts.get("model").and_then(Option::as_deref);
    let model = model.map(|name| format!(", model {name}")).unwrap_or_default();
    let by = manifest.target.facts.get("measured_by").and_then(Option::as_deref);
    let by = by.map(|tool| format!(", measured by {tool}")).unwrap_or_default();
    format!("Plimsoll {} of {}{model}{by}", manifest.kind, endpoints::title(manifest))
}

/// Returns the levels shown in detail: all of a plain run, the best of a saturating one.
///
/// Of a sweep it is the sustained level, or without one the level nearest to the onset.
pub fn detailed(findings: &Findings) -> Vec<&LevelFinding> {
    if let Some(best) = words::saturated(findings) {
        return vec![best];
    }
    if findings.lines.is_empty() {
        return findings.levels.iter().collect();
    }
    let mut shown = Vec::new();
    for lines in &findings.lines {
        let nearest = lines.onset.rate().and_then(|onset| {
            let distance =
                |level: &&LevelFinding| (level.summary.rates.offered_per_s / onset.value).ln().abs();
            let mut open: Vec<&LevelFinding> = findings
                .levels
                .iter()
                .filter(|level| level.summary.traffic == lines.traffic && is_open(&level.summary))
                .filter(|level| level.summary.rates.offered_per_s > 0.0)
                .collect();
            open.sort_by(|a, b| distance(a).total_cmp(&distance(b)));
            open.first().copied()
        });
        let held = lines.hold.as_ref().map(|hold| hold.level);
        let held = held.and_then(|id| findings.levels.iter().find(|level| level.summary.level == id));
        shown.extend(held.or(nearest));
    }
    shown
}

fn is_open(summary: &LevelSummary) -> bool {
    matches!(summary.load, plimsoll_model::Load::Open { .. })
}

/// Adds the notes that precede all results.
fn head(page: &mut Document, manifest: &Manifest) {
    if let RunState::Partial { why } = &manifest.progress {
        page.says(format!("This run is partial: {why}"));
    }
    if let Some(shards) = words::shards(manifest) {
        page.says(shards);
    }
    if let Some(line) = words::http2(manifest) {
        page.says(line);
    }
    if let Some(first) = &manifest.repeats {
        page.says(format!("The schedule of run {} ({}), sent again", first.id, first.url));
    }
    if let Some(label) = &manifest.label {
        page.says(format!("Label: {label}"));
    }
    if let Some(protocol) = words::protocol(manifest) {
        page.says(protocol);
    }
    for flag in &manifest.flags {
        page.says(format!("Outside what was measured: {flag}"));
    }
}

/// Adds the sections on the server and on the network path.
fn beside(page: &mut Document, findings: &Findings) {
    if let Some(told) = &findings.server {
        let shown: Vec<u32> = detailed(findings).iter().map(|level| level.summary.level).collect();
        page.section(server::heading(told), |section| section.list(server::lines(told, &shown)));
    }
    if let Some(found) = &findings.network {
        network::fill(page, found);
    }
}

fn lines_of(page: &mut Document, lines: &CapacityLines, detail: TextDetail) {
    let heading = format!("Load limits of {} traffic ({})", lines.traffic, words::mix(&lines.mix));
    page.section(heading, |section| {
        let named = words::named_lines(lines);
        let mut table = TextTable::new(&["<", "<"]);
        named.iter().for_each(|(name, line)| table.row([name.as_str(), &words::line(line).0]));
        section.table(table);
        if detail == TextDetail::Full {
            let why = |(name, line): &(String, &CapacityLine)| {
                words::sentence(&format!("{name}: {}", words::line(line).1))
            };
            section.list(named.iter().map(why));
        }
        if let CapacityLine::Found { load, .. } = &lines.onset {
            let same = words::load_words(load, lines.think_time_s);
            if !same.is_empty() {
                section.says(format!("The onset in other words: {same}."));
            }
        }
        if let Some(hold) = lines.hold.as_ref().filter(|_| detail == TextDetail::Full) {
            section.says(format!(
                "Ran at {} for {}: {}. {}",
                figure::per_second(hold.rate_per_s),
                words::time(hold.held_s),
                words::held(hold.verdict),
                words::sentence(&hold.why)
            ));
        }
    });
}

fn curve(page: &mut Document, curve: &Curve, detail: TextDetail) {
    let heading = format!(
        "Curve, {} traffic: {} in ms against offered load (zero contention: p{} {})",
        curve.traffic,
        curve.metric,
        figure::centile(curve.percentile),
        words::latency(&curve.zero_contention),
    );
    let table = if detail == TextDetail::Short { short_curve(curve) } else { full_curve(curve) };
    page.titled(heading, table);
}

fn full_curve(curve: &Curve) -> TextTable {
    let columns = [
        "offered/s",
        "done/s",
        "good/s",
        "in flight",
        "p50",
        "p95",
        "<p99 [95 %]",
        "failed",
        "<load",
        "<budget",
        "<trust",
    ];
    let mut table = TextTable::new(&columns);
    for point in &curve.points {
        table.row([
            figure::number(point.offered_per_s),
            point.achieved_per_s.map(figure::number).unwrap_or_default(),
            point.good_per_s.map(figure::number).unwrap_or_default(),
            figure::number(point.in_flight),
            words::latency_cell(&point.p50).0,
            words::latency_cell(&point.p95).0,
            words::latency(&point.p99),
            figure::percent(point.error_rate),
            words::kept(point.stability).to_string(),
            point.budget.map(|held| words::held(held).to_string()).unwrap_or_default(),
            words::trust(point.trust).to_string(),
        ]);
    }
    table
}

fn short_curve(curve: &Curve) -> TextTable {
    let mut table = TextTable::new(&["offered/s", "in flight", "p50", "<p99 [95 %]", "failed", "<"]);
    for point in &curve.points {
        // A normal point needs no word, and an invalid one has no other.
        let kept = Some(words::kept(point.stability)).filter(|_| point.stability != LoadKeptUp::Stable);
        let trust = Some(words::trust(point.trust)).filter(|_| point.trust != Trust::Valid);
        let said: Vec<&str> = match point.trust {
            Trust::Invalid => trust.into_iter().collect(),
            _ => kept.into_iter().chain(point.budget.map(words::held)).chain(trust).collect(),
        };
        let failed = Some(figure::percent(point.error_rate)).filter(|_| point.error_rate > 0.0);
        table.row([
            figure::number(point.offered_per_s),
            figure::number(point.in_flight),
            words::latency_cell(&point.p50).0,
            words::latency(&point.p99),
            failed.unwrap_or_default(),
            said.join(", "),
        ]);
    }
    table
}

fn level(
    page: &mut Document,
    level: &LevelFinding,
    (manifest, groups): (&Manifest, &GroupNames),
    detail: TextDetail,
) {
    let summary = &level.summary;
    let window = format!(
        "{} counted, {} cut as warm-up",
        words::time(summary.window.length_s),
        words::time(summary.window.warm_up_s)
    );
    page.section(format!("Level {}: {} · {window}", summary.level, words::level(summary)), |section| {
        section.list(summary.window.cut_words());
        counts(section, summary, groups);
        if let Some(says) = words::in_one_event(manifest, summary) {
            section.says(says);
        }
        percentiles(section, summary, detail);
        section.table(groups.endpoint_table(summary));
        section.table(groups.class_table(summary));
        if let Some(budget) = &summary.budget {
            let verdict = words::marked(words::held(budget.verdict));
            section.titled(format!("Budget “{}”: {verdict}", budget.name), budget_table(budget));
            section.list(budget_notes(budget));
        }
    });
}

fn counts(page: &mut Document, summary: &LevelSummary, groups: &GroupNames) {
    let (counts, rates) = (&summary.counts, &summary.rates);
    let mut ends = Vec::new();
    for (how, n) in &counts.by_outcome {
        ends.push(format!("{} {}", figure::count(*n), how.name().replace('_', " ")));
    }
    for (broken, n) in &counts.broken {
        ends.push(format!("{} of them broken ({})", figure::count(*n), broken.name().replace('_', " ")));
    }
    page.says(format!("{}: {}", figure::counted(counts.requests, "request"), ends.join(", ")));
    if let Some(sessions) = &summary.sessions {
        page.says(words::sessions(sessions, groups.is_chain()));
        if let Some(tokens) = sessions.tokens.as_ref().filter(|_| !groups.is_chain()) {
            page.says(words::session_tokens(tokens));
        }
    }
    for error in &counts.errors {
        page.says(words::error(error));
    }
    if counts.attempts > counts.requests {
        page.says(format!(
            "{} attempts, {} per request",
            figure::count(counts.attempts),
            figure::number(counts.amplification)
        ));
    }
    let mut flow = vec![format!("offered {}", figure::per_second(rates.offered_per_s))];
    if let Some(done) = rates.achieved_per_s.value() {
        flow.push(format!("done {}", figure::per_second(done)));
    }
    if let Some(good) = rates.good_per_s.as_ref().and_then(Reading::value) {
        flow.push(format!("good {}", figure::per_second(good)));
    }
    if let Some(tokens) = rates.output_tokens_per_s.as_ref().and_then(Reading::value) {
        flow.push(format!("{} output tokens/s ({})", figure::number(tokens), rates.tokens_from));
    }
    if let Some(items) = rates.items_per_s.as_ref().and_then(Reading::value) {
        flow.push(format!("{} items/s", figure::number(items)));
    }
    for (rate, what) in [
        (&rates.documents_per_s, "documents/s"),
        (&rates.images_per_s, "images/s"),
        (&rates.audio_s_per_s, "s of audio/s"),
    ] {
        if let Some(rate) = rate.as_ref().and_then(Reading::value) {
            flow.push(format!("{} {what}", figure::number(rate)));
        }
    }
    flow.push(format!(
        "{} in flight (max {})",
        figure::number(summary.concurrency.mean),
        summary.concurrency.max
    ));
    flow.push(words::kept(summary.stability.verdict).to_string());
    page.says(flow.join(" · "));
}

fn percentiles(page: &mut Document, summary: &LevelSummary, detail: TextDetail) {
    let mut table = TextTable::new(&["<ms [95 %]", "n", "<p50", "<p90", "<p95", "<p99", "<p99.9", "max"]);
    let (mut marked, mut dash) = (false, None);
    let all = summary.latency.all();
    let leads = |set: &&&Percentiles| LEADING.contains(&set.metric.as_str());
    let short = detail == TextDetail::Short && all.iter().any(|set| leads(&set));
    for set in all.iter().filter(|set| !short || leads(set)) {
        let shown = if short { IN_SHORT } else { usize::MAX };
        for mut row in [percentile_row(set), interval_row(set)] {
            if short {
                // A screen has no room for the n of each metric, and the number of requests is above. An empty column is left out.
                row[1].clear();
                row.truncate(2 + IN_SHORT);
            }
            table.row(row);
        }
        for (p, reading) in set.rows().into_iter().take(shown) {
            marked |= reading.estimate().is_none() && reading.seen().is_some();
            if let (Reading::Refused { why, seen: None, .. }, None) = (reading, &dash) {
                dash = Some(format!("–: {} p{} {why}", set.metric, figure::centile(p)));
            }
        }
    }
    page.table(table);
    if marked {
        page.says(words::FEW_SAYS);
    }
    if let Some(dash) = dash {
        page.says(dash);
    }
    if let Some(longer) = words::settles_in(summary, short) {
        page.says(longer);
    }
    if summary.latency.rtf.is_some() {
        page.says(words::RTF_SAYS);
    }
    if let Some(itl) = summary.latency.itl.as_ref().filter(|_| !short) {
        let exact = figure::percent(itl.exact_share);
        page.says(format!("itl: tokens per event by {}; {exact} of its gaps are exact", itl.rule.name()));
    }
}

fn validity(page: &mut Document, validity: &Validity, detail: TextDetail) {
    let verdict = words::marked(words::trust(validity.verdict));
    page.section(format!("Trust: {verdict}"), |section| {
        for words::ReasonGroup { worst, levels } in words::grouped(&validity.reasons) {
            section.says(format!(
                "{} · {} {levels}: {}. {} {}",
                words::trust(worst.verdict),
                worst.check.replace('_', " "),
                worst.figure.trim_end_matches('.'),
                words::sentence(&worst.means),
                words::sentence(&worst.advice)
            ));
        }
        if let Some(says) = words::unchecked(validity) {
            section.says(says);
        }
        if validity.passed.is_empty() || detail == TextDetail::Short {
            return;
        }
        let name = |passed: &PassedCheck| passed.check.replace('_', " ");
        let checks: Vec<String> = validity.passed.iter().map(name).collect();
        section.says(format!("Checked and fine: {}", checks.join(", ")));
        let notes = validity.passed.iter().filter_map(|passed| Some((passed, passed.note.as_ref()?)));
        section.list(notes.map(|(passed, note)| format!("{}: {note}", name(passed))));
    });
}

/// The leading metrics; `--details` shows the others.
const LEADING: [&str; 5] = ["ttft", "tpot", "e2e", "rtf", "session_e2e"];
/// Percentiles per metric on a screen: p50, p90, p95, p99.
const IN_SHORT: usize = 4;

/// Returns the cells of one metric: name, n, the percentiles, max.
fn percentile_row(set: &Percentiles) -> Vec<String> {
    let mut cells = vec![set.metric.clone(), figure::count(set.n)];
    cells.extend(set.rows().into_iter().map(|(_, reading)| words::latency_cell(reading).0));
    cells.push(set.max_s.map(words::ms).unwrap_or_default());
    cells
}

fn interval_row(set: &Percentiles) -> Vec<String> {
    let mut cells = vec![String::new(), String::new()];
    cells.extend(
        set.rows().into_iter().map(|(_, reading)| words::latency_cell(reading).1.unwrap_or_default()),
    );
    cells
}

pub(crate) fn budget_table(budget: &BudgetFinding) -> TextTable {
    let mut table =
        TextTable::new(&["<metric", "<ceiling", "<measured", "<share over [95 %]", "allowed", "<verdict"]);
    budget.rows.iter().for_each(|row| table.row(budget_cells(row)));
    table
}

pub(crate) fn budget_row_name(row: &BudgetRow) -> String {
    match row.metric.as_str() {
        "error_rate" => "errors".to_owned(),
        metric => format!("{metric} p{}", figure::centile(row.percentile)),
    }
}

/// Returns the assumptions of its passes, and provisional answers.
pub(crate) fn budget_notes(budget: &BudgetFinding) -> Vec<String> {
    let noted = budget.rows.iter().filter(|row| !row.note.is_empty());
    noted.map(|row| format!("{}: {}", budget_row_name(row), row.note)).collect()
}

/// Smallest printed share, because a bound by distance can be smaller than any run could count.
const LEAST_SHARE: f64 = 1e-5;

fn upper_share(share: f64) -> String {
    match share > 0.0 && share < LEAST_SHARE {
        true => format!("< {}", figure::percent(LEAST_SHARE)),
        false => figure::percent(share),
    }
}

/// Returns the cells of a row: metric, ceiling, measured value, share over the ceiling, allowed share, verdict.
pub(crate) fn budget_cells(row: &BudgetRow) -> [String; 6] {
    let is_share = row.metric == "error_rate";
    let spell = |value: f64| if is_share { figure::percent(value) } else { words::time(value) };
    [
        budget_row_name(row),
        format!("≤ {}", spell(row.ceiling)),
        words::cell(&row.measured, spell).0,
        format!(
            "{} {}",
            figure::percent(row.share_over.value),
            figure::interval(&figure::percent(row.share_over.lower), &upper_share(row.share_over.upper))
        ),
        figure::percent(row.allowed),
        words::held(row.verdict).to_owned(),
    ]
}

/// Returns one level in one line, which a sweep prints after each level.
pub fn level_line(level: &LevelFinding) -> String {
    let summary = &level.summary;
    let leading = summary.latency.leading();
    let tail = [(0.99, &leading.p99), (0.95, &leading.p95), (0.5, &leading.p50)];
    let shown = tail.iter().find(|(_, reading)| reading.value().is_some());
    let latency = match shown {
        Some((p, reading)) => {
            format!("{} p{} {} ms", leading.metric, figure::centile(*p), words::latency(reading))
        }
        None => format!("{}: too few requests for a percentile", leading.metric),
    };
    let failed = match summary.counts.failed {
        0 => String::new(),
        n => format!(" · {} failed", figure::count(n)),
    };
    format!(
        "  {:<9} {:>20} · {:>7} requests · {latency} · {}{failed}",
        summary.purpose,
        words::load_kept(summary),
        figure::count(summary.counts.requests),
        words::kept(summary.stability.verdict)
    )
}
