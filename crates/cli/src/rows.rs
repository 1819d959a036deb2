//! A run read whole, as every command that judges one begins: recovered where its writer died, its findings computed anew.

use std::path::Path;

use plimsoll_measure::Streamed;
use plimsoll_measure::findings::{Findings, KeptUp, LevelFinding, LevelSummary, Trust};
use plimsoll_model::{Attempt, EndedBy, Load, Manifest, RunState, Sample};
use plimsoll_profile::cold_start;
use plimsoll_report::figure::counted;
use plimsoll_store::{Columns, Origin, Run, StoreError};

use crate::commands::gateway;
use crate::exit::Stop;
use crate::{measure, out, recover};

/// A run with its rows, judged.
pub struct WholeRun {
    /// Its manifest, the findings in it.
    pub manifest: Manifest,
    /// Its records.
    pub attempts: Vec<Attempt>,
    /// What the server said of itself meanwhile.
    pub samples: Vec<Sample>,
    /// What was found.
    pub findings: Findings,
}

/// Reads a run folder, recovering it where its writer died, and judges its rows.
pub fn load(dir: &Path) -> Result<(Manifest, Findings), Stop> {
    match streamed(dir)? {
        Some(found) => Ok(found),
        None => whole(dir).map(|run| (run.manifest, run.findings)),
    }
}

/// The same without holding the rows; `None` where they are needed, or where something may be told of cold starts.
fn streamed(dir: &Path) -> Result<Option<(Manifest, Findings)>, Stop> {
    let (mut rows, mut busy) = (Streamed::default(), cold_start::Busy::default());
    let read = each(dir, Columns::Findings, |attempt| {
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

/// Hands on each attempt of a run of which none need be held; `None` where all are needed: of a run that was cut off or goes on, and of
/// what came through a gateway. What is wrong with it is said by whoever reads it whole.
pub fn each(
    dir: &Path,
    columns: Columns,
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

/// The level that was asked for, or the one that a report shows.
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

/// The level to start from where a sweep found no line to choose one by: of those measured best, the heaviest that kept up. Says
/// which, because another may have been meant.
pub fn best(findings: &Findings) -> Option<&LevelFinding> {
    let open = findings.levels.iter().filter(|level| {
        matches!(level.summary.load, Load::Open { .. })
            && level.summary.counts.finished > 0
            && level.validity.verdict != Trust::Invalid
            && level.summary.stability.verdict != KeptUp::Unstable
    });
    let rank = |level: &&LevelFinding| {
        let valid = level.validity.verdict == Trust::Valid;
        let steady = level.summary.stability.verdict == KeptUp::Stable;
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

/// Reads a run folder, recovering it where its writer died; what it had in flight then is unfinished.
pub fn read(dir: &Path) -> Result<Run, Stop> {
    let mut run: Run = plimsoll_store::open(dir).map_err(|e| match e {
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

/// The same, with the rows.
pub fn whole(dir: &Path) -> Result<WholeRun, Stop> {
    let Run { mut manifest, attempts, samples, origin, .. } = read(dir)?;
    let findings = measure::findings(&manifest, &attempts, &samples);
    manifest.findings = serde_json::to_value(&findings).ok();
    if matches!(origin, Origin::Recovered { converted: true }) {
        // The next reader of run.json, whoever it is, finds the verdict there.
        if let Err(e) = plimsoll_store::replace_manifest(dir, &manifest) {
            out::note(&format!("the findings could not be written into the folder: {e}"));
        }
    }
    Ok(WholeRun { manifest, attempts, samples, findings })
}

#[cfg(test)]
mod tests {
    use plimsoll_lab::records::{MS, answer, failure, level, manifest};
    use plimsoll_model::{How, Span, TcpFacts, Time};
    use plimsoll_store::RunWriter;

    use super::*;

    /// Two levels of answers, failures and second tries, over connections; after `pause_ms` the second level begins.
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
        let manifest = Manifest { time: Time::Real, ..manifest(levels) };
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

    /// What a first request after a pause paid is told from the rows themselves.
    #[test]
    fn a_run_that_paused_is_read_whole() {
        let (folder, _) = run(7_000);
        assert!(streamed(&folder.path().join("run")).expect("a run").is_none());
    }
}
