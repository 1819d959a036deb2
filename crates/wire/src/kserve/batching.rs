//! Parses Triton's model configuration and statistics: the settings of the batcher, and the batches that ran.
//!
//! Unknown and missing fields are ignored, because each backend and version has its own. Numbers may be strings, as gRPC's
//! JSON writes 64-bit integers.

use std::collections::BTreeMap;
use std::str::FromStr;

use serde_json::Value;

use super::metadata::{INPUTS_MAX, NAME_MAX};
use crate::head::bounded;

/// Batch sizes from a smallest to a largest one.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct BatchRange {
    pub min: u64,
    pub max: u64,
}

impl BatchRange {
    /// Returns whether the size is in the range.
    pub fn contains(&self, size: u64) -> bool {
        (self.min..=self.max).contains(&size)
    }
}

/// The batch sizes of a compiled engine.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct CompiledBatch {
    pub range: BatchRange,
    /// Batch size that the kernels are optimised for.
    pub opt: u64,
}

impl FromStr for CompiledBatch {
    type Err = &'static str;

    /// Parses `MIN,OPT,MAX`, in rows.
    fn from_str(text: &str) -> Result<CompiledBatch, &'static str> {
        let sizes: Result<Vec<u64>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        match sizes.as_deref() {
            Ok(&[min, opt, max]) if (1..=opt).contains(&min) && opt <= max => {
                Ok(CompiledBatch { range: BatchRange { min, max }, opt })
            }
            _ => Err("write MIN,OPT,MAX of the profile in rows, such as 1,8,32"),
        }
    }
}

/// The batching part of `GET /v2/models/NAME/config`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BatchingConfig {
    /// Rows of the largest batch; 0 if the model does not batch.
    pub max_batch: u64,
    /// Settings of the dynamic batcher; `None` if it is off.
    pub dynamic: Option<DynamicBatching>,
    /// Whether the model has a sequence batcher.
    pub is_sequence: bool,
    /// Instances that execute batches, over all devices.
    pub instances: u64,
    /// Batch sizes that the TensorRT accelerator of ONNX Runtime compiles; `None` if the configuration sets no shapes.
    pub compiled: Option<CompiledBatch>,
    /// Batch sizes with a CUDA graph; empty without graphs.
    pub graphs: Vec<BatchRange>,
    /// Models that an ensemble calls; empty for other models.
    pub steps: Vec<String>,
}

/// The settings of a dynamic batcher.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct DynamicBatching {
    /// Preferred batch sizes. Triton reports `max_batch_size` if the file sets none.
    pub preferred: Vec<u64>,
    /// Longest wait for a preferred size, in µs.
    pub delay_us: u64,
    /// Most requests in the queue; 0 without a limit.
    pub max_queue: u64,
}

/// Parses `GET /v2/models/NAME/config`.
pub fn read_batching(body: &[u8]) -> Option<BatchingConfig> {
    let config: Value = serde_json::from_slice(body).ok()?;
    let max_batch = number(config.get("max_batch_size")?)?;
    let dynamic = config.get("dynamic_batching").filter(|own| own.is_object()).map(|own| DynamicBatching {
        preferred: list(own, "/preferred_batch_size").filter_map(number).collect(),
        delay_us: at(own, "/max_queue_delay_microseconds"),
        max_queue: at(own, "/default_queue_policy/max_queue_size"),
    });
    let active = list(&config, "/instance_group").filter(|group| group["passive"] != true);
    let instances = active.map(|group| {
        let devices = list(group, "/gpus").count().max(1) as u64;
        number(&group["count"]).unwrap_or(1).max(1).saturating_mul(devices)
    });
    let steps = list(&config, "/ensemble_scheduling/step").filter_map(|step| step["model_name"].as_str());
    Some(BatchingConfig {
        max_batch,
        dynamic,
        is_sequence: config.get("sequence_batching").is_some_and(Value::is_object),
        instances: instances.fold(0, u64::saturating_add).max(1),
        compiled: compiled(&config),
        graphs: list(&config, "/optimization/cuda/graph_spec").filter_map(graph).collect(),
        steps: steps.take(INPUTS_MAX).map(|name| bounded(name, NAME_MAX)).collect(),
    })
}

