//! The configuration of a batching server: instances, the batcher's rules, and the cost of a batch.
//!
//! Names and meanings come from Triton's model configuration, so that a `config.pbtxt` can be copied manually.
//! Sequence batching, ensembles, rate limits and the response cache are left out, because they are separate
//! mechanisms.
//!
//! A request passes the *front*, the batcher's queue, an instance (*input*, *compute*, *output*, once per batch), and
//! the response, in this order. The front is a fixed cost plus a serial cost per item: HTTP, decoding, copies,
//! pre-processing. It always overlaps with the instances. [`Overlap`] decides whether a batch's input overlaps with
//! the compute of the batch before.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SimSpecError, not_negative, positive, range, within};

pub(crate) const MAX_BATCH: u32 = 1 << 16;

/// Maximum accepted queue delay or time-out: one hour.
pub(crate) const MAX_DELAY_US: u64 = 3_600_000_000;

/// A model that computes whole batches: classifiers, embedders, rankers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DynamicSpec {
    /// Number of model instances that share the queue (Triton: `instance_group.count`) [default: 1].
    #[serde(default = "one")]
    pub instances: u32,
    /// Maximum number of items in a batch; larger requests are rejected (Triton: `max_batch_size`).
    pub max_batch_size: u32,
    /// Rules of the batcher [default: none, so every request is executed separately, as by Triton's default
    /// scheduler].
    #[serde(default)]
    pub dynamic_batching: Option<BatcherSpec>,
    /// Costs of a request before the queue.
    #[serde(default)]
    pub front: FrontSpec,
    /// Cost of a batch on an instance.
    pub batch: BatchCostSpec,
    /// Time from the end of a batch to its responses in ms; overlaps with all other work [default: 0].
    #[serde(default)]
    pub response_ms: f64,
}

/// The rules of dynamic batching (Triton: `dynamic_batching`). The default is greedy: an idle instance takes all
/// waiting requests, up to the largest batch.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatcherSpec {
    /// Preferred batch sizes in items [default: the largest batch only].
    #[serde(default)]
    pub preferred_batch_size: Vec<u32>,
    /// Maximum time in µs that the oldest request waits for a preferred size while an instance is idle [default: 0].
    #[serde(default)]
    pub max_queue_delay_us: u64,
    /// Whether responses wait until all earlier ones are sent [default: false].
    #[serde(default)]
    pub preserve_ordering: bool,
    /// Number of priority levels, 1 is the highest [default: 0, no levels].
    #[serde(default)]
    pub priority_levels: u32,
    /// Priority level of requests without a valid level [default: 0].
    #[serde(default)]
    pub default_priority_level: u32,
    /// Queue policy of levels without a separate policy.
    #[serde(default)]
    pub default_queue_policy: QueuePolicySpec,
    /// Queue policies of single levels.
    #[serde(default)]
    pub priority_queue_policy: Vec<LevelPolicySpec>,
}

/// The queue policy of one priority level.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelPolicySpec {
    /// Number of the priority level, from 1.
    pub level: u32,
    /// Queue policy of the level.
    pub policy: QueuePolicySpec,
}

/// The policy for waiting requests (Triton: `ModelQueuePolicy`).
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueuePolicySpec {
    /// Action on requests that exceed their time-out [default: reject].
    #[serde(default)]
    pub timeout_action: TimeoutAction,
    /// Maximum queue time in µs; 0 for no limit [default: 0].
    #[serde(default)]
    pub default_timeout_us: u64,
    /// Whether a request may set a shorter time-out; without a default time-out it has no effect [default: false].
    #[serde(default)]
    pub allow_timeout_override: bool,
    /// Maximum number of waiting requests at this level; 0 for no limit [default: 0].
    #[serde(default)]
    pub max_queue_size: u32,
}

/// The action on a request that exceeds its time-out.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutAction {
    /// Fail the request with status 503.
    #[default]
    Reject,
    /// Move the request behind all others of its level, without a further time-out.
    Delay,
}

/// The costs of a request before the queue.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrontSpec {
    /// Cost of every request in ms, in parallel with other requests [default: 0].
    #[serde(default)]
    pub request_ms: f64,
    /// Cost of every item in ms, in sequence (decoding and copying of inputs) [default: 0].
    #[serde(default)]
    pub item_ms: f64,
}

