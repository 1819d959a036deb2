//! Decompression of request bodies, so that the gateway can parse them. The replica receives the compressed bytes
//! unchanged.

use std::io::Read;

use bytes::Bytes;
use flate2::bufread::MultiGzDecoder;
use flate2::{Decompress, FlushDecompress, Status};
use http::HeaderMap;
use http::header::CONTENT_ENCODING;

/// Supported content codings, as listed in a 415 response (RFC 9110, 15.5.16).
pub const READ: &str = "gzip, deflate";
/// Limit on the codings of one body, because nested compression is the form of a decompression bomb.
const MOST: usize = 2;
/// Length in bytes above which compressed data is never valid UTF-8 in practice.
const SHORTEST_TEXT: usize = 64;
/// Output buffer growth in bytes per step.
const STEP: usize = 64 << 10;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum UnpackError {
    /// The gateway does not support this content coding.
    Unknown(String),
    /// The bytes do not match the declared coding.
    Broken,
    /// The decompressed body exceeds the size limit.
    TooLarge,
}

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum ContentCoding {
    Gzip,
    Deflate,
}

/// Returns whether the body has a content coding, so that its bytes are not the plain text.
pub(crate) fn is_packed(headers: &HeaderMap) -> bool {
    headers.contains_key(CONTENT_ENCODING) && !codings(headers).is_ok_and(|codings| codings.is_empty())
}

/// Returns the codings of a body in the order in which they were applied.
fn codings(headers: &HeaderMap) -> Result<Vec<ContentCoding>, UnpackError> {
    let lines = headers.get_all(CONTENT_ENCODING).iter().map(|line| line.to_str().unwrap_or("?"));
    let mut codings = Vec::new();
    for name in lines.flat_map(|line| line.split(',')).map(|name| name.trim().to_ascii_lowercase()) {
        match name.as_str() {
            "" | "identity" => {}
            "gzip" | "x-gzip" => codings.push(ContentCoding::Gzip),
            "deflate" => codings.push(ContentCoding::Deflate),
            _ => return Err(UnpackError::Unknown(name)),
        }
    }
    match codings.len() <= MOST {
        true => Ok(codings),
        false => Err(UnpackError::Unknown(format!("{} codings", codings.len()))),
    }
}

/// Returns the decompressed body.
///
/// # Errors
/// Fails if a coding is unknown, if the bytes are corrupt, or if the body exceeds `most` bytes.
pub fn unpacked(body: &Bytes, headers: &HeaderMap, most: usize) -> Result<Bytes, UnpackError> {
    let mut text = body.clone();
    if !headers.contains_key(CONTENT_ENCODING) || body.is_empty() {
        return Ok(text);
    }
    for coding in codings(headers)?.into_iter().rev() {
        text = match coding {
            ContentCoding::Gzip => gunzip(&text, most)?,
            ContentCoding::Deflate => inflate(&text, most)?,
        };
    }
    Ok(text)
}

fn gunzip(body: &[u8], most: usize) -> Result<Bytes, UnpackError> {
    let mut text = Vec::new();
    let reading = MultiGzDecoder::new(body).take(most as u64 + 1).read_to_end(&mut text);
    match reading {
        Ok(_) if text.len() > most => Err(UnpackError::TooLarge),
        Ok(_) => Ok(text.into()),
        Err(_) => Err(UnpackError::Broken),
    }
}

/// Decodes `deflate`, which is the zlib format (RFC 9110, 8.4.1.2); some clients send the raw stream.
fn inflate(body: &[u8], most: usize) -> Result<Bytes, UnpackError> {
    match inflate_as(Decompress::new(true), body, most) {
        // UTF-8 text is not compressed data, but the raw decoder may read it as a stream without an end.
        Err(UnpackError::Broken) if std::str::from_utf8(body).is_ok() && body.len() > SHORTEST_TEXT => {
            Err(UnpackError::Broken)
        }
        Err(UnpackError::Broken) => inflate_as(Decompress::new(false), body, most),
        read => read,
    }
}

