//! The machine under a level, by its exporters: GPUs with their energy, and the host's CPUs and containers.
//!
//! Mean power comes from the energy counter if there is one, between its first and its last change in the window. An exporter may
//! refresh its values twice a minute, so values at the ends of the window may be old. The power gauge is used without a
//! counter. Energy is mean power × time. The intervals are batch means. The integral of interpolated power readings was rejected because
//! it makes up values between readings.

use std::collections::BTreeMap;

use plimsoll_math::series;
use plimsoll_model::{At, Span};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::read::Track;
use super::{GaugeSeries, ServerSide, Signal};
use crate::findings::{Estimate, LevelFinding, Reading};

/// Largest number of batches of an interval, as for rates.
const BATCHES: usize = 20;
/// Fewest batches of an interval, and fewest readings per batch.
const FEWEST: (usize, usize) = (4, 2);
const LEVEL: f64 = 0.95;

/// Bits of NVML's clock event reasons that limit a GPU under load, by their words.
const LIMITS: [(&str, u64); 3] = [("power", 0x4 | 0x80), ("heat", 0x20 | 0x40), ("hardware slowdown", 0x8)];

/// The GPUs of the machine during the steady window of one level. They include GPUs that the endpoint does not use.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct GpuReport {
    /// Number of GPUs that report.
    pub gpus: usize,
    /// Mean power of all GPUs in W.
    pub power_w: Option<Reading>,
    /// Energy of all GPUs in J.
    pub energy_j: Option<f64>,
    /// Energy per output token in J.
    pub per_token: Option<Reading>,
    /// Energy per output token of requests that met every ceiling of the budget, in J; `null` without a budget.
    pub per_good_token: Option<Reading>,
    /// Largest observed memory use of one GPU in bytes.
    pub memory_max: Option<f64>,
    /// Memory of that GPU in bytes; `null` if unknown.
    pub memory_of: Option<f64>,
    /// Share of the time in which a limit lowered the clock of a GPU, by its cause: the most limited GPU, 0 to 1.
    pub limited: BTreeMap<String, f64>,
}

/// The host during the steady window of one level; `null` if its exporter does not report the metric.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
pub struct HostReport {
    /// Mean number of CPUs that the hypervisor gave to other machines.
    pub stolen_cpus: Option<f64>,
    /// Share of the time in which a process waited for a CPU, 0 to 1.
    pub cpu_pressure: Option<f64>,
    /// Share of the time in which a process waited for memory, 0 to 1.
    pub memory_pressure: Option<f64>,
    /// Share of the time in which a process waited for a disk, 0 to 1.
    pub io_pressure: Option<f64>,
    /// Container whose CPU quota stopped it in the largest share of its periods; `null` if none was stopped.
    pub throttled: Option<String>,
    /// That share, 0 to 1.
    pub throttled_share: Option<f64>,
}

/// Returns the GPUs of a level; `None` if no GPU reports.
pub(super) fn gpus(server: &ServerSide, level: &LevelFinding) -> Option<GpuReport> {
    let (window, rates) = (&level.summary.window, &level.summary.rates);
    let (from, to) = (window.start, window.stop);
    let power_w = power(server, from, to);
    let tokens = rates.output_tokens_per_s.as_ref();
    // Other clients' tokens use the energy too, so the server's own count is preferred.
    let own = tokens.and_then(Reading::value).filter(|rate| *rate > 0.0);
    let all = server.gained(Signal::OutputTokens, from, to);
    let all = all.map(|all| all.value / (all.to - all.from).as_secs_f64()).filter(|rate| *rate > 0.0);
    let more = all.zip(own).map_or(1.0, |(all, own)| all / own);
    let per = |tokens: &Reading| Some(ratio(power_w.as_ref()?, tokens, more));
    let (memory_max, memory_of) = memory(server, from, to);
    let report = GpuReport {
        gpus: server.gpus(),
        energy_j: power_w.as_ref().and_then(Reading::seen).map(|power| power.value * window.length_s),
        per_token: tokens.and_then(per),
        per_good_token: rates.good_output_tokens_per_s.as_ref().and_then(per),
        memory_max,
        memory_of,
        limited: limited(server, from, to),
        power_w,
    };
    (report.gpus > 0).then_some(report)
}

