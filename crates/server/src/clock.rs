//! The time axis of the engine, and its place on the machine's clocks.

use plimsoll_client::clock::{anchor, monotonic_ns};
use plimsoll_model::{At, ClockAnchor};

use crate::script::ManualClock;

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
