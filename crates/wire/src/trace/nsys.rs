//! Converts an export of NVIDIA Nsight Systems (`nsys export`) to spans of a timeline, from the cells of its tables.
//!
//! SQLite files and Parquet folders have equal tables. Each is optional, because nsys writes a table only if it has rows, and
//! versions differ. Times count from the start of the session (`utcEpochNs`), unless they were exported with
//! `--ts-normalize`. Correlation ids are unique per process. A query per question was rejected: the spans are those of
//! Kineto's traces, so that one analysis serves both profilers.
//! Source: "SQLite Export Schema Reference", NVIDIA, <https://docs.nvidia.com/nsight-systems/UserGuide/index.html>;
//! ranges of vLLM and SGLang: NVIDIA's `PytHooks`; of PyTorch: `torch.autograd.profiler.emit_nvtx`.

use std::collections::{HashMap, HashSet};

use plimsoll_model::{AttributeValue, TraceSpan};

use super::Notes;
use super::id::short;
use super::origin::Origin;
use super::timeline::{self, TrackSlice};

/// A table that identifies a folder of Parquet files as an export, because kernels and calls have their names there.
pub const MARK: &str = "StringIds";

/// Cells of a row, in the order of the requested columns.
type Cells<'r> = &'r [Option<AttributeValue>];

/// A function that passes columns of a table to a closure, row by row. It returns false if the table is missing.
pub type ReadTable<'t, E> =
    dyn FnMut(&'static str, &[&'static str], &mut dyn FnMut(Cells<'_>)) -> Result<bool, E> + 't;

/// Numbers of NVTX events in `ENUM_NSYS_EVENT_TYPE`: nested ranges of a thread, and free ranges; others are no ranges.
const PUSH_POP: [i64; 2] = [59, 70];
const START_END: [i64; 2] = [60, 71];
/// Number of an NVTX mark, which has no length.
const MARK_EVENT: [i64; 2] = [34, 69];
/// Copies by CUPTI's number, from 1.
const COPIES: [&str; 13] = [
    "HtoD",
    "DtoH",
    "HtoA",
    "AtoH",
    "AtoA",
    "AtoD",
    "DtoA",
    "DtoD",
    "HtoH",
    "PtoP",
    "HtoD (managed)",
    "DtoH (managed)",
    "DtoD (managed)",
];

/// Work on a device: table, category and name of its rows.
const DEVICE: [(&str, &str, Naming); 4] = [
    ("CUPTI_ACTIVITY_KIND_KERNEL", "kernel", Naming::Kernel),
    ("CUPTI_ACTIVITY_KIND_GRAPH_TRACE", "kernel", Naming::Graph),
    ("CUPTI_ACTIVITY_KIND_MEMCPY", "gpu_memcpy", Naming::Copy),
    ("CUPTI_ACTIVITY_KIND_MEMSET", "gpu_memset", Naming::Fill),
];

#[derive(Copy, Clone)]
enum Naming {
    Kernel,
    /// A CUDA graph that was recorded as one piece of work.
    Graph,
    Copy,
    Fill,
}

/// Returns the spans and their notes; `None` if no table of the export is known.
///
/// # Errors
/// Fails if a table can't be read.
pub fn read<E>(tables: &mut ReadTable<'_, E>) -> Result<Option<(Vec<TraceSpan>, Notes)>, E> {
    let mut export = Export::default();
    let mut any = tables(MARK, &["id", "value"], &mut |row| {
        if let (Some(id), Some(text)) = (int(row, 0), text(row, 1)) {
            export.texts.insert(id, text.to_owned());
        }
    })?;
    export.read_names(tables)?;
    any &= export.read_clock(tables)?;
    any |= export.read_calls(tables)?;
    any |= export.read_ranges(tables)?;
    any |= export.read_waits(tables)?;
    any |= export.read_work(tables)?;
    Ok(any.then(|| export.spans()))
}

/// A thread or stream: the kind of track, and its ids.
#[derive(PartialEq, Eq, Hash)]
enum Track {
    Thread(i64),
    /// Ranges of a thread that may overlap.
    Ranges(i64),
    Stream {
        gpu: i64,
        context: i64,
        stream: i64,
    },
}

#[derive(Default)]
struct Export {
    texts: HashMap<i64, String>,
    /// Names of processes by pid.
    processes: HashMap<i64, String>,
    /// Names of threads by global id.
    threads: HashMap<i64, String>,
    /// Number of a GPU by process and its own number of the device.
    gpus: HashMap<(i64, i64), i64>,
    /// Time of 0 in ns since 1970; `None` if no clock was recorded.
    epoch_ns: Option<i64>,
    tracks: HashMap<Track, u32>,
    origins: Vec<Origin>,
    /// Threads that called CUDA.
    callers: HashSet<i64>,
    slices: Vec<TrackSlice>,
    notes: Notes,
}

/// Returns the process of a global id: bits 24 to 47.
fn process(global: i64) -> i64 {
    global >> 24 & 0xff_ffff
}

fn int(row: Cells<'_>, at: usize) -> Option<i64> {
    match row.get(at) {
        Some(Some(AttributeValue::Int(n))) => Some(*n),
        _ => None,
    }
}

fn text<'r>(row: Cells<'r>, at: usize) -> Option<&'r str> {
    row.get(at)?.as_ref()?.text()
}

