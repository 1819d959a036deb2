//! Measurements of the isolated model by other tools, as a lower bound of a stage on this hardware.
//!
//! Two files are supported: the times of TensorRT's `trtexec --exportTimes` (one object per inference, ms), and the
//! result of `vllm bench latency --output-json` (seconds).

use serde_json::Value;

use super::finding::{FloorFinding, PathFinding, ProfiledLatency};
use super::stage::Stage;

/// A measurement of the isolated model.
#[derive(Clone, PartialEq, Debug)]
pub struct ModelFloor {
    pub from: &'static str,
    /// One duration per iteration, s.
    pub seconds: Vec<f64>,
    against: Against,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Against {
    /// Time of a model that does not generate.
    Compute,
    /// Prefill and decode together.
    Generation,
}

impl ModelFloor {
    /// Parses the JSON of one of the tools.
    pub fn read(value: &Value) -> Result<ModelFloor, String> {
        let numbers = |list: &[Value]| -> Vec<f64> {
            list.iter().filter_map(Value::as_f64).filter(|s| s.is_finite() && *s > 0.0).collect()
        };
        if let Some(latencies) = value.get("latencies").and_then(Value::as_array) {
            let seconds = numbers(latencies);
            if !seconds.is_empty() {
                return Ok(ModelFloor { from: "vllm bench latency", seconds, against: Against::Generation });
            }
        }
        if let Some(times) = value.as_array() {
            let compute = times.iter().filter_map(|one| one.get("computeMs").and_then(Value::as_f64));
            let seconds: Vec<f64> =
                compute.map(|ms| ms / 1e3).filter(|s| s.is_finite() && *s > 0.0).collect();
            if !seconds.is_empty() {
                return Ok(ModelFloor { from: "trtexec", seconds, against: Against::Compute });
            }
        }
        Err("is neither the times of trtexec (--exportTimes: a list with computeMs) nor the result of vllm bench latency \
             (--output-json: an object with latencies)"
            .to_owned())
    }

    /// Compares the profile with the measurement.
    pub fn against(&self, path: Option<&PathFinding>) -> FloorFinding {
        let stages: &[Stage] = match self.against {
            Against::Compute => &[Stage::Compute],
            Against::Generation => &[Stage::Prefill, Stage::Decode],
        };
        let mut sorted = self.seconds.clone();
        plimsoll_math::quantile::sort(&mut sorted);
        let floor_s = plimsoll_math::quantile::of_sorted(&sorted, 0.5).unwrap_or(f64::NAN);
        let means = path.into_iter().flat_map(|path| {
            debug_assert!(path.of == ProfiledLatency::E2e, "a floor is of the whole answer");
            path.stages.iter().filter(|found| stages.contains(&found.stage)).map(|found| found.times.mean_s)
        });
        let measured_s = means.reduce(|a, b| a + b);
        let names: Vec<&str> = stages.iter().map(|stage| stage.name()).collect();
        FloorFinding {
            from: self.from.to_owned(),
            against: names.join(" + "),
            n: self.seconds.len() as u64,
            floor_s,
            measured_s,
            ratio: measured_s.map(|s| s / floor_s),
        }
    }
}
