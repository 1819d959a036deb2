//! `plimsoll compare` reports the effect of a change from two runs of one load.

use crate::rows;
use std::path::Path;

use plimsoll_judge::compare::finding::{ChangeVerdict, Comparison, Difference};
use plimsoll_judge::compare::{CompareRefusal, CompareSpec, DifferencePolicy, Margins, RunRead, compare};
use plimsoll_judge::quality::Quality;
use plimsoll_watch::history::compare::StretchComparison;

use super::watch::kept::PageWindow;
use crate::answer::{self, AnswerHead};
use crate::baseline;
use crate::eval_file;
use crate::exit::{Exit, Stop};
use crate::flags::{CompareArgs, JudgedArgs, OutputFormat};
use crate::out;

/// Maximum number of differences that a rejection lists.
const NAMED: usize = 4;

/// Compares two runs and prints the verdict.
pub fn run(args: &CompareArgs) -> Result<Exit, Stop> {
    if args.interleave.is_some() {
        return Err(Stop::usage(
            "compare --interleave: use the command plimsoll interleave URL_A URL_B --rate 12/s",
        ));
    }
    let quality = quality_of(&args.judged)?;
    let (Some(base), Some(candidate)) = (&args.base, &args.candidate) else {
        return Err(Stop::usage(
            "name two runs, BASE and CANDIDATE; two live endpoints: plimsoll interleave URL_A URL_B --rate 12/s",
        ));
    };
    of_runs(base, candidate, args, quality.as_ref())
}

/// Returns the results of `--quality`, after a check that `--html` is writable. Both are checked before any
/// measurement.
pub fn quality_of(judged: &JudgedArgs) -> Result<Option<Quality>, Stop> {
    out::place_for(judged.html.as_deref())?;
    judged.quality.as_deref().map(eval_file::results).transpose()
}

fn of_runs(
    base_name: &str,
    candidate_name: &str,
    args: &CompareArgs,
    quality: Option<&Quality>,
) -> Result<Exit, Stop> {
    let base_dir = baseline::resolve(base_name)?.dir;
    let candidate_dir = baseline::resolve(candidate_name)?.dir;
    if same_folder(&base_dir, &candidate_dir) {
        return Err(Stop::usage(format!(
            "{base_name} and {candidate_name} are one run: name the changed one"
        )));
    }
    let stretches = [PageWindow::read(&base_dir)?, PageWindow::read(&candidate_dir)?];
    if let [Some(base), Some(candidate)] = &stretches {
        let found = candidate.compared(base, &spec(&args.judged)?);
        return of_stretches([base_name, candidate_name], args, &found);
    }
    if let Some(place) = stretches.iter().position(Option::is_some) {
        let name = [base_name, candidate_name][place];
        return Err(Stop::usage(format!(
            "{name} contains scraped metrics and no requests: name two metrics recordings, or two measured runs"
        )));
    }
    let (names, comparison) = of_folders(&base_dir, &candidate_dir, &spec(&args.judged)?)?;
    if let Some(quality) = quality {
        note_other_targets(quality, &names);
    }
    // Two runs of one target have one URL, so the folders distinguish them.
    let runs = [format!("{base_name} (base)"), format!("{candidate_name} (candidate)")];
    page(&args.judged, &runs, &comparison)?;
    match args.format {
        OutputFormat::Json => {
            let mut value = serde_json::to_value(&comparison).unwrap_or_default();
            if let Some(object) = value.as_object_mut() {
                let runs = serde_json::json!({"base": base_name, "candidate": candidate_name});
                object.insert("runs".into(), runs);
            }
            if let (Some(quality), Some(object)) = (quality, value.as_object_mut()) {
                object.insert("quality".into(), serde_json::to_value(quality).unwrap_or_default());
            }
            let head = AnswerHead {
                headline: comparison.says.first().cloned(),
                reasons: comparison.says.iter().skip(1).chain(&comparison.notes).cloned().collect(),
                run: Some(candidate_name.to_string()),
                ..AnswerHead::default()
            };
            answer::print(head, &answer::with_result(&value, &comparison.verdict));
        }
        OutputFormat::Text => {
            out::line(&plimsoll_report::compare::render((&runs[0], &runs[1]), &comparison));
            if let Some(quality) = quality {
                out::line(&plimsoll_report::quality::line(quality));
            }
        }
    }
    Ok(exit(comparison.verdict))
}

/// Prints the comparison of two time ranges of live traffic.
fn of_stretches(
    [base, candidate]: [&str; 2],
    args: &CompareArgs,
    found: &StretchComparison,
) -> Result<Exit, Stop> {
    let given = [(args.judged.html.is_some(), "--html"), (args.judged.quality.is_some(), "--quality")];
    if let Some((_, flag)) = given.iter().find(|(given, _)| *given) {
        return Err(Stop::usage(format!("{flag}: metrics recordings are compared in text or JSON only")));
    }
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::kept::compared((base, candidate), found)),
        OutputFormat::Json => out::json(found),
    }
    Ok(exit(found.verdict))
}

