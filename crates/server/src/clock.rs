//! The server's clocks, and nobody else's business here: CLOCK_MONOTONIC in ns, its distance from the realtime clock
//! (which kernel receive stamps are on), and the CPU time of the calling thread.
//!
//! `std::time::Instant` is the same clock but hides its number, and the truth log has to share an axis with the
//! client's stamps of the same machine.

use nix::time::{ClockId, clock_gettime};
use plimsoll_model::{At, ClockAnchor};

use crate::script::Script;

fn read(clock: ClockId) -> i64 {
    clock_gettime(clock).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec())
}

/// CLOCK_MONOTONIC in ns.
pub fn monotonic_ns() -> i64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// CLOCK_REALTIME (unix epoch) in ns.
pub fn realtime_ns() -> i64 {
    read(ClockId::CLOCK_REALTIME)
}

/// CPU time of the calling thread in ns.
pub fn thread_cpu_ns() -> i64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// CPU time of the whole process in ns.
pub fn process_cpu_ns() -> i64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Both clocks at one instant: the realtime clock is read between two readings of the monotonic one.
pub fn anchor() -> ClockAnchor {
    let before = monotonic_ns();
    let realtime_ns = realtime_ns();
    let after = monotonic_ns();
    ClockAnchor { monotonic_ns: before + (after - before) / 2, realtime_ns }
}

/// Moves a realtime stamp (of the kernel) onto the monotonic axis, by the clocks' distance at this moment, so that
/// a step of the realtime clock spoils only the requests that were on their way across it.
pub(crate) fn realtime_to_monotonic(realtime: i64) -> i64 {
    let now = anchor();
    realtime - now.realtime_ns + now.monotonic_ns
}

/// The engine's axis: `At(0)` is the instant the engine was started.
#[derive(Clone, Debug)]
pub struct EngineAxis {
    /// That instant on the machine's clocks.
    pub anchor: ClockAnchor,
    /// Who says what time it is; none = the machine.
    pub script: Option<Script>,
}

impl EngineAxis {
    pub fn begin() -> EngineAxis {
        EngineAxis { anchor: anchor(), script: None }
    }

    /// An axis whose time is the script's.
    pub fn scripted(script: Script) -> EngineAxis {
        EngineAxis { script: Some(script), ..EngineAxis::begin() }
    }

    /// Now, on this axis.
    pub fn now(&self) -> At {
        match &self.script {
            Some(script) => script.now(),
            None => At(monotonic_ns() - self.anchor.monotonic_ns),
        }
    }

    /// An instant of this axis as CLOCK_MONOTONIC ns.
    pub(crate) fn to_monotonic(&self, at: At) -> i64 {
        self.anchor.monotonic_ns.saturating_add(at.0)
    }
}
