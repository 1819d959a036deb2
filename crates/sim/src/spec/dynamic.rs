//! What a server of batches is, as its user writes it: instances, the batcher's rules, and what a batch costs.
//!
//! Names and meanings of the rules are those of Triton's model configuration, so that a `config.pbtxt` can be copied by
//! hand. Not taken over: sequence batching, ensembles, rate limits and the response cache, which are other machines.
//!
//! A request passes, in this order: the *front* (fixed cost, then its items through one shared pipe: HTTP, decoding,
//! copies, pre-processing), the batcher's queue, an instance (*input*, *compute*, *output*, once per batch), the
//! response. The front always overlaps with the instances; whether a batch's input overlaps with the compute of
//! the one before is [`Overlap`].

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::spec::error::{SpecError, not_negative, positive, range, within};

/// Largest batch that is accepted.
pub(crate) const MAX_BATCH: u32 = 1 << 16;

/// Longest queue delay or time-out that is accepted: an hour.
pub(crate) const MAX_DELAY_US: u64 = 3_600_000_000;

/// A model that computes whole batches: classifiers, embedders, rankers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DynamicSpec {
    /// Copies of the model that work side by side and share the queue (Triton: `instance_group.count`).
    #[serde(default = "one")]
    pub instances: u32,
    /// Most items in a batch; a request with more is refused (Triton: `max_batch_size`).
    pub max_batch_size: u32,
    /// The batcher's rules. Without them every request is executed alone, as by Triton's default scheduler.
    #[serde(default)]
    pub dynamic_batching: Option<BatcherSpec>,
    /// Before the queue.
    #[serde(default)]
    pub front: FrontSpec,
    /// What a batch costs on an instance.
    pub batch: BatchCostSpec,
    /// From the end of a batch to its responses, milliseconds; overlaps with everything.
    #[serde(default)]
    pub response_ms: f64,
}

/// When requests become a batch (Triton: `dynamic_batching`). The default is greedy: all that waits, up to the largest
/// batch, as soon as an instance is idle.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatcherSpec {
    /// Sizes worth having. Empty = the largest batch alone.
    #[serde(default)]
    pub preferred_batch_size: Vec<u32>,
    /// How long the oldest request may be kept waiting for a preferred size while an instance is idle, microseconds.
    #[serde(default)]
    pub max_queue_delay_us: u64,
    /// Are responses held back until all earlier ones are out?
    #[serde(default)]
    pub preserve_ordering: bool,
    /// Priority levels, 1 the highest; 0 = none.
    #[serde(default)]
    pub priority_levels: u32,
    /// The level of requests that name none, or one that is not there.
    #[serde(default)]
    pub default_priority_level: u32,
    /// The policy of levels that have none of their own.
    #[serde(default)]
    pub default_queue_policy: QueuePolicySpec,
    /// Policies of single levels.
    #[serde(default)]
    pub priority_queue_policy: Vec<LevelPolicySpec>,
}

/// The policy of one priority level.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LevelPolicySpec {
    /// The level, from 1.
    pub level: u32,
    /// Its policy.
    pub policy: QueuePolicySpec,
}

/// What happens to requests that wait (Triton: `ModelQueuePolicy`).
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct QueuePolicySpec {
    /// What is done with a request whose time is up.
    #[serde(default)]
    pub timeout_action: TimeoutAction,
    /// How long a request may wait, microseconds; 0 = for ever.
    #[serde(default)]
    pub default_timeout_us: u64,
    /// May a request bring a time-out of its own? Only a shorter one counts, so that without a default none does.
    #[serde(default)]
    pub allow_timeout_override: bool,
    /// Most requests that may wait at this level; 0 = no bound.
    #[serde(default)]
    pub max_queue_size: u32,
}

/// What is done with a request that has waited too long.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TimeoutAction {
    /// It fails with status 503.
    #[default]
    Reject,
    /// It goes behind all others of its level, and waits without a limit from then on.
    Delay,
}

/// Before the queue.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FrontSpec {
    /// Every request, milliseconds, side by side with all others.
    #[serde(default)]
    pub request_ms: f64,
    /// Every item, milliseconds, one after the other through one pipe (decoding and copying of inputs).
    #[serde(default)]
    pub item_ms: f64,
}

