//! Division of a total latency into stage slices with a margin.
//!
//! Fixed values and shares are taken first. A measured stage gets at least its measured value at the slices' percentile. The
//! weights divide the rest. Without weights the measured stages divide it by their spread (p − p50), because a variable stage
//! needs the room.
//!
//! Percentiles do not add, so a profile gives two splits. The *conservative* split gives each stage its percentile at the
//! total's level. The *joint* split uses the highest measured percentile at which the slices add up to at most the whole's
//! value. It has a separate budget for the total. Only measured percentiles are used, because others would have to be invented.

use std::collections::BTreeMap;

use plimsoll_workload::{SpecError, check};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::check::{conflict, margin_of, missing, time};
use plimsoll_measure::budget::{Amount, AmountUnit, PercentileLevel};
use plimsoll_measure::say::{self, ms};

/// Default percentile of slices.
const LEVEL: f64 = 0.99;

/// A total latency with the stages that it is divided over.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SplitFile {
    /// Total latency to divide, such as `2s`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<Amount>,
    /// Reserve for variance: a time, or a share of the total.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub margin: Option<Amount>,
    /// Percentile that slices apply to [default: 99].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p: Option<PercentileLevel>,
    /// Stages of the path by their names.
    pub stages: BTreeMap<String, StagePart>,
}

/// The claim of one stage: one of `fixed`, `share`, `weight`, or its measured percentiles.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct StagePart {
    /// Fixed time of the stage, such as `20ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub fixed: Option<Amount>,
    /// Share of the total, such as 15%.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub share: Option<Amount>,
    /// Weight for the division of the rest.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// Measured median of the stage, such as `80ms`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50: Option<Amount>,
    /// Measured 90th percentile of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90: Option<Amount>,
    /// Measured 95th percentile of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95: Option<Amount>,
    /// Measured 99th percentile of the stage.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99: Option<Amount>,
}

/// The percentiles that a stage may be measured at.
const MEASURED: [f64; 4] = [0.5, 0.9, 0.95, 0.99];

impl StagePart {
    fn measured(&self) -> [Option<&Amount>; 4] {
        [self.p50.as_ref(), self.p90.as_ref(), self.p95.as_ref(), self.p99.as_ref()]
    }

    /// Returns the measured value at this percentile in seconds; `None` if not measured.
    fn at(&self, p: f64) -> Option<f64> {
        let index = MEASURED.iter().position(|known| (known - p).abs() < 1e-9)?;
        self.measured()[index].map(|amount| amount.value)
    }
}

/// The measured percentiles of the whole.
#[derive(Clone, PartialEq, Debug)]
pub struct WholeAndStages {
    /// Median and 90th, 95th and 99th percentile in seconds; `None` if refused.
    pub at: [Option<f64>; 4],
}

/// A total latency divided into slices.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct BudgetSplit {
    /// Total latency to divide, in seconds.
    pub total_s: f64,
    /// Reserve that no stage gets, in seconds.
    pub margin_s: f64,
    /// Percentile of the total, as a fraction.
    pub p: f64,
    /// Percentile of the slices: lower than `p` in a joint split.
    pub slices_p: f64,
    /// Whether the split is joint instead of conservative.
    pub joint: bool,
    /// Slices of the total, one per stage.
    pub slices: Vec<StageSlice>,
    /// Remaining time in seconds that no stage got; it adds to the margin.
    pub left_s: f64,
    /// Remarks on the result, one sentence each.
    pub notes: Vec<String>,
}

/// The slice of one stage of the total.
#[derive(Clone, PartialEq, Debug, Serialize, JsonSchema)]
pub struct StageSlice {
    /// Name of the stage in the file.
    pub stage: String,
    /// Slice of the total in seconds.
    pub slice_s: f64,
    /// Source of the value, as a phrase.
    pub why: String,
}

#[derive(Clone, PartialEq, Debug)]
pub struct SplitSpec<'a> {
    pub file: &'a SplitFile,
    /// Measured percentiles of the whole; `None` without a profile.
    pub whole: Option<&'a WholeAndStages>,
    /// Set for the joint split instead of the conservative one.
    pub joint: bool,
}

/// Parses a file of stages from its value.
///
/// # Errors
/// Fails at the first invalid key, name or text, with its path.
pub fn read_split(value: &Value) -> Result<SplitFile, SpecError> {
    check::against(value, || schemars::schema_for!(SplitFile).to_value())?;
    serde_json::from_value(value.clone()).map_err(|e| conflict("stages", e.to_string()))
}

