//! Sentences and cells for both the terminal and the page, so that both have equal wording.

use plimsoll_measure::findings::{
    CapacityLine, CapacityLines, ErrorCount, Estimate, Findings, Held, LengthFigures, Lengths, LevelFinding,
    LevelSummary, LoadKeptUp, LoadWords, Rates, Reading, Reason, SessionCounts, SessionTokens, Trust,
    Validity,
};
use plimsoll_measure::sweep::SATURATED_GROWTH;
use plimsoll_model::{Load, Manifest, SizeUnit};

use crate::figure;
use crate::table::TextTable;

/// Formats seconds as milliseconds, without the unit.
pub fn ms(seconds: f64) -> String {
    figure::millis(seconds * 1e9)
}

/// Formats a duration in seconds with its unit.
pub fn time(seconds: f64) -> String {
    figure::duration_ns(seconds * 1e9)
}

/// Columns of a line of text: the default width of a terminal, and the width for a pipe.
pub const WIDTH: usize = 80;

/// Returns a verdict with its mark, for a terminal: good, bad, or doubtful. It is readable without colour, which [`crate::paint()`] adds.
pub fn marked(verdict: &str) -> String {
    let mark = match verdict.to_ascii_lowercase().as_str() {
        "valid" | "pass" => "✓",
        "invalid" | "broken" => "✗",
        "short" | "suspect" | "inconclusive" | "missing" => "?",
        _ => return verdict.to_owned(),
    };
    format!("{mark} {verdict}")
}

/// Mark of a figure with too few requests for a verdict.
pub const FEW: &str = "*";
/// Explanation of the mark, and of a lower bound.
pub(crate) const FEW_SAYS: &str = "* few requests: fewer than ten are expected beyond it; ≥ or ≤: the one end of its interval that is known";

/// Explanation of the unit of `rtf` in a table of latencies.
pub(crate) const RTF_SAYS: &str = "rtf: ms of e2e per second of audio; below 1000 is faster than real time";

/// Formats value and interval of a latency, in milliseconds: `12.3` and `[11.9, 12.8]`.
///
/// A value from few requests is marked. Of an interval with an open end the known end is shown, `≥ 11.9`. A dash if there is no value.
pub(crate) fn latency_cell(reading: &Reading) -> (String, Option<String>) {
    cell(reading, ms)
}

/// Formats value and interval in any unit.
pub fn cell(reading: &Reading, spell: impl Fn(f64) -> String) -> (String, Option<String>) {
    let interval = |e: &Estimate| match (e.lower.is_finite(), e.upper.is_finite()) {
        (true, true) => Some(figure::interval(&spell(e.lower), &spell(e.upper))),
        (true, false) => Some(format!("≥ {}", spell(e.lower))),
        (false, true) => Some(format!("≤ {}", spell(e.upper))),
        (false, false) => None,
    };
    match (reading, reading.seen()) {
        (Reading::Estimate(e), _) => (spell(e.value), interval(e)),
        (_, None) => ("–".into(), None),
        (_, Some(e)) => (format!("{}{FEW}", spell(e.value)), interval(e)),
    }
}

/// Returns the run time that would remove the mark: of its p99s, and of its p99.9s unless `short`. `None` if no figure is
/// marked.
pub(crate) fn settles_in(summary: &LevelSummary, short: bool) -> Option<String> {
    let longest = |of: &dyn Fn(f64) -> bool| -> Option<f64> {
        let sets = summary.latency.all();
        let rows = sets.iter().flat_map(|set| set.rows()).filter(|(p, _)| of(*p));
        rows.filter_map(|(p, reading)| summary.settles_in_s(reading, p)).max_by(f64::total_cmp)
    };
    // A run of more than a day is not a useful recommendation.
    let needed = |name: &str, seconds: Option<f64>| {
        seconds.filter(|s| *s < 86_400.0).map(|s| format!("{} for every {name}", time(s.ceil())))
    };
    let both = [needed("p99", longest(&|p| p < 0.995)), needed("p99.9", longest(&|p| p > 0.995 && !short))];
    let all: Vec<String> = both.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("At this load, a level needs about {}.", all.join(", or ")))
}

/// Formats value and interval in one cell.
pub fn latency(reading: &Reading) -> String {
    match latency_cell(reading) {
        (value, Some(interval)) => format!("{value} {interval}"),
        (value, None) => value,
    }
}

