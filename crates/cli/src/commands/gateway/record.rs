//! Records the traffic of the gateway as run folders. A new folder is started at a size or time limit.
//!
//! One thread moves rows from the gateway's channel to the log of the run. Another thread closes folders
//! (Parquet, findings), because that takes a second or more and new rows arrive meanwhile. A folder contains
//! the requests that *arrived* while it was the newest. It stays open for their ends, because slow requests
//! would otherwise be missing from it.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_gateway::explain::ExplainRecord;
use plimsoll_gateway::traffic::TrafficRow;
use plimsoll_gateway::traffic::rows::RowMaker;
use plimsoll_gateway::{GatewaySpec, RecordSpec, ReplicaRole, ReplicaSpec, TrafficRecorder};
use plimsoll_measure::traffic::Extent;
use plimsoll_model::{At, Attempt, ClockAnchor, EndedBy, Fingerprint, Manifest, RunState, Span, TimeBase};
use plimsoll_report::figure::counted;
use plimsoll_store::{RunWriter, StoreError};
use serde_json::json;

use super::in_force::LiveBudgetEvaluator;
use super::traces::GatewayTraces;
use super::trial::{self, Trials};
use crate::exit::Stop;
use crate::measure;
use crate::numbered::{folders, size};
use crate::out;

/// The run kind of a gateway record.
pub const KIND: &str = "gateway";
/// Name prefix of the folders with recorded traffic.
const PREFIX: &str = plimsoll_watchd::run::GATEWAY_PREFIX;
/// File of routing decisions in a run folder.
pub const EXPLAINED: &str = "explain.jsonl";
/// Maximum size of that file in bytes: some ten thousand decisions among ten replicas.
const MOST_EXPLAINED: usize = 16 << 20;
/// Polling interval of the folder limits without traffic.
const LOOK: Duration = Duration::from_millis(100);
/// Time for which a folder waits for requests in flight, because the longest responses take minutes. Later
/// requests are missing from the folder, and the folder reports their number.
const LONGEST: Span = Span::from_secs(900);

/// The replicas of the gateway at the last reload.
pub type CurrentReplicas = Arc<Mutex<Vec<ReplicaSpec>>>;

/// A record in progress.
pub struct TrafficRecord {
    /// Channel from the gateway.
    pub traffic: Arc<TrafficRecorder>,
    /// Replicas for the manifest of the next folder.
    pub replicas: CurrentReplicas,
    /// Canary and shadow trials, which are judged from the recorded requests; `None` without a trial.
    pub trials: Option<Arc<Mutex<Trials>>>,
    thread: JoinHandle<RecordEnd>,
}

#[derive(Default)]
pub struct RecordEnd {
    /// Newest folder with a request; `None` if no request was recorded.
    pub dir: Option<PathBuf>,
    pub requests: u64,
    /// Number of served requests that are in no folder.
    pub lost: u64,
    /// Latest write error; `None` if there is none.
    pub error: Option<String>,
}

impl TrafficRecord {
    /// Starts the record: creates the first folder, starts the budget evaluation and waits for requests.
    /// Returns `None` if the gateway file configures neither.
    ///
    /// # Errors
    /// Fails if the folder can't be created or the budget file is invalid.
    pub fn start(spec: &GatewaySpec, clock: Clock, quiet: bool) -> Result<Option<TrafficRecord>, Stop> {
        let trials = Trials::new(spec, clock.now())?.map(Mutex::new).map(Arc::new);
        if spec.record.is_none() && spec.budget.is_none() && trials.is_none() && spec.traces.is_none() {
            return Ok(None);
        }
        let explain = spec.record.as_ref().map_or(0.0, |record| record.explain);
        let (traffic, from) = TrafficRecorder::channel(explain);
        let told = Arc::clone(&traffic.budget);
        let classes = &spec.admission.classes;
        let watching = spec
            .budget
            .as_deref()
            .map(|path| LiveBudgetEvaluator::start(path, classes, told, (clock, quiet)))
            .transpose()?;
        let replicas: CurrentReplicas = Arc::new(Mutex::new(spec.replicas.clone()));
        let next = |record: &RecordSpec| Next {
            spec: spec.clone(),
            replicas: Arc::clone(&replicas),
            record: record.clone(),
            clock,
            numbers: traffic.numbers(),
        };
        let keeping = spec.record.as_ref().map(|record| FolderSet::start(next(record)));
        let keeping = keeping.transpose()?;
        let traces = spec
            .traces
            .as_ref()
            .map(|asked| GatewayTraces::start(spec, asked, clock, &traffic))
            .transpose()?;
        let writing = RowWriter {
            maker: RowMaker::new(measure::random()),
            keeping,
            watching,
            trials: trials.clone(),
            traces,
        };
        let thread = std::thread::Builder::new().name("gateway-record".into());
        let thread = thread.spawn(move || writing.run(&from));
        let thread = thread.map_err(|e| Stop::invalid(format!("the record can't be written: {e}")))?;
        Ok(Some(TrafficRecord { traffic, replicas, trials, thread }))
    }

