//! The embedded engine's side of the messages: validates requests by the rules for HTTP (`kserve::check`) and
//! answers with zeros.

use plimsoll_model::Datatype;

use super::{Fields, ProtobufError, ProtobufWriter, numbers, shape, text};
use crate::head::bounded;
use crate::kserve::check::{About, Input};
use crate::kserve::metadata::{DIMS_MAX, INPUTS_MAX};
use crate::kserve::server::{FrontModel, InferRequest, OUTPUT, ServedInput};
use crate::protobuf::Value;
use crate::server::BadRequest;

/// Service name for gRPC's health service.
pub const SERVICE_NAME: &str = "inference.GRPCInferenceService";

fn refuse(status: u16, message: impl Into<String>) -> BadRequest {
    BadRequest { status, message: message.into(), param: None }
}

fn broken(error: ProtobufError) -> BadRequest {
    refuse(400, format!("no ModelInferRequest: {error}"))
}

/// The fields of a request before validation.
#[derive(Default)]
struct ReceivedRequest<'a> {
    model: String,
    version: String,
    id: String,
    priority: u64,
    timeout_us: u64,
    inputs: Vec<(&'a [u8], u64)>,
    outputs: Vec<String>,
    raw: Vec<&'a [u8]>,
}

impl<'a> ReceivedRequest<'a> {
    fn read(message: &'a [u8]) -> Result<ReceivedRequest<'a>, ProtobufError> {
        let mut sent = ReceivedRequest::default();
        let mut fields = Fields::of(message);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => sent.model = text(value.bytes()),
                2 => sent.version = text(value.bytes()),
                3 => sent.id = text(value.bytes()),
                4 => sent.parameter(value.bytes())?,
                5 if sent.inputs.len() <= INPUTS_MAX => {
                    sent.inputs.push((value.bytes(), elements(value.bytes())?));
                }
                6 if sent.outputs.len() < INPUTS_MAX => sent.outputs.push(first_text(value.bytes())?),
                7 if sent.raw.len() <= INPUTS_MAX => sent.raw.push(value.bytes()),
                _ => {}
            }
        }
        Ok(sent)
    }

    fn parameter(&mut self, entry: &[u8]) -> Result<(), ProtobufError> {
        let (mut name, mut number) = (&b""[..], 0);
        let mut fields = Fields::of(entry);
        while let Some((field, value)) = fields.next()? {
            match field {
                1 => name = value.bytes(),
                2 => {
                    let mut choice = Fields::of(value.bytes());
                    while let Some((_, value)) = choice.next()? {
                        number = value.number();
                    }
                }
                _ => {}
            }
        }
        match name {
            b"priority" => self.priority = number,
            b"timeout" => self.timeout_us = number,
            _ => {}
        }
        Ok(())
    }
}

/// Parses an inference.
///
/// # Errors
/// Fails with the message and the equivalent HTTP status.
pub fn parse(model: &FrontModel, message: &[u8]) -> Result<InferRequest, BadRequest> {
    let sent = ReceivedRequest::read(message).map_err(broken)?;
    if sent.model != model.name || !matches!(sent.version.as_str(), "" | "1") {
        return Err(refuse(
            404,
            format!("Request for unknown model: '{}' is not found", bounded(&sent.model, 100)),
        ));
    }
    if sent.inputs.len() > INPUTS_MAX || sent.raw.len() > INPUTS_MAX {
        return Err(refuse(400, format!("more than {INPUTS_MAX} inputs")));
    }
    let id = Some(sent.id.clone()).filter(|id| !id.is_empty());
    let about = About { model, id: id.as_deref() };
    if !sent.raw.is_empty() && sent.raw.len() != sent.inputs.len() {
        return Err(refuse(
            400,
            format!(
                "expected {} raw input contents but got {} for model '{}'",
                sent.inputs.len(),
                sent.raw.len(),
                model.name
            ),
        ));
    }
    let mut inputs: Vec<Input> = Vec::new();
    for (number, (one, typed)) in sent.inputs.iter().enumerate() {
        let input = read(&about, one, sent.raw.get(number).copied(), *typed)?;
        if inputs.iter().any(|known| known.name == input.name) {
            let name = bounded(&input.name, 100);
            return Err(about.told(format!("input '{name}' already exists in request")));
        }
        inputs.push(input);
    }
    if let Some(odd) = sent.outputs.iter().find(|name| *name != OUTPUT) {
        let odd = bounded(odd, 100);
        return Err(refuse(400, format!("unexpected inference output '{odd}' for model '{}'", model.name)));
    }
    let items = about.fits(&inputs)?;
    Ok(InferRequest {
        id,
        items,
        priority: u32::try_from(sent.priority).unwrap_or(u32::MAX),
        timeout_us: (sent.timeout_us > 0).then_some(sent.timeout_us),
    })
}

