//! The journal: the state that survives `kill -9`. It contains the alerts, the delivered messages and the
//! counts for burn rates.
//!
//! The journal is a file of lines with checksums and is only appended to. A journal that has grown too large
//! is rewritten to a second file, which then replaces it.
//!
//! An alert is written before it is sent, and its delivery is written afterwards. A kill between the two
//! sends the message again under the same id, and never loses it. A database was rejected because the journal
//! has few kinds of lines and is read once, at the start.

use std::collections::{BTreeMap, HashSet};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::Write;
use std::path::{Path, PathBuf};

use plimsoll_model::At;
use plimsoll_watch::alert::board::PAST;
use plimsoll_watch::{Alert, AlertState, Minute};
use serde::{Deserialize, Serialize};

use plimsoll_console::exit::Stop;
use plimsoll_console::out;

/// Appended bytes after which the journal is rewritten.
const GROWN: u64 = 8 << 20;

/// A line of the journal. Times are wall-clock times: seconds or nanoseconds since 1970.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum JournalLine {
    /// The owner: the budget and the first use of a webhook.
    Of {
        /// Name of the budget; `None` if it has no name.
        budget: Option<String>,
        /// Time of the first use of a webhook, ms since 1970; `None` without a webhook.
        webhook_ms: Option<i64>,
    },
    /// The new state of an alert.
    Alert(Alert),
    /// The counts of a row in one minute.
    Minute {
        /// Id of the budget row that the counts belong to.
        row: String,
        minute: Minute,
    },
    /// Successful delivery of a message to the webhook.
    Arrived {
        id: String,
        /// Alert state that the message contained.
        state: AlertState,
    },
}

/// The state that results from all lines.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct JournalState {
    /// Name of the budget; `None` if it has no name.
    pub budget: Option<String>,
    /// Time of the first use of a webhook, ms since 1970; `None` without a webhook.
    pub webhook_ms: Option<i64>,
    /// Alerts, the oldest first.
    pub alerts: Vec<Alert>,
    /// Row ids with their counts per minute, the oldest first.
    pub minutes: Vec<(String, Minute)>,
    /// Messages that the webhook accepted: alert id and state.
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

    /// Removes obsolete entries: minutes before this time, and all but the newest resolved alerts.
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

/// An open journal. It owns a lock, so that the journal has one writer.
#[derive(Debug)]
pub struct Journal {
    path: PathBuf,
    file: File,
    /// Lock for the lifetime of the journal; the system releases it however the process ends.
    _lock: File,
    appended: u64,
    /// Retention of minutes, ns.
    memory_ns: i64,
    is_failing: bool,
}

impl Journal {
    /// Opens or creates a journal. Returns the state of an earlier watch, or `None` if there is none.
    /// `budget` is the name that the journal must have.
    ///
    /// # Errors
    /// Fails if the file is not a journal, belongs to another budget, is locked by another process or can't
    /// be written.
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
        // A new webhook receives current and future alerts, but no alerts of the past.
        state.webhook_ms = webhook_ms.map(|now| state.webhook_ms.unwrap_or(now));
        state.prune(At(now_ns - memory_ns));
        let file = rewrite(path, &state).map_err(|e| Stop::usage(format!("{name}: {e}")))?;
        let journal =
            Journal { path: path.to_owned(), file, _lock: lock, appended: 0, memory_ns, is_failing: false };
        Ok((journal, before.map(|_| state)))
    }

    /// Appends lines. A write error is reported once, and alerts are sent anyway.
    pub fn append(&mut self, lines: &[JournalLine], now_ns: i64) {
        if lines.is_empty() {
            return;
        }
        // A partly written line must not corrupt the next one.
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
                "{}: {e}; a restart now would lose the unwritten state",
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

/// Locks a file for writing. The lock is on a separate file, because the journal itself is replaced. `what`
/// names the locked object in the error.
///
/// # Errors
/// Fails if another process owns the lock or the lock file can't be created.
pub fn lock(path: &Path, what: &str) -> Result<File, Stop> {
    let beside = beside(path, ".lock");
    let name = beside.display();
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(&beside);
    let file = file.map_err(|e| Stop::usage(format!("{name}: {e}")))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => Err(Stop::usage(format!(
            "{}: in use by another watch; stop that watch, or name another {what}",
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

/// Reads a journal; `None` if the file is missing or empty.
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
        out::note(&format!("{name}: {damaged} damaged lines were skipped"));
    }
    Ok((good > 0).then_some(state))
}

/// Returns the state and the numbers of valid and damaged lines. An unterminated last line is the result of a
/// kill and does not count as damaged.
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

/// Replaces the journal atomically.
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

    /// After a kill at any byte, each line is complete or absent. Lines that are written after the next open
    /// are not lost.
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
        assert!(second.contains("in use by another watch"), "{second}");
        drop(held);
        let other = Journal::open(&path, Some("search"), None, (0, 1)).expect_err("refused").line;
        assert!(other.contains("budget chat") && other.contains("budget search"), "{other}");
        std::fs::write(&path, "shopping list\n").expect("written");
        let foreign = Journal::open(&path, Some("chat"), None, (0, 1)).expect_err("refused").line;
        assert!(foreign.contains("no journal"), "{foreign}");
        assert_eq!(std::fs::read(&path).expect("left alone"), b"shopping list\n");
    }
}
