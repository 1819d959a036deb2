//! Speech and images: the client's figures against the engine's log, and answers in the formats of other servers.
//! OpenAI's client and Python's `wave` read the engine's answers.

use std::collections::HashMap;
use std::io::Write;
use std::net::{Shutdown, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use plimsoll_model::{Attempt, Broken};
use serde_json::{Value, json};

use crate::kit::{Engine, Server, plimsoll, reply, run_folder};
use crate::real;

const JSON: &str = "content-type: application/json\r\n";

fn rows(run: &str) -> Vec<Attempt> {
    plimsoll_store::open(Path::new(run)).expect("a run").attempts
}

/// The rows of a run against the engine, each with the engine's own record, and the printed findings.
fn measured(args: &[&str], run: &str) -> (Vec<(Attempt, Value)>, Value) {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("truth.jsonl");
    let engine = Engine::start_with("demo", &["--truth-log", log.to_str().expect("utf-8")]);
    let load = ["run", &engine.url, "--rate", "30/s", "--for", "3s", "-q", "-o", run, "--format", "json"];
    let ended = plimsoll(&[&load[..], args].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    engine.stop();
    let text = std::fs::read_to_string(&log).expect("a truth log");
    let known: HashMap<String, Value> = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .filter_map(|row| Some((row["id"].as_str()?.to_owned(), row)))
        .collect();
    let id = plimsoll_store::open(Path::new(run)).expect("a run").manifest.id;
    let name = |row: &Attempt| format!("{id}-{}-{}-{}", row.level, row.request, row.attempt);
    let with_own = |row: Attempt| {
        let own = known[&name(&row)].clone();
        (row, own)
    };
    let rows: Vec<_> = rows(run).into_iter().map(with_own).collect();
    assert!(rows.len() > 50, "{} requests", rows.len());
    (rows, ended.json())
}

#[test]
fn speech_is_measured_as_the_engine_sent_it() {
    for own in [
        &[][..],
        &["--set", "target.extra.stream_format=sse"],
        &["--set", "target.extra.response_format=wav"],
        &["--set", "target.stream=false"],
    ] {
        let (_kept, run) = run_folder();
        let load = [&["--api", "speech", "--isl", "uniform:5,30"], own].concat();
        let (rows, printed) = measured(&load, &run);
        let summary = &printed["findings"]["levels"][0]["summary"];
        let start_ns = summary["window"]["start"].as_i64().expect("ns");
        let (mut factors, mut late_ns) = (Vec::new(), Vec::new());
        for (row, known) in &rows {
            assert!(row.outcome.is_finished() && row.answer.broken.is_none(), "{own:?}: {:?}", row.answer);
            assert_eq!(known["path"], "/v1/audio/speech");
            assert_eq!(Value::from(row.media.audio_ms), known["media"]["audio_ms"], "{own:?}");
            let e2e_ns = (row.end.expect("ended") - row.due).0 as f64;
            if row.due.0 >= start_ns {
                factors.push(e2e_ns / 1e6 / row.media.audio_ms as f64);
            }
            let number = |of: &Value| of.as_i64().expect("ns");
            let written = number(&known["writes_ns"][0]) - number(&known["arrival_ns"]);
            let heard = (row.first_token.unwrap_or(row.end.expect("ended")) - row.sent.expect("sent")).0;
            late_ns.push(heard - written);
        }
        // The first sample arrives when the engine has written it. The median leaves out what a busy machine stamps late.
        late_ns.sort_unstable();
        let median_ns = late_ns[late_ns.len() / 2];
        assert!((-500_000..5_000_000).contains(&median_ns), "{own:?}: {median_ns} ns after it was written");
        // Chunks within a read are one piece of audio. Only the closing event can come with the last one.
        for (row, _) in &rows {
            let pieces = row.events.iter().filter(|event| event.coalesced && event.kind.is_token());
            assert!(pieces.count() <= usize::from(own.concat().contains("sse")), "{own:?}: {:?}", row.events);
        }
        let latency = &summary["latency"];
        // The nearest rank, by its definition.
        factors.sort_by(f64::total_cmp);
        let p50 = factors[factors.len().div_ceil(2) - 1];
        // A busy machine makes the run invalid and its figures provisional.
        let shown = &latency["rtf"]["p50"];
        let rtf = shown["value"].as_f64().or(shown["seen"]["value"].as_f64()).expect("a factor");
        assert!((rtf / p50 - 1.0).abs() < 1e-6, "{own:?}: {rtf} is not {p50}");
        assert_eq!(latency["ttft"].is_null(), own == ["--set", "target.stream=false"], "{own:?}");
        assert!(plimsoll(&["show", &run]).stdout.contains("rtf"));
    }
}

#[test]
fn images_are_measured_as_the_engine_sent_them() {
    let own = [
        "--set",
        "target.extra.n=2",
        "--set",
        "target.extra.size=64x32",
        "--set",
        "target.extra.num_inference_steps=3",
    ];
    let (_kept, run) = run_folder();
    let (rows, printed) = measured(&[&["--api", "images"], &own[..]].concat(), &run);
    for (row, known) in &rows {
        assert!(row.outcome.is_finished() && row.answer.broken.is_none(), "{:?}", row.answer);
        assert_eq!((&known["path"], &known["output_tokens"]), (&json!("/v1/images/generations"), &json!(6)));
        assert_eq!((row.media.images, row.media.pixels), (2, 2 * 64 * 32));
    }
    let latency = &printed["findings"]["levels"][0]["summary"]["latency"];
    assert!(latency["ttft"].is_null() && latency["rtf"].is_null());
    let shown = plimsoll(&["show", &run]);
    assert!(shown.stdout.contains("images/s"), "{}", shown.stdout);
}

/// OpenAI's client asks the engine for speech and images. Python's `wave` measures the audio.
const CLIENT: &str = r#"
import base64, io, json, struct, sys, wave
from openai import OpenAI
client = OpenAI(base_url=sys.argv[1], api_key="none")
text = "a" * 30
ask = lambda **more: client.audio.speech.with_streaming_response.create(model=sys.argv[2], voice="alloy", input=text, **more)
def body(**more):
    with ask(**more) as got:
        return got.headers["content-type"], got.read()
seconds = lambda data: wave.open(io.BytesIO(data)).getnframes() / wave.open(io.BytesIO(data)).getframerate()
kind, whole = body(response_format="wav")
pcm_kind, pcm = body(response_format="pcm", extra_body={"stream": True})
with ask(response_format="pcm", stream_format="sse") as got:
    events = [json.loads(line[6:]) for line in got.iter_lines() if line.startswith("data: ")]
deltas = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
images = client.images.generate(model=sys.argv[2], prompt="a cat", n=2, size="256x256")
png = [base64.b64decode(image.b64_json) for image in images.data]
print(json.dumps({
    "kind": kind, "seconds": seconds(whole), "pcm_kind": pcm_kind, "pcm": len(pcm), "deltas": len(deltas), "events": len(events),
    "kinds": sorted({event["type"] for event in events}), "sizes": [struct.unpack(">II", data[16:24]) for data in png],
    "differ": png[0] != png[1],
}))
"#;

#[test]
fn openais_client_reads_the_engines_answers() {
    let Some(done) = real::or_skipped(real::installed("venv-openai/.done", "openai")) else { return };
    let engine = Engine::start("demo");
    let python = done.with_file_name("bin/python");
    let said =
        Command::new(python).args(["-c", CLIENT, &engine.url, "demo"]).output().expect("Python is there");
    assert!(said.status.success(), "{}", String::from_utf8_lossy(&said.stderr));
    let said: Value = serde_json::from_slice(&said.stdout).expect("JSON");
    // 30 characters are 2 s: 50 events of 40 ms, at 48 kB per second.
    let want = json!({
        "kind": "audio/wav", "seconds": 2.0, "pcm_kind": "audio/pcm", "pcm": 96_000, "deltas": 96_000, "events": 51,
        "kinds": ["speech.audio.delta", "speech.audio.done"], "sizes": [[256, 256], [256, 256]], "differ": true,
    });
    assert_eq!(said, want);
}

/// An answer of a server: its content type, and its parts with a pause before each.
type Parts = (&'static str, Vec<Vec<u8>>);

fn send(socket: &mut TcpStream, (kind, parts): &Parts) {
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n");
    let _ = socket.write_all(head.as_bytes());
    for part in parts {
        sleep(PAUSE);
        let _ = socket.write_all(&[format!("{:x}\r\n", part.len()).as_bytes(), part, b"\r\n"].concat());
    }
    let _ = socket.write_all(b"0\r\n\r\n");
}

const PAUSE: Duration = Duration::from_millis(60);

fn wav_header(rate: u32) -> Vec<u8> {
    let mut head = b"RIFF\xff\xff\xff\xffWAVEfmt \x10\0\0\0\x01\0\x01\0".to_vec();
    head.extend_from_slice(&rate.to_le_bytes());
    head.extend_from_slice(&(2 * rate).to_le_bytes());
    head.extend_from_slice(b"\x02\0\x10\0data\xff\xff\xff\xff");
    head
}

fn delta(audio: &[u8]) -> Vec<u8> {
    let event = json!({"type": "speech.audio.delta", "audio": STANDARD.encode(audio)});
    format!("data: {event}\n\n").into_bytes()
}

/// Audio in the formats of OpenAI, vLLM-Omni, SGLang-Omni and Mistral, with the length, and the number of pauses before the first sample.
#[test]
fn audio_of_other_servers_is_measured() {
    let second = vec![1; 48_000];
    let done = b"data: {\"type\":\"speech.audio.done\"}\n\n".to_vec();
    let mistral = format!(
        "data: {}\n\n",
        json!({"type": "speech.audio.delta", "audio_data": STANDARD.encode(&second)})
    );
    let part = json!({"data": STANDARD.encode(&second), "format": "pcm", "sample_rate": 48_000});
    let chunk = json!({"object": "audio.speech.chunk", "audio": part, "finish_reason": null});
    let last = json!({"object": "audio.speech.chunk", "audio": null, "finish_reason": "stop"});
    let sglang = format!("data: {chunk}\n\ndata: {last}\n\n");
    let cases: Vec<(Parts, u64, u32, Option<Broken>)> = vec![
        (("audio/pcm", vec![second.clone(), second.clone()]), 2000, 1, None),
        (("audio/pcm; rate=44100", vec![vec![1; 88_200]]), 1000, 1, None),
        // A header alone is no audio.
        (("audio/wav", vec![wav_header(22_050), vec![1; 44_100]]), 1000, 2, None),
        (("application/octet-stream", vec![[wav_header(24_000), second.clone()].concat()]), 1000, 1, None),
        (("audio/mpeg", vec![b"ID3\x04\0\0\0\0\0\0\xff\xfb\x90\x64".to_vec()]), 0, 1, None),
        (("text/event-stream", vec![delta(&second), delta(&second), done.clone()]), 2000, 1, None),
        (
            ("text/event-stream", vec![delta(&wav_header(24_000)), delta(&second), done.clone()]),
            1000,
            2,
            None,
        ),
        (("text/event-stream", vec![mistral.into_bytes(), done]), 1000, 1, None),
        (("text/event-stream", vec![sglang.into_bytes(), b"data: [DONE]\n\n".to_vec()]), 500, 1, None),
        (("audio/wav", vec![wav_header(24_000)]), 0, 0, Some(Broken::Empty)),
        (("audio/pcm", vec![]), 0, 0, Some(Broken::Empty)),
    ];
    for (parts, audio_ms, pauses, broken) in cases {
        let sent = parts.clone();
        let server = Server::whole(move |head, _, socket| match head.starts_with("POST") {
            false => reply(socket, "200 OK", JSON, r#"{"data":[{"id":"m"}]}"#),
            true => send(socket, &sent),
        });
        let (_folder, run) = run_folder();
        let load = ["--api", "speech", "--concurrency", "2", "--requests", "6", "--scrape", "off", "-q"];
        let ended = plimsoll(&[&["run", &server.url, "-o", &run][..], &load].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        for row in rows(&run) {
            let about = format!("{} of {} parts: {row:?}", parts.0, parts.1.len());
            assert_eq!((row.answer.broken, row.media.audio_ms), (broken, audio_ms), "{about}");
            assert_eq!(row.outcome.is_finished(), broken.is_none(), "{about}");
            let first = row.first_token.map(|at| (at - row.sent.expect("sent")).0);
            let least = i64::from(pauses) * PAUSE.as_nanos() as i64;
            assert_eq!(first.is_some(), pauses > 0, "{about}");
            assert!(first.is_none_or(|ns| ns >= least), "{about}");
        }
    }
}

/// Failures of a speech server: an error instead of audio, an error event, and a connection that ends within the audio.
#[test]
fn failed_speech_does_not_count_as_finished() {
    let cases: [(&str, &str, &[u8]); 5] = [
        ("application/json", "", br#"{"error":{"message":"out of memory","type":"server_error"}}"#),
        ("text/event-stream", "", b"data: {\"error\":{\"message\":\"out of memory\"}}\n\n"),
        ("audio/wav", "", br#"{"error":{"message":"out of memory"}}"#),
        ("text/event-stream", "", b"data: {\"type\":\"speech.audio.error\",\"message\":\"oom\"}\n\n"),
        ("audio/pcm", "content-length: 96000\r\n", &[1; 48_000]),
    ];
    for (kind, length, body) in cases {
        let server = Server::whole(move |head, _, socket| {
            if !head.starts_with("POST") {
                return reply(socket, "200 OK", JSON, r#"{"data":[{"id":"m"}]}"#);
            }
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\n{length}connection: close\r\n\r\n");
            let _ = socket.write_all(&[head.as_bytes(), body].concat());
            let _ = socket.shutdown(Shutdown::Both);
        });
        let (_folder, run) = run_folder();
        let load = ["--api", "speech", "--concurrency", "1", "--requests", "4", "--scrape", "off", "-q"];
        plimsoll(&[&["run", &server.url, "-o", &run][..], &load].concat());
        let rows = rows(&run);
        assert!(!rows.is_empty() && rows.iter().all(|row| !row.outcome.is_finished()), "{kind}: {rows:?}");
    }
}

/// Images as base64 and as URLs, and an answer that lacks one.
#[test]
fn images_of_other_servers_are_counted() {
    let jpeg = STANDARD.encode(b"\xff\xd8\xff\xe0 and more of a picture that is no PNG file of this project");
    for (body, broken) in [
        (json!({"created": 1, "data": [{"b64_json": jpeg}, {"url": "https://host/a.png"}]}), None),
        (json!({"created": 1, "data": [{"b64_json": jpeg}]}), Some(Broken::WrongCount)),
        (json!({"created": 1, "data": []}), Some(Broken::Empty)),
    ] {
        let text = body.to_string();
        let server =
            Server::whole(move |head, _, socket| match head.starts_with("POST /v1/images/generations ") {
                false => reply(socket, "200 OK", JSON, r#"{"data":[{"id":"m"}]}"#),
                true => reply(socket, "200 OK", JSON, &text),
            });
        let (_folder, run) = run_folder();
        let load =
            ["--api", "images", "--set", "target.extra.n=2", "--concurrency", "1", "--requests", "4", "-q"];
        let ended = plimsoll(&[&["run", &server.url, "-o", &run, "--scrape", "off"][..], &load].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        let images = body["data"].as_array().expect("a list").len();
        for row in rows(&run) {
            assert_eq!((row.answer.broken, row.media.images as usize), (broken, images), "{body}");
        }
    }
}

#[test]
fn flags_without_an_effect_are_refused() {
    for (args, why) in [
        (&["--api", "speech", "--isl", "9", "--osl", "9"][..], "--osl: speech requests set no output length"),
        (&["--api", "images", "--osl", "9"], "--osl: images requests set no output length"),
        (&["--api", "speech", "--audio", "5s"], "only chat and transcriptions send audio"),
        (&["--api", "images", "--images", "8x8"], "send images"),
        (&["--api", "speech", "--slo", "rtf p95 < 1s"], "a budget file takes this one"),
    ] {
        let ended = plimsoll(&[&["run", "http://127.0.0.1:9/v1", "--rate", "1/s"], args].concat());
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
}
