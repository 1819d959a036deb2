//! Decompresses bodies that a server or proxy compressed without a request to do so.
//!
//! The bytes decide, because headers are wrong in both directions: a gzip header means gzip, and the beginning of an answer means
//! plain. An unsupported encoding is named in the error. The decompressed size is bounded, because a thousand bytes can contain a million.

use std::io::Write as _;

use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

/// Largest decompressed body, bytes.
const UNPACKED_MAX: u64 = crate::decode::BODY_MAX as u64;
/// Compressed bytes per step, because a thousand times as much is buffered.
const PIECE: usize = 1024;
/// Beginnings of answers and expositions without compression, with any header.
const PLAIN: [&[u8]; 10] = [b"{\"", b"{ ", b"{\n", b"[{", b"da", b"ev", b": ", b"id", b"<!", b"<h"];

/// A streaming decompressor of one body.
#[derive(Debug)]
pub struct Unpacker {
    /// Content codings of the head, in lower case; empty without any.
    declared: String,
    packing: CompressionState,
    unpacked: u64,
}

#[derive(Debug)]
enum CompressionState {
    /// First byte of the body, if one byte does not decide.
    Undecided(Vec<u8>),
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Zlib(Box<ZlibDecoder<Vec<u8>>>),
    Deflate(Box<DeflateDecoder<Vec<u8>>>),
}

impl Unpacker {
    /// Creates a decompressor for a body with this `Content-Encoding`.
    pub fn new(content_encoding: Option<&str>) -> Unpacker {
        let declared = content_encoding.unwrap_or_default().trim().to_ascii_lowercase();
        let declared = if declared == "identity" { String::new() } else { declared };
        Unpacker { declared, packing: CompressionState::Undecided(Vec::new()), unpacked: 0 }
    }

    /// Decompresses the next bytes and passes the result to `sink`.
    ///
    /// # Errors
    /// Fails with a message for users if the bytes can't be decompressed, or contain too much.
    pub fn push(&mut self, bytes: &[u8], sink: &mut impl FnMut(&[u8])) -> Result<(), String> {
        match &mut self.packing {
            CompressionState::Plain => sink(bytes),
            CompressionState::Undecided(held) => {
                held.extend_from_slice(bytes);
                if held.len() >= 2 || (self.declared.is_empty() && held.first().is_some_and(|b| *b != 0x1f)) {
                    let held = std::mem::take(held);
                    self.packing = self.packing_of(&held)?;
                    return self.push(&held, sink);
                }
            }
            CompressionState::Gzip(_) | CompressionState::Zlib(_) | CompressionState::Deflate(_) => {
                for piece in bytes.chunks(PIECE) {
                    let out = self.unpack(piece)?;
                    self.unpacked += out.len() as u64;
                    if self.unpacked > UNPACKED_MAX {
                        return Err(format!(
                            "a compressed body of more than {UNPACKED_MAX} bytes, which is Plimsoll's limit"
                        ));
                    }
                    if !out.is_empty() {
                        sink(&out);
                    }
                }
            }
        }
        Ok(())
    }

    /// Ends the body: a single buffered byte is all of it.
    pub fn end(&mut self, sink: &mut impl FnMut(&[u8])) {
        if let CompressionState::Undecided(held) = &mut self.packing
            && !held.is_empty()
        {
            sink(&std::mem::take(held));
        }
    }

    fn packing_of(&self, begins: &[u8]) -> Result<CompressionState, String> {
        let two =
            u16::from_be_bytes([begins.first().copied().unwrap_or(0), begins.get(1).copied().unwrap_or(0)]);
        let deflates = matches!(self.declared.as_str(), "deflate" | "x-deflate");
        Ok(match self.declared.as_str() {
            _ if two == 0x1f8b => CompressionState::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            "" | "gzip" | "x-gzip" => CompressionState::Plain,
            _ if PLAIN.iter().any(|plain| begins.starts_with(plain)) => CompressionState::Plain,
            // The two bytes that begin a zlib stream (RFC 1950, 2.2); some servers send a bare deflate stream.
            _ if deflates && two.to_be_bytes()[0] & 15 == 8 && two.is_multiple_of(31) => {
                CompressionState::Zlib(Box::new(ZlibDecoder::new(Vec::new())))
            }
            _ if deflates => CompressionState::Deflate(Box::new(DeflateDecoder::new(Vec::new()))),
            other => {
                return Err(format!(
                    "content-encoding {:?} is not supported and was not requested; disable compression in the server or its proxy",
                    crate::head::bounded(other, 40)
                ));
            }
        })
    }

    fn unpack(&mut self, piece: &[u8]) -> Result<Vec<u8>, String> {
        let (name, done) = match &mut self.packing {
            CompressionState::Gzip(unpacker) => {
                ("gzip", unpacker.write_all(piece).and_then(|()| unpacker.flush()))
            }
            CompressionState::Zlib(unpacker) => {
                ("deflate", unpacker.write_all(piece).and_then(|()| unpacker.flush()))
            }
            CompressionState::Deflate(unpacker) => {
                ("deflate", unpacker.write_all(piece).and_then(|()| unpacker.flush()))
            }
            CompressionState::Undecided(_) | CompressionState::Plain => ("", Ok(())),
        };
        done.map_err(|why| format!("a body that is not the {name} that it seems: {why}"))?;
        Ok(match &mut self.packing {
            CompressionState::Gzip(unpacker) => std::mem::take(unpacker.get_mut()),
            CompressionState::Zlib(unpacker) => std::mem::take(unpacker.get_mut()),
            CompressionState::Deflate(unpacker) => std::mem::take(unpacker.get_mut()),
            CompressionState::Undecided(_) | CompressionState::Plain => Vec::new(),
        })
    }
}
