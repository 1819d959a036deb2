//! Reads a whole run for the commands that judge one: recovers it if its writer died and recomputes its findings.

use std::path::Path;

use plimsoll_measure::StreamedRun;
use plimsoll_measure::excerpt::{Excerpt, LatencyCourses};
use plimsoll_measure::findings::{Findings, LevelFinding, LevelSummary, LoadKeptUp, Trust};
use plimsoll_model::{At, Attempt, EndedBy, Level, Load, Manifest, RunState, Sample, Span};
use plimsoll_profile::cold_start;
use plimsoll_report::figure::counted;
use plimsoll_store::{ColumnSelection, Origin, StoreError, StoredRun};

use crate::commands::gateway;
use crate::exit::Stop;
use crate::{measure, out, recover};

/// A run with its rows and its findings.
pub struct WholeRun {
    /// The manifest, including the findings.
    pub manifest: Manifest,
    pub attempts: Vec<Attempt>,
    /// Metrics samples that the server reported during the run.
    pub samples: Vec<Sample>,
    pub findings: Findings,
    /// Excerpts of levels that have more rows than fit in memory; empty if all rows are in memory.
    pub excerpts: Vec<Excerpt>,
    /// Rows that were due before an excerpt and still in flight at its start.
    pub in_flight: Vec<Attempt>,
}

/// Reads a run folder, recovers it if its writer died, and judges its rows.
pub fn load(dir: &Path) -> Result<(Manifest, Findings), Stop> {
    match streamed(dir)? {
        Some(found) => Ok(found),
        None => whole(dir).map(|run| (run.manifest, run.findings)),
    }
}

/// Judges a run without keeping its rows in memory; `None` if the rows are needed or a cold start is possible.
fn streamed(dir: &Path) -> Result<Option<(Manifest, Findings)>, Stop> {
    let (mut rows, mut busy) = (StreamedRun::default(), cold_start::BusySeconds::default());
    let read = each(dir, ColumnSelection::Findings, |attempt| {
        rows.push(attempt);
        busy.push(attempt);
    });
    let Some((mut manifest, samples)) = read.map_err(|e| Stop::usage(e.to_string()))? else {
        return Ok(None);
    };
    if busy.may_have_paused() {
        return Ok(None);
    }
    let findings = rows.findings(&manifest, &samples, &measure::line_spec(&manifest));
    manifest.findings = serde_json::to_value(&findings).ok();
    Ok(Some((manifest, findings)))
}

/// Passes each attempt of a finished run to `take`, without keeping the rows.
///
/// Returns `None` if all rows are needed: the run was cut off or is still in progress, or it went through a gateway.
/// The command that reads the whole run reports its defects.
pub fn each(
    dir: &Path,
    columns: ColumnSelection,
    take: impl FnMut(&Attempt),
) -> Result<Option<(Manifest, Vec<Sample>)>, StoreError> {
    let Ok(manifest) = plimsoll_store::read_manifest(dir) else { return Ok(None) };
    let is_cut = manifest.levels.iter().any(|level| level.ended_by == EndedBy::Cut);
    let needs_rows = [cold_start::KIND, gateway::record::KIND].contains(&manifest.kind.as_str());
    if is_cut || needs_rows || manifest.progress == RunState::Running {
        return Ok(None);
    }
    let samples = plimsoll_store::each_attempt(dir, columns, take)?;
    Ok(samples.map(|samples| (manifest, samples)))
}

/// Returns the requested level, or the level that a report shows by default.
pub fn level<'a>(findings: &'a Findings, asked: Option<u32>, none: &str) -> Result<&'a LevelSummary, Stop> {
    let found = match asked {
        Some(id) => findings.levels.iter().find(|level| level.summary.level == id),
        None => plimsoll_report::text::detailed(findings).last().copied().or_else(|| best(findings)),
    };
    found.map(|level| &level.summary).ok_or_else(|| match asked {
        Some(id) => {
            let ids: Vec<String> =
                findings.levels.iter().map(|level| level.summary.level.to_string()).collect();
            Stop::usage(format!("--level {id}: the run's levels are {}", ids.join(", ")))
        }
        None => Stop::usage(none),
    })
}

