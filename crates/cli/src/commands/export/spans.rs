//! Writes the attempts of a run as client spans. Attempts are read, written and dropped one at a time, so
//! memory contains at most one row group of the file. A run that was cut off is read as a whole, because its
//! requests in flight are known only at the end.

use std::fmt;
use std::path::Path;

use plimsoll_client::Name;
use plimsoll_client::http1::header_template::{span_id, trace_id};
use plimsoll_model::{Attempt, EndedBy, Manifest, Protocol, RunState};
use plimsoll_store::ColumnSelection;
use plimsoll_wire::trace::client::ClientSpans;
use serde_json::Value;

use crate::exit::Stop;
use crate::rows;

/// Number of spans in a line: some 0.7 MB, which receivers accept as one request.
const BATCH: usize = 512;
/// Time origin in ns for a run without wall clock, because OTLP defines 0 as unknown.
const EPOCH: i64 = 1_000_000_000;

/// Number of written spans and of attempts that were never sent.
#[derive(Copy, Clone, Default)]
pub struct WrittenSpans {
    pub spans: u64,
    pub unsent: u64,
}

/// Writes the lines. The owner of `out` reports its write errors.
pub fn write(dir: &Path, out: &mut dyn fmt::Write) -> Result<WrittenSpans, Stop> {
    let wrong = |e: plimsoll_store::StoreError| Stop::usage(e.to_string());
    if let Some(manifest) = plimsoll_store::read_manifest(dir).ok().filter(is_whole) {
        let mut lines = Lines::new(&manifest, out);
        let read = plimsoll_store::each_attempt(dir, ColumnSelection::Figures, |attempt| lines.push(attempt));
        if read.map_err(wrong)?.is_some() {
            return Ok(lines.end());
        }
    }
    let run = rows::read(dir)?;
    let mut lines = Lines::new(&run.manifest, out);
    run.attempts.iter().for_each(|attempt| lines.push(attempt));
    Ok(lines.end())
}

/// Returns whether the run has ended and needs no recovery.
fn is_whole(manifest: &Manifest) -> bool {
    manifest.progress != RunState::Running
        && manifest.levels.iter().all(|level| level.ended_by != EndedBy::Cut)
}

struct Lines<'a> {
    spans: ClientSpans,
    /// Host and port of each endpoint; `None` if the address is not HTTP.
    servers: Vec<Option<(String, u16)>>,
    out: &'a mut dyn fmt::Write,
    batch: Vec<Value>,
    written: WrittenSpans,
}

impl<'a> Lines<'a> {
    fn new(manifest: &Manifest, out: &'a mut dyn fmt::Write) -> Lines<'a> {
        let asked = |name: &str| manifest.scenario.pointer(&format!("/target/{name}"));
        let spans = ClientSpans {
            run: manifest.id.clone(),
            version: manifest.tool.trim_start_matches("plimsoll ").to_owned(),
            protocol: asked("protocol")
                .and_then(|name| serde_json::from_value(name.clone()).ok())
                .unwrap_or(Protocol::Chat),
            stream: asked("stream").and_then(Value::as_bool).unwrap_or(true),
            model: asked("model").and_then(Value::as_str).map(str::to_owned),
            provider: manifest.target.facts.get("engine").cloned().flatten(),
            server: None,
            base_ns: if manifest.clock.realtime_ns == 0 { EPOCH } else { manifest.clock.realtime_ns },
        };
        let further = asked("further_urls").and_then(Value::as_array).into_iter().flatten();
        let urls = std::iter::once(manifest.target.url.as_str()).chain(further.filter_map(Value::as_str));
        let servers = urls.map(server).collect();
        Lines { spans, servers, out, batch: Vec::with_capacity(BATCH), written: WrittenSpans::default() }
    }

    fn push(&mut self, attempt: &Attempt) {
        // These ids also fill `{trace}` and `{span}` in headers, so that server spans join these traces.
        let (request, name) = Name::of(&self.spans.run, attempt);
        let (trace, span) = (trace_id(&request), span_id(&name));
        self.spans.server = self.servers.get(usize::from(attempt.target)).cloned().flatten();
        match self.spans.span(attempt, (&trace, &span)) {
            Some(span) => self.batch.push(span),
            None => self.written.unsent += 1,
        }
        if self.batch.len() == BATCH {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.written.spans += self.batch.len() as u64;
        let _ = writeln!(self.out, "{}", self.spans.batch(&self.batch));
        self.batch.clear();
    }

    fn end(mut self) -> WrittenSpans {
        if !self.batch.is_empty() {
            self.flush();
        }
        self.written
    }
}

/// Returns host and port of an HTTP address.
fn server(url: &str) -> Option<(String, u16)> {
    let (scheme, rest) = url.split_once("://")?;
    let default = match scheme {
        "http" => 80,
        "https" => 443,
        _ => return None,
    };
    let authority = rest.split(['/', '?', '#']).next()?;
    let authority = authority.rsplit('@').next()?;
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.ends_with(']') => (host, port.parse().ok()?),
        _ => (authority, default),
    };
    Some((host.trim_matches(['[', ']']).to_owned(), port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port_and_nothing_secret() {
        for (url, host, port) in [
            ("http://a:8000/v1", "a", 8000),
            ("https://b/v1?key=1", "b", 443),
            ("http://user:pass@c:9", "c", 9),
            ("http://[::1]:80/v1", "::1", 80),
            ("http://[::1]/v1", "::1", 80),
        ] {
            assert_eq!(server(url), Some((host.to_owned(), port)), "{url}");
        }
        for url in ["simulated:demo", "http://a:x/v1", "ftp://a"] {
            assert_eq!(server(url), None, "{url}");
        }
    }
}
