//! Handling of a cacheable request: a cached response, the response in flight of an identical request, or the
//! response to a similar request ([`near`]). Otherwise a replica answers, and identical requests share that response.

mod near;

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use bytes::Bytes;
use http::header::AGE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body::{Body as _, Frame};
use plimsoll_model::Span;

use crate::cache::flight::{ResponseReader, SharedResponse};
use crate::cache::semantic::SIMILARITY;
use crate::cache::{CACHE, Cache, CacheKey, CacheLookup, CacheUse};
use crate::doors::RateCharge;
use crate::proxy::{CancelOnDrop, EXPLAIN, QUEUE_MS, REPLICA, REQUEST_ID, RequestContext, Worker};
use crate::reply::{self, RelayError, ReplyBody};
use crate::stats::RequestEnd;
use near::SemanticLookup;

pub(crate) async fn answer(
    worker: &Rc<Worker>,
    call: RequestContext,
    (cache, key): (Arc<Cache>, CacheKey),
    gone: CancelOnDrop,
) -> Response<ReplyBody> {
    let mut near = SemanticLookup::look(worker, &call, (&cache, key)).await;
    if let Some((flight, age, similarity)) = near.as_mut().and_then(SemanticLookup::serves) {
        let reader = flight.join();
        let head = head(&reader).await;
        taken(worker, call, (&cache, CacheUse::Semantic), gone);
        let mut response = others(reader, head, (CacheUse::Semantic, Some(age)));
        response.headers_mut().insert(SIMILARITY, similarity);
        return response;
    }
    let class = call.terms.class;
    match cache.find((key, &call.message.headers), class, worker.pool.clock.now()) {
        CacheLookup::Whole(flight, age) => match SemanticLookup::repeats(&call, &cache, &flight) {
            Some(again) => first(worker, call, (cache, key), (gone, None), Some(again)).await,
            None => {
                let reader = flight.join();
                let head = head(&reader).await;
                taken(worker, call, (&cache, CacheUse::Hit), gone);
                others(reader, head, (CacheUse::Hit, Some(age)))
            }
        },
        CacheLookup::Flying(reader) => match head(&reader).await {
            Some((StatusCode::OK, headers)) if reader.is_for(&call.message.headers) => {
                taken(worker, call, (&cache, CacheUse::Shared), gone);
                others(reader, Some((StatusCode::OK, headers)), (CacheUse::Shared, None))
            }
            // If the shared request failed, each request is sent separately, with its own queueing and retries.
            _ => {
                drop(reader);
                cache.used(CacheUse::Miss);
                let mut response = worker.answers(call, gone).await;
                response.headers_mut().insert(CACHE, CacheUse::Miss.header());
                response
            }
        },
        CacheLookup::Nothing(flight, reader) => {
            first(worker, call, (cache, key), (gone, Some((flight, reader))), near).await
        }
    }
}

/// Sends the request to a replica for all readers of the flight, or for itself only. `near` is the lookup whose
/// reference the response is compared with.
async fn first(
    worker: &Rc<Worker>,
    call: RequestContext,
    (cache, key): (Arc<Cache>, CacheKey),
    (gone, flight): (CancelOnDrop, Option<(Arc<SharedResponse>, ResponseReader)>),
    near: Option<SemanticLookup>,
) -> Response<ReplyBody> {
    cache.used(CacheUse::Miss);
    // From here on, the flight is counted and not the first client.
    gone.counted();
    let (flight, reader) = flight.unwrap_or_else(|| cache.anew(&call.message.headers));
    let key = (key, call.terms.class);
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        fly(&worker, call, (&cache, key), &flight).await;
        if let Some(near) = near {
            near.landed(&worker, key.0, &flight).await;
        }
    });
    match head(&reader).await {
        Some((status, mut headers)) => {
            headers.insert(CACHE, CacheUse::Miss.header());
            of(reader, status, headers)
        }
        None => reply::error(StatusCode::BAD_GATEWAY, "replica_failed", "No answer came.", None),
    }
}

async fn head(reader: &ResponseReader) -> Option<(StatusCode, HeaderMap)> {
    poll_fn(|cx| reader.poll_head(cx)).await
}

/// Counts a request that is answered without its own replica, at no charge to its key.
fn taken(worker: &Worker, mut call: RequestContext, (cache, how): (&Cache, CacheUse), gone: CancelOnDrop) {
    cache.used(how);
    call.toll.take().into_iter().for_each(RateCharge::waive);
    // The request is not recorded, because no replica served it.
    call.recording.take().into_iter().for_each(crate::traffic::RequestRecord::forget);
    worker.stats.end(RequestEnd::Cached);
    gone.counted();
}

/// Returns a response that another request obtained first.
fn others(
    reader: ResponseReader,
    head: Option<(StatusCode, HeaderMap)>,
    (how, age): (CacheUse, Option<Span>),
) -> Response<ReplyBody> {
    let (status, mut headers) = head.unwrap_or_default();
    [REQUEST_ID, QUEUE_MS, EXPLAIN].iter().for_each(|name| drop(headers.remove(name)));
    headers.insert(CACHE, how.header());
    if let Some(age) = age {
        headers.remove(REPLICA);
        headers.insert(AGE, HeaderValue::from((age.0 / 1_000_000_000).max(0)));
    }
    of(reader, status, headers)
}

fn of(reader: ResponseReader, status: StatusCode, headers: HeaderMap) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Shared(reader));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

async fn next(body: &mut ReplyBody) -> Option<Result<Frame<Bytes>, RelayError>> {
    poll_fn(|cx| Pin::new(&mut *body).poll_frame(cx)).await
}

/// Copies a replica's response into the flight until its end, or until the last reader leaves.
async fn fly(
    worker: &Rc<Worker>,
    call: RequestContext,
    (cache, key): (&Cache, (CacheKey, usize)),
    flight: &Arc<SharedResponse>,
) {
    let gone = CancelOnDrop::new(worker);
    let abandoned = || poll_fn(|cx| flight.poll_abandoned(cx));
    let response = tokio::select! {
        biased;
        response = worker.answers(call, gone) => Some(response),
        () = abandoned() => None,
    };
    if let Some(response) = response {
        let (parts, mut body) = response.into_parts();
        flight.begin(parts.status, parts.headers);
        let (whole, is_told) = loop {
            let frame = tokio::select! {
                biased;
                frame = next(&mut body) => frame,
                () = abandoned() => break (false, false),
            };
            match frame {
                // A broken stream ended with an error event.
                None => break (body.came_whole(), true),
                Some(Err(_)) => break (false, false),
                Some(Ok(frame)) => {
                    frame.data_ref().into_iter().for_each(|data| flight.push(data));
                    poll_fn(|cx| flight.poll_room(cx)).await;
                }
            }
        };
        flight.end(whole, body.is_success(), is_told);
    } else {
        flight.end(false, false, false);
    }
    cache.landed(key, flight, worker.pool.clock.now());
}
