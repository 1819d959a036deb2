//! The status page of a watch: who may read it, and its current content.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError, RwLock};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use hyper::StatusCode;
use hyper::header::{CONTENT_SECURITY_POLICY, WWW_AUTHENTICATE};
use plimsoll_client::Secret;
use plimsoll_console::exit::Stop;
use plimsoll_console::page_server::{self, Page, PageRequest};
use plimsoll_server::collector::Bearer;
use tokio::sync::watch;

pub struct ServedContent {
    /// The path, without its query.
    pub path: &'static str,
    pub kind: &'static str,
    /// The content, or the input of `make`, which runs on each request.
    pub text: String,
    pub make: fn(&str) -> String,
}

impl ServedContent {
    /// Returns a body that is served unchanged.
    pub fn new(path: &'static str, kind: &'static str, text: String) -> ServedContent {
        ServedContent { path, kind, text, make: str::to_owned }
    }
}

/// Access to the pages from other machines, as configured.
#[derive(Clone, Default, Debug)]
pub struct ReadersSpec {
    /// Access without a key.
    pub open: bool,
    /// Environment variable of the access key.
    pub key_env: Option<String>,
}

/// Access control for readers.
#[derive(Clone)]
struct Readers {
    key: Option<Bearer>,
}

impl Readers {
    /// Returns the access control from the settings.
    ///
    /// # Errors
    /// Fails if the key can't be read, or if the address is not loopback and outside access is not permitted.
    fn asked(spec: &ReadersSpec, addr: SocketAddr) -> Result<Readers, Stop> {
        let key = spec.key_env.as_ref().map(|name| Secret::from_env(name)).transpose();
        let key = key.map_err(|e| Stop::usage(format!("--listen-key-env: {e}")))?;
        if !addr.ip().is_loopback() && !spec.open && key.is_none() {
            return Err(Stop::usage(format!(
                "--listen {addr}: other machines could read it; set a key with --listen-key-env, allow all with --listen-open, or listen on 127.0.0.1"
            )));
        }
        Ok(Readers { key: key.map(|key| key.with_bytes(Bearer::new)) })
    }

    /// Returns whether the request shows the key, if a key is required. A browser sends the key as the password of basic
    /// authentication.
    fn are_let_in(&self, asked: &PageRequest) -> bool {
        let Some(key) = &self.key else { return true };
        asked.authorization.as_deref().is_some_and(|said| {
            let said = said.trim();
            key.is(said.as_bytes()) || password(said).is_some_and(|password| key.is_token(&password))
        })
    }
}

/// Returns the password of HTTP basic authentication (RFC 7617).
fn password(said: &str) -> Option<Vec<u8>> {
    let (scheme, pair) = said.split_once(' ')?;
    let pair = BASE64_STANDARD.decode(pair.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
    let colon = pair.iter().position(|byte| *byte == b':')?;
    Some(pair[colon + 1..].to_vec())
}

/// The HTTP server of a watch.
pub struct StatusServer {
    pub addr: SocketAddr,
    bodies: Arc<RwLock<Vec<ServedContent>>>,
    event: watch::Sender<String>,
}

impl StatusServer {
    /// Starts the server with its first content.
    ///
    /// # Errors
    /// Fails if the address can't be bound, or if it is not loopback and outside access is not permitted.
    pub fn start(
        addr: SocketAddr,
        readers: &ReadersSpec,
        first: Vec<ServedContent>,
    ) -> Result<StatusServer, Stop> {
        let readers = Readers::asked(readers, addr)?;
        let bodies = Arc::new(RwLock::new(first));
        let event = watch::Sender::new(String::new());
        let (shown, changes) = (Arc::clone(&bodies), event.clone());
        let addr = page_server::start(addr, move |asked| answer(asked, &readers, &shown, &changes))?;
        Ok(StatusServer { addr, bodies, event })
    }

    pub fn show(&self, bodies: Vec<ServedContent>, event: String) {
        *self.bodies.write().unwrap_or_else(PoisonError::into_inner) = bodies;
        self.event.send_replace(event);
    }
}

fn answer(
    asked: &PageRequest,
    readers: &Readers,
    shown: &RwLock<Vec<ServedContent>>,
    changes: &watch::Sender<String>,
) -> Page {
    match asked.path.as_str() {
        "/healthz" => return Page::text(StatusCode::OK, "ok\n"),
        _ if !readers.are_let_in(asked) => {
            let said = "show the key of --listen-key-env: Authorization: Bearer KEY, or as a password\n";
            let mut page = Page::text(StatusCode::UNAUTHORIZED, said);
            page.headers.push((WWW_AUTHENTICATE, "Basic realm=\"plimsoll\""));
            return page;
        }
        "/v1/events" => return Page::events(changes.subscribe()),
        _ => {}
    }
    let bodies = shown.read().unwrap_or_else(PoisonError::into_inner);
    let Some(body) = bodies.iter().find(|body| body.path == asked.path) else {
        let paths: Vec<&str> = bodies.iter().map(|body| body.path).collect();
        let said = format!("there are {}, /v1/events and /healthz\n", paths.join(", "));
        return Page::text(StatusCode::NOT_FOUND, said);
    };
    // The text is made without the lock, because the loop of the watch must not wait for it.
    let (kind, text, make) = (body.kind, body.text.clone(), body.make);
    drop(bodies);
    let mut page = Page::of(kind, make(&text));
    page.headers.push((CONTENT_SECURITY_POLICY, "default-src 'self' 'unsafe-inline'"));
    page
}
