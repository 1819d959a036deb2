//! The Universal Scalability Law, given or fitted, and Amdahl's law in all three directions.

use plimsoll_math::queueing::{
    LackOfFit, Usl, UslFit, amdahl as speed_up, amdahl_factor, amdahl_limit, amdahl_share, fit_usl,
};
use plimsoll_math::rng::Stream;

use super::finding::{
    CalcFigure, Curve, CurveAxis, CurveLine, CurveMark, LawError, LawFinding, Point, Quantity,
};
use super::{above_zero, inside};
use plimsoll_measure::say;

/// Seed of the redraws: the same points always say the same.
const SEED: u64 = 1;
/// Chance below which residuals are called a misfit.
const MISFIT: f64 = 0.05;

/// A law given by its parameters, or measured points to fit it to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct UslSpec {
    /// γ: what one does alone, per second; σ and κ with it.
    pub law: Option<(f64, f64, f64)>,
    /// (N, X) as measured.
    pub points: Vec<(f64, f64)>,
    /// N to evaluate at.
    pub at: Vec<f64>,
}

/// Throughput of N, the best N, and how well measured points follow the law.
///
/// # Errors
/// Neither or both of law and points, too few points, figures that can't be meant.
pub fn usl(spec: &UslSpec) -> Result<LawFinding, LawError> {
    for n in &spec.at {
        above_zero("n", *n)?;
    }
    let (law, fit) = match (spec.law, spec.points.is_empty()) {
        (Some((one, contention, crosstalk)), true) => {
            let one = above_zero("one", one)?;
            if !(0.0..=1.0).contains(&contention) {
                return Err(LawError::input("--contention: a share from 0 to 1"));
            }
            if !(crosstalk.is_finite() && crosstalk >= 0.0) {
                return Err(LawError::input("--crosstalk: 0 or more"));
            }
            (Usl { one, contention, crosstalk }, None)
        }
        (None, false) => {
            let mut stream = Stream::new(SEED, "calc.usl", 0);
            let fit = fit_usl(&spec.points, 0.95, &mut stream).ok_or_else(|| {
                LawError::input(format!(
                    "--points: {} of them; three parameters take at least four points at three different N, all above 0",
                    spec.points.len()
                ))
            })?;
            (fit.law, Some(fit))
        }
        _ => {
            return Err(LawError::input(
                "give --points N:X,N:X,… to fit, or --one with --contention and --crosstalk",
            ));
        }
    };
    let (given, mut answers, mut warnings) = match &fit {
        None => (parameters(&law), Vec::new(), Vec::new()),
        Some(fit) => (
            vec![CalcFigure::new("points", spec.points.len() as f64, Quantity::Count)],
            fitted(fit),
            misfits(fit, &spec.points),
        ),
    };
    let peak = law.peak();
    let interval = fit.as_ref().map(|fit| [fit.peak.lower, fit.peak.upper]);
    let best = CalcFigure { interval, ..CalcFigure::new("N*", peak, Quantity::Count) };
    answers.push(best.note("where throughput is largest"));
    let most = CalcFigure::new("largest throughput", law.peak_throughput(), Quantity::Rate);
    answers.push(if peak.is_finite() { most } else { most.note("never reached: γ / σ") });
    for n in &spec.at {
        answers.push(CalcFigure::new(
            format!("throughput of {}", say::number(*n)),
            law.throughput(*n),
            Quantity::Rate,
        ));
        answers.push(CalcFigure::new(
            format!("speed-up of {}", say::number(*n)),
            law.throughput(*n) / law.throughput(1.0),
            Quantity::Factor,
        ));
    }
    if law.never_scales() {
        warnings.push("more than one never helps: throughput falls from N = 1 on".into());
    }
    Ok(LawFinding {
        law: "usl",
        title: "Universal Scalability Law".into(),
        given,
        answers,
        formula: vec!["X(N) = γ N / (1 + σ (N − 1) + κ N (N − 1));  N* = √((1 − σ) / κ)".into()],
        source: "Gunther 1993, 2007",
        assumes: vec![
            "N is the number of equal workers (or of clients without think time) at full load, X what they finish together".into(),
            "nothing but N changes between the points: same requests, same lengths, same settings".into(),
        ],
        not_for: vec![
            "latency percentiles, or a rate below saturation: X(N) is what N can do, not what they are asked".into(),
            "a full pool, a rate limit or a queue bound: throughput is then flat, and the law bends through it (look at the lack of fit)".into(),
        ],
        warnings,
        curve: Some(usl_curve(&law, spec)),
    })
}

fn parameters(law: &Usl) -> Vec<CalcFigure> {
    vec![
        CalcFigure::new("γ (one alone)", law.one, Quantity::Rate),
        CalcFigure::new("σ (contention)", law.contention, Quantity::Plain),
        CalcFigure::new("κ (crosstalk)", law.crosstalk, Quantity::Plain),
    ]
}

fn fitted(fit: &UslFit) -> Vec<CalcFigure> {
    let mut figures = parameters(&fit.law);
    for (figure, interval) in figures.iter_mut().zip([&fit.one, &fit.contention, &fit.crosstalk]) {
        figure.interval = Some([interval.lower, interval.upper]);
    }
    let spread = CalcFigure::new("spread", fit.spread, Quantity::Share);
    figures.push(spread.note("standard deviation of the points about the law"));
    figures
}

