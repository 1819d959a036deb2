//! Sentences and cells that the terminal and the page share, so that both say the same thing in the same words.

use plimsoll_measure::findings::{
    CapacityLine, CapacityLines, ErrorCount, Estimate, Findings, Held, KeptUp, LengthFigures, Lengths,
    LevelFinding, LevelSummary, LoadWords, Rates, Reading, Reason, SessionCounts, SessionTokens, Trust,
    Validity,
};
use plimsoll_measure::sweep::SATURATED_GROWTH;
use plimsoll_model::{Load, Manifest, SizeUnit};

use crate::figure;
use crate::table::Table;

/// Seconds as milliseconds, without the unit.
pub fn ms(seconds: f64) -> String {
    figure::millis(seconds * 1e9)
}

/// A duration in seconds with its unit.
pub fn time(seconds: f64) -> String {
    figure::duration_ns(seconds * 1e9)
}

/// Columns of a line of words: those of a terminal that nobody has widened, and of a pipe.
pub const WIDTH: usize = 80;

/// A verdict with its mark, for a terminal: what is well, what is wrong, what is doubtful. Readable without colour, which [`crate::paint()`] adds.
pub fn marked(verdict: &str) -> String {
    let mark = match verdict.to_ascii_lowercase().as_str() {
        "valid" | "holds" => "✓",
        "invalid" | "broken" => "✗",
        "short" | "suspect" | "cannot tell" | "missing" => "?",
        _ => return verdict.to_owned(),
    };
    format!("{mark} {verdict}")
}

/// Marks a figure from too few requests for a verdict.
pub const FEW: &str = "*";
/// What the mark says, and what a lower bound is.
pub(crate) const FEW_SAYS: &str = "* few requests: fewer than ten are expected beyond it; ≥ or ≤: the one end of its interval that is known";

/// Value and interval of a latency, in milliseconds: `12.3` and `[11.9, 12.8]`. From few requests it is marked. Of an interval with an open end
/// the known one is shown, `≥ 11.9`. A dash where nothing was seen.
pub(crate) fn latency_cell(reading: &Reading) -> (String, Option<String>) {
    cell(reading, ms)
}

/// The same in any unit.
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

/// How long a run of this load would have to be for what is marked few: its p99s, and its p99.9s unless `short`. `None` where
/// nothing is.
pub(crate) fn settles_in(summary: &LevelSummary, short: bool) -> Option<String> {
    let longest = |of: &dyn Fn(f64) -> bool| -> Option<f64> {
        let sets = summary.latency.all();
        let rows = sets.iter().flat_map(|set| set.rows()).filter(|(p, _)| of(*p));
        rows.filter_map(|(p, reading)| summary.settles_in_s(reading, p)).max_by(f64::total_cmp)
    };
    // More than a day is no advice.
    let said = |name: &str, seconds: Option<f64>| {
        seconds.filter(|s| *s < 86_400.0).map(|s| format!("{} settles every {name}", time(s.ceil())))
    };
    let both = [said("p99", longest(&|p| p < 0.995)), said("p99.9", longest(&|p| p > 0.995 && !short))];
    let all: Vec<String> = both.into_iter().flatten().collect();
    (!all.is_empty()).then(|| format!("At this load a level of about {}.", all.join(", one of ")))
}

/// Value and interval in one cell.
pub fn latency(reading: &Reading) -> String {
    match latency_cell(reading) {
        (value, Some(interval)) => format!("{value} {interval}"),
        (value, None) => value,
    }
}

/// A rate with its interval: `812/s [780, 850]`.
pub fn rate(e: &Estimate) -> String {
    let interval = figure::interval(&figure::number(e.lower), &figure::number(e.upper));
    format!("{} {interval}", figure::per_second(e.value))
}

/// The load of a level in a few characters.
pub fn load(load: &Load) -> String {
    match load {
        Load::Open { rate_per_s: 0.0 } => "all at once".to_owned(),
        Load::Open { rate_per_s } => figure::per_second(*rate_per_s),
        Load::Closed { concurrency } => format!("closed, {concurrency} in flight"),
        Load::Wave { requests } => format!("one wave of {requests}"),
        Load::Saturating { concurrency } => format!("saturating, {concurrency} in flight"),
    }
}

/// When a ceiling made an open loop follow the server, from the level's start.
fn closed_since_s(summary: &LevelSummary) -> Option<f64> {
    let since = summary.generator.closed_since?;
    Some((since - summary.window.start).as_secs_f64() + summary.window.warm_up_s)
}

