//! `spans.parquet`: one row per span of a trace. Schema, writing and reading side by side.
//!
//! Attributes are three lists side by side: key, kind (0 flag, 1 whole number, 2 number, 3 text; the names are in the footer under
//! `plimsoll.attribute_kinds`) and the value as text. A JSON text per row was the alternative: JSON has no NaN, does not tell 1 from 1.0
//! in every reader, and keys that repeat in every row would not go into a dictionary. DuckDB makes a map of them with
//! `map(attribute_key, attribute_value)`. Ids are hexadecimal texts, as everybody prints them.

use std::path::Path;

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};

use crate::error::Result;
use crate::table::{
    ColumnReading, Got, Table, each_group, flag, int, int_list, maybe_text, read_rows, real, text, text_list,
};

/// A row group ends at so many rows, …
const GROUP_ROWS: usize = 64 << 10;
/// … or so many bytes of attributes: what is held in memory while a file is written.
const GROUP_BYTES: usize = 64 << 20;

/// A span with its texts made.
struct Row {
    span: TraceSpan,
    trace: String,
    id: String,
    parent: Option<String>,
    attributes: Vec<Cell>,
}

struct Cell {
    key: String,
    kind: u8,
    value: String,
}

impl Row {
    fn new(mut span: TraceSpan) -> Row {
        let attributes = std::mem::take(&mut span.attributes).into_iter().map(|(key, value)| {
            let (kind, value) = match value {
                AttributeValue::Flag(flag) => (0, flag.to_string()),
                AttributeValue::Int(n) => (1, n.to_string()),
                // Rust prints the shortest digits that read back as the same number.
                AttributeValue::Real(n) => (2, n.to_string()),
                AttributeValue::Text(text) => (3, text),
            };
            Cell { key, kind, value }
        });
        Row {
            trace: format!("{:032x}", span.trace),
            id: format!("{:016x}", span.id),
            parent: span.parent.map(|parent| format!("{parent:016x}")),
            attributes: attributes.collect(),
            span,
        }
    }

    fn bytes(&self) -> usize {
        let attributes: usize =
            self.attributes.iter().map(|cell| cell.key.len() + cell.value.len() + 64).sum();
        let events: usize = self.span.events.iter().map(|event| event.name.len() + 32).sum();
        256 + self.span.name.len() + attributes + events
    }
}

/// `spans.parquet` being written.
pub(crate) struct SpansFile {
    table: Table<Row>,
    rows: Vec<Row>,
    bytes: usize,
}

impl SpansFile {
    pub(crate) fn create(path: &Path) -> Result<SpansFile> {
        let notes = [
            ("plimsoll.schema", plimsoll_model::run::SCHEMA_VERSION.to_string()),
            ("plimsoll.attribute_kinds", "flag,int,real,text".to_owned()),
            ("plimsoll.span_kinds", "unspecified,internal,server,client,producer,consumer".to_owned()),
        ];
        let table = Table::create(path, "spans", &notes, writers())?;
        Ok(SpansFile { table, rows: Vec::new(), bytes: 0 })
    }