    /// Writes the remaining rows. The gateway must have ended, because its threads send rows until then.
    pub fn end(self) -> RecordEnd {
        let lost = self.traffic.lost();
        drop(self.traffic);
        let mut ended = self.thread.join().unwrap_or_default();
        ended.lost += lost;
        ended
    }
}

/// The state of the writing thread.
struct RowWriter {
    maker: RowMaker,
    keeping: Option<FolderSet>,
    watching: Option<LiveBudgetEvaluator>,
    trials: Option<Arc<Mutex<Trials>>>,
    traces: Option<GatewayTraces>,
}

impl RowWriter {
    fn run(mut self, from: &Receiver<Box<TrafficRow>>) -> RecordEnd {
        loop {
            match from.recv_timeout(LOOK) {
                Ok(told) => self.take(&told),
                Err(RecvTimeoutError::Timeout) => self.keeping.iter_mut().for_each(FolderSet::look),
                Err(RecvTimeoutError::Disconnected) => break,
            }
            self.watching.iter_mut().for_each(LiveBudgetEvaluator::look);
            self.traces.iter_mut().for_each(GatewayTraces::look);
        }
        self.traces.map(GatewayTraces::end);
        self.keeping.map(FolderSet::end).unwrap_or_default()
    }

    fn take(&mut self, told: &TrafficRow) {
        if told.is_shadow {
            let rows = self.maker.rows(told, At::ZERO);
            self.trials.iter().for_each(|trials| trial::lock(trials).take(&rows, true));
            return;
        }
        let folder = self.keeping.as_mut().and_then(|keeping| keeping.folder_of(told.number));
        let base = folder.as_ref().map_or(At::ZERO, |folder| folder.base);
        let rows = self.maker.rows(told, base);
        self.traces.iter_mut().for_each(|traces| traces.take(told, &rows, base));
        if let Some(folder) = folder {
            rows.iter().for_each(|row| folder.keep(row));
            folder.explain(told);
        }
        if let Some(keeping) = &mut self.keeping {
            keeping.counted();
        }
        self.trials.iter().for_each(|trials| trial::lock(trials).take(&rows, false));
        // Requests that the budget state rejected are excluded, because a broken budget would otherwise keep
        // itself broken.
        if let Some(watching) = self.watching.as_mut().filter(|_| !told.held_back) {
            watching.take(rows);
        }
    }
}

struct Next {
    spec: GatewaySpec,
    replicas: CurrentReplicas,
    record: RecordSpec,
    clock: Clock,
    numbers: Arc<AtomicU64>,
}

struct Folder {
    writer: RunWriter,
    /// Origin of the run's time axis, on the gateway's clock.
    base: At,
    /// Number of the first request of the folder.
    first: u64,
    begun: At,
    extent: Extent,
    /// Writer of routing decisions, one line each; `None` without explanations or after the size limit.
    explained: Option<BufWriter<File>>,
    explained_bytes: usize,
}

impl Next {
    fn folder(&self) -> Result<Folder, StoreError> {
        let number = folders(&self.record.dir, PREFIX).last().map_or(1, |(number, _)| number + 1);
        let dir = self.record.dir.join(format!("{PREFIX}{number:06}"));
        let begun = self.clock.now();
        // The origin is a second earlier, because a request reads its time before its number. A new request
        // would otherwise start before zero.
        let base = begun + -Span::from_secs(1);
        let first = self.numbers.load(Ordering::Relaxed);
        let writer = RunWriter::create(&dir, self.manifest(base))?;
        let explained = match self.record.explain > 0.0 {
            true => File::create(dir.join(EXPLAINED)).ok().map(BufWriter::new),
            false => None,
        };
        let extent = Extent::default();
        Ok(Folder { writer, base, first, begun, extent, explained, explained_bytes: 0 })
    }

