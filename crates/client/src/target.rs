//! Resolves a target's configuration for the driver: addresses, request path, headers, and secrets to scrub.

use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    ACCEPT, AUTHORIZATION, CONTENT_LENGTH, CONTENT_TYPE, HOST, TRANSFER_ENCODING, USER_AGENT,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use plimsoll_model::Protocol;
use plimsoll_wire::{EncodedRequest, encode};
use plimsoll_workload::{HttpVersion, TargetSpec};
use rustls::ClientConfig;
use rustls::pki_types::ServerName;

use crate::auth::keys;
use crate::auth::secret::{Key, Secret, SecretError};
use crate::http1::header_template::HeaderTemplate;
use crate::http1::link::Route;
use crate::http1::request::{KeyHeaders, RequestOpening};
use crate::tls::certs::Identity;
use crate::tls::{SharedTls, TlsError, TlsTrust};

#[derive(Debug, thiserror::Error)]
pub enum TargetError {
    #[error("cannot use the URL {url}: {why}")]
    Url {
        /// URL as configured, without user info.
        url: String,
        why: String,
    },
    /// A header's name or value can't be sent.
    #[error("cannot send the header {name}: {why}")]
    Header {
        name: String,
        /// Reason for the failure; never contains the value.
        why: String,
    },
    #[error(transparent)]
    Key(#[from] SecretError),
    #[error(transparent)]
    Tls(#[from] TlsError),
}

#[derive(Clone, Debug)]
pub struct Target {
    /// URL of the target without user info.
    pub url: String,
    host: String,
    port: u16,
    base: String,
    query: Option<String>,
    tls: Option<(Arc<ClientConfig>, ServerName<'static>)>,
    /// HTTP/2 only: scheme and authority of its requests, and the most streams per connection.
    http2: Option<(Uri, u32)>,
    headers: HeaderMap,
    own: Vec<HeaderTemplate>,
    secrets: Vec<Secret>,
    key: Option<KeyHeaders>,
}

impl Target {
    /// Resolves a target. The key comes from `key`, or else from the configured source; `$NAME` in header values from the
    /// environment.
    pub fn new(spec: &TargetSpec, key: Option<Secret>) -> Result<Target, TargetError> {
        Target::sharing(spec, key, &SharedTls::default())
    }

    /// Resolves one of several targets that share TLS configurations.
    pub fn sharing(spec: &TargetSpec, key: Option<Secret>, tls: &SharedTls) -> Result<Target, TargetError> {
        let uri = read_url(&spec.url)?;
        let host = uri.host().unwrap_or_default().to_owned();
        let https = matches!(uri.scheme_str(), Some("https" | "grpcs"));
        let port = uri.port_u16().unwrap_or(if https { 443 } else { 80 });
        let http2 = over_http2(spec, &uri, https)?;
        let tls = match https {
            false => None,
            true => Some(tls_of(spec, &host, tls)?),
        };
        let mut secrets = Vec::new();
        let (headers, own) = headers_of(spec, &uri, &mut secrets)?;
        let key = keys::of(spec, key)?.map(|key| key_headers(spec, key, &headers));
        Ok(Target {
            url: spec.url.clone(),
            port,
            base: uri.path().trim_end_matches('/').to_owned(),
            query: uri.query().map(str::to_owned),
            tls,
            http2,
            headers,
            own,
            secrets,
            key,
            host,
        })
    }

    /// Returns the path of the URL, without trailing slash and query.
    pub(crate) fn base(&self) -> &str {
        &self.base
    }

    /// Resolves the host's addresses; blocks. A failure is stored as the reason of later connection errors.
    pub fn resolve(&self) -> Route {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        let addrs = (host, self.port).to_socket_addrs().map(|all| all.collect()).map_err(|e| e.to_string());
        Route {
            addrs,
            host: self.host.clone(),
            tls: self.tls.clone(),
            http2: self.http2.as_ref().map(|(_, most)| *most),
        }
    }

    /// Returns host and port for display.
    pub fn authority(&self) -> String {
        format!("{}:{}", self.host, self.port)
    }

    /// Returns the request path for `path` below the base.
    pub fn path(&self, path: &str) -> String {
        let slash = if path.is_empty() || path.starts_with('/') { "" } else { "/" };
        let query = self.query.as_ref().map(|q| format!("?{q}")).unwrap_or_default();
        let whole = format!("{}{slash}{path}{query}", self.base);
        if whole.starts_with('/') { whole } else { format!("/{whole}") }
    }

    /// Returns the request URI for `path` below the base.
    ///
    /// # Errors
    /// Fails if the configured URL has characters that no request line can carry.
    pub fn uri(&self, path: &str) -> Result<Uri, TargetError> {
        self.path(path).parse().map_err(|e: http::uri::InvalidUri| TargetError::Url {
            url: self.url.clone(),
            why: e.to_string(),
        })
    }

    /// Returns the opening of every POST to `path` (a result of [`Target::uri`]).
    pub fn posts(&self, path: &Uri) -> RequestOpening {
        self.opens(Method::POST, path)
    }

    /// Returns the opening of a POST with additional headers.
    pub(crate) fn posts_with(&self, path: &Uri, more: &[(HeaderName, HeaderValue)]) -> RequestOpening {
        let mut headers = self.headers.clone();
        headers.extend(more.iter().cloned());
        self.opening(Method::POST, path, &headers).with_own(&self.own)
    }

    /// Returns the opening of a request with any method.
    pub(crate) fn opens(&self, method: Method, path: &Uri) -> RequestOpening {
        self.opening(method, path, &self.headers).with_own(&self.own)
    }

    fn opening(&self, method: Method, path: &Uri, headers: &HeaderMap) -> RequestOpening {
        let opening = RequestOpening::new(method.as_str(), path, headers).with_key(self.key.as_ref());
        let Some((base, _)) = &self.http2 else { return opening };
        let (mut whole, place) = (base.clone().into_parts(), path.path_and_query().cloned());
        whole.path_and_query = place;
        // As over HTTP/1.1, a configured Host header selects another server behind the address.
        let host = headers.get(HOST).and_then(|host| host.to_str().ok()?.parse().ok());
        whole.authority = host.or(whole.authority);
        // The parts come from two valid URIs.
        match Uri::from_parts(whole) {
            Ok(uri) => opening.over_http2(method, uri, headers),
            Err(_) => opening,
        }
    }

    /// Returns the opening of a GET of `path`.
    pub fn gets(&self, path: &Uri) -> RequestOpening {
        self.opening(Method::GET, path, &self.headers)
    }

    /// Returns `text` with all keys removed.
    pub(crate) fn scrub(&self, text: &str) -> String {
        let keys = self.key.iter().flat_map(|key| key.key.all());
        let text = keys.fold(text.to_owned(), |text, key| key.scrub(&text));
        self.secrets.iter().fold(text, |text, secret| secret.scrub(&text))
    }

    /// Records that the server rejected the key, which triggers an immediate renewal.
    pub(crate) fn key_refused(&self) {
        self.key.iter().for_each(|key| key.key.refused());
    }

    /// Returns the error of the last failed key renewal, if any.
    pub fn key_trouble(&self) -> Option<String> {
        self.key.as_ref()?.key.trouble().map(|why| self.scrub(&why))
    }

    /// Returns whether every request carries a key, in the standard header or a configured one.
    pub(crate) fn has_key(&self) -> bool {
        self.key.is_some() || !self.secrets.is_empty() || self.headers.contains_key(AUTHORIZATION)
    }
}

/// A request body with its media type.
#[derive(Clone, Debug)]
pub struct EncodedBody {
    pub content_type: &'static str,
    /// Size in bytes of the JSON part if raw tensors follow; otherwise `None`.
    pub header_length: Option<usize>,
    /// Encoded content; clones share its memory.
    pub bytes: Bytes,
}

impl From<EncodedRequest> for EncodedBody {
    fn from(encoded: EncodedRequest) -> EncodedBody {
        let EncodedRequest { content_type, header_length, body, .. } = encoded;
        EncodedBody { content_type, header_length, bytes: body }
    }
}

/// Header with the attempt's name, for the server's log.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Returns a URL that is safe to display, because the part before the host may contain a password.
pub fn without_user(url: &str) -> String {
    match url.split_once("://").map(|(scheme, rest)| (scheme, rest.split_once('@'))) {
        Some((scheme, Some((_, rest)))) => format!("{scheme}://***@{rest}"),
        _ => url.to_owned(),
    }
}

fn read_url(url: &str) -> Result<Uri, TargetError> {
    let hidden = without_user(url);
    let bad = |why: &str| TargetError::Url { url: hidden.clone(), why: why.to_owned() };
    if !["http://", "https://", "grpc://", "grpcs://"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(bad("it must begin with http:// or https://, or grpc:// or grpcs://"));
    }
    let uri: Uri = url.parse().map_err(|e: http::uri::InvalidUri| bad(&e.to_string()))?;
    let authority = uri.authority().ok_or_else(|| bad("it names no host"))?;
    if authority.as_str().contains('@') {
        return Err(bad("keys do not belong in a URL: use --key-env or --key-file"));
    }
    if authority.host().is_empty() {
        return Err(bad("it names no host"));
    }
    Ok(uri)
}

/// Returns whether the target uses HTTP/2: always for gRPC, otherwise by configuration.
fn speaks_http2(spec: &TargetSpec) -> bool {
    spec.protocol == Protocol::KserveGrpc || spec.http == HttpVersion::Two
}

/// Returns scheme and authority of requests over HTTP/2 and the most streams per connection; `None` over HTTP/1.1.
fn over_http2(spec: &TargetSpec, uri: &Uri, https: bool) -> Result<Option<(Uri, u32)>, TargetError> {
    let bad = |why: &str| TargetError::Url { url: without_user(&spec.url), why: why.to_owned() };
    let is_call = uri.scheme_str().is_some_and(|scheme| scheme.starts_with("grpc"));
    if is_call != (spec.protocol == Protocol::KserveGrpc) {
        return Err(bad(
            "grpc:// and grpcs:// need --protocol kserve_grpc, and that protocol needs one of them",
        ));
    }
    if is_call && !https && uri.port().is_none() {
        return Err(bad("it names no port: Triton's is 8001, grpc://host:8001"));
    }
    if !speaks_http2(spec) {
        return Ok(None);
    }
    let authority = uri.authority().map(|authority| authority.as_str()).unwrap_or_default();
    let scheme = if https { "https" } else { "http" };
    let base = Uri::builder().scheme(scheme).authority(authority).path_and_query("/").build();
    let most = spec.streams_per_connection.unwrap_or(u32::MAX);
    Ok(Some((base.map_err(|e| bad(&e.to_string()))?, most)))
}

fn tls_of(
    spec: &TargetSpec,
    host: &str,
    shared: &SharedTls,
) -> Result<(Arc<ClientConfig>, ServerName<'static>), TargetError> {
    let trust = match (&spec.ca_file, spec.tls_verify) {
        (_, false) => TlsTrust::Anything,
        (Some(file), true) => TlsTrust::SystemAnd(Path::new(file).to_owned()),
        (None, true) => TlsTrust::System,
    };
    let own = spec.client_cert.as_ref().zip(spec.client_key.as_ref());
    let own = own.map(|(cert, key)| Identity { cert: cert.into(), key: key.into() });
    let name = ServerName::try_from(host.trim_start_matches('[').trim_end_matches(']').to_owned())
        .map_err(|e| TargetError::Url { url: spec.url.clone(), why: e.to_string() })?;
    Ok((shared.config(&trust, own.as_ref(), speaks_http2(spec))?, name))
}

fn headers_of(
    spec: &TargetSpec,
    uri: &Uri,
    secrets: &mut Vec<Secret>,
) -> Result<(HeaderMap, Vec<HeaderTemplate>), TargetError> {
    let bad = |name: &str, why: &str| TargetError::Header { name: name.to_owned(), why: why.to_owned() };
    let (mut headers, mut own) = (HeaderMap::new(), Vec::new());
    let host = uri.authority().map(|a| a.as_str()).unwrap_or_default();
    headers.insert(HOST, HeaderValue::from_str(host).map_err(|_| bad("host", "not a header value"))?);
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("plimsoll/", env!("CARGO_PKG_VERSION"))));
    let accept = if spec.stream { "text/event-stream, application/json" } else { "application/json, */*" };
    headers.insert(ACCEPT, HeaderValue::from_static(accept));
    for (name, value) in encode::headers(spec.protocol) {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    for (name, value) in &spec.headers {
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad(name, "not a header name"))?;
        if known == TRANSFER_ENCODING {
            return Err(bad(name, "bodies are sent with their length"));
        }
        let filled = HeaderTemplate::read(&known, value, |text| Ok(expand(text, secrets)?.0));
        if let Some(header) = filled.map_err(|why| bad(name, &why))? {
            if [CONTENT_LENGTH, CONTENT_TYPE, REQUEST_ID].contains(&known) {
                return Err(bad(name, "plimsoll sets it for each request; remove it"));
            }
            if known == HOST && speaks_http2(spec) {
                return Err(bad(
                    name,
                    "over HTTP/2 all requests of a target share one value: write one name",
                ));
            }
            own.push(header);
            continue;
        }
        let (text, hidden) = expand(value, secrets).map_err(|why| bad(name, &why))?;
        let mut value = HeaderValue::from_str(&text).map_err(|_| bad(name, "not a header value"))?;
        value.set_sensitive(hidden);
        headers.insert(known, value);
    }
    Ok((headers, own))
}

/// Returns the headers that carry the key. A header that the user set takes precedence.
fn key_headers(spec: &TargetSpec, key: Key, headers: &HeaderMap) -> KeyHeaders {
    let bare = encode::key_header(spec.protocol).map(HeaderName::from_static);
    KeyHeaders {
        key,
        bearer: !headers.contains_key(AUTHORIZATION),
        bare: bare.filter(|name| !headers.contains_key(name)),
    }
}

/// Substitutes `$NAME` and `${NAME}` from the environment; the substituted values are secrets.
fn expand(text: &str, secrets: &mut Vec<Secret>) -> Result<(String, bool), String> {
    let (mut out, mut hidden, mut rest) = (String::new(), false, text);
    while let Some(at) = rest.find('$') {
        out.push_str(&rest[..at]);
        rest = &rest[at + 1..];
        let (name, after) = match rest.strip_prefix('{').and_then(|inner| inner.split_once('}')) {
            Some(pair) => pair,
            None => rest.split_at(
                rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).unwrap_or(rest.len()),
            ),
        };
        if name.is_empty() {
            out.push('$');
            continue;
        }
        let value = std::env::var(name).map_err(|_| format!("the environment variable {name} is not set"))?;
        secrets.push(Secret::new(&value, &format!("${name}")).map_err(|e| e.to_string())?);
        out.push_str(value.trim());
        (hidden, rest) = (true, after);
    }
    out.push_str(rest);
    Ok((out, hidden))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(url: &str) -> Result<Target, TargetError> {
        Target::new(&TargetSpec { url: url.into(), ..TargetSpec::default() }, None)
    }