/// The cost of a batch on an instance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCostSpec {
    /// Time to gather the inputs and copy them to the device.
    #[serde(default)]
    pub input: AffineSpec,
    /// Compute time of the model.
    pub compute: ComputeSpec,
    /// Time to copy the outputs back.
    #[serde(default)]
    pub output: AffineSpec,
    /// Whether a batch's input overlaps with the compute of the batch before [default: serial].
    #[serde(default)]
    pub overlap: Overlap,
    /// Coefficient of variation of a gamma factor with mean 1 on the compute time of each batch [default: 0].
    #[serde(default)]
    pub jitter_cv: f64,
}

/// A time that grows with the items of the batch.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AffineSpec {
    /// Time per batch in ms [default: 0].
    #[serde(default)]
    pub base_ms: f64,
    /// Time per item in ms [default: 0].
    #[serde(default)]
    pub item_ms: f64,
}

/// The compute time of the model.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ComputeSpec {
    /// A time per batch plus a time per item.
    Affine(AffineSpec),
    /// Measured points with linear interpolation and extrapolation.
    Table(TableSpec),
}

/// Measured times of batches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// At least two points with ascending items.
    pub points: Vec<BatchPoint>,
}

/// The measured time of one batch size.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchPoint {
    /// Number of items in the batch.
    pub items: u32,
    /// Measured time of the batch in ms.
    pub ms: f64,
}

/// The overlap of a batch's input with the compute of the batch before.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// An instance takes the next batch after the end of the last one.
    #[default]
    Serial,
    /// An instance takes the next batch when the last one starts to compute.
    Pipelined,
}

impl AffineSpec {
    /// Returns the time in ms of a batch with this many items.
    pub fn ms(&self, items: u32) -> f64 {
        self.base_ms + self.item_ms * f64::from(items)
    }

    fn validate(&self, base: &'static str, item: &'static str) -> Result<(), SimSpecError> {
        not_negative(base, self.base_ms)?;
        not_negative(item, self.item_ms)
    }
}

impl ComputeSpec {
    /// Returns the time in ms of a batch with this many items.
    pub fn ms(&self, items: u32) -> f64 {
        match self {
            ComputeSpec::Affine(affine) => affine.ms(items),
            ComputeSpec::Table(table) => table.ms(items),
        }
    }
}

impl TableSpec {
    fn ms(&self, items: u32) -> f64 {
        let points = &self.points;
        // The segment that ends at the first point at or past the size, or the outermost one.
        let end = points.partition_point(|point| point.items < items).clamp(1, points.len() - 1);
        let (low, high) = (points[end - 1], points[end]);
        let share = (f64::from(items) - f64::from(low.items)) / f64::from(high.items - low.items);
        low.ms + share * (high.ms - low.ms)
    }

    fn validate(&self) -> Result<(), SimSpecError> {
        let field = "mode.batch.compute.points";
        if self.points.len() < 2 {
            return Err(range(field, self.points.len(), "a list of at least two points"));
        }
        for pair in self.points.windows(2) {
            if pair[0].items >= pair[1].items {
                return Err(range(field, pair[1].items, "in ascending order of items"));
            }
            if pair[0].ms > pair[1].ms {
                return Err(range(field, pair[1].ms, "at least the time of the smaller batch before it"));
            }
        }
        self.points.iter().try_for_each(|point| positive(field, point.ms))?;
        let single = self.ms(1);
        if single > 0.0 {
            return Ok(());
        }
        Err(range(field, single, "a time over 0 for a batch of one (give a point for it)"))
    }
}

impl BatchCostSpec {
    /// Returns the time in ms of an unobstructed batch with this many items, from start to end.
    pub fn ms(&self, items: u32) -> f64 {
        self.input.ms(items) + self.compute.ms(items) + self.output.ms(items)
    }
}