    fn manifest(&self, base: At) -> Manifest {
        let spec = &self.spec;
        let anchor = self.clock.anchor();
        let replicas = self.replicas.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let serving = replicas.iter().filter(|replica| replica.role != ReplicaRole::Shadow);
        let names = serving.map(|replica| replica.name.as_deref().unwrap_or(&replica.url));
        let canaries = replicas.iter().filter(|one| one.role == ReplicaRole::Canary).map(ReplicaSpec::named);
        // Same form as in a scenario, so that a budget slice may name a class.
        let classes = spec.admission.classes.iter().map(|class| json!({"name": class.name}));
        let url = format!("http://{}/v1", spec.listen);
        let facts = [("replicas".to_owned(), Some(replicas.len().to_string()))];
        let clock = ClockAnchor {
            monotonic_ns: anchor.monotonic_ns + base.0,
            realtime_ns: anchor.realtime_ns + base.0,
        };
        let target = Fingerprint { url: url.clone(), facts: facts.into_iter().collect() };
        // Keys are listed one by one, because secrets of the gateway file must not get into a run.
        let scenario = json!({
            "target": {"url": url},
            "classes": classes.collect::<Vec<_>>(),
            "gateway": {
                "replicas": names.collect::<Vec<_>>(),
                "canaries": canaries.collect::<Vec<_>>(),
                "route": spec.route,
                "retry": spec.retry,
                "hedge": spec.hedge,
                "breaker": spec.breaker,
            },
        });
        let begun = plimsoll_watchd::observed::manifest(KIND, (TimeBase::Real, clock), target, scenario);
        Manifest { reproduce: "plimsoll rerun".into(), ..begun }
    }
}

/// The open folders of a record.
struct FolderSet {
    next: Next,
    newest: Folder,
    /// Older folders that wait for requests in flight, each with the first request number of its successor.
    older: Vec<(Folder, u64)>,
    closing: Vec<JoinHandle<Option<String>>>,
    ended: RecordEnd,
}

impl FolderSet {
    fn start(next: Next) -> Result<FolderSet, Stop> {
        let newest = next.folder().map_err(|e| match e {
            StoreError::DiskFull { .. } => Stop::invalid(e.to_string()),
            other => Stop::usage(format!("record: {other}")),
        })?;
        Ok(FolderSet { next, newest, older: Vec::new(), closing: Vec::new(), ended: RecordEnd::default() })
    }

    /// Returns the folder of a request; `None` if the folder is closed, and the request then counts as lost.
    fn folder_of(&mut self, number: u64) -> Option<&mut Folder> {
        let own = |(folder, until): &(Folder, u64)| (folder.first..*until).contains(&number);
        if let Some(place) = self.older.iter().position(own) {
            return Some(&mut self.older[place].0);
        }
        if number >= self.newest.first {
            return Some(&mut self.newest);
        }
        self.ended.lost += 1;
        None
    }

    fn counted(&mut self) {
        self.ended.requests += 1;
        if self.ended.requests.is_multiple_of(64) {
            self.look();
        }
    }

    /// Starts the next folder if this one is full, and closes older folders that are complete.
    fn look(&mut self) {
        let now = self.next.clock.now();
        self.newest.flush();
        let (every_s, bytes) = (self.next.record.every_s, self.next.record.bytes);
        let age = (now - self.newest.begun).as_secs_f64();
        let is_full = age >= every_s || self.newest.writer.health().written_bytes >= bytes;
        if is_full && self.newest.extent.requests() > 0 {
            match self.next.folder() {
                Ok(next) => {
                    let until = next.first;
                    self.older.push((std::mem::replace(&mut self.newest, next), until));
                    self.thin();
                }
                // Recording continues in this folder; the next poll retries.
                Err(error) => self.wrong(error.to_string()),
            }
        }
        let over = |(folder, until): &mut (Folder, u64)| {
            folder.extent.requests() >= *until - folder.first
                || now - folder.begun > LONGEST + Span::from_secs_f64(every_s)
        };
        let over: Vec<_> = self.older.extract_if(.., over).collect();
        over.into_iter().for_each(|(folder, until)| self.close(folder, until));
        let done = self.closing.extract_if(.., |thread| thread.is_finished());
        let errors: Vec<String> = done.filter_map(|thread| thread.join().ok().flatten()).collect();
        errors.into_iter().for_each(|error| self.wrong(error));
    }

