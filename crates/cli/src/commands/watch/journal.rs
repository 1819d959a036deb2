//! What must survive `kill -9`: which alerts stand, which messages have arrived, and the counts of burn rates. A file of lines, each with its checksum, appended
//! and never changed; when it has grown it is written anew beside itself and takes its own place.
//!
//! What is told is written before it is sent, and that it has arrived after that: a kill between the two sends a message a second time, under the same
//! id, and never loses one. A data base lost: three kinds of lines are read once, at the start.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_model::At;
use plimsoll_watch::alert::board::PAST;
use plimsoll_watch::{Alert, AlertState, Minute};
use serde::{Deserialize, Serialize};

use crate::exit::Stop;
use crate::out;

/// It is written anew when so much has been appended.
const GROWN: u64 = 8 << 20;

/// One line. Times are those of the wall clock: seconds and nanoseconds since 1970.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalLine {
    /// Whose it is: the budget's name, and since when there is a webhook to be told.
    Of {
        /// The budget's name.
        budget: Option<String>,
        /// When a webhook was first there, ms since 1970.
        webhook_ms: Option<i64>,
    },
    /// An alert as it is from now on.
    Alert(Alert),
    /// What a row counted in a minute.
    Minute {
        /// The row's id.
        row: String,
        /// What.
        minute: Minute,
    },
    /// The webhook has taken a message.
    Arrived {
        /// The alert's id.
        id: String,
        /// In which state.
        state: AlertState,
    },
}

/// What the lines come to.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct JournalState {
    /// The budget's name.
    pub budget: Option<String>,
    /// When a webhook was first there, ms since 1970.
    pub webhook_ms: Option<i64>,
    /// Alerts, the oldest first.
    pub alerts: Vec<Alert>,
    /// What rows counted, the oldest first.
    pub minutes: Vec<(String, Minute)>,
    /// Messages that the webhook has taken.
    pub arrived: HashSet<(String, AlertState)>,
}

impl JournalState {
    fn add(&mut self, line: JournalLine, places: &mut BTreeMap<String, usize>) {
        match line {
            JournalLine::Of { budget, webhook_ms } => (self.budget, self.webhook_ms) = (budget, webhook_ms),
            JournalLine::Alert(alert) => match places.get(&alert.id) {
                Some(place) => self.alerts[*place] = alert,
                None => {
                    places.insert(alert.id.clone(), self.alerts.len());
                    self.alerts.push(alert);
                }
            },
            JournalLine::Minute { row, minute } => self.minutes.push((row, minute)),
            JournalLine::Arrived { id, state } => {
                self.arrived.insert((id, state));
            }
        }
    }

    /// Without what nobody needs any more: minutes before this instant, and all but the last alerts that were resolved.
    fn prune(&mut self, minutes_from: At) {
        self.minutes.retain(|(_, minute)| minute.begun >= minutes_from);
        let mut spare = self.alerts.iter().filter(|alert| !alert.stands()).count().saturating_sub(PAST);
        self.alerts.retain(|alert| {
            let goes = !alert.stands() && spare > 0;
            spare -= usize::from(goes);
            !goes
        });
        let kept: HashSet<&str> = self.alerts.iter().map(|alert| alert.id.as_str()).collect();
        self.arrived.retain(|(id, _)| kept.contains(id.as_str()));
    }

    fn lines(&self) -> Vec<JournalLine> {
        let of = JournalLine::Of { budget: self.budget.clone(), webhook_ms: self.webhook_ms };
        let arrived = self.arrived.iter();
        let arrived = arrived.map(|(id, state)| JournalLine::Arrived { id: id.clone(), state: *state });
        let minutes = self.minutes.iter();
        let minutes = minutes.map(|(row, minute)| JournalLine::Minute { row: row.clone(), minute: *minute });
        let alerts = self.alerts.iter().cloned().map(JournalLine::Alert);
        [of].into_iter().chain(alerts).chain(arrived).chain(minutes).collect()
    }
}

/// An open journal. Nobody else writes it while it is open.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Held as long as this is; the system frees it however the process ends.
    _lock: File,
    appended: u64,
    /// How far minutes are kept, ns.
    memory_ns: i64,
    is_failing: bool,
}

