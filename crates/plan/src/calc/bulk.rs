//! A server of whole batches, with the exact mean and the rule of thumb beside it.

use plimsoll_math::queueing::Bulk;

use super::above_zero;
use super::finding::{
    CalcFigure, Curve, CurveAxis, CurveLine, CurveMark, LawError, LawFinding, Point, Quantity,
};
use plimsoll_measure::say;

/// Largest batch that is reckoned with.
const LARGEST: u32 = 4096;

/// A server of batches, and what comes to it.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct BulkSpec {
    /// What a batch takes of itself, s.
    pub fixed: f64,
    /// What each request in it adds, s.
    pub each: f64,
    /// The largest batch.
    pub most: u32,
    /// Arrivals per second (open loop), or
    pub rate: Option<f64>,
    /// clients that ask again as soon as they are answered (closed loop).
    pub clients: Option<u32>,
}

/// Latency, batch and capacity.
///
/// # Errors
/// A figure that can't be meant, a rate at or over capacity.
pub fn bulk(spec: &BulkSpec) -> Result<LawFinding, LawError> {
    let fixed = above_zero("fixed", spec.fixed)?;
    let each = if spec.each == 0.0 { 0.0 } else { above_zero("each", spec.each)? };
    if spec.most == 0 || spec.most > LARGEST {
        return Err(LawError::input(format!("--most: a batch of 1 to {LARGEST}")));
    }
    let queue = Bulk { fixed, each, most: spec.most };
    let capacity = queue.capacity();
    let mut given = vec![
        CalcFigure::new("fixed", fixed, Quantity::Time).note("of each batch"),
        CalcFigure::new("each", each, Quantity::Time).note("more for each in it"),
        CalcFigure::new("most", f64::from(spec.most), Quantity::Count),
    ];
    let mut answers = vec![CalcFigure::new("capacity", capacity, Quantity::Rate).note("most / (a + b most)")];
    let (mut warnings, mut points) = (Vec::new(), Vec::new());
    match (spec.rate, spec.clients) {
        (Some(rate), None) => {
            let rate = above_zero("rate", rate)?;
            given.push(CalcFigure::new("rate", rate, Quantity::Rate));
            let (figures, mean) = open(&queue, rate)?;
            answers.extend(figures);
            points.push(Point { at: [rate, mean], name: "here".into() });
        }
        (None, Some(clients)) if clients > 0 => {
            given.push(CalcFigure::new("clients", f64::from(clients), Quantity::Count));
            let (latency, rate) = queue.closed_loop(f64::from(clients));
            answers.push(CalcFigure::new("latency", latency, Quantity::Time));
            answers.push(CalcFigure::new("throughput", rate, Quantity::Rate));
            answers.push(
                CalcFigure::new(
                    "batch",
                    (0.5 * f64::from(clients)).clamp(1.0, f64::from(spec.most)),
                    Quantity::Count,
                )
                .note("two halves of the clients take turns"),
            );
            warnings.push("a closed loop: clients ask again as soon as they are answered, so the curve, which is of an open loop, is another experiment".into());
        }
        _ => {
            return Err(LawError::input(
                "give --rate (open loop) or --clients (closed loop), one of the two",
            ));
        }
    }
    Ok(LawFinding {
        law: "bulk",
        title: "Server of whole batches (dynamic batching without a delay)".into(),
        given,
        answers,
        formula: vec![
            "t(n) = a + b n;  capacity = most / t(most)".into(),
            "exact: Q' = Q − n + Poisson(λ t(n)), n = min(max(Q, 1), most), and Little's law over a cycle".into(),
            "rule: n = λ a / (1 − λ b); latency ≈ 1.5 t(n) from n = 1 on, t(1) with no load".into(),
            "closed loop of C clients: latency = 2 t(C/2), until C/2 passes the largest batch".into(),
        ],
        source: "Bailey 1954, with a service time that depends on the batch",
        assumes: vec![
            "one instance; whoever waits is taken at once, up to the largest batch".into(),
            "open loop: Poisson arrivals; every batch of n takes the same time".into(),
        ],
        not_for: vec![
            "an LLM engine: it admits and releases between steps, not between whole answers (plimsoll simulate)".into(),
            "a queue delay or preferred sizes: they hold requests back on purpose (plimsoll simulate)".into(),
        ],
        warnings,
        curve: Some(curve(&queue, points)),
    })
}

fn open(queue: &Bulk, rate: f64) -> Result<(Vec<CalcFigure>, f64), LawError> {
    let capacity = queue.capacity();
    if rate >= capacity {
        return Err(LawError::input(format!(
            "--rate {}/s is not under the capacity of {}/s: the queue grows without end; a larger batch, a second instance or less load",
            say::number(rate),
            say::number(capacity)
        )));
    }
    let found = queue.at(rate).ok_or_else(|| {
        LawError::input(format!(
            "--rate {}/s is {} of the capacity: too near to it to be computed, and nothing to run at",
            say::number(rate),
            say::percent(rate / capacity)
        ))
    })?;
    let rule = queue.rule_of_thumb(rate);
    let figures = vec![
        CalcFigure::new("load", rate / capacity, Quantity::Share).note("of the capacity"),
        CalcFigure::new("mean latency", found.mean, Quantity::Time).note("exact, wait + service"),
        CalcFigure::new("rule of thumb", rule, Quantity::Time)
            .note(format!("{:+.1} % of the exact mean", 100.0 * (rule / found.mean - 1.0))),
        CalcFigure::new("batch", found.batch, Quantity::Count).note("on average"),
        CalcFigure::new("busy", found.busy, Quantity::Share).note("of the time: batches grow first"),
    ];
    Ok((figures, found.mean))
}

fn curve(queue: &Bulk, points: Vec<Point>) -> Curve {
    const STEPS: u32 = 40;
    let capacity = queue.capacity();
    // The exact mean costs milliseconds a point, and its last stretch to the capacity most of them.
    let places = (1..STEPS).map(|i| 0.97 * capacity * f64::from(i) / f64::from(STEPS));
    let exact: Vec<[f64; 2]> = places.filter_map(|rate| Some([rate, queue.at(rate)?.mean])).collect();
    let top = exact.last().map_or(queue.time(1.0), |[_, y]| *y);
    let top = points.iter().map(|point| point.at[1]).fold(top, f64::max);
    let x = CurveAxis::to("rate", Quantity::Rate, capacity);
    Curve {
        lines: vec![CurveLine { name: "mean".into(), at: exact }],
        y: CurveAxis::to("wait + service", Quantity::Time, 1.1 * top),
        points,
        marks: vec![CurveMark { x: capacity, name: "capacity".into() }],
        x,
    }
}
