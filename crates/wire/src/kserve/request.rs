//! Encodes tensors into the body of an inference request, and reads the user's own bodies.
//!
//! One drawn byte determines an element ([`Tensor`]), so that a table has its JSON number. Formatting each float
//! was rejected: it costs milliseconds for a picture, which would all be lag.

use std::sync::OnceLock;

use bytes::{BufMut, BytesMut};
use plimsoll_model::{Datatype, Tensor};
use serde::Deserialize;

use crate::server::word;
use crate::template::escape;

/// Returns the path of an inference below the base URL (`…/v2`).
pub fn path(model: &str, version: Option<&str>) -> String {
    match version {
        Some(version) => format!("/models/{model}/versions/{version}/infer"),
        None => format!("/models/{model}/infer"),
    }
}

/// Returns the rows of the user's body: the first dimension of its first input.
pub fn rows(body: &str) -> Result<u32, String> {
    #[derive(Deserialize)]
    struct Body {
        inputs: Vec<Input>,
    }
    #[derive(Deserialize)]
    struct Input {
        shape: Vec<u32>,
    }
    let body: Body = serde_json::from_str(body).map_err(|why| why.to_string())?;
    let first = body.inputs.first().ok_or("it has no inputs")?;
    Ok(first.shape.first().copied().unwrap_or(1).max(1))
}

/// Writes the `inputs` of a JSON body.
pub(crate) fn inputs(tensors: &[Tensor], out: &mut String) {
    list(tensors, out, |tensor, out| {
        out.push_str(",\"data\":[");
        let spelt = spelling(tensor.datatype);
        for (i, byte) in tensor.drawn.iter().enumerate() {
            if i > 0 {
                out.push(',');
            }
            out.push_str(&spelt[usize::from(*byte)]);
        }
        out.push(']');
    });
}

/// Returns the approximate length of the JSON of the tensors, bytes.
pub(crate) fn inputs_length(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.drawn.len() * 10 + 96).sum()
}

/// Returns the `inputs` of a JSON header, and the raw bytes that follow it.
pub(crate) fn binary(tensors: &[Tensor]) -> (String, BytesMut) {
    let mut raw = BytesMut::with_capacity(tensors.iter().map(size).sum());
    let mut header = String::with_capacity(tensors.len() * 128);
    list(tensors, &mut header, |tensor, out| {
        let before = raw.len();
        put(tensor, &mut raw);
        out.push_str(",\"parameters\":{\"binary_data_size\":");
        out.push_str(&(raw.len() - before).to_string());
        out.push('}');
    });
    (header, raw)
}

pub(super) fn size(tensor: &Tensor) -> usize {
    // A string is a length of four bytes and a short word.
    tensor.drawn.len() * tensor.datatype.size().unwrap_or(12)
}

fn list(tensors: &[Tensor], out: &mut String, mut data: impl FnMut(&Tensor, &mut String)) {
    out.push('[');
    for (i, tensor) in tensors.iter().enumerate() {
        out.push_str(if i > 0 { ",{\"name\":\"" } else { "{\"name\":\"" });
        escape(&tensor.name, out);
        out.push_str("\",\"shape\":[");
        for (axis, length) in tensor.shape.iter().enumerate() {
            if axis > 0 {
                out.push(',');
            }
            out.push_str(&length.to_string());
        }
        out.push_str("],\"datatype\":\"");
        out.push_str(tensor.datatype.name());
        out.push('"');
        data(tensor, out);
        out.push('}');
    }
    out.push(']');
}

/// Returns the JSON text of the element for each of the 256 bytes.
fn spelling(datatype: Datatype) -> &'static [String; 256] {
    static TABLES: [OnceLock<[String; 256]>; 4] = [const { OnceLock::new() }; 4];
    let (table, spell): (usize, fn(u8) -> String) = match datatype {
        Datatype::Bool => (0, |b| (b & 1 == 1).to_string()),
        Datatype::Fp16 | Datatype::Fp32 | Datatype::Fp64 | Datatype::Bf16 => {
            (1, |b| (f64::from(b) / 256.0).to_string())
        }
        Datatype::Bytes => (2, |b| format!("\"{}\"", text(b))),
        _ => (3, |b| (b & 127).to_string()),
    };
    TABLES[table].get_or_init(|| std::array::from_fn(|i| spell(i as u8)))
}

fn text(byte: u8) -> &'static str {
    word(u64::from(byte)).trim_start()
}

/// Appends the raw bytes of a tensor.
pub(super) fn put(tensor: &Tensor, raw: &mut BytesMut) {
    let drawn = &tensor.drawn;
    let whole = |byte: u8| byte & 127;
    let part = |byte: u8| f32::from(byte) / 256.0;
    match tensor.datatype {
        Datatype::Bool => fill(drawn, raw, |byte| [byte & 1]),
        Datatype::Uint8 | Datatype::Int8 => fill(drawn, raw, |byte| [whole(byte)]),
        Datatype::Uint16 | Datatype::Int16 => fill(drawn, raw, |byte| u16::from(whole(byte)).to_le_bytes()),
        Datatype::Uint32 | Datatype::Int32 => fill(drawn, raw, |byte| u32::from(whole(byte)).to_le_bytes()),
        Datatype::Uint64 | Datatype::Int64 => fill(drawn, raw, |byte| u64::from(whole(byte)).to_le_bytes()),
        Datatype::Fp16 => fill(drawn, raw, |byte| half(byte).to_le_bytes()),
        Datatype::Bf16 => fill(drawn, raw, |byte| ((part(byte).to_bits() >> 16) as u16).to_le_bytes()),
        Datatype::Fp32 => fill(drawn, raw, |byte| part(byte).to_le_bytes()),
        Datatype::Fp64 => fill(drawn, raw, |byte| f64::from(part(byte)).to_le_bytes()),
        Datatype::Bytes => {
            for text in drawn.iter().map(|byte| text(*byte)) {
                raw.put_u32_le(text.len() as u32);
                raw.put_slice(text.as_bytes());
            }
        }
    }
}

/// Appends elements of `N` bytes from a table, because appending them singly to a growing buffer costs ten times as much.
fn fill<const N: usize>(drawn: &[u8], raw: &mut BytesMut, element: impl Fn(u8) -> [u8; N]) {
    let table: [[u8; N]; 256] = std::array::from_fn(|byte| element(byte as u8));
    let from = raw.len();
    raw.resize(from + drawn.len() * N, 0);
    for (place, byte) in raw[from..].chunks_exact_mut(N).zip(drawn) {
        place.copy_from_slice(&table[usize::from(*byte)]);
    }
}

/// Returns byte/256 in IEEE half precision, exactly: with e = ⌊log₂ byte⌋ the exponent is e − 8 and the rest the mantissa.
fn half(byte: u8) -> u16 {
    if byte == 0 {
        return 0;
    }
    let e = byte.ilog2();
    let mantissa = (u32::from(byte) - (1 << e)) << (10 - e);
    ((e + 15 - 8) << 10 | mantissa) as u16
}
