//! Images and audio: the server's received files against the row, the configured distribution, and the results of Python's own decoders.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use plimsoll_model::Attempt;
use serde_json::Value;

use crate::kit::{Engine, Server, chunk, plimsoll, run_folder, stream_head};
use crate::real;

fn rows(run: &str) -> Vec<Attempt> {
    let mut rows = plimsoll_store::open(Path::new(run)).expect("a run").attempts;
    rows.retain(|row| row.level != u32::MAX);
    rows
}

/// A server that keeps the bodies it gets.
fn keeping() -> (Server, Arc<Mutex<Vec<Vec<u8>>>>) {
    use std::io::Write;
    let bodies: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let kept = Arc::clone(&bodies);
    let server = Server::reading(move |first, body, socket| {
        if !first.starts_with("POST") {
            return crate::kit::reply(
                socket,
                "200 OK",
                "content-type: application/json\r\n",
                r#"{"data":[{"id":"m"}]}"#,
            );
        }
        kept.lock().expect("held").push(body.to_vec());
        stream_head(socket);
        let _ = socket.write_all(format!("{}data: [DONE]\n\n", chunk("hi")).as_bytes());
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    (server, bodies)
}

/// Python decodes each file completely, including pixels and samples, with its standard library: zlib, crc32 and wave.
const READ: &str = r#"
import base64, io, json, struct, sys, wave, zlib
def png(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, idat, head = 8, b"", None
    while at < len(data):
        size, name = struct.unpack(">I4s", data[at:at+8])
        body = data[at+8:at+8+size]
        assert zlib.crc32(name + body) == struct.unpack(">I", data[at+8+size:at+12+size])[0], name
        if name == b"IHDR": head = struct.unpack(">IIBBBBB", body)
        if name == b"IDAT": idat += body
        at += 12 + size
    assert name == b"IEND"
    raw = zlib.decompress(idat)
    width, height, depth, colour = head[:4]
    row = 1 + (width * depth * (3 if colour == 2 else 1) + 7) // 8
    assert len(raw) == row * height and not any(raw[::row])
    assert len(zlib.compress(raw)) > 0.9 * len(raw)
    return ["image", width, height, zlib.crc32(data)]
def wav(data):
    with wave.open(io.BytesIO(data)) as sound:
        assert (sound.getnchannels(), sound.getsampwidth()) == (1, 2)
        frames = sound.readframes(sound.getnframes())
        assert len(frames) == 2 * sound.getnframes()
        return ["audio", sound.getnframes(), sound.getframerate(), zlib.crc32(data)]
for line in open(sys.argv[1], "rb"):
    body, found = json.loads(line), []
    for message in body["messages"]:
        if isinstance(message["content"], str): continue
        assert message["content"][-1]["type"] == "text"
        for part in message["content"][:-1]:
            if part["type"] == "image_url":
                head, data = part["image_url"]["url"].split(",", 1)
                assert head == "data:image/png;base64"
                found.append(png(base64.b64decode(data, validate=True)))
            else:
                assert part["type"] == "input_audio" and part["input_audio"]["format"] == "wav"
                found.append(wav(base64.b64decode(part["input_audio"]["data"], validate=True)))
    print(json.dumps(found))
"#;

fn python() -> String {
    std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned())
}

/// Returns the files that Python finds in the bodies, one list each.
fn found(bodies: &[Vec<u8>]) -> Vec<Vec<Value>> {
    let text = said(Path::new(&python()), READ, bodies);
    text.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
}

/// Returns a script's output for the bodies, a line of JSON each.
fn said(python: &Path, script: &str, bodies: &[Vec<u8>]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("bodies.jsonl");
    let lines: Vec<u8> = bodies.iter().flat_map(|body| body.iter().copied().chain(*b"\n")).collect();
    std::fs::write(&path, lines).expect("written");
    let read = Command::new(python).args(["-c", script]).arg(&path).output().expect("Python is there");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    String::from_utf8(read.stdout).expect("text")
}

#[test]
fn files_have_the_sizes_of_their_laws_and_rows_say_so() {
    let (server, bodies) = keeping();
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &server.url,
        "--images",
        "uniform:1,3*uniform:16,96xuniform:8,40",
        "--audio",
        "uniform:20ms,90ms",
    ];
    let load = [
        "--rate",
        "30/s",
        "--for",
        "3s",
        "--osl",
        "1",
        "--natural-length",
        "--scrape",
        "off",
        "-q",
        "-o",
        &run,
        "--format",
        "json",
    ];
    let ended = plimsoll(&[&args[..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let found = found(&bodies.lock().expect("held"));
    let mut files: Vec<[u64; 3]> = Vec::new();
    let mut unlike = std::collections::HashSet::new();
    for file in found.iter().flatten() {
        let number = |at: usize| file[at].as_u64().expect("a number");
        match file[0].as_str() {
            Some("image") => {
                assert!((16..=96).contains(&number(1)) && (8..=40).contains(&number(2)), "{file}")
            }
            _ => assert!((320..=1440).contains(&number(1)) && number(2) == 16_000, "{file}"),
        }
        assert!(unlike.insert(number(3)), "two alike: {file}");
    }
    for of in found.iter().filter(|of| !of.is_empty()) {
        let images = || of.iter().filter(|file| file[0] == "image");
        assert!((1..=3).contains(&images().count()), "{of:?}");
        let pixels = images().map(|file| file[1].as_u64().unwrap_or(0) * file[2].as_u64().unwrap_or(0)).sum();
        let sound =
            of.iter().filter(|file| file[0] == "audio").map(|file| file[1].as_u64().unwrap_or(0) / 16).sum();
        files.push([images().count() as u64, pixels, sound]);
    }
    let rows = rows(&run);
    let mut said: Vec<[u64; 3]> =
        rows.iter().map(|row| [row.media.images.into(), row.media.pixels, row.media.audio_ms]).collect();
    said.sort_unstable();
    files.sort_unstable();
    assert!(said.len() > 40, "{}", said.len());
    assert_eq!(said, files);
    let rates = &ended.json()["findings"]["levels"][0]["summary"]["rates"];
    assert!(rates["images_per_s"]["value"].as_f64().is_some_and(|rate| rate > 0.0), "{rates}");
    assert!(rates["audio_s_per_s"]["value"].as_f64().is_some_and(|rate| rate > 0.0), "{rates}");
}

/// The types of OpenAI's own client accept the sent requests.
const TYPES: &str = r#"
import json, sys
from openai.types.chat.completion_create_params import CompletionCreateParamsStreaming
from pydantic import TypeAdapter
# Held: lists of parts are checked as they are walked through.
adapter = TypeAdapter(CompletionCreateParamsStreaming)
for line in open(sys.argv[1], "rb"):
    body = adapter.validate_python(json.loads(line))
    parts = [part["type"] for message in body["messages"] for part in list(message["content"]) if not isinstance(part, str)]
    print(json.dumps(parts))
"#;

#[test]
fn openais_types_take_the_bodies() {
    let Some(done) = real::or_skipped(real::installed("venv-openai/.done", "openai")) else { return };
    let (server, bodies) = keeping();
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &server.url,
        "--images",
        "2*16x16",
        "--audio",
        "10ms",
        "--concurrency",
        "1",
        "--requests",
        "3",
    ];
    let load = ["--osl", "1", "--natural-length", "--scrape", "off", "-q", "-o", &run];
    let ended = plimsoll(&[&args[..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let said = said(&done.with_file_name("bin/python"), TYPES, &bodies.lock().expect("held"));
    let want = r#"["image_url", "image_url", "input_audio", "text"]"#;
    assert_eq!(said.lines().filter(|line| *line == want).count(), 3, "{said}");
}

/// A turn repeats the images of earlier turns byte for byte.
#[test]
fn a_session_keeps_its_pictures() {
    let (server, bodies) = keeping();
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &server.url,
        "--images",
        "2*24x16",
        "--sessions",
        "3,20ms",
        "--concurrency",
        "2",
        "--requests",
        "6",
    ];
    let load = ["--osl", "1", "--natural-length", "--scrape", "off", "-q", "-o", &run];
    let ended = plimsoll(&[&args[..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let found = found(&bodies.lock().expect("held"));
    let sums: Vec<Vec<u64>> =
        found.iter().map(|of| of.iter().filter_map(|file| file[3].as_u64()).collect()).collect();
    let mut turns: BTreeMap<usize, usize> = BTreeMap::new();
    for of in sums.iter().filter(|of| !of.is_empty()) {
        *turns.entry(of.len()).or_default() += 1;
        let before = of.len() - 2;
        assert!(before == 0 || sums.iter().any(|other| other[..] == of[..before]), "{of:?}");
    }
    assert_eq!(turns.keys().copied().collect::<Vec<_>>(), [2, 4, 6], "{turns:?}");
    assert!(rows(&run).iter().all(|row| row.media.images == 2 * (u32::from(row.turn) + 1)));
}

/// The embedded engine prices them by its law: a token for each patch of 28 × 28 pixels, 25 for each second of sound.
#[test]
fn the_engine_counts_what_it_was_sent() {
    for (api, base) in [("chat", "/v1"), ("responses", "/v1"), ("messages", "/v1"), ("ollama", "")] {
        let folder = tempfile::tempdir().expect("a folder");
        let log = folder.path().join("truth.jsonl");
        let engine = Engine::start_with("demo", &["--truth-log", log.to_str().expect("utf-8")]);
        let url = engine.url.trim_end_matches("/v1").to_owned() + base;
        let (_kept, run) = run_folder();
        let sound = if api == "chat" { &["--audio", "100ms"][..] } else { &[] };
        let args = ["run", &url, "--api", api, "--images", "2*100x57", "--isl", "30", "--osl", "4"];
        let load = ["--rate", "20/s", "--for", "2s", "--scrape", "off", "-q", "-o", &run];
        let ended = plimsoll(&[&args[..], sound, &load].concat());
        assert!(matches!(ended.code, 0 | 4), "{api}: {}", ended.stderr);
        engine.stop();
        let text = std::fs::read_to_string(&log).expect("a log");
        let truth: Vec<Value> =
            text.lines().skip(1).map(|line| serde_json::from_str(line).expect("JSON")).collect();
        // 100 × 57 pixels are 4 × 3 patches; a tenth of a second is three frames.
        let tokens = 2 * 12 + if api == "chat" { 3 } else { 0 };
        let rows = rows(&run);
        assert!(
            rows.len() > 10 && rows.iter().all(|row| row.outcome.is_finished()),
            "{api}: {:?}",
            rows[0].answer
        );
        for row in &rows {
            assert_eq!((row.media.images, row.media.pixels), (2, 11_400), "{api}");
            assert_eq!(row.answer.tokens.prompt, Some(30 + tokens), "{api}");
        }
        let seen: Vec<&Value> = truth.iter().filter(|row| row["media"]["images"] == 2).collect();
        assert_eq!(seen.len(), rows.len(), "{api}");
        assert!(
            seen.iter().all(|row| row["media"]["pixels"] == 11_400 && row["media_tokens"] == tokens),
            "{api}"
        );
    }
}

#[test]
fn what_carries_none_is_refused_before_anything_is_sent() {
    for (args, want) in [
        (&["--api", "completions", "--images", "8x8"][..], "send images"),
        (&["--api", "responses", "--audio", "1s"], "chat and transcriptions send audio"),
        (&["--images", "8"], "WIDTHxHEIGHT"),
        (&["--images", "8x9000"], "at most 8192"),
        (&["--images", "8x8", "--set", "prompts.images.bits=3"], "1, 2, 4 or 8"),
    ] {
        let ended = plimsoll(&[&["run", "http://127.0.0.1:9/v1", "--rate", "1/s"][..], args].concat());
        assert!(ended.code == 2 && ended.stderr.contains(want), "{args:?}: {}", ended.stderr);
    }
    let ended = plimsoll(&["simulate", "--rate", "1/s", "--images", "8x8"]);
    assert!(ended.code == 2 && ended.stderr.contains("reads text only"), "{}", ended.stderr);
}

/// llama.cpp without a projector takes no picture: each refusal is an outcome in the record, with its words.
#[test]
fn a_server_that_takes_none_leaves_outcomes() {
    let Some(server) = real::or_skipped(real::llama()) else { return };
    let (_folder, run) = run_folder();
    let args =
        ["run", &server.v1(), "--images", "64x64", "--rate", "5/s", "--for", "3s", "--osl", "4", "--force"];
    let ended = plimsoll(&[&args[..], &["-q", "-o", &run]].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let rows = rows(&run);
    assert!(!rows.is_empty());
    for row in &rows {
        assert!(row.answer.status.is_some_and(|status| status >= 400), "{:?}", row.outcome);
        assert!(
            row.answer
                .error
                .as_deref()
                .is_some_and(|words| words.contains("image") || words.contains("mmproj")),
            "{:?}",
            row.answer.error
        );
    }
}
