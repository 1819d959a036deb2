//! Generates pictures and audio of a given size from noise: PNG and WAV, written as base64 into a request's body.
//!
//! Noise can't be compressed. So a picture has the byte count of its size, and all pictures differ, so that no server
//! cache answers. A PNG of grey noise with 2 bits per pixel has about the size of a photograph's JPEG. Files of the user were
//! rejected: their content does not change a model's time, and the user would have to provide them. The picture uses
//! stored blocks of deflate (RFC 1951, 3.2.4), because noise has no redundancy.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::Media;

/// Largest stored block, bytes.
const STORED_MAX: usize = 65_535;

/// Bytes between two reductions of Adler-32's sums, after which they could overflow (RFC 1950, 9).
const ADLER_RUN: usize = 5_552;
const ADLER: u32 = 65_521;

/// Length of a WAV header, bytes.
const WAV_HEAD: u32 = 44;

/// Loudness of the noise: a 16th of full scale, like quiet speech.
const QUIET: i16 = 16;

pub fn file(media: &Media) -> Vec<u8> {
    match *media {
        Media::Image { width, height, bits, key } => png(width, height, bits, key),
        Media::Audio { samples, rate, key } => wav(samples, rate, key),
    }
}

pub(crate) fn media_type(media: &Media) -> &'static str {
    match media {
        Media::Image { .. } => "image/png",
        Media::Audio { .. } => "audio/wav",
    }
}

/// Returns the approximate length in a body, bytes.
pub(crate) fn room(media: &Media) -> usize {
    let bytes = match *media {
        Media::Image { width, height, bits, .. } => height as usize * (1 + row_bytes(width, bits)) + 1024,
        Media::Audio { samples, .. } => 2 * samples as usize + 64,
    };
    bytes + bytes / 2 + 128
}

/// Appends the base64 of the media.
pub(crate) fn base64(media: &Media, out: &mut String) {
    STANDARD.encode_string(file(media), out);
}

/// Appends a `data:` URL with the media.
pub(crate) fn data_url(media: &Media, out: &mut String) {
    out.push_str("data:");
    out.push_str(media_type(media));
    out.push_str(";base64,");
    base64(media, out);
}

fn row_bytes(width: u32, bits: u8) -> usize {
    (width as usize * usize::from(bits)).div_ceil(8)
}

/// Returns a picture (PNG, third edition): grey with this depth, or in colour with 24 bits per pixel.
fn png(width: u32, height: u32, bits: u8, key: u64) -> Vec<u8> {
    let row = row_bytes(width, bits);
    let mut raw = noise(height as usize * (1 + row), key);
    // Each row begins with its filter number: 0.
    raw.chunks_mut(1 + row).for_each(|row| row[0] = 0);
    let (depth, colour) = if bits == 24 { (8, 2) } else { (bits, 0) };
    let mut out = Vec::with_capacity(raw.len() + raw.len() / STORED_MAX * 5 + 128);
    out.extend_from_slice(b"\x89PNG\r\n\x1a\n");
    chunk(&mut out, b"IHDR", |out| {
        out.extend_from_slice(&width.to_be_bytes());
        out.extend_from_slice(&height.to_be_bytes());
        out.extend_from_slice(&[depth, colour, 0, 0, 0]);
    });
    chunk(&mut out, b"IDAT", |out| {
        // zlib header (RFC 1950): deflate, a window of 32 KiB, no dictionary.
        out.extend_from_slice(&[0x78, 0x01]);
        let mut blocks = raw.chunks(STORED_MAX).peekable();
        while let Some(block) = blocks.next() {
            let length = block.len() as u16;
            out.push(u8::from(blocks.peek().is_none()));
            out.extend_from_slice(&length.to_le_bytes());
            out.extend_from_slice(&(!length).to_le_bytes());
            out.extend_from_slice(block);
        }
        out.extend_from_slice(&adler32(&raw).to_be_bytes());
    });
    chunk(&mut out, b"IEND", |_| {});
    out
}

/// Appends a chunk: its length, its name, its content, and the checksum of name and content.
fn chunk(out: &mut Vec<u8>, name: &[u8; 4], fill: impl FnOnce(&mut Vec<u8>)) {
    let from = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(name);
    fill(out);
    let length = (out.len() - from - 8) as u32;
    out[from..from + 4].copy_from_slice(&length.to_be_bytes());
    let sum = crc32fast::hash(&out[from + 4..]);
    out.extend_from_slice(&sum.to_be_bytes());
}

fn adler32(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for run in bytes.chunks(ADLER_RUN) {
        for byte in run {
            a += u32::from(*byte);
            b += a;
        }
        (a, b) = (a % ADLER, b % ADLER);
    }
    b << 16 | a
}

