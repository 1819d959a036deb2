//! What the benches share: the engine and the client as processes of their own, what they cost, and plain tables.
//!
//! The binary is measured from the outside, as its user starts it, because that is what the bars speak of: CPU time is
//! the kernel's account of the whole process (`getrusage` of children that were waited for), memory is the kernel's
//! `VmHWM` and `VmRSS`. A driver called in process lost: the bench's own work would be inside every figure.

#![allow(dead_code, reason = "each bench speaks some of these words")]

use std::fmt::Display;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitCode, Stdio};
use std::time::Duration;

use nix::sys::resource::{UsageWho, getrusage};
use nix::time::{ClockId, clock_gettime};
use plimsoll_measure::findings::{Findings, LevelSummary};
use plimsoll_model::{Level, Manifest};
use plimsoll_server::truth;
use tempfile::TempDir;

/// The binary, built in the profile of the bench; or the one that `PLIMSOLL_BINARY` names, such as a packaged one.
pub fn plimsoll() -> PathBuf {
    std::env::var_os("PLIMSOLL_BINARY").map_or_else(|| env!("CARGO_BIN_EXE_plimsoll").into(), PathBuf::from)
}

/// How often a running client's memory is read.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// What goes wrong in a bench ends it with one line.
pub type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Runs `work` with the words of the command line, or ends at once when nobody asked for a bench: cargo calls benches
/// without `--bench` when it tests, and test runners call them with `--list`.
pub fn main(work: impl FnOnce(&Args) -> Result<()>) -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let is = |flag: &str| words.iter().any(|word| word == flag);
    if !is("--bench") || is("--test") || is("--list") {
        return ExitCode::SUCCESS;
    }
    let args = Args(words.into_iter().filter(|word| !word.starts_with("--")).collect());
    say(machine());
    match work(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(format!("bench failed: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// Words after `--` on the command line: `key=value`, or numbers.
pub struct Args(Vec<String>);

impl Args {
    /// The value of `key=…`.
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('='))
    }

    /// The number of `key=…`, or `default`.
    pub fn number(&self, key: &str, default: f64) -> Result<f64> {
        self.get(key)
            .map_or(Ok(default), |text| text.parse().map_err(|e| format!("{key}={text}: {e}").into()))
    }

    /// The numbers of `key=a,b,…`, or `default`.
    pub fn numbers(&self, key: &str, default: &[u64]) -> Result<Vec<u64>> {
        let Some(text) = self.get(key) else { return Ok(default.to_vec()) };
        text.split(',').map(|n| n.parse().map_err(|e| format!("{key}={text}: {e}").into())).collect()
    }
}

/// A line on the screen.
#[expect(clippy::print_stdout, reason = "a bench prints")]
pub fn say(line: impl Display) {
    println!("{line}");
}

/// A figure beside its bar.
pub fn bar(name: &str, figure: impl Display, bar: &str, is_met: bool) {
    say(format!("{name:<42} {figure:>14}   bar {bar:<18} {}", if is_met { "met" } else { "MISSED" }));
}

/// What the figures were made on: cores and how busy they are already.
fn machine() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load = load.split(' ').take(3).collect::<Vec<_>>().join(" ");
    format!("{cores} cores, {}, load average {load}", std::env::consts::OS)
}

/// CLOCK_MONOTONIC, ns: the axis of the truth log and of a run's clock anchor.
pub fn monotonic_ns() -> i64 {
    clock_gettime(ClockId::CLOCK_MONOTONIC).map_or(0, |t| t.tv_sec() * 1_000_000_000 + t.tv_nsec())
}

/// CPU time of this process, s.
pub fn own_cpu_s() -> Result<f64> {
    cpu_s(UsageWho::RUSAGE_SELF)
}

/// User and system time of the children that have been waited for, s.
pub fn children_cpu_s() -> Result<f64> {
    cpu_s(UsageWho::RUSAGE_CHILDREN)
}