/// Writes the HTML page that `--html` requests.
pub fn page(args: &JudgedArgs, names: &[String; 2], comparison: &Comparison) -> Result<(), Stop> {
    let Some(path) = &args.html else { return Ok(()) };
    let text = plimsoll_report::compare::page((&names[0], &names[1]), comparison);
    out::file(path, text)
}

/// Prints a note if the answers are from other endpoints than the runs.
pub fn note_other_targets(quality: &Quality, names: &[String; 2]) {
    let bare = |url: &str| url.trim_end_matches('/').to_owned();
    let measured: Vec<String> = quality.targets.iter().map(|target| bare(&target.url)).collect();
    if measured != names.each_ref().map(|name| bare(name)) {
        let (measured, names) = (measured.join(" and "), names.join(" and "));
        out::note(&format!(
            "--quality compares {measured}, not {names}: make sure that they serve the same models"
        ));
    }
}

/// Compares two run folders. Returns the URLs of both and the comparison.
///
/// # Errors
/// Fails if the experiments differ or a run is invalid.
pub fn of_folders(
    base: &Path,
    candidate: &Path,
    spec: &CompareSpec,
) -> Result<([String; 2], Comparison), Stop> {
    let base = rows::whole(base)?;
    let candidate = rows::whole(candidate)?;
    let comparison = compare(&read(&base), &read(&candidate), spec).map_err(refused)?;
    let names = [&base, &candidate].map(|run| run.manifest.target.url.clone());
    Ok((names, comparison))
}

/// Returns the exit code of a change.
pub fn exit(change: ChangeVerdict) -> Exit {
    match change {
        ChangeVerdict::Regressed => Exit::Broken,
        ChangeVerdict::Inconclusive => Exit::Inconclusive,
        ChangeVerdict::Improved | ChangeVerdict::NoChange => Exit::Done,
    }
}

/// Returns the comparison settings from the flags.
pub fn spec(args: &JudgedArgs) -> Result<CompareSpec, Stop> {
    let differing =
        if args.despite_differences { DifferencePolicy::Standardise } else { DifferencePolicy::Refuse };
    Ok(CompareSpec { margins: margins(&args.margins)?, differing })
}

fn read(run: &rows::WholeRun) -> RunRead<'_> {
    RunRead { manifest: &run.manifest, attempts: &run.attempts, findings: &run.findings }
}

/// Returns whether both paths name one folder.
pub fn same_folder(a: &Path, b: &Path) -> bool {
    match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    }
}

/// Returns the one-line error of a rejected comparison.
fn refused(refusal: CompareRefusal) -> Stop {
    match refusal {
        CompareRefusal::Invalid { side, why } => {
            Stop::invalid(format!("the {side} is invalid, so the change has no verdict: {why}"))
        }
        CompareRefusal::Nothing(why) => Stop::usage(why),
        CompareRefusal::Differ(differences) => {
            let mut named: Vec<String> = differences.iter().take(NAMED).map(one).collect();
            if differences.len() > NAMED {
                named.push(format!("{} more", differences.len() - NAMED));
            }
            Stop::usage(format!(
                "not the same experiment: {}; plimsoll rerun repeats a run's schedule, --despite-differences compares anyway",
                named.join("; ")
            ))
        }
    }
}

fn one(difference: &Difference) -> String {
    let Difference { about, base, candidate } = difference;
    format!("{about} ({base} against {candidate})")
}

/// Parses margins such as `p99=10%` and applies them to the defaults.
fn margins(given: &[String]) -> Result<Margins, Stop> {
    let mut margins = Margins::default();
    for text in given {
        let wrong = |why: &str| Stop::usage(format!("--margin {text}: {why}, for example p99=10%"));
        let (name, share) = text
            .split_once('=')
            .ok_or_else(|| wrong("wants WHAT=SHARE (of p50, p95, p99, throughput, errors, lines)"))?;
        let Some(margin) = margins.by_name(name.trim()) else {
            return Err(wrong(&format!("{} is none of {}", name.trim(), Margins::NAMES.join(", "))));
        };
        *margin = share_of(share.trim()).ok_or_else(|| wrong("the share is from 0 % on and below 1000 %"))?;
    }
    Ok(margins)
}

/// Parses a share such as `10%` or `0.1`.
fn share_of(text: &str) -> Option<f64> {
    let share = match text.strip_suffix('%') {
        Some(percent) => percent.trim().parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..10.0).contains(&share).then_some(share)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn margins_are_typed_as_shares() {
        let given = |text: &str| margins(&[text.to_owned()]);
        assert_eq!(given("p99=12%").expect("sound").p99, 0.12);
        assert_eq!(given("errors=0.005").expect("sound").errors, 0.005);
        assert!(given("p98=1%").expect_err("unknown").line.contains("p50, p95, p99"));
        for wrong in ["p99", "p99=", "p99=-1%", "p99=nan", "p99=2000%", "p99=ten"] {
            assert!(given(wrong).is_err(), "{wrong}");
        }
    }
}
