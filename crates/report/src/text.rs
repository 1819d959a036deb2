//! The terminal's page: what was found, in the order in which a person asks.
//!
//! Verdict first, then what it rests on, then how far it may be trusted, then where everything is. No colour carries
//! meaning, so that a pipe, a log and a person who can't tell red from green read the same.

use plimsoll_measure::findings::{
    BudgetFinding, CapacityLines, Curve, Findings, KeptUp, LevelFinding, LevelSummary, Percentiles, Reading,
    Trust, Validity,
};
use plimsoll_model::{Manifest, RunState};

use crate::headline::headline;
use crate::table::Table;
use crate::words;
use crate::{cost, endpoints, figure, network, server};

/// How much is printed.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Detail {
    /// What fits a screen: what was measured, its leading figures, what speaks against them, and last the result.
    #[default]
    Short,
    /// Every metric, the server's own word, the network, and each check that was passed.
    Full,
}

/// The result of a run, for a terminal or a pipe: the sentences that sum it up stand last, where a terminal leaves them in sight.
pub fn render(manifest: &Manifest, findings: &Findings, detail: Detail) -> String {
    let mut page = TextPage { detail, endpoints: endpoints::of(manifest), ..TextPage::default() };
    page.head(manifest);
    page.gap();
    if let Some(found) = &findings.cold_start {
        crate::cold_start::render(found).iter().for_each(|line| page.line(line.clone()));
        page.gap();
    }
    for lines in &findings.lines {
        page.lines_of(lines);
        page.gap();
    }
    for curve in findings.curves.iter().filter(|curve| !curve.points.is_empty()) {
        page.curve(curve);
        page.gap();
    }
    // Of a sweep the curve has the levels' leading figures.
    if detail == Detail::Full || findings.curves.is_empty() {
        for level in detailed(findings) {
            page.level(level);
            page.gap();
        }
    }
    if detail == Detail::Full {
        page.beside(findings);
    }
    if let Some(found) = &findings.cost {
        page.line(cost::title(&found.bill));
        let mut table = Table::new(&cost::COLUMNS);
        cost::rows(found, findings).into_iter().for_each(|row| table.row(row));
        page.text.push_str(&table.render(2));
        cost::sessions(found).iter().for_each(|line| page.wrapped(2, line));
        cost::missing(found).iter().for_each(|why| page.wrapped(2, why));
        page.gap();
    }
    // Of one that is valid or only short the sentences below say all.
    if detail == Detail::Full || matches!(findings.validity.verdict, Trust::Suspect | Trust::Invalid) {
        page.validity(&findings.validity);
        page.gap();
    }
    for sentence in &headline(findings) {
        page.wrapped(2, sentence);
    }
    page.text
}

/// One line that says what was measured.
fn title(manifest: &Manifest) -> String {
    let model = manifest.target.facts.get("model").and_then(Option::as_deref);
    let model = model.map(|name| format!(", model {name}")).unwrap_or_default();
    let by = manifest.target.facts.get("measured_by").and_then(Option::as_deref);
    let by = by.map(|tool| format!(", measured by {tool}")).unwrap_or_default();
    format!("Plimsoll {} of {}{model}{by}", manifest.kind, endpoints::title(manifest))
}

/// The levels shown in detail: all of a plain run, the best of a saturating one, the held level of a
/// sweep or, without one, the level nearest to the onset.
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

/// Text under construction.
#[derive(Default)]
pub(crate) struct TextPage {
    pub(crate) text: String,
    pub(crate) detail: Detail,
    endpoints: Vec<String>,
}

impl TextPage {
    /// What was measured, and what is to be known of it before anything else.
    fn head(&mut self, manifest: &Manifest) {
        self.line(title(manifest));
        if let RunState::Partial { why } = &manifest.progress {
            self.line(format!("This run is partial: {why}"));
        }
        if let Some(shards) = words::shards(manifest) {
            self.line(shards);
        }
        if let Some(line) = words::http2(manifest) {
            self.wrapped(0, line);
        }
        if let Some(first) = &manifest.repeats {
            self.line(format!("The schedule of run {} ({}), sent again", first.id, first.url));
        }
        if let Some(label) = &manifest.label {
            self.line(format!("Label: {label}"));
        }
        if let Some(protocol) = words::protocol(manifest) {
            self.wrapped(0, &protocol);
        }
        for flag in &manifest.flags {
            self.wrapped(0, &format!("Outside what was measured: {flag}"));
        }
    }

    /// What the server and the network path say.
    fn beside(&mut self, findings: &Findings) {
        if let Some(told) = &findings.server {
            let shown: Vec<u32> = detailed(findings).iter().map(|level| level.summary.level).collect();
            server::lines(told, &shown).iter().for_each(|(indent, line)| self.wrapped(*indent, line));
            self.gap();
        }
        if let Some(found) = &findings.network {
            network::lines(found).iter().for_each(|(indent, line)| self.wrapped(*indent, line));
            self.gap();
        }
    }