/// Formats a rate with its interval: `812/s [780, 850]`.
pub fn rate(e: &Estimate) -> String {
    let interval = figure::interval(&figure::number(e.lower), &figure::number(e.upper));
    format!("{} {interval}", figure::per_second(e.value))
}

/// Formats the load of a level in a few characters.
pub fn load(load: &Load) -> String {
    match load {
        Load::Open { rate_per_s: 0.0 } => "all due at t=0".to_owned(),
        Load::Open { rate_per_s } => figure::per_second(*rate_per_s),
        Load::Closed { concurrency } => format!("closed, {concurrency} in flight"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("saturating, {concurrency} in flight"),
    }
}

/// Returns when the concurrency limit made an open loop follow the server, in seconds from the level's start.
fn closed_since_s(summary: &LevelSummary) -> Option<f64> {
    let since = summary.generator.closed_since?;
    Some((since - summary.window.start).as_secs_f64() + summary.window.warm_up_s)
}

/// Formats the load of a level in a table: its rate, and whether a limit throttled it.
pub(crate) fn load_kept(summary: &LevelSummary) -> String {
    match (summary.load, closed_since_s(summary)) {
        (Load::Open { .. }, Some(_)) => format!("{}, closed", load(&summary.load)),
        _ => load(&summary.load),
    }
}

/// Describes a level: the load on the target, and its duration.
pub fn level(summary: &LevelSummary) -> String {
    let kind = match summary.load {
        Load::Open { rate_per_s: 0.0 } => "open loop, all due at t=0: no rate".to_owned(),
        Load::Open { rate_per_s } => match closed_since_s(summary) {
            None => format!("open loop at {}", figure::per_second(rate_per_s)),
            Some(since) => {
                format!(
                    "closed by a ceiling since t={}, {} configured",
                    time(since),
                    figure::per_second(rate_per_s)
                )
            }
        },
        Load::Closed { concurrency } => format!("closed loop, {concurrency} in flight"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("saturating, {concurrency} in flight"),
    };
    format!("{} ({kind})", summary.traffic)
}

/// Describes the mix of lengths, for which the lines are valid.
pub fn mix(lengths: &Lengths) -> String {
    let side = |f: &LengthFigures, name: &str| {
        if f.asked_p99 > f.asked_p50 * 1.01 {
            format!(
                "{} {name} (mean {}, p99 {})",
                figure::number(f.asked_p50),
                figure::number(f.asked_mean),
                figure::number(f.asked_p99)
            )
        } else {
            format!("{} {name}", figure::number(f.asked_mean))
        }
    };
    if lengths.unit == SizeUnit::Items {
        let one = lengths.prompt.asked_mean == 1.0;
        return side(&lengths.prompt, if one { "item a request" } else { "items a request" });
    }
    let prompt = side(&lengths.prompt, "prompt tokens");
    let mut text = match lengths.output.asked_p99 {
        // No tokens were generated, and none requested.
        0.0 if lengths.output.reported == 0 => prompt,
        _ => format!("{prompt}, {}", side(&lengths.output, "output tokens")),
    };
    if let Some(cached) = lengths.cached_share {
        text.push_str(&format!(", {} of the prompt from the server's cache", figure::percent(cached)));
    }
    text
}

/// Returns the note on the times of a run over HTTP/2.
pub fn http2(manifest: &Manifest) -> Option<&'static str> {
    let said = |path: &str| manifest.scenario.pointer(path);
    let is_over = said("/target/http").is_some_and(|version| version == "2")
        || said("/target/protocol").is_some_and(|protocol| protocol == "kserve_grpc");
    let alone = said("/target/streams_per_connection").is_some_and(|most| *most == 1);
    is_over.then_some(match alone {
        true => "Over HTTP/2, one request at a time on each connection",
        false => "Over HTTP/2: requests share connections, and all events of one read have the timestamp of its last byte",
    })
}

/// Returns the number of sessions, and their outcomes.
pub(crate) fn sessions(counts: &SessionCounts, is_chain: bool) -> String {
    let n = |n: u64, what: &str| (n > 0).then(|| format!("{} {what}", figure::count(n)));
    let mean = counts.turns as f64 / counts.begun.max(1) as f64;
    let all = match is_chain {
        true => format!("{} of {mean} stages", figure::counted(counts.begun, "chain")),
        false => {
            let sessions = figure::counted(counts.begun, "session");
            format!("{sessions} of {} turns on average", figure::number(mean))
        }
    };
    let parts = [
        Some(all),
        n(counts.failed, "failed"),
        n(counts.cancelled, "left on purpose"),
        n(counts.not_counted, "not counted (from the first that the end of the level cut short)"),
        n(counts.broken_off, "of their requests never sent, because an earlier one had no answer"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// Describes the mean tokens of a session.
pub(crate) fn session_tokens(tokens: &SessionTokens) -> String {
    let share = |part: f64, of: f64| figure::percent(part / of.max(1.0));
    let mut parts = vec![format!(
        "each {} prompt and {} output tokens",
        figure::number(tokens.prompt),
        figure::number(tokens.output)
    )];
    if let Some(resent) = tokens.resent {
        parts.push(format!("{} of the prompt sent before by an earlier turn", share(resent, tokens.prompt)));
    }
    if let Some(cached) = tokens.cached {
        parts.push(format!("{} of it from the server's cache", share(cached, tokens.prompt)));
    }
    if let (Some(resent), Some(again)) = (tokens.resent, tokens.computed_again) {
        parts.push(format!("{} of what was sent before computed again", share(again, resent)));
    }
    parts.join(", ")
}

/// Returns the tokens of a session as a table: the kind, the mean of a session, the share of its prompt.
pub(crate) fn session_table(counts: &SessionCounts, rates: &Rates) -> TextTable {
    let mut table = TextTable::new(&["<of a session", "mean", "share"]);
    let Some(tokens) = &counts.tokens else { return table };
    let share = |part: f64| figure::percent(part / tokens.prompt.max(1.0));
    let part =
        |what: &str, part: Option<f64>| part.map(|part| [what.to_owned(), figure::number(part), share(part)]);
    let plain = |what: &str, value: f64| Some([what.to_owned(), figure::number(value), String::new()]);
    let rows = [
        plain("prompt tokens", tokens.prompt),
        part("sent before by an earlier turn", tokens.resent),
        part("from the server's cache", tokens.cached),
        part("sent before and computed again", tokens.computed_again),
        plain("output tokens", tokens.output),
        rates
            .sessions_per_s
            .as_ref()
            .and_then(Reading::value)
            .and_then(|rate| plain("ended well, 1/s", rate)),
    ];
    rows.into_iter().flatten().for_each(|row| table.row(row));
    table
}

/// Expresses the load in tokens, requests in flight and users.
pub fn load_words(words: &LoadWords, think_time_s: f64) -> String {
    let mut parts = Vec::new();
    if let Some(tokens) = words.input_tokens_per_s {
        parts.push(format!("{} prompt tokens/s", figure::number(tokens)));
    }
    if let Some(tokens) = words.output_tokens_per_s {
        parts.push(format!("{} output tokens/s", figure::number(tokens)));
    }
    if let Some(items) = words.items_per_s {
        parts.push(format!("{} items/s", figure::number(items)));
    }
    if let Some(in_flight) = words.in_flight {
        parts.push(format!("{} in flight", figure::number(in_flight)));
    }
    if let Some(users) = words.users {
        parts.push(format!("{} users at {} think time", figure::number(users), time(think_time_s)));
    }
    parts.join(", ")
}

/// Returns the three lines of one kind of traffic with their names, in ascending order of load.
pub(crate) fn named_lines(lines: &CapacityLines) -> Vec<(String, &CapacityLine)> {
    let onset = not_p99(lines).map_or_else(String::new, |p| format!(" by {p}"));
    let mut named =
        vec![(format!("queueing onset{onset}"), &lines.onset), ("stability limit".into(), &lines.stability)];
    if let Some(budget) = &lines.budget {
        named.push(("budget limit".into(), budget));
    }
    named
}

/// Returns the percentile of the onset if it is not the p99 that defines it, because the text must name it.
pub(crate) fn not_p99(lines: &CapacityLines) -> Option<String> {
    let p = lines.onset_percentile?;
    ((p - 0.99).abs() > 1e-9).then(|| format!("p{}", crate::figure::centile(p)))
}

/// Returns a line's figure, and the sentence that explains it.
pub fn line(line: &CapacityLine) -> (String, &str) {
    match line {
        CapacityLine::Found { rate: estimate, how, .. } => (rate(estimate), how),
        CapacityLine::Above { rate_per_s, why, .. } => {
            (format!("above {}", figure::per_second(*rate_per_s)), why)
        }
        CapacityLine::Below { rate_per_s, why } => {
            (format!("below {}", figure::per_second(*rate_per_s)), why)
        }
        CapacityLine::CannotTell { why } => ("inconclusive".into(), why),
    }
}

/// Returns the word for a trust verdict.
pub fn trust(trust: Trust) -> &'static str {
    match trust {
        Trust::Valid => "valid",
        Trust::Short => "short",
        Trust::Suspect => "suspect",
        Trust::Invalid => "invalid",
    }
}

/// Returns the word for a stability verdict.
pub fn kept(kept: LoadKeptUp) -> &'static str {
    match kept {
        LoadKeptUp::Stable => "stable",
        LoadKeptUp::Undecided => "undecided",
        LoadKeptUp::Unstable => "unstable",
    }
}

/// Returns the word for a budget verdict.
pub fn held(held: Held) -> &'static str {
    match held {
        Held::Pass => "pass",
        Held::Inconclusive => "inconclusive",
        Held::Fail => "broken",
    }
}

/// Equal reasons of several levels, as one.
pub struct ReasonGroup<'a> {
    /// Worst reason: the first, because reasons are sorted worst first.
    pub worst: &'a Reason,
    /// Levels with this reason: `on level 3`, `on levels 3, 5 and 7 (the worst: 3)`, or empty for the run.
    pub levels: String,
}

