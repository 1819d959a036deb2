//! Amdahl's law, solved for any of its three figures.

use plimsoll_math::queueing::{amdahl as speed_up, amdahl_factor, amdahl_limit, amdahl_share};

use super::finding::{CalcCurve, CalcFigure, CalcUnit, CurveAxis, CurveLine, LawError, LawFinding, Point};
use super::inside;
use plimsoll_measure::say;

/// Two of the three figures of Amdahl's law, or only the share.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct AmdahlSpec {
    /// The part's share of the total time.
    pub share: Option<f64>,
    /// Speed-up of the part.
    pub factor: Option<f64>,
    pub speed_up: Option<f64>,
}

/// Returns the speed-up of the whole, the required speed-up of the part, or the implied share.
///
/// # Errors
/// Fails if too few figures or all three are given, or if the speed-up is beyond the limit.
pub fn amdahl(spec: &AmdahlSpec) -> Result<LawFinding, LawError> {
    let share = spec.share.map(|share| inside("share", share)).transpose()?;
    let more = |name: &str, x: f64| {
        if x > 1.0 {
            Ok(x)
        } else {
            Err(LawError::input(format!("--{name}: must be more than 1 time as fast")))
        }
    };
    let factor = spec.factor.map(|x| more("factor", x)).transpose()?;
    let whole = spec.speed_up.map(|x| more("speed-up", x)).transpose()?;
    let share_of = |share: f64| CalcFigure::new("share", share, CalcUnit::Share).note("of the whole's time");
    let factor_of = |factor: f64| CalcFigure::new("factor", factor, CalcUnit::Factor).note("of the part");
    let whole_of = |whole: f64| CalcFigure::new("speed-up", whole, CalcUnit::Factor).note("of the whole");
    let (share, at, given, mut answers) = match (share, factor, whole) {
        (Some(share), None, None) => {
            let table = [2.0, 5.0, 10.0].map(|factor| {
                CalcFigure::new(format!("speed-up at {factor} ×"), speed_up(share, factor), CalcUnit::Factor)
            });
            (share, None, vec![share_of(share)], table.to_vec())
        }
        (Some(share), Some(factor), None) => {
            let found = speed_up(share, factor);
            (share, Some(factor), vec![share_of(share), factor_of(factor)], vec![whole_of(found)])
        }
        (Some(share), None, Some(whole)) => {
            let factor = amdahl_factor(share, whole).ok_or_else(|| past_limit(share, whole))?;
            (share, Some(factor), vec![share_of(share), whole_of(whole)], vec![factor_of(factor)])
        }
        (None, Some(factor), Some(whole)) => {
            let share = amdahl_share(factor, whole);
            if share >= 1.0 {
                return Err(LawError::input(format!(
                    "--speed-up {}: the whole can't become faster than its part ({} ×)",
                    say::number(whole),
                    say::number(factor)
                )));
            }
            (share, Some(factor), vec![factor_of(factor), whole_of(whole)], vec![share_of(share)])
        }
        (Some(_), Some(_), Some(_)) => {
            return Err(LawError::input(
                "--share, --factor and --speed-up determine each other: leave out the value to solve for",
            ));
        }
        _ => {
            return Err(LawError::input(
                "give only --share, --share with --factor or --speed-up, or --factor with --speed-up",
            ));
        }
    };
    answers.push(
        CalcFigure::new("limit", amdahl_limit(share), CalcUnit::Factor)
            .note("with a part that takes no time"),
    );
    Ok(LawFinding {
        law: "amdahl",
        title: "Amdahl's law".into(),
        given,
        answers,
        formula: vec!["S = 1 / ((1 − f) + f / s);  limit 1 / (1 − f);  s = f / (1/S − (1 − f));  f = (1 − 1/S) / (1 − 1/s)".into()],
        source: "Amdahl 1967; Karp and Flatt 1990",
        assumes: vec![
            "the rest takes as long as before, and no other work overlaps the part on the path".into(),
            "service time: a queue in front of the part shrinks by more than the part does".into(),
        ],
        not_for: vec![
            "stages that run side by side (plimsoll profile re-times the traced path)".into(),
            "percentiles: f is the part's share of the mean; its share of slow requests may differ".into(),
        ],
        warnings: Vec::new(),
        curve: Some(amdahl_curve(share, at)),
    })
}

fn past_limit(share: f64, whole: f64) -> LawError {
    LawError::input(format!(
        "--speed-up {}: past the limit of {} ×, which is reached when this {} of the time drops to zero",
        say::number(whole),
        say::number(amdahl_limit(share)),
        say::percent(share)
    ))
}

fn amdahl_curve(share: f64, at: Option<f64>) -> CalcCurve {
    let most = at.unwrap_or(1.0).max(100.0);
    let x =
        CurveAxis {
            name: "part × faster".into(), quantity: CalcUnit::Factor, range: [1.0, most], log: true
        };
    let limit = amdahl_limit(share);
    let line = CurveLine::of("whole", &x, |factor| speed_up(share, factor));
    let flat = CurveLine::of("limit", &x, |_| limit);
    let points = at.map(|factor| Point { at: [factor, speed_up(share, factor)], name: "here".into() });
    CalcCurve {
        y: CurveAxis {
            range: [1.0, 1.0 + 1.12 * (limit - 1.0)],
            ..CurveAxis::to("whole × faster", CalcUnit::Factor, 1.0)
        },
        lines: vec![line, flat],
        points: points.into_iter().collect(),
        marks: Vec::new(),
        x,
    }
}
