//! Keys that change during a load: refused requests are in the record, later requests use the new key, and no file contains a key.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use plimsoll_model::Attempt;

use crate::kit::{Ended, Server, chunk, files, plimsoll_with, reply, run_folder, stream_head};

/// Checks that no value of a key is in the output or in the files of the run.
fn nowhere(ended: &Ended, folder: &Path, keys: &[&str]) {
    for (name, bytes) in files(&folder.join("run")) {
        for key in keys {
            let found = bytes.windows(key.len()).any(|part| part == key.as_bytes());
            assert!(!found, "{key} is in {name}");
        }
    }
    for key in keys {
        assert!(
            !ended.stdout.contains(key) && !ended.stderr.contains(key),
            "{}{}",
            ended.stdout,
            ended.stderr
        );
    }
}

/// The key that a request brings.
fn bearer(head: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix("authorization: Bearer "));
    line.unwrap_or_default().trim().to_owned()
}

fn answer(socket: &mut std::net::TcpStream) {
    use std::io::Write;
    stream_head(socket);
    let _ = socket.write_all(format!("{}data: [DONE]\n\n", chunk("hi")).as_bytes());
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

fn refuse(socket: &mut std::net::TcpStream, key: &str) {
    let body = format!("{{\"error\":{{\"message\":\"{key} has expired\"}}}}");
    reply(socket, "401 Unauthorized", "content-type: application/json\r\n", &body);
}

fn rows(run: &str) -> Vec<Attempt> {
    let mut rows = plimsoll_store::open(Path::new(run)).expect("a run").attempts;
    rows.retain(|row| row.level != u32::MAX);
    rows.sort_by_key(|row| row.request);
    rows
}

/// The server stops accepting the key after this many requests. The key file is rewritten when the first request is refused.
#[test]
fn a_key_file_is_read_again_and_a_refusal_is_in_the_record() {
    const OLD: &str = "sk-first-4bd1";
    const NEW: &str = "sk-second-97ce";
    let (folder, run) = run_folder();
    let file = folder.path().join("key");
    std::fs::write(&file, format!("{OLD}\n")).expect("written");
    let (taken, path) = (Arc::new(AtomicU64::new(0)), file.clone());
    let server = Server::whole(move |head, _, socket| {
        if !head.starts_with("POST") {
            return reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#);
        }
        match bearer(head).as_str() {
            NEW => answer(socket),
            OLD if taken.fetch_add(1, Ordering::SeqCst) < 60 => answer(socket),
            other => {
                // Not whole for a moment, as a file that is being rewritten.
                std::fs::write(&path, "").expect("written");
                std::fs::write(&path, NEW).expect("written");
                refuse(socket, other);
            }
        }
    });
    let key = file.display().to_string();
    let args = [
        "run",
        &server.url,
        "--key-file",
        &key,
        "--rate",
        "40/s",
        "--for",
        "4s",
        "--osl",
        "1",
        "--natural-length",
    ];
    let ended = plimsoll_with(&[&args[..], &["--scrape", "off", "-q", "-o", &run]].concat(), &[]);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let rows = rows(&run);
    let first =
        rows.iter().position(|row| row.answer.status == Some(401)).expect("the expiry is in the record");
    let last = rows.iter().rposition(|row| row.answer.status == Some(401)).expect("likewise");
    assert!(rows[..first].len() > 20 && rows[..first].iter().all(|row| row.outcome.is_finished()), "{first}");
    assert!(rows[last + 1..].len() > 20, "refused to the end: {last} of {}", rows.len());
    assert!(rows[last + 1..].iter().all(|row| row.outcome.is_finished()));
    let said = rows[first].answer.error.as_deref().unwrap_or_default();
    assert!(said.contains("*** has expired"), "{said}");
    nowhere(&ended, folder.path(), &[OLD, NEW]);
}

/// Tokens that last seven seconds, and a load of nine: none is sent after it has expired.
#[test]
#[expect(clippy::disallowed_methods, reason = "the servers of these tests live in real time")]
fn a_token_is_renewed_before_it_expires() {
    const SECRET: &str = "s3cr3t/&=+ value";
    let issued: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let asked: Arc<Mutex<Vec<String>>> = Arc::default();
    let (times, forms) = (Arc::clone(&issued), Arc::clone(&asked));
    let tokens = Server::whole(move |head, body, socket| {
        forms.lock().expect("held").push(format!("{head}{}", String::from_utf8_lossy(body)));
        let mut times = times.lock().expect("held");
        times.push(Instant::now());
        let body = format!(
            "{{\"access_token\":\"tok-{:04}-b6\",\"token_type\":\"Bearer\",\"expires_in\":7}}",
            times.len()
        );
        reply(socket, "200 OK", "content-type: application/json\r\n", &body);
    });
    let times = Arc::clone(&issued);
    let server = Server::whole(move |head, _, socket| {
        if !head.starts_with("POST") {
            return reply(socket, "200 OK", "content-type: application/json\r\n", r#"{"data":[{"id":"m"}]}"#);
        }
        let key = bearer(head);
        let number = key.get(4..8).and_then(|digits| digits.parse::<usize>().ok()).unwrap_or(0);
        let at = number.checked_sub(1).and_then(|place| times.lock().expect("held").get(place).copied());
        match at.is_some_and(|at| at.elapsed() < Duration::from_secs(7)) {
            true => answer(socket),
            false => refuse(socket, &key),
        }
    });
    let (folder, run) = run_folder();
    let url = tokens.url.replace("/v1", "/oauth/token/");
    let token = format!(
        "target.token={{\"url\":\"{url}\",\"client_id\":\"bench\",\"secret_env\":\"TOKEN_SECRET\",\"scope\":\"llm.read\"}}"
    );
    let args = [
        "run",
        &server.url,
        "--set",
        &token,
        "--rate",
        "30/s",
        "--for",
        "9s",
        "--osl",
        "1",
        "--natural-length",
    ];
    let more = ["--scrape", "off", "-q", "-o", &run];
    let ended = plimsoll_with(&[&args[..], &more].concat(), &[("TOKEN_SECRET", SECRET)]);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    let rows = rows(&run);
    assert!(rows.len() > 150, "{}", rows.len());
    let refused = rows.iter().filter(|row| row.answer.status == Some(401)).count();
    // A few refusals are allowed, because a stall may exceed the last fifth of a key's lifetime.
    assert!(refused * 10 < rows.len(), "{refused} of {} refused", rows.len());
    let asked = asked.lock().expect("held");
    assert!(asked.len() >= 2 && asked.len() < 8, "{} tokens were asked for", asked.len());
    for form in asked.iter() {
        assert!(form.starts_with("POST /oauth/token/ HTTP/1.1"), "{form}");
        assert!(form.ends_with("grant_type=client%5Fcredentials&scope=llm%2Eread&client_id=bench&client_secret=s3cr3t%2F%26%3D%2B%20value"), "{form}");
    }
    nowhere(&ended, folder.path(), &[SECRET, "tok-0001-b6", "tok-0002-b6"]);
}

#[test]
fn a_token_server_that_gives_none_ends_the_command_before_the_load() {
    let tokens = Server::start(|_, socket| {
        let body = r#"{"error":"invalid_client","error_description":"no such secret: hunter2-9c"}"#;
        reply(socket, "401 Unauthorized", "content-type: application/json\r\n", body);
    });
    let token = format!(
        "target.token={{\"url\":\"{}\",\"client_id\":\"bench\",\"secret_env\":\"TOKEN_SECRET\"}}",
        tokens.url
    );
    let (_folder, run) = run_folder();
    let args = ["run", "http://127.0.0.1:9/v1", "--set", &token, "--rate", "5/s", "-o", &run];
    let ended = plimsoll_with(&args, &[("TOKEN_SECRET", "hunter2-9c")]);
    assert_eq!(ended.code, 5, "{}", ended.stderr);
    assert!(ended.stderr.contains("invalid_client: no such secret: ***"), "{}", ended.stderr);
    assert!(!Path::new(&run).exists());
    let twice =
        plimsoll_with(&[&args[..], &["--key-env", "TOKEN_SECRET"]].concat(), &[("TOKEN_SECRET", "x")]);
    assert!(twice.code == 2 && twice.stderr.contains("a token is the key"), "{}", twice.stderr);
}
