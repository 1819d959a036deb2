//! Little's law and the utilisation law, which apply to any system and any distribution.

use plimsoll_math::queueing::{little_in_flight, little_rate, little_time, rate_at, servers_for};

use super::finding::{
    CalcCurve, CalcFigure, CalcUnit, CurveAxis, CurveLine, CurveMark, LawError, LawFinding, Point,
};
use super::{above_zero, inside};
use plimsoll_measure::say;

/// Two of the three figures of Little's law.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct LittleSpec {
    /// Throughput, per second.
    pub rate: Option<f64>,
    /// Time of one request in the system, s.
    pub time: Option<f64>,
    pub in_flight: Option<f64>,
}

/// Returns the third of rate, time and number in flight.
///
/// # Errors
/// Fails unless exactly two of the three are given.
pub fn little(spec: &LittleSpec) -> Result<LawFinding, LawError> {
    let rate = spec.rate.map(|x| above_zero("rate", x)).transpose()?;
    let time = spec.time.map(|x| above_zero("time", x)).transpose()?;
    let inside = spec.in_flight.map(|x| above_zero("in-flight", x)).transpose()?;
    let (rate, time, inside, solved) = match (rate, time, inside) {
        (Some(rate), Some(time), None) => (rate, time, little_in_flight(rate, time), "in flight"),
        (None, Some(time), Some(inside)) => (little_rate(inside, time), time, inside, "rate"),
        (Some(rate), None, Some(inside)) => (rate, little_time(inside, rate), inside, "time"),
        (Some(rate), Some(time), Some(inside)) => {
            return Err(LawError::input(format!(
                "--rate, --time and --in-flight contradict each other ({} × {} s = {} in flight, not {}): leave out the value to solve for",
                say::number(rate),
                say::number(time),
                say::number(rate * time),
                say::number(inside)
            )));
        }
        _ => {
            return Err(LawError::input(
                "give two of --rate, --time and --in-flight; the third is the answer",
            ));
        }
    };
    let all = [
        CalcFigure::new("rate", rate, CalcUnit::Rate),
        CalcFigure::new("time", time, CalcUnit::Time),
        CalcFigure::new("in flight", inside, CalcUnit::Count),
    ];
    let (answers, given) = all.into_iter().partition(|figure| figure.name == solved);
    let x = CurveAxis::to("rate", CalcUnit::Rate, 2.0 * rate);
    let curve = CalcCurve {
        lines: vec![CurveLine::of(format!("{} s each", say::number(time)), &x, |rate| rate * time)],
        y: CurveAxis::to("in flight", CalcUnit::Count, 2.0 * inside),
        x,
        points: vec![Point { at: [rate, inside], name: "here".into() }],
        marks: Vec::new(),
    };
    Ok(LawFinding {
        law: "little",
        title: "Little's law".into(),
        given,
        answers,
        formula: vec!["L = λ W   (in flight = rate × time)".into()],
        source: "Little 1961",
        assumes: vec![
            "steady: over the measured time, as many requests leave as arrive".into(),
            "λ counts only admitted requests, W their whole time inside, failures too".into(),
            "means only: the result has no distributions".into(),
        ],
        not_for: vec![
            "a queue that grows: there is no steady L".into(),
            "percentiles: the law does not relate the p99 of W and the p99 of L".into(),
        ],
        warnings: Vec::new(),
        curve: Some(curve),
    })
}

/// Servers and the load offered to them.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
pub struct UtilisationSpec {
    pub rate: f64,
    /// Mean service time, s.
    pub service: f64,
    /// Total servers; `None` for as many as the ceiling requires.
    pub servers: Option<u32>,
    /// Servers of one replica; `None` if servers are not grouped.
    pub slots: Option<u32>,
    /// Utilisation limit; `None` for 80 %, by convention.
    pub ceiling: Option<f64>,
}