/// Returns a correlation id that is unique in the export.
fn correlation(process: i64, number: Option<i64>) -> Option<u64> {
    number.filter(|n| *n > 0).map(|n| (process as u64) << 40 ^ n as u64)
}

impl Export {
    fn read_names<E>(&mut self, tables: &mut ReadTable<'_, E>) -> Result<(), E> {
        tables("PROCESSES", &["globalPid", "name"], &mut |row| {
            if let (Some(global), Some(name)) = (int(row, 0), text(row, 1)) {
                let base = name.rsplit('/').next().unwrap_or(name);
                self.processes.insert(process(global), short(base).to_owned());
            }
        })?;
        tables("ThreadNames", &["globalTid", "nameId"], &mut |row| {
            let name = int(row, 1).and_then(|id| self.texts.get(&id));
            if let (Some(global), Some(name)) = (int(row, 0), name) {
                self.threads.insert(global, short(name).to_owned());
            }
        })?;
        tables("TARGET_INFO_CUDA_DEVICE", &["pid", "cudaId", "gpuId"], &mut |row| {
            if let (Some(pid), Some(own), Some(gpu)) = (int(row, 0), int(row, 1), int(row, 2)) {
                self.gpus.insert((pid, own), gpu);
            }
        })?;
        Ok(())
    }

    fn read_clock<E>(&mut self, tables: &mut ReadTable<'_, E>) -> Result<bool, E> {
        let any = tables("TARGET_INFO_SESSION_START_TIME", &["utcEpochNs"], &mut |row| {
            self.epoch_ns = self.epoch_ns.or(int(row, 0));
        })?;
        // Until 2023 the table had the second name.
        for table in ["META_DATA_EXPORT", "EXPORT_META_DATA"] {
            tables(table, &["name", "value"], &mut |row| {
                if text(row, 0) == Some("EXPORT_PARAM_TIME_NORMALIZE") && text(row, 1) == Some("true") {
                    self.epoch_ns = Some(0);
                }
            })?;
        }
        Ok(any)
    }

    fn read_calls<E>(&mut self, tables: &mut ReadTable<'_, E>) -> Result<bool, E> {
        let columns = ["start", "end", "globalTid", "correlationId", "nameId"];
        tables("CUPTI_ACTIVITY_KIND_RUNTIME", &columns, &mut |row| {
            let thread = int(row, 2).unwrap_or_default();
            self.callers.insert(thread);
            let name = without_version(self.name(&[int(row, 4)])).to_owned();
            let launches = correlation(process(thread), int(row, 3));
            self.push(Track::Thread(thread), row, "cuda_runtime", name, |slice| slice.launches = launches);
        })
    }

