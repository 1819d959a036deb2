//! Pages of many calls, and second copies: how tails multiply, and how they are cut.

use plimsoll_math::queueing::{
    ExponentialHedge, Hedged, SampledHedge, any_slower, exponential_slowest, per_call, sampled_slowest,
};

use super::finding::{CalcFigure, Curve, CurveAxis, CurveLine, LawError, LawFinding, Point, Quantity};
use super::{above_zero, inside};
use plimsoll_measure::say;

/// Calls of a page at most.
const MOST_CALLS: u32 = 1_000_000;

/// The latency of one call.
#[derive(Clone, PartialEq, Debug)]
pub enum Latencies {
    /// Exponential with this mean, s.
    Exponential(f64),
    /// As measured, s, ascending.
    Sample(Vec<f64>),
}

impl Latencies {
    fn check(&self) -> Result<(), LawError> {
        match self {
            Latencies::Exponential(mean) => above_zero("mean", *mean).map(|_| ()),
            Latencies::Sample(sorted) if sorted.len() < 20 => Err(LawError::input(format!(
                "a sample of {}: at least 20 latencies, and a hundred for each in the tail that is asked for",
                say::count(sorted.len() as u64, "latency").replace("latencys", "latencies")
            ))),
            Latencies::Sample(sorted) if sorted.iter().any(|x| !(x.is_finite() && *x > 0.0)) => {
                Err(LawError::input(
                    "a sample holds a latency that is not above 0 and finite: leave failed requests out, and say so",
                ))
            }
            Latencies::Sample(_) => Ok(()),
        }
    }

    fn mean(&self) -> f64 {
        match self {
            Latencies::Exponential(mean) => *mean,
            Latencies::Sample(sorted) => sorted.iter().sum::<f64>() / sorted.len() as f64,
        }
    }

    /// The p-quantile; of a sample the order statistic.
    fn quantile(&self, p: f64) -> f64 {
        match self {
            Latencies::Exponential(mean) => -mean * libm::log1p(-p),
            Latencies::Sample(sorted) => {
                let rank = (p * sorted.len() as f64 - 1e-9).ceil().max(1.0) as usize;
                sorted.get(rank - 1).or(sorted.last()).copied().unwrap_or(f64::NAN)
            }
        }
    }

    fn given(&self) -> CalcFigure {
        match self {
            Latencies::Exponential(mean) => {
                CalcFigure::new("mean", *mean, Quantity::Time).note("exponential latency")
            }
            Latencies::Sample(sorted) => {
                CalcFigure::new("sample", sorted.len() as f64, Quantity::Count).note("latencies as measured")
            }
        }
    }
}

/// A page of several calls.
#[derive(Clone, PartialEq, Debug)]
pub struct FanoutSpec {
    /// Calls of a page.
    pub calls: u32,
    /// Percentiles; empty = 95 and 99.
    pub percentiles: Vec<f64>,
    /// The latency of a call, where it is known.
    pub latencies: Option<Latencies>,
}

