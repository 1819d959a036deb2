//! Speech (`/v1/audio/speech`), the client's half: a text, and its audio as bytes or as events with base64.
//!
//! The first audio is the first sample, so a WAV header alone does not count. The length of WAV and PCM follows from their
//! samples. It is unknown for compressed formats, because their frames are not parsed. PCM without a declared rate has
//! OpenAI's: 24 kHz, 16 bits, one channel.

use std::num::NonZeroU32;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::EventKind;
use serde::Deserialize;
use serde_json::value::RawValue;

use crate::chunk::{Count, Text, is_error};
use crate::decoded::DecodedEvent;
use crate::fault::Fault;
use crate::head::Head;
use crate::tally::Tally;

/// Longest header of a WAV before its samples, in bytes.
const HEADER_MAX: usize = 64 << 10;
/// Samples per second of PCM without a declared rate.
const PCM_RATE: u32 = 24_000;
/// Smallest declared length of a WAV that means a stream of unknown length.
const UNKNOWN_LENGTH: u32 = 0x7fff_ff00;
/// Bytes that show the format.
const MAGIC: usize = 4;
const RIFF: &[u8] = b"RIFF";

/// Media types of samples without a header.
const PCM_KINDS: [&str; 4] = ["audio/pcm", "audio/x-pcm", "audio/l16", "audio/raw"];
/// Media types of WAV, in place of which servers also send other formats.
const WAV_KINDS: [&str; 4] = ["audio/wav", "audio/x-wav", "audio/wave", "audio/vnd.wave"];

/// Returns the media type without its parameters, in lower case.
fn kind(content_type: Option<&str>) -> String {
    content_type.unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase()
}

/// Returns whether any bytes of this media type are audio. The first bytes of others show errors and pages.
pub(crate) fn is_binary(content_type: Option<&str>) -> bool {
    let kind = kind(content_type);
    PCM_KINDS.contains(&&*kind) || kind == "application/octet-stream"
}

/// The audio of one response, while it arrives.
#[derive(Debug)]
pub(crate) struct AudioReader {
    format: AudioFormat,
    /// Samples per second and channels of audio without a header; `None` if its media type excludes it.
    pcm: Option<(u32, u32)>,
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

impl Default for AudioReader {
    fn default() -> AudioReader {
        AudioReader { format: AudioFormat::Unknown(Vec::new()), pcm: Some((PCM_RATE, 1)), bytes: 0 }
    }
}

impl AudioReader {
    /// Creates the reader for a response with this head.
    pub fn new(head: &Head) -> AudioReader {
        let kind = kind(head.content_type.as_deref());
        let parameters = head.content_type.as_deref().unwrap_or_default().split(';').skip(1);
        let (mut rate, mut channels) =
            (head.sample_rate.map_or(PCM_RATE, NonZeroU32::get), head.channels.map_or(1, NonZeroU32::get));
        for (name, value) in parameters.filter_map(|part| part.split_once('=')) {
            let number = value.trim().trim_matches('"').parse::<u32>().ok().filter(|n| *n > 0);
            match name.trim().to_ascii_lowercase().as_str() {
                "rate" => rate = number.unwrap_or(rate),
                "channels" => channels = number.unwrap_or(channels),
                _ => {}
            }
        }
        let is_compressed = kind.starts_with("audio/") && !WAV_KINDS.contains(&&*kind);
        match PCM_KINDS.contains(&&*kind) {
            true => AudioReader { format: samples(rate, channels), ..AudioReader::default() },
            false => {
                AudioReader { pcm: (!is_compressed).then_some((rate, channels)), ..AudioReader::default() }
            }
        }
    }