/// The load of a level in a table: its rate, and whether a ceiling held it back.
pub(crate) fn load_kept(summary: &LevelSummary) -> String {
    match (summary.load, closed_since_s(summary)) {
        (Load::Open { .. }, Some(_)) => format!("{}, closed", load(&summary.load)),
        _ => load(&summary.load),
    }
}

/// A level in words: what was put on the target, for how long.
pub fn level(summary: &LevelSummary) -> String {
    let kind = match summary.load {
        Load::Open { rate_per_s: 0.0 } => "open loop, all due at once: cannot tell a rate".to_owned(),
        Load::Open { rate_per_s } => match closed_since_s(summary) {
            None => format!("open loop, {} asked", figure::per_second(rate_per_s)),
            Some(since) => {
                format!(
                    "closed by a ceiling since t={}, {} asked",
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

/// What the mix of lengths is, for the lines to hold for.
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
        // Nothing was generated, and nothing asked for.
        0.0 if lengths.output.reported == 0 => prompt,
        _ => format!("{prompt}, {}", side(&lengths.output, "output tokens")),
    };
    if let Some(cached) = lengths.cached_share {
        text.push_str(&format!(", {} of the prompt from the server's cache", figure::percent(cached)));
    }
    text
}

/// What of a run over HTTP/2 is to be known before its times are read.
pub fn http2(manifest: &Manifest) -> Option<&'static str> {
    let said = |path: &str| manifest.scenario.pointer(path);
    let is_over = said("/target/http").is_some_and(|version| version == "2")
        || said("/target/protocol").is_some_and(|protocol| protocol == "kserve_grpc");
    let alone = said("/target/streams_per_connection").is_some_and(|most| *most == 1);
    is_over.then_some(match alone {
        true => "Over HTTP/2, one request at a time on each connection",
        false => "Over HTTP/2: requests share connections, and all that one read brings has the stamp of its last byte",
    })
}

/// How many sessions there were, and what became of them.
pub fn sessions(counts: &SessionCounts) -> String {
    let n = |n: u64, what: &str| (n > 0).then(|| format!("{} {what}", figure::count(n)));
    let mean = figure::number(counts.turns as f64 / counts.begun.max(1) as f64);
    let parts = [
        Some(format!("{} of {mean} turns on average", figure::counted(counts.begun, "session"))),
        n(counts.failed, "failed"),
        n(counts.cancelled, "left on purpose"),
        n(counts.not_counted, "not counted (from the first that the end of the level cut short)"),
        n(counts.broken_off, "of their turns never sent, because an earlier one had no answer"),
    ];
    parts.into_iter().flatten().collect::<Vec<_>>().join(", ")
}

/// What a session comes to in tokens, on average.
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

/// The same as a table: what, the mean of a session, the share of its prompt.
pub(crate) fn session_table(counts: &SessionCounts, rates: &Rates) -> Table {
    let mut table = Table::new(&["<of a session", "mean", "share"]);
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

/// The same load in tokens, requests in flight and users.
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

/// The three lines of one kind of traffic with their names, in the order in which they are crossed.
pub(crate) fn named_lines(lines: &CapacityLines) -> Vec<(String, &CapacityLine)> {
    let onset = not_p99(lines).map_or_else(String::new, |p| format!(" by {p}"));
    let mut named =
        vec![(format!("queueing onset{onset}"), &lines.onset), ("stability limit".into(), &lines.stability)];
    if let Some(budget) = &lines.budget {
        named.push(("budget line".into(), budget));
    }
    named
}

/// The percentile that the onset was read from, where it is not the p99 that defines it: another figure, which must say so.
pub(crate) fn not_p99(lines: &CapacityLines) -> Option<String> {
    let p = lines.onset_percentile?;
    ((p - 0.99).abs() > 1e-9).then(|| format!("p{}", crate::figure::centile(p)))
}

/// A line's figure, and the sentence that explains it.
pub fn line(line: &CapacityLine) -> (String, &str) {
    match line {
        CapacityLine::Found { rate: estimate, how, .. } => (rate(estimate), how),
        CapacityLine::Above { rate_per_s, why, .. } => {
            (format!("above {}", figure::per_second(*rate_per_s)), why)
        }
        CapacityLine::Below { rate_per_s, why } => {
            (format!("below {}", figure::per_second(*rate_per_s)), why)
        }
        CapacityLine::CannotTell { why } => ("cannot tell".into(), why),
    }
}

/// The word for a trust verdict.
pub fn trust(trust: Trust) -> &'static str {
    match trust {
        Trust::Valid => "valid",
        Trust::Short => "short",
        Trust::Suspect => "suspect",
        Trust::Invalid => "invalid",
    }
}

/// The word for a stability verdict.
pub fn kept(kept: KeptUp) -> &'static str {
    match kept {
        KeptUp::Stable => "stable",
        KeptUp::Undecided => "undecided",
        KeptUp::Unstable => "unstable",
    }
}

/// The word for a budget verdict.
pub fn held(held: Held) -> &'static str {
    match held {
        Held::Pass => "holds",
        Held::Inconclusive => "cannot tell",
        Held::Fail => "broken",
    }
}