/// Divides the total of a specification.
///
/// # Errors
/// Fails if a value is invalid, or if the slices do not fit; the error contains their sum.
pub fn split(spec: &SplitSpec<'_>) -> Result<BudgetSplit, SpecError> {
    let file = spec.file;
    let total = file.total.as_ref().ok_or_else(|| missing("total", "the total to divide: --total 3s"))?;
    let total_s = time("total", total)?;
    let margin_s = margin_of("margin", file.margin.as_ref(), total)?;
    if margin_s >= total_s {
        return Err(conflict(
            "margin",
            format!("{} of {} leaves nothing to split", ms(margin_s), ms(total_s)),
        ));
    }
    let p = file.p.map_or(LEVEL, |p| p.0);
    if file.stages.is_empty() {
        return Err(missing("stages", "at least one stage, such as `prefill: {fixed: 400ms}`"));
    }
    let slices_p = if spec.joint { joint_level(spec, p, total_s - margin_s)? } else { p };
    let (slices, left_s) =
        divide(file, (total_s, margin_s), (slices_p, p)).map_err(|e| hint(e, spec, p, total_s - margin_s))?;
    let mut split =
        BudgetSplit { total_s, margin_s, p, slices_p, joint: spec.joint, slices, left_s, notes: Vec::new() };
    split.notes = notes(&split, spec);
    Ok(split)
}

/// Returns the highest measured percentile at which the stages add up to at most the whole's value at `p`.
fn joint_level(spec: &SplitSpec<'_>, p: f64, pot: f64) -> Result<f64, SpecError> {
    let whole = spec
        .whole
        .ok_or_else(|| conflict("joint", "only a profile measures the joint tail: --from PROFILE.json"))?;
    let had = whole_at(whole, p).ok_or_else(|| {
        conflict("p", format!("the profile shows no {} of the whole: name one that it has with --p", name(p)))
    })?;
    if had > pot {
        return Err(conflict(
            "total",
            format!(
                "the whole's {} was measured at {}: {} more than the {} that total and margin leave; no split makes it fit",
                name(p),
                ms(had),
                ms(had - pot),
                ms(pot)
            ),
        ));
    }
    let fits = |q: &&f64| {
        **q <= p + 1e-9 && sum_at(spec.file, **q).is_some_and(|sum| sum <= had.max(1e-12) * (1.0 + 1e-9))
    };
    MEASURED.iter().rev().find(fits).copied().ok_or_else(|| {
        conflict("stages", format!("even the stages' medians add up to more than the whole's {}", name(p)))
    })
}

fn whole_at(whole: &WholeAndStages, p: f64) -> Option<f64> {
    MEASURED.iter().position(|known| (known - p).abs() < 1e-9).and_then(|i| whole.at[i])
}

/// Returns the sum of the stages' percentiles; `None` if one that takes time is unknown.
fn sum_at(file: &SplitFile, p: f64) -> Option<f64> {
    file.stages.values().map(|part| part.at(p).or_else(|| is_idle(part, p).then_some(0.0))).sum()
}

/// Returns whether a stage takes no time at this percentile: it has a value at a higher one, or at none.
fn is_idle(part: &StagePart, p: f64) -> bool {
    let later = MEASURED.iter().zip(part.measured()).any(|(known, amount)| *known > p && amount.is_some());
    let none = part.measured().iter().all(Option::is_none);
    part.fixed.is_none() && part.share.is_none() && part.weight.is_none() && (later || none)
}

/// The claim of a stage before the rest is divided.
struct Claim<'a> {
    stage: &'a str,
    part: &'a StagePart,
    least: f64,
    /// Share of the rest, in proportion to other claims; weights and spreads are separate.
    weight: f64,
    spread: f64,
    why: String,
}

/// Divides the total into slices at the first level, and the rest by weight or by spread up to the second; returns the rest too.
fn divide(
    file: &SplitFile,
    (total, margin): (f64, f64),
    levels: (f64, f64),
) -> Result<(Vec<StageSlice>, f64), SpecError> {
    let claims: Vec<Claim<'_>> = file
        .stages
        .iter()
        .map(|(stage, part)| claim(stage, part, total, levels))
        .collect::<Result<_, _>>()?;
    let least: f64 = claims.iter().map(|claim| claim.least).sum();
    let pot = total - margin;
    if least > pot * (1.0 + 1e-9) {
        return Err(conflict(
            "stages",
            format!(
                "the slices add up to {} and {} of margin, {} in all: {} more than the total of {}",
                ms(least),
                ms(margin),
                ms(least + margin),
                ms(least + margin - total),
                ms(total)
            ),
        ));
    }
    let rest = (pot - least).max(0.0);
    let weights: f64 = claims.iter().map(|claim| claim.weight).sum();
    let spreads: f64 = claims.iter().map(|claim| claim.spread).sum();
    if weights > 0.0 && rest <= 1e-9 * total {
        return Err(conflict(
            "stages",
            format!(
                "fixed, shared and measured slices add up to {}: nothing is left for the weights",
                ms(least)
            ),
        ));
    }
    let one = |claim: &Claim<'_>| {
        let more = if weights > 0.0 {
            rest * claim.weight / weights
        } else if spreads > 0.0 {
            rest * claim.spread / spreads
        } else {
            0.0
        };
        let slice_s = rounded(claim.least + more, claim.least);
        let why = if claim.part.weight.is_none() && more > 0.0 {
            format!("{} and {} of the rest", claim.why, ms(slice_s - claim.least))
        } else {
            claim.why.clone()
        };
        StageSlice { stage: claim.stage.to_owned(), slice_s, why }
    };
    let slices: Vec<StageSlice> = claims.iter().map(one).filter(|slice| slice.slice_s > 0.0).collect();
    let left = pot - slices.iter().map(|slice| slice.slice_s).sum::<f64>();
    Ok((slices, left.max(0.0)))
}

