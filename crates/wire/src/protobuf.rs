//! Reads and writes the parts of protocol buffers that OTLP needs.
//!
//! Reading walks over the fields of a message and borrows from the bytes. The caller takes the field numbers that it knows
//! and skips the rest, as the format demands. A generated codec (prost and the messages of the OpenTelemetry
//! project) was rejected. It builds a struct with its own vectors for every message, which is then copied into
//! [`TraceSpan`](plimsoll_model::TraceSpan). Half of the fields of nine messages would be discarded.
//! Encoding: <https://protobuf.dev/programming-guides/encoding/>.

/// Error of bytes that are not a protobuf message.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("expected {expected} at byte {at} of a message")]
pub struct ProtobufError {
    /// Offset in bytes from the beginning of the (inner) message.
    pub at: usize,
    pub expected: &'static str,
}

/// The value of a field, by wire type.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Value<'a> {
    /// Types 0, 1 and 5: a varint, eight bytes or four bytes.
    Number(u64),
    /// Type 2: a text, bytes or a message.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    /// Returns the number; 0 for bytes.
    pub(crate) fn number(self) -> u64 {
        match self {
            Value::Number(n) => n,
            Value::Bytes(_) => 0,
        }
    }

    /// Returns the bytes; empty for a number.
    pub(crate) fn bytes(self) -> &'a [u8] {
        match self {
            Value::Number(_) => &[],
            Value::Bytes(bytes) => bytes,
        }
    }
}

/// A walk over the fields of one message. Lengths are checked against the available bytes.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    bytes: &'a [u8],
    /// Initial length of the message, for the offset in errors.
    len: usize,
}

impl<'a> Fields<'a> {
    pub(crate) fn of(bytes: &'a [u8]) -> Fields<'a> {
        Fields { bytes, len: bytes.len() }
    }

    /// Returns the next field: its number and its value. `None` at the end.
    pub(crate) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, ProtobufError> {
        if self.bytes.is_empty() {
            return Ok(None);
        }
        let tag = self.varint()?;
        let field = match u32::try_from(tag >> 3) {
            Ok(field) if field > 0 => field,
            _ => return Err(self.wrong("a field number")),
        };
        let value = match tag & 7 {
            0 => Value::Number(self.varint()?),
            1 => Value::Number(u64::from_le_bytes(self.take(8)?.try_into().unwrap_or_default())),
            2 => {
                let len = self.varint()?;
                let len = usize::try_from(len).map_err(|_| self.wrong("a length"))?;
                Value::Bytes(self.take(len)?)
            }
            5 => Value::Number(u64::from(u32::from_le_bytes(self.take(4)?.try_into().unwrap_or_default()))),
            _ => return Err(self.wrong("a wire type of protobuf 3")),
        };
        Ok(Some((field, value)))
    }

    /// Parses the rest as packed varints, at most `most`.
    pub(crate) fn numbers(mut self, into: &mut Vec<u64>, most: usize) -> Result<(), ProtobufError> {
        while !self.bytes.is_empty() && into.len() < most {
            into.push(self.varint()?);
        }
        Ok(())
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, ProtobufError> {
        if let [first, rest @ ..] = self.bytes
            && *first < 0x80
        {
            self.bytes = rest;
            return Ok(u64::from(*first));
        }
        let mut value = 0u64;
        for (place, byte) in self.bytes.iter().enumerate().take(10) {
            value |= u64::from(byte & 0x7f).checked_shl(7 * place as u32).unwrap_or(0);
            if *byte < 0x80 {
                self.bytes = &self.bytes[place + 1..];
                return Ok(value);
            }
        }
        Err(self.wrong("a number of at most ten bytes"))
    }

    #[inline]
    fn take(&mut self, len: usize) -> Result<&'a [u8], ProtobufError> {
        match self.bytes.split_at_checked(len) {
            Some((head, rest)) => {
                self.bytes = rest;
                Ok(head)
            }
            None => Err(self.wrong("as many bytes as its length field")),
        }
    }

    fn wrong(&self, expected: &'static str) -> ProtobufError {
        ProtobufError { at: self.len - self.bytes.len(), expected }
    }
}

/// A writer that appends fields to a message.
pub(crate) struct ProtobufWriter<'a>(pub(crate) &'a mut Vec<u8>);

impl ProtobufWriter<'_> {
    pub(crate) fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.0.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.0.push(value as u8);
    }

    fn tag(&mut self, field: u32, wire: u64) {
        self.varint(u64::from(field) << 3 | wire);
    }

    /// Writes a varint, including zero: the caller decides whether a default is written.
    pub(crate) fn number(&mut self, field: u32, value: u64) {
        self.tag(field, 0);
        self.varint(value);
    }

    pub(crate) fn fixed64(&mut self, field: u32, value: u64) {
        self.tag(field, 1);
        self.0.extend_from_slice(&value.to_le_bytes());
    }

    pub(crate) fn bytes(&mut self, field: u32, value: &[u8]) {
        self.tag(field, 2);
        self.varint(value.len() as u64);
        self.0.extend_from_slice(value);
    }

    /// Writes a nested message, filled by `fill`.
    pub(crate) fn message(&mut self, field: u32, fill: impl FnOnce(&mut ProtobufWriter<'_>)) {
        let mut inner = Vec::new();
        fill(&mut ProtobufWriter(&mut inner));
        self.bytes(field, &inner);
    }
}
