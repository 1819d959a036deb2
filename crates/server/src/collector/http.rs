//! Handles one request: checks it, reads its body within the limits, passes it to the intake thread, and responds.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use http::header::AUTHORIZATION;
use http::{Request, Response};
use http_body::Body as _;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use plimsoll_wire::grpc;
use tokio::sync::oneshot;

use super::answer::{self, IntakeRefusal, IntakeReply, PayloadEncoding};
use super::intake::{IntakeJob, PendingBytes};
use super::{CollectorState, Give};

/// Longest time for reading a body.
const BODY: Duration = Duration::from_secs(30);

pub async fn answer(
    request: Request<Incoming>,
    shared: Arc<CollectorState>,
    give: Give,
) -> Result<Response<IntakeReply>, Infallible> {
    let tongue = shared.takes.tongue(&request);
    let answered = match take(request, tongue, &shared, &give).await {
        Ok(wait) => match wait.await {
            Ok(done) => answer::done(tongue, shared.takes.rejects(), done),
            // The intake thread has ended, so this request was not stored.
            Err(_) => answer::refused(tongue, IntakeRefusal::Unavailable("the collector has stopped".into())),
        },
        Err(refusal) => {
            let count = match &refusal {
                IntakeRefusal::Busy | IntakeRefusal::Unavailable(_) => &shared.tally.refused,
                IntakeRefusal::Unknown(_) => &shared.tally.elsewhere,
                _ => &shared.tally.malformed,
            };
            count.fetch_add(1, Ordering::SeqCst);
            answer::refused(tongue, refusal)
        }
    };
    Ok(answered)
}

/// Checks a request, reads its body and passes it to the intake thread.
async fn take(
    request: Request<Incoming>,
    tongue: PayloadEncoding,
    shared: &Arc<CollectorState>,
    give: &Give,
) -> Result<oneshot::Receiver<super::intake::IntakeEnd>, IntakeRefusal> {
    let is_encoded = shared.takes.fits(&request, tongue)?;
    if let Some(bearer) = &shared.config.bearer {
        let said = request.headers().get(AUTHORIZATION).map_or(&[][..], |value| value.as_bytes());
        if !bearer.is(said) {
            return Err(IntakeRefusal::Denied);
        }
    }
    if shared.is_stopping() {
        return Err(IntakeRefusal::Unavailable("the collector is stopping".into()));
    }
    let mut pending = PendingBytes::new(Arc::clone(shared));
    let body = tokio::time::timeout(BODY, body(request.into_body(), shared, &mut pending)).await;
    let body =
        body.map_err(|_| IntakeRefusal::Malformed("the body was not received within 30 s".into()))??;
    let (body, is_gzip) = if tongue == PayloadEncoding::Grpc {
        let (message, is_compressed) = grpc::unframed(&body)
            .ok_or_else(|| IntakeRefusal::Malformed("no gRPC frame of one message".into()))?;
        if is_compressed && !is_encoded {
            return Err(IntakeRefusal::Malformed("compressed, with an encoding that is not gzip".into()));
        }
        (body.slice_ref(message), is_compressed)
    } else {
        (body, is_encoded)
    };
    let (done, wait) = oneshot::channel();
    let job = IntakeJob { body, is_json: tongue == PayloadEncoding::Json, is_gzip, pending, done };
    give.send(job).map_err(|_| IntakeRefusal::Unavailable("the collector has stopped".into()))?;
    Ok(wait)
}

/// Reads the body, within the limit per request and the limit of all pending requests.
async fn body(
    mut body: Incoming,
    shared: &CollectorState,
    pending: &mut PendingBytes,
) -> Result<Bytes, IntakeRefusal> {
    let most = shared.config.body_bytes;
    if body.size_hint().lower() > most as u64 {
        return Err(IntakeRefusal::TooLarge);
    }
    let mut whole = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| IntakeRefusal::Malformed(format!("the body broke off: {e}")))?;
        let Ok(data) = frame.into_data() else { continue };
        if whole.len() + data.len() > most {
            return Err(IntakeRefusal::TooLarge);
        }
        if !pending.add(data.len()) {
            drain(&mut body, most).await;
            return Err(IntakeRefusal::Busy);
        }
        whole.extend_from_slice(&data);
    }
    Ok(whole.freeze())
}

/// Reads and discards the rest of a body. Without this, the sender would see a broken connection instead of the response
/// that requires a retry.
async fn drain(body: &mut Incoming, mut most: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        let len = frame.data_ref().map_or(0, Bytes::len);
        match most.checked_sub(len) {
            Some(left) => most = left,
            None => return,
        }
    }
}