/// Groups reasons of equal check and meaning; the order is that of each group's worst.
pub fn grouped(reasons: &[Reason]) -> Vec<ReasonGroup<'_>> {
    let mut groups: Vec<(&Reason, Vec<u32>)> = Vec::new();
    for reason in reasons {
        let same =
            |known: &&mut (&Reason, Vec<u32>)| known.0.check == reason.check && known.0.means == reason.means;
        match groups.iter_mut().find(same) {
            Some((_, levels)) => levels.extend(reason.level),
            None => groups.push((reason, reason.level.into_iter().collect())),
        }
    }
    groups
        .into_iter()
        .map(|(worst, levels)| ReasonGroup { worst, levels: level_list(worst.level, levels) })
        .collect()
}

fn level_list(worst: Option<u32>, mut levels: Vec<u32>) -> String {
    levels.sort_unstable();
    levels.dedup();
    let names: Vec<String> = levels.iter().map(u32::to_string).collect();
    match (names.as_slice(), worst) {
        ([], _) => String::new(),
        ([only], _) => format!("on level {only}"),
        (several, Some(worst)) => format!("on levels {} (figures of {worst})", several.join(", ")),
        (several, None) => format!("on levels {}", several.join(", ")),
    }
}

/// Returns the text below the verdict if there is neither a reason nor a passed check. An empty heading would be omitted together
/// with the verdict.
pub fn unchecked(validity: &Validity) -> Option<&'static str> {
    (validity.reasons.is_empty() && validity.passed.is_empty()).then_some("No check applied.")
}