    fn read_ranges<E>(&mut self, tables: &mut ReadTable<'_, E>) -> Result<bool, E> {
        let columns = ["start", "end", "globalTid", "eventType", "text", "textId"];
        tables("NVTX_EVENTS", &columns, &mut |row| {
            let thread = int(row, 2).unwrap_or_default();
            let track = match int(row, 3) {
                Some(kind) if START_END.contains(&kind) => Track::Ranges(thread),
                Some(kind) if PUSH_POP.contains(&kind) => Track::Thread(thread),
                None if int(row, 1).is_some() => Track::Thread(thread),
                kind => {
                    self.notes.unused += u64::from(kind.is_some_and(|kind| MARK_EVENT.contains(&kind)));
                    return;
                }
            };
            let whole = text(row, 4).unwrap_or_else(|| self.name(&[int(row, 5)])).to_owned();
            let (name, category) = range_name(&whole);
            let is_cut = name.len() < whole.len();
            self.push(track, row, category, name.to_owned(), |slice| {
                slice.is_annotation = category == "nvtx";
                if is_cut {
                    slice.attributes.push(("nvtx.text".into(), AttributeValue::Text(whole)));
                }
            });
        })
    }

    /// Reads calls of the system, of threads that call CUDA. Other threads wait all the time and are left out.
    fn read_waits<E>(&mut self, tables: &mut ReadTable<'_, E>) -> Result<bool, E> {
        tables("OSRT_API", &["start", "end", "globalTid", "nameId"], &mut |row| {
            let thread = int(row, 2).unwrap_or_default();
            if self.callers.contains(&thread) {
                let name = self.name(&[int(row, 3)]).to_owned();
                self.push(Track::Thread(thread), row, "os_runtime", name, |_| {});
            }
        })
    }

    fn read_work<E>(&mut self, tables: &mut ReadTable<'_, E>) -> Result<bool, E> {
        let columns = [
            "start",
            "end",
            "deviceId",
            "contextId",
            "streamId",
            "correlationId",
            "globalPid",
            "demangledName",
            "shortName",
            "mangledName",
            "graphId",
            "copyKind",
            "bytes",
        ];
        let mut any = false;
        for (table, category, naming) in DEVICE {
            any |= tables(table, &columns, &mut |row| {
                let pid = process(int(row, 6).unwrap_or_default());
                let own = int(row, 2).unwrap_or_default();
                let gpu = self.gpus.get(&(pid, own)).copied().unwrap_or(own);
                let id = |at| int(row, at).unwrap_or_default();
                let (context, stream) = (id(3), id(4));
                let name = match naming {
                    Naming::Kernel => self.name(&[int(row, 7), int(row, 8), int(row, 9)]).to_owned(),
                    Naming::Graph => format!("CUDA graph {}", id(10)),
                    Naming::Copy => {
                        let kind = usize::try_from(id(11) - 1).ok().and_then(|at| COPIES.get(at));
                        format!("Memcpy {}", kind.unwrap_or(&"of an unknown kind"))
                    }
                    Naming::Fill => "Memset".to_owned(),
                };
                let launched_by = correlation(pid, int(row, 5));
                self.push(Track::Stream { gpu, context, stream }, row, category, name, |slice| {
                    slice.launched_by = launched_by;
                    let mut put = |key: &str, n| slice.attributes.push((key.into(), AttributeValue::Int(n)));
                    put("device", gpu);
                    put("stream", stream);
                    if let Some(bytes) = int(row, 12) {
                        put("bytes", bytes);
                    }
                });
            })?;
        }
        Ok(any)
    }