fn cpu_s(who: UsageWho) -> Result<f64> {
    let usage = getrusage(who)?;
    let seconds = |t: nix::sys::time::TimeVal| t.tv_sec() as f64 + t.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// Waits until `wake_ns` on the monotonic clock.
pub fn wait_until(wake_ns: i64) {
    std::thread::sleep(Duration::from_nanos((wake_ns - monotonic_ns()).max(0) as u64));
}

/// A line of `/proc/PID/status` in KiB; `None` once the process has ended.
pub fn status_kib(pid: u32, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace().nth(1)?.parse().ok()
}

// ---------------------------------------------------------------------------------------------- engine

/// The embedded engine in a process of its own; it ends with this value.
pub struct Engine {
    child: Child,
    stdin: Option<ChildStdin>,
    /// Where it serves.
    pub url: String,
    log: PathBuf,
    _folder: TempDir,
}

impl Engine {
    /// Starts a profile (a name, or the text of one as JSON) on a free port, with a truth log.
    pub fn start(profile: &str) -> Result<Engine> {
        Engine::start_with(profile, &[])
    }

    /// The same with further words, such as `--replicas 3`.
    pub fn start_with(profile: &str, words: &[&str]) -> Result<Engine> {
        let folder = tempfile::tempdir()?;
        let log = folder.path().join("truth.jsonl");
        let file = folder.path().join("profile.json");
        let mut named = profile.to_owned();
        if profile.starts_with('{') {
            std::fs::write(&file, profile)?;
            named = file.display().to_string();
        }
        let mut child = Command::new(plimsoll())
            .args(["engine", "--listen", "127.0.0.1:0", "--until-stdin-ends", "--profile", &named])
            .args(["--model", "bench", "--truth-log"])
            .arg(&log)
            .args(words)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()?;
        let stdin = child.stdin.take();
        let mut url = String::new();
        BufReader::new(child.stdout.take().ok_or("no stdout")?).read_line(&mut url)?;
        if !url.contains("://") {
            let _ = child.kill();
            let _ = child.wait();
            return Err(format!("the engine did not start with {named}").into());
        }
        Ok(Engine { child, stdin, url: url.trim().to_owned(), log, _folder: folder })
    }

    /// The engine's process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// A figure from its metrics page.
    pub fn metric(&self, name: &str) -> Result<f64> {
        let address = self.url.trim_start_matches("http://").trim_end_matches("/v1");
        let mut socket = TcpStream::connect(address)?;
        socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: bench\r\nconnection: close\r\n\r\n")?;
        let mut page = String::new();
        socket.read_to_string(&mut page)?;
        let line =
            page.lines().find(|line| line.starts_with(name)).ok_or(format!("no {name} on the page"))?;
        Ok(line.rsplit(' ').next().unwrap_or_default().parse()?)
    }

    /// Stops it and hands over what it knows.
    pub fn stop(mut self) -> Result<Vec<truth::TruthRecord>> {
        drop(self.stdin.take());
        self.child.wait()?;
        let text = std::fs::read_to_string(&self.log)?;
        let (_, records) = truth::read(&text).map_err(|(line, e)| format!("truth log, line {line}: {e}"))?;
        Ok(records)
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

// ---------------------------------------------------------------------------------------------- client

/// The client in a process of its own.
pub struct Client {
    child: Child,
    folder: TempDir,
    /// When it was started, CLOCK_MONOTONIC ns.
    pub spawned_ns: i64,
    cpu_before_s: f64,
    peak_kib: u64,
}

/// What a client left behind.
pub struct Ran {
    /// The run folder; it goes with this value.
    pub folder: TempDir,
    /// `run.json`, findings included.
    pub manifest: Manifest,
    /// Its findings.
    pub findings: Findings,
    /// CPU time of the whole process, from exec to exit, s.
    pub cpu_s: f64,
    /// Largest resident size seen, KiB.
    pub peak_kib: u64,
    /// When it was started, CLOCK_MONOTONIC ns.
    pub spawned_ns: i64,
}

impl Client {
    /// Starts `plimsoll run URL ARGS`.
    pub fn start(url: &str, args: &[&str]) -> Result<Client> {
        Client::start_as("run", url, args)
    }

    /// Starts `plimsoll COMMAND URL ARGS`.
    pub fn start_as(command: &str, url: &str, args: &[&str]) -> Result<Client> {
        Client::spawn(&[&[command, url, "--model", "bench"], args].concat())
    }

    /// Starts `plimsoll WORDS`, which write a run.
    pub fn spawn(words: &[&str]) -> Result<Client> {
        let folder = tempfile::tempdir()?;
        let cpu_before_s = children_cpu_s()?;
        let out = std::fs::File::create(folder.path().join("stdout"))?;
        let error = std::fs::File::create(folder.path().join("stderr"))?;
        let spawned_ns = monotonic_ns();
        let child = Command::new(plimsoll())
            .args(words)
            .args(["--quiet", "--format", "json", "--out"])
            .arg(folder.path().join("run"))
            .stdin(Stdio::null())
            .stdout(out)
            .stderr(error)
            .spawn()?;
        Ok(Client { child, folder, spawned_ns, cpu_before_s, peak_kib: 0 })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Waits for its end. No other child may be waited for in between: the kernel's account is one sum.
    pub fn end(mut self) -> Result<Ran> {
        let status = loop {
            self.peak_kib = self.peak_kib.max(status_kib(self.child.id(), "VmHWM").unwrap_or(0));
            if let Some(status) = self.child.try_wait()? {
                break status;
            }
            std::thread::sleep(LOOK_EVERY);
        };
        let text = std::fs::read_to_string(self.folder.path().join("stdout"))?;
        if text.is_empty() {
            let said = std::fs::read_to_string(self.folder.path().join("stderr"))?;
            return Err(format!("the client ended with {status}: {said}").into());
        }
        let mut answer: serde_json::Value = serde_json::from_str(&text)?;
        let manifest: Manifest = serde_json::from_value(answer["data"].take())?;
        let findings = serde_json::from_value(manifest.findings.clone().ok_or("no findings")?)?;
        let cpu_s = children_cpu_s()? - self.cpu_before_s;
        let Client { folder, spawned_ns, peak_kib, .. } = self;
        Ok(Ran { folder, manifest, findings, cpu_s, peak_kib, spawned_ns })
    }
}

impl Ran {
    /// `plimsoll run URL ARGS` to its end.
    pub fn run(url: &str, args: &[&str]) -> Result<Ran> {
        Client::start(url, args)?.end()
    }

    /// Its run folder.
    pub fn dir(&self) -> PathBuf {
        self.folder.path().join("run")
    }

    /// Its only level.
    pub fn level(&self) -> Result<&Level> {
        self.manifest.levels.first().ok_or_else(|| "no level".into())
    }

    /// What was found about it.
    pub fn summary(&self) -> Result<&LevelSummary> {
        Ok(&self.findings.levels.first().ok_or("no level found")?.summary)
    }

    /// CPU time of the load-generating threads alone during the level, s.
    pub fn workers_cpu_s(&self) -> Result<f64> {
        Ok(self.level()?.generator.cpu_ns.ok_or("no CPU time")? as f64 / 1e9)
    }

    /// How its verdict reads, in a line.
    pub fn verdict(&self) -> String {
        let validity = &self.findings.validity;
        let reasons = validity.reasons.iter().map(|reason| format!("; {} ({})", reason.check, reason.figure));
        format!("{:?}{}", validity.verdict, reasons.collect::<String>())
    }
}

// ---------------------------------------------------------------------------------------------- figures

/// The order statistic `x[⌈np⌉]`; the slice is sorted on the way. NaN of nothing.
pub fn quantile(values: &mut [i64], p: f64) -> f64 {
    if values.is_empty() {
        return f64::NAN;
    }
    let rank = ((values.len() as f64 * p).ceil() as usize).clamp(1, values.len());
    *values.select_nth_unstable(rank - 1).1 as f64
}

/// Several order statistics in one line, in units of `unit_ns`.
pub fn spread(values: &mut [i64], unit_ns: f64, unit: &str) -> String {
    let parts = [("p1", 0.01), ("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)];
    let parts = parts.map(|(name, p)| format!("{name} {:.1}", quantile(values, p) / unit_ns));
    format!("{} {unit}", parts.join("  "))
}

/// Is the file there and meant to be run?
pub fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}
