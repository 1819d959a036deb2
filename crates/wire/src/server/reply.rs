//! The content of an answer, independent of the protocol.

use bytes::BytesMut;

use super::timing::ReportedTimings;

/// A writer of one streamed answer that appends complete events to the caller's buffer.
pub trait StreamWriter {
    /// Writes the events before the first token; returns whether there are any.
    fn open(&mut self, out: &mut BytesMut) -> bool;

    /// Writes an event with the text of `tokens` tokens.
    fn token(&mut self, out: &mut BytesMut, text: &str, tokens: u32);

    /// Writes the finish reason, the usage if it was requested, and the end.
    fn close(&mut self, out: &mut BytesMut, end: &StreamEnd);

    /// Writes an error event in the middle of a stream, without an end.
    fn error(&mut self, out: &mut BytesMut, message: &str, status: u16);
}

/// The end of a streamed answer.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct StreamEnd {
    /// Finish reason: `stop` or `length`.
    pub reason: &'static str,
    /// Index of the first word of the text in the engine's vocabulary.
    pub first_word: u64,
    pub told: ReportedTimings,
}

/// The content of a whole answer.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Reply<'a> {
    /// Answer id (`chatcmpl-…`).
    pub id: &'a str,
    /// Creation time in seconds since 1970 (UTC).
    pub created_s: i64,
    pub model: &'a str,
    /// Index of the first word of the text in the engine's vocabulary.
    pub first_word: u64,
    /// Number of words in the text.
    pub tokens: u32,
    /// Finish reason: `stop` or `length`.
    pub reason: &'a str,
    /// Timings that the engine reports with the answer. The Responses API has no field for them.
    pub told: ReportedTimings,
}
