//! Fan-out: the tail latency of a page that needs many calls.

use plimsoll_math::queueing::{any_slower, exponential_slowest, per_call, sampled_slowest};

use super::finding::{CalcCurve, CalcFigure, CalcUnit, CurveAxis, CurveLine, LawError, LawFinding, Point};
use super::{above_zero, inside};
use plimsoll_measure::say;

/// Largest number of calls of a page.
const MOST_CALLS: u32 = 1_000_000;

#[derive(Clone, PartialEq, Debug)]
pub enum CallLatency {
    /// Exponential distribution with this mean in seconds.
    Exponential(f64),
    /// Measured latencies, s, ascending.
    Sample(Vec<f64>),
}

impl CallLatency {
    fn check(&self) -> Result<(), LawError> {
        match self {
            CallLatency::Exponential(mean) => above_zero("mean", *mean).map(|_| ()),
            CallLatency::Sample(sorted) if sorted.len() < 20 => Err(LawError::input(format!(
                "a sample of {}: give at least 20 latencies, and more for a high percentile",
                say::count(sorted.len() as u64, "latency").replace("latencys", "latencies")
            ))),
            CallLatency::Sample(sorted) if sorted.iter().any(|x| !(x.is_finite() && *x > 0.0)) => {
                Err(LawError::input(
                    "a sample contains a latency that is not above 0 and finite: leave failed requests out, and report their number",
                ))
            }
            CallLatency::Sample(_) => Ok(()),
        }
    }

    /// Returns the p-quantile; of a sample, the order statistic.
    fn quantile(&self, p: f64) -> f64 {
        match self {
            CallLatency::Exponential(mean) => -mean * libm::log1p(-p),
            CallLatency::Sample(sorted) => {
                let rank = (p * sorted.len() as f64 - 1e-9).ceil().max(1.0) as usize;
                sorted.get(rank - 1).or(sorted.last()).copied().unwrap_or(f64::NAN)
            }
        }
    }

    fn given(&self) -> CalcFigure {
        match self {
            CallLatency::Exponential(mean) => {
                CalcFigure::new("mean", *mean, CalcUnit::Time).note("exponential latency")
            }
            CallLatency::Sample(sorted) => {
                CalcFigure::new("sample", sorted.len() as f64, CalcUnit::Count).note("latencies as measured")
            }
        }
    }
}

/// A page that needs several calls.
#[derive(Clone, PartialEq, Debug)]
pub struct FanoutSpec {
    pub calls: u32,
    /// Percentiles as shares of 1; empty for 95 and 99 %.
    pub percentiles: Vec<f64>,
    /// Latency distribution of a call; `None` if unknown.
    pub latencies: Option<CallLatency>,
}

/// Returns the probability that a page contains a slow call, and the percentile that each call has to meet.
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
        vec![CalcFigure::new("calls", calls, CalcUnit::Count).note("of a page, all of them needed")];
    let mut answers = Vec::new();
    for p in &percentiles {
        let chance = CalcFigure::new(
            format!("some call over its {}", name(*p)),
            any_slower(calls, *p),
            CalcUnit::Share,
        );
        answers.push(chance.note("of the pages"));
    }
    for p in &percentiles {
        let each =
            CalcFigure::new(format!("for a page's {}", name(*p)), per_call(calls, *p), CalcUnit::Percentile);
        answers.push(each.note("of each call"));
    }
    if let Some(latencies) = &spec.latencies {
        latencies.check()?;
        given.push(latencies.given());
        let slowest = match latencies {
            CallLatency::Exponential(mean) => exponential_slowest(*mean, spec.calls),
            CallLatency::Sample(sorted) => sampled_slowest(sorted, calls),
        };
        answers.push(CalcFigure::new("slowest call", slowest, CalcUnit::Time).note("on average"));
        for p in &percentiles {
            let page = latencies.quantile(per_call(calls, *p));
            answers.push(CalcFigure::new(format!("page {}", name(*p)), page, CalcUnit::Time));
        }
    }
    let x = CurveAxis {
        name: "calls of a page".into(),
        quantity: CalcUnit::Count,
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
        assumes: vec!["independent calls: a slow call gives no information about the others".into()],
        not_for: vec![
            "calls that are slow together (one slow replica, one full queue, one long prompt): fewer pages are hit, and those harder".into(),
            "sequential calls: their times add up (budget split)".into(),
        ],
        warnings: sample_warning(spec.latencies.as_ref(), percentiles.iter().map(|p| per_call(calls, *p))),
        curve: Some(CalcCurve {
            y: CurveAxis::to("pages with a slow call", CalcUnit::Share, 1.0),
            lines,
            points: points.into_iter().collect(),
            marks: Vec::new(),
            x,
        }),
    })
}

/// Returns a warning if the sample contains fewer than ten values beyond the highest percentile.
fn sample_warning(latencies: Option<&CallLatency>, percentiles: impl Iterator<Item = f64>) -> Vec<String> {
    let Some(CallLatency::Sample(sorted)) = latencies else { return Vec::new() };
    let highest = percentiles.fold(0.0, f64::max);
    let beyond = (1.0 - highest) * sorted.len() as f64;
    if beyond >= 10.0 {
        return Vec::new();
    }
    vec![format!(
        "the sample has only {} above the p{:.3} that the result uses: the figure is a rough guess; ten are the minimum",
        say::number(beyond),
        100.0 * highest
    )]
}
