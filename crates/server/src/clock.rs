//! Reads the server's clocks; no other file of the crate reads them.
//!
//! They are CLOCK_MONOTONIC in ns, its offset from the realtime clock of kernel receive stamps, and CPU times.
//! `std::time::Instant` was rejected: it is the same clock but hides its value. The truth log needs the value, because it
//! shares an axis with the stamps of a client on this machine.

use nix::time::{ClockId, clock_gettime};
use plimsoll_model::{At, ClockAnchor};

use crate::script::ManualClock;

fn read(clock: ClockId) -> i64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec())
}

pub fn monotonic_ns() -> i64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns CLOCK_REALTIME in ns since the Unix epoch.
pub fn realtime_ns() -> i64 {
    read(ClockId::CLOCK_REALTIME)
}

/// Returns the CPU time of the calling thread in ns.
pub fn thread_cpu_ns() -> i64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of the process in ns.
pub fn process_cpu_ns() -> i64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Reads both clocks at one instant: the realtime clock between two reads of the monotonic clock.
pub fn anchor() -> ClockAnchor {
    let before = monotonic_ns();
    let realtime_ns = realtime_ns();
    let after = monotonic_ns();
    ClockAnchor { monotonic_ns: before + (after - before) / 2, realtime_ns }
}

/// Converts a realtime stamp of the kernel to the monotonic axis with the current offset of the clocks.
///
/// A step of the realtime clock therefore affects only the requests in transit at that moment.
pub(crate) fn realtime_to_monotonic(realtime: i64) -> i64 {
    let now = anchor();
    realtime - now.realtime_ns + now.monotonic_ns
}

/// The engine's time axis: `At(0)` is the start of the engine.
#[derive(Clone, Debug)]
pub struct EngineAxis {
    /// Start of the engine on the machine's clocks.
    pub anchor: ClockAnchor,
    /// Script that sets the time; `None` = the machine's clock.
    pub script: Option<ManualClock>,
}

impl EngineAxis {
    pub fn begin() -> EngineAxis {
        EngineAxis { anchor: anchor(), script: None }
    }

    /// Returns an axis whose time the script sets.
    pub fn scripted(script: ManualClock) -> EngineAxis {
        EngineAxis { script: Some(script), ..EngineAxis::begin() }
    }

    /// Returns the current time on this axis.
    pub fn now(&self) -> At {
        match &self.script {
            Some(script) => script.now(),
            None => At(monotonic_ns() - self.anchor.monotonic_ns),
        }
    }

    /// Converts a time of this axis to CLOCK_MONOTONIC ns.
    pub(crate) fn to_monotonic(&self, at: At) -> i64 {
        self.anchor.monotonic_ns.saturating_add(at.0)
    }
}