/// How often a page meets a slow call, and what each call has to meet.
///
/// # Errors
/// A figure that can't be meant.
pub fn fanout(spec: &FanoutSpec) -> Result<LawFinding, LawError> {
    if spec.calls == 0 || spec.calls > MOST_CALLS {
        return Err(LawError::input(format!("--calls: 1 to {MOST_CALLS}")));
    }
    for p in &spec.percentiles {
        inside("p", *p)?;
    }
    let calls = f64::from(spec.calls);
    let percentiles = if spec.percentiles.is_empty() { vec![0.95, 0.99] } else { spec.percentiles.clone() };
    let name = |p: f64| format!("p{}", say::number(100.0 * p));
    let mut given =
        vec![CalcFigure::new("calls", calls, Quantity::Count).note("of a page, all of them needed")];
    let mut answers = Vec::new();
    for p in &percentiles {
        let chance = CalcFigure::new(
            format!("some call over its {}", name(*p)),
            any_slower(calls, *p),
            Quantity::Share,
        );
        answers.push(chance.note("of the pages"));
    }
    for p in &percentiles {
        let each =
            CalcFigure::new(format!("for a page's {}", name(*p)), per_call(calls, *p), Quantity::Percentile);
        answers.push(each.note("of each call"));
    }
    if let Some(latencies) = &spec.latencies {
        latencies.check()?;
        given.push(latencies.given());
        let slowest = match latencies {
            Latencies::Exponential(mean) => exponential_slowest(*mean, spec.calls),
            Latencies::Sample(sorted) => sampled_slowest(sorted, calls),
        };
        answers.push(CalcFigure::new("slowest call", slowest, Quantity::Time).note("on average"));
        for p in &percentiles {
            let page = latencies.quantile(per_call(calls, *p));
            answers.push(CalcFigure::new(format!("page {}", name(*p)), page, Quantity::Time));
        }
    }
    let x = CurveAxis {
        name: "calls of a page".into(),
        quantity: Quantity::Count,
        range: [1.0, (4.0 * calls).max(100.0)],
        log: true,
    };
    let lines: Vec<CurveLine> = percentiles
        .iter()
        .map(|p| CurveLine::of(format!("over {}", name(*p)), &x, |n| any_slower(n, *p)))
        .collect();
    let points =
        percentiles.last().map(|p| Point { at: [calls, any_slower(calls, *p)], name: "here".into() });
    Ok(LawFinding {
        law: "fanout",
        title: format!("Fan-out: a page of {}", say::count(u64::from(spec.calls), "call")),
        given,
        answers,
        formula: vec![
            "some of n calls slower than its pX: 1 − Xⁿ;  each call's percentile for the page's P: P^(1/n)".into(),
            "slowest of n exponential calls: m (1 + 1/2 + … + 1/n)".into(),
        ],
        source: "order statistics of independent calls",
        assumes: vec!["independent calls: one being slow tells nothing of the others".into()],
        not_for: vec![
            "calls that are slow together (one slow replica, one full queue, one long prompt): fewer pages are hit, and those harder".into(),
            "calls one after the other: their times add up (budget split)".into(),
        ],
        warnings: sample_warning(spec.latencies.as_ref(), percentiles.iter().map(|p| per_call(calls, *p))),
        curve: Some(Curve {
            y: CurveAxis::to("pages with a slow call", Quantity::Share, 1.0),
            lines,
            points: points.into_iter().collect(),
            marks: Vec::new(),
            x,
        }),
    })
}

/// A tail asked of a sample that holds fewer than ten values beyond it.
fn sample_warning(latencies: Option<&Latencies>, percentiles: impl Iterator<Item = f64>) -> Vec<String> {
    let Some(Latencies::Sample(sorted)) = latencies else { return Vec::new() };
    let highest = percentiles.fold(0.0, f64::max);
    let beyond = (1.0 - highest) * sorted.len() as f64;
    if beyond >= 10.0 {
        return Vec::new();
    }
    vec![format!(
        "the sample holds {} beyond the p{:.3} that this rests on: read the figure as a guess, ten are the least",
        say::number(beyond),
        100.0 * highest
    )]
}

/// When the second copy is sent.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum When {
    /// At this percentile of one copy.
    Percentile(f64),
    /// After this time, s.
    Delay(f64),
}

/// A second copy after a delay.
#[derive(Clone, PartialEq, Debug)]
pub struct HedgeSpec {
    /// The latency of one copy.
    pub latencies: Latencies,
    /// When the second copy is sent.
    pub when: When,
    /// Percentiles; empty = 50, 95, 99 and 99.9.
    pub percentiles: Vec<f64>,
}