/// Returns the batch sizes of the accelerator's shapes, which every input must allow.
fn compiled(config: &Value) -> Option<CompiledBatch> {
    let accelerators = list(config, "/optimization/execution_accelerators/gpu_execution_accelerator");
    let parameters = accelerators.filter(|own| own["name"] == "tensorrt").find_map(|own| {
        own.get("parameters").filter(|parameters| parameters.get("trt_profile_max_shapes").is_some())
    })?;
    let sizes = |key: &str| first_lengths(parameters[key].as_str()?);
    let min = sizes("trt_profile_min_shapes")?.into_values().map(|own| own.min).max()?;
    let opt = sizes("trt_profile_opt_shapes")?.into_values().map(|own| own.max).min()?;
    let max = sizes("trt_profile_max_shapes")?.into_values().map(|own| own.max).min()?;
    Some(CompiledBatch { range: BatchRange { min, max }, opt })
}

/// Returns the range of first dimensions of each input in `name:4x3x224,…`; an input occurs once per profile.
fn first_lengths(text: &str) -> Option<BTreeMap<&str, BatchRange>> {
    let mut inputs: BTreeMap<&str, BatchRange> = BTreeMap::new();
    for shape in text.split(',') {
        let (name, lengths) = shape.trim().rsplit_once(':')?;
        let first: u64 = lengths.split('x').next()?.trim().parse().ok()?;
        let range = inputs.entry(name).or_insert(BatchRange { min: first, max: first });
        *range = BatchRange { min: range.min.min(first), max: range.max.max(first) };
    }
    Some(inputs)
}

/// Returns the sizes that one graph serves: its own, down to its lower bound.
fn graph(spec: &Value) -> Option<BatchRange> {
    let max = number(&spec["batch_size"])?;
    let min = spec.pointer("/graph_lower_bound/batch_size").and_then(number).unwrap_or(max);
    Some(BatchRange { min, max })
}

/// A number of events and the sum of their durations.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub struct TimeSum {
    pub count: u64,
    pub ns: u64,
}

impl TimeSum {
    /// Returns the mean in seconds; `None` without events.
    pub fn mean_s(&self) -> Option<f64> {
        (self.count > 0).then(|| self.ns as f64 / self.count as f64 / 1e9)
    }

    fn since(self, before: TimeSum) -> TimeSum {
        TimeSum { count: self.count.saturating_sub(before.count), ns: self.ns.saturating_sub(before.ns) }
    }
}

/// The counters of `GET /v2/models/NAME/stats` since the server started.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BatchingStats {
    /// Successful requests and their time in the server.
    pub requests: TimeSum,
    /// Requests and their time in the queue.
    pub queue: TimeSum,
    /// Rows of executed requests.
    pub rows: u64,
    pub executions: u64,
    /// Executions and their time by rows of the batch: input copies, inference and output copies.
    pub batches: BTreeMap<u64, TimeSum>,
}

impl BatchingStats {
    /// Returns the events after `before`.
    #[must_use]
    pub fn since(&self, before: &BatchingStats) -> BatchingStats {
        let batches = self.batches.iter().map(|(size, own)| {
            let earlier = before.batches.get(size).copied().unwrap_or_default();
            (*size, own.since(earlier))
        });
        BatchingStats {
            requests: self.requests.since(before.requests),
            queue: self.queue.since(before.queue),
            rows: self.rows.saturating_sub(before.rows),
            executions: self.executions.saturating_sub(before.executions),
            batches: batches.filter(|(_, own)| own.count > 0).collect(),
        }
    }
}

/// Parses `GET /v2/models/NAME/stats`. Of several versions, the highest is read: it serves requests that name none.
pub fn read_stats(body: &[u8]) -> Option<BatchingStats> {
    let answer: Value = serde_json::from_slice(body).ok()?;
    let version = |own: &&Value| own["version"].as_str().and_then(|text| text.parse::<u64>().ok());
    let own = list(&answer, "/model_stats").max_by_key(version)?;
    let sum = |of: &Value, path: &str| TimeSum {
        count: at(of, &format!("{path}/count")),
        ns: at(of, &format!("{path}/ns")),
    };
    let batches = list(own, "/batch_stats").filter_map(|batch| {
        let infer = sum(batch, "/compute_infer");
        let copies = ["/compute_input", "/compute_output"].map(|path| sum(batch, path).ns);
        let ns = copies.into_iter().fold(infer.ns, u64::saturating_add);
        Some((number(&batch["batch_size"])?, TimeSum { ns, ..infer }))
    });
    Some(BatchingStats {
        requests: sum(own, "/inference_stats/success"),
        queue: sum(own, "/inference_stats/queue"),
        rows: at(own, "/inference_count"),
        executions: at(own, "/execution_count"),
        batches: batches.collect(),
    })
}

