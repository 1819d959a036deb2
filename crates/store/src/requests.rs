//! `requests.parquet`: one row per attempt, from one list of columns for its schema, writing and reading.
//!
//! Times are INT64 nanoseconds since the run began (`…_ns`), null where the stamp was not reached; event offsets
//! count from `sent_ns`. Event kinds are numbers, whose names are in the footer under `plimsoll.event_kinds`: a
//! name per event would double the time to read a run. Rows are in the order in which attempts ended.

use std::path::Path;

use plimsoll_model::{At, Attempt, Broken, By, Event, EventKind, How, ServerStage, Span, TokensRule};

use crate::error::Result;
use crate::reader::Columns;
use crate::table::{
    Column, Part, Table, Taken, each_batch, each_fact, each_group, list, maybe, maybe_text, maybe_word,
    not_zero, one, read_rows, texts, word,
};

/// A row group ends at so many rows, …
const GROUP_ROWS: usize = 64 << 10;
/// … so many events and blocks, …
const GROUP_VALUES: usize = 2 << 20;
/// … or so many bytes of text: what is held in memory while a run is written.
const GROUP_TEXT: usize = 64 << 20;

/// `requests.parquet` being written.
pub(crate) struct RequestsFile {
    table: Table<Attempt>,
    rows: Vec<Attempt>,
    group: Group,
}

/// What a row group holds so far.
#[derive(Default)]
struct Group {
    rows: usize,
    values: usize,
    text: usize,
}

impl Group {
    /// Counts a row in; true when the group is to end with it.
    fn ends_with(&mut self, attempt: &Attempt) -> bool {
        let len = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        self.rows += 1;
        self.values += attempt.events.len() + attempt.prompt_blocks.len() + attempt.answer.stages.len();
        self.text += len(&attempt.answer.text) + len(&attempt.answer.error);
        self.rows >= GROUP_ROWS || self.values >= GROUP_VALUES || self.text >= GROUP_TEXT
    }
}

impl RequestsFile {
    pub(crate) fn create(path: &Path) -> Result<RequestsFile> {
        let kinds = EventKind::ALL.map(EventKind::name).join(",");
        let notes = [
            ("plimsoll.schema", plimsoll_model::run::SCHEMA_VERSION.to_string()),
            ("plimsoll.event_kinds", kinds),
        ];
        let table = Table::create(path, "requests", &notes, wanted(Columns::All))?;
        Ok(RequestsFile { table, rows: Vec::new(), group: Group::default() })
    }

    pub(crate) fn push(&mut self, attempt: Attempt) -> Result<()> {
        let ends = self.group.ends_with(&attempt);
        self.rows.push(attempt);
        if ends { self.flush() } else { Ok(()) }
    }

