//! `plimsoll browse`: one page of many runs, served to this machine's browser or written as one file.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use hyper::StatusCode;
use plimsoll_judge::compare::CompareSpec;
use plimsoll_judge::history::{HistoryEntry, line};
use plimsoll_report::browse::{RowChange, RowChanges, RunRow, fewest_runs, page};

use super::{compare, report};
use crate::exit::{Exit, Stop};
use crate::flags::BrowseArgs;
use crate::named::HOME;
use crate::out;
use crate::page_server::{self, Page, PageRequest};
use crate::run_heads::{self, ListedRun};

/// Seed of the permutations of a change's test: the same runs always show the same changes.
const SEED: u64 = 1;

/// Serves the page until Ctrl-C, or writes it.
pub fn run(args: &BrowseArgs) -> Result<Exit, Stop> {
    out::place_for(args.out.as_deref())?;
    if !args.dir.is_dir() {
        return Err(Stop::usage(format!(
            "{}: there is no such folder; runs are written under {HOME}/ unless -o sets another folder",
            args.dir.display()
        )));
    }
    let runs = run_heads::read(&args.dir, Vec::new());
    let name = args.dir.display().to_string();
    if let Some(file) = &args.out {
        let rows = linked(&runs, file);
        out::file(file, page(&name, false, &rows, &changes_of_all(&runs)))?;
        out::line(&file.display().to_string());
        return Ok(Exit::Done);
    }
    let count = runs.len();
    let shelf = Shelf { dir: args.dir.clone(), name, runs: Mutex::new(runs) };
    if !args.listen.ip().is_loopback() {
        return Err(Stop::usage(format!(
            "--listen {}: pages are served on loopback only; listen on 127.0.0.1, or write one file with --out",
            args.listen
        )));
    }
    let addr = page_server::start(args.listen, move |asked| shelf.answer(asked))?;
    out::line(&format!("{count} runs: http://{addr}/"));
    out::note("Ctrl-C ends it");
    page_server::wait_for_interrupt()?;
    Ok(Exit::Done)
}

/// The rows of a page that is written to `file`: each names the report that is already in its run, by its path from there.
fn linked(runs: &[ListedRun], file: &Path) -> Vec<RunRow> {
    let beside = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let beside = beside.canonicalize().ok();
    let link = |run: &ListedRun| {
        let report = run.dir.join("report.html").canonicalize().ok()?;
        let from = report.strip_prefix(beside.as_ref()?).ok()?;
        Some(from.to_string_lossy().replace('%', "%25").replace(' ', "%20").replace('#', "%23"))
    };
    runs.iter().map(|run| RunRow { report: link(run), ..run.row.clone() }).collect()
}

/// Changes in each experiment that has enough runs.
fn changes_of_all(runs: &[ListedRun]) -> RowChanges {
    let mut experiments: BTreeMap<&str, Vec<&HistoryEntry>> = BTreeMap::new();
    for run in runs {
        experiments.entry(&run.row.experiment).or_default().extend(&run.entry);
    }
    let many = experiments.into_iter().filter(|(_, entries)| entries.len() >= fewest_runs());
    many.map(|(name, entries)| (name.to_owned(), changes(entries)))
        .filter(|(_, found)| !found.is_empty())
        .collect()
}

/// Changes of each figure of one experiment, whose runs come newest first.
fn changes(newest_first: Vec<&HistoryEntry>) -> BTreeMap<String, Vec<RowChange>> {
    let entries: Vec<HistoryEntry> = newest_first.into_iter().rev().cloned().collect();
    let Some(last) = entries.last() else { return BTreeMap::new() };
    let found = line(&entries, &last.id, SEED);
    let of = |course: &plimsoll_judge::history::MetricHistory| -> Vec<RowChange> {
        let changes = course.changes.iter();
        changes
            .map(|change| RowChange {
                at: found.entries[change.at].id.clone(),
                ratio: [change.ratio, change.lower, change.upper],
            })
            .collect()
    };
    let courses = found.courses.iter().filter(|course| !course.changes.is_empty());
    courses.map(|course| (course.name.clone(), of(course))).collect()
}

/// The folder behind a live page.
struct Shelf {
    dir: PathBuf,
    name: String,
    runs: Mutex<Vec<ListedRun>>,
}

impl Shelf {
    fn answer(&self, asked: &PageRequest) -> Page {
        match asked.path.as_str() {
            _ if !asked.is_local() => {
                Page::text(StatusCode::FORBIDDEN, "open this page by the address that plimsoll printed\n")
            }
            "/" => self.list(),
            "/run" => self.report(asked),
            "/compare" => self.comparison(asked),
            "/changes" => self.changes(asked),
            _ => Page::text(StatusCode::NOT_FOUND, "there are /, /run, /compare and /changes\n"),
        }
    }

    /// The current list: runs that finished since the last request are in it.
    fn list(&self) -> Page {
        let mut runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        *runs = run_heads::read(&self.dir, std::mem::take(&mut runs));
        let rows: Vec<RunRow> = runs.iter().map(|run| run.row.clone()).collect();
        Page::html(page(&self.name, true, &rows, &RowChanges::new()))
    }

    /// The folder of a listed run. The list resolves a name, so that no path leads out of the folder.
    fn dir_of(&self, asked: &PageRequest, key: &str) -> Result<PathBuf, Page> {
        let name = asked.get(key).unwrap_or_default();
        let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
        let found = runs.iter().find(|run| run.row.name == name).map(|run| run.dir.clone());
        found.ok_or_else(|| {
            Page::text(StatusCode::NOT_FOUND, format!("no run named {name:?} in {}\n", self.name))
        })
    }

    fn report(&self, asked: &PageRequest) -> Page {
        let dir = match self.dir_of(asked, "at") {
            Ok(dir) => dir,
            Err(page) => return page,
        };
        report::html(&dir).map_or_else(refusal, Page::html)
    }

    fn comparison(&self, asked: &PageRequest) -> Page {
        let (base, candidate) = match (self.dir_of(asked, "base"), self.dir_of(asked, "candidate")) {
            (Ok(base), Ok(candidate)) => (base, candidate),
            (Err(page), _) | (_, Err(page)) => return page,
        };
        let found = compare::of_folders(&base, &candidate, &CompareSpec::default());
        let [base, candidate] = [base, candidate].map(|dir| dir.display().to_string());
        let names = [format!("{base} (base)"), format!("{candidate} (candidate)")];
        let made = found.map(|(_, found)| plimsoll_report::compare::page((&names[0], &names[1]), &found));
        made.map_or_else(refusal, Page::html)
    }

    fn changes(&self, asked: &PageRequest) -> Page {
        let experiment = asked.get("experiment").unwrap_or_default();
        let entries: Vec<HistoryEntry> = {
            let runs = self.runs.lock().unwrap_or_else(PoisonError::into_inner);
            let own = runs.iter().filter(|run| run.row.experiment == experiment);
            own.filter_map(|run| run.entry.clone()).collect()
        };
        Page::json(&changes(entries.iter().collect()))
    }
}

/// A refusal with the terms of the command line.
fn refusal(stop: Stop) -> Page {
    Page::text(StatusCode::UNPROCESSABLE_ENTITY, format!("{}\n", stop.line))
}
