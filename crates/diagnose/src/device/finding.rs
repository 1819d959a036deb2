//! What a profiler's timeline shows, as plain data. Times in seconds; shares from 0 to 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::DeviceWork;

/// What the time went by.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The device had nothing to do until the host had launched something.
    Host,
    /// The device computed.
    Device,
    /// The device only exchanged with others.
    Communication,
    /// The device only copied.
    Copies,
    /// No one of them.
    Mixed,
    /// No device was recorded.
    NoDevice,
    /// The device idled, and whose doing that is the launches do not say.
    Idle,
}

/// A profiler's timeline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFinding {
    /// What the time went by.
    pub bound: Bound,
    /// The same as a sentence with its figures.
    pub says: String,
    /// The stretch that is judged: the steps, else from the first launch to the end of the last device work. s
    pub window_s: f64,
    /// The devices.
    pub devices: Vec<Device>,
    /// Device time by what it did, all devices together, most first.
    pub kinds: Vec<KindTime>,
    /// The kernels and copies that took most.
    pub top: Vec<Top>,
    /// Kernels and copies that are not in `top`.
    pub more: u64,
    /// Launches; `None` = none was recorded.
    pub launches: Option<Launches>,
    /// What the host did while a device had nothing to do, most first: share of that time.
    pub host_meanwhile: Vec<HostShare>,
    /// Host work by time of its own (without what it called), most first.
    pub host_top: Vec<Top>,
    /// The steps, in order.
    pub steps: Vec<DeviceStep>,
    /// What else has to be known of these figures.
    pub notes: Vec<String>,
}

/// One device over the window. `busy`, `host_idle` and `queued_idle` add up to one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// Its name.
    pub device: String,
    /// Share of the window in which anything ran on it.
    pub busy: f64,
    /// In which a kernel computed.
    pub computing: f64,
    /// In which nothing but an exchange with other devices ran.
    pub collective_alone: f64,
    /// In which nothing but a copy or fill ran.
    pub copy_alone: f64,
    /// In which it idled and nothing had been launched, or the call that launches was still under way; `None` = launches were not recorded.
    pub host_idle: Option<f64>,
    /// In which it idled though something had been launched: the launch's way to the device, or waiting for another stream.
    pub queued_idle: Option<f64>,
    /// Streams that were used.
    pub streams: u64,
    /// Kernels, copies and fills.
    pub activities: u64,
}

/// Device time of one kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KindTime {
    /// What it did.
    pub kind: DeviceWork,
    /// How often.
    pub count: u64,
    /// How long, s.
    pub total_s: f64,
    /// Of all device time (parallel streams count twice).
    pub share: f64,
}

/// One name's time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Top {
    /// The name.
    pub name: String,
    /// What it does; `None` = it is the host's.
    pub kind: Option<DeviceWork>,
    /// How often.
    pub count: u64,
    /// How long, s.
    pub total_s: f64,
    /// Mean, s.
    pub mean_s: f64,
    /// Of all time of its sort.
    pub share: f64,
}

/// Calls that launched something.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Launches {
    /// How many.
    pub count: u64,
    /// Mean time of the call, s.
    pub call_mean_s: f64,
    /// Median from the call's beginning to the device's, s.
    pub delay_p50_s: f64,
    /// 99th percentile of it: how far the host was ahead of the device at most.
    pub delay_p99_s: f64,
    /// Time in these calls over the device time that they launched: near or over 1, kernels are too small for their launches.
    pub call_over_device: f64,
    /// Time that the host waited for the device in synchronising calls, of the window.
    pub synchronising: f64,
}

/// What the host did.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostShare {
    /// The innermost thing that was recorded; empty = nothing was.
    pub name: String,
    /// Share of the time.
    pub share: f64,
}

/// One step.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceStep {
    /// Its name.
    pub name: String,
    /// Since the first began, s.
    pub at_s: f64,
    /// How long it took, s.
    pub took_s: f64,
    /// Share of it in which the devices were busy (mean over them).
    pub busy: f64,
    /// In which they idled for the host.
    pub host_idle: Option<f64>,
    /// Device work that began in it.
    pub activities: u64,
}
