//! Speech (`/v1/audio/speech`), the client's half: a text, and its audio as bytes or as events with base64.
//!
//! The first audio is the first sample, so a WAV header alone does not count. The length of WAV and PCM follows from their
//! samples. It is unknown for compressed formats, because their frames are not parsed. PCM without a declared rate has
//! OpenAI's: 24 kHz, 16 bits, one channel.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::EventKind;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chunk::{Text, is_error};
use crate::decoded::DecodedEvent;
use crate::fault::Fault;
use crate::tally::Tally;

/// Longest header of a WAV before its samples, in bytes.
const HEADER_MAX: usize = 64 << 10;
/// Samples per second of PCM without a declared rate.
const PCM_RATE: u32 = 24_000;
/// Smallest declared length of a WAV that means a stream of unknown length.
const UNKNOWN_LENGTH: u32 = 0x7fff_ff00;
/// Bytes that show the format.
const MAGIC: usize = 4;

/// Returns whether a body of this media type is audio. Others may be text, and their first bytes decide.
pub(crate) fn is_binary(content_type: Option<&str>) -> bool {
    content_type.is_some_and(|kind| {
        let kind = kind.to_ascii_lowercase();
        kind.starts_with("audio/") || kind.starts_with("application/octet-stream")
    })
}

/// The audio of one response, while it arrives.
#[derive(Debug, Default)]
pub(crate) struct AudioReader {
    format: AudioFormat,
    /// Bytes of samples, or of a compressed format.
    bytes: u64,
}

#[derive(Debug)]
enum AudioFormat {
    /// Not known yet: the first bytes.
    Unknown(Vec<u8>),
    /// Samples of this many bytes per second, and the length in bytes that a WAV declares.
    Samples { byte_rate: u64, declared: Option<u64> },
    /// A format of unknown length.
    Compressed,
}

impl Default for AudioFormat {
    fn default() -> AudioFormat {
        AudioFormat::Unknown(Vec::new())
    }
}

impl AudioReader {
    /// Creates the reader for a response of this media type.
    pub fn new(content_type: Option<&str>) -> AudioReader {
        let kind = content_type.unwrap_or_default().to_ascii_lowercase();
        let mut parts = kind.split(';').map(str::trim);
        if !matches!(parts.next(), Some("audio/pcm" | "audio/l16" | "audio/x-pcm")) {
            return AudioReader::default();
        }
        let (mut rate, mut channels) = (PCM_RATE, 1);
        for (name, value) in parts.filter_map(|part| part.split_once('=')) {
            match (name.trim(), value.trim().parse::<u32>()) {
                ("rate", Ok(hertz)) if hertz > 0 => rate = hertz,
                ("channels", Ok(n)) if n > 0 => channels = n,
                _ => {}
            }
        }
        AudioReader { format: pcm(rate, channels), bytes: 0 }
    }

    /// Counts the next bytes. Returns whether they contain audio.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        if let AudioFormat::Unknown(start) = &mut self.format {
            start.extend_from_slice(bytes);
            let (format, head) = match recognise(start) {
                Some(found) => found,
                None if start.len() > HEADER_MAX => (AudioFormat::Compressed, 0),
                None => return false,
            };
            self.bytes = (start.len() - head) as u64;
            self.format = format;
            return self.bytes > 0;
        }
        self.bytes += bytes.len() as u64;
        !bytes.is_empty()
    }

    /// Returns the length of the audio in ms; `None` for compressed formats.
    pub fn length_ms(&self) -> Option<u64> {
        match self.format {
            AudioFormat::Samples { byte_rate, declared } if self.bytes > 0 => {
                let bytes = declared.map_or(self.bytes, |declared| declared.min(self.bytes));
                Some(bytes.saturating_mul(1000) / byte_rate.max(1))
            }
            _ => None,
        }
    }
}

fn pcm(rate: u32, channels: u32) -> AudioFormat {
    AudioFormat::Samples { byte_rate: 2 * u64::from(rate) * u64::from(channels), declared: None }
}

/// Returns the format of audio with these first bytes, and the length of its header; `None` if more bytes are needed.
fn recognise(start: &[u8]) -> Option<(AudioFormat, usize)> {
    match start.get(..MAGIC)? {
        b"RIFF" => wav(start),
        b"OggS" | b"fLaC" => Some((AudioFormat::Compressed, 0)),
        [b'I', b'D', b'3', _] => Some((AudioFormat::Compressed, 0)),
        // Frames of MPEG audio (layer III) and AAC (ADTS) begin with eleven or twelve set bits.
        [0xff, 0xe2 | 0xe3 | 0xf2 | 0xf3 | 0xfa | 0xfb | 0xf1 | 0xf9, ..] => {
            Some((AudioFormat::Compressed, 0))
        }
        _ if start.get(MAGIC..2 * MAGIC)? == b"ftyp" => Some((AudioFormat::Compressed, 0)),
        _ => Some((pcm(PCM_RATE, 1), 0)),
    }
}

