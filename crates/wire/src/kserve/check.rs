//! Validates an inference by the rules of Triton 2.51, in its order and with its messages, because clients match on them.
//!
//! The JSON is checked first, input by input: a missing or mistyped member is a 500, an unknown datatype a 400. Then the
//! request is compared with the model's declaration: number and names of inputs, equal rows, largest batch, type, shape.
//! If two inputs disagree, Triton reports the first one, because its table has the last one first; so does this module.

use std::borrow::Cow;

use plimsoll_model::Datatype;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::metadata::{DIMS_MAX, INPUTS_MAX};
use super::server::{FrontModel, InferRequest, OUTPUT, ServedInput};
use crate::head::bounded;
use crate::server::BadRequest;

/// Note that Triton appends if a shape does not match a model with batches.
const BATCH_NOTE: &str = "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be \
     prepended to each input shape. If you want to specify the full shape including the batch dim in your input dims config, \
     try setting max_batch_size to zero. See the model configuration docs for more info on max_batch_size.";

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    id: Option<Cow<'a, str>>,
    #[serde(borrow)]
    inputs: Option<&'a RawValue>,
    #[serde(borrow)]
    outputs: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parameters: Option<Parameters<'a>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct Parameters<'a> {
    #[serde(borrow)]
    priority: Option<&'a RawValue>,
    #[serde(borrow)]
    timeout: Option<&'a RawValue>,
    #[serde(borrow)]
    binary_data_size: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct RawInput<'a> {
    #[serde(borrow)]
    name: Option<&'a RawValue>,
    #[serde(borrow)]
    shape: Option<&'a RawValue>,
    #[serde(borrow)]
    datatype: Option<&'a RawValue>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
    #[serde(borrow, default)]
    parameters: Option<Parameters<'a>>,
}

/// An input of the request with the size of its data.
pub(super) struct Input {
    pub name: String,
    pub datatype: Datatype,
    pub shape: Vec<u64>,
}

fn refuse(status: u16, message: impl Into<String>) -> BadRequest {
    BadRequest { status, message: message.into(), param: None }
}

fn unparsed(member: &str, why: &str) -> BadRequest {
    refuse(500, format!("Unable to parse '{member}': {why}"))
}

/// Parses an inference. `header_length`: the value of [`super::HEADER_LENGTH`], if present.
///
/// # Errors
/// Fails with Triton's message and status.
pub fn parse(
    model: &FrontModel,
    body: &[u8],
    header_length: Option<&str>,
) -> Result<InferRequest, BadRequest> {
    let header = match header_length {
        None => body.len(),
        Some(text) => {
            text.trim().parse::<usize>().ok().filter(|n| (1..=body.len()).contains(n)).ok_or_else(|| {
                let (most, got) = (body.len(), bounded(text, 32));
                refuse(400, format!("inference header size should be in range (0, {most}), got: {got}"))
            })?
        }
    };
    let (json, mut raw) = (&body[..header], body.len() - header);
    let read: Body<'_> = serde_json::from_slice(json).map_err(|why| {
        refuse(500, format!("failed to parse the request JSON buffer: {}", bounded(&why.to_string(), 200)))
    })?;
    let id = read.id.map(|id| bounded(&id, 256)).filter(|id| !id.is_empty());
    let about = About { model, id: id.as_deref() };
    let parameters = read.parameters.unwrap_or_default();
    let (priority, timeout_us) =
        (number("priority", parameters.priority)?, number("timeout", parameters.timeout)?);
    let mut inputs: Vec<Input> = Vec::new();
    for one in list("inputs", read.inputs)? {
        let input = about.read(one, &mut raw)?;
        if inputs.iter().any(|known| known.name == input.name) {
            return Err(
                about.told(format!("input '{}' already exists in request", bounded(&input.name, 100)))
            );
        }
        inputs.push(input);
    }
    if raw > 0 {
        return Err(refuse(400, format!("unexpected additional input data for model '{}'", model.name)));
    }
    outputs(model, read.outputs)?;
    let items = about.fits(&inputs)?;
    Ok(InferRequest {
        id,
        items,
        priority: u32::try_from(priority.unwrap_or(0)).unwrap_or(u32::MAX),
        timeout_us: timeout_us.filter(|us| *us > 0),
    })
}

