//! Defines the input tensors of a KServe v2 request: names, shapes and random content.
//!
//! The inputs are read from the model's metadata and then written into the scenario. A repeated run therefore sends equal
//! tensors even if the model has changed. `sizes.prompt` is the number of rows. A separate distribution of batch sizes was
//! rejected, because it would be a second way to set that number.

use std::collections::BTreeMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Datatype, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Size, SpecError};

/// Most elements of one row: a 4K image in three colours has half as many.
const ELEMENTS_MAX: u64 = 1 << 26;

/// Input tensors of a request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TensorSpec {
    /// Inputs to send; default: all inputs in the model's metadata.
    pub inputs: Vec<InputSpec>,
    /// Lengths by input name for open dimensions, without the batch dimension.
    pub shapes: BTreeMap<String, Vec<u32>>,
    /// Set if the first dimension of every input is the batch; default: as the model reports.
    pub batched: Option<bool>,
    /// Encoding of tensors; default: binary if the server supports it, otherwise JSON.
    pub encoding: Option<TensorEncoding>,
}

/// One input tensor of the model.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Name of the input in the model.
    pub name: String,
    /// Element type of the tensor, such as `FP32`.
    pub datatype: Datatype,
    /// Dimensions of one item, without the batch.
    pub dims: Vec<u32>,
}

/// Encoding of the tensors in a request.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TensorEncoding {
    /// JSON numbers.
    Json,
    /// Raw bytes after a JSON header: the binary tensor extension.
    Binary,
}

/// An input as declared by a model: name, type and shape, where −1 is open.
pub type DeclaredInput = (String, Datatype, Vec<i64>);

impl TensorSpec {
    /// Fills in the model's metadata and returns notes on the assumptions made.
    ///
    /// `max_batch` is the number of rows of its largest batch: 0 if it does not batch, `None` if unknown.
    ///
    /// # Errors
    /// Fails if a shape contradicts the model's or an input is unknown.
    pub fn resolve(
        &mut self,
        declared: &[DeclaredInput],
        max_batch: Option<u32>,
        rows: &Size,
    ) -> Result<Vec<String>, SpecError> {
        let mut notes = Vec::new();
        if self.inputs.is_empty() {
            // Without information from the server, a leading open dimension is assumed to be the batch, because the
            // protocol has no other sign.
            let open =
                !declared.is_empty() && declared.iter().all(|(_, _, shape)| shape.first() == Some(&-1));
            let batched = *self.batched.get_or_insert(max_batch.map_or(open, |most| most > 0));
            let unknown = self.shapes.keys().find(|name| !declared.iter().any(|(known, ..)| known == *name));
            if let Some(name) = unknown {
                return Err(SpecError::UnknownValue {
                    path: "target.tensors.shapes".into(),
                    value: name.clone(),
                    allowed: declared.iter().map(|(name, ..)| name.clone()).collect(),
                    nearest: None,
                });
            }
            for (name, datatype, shape) in declared {
                let dims =
                    self.dims(name, shape.get(usize::from(batched)..).unwrap_or_default(), &mut notes)?;
                self.inputs.push(InputSpec { name: name.clone(), datatype: *datatype, dims });
            }
        }
        let batched = *self.batched.get_or_insert(max_batch.is_some_and(|most| most > 0));
        self.check(batched, max_batch, rows)?;
        Ok(notes)
    }

    fn dims(&self, name: &str, shape: &[i64], notes: &mut Vec<String>) -> Result<Vec<u32>, SpecError> {
        let given = self.shapes.get(name);
        let fits = |dims: &Vec<u32>| {
            dims.len() == shape.len()
                && dims.iter().zip(shape).all(|(dim, declared)| *declared < 0 || i64::from(*dim) == *declared)
        };
        if let Some(dims) = given {
            let open = shape.iter().filter(|length| **length < 0).count();
            // The lengths fill either the open dimensions or all of them.
            let mut filling = dims.iter();
            let filled: Option<Vec<u32>> = (dims.len() == open).then(|| {
                let fill = |n: &i64| u32::try_from(*n).ok().or_else(|| filling.next().copied());
                shape.iter().filter_map(fill).collect()
            });
            return filled.filter(fits).or_else(|| Some(dims.clone()).filter(fits)).ok_or_else(|| {
                let want =
                    format!("lengths for the model\u{2019}s {shape:?} (without the batch; -1 is open)");
                SpecError::value(&format!("target.tensors.shapes.{name}"), format!("{dims:?}"), &want)
            });
        }
        if shape.iter().any(|length| *length < 0) {
            notes.push(format!(
                "input {name} has open dimensions {shape:?}: each is set to 1; set others with --shape {name}=\u{2026}"
            ));
        }
        Ok(shape.iter().map(|length| u32::try_from(*length).unwrap_or(1)).collect())
    }

    fn check(&self, batched: bool, max_batch: Option<u32>, rows: &Size) -> Result<(), SpecError> {
        let row: u64 = self.inputs.iter().map(elements).fold(0, u64::saturating_add);
        if row > ELEMENTS_MAX {
            return Err(SpecError::value(
                "target.tensors",
                format!("{row} elements a row"),
                &format!("at most {ELEMENTS_MAX}"),
            ));
        }
        let most = match rows {
            Size::Fixed(n) | Size::Uniform(_, n) => *n,
            // The largest draw of other distributions is unknown; the server rejects batches that are too large.
            _ => 1,
        };
        let limit = max_batch.filter(|limit| *limit > 0).unwrap_or(u32::MAX);
        let limit = if batched { limit } else { 1 };
        if most > limit {
            let want = match batched {
                true => format!("at most {limit}, the model\u{2019}s largest batch"),
                false => "1: the model does not batch".to_owned(),
            };
            return Err(SpecError::value("--batch", most, &want));
        }
        if row.saturating_mul(u64::from(most)) > ELEMENTS_MAX {
            let want = format!("fewer rows of {row} elements: a request has at most {ELEMENTS_MAX}");
            return Err(SpecError::value("--batch", most, &want));
        }
        Ok(())
    }

    /// Draws the tensors of a request with `rows` rows under this key. Rows over the request limit are omitted.
    pub fn draw(&self, rows: u32, key: u64) -> Vec<Tensor> {
        let row: u64 = self.inputs.iter().map(elements).fold(0, u64::saturating_add);
        let rows = u64::from(rows.max(1)).min(ELEMENTS_MAX / row.max(1)).max(1) as u32;
        let rows = if self.batched == Some(true) { Some(rows) } else { None };
        let draw = |(index, input): (usize, &InputSpec)| {
            let shape: Vec<u32> = rows.into_iter().chain(input.dims.iter().copied()).collect();
            let count = (elements(input) * u64::from(rows.unwrap_or(1))) as usize;
            let mut stream = Stream::new(key, "tensor", index as u64);
            let mut drawn = Vec::with_capacity(count + 8);
            while drawn.len() < count {
                drawn.extend_from_slice(&stream.next_u64().to_le_bytes());
            }
            drawn.truncate(count);
            Tensor { name: input.name.clone(), datatype: input.datatype, shape, drawn }
        };
        self.inputs.iter().enumerate().map(draw).collect()
    }
}

fn elements(input: &InputSpec) -> u64 {
    input.dims.iter().fold(1, |all, length| all.saturating_mul(u64::from(*length)))
}
