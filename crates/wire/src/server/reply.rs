//! What an answer says, whatever protocol's words it is given in.

use bytes::BytesMut;

use super::timing::ReportedTimings;

/// Writes one answer that streams, each event complete, into a buffer of the caller's.
pub trait StreamWriter {
    /// What comes before the first token; says whether anything does.
    fn open(&mut self, out: &mut BytesMut) -> bool;

    /// An event with the text of `tokens` tokens.
    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32);

    /// Why it ended, the usage if it was asked for, and the end.
    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd);

    /// An error in the middle: an event that says it, and no end.
    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16);
}

/// How a streamed answer ends.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct StreamEnd {
    /// Why: `stop` or `length`.
    pub reason: &'static str,
    /// Word of the engine's vocabulary that its text began with.
    pub first_word: u64,
    pub told: ReportedTimings,
}

/// What a whole answer says.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Reply<'a> {
    /// Its id (`chatcmpl-…`).
    pub id: &'a str,
    /// Seconds since 1970.
    pub created_s: i64,
    /// The model's name.
    pub model: &'a str,
    /// Word of the engine's vocabulary that its text begins with.
    pub first_word: u64,
    /// Words of its text.
    pub tokens: u32,
    /// Why it ended: `stop` or `length`.
    pub reason: &'a str,
    /// What the engine tells beside. Responses have no place for its times.
    pub told: ReportedTimings,
}
