//! Reads the heads of many runs: what a list of ten thousand runs shows of each.
//!
//! A whole manifest contains timelines and histograms, which are nine tenths of its bytes. They are skipped without being built, on every core,
//! because a page of many runs must open immediately. An index file was rejected: it could disagree with the folders.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use plimsoll_judge::history::{self, HISTORY_SCHEMA, HistoryEntry, LevelView};
use plimsoll_measure::findings::{CapacityLine, Held, Lengths, Percentiles, Trust};
use plimsoll_model::run::{ClockAnchor, Fingerprint};
use plimsoll_model::{Load, RunState};
use plimsoll_report::browse::{RowFigure, RunRow};
use plimsoll_report::figure;
use serde::Deserialize;

/// The fields of `run.json` that a list shows.
#[derive(Deserialize)]
struct Head {
    id: String,
    kind: String,
    label: Option<String>,
    progress: RunState,
    clock: ClockAnchor,
    target: Fingerprint,
    findings: Option<FindingsHead>,
}

#[derive(Deserialize)]
struct FindingsHead {
    levels: Vec<LevelHead>,
    #[serde(default)]
    lines: Vec<LinesHead>,
    validity: ValidityHead,
}

#[derive(Deserialize)]
struct LevelHead {
    summary: SummaryHead,
}

#[derive(Deserialize)]
struct SummaryHead {
    traffic: String,
    purpose: String,
    load: Load,
    lengths: Lengths,
    counts: CountsHead,
    latency: LatencyHead,
    budget: Option<BudgetHead>,
}

#[derive(Deserialize)]
struct CountsHead {
    requests: u64,
    failed: u64,
}

#[derive(Deserialize)]
struct LatencyHead {
    ttft: Option<Percentiles>,
    tpot: Option<Percentiles>,
    e2e: Percentiles,
}

#[derive(Deserialize)]
struct BudgetHead {
    verdict: Held,
}

#[derive(Deserialize)]
struct LinesHead {
    traffic: String,
    budget: Option<CapacityLine>,
    stability: CapacityLine,
}

#[derive(Deserialize)]
struct ValidityHead {
    verdict: Trust,
}

/// A run of a list: its folder and when its head was read.
pub struct ListedRun {
    pub dir: PathBuf,
    /// Time of the last change and size of `run.json`, which show whether it must be reloaded.
    stamp: Option<(SystemTime, u64)>,
    pub row: RunRow,
    /// The run as a result of a line; `None` without findings.
    pub entry: Option<HistoryEntry>,
}

/// Reads the runs of a folder, the newest first. Unchanged runs in `known` are not reloaded.
pub fn read(home: &Path, known: Vec<ListedRun>) -> Vec<ListedRun> {
    let mut known: std::collections::HashMap<PathBuf, ListedRun> =
        known.into_iter().map(|run| (run.dir.clone(), run)).collect();
    let mut runs = Vec::new();
    let mut unread = Vec::new();
    for dir in crate::named::folders(home) {
        let stamp = stamp(&dir);
        match known.remove(&dir).filter(|run| run.stamp == stamp) {
            Some(run) => runs.push(run),
            None => unread.push((dir, stamp)),
        }
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let share = unread.len().div_ceil(cores).max(1);
    std::thread::scope(|scope| {
        let readers: Vec<_> = unread
            .chunks(share)
            .map(|part| scope.spawn(|| part.iter().map(|(dir, stamp)| one(dir, *stamp)).collect::<Vec<_>>()))
            .collect();
        runs.extend(readers.into_iter().filter_map(|reader| reader.join().ok()).flatten());
    });
    runs.sort_by(|a, b| b.row.began_s.total_cmp(&a.row.began_s).then_with(|| b.dir.cmp(&a.dir)));
    runs
}

fn stamp(dir: &Path) -> Option<(SystemTime, u64)> {
    let data = std::fs::metadata(dir.join("run.json")).ok()?;
    Some((data.modified().ok()?, data.len()))
}

fn one(dir: &Path, stamp: Option<(SystemTime, u64)>) -> ListedRun {
    let name = dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let head = std::fs::read(dir.join("run.json"))
        .ok()
        .and_then(|bytes| serde_json::from_slice::<Head>(&bytes).ok());
    let Some(head) = head else {
        let row = RunRow { name, state: Some("not finished"), ..RunRow::default() };
        return ListedRun { dir: dir.to_owned(), stamp, row, entry: None };
    };
    let entry = entry(dir, &head);
    ListedRun { dir: dir.to_owned(), stamp, row: row(name, &head, entry.as_ref()), entry }
}

fn views(found: &FindingsHead) -> impl Iterator<Item = LevelView<'_>> {
    let measured = found.levels.iter().map(|level| &level.summary);
    measured.filter(|summary| history::is_measured(&summary.purpose)).map(|summary| LevelView {
        traffic: &summary.traffic,
        load: &summary.load,
        lengths: &summary.lengths,
        latencies: [summary.latency.ttft.as_ref(), summary.latency.tpot.as_ref(), Some(&summary.latency.e2e)],
    })
}

