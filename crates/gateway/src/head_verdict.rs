//! Evaluation of a replica's response: first by its head, then by its end ([`TailReader::read`]).

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};
use plimsoll_client::Clock;
use plimsoll_model::{At, How, Outcome, Protocol, Span};
use plimsoll_policy::ReplicaOutcome;
use plimsoll_wire::head::Head;

use crate::response_observer::{self, generates, stream_type};
use crate::stats::RequestEnd;
use crate::traffic::tail::TailReader;

/// The evaluation of a response by its head.
#[derive(Copy, Clone)]
pub struct HeadVerdict {
    /// Outcome for the circuit breaker, if the rest of the response is no worse.
    pub verdict: ReplicaOutcome,
    /// Outcome of the request, if the rest of the response is no worse.
    pub end: RequestEnd,
    /// Set if another replica may succeed.
    pub again: bool,
    /// Set if the body is compressed or invisible, so that only its framing can be checked.
    pub is_unread: bool,
    has_events: bool,
    protocol: Protocol,
    status: u16,
}

/// The rules for evaluating a response.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct ResponseKind {
    /// Protocol of the response: [`Protocol::Http`] for unknown paths and for requests other than POST.
    pub protocol: Protocol,
    /// Set if the engine computes the response. A static page is no evidence about an engine.
    pub is_work: bool,
}

impl ResponseKind {
    /// Returns the rules for a request.
    pub fn of(method: &Method, path: &str) -> ResponseKind {
        let is_work = method == Method::POST;
        ResponseKind {
            protocol: if is_work { response_observer::protocol(path) } else { Protocol::Http },
            is_work,
        }
    }
}

impl HeadVerdict {
    /// Evaluates a head that arrived `now`. `is_empty` is set if no body follows.
    pub fn of(
        (status, headers): (StatusCode, &HeaderMap),
        (by, is_empty): (ResponseKind, bool),
        now: At,
        clock: Clock,
    ) -> HeadVerdict {
        let (status, protocol) = (status.as_u16(), by.protocol);
        let after = || {
            // The wall clock is extrapolated from the start, so that clock adjustments have no effect.
            let now_unix_s = (clock.anchor().realtime_ns + now.0) / 1_000_000_000;
            let named = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            Head::read(status, named, now_unix_s).retry_after
        };
        let sheds = status == 429 || status == 503 && headers.contains_key(RETRY_AFTER);
        let (verdict, end, again) = match status {
            _ if sheds => (ReplicaOutcome::Shed(after()), RequestEnd::Shed, true),
            502 | 503 => (ReplicaOutcome::Failed, RequestEnd::Failed, true),
            500.. => (ReplicaOutcome::Failed, RequestEnd::Failed, false),
            400.. => (refusal(by, status), RequestEnd::Refused, false),
            // A redirection contains no generated text.
            300.. if generates(protocol) => (ReplicaOutcome::Refused, RequestEnd::Refused, false),
            200 if is_empty && generates(protocol) => (ReplicaOutcome::Failed, RequestEnd::Failed, true),
            _ if !by.is_work => (ReplicaOutcome::Neutral, RequestEnd::Answered, false),
            _ => (ReplicaOutcome::Worked, RequestEnd::Answered, false),
        };
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        let has_events = kind.starts_with(stream_type(protocol).as_bytes());
        let encodings = headers.get_all(CONTENT_ENCODING);
        let is_unread = encodings.iter().any(|encoding| encoding != "identity");
        HeadVerdict { verdict, end, again, is_unread, has_events, protocol, status }
    }

    /// Returns the outcome for the circuit breaker, the outcome of the request, and the reported output tokens.
    /// `whole` is set if the complete response arrived.
    pub(crate) fn whole(&self, tail: &TailReader, whole: bool) -> (ReplicaOutcome, RequestEnd, Option<u32>) {
        if self.end != RequestEnd::Answered {
            let (verdict, end) =
                if whole { (self.verdict, self.end) } else { (ReplicaOutcome::Failed, RequestEnd::Broken) };
            return (verdict, end, None);
        }
        let read = tail.read(self.protocol, (self.status, self.has_events), whole).verdict;
        let tokens = read.answer.tokens;
        // The tail of a long response contains too few events to contradict its count.
        let output = tokens.output.or(tokens.claimed.filter(|_| tail.is_cut()));
        let (verdict, end) = self.ended(read.outcome, whole);
        (verdict, end, output)
    }

    fn ended(&self, outcome: Outcome, whole: bool) -> (ReplicaOutcome, RequestEnd) {
        match outcome.how {
            How::Finished => (self.verdict, RequestEnd::Answered),
            _ if !whole => (ReplicaOutcome::Failed, RequestEnd::Broken),
            // The server reports an error of the request.
            How::StreamError if !outcome.retryable => (ReplicaOutcome::Refused, RequestEnd::Refused),
            _ => (ReplicaOutcome::Failed, RequestEnd::Failed),
        }
    }

    /// Returns the `Retry-After` delay of a replica that rejected the request for lack of capacity.
    pub fn retry_after(&self) -> Option<Span> {
        match self.verdict {
            ReplicaOutcome::Shed(after) => after,
            _ => None,
        }
    }
}

/// Returns the outcome of a 4xx response for the replica. Timeouts, conflicts and objects of another replica are no
/// evidence against it.
fn refusal(by: ResponseKind, status: u16) -> ReplicaOutcome {
    let is_elsewhere = status == 404 && matches!(by.protocol, Protocol::Responses | Protocol::Http);
    match by.is_work && !matches!(status, 408 | 409 | 425 | 499) && !is_elsewhere {
        true => ReplicaOutcome::Refused,
        false => ReplicaOutcome::Neutral,
    }
}
