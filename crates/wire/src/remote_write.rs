//! Prometheus' remote write 1.0: the body of a request → series with their samples.
//!
//! A body is a snappy block around a protobuf `WriteRequest`. Lengths are believed only as far as there are bytes, and the block's own length is
//! looked at before it is unpacked. Metadata, exemplars and native histograms are passed over: what is read here are classic series.
//! Source: Prometheus Remote-Write Specification 1.0; `prompb/remote.proto`, `prompb/types.proto`.

use crate::protobuf::{Fields, ProtobufError, Value};

/// Where a sender posts to.
pub const PATH: &str = "/api/v1/write";

/// The value by which Prometheus says that a series has ended; a NaN, told from others by its bits.
pub const STALE: u64 = 0x7ff0_0000_0000_0002;

/// Labels of one series, and the longest name or value, bytes: more is not Prometheus' doing.
const MOST_LABELS: usize = 128;
const LONGEST: usize = 4_096;

/// One series of a request.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct WrittenSeries {
    /// Its name.
    pub name: String,
    /// Its other labels, in the sender's order.
    pub labels: Vec<(String, String)>,
    /// Instant, ns since the unix epoch, and value, in the sender's order; `None` = the series has ended.
    pub samples: Vec<(i64, Option<f64>)>,
}

/// Why a body is none.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum RemoteWriteError {
    /// It is no snappy block.
    #[error("the body is not snappy's block format (as Prometheus sends it): {0}")]
    Snappy(String),
    /// It is larger than allowed once unpacked.
    #[error("the body unpacks to {0} bytes, which is more than allowed; lower max_samples_per_send")]
    TooLarge(usize),
    /// What is in it is no `WriteRequest`.
    #[error("not a remote-write 1.0 request: {0}")]
    Protobuf(#[from] ProtobufError),
    /// A series has no name, or more or longer labels than anybody has.
    #[error("not a remote-write 1.0 request: a series {0}")]
    Series(&'static str),
}

/// Reads a body. `most`: bytes that it may have once unpacked.
///
/// # Errors
/// [`RemoteWriteError`]; a part of a request is none.
pub fn read(body: &[u8], most: usize) -> Result<Vec<WrittenSeries>, RemoteWriteError> {
    let wrong = |e: snap::Error| RemoteWriteError::Snappy(e.to_string());
    let len = snap::raw::decompress_len(body).map_err(wrong)?;
    if len > most {
        return Err(RemoteWriteError::TooLarge(len));
    }
    let message = snap::raw::Decoder::new().decompress_vec(body).map_err(wrong)?;
    let mut found = Vec::new();
    let mut fields = Fields::of(&message);
    while let Some((field, value)) = fields.next()? {
        if let (1, Value::Bytes(bytes)) = (field, value) {
            found.push(series(bytes)?);
        }
    }
    Ok(found)
}

fn series(bytes: &[u8]) -> Result<WrittenSeries, RemoteWriteError> {
    let mut series = WrittenSeries::default();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => {
                let (name, value) = label(value.bytes())?;
                match name.as_str() {
                    "__name__" => series.name = value,
                    _ if series.labels.len() >= MOST_LABELS => {
                        return Err(RemoteWriteError::Series("has more than 128 labels"));
                    }
                    _ => series.labels.push((name, value)),
                }
            }
            2 => series.samples.push(sample(value.bytes())?),
            _ => {}
        }
    }
    match series.name.is_empty() {
        true => Err(RemoteWriteError::Series("has no name")),
        false => Ok(series),
    }
}

fn label(bytes: &[u8]) -> Result<(String, String), RemoteWriteError> {
    let (mut name, mut value) = (String::new(), String::new());
    let mut fields = Fields::of(bytes);
    while let Some((field, held)) = fields.next()? {
        let text = String::from_utf8_lossy(held.bytes());
        if text.len() > LONGEST {
            return Err(RemoteWriteError::Series("has a label of more than 4096 bytes"));
        }
        match field {
            1 => name = text.into_owned(),
            2 => value = text.into_owned(),
            _ => {}
        }
    }
    Ok((name, value))
}

fn sample(bytes: &[u8]) -> Result<(i64, Option<f64>), ProtobufError> {
    // A field that is left out is zero.
    let (mut bits, mut at_ms) = (0, 0);
    let mut fields = Fields::of(bytes);
    while let Some((field, held)) = fields.next()? {
        match field {
            1 => bits = held.number(),
            2 => at_ms = held.number() as i64,
            _ => {}
        }
    }
    Ok((at_ms.saturating_mul(1_000_000), (bits != STALE).then(|| f64::from_bits(bits))))
}