    #[test]
    fn paths_join_under_the_base_and_keep_the_query() {
        let join = |url: &str, path: &str| target(url).expect("usable").path(path);
        assert_eq!(join("http://h:8000/v1", "/chat/completions"), "/v1/chat/completions");
        assert_eq!(join("http://h:8000/v1/", "models"), "/v1/models");
        assert_eq!(join("http://h", ""), "/");
        assert_eq!(
            join("https://h/o/d?api-version=1", "/chat/completions"),
            "/o/d/chat/completions?api-version=1"
        );
    }

    /// Targets that are created together share the TLS configuration of equal trust settings.
    #[test]
    fn one_trust_is_set_up_once() {
        let (tls, other) = (SharedTls::default(), SharedTls::default());
        let config = |url: &str, tls_verify: bool, tls: &SharedTls| {
            let spec = TargetSpec { url: url.into(), tls_verify, ..TargetSpec::default() };
            Target::sharing(&spec, None, tls).expect("usable").tls.expect("https").0
        };
        let first = config("https://a/", true, &tls);
        assert!(Arc::ptr_eq(&first, &config("https://b/", true, &tls)));
        assert!(!Arc::ptr_eq(&first, &config("https://a/", false, &tls)), "another trust");
        assert!(!Arc::ptr_eq(&first, &config("https://a/", true, &other)));
    }