    fn wrong(&mut self, error: String) {
        if self.ended.error.as_ref() != Some(&error) {
            out::note(&format!("record: {error}"));
            self.ended.error = Some(error);
        }
    }

    fn close(&mut self, folder: Folder, until: u64) {
        self.ended.dir = Some(folder.writer.dir().to_path_buf());
        let closing = std::thread::Builder::new().name("gateway-record-close".into());
        match closing.spawn(move || folder.close(until)) {
            Ok(thread) => self.closing.push(thread),
            // The log stays; `open` recovers a run from it.
            Err(error) => self.wrong(error.to_string()),
        }
    }

    /// Removes the oldest folders while the total size is over the limit.
    fn thin(&self) {
        let record = &self.next.record;
        let open = [&self.newest].into_iter().chain(self.older.iter().map(|(folder, _)| folder));
        let open: Vec<&Path> = open.map(|folder| folder.writer.dir()).collect();
        let sized: Vec<(PathBuf, u64)> = folders(&record.dir, PREFIX)
            .into_iter()
            .map(|(_, dir)| (size(&dir), dir))
            .map(|(size, dir)| (dir, size))
            .collect();
        let mut all: u64 = sized.iter().map(|(_, size)| size).sum();
        for (dir, size) in sized.iter().filter(|(dir, _)| !open.contains(&dir.as_path())) {
            if all <= record.keep_bytes {
                return;
            }
            if std::fs::remove_dir_all(dir).is_ok() {
                all -= size;
            }
        }
    }

    fn end(mut self) -> RecordEnd {
        let until = self.next.numbers.load(Ordering::Relaxed);
        for (folder, until) in std::mem::take(&mut self.older) {
            self.close(folder, until);
        }
        let FolderSet { newest, mut ended, mut closing, .. } = self;
        match newest.extent.requests() {
            0 if newest.first == until => {
                let dir = newest.writer.dir().to_path_buf();
                drop(newest);
                let _ = std::fs::remove_dir_all(dir);
            }
            _ => {
                ended.dir = Some(newest.writer.dir().to_path_buf());
                ended.error = newest.close(until).or(ended.error);
            }
        }
        for thread in closing.drain(..) {
            ended.error =
                thread.join().unwrap_or_else(|_| Some("a folder could not be closed".into())).or(ended.error);
        }
        ended
    }
}

impl Folder {
    fn keep(&mut self, row: &Attempt) {
        let row = Attempt { request: row.request - self.first, ..row.clone() };
        self.extent.add(&row);
        self.writer.attempt(&row);
    }

    /// Records the routing decisions of a request. Write errors are ignored here, because the rows report
    /// them.
    fn explain(&mut self, told: &TrafficRow) {
        let (Some((id, choices)), Some(file)) = (&told.explained, &mut self.explained) else { return };
        let explained =
            ExplainRecord { request: told.number - self.first, id: id.clone(), choices: choices.clone() };
        let Ok(line) = serde_json::to_string(&explained) else { return };
        self.explained_bytes += line.len();
        if self.explained_bytes > MOST_EXPLAINED {
            // The existing lines stay: they cover the start of the folder's time.
            self.explained = None;
            return;
        }
        let _ = writeln!(file, "{line}");
    }

    fn flush(&mut self) {
        self.explained.iter_mut().for_each(|file| {
            let _ = file.flush();
        });
    }

    /// Converts the folder to a finished run with its level, Parquet files and findings. `until` is the first
    /// request number of the next folder. Returns the error text, if any.
    fn close(self, until: u64) -> Option<String> {
        let arrivals = until - self.first;
        let mut manifest = self.writer.manifest();
        manifest.levels = vec![self.extent.level(Some(arrivals), EndedBy::Complete)];
        let missing = arrivals.saturating_sub(self.extent.requests());
        if missing > 0 {
            let why =
                format!("{} of {arrivals} left no row: the disk was too slow", counted(missing, "request"));
            manifest.progress = RunState::Partial { why };
        }
        let dir = self.writer.dir().to_path_buf();
        let judged = self.writer.finish(manifest).and_then(|()| {
            let run = plimsoll_store::open(&dir)?;
            let mut manifest = run.manifest;
            let found = measure::findings(&manifest, &run.attempts, &run.samples);
            manifest.findings = serde_json::to_value(&found).ok();
            plimsoll_store::replace_manifest(&dir, &manifest)
        });
        judged.err().map(|error| error.to_string())
    }
}
