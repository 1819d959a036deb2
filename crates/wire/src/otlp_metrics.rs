//! Parses OTLP metrics: the protobuf of an `ExportMetricsServiceRequest` → points, resource by resource.
//!
//! Field numbers are from `opentelemetry/proto/{collector/metrics,metrics}/v1` (stable since 1.0). Exemplars, summaries and the texts of a metric
//! are skipped. An invalid point (more buckets than bounds, a negative latency) is left out, counted, and reported to its sender.

use plimsoll_model::AttributeValue;

use crate::protobuf::{Fields, ProtobufError, Value};
use crate::trace::{TraceError, otlp};

/// Path for senders over HTTP.
pub const HTTP_PATH: &str = "/v1/metrics";
/// Path of the only gRPC method.
pub const GRPC_EXPORT: &str = "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export";

/// Limits: buckets of one point, labels of one point, and bytes of a text.
const MOST_BUCKETS: usize = 4_096;
const MOST_LABELS: usize = 128;
const LONGEST: usize = 4_096;

/// The metrics of one resource, usually a process.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct MeasuredResource {
    pub attributes: Vec<(String, String)>,
    pub points: Vec<MeasuredPoint>,
    /// Points that could not be parsed.
    pub rejected: u64,
}

#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredPoint {
    pub name: String,
    pub unit: String,
    pub labels: Vec<(String, String)>,
    /// Start of counting, ns since the unix epoch; 0 if it is not reported.
    pub start_unix: i64,
    pub at_unix: i64,
    /// Whether the point counts since the previous point; otherwise it counts since its start.
    pub is_delta: bool,
    pub value: MeasuredValue,
}

#[derive(Clone, PartialEq, Debug)]
pub enum MeasuredValue {
    /// Value at one instant.
    Gauge(f64),
    /// Monotonic count.
    Count(f64),
    Histogram(MeasuredHistogram),
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct MeasuredHistogram {
    pub count: u64,
    pub sum: Option<f64>,
    pub min: Option<f64>,
    pub max: Option<f64>,
    pub buckets: MeasuredBuckets,
}

#[derive(Clone, PartialEq, Debug)]
pub enum MeasuredBuckets {
    /// Upper bounds, inclusive, ascending; one more count than bounds.
    Explicit {
        /// Upper bounds of all but the last bucket.
        bounds: Vec<f64>,
        counts: Vec<u64>,
    },
    /// Bucket i contains values above 2^(i/2^scale) and up to 2^((i + 1)/2^scale).
    Exponential {
        /// Resolution: 2^scale buckets per doubling.
        scale: i32,
        /// Observations up to `zero_threshold`.
        zero: u64,
        /// Upper bound of the zero bucket.
        zero_threshold: f64,
        /// Index of the first bucket.
        offset: i32,
        counts: Vec<u64>,
    },
}

impl Default for MeasuredBuckets {
    fn default() -> MeasuredBuckets {
        MeasuredBuckets::Explicit { bounds: Vec::new(), counts: Vec::new() }
    }
}

/// Parses a request.
///
/// # Errors
/// Fails with [`TraceError::Protobuf`] if the bytes are not a request.
pub fn read(bytes: &[u8]) -> Result<Vec<MeasuredResource>, TraceError> {
    let mut found = Vec::new();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        if let (1, Value::Bytes(bytes)) = (field, value) {
            found.push(resource(bytes)?);
        }
    }
    Ok(found)
}

fn resource(bytes: &[u8]) -> Result<MeasuredResource, TraceError> {
    let mut found = MeasuredResource::default();
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        let mut inner = Fields::of(value.bytes());
        match field {
            1 => {
                while let Some((field, value)) = inner.next()? {
                    if field == 1 {
                        attribute(value.bytes(), &mut found.attributes)?;
                    }
                }
            }
            2 => {
                while let Some((field, value)) = inner.next()? {
                    if field == 2 {
                        metric(value.bytes(), &mut found)?;
                    }
                }
            }
            _ => {}
        }
    }
    Ok(found)
}

