//! `requests.parquet`: one row per attempt. Schema, writing and reading side by side.
//!
//! Times are INT64 nanoseconds since the run began (`…_ns`), null where the stamp was not reached; event offsets
//! count from `sent_ns`. Event kinds are numbers, whose names are in the footer under `plimsoll.event_kinds`: a
//! name per event would double the time to read a run. Rows are in the order in which attempts ended.

use std::path::Path;

use plimsoll_model::{At, Attempt, Broken, By, Event, EventKind, How, ServerStage, Span, TokensRule};

use crate::error::Result;
use crate::reader::Columns;
use crate::table::{
    ColumnReading, Got, Table, each_batch, each_fact, each_group, flag, flag_list, int, int_list, maybe_int,
    maybe_text, read_rows, text, text_list,
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
        let table = Table::create(path, "requests", &notes, writers())?;
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

/// The columns, in order.
fn writers() -> Vec<crate::table::Column<Attempt>> {
    fn at(stamp: Option<At>) -> Option<i64> {
        stamp.map(|at| at.0)
    }
    fn events(a: &Attempt) -> &[Event] {
        &a.events
    }
    fn stages(a: &Attempt) -> &[ServerStage] {
        &a.answer.stages
    }
    vec![
        int("request", |a: &Attempt| a.request).packed(),
        int("attempt", |a: &Attempt| a.attempt),
        int("level", |a: &Attempt| a.level),
        maybe_int("session", |a: &Attempt| a.session),
        int("turn", |a: &Attempt| a.turn),
        maybe_int("turns", |a: &Attempt| Some(a.turns).filter(|turns| *turns > 0)),
        int("class", |a: &Attempt| a.class),
        maybe_int("target", |a: &Attempt| Some(a.target)),
        int("due_ns", |a: &Attempt| a.due.0).packed(),
        maybe_int("sent_ns", |a: &Attempt| at(a.sent)).packed(),
        maybe_int("connected_ns", |a: &Attempt| at(a.connected)).packed(),
        maybe_int("first_byte_ns", |a: &Attempt| at(a.first_byte)).packed(),
        maybe_int("first_token_ns", |a: &Attempt| at(a.first_token)).packed(),
        maybe_int("first_visible_ns", |a: &Attempt| at(a.first_visible)).packed(),
        maybe_int("last_token_ns", |a: &Attempt| at(a.last_token)).packed(),
        maybe_int("end_ns", |a: &Attempt| at(a.end)).packed(),
        int_list("event_offset_ns", events, |e| e.offset.0).packed(),
        int_list("event_kind", events, |e| e.kind as u8),
        int_list("event_tokens", events, |e| e.tokens),
        flag_list("event_coalesced", events, |e| e.coalesced),
        int_list("event_user_delay_ns", events, |e| e.user_delay_ns).packed(),
        int("asked_prompt_tokens", |a: &Attempt| a.asked_prompt),
        maybe_int("resent_tokens", |a: &Attempt| a.resent),
        int("asked_output_tokens", |a: &Attempt| a.asked_output),
        maybe_int("prompt_tokens", |a: &Attempt| a.answer.tokens.prompt),
        maybe_int("output_tokens", |a: &Attempt| a.answer.tokens.output),
        maybe_int("reasoning_tokens", |a: &Attempt| a.answer.tokens.reasoning),
        maybe_int("cached_tokens", |a: &Attempt| a.answer.tokens.cached),
        text("tokens_rule", |a: &Attempt| a.answer.tokens.rule.name()),
        int_list("prompt_blocks", |a: &Attempt| a.prompt_blocks.as_slice(), |block| *block),
        maybe_int("images", |a: &Attempt| Some(a.media.images).filter(|n| *n > 0)),
        maybe_int("image_pixels", |a: &Attempt| Some(a.media.pixels).filter(|n| *n > 0)),
        maybe_int("audio_ms", |a: &Attempt| Some(a.media.audio_ms).filter(|n| *n > 0)),
        maybe_int("documents", |a: &Attempt| Some(a.media.documents).filter(|n| *n > 0)),
        int("bytes_out", |a: &Attempt| a.bytes_out),
        int("bytes_in", |a: &Attempt| a.bytes_in).packed(),
        maybe_int("connection", |a: &Attempt| a.connection),
        flag("reused", |a: &Attempt| a.reused),
        maybe_int("tcp_rtt_ns", |a: &Attempt| a.tcp.rtt.map(|rtt| rtt.0)),
        maybe_int("tcp_rtt_var_ns", |a: &Attempt| a.tcp.rtt_var.map(|var| var.0)),
        maybe_int("tcp_rtt_min_ns", |a: &Attempt| a.tcp.rtt_min.map(|rtt| rtt.0)),
        maybe_int("tcp_retransmits", |a: &Attempt| a.tcp.retransmits),
        maybe_int("tcp_segments_out", |a: &Attempt| a.tcp.segments_out),
        maybe_int("tcp_segments_in", |a: &Attempt| a.tcp.segments_in),
        maybe_int("tcp_out_of_order", |a: &Attempt| a.tcp.out_of_order),
        flag("kernel_stamps", |a: &Attempt| a.kernel_stamps),
        maybe_int("status", |a: &Attempt| a.answer.status),
        maybe_text("finish_reason", |a: &Attempt| a.answer.finish_reason.as_deref()),
        maybe_int("retry_after_ns", |a: &Attempt| a.answer.retry_after.map(|wait| wait.0)),
        text("outcome", |a: &Attempt| a.outcome.how.name()),
        text("outcome_by", |a: &Attempt| a.outcome.by.name()),
        flag("retryable", |a: &Attempt| a.outcome.retryable),
        maybe_text("broken", |a: &Attempt| a.answer.broken.map(Broken::name)),
        maybe_text("error", |a: &Attempt| a.answer.error.as_deref()),
        maybe_text("replica", |a: &Attempt| a.answer.replica.as_deref()),
        text_list("stage_name", stages, |stage| stage.name.as_str()),
        int_list("stage_ns", stages, |stage| stage.took.0).packed(),
        maybe_text("text", |a: &Attempt| a.answer.text.as_deref()),
    ]
}

/// Reads the file at `path`. Columns that are not asked for stay empty.
pub(crate) fn read(path: &Path, columns: Columns) -> Result<Vec<Attempt>> {
    read_rows(path, blank, |r| take(r, columns))
}

/// Reads the same and hands each attempt on: no more than some hundred are held.
pub(crate) fn each(path: &Path, columns: Columns, each: &mut dyn FnMut(&Attempt)) -> Result<()> {
    each_batch(path, blank, |r| take(r, columns), |rows| rows.iter().for_each(&mut *each))
}

/// Hands on each attempt due in one of these spans. Rows lie in the order in which attempts ended, which is nearly that of their due times, so that
/// row groups without one of them are told by their statistics and not decoded.
pub(crate) fn each_due(path: &Path, spans: &[(At, At)], each: &mut dyn FnMut(Attempt)) -> Result<()> {
    let within = |due: At| spans.iter().any(|(from, to)| (*from..*to).contains(&due));
    let may_hold = |(least, most): (i64, i64)| spans.iter().any(|(from, to)| least < to.0 && most >= from.0);
    each_group(
        path,
        blank,
        |r| take(r, Columns::All),
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

/// Which column goes where in an attempt. A row may have held another attempt before: whatever is set is set for every row.
fn take(r: &mut ColumnReading<'_, Attempt>, columns: Columns) -> Got<()> {
    course(r)?;
    if columns == Columns::Course {
        return Ok(());
    }
    findings(r)?;
    if matches!(columns, Columns::Budget | Columns::All) {
        stages(r)?;
    }
    if matches!(columns, Columns::Figures | Columns::All) {
        figures(r)?;
    }
    if columns == Columns::All {
        rest(r)?;
    }
    Ok(())
}

/// Which, when and how each ended: [`Columns::Course`].
fn course(r: &mut ColumnReading<'_, Attempt>) -> Got<()> {
    r.int("request", |a: &mut Attempt, v| a.request = v)?;
    r.int("attempt", |a, v| a.attempt = v)?;
    r.int("level", |a, v| a.level = v)?;
    r.int("due_ns", |a, v| a.due = At(v))?;
    r.maybe_int("end_ns", |a, v| a.end = v.map(At))?;
    r.word("outcome", How::from_name, |a, how| a.outcome.how = how)
}

/// What findings are computed from besides, and who a request was: [`Columns::Findings`].
fn findings(r: &mut ColumnReading<'_, Attempt>) -> Got<()> {
    r.maybe_int("session", |a: &mut Attempt, v| a.session = v)?;
    r.int("turn", |a, v| a.turn = v)?;
    r.maybe_int("turns", |a, v| a.turns = v.unwrap_or(0))?;
    r.int("class", |a, v| a.class = v)?;
    r.maybe_int("target", |a, v| a.target = v.unwrap_or(0))?;
    r.maybe_int("sent_ns", |a, v| a.sent = v.map(At))?;
    r.maybe_int("first_byte_ns", |a, v| a.first_byte = v.map(At))?;
    r.maybe_int("first_token_ns", |a, v| a.first_token = v.map(At))?;
    r.maybe_int("first_visible_ns", |a, v| a.first_visible = v.map(At))?;
    r.maybe_int("last_token_ns", |a, v| a.last_token = v.map(At))?;
    r.int_list("event_offset_ns", |a, offsets: &[i64]| {
        a.events.clear();
        a.events.extend(offsets.iter().map(|offset| event_at(*offset)));
        Ok(())
    })?;
    r.int_list("event_kind", |a, kinds: &[u8]| {
        if let Some(kind) = kinds.iter().find(|kind| EventKind::from_u8(**kind).is_none()) {
            return Err(format!("event_kind: {kind} is none"));
        }
        each_event(a, kinds, |event, kind| event.kind = EventKind::from_u8(*kind).unwrap_or(event.kind))
    })?;
    r.int_list("event_tokens", |a, tokens: &[u16]| each_event(a, tokens, |event, n| event.tokens = *n))?;
    r.flag_list("event_coalesced", |a, flags| each_event(a, flags, |event, flag| event.coalesced = *flag))?;
    r.int("asked_prompt_tokens", |a, v| a.asked_prompt = v)?;
    r.maybe_int("resent_tokens", |a, v| a.resent = v)?;
    r.int("asked_output_tokens", |a, v| a.asked_output = v)?;
    r.maybe_int("images", |a, v| a.media.images = v.unwrap_or(0))?;
    r.maybe_int("image_pixels", |a, v| a.media.pixels = v.unwrap_or(0))?;
    r.maybe_int("audio_ms", |a, v| a.media.audio_ms = v.unwrap_or(0))?;
    r.maybe_int("documents", |a, v| a.media.documents = v.unwrap_or(0))?;
    r.maybe_int("prompt_tokens", |a, v| a.answer.tokens.prompt = v)?;
    r.maybe_int("output_tokens", |a, v| a.answer.tokens.output = v)?;
    r.maybe_int("cached_tokens", |a, v| a.answer.tokens.cached = v)?;
    r.word("tokens_rule", TokensRule::from_name, |a, rule| a.answer.tokens.rule = rule)?;
    r.maybe_int("connection", |a, v| a.connection = v)?;
    tcp(r)?;
    r.flag("kernel_stamps", |a, v| a.kernel_stamps = v)?;
    r.maybe_int("status", |a, v| a.answer.status = v)?;
    r.word("outcome_by", By::from_name, |a, by| a.outcome.by = by)?;
    r.maybe_word("broken", Broken::from_name, |a, broken| a.answer.broken = broken)?;
    r.maybe_text("error", |a, text| {
        a.answer.error = text.map(str::to_owned);
        Ok(())
    })
}

/// What a budget may ask of a request besides.
fn stages(r: &mut ColumnReading<'_, Attempt>) -> Got<()> {
    r.text_list("stage_name", |a, names| {
        a.answer.stages.clear();
        a.answer.stages.extend(names.into_iter().map(|name| ServerStage { name, took: Span::ZERO }));
        Ok(())
    })?;
    r.int_list("stage_ns", |a, times: &[i64]| {
        if times.len() != a.answer.stages.len() {
            return Err("stage_name and stage_ns differ in length".into());
        }
        for (stage, took) in a.answer.stages.iter_mut().zip(times) {
            stage.took = Span(*took);
        }
        Ok(())
    })
}

/// What commands that look at single requests ask besides.
fn figures(r: &mut ColumnReading<'_, Attempt>) -> Got<()> {
    r.maybe_int("connected_ns", |a, v| a.connected = v.map(At))?;
    r.maybe_int("reasoning_tokens", |a, v| a.answer.tokens.reasoning = v)?;
    r.int("bytes_out", |a, v| a.bytes_out = v)?;
    r.int("bytes_in", |a, v| a.bytes_in = v)?;
    r.flag("reused", |a, v| a.reused = v)?;
    r.maybe_int("tcp_rtt_var_ns", |a, v| a.tcp.rtt_var = v.map(Span))?;
    r.maybe_text("finish_reason", |a, text| {
        a.answer.finish_reason = text.map(str::to_owned);
        Ok(())
    })?;
    r.maybe_int("retry_after_ns", |a, v| a.answer.retry_after = v.map(Span))?;
    r.flag("retryable", |a, v| a.outcome.retryable = v)?;
    r.maybe_text("replica", |a, text| {
        a.answer.replica = text.map(str::to_owned);
        Ok(())
    })
}

fn rest(r: &mut ColumnReading<'_, Attempt>) -> Got<()> {
    r.int_list("event_user_delay_ns", |a, delays: &[u32]| {
        each_event(a, delays, |event, delay| event.user_delay_ns = *delay)
    })?;
    r.int_list("prompt_blocks", |a, blocks: &[u64]| {
        a.prompt_blocks = blocks.to_vec();
        Ok(())
    })?;
    r.maybe_text("text", |a, text| {
        a.answer.text = text.map(str::to_owned);
        Ok(())
    })
}

/// A folder written before these columns were has none of them: unknown.
fn tcp(r: &mut ColumnReading<'_, Attempt>) -> Got<()> {
    r.maybe_int("tcp_rtt_ns", |a, v| a.tcp.rtt = v.map(Span))?;
    r.maybe_int("tcp_rtt_min_ns", |a, v| a.tcp.rtt_min = v.map(Span))?;
    r.maybe_int("tcp_retransmits", |a, v| a.tcp.retransmits = v)?;
    r.maybe_int("tcp_segments_out", |a, v| a.tcp.segments_out = v)?;
    r.maybe_int("tcp_segments_in", |a, v| a.tcp.segments_in = v)?;
    r.maybe_int("tcp_out_of_order", |a, v| a.tcp.out_of_order = v)
}

fn each_event<T>(
    a: &mut Attempt,
    values: &[T],
    set: impl Fn(&mut Event, &T),
) -> std::result::Result<(), String> {
    if values.len() != a.events.len() {
        return Err("event lists differ in length".into());
    }
    a.events.iter_mut().zip(values).for_each(|(event, value)| set(event, value));
    Ok(())
}

fn event_at(offset: i64) -> Event {
    Event { offset: Span(offset), user_delay_ns: 0, tokens: 0, kind: EventKind::Content, coalesced: false }
}
