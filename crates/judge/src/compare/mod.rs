//! Comparison of two runs → the effect of the change between them.
//!
//! The comparison is pure: manifests, records and findings in, a [`Comparison`] out. Different experiments are rejected with
//! their differences ([`CompareRefusal`]), or, if requested, compared unpaired at the base's mix.
//!
//! Modules in reading order:
//!
//! * [`finding`], result types;
//! * [`spec`], margins;
//! * `sameness`: comparability;
//! * `pairs`: levels and units;
//! * `strata`: the base's mix;
//! * `rows`: figures; `machine`: figures of the GPUs;
//! * `judge`: verdicts;
//! * `stages`, `curves` (sweeps) and `says` (sentences).

pub mod finding;
pub mod spec;

mod curves;
mod judge;
mod machine;
mod pairs;
mod rows;
mod sameness;
mod says;
mod stages;
mod strata;

use plimsoll_math::rng::Stream;
use plimsoll_math::two_sample::{Flips, neighbours, percentile_ratio, shift};
use plimsoll_model::{Attempt, Load, Manifest};

use finding::{
    COMPARISON_SCHEMA, ChangeVerdict, ComparedFigure, ComparedLevels, ComparedSlice, Comparison,
    ComparisonUnit, Design, Difference, Effect, Fact, Scale, ShiftPoint,
};
use pairs::{FEWEST, LevelArm, LevelPair, cut};
use plimsoll_measure::findings::{Findings, Reason, Trust};
use plimsoll_measure::validity::lets_nothing_pass;
use rows::{LoadRows, effect};
pub use says::{interval, name};
pub use spec::{CompareSpec, DifferencePolicy, LEVEL, Margins};
use strata::Strata;

const SHIFT_AT: [f64; 7] = [0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99];
/// Number of bootstrap replicates for the band of the shift function.
const REPLICATES: usize = 200;

#[derive(Copy, Clone)]
pub struct RunRead<'a> {
    pub manifest: &'a Manifest,
    /// All records, with prompt blocks and stages.
    pub attempts: &'a [Attempt],
    pub findings: &'a Findings,
}

#[derive(Clone, PartialEq, Debug)]
pub enum CompareRefusal {
    /// A run is invalid, or important rows are missing.
    Invalid {
        /// Run: `base` or `candidate`.
        side: &'static str,
        /// First reason, with its figure.
        why: String,
    },
    /// The runs are different experiments.
    Differ(Vec<Difference>),
    /// There is no data to compare with any settings.
    Nothing(String),
}

/// Compares a candidate with its base.
///
/// # Errors
/// Fails if a run is invalid, if the experiments differ, or if there is no data: see [`CompareRefusal`].
pub fn compare(
    base: &RunRead,
    candidate: &RunRead,
    spec: &CompareSpec,
) -> Result<Comparison, CompareRefusal> {
    for (side, run) in [("base", base), ("candidate", candidate)] {
        let reasons = &run.findings.validity.reasons;
        let invalid = run.findings.validity.verdict == Trust::Invalid;
        let speaks = |reason: &&Reason| invalid || lets_nothing_pass(reason, None);
        if let Some(first) = reasons.iter().find(speaks) {
            let why = format!("{}: {}", first.means, first.figure);
            return Err(CompareRefusal::Invalid { side, why });
        }
    }
    let mut differences = sameness::of_manifests(base.manifest, candidate.manifest);
    let sweeps = (sameness::is_sweep(base.manifest), sameness::is_sweep(candidate.manifest));
    if sweeps.0 != sweeps.1 {
        return Err(CompareRefusal::Nothing(
            "one run is a sweep and the other a single load: measure both alike".into(),
        ));
    }
    let pairs = if sweeps.0 { Vec::new() } else { level_pairs(base, candidate, &mut differences)? };
    let one_nonce = base.manifest.nonce == candidate.manifest.nonce;
    let of_levels = sameness::of_levels(&pairs, &differences, one_nonce);
    differences.extend(of_levels);
    if !differences.is_empty() && spec.differing == DifferencePolicy::Refuse {
        return Err(CompareRefusal::Differ(differences));
    }
    let design = match (sweeps.0, differences.is_empty()) {
        (true, _) => Design::Curves,
        (false, true) => Design::Paired,
        (false, false) => Design::Standardised,
    };
    let mut comparison = Comparison {
        schema: COMPARISON_SCHEMA,
        verdict: ChangeVerdict::Inconclusive,
        says: Vec::new(),
        design,
        level: LEVEL,
        notes: notes(base, candidate, design, &differences),
        differences,
        groups: grouped(pairs).iter().map(|pairs| group(pairs, design, spec)).collect(),
        lines: if sweeps.0 {
            curves::rows(base.findings, candidate.findings, &spec.margins)
        } else {
            Vec::new()
        },
        target: sameness::facts(base.manifest, candidate.manifest),
    };
    conclude(&mut comparison);
    Ok(comparison)
}

