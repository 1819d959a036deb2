//! Handling of a cacheable request: a cached response, the response in flight of an identical request, or the
//! response to a similar request ([`semantic`]). Otherwise a replica answers, and identical requests share that response.

mod semantic;

use std::future::{Future, poll_fn};
use std::rc::Rc;
use std::sync::Arc;

use http::header::AGE;
use http::{HeaderMap, HeaderValue, Response, StatusCode};
use http_body_util::BodyExt;
use plimsoll_model::Span;

use crate::cache::flight::{ResponseReader, SharedResponse};
use crate::cache::semantic::SIMILARITY;
use crate::cache::{CACHE, Cache, CacheKey, CacheLookup, CacheUse};
use crate::proxy::{EXPLAIN, QUEUE_MS, REPLICA, REQUEST_ID, RequestContext, Worker, forward};
use crate::reply::{self, ReplyBody};
use crate::stats::RequestEnd;
use crate::traffic::RequestRecord;
use semantic::SemanticLookup;

/// Serves a cacheable request from the cache, or forwards it.
pub(crate) async fn serve_cached(
    worker: &Rc<Worker>,
    context: RequestContext,
    cache: Arc<Cache>,
    key: CacheKey,
) -> Response<ReplyBody> {
    let mut lookup = SemanticLookup::start(worker, &context, &cache, key).await;
    if let Some((flight, age, similarity)) = lookup.as_mut().and_then(SemanticLookup::serves) {
        let reader = flight.join();
        let head = read_head(&reader).await;
        count_cached(context, &cache, CacheUse::Semantic);
        let mut response = shared_response(reader, head, CacheUse::Semantic, Some(age));
        response.headers_mut().insert(SIMILARITY, similarity);
        return response;
    }
    let headers = &context.request.headers;
    match cache.find((key, headers), context.terms.class, worker.pool.clock.now()) {
        CacheLookup::Whole(flight, age) => match SemanticLookup::repeats(&context, &cache, &flight) {
            Some(again) => {
                let fresh = cache.anew(headers);
                fetch(worker, context, cache, key, fresh, Some(again)).await
            }
            None => {
                let reader = flight.join();
                let head = read_head(&reader).await;
                count_cached(context, &cache, CacheUse::Hit);
                shared_response(reader, head, CacheUse::Hit, Some(age))
            }
        },
        CacheLookup::Flying(reader) => match read_head(&reader).await {
            Some((StatusCode::OK, head)) if reader.is_for(headers) => {
                count_cached(context, &cache, CacheUse::Shared);
                shared_response(reader, Some((StatusCode::OK, head)), CacheUse::Shared, None)
            }
            // If the shared request failed, each request is sent separately, with its own queueing and retries.
            _ => {
                drop(reader);
                cache.used(CacheUse::Miss);
                let mut response = forward(worker, context).await;
                response.headers_mut().insert(CACHE, CacheUse::Miss.header());
                response
            }
        },
        CacheLookup::Nothing(flight, reader) => {
            fetch(worker, context, cache, key, (flight, reader), lookup).await
        }
    }
}

/// Forwards the request in a task, because its response may have more readers than this client. `lookup` contains the
/// reference that the response is compared with.
async fn fetch(
    worker: &Rc<Worker>,
    context: RequestContext,
    cache: Arc<Cache>,
    key: CacheKey,
    (flight, reader): (Arc<SharedResponse>, ResponseReader),
    lookup: Option<SemanticLookup>,
) -> Response<ReplyBody> {
    cache.used(CacheUse::Miss);
    let worker = Rc::clone(worker);
    tokio::task::spawn_local(async move {
        let class = context.terms.class;
        copy_response(forward(&worker, context), &flight).await;
        cache.landed((key, class), &flight, worker.pool.clock.now());
        if let Some(lookup) = lookup {
            lookup.landed(&worker, key, &flight).await;
        }
    });
    match read_head(&reader).await {
        Some((status, mut headers)) => {
            headers.insert(CACHE, CacheUse::Miss.header());
            response_of(reader, status, headers)
        }
        None => reply::error(StatusCode::BAD_GATEWAY, "replica_failed", "No answer came.", None),
    }
}

async fn read_head(reader: &ResponseReader) -> Option<(StatusCode, HeaderMap)> {
    poll_fn(|cx| reader.poll_head(cx)).await
}

/// Counts a request that is answered without its own replica, at no charge to its key.
fn count_cached(mut context: RequestContext, cache: &Cache, how: CacheUse) {
    cache.used(how);
    context.refund();
    // The request is not recorded, because no replica served it.
    context.record.take().into_iter().for_each(RequestRecord::forget);
    context.end.count(RequestEnd::Cached);
}

/// Returns a response that another request obtained first.
fn shared_response(
    reader: ResponseReader,
    head: Option<(StatusCode, HeaderMap)>,
    how: CacheUse,
    age: Option<Span>,
) -> Response<ReplyBody> {
    let (status, mut headers) = head.unwrap_or_default();
    [REQUEST_ID, QUEUE_MS, EXPLAIN].iter().for_each(|name| drop(headers.remove(name)));
    headers.insert(CACHE, how.header());
    if let Some(age) = age {
        headers.remove(REPLICA);
        headers.insert(AGE, HeaderValue::from((age.0 / 1_000_000_000).max(0)));
    }
    response_of(reader, status, headers)
}

fn response_of(reader: ResponseReader, status: StatusCode, headers: HeaderMap) -> Response<ReplyBody> {
    let mut response = Response::new(ReplyBody::Shared(reader));
    (*response.status_mut(), *response.headers_mut()) = (status, headers);
    response
}

/// Copies a response into the flight until its end, or until the last reader leaves.
async fn copy_response(response: impl Future<Output = Response<ReplyBody>>, flight: &Arc<SharedResponse>) {
    let abandoned = || poll_fn(|cx| flight.poll_abandoned(cx));
    let response = tokio::select! {
        biased;
        response = response => response,
        () = abandoned() => return flight.end(false, false, false),
    };
    let (parts, mut body) = response.into_parts();
    flight.begin(parts.status, parts.headers);
    let (whole, is_told) = loop {
        let frame = tokio::select! {
            biased;
            frame = body.frame() => frame,
            () = abandoned() => break (false, false),
        };
        match frame {
            // A broken stream ended with an error event.
            None => break (body.is_complete(), true),
            Some(Err(_)) => break (false, false),
            Some(Ok(frame)) => {
                frame.data_ref().into_iter().for_each(|data| flight.push(data));
                poll_fn(|cx| flight.poll_room(cx)).await;
            }
        }
    };
    flight.end(whole, body.is_success(), is_told);
}