impl Journal {
    /// Opens it, or begins one, and says what an earlier watch has left; `None` = nothing, this is the first. `budget`: whose it must be.
    ///
    /// # Errors
    /// It is no journal, another budget's, or somebody else writes it; or it can't be written.
    pub fn open(
        path: &Path,
        budget: Option<&str>,
        webhook_ms: Option<i64>,
        (now_ns, memory_ns): (i64, i64),
    ) -> Result<(Journal, Option<JournalState>), Stop> {
        let name = path.display();
        out::place_for(Some(path))?;
        let lock = lock(path, "journal")?;
        let before = read(path)?;
        if let Some(before) = before.as_ref().filter(|before| before.budget.as_deref() != budget) {
            let of = |name: Option<&str>| {
                name.map_or("a budget without a name".to_owned(), |n| format!("the budget {n}"))
            };
            return Err(Stop::usage(format!(
                "{name}: keeps the alerts of {}, and this is {}; name another journal, or delete it to forget them",
                of(before.budget.as_deref()),
                of(budget)
            )));
        }
        let mut state = before.clone().unwrap_or_default();
        state.budget = budget.map(str::to_owned);
        // A webhook that is new is told what stands and what comes, and not what has long been over.
        state.webhook_ms = webhook_ms.map(|now| state.webhook_ms.unwrap_or(now));
        state.prune(At(now_ns - memory_ns));
        let file = rewrite(path, &state).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
        let journal =
            Journal { path: path.to_owned(), file, _lock: lock, appended: 0, memory_ns, is_failing: false };
        Ok((journal, before.map(|_| state)))
    }

    /// Appends these. What can't be written is said once, and alerts go out all the same.
    pub fn append(&mut self, lines: &[JournalLine], now_ns: i64) {
        if lines.is_empty() {
            return;
        }
        // A line that was written in part must not spoil the next one.
        let end = if self.is_failing { "\n" } else { "" };
        let text = lines.iter().map(written).fold(end.to_owned(), |text, line| text + &line);
        let mut written = self.file.write_all(text.as_bytes());
        if lines.iter().any(|line| !matches!(line, JournalLine::Minute { .. })) {
            written = written.and_then(|()| self.file.sync_data());
        }
        self.appended += text.len() as u64;
        if self.appended > GROWN {
            written = written.and_then(|()| self.shorten(now_ns));
        }
        match written {
            Ok(()) => self.is_failing = false,
            Err(e) if !std::mem::replace(&mut self.is_failing, true) => out::note(&format!(
                "{}: {e}; a restart now would forget what is not written there",
                self.path.display()
            )),
            Err(_) => {}
        }
    }

    fn shorten(&mut self, now_ns: i64) -> std::io::Result<()> {
        self.appended = 0;
        let mut state = state_of(&std::fs::read(&self.path)?).0;
        state.prune(At(now_ns - self.memory_ns));
        self.file = rewrite(&self.path, &state)?;
        Ok(())
    }
}

/// The lock is on a file of its own, because the journal's is replaced. `what`: that nobody else may write.
///
/// # Errors
/// Somebody else does, or the file can't be made.
pub fn lock(path: &Path, what: &str) -> Result<File, Stop> {
    let beside = beside(path, ".lock");
    let name = beside.display();
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&beside);
    let file = file.map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Stop::usage(format!(
            "{}: another watch writes it; end that one, or name another {what}",
            path.display()
        ))),
        Err(TryLockError::Error(e)) => Err(Stop::usage(format!("{name}: {e}"))),
    }
}

fn beside(path: &Path, end: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(end);
    PathBuf::from(name)
}

/// What a file holds; `None` = there is none, or it is empty.
fn read(path: &Path) -> Result<Option<JournalState>, Stop> {
    let name = path.display();
    let bytes = match std::fs::read(path) {
        Ok(bytes) => bytes,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(out::unread(name, &e)),
    };
    let (state, good, damaged) = state_of(&bytes);
    if good == 0 && !bytes.is_empty() {
        return Err(Stop::usage(format!(
            "{name}: is no journal of a watch; name a file that may be written"
        )));
    }
    if damaged > 0 {
        out::note(&format!("{name}: {damaged} damaged lines were passed over"));
    }
    Ok((good > 0).then_some(state))
}

/// What the bytes come to, the lines that are good, and those that are not. A last line without its end is what a kill leaves, and no damage.
fn state_of(bytes: &[u8]) -> (JournalState, u64, u64) {
    let (mut state, mut places, mut good, mut damaged) = (JournalState::default(), BTreeMap::new(), 0, 0);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        match line.strip_suffix(b"\n").map(unwritten) {
            Some(Some(line)) => {
                state.add(line, &mut places);
                good += 1;
            }
            Some(None) => damaged += 1,
            None => {}
        }
    }
    (state, good, damaged)
}

