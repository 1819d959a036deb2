//! Reads and writes `spans.parquet`: one row per trace span, with one list of columns for schema, writing and reading.
//!
//! Attributes are three parallel lists: key, kind and value as text. The kinds are 0 flag, 1 whole number, 2 number and 3
//! text; their names are in the footer under `plimsoll.attribute_kinds`. A JSON text per row was rejected. JSON has no NaN,
//! some readers do not distinguish 1 from 1.0, and repeated keys would not be dictionary-encoded. DuckDB builds a map with
//! `map(attribute_key, attribute_value)`. Ids are hexadecimal texts, as all tools print them.

use std::path::Path;

use plimsoll_model::{AttributeValue, SpanEvent, SpanKind, TraceSpan};

use crate::error::Result;
use crate::table::{Column, StoreResult, Table, each_group, list, maybe_text, one, read_rows, text, texts};

/// Most rows of a row group.
const GROUP_ROWS: usize = 64 << 10;
/// Most bytes of attributes of a row group, which bounds the memory of a writer.
const GROUP_BYTES: usize = 64 << 20;

/// A span with its texts formatted.
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
                // Rust prints the shortest digits that parse back to an equal number.
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

pub(crate) struct SpansFile {
    table: Table<Row, TraceSpan>,
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
        let table = Table::create(path, "spans", &notes, columns())?;
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

pub(crate) fn read(path: &Path) -> Result<Vec<TraceSpan>> {
    read_rows(path, TraceSpan::blank, &columns())
}

/// Reads the file at `path` and passes each span to `each`.
pub(crate) fn each(path: &Path, each: &mut dyn FnMut(TraceSpan)) -> Result<()> {
    each_group(path, TraceSpan::blank, &columns(), |_| true, |rows| rows.into_iter().for_each(&mut *each))
}

/// Returns the columns in order. The kinds of attributes are read between keys and values; the values then determine their
/// type by kind.
fn columns() -> Vec<Column<Row, TraceSpan>> {
    fn cells(row: &Row) -> &[Cell] {
        &row.attributes
    }
    fn events(row: &Row) -> &[SpanEvent] {
        &row.span.events
    }
    type S = TraceSpan;
    vec![
        text(
            "trace_id",
            |row: &Row| &row.trace,
            |s: &mut S, text| hex("trace_id", text, 16, |id| s.trace = id),
        ),
        text(
            "span_id",
            |row: &Row| &row.id,
            |s: &mut S, text| hex("span_id", text, 8, |id| s.id = id as u64),
        ),
        maybe_text(
            "parent_span_id",
            |row: &Row| row.parent.as_deref(),
            |s: &mut S, text| {
                text.map_or(Ok(()), |text| hex("parent_span_id", text, 8, |id| s.parent = Some(id as u64)))
            },
        ),
        text(
            "name",
            |row: &Row| &row.span.name,
            |s: &mut S, text| {
                s.name = text.to_owned();
                Ok(())
            },
        ),
        maybe_text(
            "service",
            |row: &Row| row.span.service.as_deref(),
            |s: &mut S, text| {
                s.service = text.map(str::to_owned);
                Ok(())
            },
        ),
        one("kind", |row: &Row| row.span.kind as u8, |s: &mut S, kind| s.kind = SpanKind::from_u8(kind)),
        one("start_unix_ns", |row: &Row| row.span.start_ns, |s: &mut S, at| s.start_ns = at).deltas(),
        one("end_unix_ns", |row: &Row| row.span.end_ns, |s: &mut S, at| s.end_ns = at).deltas(),
        one("failed", |row: &Row| row.span.failed, |s: &mut S, failed| s.failed = failed),
        one("weight", |row: &Row| row.span.weight, |s: &mut S, weight| s.weight = weight),
        texts(
            "attribute_key",
            cells,
            |cell| &cell.key,
            |s: &mut S, keys| {
                s.attributes = keys.into_iter().map(|key| (key, AttributeValue::Flag(false))).collect();
                Ok(())
            },
        ),
        list(
            "attribute_kind",
            cells,
            |cell| cell.kind,
            |s: &mut S, kinds| {
                let kinds = kinds.iter().map(|kind| AttributeValue::Int(i64::from(*kind)));
                set_each(&mut s.attributes, kinds, "attribute", |(_, value), kind| {
                    *value = kind;
                    Ok(())
                })
            },
        ),
        texts(
            "attribute_value",
            cells,
            |cell| &cell.value,
            |s: &mut S, values| {
                set_each(&mut s.attributes, values.into_iter(), "attribute", |(_, held), text| {
                    *held = value(held, text)?;
                    Ok(())
                })
            },
        ),
        list(
            "event_unix_ns",
            events,
            |event| event.at_ns,
            |s: &mut S, times| {
                s.events =
                    times.iter().map(|at_ns| SpanEvent { at_ns: *at_ns, name: String::new() }).collect();
                Ok(())
            },
        )
        .deltas(),
        texts(
            "event_name",
            events,
            |event| &event.name,
            |s: &mut S, names| {
                set_each(&mut s.events, names.into_iter(), "event", |event, name| {
                    event.name = name;
                    Ok(())
                })
            },
        ),
    ]
}

/// Returns a setter for one field of every item of a list that was started.
fn set_each<E, T>(
    items: &mut [E],
    values: impl ExactSizeIterator<Item = T>,
    what: &str,
    set: impl Fn(&mut E, T) -> StoreResult,
) -> StoreResult {
    if values.len() != items.len() {
        return Err(format!("{what} lists differ in length"));
    }
    items.iter_mut().zip(values).try_for_each(|(item, value)| set(item, value))
}

/// Parses a hexadecimal id of at most `bytes` bytes.
fn hex(column: &str, text: &str, bytes: usize, set: impl FnOnce(u128)) -> StoreResult {
    match u128::from_str_radix(text, 16) {
        Ok(id) if text.len() <= 2 * bytes => {
            set(id);
            Ok(())
        }
        _ => Err(format!("{column}: {:?} is none", text.chars().take(40).collect::<String>())),
    }
}

/// Returns a value from its text and the kind that was stored in its place.
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
