//! Sends single requests whose response is only a status, such as webhooks and commands.
//!
//! Each request opens a connection, because such requests are rare. A server closes idle connections, and its name may
//! resolve to another machine by the next request.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Uri};
use plimsoll_model::Span;
use plimsoll_workload::{Connections, TargetSpec};

use crate::clock::Clock;
use crate::driver::exchange::exchange;
use crate::driver::exchange_watch::{OutgoingRequest, WholeAnswer};
use crate::driver::recording::AttemptEnding;
use crate::http1::header_template::RequestNames;
use crate::http1::keeping::KeepaliveShared;
use crate::http1::pool::ConnectionPool;
use crate::http1::request::RequestWriter;
use crate::http1::stamp::SocketMeter;
use crate::metrics::pages::runtime;
use crate::target::{EncodedBody, Target, TargetError};

/// Most bytes of a response that are read; useful responses are shorter.
const ANSWER_MAX: usize = 64 << 10;

/// The response to a posted request.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PostResponse {
    pub status: u16,
    /// Delay that the server requests in `Retry-After`; `None` without that header.
    pub retry_after: Option<Span>,
}

/// A sender of POST requests to one URL.
#[derive(Clone, Debug)]
pub struct PostClient {
    target: Target,
    path: Uri,
}

impl PostClient {
    /// Returns a sender to `path` below the target's URL.
    pub fn new(spec: &TargetSpec, path: &str) -> Result<PostClient, TargetError> {
        let target = Target::new(spec, None)?;
        let path = target.uri(path)?;
        Ok(PostClient { target, path })
    }

    /// Returns host and port for display, because a webhook's path may be a secret.
    pub fn authority(&self) -> String {
        self.target.authority()
    }

    /// Sends this JSON. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Fails with the reason for a missing response, as text for users.
    pub fn json(
        &self,
        body: Vec<u8>,
        headers: &[(HeaderName, HeaderValue)],
        patience: Span,
    ) -> Result<PostResponse, String> {
        self.send(("application/json", body), headers, patience)
    }

    /// Sends a body of this content type. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Fails with the reason for a missing response, as text for users.
    pub fn send(
        &self,
        body: (&'static str, Vec<u8>),
        headers: &[(HeaderName, HeaderValue)],
        patience: Span,
    ) -> Result<PostResponse, String> {
        self.exchange(body, headers, patience).map(|(posted, _)| posted)
    }

    /// Sends a body of this content type and returns the status and the first 64 KiB of the response.
    ///
    /// # Errors
    /// Fails with the reason for a missing response, as text for users.
    pub fn exchange(
        &self,
        (content_type, body): (&'static str, Vec<u8>),
        headers: &[(HeaderName, HeaderValue)],
        patience: Span,
    ) -> Result<(PostResponse, Vec<u8>), String> {
        let body = EncodedBody { content_type, header_length: None, bytes: body.into() };
        let request =
            self.target.posts_with(&self.path, headers).with(&body, RequestNames::one(&"alerts"), true);
        answered(&self.target, request, patience)
    }

    /// Sends this JSON and returns the status and the first 64 KiB of the response. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Fails with the reason for a missing response, as text for users.
    pub fn ask(&self, body: Vec<u8>, patience: Span) -> Result<(PostResponse, Vec<u8>), String> {
        let body = EncodedBody { content_type: "application/json", header_length: None, bytes: body.into() };
        let request = self.target.posts(&self.path).with(&body, RequestNames::one(&"ask"), true);
        answered(&self.target, request, patience)
    }
}

/// A command request to the target's host, for example `POST /reset_prefix_cache`.
#[derive(Clone, Debug)]
pub struct HostCommand {
    target: Target,
    method: Method,
    path: Uri,
}

impl HostCommand {
    /// Parses a method and a path on the target's host.
    ///
    /// # Errors
    /// Fails if the text has another form or the target's configuration is invalid.
    pub fn read(spec: &TargetSpec, text: &str) -> Result<HostCommand, String> {
        let wrong = || format!("{text:?}: write a method and a path, such as \"POST /reset_prefix_cache\"");
        let (method, path) = text.trim().split_once(' ').ok_or_else(wrong)?;
        let known = [Method::POST, Method::GET, Method::PUT, Method::DELETE];
        let method = known.into_iter().find(|known| known.as_str() == method);
        let path = path.trim();
        let uri = path.parse::<Uri>().ok().filter(|_| path.starts_with('/') && !path.starts_with("//"));
        let (Some(method), Some(path)) = (method, uri) else { return Err(wrong()) };
        let target = Target::new(spec, None).map_err(|e| e.to_string())?;
        Ok(HostCommand { target, method, path })
    }

    /// Sends the request without a body. Blocks for `patience` at most.
    ///
    /// # Errors
    /// Fails without a response or with a status that is no success; the reason is text for users.
    pub fn send(&self, patience: Span) -> Result<(), String> {
        let body = EncodedBody { content_type: "application/json", header_length: None, bytes: Bytes::new() };
        let opening = self.target.opens(self.method.clone(), &self.path);
        let (posted, _) =
            answered(&self.target, opening.with(&body, RequestNames::one(&"command"), true), patience)?;
        match posted.status {
            200..300 => Ok(()),
            status => Err(format!("HTTP {status}")),
        }
    }
}

/// Makes the request on a new connection and returns its response.
fn answered(
    target: &Target,
    request: RequestWriter,
    patience: Span,
) -> Result<(PostResponse, Vec<u8>), String> {
    let runtime = runtime().map_err(|e| e.to_string())?;
    let posted = runtime.block_on(exchanged(target, request, patience));
    posted.map_err(|why| target.scrub(&why))
}

async fn exchanged(
    target: &Target,
    request: RequestWriter,
    patience: Span,
) -> Result<(PostResponse, Vec<u8>), String> {
    let meter = SocketMeter::new(Clock::start());
    let route = target.resolve();
    let pool =
        ConnectionPool::new(route.clone(), meter, Arc::new(AtomicU32::new(0)), KeepaliveShared::default());
    pool.set_policy(Connections::Fresh, 1, route);
    let (request, seen) = (OutgoingRequest::new(Some(request)), WholeAnswer::to(ANSWER_MAX));
    let ending =
        tokio::time::timeout(patience.as_duration(), exchange(&pool, patience, &request, &seen)).await;
    match (seen.head.into_inner(), ending) {
        (Some(head), _) => {
            Ok((PostResponse { status: head.status, retry_after: head.retry_after }, seen.body.into_inner()))
        }
        (None, Ok(AttemptEnding::Told { outcome, error })) => {
            Err(error.unwrap_or_else(|| outcome.how.name().to_owned()))
        }
        (None, Ok(_)) => Err("closed without an answer".to_owned()),
        (None, Err(_)) => Err(format!("no answer within {:.0} s", patience.as_secs_f64())),
    }
}