fn written(line: &JournalLine) -> String {
    let json = serde_json::to_string(line).unwrap_or_default();
    format!("{:08x} {json}\n", crc32fast::hash(json.as_bytes()))
}

fn unwritten(line: &[u8]) -> Option<JournalLine> {
    let (sum, json) = std::str::from_utf8(line).ok()?.split_once(' ')?;
    let is_whole = u32::from_str_radix(sum, 16).ok()? == crc32fast::hash(json.as_bytes());
    is_whole.then(|| serde_json::from_str(json).ok()).flatten()
}

/// A whole file in the place of the one before, however this ends.
fn rewrite(path: &Path, state: &JournalState) -> std::io::Result<File> {
    let new = beside(path, ".new");
    let text: String = state.lines().iter().map(written).collect();
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    std::fs::rename(&new, path)?;
    OpenOptions::new().append(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn alert(number: u64, state: AlertState) -> Alert {
        Alert {
            id: format!("ceiling_broken/ttft/{number}"),
            kind: plimsoll_watch::AlertKind::CeilingBroken,
            about: "ttft".into(),
            row: Some("ttft".into()),
            state,
            since_s: 1_795_404_964.125,
            fired_s: 1_795_405_024.25,
            resolved_s: (state == AlertState::Resolved).then_some(1_795_405_100.5),
            evidence: "4 % of 2218 requests".into(),
            do_first: String::new(),
            diagnosis: None,
            run: None,
        }
    }

    fn open(path: &Path) -> (Journal, Option<JournalState>) {
        Journal::open(path, Some("chat"), Some(5), (0, 1)).expect("it opens")
    }

    /// A kill at any byte leaves each line whole or not there, and nothing after it is lost once it is opened again.
    #[test]
    fn whatever_byte_a_kill_comes_at_whole_lines_stay() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let (mut journal, before) = open(&path);
        assert_eq!(before, None);
        let arrived = JournalLine::Arrived { id: alert(1, AlertState::Firing).id, state: AlertState::Firing };
        let lines = [
            JournalLine::Alert(alert(1, AlertState::Firing)),
            arrived,
            JournalLine::Alert(alert(1, AlertState::Resolved)),
            JournalLine::Alert(alert(2, AlertState::Firing)),
        ];
        journal.append(&lines, 0);
        drop(journal);
        let whole = std::fs::read(&path).expect("written");
        let ends: Vec<usize> = (0..whole.len()).filter(|at| whole[*at] == b'\n').collect();
        for cut in 1..=whole.len() {
            std::fs::write(&path, &whole[..cut]).expect("cut");
            let there = ends.iter().filter(|end| **end < cut).count();
            if there == 0 {
                continue;
            }
            let (mut journal, before) = open(&path);
            let before = before.expect("an earlier watch");
            let expected = [0, 1, 1, 1, 2][there - 1];
            assert_eq!(
                (before.alerts.len(), before.arrived.len()),
                (expected, usize::from(there > 2)),
                "cut at {cut}"
            );
            assert_eq!(before.alerts.first().is_some_and(|a| !a.stands()), there > 3);
            journal.append(&[JournalLine::Alert(alert(3, AlertState::Firing))], 0);
            drop(journal);
            let after = open(&path).1.expect("an earlier watch");
            assert_eq!(after.alerts.last(), Some(&alert(3, AlertState::Firing)), "cut at {cut}");
        }
    }

    #[test]
    fn what_is_no_journal_of_this_budget_is_left_alone() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("journal");
        let held = open(&path);
        let second = Journal::open(&path, Some("chat"), None, (0, 1)).expect_err("refused").line;
        assert!(second.contains("another watch writes it"), "{second}");
        drop(held);
        let other = Journal::open(&path, Some("search"), None, (0, 1)).expect_err("refused").line;
        assert!(other.contains("budget chat") && other.contains("budget search"), "{other}");
        std::fs::write(&path, "shopping list\n").expect("written");
        let foreign = Journal::open(&path, Some("chat"), None, (0, 1)).expect_err("refused").line;
        assert!(foreign.contains("no journal"), "{foreign}");
        assert_eq!(std::fs::read(&path).expect("left alone"), b"shopping list\n");
    }
}
