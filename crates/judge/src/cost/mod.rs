//! Cost: a price and a measured throughput → the cost of a request, a good request and a million tokens (SPEC M11).
//!
//! The cost is a ratio of sums: hourly price / requests per hour. Its interval is the inverse of the throughput's (lower cost =
//! upper rate); the price is an input without uncertainty. If both sides of the ratio vary (a price per token), the bounds use
//! the far end of each. The interval is then wider than 95 %, never narrower. The mean cost of single requests was rejected because a
//! request has no separate cost on a shared machine.
//!
//! There are two throughputs: that of each level, and that **at the budget limit**, which is useful for planning a release. The
//! cost at an arbitrary rate describes the test as much as the endpoint.

pub mod audit;

pub use plimsoll_measure::findings::cost::{CostFinding, LevelCost, LineCost, UnitCosts};
pub use plimsoll_measure::findings::price::{Bill, EndpointPrice, Per, Price, PriceError, PriceSpec};

use plimsoll_measure::findings::{
    CapacityLine, CapacityLines, Curve, Estimate, Findings, LevelFinding, LevelSummary, Reading,
};

/// Returns the cost of a run at this price.
pub fn cost(findings: &Findings, bill: &Bill) -> CostFinding {
    let level = |level: &LevelFinding| LevelCost {
        level: level.summary.level,
        costs: of_level(&level.summary, bill),
    };
    let at_line = |lines: &CapacityLines| {
        let curve = findings.curves.iter().find(|curve| curve.traffic == lines.traffic);
        at_budget(lines, curve, &findings.levels, bill)
    };
    CostFinding {
        bill: bill.clone(),
        levels: findings.levels.iter().map(level).collect(),
        at_budget: findings.lines.iter().map(at_line).collect(),
    }
}

/// Returns the cost at one level's throughput.
pub fn of_level(summary: &LevelSummary, bill: &Bill) -> UnitCosts {
    let rates = &summary.rates;
    let unknown = || Reading::refused("the token counts of this level are not known", 0);
    let input = rates.input_tokens_per_s.clone().unwrap_or_else(unknown);
    let output = rates.output_tokens_per_s.clone().unwrap_or_else(unknown);
    let good = rates.good_per_s.clone().unwrap_or_else(|| {
        Reading::refused("no budget defines which requests are good; give one with --slo or --budget", 0)
    });
    let sessions = rates.sessions_per_s.clone();
    units(bill, &Flow { requests: rates.achieved_per_s.clone(), good, sessions, input, output })
}

pub struct Flow {
    pub requests: Reading,
    /// Requests per second that met every ceiling.
    pub good: Reading,
    /// Sessions per second that ended successfully; `None` if there are no sessions.
    pub sessions: Option<Reading>,
    /// Prompt tokens per second.
    pub input: Reading,
    /// Generated tokens per second.
    pub output: Reading,
}

/// Returns the unit costs at this throughput.
pub fn units(bill: &Bill, flow: &Flow) -> UnitCosts {
    let spent = match bill.rate {
        EndpointPrice::PerHour(hour) => Ok([hour / 3600.0; 3]),
        EndpointPrice::PerMtok { input, output } => per_second(&flow.input, input)
            .and_then(|a| per_second(&flow.output, output).map(|b| [a[0] + b[0], a[1] + b[1], a[2] + b[2]])),
    };
    let of = |rate: &Reading, times: f64| match &spent {
        Ok(spent) => over(*spent, rate, times),
        Err(refused) => refused.clone(),
    };
    // A price per token is the cost of tokens; only the cost of requests must be measured.
    let token = |rate: &Reading, price: fn(&EndpointPrice) -> Option<f64>| match price(&bill.rate) {
        None => of(rate, 1e6),
        Some(price) => Reading::Estimate(Estimate {
            value: price,
            lower: price,
            upper: price,
            n: rate.estimate().map_or(0, |e| e.n),
            n_eff: rate.estimate().map_or(0.0, |e| e.n_eff),
        }),
    };
    UnitCosts {
        per_request: of(&flow.requests, 1.0),
        per_good_request: of(&flow.good, 1.0),
        per_session: flow.sessions.as_ref().map(|rate| of(rate, 1.0)),
        per_million_input: token(&flow.input, EndpointPrice::input_price),
        per_million_output: token(&flow.output, EndpointPrice::output_price),
    }
}

