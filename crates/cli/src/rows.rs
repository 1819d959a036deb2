//! A run read whole, as every command that judges one begins: recovered where its writer died, its findings computed anew.

use std::path::Path;

use plimsoll_measure::findings::{Findings, Kept, LevelFinding, LevelSummary, Trust};
use plimsoll_model::{Attempt, Load, Manifest, Sample};
use plimsoll_report::figure::counted;
use plimsoll_store::{Origin, Run, StoreError};

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
    whole(dir).map(|run| (run.manifest, run.findings))
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
            && level.summary.stability.verdict != Kept::Unstable
    });
    let rank = |level: &&LevelFinding| {
        let valid = level.validity.verdict == Trust::Valid;
        let steady = level.summary.stability.verdict == Kept::Stable;
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