/// What a batch costs on an instance.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchCostSpec {
    /// Gathering the inputs and copying them to the device.
    #[serde(default)]
    pub input: AffineSpec,
    /// The model itself.
    pub compute: ComputeSpec,
    /// Copying the outputs back.
    #[serde(default)]
    pub output: AffineSpec,
    /// Does a batch's input overlap with the compute of the batch before?
    #[serde(default)]
    pub overlap: Overlap,
    /// Coefficient of variation of a factor of mean 1 (gamma) drawn for each batch's compute; 0 = none.
    #[serde(default)]
    pub jitter_cv: f64,
}

/// A time that grows with the items of the batch.
#[derive(Copy, Clone, PartialEq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AffineSpec {
    /// Every batch, milliseconds.
    #[serde(default)]
    pub base_ms: f64,
    /// Every item, milliseconds.
    #[serde(default)]
    pub item_ms: f64,
}

/// The time of the model itself.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ComputeSpec {
    /// A base and so much per item.
    Affine(AffineSpec),
    /// Measured points, with straight lines through and beyond them.
    Table(TableSpec),
}

/// Measured times of batches.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TableSpec {
    /// At least two, by ascending items.
    pub points: Vec<BatchPoint>,
}

/// One measured time.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct BatchPoint {
    /// Items in the batch.
    pub items: u32,
    /// What it took, milliseconds.
    pub ms: f64,
}

/// May the input of a batch overlap with the compute of the batch before it?
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Overlap {
    /// No: an instance takes the next batch when it is done with the last one.
    #[default]
    Serial,
    /// Yes: an instance takes the next batch when the last one begins to compute.
    Pipelined,
}

impl AffineSpec {
    /// Milliseconds for a batch of so many items.
    pub fn ms(&self, items: u32) -> f64 {
        self.base_ms + self.item_ms * f64::from(items)
    }

    fn validate(&self, base: &'static str, item: &'static str) -> Result<(), SpecError> {
        not_negative(base, self.base_ms)?;
        not_negative(item, self.item_ms)
    }
}

impl ComputeSpec {
    /// Milliseconds for a batch of so many items.
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

    fn validate(&self) -> Result<(), SpecError> {
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
    /// Milliseconds that a batch of so many items takes from its start to its end when nothing is in its way.
    pub fn ms(&self, items: u32) -> f64 {
        self.input.ms(items) + self.compute.ms(items) + self.output.ms(items)
    }
}

impl DynamicSpec {
    pub(crate) fn validate(&self) -> Result<(), SpecError> {
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
    fn validate(&self) -> Result<(), SpecError> {
        self.input.validate("mode.batch.input.base_ms", "mode.batch.input.item_ms")?;
        self.output.validate("mode.batch.output.base_ms", "mode.batch.output.item_ms")?;
        not_negative("mode.batch.jitter_cv", self.jitter_cv)?;
        match &self.compute {
            ComputeSpec::Affine(affine) => {
                affine.validate("mode.batch.compute.base_ms", "mode.batch.compute.item_ms")?;
                // A batch that takes no time would let virtual time stand still for ever.
                positive("mode.batch.compute", affine.ms(1))
            }
            ComputeSpec::Table(table) => table.validate(),
        }
    }
}

impl BatcherSpec {
    /// The policy of a level: its own, else the default one.
    pub fn policy(&self, level: u32) -> QueuePolicySpec {
        let own = self.priority_queue_policy.iter().find(|policy| policy.level == level);
        own.map_or(self.default_queue_policy, |own| own.policy)
    }

    /// The level of a request that asks for this one: one that is not there means the default.
    pub fn level(&self, asked: u32) -> u32 {
        if asked == 0 || asked > self.priority_levels { self.default_priority_level } else { asked }
    }

    /// Refuses what Triton refuses when it loads a model.
    fn validate(&self, max_batch_size: u32) -> Result<(), SpecError> {
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

    fn validate_levels(&self) -> Result<(), SpecError> {
        let levels = self.priority_levels;
        within("mode.dynamic_batching.priority_levels", levels, 0, 1024, "a whole number from 0 to 1024")?;
        if self.preserve_ordering && levels > 1 {
            let field = "mode.dynamic_batching.priority_levels";
            return Err(range(field, levels, "at most 1, which preserve_ordering asks for"));
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

fn at_most_an_hour(field: &'static str, us: u64) -> Result<(), SpecError> {
    if us <= MAX_DELAY_US { Ok(()) } else { Err(range(field, us, "at most 3600000000 (an hour)")) }
}

fn one() -> u32 {
    1
}
