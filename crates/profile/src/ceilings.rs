//! The effect of a faster stage: percentiles of the requests with new timing (Amdahl 1967, on the graph instead of
//! the sum).
//!
//! Only service time is considered. If the queue is a large part of the tail, this understates the gain, because a
//! shorter service shortens the queue too. The result of a load model is then listed as well. The model is M/M/c with
//! the number of servers that gives the measured wait: a textbook model, and labelled as such in the output.

use plimsoll_math::queueing::Mmc;

use super::finding::{CeilingAt, CeilingRow, Ceilings, ProfiledLatency};
use super::retime::FACTORS;
use super::sample::LatencySample;
use super::stage::Stage;
use plimsoll_measure::findings::Reading;
use plimsoll_measure::say;

/// Minimum share of the mean for a row of a stage.
const SHOWN: f64 = 0.005;
/// Share of the tail's time from which the queue is a caveat.
const QUEUE: f64 = 0.10;
/// Maximum number of servers in the search.
const SERVERS: u32 = 4096;

/// Label of figures without a new queue simulation.
const LABEL: &str = "service time only; queueing not re-simulated";

/// Returns the ceilings of every stage with a part in the mean or the tail.
pub fn ceilings(sample: &LatencySample<'_>, tail_shares: &[(Stage, Reading)]) -> Ceilings {
    let mean_s = sample.mean_s(&sample.total);
    let tail_of = |stage: Stage| {
        let found = tail_shares.iter().find(|(one, _)| *one == stage);
        found.and_then(|(_, reading)| reading.value()).unwrap_or(0.0)
    };
    let queue = tail_of(Stage::Queue) + tail_of(Stage::BatchWait);
    let model = if queue > QUEUE { Some(LoadModel::fit(sample)) } else { None };
    let fitted = model.as_ref().and_then(|model| model.as_ref().ok());
    let mut rows: Vec<CeilingRow> = Vec::new();
    for stage in &sample.stages {
        let share = sample.mean_s(&sample.column(*stage)) / mean_s;
        if *stage == Stage::Unattributed || (share < SHOWN && tail_of(*stage) < SHOWN) {
            continue;
        }
        let at = (0..FACTORS.len()).map(|k| at_factor(sample, *stage, k, mean_s, fitted)).collect();
        rows.push(CeilingRow { stage: *stage, share, at });
    }
    rows.sort_by(|a, b| b.share.total_cmp(&a.share));
    let queueing = model.map(|model| {
        let share = format!(
            "the queue is {} of the slowest requests' time; a shorter service also shortens the queue, which this table ignores",
            say::percent(queue)
        );
        match model {
            Ok(model) => format!(
                "{share}; the p99 with a shorter queue is a rough estimate by M/M/c with {} at {} load, which has the measured wait",
                say::count(u64::from(model.now.servers), "server"),
                say::percent(model.now.load)
            ),
            Err(why) => format!("{share}; no load model can estimate by how much: {why}"),
        }
    });
    Ceilings { label: LABEL.to_owned(), queueing, rows }
}

/// Returns the latency of every request with this stage at this factor, ns.
fn retimed(sample: &LatencySample<'_>, stage: Stage, factor: usize) -> Vec<i64> {
    let one = |(request, total): (&&super::read::ProfiledRequest, &i64)| {
        let found = request.faster.iter().find(|faster| faster.stage == stage);
        found.map_or(*total, |faster| match sample.of {
            ProfiledLatency::E2e => faster.e2e[factor].round() as i64,
            ProfiledLatency::Ttft => faster.ttft[factor].round() as i64,
        })
    };
    sample.requests.iter().zip(&sample.total).map(one).collect()
}

fn at_factor(
    sample: &LatencySample<'_>,
    stage: Stage,
    k: usize,
    mean_s: f64,
    model: Option<&LoadModel>,
) -> CeilingAt {
    let column = retimed(sample, stage, k);
    let then = sample.mean_s(&column);
    let [p50, _, p95, p99] = sample.percentiles(&column);
    let with_queue = model.and_then(|model| {
        let kept = model.queue_kept(stage, 1.0 - 1.0 / FACTORS[k])?;
        let queue = sample.column(Stage::Queue);
        let shrunk: Vec<i64> = column
            .iter()
            .zip(&queue)
            .map(|(ns, q)| (*ns - (*q as f64 * (1.0 - kept)) as i64).max(0))
            .collect();
        sample.quantile_s(&shrunk, 0.99)
    });
    CeilingAt {
        factor: FACTORS[k].is_finite().then_some(FACTORS[k]),
        speed_up: (then > 0.0).then(|| mean_s / then),
        p50,
        p95,
        p99: p99.clone(),
        p99_with_queue_s: with_queue.filter(|_| p99.estimate().is_some()),
    }
}

/// A queue with the measured wait.
struct LoadModel {
    now: Mmc,
    /// Mean time per request of each stage that occupies a server, s.
    service: Vec<(Stage, f64)>,
    arrivals_per_s: f64,
}

impl LoadModel {
    fn fit(sample: &LatencySample<'_>) -> Result<LoadModel, String> {
        let of = |stage: Stage| {
            let times = sample.requests.iter().map(|r| r.e2e_stages[stage.index()]).collect::<Vec<_>>();
            sample.mean_s(&times)
        };
        let service: Vec<(Stage, f64)> = [Stage::Prefill, Stage::Decode, Stage::Compute]
            .into_iter()
            .map(|stage| (stage, of(stage)))
            .filter(|(_, s)| *s > 0.0)
            .collect();
        let service_mean: f64 = service.iter().map(|(_, s)| s).sum();
        let wait = of(Stage::Queue);
        if service_mean <= 0.0 || wait <= 0.0 || sample.length_s <= 0.0 {
            return Err("the traces do not show what the queue waited for".into());
        }
        let arrivals_per_s = sample.stand_for() / sample.length_s;
        let offered = arrivals_per_s * service_mean;
        let first = offered.floor() as u32 + 1;
        if offered >= f64::from(SERVERS) {
            return Err(format!("more than {SERVERS} requests are in service together"));
        }
        let queue = |servers: u32| Mmc { servers, load: offered / f64::from(servers), service_mean };
        // The wait falls with the number of servers: take the first number at or below the measured wait, or the one
        // before.
        let over = (first..SERVERS).find(|servers| queue(*servers).mean_wait() <= wait);
        let over = over.ok_or("no number of servers gives the measured wait")?;
        let nearer = |servers: u32| (queue(servers).mean_wait() / wait).ln().abs();
        let servers = if over > first && nearer(over - 1) < nearer(over) { over - 1 } else { over };
        Ok(LoadModel { now: queue(servers), service, arrivals_per_s })
    }

    /// Returns the remaining share of the wait when a share of this stage's time is saved. Returns `None` for a stage
    /// that occupies no server.
    fn queue_kept(&self, stage: Stage, saved: f64) -> Option<f64> {
        let own = self.service.iter().find(|(one, _)| *one == stage)?.1;
        let service_mean = self.now.service_mean - saved * own;
        if service_mean <= 0.0 {
            return Some(0.0);
        }
        let load = self.arrivals_per_s * service_mean / f64::from(self.now.servers);
        let then = Mmc { service_mean, load, ..self.now };
        Some((then.mean_wait() / self.now.mean_wait()).clamp(0.0, 1.0))
    }
}
