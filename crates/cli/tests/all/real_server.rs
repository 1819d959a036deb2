//! The whole path against a server that is not ours: llama.cpp's HTTP server with a tiny random model.
//!
//! `scripts/real-server setup` installs it (`.ci/run` does). Where it is not installed the test prints why it is
//! skipped and passes; nothing else in it is allowed to be lenient.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use plimsoll_analysis::server_side::{ServerSide, Signal};
use plimsoll_model::{At, Tokens};
use serde_json::Value;

struct Server {
    child: Child,
    port: u16,
}

impl Drop for Server {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn engines() -> PathBuf {
    std::env::var_os("PLIMSOLL_ENGINES").map_or_else(|| root().join(".engines"), PathBuf::from)
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("bound").port()
}

/// Does it answer that it is well? It listens before its model is loaded, and refuses with 503 until then.
fn is_ready(port: u16) -> bool {
    let Ok(mut socket) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut answer = String::new();
    socket.set_read_timeout(Some(Duration::from_secs(10))).is_ok()
        && socket.write_all(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").is_ok()
        && socket.read_to_string(&mut answer).is_ok()
        && answer.starts_with("HTTP/1.1 200")
}

/// Starts llama.cpp with four slots, or says why not.
fn start() -> Result<Server, String> {
    let venv = engines().join("venv-llama/.done");
    if !venv.exists() {
        return Err(format!(
            "llama.cpp is not installed ({} is missing); scripts/real-server setup",
            venv.display()
        ));
    }
    let port = free_port();
    let mut command = Command::new(root().join("scripts/real-server"));
    command.args(["run", &port.to_string()]).env("PLIMSOLL_ENGINES", engines()).process_group(0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().map_err(|e| e.to_string())?;
    let mut server = Server { child, port };
    // The server answers within half a second on an idle machine; a loaded one is given a minute.
    for _ in 0..600 {
        if is_ready(port) {
            return Ok(server);
        }
        if let Ok(Some(status)) = server.child.try_wait() {
            return Err(format!("llama.cpp ended at once: {status}"));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("llama.cpp is installed and did not come up within a minute");
}

fn plimsoll(args: &[&str]) -> (i32, Value, String) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_plimsoll"))
        .args(args)
        .args(["--format", "json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdout = String::new();
    child.stdout.take().expect("piped").read_to_string(&mut stdout).expect("utf-8");
    let mut stderr = String::new();
    child.stderr.take().expect("piped").read_to_string(&mut stderr).expect("utf-8");
    let code = child.wait().expect("ends").code().expect("not killed");
    let json = serde_json::from_str(&stdout).unwrap_or(Value::Null);
    (code, json, stderr)
}

#[test]
fn llama_cpp_is_measured_from_end_to_end() {
    let server = match start() {
        Ok(server) => server,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let url = format!("http://127.0.0.1:{}/v1", server.port);
    let (code, json, stderr) = plimsoll(&[
        "run",
        &url,
        "--rate",
        "5/s",
        "--for",
        "8s",
        "--isl",
        "48",
        "--osl",
        "16",
        "--seed",
        "3",
        "-o",
        run.to_str().expect("utf-8"),
    ]);
    // A loaded machine may make the generator late (4); what the server did is judged strictly either way.
    assert!(code == 0 || code == 4, "{stderr}");
    let level = &json["findings"]["levels"][0]["summary"];
    let arrivals = level["counts"]["requests"].as_u64().expect("requests are counted");
    assert!((20..=64).contains(&arrivals), "5/s for 8 s gave {arrivals} requests");
    assert_eq!(level["counts"]["finished"].as_u64(), Some(arrivals), "{level}");
    assert!(run.join("requests.parquet").exists());
    assert_eq!(json["target"]["facts"]["model"], "tiny");
}

/// Its own page against what the client knows: every request finished, so each token is on both sides.
#[test]
fn what_llama_cpp_says_of_itself_is_what_the_client_got() {
    let server = match start() {
        Ok(server) => server,
        Err(why) => {
            eprintln!("SKIPPED: {why}");
            return;
        }
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run");
    let path = run.to_str().expect("utf-8");
    let url = format!("http://127.0.0.1:{}/v1", server.port);
    // Eight at a time on four slots. Its HTTP library closes a connection after so many requests, whatever is on its way.
    let load = ["--concurrency", "8", "--for", "5s", "--isl", "48", "--osl", "64", "--connections", "fresh"];
    let args = [&["run", &url, "-o", path, "--scrape-every", "100ms"][..], &load].concat();
    let (code, json, stderr) = plimsoll(&args);
    assert!(code == 0 || code == 4, "{stderr}");
    let found = &json["findings"]["levels"][0]["summary"]["counts"];
    assert_eq!(found["finished"], found["requests"], "{found}");

    let read = plimsoll_store::open(&run).expect("a run");
    let level = read.manifest.levels.iter().find(|level| level.purpose != "warmup").expect("a level");
    let own = || read.attempts.iter().filter(|attempt| attempt.level == level.id);
    let sum = |of: fn(&Tokens) -> Option<u32>| -> f64 {
        own().map(|attempt| f64::from(of(&attempt.answer.tokens).expect("llama.cpp reports usage"))).sum()
    };
    let said = ServerSide::read(&read.samples);
    let gained =
        |signal| said.gained(signal, level.start, At::MAX).unwrap_or_else(|| panic!("no {signal:?}")).value;
    assert_eq!(gained(Signal::PromptTokens), sum(|tokens| tokens.prompt), "cached ones included");
    assert_eq!(gained(Signal::OutputTokens), sum(|tokens| tokens.output));
    assert_eq!(gained(Signal::CachedTokens), sum(|tokens| tokens.cached.or(Some(0))));

    let told = &json["findings"]["server"]["levels"][0];
    assert_eq!(told["running_limit"].as_f64(), Some(4.0), "{told}");
    // As often right as somebody looked: in five seconds some look found all slots taken, and none found a fifth.
    assert_eq!(told["running_max"].as_f64(), Some(4.0), "{told}");
    let waiting = told["waiting_max"].as_f64().unwrap_or_else(|| panic!("{told}"));
    assert!((1.0..=4.0).contains(&waiting), "{told}");
    assert_eq!(told["kv_usage"], Value::Null, "this server no longer tells, so it is unknown: {told}");
}