/// Parses one input and compares its data with its shape.
fn read(about: &About<'_>, message: &[u8], raw: Option<&[u8]>, typed: u64) -> Result<Input, BadRequest> {
    let (mut name, mut kind, mut dims) = (String::new(), String::new(), Vec::new());
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next().map_err(broken)? {
        match field {
            1 => name = bounded(&text(value.bytes()), 100),
            2 => kind = text(value.bytes()),
            3 => numbers(value, &mut dims).map_err(broken)?,
            _ => {}
        }
    }
    let datatype = Datatype::from_name(&kind)
        .ok_or_else(|| refuse(400, format!("invalid datatype for input {name}")))?;
    let count = dims.iter().try_fold(1u64, |all, length| all.checked_mul(*length));
    let count = count.filter(|_| dims.len() < DIMS_MAX).ok_or_else(|| {
        about.told(format!("unexpected shape for input '{name}' for model '{}'", about.model.name))
    })?;
    let fits = match (raw, datatype.size()) {
        (Some(raw), Some(each)) => count.checked_mul(each as u64) == Some(raw.len() as u64),
        (Some(raw), None) => super::texts(raw).count() as u64 == count,
        (None, _) => typed == count,
    };
    if !fits {
        return Err(refuse(
            400,
            format!("unexpected size for input '{name}' for model '{}'", about.model.name),
        ));
    }
    Ok(Input { name, datatype, shape: dims })
}

/// Returns the number of elements in the typed contents of an input.
fn elements(input: &[u8]) -> Result<u64, ProtobufError> {
    let mut count = 0;
    let mut fields = Fields::of(input);
    while let Some((field, value)) = fields.next()? {
        if field != 5 {
            continue;
        }
        let mut contents = Fields::of(value.bytes());
        while let Some((field, value)) = contents.next()? {
            count += match (field, value) {
                (8, _) | (_, Value::Number(_)) => 1,
                (6, Value::Bytes(packed)) => packed.len() as u64 / 4,
                (7, Value::Bytes(packed)) => packed.len() as u64 / 8,
                // The last byte of a varint has no high bit.
                (_, Value::Bytes(packed)) => packed.iter().filter(|byte| **byte < 0x80).count() as u64,
            };
        }
    }
    Ok(count)
}

fn first_text(message: &[u8]) -> Result<String, ProtobufError> {
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        if field == 1 {
            return Ok(text(value.bytes()));
        }
    }
    Ok(String::new())
}

/// Parses the model and the version that a request names.
pub fn model_asked(message: &[u8]) -> Result<(String, String), ProtobufError> {
    let (mut name, mut version) = (String::new(), String::new());
    let mut fields = Fields::of(message);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => name = text(value.bytes()),
            2 => version = text(value.bytes()),
            _ => {}
        }
    }
    Ok((name, version))
}

