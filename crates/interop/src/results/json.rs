//! Parses JSON as other tools write it: `NaN` and `Infinity` as numbers, and truncated files.
//!
//! `serde_json` rejects both. The parsed value is a view of the bytes: a number stays text until a caller reads it.
//! Epoch nanoseconds do not fit a float, and only the caller knows the type. A truncated document is parsed to its end:
//! unclosed containers carry a mark, and a truncated scalar is left out.

use std::borrow::Cow;

use plimsoll_wire::instant::{FURTHEST, decimal_ns};

/// Limit of nesting, which bounds the stack; no result file reaches it.
const DEPTH: usize = 96;

/// A JSON value, as a view of the bytes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Json<'a> {
    /// `null`, `NaN`, or an invalid number.
    Null,
    Flag(bool),
    /// A number in its original text, including `Infinity` and `-Infinity`.
    Number(&'a str),
    Text(Cow<'a, str>),
    List(Vec<Json<'a>>),
    /// Fields in the order of the file; false if the file ends within the object.
    Map(Vec<(Cow<'a, str>, Json<'a>)>, bool),
}

/// Position of a syntax error in a document, and the expected token.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct BrokenJson {
    /// Byte offset in the document, from 0.
    pub at: usize,
    pub expected: &'static str,
}

/// A document, and whether it is complete.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Document<'a> {
    pub root: Json<'a>,
    pub whole: bool,
    pub used: usize,
}

/// Parses the document at the start of `bytes`.
pub(crate) fn read(bytes: &[u8]) -> Result<Document<'_>, BrokenJson> {
    let mut reader = Reader { bytes, at: 0, cut: false };
    let root = match reader.value(0)? {
        Some(root) => root,
        None if reader.cut => Json::Null,
        None => return Err(reader.broken("a JSON value")),
    };
    Ok(Document { root, whole: !reader.cut, used: reader.at })
}

impl<'a> Json<'a> {
    /// Returns the field of this name; `Null` if it is missing.
    pub(crate) fn get(&self, name: &str) -> &Json<'a> {
        let found = self.fields().iter().find(|(key, _)| key == name);
        found.map_or(&Json::Null, |(_, value)| value)
    }

    /// Returns the field at the end of this path.
    pub(crate) fn at(&self, path: &[&str]) -> &Json<'a> {
        path.iter().fold(self, |json, name| json.get(name))
    }

    /// Returns whether the object has a field of this name, with any value.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.fields().iter().any(|(key, _)| key == name)
    }

    pub(crate) fn fields(&self) -> &[(Cow<'a, str>, Json<'a>)] {
        match self {
            Json::Map(fields, _) => fields,
            _ => &[],
        }
    }

    pub(crate) fn items(&self) -> &[Json<'a>] {
        match self {
            Json::List(items) => items,
            _ => &[],
        }
    }

    /// Returns the number, also from a text (including `"inf"`).
    pub(crate) fn number(&self) -> Option<f64> {
        match self {
            Json::Number(text) => real(text),
            Json::Text(text) => real(text.trim()),
            _ => None,
        }
    }

    /// Returns the number if it is finite.
    pub(crate) fn finite(&self) -> Option<f64> {
        self.number().filter(|n| n.is_finite())
    }

    /// Returns a whole number with full precision.
    pub(crate) fn int(&self) -> Option<i64> {
        match self {
            Json::Number(text) => text.parse().ok().or_else(|| whole(real(text)?)).filter(is_near),
            _ => None,
        }
    }

    pub(crate) fn count(&self) -> Option<u32> {
        self.int().and_then(|n| u32::try_from(n).ok())
    }

    /// Returns seconds as ns, from the digits, because a float of epoch seconds is off by hundreds of ns.
    pub(crate) fn seconds_ns(&self) -> Option<i64> {
        match self {
            Json::Number(text) => decimal_ns(text).or_else(|| whole(real(text)? * 1e9)).filter(is_near),
            _ => None,
        }
    }

    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Json::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(crate) fn is_map(&self) -> bool {
        matches!(self, Json::Map(..))
    }

    /// Returns whether the file ended within the value.
    pub(crate) fn is_cut(&self) -> bool {
        matches!(self, Json::Map(_, false))
    }

    /// Returns the finite numbers of a list.
    pub(crate) fn numbers(&self) -> Vec<f64> {
        self.items().iter().filter_map(Json::finite).collect()
    }
}

