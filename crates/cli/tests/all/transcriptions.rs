//! Transcriptions: the sent form, parsed by Python's own reader of messages, and the embedded engine's answers, read by OpenAI's client.
//! The client's measurements are compared with the engine's log; answers of other servers are read too.

use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex};

use plimsoll_model::{Attempt, Broken};
use serde_json::{Value, json};

use crate::kit::{Engine, Server, plimsoll, reply, run_folder, stream_head};
use crate::real;

const JSON: &str = "content-type: application/json\r\n";

fn rows(run: &str) -> Vec<Attempt> {
    plimsoll_store::open(Path::new(run)).expect("a run").attempts
}

/// Runs some transcriptions against a server of ours; its rows and what was printed.
fn measured(server: &Server, more: &[&str]) -> (Vec<Attempt>, Value) {
    let (_folder, run) = run_folder();
    let load = ["--api", "transcriptions", "--concurrency", "2", "--requests", "12", "--scrape", "off", "-q"];
    let base = ["run", &server.url, "-o", &run, "--format", "json"];
    let ended = plimsoll(&[&base[..], &load, more].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    (rows(&run), ended.json())
}

/// The fields and the sound of each form, by Python's `email` and `wave`. A line of bodies: the head's content type, a blank, the body in hex.
const READ: &str = r#"
import email, email.policy, io, json, sys, wave
for line in open(sys.argv[1], "rb"):
    kind, body = line.rstrip(b"\n").rsplit(b" ", 1)
    whole = b"Content-Type: " + kind + b"\r\nMIME-Version: 1.0\r\n\r\n" + bytes.fromhex(body.decode())
    form = email.message_from_bytes(whole, policy=email.policy.HTTP)
    assert form.is_multipart() and form.get_content_type() == "multipart/form-data" and not form.defects
    found = {}
    for part in form.iter_parts():
        assert not part.defects and part.get_content_disposition() == "form-data"
        name = part.get_param("name", header="content-disposition")
        content = part.get_payload(decode=True)
        if part.get_filename() is None:
            found.setdefault(name, []).append(content.decode())
            continue
        assert part.get_content_type() == "audio/wav"
        with wave.open(io.BytesIO(content)) as sound:
            frames = sound.getnframes()
            assert len(sound.readframes(frames)) == 2 * frames
            found[name] = [sound.getnchannels(), sound.getframerate(), frames]
    print(json.dumps(found))
"#;

#[test]
fn forms_hold_what_was_asked_by_an_independent_reader() {
    let bodies: Arc<Mutex<Vec<u8>>> = Arc::default();
    let kept = Arc::clone(&bodies);
    let server = Server::whole(move |head, body, socket| {
        if !head.starts_with("POST") {
            return reply(socket, "200 OK", JSON, r#"{"data":[{"id":"m"}]}"#);
        }
        assert!(head.starts_with("POST /v1/audio/transcriptions "), "{head}");
        let kind = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-type").then(|| value.trim().to_owned())
        });
        let hex: String = body.iter().map(|byte| format!("{byte:02x}")).collect();
        let line = format!("{} {hex}\n", kind.expect("a content type"));
        kept.lock().expect("held").extend_from_slice(line.as_bytes());
        reply(socket, "200 OK", JSON, r#"{"text":""}"#);
    });
    let own = [
        "--audio",
        "uniform:20ms,400ms",
        "--set",
        "target.extra.language=en",
        "--set",
        r#"target.extra.timestamp_granularities[]=["word","segment"]"#,
    ];
    let (_folder, run) = run_folder();
    let load = ["--api", "transcriptions", "--concurrency", "2", "--requests", "40", "--scrape", "off", "-q"];
    let ended = plimsoll(&[&["run", &server.url, "-o", &run][..], &load, &own].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("bodies");
    std::fs::write(&file, &*bodies.lock().expect("held")).expect("written");
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".to_owned());
    let read = Command::new(python).args(["-c", READ]).arg(&file).output().expect("Python is there");
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let text = String::from_utf8(read.stdout).expect("text");
    let mut heard: Vec<u64> = Vec::new();
    for line in text.lines() {
        let found: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!((&found["model"], &found["language"]), (&json!(["m"]), &json!(["en"])), "{found}");
        assert_eq!((&found["response_format"], &found["stream"]), (&json!(["json"]), &json!(["true"])));
        assert_eq!(found["timestamp_granularities[]"], json!(["word", "segment"]));
        assert_eq!((&found["file"][0], &found["file"][1]), (&json!(1), &json!(16_000)));
        let frames = found["file"][2].as_u64().expect("frames");
        assert!((320..=6400).contains(&frames), "{frames}");
        heard.push(frames * 1000 / 16_000);
    }
    let rows = rows(&run);
    // An answer without a word is complete, because noise contains no speech.
    assert!(rows.iter().all(|row| row.outcome.is_finished() && row.answer.broken.is_none()), "{rows:?}");
    let mut said: Vec<u64> = rows.iter().map(|row| row.media.audio_ms).collect();
    heard.sort_unstable();
    said.sort_unstable();
    assert_eq!((said.len(), said), (40, heard));
}

/// OpenAI's client requests each kind of answer from the embedded engine, and parses it with its own types.
const CLIENT: &str = r#"
import io, json, sys, wave
from openai import OpenAI
sound = io.BytesIO()
with wave.open(sound, "wb") as out:
    out.setnchannels(1); out.setsampwidth(2); out.setframerate(8000)
    out.writeframes(bytes(2 * 8000 * 12))
client = OpenAI(base_url=sys.argv[1], api_key="none")
ask = lambda **more: client.audio.transcriptions.create(file=("a.wav", sound.getvalue()), model=sys.argv[2], **more)
plain = ask()
verbose = ask(response_format="verbose_json", timestamp_granularities=["segment"])
text = ask(response_format="text")
events = list(ask(stream=True))
print(json.dumps({
    "plain": len(plain.text.split()), "tokens": plain.usage.input_tokens, "output": plain.usage.output_tokens,
    "duration": float(verbose.duration), "verbose": len(verbose.text.split()), "segments": len(verbose.segments),
    "text": len(text.split()), "kinds": sorted({event.type for event in events}),
    "deltas": len([event for event in events if event.type == "transcript.text.delta"]),
    "same": "".join(event.delta for event in events[:-1]).split() == events[-1].text.split(),
    "counted": events[-1].usage.output_tokens,
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
    // 12 s of audio: 25 input tokens per second, and 150 words per minute of speech.
    let want = json!({
        "plain": 30, "tokens": 300, "output": 30, "duration": 12.0, "verbose": 30, "segments": 1, "text": 30,
        "kinds": ["transcript.text.delta", "transcript.text.done"], "deltas": 30, "same": true, "counted": 30,
    });
    assert_eq!(said, want);
}

#[test]
fn transcriptions_are_measured_as_the_engine_sent_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("truth.jsonl");
    let engine = Engine::start_with("demo", &["--truth-log", log.to_str().expect("utf-8")]);
    let (_kept, run) = run_folder();
    let load = ["--audio", "uniform:2s,20s", "--rate", "20/s", "--for", "4s", "--api", "transcriptions"];
    let base = ["run", &engine.url, "-q", "-o", &run, "--format", "json"];
    let ended = plimsoll(&[&base[..], &load].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    engine.stop();
    let text = std::fs::read_to_string(&log).expect("a truth log");
    let mut truth: Vec<[u64; 3]> = text
        .lines()
        .skip(1)
        .map(|line| serde_json::from_str::<Value>(line).expect("JSON"))
        .map(|row| {
            let number = |at: &str| row.pointer(at).and_then(Value::as_u64).expect("a number");
            [number("/media/audio_ms"), number("/prompt_tokens"), number("/output_tokens")]
        })
        .collect();
    let rows = rows(&run);
    let mut said: Vec<[u64; 3]> = Vec::new();
    for row in &rows {
        assert!(row.outcome.is_finished() && row.answer.broken.is_none(), "{:?}", row.answer);
        let tokens = &row.answer.tokens;
        let output = u64::from(tokens.output.expect("counted"));
        assert_eq!(row.events.iter().filter(|event| event.kind.is_token()).count() as u64, output);
        assert!(row.first_token.is_some() && row.asked_prompt == 0);
        said.push([row.media.audio_ms, u64::from(tokens.prompt.expect("counted")), output]);
    }
    truth.sort_unstable();
    said.sort_unstable();
    assert!(said.len() > 40, "{}", said.len());
    assert_eq!(said, truth);
    // Seconds of audio per second: what ended in the window, by the rows.
    let level = &ended.json()["findings"]["levels"][0]["summary"];
    let (start, stop) = (&level["window"]["start"], &level["window"]["stop"]);
    let within = |row: &&Attempt| {
        let end = row.end.expect("ended").0;
        start.as_i64().is_some_and(|start| end >= start) && stop.as_i64().is_some_and(|stop| end < stop)
    };
    let heard: u64 = rows.iter().filter(within).map(|row| row.media.audio_ms).sum();
    let length_s = (stop.as_i64().expect("ns") - start.as_i64().expect("ns")) as f64 / 1e9;
    let want = heard as f64 / 1e3 / length_s;
    let rate = level["rates"]["audio_s_per_s"]["value"].as_f64().expect("a rate");
    assert!((rate / want - 1.0).abs() < 1e-6, "{rate} of {want}");
    let shown = plimsoll(&["show", &run]);
    assert!(shown.stdout.contains("s of audio/s"), "{}", shown.stdout);
}

/// Answers of vLLM and whisper.cpp in their formats, and one of a server that processed half of the audio.
#[test]
fn answers_of_other_servers_are_read() {
    let vllm = |text: &str, usage: &str| {
        format!(
            "data: {{\"id\":\"trsc-1\",\"object\":\"transcription.chunk\",\"created\":1,\"model\":\"m\",\"choices\":[{text}]{usage}}}\n\n"
        )
    };
    let streamed = [
        vllm(r#"{"delta":{"content":" he"},"finish_reason":null,"stop_reason":null}"#, ""),
        vllm(r#"{"delta":{"content":"llo"},"finish_reason":null,"stop_reason":null}"#, ""),
        vllm(r#"{"delta":{"content":""},"finish_reason":"stop","stop_reason":null}"#, ""),
        vllm("", r#","usage":{"prompt_tokens":54,"completion_tokens":2,"total_tokens":56}"#),
        "data: [DONE]\n\n".to_owned(),
    ]
    .concat();
    let whole = |body: &str| (false, body.to_owned());
    let cases = [
        ((true, streamed), Some(2), 2, None),
        // vLLM: the length as a text, and seconds as its account.
        (whole(r#"{"text":"hello","usage":{"type":"duration","seconds":4}}"#), None, 0, None),
        (
            whole(r#"{"duration":"4.0","language":"en","text":"hello","segments":[],"words":null}"#),
            None,
            0,
            None,
        ),
        // whisper.cpp.
        (whole("{\"text\":\" hello\\n\"}"), None, 0, None),
        (
            whole(
                r#"{"task":"transcribe","language":"english","duration":4.0,"text":"hello","segments":[{"id":0,"text":"hello","start":0,"end":4.0,"tokens":[1],"words":[],"temperature":0.0,"avg_logprob":-0.1,"no_speech_prob":0.0}]}"#,
            ),
            None,
            0,
            None,
        ),
        (whole(r#"{"task":"transcribe","duration":2.0,"text":"hel"}"#), None, 0, Some(Broken::CutShort)),
        (whole(""), None, 0, Some(Broken::Empty)),
    ];
    for ((streams, body), output, events, broken) in cases {
        let told = body.clone();
        let server = Server::whole(move |head, _, socket| match (head.starts_with("POST"), streams) {
            (false, _) => reply(socket, "200 OK", JSON, r#"{"data":[{"id":"m"}]}"#),
            (true, false) => reply(socket, "200 OK", JSON, &body),
            (true, true) => {
                stream_head(socket);
                let _ = socket.write_all(body.as_bytes());
                let _ = socket.shutdown(std::net::Shutdown::Both);
            }
        });
        for row in measured(&server, &["--audio", "4s"]).0 {
            assert_eq!(
                row.outcome.is_finished(),
                broken != Some(Broken::Empty),
                "{told}: {:?} {:?}",
                row.outcome,
                row.answer
            );
            assert_eq!((row.answer.tokens.output, row.answer.broken), (output, broken), "{told}");
            assert_eq!(row.events.iter().filter(|event| event.kind.is_token()).count(), events, "{told}");
        }
    }
}

#[test]
fn what_a_transcription_cannot_carry_is_refused_before_anything_is_sent() {
    for (args, why) in [
        (&["--isl", "40"][..], "set its length with --audio"),
        (&["--images", "8x8"], "send images"),
        (&["--audio", "2*5s"], "one audio clip"),
        (&["--sessions", "3,1s"], "set its length with --audio"),
    ] {
        let ended = plimsoll(
            &[&["run", "http://127.0.0.1:9/v1", "--api", "transcriptions", "--rate", "1/s"], args].concat(),
        );
        assert_eq!(ended.code, 2, "{args:?}: {}", ended.stderr);
        assert!(ended.stderr.contains(why), "{args:?}: {}", ended.stderr);
    }
}