fn attribute(bytes: &[u8], into: &mut Vec<(String, String)>) -> Result<(), TraceError> {
    let (key, value) = otlp::key_value(bytes, 0)?;
    let mut text = match value {
        AttributeValue::Text(text) => text,
        AttributeValue::Flag(flag) => flag.to_string(),
        AttributeValue::Int(n) => n.to_string(),
        AttributeValue::Real(n) => n.to_string(),
    };
    text.truncate(text.floor_char_boundary(LONGEST));
    if into.len() < MOST_LABELS && !key.is_empty() && key.len() <= LONGEST {
        into.push((key, text));
    }
    Ok(())
}

/// Parses the points of one metric.
fn metric(bytes: &[u8], into: &mut MeasuredResource) -> Result<(), TraceError> {
    let (mut name, mut unit, mut data) = (String::new(), String::new(), None);
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => name = String::from_utf8_lossy(value.bytes()).into_owned(),
            3 => unit = String::from_utf8_lossy(value.bytes()).into_owned(),
            5 | 7 | 9 | 10 => data = Some((field, value.bytes())),
            _ => {}
        }
    }
    let Some((kind, bytes)) = data.filter(|_| name.len() <= LONGEST) else { return Ok(()) };
    let (mut temporality, mut grows, mut points) = (0, false, Vec::new());
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => points.push(value.bytes()),
            2 => temporality = value.number(),
            3 => grows = value.number() != 0,
            _ => {}
        }
    }
    for bytes in points {
        let blank = MeasuredPoint {
            name: name.clone(),
            unit: unit.clone(),
            labels: Vec::new(),
            start_unix: 0,
            at_unix: 0,
            is_delta: temporality == 1,
            value: MeasuredValue::Gauge(0.0),
        };
        let read = match kind {
            5 => number(bytes, blank, false)?,
            // A value that goes up and down is a level; its deltas have no known start value.
            7 if grows || temporality != 1 => number(bytes, blank, grows)?,
            9 => explicit(bytes, blank)?,
            10 => exponential(bytes, blank)?,
            _ => None,
        };
        match read {
            Some(point) => into.points.extend(point),
            None => into.rejected += 1,
        }
    }
    Ok(())
}

/// A parsed point; `Some(None)` if it has no value, `None` if it is invalid.
type ParsedPoint = Option<Option<MeasuredPoint>>;

fn real(value: Value<'_>) -> f64 {
    f64::from_bits(value.number())
}

fn time(value: Value<'_>) -> i64 {
    i64::try_from(value.number()).unwrap_or(i64::MAX)
}

/// Returns whether the "no recorded value" flag is set.
fn is_nothing(flags: Value<'_>) -> bool {
    flags.number() & 1 == 1
}

fn number(bytes: &[u8], mut point: MeasuredPoint, grows: bool) -> Result<ParsedPoint, TraceError> {
    let (mut held, mut nothing) = (0.0, false);
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            2 => point.start_unix = time(value),
            3 => point.at_unix = time(value),
            4 => held = real(value),
            6 => held = value.number() as i64 as f64,
            7 => attribute(value.bytes(), &mut point.labels)?,
            8 => nothing = is_nothing(value),
            _ => {}
        }
    }
    let is_sound = !grows || (held.is_finite() && held >= 0.0);
    point.value = if grows { MeasuredValue::Count(held) } else { MeasuredValue::Gauge(held) };
    Ok(is_sound.then(|| (!nothing).then_some(point)))
}