fn claim<'a>(
    stage: &'a str,
    part: &'a StagePart,
    total: f64,
    (p, of_total): (f64, f64),
) -> Result<Claim<'a>, SpecError> {
    let place = |key: &str| format!("stages.{stage}.{key}");
    let measured = part.measured().iter().any(Option::is_some);
    let kinds = [part.fixed.is_some(), part.share.is_some(), part.weight.is_some(), measured];
    if kinds.iter().filter(|given| **given).count() > 1 {
        return Err(conflict(
            &format!("stages.{stage}"),
            "one of fixed, share, weight or measured percentiles, not several",
        ));
    }
    let claim = |least: f64, why: String| Claim { stage, part, least, weight: 0.0, spread: 0.0, why };
    if let Some(fixed) = &part.fixed {
        return Ok(claim(time(&place("fixed"), fixed)?, "fixed".into()));
    }
    if let Some(share) = &part.share {
        if share.unit != AmountUnit::Share {
            return Err(SpecError::value(&place("share"), share, "a share of the total such as 15%"));
        }
        return Ok(claim(share.value * total, format!("{share} of the total")));
    }
    if let Some(weight) = part.weight {
        if !(weight.is_finite() && weight > 0.0) {
            return Err(SpecError::value(&place("weight"), weight, "a weight above 0"));
        }
        return Ok(Claim { weight, ..claim(0.0, format!("weight {}", say::number(weight))) });
    }
    for (known, amount) in MEASURED.iter().zip(part.measured()) {
        amount.map_or(Ok(0.0), |amount| time(&place(&name(*known)), amount))?;
    }
    match part.at(p) {
        Some(value) => {
            let high = part.at(of_total).unwrap_or(value);
            let spread = part.p50.as_ref().map_or(high, |median| (high - median.value).max(0.0));
            Ok(Claim { spread, ..claim(value, format!("measured {} {}", name(p), ms(value))) })
        }
        None if measured && !is_idle(part, p) => Err(missing(
            &place(&name(p)),
            "a measurement at the percentile of the slices; or choose another percentile with --p",
        )),
        None if measured => Ok(claim(0.0, String::new())),
        None => Err(missing(
            &format!("stages.{stage}"),
            "one of fixed, share, weight, or p50 and p99 as measured",
        )),
    }
}

/// Rounds down to a tenth of a millisecond, or to a microsecond if the stage would get too little.
fn rounded(slice: f64, least: f64) -> f64 {
    let down = |unit: f64| (slice / unit + 1e-6).floor() * unit;
    let tenth = down(1e-4);
    if tenth >= least && tenth > 0.0 { tenth } else { down(1e-6) }
}

/// Adds the joint split to an error of the conservative one, if the joint split fits.
fn hint(error: SpecError, spec: &SplitSpec<'_>, p: f64, pot: f64) -> SpecError {
    match error {
        SpecError::Conflict { path, what }
            if !spec.joint && spec.whole.is_some() && joint_level(spec, p, pot).is_ok() =>
        {
            conflict(
                &path,
                format!(
                    "{what}; the stages are not slow together, so the measured joint tail allows a split: --joint"
                ),
            )
        }
        other => other,
    }
}

fn notes(split: &BudgetSplit, spec: &SplitSpec<'_>) -> Vec<String> {
    let k = split.slices.len() as f64;
    let p = split.slices_p;
    let mut notes = vec![format!(
        "percentiles do not add. If each of {} passes at {}, all pass in {} of the requests for independent stages, and in at least {} for any dependence. The whole exceeds its total at most as often as any slice exceeds its own, mostly less, because other slices compensate",
        say::count(split.slices.len() as u64, "slice"),
        name(p),
        say::percent(libm::pow(p, k)),
        say::percent((1.0 - k * (1.0 - p)).max(0.0))
    )];
    if let (Some(whole), Some(sum)) = (spec.whole, sum_at(spec.file, split.p))
        && let Some(had) = whole_at(whole, split.p)
    {
        let at = name(split.p);
        notes.push(if had <= sum {
            format!("measured: the {at} of the stages add up to {}, the {at} of the whole was {}: the sum is {} higher, because stages are slow in different requests", ms(sum), ms(had), ms(sum - had))
        } else {
            format!("measured: the {at} of the whole was {}, over the {} that the {at} of the stages add up to: stages are slow together, and slices at {at} do not ensure the total", ms(had), ms(sum))
        });
    }
    if split.joint && split.slices_p < split.p {
        notes.push(format!(
            "joint split: slices are checked at {}, where they add up to at most the {} of the whole; the total has its own budget at {}",
            name(split.slices_p),
            name(split.p),
            name(split.p)
        ));
    }
    if split.left_s > 1e-3 {
        notes.push(format!("{} are given to no stage: they add to the margin", ms(split.left_s)));
    }
    notes
}

fn name(p: f64) -> String {
    PercentileLevel(p).name()
}