    /// Counts the next bytes. Returns whether they contain audio.
    pub fn feed(&mut self, bytes: &[u8]) -> bool {
        match &mut self.format {
            AudioFormat::Unknown(start) => {
                start.extend_from_slice(bytes);
                let (format, head) = match recognise(start, self.pcm) {
                    Some(found) => found,
                    None if start.len() > HEADER_MAX => (AudioFormat::Compressed, 0),
                    None => return false,
                };
                self.bytes = (start.len() - head) as u64;
                self.format = format;
                self.bytes > 0
            }
            // Some servers stream a sequence of complete files.
            AudioFormat::Samples { declared, .. } if bytes.starts_with(RIFF) => {
                let head = wav(bytes).map_or(0, |(_, head)| head);
                *declared = None;
                self.bytes += (bytes.len() - head) as u64;
                bytes.len() > head
            }
            _ => {
                self.bytes += bytes.len() as u64;
                !bytes.is_empty()
            }
        }
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

fn samples(rate: u32, channels: u32) -> AudioFormat {
    AudioFormat::Samples { byte_rate: 2 * u64::from(rate) * u64::from(channels), declared: None }
}

/// Returns the format of audio with these first bytes, and the length of its header; `None` if more bytes are needed.
fn recognise(start: &[u8], pcm: Option<(u32, u32)>) -> Option<(AudioFormat, usize)> {
    let has_frames = match start.get(..MAGIC)? {
        RIFF => return wav(start),
        b"OggS" | b"fLaC" | [b'I', b'D', b'3', _] => true,
        // Frames of MPEG audio (layer III) and AAC (ADTS) begin with eleven or twelve set bits.
        [0xff, 0xe2 | 0xe3 | 0xf0 | 0xf1 | 0xf2 | 0xf3 | 0xf8 | 0xf9 | 0xfa | 0xfb, ..] => true,
        // EBML: WebM and Matroska.
        [0x1a, 0x45, 0xdf, 0xa3] => true,
        _ => start.get(MAGIC..2 * MAGIC)? == b"ftyp",
    };
    Some(match pcm.filter(|_| !has_frames) {
        Some((rate, channels)) => (samples(rate, channels), 0),
        None => (AudioFormat::Compressed, 0),
    })
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
    /// Base64 (OpenAI, vLLM-Omni), or an object with it (SGLang-Omni).
    #[serde(borrow)]
    audio: Option<&'a RawValue>,
    /// Mistral's name.
    #[serde(borrow)]
    audio_data: Text<'a>,
    #[serde(borrow)]
    finish_reason: Text<'a>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct AudioPart<'a> {
    #[serde(borrow)]
    data: Text<'a>,
    sample_rate: Count,
}

/// Parses an event of a stream.
pub(crate) fn event(data: &str, tally: &mut Tally) -> Result<DecodedEvent, serde_json::Error> {
    let told: SpeechEvent<'_> = serde_json::from_str(data)?;
    if is_error(told.error) || told.kind.get().ends_with(".error") {
        tally.error.get_or_insert_with(|| Fault::from_json(data));
        return Ok(DecodedEvent::of(EventKind::Error));
    }
    // The usage is not read: its tokens are frames of the audio, and no event shows how many it carries.
    if told.kind.get() == "speech.audio.done" || !told.finish_reason.is_empty() {
        tally.done = true;
        return Ok(DecodedEvent::of(EventKind::Finish));
    }
    let part = match told.audio.map(RawValue::get) {
        None => AudioPart { data: told.audio_data, ..AudioPart::default() },
        Some(raw) if raw.starts_with('{') => serde_json::from_str(raw)?,
        Some(raw) => AudioPart { data: serde_json::from_str(raw)?, ..AudioPart::default() },
    };
    if let (Some(rate), Some((pcm_rate, _))) = (part.sample_rate.0.filter(|n| *n > 0), &mut tally.audio.pcm) {
        *pcm_rate = rate;
    }
    Ok(feed(&STANDARD.decode(part.data.get()).unwrap_or_default(), tally))
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

    fn head(content_type: Option<&str>) -> Head {
        Head { content_type: content_type.map(str::to_owned), ..Head::default() }
    }

    #[test]
    fn rates_of_samples_are_those_declared() {
        let with = |kind: &str, sample_rate: Option<u32>, channels: Option<u32>| {
            let [sample_rate, channels] = [sample_rate, channels].map(|n| n.and_then(NonZeroU32::new));
            let mut reader = AudioReader::new(&Head { sample_rate, channels, ..head(Some(kind)) });
            reader.feed(&[0; 96_000]);
            reader.length_ms()
        };
        assert_eq!(with("audio/pcm", None, None), Some(2000));
        assert_eq!(with("audio/pcm", Some(16_000), None), Some(3000));
        assert_eq!(with("audio/pcm", Some(24_000), Some(2)), Some(1000));
        assert_eq!(with("audio/pcm; rate=\"48000\"", Some(16_000), None), Some(1000));
        assert_eq!(with("audio/raw;Rate=48000", None, None), Some(1000));
        // What is labelled as compressed is no PCM.
        assert_eq!(with("audio/webm", None, None), None);
    }

    /// Two files of 1.5 s, one after the other.
    #[test]
    fn files_in_sequence_add_up() {
        let file = media::file(&Media::Audio { samples: 12_000, rate: 8_000, key: 1 });
        let mut reader = AudioReader::new(&head(Some("audio/wav")));
        assert!(reader.feed(&file) && reader.feed(&file));
        assert_eq!(reader.length_ms(), Some(3000));
    }

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
            (None, &compressed(b"\x1a\x45\xdf\xa3"), None, 3),
            (Some("audio/aac"), &compressed(b"\xff\xf0\x50\x80"), None, 3),
        ] {
            for step in [1, 7, 43, 44, 45, 1000, body.len()] {
                let mut reader = AudioReader::new(&head(kind));
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
            let mut reader = AudioReader::new(&head(Some("audio/wav")));
            assert!(!reader.feed(body), "{body:?}");
            assert_eq!(reader.length_ms(), None);
        }
    }
}