    pub(crate) fn line(&mut self, line: impl AsRef<str>) {
        self.text.push_str(line.as_ref());
        self.text.push('\n');
    }

    pub(crate) fn gap(&mut self) {
        self.text.push('\n');
    }

    /// Words at most [`words::WIDTH`] columns wide, indented.
    pub(crate) fn wrapped(&mut self, indent: usize, sentence: &str) {
        self.text.push_str(&words::wrap(indent, sentence));
    }

    fn lines_of(&mut self, lines: &CapacityLines) {
        self.wrapped(0, &format!("Lines for {} traffic ({})", lines.traffic, words::mix(&lines.mix)));
        let named = words::named_lines(lines);
        let widest = named.iter().map(|(name, _)| name.chars().count()).max().unwrap_or(0);
        for (name, line) in named {
            let (value, why) = words::line(line);
            self.line(format!("  {name:<widest$}  {value}"));
            if self.detail == Detail::Full {
                self.wrapped(6, why);
            }
        }
        if let plimsoll_measure::findings::CapacityLine::Found { load, .. } = &lines.onset {
            let same = words::load_words(load, lines.think_time_s);
            if !same.is_empty() {
                self.wrapped(2, &format!("The onset in other words: {same}."));
            }
        }
        if let Some(hold) = lines.hold.as_ref().filter(|_| self.detail == Detail::Full) {
            let verdict = words::held(hold.verdict);
            self.wrapped(
                2,
                &format!(
                    "Held at {} for {}: {verdict}. {}",
                    figure::per_second(hold.rate_per_s),
                    words::time(hold.held_s),
                    words::sentence(&hold.why)
                ),
            );
        }
    }

    fn curve(&mut self, curve: &Curve) {
        self.wrapped(
            0,
            &format!(
                "Curve, {} traffic: {} in ms against offered load (zero contention: p{} {})",
                curve.traffic,
                curve.metric,
                figure::centile(curve.percentile),
                words::latency(&curve.zero_contention),
            ),
        );
        if self.detail == Detail::Short {
            return self.short_curve(curve);
        }
        let mut table = Table::new(&[
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
        ]);
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
        self.text.push_str(&table.render(2));
    }