/// Parses a member that is a list of objects.
fn list<'a>(member: &str, raw: Option<&'a RawValue>) -> Result<Vec<&'a RawValue>, BadRequest> {
    let raw = raw.ok_or_else(|| {
        unparsed(member, &format!("attempt to access non-existing object member '{member}'"))
    })?;
    let all: Vec<&RawValue> = serde_json::from_str(raw.get())
        .map_err(|_| unparsed(member, "attempt to access JSON non-array as array"))?;
    if all.len() > INPUTS_MAX {
        return Err(refuse(400, format!("{} {member}, more than {INPUTS_MAX}", all.len())));
    }
    Ok(all)
}

fn number(member: &str, raw: Option<&RawValue>) -> Result<Option<u64>, BadRequest> {
    let Some(raw) = raw else { return Ok(None) };
    let why = "attempt to access JSON non-unsigned-integer as unsigned-integer";
    serde_json::from_str(raw.get()).map(Some).map_err(|_| unparsed(member, why))
}

fn text<'a>(member: &str, raw: Option<&'a RawValue>) -> Result<Cow<'a, str>, BadRequest> {
    let raw = raw.ok_or_else(|| {
        unparsed(member, &format!("attempt to access non-existing object member '{member}'"))
    })?;
    serde_json::from_str::<Text<'a>>(raw.get())
        .map(|text| text.0)
        .map_err(|_| unparsed(member, "attempt to access JSON non-string as string"))
}

#[derive(Deserialize)]
#[serde(transparent)]
struct Text<'a>(#[serde(borrow)] Cow<'a, str>);

/// Requested outputs must exist.
fn outputs(model: &FrontModel, raw: Option<&RawValue>) -> Result<(), BadRequest> {
    #[derive(Deserialize)]
    struct Output<'a> {
        #[serde(borrow)]
        name: Option<&'a RawValue>,
    }
    if raw.is_none() {
        return Ok(());
    }
    for one in list("outputs", raw)? {
        let why = "attempt to access non-existing object member 'name'";
        let output: Output<'_> = serde_json::from_str(one.get()).map_err(|_| unparsed("name", why))?;
        let name = text("name", output.name)?;
        if name != OUTPUT {
            let name = bounded(&name, 100);
            return Err(refuse(
                400,
                format!("unexpected inference output '{name}' for model '{}'", model.name),
            ));
        }
    }
    Ok(())
}

/// The beginning and the end of error messages about one request.
pub(super) struct About<'a> {
    pub model: &'a FrontModel,
    pub id: Option<&'a str>,
}

