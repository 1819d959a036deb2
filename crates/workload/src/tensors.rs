//! The input tensors of a KServe v2 request: which, of what shape, and drawn how.
//!
//! What a model takes is learnt from the model and then written into the scenario, so that a run is repeated with the
//! same tensors even where the model has changed. Sizes of a request count rows (`sizes.prompt`): a law of batch
//! sizes of its own would have been a second way to say the same.

use std::collections::BTreeMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Datatype, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Size, SpecError};

/// Most elements of one row: a 4K picture in three colours has half as many.
const ELEMENTS_MAX: u64 = 1 << 26;

/// The input tensors of a request.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TensorSpec {
    /// What is sent; none = what the model's metadata names.
    pub inputs: Vec<InputSpec>,
    /// Lengths by input name, for the dimensions that the model leaves open (the batch left out).
    pub shapes: BTreeMap<String, Vec<u32>>,
    /// Is the first dimension of every input the batch? None = as the model says.
    pub batched: Option<bool>,
    /// How tensors are written; none = raw where the server takes that, else JSON.
    pub encoding: Option<TensorEncoding>,
}

/// One input.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct InputSpec {
    /// Its name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its dimensions, the batch left out.
    pub dims: Vec<u32>,
}

/// How tensors are written.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TensorEncoding {
    /// As JSON numbers.
    Json,
    /// As raw bytes behind a JSON header: the binary tensor extension.
    Binary,
}

/// An input as a model declares it: its name, its type and its shape, in which −1 is open.
pub type DeclaredInput = (String, Datatype, Vec<i64>);

impl TensorSpec {
    /// Fills in what the model says of itself. `max_batch`: rows of its largest batch, 0 where it does not batch, `None`
    /// where the server does not tell. Returns what was assumed on the way, for a person.
    ///
    /// # Errors
    /// A shape that contradicts the model's, or an input that it does not have.
    pub fn resolve(
        &mut self,
        declared: &[DeclaredInput],
        max_batch: Option<u32>,
        rows: &Size,
    ) -> Result<Vec<String>, SpecError> {
        let mut notes = Vec::new();
        if self.inputs.is_empty() {
            // Without a word from the server a leading open dimension is the batch: the protocol has no other sign.
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
            // Only the open ones, or all of them.
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
                "input {name} has open dimensions {shape:?}: 1 is taken for each; say more with --shape {name}=\u{2026}"
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
            // The largest draw of the other laws is not known; the server refuses what it can't take.
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
            let want = format!("fewer rows of {row} elements: a request holds at most {ELEMENTS_MAX}");
            return Err(SpecError::value("--batch", most, &want));
        }
        Ok(())
    }

    /// The tensors of a request of so many rows, everything drawn under this key. Rows past what a request may hold are
    /// left out.
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
