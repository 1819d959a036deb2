//! Parses the head of an answer: media type, outcome by status, requested waits, server times.
//!
//! The parser takes names and values. A header map of an HTTP library was rejected, so that this crate depends on none.

use std::num::NonZeroU32;

use plimsoll_model::outcome::{By, How};
use plimsoll_model::{Outcome, ServerStage, Span};

use crate::grpc::CallStatus;

/// Limit of stages kept from one answer: a longer `Server-Timing` is not a measurement.
pub(crate) const STAGES_MAX: usize = 16;

/// The facts of an answer's head that become part of its record.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Head {
    pub status: u16,
    pub content_type: Option<String>,
    pub content_encoding: Option<String>,
    /// `Retry-After` (or `retry-after-ms`), as a wait from now.
    pub retry_after: Option<Span>,
    /// Replica that answered; `None` if no common header names it.
    pub replica: Option<String>,
    /// Times of the server's or gateway's stages from headers.
    pub stages: Vec<ServerStage>,
    /// Redirect target from `Location`; `None` without one.
    pub location: Option<String>,
    /// Server software from the `Server` header.
    pub server: Option<String>,
    /// Length of the JSON part of the body if raw tensors follow ([`crate::kserve::HEADER_LENGTH`]).
    pub json_length: Option<u32>,
    /// Status of a gRPC call, if these are its trailers or a head without a body.
    pub call: Option<CallStatus>,
    /// Samples per second of audio without a header, from `X-Sample-Rate`.
    pub sample_rate: Option<NonZeroU32>,
    /// Channels of audio without a header, from `X-Channels`.
    pub channels: Option<NonZeroU32>,
}

impl Head {
    /// Parses the headers. `now_unix_s`: seconds since 1970, to which a `Retry-After` date is relative if there is no `Date`.
    pub fn read<'a>(
        status: u16,
        headers: impl IntoIterator<Item = (&'a str, &'a [u8])>,
        now_unix_s: i64,
    ) -> Head {
        let mut head = Head { status, ..Head::default() };
        // Both dates are of the sender's clock, so the local clock and its corrections do not matter.
        let (mut date, mut retry_at) = (None, None);
        for (name, value) in headers {
            let Ok(value) = std::str::from_utf8(value) else { continue };
            let value = value.trim();
            let mut lower = [0_u8; 48];
            let Some(lower) = lower.get_mut(..name.len()) else { continue };
            lower.copy_from_slice(name.as_bytes());
            lower.make_ascii_lowercase();
            match &*lower {
                b"date" => date = http_date(value),
                b"retry-after" if value.parse::<f64>().is_err() => retry_at = http_date(value),
                name => head.take(name, value),
            }
        }
        let wait = retry_at.map(|at| wait_until(at, date.unwrap_or(now_unix_s)));
        head.retry_after = head.retry_after.or(wait);
        head
    }

    fn take(&mut self, name: &[u8], value: &str) {
        match name {
            b"content-type" => self.content_type = Some(bounded(value, 256)),
            b"content-encoding" => self.content_encoding = Some(bounded(value, 64)),
            b"location" => self.location = Some(bounded(value, 2048)),
            b"inference-header-content-length" => self.json_length = value.parse().ok(),
            b"server" => self.server = Some(bounded(value, 256)),
            b"grpc-status" => {
                let message = self.call.take().map(|call| call.message).unwrap_or_default();
                self.call = Some(CallStatus { message, ..CallStatus::read(value) });
            }
            b"grpc-message" => {
                self.call.get_or_insert_with(|| CallStatus::read("")).message = CallStatus::message(value)
            }
            // The millisecond form has the higher resolution and takes precedence.
            b"retry-after-ms" => {
                if let Some(wait) = value.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms >= 0.0) {
                    self.retry_after = Some(Span::from_secs_f64(wait / 1e3));
                }
            }
            b"retry-after" => self.retry_after = self.retry_after.or(retry_after(value, 0)),
            b"x-replica"
            | b"x-replica-id"
            | b"x-served-by"
            | b"x-backend"
            | b"x-backend-server"
            | b"x-upstream"
            | b"x-smg-routed-worker-id"
            | b"x-gateway-destination-endpoint-served"
            | b"target-pod"
            | b"x-litellm-model-id" => self.replica = Some(bounded(value, 128)),
            b"server-timing" => self.server_timing(value),
            b"x-sample-rate" => self.sample_rate = value.parse().ok(),
            b"x-channels" => self.channels = value.parse().ok(),
            b"openai-processing-ms"
            | b"x-envoy-upstream-service-time"
            | b"x-litellm-overhead-duration-ms"
            | b"x-litellm-response-duration-ms"
            | b"x-total-time"
            | b"x-validation-time"
            | b"x-queue-time"
            | b"x-inference-time" => {
                if let Ok(ms) = value.parse::<f64>() {
                    push_stage(&mut self.stages, &String::from_utf8_lossy(name), ms);
                }
            }
            _ => {}
        }
    }

    /// Parses `Server-Timing: db;dur=53, app;dur=47.2` (W3C Server Timing; durations in ms).
    fn server_timing(&mut self, value: &str) {
        for metric in value.split(',') {
            let mut parts = metric.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default();
            let took =
                parts.find_map(|p| p.strip_prefix("dur=")).and_then(|ms| ms.trim_matches('"').parse().ok());
            if let Some(ms) = took {
                push_stage(&mut self.stages, name, ms);
            }
        }
    }
}