/// Sets the verdicts of all rows, and the overall verdict.
fn conclude(comparison: &mut Comparison) {
    let mut loads: Vec<&mut [ComparedFigure]> =
        comparison.groups.iter_mut().map(|group| group.rows.as_mut_slice()).collect();
    judge::judge(&mut loads, &mut comparison.lines);
    let rows = comparison.groups.iter().flat_map(|group| &group.rows).chain(&comparison.lines);
    let family: Vec<ChangeVerdict> = rows.filter(|row| row.primary).map(|row| row.verdict).collect();
    let any = |change: ChangeVerdict| family.contains(&change);
    comparison.verdict = if any(ChangeVerdict::Regressed) {
        ChangeVerdict::Regressed
    } else if any(ChangeVerdict::Inconclusive) || family.is_empty() {
        ChangeVerdict::Inconclusive
    } else if any(ChangeVerdict::Improved) {
        ChangeVerdict::Improved
    } else {
        ChangeVerdict::NoChange
    };
    for group in &mut comparison.groups {
        let moved = group.rows.iter().any(|row| {
            row.metric == "e2e"
                && row.statistic == "p50"
                && matches!(row.verdict, ChangeVerdict::Improved | ChangeVerdict::Regressed)
        });
        if moved {
            group.stages.iter_mut().for_each(|stage| stage.local_only = false);
        }
        if group.unit == ComparisonUnit::Alternation && group.levels.len() > group.units as usize {
            let all = group.levels.len();
            comparison.notes.push(format!("the first {} of {all} alternations are compared", group.units));
        }
        let few = (group.unit == ComparisonUnit::Section && group.units as usize >= FEWEST)
            .then_some(group.levels.len());
        if let Some(levels) = few {
            let note = match levels {
                1 => "one run of each: the intervals exclude the variation between runs; ten or more alternations include it"
                    .to_owned(),
                _ => format!(
                    "{levels} alternations: variation between them widens the intervals; {levels} estimate it poorly, ten or more estimate it well"
                ),
            };
            let wanders = group
                .rows
                .iter()
                .filter(|row| levels == 1 && row.primary)
                .map(|row| neighbours(&row.differences));
            let alike = wanders.fold(0.0, f64::max);
            let wanders = (alike > ALIKE / f64::from(group.units).sqrt()).then(|| {
                format!("the speed wanders within the runs (correlation {alike:.2} from one part to the next), which widens the intervals")
            });
            for note in std::iter::once(note).chain(wanders) {
                if !comparison.notes.contains(&note) {
                    comparison.notes.push(note);
                }
            }
        }
    }
    comparison.says = says::says(comparison);
}

/// Standard errors from which the correlation of neighbours is reported.
const ALIKE: f64 = 2.0;

/// Pairs the levels of both runs by index, without warm-ups.
fn level_pairs<'a>(
    base: &RunRead<'a>,
    candidate: &RunRead<'a>,
    differences: &mut Vec<Difference>,
) -> Result<Vec<LevelPair<'a>>, CompareRefusal> {
    let (a, b) = (arms(base), arms(candidate));
    if a.is_empty() || b.is_empty() {
        let which = if a.is_empty() { "base" } else { "candidate" };
        return Err(CompareRefusal::Nothing(format!(
            "the {which} has no level to compare: it was cut off too early"
        )));
    }
    if a.len() != b.len() {
        differences.push(Difference {
            about: "load".into(),
            base: plimsoll_measure::say::count(a.len() as u64, "level"),
            candidate: plimsoll_measure::say::count(b.len() as u64, "level"),
        });
    }
    Ok(a.into_iter().zip(b).map(|(a, b)| LevelPair::new(a, b)).collect())
}

fn arms<'a>(run: &RunRead<'a>) -> Vec<LevelArm<'a>> {
    let read = |level: &'a plimsoll_model::Level| {
        let found = run.findings.levels.iter().find(|found| found.summary.level == level.id)?;
        let own: Vec<&Attempt> = run.attempts.iter().filter(|attempt| attempt.level == level.id).collect();
        let servers = run.findings.server.iter().flat_map(|told| &told.levels);
        let server = servers.into_iter().find(|told| told.level == level.id);
        (!own.is_empty()).then(|| LevelArm { server, ..LevelArm::read(level, own, &found.summary) })
    };
    run.manifest.levels.iter().filter_map(read).collect()
}

/// Groups the level pairs by traffic and load, in order of appearance.
fn grouped(pairs: Vec<LevelPair>) -> Vec<Vec<LevelPair>> {
    let mut groups: Vec<Vec<LevelPair>> = Vec::new();
    let same = |x: &LevelPair, y: &LevelPair| {
        let load = match (x.base.level.load, y.base.level.load) {
            (Load::Open { rate_per_s: a }, Load::Open { rate_per_s: b }) => (a - b).abs() <= 1e-9 * a.abs(),
            (a, b) => a == b,
        };
        load && x.base.level.traffic == y.base.level.traffic
    };
    for pair in pairs {
        match groups.iter_mut().find(|group| same(&group[0], &pair)) {
            Some(group) => group.push(pair),
            None => groups.push(vec![pair]),
        }
    }
    groups
}