impl DynamicSpec {
    pub(crate) fn validate(&self) -> Result<(), SimSpecError> {
        within("mode.instances", self.instances, 1, 1024, "a whole number from 1 to 1024")?;
        let batch = "a whole number from 1 to 65536";
        within("mode.max_batch_size", self.max_batch_size, 1, MAX_BATCH, batch)?;
        not_negative("mode.front.request_ms", self.front.request_ms)?;
        not_negative("mode.front.item_ms", self.front.item_ms)?;
        not_negative("mode.response_ms", self.response_ms)?;
        self.batch.validate()?;
        self.dynamic_batching.as_ref().map_or(Ok(()), |batcher| batcher.validate(self.max_batch_size))
    }
}

impl BatchCostSpec {
    fn validate(&self) -> Result<(), SimSpecError> {
        self.input.validate("mode.batch.input.base_ms", "mode.batch.input.item_ms")?;
        self.output.validate("mode.batch.output.base_ms", "mode.batch.output.item_ms")?;
        not_negative("mode.batch.jitter_cv", self.jitter_cv)?;
        match &self.compute {
            ComputeSpec::Affine(affine) => {
                affine.validate("mode.batch.compute.base_ms", "mode.batch.compute.item_ms")?;
                // A batch must take time, because virtual time would otherwise never advance.
                positive("mode.batch.compute", affine.ms(1))
            }
            ComputeSpec::Table(table) => table.validate(),
        }
    }
}

impl BatcherSpec {
    /// Returns the policy of a level: a separate one, else the default one.
    pub fn policy(&self, level: u32) -> QueuePolicySpec {
        let own = self.priority_queue_policy.iter().find(|policy| policy.level == level);
        own.map_or(self.default_queue_policy, |own| own.policy)
    }

    /// Returns the priority level of a request; an invalid level means the default.
    pub fn level(&self, asked: u32) -> u32 {
        if asked == 0 || asked > self.priority_levels { self.default_priority_level } else { asked }
    }

    /// Fails if Triton would refuse the configuration when it loads a model.
    fn validate(&self, max_batch_size: u32) -> Result<(), SimSpecError> {
        for &size in &self.preferred_batch_size {
            let field = "mode.dynamic_batching.preferred_batch_size";
            within(field, size, 1, max_batch_size, "from 1 to max_batch_size")?;
        }
        at_most_an_hour("mode.dynamic_batching.max_queue_delay_us", self.max_queue_delay_us)?;
        self.validate_levels()?;
        let own = self.priority_queue_policy.iter().map(|own| own.policy);
        for policy in own.chain([self.default_queue_policy]) {
            at_most_an_hour("mode.dynamic_batching.default_timeout_us", policy.default_timeout_us)?;
            let delays = policy.timeout_action == TimeoutAction::Delay && policy.default_timeout_us > 0;
            if self.preserve_ordering && delays {
                let field = "mode.dynamic_batching.timeout_action";
                return Err(range(field, "delay", "possible together with preserve_ordering"));
            }
        }
        Ok(())
    }

    fn validate_levels(&self) -> Result<(), SimSpecError> {
        let levels = self.priority_levels;
        within("mode.dynamic_batching.priority_levels", levels, 0, 1024, "a whole number from 0 to 1024")?;
        if self.preserve_ordering && levels > 1 {
            let field = "mode.dynamic_batching.priority_levels";
            return Err(range(field, levels, "at most 1, which preserve_ordering requires"));
        }
        let lowest = u32::from(levels > 0);
        let field = "mode.dynamic_batching.default_priority_level";
        within(
            field,
            self.default_priority_level,
            lowest,
            levels,
            "from 1 to priority_levels (0 without levels)",
        )?;
        for (place, own) in self.priority_queue_policy.iter().enumerate() {
            let field = "mode.dynamic_batching.priority_queue_policy.level";
            within(field, own.level, 1, levels, "from 1 to priority_levels")?;
            if self.priority_queue_policy[..place].iter().any(|before| before.level == own.level) {
                return Err(range(field, own.level, "named once"));
            }
        }
        Ok(())
    }
}

fn at_most_an_hour(field: &'static str, us: u64) -> Result<(), SimSpecError> {
    if us <= MAX_DELAY_US { Ok(()) } else { Err(range(field, us, "at most 3600000000 (an hour)")) }
}

fn one() -> u32 {
    1
}
