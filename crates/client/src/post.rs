//! One request and its status: for those who are told something, or to do something, and whose answer is a number.
//!
//! Each has a connection of its own, because what is told is rare: a server closes connections that idle, and its name may stand for another machine by then.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, Method, Uri};
use plimsoll_model::Span;
use plimsoll_workload::{Connections, TargetSpec};

use crate::clock::Clock;
use crate::exchange::exchange;
use crate::exchange_watch::{Outgoing, WholeAnswer};
use crate::header_template::RequestNames;
use crate::keeping::SharedByWorkers;
use crate::pages::runtime;
use crate::pool::ConnectionPool;
use crate::recording::Ending;
use crate::request::Request;
use crate::stamp::Meter;
use crate::target::{Body, Target, TargetError};

/// An answer is read this far: what is looked at is shorter.
const ANSWER_MAX: usize = 64 << 10;

/// What came back.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Posted {
    pub status: u16,
    /// How long the server asks to be left alone.
    pub retry_after: Option<Span>,
}

/// Somebody who is told.
#[derive(Clone, Debug)]
pub struct Poster {
    target: Target,
    path: Uri,
}

impl Poster {
    /// Below the target's URL, at `path`.
    pub fn new(spec: &TargetSpec, path: &str) -> Result<Poster, TargetError> {
        let target = Target::new(spec, None)?;
        let path = target.uri(path)?;
        Ok(Poster { target, path })
    }

    /// The host and port, for people: a webhook's path may be a secret.
    pub fn authority(&self) -> String {
        self.target.authority()
    }

    /// Sends this JSON. Blocks for `patience` at most.
    ///
    /// # Errors
    /// No answer; why, for people.
    pub fn json(
        &self,
        body: Vec<u8>,
        headers: &[(HeaderName, HeaderValue)],
        patience: Span,
    ) -> Result<Posted, String> {
        self.send(("application/json", body), headers, patience)
    }

    /// Sends a body of this content type. Blocks for `patience` at most.
    ///
    /// # Errors
    /// No answer; why, for people.
    pub fn send(
        &self,
        body: (&'static str, Vec<u8>),
        headers: &[(HeaderName, HeaderValue)],
        patience: Span,
    ) -> Result<Posted, String> {
        self.exchange(body, headers, patience).map(|(posted, _)| posted)
    }

    /// The same, and the answer's first 64 KiB.
    ///
    /// # Errors
    /// No answer; why, for people.
    pub fn exchange(
        &self,
        (content_type, body): (&'static str, Vec<u8>),
        headers: &[(HeaderName, HeaderValue)],
        patience: Span,
    ) -> Result<(Posted, Vec<u8>), String> {
        let body = Body { content_type, header_length: None, bytes: body.into() };
        let request =
            self.target.posts_with(&self.path, headers).with(&body, RequestNames::one(&"alerts"), true);
        answered(&self.target, request, patience)
    }

    /// Sends this JSON and gives the answer's first 64 KiB too. Blocks for `patience` at most.
    ///
    /// # Errors
    /// No answer; why, for people.
    pub fn ask(&self, body: Vec<u8>, patience: Span) -> Result<(Posted, Vec<u8>), String> {
        let body = Body { content_type: "application/json", header_length: None, bytes: body.into() };
        let request = self.target.posts(&self.path).with(&body, RequestNames::one(&"ask"), true);
        answered(&self.target, request, patience)
    }
}

/// A request that tells the target's host to do something: `POST /reset_prefix_cache`.
#[derive(Clone, Debug)]
pub struct HostCommand {
    target: Target,
    method: Method,
    path: Uri,
}

impl HostCommand {
    /// Of a method and a path at the target's own host.
    ///
    /// # Errors
    /// It is no such text, or something in the spec can't be used.
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

    /// Sends it, with no body. Blocks for `patience` at most.
    ///
    /// # Errors
    /// No answer, or one that is no success; why, for people.
    pub fn send(&self, patience: Span) -> Result<(), String> {
        let body = Body { content_type: "application/json", header_length: None, bytes: Bytes::new() };
        let opening = self.target.opens(self.method.clone(), &self.path);
        let (posted, _) =
            answered(&self.target, opening.with(&body, RequestNames::one(&"command"), true), patience)?;
        match posted.status {
            200..300 => Ok(()),
            status => Err(format!("HTTP {status}")),
        }
    }
}

/// What comes back, on a connection of its own.
fn answered(target: &Target, request: Request, patience: Span) -> Result<(Posted, Vec<u8>), String> {
    let runtime = runtime().map_err(|e| e.to_string())?;
    let posted = runtime.block_on(exchanged(target, request, patience));
    posted.map_err(|why| target.scrub(&why))
}

async fn exchanged(target: &Target, request: Request, patience: Span) -> Result<(Posted, Vec<u8>), String> {
    let meter = Meter::new(Clock::start());
    let route = target.resolve();
    let pool =
        ConnectionPool::new(route.clone(), meter, Arc::new(AtomicU32::new(0)), SharedByWorkers::default());
    pool.set_policy(Connections::Fresh, 1, route);
    let (request, seen) = (Outgoing::new(Some(request)), WholeAnswer::to(ANSWER_MAX));
    let ending =
        tokio::time::timeout(patience.as_duration(), exchange(&pool, patience, &request, &seen)).await;
    match (seen.head.into_inner(), ending) {
        (Some(head), _) => {
            Ok((Posted { status: head.status, retry_after: head.retry_after }, seen.body.into_inner()))
        }
        (None, Ok(Ending::Told { outcome, error })) => {
            Err(error.unwrap_or_else(|| outcome.how.name().to_owned()))
        }
        (None, Ok(_)) => Err("closed without an answer".to_owned()),
        (None, Err(_)) => Err(format!("no answer within {:.0} s", patience.as_secs_f64())),
    }
}
