//! A server that misbehaves is an outcome in the record: never a panic, and nothing measured is lost.

use std::io::Write;
use std::net::TcpStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::kit::{Server, chunk, plimsoll, reply, run_folder, stream_head};

/// Measures a server whose model list is fine and whose answers come from `answer`; gives the outcomes of the level.
fn outcomes(more: &[&str], answer: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> (i32, Value) {
    let server = Server::start(move |request, socket| {
        if request.starts_with("GET") {
            reply(
                socket,
                "200 OK",
                "content-type: application/json\r\n",
                r#"{"object":"list","data":[{"id":"m"}]}"#,
            );
        } else {
            answer(socket);
        }
    });
    let (_folder, run) = run_folder();
    let args = [
        "run",
        &server.url,
        "--rate",
        "20/s",
        "--for",
        "1s",
        "--osl",
        "4",
        "--isl",
        "8",
        "--format",
        "json",
        "-q",
    ];
    let ended = plimsoll(&[&args[..], &["-o", &run], more].concat());
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
    let shown = plimsoll(&["show", &run, "--format", "json"]);
    assert!(!shown.stdout.is_empty(), "the run can't be shown: {}", shown.stderr);
    let counts = ended.json()["findings"]["levels"][0]["summary"]["counts"].clone();
    (ended.code, counts)
}

/// Every request of the level must have ended like this.
fn all_end_as(name: &str, counts: &Value) {
    let requests = counts["requests"].as_u64().expect("counted");
    assert!(requests > 0, "{counts}");
    assert_eq!(counts["by_outcome"][name].as_u64(), Some(requests), "{counts}");
}

#[test]
fn html_is_malformed() {
    let (_, counts) =
        outcomes(&[], |socket| reply(socket, "200 OK", "content-type: text/html\r\n", "<html>login</html>"));
    all_end_as("malformed", &counts);
}

#[test]
fn a_redirect_to_another_host_is_not_followed() {
    let (_, counts) = outcomes(&[], |socket| {
        reply(
            socket,
            "307 Temporary Redirect",
            "location: http://elsewhere.invalid/v1/chat/completions\r\n",
            "",
        );
    });
    all_end_as("redirected", &counts);
}

#[test]
fn a_stream_that_closes_midway_is_truncated() {
    let (_, counts) = outcomes(&[], |socket| {
        stream_head(socket);
        let _ = socket.write_all(chunk("half").as_bytes());
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    all_end_as("truncated", &counts);
}

#[test]
fn half_a_character_does_not_break_anything() {
    let (_, counts) = outcomes(&[], |socket| {
        stream_head(socket);
        let text = chunk("ü");
        let _ = socket.write_all(&text.as_bytes()[..text.len() - 6]);
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    all_end_as("truncated", &counts);
}

#[test]
fn an_error_inside_a_stream_is_not_a_success() {
    let (_, counts) = outcomes(&["--force"], |socket| {
        stream_head(socket);
        let _ = socket.write_all(b"data: {\"error\":{\"message\":\"engine died\"}}\n\ndata: [DONE]\n\n");
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    all_end_as("stream_error", &counts);
}

#[test]
fn a_stream_that_never_ends_runs_into_its_time_out() {
    let (_, counts) = outcomes(&["--timeout", "1500ms"], |socket| {
        stream_head(socket);
        for _ in 0..60 {
            if socket.write_all(chunk("more").as_bytes()).is_err() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
    });
    all_end_as("timeout", &counts);
}

#[test]
fn a_server_that_trickles_runs_into_its_time_out() {
    let (_, counts) = outcomes(&["--idle-timeout", "1s", "--timeout", "4s"], |socket| {
        for byte in b"HTTP/1.1 200 OK\r\n" {
            if socket.write_all(&[*byte]).is_err() {
                return;
            }
            thread::sleep(Duration::from_secs(1));
        }
    });
    all_end_as("timeout", &counts);
}

#[test]
fn a_line_without_end_is_bounded() {
    let (_, counts) = outcomes(&["--timeout", "20s", "--max-in-flight", "2"], |socket| {
        stream_head(socket);
        let _ = socket.write_all(b"data: ");
        let block = vec![b'x'; 1 << 16];
        // Two GiB are offered; the client has to hang up long before.
        for _ in 0..(2usize << 30) / block.len() {
            if socket.write_all(&block).is_err() {
                return;
            }
        }
        panic!("two GiB of one line were read to the end");
    });
    all_end_as("malformed", &counts);
}

#[test]
fn shed_and_failed_requests_have_their_names() {
    let (_, counts) =
        outcomes(&[], |socket| reply(socket, "429 Too Many Requests", "retry-after: 1\r\n", "{}"));
    all_end_as("shed", &counts);
    let (_, counts) = outcomes(&["--force"], |socket| reply(socket, "500 Internal Server Error", "", "{}"));
    all_end_as("server_error", &counts);
    let (_, counts) = outcomes(&["--force"], |socket| reply(socket, "400 Bad Request", "", "{}"));
    all_end_as("client_error", &counts);
}

#[test]
fn an_empty_answer_failed() {
    let (_, counts) = outcomes(&["--force"], |socket| {
        stream_head(socket);
        let _ = socket.write_all(
            b"data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\n\ndata: [DONE]\n\n",
        );
        let _ = socket.shutdown(std::net::Shutdown::Both);
    });
    all_end_as("stream_error", &counts);
}

/// As llama.cpp does, the server answers 503 while it loads its model. A run without a model name then has no model to ask for.
#[test]
fn a_server_that_loads_its_model_is_waited_for() {
    let asked = AtomicU32::new(0);
    let server = Server::start(move |request, socket| {
        let json = "content-type: application/json\r\n";
        if !request.starts_with("GET") {
            return reply(
                socket,
                "200 OK",
                json,
                r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}"#,
            );
        }
        match asked.fetch_add(1, Ordering::Relaxed) {
            0..3 => {
                reply(socket, "503 Service Unavailable", json, r#"{"error":{"message":"Loading model"}}"#)
            }
            _ => reply(socket, "200 OK", json, r#"{"object":"list","data":[{"id":"m"}]}"#),
        }
    });
    let (_folder, run) = run_folder();
    let load = ["run", &server.url, "--concurrency", "1", "--requests", "2", "--no-stream", "-o", &run];
    let ended = plimsoll(&load);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("the server is not ready: GET"), "{}", ended.stderr);
    let ended = plimsoll(&[&load[..], &["--wait-ready", "60s"]].concat());
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    assert!(ended.stdout.contains("model m"), "{}", ended.stdout);
}