/// Returns lower end, value and upper end of the cost per second of tokens at this price.
fn per_second(tokens: &Reading, per_million: f64) -> Result<[f64; 3], Reading> {
    match tokens {
        _ if per_million == 0.0 => Ok([0.0; 3]),
        Reading::Estimate(e) => Ok([e.lower, e.value, e.upper].map(|rate| rate.max(0.0) * per_million / 1e6)),
        refused @ Reading::Refused { .. } => Err(refused.clone()),
    }
}

/// Returns `times` × spent / rate, the cost of `times` units; infinite if the rate is 0.
fn over(spent: [f64; 3], rate: &Reading, times: f64) -> Reading {
    let share = |spent: f64, rate: f64| if rate > 0.0 { times * spent / rate } else { f64::INFINITY };
    match rate {
        Reading::Estimate(e) => Reading::Estimate(Estimate {
            value: share(spent[1], e.value),
            lower: share(spent[0], e.upper),
            upper: share(spent[2], e.lower),
            ..*e
        }),
        refused @ Reading::Refused { .. } => refused.clone(),
    }
}

fn at_budget(lines: &CapacityLines, curve: Option<&Curve>, levels: &[LevelFinding], bill: &Bill) -> LineCost {
    let none = |why: String| {
        let refused = || Reading::refused(why.clone(), 0);
        let costs = UnitCosts {
            per_request: refused(),
            per_good_request: refused(),
            per_session: None,
            per_million_input: refused(),
            per_million_output: refused(),
        };
        LineCost { traffic: lines.traffic.clone(), rate: None, costs }
    };
    let (rate, load) = match &lines.budget {
        Some(CapacityLine::Found { rate, load, .. }) => (rate, load),
        Some(CapacityLine::Above { rate_per_s, .. }) => {
            return none(format!("the budget limit was not reached: it is above {rate_per_s:.4}/s"));
        }
        Some(CapacityLine::Below { .. }) => {
            return none("the budget broke at the lowest load measured".to_owned());
        }
        Some(CapacityLine::CannotTell { why }) => {
            return none(format!("the budget limit is not known: {why}"));
        }
        None => return none("no budget was set, so that there is no budget limit".to_owned()),
    };
    // The scenario defines the mix of lengths, so tokens are proportional to requests.
    let tokens = |at_line: Option<f64>| match at_line {
        Some(tokens) if rate.value > 0.0 => Reading::Estimate(scaled(rate, [tokens / rate.value; 3])),
        _ => Reading::refused("the tokens per second at the line are not known", rate.n),
    };
    let good = curve.and_then(|curve| good_share(curve, levels, rate.value)).map_or_else(
        || Reading::refused("no level next to the line gives the share of good requests", rate.n),
        |share| Reading::Estimate(scaled(rate, share)),
    );
    let flow = Flow {
        requests: Reading::Estimate(*rate),
        good,
        sessions: None,
        input: tokens(load.input_tokens_per_s),
        output: tokens(load.output_tokens_per_s),
    };
    LineCost { traffic: lines.traffic.clone(), rate: Some(*rate), costs: units(bill, &flow) }
}

/// Returns lower end, value and upper end of a product, each with its factor.
fn scaled(rate: &Estimate, by: [f64; 3]) -> Estimate {
    Estimate { lower: rate.lower * by[0], value: rate.value * by[1], upper: rate.upper * by[2], ..*rate }
}

/// Returns the share of good requests at this load, interpolated between the neighbouring levels.
fn good_share(curve: &Curve, levels: &[LevelFinding], rate: f64) -> Option<[f64; 3]> {
    let known = |id: u32| {
        let level = levels.iter().find(|level| level.summary.level == id)?;
        level.summary.rates.good_share.map(|share| [share.lower, share.value, share.upper])
    };
    let points: Vec<(f64, [f64; 3])> =
        curve.points.iter().filter_map(|point| Some((point.offered_per_s, known(point.level)?))).collect();
    let above = points.iter().position(|point| point.0 >= rate);
    match above {
        None => points.last().map(|point| point.1),
        Some(0) => points.first().map(|point| point.1),
        Some(i) => {
            let ((x0, low), (x1, high)) = (points[i - 1], points[i]);
            let t = if x1 > x0 { (rate - x0) / (x1 - x0) } else { 0.0 };
            Some(std::array::from_fn(|k| low[k] + t * (high[k] - low[k])))
        }
    }
}
