//! Speech and images: the requests as sent, and the engine's answers as the client measures them.

use bytes::BytesMut;
use plimsoll_model::{Broken, EventKind, Payload, Protocol};
use plimsoll_wire::server::{
    AudioFormat, GenerateRequest, GeneratedMedia, Reply, StreamEnd, answer, content_type, parse,
    stream_writer,
};
use plimsoll_wire::{DecodedAnswer, Decoder, RequestOptions, encode};
use serde_json::{Value, json};

/// 30 characters are 2 s of speech in 50 decode steps.
const TEXT: &str = "aaaaa aaaa aaaa aaaa aaaa aaaa";

fn asked(protocol: Protocol, body: &Value) -> GenerateRequest {
    parse(protocol, body.to_string().as_bytes(), 1 << 20).expect("good")
}

fn reply(tokens: u32) -> Reply<'static> {
    Reply {
        id: "",
        created_s: 1,
        model: "m",
        first_word: 0,
        tokens,
        reason: "length",
        told: Default::default(),
    }
}

/// The answer and its content events, as the engine sends it.
fn read(asked: &GenerateRequest) -> (DecodedAnswer, usize) {
    let mut decoder = Decoder::new(asked.endpoint, asked.stream, 200, Some(content_type(asked)), false);
    let (mut events, mut out) = (Vec::new(), BytesMut::new());
    let steps = asked.max_tokens.expect("a length");
    if asked.stream {
        let mut writer = stream_writer(asked, "", 0, "m");
        writer.open(&mut out);
        for _ in 0..steps {
            decoder.feed(&out.split(), &mut events);
            writer.token(&mut out, "", 1);
        }
        writer.close(&mut out, &StreamEnd { reason: "length", first_word: 0, told: Default::default() });
    } else {
        out.extend_from_slice(&answer(asked, &reply(steps)));
    }
    decoder.feed(&out, &mut events);
    (decoder.finish(true), events.iter().filter(|event| event.kind == EventKind::Content).count())
}

#[test]
fn requests_have_the_fields_of_the_apis() {
    let sent = |protocol, stream| {
        let options =
            RequestOptions { protocol, model: Some("m".into()), stream, ..RequestOptions::default() };
        let encoded = encode(&Payload::Text("a cat".into()), &options);
        (encoded.path.into_owned(), serde_json::from_slice::<Value>(&encoded.body).expect("JSON"))
    };
    let speech = |format: &str, more: Value| {
        let mut body = json!({"model": "m", "input": "a cat", "response_format": format});
        body.as_object_mut().expect("fields").extend(more.as_object().cloned().expect("fields"));
        ("/audio/speech".to_owned(), body)
    };
    assert_eq!(sent(Protocol::Speech, true), speech("pcm", json!({"stream": true})));
    assert_eq!(sent(Protocol::Speech, false), speech("wav", json!({})));
    let images = ("/images/generations".to_owned(), json!({"model": "m", "prompt": "a cat"}));
    assert_eq!(sent(Protocol::Images, false), images);
}

#[test]
fn speech_of_the_engine_is_as_long_as_its_text() {
    for (more, kind, events) in [
        (json!({}), "audio/wav", 0),
        (json!({"response_format": "pcm"}), "audio/pcm", 0),
        (json!({"stream": true}), "audio/wav", 50),
        (json!({"stream": true, "response_format": "pcm"}), "audio/pcm", 50),
        (json!({"stream_format": "sse"}), "text/event-stream; charset=utf-8", 50),
        (json!({"stream_format": "sse", "response_format": "pcm"}), "text/event-stream; charset=utf-8", 50),
    ] {
        let mut body = json!({"model": "m", "input": TEXT, "voice": "v"});
        body.as_object_mut().expect("fields").extend(more.as_object().cloned().expect("fields"));
        let asked = asked(Protocol::Speech, &body);
        assert_eq!(
            (asked.prompt_tokens, asked.max_tokens, asked.media.audio_ms),
            (6, Some(50), 2000),
            "{more}"
        );
        assert_eq!(content_type(&asked), kind, "{more}");
        let (answer, heard) = read(&asked);
        assert!(answer.outcome.is_finished() && answer.answer.broken.is_none(), "{more}: {answer:?}");
        assert_eq!((answer.generated.audio_ms, heard), (2000, events), "{more}");
    }
}

#[test]
fn images_of_the_engine_are_those_asked_for() {
    let body = json!({"model": "m", "prompt": "a cat", "n": 3, "size": "64x32", "num_inference_steps": 4});
    let asked = asked(Protocol::Images, &body);
    assert_eq!(asked.generated, GeneratedMedia::Images { count: 3, width: 64, height: 32 });
    assert_eq!((asked.prompt_tokens, asked.max_tokens), (2, Some(12)));
    for (results, broken) in [(3, None), (2, Some(Broken::WrongCount))] {
        let mut decoder = Decoder::new(Protocol::Images, false, 200, Some(content_type(&asked)), false)
            .expecting_results(Some(results));
        decoder.feed(&answer(&asked, &reply(12)), &mut Vec::new());
        let read = decoder.finish(true);
        assert_eq!(read.answer.broken, broken);
        assert_eq!((read.generated.images, read.generated.pixels), (3, 3 * 64 * 32));
    }
}

#[test]
fn other_requests_are_refused() {
    for (protocol, body) in [
        (Protocol::Speech, r#"{"model":"m"}"#),
        (Protocol::Speech, r#"{"input":""}"#),
        (Protocol::Speech, r#"{"input":"a","response_format":"mp3"}"#),
        (Protocol::Speech, r#"{"input":"a","stream_format":"lines"}"#),
        (Protocol::Images, "{}"),
        (Protocol::Images, r#"{"prompt":"a","n":11}"#),
        (Protocol::Images, r#"{"prompt":"a","n":0}"#),
        (Protocol::Images, r#"{"prompt":"a","size":"9000x1"}"#),
        (Protocol::Images, r#"{"prompt":"a","size":"big"}"#),
        (Protocol::Images, r#"{"prompt":"a","num_inference_steps":0}"#),
    ] {
        assert_eq!(parse(protocol, body.as_bytes(), 1 << 20).map_err(|why| why.status), Err(400), "{body}");
    }
    let format = AudioFormat::Pcm;
    let pcm = asked(Protocol::Speech, &json!({"input": "a", "response_format": "pcm"}));
    assert_eq!(pcm.generated, GeneratedMedia::Speech { format, events: false });
}