    /// Writes rows that are all in memory, in the groups that pushing them one by one would make.
    pub(crate) fn write(&mut self, mut rows: &[Attempt]) -> Result<()> {
        while !rows.is_empty() {
            let mut group = Group::default();
            let end = rows.iter().position(|row| group.ends_with(row)).map_or(rows.len(), |last| last + 1);
            let (now, later) = rows.split_at(end);
            self.table.group(now)?;
            rows = later;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.table.group(&self.rows)?;
        self.rows.clear();
        self.group = Group::default();
        Ok(())
    }

    pub(crate) fn close(mut self) -> Result<()> {
        if !self.rows.is_empty() {
            self.flush()?;
        }
        self.table.close()
    }
}

/// A column that is one field.
macro_rules! field {
    ($kind:ident, $name:literal, $($field:tt).+) => {
        $kind($name, |a: &Attempt| a.$($field).+, |a: &mut Attempt, value| a.$($field).+ = value)
    };
}

/// A column that is one field, of a text that may be missing.
macro_rules! text_field {
    ($name:literal, $($field:tt).+) => {
        maybe_text(
            $name,
            |a: &Attempt| a.$($field).+.as_deref(),
            |a: &mut Attempt, text| {
                a.$($field).+ = text.map(str::to_owned);
                Ok(())
            },
        )
    };
}

/// A column that is one field, of few words by their names.
macro_rules! named {
    ($kind:ident, $name:literal, $words:ident, $($field:tt).+) => {
        $kind(
            $name,
            |a: &Attempt| a.$($field).+,
            ($words::name, $words::from_name),
            |a: &mut Attempt, word| a.$($field).+ = word,
        )
    };
}

/// The columns, in order, and the least of them with which each is read. A row may have held another attempt before: whatever is set is set for every row.
fn columns() -> Vec<(Columns, Column<Attempt>)> {
    use Columns::{All, Budget, Course, Figures, Findings};
    vec![
        (Course, field!(one, "request", request).deltas()),
        (Course, field!(one, "attempt", attempt)),
        (Course, field!(one, "level", level)),
        (Findings, field!(maybe, "session", session)),
        (Findings, field!(one, "turn", turn)),
        (Findings, field!(not_zero, "turns", turns)),
        (Findings, field!(one, "class", class)),
        (
            Findings,
            maybe(
                "target",
                |a: &Attempt| Some(a.target),
                |a: &mut Attempt, target| a.target = target.unwrap_or(0),
            ),
        ),
        (Course, field!(one, "due_ns", due).deltas()),
        (Findings, field!(maybe, "sent_ns", sent).deltas()),
        (Figures, field!(maybe, "connected_ns", connected).deltas()),
        (Findings, field!(maybe, "first_byte_ns", first_byte).deltas()),
        (Findings, field!(maybe, "first_token_ns", first_token).deltas()),
        (Findings, field!(maybe, "first_visible_ns", first_visible).deltas()),
        (Findings, field!(maybe, "last_token_ns", last_token).deltas()),
        (Course, field!(maybe, "end_ns", end).deltas()),
        (Findings, list("event_offset_ns", events, |e| e.offset.0, begin_events).deltas()),
        (Findings, list("event_kind", events, |e| e.kind as u8, event_kinds)),
        (Findings, list("event_tokens", events, |e| e.tokens, each_event(|event, n| event.tokens = n))),
        (
            Findings,
            list("event_coalesced", events, |e| e.coalesced, each_event(|event, is| event.coalesced = is)),
        ),
        (
            All,
            list(
                "event_user_delay_ns",
                events,
                |e| e.user_delay_ns,
                each_event(|event, delay| event.user_delay_ns = delay),
            )
            .deltas(),
        ),
        (Findings, field!(one, "asked_prompt_tokens", asked_prompt)),
        (Findings, field!(maybe, "resent_tokens", resent)),
        (Findings, field!(one, "asked_output_tokens", asked_output)),
        (Findings, field!(maybe, "prompt_tokens", answer.tokens.prompt)),
        (Findings, field!(maybe, "output_tokens", answer.tokens.output)),
        (Findings, field!(maybe, "reasoning_tokens", answer.tokens.reasoning)),
        (Findings, field!(maybe, "cached_tokens", answer.tokens.cached)),
        (Findings, field!(maybe, "claimed_output_tokens", answer.tokens.claimed)),
        (Findings, named!(word, "tokens_rule", TokensRule, answer.tokens.rule)),
        (All, list("prompt_blocks", |a: &Attempt| a.prompt_blocks.as_slice(), |block| *block, blocks)),
        (Findings, field!(not_zero, "images", media.images)),
        (Findings, field!(not_zero, "image_pixels", media.pixels)),
        (Findings, field!(not_zero, "audio_ms", media.audio_ms)),
        (Findings, field!(not_zero, "documents", media.documents)),
        (Figures, field!(one, "bytes_out", bytes_out)),
        (Figures, field!(one, "bytes_in", bytes_in).deltas()),
        (Findings, field!(maybe, "connection", connection)),
        (Figures, field!(one, "reused", reused)),
        (Findings, field!(maybe, "tcp_rtt_ns", tcp.rtt)),
        (Figures, field!(maybe, "tcp_rtt_var_ns", tcp.rtt_var)),
        (Findings, field!(maybe, "tcp_rtt_min_ns", tcp.rtt_min)),
        (Findings, field!(maybe, "tcp_retransmits", tcp.retransmits)),
        (Findings, field!(maybe, "tcp_segments_out", tcp.segments_out)),
        (Findings, field!(maybe, "tcp_segments_in", tcp.segments_in)),
        (Findings, field!(maybe, "tcp_out_of_order", tcp.out_of_order)),
        (Findings, field!(one, "kernel_stamps", kernel_stamps)),
        (Findings, field!(maybe, "status", answer.status)),
        (Figures, text_field!("finish_reason", answer.finish_reason)),
        (Figures, field!(maybe, "retry_after_ns", answer.retry_after)),
        (Course, named!(word, "outcome", How, outcome.how)),
        (Findings, named!(word, "outcome_by", By, outcome.by)),
        (Figures, field!(one, "retryable", outcome.retryable)),
        (Findings, named!(maybe_word, "broken", Broken, answer.broken)),
        (Findings, text_field!("error", answer.error)),
        (Figures, text_field!("replica", answer.replica)),
        (Budget, texts("stage_name", stages, |stage| stage.name.as_str(), begin_stages)),
        (Budget, list("stage_ns", stages, |stage| stage.took.0, stage_times).deltas()),
        (All, text_field!("text", answer.text)),
    ]
}

/// The columns of which these are read.
fn wanted(of: Columns) -> Vec<Column<Attempt>> {
    let holds = |least: Columns| match least {
        Columns::Course => true,
        Columns::Findings => of != Columns::Course,
        least => of == least || of == Columns::All,
    };
    columns().into_iter().filter(|(least, _)| holds(*least)).map(|(_, column)| column).collect()
}

fn events(a: &Attempt) -> &[Event] {
    &a.events
}

fn stages(a: &Attempt) -> &[ServerStage] {
    &a.answer.stages
}

/// Events at these offsets, of which nothing else is known yet.
fn begin_events(a: &mut Attempt, offsets: &[i64]) -> Taken {
    let at = |offset: &i64| Event {
        offset: Span(*offset),
        user_delay_ns: 0,
        tokens: 0,
        kind: EventKind::Content,
        coalesced: false,
    };
    a.events.clear();
    a.events.extend(offsets.iter().map(at));
    Ok(())
}

fn event_kinds(a: &mut Attempt, kinds: &[u8]) -> Taken {
    if let Some(kind) = kinds.iter().find(|kind| EventKind::from_u8(**kind).is_none()) {
        return Err(format!("event_kind: {kind} is none"));
    }
    each_event(|event, kind| event.kind = EventKind::from_u8(kind).unwrap_or(event.kind))(a, kinds)
}

/// Sets something of each event that there is.
fn each_event<T: Copy>(set: impl Fn(&mut Event, T) + Part) -> impl Fn(&mut Attempt, &[T]) -> Taken + Part {
    move |a, values| {
        if values.len() != a.events.len() {
            return Err("event lists differ in length".into());
        }
        a.events.iter_mut().zip(values).for_each(|(event, value)| set(event, *value));
        Ok(())
    }
}

fn blocks(a: &mut Attempt, blocks: &[u64]) -> Taken {
    a.prompt_blocks = blocks.to_vec();
    Ok(())
}

fn begin_stages(a: &mut Attempt, names: Vec<String>) -> Taken {
    a.answer.stages.clear();
    a.answer.stages.extend(names.into_iter().map(|name| ServerStage { name, took: Span::ZERO }));
    Ok(())
}

fn stage_times(a: &mut Attempt, times: &[i64]) -> Taken {
    if times.len() != a.answer.stages.len() {
        return Err("stage_name and stage_ns differ in length".into());
    }
    a.answer.stages.iter_mut().zip(times).for_each(|(stage, took)| stage.took = Span(*took));
    Ok(())
}

/// Reads the file at `path`. Columns that are not asked for stay empty.
pub(crate) fn read(path: &Path, columns: Columns) -> Result<Vec<Attempt>> {
    read_rows(path, blank, &wanted(columns))
}

/// Reads the same and hands each attempt on: no more than some hundred are held.
pub(crate) fn each(path: &Path, columns: Columns, each: &mut dyn FnMut(&Attempt)) -> Result<()> {
    each_batch(path, blank, &wanted(columns), |rows| rows.iter().for_each(&mut *each))
}

/// Hands on each attempt due in one of these spans. Rows lie in the order in which attempts ended, which is nearly that of their due times, so that
/// row groups without one of them are told by their statistics and not decoded.
pub(crate) fn each_due(path: &Path, spans: &[(At, At)], each: &mut dyn FnMut(Attempt)) -> Result<()> {
    let within = |due: At| spans.iter().any(|(from, to)| (*from..*to).contains(&due));
    let may_hold = |(least, most): (i64, i64)| spans.iter().any(|(from, to)| least < to.0 && most >= from.0);
    each_group(
        path,
        blank,
        &wanted(Columns::All),
        |group| group.between("due_ns").is_none_or(may_hold),
        |rows| rows.into_iter().filter(|row| within(row.due)).for_each(&mut *each),
    )
}

/// Attempts of the file at `path`, and about how many bytes all of them take in memory.
pub(crate) fn extent(path: &Path) -> Result<(u64, u64)> {
    let (mut rows, mut bytes) = (0u64, 0u64);
    // A footer that lies has any number in it.
    let mut add = |count: u64, size: usize| bytes = bytes.saturating_add(count.saturating_mul(size as u64));
    each_fact(path, |group| {
        rows = rows.saturating_add(group.rows());
        add(group.rows(), size_of::<Attempt>());
        add(group.values("event_offset_ns").0, size_of::<Event>());
        add(group.values("prompt_blocks").0, size_of::<u64>());
        add(group.values("text").1, 1);
    })?;
    Ok((rows, bytes))
}

fn blank() -> Attempt {
    Attempt::new(0, 0, 0, At::ZERO)
}