fn explicit(bytes: &[u8], mut point: MeasuredPoint) -> Result<ParsedPoint, TraceError> {
    let (mut held, mut nothing) = (MeasuredHistogram::default(), false);
    let (mut bounds, mut counts) = (Vec::new(), Vec::new());
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            2 => point.start_unix = time(value),
            3 => point.at_unix = time(value),
            4 => held.count = value.number(),
            5 => held.sum = Some(real(value)),
            6 => fixed(value, &mut counts)?,
            7 => {
                let mut bits = Vec::new();
                fixed(value, &mut bits)?;
                bounds.extend(bits.into_iter().map(f64::from_bits));
            }
            9 => attribute(value.bytes(), &mut point.labels)?,
            10 => nothing = is_nothing(value),
            11 => held.min = Some(real(value)),
            12 => held.max = Some(real(value)),
            _ => {}
        }
    }
    let ascends =
        bounds.windows(2).all(|pair| pair[0] < pair[1]) && bounds.iter().all(|edge| edge.is_finite());
    let is_sound = ascends
        && bounds.len() <= MOST_BUCKETS
        && (counts.is_empty() && bounds.is_empty() || counts.len() == bounds.len() + 1)
        && (counts.is_empty() || total(&counts) == Some(held.count));
    held.buckets = MeasuredBuckets::Explicit { bounds, counts };
    point.value = MeasuredValue::Histogram(held);
    Ok(is_sound.then(|| (!nothing).then_some(point)))
}

fn exponential(bytes: &[u8], mut point: MeasuredPoint) -> Result<ParsedPoint, TraceError> {
    let (mut held, mut nothing) = (MeasuredHistogram::default(), false);
    let (mut scale, mut zero, mut zero_threshold, mut below) = (0, 0, 0.0, 0);
    let (mut offset, mut counts) = (0, Vec::new());
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match field {
            1 => attribute(value.bytes(), &mut point.labels)?,
            2 => point.start_unix = time(value),
            3 => point.at_unix = time(value),
            4 => held.count = value.number(),
            5 => held.sum = Some(real(value)),
            6 => scale = zigzag(value.number()),
            7 => zero = value.number(),
            8 => (offset, counts) = buckets(value.bytes())?,
            9 => below = total(&buckets(value.bytes())?.1).unwrap_or(u64::MAX),
            10 => nothing = is_nothing(value),
            12 => held.min = Some(real(value)),
            13 => held.max = Some(real(value)),
            14 => zero_threshold = real(value),
            _ => {}
        }
    }
    // Scales are limited to the range of the data model.
    let is_sound = below == 0
        && counts.len() <= MOST_BUCKETS
        && (-10..=20).contains(&scale)
        && total(&counts).and_then(|count| count.checked_add(zero)) == Some(held.count);
    held.buckets = MeasuredBuckets::Exponential { scale, zero, zero_threshold, offset, counts };
    point.value = MeasuredValue::Histogram(held);
    Ok(is_sound.then(|| (!nothing).then_some(point)))
}

fn buckets(bytes: &[u8]) -> Result<(i32, Vec<u64>), ProtobufError> {
    let (mut offset, mut counts) = (0, Vec::new());
    let mut fields = Fields::of(bytes);
    while let Some((field, value)) = fields.next()? {
        match (field, value) {
            (1, value) => offset = zigzag(value.number()),
            (2, Value::Number(count)) => counts.push(count),
            (2, Value::Bytes(packed)) => Fields::of(packed).numbers(&mut counts, MOST_BUCKETS + 1)?,
            _ => {}
        }
    }
    Ok((offset, counts))
}

fn zigzag(n: u64) -> i32 {
    let n = n as u32;
    (n >> 1) as i32 ^ -((n & 1) as i32)
}

/// Parses eight-byte values, packed or not.
fn fixed(value: Value<'_>, into: &mut Vec<u64>) -> Result<(), ProtobufError> {
    match value {
        Value::Number(bits) => into.push(bits),
        Value::Bytes(packed) => {
            let (each, rest) = packed.as_chunks::<8>();
            if !rest.is_empty() {
                return Err(ProtobufError { at: packed.len(), expected: "numbers of eight bytes" });
            }
            into.extend(each.iter().take(MOST_BUCKETS + 2).map(|bytes| u64::from_le_bytes(*bytes)));
        }
    }
    Ok(())
}

fn total(counts: &[u64]) -> Option<u64> {
    counts.iter().try_fold(0_u64, |sum, count| sum.checked_add(*count))
}
