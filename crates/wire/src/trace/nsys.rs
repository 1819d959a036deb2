//! Nsight Systems, exported with `nsys export --type sqlite`: ranges, API calls, kernels and copies.
//!
//! Tables are made lazily and their columns vary with the version, so what is there is looked at first: every table and every
//! column but a start and an end may be missing. Times count from the start of the session, whose wall clock is in
//! `TARGET_INFO_SESSION_START_TIME`. Source: Nsight Systems User Guide, "SQLite Schema Reference".

use std::collections::HashMap;

use plimsoll_model::AttributeValue;

use super::id::short;
use super::origin::Origin;
use super::sqlite::{Cell, Database, Table};
use super::timeline::{self, Slice};
use super::{Format, Notes, Parsed, TraceError};

/// NVTX: a range pushed and popped on one thread, and one that starts and ends anywhere.
const PUSH_POP: i64 = 59;
const START_END: i64 = 60;

/// A kind of activity: its table, what it is called as a category, and which of the columns has its name.
struct Activity {
    table: &'static str,
    category: &'static str,
    names: &'static [&'static str],
    fallback: &'static str,
}

/// What runs on a thread of a process (`globalTid`).
const ON_THREADS: &[Activity] = &[
    Activity { table: "NVTX_EVENTS", category: "nvtx", names: &["textId"], fallback: "range" },
    Activity {
        table: "CUPTI_ACTIVITY_KIND_RUNTIME",
        category: "cuda_runtime",
        names: &["nameId"],
        fallback: "call",
    },
    Activity { table: "OSRT_API", category: "os_runtime", names: &["nameId"], fallback: "call" },
];

/// What runs on a stream of a device.
const ON_DEVICES: &[Activity] = &[
    Activity {
        table: "CUPTI_ACTIVITY_KIND_KERNEL",
        category: "kernel",
        names: &["shortName", "demangledName"],
        fallback: "kernel",
    },
    Activity { table: "CUPTI_ACTIVITY_KIND_MEMCPY", category: "gpu_memcpy", names: &[], fallback: "memcpy" },
    Activity { table: "CUPTI_ACTIVITY_KIND_MEMSET", category: "gpu_memset", names: &[], fallback: "memset" },
];

/// Where something runs: a thread, or a stream of a device.
#[derive(Copy, Clone, PartialEq, Eq, Hash)]
enum Lane {
    Thread(i64, i64),
    Stream(i64, i64),
}

/// Reads an export.
pub(crate) fn read(bytes: &[u8]) -> Result<Parsed, TraceError> {
    let database = Database::open(bytes)?;
    let tables = database.tables()?;
    let mut reading = Reading::new(&database, &tables)?;
    let mut found = 0;
    for activity in ON_THREADS {
        found += usize::from(reading.threads(activity)?);
    }
    for activity in ON_DEVICES {
        found += usize::from(reading.devices(activity)?);
    }
    if found == 0 {
        let names: Vec<&str> = tables.iter().take(8).map(|table| table.name.as_str()).collect();
        return Err(TraceError::Unknown {
            found: format!("an SQLite database without Nsight's tables (it has {})", names.join(", ")),
        });
    }
    let seed = super::digest(bytes);
    let mut notes = Notes { unused: reading.unused, unended: reading.unended, ..Notes::default() };
    notes.unanchored = reading.anchor_ns.is_none();
    let origins = reading.origins();
    let spans = timeline::spans(reading.slices, &origins, seed, &mut notes);
    Ok(Parsed { format: Format::Nsight, spans, notes })
}

struct Reading<'d> {
    database: &'d Database<'d>,
    tables: &'d [Table],
    strings: HashMap<i64, String>,
    processes: HashMap<i64, String>,
    anchor_ns: Option<i64>,
    /// Do device activities say their process? Then correlation ids are told apart by it.
    has_pids: bool,
    lanes: HashMap<Lane, u32>,
    slices: Vec<Slice>,
    unused: u64,
    unended: u64,
}

impl<'d> Reading<'d> {
    fn new(database: &'d Database<'d>, tables: &'d [Table]) -> Result<Reading<'d>, TraceError> {
        let mut reading = Reading {
            database,
            tables,
            strings: HashMap::new(),
            processes: HashMap::new(),
            anchor_ns: None,
            has_pids: false,
            lanes: HashMap::new(),
            slices: Vec::new(),
            unused: 0,
            unended: 0,
        };
        let (mut strings, mut processes, mut anchor) = (HashMap::new(), HashMap::new(), None);
        reading.each("StringIds", &["id", "value"], |row| {
            if let [id, value] = row
                && let (Some(id), Some(text)) = (id.int(), value.text())
            {
                strings.insert(id, text.to_owned());
            }
        })?;
        reading.each("PROCESSES", &["globalPid", "name"], |row| {
            if let [pid, name] = row
                && let (Some(pid), Some(name)) = (pid.int(), name.text())
            {
                processes.insert(process(pid), name.to_owned());
            }
        })?;
        reading.each("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], |row| {
            anchor = row.first().and_then(Cell::int).or(anchor);
        })?;
        let devices = ON_DEVICES.iter().filter_map(|activity| reading.table(activity.table));
        reading.has_pids =
            devices.clone().count() > 0 && devices.into_iter().all(|table| table.has("globalPid"));
        (reading.strings, reading.processes, reading.anchor_ns) = (strings, processes, anchor);
        Ok(reading)
    }