/// Returns the utilisation of the servers, and the number of servers that the ceiling requires.
pub fn utilisation(spec: &UtilisationSpec) -> Result<LawFinding, LawError> {
    let (rate, service) = (above_zero("rate", spec.rate)?, above_zero("service", spec.service)?);
    let ceiling = inside("ceiling", spec.ceiling.unwrap_or(0.8))?;
    let offered = rate * service;
    let mut given = vec![
        CalcFigure::new("rate", rate, CalcUnit::Rate),
        CalcFigure::new("service", service, CalcUnit::Time),
    ];
    let mut answers = vec![CalcFigure::new("busy servers", offered, CalcUnit::Count).note("on average: λ s")];
    let ceiling_figure = CalcFigure::new("ceiling", ceiling, CalcUnit::Share);
    given.push(if spec.ceiling.is_none() { ceiling_figure.note("by convention") } else { ceiling_figure });
    let needed = servers_for(rate, service, ceiling);
    let slots = spec.slots.map(f64::from);
    if let Some(slots) = slots {
        given.push(CalcFigure::new("slots", slots, CalcUnit::Count).note("servers of one replica"));
        let each = rate_at(ceiling, service, slots);
        answers.push(
            CalcFigure::new("one replica's limit", rate_at(1.0, service, slots), CalcUnit::Rate)
                .note("the stability limit, not a load to run at"),
        );
        answers.push(CalcFigure::new("one replica at the ceiling", each, CalcUnit::Rate));
    }
    answers
        .push(CalcFigure::new("servers needed", needed, CalcUnit::Count).note("to stay within the ceiling"));
    let mut servers = spec.servers.map_or(needed, f64::from);
    if spec.servers.is_some() {
        given.push(CalcFigure::new("servers", servers, CalcUnit::Count));
    }
    if let Some(slots) = slots {
        let replicas = (needed / slots).ceil();
        answers.push(CalcFigure::new("replicas needed", replicas, CalcUnit::Count));
        if spec.servers.is_none() {
            servers = replicas * slots;
            let all = rate_at(ceiling, service, servers);
            answers.push(CalcFigure::new("all of them at the ceiling", all, CalcUnit::Rate));
        }
    }
    let busy = offered / servers;
    answers.push(
        CalcFigure::new("utilisation", busy, CalcUnit::Share)
            .note(format!("of {} servers", say::number(servers))),
    );
    let mut warnings = Vec::new();
    if busy >= 1.0 {
        warnings.push(format!(
            "{} servers finish {}/s at most: the queue grows by {}/s for as long as this lasts",
            say::number(servers),
            say::number(rate_at(1.0, service, servers)),
            say::number(rate - rate_at(1.0, service, servers))
        ));
    }
    let x = CurveAxis::to("rate", CalcUnit::Rate, rate_at(1.1, service, servers).max(1.1 * rate));
    let curve = CalcCurve {
        lines: vec![CurveLine::of("utilisation", &x, |rate| (rate * service / servers).min(1.0))],
        y: CurveAxis::to("utilisation", CalcUnit::Share, 1.1),
        points: vec![Point { at: [rate, busy.min(1.0)], name: "here".into() }],
        marks: vec![
            CurveMark { x: rate_at(ceiling, service, servers), name: "ceiling".into() },
            CurveMark { x: rate_at(1.0, service, servers), name: "limit".into() },
        ],
        x,
    };
    Ok(LawFinding {
        law: "utilisation",
        title: "Utilisation law".into(),
        given,
        answers,
        formula: vec!["ρ = λ s / c   (rate × service time over servers);  servers under a ceiling: ⌈λ s / ρ⌉".into()],
        source: "Little's law of the servers, without the queue",
        assumes: vec![
            "each request occupies one server for its service time at any load".into(),
            "a ceiling is a convention: the right one depends on how many servers share the queue (calc mmc)".into(),
        ],
        not_for: vec![
            "an engine that batches: the time a request is served grows with the load, so measure the stability limit (plimsoll sweep) and take ρ = load / limit".into(),
            "GPU utilisation: a GPU reads busy at any load that keeps a batch running".into(),
        ],
        warnings,
        curve: Some(curve),
    })
}