impl About<'_> {
    pub(super) fn told(&self, message: impl std::fmt::Display) -> BadRequest {
        refuse(400, format!("[request id: {}] {message}", self.id.unwrap_or("<id_unknown>")))
    }

    /// Parses one input and takes its part of the raw bytes.
    fn read(&self, one: &RawValue, raw: &mut usize) -> Result<Input, BadRequest> {
        let why = "attempt to access non-existing object member 'name'";
        let input: RawInput<'_> = serde_json::from_str(one.get()).map_err(|_| unparsed("name", why))?;
        let name = text("name", input.name)?;
        let datatype = text("datatype", input.datatype)?;
        let shape = shape(input.shape)?;
        let name = bounded(&name, 100);
        let datatype = Datatype::from_name(&datatype)
            .ok_or_else(|| refuse(400, format!("invalid datatype for input {name}")))?;
        let elements = shape.iter().try_fold(1u64, |all, length| all.checked_mul(*length));
        let elements = elements.filter(|_| shape.len() <= DIMS_MAX).ok_or_else(|| {
            self.told(format!("unexpected shape for input '{name}' for model '{}'", self.model.name))
        })?;
        let told = input.parameters.as_ref().and_then(|parameters| parameters.binary_data_size);
        match (told, input.data) {
            (Some(size), _) => {
                let size = number("binary_data_size", Some(size))?.unwrap_or(0);
                let fits = datatype.size().is_none_or(|each| elements.checked_mul(each as u64) == Some(size));
                let left = usize::try_from(size).ok().and_then(|size| raw.checked_sub(size)).filter(|_| fits);
                *raw = left.ok_or_else(|| {
                    refuse(400, format!("unexpected size for input '{name}' for model '{}'", self.model.name))
                })?;
            }
            (None, Some(data)) if !data.get().starts_with('[') => {
                return Err(unparsed("data", "attempt to access JSON non-array as array"));
            }
            (None, Some(data)) => {
                if scalars(data.get(), datatype).map_err(|why| unparsed("data", why))? != elements {
                    return Err(unparsed("data", "Shape does not match true shape of 'data' field"));
                }
            }
            (None, None) => {
                let why = "Input must set only one of the following fields: 'data', 'binary_data_size' in \
                     'parameters', 'shared_memory_region' in 'parameters'. But no field is set";
                return Err(refuse(400, why));
            }
        }
        Ok(Input { name, datatype, shape })
    }

    /// Compares the inputs with the model's declaration; returns the rows of the batch.
    pub(super) fn fits(&self, inputs: &[Input]) -> Result<u32, BadRequest> {
        let (model, declared) = (&self.model.name, &self.model.inputs);
        if inputs.len() != declared.len() {
            let missing = declared.iter().filter(|one| inputs.iter().all(|input| input.name != one.name));
            return Err(self.told(format!(
                "expected {} inputs but got {} inputs for model '{model}'. Got input(s) [{}], but missing required \
                 input(s) {}]. Please provide all required input(s).",
                declared.len(),
                inputs.len(),
                quoted(inputs.iter().rev().map(|input| input.name.as_str())),
                match quoted(missing.map(|one| one.name.as_str())) {
                    // Triton cuts off a comma that does not exist, and the bracket with it.
                    none if none.is_empty() => none,
                    some => format!("[{some}"),
                },
            )));
        }
        // An input without rows leaves the batch size open until another input sets it.
        let mut rows = 0;
        for input in inputs.iter().rev() {
            let name = &input.name;
            if declared.iter().all(|one| one.name != *name) {
                return Err(refuse(400, format!("unexpected inference input '{name}' for model '{model}'")));
            }
            if self.model.max_batch == 0 {
                continue;
            }
            let Some(&own) = input.shape.first() else {
                return Err(self.told(format!(
                    "input '{name}' has no shape but model requires batch dimension for '{model}'"
                )));
            };
            if rows == 0 {
                rows = own;
            } else if rows != own {
                let why = format!("input '{name}' batch size does not match other inputs for '{model}'");
                return Err(self.told(why));
            }
        }
        if self.model.max_batch > 0 && rows > u64::from(self.model.max_batch) {
            let most = self.model.max_batch;
            return Err(self.told(format!("inference request batch-size must be <= {most} for '{model}'")));
        }
        for input in inputs.iter().rev() {
            if let Some(one) = declared.iter().find(|one| one.name == input.name) {
                self.fits_one(input, one, rows.max(1))?;
            }
        }
        Ok(u32::try_from(rows.max(1)).unwrap_or(u32::MAX))
    }

    fn fits_one(&self, input: &Input, declared: &ServedInput, rows: u64) -> Result<(), BadRequest> {
        let (model, name) = (&self.model.name, &input.name);
        if input.datatype != declared.datatype {
            let (sent, own) = (input.datatype.name(), declared.datatype.name());
            return Err(self.told(format!(
                "inference input '{name}' data-type is '{sent}', but model '{model}' expects '{own}'"
            )));
        }
        let batched = self.model.max_batch > 0;
        let want: Vec<i64> = batched.then_some(-1).into_iter().chain(declared.dims.iter().copied()).collect();
        let fits = |(want, sent): (&i64, &u64)| *want == -1 || u64::try_from(*want) == Ok(*sent);
        if want.len() != input.shape.len() || !want.iter().zip(&input.shape).all(fits) {
            let note = if batched { format!(" {BATCH_NOTE}") } else { String::new() };
            return Err(self.told(format!(
                "unexpected shape for input '{name}' for model '{model}'. Expected [{}], got [{}].{note}",
                numbers(&want),
                numbers(&input.shape)
            )));
        }
        // An input without rows lacks the bytes that the model reads for the other rows of the batch.
        if batched && input.shape.first() == Some(&0) {
            let row = input.shape[1..].iter().fold(1u64, |all, length| all.saturating_mul(*length));
            let each = input.datatype.size().unwrap_or(0) as u64;
            let bytes = row.saturating_mul(each).saturating_mul(rows);
            return Err(self.told(format!(
                "input byte size mismatch for input '{name}' for model '{model}'. Expected {bytes}, got 0"
            )));
        }
        Ok(())
    }
}

