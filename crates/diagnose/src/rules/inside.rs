//! P: what only a look inside the device tells: a profiler's timeline of its steps (P1, P2), or the counters of its memory (P3).
//!
//! From outside, kernels that compute longer, kernels that wait for another device and a device that waits for its host are one
//! and the same slower step. A large part is a cause only
//! where there is no baseline to hold the run against, and for exchanges and memory only where a promise is broken: a fleet that uses what it has is well.
//! Naming kernels that became longer lost: a larger batch computes longer as well, and single requests tell the two apart.

use super::{Fired, beyond};
use crate::Cause;
use crate::bench::Bench;
use crate::device::{Device, DeviceFinding};
use crate::verdict::{Counter, Evidence};
use plimsoll_measure::findings::Metric;
use plimsoll_measure::say::{number, percent};

/// Share of the time the device waited for its host from which a lock is what it waited for.
const MOST: f64 = 0.5;
/// Share of the time from which a part is large by itself (a GPU idle for three tenths of a step is host-bound).
const LARGE: f64 = 0.3;
/// Calls that wait for a lock: the system's, and CPython's interpreter lock.
const LOCKS: [&str; 5] = [
    "pthread_mutex_lock",
    "pthread_mutex_timedlock",
    "pthread_rwlock_",
    "pthread_spin_lock",
    "waiting for gil",
];
/// Share of cycles from which memory moves about all that it can: the most that is reached in practice is about 0.8 (NVIDIA, DCGM's profiling metrics).
const FULL: f64 = 0.7;

/// P1: the devices exchange instead of computing.
pub fn exchange(bench: &Bench<'_>) -> Option<Fired> {
    let alone = |device: &Device| Some(device.collective_alone);
    part(bench, Cause::Collectives, "the devices only exchange with each other", alone)
}

/// P2: the device waits until the host has launched something; for a lock, where the thread that launches stood before one meanwhile.
pub fn launched_late(bench: &Bench<'_>) -> Option<Fired> {
    let locked = locked(bench.case.device?).filter(|share| *share >= MOST);
    let cause = if locked.is_some() { Cause::LockContention } else { Cause::HostBound };
    let what = "the device waits for the host to launch something";
    let fired = part(bench, cause, what, |device| device.host_idle)?;
    Some(fired.maybe(locked.map(|share| {
        let says =
            format!("in {} of that time the thread that launches stands before a lock", percent(share));
        Evidence::said("timeline_locked", says)
    })))
}

/// Share of the time in which a device waited for its host that the launching thread spent before a lock. Waiting for a condition or a semaphore is
/// left out: a thread with nothing to do does that.
fn locked(device: &DeviceFinding) -> Option<f64> {
    let shares = device.host_meanwhile.iter();
    let locks = shares.filter(|host| {
        let name = host.name.to_ascii_lowercase();
        LOCKS.iter().any(|lock| name.contains(lock))
    });
    (!device.host_meanwhile.is_empty()).then(|| locks.map(|host| host.share).sum())
}

/// One part of a step, held against the whole.
fn part(
    bench: &Bench<'_>,
    cause: Cause,
    what: &str,
    share: impl Fn(&Device) -> Option<f64>,
) -> Option<Fired> {
    if !["tpot", "ttft", "e2e"].iter().any(|metric| bench.suspects(metric)) {
        return None;
    }
    let device = bench.case.device?;
    match bench.base {
        None => large(bench, device, cause, what, share),
        Some(_) => None,
    }
}

fn large(
    bench: &Bench<'_>,
    device: &DeviceFinding,
    cause: Cause,
    what: &str,
    of: impl Fn(&Device) -> Option<f64>,
) -> Option<Fired> {
    if cause == Cause::Collectives && bench.material.broken.is_empty() {
        return None;
    }
    let shares: Option<Vec<f64>> = device.devices.iter().map(of).collect();
    let share =
        shares.filter(|shares| !shares.is_empty()).map(|all| all.iter().sum::<f64>() / all.len() as f64);
    let share = share.filter(|share| *share >= LARGE)?;
    let says = format!(
        "in {} of the profiled time {what}; without that a step would be {} times as fast at most",
        percent(share),
        number(1.0 / (1.0 - share).max(1e-3))
    );
    let fired = Fired::new(cause, beyond(share, LARGE).min(0.95), says.clone());
    Some(
        fired
            .with(Evidence::said("timeline", says))
            .with(Evidence::said("timeline_bound", format!("the profiler's timeline: {}", device.says)))
            .counted(Counter::Moved {
                name: format!("share of the profiled time in which {what}"),
                by: share,
            }),
    )
}

/// P3: a promise about tokens is broken and the memory moves about all that it can.
pub fn memory_bandwidth(bench: &Bench<'_>) -> Option<Fired> {
    if bench.base.is_some() {
        return None;
    }
    let (_, broken) = bench.material.broken.iter().find(|(metric, _)| *metric == Metric::Tpot)?;
    let active = bench.candidate.gauges.dram_active().filter(|active| *active >= FULL)?;
    let says = format!(
        "the GPU's memory moves data in {} of its cycles while requests run, of some 80 % that are reached in practice",
        percent(active)
    );
    Some(
        Fired::new(Cause::MemoryBandwidth, beyond(active, FULL).min(0.95), says.clone())
            .with(Evidence::said("dram_active", says))
            .with(Evidence::said("broken", broken.clone()))
            .counted(Counter::Moved {
                name: "share of cycles in which memory moves data".into(),
                by: active,
            }),
    )
}