/// Parses a number; Rust accepts `inf`, `Infinity` and `NaN` in any case, and NaN is rejected here.
fn real(text: &str) -> Option<f64> {
    text.parse().ok().filter(|n: &f64| !n.is_nan())
}

/// Returns whether the instant is small enough for a difference without overflow.
fn is_near(n: &i64) -> bool {
    n.unsigned_abs() <= FURTHEST.unsigned_abs()
}

fn whole(n: f64) -> Option<i64> {
    (n.is_finite() && n.abs() < 9.2e18).then_some(n.round() as i64)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    /// Whether the bytes ended before the document did.
    cut: bool,
}

impl<'a> Reader<'a> {
    fn broken(&self, expected: &'static str) -> BrokenJson {
        BrokenJson { at: self.at, expected }
    }

    /// Returns the next byte that is not a space; `None` marks the document as truncated.
    fn peek(&mut self) -> Option<u8> {
        while let Some(byte) = self.bytes.get(self.at) {
            match byte {
                b' ' | b'\t' | b'\r' | b'\n' => self.at += 1,
                byte => return Some(*byte),
            }
        }
        self.cut = true;
        None
    }

    /// Parses a value; `None` if the bytes end within a scalar.
    fn value(&mut self, depth: usize) -> Result<Option<Json<'a>>, BrokenJson> {
        if depth > DEPTH {
            return Err(self.broken("fewer levels of nesting"));
        }
        match self.peek() {
            None => Ok(None),
            Some(b'{') => self.map(depth).map(Some),
            Some(b'[') => self.list(depth).map(Some),
            Some(b'"') => Ok(self.string()?.map(Json::Text)),
            Some(_) => self.word(),
        }
    }

    fn map(&mut self, depth: usize) -> Result<Json<'a>, BrokenJson> {
        self.at += 1;
        let mut fields = Vec::new();
        loop {
            match self.peek() {
                None => return Ok(Json::Map(fields, false)),
                Some(b'}') => break,
                Some(b',') if !fields.is_empty() => {
                    self.at += 1;
                    continue;
                }
                Some(b'"') => {}
                Some(_) => return Err(self.broken("a field's name in quotes, or }")),
            }
            let Some(key) = self.string()? else { return Ok(Json::Map(fields, false)) };
            match self.peek() {
                None => return Ok(Json::Map(fields, false)),
                Some(b':') => self.at += 1,
                Some(_) => return Err(self.broken("a colon")),
            }
            match self.value(depth + 1)? {
                Some(value) => fields.push((key, value)),
                None => return Ok(Json::Map(fields, false)),
            }
            if self.cut {
                return Ok(Json::Map(fields, false));
            }
            if !matches!(self.peek(), None | Some(b',' | b'}')) {
                return Err(self.broken("a comma, or }"));
            }
        }
        self.at += 1;
        Ok(Json::Map(fields, true))
    }

    fn list(&mut self, depth: usize) -> Result<Json<'a>, BrokenJson> {
        self.at += 1;
        let mut items = Vec::new();
        loop {
            match self.peek() {
                None => return Ok(Json::List(items)),
                Some(b']') => break,
                Some(b',') if !items.is_empty() => {
                    self.at += 1;
                    continue;
                }
                Some(_) => {}
            }
            match self.value(depth + 1)? {
                Some(value) => items.push(value),
                None => return Ok(Json::List(items)),
            }
            if self.cut {
                return Ok(Json::List(items));
            }
            if !matches!(self.peek(), None | Some(b',' | b']')) {
                return Err(self.broken("a comma, or ]"));
            }
        }
        self.at += 1;
        Ok(Json::List(items))
    }

    /// Parses a string; `None` if the bytes end within it.
    fn string(&mut self) -> Result<Option<Cow<'a, str>>, BrokenJson> {
        let from = self.at + 1;
        let mut end = from;
        let mut escaped = false;
        loop {
            let rest = self.bytes.get(end..).unwrap_or_default();
            match memchr::memchr2(b'"', b'\\', rest) {
                None => {
                    (self.at, self.cut) = (self.bytes.len(), true);
                    return Ok(None);
                }
                Some(n) if rest.get(n) == Some(&b'"') => {
                    end += n;
                    break;
                }
                Some(n) => (end, escaped) = (end + n + 2, true),
            }
        }
        self.at = end + 1;
        let raw = self.bytes.get(from..end).unwrap_or_default();
        let text = String::from_utf8_lossy(raw);
        Ok(Some(if escaped { Cow::Owned(unescaped(&text)) } else { text }))
    }

    /// Returns the characters of a number without parsing them. The caller parses them once; an invalid number is `None` then.
    fn digits(&mut self, rest: &'a [u8]) -> Option<Json<'a>> {
        let is_part = |b: &u8| matches!(b, b'0'..=b'9' | b'.' | b'-' | b'+' | b'e' | b'E');
        let long = rest.iter().position(|b| !is_part(b))?;
        let is_end =
            rest.get(long).is_some_and(|b| matches!(b, b',' | b']' | b'}' | b' ' | b'\n' | b'\r' | b'\t'));
        let text = rest.get(..long).and_then(|text| std::str::from_utf8(text).ok()).filter(|_| is_end)?;
        self.at += long;
        Some(Json::Number(text))
    }

    fn word(&mut self) -> Result<Option<Json<'a>>, BrokenJson> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let is_negative =
            |rest: &[u8]| rest.first() == Some(&b'-') && rest.get(1).is_some_and(u8::is_ascii_digit);
        if (rest.first().is_some_and(u8::is_ascii_digit) || is_negative(rest))
            && let Some(number) = self.digits(rest)
        {
            return Ok(Some(number));
        }
        let is_part = |b: &u8| b.is_ascii_alphanumeric() || matches!(b, b'+' | b'-' | b'.');
        let long = rest.iter().position(|b| !is_part(b)).unwrap_or(rest.len());
        if long == rest.len() {
            (self.at, self.cut) = (self.bytes.len(), true);
            return Ok(None);
        }
        let word = rest.get(..long).and_then(|word| std::str::from_utf8(word).ok()).unwrap_or_default();
        let value = match word {
            "null" | "NaN" => Json::Null,
            "true" => Json::Flag(true),
            "false" => Json::Flag(false),
            "Infinity" | "-Infinity" => Json::Number(word),
            _ if word.starts_with(|c: char| c.is_ascii_digit() || c == '-')
                && word.parse::<f64>().is_ok() =>
            {
                Json::Number(word)
            }
            _ => return Err(self.broken("a value")),
        };
        self.at += long;
        Ok(Some(value))
    }
}

