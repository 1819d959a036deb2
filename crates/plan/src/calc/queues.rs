//! Queues whose servers take one request each: M/M/1, M/M/c, M/G/1.
//!
//! For an engine that batches, these formulas return no percentile. There, the service time of a request depends on the
//! concurrent requests. Slots in place of servers exceeded the simulated mean of an 8B model on an H100 by 24 to 265 %. The
//! mean is still shown as the formula's value, with that error in its note.

use plimsoll_math::queueing::{Mdc, Mm1, Mmc, erlang_c, mg1_mean_wait};

use super::finding::{
    CalcCurve, CalcFigure, CalcUnit, CurveAxis, CurveLine, CurveMark, LawError, LawFinding, Point,
};
use super::{above_zero, inside, variation};
use plimsoll_measure::say;

#[derive(Copy, Clone, PartialEq, Debug)]
pub enum Demand {
    Rate(f64),
    /// The share of the time that each server is busy.
    Utilisation(f64),
    /// The mean number of waiting requests; one server only.
    Waiting(f64),
}

#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub enum ServiceModel {
    /// Servers that take one request each, to the extent that the engine is known.
    #[default]
    OneByOne,
    Batching {
        name: String,
        /// Whether the engine serves whole batches (Triton); otherwise it batches step by step (an LLM engine).
        whole: bool,
    },
}

impl ServiceModel {
    /// Returns the reason why these formulas have no percentile for the engine, and an alternative; `None` if they have.
    fn objection(&self) -> Option<String> {
        let ServiceModel::Batching { name, whole } = self else { return None };
        Some(if *whole {
            format!(
                "{name} serves whole batches: the time of a request depends on its batch, so no formula with one service time per request gives its percentiles (plimsoll simulate --profile NAME --rate R gives them)"
            )
        } else {
            format!(
                "{name} batches step by step: the service time of a request grows with the number of concurrent requests, so M/M/c with slots as servers does not give its percentiles (plimsoll simulate --profile NAME --rate R gives them)"
            )
        })
    }
}

/// A station: arrivals, servers and service times.
#[derive(Clone, PartialEq, Debug)]
pub struct StationSpec {
    pub demand: Demand,
    /// Mean service time, s.
    pub service: f64,
    pub servers: u32,
    /// Coefficient of variation of the service times.
    pub service_cv: f64,
    /// Requested percentiles; empty for 50, 95 and 99 where the formula has percentiles.
    pub percentiles: Vec<f64>,
    pub served: ServiceModel,
}

struct Sound<'a> {
    spec: &'a StationSpec,
    load: f64,
    service: f64,
    percentiles: Vec<f64>,
}

