//! The result of a profiler timeline as plain data. Times in seconds; shares from 0 to 1.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::kind::DeviceWork;

/// The bottleneck of a timeline of device activities.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Bound {
    /// The device waited until the host launched work.
    Host,
    /// The device spent its time on computing.
    Device,
    /// The device only communicated with other devices.
    Communication,
    /// The device only copied, without computing.
    Copies,
    /// Mixed: every part of the time is below its limit.
    Mixed,
    /// The timeline contains no activity of a device.
    NoDevice,
    /// The device idled, and the launches do not show the reason.
    Idle,
}

/// The result of a profiler timeline.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceFinding {
    /// Bottleneck of the timeline: host, device or neither.
    pub bound: Bound,
    /// Bottleneck in one sentence with figures.
    pub says: String,
    /// Length of the analysed interval in s: the steps, else from the first launch to the end of the last device
    /// work.
    pub window_s: f64,
    /// Devices of the timeline, one entry each.
    pub devices: Vec<Device>,
    /// Device time by kind of work over all devices, longest first.
    pub kinds: Vec<KindTime>,
    /// Device time by layer that launched it, longest first. Layers are ranges of a user (NVTX), modules and operators;
    /// they are nested, so their shares do not add up.
    #[serde(default)]
    pub layers: Vec<LayerTime>,
    /// Kernels and copies with the longest times.
    pub top: Vec<Top>,
    /// Number of kernels and copies that are not in `top`.
    pub more: u64,
    /// Launches; `None` if none was recorded.
    pub launches: Option<Launches>,
    /// Host work while a device was idle, as shares of that time, longest first.
    pub host_meanwhile: Vec<HostShare>,
    /// Host work by self time (without callees), longest first.
    pub host_top: Vec<Top>,
    /// Steps of the model in order of time.
    pub steps: Vec<DeviceStep>,
    /// Limits of these figures, one sentence each.
    pub notes: Vec<String>,
}

/// One device over the window. `busy`, `host_idle` and `queued_idle` add up to one.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Device {
    /// Name of the device in the timeline.
    pub device: String,
    /// Share of the window in which anything ran on the device.
    pub busy: f64,
    /// Share of the window in which a kernel computed.
    pub computing: f64,
    /// Share of the window in which only communication with other devices ran.
    pub collective_alone: f64,
    /// Share of the window in which only a copy or fill ran.
    pub copy_alone: f64,
    /// Share of the window in which the device idled without launched work, or during the launching call; `None` if
    /// launches were not recorded.
    pub host_idle: Option<f64>,
    /// Share of the window in which the device idled with launched work: launch latency, or a wait for another
    /// stream.
    pub queued_idle: Option<f64>,
    /// Number of streams that were used.
    pub streams: u64,
    /// Number of kernels, copies and fills.
    pub activities: u64,
}

/// Device time of one kind of work.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct KindTime {
    /// Kind of work on the device.
    pub kind: DeviceWork,
    /// Number of activities of this kind.
    pub count: u64,
    /// Total time of these activities in seconds.
    pub total_s: f64,
    /// Share of all device time (parallel streams count twice).
    pub share: f64,
}

/// Device time of the work that was launched inside a layer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct LayerTime {
    /// Name of the ranges, with `#` for numbers.
    pub layer: String,
    /// Number of different names with these numbers.
    pub ranges: u64,
    /// Number of kernels, copies and fills.
    pub activities: u64,
    /// Total device time in seconds.
    pub total_s: f64,
    /// Share of all device time.
    pub share: f64,
    /// Kind of work with the longest time in the layer.
    pub kind: DeviceWork,
    /// Share of that kind in the layer's device time.
    pub kind_share: f64,
    /// Name of the range with the longest device time.
    pub longest: String,
    /// Device time of the range with that name in seconds.
    pub longest_s: f64,
}

/// The time of one kernel, copy or host function.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Top {
    /// Name of the kernel, copy or host function.
    pub name: String,
    /// Kind of device work; `None` for host work.
    pub kind: Option<DeviceWork>,
    /// Number of calls in the timeline.
    pub count: u64,
    /// Total time of these calls in seconds.
    pub total_s: f64,
    /// Mean time of one call in seconds.
    pub mean_s: f64,
    /// Share of all device time, or of all host time.
    pub share: f64,
}

/// The calls that launched work on a device.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Launches {
    /// Number of calls that launched device work.
    pub count: u64,
    /// Mean duration of a call in s.
    pub call_mean_s: f64,
    /// Median time from the start of the call to the start on the device in s.
    pub delay_p50_s: f64,
    /// 99th percentile of that time in s: how far the host was ahead of the device at most.
    pub delay_p99_s: f64,
    /// Time in these calls over the device time that they launched. Near or over 1, kernels are too small for their
    /// launches.
    pub call_over_device: f64,
    /// Share of the window in which the host waited for the device in synchronising calls.
    pub synchronising: f64,
}

/// A share of the host's time.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct HostShare {
    /// Innermost host function that was recorded; empty if none was.
    pub name: String,
    /// Share of the time, 0 to 1.
    pub share: f64,
}

/// One step of the model on a device.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct DeviceStep {
    /// Name of the step in the timeline.
    pub name: String,
    /// Start in s since the start of the first step.
    pub at_s: f64,
    /// Duration of the step in seconds.
    pub took_s: f64,
    /// Share of the step in which the devices were busy (mean over devices).
    pub busy: f64,
    /// Share of the step in which the devices waited for the host; `None` if launches were not recorded.
    pub host_idle: Option<f64>,
    /// Number of device activities that began in the step.
    pub activities: u64,
}