/// Returns audio with 16 bits and one channel.
fn wav(samples: u32, rate: u32, key: u64) -> Vec<u8> {
    let size = samples.saturating_mul(2);
    let mut out = Vec::with_capacity(size as usize + WAV_HEAD as usize);
    out.extend_from_slice(b"RIFF");
    out.extend_from_slice(&(size + WAV_HEAD - 8).to_le_bytes());
    out.extend_from_slice(b"WAVEfmt ");
    out.extend_from_slice(&16u32.to_le_bytes());
    // PCM, one channel.
    out.extend_from_slice(&[1, 0, 1, 0]);
    out.extend_from_slice(&rate.to_le_bytes());
    out.extend_from_slice(&(rate * 2).to_le_bytes());
    out.extend_from_slice(&[2, 0, 16, 0]);
    out.extend_from_slice(b"data");
    out.extend_from_slice(&size.to_le_bytes());
    for pair in noise(size as usize, key).chunks_exact(2) {
        let sample = i16::from_le_bytes([pair[0], pair[1]]) / QUIET;
        out.extend_from_slice(&sample.to_le_bytes());
    }
    out
}

/// Returns `count` bytes that follow from a key (SplitMix64: Steele, Lea and Flood, 2014).
fn noise(count: usize, key: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(count + 8);
    let mut state = key;
    while out.len() < count {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        out.extend_from_slice(&(z ^ (z >> 31)).to_le_bytes());
    }
    out.truncate(count);
    out
}

/// Parses the width and height of a PNG, or the samples and rate of a WAV, as this module writes them.
///
/// It reads only the beginning of the base64.
pub fn read_head(base64: &str) -> Option<Media> {
    // A multiple of four letters, long enough for either header.
    let letters = base64.get(..64.min(base64.len() & !3))?;
    let head = STANDARD.decode(letters).ok()?;
    let be = |at: usize| Some(u32::from_be_bytes(head.get(at..at + 4)?.try_into().ok()?));
    let le = |at: usize| Some(u32::from_le_bytes(head.get(at..at + 4)?.try_into().ok()?));
    if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        let (depth, colour) = (*head.get(24)?, *head.get(25)?);
        let bits = if colour == 2 { depth.saturating_mul(3) } else { depth };
        return Some(Media::Image { width: be(16)?, height: be(20)?, bits, key: 0 });
    }
    if head.starts_with(b"RIFF") && head.get(8..16) == Some(b"WAVEfmt ") {
        let frame = u16::from_le_bytes(head.get(32..34)?.try_into().ok()?).max(1);
        return Some(Media::Audio { samples: le(40)? / u32::from(frame), rate: le(24)?, key: 0 });
    }
    None
}

/// Parses the rate of any WAV and counts its samples. Other chunks may precede the samples; the count in the header is ignored.
pub(crate) fn read_wav(file: &[u8]) -> Option<Media> {
    let mut rest = file.strip_prefix(b"RIFF")?.get(4..)?.strip_prefix(b"WAVE")?;
    let mut format = None;
    loop {
        let (head, after) = rest.split_at_checked(8)?;
        let size = u32::from_le_bytes(head[4..].try_into().ok()?) as usize;
        let content = &after[..size.min(after.len())];
        match (&head[..4], format) {
            (b"fmt ", _) => {
                let rate = u32::from_le_bytes(content.get(4..8)?.try_into().ok()?);
                let frame = u16::from_le_bytes(content.get(12..14)?.try_into().ok()?);
                format = Some((rate, usize::from(frame.max(1))));
            }
            (b"data", Some((rate, frame))) => {
                return Some(Media::Audio {
                    samples: u32::try_from(content.len() / frame).ok()?,
                    rate,
                    key: 0,
                });
            }
            _ => {}
        }
        // Chunks begin at even offsets.
        rest = after.get(size.checked_add(size & 1)?..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_their_standards() {
        // RFC 1950 has no example; this one is of Adler-32's usual description.
        assert_eq!(adler32(b"Wikipedia"), 0x11e6_0398);
        assert_eq!(adler32(&vec![0xff; 100_000]), 0x149a_302c);
    }

    #[test]
    fn a_head_says_the_size() {
        let image = Media::Image { width: 640, height: 33, bits: 2, key: 7 };
        let sound = Media::Audio { samples: 16_001, rate: 16_000, key: 7 };
        for media in [image, sound] {
            let mut text = String::new();
            base64(&media, &mut text);
            let want = match media {
                Media::Image { width, height, bits, .. } => Media::Image { width, height, bits, key: 0 },
                Media::Audio { samples, rate, .. } => Media::Audio { samples, rate, key: 0 },
            };
            assert_eq!(read_head(&text), Some(want));
            assert!(text.len() <= room(&media), "{} of {}", text.len(), room(&media));
        }
        assert_eq!(read_head("bm90aGluZw=="), None);
        assert_eq!(read_head(""), None);
    }
}