    pub(crate) fn push(&mut self, span: TraceSpan) -> Result<()> {
        let row = Row::new(span);
        self.bytes += row.bytes();
        self.rows.push(row);
        if self.rows.len() >= GROUP_ROWS || self.bytes >= GROUP_BYTES {
            self.flush()?;
        }
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.table.group(&self.rows)?;
        self.rows.clear();
        self.bytes = 0;
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
fn writers() -> Vec<crate::table::Column<Row>> {
    fn cells(row: &Row) -> &[Cell] {
        &row.attributes
    }
    fn events(row: &Row) -> &[SpanEvent] {
        &row.span.events
    }
    vec![
        text("trace_id", |row: &Row| &row.trace),
        text("span_id", |row: &Row| &row.id),
        maybe_text("parent_span_id", |row: &Row| row.parent.as_deref()),
        text("name", |row: &Row| &row.span.name),
        maybe_text("service", |row: &Row| row.span.service.as_deref()),
        int("kind", |row: &Row| row.span.kind as u8),
        int("start_unix_ns", |row: &Row| row.span.start_ns).packed(),
        int("end_unix_ns", |row: &Row| row.span.end_ns).packed(),
        flag("failed", |row: &Row| row.span.failed),
        real("weight", |row: &Row| row.span.weight),
        text_list("attribute_key", cells, |cell| &cell.key),
        int_list("attribute_kind", cells, |cell| cell.kind),
        text_list("attribute_value", cells, |cell| &cell.value),
        int_list("event_unix_ns", events, |event| event.at_ns).packed(),
        text_list("event_name", events, |event| &event.name),
    ]
}

/// Reads the file at `path`.
pub(crate) fn read(path: &Path) -> Result<Vec<TraceSpan>> {
    read_rows(path, TraceSpan::blank, columns)
}

/// Reads the file at `path` and hands each span on.
pub(crate) fn each(path: &Path, each: &mut dyn FnMut(TraceSpan)) -> Result<()> {
    each_group(path, TraceSpan::blank, columns, |_| true, |rows| rows.into_iter().for_each(&mut *each))
}

/// Which column goes where in a span.
fn columns(r: &mut ColumnReading<'_, TraceSpan>) -> Got<()> {
    r.text("trace_id", |s: &mut TraceSpan, text| hex("trace_id", text, 16, |id| s.trace = id))?;
    r.text("span_id", |s, text| hex("span_id", text, 8, |id| s.id = id as u64))?;
    r.maybe_text("parent_span_id", |s, text| {
        text.map_or(Ok(()), |text| hex("parent_span_id", text, 8, |id| s.parent = Some(id as u64)))
    })?;
    r.text("name", |s, text| {
        s.name = text.to_owned();
        Ok(())
    })?;
    r.maybe_text("service", |s, text| {
        s.service = text.map(str::to_owned);
        Ok(())
    })?;
    r.int("kind", |s, kind: u8| s.kind = SpanKind::from_u8(kind))?;
    r.int("start_unix_ns", |s, at| s.start_ns = at)?;
    r.int("end_unix_ns", |s, at| s.end_ns = at)?;
    r.flag("failed", |s, failed| s.failed = failed)?;
    r.real("weight", |s, weight| s.weight = weight)?;
    // The kinds come between the keys and the values and wait as flags: the values then say what they are of.
    r.text_list("attribute_key", |s, keys| {
        s.attributes = keys.into_iter().map(|key| (key, AttributeValue::Flag(false))).collect();
        Ok(())
    })?;
    r.int_list("attribute_kind", |s, kinds: &[u8]| {
        if kinds.len() != s.attributes.len() {
            return Err("attribute lists differ in length".into());
        }
        for ((_, value), kind) in s.attributes.iter_mut().zip(kinds) {
            *value = AttributeValue::Int(i64::from(*kind));
        }
        Ok(())
    })?;
    r.text_list("attribute_value", |s, values| {
        if values.len() != s.attributes.len() {
            return Err("attribute lists differ in length".into());
        }
        s.attributes.iter_mut().zip(values).try_for_each(|((_, held), text)| {
            *held = value(held, text)?;
            Ok(())
        })
    })?;
    r.int_list("event_unix_ns", |s, times: &[i64]| {
        s.events = times.iter().map(|at_ns| SpanEvent { at_ns: *at_ns, name: String::new() }).collect();
        Ok(())
    })?;
    r.text_list("event_name", |s, names| {
        if names.len() != s.events.len() {
            return Err("event lists differ in length".into());
        }
        s.events.iter_mut().zip(names).for_each(|(event, name)| event.name = name);
        Ok(())
    })
}

/// An id of this many bytes at most.
fn hex(column: &str, text: &str, bytes: usize, set: impl FnOnce(u128)) -> std::result::Result<(), String> {
    match u128::from_str_radix(text, 16) {
        Ok(id) if text.len() <= 2 * bytes => {
            set(id);
            Ok(())
        }
        _ => Err(format!("{column}: {:?} is none", text.chars().take(40).collect::<String>())),
    }
}

/// A value from its kind, which was left in its place, and its text.
fn value(kind: &AttributeValue, text: String) -> std::result::Result<AttributeValue, String> {
    let wrong = |text: &str| {
        format!("attribute_value: {:?} is none of its kind", text.chars().take(40).collect::<String>())
    };
    Ok(match kind {
        AttributeValue::Int(0) => AttributeValue::Flag(text.parse().map_err(|_| wrong(&text))?),
        AttributeValue::Int(1) => AttributeValue::Int(text.parse().map_err(|_| wrong(&text))?),
        AttributeValue::Int(2) => AttributeValue::Real(text.parse().map_err(|_| wrong(&text))?),
        AttributeValue::Int(3) => AttributeValue::Text(text),
        _ => return Err("attribute_kind: none of those known".into()),
    })
}
