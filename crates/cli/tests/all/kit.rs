//! The small language of these tests: an engine on a free port, the binary run to its end, a server that misbehaves.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Output, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;

pub const PLIMSOLL: &str = env!("CARGO_BIN_EXE_plimsoll");

/// The data of a JSON answer; all of it where it has no head.
pub fn data(mut answer: Value) -> Value {
    match answer.get("command").is_some() {
        true => answer["data"].take(),
        false => answer,
    }
}

/// The result of a command: exit code, stdout and stderr.
pub struct Ended {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl Ended {
    fn of(output: Output) -> Ended {
        Ended {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8(output.stdout).expect("stdout is text"),
            stderr: String::from_utf8(output.stderr).expect("stderr is text"),
        }
    }

    /// The data of the JSON answer on stdout; all of it where it has no head.
    pub fn json(&self) -> Value {
        data(self.answer())
    }

    /// The JSON answer on stdout, with its head.
    pub fn answer(&self) -> Value {
        serde_json::from_str(&self.stdout)
            .unwrap_or_else(|e| panic!("stdout is not JSON ({e}): {}\nstderr: {}", self.stdout, self.stderr))
    }

    /// Returns stdout as one line, independent of the folding of sentences.
    pub fn words(&self) -> String {
        self.stdout.split_whitespace().collect::<Vec<_>>().join(" ")
    }
}

/// Runs the binary to its end.
pub fn plimsoll(args: &[&str]) -> Ended {
    plimsoll_with(args, &[])
}

/// Runs the binary to its end, with environment variables.
pub fn plimsoll_with(args: &[&str], env: &[(&str, &str)]) -> Ended {
    let mut command = Command::new(PLIMSOLL);
    command.args(args).stdin(Stdio::null());
    for (name, value) in env {
        command.env(name, value);
    }
    Ended::of(command.output().expect("the binary starts"))
}

/// Runs the binary to its end in a folder.
pub fn plimsoll_in(folder: &Path, args: &[&str]) -> Ended {
    let mut command = Command::new(PLIMSOLL);
    command.args(args).current_dir(folder).stdin(Stdio::null());
    Ended::of(command.output().expect("the binary starts"))
}

/// Starts the binary and captures its output.
pub fn begun(command: &mut Command) -> Child {
    let command = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().expect("the binary starts")
}

/// Waits for the end of a started command.
pub fn ended(child: Child) -> Ended {
    Ended::of(child.wait_with_output().expect("ended"))
}

/// A temporary folder and the path of a run in it that does not exist yet.
pub fn run_folder() -> (TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path().join("run").to_str().expect("utf-8").to_string();
    (folder, run)
}

/// Returns whether the machine left the generator undisturbed in this level, by the run's own figures.
/// If not, the measured times describe the machine and are no evidence against the product.
#[expect(clippy::print_stderr, reason = "what a test leaves out it says")]
pub fn undisturbed(level: &Value) -> bool {
    let generator = &level["summary"]["generator"];
    let waited = generator["run_queue_share_max"].as_f64().unwrap_or(0.0);
    let late_ns = generator["lag"]["max_ns"].as_i64().unwrap_or(0);
    let alone = waited < 0.02 && late_ns < 20_000_000;
    if !alone {
        eprintln!(
            "not judged, the machine was busy: {:.0} % of the time waiting for a CPU, {late_ns} ns late",
            waited * 100.0
        );
    }
    alone
}

/// The embedded engine in a separate process, which ends on drop.
pub struct Engine {
    child: Child,
    stdin: Option<ChildStdin>,
    pub url: String,
}

impl Engine {
    /// Ends it as its parent's end would, so that it writes what it has to write.
    pub fn stop(mut self) {
        self.stdin.take();
        let _ = self.child.wait();
    }

    /// Starts a profile on a free port.
    pub fn start(profile: &str) -> Engine {
        Engine::start_with(profile, &[])
    }