    /// Returns the text of the first known id.
    fn name(&self, ids: &[Option<i64>]) -> &str {
        let known = ids.iter().flatten().find_map(|id| self.texts.get(id));
        known.map_or("(unnamed)", String::as_str)
    }

    /// Adds a slice whose first two cells are start and end.
    fn push(
        &mut self,
        track: Track,
        row: Cells<'_>,
        category: &str,
        name: String,
        fill: impl FnOnce(&mut TrackSlice),
    ) {
        // Zeros are times that were not recorded.
        let Some(start_ns) = int(row, 0).filter(|start| *start != 0 || int(row, 1) != Some(0)) else {
            self.notes.refused += 1;
            return;
        };
        let end_ns = int(row, 1).unwrap_or_else(|| {
            self.notes.unended += 1;
            start_ns
        });
        let (track, category) = (self.track(track), AttributeValue::Text(category.to_owned()));
        let mut slice = TrackSlice {
            track,
            start_ns,
            end_ns,
            name,
            is_annotation: false,
            launches: None,
            launched_by: None,
            trace: None,
            attributes: vec![("category".into(), category)],
        };
        fill(&mut slice);
        self.slices.push(slice);
    }

    fn track(&mut self, track: Track) -> u32 {
        if let Some(known) = self.tracks.get(&track) {
            return *known;
        }
        let mut origin = Origin::default();
        match track {
            Track::Thread(thread) | Track::Ranges(thread) => {
                let pid = process(thread);
                let named = self.processes.get(&pid).cloned();
                origin.service = Some(named.unwrap_or_else(|| format!("pid {pid}")));
                let mut keep = |key, text| origin.keep(key, AttributeValue::Text(text));
                keep("process.pid", pid.to_string());
                if matches!(track, Track::Thread(_)) {
                    // The process is part of the id, because analyses tell threads apart by it.
                    keep("thread.id", format!("{pid}/{}", thread & 0xff_ffff));
                }
                if let Some(name) = self.threads.get(&thread) {
                    keep("thread.name", name.clone());
                }
            }
            Track::Stream { gpu, .. } => origin.service = Some(format!("GPU {gpu}")),
        }
        let next = self.origins.len() as u32;
        self.origins.push(origin);
        self.tracks.insert(track, next);
        next
    }

    fn spans(mut self) -> (Vec<TraceSpan>, Notes) {
        let base_ns = self.epoch_ns.unwrap_or(0);
        self.notes.unanchored = self.epoch_ns.is_none();
        for slice in &mut self.slices {
            slice.start_ns = slice.start_ns.saturating_add(base_ns);
            slice.end_ns = slice.end_ns.saturating_add(base_ns);
        }
        let first = self.slices.first().map_or(0, |slice| slice.start_ns);
        let seed = super::fnv(&[&first.to_le_bytes(), &self.slices.len().to_le_bytes()]);
        let spans = timeline::spans(self.slices, &self.origins, seed, &mut self.notes);
        (spans, self.notes)
    }
}

/// Returns the name of a call without the version that CUPTI appends: `cudaLaunchKernel_v7000`.
fn without_version(name: &str) -> &str {
    match name.rsplit_once("_v") {
        Some((base, version)) if !version.is_empty() && version.bytes().all(|b| b.is_ascii_digit()) => base,
        _ => name,
    }
}

/// Returns the name of a range without its arguments, and its category.
fn range_name(text: &str) -> (&str, &'static str) {
    // vLLM's and SGLang's ranges of modules are Python dictionaries.
    let module = text.strip_prefix("{'Module': '").and_then(|rest| rest.split_once('\''));
    if let Some((module, _)) = module {
        return (module, "nvtx");
    }
    // PyTorch's ranges are operators: `aten::mm, seq = 3, op_id = 12`.
    match [", seq = ", ", op_id = "].iter().filter_map(|mark| text.find(mark)).min() {
        Some(end) => (&text[..end], "cpu_op"),
        None => (text, "nvtx"),
    }
}
