//! Converts OTLP metrics in JSON to the protobuf request, which the parser reads.
//!
//! The JSON is protobuf's own form of the messages (<https://protobuf.dev/programming-guides/json/>) with enums as numbers
//! (opentelemetry-proto: docs/specification.md). Names outside the table are skipped, as the format demands.

use serde_json::Value;

use crate::protobuf::ProtobufWriter;
use crate::trace::TraceError;
use crate::trace::id::base64;

/// The encoding of a field.
#[derive(Copy, Clone)]
enum Kind {
    Text,
    Base64,
    Bool,
    /// Any integer that is a varint, also negative.
    Integer,
    Zigzag,
    Fixed64,
    Double,
    Message(&'static [Field]),
}

/// A field: its name in JSON, its number, its encoding.
type Field = (&'static str, u32, Kind);

use Kind::{Base64, Bool, Double, Fixed64, Integer, Message, Text, Zigzag};

static ANY: [Field; 7] = [
    ("stringValue", 1, Text),
    ("boolValue", 2, Bool),
    ("intValue", 3, Integer),
    ("doubleValue", 4, Double),
    ("arrayValue", 5, Message(&VALUES)),
    ("kvlistValue", 6, Message(&PAIRS)),
    ("bytesValue", 7, Base64),
];
static VALUES: [Field; 1] = [("values", 1, Message(&ANY))];
static PAIRS: [Field; 1] = [("values", 1, Message(&PAIR))];
static PAIR: [Field; 2] = [("key", 1, Text), ("value", 2, Message(&ANY))];
static RESOURCE: [Field; 2] = [("attributes", 1, Message(&PAIR)), ("droppedAttributesCount", 2, Integer)];
static SCOPE: [Field; 4] = [
    ("name", 1, Text),
    ("version", 2, Text),
    ("attributes", 3, Message(&PAIR)),
    ("droppedAttributesCount", 4, Integer),
];

static METRICS: [Field; 1] = [("resourceMetrics", 1, Message(&RESOURCE_METRICS))];
static RESOURCE_METRICS: [Field; 3] = [
    ("resource", 1, Message(&RESOURCE)),
    ("scopeMetrics", 2, Message(&SCOPE_METRICS)),
    ("schemaUrl", 3, Text),
];
static SCOPE_METRICS: [Field; 3] =
    [("scope", 1, Message(&SCOPE)), ("metrics", 2, Message(&METRIC)), ("schemaUrl", 3, Text)];
static METRIC: [Field; 8] = [
    ("name", 1, Text),
    ("description", 2, Text),
    ("unit", 3, Text),
    ("gauge", 5, Message(&NUMBERS)),
    ("sum", 7, Message(&NUMBERS)),
    ("histogram", 9, Message(&HISTOGRAM)),
    ("exponentialHistogram", 10, Message(&EXPONENTIAL)),
    ("metadata", 12, Message(&PAIR)),
];
static NUMBERS: [Field; 3] =
    [("dataPoints", 1, Message(&NUMBER)), ("aggregationTemporality", 2, Integer), ("isMonotonic", 3, Bool)];
static NUMBER: [Field; 6] = [
    ("startTimeUnixNano", 2, Fixed64),
    ("timeUnixNano", 3, Fixed64),
    ("asDouble", 4, Double),
    ("asInt", 6, Fixed64),
    ("attributes", 7, Message(&PAIR)),
    ("flags", 8, Integer),
];
static HISTOGRAM: [Field; 2] =
    [("dataPoints", 1, Message(&BUCKETED)), ("aggregationTemporality", 2, Integer)];
static BUCKETED: [Field; 10] = [
    ("startTimeUnixNano", 2, Fixed64),
    ("timeUnixNano", 3, Fixed64),
    ("count", 4, Fixed64),
    ("sum", 5, Double),
    ("bucketCounts", 6, Fixed64),
    ("explicitBounds", 7, Double),
    ("attributes", 9, Message(&PAIR)),
    ("flags", 10, Integer),
    ("min", 11, Double),
    ("max", 12, Double),
];
static EXPONENTIAL: [Field; 2] =
    [("dataPoints", 1, Message(&SCALED)), ("aggregationTemporality", 2, Integer)];
static SCALED: [Field; 13] = [
    ("attributes", 1, Message(&PAIR)),
    ("startTimeUnixNano", 2, Fixed64),
    ("timeUnixNano", 3, Fixed64),
    ("count", 4, Fixed64),
    ("sum", 5, Double),
    ("scale", 6, Zigzag),
    ("zeroCount", 7, Fixed64),
    ("positive", 8, Message(&RUN)),
    ("negative", 9, Message(&RUN)),
    ("flags", 10, Integer),
    ("min", 12, Double),
    ("max", 13, Double),
    ("zeroThreshold", 14, Double),
];
static RUN: [Field; 2] = [("offset", 1, Zigzag), ("bucketCounts", 2, Integer)];

/// Returns the request as protobuf, without summaries and exemplars, which no caller reads.
///
/// # Errors
/// Fails if the text is not JSON, or if a field of the table has an invalid value.
pub fn to_protobuf(json: &[u8]) -> Result<Vec<u8>, TraceError> {
    let value: Value = serde_json::from_slice(json).map_err(|e| json_error(&e))?;
    let mut bytes = Vec::with_capacity(json.len() / 2);
    message(&value, &METRICS, &mut bytes).map_err(|what| TraceError::Field { what })?;
    Ok(bytes)
}

fn json_error(error: &serde_json::Error) -> TraceError {
    TraceError::Json { line: error.line(), column: error.column(), what: error.to_string() }
}

fn message(value: &Value, fields: &[Field], out: &mut Vec<u8>) -> Result<(), String> {
    let Value::Object(object) = value else {
        return Err(format!("expected an object, found {}", short(value)));
    };
    for (name, number, kind) in fields {
        let wrong = |why: String| format!("{name}: {why}");
        match object.get(*name) {
            None | Some(Value::Null) => {}
            Some(Value::Array(all)) => array(all, (*number, *kind), out).map_err(wrong)?,
            Some(one) => field(one, (*number, *kind), out).map_err(wrong)?,
        }
    }
    Ok(())
}

/// Numbers are packed; any other value is a separate field.
fn array(all: &[Value], (number, kind): (u32, Kind), out: &mut Vec<u8>) -> Result<(), String> {
    if matches!(kind, Text | Base64 | Message(_)) {
        let mut there = all.iter().filter(|one| !one.is_null());
        return there.try_for_each(|one| field(one, (number, kind), out));
    }
    let mut packed = Vec::new();
    all.iter().try_for_each(|one| scalar(one, kind, &mut packed))?;
    ProtobufWriter(out).bytes(number, &packed);
    Ok(())
}

fn field(value: &Value, (number, kind): (u32, Kind), out: &mut Vec<u8>) -> Result<(), String> {
    let text = || value.as_str().ok_or_else(|| format!("expected a text, found {}", short(value)));
    match kind {
        Text => ProtobufWriter(out).bytes(number, text()?.as_bytes()),
        Base64 => ProtobufWriter(out).bytes(number, &base64(text()?).ok_or("is no base64")?),
        Message(fields) => {
            let mut inner = Vec::new();
            message(value, fields, &mut inner)?;
            ProtobufWriter(out).bytes(number, &inner);
        }
        Bool | Integer | Zigzag | Fixed64 | Double => {
            ProtobufWriter(out).varint(u64::from(number) << 3 | wire_type(kind));
            scalar(value, kind, out)?;
        }
    }
    Ok(())
}

fn wire_type(kind: Kind) -> u64 {
    match kind {
        Fixed64 | Double => 1,
        Text | Base64 | Message(_) => 2,
        Bool | Integer | Zigzag => 0,
    }
}

/// Writes one number without a field number.
fn scalar(value: &Value, kind: Kind, out: &mut Vec<u8>) -> Result<(), String> {
    let wrong = || format!("expected a number, found {}", short(value));
    match kind {
        Bool => ProtobufWriter(out).varint(u64::from(value.as_bool().ok_or("expected true or false")?)),
        Double => out.extend(double(value).ok_or_else(wrong)?.to_le_bytes()),
        _ => {
            let number = integer(value).ok_or_else(wrong)?;
            match kind {
                Zigzag => ProtobufWriter(out).varint((number << 1 ^ number >> 63) as u64),
                Fixed64 => out.extend(number.to_le_bytes()),
                _ => ProtobufWriter(out).varint(number as u64),
            }
        }
    }
    Ok(())
}

/// Parses an integer. 64-bit integers are texts, because JSON numbers lose digits in JavaScript. Unsigned values have the bits of signed ones.
fn integer(value: &Value) -> Option<i64> {
    match value {
        Value::String(text) => text.parse().ok().or_else(|| text.parse::<u64>().ok().map(|n| n as i64)),
        number => number
            .as_i64()
            .or_else(|| number.as_u64().map(|n| n as i64))
            .or_else(|| number.as_f64().filter(|n| n.fract() == 0.0 && n.abs() < 9e15).map(|n| n as i64)),
    }
}

fn double(value: &Value) -> Option<f64> {
    match value {
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            other => other.parse().ok().filter(|value: &f64| value.is_finite()),
        },
        number => number.as_f64(),
    }
}

fn short(value: &Value) -> String {
    let mut text = value.to_string();
    if let Some((at, _)) = text.char_indices().nth(40) {
        text.truncate(at);
        text.push('…');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp_metrics;

    macro_rules! body {
        ($name:literal) => {
            &include_bytes!(concat!("../fixtures/otlp/", $name))[..]
        };
    }

    /// The bodies of an SDK, and their JSON form by protobuf's own library: both must have equal content.
    #[test]
    fn json_says_what_protobuf_says() {
        for (json, protobuf) in [
            (body!("delta_metrics.json"), body!("delta_metrics.binpb")),
            (body!("exponential_metrics.json"), body!("exponential_metrics.binpb")),
        ] {
            let written = to_protobuf(json).expect("JSON");
            let ours = otlp_metrics::read(&written).expect("protobuf");
            assert!(!ours.is_empty());
            assert_eq!(ours, otlp_metrics::read(protobuf).expect("protobuf"));
        }
    }

    fn hex(text: &str) -> Option<Vec<u8>> {
        let pair = |at| u8::from_str_radix(text.get(at..at + 2)?, 16).ok();
        (0..text.len()).step_by(2).map(pair).collect()
    }

    #[test]
    fn all_kinds_of_values_keep_what_they_are() {
        let any = |json: &str| {
            let value: Value = serde_json::from_str(json).expect("JSON");
            let mut out = Vec::new();
            message(&value, &ANY, &mut out).map(|()| out)
        };
        // protobuf 7.36.2 for Python, `AnyValue(…).SerializeToString().hex()`.
        for (json, bytes) in [
            (r#"{"stringValue": "é"}"#, "0a02c3a9"),
            (r#"{"boolValue": true, "x": [1]}"#, "1001"),
            (r#"{"intValue": "-3"}"#, "18fdffffffffffffffff01"),
            (r#"{"intValue": 300}"#, "18ac02"),
            (r#"{"doubleValue": 0.25}"#, "21000000000000d03f"),
            (
                r#"{"arrayValue": {"values": [{"intValue": 1}, {"stringValue": "a"}]}}"#,
                "2a090a0218010a030a0161",
            ),
            (r#"{"bytesValue": "AQL/"}"#, "3a030102ff"),
            (r#"{"bytesValue": "AQ=="}"#, "3a0101"),
            (
                r#"{"kvlistValue": {"values": [{"key": "k", "value": {"boolValue": true}}]}}"#,
                "32090a070a016b12021001",
            ),
        ] {
            assert_eq!(any(json), Ok(hex(bytes).expect("hex")), "{json}");
        }
        let why = any(r#"{"intValue": "many"}"#).expect_err("no number");
        assert_eq!(why, "intValue: expected a number, found \"many\"");
    }
}