/// Returns the format of a WAV and the length of its header; `None` if more bytes are needed.
fn wav(start: &[u8]) -> Option<(AudioFormat, usize)> {
    let (mut at, mut byte_rate) = (12, None);
    loop {
        let head = start.get(at..at + 8)?;
        let size = u32::from_le_bytes(head[4..].try_into().ok()?);
        match &head[..4] {
            b"fmt " => {
                let rate = start.get(at + 16..at + 20)?;
                byte_rate = Some(u64::from(u32::from_le_bytes(rate.try_into().ok()?)));
            }
            b"data" => {
                let declared = (size > 0 && size < UNKNOWN_LENGTH).then_some(u64::from(size));
                let format = match byte_rate.filter(|rate| *rate > 0) {
                    Some(byte_rate) => AudioFormat::Samples { byte_rate, declared },
                    None => AudioFormat::Compressed,
                };
                return Some((format, at + 8));
            }
            _ => {}
        }
        // Chunks begin at even offsets.
        at = at.checked_add(8)?.checked_add(size as usize)?.checked_add(size as usize & 1)?;
    }
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct SpeechEvent<'a> {
    #[serde(borrow, rename = "type")]
    kind: Text<'a>,
    /// Base64; Mistral's name is the second.
    #[serde(borrow, alias = "audio_data")]
    audio: Text<'a>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

/// Parses an event of a stream (`stream_format: sse`).
pub(crate) fn event(data: &str, tally: &mut Tally) -> Result<DecodedEvent, serde_json::Error> {
    let told: SpeechEvent<'_> = serde_json::from_str(data)?;
    if is_error(told.error) {
        tally.error.get_or_insert_with(|| Fault::from_json(data));
        return Ok(DecodedEvent::of(EventKind::Error));
    }
    match told.kind.get() {
        "speech.audio.delta" => {
            let bytes = STANDARD.decode(told.audio.get()).unwrap_or_default();
            Ok(feed(&bytes, tally))
        }
        // The usage is not read: its tokens are frames of the audio, and no event shows how many it carries.
        "speech.audio.done" => {
            tally.done = true;
            Ok(DecodedEvent::of(EventKind::Finish))
        }
        _ => Ok(DecodedEvent::of(EventKind::Empty)),
    }
}

/// Counts bytes of audio. Their event has content if they contain samples.
pub(crate) fn feed(bytes: &[u8], tally: &mut Tally) -> DecodedEvent {
    let has_samples = tally.audio.feed(bytes);
    tally.generated |= has_samples;
    match has_samples {
        true => DecodedEvent { kind: EventKind::Content, tokens: 0, visible: true },
        false => DecodedEvent::of(EventKind::Empty),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media;
    use plimsoll_model::Media;

    /// One and a half seconds in each form, split at every size.
    #[test]
    fn lengths_are_those_of_the_samples() {
        let file = media::file(&Media::Audio { samples: 12_000, rate: 8_000, key: 1 });
        let declared = |bytes: [u8; 4]| {
            let mut file = file.clone();
            file[40..44].copy_from_slice(&bytes);
            file
        };
        let (endless, signed, zero) =
            (declared([0xff; 4]), declared([0xff, 0xff, 0xff, 0x7f]), declared([0; 4]));
        let mut trailing = file.clone();
        trailing.extend_from_slice(b"LIST\x04\0\0\0info");
        let samples = vec![0; 72_000];
        let compressed = |magic: &[u8]| [magic, &samples].concat();
        for (kind, body, length, header) in [
            (Some("audio/wav"), &file, Some(1500), 44),
            (Some("application/octet-stream"), &endless, Some(1500), 44),
            (Some("audio/wav"), &signed, Some(1500), 44),
            (Some("audio/wav"), &zero, Some(1500), 44),
            (Some("audio/wav"), &trailing, Some(1500), 44),
            (Some("audio/pcm"), &samples, Some(1500), 0),
            (None, &samples, Some(1500), 7),
            (Some("Audio/L16; rate=12000; channels=2"), &samples, Some(1500), 0),
            (Some("audio/mpeg"), &compressed(b"ID3\x04"), None, 3),
            (Some("audio/mpeg"), &compressed(b"\xff\xfb\x90\x64"), None, 3),
            (Some("audio/ogg"), &compressed(b"OggS"), None, 3),
            (None, &compressed(b"\0\0\0\x20ftypM4A "), None, 7),
        ] {
            for step in [1, 7, 43, 44, 45, 1000, body.len()] {
                let mut reader = AudioReader::new(kind);
                let heard: Vec<bool> = body.chunks(step).map(|bytes| reader.feed(bytes)).collect();
                let first = heard.iter().position(|heard| *heard);
                assert_eq!(first, Some(header / step), "{kind:?} {step}");
                assert_eq!(reader.length_ms(), length, "{kind:?} {step}");
            }
        }
    }

    #[test]
    fn a_header_alone_is_no_audio() {
        let file = media::file(&Media::Audio { samples: 100, rate: 8_000, key: 1 });
        for body in [&file[..44], &file[..20], b"", b"RI"] {
            let mut reader = AudioReader::new(Some("audio/wav"));
            assert!(!reader.feed(body), "{body:?}");
            assert_eq!(reader.length_ms(), None);
        }
    }
}
