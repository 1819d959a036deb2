//! Parses a form in HTTP (`multipart/form-data`, RFC 7578) without copying its content.

use super::request::{BadRequest, bad};

const PARTS_MAX: usize = 64;
/// Longest boundary in bytes (RFC 2046, 5.1.1).
const BOUNDARY_MAX: usize = 70;

/// A part of a form: its name and its content.
pub(super) struct FormPart<'a> {
    pub name: &'a str,
    pub body: &'a [u8],
}

/// Splits a form into its parts.
pub(super) fn parts<'a>(content_type: &str, body: &'a [u8]) -> Result<Vec<FormPart<'a>>, BadRequest> {
    let wrong = |what: &str| bad("body", format!("the form is not valid: {what}"));
    let boundary = boundary(content_type)
        .ok_or_else(|| wrong("the content type is not multipart/form-data with a boundary"))?;
    let line = format!("--{boundary}");
    let mut rest = match body.strip_prefix(line.as_bytes()) {
        Some(rest) => rest,
        // Bytes before the first boundary are ignored (RFC 2046).
        None => split(body, format!("\r\n{line}").as_bytes()).ok_or_else(|| wrong("no boundary in it"))?.1,
    };
    let next = format!("\r\n{line}");
    let mut parts = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Ok(parts);
        }
        let (padding, after) = split(rest, b"\r\n").ok_or_else(|| wrong("it ends early"))?;
        if !padding.iter().all(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(wrong("a boundary's line goes on"));
        }
        let (part, after) = split(after, next.as_bytes()).ok_or_else(|| wrong("it ends early"))?;
        let (head, content) = match part.strip_prefix(b"\r\n") {
            Some(content) => (&[][..], content),
            None => split(part, b"\r\n\r\n").ok_or_else(|| wrong("a part without a head"))?,
        };
        let name = name(head).ok_or_else(|| wrong("a part without a name"))?;
        if parts.len() == PARTS_MAX {
            return Err(wrong(&format!("more than {PARTS_MAX} parts")));
        }
        parts.push(FormPart { name, body: content });
        rest = after;
    }
}

/// Returns the bytes before the first `mark`, and after it.
fn split<'a>(bytes: &'a [u8], mark: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let at = memchr::memmem::find(bytes, mark)?;
    Some((&bytes[..at], &bytes[at + mark.len()..]))
}

fn boundary(content_type: &str) -> Option<&str> {
    let (kind, parameters) = content_type.split_once(';')?;
    if !kind.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary").filter(|text| (1..=BOUNDARY_MAX).contains(&text.len()))
}

/// Returns the name in the head of a part.
fn name(head: &[u8]) -> Option<&str> {
    let head = std::str::from_utf8(head).ok()?;
    let disposition = head.split("\r\n").find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.trim().eq_ignore_ascii_case("content-disposition").then_some(value)
    })?;
    parameter(disposition, "name")
}

/// Returns a parameter of a header's value, without its quotes.
fn parameter<'a>(value: &'a str, wanted: &str) -> Option<&'a str> {
    value.split(';').find_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        let value = value.trim();
        let bare = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).unwrap_or(value);
        name.trim().eq_ignore_ascii_case(wanted).then_some(bare)
    })
}
