//! Transcription forms, as clients write them and as none should.

use plimsoll_model::{Media, Payload, Protocol};
use plimsoll_wire::server::{TranscriptFormat, parse_form};
use plimsoll_wire::{RequestOptions, encode, media};
use proptest::prelude::*;

const SOUND: Media = Media::Audio { samples: 8_000, rate: 16_000, key: 5 };

fn sent() -> (&'static str, Vec<u8>) {
    let mut extra = serde_json::Map::new();
    extra.insert("response_format".into(), "verbose_json".into());
    extra.insert("stream_include_usage".into(), serde_json::Value::Null);
    extra.insert("a \"name\"\r\n".into(), 3.into());
    let options = RequestOptions {
        protocol: Protocol::Transcriptions,
        model: Some("m".into()),
        stream: true,
        extra,
        ..RequestOptions::default()
    };
    let encoded = encode(&Payload::Sound(SOUND), &options);
    assert_eq!(encoded.path, "/audio/transcriptions");
    (encoded.content_type, encoded.body.to_vec())
}

#[test]
fn what_is_sent_is_read() {
    let (kind, body) = sent();
    let asked = parse_form(kind, &body, 1 << 20).expect("good");
    assert_eq!((asked.model.as_str(), asked.stream), ("m", true));
    assert_eq!((asked.format, asked.media.audio_ms), (TranscriptFormat::VerboseJson, 500));
    // 25 tokens a second, and 150 words a minute.
    assert_eq!((asked.prompt_tokens, asked.max_tokens), (13, Some(2)));
    let text = String::from_utf8_lossy(&body);
    assert!(text.contains("name=\"a %22name%22%0D%0A\"\r\n\r\n3\r\n"), "{text}");
    assert!(!text.contains("stream_include_usage") && text.contains("stream_continuous_usage_stats"));
}

/// Forms of curl, browsers and Python's clients: a quoted boundary, a preamble, no quotes, blanks after a boundary, an epilogue.
#[test]
fn other_spellings_are_read() {
    let file = media::file(&SOUND);
    let form = |head: &str, before: &str, after: &str| {
        let mut body = before.as_bytes().to_vec();
        body.extend_from_slice(b"--b b  \r\ncontent-disposition: form-data; ");
        body.extend_from_slice(head.as_bytes());
        body.extend_from_slice(b"\r\n\r\n");
        body.extend_from_slice(&file);
        body.extend_from_slice(b"\r\n--b b--");
        body.extend_from_slice(after.as_bytes());
        body
    };
    for (head, before, after) in [
        ("name=\"file\"; filename=\"a;b.wav\"", "", ""),
        ("filename=x.wav; NAME=file", "for whoever reads no forms\r\n", "\r\nand after it"),
        ("name=file\r\nX-Other: 1", "\r\n", "\r\n"),
    ] {
        let body = form(head, before, after);
        let asked = parse_form("Multipart/Form-Data; charset=utf-8; boundary=\"b b\"", &body, 1 << 20);
        assert_eq!(asked.expect(head).media.audio_ms, 500, "{head}");
    }
}

#[test]
fn what_is_no_form_is_refused_with_the_reason() {
    let (kind, body) = sent();
    let cut = &body[..body.len() - 30];
    let many = "--b\r\nContent-Disposition: form-data; name=\"x\"\r\n\r\n1\r\n".repeat(70) + "--b--";
    let plain =
        |name: &str| format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"\r\n\r\n1\r\n--b--");
    let (model, file) = (plain("model"), plain("file"));
    let cases: [(&str, &[u8], &str); 9] = [
        ("application/json", &body, "no multipart"),
        ("multipart/form-data", &body, "boundary"),
        ("multipart/form-data; boundary=", &body, "boundary"),
        ("multipart/form-data; boundary=other", &body, "no boundary in it"),
        (kind, cut, "ends early"),
        (kind, b"", "no boundary in it"),
        ("multipart/form-data; boundary=b", many.as_bytes(), "more than 64 parts"),
        ("multipart/form-data; boundary=b", model.as_bytes(), "file is required"),
        ("multipart/form-data; boundary=b", file.as_bytes(), "no WAV"),
    ];
    for (kind, body, why) in cases {
        let refused = parse_form(kind, body, 1 << 20).expect_err(why);
        let why = if why == "no multipart" { "is not multipart/form-data" } else { why };
        assert!(refused.status == 400 && refused.message.contains(why), "{why}: {}", refused.message);
    }
    assert_eq!(parse_form(kind, &body, 1_000).expect_err("large").status, 413);
}

/// A header that claims more samples than exist does not make a request of millions of tokens.
#[test]
fn a_sound_is_as_long_as_its_bytes() {
    let (kind, mut body) = sent();
    // The last "data" before the noise, after the one in "form-data".
    let sound = body.windows(4).position(|four| four == b"RIFF").expect("a sound");
    let at = sound + 36 + 4;
    assert_eq!(&body[at - 4..at], b"data");
    body[at..at + 4].copy_from_slice(&u32::MAX.to_le_bytes());
    assert_eq!(parse_form(kind, &body, 1 << 20).expect("good").media.audio_ms, 500);
}

proptest! {
    #[test]
    fn any_bytes_are_a_form_or_none(at in 0..2_000_usize, bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let (kind, mut body) = sent();
        let at = at.min(body.len());
        let end = (at + bytes.len()).min(body.len());
        body.splice(at..end, bytes.iter().copied());
        let _ = parse_form(kind, &body, 1 << 20);
        let _ = parse_form(&String::from_utf8_lossy(&bytes), &body, 1 << 20);
        let _ = parse_form("multipart/form-data; boundary=b", &bytes, 1 << 20);
    }
}