/// Decodes a stream that must end exactly at the end of the body, because arbitrary bytes can resemble a stream.
fn inflate_as(mut stream: Decompress, body: &[u8], most: usize) -> Result<Bytes, UnpackError> {
    let mut text = Vec::new();
    loop {
        text.reserve(STEP);
        let (read, made) = (stream.total_in(), stream.total_out());
        let rest = body.get(read as usize..).unwrap_or_default();
        let status = stream.decompress_vec(rest, &mut text, FlushDecompress::None);
        match status.map_err(|_| UnpackError::Broken)? {
            _ if text.len() > most => return Err(UnpackError::TooLarge),
            Status::StreamEnd if stream.total_in() == body.len() as u64 => return Ok(text.into()),
            Status::StreamEnd => return Err(UnpackError::Broken),
            _ if (read, made) == (stream.total_in(), stream.total_out()) => return Err(UnpackError::Broken),
            Status::Ok | Status::BufError => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::{DeflateEncoder, GzEncoder, ZlibEncoder};
    use http::HeaderValue;

    use super::*;

    fn headers(lines: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        lines.iter().for_each(|line| {
            headers.append(CONTENT_ENCODING, HeaderValue::from_static(line));
        });
        headers
    }

    fn packed(how: &str, text: &[u8]) -> Bytes {
        let level = Compression::default();
        let done = match how {
            "gzip" => {
                let mut to = GzEncoder::new(Vec::new(), level);
                to.write_all(text).and_then(|()| to.finish())
            }
            "zlib" => {
                let mut to = ZlibEncoder::new(Vec::new(), level);
                to.write_all(text).and_then(|()| to.finish())
            }
            _ => {
                let mut to = DeflateEncoder::new(Vec::new(), level);
                to.write_all(text).and_then(|()| to.finish())
            }
        };
        done.expect("memory").into()
    }

    fn read(body: &Bytes, lines: &[&'static str]) -> Result<Bytes, UnpackError> {
        unpacked(body, &headers(lines), 100_000)
    }

    #[test]
    fn each_coding_gives_the_text_and_nothing_else_does() {
        let text = Bytes::from(r#"{"model":"m"}"#.repeat(2_000));
        let (gzip, zlib, raw) = (packed("gzip", &text), packed("zlib", &text), packed("raw", &text));
        for (body, lines) in [
            (&text, &[][..]),
            (&text, &["identity"]),
            (&gzip, &["gzip"]),
            (&gzip, &["X-GZip"]),
            (&gzip, &["identity, gzip"]),
            (&zlib, &["deflate"]),
            (&raw, &["deflate"]),
            (&packed("gzip", &zlib), &["deflate, gzip"]),
            (&packed("raw", &gzip), &["gzip", "deflate"]),
            (&Bytes::from([&gzip[..], &packed("gzip", b"")].concat()), &["gzip"]),
        ] {
            assert_eq!(read(body, lines), Ok(text.clone()), "{lines:?}");
        }
        let broken = Err(UnpackError::Broken);
        for (body, line) in [(&text, "gzip"), (&text, "deflate"), (&zlib, "gzip"), (&gzip, "deflate")] {
            assert_eq!(read(body, &[line]), broken, "{line}");
        }
        for (body, line) in [(&gzip, "gzip"), (&zlib, "deflate"), (&raw, "deflate")] {
            for cut in [1, body.len() / 2, body.len() - 1] {
                assert_eq!(read(&body.slice(..cut), &[line]), broken, "{line} cut at {cut}");
            }
            assert_eq!(read(&Bytes::from([&body[..], b"more"].concat()), &[line]), broken, "{line} and more");
        }
        assert_eq!(read(&text, &["br"]), Err(UnpackError::Unknown("br".to_owned())));
        assert_eq!(read(&text, &["gzip, zstd"]), Err(UnpackError::Unknown("zstd".to_owned())));
        assert!(matches!(read(&text, &["gzip, gzip, gzip"]), Err(UnpackError::Unknown(_))));
        assert_eq!(read(&Bytes::new(), &["gzip"]), Ok(Bytes::new()), "no body");
    }

    #[test]
    fn a_bomb_is_left_off_at_the_bound() {
        let zeros = vec![0; 50 << 20];
        for (how, line) in [("gzip", "gzip"), ("zlib", "deflate"), ("raw", "deflate")] {
            assert_eq!(read(&packed(how, &zeros), &[line]), Err(UnpackError::TooLarge), "{how}");
            assert_eq!(read(&packed(how, &zeros[..100_000]), &[line]).map(|text| text.len()), Ok(100_000));
        }
    }

    #[test]
    fn an_encoded_message_is_told_from_a_plain_one() {
        assert!(!is_packed(&headers(&[])) && !is_packed(&headers(&["identity"])));
        assert!(
            is_packed(&headers(&["gzip"]))
                && is_packed(&headers(&["br"]))
                && is_packed(&headers(&["identity", "zstd"]))
        );
    }
}
