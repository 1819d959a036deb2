//! Parses the answer of an inference over gRPC: messages from pieces of any size, and the status in the trailers.
//!
//! The response of a unary call is one event at the end of the call, like a whole answer over HTTP. In a stream (Triton's decoupled
//! models), each response with outputs is an event. It counts as one token, because the protocol has no token counts.
//! The empty response that ends the stream (`triton_final_response`) is not an event.

use plimsoll_model::outcome::{By, How};
use plimsoll_model::{Datatype, EventKind, Outcome};

use super::grpc;
use crate::decoded::DecodedEvent;
use crate::fault::Fault;
use crate::grpc::{CallMessages, CallStatus};
use crate::tally::Tally;

#[derive(Debug)]
pub(crate) struct CallReading {
    messages: CallMessages,
    stream: bool,
    /// Number of complete messages so far.
    taken: u64,
    /// Status of the call as the server reports it; `None` before it arrives.
    pub status: Option<CallStatus>,
}

impl CallReading {
    /// Creates a parser. `most`: largest message in bytes.
    pub fn new(stream: bool, most: usize, status: Option<CallStatus>) -> CallReading {
        CallReading { messages: CallMessages::new(most), stream, taken: 0, status }
    }

    /// Parses the next bytes and appends complete events to `out`.
    pub fn feed(
        &mut self,
        bytes: &[u8],
        tally: &mut Tally,
        out: &mut Vec<DecodedEvent>,
    ) -> Result<(), String> {
        self.messages.push(bytes);
        while let Some(message) = self.messages.take().map_err(|why| why.to_string())? {
            self.taken += 1;
            match self.stream {
                true => out.push(streamed(&message, tally)?),
                false if self.taken > 1 => return Err("a second response to a unary call".into()),
                false => {
                    let response = grpc::response(&message).map_err(|why| why.to_string())?;
                    take(&response, tally);
                }
            }
        }
        Ok(())
    }

    /// Ends the call. `clean` is true if its stream ended as HTTP/2 requires.
    pub fn ended(
        &self,
        clean: bool,
        bytes: u64,
        tally: &Tally,
        tail: &mut Vec<DecodedEvent>,
    ) -> (Outcome, Option<String>) {
        match &self.status {
            Some(status) => self.told(status, tally, tail),
            None if bytes == 0 && !clean => (
                Outcome::new(How::Reset, By::Network, true),
                Some("closed before the call's first message".into()),
            ),
            None => {
                let by = if clean { By::Server } else { By::Network };
                (
                    Outcome::new(How::Truncated, by, true),
                    Some("the call ended without its grpc-status".into()),
                )
            }
        }
    }

    fn told(
        &self,
        status: &CallStatus,
        tally: &Tally,
        tail: &mut Vec<DecodedEvent>,
    ) -> (Outcome, Option<String>) {
        if let Some(outcome) = status.outcome() {
            // A call that fails after its first response is not a rejection.
            let begun = tally.token_events > 0 && outcome.how != How::Timeout;
            let how = if begun { How::StreamError } else { outcome.how };
            return (Outcome { how, ..outcome }, Some(status.text()));
        }
        if let Some(fault) = &tally.error {
            return (Outcome::new(How::StreamError, By::Server, true), Some(fault.text.clone()));
        }
        let malformed = |why: &str| (Outcome::new(How::Malformed, By::Server, false), Some(why.to_owned()));
        match (self.messages.is_empty(), self.stream, self.taken) {
            (false, ..) => malformed("the call ended inside of a message"),
            (true, false, 0) => malformed("status OK without a response"),
            (true, false, _) => {
                tail.push(DecodedEvent { kind: EventKind::Body, tokens: 0, visible: tally.generated });
                (Outcome::FINISHED, None)
            }
            (true, true, _) => (Outcome::FINISHED, None),
        }
    }
}

fn streamed(message: &[u8], tally: &mut Tally) -> Result<DecodedEvent, String> {
    let (error, inner) = grpc::streamed(message).map_err(|why| why.to_string())?;
    if !error.is_empty() {
        tally.error.get_or_insert(Fault { text: error, code: None });
        return Ok(DecodedEvent::of(EventKind::Error));
    }
    let response = grpc::response(inner.unwrap_or_default()).map_err(|why| why.to_string())?;
    if response.outputs == 0 {
        return Ok(DecodedEvent::of(if response.last { EventKind::Finish } else { EventKind::Empty }));
    }
    take(&response, tally);
    tally.responded();
    Ok(DecodedEvent { kind: EventKind::Content, tokens: 1, visible: response.holds })
}

fn take(response: &grpc::Response<'_>, tally: &mut Tally) {
    tally.generated |= response.holds;
    if tally.text.is_some() {
        for (_, raw) in response.raw.iter().filter(|(datatype, _)| *datatype == Some(Datatype::Bytes)) {
            grpc::texts(raw).for_each(|text| tally.keep(&String::from_utf8_lossy(text)));
        }
    }
}
