//! Replicas by the stored objects that they created: responses, conversations, files and batches. Requests about an
//! object go to its replica, because other replicas respond with 404.
//!
//! The memory is bounded and evicts the least recently used object. A request about an evicted object goes to any
//! replica.

use bytes::Bytes;
use http::HeaderMap;
use quick_cache::sync::Cache;

use crate::request::{hash, members, packed};

/// Limit on the number of remembered objects.
const MOST: usize = 1 << 16;
/// Limit on the parsed bytes of a response. It is large, because a response may repeat its request before its id.
const MOST_BYTES: usize = 1 << 20;

/// Replica ids by the hash of the object id.
pub struct Owners(Cache<u64, u64>);

impl Default for Owners {
    fn default() -> Owners {
        Owners(Cache::new(MOST))
    }
}

impl Owners {
    /// Returns the id of the replica that created this object.
    pub fn of(&self, object: u64) -> Option<u64> {
        self.0.get(&object)
    }

    pub fn made(&self, object: u64, replica: u64) {
        self.0.insert(object, replica);
    }
}

/// A parser that finds the id of a created object in a response.
#[derive(Debug)]
pub struct MadeObject {
    /// Set for an event stream, whose first event contains the id.
    is_stream: bool,
    /// Headers of a compressed response; `None` if it is not compressed.
    packed: Option<HeaderMap>,
    text: Vec<u8>,
}

impl MadeObject {
    /// Returns a parser before the first byte.
    pub fn new(headers: &HeaderMap, is_stream: bool) -> MadeObject {
        let packed = packed::is_packed(headers).then(|| headers.clone());
        MadeObject { is_stream, packed, text: Vec::new() }
    }

    /// Parses more bytes, or the end. Parsing stops once the hash of the object is known or the size limit is
    /// reached.
    pub fn passes(&mut self, data: &[u8], is_end: bool) -> ObjectSearch {
        self.text.extend_from_slice(data);
        if let Some(headers) = self.packed.take_if(|_| is_end) {
            let text = packed::unpacked(&Bytes::from(std::mem::take(&mut self.text)), &headers, MOST_BYTES);
            self.text = text.unwrap_or_default().into();
        }
        let read = match self.is_stream {
            true => first_event(&self.text).filter(|_| self.packed.is_none()),
            // A client may continue as soon as it has the last byte, which can be before the end is visible here.
            false => Some(&self.text[..])
                .filter(|text| is_end || self.packed.is_none() && text.trim_ascii_end().ends_with(b"}")),
        };
        match read.map(name) {
            Some(Some(name)) => ObjectSearch::Over(Some(hash(name))),
            Some(None) if self.is_stream => ObjectSearch::Over(None),
            _ if is_end || self.text.len() > MOST_BYTES => ObjectSearch::Over(None),
            _ => ObjectSearch::On,
        }
    }
}

/// The state of the parser.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum ObjectSearch {
    /// More data is needed.
    On,
    /// Parsing is finished; contains the hash of the object if one was created.
    Over(Option<u64>),
}

/// Returns the data of the first event with data, once it is complete.
fn first_event(text: &[u8]) -> Option<&[u8]> {
    let from = memchr::memmem::find(text, b"data:")? + 5;
    let length = memchr::memchr(b'\n', &text[from..])?;
    Some(text[from..from + length].trim_ascii())
}

/// Returns the id of the object in a response or in its event.
fn name(text: &[u8]) -> Option<&[u8]> {
    let member = |text: &[u8], wanted: &[u8]| {
        let at = members(text).map_while(|member| member).find(|(key, _)| *key == wanted);
        at.map(|(_, at)| at)
    };
    let text = member(text, b"response").map_or(text, |at| &text[at]);
    let id = &text[member(text, b"id")?];
    id.strip_prefix(b"\"")?.strip_suffix(b"\"").filter(|id| !id.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(text: &str, is_stream: bool, size: usize) -> Option<u64> {
        let mut made = MadeObject::new(&HeaderMap::new(), is_stream);
        for piece in text.as_bytes().chunks(size) {
            if let ObjectSearch::Over(found) = made.passes(piece, false) {
                return found;
            }
        }
        match made.passes(b"", true) {
            ObjectSearch::Over(found) => found,
            ObjectSearch::On => panic!("the end is one"),
        }
    }

    #[test]
    fn an_object_is_known_by_its_answer_wherever_that_is_cut() {
        let whole = r#"{"output":[{"id":"msg_1"}], "id": "resp_1","object":"response"}"#;
        let stream = "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_1\"}}\n\ndata: {\"id\":\"x\"}\n\n";
        for size in [1, 7, 1_000] {
            assert_eq!(look(whole, false, size), Some(hash(b"resp_1")));
            assert_eq!(look(stream, true, size), Some(hash(b"resp_1")));
        }
        for (text, is_stream) in [
            ("{\"error\":{\"id\":\"a\"}}", false),
            ("no", false),
            ("{\"id\":null}", false),
            ("data: [DONE]\n\n", true),
            ("", true),
        ] {
            assert_eq!(look(text, is_stream, 3), None, "{text}");
        }
        assert_eq!(look(&format!("data: {{\"a\":\"{}", "x".repeat(2 << 20)), true, 4_096), None, "bounded");
    }

    #[test]
    fn the_memory_is_bounded() {
        let owners = Owners::default();
        (0..200_000).for_each(|object| owners.made(object, object + 1));
        assert_eq!(owners.of(199_999), Some(200_000));
        let kept = (0..200_000).filter(|object| owners.of(*object).is_some()).count();
        assert!((MOST / 2..=MOST + MOST / 8).contains(&kept), "{kept}");
    }
}