/// Compares the levels of one load.
fn group(pairs: &[LevelPair], design: Design, spec: &CompareSpec) -> ComparedLevels {
    let paired = design == Design::Paired;
    let cut = cut(pairs, paired);
    let flips = Flips::of_turns(cut.units.len() / cut.per_level.max(1), cut.per_level);
    let strata = (!paired).then(|| Strata::of(pairs, &cut));
    let side = LoadRows { pairs, cut: &cut, flips: &flips, strata: strata.as_ref(), margins: &spec.margins };
    let mut rows = side.rows();
    judge::jointly(&mut rows, &flips);
    let first = pairs[0].base.level;
    ComparedLevels {
        load: format!("{}, {}", first.traffic, sameness::load_words(&first.load)),
        levels: pairs.iter().map(|pair| (pair.base.level.id, pair.candidate.level.id)).collect(),
        unit: cut.unit,
        units: cut.units.len() as u32,
        shift: shift_points(&side, paired),
        slices: strata.as_ref().map_or_else(Vec::new, |strata| slices(&side, strata)),
        stages: stages::stages(&side, &rows),
        rows,
    }
}

fn shift_points(side: &LoadRows, paired: bool) -> Vec<ShiftPoint> {
    let Some(leading) = side.latencies().first().copied().filter(|_| side.cut.units.len() >= FEWEST) else {
        return Vec::new();
    };
    let (base, candidate) = side.arms(leading, None);
    if base.is_empty() || candidate.is_empty() {
        return Vec::new();
    }
    let mut stream = Stream::new(1, "compare shift", 0);
    let bands = shift((&base, &candidate), &SHIFT_AT, paired, (&mut stream, REPLICATES), LEVEL);
    let point = |band: &plimsoll_math::two_sample::ShiftBand| {
        let (lower, upper) = (band.band.lower, band.band.upper);
        let effect = Effect { scale: Scale::Ratio, value: band.ratio, lower, upper };
        (!band.ratio.is_nan()).then_some(ShiftPoint { p: band.p, effect })
    };
    bands.iter().filter_map(point).collect()
}

/// Returns the median of the leading latency for each kind of request.
fn slices(side: &LoadRows, strata: &Strata) -> Vec<ComparedSlice> {
    let leading = side.latencies().first().copied();
    let slice = |kind: strata::RequestStratum| {
        let (base_share, candidate_share) = strata.shares(kind);
        let effect = leading.filter(|_| side.cut.units.len() >= FEWEST).and_then(|leading| {
            let (base, candidate) = side.arms(leading, Some(kind));
            // A median of fewer requests is too uncertain.
            let enough = base.len() >= 20 && candidate.len() >= 20;
            enough
                .then(|| effect(Scale::Ratio, percentile_ratio(&base, &candidate, 0.5, side.flips, LEVEL)))?
        });
        ComparedSlice { name: strata.name(kind), base_share, candidate_share, effect }
    };
    strata.counts.keys().map(|kind| slice(*kind)).collect()
}

/// Returns remarks in addition to the verdict.
fn notes(base: &RunRead, candidate: &RunRead, design: Design, differences: &[Difference]) -> Vec<String> {
    let mut notes = Vec::new();
    if design == Design::Standardised {
        notes.push(format!(
            "{} between the runs: percentiles are compared unpaired, at the base's mix of classes and prompt lengths",
            plimsoll_measure::say::count(differences.len() as u64, "difference")
        ));
    }
    for (side, run) in [("base", base), ("candidate", candidate)] {
        // The rows of a short run report its length, so it needs no remark.
        let validity = &run.findings.validity;
        let suspect = validity.reasons.iter().find(|reason| reason.verdict >= Trust::Suspect);
        notes.extend(suspect.map(|r| format!("the {side} is suspect: {}; {}", r.figure, r.means)));
    }
    for (side, run) in [("base", base), ("candidate", candidate)] {
        for level in &run.findings.levels {
            let cut = level.summary.window.cut_words();
            notes.extend(cut.map(|cut| format!("of the {side}'s level {}, {cut}", level.summary.level)));
        }
    }
    if base.manifest.nonce != candidate.manifest.nonce {
        notes.push("the prompts are as long on both sides, in other words (another nonce)".into());
    }
    notes.extend(sameness::unknown_path(base.manifest, candidate.manifest));
    let facts = sameness::facts(base.manifest, candidate.manifest);
    let unknown: Vec<&str> =
        facts.iter().filter(|(_, fact)| **fact == Fact::Unknown).map(|(name, _)| name.as_str()).collect();
    if !unknown.is_empty() {
        notes.push(format!("not known to be unchanged: {}", unknown.join(", ")));
    }
    notes
}
