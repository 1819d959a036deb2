//! Admission terms of a request from its headers, and the responses to rejected requests.

use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode};
use plimsoll_model::{At, Span};
use plimsoll_policy::{AdmissionSpec, BlockEnds, Facts, QueuedAsk, Refusal, Terms};

use crate::doors::ActiveKey;
use crate::reply::{self, ReplyBody};
use crate::request::{ParsedRequest, hash};
use crate::stats::RequestEnd;

const SLO: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
const CLASS: HeaderName = HeaderName::from_static("x-plimsoll-class");
/// Tenant of requests without a tenant.
const NOBODY: u64 = 0;

impl QueuedAsk for ParsedRequest {
    fn facts(&self) -> Facts<'_> {
        Facts {
            session: self.session,
            blocks: &self.blocks,
            ends: BlockEnds::At(&self.ends),
            prompt_tokens: self.prompt_tokens,
            most_tokens: self.most_tokens,
            streams: self.streams,
            arm: self.arm,
            model: self.model_hash,
            tier: self.tier,
            among: self.among.as_deref(),
        }
    }
}

/// Returns the terms of a request from its key and headers.
///
/// # Errors
/// Fails with an error code and a message if a header is invalid.
pub fn terms(
    spec: &AdmissionSpec,
    headers: &HeaderMap,
    key: Option<&ActiveKey>,
    came: At,
    bytes: usize,
) -> Result<Terms, (&'static str, String)> {
    let text = |name: &HeaderName| headers.get(name).map(|value| value.to_str().unwrap_or_default().trim());
    // The class of a key takes precedence, because its holder may not change it.
    let class = match key.and_then(|key| key.class.as_deref()).or(text(&CLASS)) {
        None => 0,
        Some(name) => spec.class(name).ok_or_else(|| {
            let known: Vec<&str> = spec.classes.iter().map(|class| class.name.as_str()).collect();
            ("unknown_class", format!("{CLASS}: {name:?} is none of {}.", known.join(", ")))
        })?,
    };
    let slo = match text(&SLO) {
        None => spec.slo(class),
        Some(text) => {
            let ms = text.parse().ok().filter(|ms: &f64| (1.0..=86_400_000.0).contains(ms));
            let ms = ms.ok_or_else(|| {
                ("bad_slo", format!("{SLO}: {text:?} is no number of milliseconds from 1."))
            })?;
            Some(Span::from_secs_f64(ms / 1e3))
        }
    };
    let named = spec.tenant_header.as_ref().and_then(|name| headers.get(name)).map(HeaderValue::as_bytes);
    let tenant = key.map(|key| key.tenant.as_bytes()).or(named).map_or(NOBODY, hash);
    Ok(Terms { class, tenant, came, slo, bytes: bytes as u64 })
}

/// Returns the response to a rejected request, and its outcome.
pub fn refused(refusal: Refusal) -> (Response<ReplyBody>, RequestEnd) {
    let seconds = |span: Span| Some(span.as_secs_f64().ceil() as u64);
    let (status, code, why, after, end) = match refusal {
        Refusal::Late(after) => (
            StatusCode::TOO_MANY_REQUESTS,
            "would_be_late",
            "With what waits already, the first token would come after this request's time limit for it.",
            seconds(after),
            RequestEnd::Overloaded,
        ),
        Refusal::Full(after) => (
            StatusCode::TOO_MANY_REQUESTS,
            "queue_full",
            "As many requests wait as may.",
            seconds(after),
            RequestEnd::Overloaded,
        ),
        Refusal::HeldBack(after) => (
            StatusCode::TOO_MANY_REQUESTS,
            "held_back",
            "The budget in force is broken, and this request's class gives way.",
            seconds(after),
            RequestEnd::HeldBack,
        ),
        Refusal::Expired => (
            StatusCode::GATEWAY_TIMEOUT,
            "queue_timeout",
            "The request's time ran out while it waited for a replica.",
            None,
            RequestEnd::Expired,
        ),
        Refusal::NoReplica => (
            StatusCode::SERVICE_UNAVAILABLE,
            "no_replica",
            "No replica answers.",
            Some(1),
            RequestEnd::NoReplica,
        ),
    };
    (reply::error(status, code, why, after), end)
}