/// Reasons that say the same of several levels, as one.
pub struct Group<'a> {
    /// The worst of them: the first, as they come worst first.
    pub worst: &'a Reason,
    /// `on level 3`, `on levels 3, 5 and 7 (the worst: 3)`, or empty for the run.
    pub levels: String,
}

/// Puts reasons of the same check and meaning together; the order stays that of each group's worst.
pub fn grouped(reasons: &[Reason]) -> Vec<Group<'_>> {
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
        .map(|(worst, levels)| Group { worst, levels: level_list(worst.level, levels) })
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

/// What stands below the verdict where neither a reason nor a passed check does: a heading with nothing below it goes, and with it the verdict.
pub fn unchecked(validity: &Validity) -> Option<&'static str> {
    (validity.reasons.is_empty() && validity.passed.is_empty()).then_some("No check applied.")
}

/// A sentence part as a sentence: a capital first, one full stop last.
pub fn sentence(part: &str) -> String {
    let mut letters = part.trim().trim_end_matches('.').chars();
    match letters.next() {
        Some(first) => format!("{}{}.", first.to_uppercase(), letters.as_str()),
        None => String::new(),
    }
}

/// The level of a saturating run at which most was done; `None` for any other run.
pub fn saturated(findings: &Findings) -> Option<&LevelFinding> {
    let all = findings.levels.iter();
    let saturating = all.filter(|level| matches!(level.summary.load, Load::Saturating { .. }));
    let done = |level: &&LevelFinding| level.summary.rates.achieved_per_s.value().unwrap_or(0.0);
    saturating.max_by(|a, b| done(a).total_cmp(&done(b)))
}

/// Did the last step of a saturating run still do more than any before it? Then a ceiling, the time or the user ended the search, and
/// what the target can do is not known.
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

/// An error in one line: `12 × client error (HTTP 404): the model does not exist`.
pub fn error(error: &ErrorCount) -> String {
    let status = error.status.map(|status| format!(" (HTTP {status})")).unwrap_or_default();
    let said = if error.text.is_empty() { String::new() } else { format!(": {}", error.text) };
    format!("{} × {}{status}{said}", figure::count(error.attempts), error.how.name().replace('_', " "))
}

/// Answers of which a stream was asked and which came in one piece.
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

/// Of a load that several machines sent: how many, and how far apart their clocks were.
pub fn shards(manifest: &Manifest) -> Option<String> {
    let of = manifest.shards.first()?.shard.of;
    let apart = manifest.levels.iter().filter_map(|level| Some(level.generator.shards?.clocks_apart_ns));
    // Where one level's are unknown, nobody knows of all.
    let apart = apart.collect::<Option<Vec<i64>>>().and_then(|each| each.into_iter().max());
    let clocks = match apart {
        Some(ns) => format!("no two of their clocks more than {} apart", figure::duration_ns(ns as f64)),
        None => "the errors of their clocks are unknown".to_owned(),
    };
    Some(format!("Sent by {of} shards, {clocks}"))
}

/// How the load was put on, where more is to be said than the level's own line does: an end by requests, a wave, a warm-up.
pub fn protocol(manifest: &Manifest) -> Option<String> {
    let load = manifest.scenario.get("load")?;
    let number = |key: &str| load.get(key).and_then(serde_json::Value::as_u64);
    let ends = match (load.get("mode")?.as_str()?, number("requests")) {
        ("wave", Some(n)) => {
            Some(format!("one wave of {} at once, as long as they take", figure::counted(n, "request")))
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

/// A sentence broken into lines of a hundred columns, each indented.
pub(crate) fn wrap(indent: usize, text: &str) -> String {
    wrap_at(indent, text, WIDTH)
}

/// The same at another width.
pub(crate) fn wrap_at(indent: usize, text: &str, width: usize) -> String {
    let (mut out, mut line) = (String::new(), String::new());
    let pad = " ".repeat(indent);
    // A figure and its per cent sign stay together: no line ends at a character that is no space.
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