/// Formats a phrase as a sentence: a capital first, one full stop last.
pub fn sentence(part: &str) -> String {
    let mut letters = part.trim().trim_end_matches('.').chars();
    match letters.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

/// Returns the level of a saturating run with the highest throughput; `None` for any other run.
pub fn saturated(findings: &Findings) -> Option<&LevelFinding> {
    let all = findings.levels.iter();
    let saturating = all.filter(|level| matches!(level.summary.load, Load::Saturating { .. }));
    let done = |level: &&LevelFinding| level.summary.rates.achieved_per_s.value().unwrap_or(0.0);
    saturating.max_by(|a, b| done(a).total_cmp(&done(b)))
}

/// Returns whether the last step of a saturating run still exceeded all before it. Then a ceiling, the time or the user ended the
/// search, and the target's capacity is unknown.
pub(crate) fn still_grew(findings: &Findings) -> bool {
    let steps = findings.levels.iter().filter_map(|level| match level.summary.load {
        Load::Saturating { concurrency } => Some((concurrency, level.summary.rates.achieved_per_s.value()?)),
        _ => None,
    });
    let mut steps: Vec<(u32, f64)> = steps.collect();
    steps.sort_by_key(|step| step.0);
    let Some((_, last)) = steps.pop() else { return false };
    let before = steps.iter().map(|step| step.1).fold(0.0, f64::max);
    last >= before * (1.0 + SATURATED_GROWTH)
}

/// Formats an error in one line: `12 × client error (HTTP 404): the model does not exist`.
pub fn error(error: &ErrorCount) -> String {
    let status = error.status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
    let text = if error.text.is_empty() { String::new() } else { format!(": {}", error.text) };
    format!("{} × {}{status}{text}", figure::count(error.attempts), error.how.name().replace('_', " "))
}

/// Returns a note on answers that were requested as a stream and arrived in one piece.
pub fn in_one_event(manifest: &Manifest, summary: &LevelSummary) -> Option<String> {
    let records = &summary.records;
    let (one, of) = (records.in_one_event, records.multi_token);
    let asked = manifest.scenario.pointer("/target/stream").and_then(serde_json::Value::as_bool);
    if asked == Some(false) || one == 0 {
        return None;
    }
    let means = match 2 * one > of {
        true => "the server did not stream them, so ttft does not exist",
        false => "their ttft, where there is one, is the time of the whole answer",
    };
    Some(format!("{} of {} came in one event: {means}", figure::count(one), figure::counted(of, "answer")))
}

/// Describes a load from several machines: their number, and the difference of their clocks.
pub fn shards(manifest: &Manifest) -> Option<String> {
    let of = manifest.shards.first()?.shard.of;
    let apart = manifest.levels.iter().filter_map(|level| Some(level.generator.shards?.clocks_apart_ns));
    // If the difference of one level is unknown, so is the largest.
    let apart = apart.collect::<Option<Vec<i64>>>().and_then(|each| each.into_iter().max());
    let clocks = match apart {
        Some(ns) => format!("no two of their clocks more than {} apart", figure::duration_ns(ns as f64)),
        None => "the errors of their clocks are unknown".to_owned(),
    };
    Some(format!("Sent by {of} shards, {clocks}"))
}

/// Describes the load protocol beyond the level's own line: an end by requests, a wave, a warm-up.
pub fn protocol(manifest: &Manifest) -> Option<String> {
    let load = manifest.scenario.get("load")?;
    let number = |key: &str| load.get(key).and_then(serde_json::Value::as_u64);
    let ends = match (load.get("mode")?.as_str()?, number("requests")) {
        ("wave", Some(n)) => {
            Some(format!("one wave of {} sent together, until all have ended", figure::counted(n, "request")))
        }
        ("closed", Some(n)) => {
            let concurrency = number("concurrency").unwrap_or_default();
            let requests = figure::counted(n, "request");
            let have = if n == 1 { "has" } else { "have" };
            Some(format!("closed loop, {concurrency} in flight until {requests} {have} ended"))
        }
        _ => None,
    };
    let warm_up = number("warm_up").filter(|n| *n > 0);
    let warm_up = warm_up
        .map(|n| format!("{} before, in the rows and in no figure", figure::counted(n, "warm-up request")));
    let alone = number("alone").filter(|n| *n > 0);
    let alone = alone.map(|n| {
        format!(
            "{} isolated before the load, for a diagnosis and in no figure here",
            figure::counted(n, "request")
        )
    });
    let said: Vec<String> = [ends, warm_up, alone].into_iter().flatten().collect();
    (!said.is_empty()).then(|| format!("Protocol: {}", said.join("; ")))
}

/// Breaks a sentence into lines of a hundred columns, each indented.
pub(crate) fn wrap(indent: usize, text: &str) -> String {
    wrap_at(indent, text, WIDTH)
}

/// Breaks a sentence into lines of `width` columns, each indented.
pub(crate) fn wrap_at(indent: usize, text: &str, width: usize) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    let pad = " ".repeat(indent);
    // A figure and its per cent sign stay together: no line ends at a character that is not a space.
    let text = text.replace(" %", "\u{1}%");
    for word in text.split_whitespace() {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > width {
            out.push_str(&format!("{pad}{line}\n"));
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    if !line.is_empty() {
        out.push_str(&format!("{pad}{line}\n"));
    }
    out.replace("\u{1}%", " %")
}
