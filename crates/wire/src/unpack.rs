//! Bodies that came compressed though nobody asked: a proxy that compresses everything is met in the wild.
//!
//! The bytes decide, because headers lie in both directions: what begins as gzip is gzip, and what begins as an answer is none. What can't be
//! unpacked here is named. The unpacked bytes are bounded, because a thousand bytes can hold a million.

use std::io::Write as _;

use flate2::write::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

/// Most bytes that a compressed body may hold.
const UNPACKED_MAX: u64 = crate::decode::BODY_MAX as u64;
/// Packed bytes that are unpacked at a time: a thousandfold of them is held.
const PIECE: usize = 1024;
/// How answers and pages begin that are not compressed, whatever a header says.
const PLAIN: [&[u8]; 10] = [b"{\"", b"{ ", b"{\n", b"[{", b"da", b"ev", b": ", b"id", b"<!", b"<h"];

/// Unpacks one body, piece by piece.
#[derive(Debug)]
pub struct Unpacker {
    /// Content codings of the head, in small letters; empty where there are none.
    declared: String,
    packing: Packing,
    unpacked: u64,
}

#[derive(Debug)]
enum Packing {
    /// Its first byte, where one byte does not tell.
    Undecided(Vec<u8>),
    Plain,
    Gzip(Box<MultiGzDecoder<Vec<u8>>>),
    Zlib(Box<ZlibDecoder<Vec<u8>>>),
    Deflate(Box<DeflateDecoder<Vec<u8>>>),
}

impl Unpacker {
    /// For a body with this `Content-Encoding`.
    pub fn new(content_encoding: Option<&str>) -> Unpacker {
        let declared = content_encoding.unwrap_or_default().trim().to_ascii_lowercase();
        let declared = if declared == "identity" { String::new() } else { declared };
        Unpacker { declared, packing: Packing::Undecided(Vec::new()), unpacked: 0 }
    }

    /// Takes the next bytes; hands what they hold to `sink`.
    ///
    /// # Errors
    /// They can't be unpacked, or hold too much; for people.
    pub fn push(&mut self, bytes: &[u8], sink: &mut impl FnMut(&[u8])) -> Result<(), String> {
        match &mut self.packing {
            Packing::Plain => sink(bytes),
            Packing::Undecided(held) => {
                held.extend_from_slice(bytes);
                if held.len() >= 2 || (self.declared.is_empty() && held.first().is_some_and(|b| *b != 0x1f)) {
                    let held = std::mem::take(held);
                    self.packing = self.packing_of(&held)?;
                    return self.push(&held, sink);
                }
            }
            Packing::Gzip(_) | Packing::Zlib(_) | Packing::Deflate(_) => {
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

    /// The body has ended: a lone byte that was held back is all of it.
    pub fn end(&mut self, sink: &mut impl FnMut(&[u8])) {
        if let Packing::Undecided(held) = &mut self.packing
            && !held.is_empty()
        {
            sink(&std::mem::take(held));
        }
    }

    fn packing_of(&self, begins: &[u8]) -> Result<Packing, String> {
        let two =
            u16::from_be_bytes([begins.first().copied().unwrap_or(0), begins.get(1).copied().unwrap_or(0)]);
        let deflates = matches!(self.declared.as_str(), "deflate" | "x-deflate");
        Ok(match self.declared.as_str() {
            _ if two == 0x1f8b => Packing::Gzip(Box::new(MultiGzDecoder::new(Vec::new()))),
            "" | "gzip" | "x-gzip" => Packing::Plain,
            _ if PLAIN.iter().any(|plain| begins.starts_with(plain)) => Packing::Plain,
            // The two bytes that begin a zlib stream (RFC 1950, 2.2); some servers send a bare deflate stream.
            _ if deflates && two.to_be_bytes()[0] & 15 == 8 && two.is_multiple_of(31) => {
                Packing::Zlib(Box::new(ZlibDecoder::new(Vec::new())))
            }
            _ if deflates => Packing::Deflate(Box::new(DeflateDecoder::new(Vec::new()))),
            other => {
                return Err(format!(
                    "content-encoding {:?}, which Plimsoll neither asked for nor reads; let the server or its proxy not compress",
                    crate::head::bounded(other, 40)
                ));
            }
        })
    }

    fn unpack(&mut self, piece: &[u8]) -> Result<Vec<u8>, String> {
        let (name, done) = match &mut self.packing {
            Packing::Gzip(unpacker) => ("gzip", unpacker.write_all(piece).and_then(|()| unpacker.flush())),
            Packing::Zlib(unpacker) => ("deflate", unpacker.write_all(piece).and_then(|()| unpacker.flush())),
            Packing::Deflate(unpacker) => {
                ("deflate", unpacker.write_all(piece).and_then(|()| unpacker.flush()))
            }
            Packing::Undecided(_) | Packing::Plain => ("", Ok(())),
        };
        done.map_err(|why| format!("a body that is not the {name} that it seems: {why}"))?;
        Ok(match &mut self.packing {
            Packing::Gzip(unpacker) => std::mem::take(unpacker.get_mut()),
            Packing::Zlib(unpacker) => std::mem::take(unpacker.get_mut()),
            Packing::Deflate(unpacker) => std::mem::take(unpacker.get_mut()),
            Packing::Undecided(_) | Packing::Plain => Vec::new(),
        })
    }
}
