//! Multipart forms (RFC 7578) of audio and image requests: finds the fields and skips the files.

use std::ops::Range;

use http::HeaderMap;
use http::header::CONTENT_TYPE;
use memchr::memmem;

/// Limit on the parsed parts of a form.
const MOST_PARTS: usize = 256;
/// Limit on the headers of a part, in bytes.
const MOST_HEAD: usize = 4 << 10;
/// Limit on a boundary in bytes (RFC 2046, 5.1.1).
const LONGEST_BOUNDARY: usize = 70;

/// Returns the boundary of a multipart form, or `None` if the body is not a form.
pub fn boundary(headers: &HeaderMap) -> Option<&str> {
    let kind = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let (media, parameters) = kind.split_once(';')?;
    if !media.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    parameter(parameters, "boundary").filter(|text| !text.is_empty() && text.len() <= LONGEST_BOUNDARY)
}

/// Returns the name and the byte range of each field of a form, without files.
pub fn fields<'a>(body: &'a [u8], boundary: &str) -> impl Iterator<Item = (&'a str, Range<usize>)> {
    let mark = format!("--{boundary}");
    let mut next = first(body, mark.as_bytes());
    let parts = std::iter::from_fn(move || {
        let from = next?;
        let end = format!("\r\n{mark}");
        let to = from + memmem::find(body.get(from..)?, end.as_bytes())?;
        next = after(body, to + end.len());
        Some(from..to)
    });
    parts.take(MOST_PARTS).filter_map(|part| field(body, part))
}

/// Returns the start of the first part. A preamble may precede the part.
fn first(body: &[u8], mark: &[u8]) -> Option<usize> {
    let begins = |at: usize| at == 0 || body[..at].ends_with(b"\n");
    let at = memmem::find_iter(body, mark).find(|at| begins(*at))?;
    after(body, at + mark.len())
}

/// Returns the start of the part behind a boundary, or `None` after the last part.
fn after(body: &[u8], at: usize) -> Option<usize> {
    let rest = body.get(at..)?;
    let padding = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    rest[padding..].starts_with(b"\r\n").then_some(at + padding + 2)
}

fn field(body: &[u8], part: Range<usize>) -> Option<(&str, Range<usize>)> {
    let text = &body[part.clone()];
    let head = &text[..text.len().min(MOST_HEAD)];
    let length = memmem::find(head, b"\r\n\r\n")?;
    let head = std::str::from_utf8(&head[..length]).ok()?;
    let named = |line: &&str| {
        line.split_once(':').is_some_and(|(name, _)| name.trim().eq_ignore_ascii_case("content-disposition"))
    };
    let (_, parameters) = head.split("\r\n").find(named)?.split_once(';')?;
    // A part with a file name is a file.
    if parameter(parameters, "filename").is_some() || parameter(parameters, "filename*").is_some() {
        return None;
    }
    Some((parameter(parameters, "name")?, part.start + length + 4..part.end))
}

/// Returns a parameter of a header value, without quotes.
fn parameter<'a>(parameters: &'a str, name: &str) -> Option<&'a str> {
    let mut rest = parameters;
    loop {
        let (key, after) = rest.split_once('=')?;
        let after = after.trim_start();
        let (value, next) = match after.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => after.split_at(after.find(';').unwrap_or(after.len())),
        };
        if key.trim().trim_start_matches(';').trim().eq_ignore_ascii_case(name) {
            return Some(value.trim());
        }
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(body: &[u8], boundary: &str) -> Vec<(String, String)> {
        let text = |at: Range<usize>| String::from_utf8_lossy(&body[at]).into_owned();
        fields(body, boundary).map(|(name, at)| (name.to_owned(), text(at))).collect()
    }

    #[test]
    fn fields_are_found_before_and_behind_files() {
        let file = [&b"--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"a;name=x.wav\"\r\nContent-Type: audio/wav\r\n\r\n"[..], &b"--XX\r\nname=\"model\"\r\n\r\nno \xff\0--X\r\n--X".repeat(0), &vec![7; 3 << 20], b"\r\n"].concat();
        let model = b"--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhisper\r\n".to_vec();
        let stream =
            b"--XX\r\ncontent-type: text/plain\r\ncontent-disposition:form-data;name=stream\r\n\r\ntrue\r\n"
                .to_vec();
        let wanted = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
            pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
        };
        for (parts, found) in [
            (vec![&model, &file], wanted(&[("model", "whisper")])),
            (vec![&file, &model], wanted(&[("model", "whisper")])),
            (vec![&file, &stream, &file, &model], wanted(&[("stream", "true"), ("model", "whisper")])),
        ] {
            let body =
                [parts.into_iter().flatten().copied().collect::<Vec<u8>>(), b"--XX--\r\n".to_vec()].concat();
            assert_eq!(read(&body, "XX"), found);
            assert_eq!(
                read(&[b"preamble --XX\r\n".to_vec(), body].concat(), "XX"),
                found,
                "behind a preamble"
            );
        }
        // A boundary inside a line does not separate parts.
        let inside = b"--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\na--XX\r\n--XX--";
        assert_eq!(read(inside, "XX"), wanted(&[("model", "a--XX")]));
        for cut in [
            &b""[..],
            b"--XX",
            b"--XX\r\n",
            b"--XX\r\nContent-Disposition: form-data; name=\"model\"\r\n\r\nwhis",
            b"--XX--\r\n",
            b"{}",
        ] {
            assert_eq!(read(cut, "XX"), [], "{cut:?}");
        }
    }

    #[test]
    fn a_boundary_is_read_quoted_and_bare() {
        let of = |text: &'static str| {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(text))]);
            boundary(&headers).map(str::to_owned)
        };
        for (text, found) in [
            ("multipart/form-data; boundary=XX", Some("XX")),
            ("Multipart/Form-Data;charset=utf-8; Boundary=\"a b;c\"", Some("a b;c")),
            ("multipart/form-data; boundary=XX; charset=utf-8", Some("XX")),
            ("multipart/form-data", None),
            ("multipart/form-data; boundary=", None),
            ("application/json; boundary=XX", None),
            ("multipart/mixed; boundary=XX", None),
        ] {
            assert_eq!(of(text).as_deref(), found, "{text}");
        }
    }
}