fn misfits(fit: &UslFit, points: &[(f64, f64)]) -> Vec<String> {
    let mut warnings = Vec::new();
    match fit.fit {
        LackOfFit::Replicates { p } if p < MISFIT => warnings.push(format!(
            "lack of fit: the points scatter less about their own means than the law misses them (F test, p = {}); something else limits this system, and N* is not to be trusted",
            say::number(p)
        )),
        LackOfFit::Pattern { p } if p < MISFIT => warnings.push(format!(
            "lack of fit: neighbouring points lie on one side of the law (p = {}); something else limits this system, and N* is not to be trusted",
            say::number(p)
        )),
        LackOfFit::Unknown => warnings.push(
            "too few points to tell whether the law fits: measure each N twice, or six of them".into(),
        ),
        _ => {}
    }
    let largest = points.iter().map(|(n, _)| *n).fold(0.0, f64::max);
    if fit.law.peak() > largest {
        warnings.push(format!(
            "N* lies beyond the largest N measured ({}): it is extrapolated",
            say::number(largest)
        ));
    }
    if fit.peak.upper.is_infinite() {
        warnings.push("the points do not tell crosstalk from none: N* has no upper bound".into());
    }
    warnings
}

fn usl_curve(law: &Usl, spec: &UslSpec) -> Curve {
    let asked = spec.points.iter().map(|(n, _)| *n).chain(spec.at.iter().copied()).fold(4.0, f64::max);
    let peak = law.peak();
    let wide = if peak < 4.0 * asked { 1.5 * peak } else { 0.0 };
    let x = CurveAxis {
        range: [1.0, asked.max(wide).max(if spec.points.is_empty() { 16.0 } else { 0.0 })],
        ..CurveAxis::to("N", Quantity::Count, 1.0)
    };
    let line = CurveLine::of("X(N)", &x, |n| law.throughput(n));
    let measured = spec.points.iter().map(|(_, x)| *x);
    let top = line.at.iter().map(|[_, y]| *y).chain(measured).fold(0.0, f64::max);
    let linear = CurveLine::of("linear", &x, |n| law.one * n);
    let mut points: Vec<Point> =
        spec.points.iter().map(|(n, x)| Point { at: [*n, *x], name: String::new() }).collect();
    points.extend(
        spec.at
            .iter()
            .map(|n| Point { at: [*n, law.throughput(*n)], name: format!("N {}", say::number(*n)) }),
    );
    let marks = if peak <= x.range[1] { vec![CurveMark { x: peak, name: "N*".into() }] } else { Vec::new() };
    Curve {
        y: CurveAxis::to("throughput", Quantity::Rate, 1.12 * top),
        lines: vec![line, linear],
        points,
        marks,
        x,
    }
}

/// Two of the three, or the share alone.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct AmdahlSpec {
    /// The part's share of the whole's time.
    pub share: Option<f64>,
    /// How many times faster the part becomes.
    pub factor: Option<f64>,
    /// How many times faster the whole becomes.
    pub speed_up: Option<f64>,
}

/// What a faster part brings, how much faster it has to be, or how large it must have been.
///
/// # Errors
/// Fewer than needed or all three; a speed-up past the limit.
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
    let share_of = |share: f64| CalcFigure::new("share", share, Quantity::Share).note("of the whole's time");
    let factor_of = |factor: f64| CalcFigure::new("factor", factor, Quantity::Factor).note("of the part");
    let whole_of = |whole: f64| CalcFigure::new("speed-up", whole, Quantity::Factor).note("of the whole");
    let (share, at, given, mut answers) = match (share, factor, whole) {
        (Some(share), None, None) => {
            let table = [2.0, 5.0, 10.0].map(|factor| {
                CalcFigure::new(format!("speed-up at {factor} ×"), speed_up(share, factor), Quantity::Factor)
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
                "--share, --factor and --speed-up are bound by the law: leave out the one to solve for",
            ));
        }
        _ => {
            return Err(LawError::input(
                "give --share, alone or with --factor or --speed-up; or --factor and --speed-up",
            ));
        }
    };
    answers.push(
        CalcFigure::new("limit", amdahl_limit(share), Quantity::Factor)
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
            "the rest takes as long as before, and the part runs alone on the path: nothing beside it hides or takes over".into(),
            "service time: a queue in front of the part shrinks by more than the part does".into(),
        ],
        not_for: vec![
            "stages that run side by side (plimsoll profile re-times the traced path)".into(),
            "percentiles: f is the part's share of the mean; of the slow requests it may be another".into(),
        ],
        warnings: Vec::new(),
        curve: Some(amdahl_curve(share, at)),
    })
}

fn past_limit(share: f64, whole: f64) -> LawError {
    LawError::input(format!(
        "--speed-up {}: past the limit of {} ×, which is reached when this {} of the time is gone altogether",
        say::number(whole),
        say::number(amdahl_limit(share)),
        say::percent(share)
    ))
}

fn amdahl_curve(share: f64, at: Option<f64>) -> Curve {
    let most = at.unwrap_or(1.0).max(100.0);
    let x =
        CurveAxis {
            name: "part × faster".into(), quantity: Quantity::Factor, range: [1.0, most], log: true
        };
    let limit = amdahl_limit(share);
    let line = CurveLine::of("whole", &x, |factor| speed_up(share, factor));
    let flat = CurveLine::of("limit", &x, |_| limit);
    let points = at.map(|factor| Point { at: [factor, speed_up(share, factor)], name: "here".into() });
    Curve {
        y: CurveAxis {
            range: [1.0, 1.0 + 1.12 * (limit - 1.0)],
            ..CurveAxis::to("whole × faster", Quantity::Factor, 1.0)
        },
        lines: vec![line, flat],
        points: points.into_iter().collect(),
        marks: Vec::new(),
        x,
    }
}