/// What hedging gains and what it costs.
///
/// # Errors
/// A figure that can't be meant.
pub fn hedge(spec: &HedgeSpec) -> Result<LawFinding, LawError> {
    spec.latencies.check()?;
    for p in &spec.percentiles {
        inside("p", *p)?;
    }
    let delay = match spec.when {
        When::Percentile(p) => spec.latencies.quantile(inside("after", p)?),
        When::Delay(delay) => above_zero("delay", delay)?,
    };
    let percentiles =
        if spec.percentiles.is_empty() { vec![0.5, 0.95, 0.99, 0.999] } else { spec.percentiles.clone() };
    let (outcome, then) = hedged(&spec.latencies, delay, &percentiles);
    let delay_figure = CalcFigure::new("second copy after", delay, Quantity::Time);
    let delay_figure = match spec.when {
        When::Percentile(p) => delay_figure.note(format!("the p{} of one copy", say::number(100.0 * p))),
        When::Delay(_) => delay_figure,
    };
    let mut answers = vec![
        CalcFigure::new("sent twice", outcome.sent_twice, Quantity::Share)
            .note("so much more load, if both run on"),
        CalcFigure::new("work", outcome.work, Quantity::Factor)
            .note("of one copy's, if the slower is cancelled"),
        CalcFigure::new("mean", outcome.mean, Quantity::Time).note(gain(outcome.mean, spec.latencies.mean())),
    ];
    for (p, with) in percentiles.iter().zip(then) {
        let name = format!("p{}", say::number(100.0 * p));
        answers
            .push(CalcFigure::new(name, with, Quantity::Time).note(gain(with, spec.latencies.quantile(*p))));
    }
    Ok(LawFinding {
        law: "hedge",
        title: "Hedging: a second copy after a delay, the first answer taken".into(),
        given: vec![spec.latencies.given(), delay_figure],
        answers,
        formula: vec![
            "P(T > t) = S(t) up to the delay d, S(t) S(t − d) beyond;  sent twice: S(d)".into(),
            "exponential: p-quantile (d − m ln(1 − p)) / 2 beyond d;  mean m (1 − S(d) / 2)".into(),
        ],
        source: "Dean and Barroso 2013",
        assumes: vec![
            "the two copies are independent: the second is as likely to be fast as any request".into(),
            "the extra requests change nothing: the latencies are those without hedging".into(),
        ],
        not_for: vec![
            "slowness that goes with the request (a long prompt, a long answer): the copy is as slow".into(),
            "slowness from load: near saturation the extra copies make everything slower; cap them with a budget".into(),
            "a stream whose first token has come: it can't be taken over".into(),
        ],
        warnings: sample_warning(Some(&spec.latencies), percentiles.iter().copied()),
        curve: Some(hedge_curve(&spec.latencies, &outcome)),
    })
}

fn gain(with: f64, without: f64) -> String {
    format!("{:+.1} %, without {}", 100.0 * (with / without - 1.0), say::ms(without)).replace('-', "−")
}

fn hedged(latencies: &Latencies, delay: f64, percentiles: &[f64]) -> (Hedged, Vec<f64>) {
    let exponential = ExponentialHedge { mean: latencies.mean(), delay };
    let sampled = match latencies {
        Latencies::Sample(sorted) => SampledHedge::new(sorted, delay),
        Latencies::Exponential(_) => None,
    };
    match sampled {
        Some(hedge) => (hedge.outcome(), percentiles.iter().map(|p| hedge.quantile(*p)).collect()),
        None => (exponential.outcome(), percentiles.iter().map(|p| exponential.quantile(*p)).collect()),
    }
}

/// p99 against the share that is sent twice: the price of each gain.
fn hedge_curve(latencies: &Latencies, outcome: &Hedged) -> Curve {
    const MOST: f64 = 0.3;
    const STEPS: u32 = 60;
    let p99 = |twice: f64| {
        if twice <= 0.0 {
            latencies.quantile(0.99)
        } else {
            hedged(latencies, latencies.quantile(1.0 - twice), &[0.99]).1[0]
        }
    };
    let most = MOST.max(1.2 * outcome.sent_twice).min(1.0 - 1e-6);
    let at: Vec<[f64; 2]> = (0..=STEPS)
        .map(|i| most * f64::from(i) / f64::from(STEPS))
        .map(|twice| [twice, p99(twice)])
        .collect();
    let top = at.iter().map(|[_, y]| *y).fold(0.0, f64::max);
    Curve {
        x: CurveAxis::to("sent twice", Quantity::Share, most),
        y: CurveAxis::to("p99", Quantity::Time, 1.1 * top),
        lines: vec![CurveLine { name: "p99".into(), at }],
        points: vec![Point { at: [outcome.sent_twice, p99(outcome.sent_twice)], name: "here".into() }],
        marks: Vec::new(),
    }
}
