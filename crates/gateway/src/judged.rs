//! Judgement of a replica's answer: by its head as soon as that comes, and by its end ([`TailReader::read`]).

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, Method, StatusCode};
use plimsoll_client::Clock;
use plimsoll_model::{At, How, Outcome, Protocol, Span};
use plimsoll_policy::ReplicaOutcome;
use plimsoll_wire::head::Head;

use crate::passing::{self, generates, stream_type};
use crate::stats::End;
use crate::traffic::tail::TailReader;

/// What an answer's head says of its replica.
#[derive(Copy, Clone)]
pub struct JudgedHead {
    /// What the breaker is told, if the rest of the answer is no worse.
    pub verdict: ReplicaOutcome,
    /// How the request ends, if the rest of the answer is no worse.
    pub end: End,
    /// Might another replica do better?
    pub again: bool,
    /// Is the body encoded or not shown, so that only its framing tells?
    pub is_unread: bool,
    has_events: bool,
    protocol: Protocol,
    status: u16,
}

/// How a request's answer is judged.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct JudgedBy {
    /// How the answer is read: [`Protocol::Http`] where the path is not known, or nothing was posted to it.
    pub protocol: Protocol,
    /// Does the replica compute it? A page says nothing of an engine.
    pub is_work: bool,
}

impl JudgedBy {
    /// A request's.
    pub fn of(method: &Method, path: &str) -> JudgedBy {
        let is_work = method == Method::POST;
        JudgedBy { protocol: if is_work { passing::protocol(path) } else { Protocol::Http }, is_work }
    }
}

impl JudgedHead {
    /// Of a head that came `now`. `is_empty`: nothing follows it.
    pub fn of(
        (status, headers): (StatusCode, &HeaderMap),
        (by, is_empty): (JudgedBy, bool),
        now: At,
        clock: Clock,
    ) -> JudgedHead {
        let (status, protocol) = (status.as_u16(), by.protocol);
        let after = || {
            // The wall clock as it goes on from the start: whether it is set meanwhile changes nothing here.
            let now_unix_s = (clock.anchor().realtime_ns + now.0) / 1_000_000_000;
            let named = headers.iter().map(|(name, value)| (name.as_str(), value.as_bytes()));
            Head::read(status, named, now_unix_s).retry_after
        };
        let sheds = status == 429 || status == 503 && headers.contains_key(RETRY_AFTER);
        let (verdict, end, again) = match status {
            _ if sheds => (ReplicaOutcome::Shed(after()), End::Shed, true),
            502 | 503 => (ReplicaOutcome::Failed, End::Failed, true),
            500.. => (ReplicaOutcome::Failed, End::Failed, false),
            400.. => (refusal(by, status), End::Refused, false),
            // A redirection generates nothing.
            300.. if generates(protocol) => (ReplicaOutcome::Refused, End::Refused, false),
            200 if is_empty && generates(protocol) => (ReplicaOutcome::Failed, End::Failed, true),
            _ if !by.is_work => (ReplicaOutcome::Neutral, End::Answered, false),
            _ => (ReplicaOutcome::Worked, End::Answered, false),
        };
        let kind = headers.get(CONTENT_TYPE).map_or(&b""[..], |kind| kind.as_bytes());
        let has_events = kind.starts_with(stream_type(protocol).as_bytes());
        let encodings = headers.get_all(CONTENT_ENCODING);
        let is_unread = encodings.iter().any(|encoding| encoding != "identity");
        JudgedHead { verdict, end, again, is_unread, has_events, protocol, status }
    }

    /// Judges an ended answer: the outcome for the breaker, the end of the request, and the output tokens that the answer reports. `whole` is
    /// false if the answer broke off.
    pub(crate) fn whole(&self, tail: &TailReader, whole: bool) -> (ReplicaOutcome, End, Option<u32>) {
        if self.end != End::Answered {
            let (verdict, end) =
                if whole { (self.verdict, self.end) } else { (ReplicaOutcome::Failed, End::Broken) };
            return (verdict, end, None);
        }
        let read = tail.read(self.protocol, (self.status, self.has_events), whole).verdict;
        let tokens = read.answer.tokens;
        // The last bytes of a long answer hold too few events to contradict its count.
        let output = tokens.output.or(tokens.claimed.filter(|_| tail.is_cut()));
        let (verdict, end) = self.ended(read.outcome, whole);
        (verdict, end, output)
    }

    fn ended(&self, outcome: Outcome, whole: bool) -> (ReplicaOutcome, End) {
        match outcome.how {
            How::Finished => (self.verdict, End::Answered),
            _ if !whole => (ReplicaOutcome::Failed, End::Broken),
            // The server blames the request.
            How::StreamError if !outcome.retryable => (ReplicaOutcome::Refused, End::Refused),
            _ => (ReplicaOutcome::Failed, End::Failed),
        }
    }

    /// When a replica that shed wishes to be asked again.
    pub fn retry_after(&self) -> Option<Span> {
        match self.verdict {
            ReplicaOutcome::Shed(after) => after,
            _ => None,
        }
    }
}

/// What a 4xx says of its replica. Timeouts and conflicts are the request's own, and so is an object that another replica keeps.
fn refusal(by: JudgedBy, status: u16) -> ReplicaOutcome {
    let is_elsewhere = status == 404 && matches!(by.protocol, Protocol::Responses | Protocol::Http);
    match by.is_work && !matches!(status, 408 | 409 | 425 | 499) && !is_elsewhere {
        true => ReplicaOutcome::Refused,
        false => ReplicaOutcome::Neutral,
    }
}