fn entry(dir: &Path, head: &Head) -> Option<HistoryEntry> {
    let found = head.findings.as_ref()?;
    Some(HistoryEntry {
        schema: HISTORY_SCHEMA,
        measured: figure::date(head.clock.realtime_ns),
        id: head.id.clone(),
        run: dir.display().to_string(),
        version: version(head),
        verdict: None,
        trust: found.validity.verdict,
        load: history::load_key(views(found)),
        metrics: history::figures(views(found)),
        cut: Vec::new(),
    })
}

/// The engine's version, if the server reports it.
fn version(head: &Head) -> Option<String> {
    head.target.facts.get("engine_version").cloned().flatten()
}

fn row(name: String, head: &Head, entry: Option<&HistoryEntry>) -> RunRow {
    let model = head.target.facts.get("model").cloned().flatten();
    let target = model.unwrap_or_else(|| crate::resolve::bare(&head.target.url).to_owned());
    let mut row = RunRow {
        name,
        id: head.id.clone(),
        kind: head.kind.clone(),
        began_s: head.clock.realtime_ns as f64 / 1e9,
        label: head.label.clone(),
        version: version(head),
        state: matches!(head.progress, RunState::Partial { .. } | RunState::Running).then_some("partial"),
        ..RunRow::default()
    };
    if let (Some(found), Some(entry)) = (&head.findings, entry) {
        row.trust = Some(found.validity.verdict);
        let held = found.levels.iter().filter(|level| history::is_measured(&level.summary.purpose));
        row.slo = held.filter_map(|level| level.summary.budget.as_ref()).map(|budget| budget.verdict).max();
        row.load = if entry.load.is_empty() { swept(found) } else { entry.load.clone() };
        if let Some(view) = views(found).last() {
            for (metric, latency) in ["ttft", "tpot", "e2e"].iter().zip(view.latencies) {
                let Some(latency) = latency else { continue };
                for (p, reading) in [("p50", &latency.p50), ("p95", &latency.p95), ("p99", &latency.p99)] {
                    let Some(seen) = reading.seen() else { continue };
                    let few = reading.estimate().is_none();
                    row.figures.insert(format!("{metric} {p}"), RowFigure::new(seen, few));
                }
            }
        }
        let counts = found.levels.iter().map(|level| &level.summary.counts);
        let (failed, all) = counts.fold((0, 0), |sum, of| (sum.0 + of.failed, sum.1 + of.requests));
        row.failed = (all > 0).then(|| failed as f64 / all as f64);
    }
    row.experiment = format!("{target}, {}", if row.load.is_empty() { &row.kind } else { &row.load });
    row.target = target;
    row
}

/// A sweep's load: its budget limit, else its stability limit.
fn swept(found: &FindingsHead) -> String {
    let steady = found.lines.iter().find(|lines| lines.traffic == "steady").or(found.lines.first());
    let line = steady.and_then(|lines| {
        let named = lines.budget.as_ref().map(|line| ("budget limit", line));
        named
            .into_iter()
            .chain([("stability limit", &lines.stability)])
            .find_map(|(name, line)| Some(format!("{name} {}", figure::per_second(line.rate()?.value))))
    });
    let levels = figure::counted(found.levels.len() as u64, "level");
    line.map_or(levels.clone(), |line| format!("{levels}, {line}"))
}