    #[test]
    fn a_url_that_cannot_be_used_is_told_and_its_key_is_not() {
        for (url, want) in [
            ("h:8000/v1", "http://"),
            ("ftp://h/", "http://"),
            ("http://", ""),
            ("https://u:sk@h/", "--key-env"),
        ] {
            let error = target(url).expect_err(url).to_string();
            assert!(error.contains(want) && !error.contains("sk"), "{error}");
        }
    }

    #[test]
    fn a_header_that_would_frame_the_body_is_refused() {
        let headers = [("Transfer-Encoding".to_owned(), "chunked".to_owned())].into_iter().collect();
        let spec = TargetSpec { url: "http://h/".into(), headers, ..TargetSpec::default() };
        let error = Target::new(&spec, None).expect_err("refused").to_string();
        assert!(error.contains("Transfer-Encoding") && error.contains("length"), "{error}");
    }

    #[test]
    fn a_dollar_that_names_nothing_is_an_error_and_a_lone_one_is_itself() {
        assert_eq!(expand("a$ b", &mut vec![]), Ok(("a$ b".into(), false)));
        assert!(expand("Token $PLIMSOLL_TEST_UNSET", &mut vec![]).is_err());
        let mut secrets = vec![];
        let home = std::env::var("PATH").expect("every test has a PATH");
        assert_eq!(expand("<${PATH}>", &mut secrets), Ok((format!("<{home}>"), true)));
        assert_eq!(secrets.len(), 1);
    }
}