    /// Starts a profile with further flags.
    pub fn start_with(profile: &str, more: &[&str]) -> Engine {
        Engine::serve(&[&["--profile", profile], more].concat())
    }

    /// Starts the engine with exactly these flags.
    pub fn serve(flags: &[&str]) -> Engine {
        Engine::serve_at("127.0.0.1:0", flags)
    }

    /// Starts the engine at this address; otherwise like [`Engine::serve`].
    pub fn serve_at(address: &str, flags: &[&str]) -> Engine {
        let mut child = Command::new(PLIMSOLL)
            .args(["engine", "--listen", address, "--until-stdin-ends"])
            .args(flags)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the engine starts");
        let stdin = child.stdin.take().expect("piped");
        let mut url = String::new();
        BufReader::new(child.stdout.take().expect("piped"))
            .read_line(&mut url)
            .expect("the first line is the URL");
        assert!(url.contains("://127.0.0.1:"), "the engine said {url:?}");
        Engine { child, stdin: Some(stdin), url: url.trim().to_string() }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A server that answers each request (once its head and body are in) by handing the socket to `answer`.
pub struct Server {
    pub url: String,
}

impl Server {
    /// Starts it on a free port; its threads die with the test process.
    pub fn start(answer: impl Fn(&str, &mut TcpStream) + Send + Sync + 'static) -> Server {
        Server::reading(move |first, _, socket| answer(first, socket))
    }

    /// Starts a server whose answer depends on the request's body.
    pub fn reading(answer: impl Fn(&str, &[u8], &mut TcpStream) + Send + Sync + 'static) -> Server {
        Server::whole(move |head, body, socket| answer(head.lines().next().unwrap_or_default(), body, socket))
    }

    /// Starts a server whose answer depends on the whole request, including all header lines.
    pub fn whole(answer: impl Fn(&str, &[u8], &mut TcpStream) + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
        let url = format!("http://{}/v1", listener.local_addr().expect("bound"));
        let answer = Arc::new(answer);
        thread::spawn(move || {
            for socket in listener.incoming().flatten() {
                let answer = Arc::clone(&answer);
                thread::spawn(move || serve(socket, &*answer));
            }
        });
        Server { url }
    }
}

fn serve(socket: TcpStream, answer: &dyn Fn(&str, &[u8], &mut TcpStream)) {
    let Ok(mut writer) = socket.try_clone() else { return };
    let mut reader = BufReader::new(socket);
    loop {
        let (mut head, mut length) = (String::new(), 0usize);
        if reader.read_line(&mut head).unwrap_or(0) == 0 {
            return;
        }
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            if let Some(value) = line.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap_or(0);
            }
            if line == "\r\n" {
                break;
            }
            head += &line;
        }
        let mut body = vec![0; length];
        if reader.read_exact(&mut body).is_err() {
            return;
        }
        answer(head.trim(), &body, &mut writer);
    }
}

/// Writes a whole HTTP answer.
pub fn reply(socket: &mut TcpStream, status: &str, headers: &str, body: &str) {
    let _ = write!(socket, "HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len());
}

/// Begins a streamed answer; its end is the end of the connection.
pub fn stream_head(socket: &mut TcpStream) {
    let _ = write!(socket, "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n");
}

/// One chat chunk with this text.
pub fn chunk(text: &str) -> String {
    format!("data: {{\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}}}}]}}\n\n")
}

/// Every file of a folder as bytes, for searching.
pub fn files(folder: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder exists").flatten() {
        if entry.path().is_file() {
            let name = entry.file_name().to_string_lossy().into_owned();
            found.push((name, std::fs::read(entry.path()).expect("readable")));
        }
    }
    found
}

/// Waits until the condition `is_so` is true.
#[expect(clippy::disallowed_methods, reason = "the servers of these tests live in real time")]
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < Duration::from_secs(120), "never: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}
