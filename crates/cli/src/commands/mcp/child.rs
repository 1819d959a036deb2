//! A tool's command as a child process: this binary, its JSON answer on stdout, its progress on stderr.
//!
//! The work could run inside the server, but then a print to stdout would break the protocol, and a crash would end the server. The child
//! stops its load if its stdin ends, so that it never outlives the server.

use std::process::Stdio;
use std::time::Duration;

use plimsoll_client::Clock;
use plimsoll_report::figure;
use rmcp::RoleServer;
use rmcp::model::ProgressNotificationParam;
use rmcp::service::RequestContext;
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{MissedTickBehavior, interval};

use super::caps::{LoadAmount, LoadCaps};
use crate::screen::STOP_WITH_STDIN;

/// Interval between two checks of the limits.
const LOOK: Duration = Duration::from_secs(1);

/// Longest time of a child after the signal to stop, s.
const STOPPING_S: f64 = 30.0;

/// Time beyond the cap for work without load: calibration, the last answers, the report, s.
const BESIDE_LOAD_S: f64 = 60.0;

/// Longest time of a command that sends no load, s.
const NO_LOAD_S: f64 = 600.0;

/// Lines of stderr that are kept.
const LINES: usize = 20;

pub struct ChildEnd {
    pub stdout: Vec<u8>,
    /// Its last messages.
    pub messages: Vec<String>,
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Amounts that the load used.
    pub used: LoadAmount,
    /// Reason for which it was stopped.
    pub stopped: Option<String>,
}

/// Runs this binary to its end. A load is stopped at its caps, and every command if the client cancels the call.
///
/// # Errors
/// Fails if the child cannot be started.
pub async fn run(
    words: &[String],
    caps: Option<&LoadCaps>,
    context: &RequestContext<RoleServer>,
) -> Result<ChildEnd, String> {
    let started = |e: std::io::Error| format!("the command cannot be started: {e}");
    let mut child = Command::new(std::env::current_exe().map_err(started)?)
        .args(words)
        .env(STOP_WITH_STDIN, "1")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(started)?;
    let (Some(mut out), Some(err)) = (child.stdout.take(), child.stderr.take()) else {
        return Err("the command has no output".to_owned());
    };
    let stdout = tokio::spawn(async move {
        let mut text = Vec::new();
        let _ = out.read_to_end(&mut text).await;
        text
    });
    let most_s = caps.map_or(NO_LOAD_S, |caps| caps.left().seconds + BESIDE_LOAD_S);
    let mut running =
        ChildState { caps, most_s, clock: Clock::start(), used: LoadAmount::default(), stopped: None };
    let (mut lines, mut looks) = (BufReader::new(err).lines(), interval(LOOK));
    looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut messages = Vec::new();
    loop {
        tokio::select! {
            line = lines.next_line() => match line {
                Ok(Some(line)) => running.see(line, &mut messages, context).await,
                _ => break,
            },
            () = context.ct.cancelled(), if running.stopped.is_none() => running.stop("the client cancelled the call"),
            _ = looks.tick() => {}
        }
        running.look(&mut child);
    }
    let status = child.wait().await.map_err(|e| format!("the command was lost: {e}"))?;
    let stdout = stdout.await.unwrap_or_default();
    running.used.seconds = running.elapsed_s();
    let ChildState { used, stopped, .. } = running;
    Ok(ChildEnd {
        stdout,
        messages,
        code: status.code().unwrap_or(-1),
        used,
        stopped: stopped.map(|(why, _)| why),
    })
}

/// A child that runs, and its limits.
struct ChildState<'a> {
    caps: Option<&'a LoadCaps>,
    most_s: f64,
    clock: Clock,
    used: LoadAmount,
    /// Reason and time of the stop.
    stopped: Option<(String, f64)>,
}

impl ChildState<'_> {
    fn elapsed_s(&self) -> f64 {
        self.clock.now().0 as f64 / 1e9
    }

    fn stop(&mut self, why: &str) {
        let at_s = self.elapsed_s();
        self.stopped.get_or_insert_with(|| (why.to_owned(), at_s));
    }

    /// Reads a line of progress: counts the used amounts, and notifies the client.
    async fn see(&mut self, line: String, messages: &mut Vec<String>, context: &RequestContext<RoleServer>) {
        let line: Value = serde_json::from_str(&line).unwrap_or(Value::String(line));
        let message = line["message"].as_str().or(line.as_str());
        if let Some(message) = message {
            messages.push(message.to_owned());
            messages.drain(..messages.len().saturating_sub(LINES));
            return;
        }
        let count = |key: &str| line["figures"][key].as_u64().unwrap_or(0);
        if let (Some(caps), true) = (self.caps, line["figures"].is_object()) {
            let (requests, tokens) = (count("requests"), (count("tokens_in"), count("tokens_out")));
            let seconds = self.elapsed_s();
            let cost = caps.cost((tokens.0 as f64, tokens.1 as f64), seconds);
            self.used = LoadAmount { requests, tokens: tokens.0 + tokens.1, seconds, cost };
        }
        let Some(token) = context.meta.get_progress_token() else { return };
        let elapsed_s = line["elapsed_s"].as_f64().unwrap_or_default();
        let progress = ProgressNotificationParam::new(token, elapsed_s).with_message(summary(&line));
        let progress = match line["eta_s"].as_f64() {
            Some(left_s) => progress.with_total(elapsed_s + left_s),
            None => progress,
        };
        // A client that is gone ends the call by other means.
        let _ = context.peer.notify_progress(progress).await;
    }

    /// Stops the child at its limits: first by the end of its stdin, then by a kill.
    fn look(&mut self, child: &mut Child) {
        let elapsed_s = self.elapsed_s();
        if let Some(flag) = self.caps.and_then(|caps| caps.exceeded(&self.used)) {
            self.stop(&format!("the load reached {flag}"));
        }
        if elapsed_s > self.most_s {
            self.stop(if self.caps.is_some() {
                "the load reached --max-minutes"
            } else {
                "the command took 10 minutes"
            });
        }
        if let Some((_, at_s)) = &self.stopped {
            drop(child.stdin.take());
            if elapsed_s - at_s > STOPPING_S {
                let _ = child.start_kill();
            }
        }
    }
}

/// Returns a line of progress for the user.
fn summary(line: &Value) -> String {
    let mut parts = vec![line["phase"].as_str().unwrap_or("starting").to_owned()];
    let figures = &line["figures"];
    if let Some(requests) = figures["requests"].as_u64() {
        let failed = figures["failed"].as_u64().unwrap_or(0);
        parts.push(format!("{}, {} failed", figure::counted(requests, "request"), figure::count(failed)));
    }
    if let (Some(metric), Some(p99_s)) = (figures["metric"].as_str(), figures["p99_s"].as_f64()) {
        parts.push(format!("{metric} p99 {}", figure::duration_ns(p99_s * 1e9)));
    }
    parts.extend(line["verdict"].as_str().map(|verdict| format!("so far {verdict}")));
    parts.join(" · ")
}