    fn short_curve(&mut self, curve: &Curve) {
        let mut table = Table::new(&["offered/s", "in flight", "p50", "<p99 [95 %]", "failed", "<"]);
        for point in &curve.points {
            // What is as it should be is not worth a word, and of what is invalid nothing else is.
            let kept = Some(words::kept(point.stability)).filter(|_| point.stability != KeptUp::Stable);
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
        self.text.push_str(&table.render(2));
    }

    fn level(&mut self, level: &LevelFinding) {
        let summary = &level.summary;
        let window = format!(
            "{} counted, {} cut as warm-up",
            words::time(summary.window.length_s),
            words::time(summary.window.warm_up_s)
        );
        self.line(format!("Level {}: {} · {window}", summary.level, words::level(summary)));
        if let Some(cut) = summary.window.cut_words() {
            self.wrapped(2, &cut);
        }
        self.counts(summary);
        self.percentiles(summary);
        let each = endpoints::table(summary, &self.endpoints);
        if !each.is_empty() {
            self.text.push_str(&each.render(2));
        }
        if let Some(budget) = &summary.budget {
            self.budget(budget);
        }
    }

    fn counts(&mut self, summary: &LevelSummary) {
        let (counts, rates) = (&summary.counts, &summary.rates);
        let mut ends = Vec::new();
        for (how, n) in &counts.by_outcome {
            ends.push(format!("{} {}", figure::count(*n), how.name().replace('_', " ")));
        }
        for (broken, n) in &counts.broken {
            ends.push(format!("{} of them broken ({})", figure::count(*n), broken.name().replace('_', " ")));
        }
        self.wrapped(2, &format!("{}: {}", figure::counted(counts.requests, "request"), ends.join(", ")));
        if let Some(sessions) = &summary.sessions {
            self.wrapped(2, &words::sessions(sessions));
            if let Some(tokens) = &sessions.tokens {
                self.wrapped(4, &words::session_tokens(tokens));
            }
        }
        for error in &counts.errors {
            self.wrapped(4, &words::error(error));
        }
        if counts.attempts > counts.requests {
            self.line(format!(
                "  {} attempts, {} per request",
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
            (&rates.audio_s_per_s, "s of sound/s"),
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
        self.wrapped(2, &flow.join(" · "));
    }

    fn percentiles(&mut self, summary: &LevelSummary) {
        let mut table = Table::new(&["<ms [95 %]", "n", "<p50", "<p90", "<p95", "<p99", "<p99.9", "max"]);
        let (mut marked, mut dash) = (false, None);
        let all = summary.latency.all();
        let leads = |set: &&&Percentiles| LEADING.contains(&set.metric.as_str());
        let short = self.detail == Detail::Short && all.iter().any(|set| leads(&set));
        for set in all.iter().filter(|set| !short || leads(set)) {
            let shown = if short { IN_SHORT } else { usize::MAX };
            for mut row in [percentile_row(set), interval_row(set)] {
                if short {
                    // A screen has no room for each metric's own n: the requests stand above. An empty column is left out.
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
        self.text.push_str(&table.render(2));
        if marked {
            self.wrapped(2, words::FEW_SAYS);
        }
        if let Some(dash) = dash {
            self.wrapped(2, &dash);
        }
        if let Some(longer) = words::settles_in(summary, short) {
            self.wrapped(2, &longer);
        }
        if let Some(itl) = summary.latency.itl.as_ref().filter(|_| !short) {
            let exact = figure::percent(itl.exact_share);
            self.wrapped(
                2,
                &format!("itl: tokens per event by {}; {exact} of its gaps are exact", itl.rule.name()),
            );
        }
    }

    fn budget(&mut self, budget: &BudgetFinding) {
        self.wrapped(2, &format!("Budget “{}”: {}", budget.name, words::marked(words::held(budget.verdict))));
        let mut table = Table::new(&["<", "<ceiling", "<measured", "<share over [95 %]", "allowed", "<"]);
        for row in &budget.rows {
            table.row(budget_cells(row));
        }
        let rendered = table.render(4);
        self.text.push_str(&rendered);
    }

    fn validity(&mut self, validity: &Validity) {
        self.line(format!("Trust: {}", words::marked(words::trust(validity.verdict))));
        for words::Group { worst, levels } in words::grouped(&validity.reasons) {
            self.wrapped(
                2,
                &format!(
                    "{} · {} {levels}: {}. {} {}",
                    words::trust(worst.verdict),
                    worst.check.replace('_', " "),
                    worst.figure.trim_end_matches('.'),
                    words::sentence(&worst.means),
                    words::sentence(&worst.advice)
                ),
            );
        }
        if !validity.passed.is_empty() && self.detail == Detail::Full {
            let checks: Vec<String> =
                validity.passed.iter().map(|passed| passed.check.replace('_', " ")).collect();
            self.wrapped(2, &format!("Checked and fine: {}", checks.join(", ")));
            for passed in &validity.passed {
                if let Some(note) = &passed.note {
                    self.wrapped(2, &format!("{}: {note}", passed.check.replace('_', " ")));
                }
            }
        }
    }
}

/// The metrics that a person asks for first: of others `--details`.
const LEADING: [&str; 4] = ["ttft", "tpot", "e2e", "session_e2e"];
/// Percentiles of each on a screen: p50, p90, p95, p99.
const IN_SHORT: usize = 4;

/// The cells of one metric: name, n, the percentiles, max.
fn percentile_row(set: &Percentiles) -> Vec<String> {
    let mut cells = vec![set.metric.clone(), figure::count(set.n)];
    cells.extend(set.rows().into_iter().map(|(_, reading)| words::latency_cell(reading).0));
    cells.push(set.max_s.map(words::ms).unwrap_or_default());
    cells
}

/// The intervals below them.
fn interval_row(set: &Percentiles) -> Vec<String> {
    let mut cells = vec![String::new(), String::new()];
    cells.extend(
        set.rows().into_iter().map(|(_, reading)| words::latency_cell(reading).1.unwrap_or_default()),
    );
    cells
}

/// The cells of one ceiling of a budget.
pub(crate) fn budget_cells(row: &plimsoll_measure::findings::BudgetRow) -> Vec<String> {
    let is_share = row.metric == "error_rate";
    let spell = |value: f64| if is_share { figure::percent(value) } else { words::time(value) };
    let name = if is_share {
        "errors".to_string()
    } else {
        format!("{} p{}", row.metric, figure::centile(row.percentile))
    };
    let needed = row.needed.map(|n| format!("; about {} would settle it", figure::counted(n, "request")));
    vec![
        name,
        format!("≤ {}", spell(row.ceiling)),
        words::cell(&row.measured, spell).0,
        format!(
            "{} {}",
            figure::percent(row.share_over.value),
            figure::interval(&figure::percent(row.share_over.lower), &figure::percent(row.share_over.upper))
        ),
        figure::percent(row.allowed),
        format!("{}{}", words::held(row.verdict), needed.unwrap_or_default()),
    ]
}

/// One level in one line: what a sweep says when it has measured one.
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