fn made(fill: impl FnOnce(&mut ProtobufWriter<'_>)) -> Vec<u8> {
    let mut bytes = Vec::new();
    fill(&mut ProtobufWriter(&mut bytes));
    bytes
}

/// Encodes a `ModelInferResponse`: zeros of the declared shape. `is_last` marks the final response.
pub fn response(asked: &InferRequest, model: &FrontModel, is_last: bool) -> Vec<u8> {
    let rows = if model.max_batch == 0 { 1 } else { asked.items };
    let dims = if model.max_batch > 0 { vec![rows, 1] } else { vec![1] };
    made(|pen| {
        pen.bytes(1, model.name.as_bytes());
        pen.bytes(2, b"1");
        if let Some(id) = &asked.id {
            pen.bytes(3, id.as_bytes());
        }
        if is_last {
            super::parameter(4, "triton_final_response", &true.into(), pen);
        }
        pen.message(5, |output| {
            output.bytes(1, OUTPUT.as_bytes());
            output.bytes(2, Datatype::Fp32.name().as_bytes());
            shape(3, &dims, output);
        });
        pen.bytes(6, &vec![0; 4 * rows as usize]);
    })
}

/// Wraps a response in a `ModelStreamInferResponse`.
pub fn streamed(response: &[u8]) -> Vec<u8> {
    made(|pen| pen.bytes(2, response))
}

/// Encodes a `ModelStreamInferResponse` of a failed inference.
pub fn streamed_error(why: &str) -> Vec<u8> {
    made(|pen| pen.bytes(1, why.as_bytes()))
}

/// Encodes a `ServerReadyResponse`, or an equal message such as `ModelReadyResponse`.
pub fn ready(is_ready: bool) -> Vec<u8> {
    made(|pen| {
        if is_ready {
            pen.number(1, 1);
        }
    })
}

/// Encodes a `ServerMetadataResponse`.
pub fn server(name: &str, version: &str) -> Vec<u8> {
    made(|pen| {
        pen.bytes(1, name.as_bytes());
        pen.bytes(2, version.as_bytes());
        for extension in ["model_repository", "schedule_policy", "model_configuration", "parameters"] {
            pen.bytes(3, extension.as_bytes());
        }
    })
}

/// Encodes a `ModelMetadataResponse`.
pub fn metadata(model: &FrontModel) -> Vec<u8> {
    let of = |pen: &mut ProtobufWriter<'_>, field: u32, one: &ServedInput| {
        pen.message(field, |tensor| {
            tensor.bytes(1, one.name.as_bytes());
            tensor.bytes(2, one.datatype.name().as_bytes());
            let rows = (model.max_batch > 0).then_some(-1);
            let mut packed = Vec::new();
            // A variable length is a negative number: ten bytes.
            rows.into_iter()
                .chain(one.dims.iter().copied())
                .for_each(|dim| ProtobufWriter(&mut packed).varint(dim as u64));
            tensor.bytes(3, &packed);
        });
    };
    made(|pen| {
        pen.bytes(1, model.name.as_bytes());
        pen.bytes(2, b"1");
        pen.bytes(3, b"plimsoll_engine");
        model.inputs.iter().for_each(|input| of(pen, 4, input));
        of(pen, 5, &ServedInput { name: OUTPUT.into(), datatype: Datatype::Fp32, dims: vec![1] });
    })
}

/// Encodes the fields of a `ModelConfigResponse` that clients read: the name, the backend, the largest batch.
pub fn config(model: &FrontModel) -> Vec<u8> {
    made(|pen| {
        pen.message(1, |config| {
            config.bytes(1, model.name.as_bytes());
            if model.max_batch > 0 {
                config.number(4, u64::from(model.max_batch));
            }
            config.bytes(17, b"plimsoll_engine");
        });
    })
}

/// Encodes a `RepositoryIndexResponse`.
pub fn index(model: &FrontModel) -> Vec<u8> {
    made(|pen| {
        pen.message(1, |entry| {
            entry.bytes(1, model.name.as_bytes());
            entry.bytes(2, b"1");
            entry.bytes(3, b"READY");
        });
    })
}
