//! Independent servers, installed and started by `scripts/real-server`.
//!
//! The tests of a server that is not installed are skipped, or fail if parts are required. A server that is installed and
//! does not start fails them, because a permanently skipped test proves nothing.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server that runs; it ends, with all that it started, with this value.
pub struct Real {
    child: Child,
    /// Port of its HTTP API.
    pub port: u16,
}

impl Drop for Real {
    fn drop(&mut self) {
        let group = nix::unistd::Pid::from_raw(self.child.id() as i32);
        let _ = nix::sys::signal::killpg(group, nix::sys::signal::Signal::SIGKILL);
        let _ = self.child.wait();
    }
}

impl Real {
    /// Returns the base URL of its OpenAI API.
    pub fn v1(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }
}

pub use plimsoll_lab::parts::or_skipped;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The installed file of this name, or why there is none; `setup` is the word that installs it.
pub fn installed(file: &str, setup: &str) -> Result<PathBuf, String> {
    let engines = std::env::var_os("PLIMSOLL_ENGINES").map_or_else(|| root().join(".engines"), PathBuf::from);
    let path = engines.join(file);
    match path.exists() {
        true => Ok(path),
        false => Err(format!("{} is missing; scripts/real-server setup {setup}", path.display())),
    }
}

/// llama.cpp's HTTP server with four slots and a tiny random model.
pub fn llama() -> Result<Real, String> {
    llama_at(free_port())
}

/// A port that is free now.
pub fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("loopback has a free port");
    listener.local_addr().expect("bound").port()
}

/// The Python that `scripts/real-server setup` installed with this part; `None` = it is not there, and its tests are skipped.
pub fn python(part: &str) -> Option<PathBuf> {
    let done = or_skipped(installed(&format!("venv-{part}/.done"), part))?;
    Some(done.with_file_name("bin/python"))
}

/// Starts llama.cpp at a known port, for a server that was stopped and is started again.
pub fn llama_at(port: u16) -> Result<Real, String> {
    installed("venv-llama/.done", "llama")?;
    // It listens before its model is loaded, and refuses with 503 until then.
    Ok(start(&[], port, "/health"))
}

/// NVIDIA's Triton with models whose times are known; its metrics are two ports above.
pub fn triton() -> Result<Real, String> {
    installed("triton-backends/python/triton_python_backend_stub", "triton")?;
    // Three ports in a row that are free now: HTTP, gRPC, metrics. Below the range that outgoing connections use.
    let bind = |port: u16| TcpListener::bind(("127.0.0.1", port));
    let from = 21_000 + (std::process::id() % 900) as u16 * 10;
    let port = (from..32_000)
        .step_by(10)
        .find(|port| (0..3).all(|offset| bind(port + offset).is_ok()))
        .expect("loopback has three free ports");
    let real = start(&["triton"], port, "/v2/health/ready");
    // It is ready before its metrics' port listens.
    assert!(
        (0..600).any(|_| is_well(port + 2, "/metrics") || {
            std::thread::sleep(Duration::from_millis(100));
            false
        }),
        "triton's metrics did not come up within a minute"
    );
    Ok(real)
}

/// S3 by moto, and the id and the secret that it takes; its bucket is `load`. `keys`: a file that is not there yet.
#[cfg(feature = "object-store")]
pub fn moto(keys: &Path) -> Result<(Real, [String; 2]), String> {
    installed("venv-moto/.done", "moto")?;
    let port = free_port();
    let mut written = None;
    let real = start_until(&["moto"], port, &[("KEYS", keys)], || {
        written = std::fs::read_to_string(keys).ok();
        written.is_some()
    });
    let text = written.unwrap_or_default();
    let mut lines = text.lines().map(str::to_owned);
    Ok((real, [lines.next().expect("an id"), lines.next().expect("a secret")]))
}

/// Starts an installed server and waits until its health endpoint is well: half a second on an idle machine, a minute on a busy one.
fn start(which: &[&str], port: u16, health: &str) -> Real {
    start_until(which, port, &[], || is_well(port, health))
}

/// Starts a server with these variables and waits until `is_ready` is true.
fn start_until(which: &[&str], port: u16, env: &[(&str, &Path)], mut is_ready: impl FnMut() -> bool) -> Real {
    let mut command = Command::new(root().join("scripts/real-server"));
    command.envs(env.iter().copied()).arg("run").args(which).arg(port.to_string()).process_group(0);
    let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the script starts");
    let mut real = Real { child, port };
    for _ in 0..600 {
        if is_ready() {
            return real;
        }
        if let Ok(Some(status)) = real.child.try_wait() {
            panic!("{which:?} is installed and ended at once: {status}");
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    panic!("{which:?} is installed and did not come up within a minute");
}

/// Returns whether the server's health endpoint answers with 200.
fn is_well(port: u16, page: &str) -> bool {
    get(port, page).is_some_and(|answer| answer.starts_with("HTTP/1.1 200"))
}

/// The whole answer to a GET, its head included.
pub fn get(port: u16, path: &str) -> Option<String> {
    let mut socket = TcpStream::connect(("127.0.0.1", port)).ok()?;
    socket.set_read_timeout(Some(Duration::from_secs(10))).ok()?;
    write!(socket, "GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").ok()?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer).ok()?;
    Some(answer)
}