fn shape(raw: Option<&RawValue>) -> Result<Vec<u64>, BadRequest> {
    let raw = raw.ok_or_else(|| unparsed("shape", "attempt to access non-existing object member 'shape'"))?;
    if !raw.get().starts_with('[') {
        return Err(unparsed("shape", "attempt to access JSON non-array as array"));
    }
    serde_json::from_str(raw.get())
        .map_err(|_| unparsed("shape", "attempt to access JSON non-unsigned-integer as unsigned-integer"))
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("'{name}'")).collect::<Vec<_>>().join(",")
}

fn numbers(all: &[impl ToString]) -> String {
    all.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// Counts the elements of this type in a JSON array of any nesting. An error is Triton's message. The text must be
/// valid JSON.
fn scalars(json: &str, datatype: Datatype) -> Result<u64, &'static str> {
    let bytes = json.as_bytes();
    let (mut count, mut at) = (0, 0);
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'[' | b']' | b',' | b' ' | b'\t' | b'\r' | b'\n' => at += 1,
            _ => {
                let end = scalar_end(bytes, at);
                is_element(&bytes[at..end], datatype)?;
                count += 1;
                at = end;
            }
        }
    }
    Ok(count)
}

/// Returns the end of the scalar (or object) that begins at `at`.
fn scalar_end(bytes: &[u8], at: usize) -> usize {
    let rest = &bytes[at..];
    if bytes[at] == b'"' {
        let mut escaped = false;
        let quote = rest.iter().skip(1).position(|byte| {
            let end = *byte == b'"' && !escaped;
            escaped = *byte == b'\\' && !escaped;
            end
        });
        return quote.map_or(bytes.len(), |quote| at + quote + 2);
    }
    let stop = rest.iter().position(|byte| matches!(byte, b']' | b',' | b' ' | b'\t' | b'\r' | b'\n'));
    stop.map_or(bytes.len(), |stop| at + stop)
}

fn is_element(token: &[u8], datatype: Datatype) -> Result<(), &'static str> {
    let digits = |token: &[u8]| !token.is_empty() && token.iter().all(u8::is_ascii_digit);
    let (is, why) = match datatype {
        Datatype::Bool => {
            (matches!(token, b"true" | b"false"), "attempt to access JSON non-boolean as boolean")
        }
        Datatype::Uint8 | Datatype::Uint16 | Datatype::Uint32 | Datatype::Uint64 => {
            (digits(token), "attempt to access JSON non-unsigned-integer as unsigned-integer")
        }
        Datatype::Int8 | Datatype::Int16 | Datatype::Int32 | Datatype::Int64 => (
            digits(token.strip_prefix(b"-").unwrap_or(token)),
            "attempt to access JSON non-signed-integer as signed-integer",
        ),
        Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Bf16 => (
            token.first().is_some_and(|byte| *byte == b'-' || byte.is_ascii_digit()),
            "attempt to access JSON non-number as double",
        ),
        Datatype::Bytes => (token.first() == Some(&b'"'), "attempt to access JSON non-string as string"),
    };
    if is { Ok(()) } else { Err(why) }
}