/// Returns the host of a level; `None` if no host reports.
pub(super) fn host(server: &ServerSide, level: &LevelFinding) -> Option<HostReport> {
    let (from, to) = (level.summary.window.start, level.summary.window.stop);
    let per_s = |signal| {
        let gained = server.gained(signal, from, to)?;
        Some(gained.value / (gained.to - gained.from).as_secs_f64())
    };
    let share = |host: usize| {
        let gained = |signal| server.gained_of_host(host, signal, from, to).map(|gained| gained.value);
        let periods = gained(Signal::QuotaPeriods).filter(|periods| *periods > 0.0)?;
        Some(gained(Signal::QuotaThrottled)? / periods)
    };
    let hosts = server.hosts().iter().enumerate();
    let worst = hosts.filter_map(|(number, host)| Some((share(number)?, container(&host.labels))));
    let worst = worst.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|worst| worst.0 > 0.0);
    (!server.hosts().is_empty()).then(|| HostReport {
        stolen_cpus: per_s(Signal::CpuStolen),
        cpu_pressure: per_s(Signal::CpuPressure),
        memory_pressure: per_s(Signal::MemoryPressure),
        io_pressure: per_s(Signal::IoPressure),
        throttled_share: worst.as_ref().map(|worst| worst.0),
        throttled: worst.map(|worst| worst.1),
    })
}

/// Returns the shortest name of a container: namespace, pod and container of Kubernetes, or the container's name.
pub fn container(labels: &str) -> String {
    let labels = plimsoll_model::split_labels(labels);
    let of = |name: &str| {
        labels.iter().find(|(key, value)| key == name && !value.is_empty()).map(|(_, value)| value.as_str())
    };
    let parts: Vec<&str> = ["namespace", "pod", "container"].into_iter().filter_map(of).collect();
    match parts.is_empty() {
        false => parts.join("/"),
        true => of("name").or(of("id")).unwrap_or("host").to_owned(),
    }
}

/// Returns the mean power of all GPUs over a window.
fn power(server: &ServerSide, from: At, to: At) -> Option<Reading> {
    if let Some(energy) = used(server.tracks(Signal::GpuEnergy), from, to) {
        return Some(energy);
    }
    let gauge = server.gauge(Signal::GpuPower)?;
    let readings = gauge.scrapes(from, to);
    let parts = parts(readings);
    let at = |n: usize| from + Span::from_secs_f64((to - from).as_secs_f64() * n as f64 / parts as f64);
    let means: Vec<f64> = (0..parts).filter_map(|n| gauge.mean(at(n), at(n + 1))).collect();
    Some(reading(gauge.mean(from, to)?, &means, readings))
}

/// Returns the mean power by energy counters, between their first and last change in the window.
fn used(tracks: &[Track], from: At, to: At) -> Option<Reading> {
    let mut gains: BTreeMap<At, f64> = BTreeMap::new();
    for track in tracks {
        let (mut last, points) = track.numbers(from, to);
        for &(at, now) in points.iter().filter(|point| point.1.is_finite()) {
            // A counter that falls began again at zero.
            let gain = last.map_or(0.0, |last| if now < last { now } else { now - last });
            last = Some(now);
            if gain > 0.0 {
                *gains.entry(at).or_default() += gain * track.factor;
            }
        }
    }
    // The first change ends a time whose start is unknown. A batch ends at a change, because energy is known only there.
    let gains: Vec<(At, f64)> = gains.into_iter().collect();
    let mean = |from: At, gains: &[(At, f64)]| {
        let energy: f64 = gains.iter().map(|gain| gain.1).sum();
        gains.last().map(|last| energy / (last.0 - from).as_secs_f64())
    };
    let value = mean(gains.first()?.0, &gains[1..])?;
    let (readings, parts) = (gains.len() - 1, parts(gains.len() - 1));
    let batch = |n: usize| {
        let (from, to) = (n * readings / parts, (n + 1) * readings / parts);
        mean(gains[from].0, &gains[from + 1..=to])
    };
    let means: Vec<f64> = (0..parts).filter_map(batch).collect();
    Some(reading(value, &means, readings))
}

