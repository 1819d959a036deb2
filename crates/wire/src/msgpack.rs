//! MessagePack, as far as it takes to walk through values and pass over those that nobody asked for.
//!
//! Source: the MessagePack specification (msgpack/msgpack: spec.md). A crate that builds values was the alternative: it would build the token numbers of
//! every prompt, of which a digest is wanted.

/// What stands next.
#[derive(Copy, Clone, PartialEq, Debug)]
pub(crate) enum Value<'a> {
    Nil,
    Bool(bool),
    /// In two's complement: engines' names for blocks use all 64 bits, with a sign or without.
    Integer(u64),
    Float(f64),
    /// Text or bytes.
    Bytes(&'a [u8]),
    /// So many values follow.
    Array(u32),
    /// So many pairs of values follow.
    Map(u32),
    Extension,
}

/// Bytes that hold values, one after another. `None` anywhere: the bytes end in the middle of one, or are none.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Values<'a>(pub &'a [u8]);

impl<'a> Values<'a> {
    /// The next value; of a list or a map only how long it is.
    pub fn next(&mut self) -> Option<Value<'a>> {
        let [first] = self.fixed()?;
        Some(match first {
            0x00..=0x7f => Value::Integer(u64::from(first)),
            0x80..=0x8f => Value::Map(u32::from(first & 0x0f)),
            0x90..=0x9f => Value::Array(u32::from(first & 0x0f)),
            0xa0..=0xbf => Value::Bytes(self.bytes(u32::from(first & 0x1f))?),
            0xc0 => Value::Nil,
            0xc2 | 0xc3 => Value::Bool(first == 0xc3),
            0xc4 | 0xd9 => self.text(1)?,
            0xc5 | 0xda => self.text(2)?,
            0xc6 | 0xdb => self.text(4)?,
            0xc7..=0xc9 => {
                let len = self.unsigned(1 << (first - 0xc7))?;
                self.extension(u32::try_from(len).ok()?)?
            }
            0xca => Value::Float(f64::from(f32::from_be_bytes(self.fixed()?))),
            0xcb => Value::Float(f64::from_be_bytes(self.fixed()?)),
            0xcc..=0xcf => Value::Integer(self.unsigned(1 << (first - 0xcc))?),
            0xd0 => Value::Integer(i64::from(i8::from_be_bytes(self.fixed()?)) as u64),
            0xd1 => Value::Integer(i64::from(i16::from_be_bytes(self.fixed()?)) as u64),
            0xd2 => Value::Integer(i64::from(i32::from_be_bytes(self.fixed()?)) as u64),
            0xd3 => Value::Integer(i64::from_be_bytes(self.fixed()?) as u64),
            0xd4..=0xd8 => self.extension(1 << (first - 0xd4))?,
            0xdc => Value::Array(self.unsigned(2)? as u32),
            0xdd => Value::Array(self.unsigned(4)? as u32),
            0xde => Value::Map(self.unsigned(2)? as u32),
            0xdf => Value::Map(self.unsigned(4)? as u32),
            0xe0..=0xff => Value::Integer(i64::from(first as i8) as u64),
            // Never used, says the specification.
            0xc1 => return None,
        })
    }

    /// The bytes of the next value, whatever is in it. It walks and does not nest, so that no depth is too deep.
    pub fn whole(&mut self) -> Option<&'a [u8]> {
        let before = self.0;
        let mut left: u64 = 1;
        while left > 0 {
            left -= 1;
            left += match self.next()? {
                Value::Array(count) => u64::from(count),
                Value::Map(count) => 2 * u64::from(count),
                _ => 0,
            };
            // Each value takes a byte: who claims more of them than there are bytes is not followed to the end.
            if left > self.0.len() as u64 {
                return None;
            }
        }
        Some(&before[..before.len() - self.0.len()])
    }

    fn text(&mut self, bytes: usize) -> Option<Value<'a>> {
        let len = self.unsigned(bytes)?;
        Some(Value::Bytes(self.bytes(u32::try_from(len).ok()?)?))
    }

    fn extension(&mut self, len: u32) -> Option<Value<'a>> {
        let [_kind] = self.fixed()?;
        self.bytes(len)?;
        Some(Value::Extension)
    }

    fn unsigned(&mut self, bytes: usize) -> Option<u64> {
        let digits = self.bytes(bytes as u32)?;
        Some(digits.iter().fold(0, |number, digit| number << 8 | u64::from(*digit)))
    }

    fn bytes(&mut self, len: u32) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(len as usize)?;
        self.0 = rest;
        Some(bytes)
    }

    fn fixed<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (bytes, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*bytes)
    }
}

/// Writes values.
pub(crate) struct Writer<'a>(pub &'a mut Vec<u8>);

impl Writer<'_> {
    pub fn array(&mut self, count: u32) {
        self.0.push(0xdd);
        self.0.extend_from_slice(&count.to_be_bytes());
    }

    pub fn integer(&mut self, number: u64) {
        self.0.push(0xcf);
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn float(&mut self, number: f64) {
        self.0.push(0xcb);
        self.0.extend_from_slice(&number.to_be_bytes());
    }

    pub fn nil(&mut self) {
        self.0.push(0xc0);
    }

    pub fn text(&mut self, text: &str) {
        self.0.push(0xdb);
        self.0.extend_from_slice(&(text.len() as u32).to_be_bytes());
        self.0.extend_from_slice(text.as_bytes());
    }
}