fn unescaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        if letter != '\\' {
            out.push(letter);
            continue;
        }
        match letters.next() {
            Some('n') => out.push('\n'),
            Some('t') => out.push('\t'),
            Some('r') => out.push('\r'),
            Some('u') => {
                let code: String = letters.by_ref().take(4).collect();
                let code = u32::from_str_radix(&code, 16).ok().and_then(char::from_u32);
                out.push(code.unwrap_or('\u{fffd}'));
            }
            Some(other) => out.push(other),
            None => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_json_forbids_are_read() {
        let read = read(br#"{"a": Infinity, "b": NaN, "c": "inf", "d": -1.5e3}"#).expect("lenient").root;
        assert_eq!(read.get("a").number(), Some(f64::INFINITY));
        assert_eq!(read.get("b"), &Json::Null);
        assert_eq!(read.get("c").number(), Some(f64::INFINITY));
        assert_eq!(read.get("d").number(), Some(-1500.0));
    }

    #[test]
    fn a_document_that_was_cut_is_read_as_far_as_it_goes() {
        let whole = br#"{"rows": [{"a": 1, "b": "x"}, {"a": 23, "b": "y"}], "n": 2}"#;
        for end in 1..whole.len() {
            let document = read(&whole[..end]).expect("no prefix breaks");
            assert!(!document.whole, "{end}");
            let rows = document.root.get("rows").items();
            let whole_rows = rows.iter().filter(|row| !row.is_cut()).count();
            assert!(whole_rows <= 2 && rows.len() - whole_rows <= 1);
        }
        assert!(read(whole).expect("whole").whole);
    }

    #[test]
    fn a_document_that_breaks_says_where() {
        let broken = read(br#"{"a": 1 "b": 2}"#).expect_err("no comma");
        assert_eq!((broken.at, broken.expected), (8, "a comma, or }"));
        assert!(read(&[b'['; 4096]).is_err());
    }

    #[test]
    fn seconds_are_exact_to_the_nanosecond() {
        let read = read(b"[1795404494.0524008, 1.5e0, -0.25, 3.9999999999]").expect("numbers").root;
        let ns: Vec<_> = read.items().iter().map(|n| n.seconds_ns().expect("a time")).collect();
        assert_eq!(ns, [1_795_404_494_052_400_800, 1_500_000_000, -250_000_000, 4_000_000_000]);
    }
}