/// Returns the level to start from if a sweep found no limit to choose one by.
/// The choice is the heaviest stable level among the best measured ones. A note names it, because another may have been meant.
pub fn best(findings: &Findings) -> Option<&LevelFinding> {
    let open = findings.levels.iter().filter(|level| {
        matches!(level.summary.load, Load::Open { .. })
            && level.summary.counts.finished > 0
            && level.validity.verdict != Trust::Invalid
            && level.summary.stability.verdict != LoadKeptUp::Unstable
    });
    let rank = |level: &&LevelFinding| {
        let valid = level.validity.verdict == Trust::Valid;
        let steady = level.summary.stability.verdict == LoadKeptUp::Stable;
        (valid, steady, (1e3 * level.summary.rates.offered_per_s) as u64)
    };
    let best = open.max_by_key(rank)?;
    out::note(&format!(
        "level {} ({}) is taken: the heaviest of those measured best that kept up; --level names another",
        best.summary.level,
        plimsoll_report::figure::per_second(best.summary.rates.offered_per_s)
    ));
    Some(best)
}

/// Reads a run folder and recovers it if its writer died; requests in flight at that time are unfinished.
pub fn read(dir: &Path) -> Result<StoredRun, Stop> {
    let mut run: StoredRun = plimsoll_store::open(dir).map_err(|e| match e {
        StoreError::DiskFull { .. } => Stop::invalid(e.to_string()),
        other => Stop::usage(other.to_string()),
    })?;
    if let Some(how) = &run.recovered {
        out::note(&format!("{}: {how}", dir.display()));
    }
    match recover::unfinished(&mut run.manifest, &mut run.attempts) {
        0 => {}
        n => {
            out::note(&format!("{} in flight when it was cut off: unfinished", counted(n as u64, "request")))
        }
    }
    Ok(run)
}

/// Reads a run folder with its rows.
pub fn whole(dir: &Path) -> Result<WholeRun, Stop> {
    let StoredRun { mut manifest, attempts, samples, origin, .. } = read(dir)?;
    let findings = measure::findings(&manifest, &attempts, &samples);
    manifest.findings = serde_json::to_value(&findings).ok();
    if matches!(origin, Origin::Recovered { converted: true }) {
        // The verdict is stored because every later reader of run.json expects it there.
        if let Err(e) = plimsoll_store::replace_manifest(dir, &manifest) {
            out::note(&format!("the findings could not be written into the folder: {e}"));
        }
    }
    Ok(WholeRun { manifest, attempts, samples, findings, excerpts: Vec::new(), in_flight: Vec::new() })
}

/// Memory limit in bytes for the rows of a run, for commands that analyse single requests.
/// Values computed from short answers take four times as much: 2.9 kB per request in all, so a command stays under 1 GiB.
const HELD_BYTES: u64 = 160 << 20;

/// Margin before and after an excerpt for which series are read, because a counter's growth starts at the previous scrape.
const SERIES_MARGIN: Span = Span::from_secs(60);

/// Reads a run for a command that analyses single requests: the whole run if its rows fit in memory.
///
/// Otherwise each level that has too many rows is reduced to the interval with the most slow or failed requests.
/// That interval is judged like a whole level. Callers must show this to the user ([`Excerpt::words`]).
pub fn held(dir: &Path) -> Result<WholeRun, Stop> {
    let found = excerpted(dir, HELD_BYTES).map_err(|e| Stop::usage(e.to_string()))?;
    found.map_or_else(|| whole(dir), Ok)
}

/// Returns `None` if all rows must be read: they fit in memory, or this is not a finished run of scheduled requests.
fn excerpted(dir: &Path, most_bytes: u64) -> Result<Option<WholeRun>, StoreError> {
    let Some((rows, bytes)) = plimsoll_store::extent(dir)?.filter(|(_, bytes)| *bytes > most_bytes) else {
        return Ok(None);
    };
    let levels = plimsoll_store::read_manifest(dir)?.levels;
    let mut courses = LatencyCourses::of(&levels);
    let Some((mut manifest, _)) = each(dir, ColumnSelection::Course, |attempt| courses.push(attempt))? else {
        return Ok(None);
    };
    let most = rows as f64 * most_bytes as f64 / bytes as f64 / levels.len().max(1) as f64;
    let mut excerpts = courses.excerpts(most as u64);
    let of = |level: u32| excerpts.iter().find(|excerpt| excerpt.level == level);
    let spans: Vec<(At, At)> = levels.iter().map(|level| reach(level, of(level.id))).collect();
    let (mut attempts, mut in_flight) = (Vec::new(), Vec::new());
    plimsoll_store::each_due(dir, &spans, |attempt| match of(attempt.level) {
        Some(part) if attempt.due >= part.to => {}
        Some(part) if attempt.due < part.from => {
            if attempt.end.is_none_or(|end| end > part.from) {
                in_flight.push(attempt);
            }
        }
        _ => attempts.push(attempt),
    })?;
    for level in &mut manifest.levels {
        if let Some(part) = of(level.id) {
            let first = |attempt: &&Attempt| attempt.level == part.level && attempt.attempt == 0;
            *level = part.of_level(level, attempts.iter().filter(first).count() as u64);
        }
    }
    let near = |level: &Level| (level.start - SERIES_MARGIN, level.drained + SERIES_MARGIN);
    let spans: Vec<(At, At)> = manifest.levels.iter().map(near).collect();
    let samples = plimsoll_store::samples_within(dir, &spans)?;
    for part in &mut excerpts {
        part.attempts = attempts.iter().filter(|attempt| attempt.level == part.level).count() as u64;
    }
    let findings = measure::findings(&manifest, &attempts, &samples);
    manifest.findings = serde_json::to_value(&findings).ok();
    Ok(Some(WholeRun { manifest, attempts, samples, findings, excerpts, in_flight }))
}

