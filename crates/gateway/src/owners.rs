//! Replicas that keep what they made: a response, a conversation, a file, a batch. Requests that go on with one go to its replica, because others answer 404.
//!
//! The memory is bounded and forgets what was used longest ago; a request about a forgotten object goes to any replica.

use bytes::Bytes;
use http::HeaderMap;
use quick_cache::sync::Cache;

use crate::request::{hash, members, packed};

/// Objects that are remembered.
const MOST: usize = 1 << 16;
/// Bytes of an answer in which its object's name is looked for: a response begins with what it was asked.
const MOST_BYTES: usize = 1 << 20;

/// The objects that are remembered: by hashes of their names, the ids of their replicas.
pub struct Owners(Cache<u64, u64>);

impl Default for Owners {
    fn default() -> Owners {
        Owners(Cache::new(MOST))
    }
}

impl Owners {
    /// The id of the replica that made this object.
    pub fn of(&self, object: u64) -> Option<u64> {
        self.0.get(&object)
    }

    pub fn made(&self, object: u64, replica: u64) {
        self.0.insert(object, replica);
    }
}

/// An answer that may name an object that its replica keeps.
#[derive(Debug)]
pub struct MadeObject {
    /// Is it a stream of events, whose first one has the name?
    is_stream: bool,
    /// Its headers, where its bytes have to be unpacked.
    packed: Option<HeaderMap>,
    text: Vec<u8>,
}

impl MadeObject {
    /// One of which nothing has come.
    pub fn new(headers: &HeaderMap, is_stream: bool) -> MadeObject {
        let packed = packed::is_packed(headers).then(|| headers.clone());
        MadeObject { is_stream, packed, text: Vec::new() }
    }

    /// More of it came, or its end. Gives the object's hash once it is known; the answer need not be looked at after that, nor beyond the bound.
    pub fn passes(&mut self, data: &[u8], is_end: bool) -> Looked {
        self.text.extend_from_slice(data);
        if let Some(headers) = self.packed.take_if(|_| is_end) {
            let text = packed::unpacked(&Bytes::from(std::mem::take(&mut self.text)), &headers, MOST_BYTES);
            self.text = text.unwrap_or_default().into();
        }
        let read = match self.is_stream {
            true => first_event(&self.text).filter(|_| self.packed.is_none()),
            // A client goes on as soon as it has the last byte, and that may be before the end is seen here.
            false => Some(&self.text[..])
                .filter(|text| is_end || self.packed.is_none() && text.trim_ascii_end().ends_with(b"}")),
        };
        match read.map(name) {
            Some(Some(name)) => Looked::Over(Some(hash(name))),
            Some(None) if self.is_stream => Looked::Over(None),
            _ if is_end || self.text.len() > MOST_BYTES => Looked::Over(None),
            _ => Looked::On,
        }
    }
}

/// How a look at an answer goes on.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Looked {
    /// More of it has to come.
    On,
    /// It is over: the object's hash, where one was made.
    Over(Option<u64>),
}

/// The data of the first event that has some, once it is whole.
fn first_event(text: &[u8]) -> Option<&[u8]> {
    let from = memchr::memmem::find(text, b"data:")? + 5;
    let length = memchr::memchr(b'\n', &text[from..])?;
    Some(text[from..from + length].trim_ascii())
}

/// The name of the object that an answer is, or that is inside its event.
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
            if let Looked::Over(found) = made.passes(piece, false) {
                return found;
            }
        }
        match made.passes(b"", true) {
            Looked::Over(found) => found,
            Looked::On => panic!("the end is one"),
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