fn number(value: &Value) -> Option<u64> {
    value.as_u64().or_else(|| value.as_str()?.parse().ok())
}

/// Returns the number at a pointer; 0 if there is none.
fn at(value: &Value, pointer: &str) -> u64 {
    value.pointer(pointer).and_then(number).unwrap_or_default()
}

fn list<'a>(value: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    value.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_is_read() {
        let config = br#"{"max_batch_size": 16, "dynamic_batching": {"preferred_batch_size": [4, 8],
            "max_queue_delay_microseconds": "500", "default_queue_policy": {"max_queue_size": 64}},
            "instance_group": [{"kind": "KIND_GPU", "count": 2, "gpus": [0, 1]}, {"count": 1, "passive": true}, {"count": 1}],
            "optimization": {"cuda": {"graphs": true, "graph_spec": [{"batch_size": 8, "graph_lower_bound": {"batch_size": 5}}]},
              "execution_accelerators": {"gpu_execution_accelerator": [{"name": "tensorrt", "parameters": {
                "trt_profile_min_shapes": "in:1x3x224,mask:2x8", "trt_profile_opt_shapes": "in:8x3x224,mask:8x8",
                "trt_profile_max_shapes": "in:32x3x224,mask:12x8"}}]}}}"#;
        let read = read_batching(config).expect("a configuration");
        let dynamic = DynamicBatching { preferred: vec![4, 8], delay_us: 500, max_queue: 64 };
        assert_eq!((read.max_batch, read.instances, read.dynamic), (16, 5, Some(dynamic)));
        // Both inputs must allow a batch: 2 and more rows of the mask, at most its 12.
        assert_eq!(read.compiled, "2,8,12".parse().ok());
        for bad in ["2,1,12", "0,1,2", "1,8", "1,9,8", "a,b,c"] {
            assert!(bad.parse::<CompiledBatch>().is_err(), "{bad}");
        }
        assert_eq!(read.graphs, [BatchRange { min: 5, max: 8 }]);
        let ensemble = br#"{"max_batch_size": 0, "ensemble_scheduling": {"step": [{"model_name": "a"}, {"model_name": "b"}]}}"#;
        let read = read_batching(ensemble).expect("a configuration");
        assert_eq!((read.steps, read.dynamic, read.instances), (vec!["a".into(), "b".into()], None, 1));
        assert_eq!(read_batching(b"{}"), None);
        assert_eq!(read_batching(b"<html>"), None);
    }

    #[test]
    fn statistics_are_read_and_subtracted() {
        let stats = |requests: u64, eights: u64| {
            let text = format!(
                r#"{{"model_stats": [{{"version": "2", "inference_count": 1}}, {{"version": "10", "inference_count": "{rows}",
                "execution_count": {eights}, "inference_stats": {{"success": {{"count": {requests}, "ns": 900}}, "queue": {{"count": {requests}, "ns": 300}}}},
                "batch_stats": [{{"batch_size": 8, "compute_input": {{"count": {eights}, "ns": 1}}, "compute_infer": {{"count": {eights}, "ns": 70}},
                "compute_output": {{"count": {eights}, "ns": 4}}}}, {{"batch_size": 1, "compute_infer": {{"count": 2, "ns": 9}}}}]}}]}}"#,
                rows = 8 * eights,
            );
            read_stats(text.as_bytes()).expect("statistics")
        };
        let after = stats(50, 7);
        assert_eq!(
            (after.rows, after.requests, after.batches[&8]),
            (56, TimeSum { count: 50, ns: 900 }, TimeSum { count: 7, ns: 75 })
        );
        let between = after.since(&stats(20, 3));
        assert_eq!((between.executions, between.rows, between.requests.count), (4, 32, 30));
        // Batches of one row ran only before.
        assert_eq!(between.batches.keys().collect::<Vec<_>>(), [&8]);
        assert_eq!(read_stats(b"{\"model_stats\": []}"), None);
    }
}