/// Returns the number of batches of so many readings.
fn parts(readings: usize) -> usize {
    (readings / FEWEST.1).min(BATCHES)
}

/// Returns a mean with its interval by batch means, if there are enough readings.
fn reading(value: f64, means: &[f64], readings: usize) -> Reading {
    let n = readings as u64;
    match series::mean_of_batches(means, LEVEL).filter(|_| means.len() >= FEWEST.0) {
        Some(mean) => Reading::Estimate(Estimate {
            value,
            lower: (value + mean.interval.lower - mean.value).max(0.0),
            upper: value + mean.interval.upper - mean.value,
            n,
            n_eff: means.len() as f64,
        }),
        None => {
            let (lower, upper, n_eff) = (f64::NEG_INFINITY, f64::INFINITY, 0.0);
            let why = format!("needs {} readings in the window, has {n}", FEWEST.0 * FEWEST.1);
            Reading::Refused { why, n, seen: Some(Estimate { value, lower, upper, n, n_eff }) }
        }
    }
}

/// Returns power / (`more` × tokens). The bounds use the far end of each, so the interval is wider than 95 %, never narrower.
fn ratio(power: &Reading, tokens: &Reading, more: f64) -> Reading {
    let (Reading::Estimate(watts), Reading::Estimate(rate)) = (power, tokens) else {
        let refused = if tokens.estimate().is_none() { tokens } else { power };
        let Reading::Refused { why, n, .. } = refused else { return refused.clone() };
        let seen = power.seen().zip(tokens.seen()).filter(|(_, rate)| rate.value > 0.0);
        let (lower, upper, n_eff) = (f64::NEG_INFINITY, f64::INFINITY, 0.0);
        let seen = seen.map(|(watts, rate)| Estimate {
            value: watts.value / (more * rate.value),
            lower,
            upper,
            n: *n,
            n_eff,
        });
        return Reading::Refused { why: why.clone(), n: *n, seen };
    };
    let of = |watts: f64, rate: f64| if rate > 0.0 { watts / (more * rate) } else { f64::INFINITY };
    Reading::Estimate(Estimate {
        value: of(watts.value, rate.value),
        lower: of(watts.lower, rate.upper),
        upper: of(watts.upper, rate.lower),
        n: watts.n,
        n_eff: watts.n_eff,
    })
}

/// Returns the largest memory use of one GPU, and the memory of that GPU.
fn memory(server: &ServerSide, from: At, to: At) -> (Option<f64>, Option<f64>) {
    let of = |device: usize| {
        let used = server.gauge_of_device(device, Signal::GpuMemoryUsed)?.max(from, to)?;
        let free = server.gauge_of_device(device, Signal::GpuMemoryFree).and_then(|free| free.min(from, to));
        Some((used, free.map(|free| used + free)))
    };
    let fullest = (0..server.devices().len()).filter_map(of).max_by(|a, b| a.0.total_cmp(&b.0));
    (fullest.map(|one| one.0), fullest.and_then(|one| one.1))
}

/// Returns the share of the time in which each kind of limit lowered a clock, of the most limited GPU.
fn limited(server: &ServerSide, from: At, to: At) -> BTreeMap<String, f64> {
    let devices = 0..server.devices().len();
    let reasons: Vec<GaugeSeries> =
        devices.clone().filter_map(|device| server.gauge_of_device(device, Signal::ClockReasons)).collect();
    let by_reason = |bits: u64| {
        let shares = reasons.iter().filter_map(|of| of.share(from, to, |value| value as u64 & bits != 0));
        shares.reduce(f64::max)
    };
    let counted = |signal| {
        let share = |device| {
            let gained = server.gained_of_device(device, signal, from, to)?;
            Some((gained.value / (gained.to - gained.from).as_secs_f64()).min(1.0))
        };
        devices.clone().filter_map(share).reduce(f64::max)
    };
    let told = |signal| {
        let mean = |device| server.gauge_of_device(device, signal)?.mean(from, to);
        devices.clone().filter_map(mean).reduce(f64::max)
    };
    let mut limited: BTreeMap<String, f64> = BTreeMap::new();
    for (name, bits) in LIMITS {
        let other = match name {
            "power" => counted(Signal::ThrottledPower).or_else(|| told(Signal::PowerLimited)),
            "heat" => counted(Signal::ThrottledThermal).or_else(|| told(Signal::HeatLimited)),
            _ => None,
        };
        limited.extend(by_reason(bits).or(other).map(|share| (name.to_owned(), share)));
    }
    limited
}