    fn table(&self, name: &str) -> Option<&'d Table> {
        self.tables.iter().find(|table| table.name == name)
    }

    /// All rows of a table, if it is there.
    fn each(&self, name: &str, columns: &[&str], each: impl FnMut(&[Cell<'_>])) -> Result<(), TraceError> {
        self.table(name).map_or(Ok(()), |table| self.database.rows(table, columns, each))
    }

    /// Activities on threads; false where the table is missing.
    fn threads(&mut self, activity: &Activity) -> Result<bool, TraceError> {
        let Some(table) = self.table(activity.table) else { return Ok(false) };
        let is_nvtx = activity.category == "nvtx";
        let name = activity.names.first().copied().unwrap_or_default();
        let columns = ["start", "end", "globalTid", "correlationId", name, "text", "eventType"];
        let database = self.database;
        database.rows(table, &columns, |row| {
            let [start, end, thread, correlation, id, text, kind] = row else { return };
            let kind = kind.int().unwrap_or(PUSH_POP);
            let (Some(start), true) = (start.int(), !is_nvtx || matches!(kind, PUSH_POP | START_END)) else {
                self.unused += 1;
                return;
            };
            let thread = thread.int().unwrap_or(0);
            let said = text.text().or_else(|| self.strings.get(&id.int()?).map(String::as_str));
            let name = said.unwrap_or(activity.fallback).to_owned();
            let launches = correlation.int().and_then(|number| self.launch(process(thread), number));
            // Ranges that start and end anywhere overlap; they lie on a lane of their own and contain nothing.
            let lane = Lane::Thread(thread, if is_nvtx { kind } else { PUSH_POP });
            let is_annotation = is_nvtx && kind == PUSH_POP;
            self.slice((start, end.int()), lane, name, activity, |slice| {
                (slice.launches, slice.is_annotation) = (launches, is_annotation);
            });
        })?;
        Ok(true)
    }

    /// Activities on devices; false where the table is missing.
    fn devices(&mut self, activity: &Activity) -> Result<bool, TraceError> {
        let Some(table) = self.table(activity.table) else { return Ok(false) };
        let name = |at: usize| activity.names.get(at).copied().unwrap_or_default();
        let columns =
            ["start", "end", "deviceId", "streamId", "correlationId", "globalPid", "bytes", name(0), name(1)];
        let database = self.database;
        database.rows(table, &columns, |row| {
            let [start, end, device, stream, correlation, pid, bytes, names @ ..] = row else { return };
            let Some(start) = start.int() else {
                self.unused += 1;
                return;
            };
            let (device, stream) = (device.int().unwrap_or(0), stream.int().unwrap_or(0));
            let said = names.iter().find_map(|id| self.strings.get(&id.int()?));
            let name = said.map_or_else(|| activity.fallback.to_owned(), String::clone);
            let pid = process(pid.int().unwrap_or(0));
            let launched_by = correlation.int().and_then(|number| self.launch(pid, number));
            let bytes = bytes.int();
            self.slice((start, end.int()), Lane::Stream(device, stream), name, activity, |slice| {
                slice.launched_by = launched_by;
                slice.attributes.extend(bytes.map(|n| ("bytes".to_owned(), AttributeValue::Int(n))));
            });
        })?;
        Ok(true)
    }

    fn slice(
        &mut self,
        (start, end): (i64, Option<i64>),
        lane: Lane,
        name: String,
        activity: &Activity,
        finish: impl FnOnce(&mut Slice),
    ) {
        let anchor = self.anchor_ns.unwrap_or(0);
        let next = self.lanes.len() as u32;
        let track = *self.lanes.entry(lane).or_insert(next);
        self.unended += u64::from(end.is_none());
        let mut slice = Slice {
            track,
            start_ns: anchor.saturating_add(start),
            end_ns: anchor.saturating_add(end.unwrap_or(start)),
            name,
            is_annotation: false,
            launches: None,
            launched_by: None,
            trace: None,
            attributes: vec![("category".to_owned(), AttributeValue::Text(activity.category.to_owned()))],
        };
        finish(&mut slice);
        self.slices.push(slice);
    }

    /// A correlation id, told apart by its process where that can be known.
    fn launch(&self, pid: i64, number: i64) -> Option<u64> {
        let number = u32::try_from(number).ok().filter(|number| *number > 0)?;
        let pid = if self.has_pids { pid as u64 } else { 0 };
        Some(pid << 32 | u64::from(number))
    }

    fn origins(&self) -> Vec<Origin> {
        let mut origins = vec![Origin::default(); self.lanes.len()];
        for (lane, track) in &self.lanes {
            let origin = &mut origins[*track as usize];
            let mut keep = |key: &str, n: i64| origin.keep(key, AttributeValue::Int(n));
            let service = match lane {
                Lane::Thread(id, _) => {
                    keep("process.pid", process(*id));
                    keep("thread.id", id & 0xff_ffff);
                    let named = self.processes.get(&process(*id)).map(|name| short(name).to_owned());
                    named.unwrap_or_else(|| format!("pid {}", process(*id)))
                }
                Lane::Stream(device, stream) => {
                    keep("device", *device);
                    keep("stream", *stream);
                    format!("GPU {device}")
                }
            };
            origin.service = Some(service);
        }
        origins
    }
}

/// The process of a `globalTid` or `globalPid`: its bits 24 to 47.
fn process(id: i64) -> i64 {
    id >> 24 & 0xff_ffff
}