/// Returns the range of due times for which rows of a level are read.
/// For an excerpt, the range includes requests that may be in flight at its start.
fn reach(level: &Level, excerpt: Option<&Excerpt>) -> (At, At) {
    match excerpt {
        Some(part) => (part.from - part.longest.min(part.to - part.from), part.to),
        None => (level.start, level.drained + Span(1)),
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_lab::records::{MS, answer, failure, level, manifest};
    use plimsoll_model::{How, TcpFacts, TimeBase};
    use plimsoll_store::RunWriter;

    use super::*;

    /// Returns a run of two levels with answers, failures, retries and connections; the second level starts after `pause_ms`.
    fn run(pause_ms: i64) -> (tempfile::TempDir, Manifest) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut rows = Vec::new();
        let mut levels = vec![level(100.0, 8), level(100.0, 8)];
        levels[1].id = 1;
        let by = Span((8_000 + pause_ms) * MS);
        let later = &mut levels[1];
        for at in [&mut later.start, &mut later.stop, &mut later.drained] {
            *at += by;
        }
        for (id, by) in [(0, Span::ZERO), (1, by)] {
            for request in 0..800u64 {
                let due = request as i64 * 10;
                let tries = if request % 9 == 0 { 2 } else { 1 };
                for attempt in 0..tries {
                    let after = 20 + (request as i64 * 7919) % 60;
                    let mut row = match attempt + 1 < tries || request % 100 == 3 {
                        true => failure(request, due, How::Shed, after),
                        false => answer(request, due, after, after + 40, 6),
                    };
                    (row.level, row.attempt, row.connection) = (id, attempt, Some(request as u32 % 5));
                    row.tcp = TcpFacts { rtt: Some(Span(after * 1_000)), ..TcpFacts::default() };
                    row.shift(by);
                    rows.push(row);
                }
            }
        }
        let manifest = Manifest { time: TimeBase::Real, ..manifest(levels) };
        let writer = RunWriter::create(&folder.path().join("run"), manifest.clone()).expect("a folder");
        rows.sort_by_key(|row| row.end);
        rows.iter().for_each(|row| writer.attempt(row));
        writer.finish(manifest.clone()).expect("written");
        (folder, manifest)
    }

    #[test]
    fn rows_that_are_not_held_are_found_the_same() {
        let (folder, _) = run(1_000);
        let dir = folder.path().join("run");
        let (manifest, findings) = streamed(&dir).expect("a run").expect("no pause");
        let held = whole(&dir).expect("a run");
        assert!(held.findings.network.is_some() && held.findings.levels.len() == 2);
        assert_eq!(serde_json::to_value(&findings).ok(), serde_json::to_value(&held.findings).ok());
        assert_eq!(manifest.findings, held.manifest.findings);
    }

    /// The cost of a first request after a pause is computed from the rows.
    #[test]
    fn a_run_that_paused_is_read_whole() {
        let (folder, _) = run(7_000);
        assert!(streamed(&folder.path().join("run")).expect("a run").is_none());
    }

    /// A run of two levels. The first lasts 200 s at 100/s; requests due from 120 to 122 s take three seconds, and
    /// `lost` requests left no record. The second level is short.
    fn long(lost: u64) -> (tempfile::TempDir, Vec<Attempt>) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let mut levels = vec![level(100.0, 200), level(100.0, 8)];
        levels[1].id = 1;
        let by = Span(210_000 * MS);
        let after = &mut levels[1];
        for at in [&mut after.start, &mut after.stop, &mut after.drained] {
            *at += by;
        }
        let mut rows = Vec::new();
        for request in 0..20_000u64 {
            let due = request as i64 * 10;
            let took =
                if (120_000..122_000).contains(&due) { 3_000 } else { 60 + (request as i64 * 7919) % 40 };
            rows.push(answer(request, due, 20, took, 6));
        }
        for request in 0..800u64 {
            let mut row = answer(request, request as i64 * 10, 20, 80, 6);
            row.level = 1;
            row.shift(by);
            rows.push(row);
        }
        (levels[0].arrivals, levels[1].arrivals) = (20_000 + lost, 800);
        let manifest = manifest(levels);
        let writer = RunWriter::create(&folder.path().join("run"), manifest.clone()).expect("a folder");
        rows.sort_by_key(|row| row.end);
        rows.iter().for_each(|row| writer.attempt(row));
        for second in 0..300 {
            let text = plimsoll_model::SharedText::from;
            let at = At(second * 1_000 * MS);
            let (source, name, labels) = (text("client"), text("in_flight"), text(""));
            writer.sample(&Sample { at, source, name, labels, value: second as f64 });
        }
        writer.finish(manifest).expect("written");
        (folder, rows)
    }

    #[test]
    fn of_a_level_that_is_too_long_the_slow_stretch_is_held_whole() {
        let (folder, rows) = long(0);
        let dir = folder.path().join("run");
        let (count, bytes) = plimsoll_store::extent(&dir).expect("a run").expect("finished");
        assert_eq!(count, 20_800);
        let in_memory = |a: &Attempt| size_of::<Attempt>() + size_of_val(&a.events[..]);
        let truth: usize = rows.iter().map(in_memory).sum();
        assert!((0.9..1.2).contains(&(bytes as f64 / truth as f64)), "{bytes} of {truth}");

        assert!(excerpted(&dir, bytes).expect("a run").is_none(), "it fits");
        // Space for 3000 attempts per level.
        let run = excerpted(&dir, bytes * 6_000 / count).expect("a run").expect("too long");
        let [part] = run.excerpts[..] else { panic!("{:?}", run.excerpts) };
        assert!(part.from_s <= 120.0 && part.to_s >= 122.0 && part.slow_share == 1.0, "{part:?}");
        assert!((2_500..=3_000).contains(&part.attempts), "{part:?}");
        let same = |found: &[Attempt], wanted: &dyn Fn(&&Attempt) -> bool| {
            let wanted: Vec<&Attempt> = rows.iter().filter(wanted).collect();
            assert_eq!(found.iter().collect::<Vec<_>>(), wanted);
        };
        let of_part = |row: &&Attempt| row.level == 1 || (part.from..part.to).contains(&row.due);
        same(&run.attempts, &of_part);
        let beside = |row: &&Attempt| {
            row.level == 0 && row.due < part.from && row.end.is_some_and(|at| at > part.from)
        };
        same(&run.in_flight, &beside);
        assert!(!run.in_flight.is_empty());
        let seconds: Vec<f64> = run.samples.iter().map(|sample| sample.value).collect();
        let near = |at: &f64| *at >= part.from_s - 60.0 && *at < part.to_s + 63.0;
        let near = |at: &f64| near(at) || (150.0..279.0).contains(at);
        let wanted: Vec<f64> = (0..300).map(f64::from).filter(near).collect();
        assert_eq!(
            seconds, wanted,
            "a minute around the excerpt (its slowest took 3 s) and the level from 210 to 219 s"
        );
        // The excerpt is judged like a whole level.
        let counts: Vec<u64> = run.findings.levels.iter().map(|l| l.summary.counts.requests).collect();
        assert!(
            counts[0] <= part.attempts && counts[0] > part.attempts / 2 && counts[1] == 800,
            "{counts:?}"
        );
        assert_eq!(
            (run.manifest.levels[0].start, run.manifest.levels[0].arrivals),
            (part.from, part.attempts)
        );
    }

    /// A defect that makes a level invalid makes its excerpt invalid, even if the defect is outside of the excerpt.
    #[test]
    fn requests_without_a_record_are_missed_in_an_excerpt_too() {
        let (folder, _) = long(500);
        let dir = folder.path().join("run");
        let (count, bytes) = plimsoll_store::extent(&dir).expect("a run").expect("finished");
        let run = excerpted(&dir, bytes * 6_000 / count).expect("a run").expect("too long");
        let whole = whole(&dir).expect("a run").findings.validity;
        assert_eq!((whole.verdict, run.findings.validity.verdict), (Trust::Invalid, Trust::Invalid));
        assert!(
            excerpted(&long(0).0.path().join("run"), bytes * 6_000 / count)
                .expect("a run")
                .is_some_and(|run| run.findings.validity.verdict != Trust::Invalid)
        );
    }
}