/// Adds a stage of `ms` milliseconds, or replaces the stage of equal name. Invalid values and stages over the limit are dropped.
pub(crate) fn push_stage(stages: &mut Vec<ServerStage>, name: &str, ms: f64) {
    if name.is_empty() || !ms.is_finite() || ms < 0.0 {
        return;
    }
    let took = Span::from_secs_f64(ms / 1e3);
    let name = bounded(stage_name(name), 64);
    if let Some(stage) = stages.iter_mut().find(|stage| stage.name == name) {
        stage.took = took;
    } else if stages.len() < STAGES_MAX {
        stages.push(ServerStage { name, took });
    }
}

/// Returns one common name for stages that several servers name differently, and the server's name for other stages.
fn stage_name(told: &str) -> &str {
    match told {
        "x-queue-time" => "queue",
        "prompt" => "prefill",
        "predicted" | "completion" => "decode",
        other => other,
    }
}

/// Returns the first `max` bytes of a text, cut at a character, with blanks in place of control characters.
pub(crate) fn bounded(text: &str, max: usize) -> String {
    let mut end = text.len().min(max);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    let text = &text[..end];
    match text.bytes().all(|byte| (b' '..0x7f).contains(&byte)) {
        true => text.to_owned(),
        false => text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect(),
    }
}

/// The format of a body, by its media type.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum BodyFormat {
    EventStream,
    /// JSON: `application/json` and related types.
    Json,
    Lines,
    /// A web page: a login or a proxy's error, never an answer.
    Html,
    Other,
    Unsaid,
}

/// Parses a `Content-Type`.
pub fn media(content_type: Option<&str>) -> BodyFormat {
    let Some(value) = content_type else { return BodyFormat::Unsaid };
    let kind = value.split(';').next().unwrap_or_default().trim();
    let is = |names: &[&str]| names.iter().any(|name| kind.eq_ignore_ascii_case(name));
    let ends = |with: &str| {
        kind.len() >= with.len()
            && kind.as_bytes()[kind.len() - with.len()..].eq_ignore_ascii_case(with.as_bytes())
    };
    if kind.is_empty() {
        BodyFormat::Unsaid
    } else if is(&["application/json", "text/json"]) {
        BodyFormat::Json
    } else if is(&["text/event-stream"]) {
        BodyFormat::EventStream
    } else if is(&LINES) {
        BodyFormat::Lines
    } else if is(&["text/html", "application/xhtml+xml"]) {
        BodyFormat::Html
    } else if ends("+json") {
        BodyFormat::Json
    } else {
        BodyFormat::Other
    }
}

/// The media types of JSON Lines.
const LINES: [&str; 5] = [
    "application/x-ndjson",
    "application/ndjson",
    "application/jsonl",
    "application/json-lines",
    "application/jsonlines",
];

/// Returns the outcome for this status; `None` for 2xx, whose body decides.
///
/// Retryable are 408, 409, 425, 429 and 5xx except 501 and 505. The OpenAI client libraries retry this set and also the two
/// exceptions, which are permanent errors.
pub fn outcome(status: u16) -> Option<Outcome> {
    let (how, retryable) = match status {
        200..=299 => return None,
        300..=399 => (How::Redirected, false),
        // 529 is Anthropic's equivalent of 503.
        429 | 503 | 529 => (How::Shed, true),
        408 | 409 | 425 => (How::ClientError, true),
        400..=499 => (How::ClientError, false),
        501 | 505 => (How::ServerError, false),
        500..=599 => (How::ServerError, true),
        _ => (How::Malformed, false),
    };
    Some(Outcome::new(how, By::Server, retryable))
}

/// Parses `Retry-After`: seconds (also a fraction) or an HTTP date (RFC 9110, 10.2.3). A date in the past gives zero.
pub fn retry_after(value: &str, now_unix_s: i64) -> Option<Span> {
    let value = value.trim();
    if let Ok(s) = value.parse::<f64>() {
        return (s.is_finite() && s >= 0.0).then(|| Span::from_secs_f64(s));
    }
    Some(wait_until(http_date(value)?, now_unix_s))
}

fn wait_until(unix_s: i64, now_unix_s: i64) -> Span {
    Span::from_secs(unix_s.saturating_sub(now_unix_s).clamp(0, 1_000_000_000))
}

/// Parses an IMF-fixdate into seconds since 1970, the only form that RFC 9110 lets senders use: `Sun, 06 Nov 1994 08:49:37 GMT`.
fn http_date(value: &str) -> Option<i64> {
    let mut parts = value.split_once(',')?.1.split_ascii_whitespace();
    let day: i64 = parts.next()?.parse().ok().filter(|d| (1..=31).contains(d))?;
    let month = parts.next()?;
    let months = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let month = months.iter().position(|m| *m == month)? as i64 + 1;
    let year: i64 = parts.next()?.parse().ok().filter(|y| (1970..=9999).contains(y))?;
    let mut clock = parts.next()?.split(':').map(|n| n.parse::<i64>().ok().filter(|n| (0..=60).contains(n)));
    let (h, m, s) = (clock.next()??, clock.next()??, clock.next()??);
    // Days from civil (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let y = if month <= 2 { year - 1 } else { year };
    let era = y.div_euclid(400);
    let year_of_era = y.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year;
    let days = era * 146_097 + day_of_era - 719_468;
    Some(days * 86_400 + h * 3_600 + m * 60 + s)
}