impl<'a> Sound<'a> {
    fn of(spec: &'a StationSpec) -> Result<Sound<'a>, LawError> {
        let service = above_zero("service", spec.service)?;
        if spec.servers == 0 {
            return Err(LawError::input("--servers: at least 1"));
        }
        let servers = f64::from(spec.servers);
        let load = match spec.demand {
            Demand::Rate(rate) => above_zero("rate", rate)? * service / servers,
            Demand::Utilisation(load) => above_zero("utilisation", load)?,
            Demand::Waiting(waiting) => Mm1::load_where_waiting(above_zero("waiting", waiting)?),
        };
        if load >= 1.0 {
            return Err(LawError::input(format!(
                "utilisation {} is not under 1: {} {}/s at most, so the queue grows without end; more servers, a shorter service or less load",
                say::number(load),
                match spec.servers {
                    1 => "1 server finishes".to_owned(),
                    n => format!("{n} servers finish"),
                },
                say::number(servers / service)
            )));
        }
        for p in &spec.percentiles {
            inside("p", *p)?;
        }
        if !spec.percentiles.is_empty()
            && let Some(why) = spec.served.objection()
        {
            return Err(LawError::NotFor(why));
        }
        let percentiles =
            if spec.percentiles.is_empty() { vec![0.5, 0.95, 0.99] } else { spec.percentiles.clone() };
        Ok(Sound { spec, load, service, percentiles })
    }

    fn rate(&self) -> f64 {
        self.load * f64::from(self.spec.servers) / self.service
    }

    fn given(&self) -> Vec<CalcFigure> {
        let mut given = vec![
            CalcFigure::new("rate", self.rate(), CalcUnit::Rate),
            CalcFigure::new("service", self.service, CalcUnit::Time),
        ];
        if self.spec.servers > 1 {
            given.push(CalcFigure::new("servers", f64::from(self.spec.servers), CalcUnit::Count));
        }
        given
    }

    /// Returns utilisation, mean times and mean numbers, from the mean wait.
    fn means(&self, wait: f64) -> Vec<CalcFigure> {
        let sojourn = wait + self.service;
        vec![
            CalcFigure::new("utilisation", self.load, CalcUnit::Share),
            CalcFigure::new("mean wait", wait, CalcUnit::Time),
            CalcFigure::new("mean wait + service", sojourn, CalcUnit::Time),
            CalcFigure::new("waiting", self.rate() * wait, CalcUnit::Count).note("on average (L_q)"),
            CalcFigure::new("in the system", self.rate() * sojourn, CalcUnit::Count),
        ]
    }

    /// Returns percentiles of wait and of wait + service; refused if the engine batches.
    fn tails(&self, wait: impl Fn(f64) -> f64, sojourn: impl Fn(f64) -> f64) -> Vec<CalcFigure> {
        if let Some(why) = self.spec.served.objection() {
            return vec![CalcFigure::refused("percentiles", CalcUnit::Time, why)];
        }
        let name = |p: &f64| format!("p{}", say::number(100.0 * p));
        let waits = self
            .percentiles
            .iter()
            .map(|p| CalcFigure::new(format!("wait {}", name(p)), wait(*p), CalcUnit::Time));
        let sojourns = self
            .percentiles
            .iter()
            .map(|p| CalcFigure::new(format!("wait + service {}", name(p)), sojourn(*p), CalcUnit::Time));
        waits.chain(sojourns).collect()
    }

    /// Returns latency against the rate: the mean, and percentiles if the formula has them.
    fn curve(&self, mean: impl Fn(f64) -> f64, quantile: Option<&dyn Fn(f64, f64) -> f64>) -> CalcCurve {
        let limit = f64::from(self.spec.servers) / self.service;
        let x = CurveAxis { range: [0.0, limit], ..CurveAxis::to("rate", CalcUnit::Rate, limit) };
        let load = |rate: f64| (rate / limit).clamp(0.0, 0.9999);
        let mut lines = vec![CurveLine::of("mean", &x, |rate| mean(load(rate)))];
        let mut top = mean(self.load.max(0.9));
        if let Some(quantile) = quantile.filter(|_| self.spec.served == ServiceModel::OneByOne) {
            let tails: Vec<&f64> = self.percentiles.iter().filter(|p| **p > 0.5).collect();
            for p in &tails[tails.len().saturating_sub(2)..] {
                let name = format!("p{}", say::number(100.0 * **p));
                lines.push(CurveLine::of(name, &x, |rate| quantile(load(rate), **p)));
                top = quantile(self.load.max(0.9), **p);
            }
        }
        let here = lines.last().map_or(0.0, |_| mean(self.load));
        CalcCurve {
            y: CurveAxis::to("wait + service", CalcUnit::Time, 1.15 * top),
            lines,
            points: vec![Point { at: [self.rate(), here], name: "here".into() }],
            marks: vec![CurveMark { x: limit, name: "limit".into() }],
            x,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.spec.served.objection().is_some() {
            warnings.push(
                "the means assume servers with one request each: with slots as servers, they were 24 to 265 % above the means of the simulated engine"
                    .into(),
            );
        }
        if self.load > 0.9 {
            let half = 1.0 - 2.0 * (1.0 - self.load);
            warnings.push(format!(
                "at this load small errors of rate or service are large ones of the wait: it is about half as long at {} of the limit",
                say::percent(half)
            ));
        }
        warnings
    }
}

/// Returns the systems that these queues do not model.
fn not_for() -> Vec<String> {
    vec![
        "an engine that batches (vLLM, SGLang, TensorRT-LLM, Triton with dynamic batching): plimsoll simulate".into(),
        "a load that varies within a few service times, retries, or clients that wait for an answer before the next request".into(),
    ]
}

/// Returns the M/M/1 finding: one server, random arrivals, random service times.
///
/// # Errors
/// Fails if utilisation is at least 1 or a figure is impossible.
pub fn mm1(spec: &StationSpec) -> Result<LawFinding, LawError> {
    let spec = &StationSpec { servers: 1, ..spec.clone() };
    let sound = Sound::of(spec)?;
    let queue = |load: f64| Mm1 { load, service_mean: sound.service };
    let now = queue(sound.load);
    let mut answers = sound.means(now.mean_wait());
    answers.extend(sound.tails(|p| now.wait_quantile(p), |p| now.sojourn_quantile(p)));
    if let Demand::Waiting(waiting) = spec.demand {
        answers.insert(
            0,
            CalcFigure::new("load", sound.load, CalcUnit::Plain)
                .note(format!("where {} wait on average", say::number(waiting))),
        );
    }
    let curve =
        sound.curve(|load| queue(load).mean_sojourn(), Some(&|load, p| queue(load).sojourn_quantile(p)));
    Ok(LawFinding {
        law: "mm1",
        title: "M/M/1: one server, random arrivals, random services".into(),
        given: sound.given(),
        answers,
        formula: vec![
            "ρ = λ s;  L_q = ρ² / (1 − ρ);  W = s / (1 − ρ)".into(),
            "wait + service: p-quantile = −W ln(1 − p);  wait: P(> t) = ρ e^(−(1 − ρ) t / s)".into(),
        ],
        source: "Erlang; Kleinrock 1975",
        assumes: vec![
            "Poisson arrivals: independent of each other and of the queue".into(),
            "exponential services (standard deviation = mean), one at a time, first come first served".into(),
        ],
        not_for: not_for(),
        warnings: sound.warnings(),
        curve: Some(curve),
    })
}

/// Returns the M/M/c finding: `c` servers behind one queue.
///
/// # Errors
/// Fails like [`mm1`].
pub fn mmc(spec: &StationSpec) -> Result<LawFinding, LawError> {
    let sound = Sound::of(spec)?;
    let servers = spec.servers;
    let queue = |load: f64| Mmc { servers, load, service_mean: sound.service };
    let now = queue(sound.load);
    let mut answers = sound.means(now.mean_wait());
    answers.insert(
        1,
        CalcFigure::new("chance to wait", erlang_c(servers, sound.load), CalcUnit::Share).note("Erlang C"),
    );
    answers.extend(sound.tails(|p| now.wait_quantile(p), |p| now.sojourn_quantile(p)));
    if spec.served == ServiceModel::OneByOne {
        let onset = Mmc::onset(servers, 0.99, 1.5);
        let rate = onset * f64::from(servers) / sound.service;
        let note = format!("at {}: p99 is 1.5 × its idle value", say::percent(onset));
        answers.push(CalcFigure::new("queueing onset", rate, CalcUnit::Rate).note(note));
    }
    let curve =
        sound.curve(|load| queue(load).mean_sojourn(), Some(&|load, p| queue(load).sojourn_quantile(p)));
    Ok(LawFinding {
        law: "mmc",
        title: format!("M/M/{servers}: {}, one queue", say::count(u64::from(servers), "server")),
        given: sound.given(),
        answers,
        formula: vec![
            "a = λ s, ρ = a / c;  B(0) = 1, B(k) = a B(k−1) / (k + a B(k−1));  C = B / (1 − ρ (1 − B))".into(),
            "W_q = C s / (c (1 − ρ));  P(wait > t) = C e^(−c (1 − ρ) t / s)".into(),
        ],
        source: "Erlang 1917",
        assumes: vec![
            "Poisson arrivals, exponential services, equal servers".into(),
            "one queue for all of them: a router that picks a server blindly gives c queues of one (calc mm1)".into(),
        ],
        not_for: not_for(),
        warnings: sound.warnings(),
        curve: Some(curve),
    })
}

/// Returns the M/G/1 finding: one server with any variation of service times.
///
/// # Errors
/// Fails like [`mm1`], or if percentiles are requested at a coefficient of variation other than 0 and 1.
pub fn mg1(spec: &StationSpec) -> Result<LawFinding, LawError> {
    let spec = &StationSpec { servers: 1, ..spec.clone() };
    let cv = variation("cv", spec.service_cv)?;
    let sound = Sound::of(spec)?;
    let wait = |load: f64| mg1_mean_wait(load, sound.service, cv);
    let mut answers = sound.means(wait(sound.load));
    let exponential = Mm1 { load: sound.load, service_mean: sound.service };
    let fixed = if cv == 0.0 { Mdc::new(1, sound.load, sound.service) } else { None };
    if cv == 1.0 {
        answers.extend(sound.tails(|p| exponential.wait_quantile(p), |p| exponential.sojourn_quantile(p)));
    } else if let Some(fixed) = fixed {
        answers.extend(sound.tails(|p| fixed.wait_quantile(p), |p| fixed.sojourn_quantile(p)));
    } else {
        let why = "mean and variation do not determine the tail: it needs the whole distribution (plimsoll simulate); at cv 0 (M/D/1) and 1 (M/M/1) percentiles are given";
        if !spec.percentiles.is_empty() {
            return Err(LawError::NotFor(format!("--p: {why}")));
        }
        answers.push(CalcFigure::refused("percentiles", CalcUnit::Time, why));
    }
    let mut given = sound.given();
    given.push(CalcFigure::new("service cv", cv, CalcUnit::Plain).note("standard deviation over mean"));
    let curve = sound.curve(|load| wait(load) + sound.service, None);
    Ok(LawFinding {
        law: "mg1",
        title: "M/G/1: one server, random arrivals, services of any kind".into(),
        given,
        answers,
        formula: vec!["W_q = ρ s (1 + cv²) / (2 (1 − ρ))".into()],
        source: "Pollaczek 1930, Khinchine 1932",
        assumes: vec![
            "Poisson arrivals; services independent of each other and of the queue".into(),
            "first come first served, one at a time".into(),
        ],
        not_for: not_for(),
        warnings: sound.warnings(),
        curve: Some(curve),
    })
}
