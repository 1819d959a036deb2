//! A queue before equal servers by formula, and an engine of drawn times.
//!
//! Erlang C where arrivals and services are exponential; else times the factor of Allen and Cunneen, (v + s²)/2 with v the
//! variance of the arrivals and s the coefficient of variation of the service, which is exact for one server with Poisson arrivals
//! ("Probability, Statistics, and Queueing Theory with Computer Science Applications", 1990). The wait's tail is taken as
//! exponential with that mean.

use plimsoll_math::queueing::erlang_c;
use plimsoll_sim::{CannedSpec, LawSpec, QueueSpec};

use super::latency::Sample;
use super::mix::Mix;
use super::steady::{Share, Steady};

/// See the module.
#[derive(Clone, Debug)]
pub struct Servers {
    servers: u32,
    service_s: f64,
    service_squared_cv: f64,
    /// Service times in strata, s.
    services: Vec<f64>,
    /// Answers' tokens, as many.
    outputs: Vec<u32>,
}

/// Points of a sample, and quantiles of a law for each.
const POINTS: usize = 1024;
const PLACES: usize = 8;

impl Servers {
    /// The queue under this mix: of lengths, only the share of a service until the first token depends on it.
    pub fn new(spec: &QueueSpec, mix: &Mix) -> Servers {
        Servers {
            servers: spec.servers,
            service_s: spec.service.mean_ms() * 1e-3,
            service_squared_cv: spec.service.cv_squared(),
            services: strata(&spec.service),
            outputs: outputs(mix),
        }
    }

    /// c / s.
    pub fn limit_per_s(&self) -> f64 {
        f64::from(self.servers) / self.service_s
    }

    pub(super) fn at(&self, share: &Share) -> Option<Steady> {
        let servers = f64::from(self.servers) * share.pooled;
        let rate = share.rate * share.pooled;
        let load = rate * self.service_s / servers;
        let waits = erlang_c(servers.min(1e6) as u32, load);
        let factor = 0.5 * (share.variance + self.service_squared_cv);
        let tail = (servers / self.service_s - rate) / factor.max(1e-9);
        let mut sample = Sample::default();
        for (point, (service, output)) in self.services.iter().zip(&self.outputs).enumerate() {
            // Multiples of the golden section: the wait has nothing to do with the service.
            let place = (point as f64 + 0.5) * 0.618_033_988_749_895;
            let beyond = 1.0 - (place - libm::floor(place));
            let wait = if beyond < waits { libm::log(waits / beyond) / tail } else { 0.0 };
            let each = service / f64::from((*output).max(1));
            sample.ttft.push(wait + each);
            if *output > 1 {
                sample.tpot.push(each);
            }
            sample.e2e.push(wait + service);
        }
        let mean_wait = waits / tail;
        let steady = Steady::of(sample, share.rate * (mean_wait + self.service_s), waits)?;
        Some(Steady { e2e_s: mean_wait + self.service_s, ..steady })
    }
}

/// Times of an engine that draws them for each request.
pub(super) fn drawn(spec: &CannedSpec, mix: &Mix) -> Sample {
    let (first, gaps) = (strata(&spec.ttft), spec.gap.mean_ms() * 1e-3);
    let (mut sample, outputs) = (Sample::default(), outputs(mix));
    let spread = spec.gap.cv_squared();
    for (point, ttft) in first.iter().enumerate() {
        // The answers run against the first tokens in no order.
        let output = outputs[point * 389 % POINTS];
        let more = f64::from(output.max(1)) - 1.0;
        let place = (point as f64 + 0.5) * 0.618_033_988_749_895;
        let normal = plimsoll_math::special::normal_inv((place - libm::floor(place)).clamp(1e-6, 1.0 - 1e-6));
        let tpot = gaps * (1.0 + normal * libm::sqrt(spread / more.max(1.0))).max(0.0);
        sample.ttft.push(*ttft);
        if more > 0.0 {
            sample.tpot.push(tpot);
        }
        sample.e2e.push(ttft + more * tpot);
    }
    sample
}

/// Means of equal parts of a law, s, from its quantiles and brought to the law's mean. Draws lost: what eight thousand of them say of
/// a p99 is 5 % off by chance, and promises that one idle server keeps were refused.
fn strata(law: &LawSpec) -> Vec<f64> {
    let all = (POINTS * PLACES) as f64;
    let at: Vec<f64> = (0..POINTS * PLACES).map(|i| law.quantile_ms((i as f64 + 0.5) / all) * 1e-3).collect();
    let mean = at.iter().sum::<f64>() / all;
    let to = if mean > 0.0 { law.mean_ms() * 1e-3 / mean } else { 1.0 };
    at.chunks(PLACES).map(|part| part.iter().sum::<f64>() / part.len() as f64 * to).collect()
}

/// As many answers as points, in no order.
fn outputs(mix: &Mix) -> Vec<u32> {
    let rows = mix.rows();
    (0..POINTS).map(|point| rows[point * 613 % POINTS * rows.len() / POINTS].output).collect()
}