#[cfg(test)]
mod tests {
    use plimsoll_model::Sample;

    use super::*;

    const S: i64 = 1_000_000_000;

    /// Name, labels and values of a series by second.
    type TestSeries<'a> = (&'a str, &'a str, &'a dyn Fn(i64) -> f64);

    /// Returns a scrape each second, with the value of each series at that second.
    fn read(seconds: i64, series: &[TestSeries<'_>]) -> ServerSide {
        let row = |s: i64, name: &str, labels: &str, value| Sample {
            at: At(s * S),
            source: "gpu".into(),
            name: name.into(),
            labels: labels.into(),
            value,
        };
        let of = |s: i64| {
            let mark = row(s, "scrape_samples", "", series.len() as f64);
            series.iter().map(move |(name, labels, value)| row(s, name, labels, value(s))).chain([mark])
        };
        ServerSide::read(&(0..=seconds).flat_map(of).collect::<Vec<_>>())
    }

    fn mean(server: &ServerSide, from: i64, to: i64) -> (f64, Option<(f64, f64)>) {
        let reading = power(server, At(from * S), At(to * S)).expect("a power");
        (reading.seen().expect("a value").value, reading.estimate().map(|e| (e.lower, e.upper)))
    }

    const MJ: &str = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION";
    const W: &str = "DCGM_FI_DEV_POWER_USAGE";

    /// The energy of a power of 200 W + 2 W/s × t is 200 t + t² J. Its mean over [10 s, 70 s] is 200 + 2 × 40 = 280 W.
    #[test]
    fn the_energy_counter_gives_the_mean_power() {
        let energy = |s: i64| 1e3 * (200.0 * s as f64 + (s * s) as f64);
        let server = read(80, &[(MJ, "gpu=0", &energy), (W, "gpu=0", &|_| 999.0)]);
        // The first change after 10 s is at 11 s, so the mean is that of [11 s, 70 s].
        let (value, ends) = mean(&server, 10, 70);
        assert!((value - 281.0).abs() < 1e-9, "{value}");
        let (lower, upper) = ends.expect("an interval");
        assert!(lower < 270.0 && upper > 290.0, "a ramp is no constant: {lower} {upper}");
        let server = read(80, &[(MJ, "gpu=0", &|s| 350e3 * s as f64)]);
        let (lower, upper) = mean(&server, 10, 71).1.expect("an interval");
        assert!((lower - 350.0).abs() < 1e-9 && (upper - 350.0).abs() < 1e-9, "{lower} {upper}");
    }

    /// The DCGM exporter refreshes twice a minute. Values at the ends of the window are then up to 30 s old, and differences between
    /// the ends would be off by a third.
    #[test]
    fn a_counter_that_is_refreshed_rarely_is_read_at_its_changes() {
        let energy = |s: i64| 400e3 * (s - s % 30) as f64;
        let server = read(400, &[(MJ, "gpu=0", &energy)]);
        for (from, to) in [(5, 95), (29, 91), (31, 121), (100, 380)] {
            let (value, _) = mean(&server, from, to);
            assert!((value - 400.0).abs() < 1e-9, "{from} {to} {value}");
        }
        assert_eq!(mean(&server, 5, 95).1, None, "two changes give no interval");
        assert!(
            used(server.tracks(Signal::GpuEnergy), At(31 * S), At(61 * S)).is_none(),
            "one change gives no power"
        );
    }

    #[test]
    fn gpus_are_added_and_a_restarted_counter_goes_on() {
        let restarted = |s: i64| 1e3 * 100.0 * if s < 30 { s + 500 } else { s - 30 } as f64;
        let server = read(60, &[(MJ, "gpu=0", &|s| 1e3 * 300.0 * s as f64), (MJ, "gpu=1", &restarted)]);
        assert_eq!(server.gpus(), 2);
        let (value, _) = mean(&server, 0, 60);
        // The 100 J between the last reading before the restart and the restart are unknown.
        assert!((value - (400.0 - 100.0 / 59.0)).abs() < 1e-9, "{value}");
    }

    #[test]
    fn without_a_counter_the_power_is_averaged_over_time() {
        let server = read(60, &[(W, "gpu=0", &|s| if s < 30 { 100.0 } else { 300.0 })]);
        assert!((mean(&server, 0, 60).0 - 200.0).abs() < 1e-9);
        assert!((mean(&server, 20, 40).0 - 200.0).abs() < 1e-9);
        assert!((mean(&server, 30, 60).0 - 300.0).abs() < 1e-9);
    }

    #[test]
    fn energy_per_token_is_power_over_the_rate_of_all_tokens() {
        let of = |value: f64, by: f64| {
            Reading::Estimate(Estimate { value, lower: value - by, upper: value + by, n: 40, n_eff: 20.0 })
        };
        // 700 W over 2 × 500 tokens/s: another client received as many tokens as this run.
        let reading = ratio(&of(700.0, 70.0), &of(500.0, 100.0), 2.0);
        let got = reading.estimate().expect("an estimate");
        assert_eq!((got.value, got.lower, got.upper), (0.7, 630.0 / 1200.0, 770.0 / 800.0));
        assert!(ratio(&of(700.0, 70.0), &Reading::refused("too short", 3), 1.0).seen().is_none());
    }

    #[test]
    fn limits_and_memory_are_of_the_worst_gpu() {
        let reasons = |s: i64| if s < 15 { 0x4 as f64 } else { 0x1 as f64 };
        let mib = |mib: f64| move |_: i64| mib;
        let server = read(
            60,
            &[
                ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gpu=0", &reasons),
                ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "gpu=1", &|_| 0x20 as f64),
                ("DCGM_FI_DEV_FB_USED", "gpu=0", &mib(1024.0)),
                ("DCGM_FI_DEV_FB_USED", "gpu=1", &mib(3072.0)),
                ("DCGM_FI_DEV_FB_FREE", "gpu=1", &mib(1024.0)),
            ],
        );
        let limited = limited(&server, At(0), At(60 * S));
        let of = |cause: &str| limited.get(cause).copied();
        assert_eq!((of("power"), of("heat"), of("hardware slowdown")), (Some(0.25), Some(1.0), Some(0.0)));
        let amd = read(
            60,
            &[
                ("gpu_violation_ppt_residency_percentage", "gpu_id=0", &|s| if s < 30 { 50.0 } else { 0.0 }),
                ("gpu_violation_socket_thermal_residency_percentage", "gpu_id=0", &|_| 5.0),
                ("gpu_violation_hbm_thermal_residency_percentage", "gpu_id=0", &|_| 20.0),
            ],
        );
        let shares = super::limited(&amd, At(0), At(60 * S));
        assert_eq!((shares["power"], shares["heat"]), (0.25, 0.2));
        let gib = 1_073_741_824.0;
        assert_eq!(memory(&server, At(0), At(60 * S)), (Some(3.0 * gib), Some(4.0 * gib)));
    }

    #[test]
    fn a_container_has_its_shortest_name() {
        for (labels, name) in [
            ("container=vllm,id=/kubepods/x,namespace=ml,pod=vllm-0", "ml/vllm-0/vllm"),
            ("id=/docker/abc,name=vllm", "vllm"),
            ("id=/system.slice", "/system.slice"),
            ("", "host"),
        ] {
            assert_eq!(container(labels), name);
        }
    }
}
