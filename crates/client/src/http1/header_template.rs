//! Expands `{request}`, `{session}`, `{trace}` and `{span}` in header values for each request.
//!
//! A router can then keep the turns of a session together under any header name, and spans of the server can be matched to
//! requests. Names come from the run, its level and the schedule's numbers, and trace ids from those names, so no state is
//! needed.

use std::fmt::{self, Display, Write as _};
use std::io::Write as _;

use http::HeaderName;
use ring::digest::{SHA256, digest};

/// The names of one request towards the server.
#[derive(Copy, Clone)]
pub struct RequestNames<'a> {
    pub attempt: &'a dyn Display,
    /// Name of the request, common to its attempts.
    pub request: &'a dyn Display,
    /// Name of the session; the request's name if there is no session.
    pub session: &'a dyn Display,
}

impl<'a> RequestNames<'a> {
    /// Returns the names of a request outside a load.
    pub fn one(name: &'a dyn Display) -> RequestNames<'a> {
        RequestNames { attempt: name, request: name, session: name }
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Placeholder {
    Request,
    Session,
    Trace,
    Span,
}

const PLACEHOLDERS: [(&str, Placeholder); 4] = [
    ("{request}", Placeholder::Request),
    ("{session}", Placeholder::Session),
    ("{trace}", Placeholder::Trace),
    ("{span}", Placeholder::Span),
];

/// A header with placeholders in its value.
#[derive(Clone)]
pub struct HeaderTemplate {
    name: HeaderName,
    /// Text before each placeholder, and the placeholder.
    parts: Vec<(String, Placeholder)>,
    rest: String,
}

impl fmt::Debug for HeaderTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Omits the value, because it may contain a key.
        write!(f, "HeaderTemplate({})", self.name)
    }
}

impl HeaderTemplate {
    /// Parses a value as the user wrote it; `None` = the value has no placeholders. `expand` substitutes environment
    /// variables.
    ///
    /// # Errors
    /// Fails if an unknown placeholder appears or `expand` fails.
    pub fn read(
        name: &HeaderName,
        value: &str,
        mut expand: impl FnMut(&str) -> Result<String, String>,
    ) -> Result<Option<HeaderTemplate>, String> {
        let (mut parts, mut text, mut rest) = (Vec::new(), String::new(), value);
        while let Some(at) = rest.find('{') {
            let (before, from) = rest.split_at(at);
            text.push_str(before);
            let known = PLACEHOLDERS.iter().find(|(word, _)| from.starts_with(word));
            let word = from.split_inclusive('}').next().unwrap_or_default();
            rest = match known {
                Some((word, placeholder)) => {
                    parts.push((expand(&std::mem::take(&mut text))?, *placeholder));
                    &from[word.len()..]
                }
                None if !before.ends_with('$') && is_word(word) => {
                    return Err(format!(
                        "{word} is none of {{request}}, {{session}}, {{trace}} and {{span}}"
                    ));
                }
                None => {
                    text.push('{');
                    &from[1..]
                }
            };
        }
        if parts.is_empty() {
            return Ok(None);
        }
        text.push_str(rest);
        Ok(Some(HeaderTemplate { name: name.clone(), parts, rest: expand(&text)? }))
    }

    pub fn write(&self, head: &mut Vec<u8>, names: RequestNames<'_>) {
        head.extend_from_slice(self.name.as_str().as_bytes());
        head.extend_from_slice(b": ");
        for (text, placeholder) in &self.parts {
            head.extend_from_slice(text.as_bytes());
            let _ = match placeholder {
                Placeholder::Request => write!(head, "{}", names.attempt),
                Placeholder::Session => write!(head, "{}", names.session),
                Placeholder::Trace => head.write_all(trace_id(names.request).as_bytes()),
                Placeholder::Span => head.write_all(span_id(names.attempt).as_bytes()),
            };
        }
        head.extend_from_slice(self.rest.as_bytes());
        head.extend_from_slice(b"\r\n");
    }
}

/// Returns whether the text is `{lower_case}`, the form of a placeholder. JSON never is.
fn is_word(text: &str) -> bool {
    let inner = text.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    inner.is_some_and(|inner| !inner.is_empty() && inner.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
}

/// Returns the trace id of a request with this name.
pub fn trace_id(request: &dyn Display) -> String {
    hex::<16>(request)
}

/// Returns the span id of an attempt with this name.
pub fn span_id(attempt: &dyn Display) -> String {
    hex::<8>(attempt)
}

/// Returns the first bytes of a name's SHA-256 in hexadecimal: `printf %s NAME | sha256sum`.
fn hex<const BYTES: usize>(name: &dyn Display) -> String {
    let mut out = String::with_capacity(2 * BYTES);
    for byte in &digest(&SHA256, name.to_string().as_bytes()).as_ref()[..BYTES] {
        let _ = write!(out, "{byte:02x}");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(value: &str) -> Result<Option<HeaderTemplate>, String> {
        let name = HeaderName::from_static("x-own");
        HeaderTemplate::read(&name, value, |text| Ok(text.replace("$KEY", "sk-1").replace("${KEY}", "sk-1")))
    }

    fn line(value: &str) -> String {
        let own = read(value).expect("sound").expect("it has placeholders");
        let names = RequestNames { attempt: &"r-0-7-1", request: &"r-0-7", session: &"r-0-s3" };
        let mut head = Vec::new();
        own.write(&mut head, names);
        String::from_utf8(head).expect("text")
    }

    #[test]
    fn places_are_filled_for_each_request() {
        assert_eq!(line("{session}"), "x-own: r-0-s3\r\n");
        assert_eq!(line("a {request};$KEY{session} ${KEY}"), "x-own: a r-0-7-1;sk-1r-0-s3 sk-1\r\n");
        // printf %s r-0-7 | sha256sum; printf %s r-0-7-1 | sha256sum
        assert_eq!(
            line("00-{trace}-{span}-01"),
            "x-own: 00-0495225a9181ae1c50785aeb210f1e01-d28ff2f9dea2cf09-01\r\n"
        );
        // Attempts of one request share their trace.
        let other = RequestNames { attempt: &"r-0-7-2", request: &"r-0-7", session: &"r-0-s3" };
        let own = read("{trace}.{span}").expect("sound").expect("it has placeholders");
        let mut head = Vec::new();
        own.write(&mut head, other);
        let (first, second) = (line("{trace}.{span}"), String::from_utf8(head).expect("text"));
        let cut = |text: &str| text.trim().split_once('.').map(|(a, b)| (a.to_owned(), b.to_owned()));
        let ((a, b), (c, d)) = cut(&first).zip(cut(&second)).expect("two parts");
        assert!(a == c && b != d, "{first} {second}");
    }

    #[test]
    fn what_has_no_places_is_left_alone_and_a_slip_is_named() {
        for value in ["plain", "{\"json\": 1}", "${KEY}", "{}", "{A}", "{"] {
            assert!(read(value).expect(value).is_none(), "{value}");
        }
        let why = read("{sesion}").expect_err("a slip");
        assert!(why.contains("{sesion}") && why.contains("{session}"), "{why}");
    }
}
