//! Reads and writes `requests.parquet`: one row per attempt, with one list of columns for schema, writing and reading.
//!
//! Times are INT64 nanoseconds since the start of the run (`…_ns`), null if the event did not happen; event offsets count
//! from `sent_ns`. Event kinds are numbers whose names are in the footer under `plimsoll.event_kinds`, because a name per
//! event would double the time to read a run. Rows are in the order in which attempts ended.

use std::path::Path;

use plimsoll_model::{At, Attempt, Broken, By, Event, EventKind, How, ServerStage, Span, TokensRule};

use crate::error::Result;
use crate::reader::ColumnSelection;
use crate::table::{
    Column, ColumnFn, StoreResult, Table, each_batch, each_fact, each_group, list, maybe, maybe_text,
    maybe_word, not_zero, one, read_rows, texts, word,
};

/// Most rows of a row group.
const GROUP_ROWS: usize = 64 << 10;
/// Most events and blocks of a row group.
const GROUP_VALUES: usize = 2 << 20;
/// Most bytes of text of a row group, which bounds the memory of a writer.
const GROUP_TEXT: usize = 64 << 20;

pub(crate) struct RequestsFile {
    table: Table<Attempt>,
    rows: Vec<Attempt>,
    group: Group,
}

/// The contents of the current row group.
#[derive(Default)]
struct Group {
    rows: usize,
    values: usize,
    text: usize,
}

impl Group {
    /// Counts a row; returns true if the row group ends with it.
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
        let table = Table::create(path, "requests", &notes, wanted(ColumnSelection::All))?;
        Ok(RequestsFile { table, rows: Vec::new(), group: Group::default() })
    }

    pub(crate) fn push(&mut self, attempt: Attempt) -> Result<()> {
        let ends = self.group.ends_with(&attempt);
        self.rows.push(attempt);
        if ends { self.flush() } else { Ok(()) }
    }

    /// Writes rows in memory, in the row groups that single pushes would make.
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

/// A column for one field of an attempt.
macro_rules! field {
    ($kind:ident, $name:literal, $($field:tt).+) => {
        $kind($name, |a: &Attempt| a.$($field).+, |a: &mut Attempt, value| a.$($field).+ = value)
    };
}

/// A column for an optional text field.
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

/// A column for an enum field, stored by name.
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

/// Returns the columns in order, each with the smallest [`ColumnSelection`] that includes it.
///
/// A row may contain an earlier attempt, so each reader must set its field for every row.
fn columns() -> Vec<(ColumnSelection, Column<Attempt>)> {
    use ColumnSelection::{All, Budget, Course, Figures, Findings};
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

/// Returns the columns that `of` includes.
fn wanted(of: ColumnSelection) -> Vec<Column<Attempt>> {
    let holds = |least: ColumnSelection| match least {
        ColumnSelection::Course => true,
        ColumnSelection::Findings => of != ColumnSelection::Course,
        least => of == least || of == ColumnSelection::All,
    };
    columns().into_iter().filter(|(least, _)| holds(*least)).map(|(_, column)| column).collect()
}

fn events(a: &Attempt) -> &[Event] {
    &a.events
}

fn stages(a: &Attempt) -> &[ServerStage] {
    &a.answer.stages
}

/// Starts events with these offsets; the other fields are filled in later.
fn begin_events(a: &mut Attempt, offsets: &[i64]) -> StoreResult {
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

fn event_kinds(a: &mut Attempt, kinds: &[u8]) -> StoreResult {
    if let Some(kind) = kinds.iter().find(|kind| EventKind::from_u8(**kind).is_none()) {
        return Err(format!("event_kind: {kind} is none"));
    }
    each_event(|event, kind| event.kind = EventKind::from_u8(kind).unwrap_or(event.kind))(a, kinds)
}

/// Returns a setter for one field of every event.
fn each_event<T: Copy>(
    set: impl Fn(&mut Event, T) + ColumnFn,
) -> impl Fn(&mut Attempt, &[T]) -> StoreResult + ColumnFn {
    move |a, values| {
        if values.len() != a.events.len() {
            return Err("event lists differ in length".into());
        }
        a.events.iter_mut().zip(values).for_each(|(event, value)| set(event, *value));
        Ok(())
    }
}

fn blocks(a: &mut Attempt, blocks: &[u64]) -> StoreResult {
    a.prompt_blocks = blocks.to_vec();
    Ok(())
}

fn begin_stages(a: &mut Attempt, names: Vec<String>) -> StoreResult {
    a.answer.stages.clear();
    a.answer.stages.extend(names.into_iter().map(|name| ServerStage { name, took: Span::ZERO }));
    Ok(())
}

fn stage_times(a: &mut Attempt, times: &[i64]) -> StoreResult {
    if times.len() != a.answer.stages.len() {
        return Err("stage_name and stage_ns differ in length".into());
    }
    a.answer.stages.iter_mut().zip(times).for_each(|(stage, took)| stage.took = Span(*took));
    Ok(())
}

/// Reads the file at `path`. Columns that are not requested stay empty.
pub(crate) fn read(path: &Path, columns: ColumnSelection) -> Result<Vec<Attempt>> {
    read_rows(path, blank, &wanted(columns))
}

/// Reads the file at `path` and passes each attempt to `each`, with some hundred in memory at a time.
pub(crate) fn each(path: &Path, columns: ColumnSelection, each: &mut dyn FnMut(&Attempt)) -> Result<()> {
    each_batch(path, blank, &wanted(columns), |rows| rows.iter().for_each(&mut *each))
}

/// Passes each attempt that is due within one of these time ranges to `each`.
///
/// Rows are in the order of ends, which is nearly that of due times. Row groups without a match are recognised by their
/// statistics and not decoded.
pub(crate) fn each_due(path: &Path, spans: &[(At, At)], each: &mut dyn FnMut(Attempt)) -> Result<()> {
    let within = |due: At| spans.iter().any(|(from, to)| (*from..*to).contains(&due));
    let may_hold = |(least, most): (i64, i64)| spans.iter().any(|(from, to)| least < to.0 && most >= from.0);
    each_group(
        path,
        blank,
        &wanted(ColumnSelection::All),
        |group| group.between("due_ns").is_none_or(may_hold),
        |rows| rows.into_iter().filter(|row| within(row.due)).for_each(&mut *each),
    )
}

/// Returns the number of attempts of the file at `path` and an estimate of their size in memory in bytes.
pub(crate) fn extent(path: &Path) -> Result<(u64, u64)> {
    let (mut rows, mut bytes) = (0u64, 0u64);
    // Saturates, because a corrupt footer may contain any number.
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
