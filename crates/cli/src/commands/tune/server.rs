//! The process of a server under test: its start in an own process group, its log, and its end.
//!
//! A guard process leads the group and reads a pipe from this process. The guard ends the group when the pipe closes, so no server
//! outlives a `kill -9`. A pid file that the next start reads was rejected, because there may be no next start.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use plimsoll_client::Clock;
use plimsoll_model::Span;

/// Longest time between SIGTERM and SIGKILL.
const GRACE: Span = Span::from_secs(15);
/// Longest wait for killed processes of the group.
const GONE: Span = Span::from_secs(3);
/// Interval between two checks of a process.
const LOOK: Duration = Duration::from_millis(20);
/// Bytes at the end of a log that are searched for its last line.
const TAIL: usize = 4096;
/// Largest length of a log line in a result.
const LINE: usize = 120;

/// Waits for the end of the pipe, then ends the group like this process does.
const GUARD: &str = "trap '' TERM INT HUP; read -r _; kill -TERM 0; sleep 15; kill -KILL 0";

pub struct ServerProcess {
    child: Child,
    guard: Child,
    log: PathBuf,
}

impl ServerProcess {
    /// Starts the command with its output in the log file.
    ///
    /// # Errors
    /// Fails if the log cannot be created or the program cannot be started.
    pub fn start(words: &[String], log: &Path) -> io::Result<ServerProcess> {
        let file = File::create(log)?;
        let errors = file.try_clone()?;
        let mut guard = Command::new("sh")
            .args(["-c", GUARD])
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let child = Command::new(&words[0])
            .args(&words[1..])
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .process_group(guard.id() as i32)
            .spawn();
        match child {
            Ok(child) => Ok(ServerProcess { child, guard, log: log.to_owned() }),
            Err(why) => {
                let _ = guard.kill();
                let _ = guard.wait();
                Err(why)
            }
        }
    }

    /// Returns the end of the process as a phrase with the last log line; `None` while it runs.
    pub fn ended(&mut self) -> Option<String> {
        let status = self.child.try_wait().ok().flatten()?;
        Some(format!("{status}{}", self.last_line()))
    }

    /// Returns the last line of the log as a clause; empty if there is none.
    pub fn last_line(&self) -> String {
        let bytes = std::fs::read(&self.log).unwrap_or_default();
        let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(TAIL)..]).into_owned();
        let line = tail.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        let line: String = line.chars().filter(|c| !c.is_control()).take(LINE).collect();
        if line.is_empty() { String::new() } else { format!("; its log ends with: {line}") }
    }
}

/// Ends the whole group: SIGTERM, and SIGKILL after a grace.
impl Drop for ServerProcess {
    fn drop(&mut self) {
        let group = Pid::from_raw(self.guard.id() as i32);
        let _ = killpg(group, Signal::SIGTERM);
        wait(GRACE, || matches!(self.child.try_wait(), Ok(Some(_))));
        let _ = killpg(group, Signal::SIGKILL);
        let _ = self.child.wait();
        let _ = self.guard.wait();
        // Workers of the server hold their port and their GPU memory until the kernel has removed them.
        wait(GONE, || killpg(group, None) == Err(Errno::ESRCH));
    }
}

/// Waits until a condition is true, at most for this time.
fn wait(most: Span, mut holds: impl FnMut() -> bool) {
    let clock = Clock::start();
    let until = clock.now() + most;
    while !holds() && clock.now() < until {
        std::thread::sleep(LOOK);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> (ServerProcess, tempfile::TempDir) {
        let folder = tempfile::tempdir().expect("a folder");
        let words = ["sh", "-c", script].map(str::to_owned);
        (ServerProcess::start(&words, &folder.path().join("log")).expect("started"), folder)
    }

    fn is_alive(group: Pid) -> bool {
        killpg(group, None).is_ok()
    }

    #[test]
    fn an_early_end_is_told_with_the_last_line() {
        let (mut server, _folder) = start("echo loading; echo 'out of memory' >&2; exit 3");
        wait(GRACE, || server.ended().is_some());
        assert_eq!(server.ended().as_deref(), Some("exit status: 3; its log ends with: out of memory"));
    }

    #[test]
    fn a_stop_ends_the_workers_too() {
        let (server, folder) = start("sleep 100 & echo ready; wait");
        let group = Pid::from_raw(server.guard.id() as i32);
        wait(GRACE, || {
            std::fs::read_to_string(folder.path().join("log")).is_ok_and(|log| log.contains("ready"))
        });
        assert!(is_alive(group));
        drop(server);
        assert!(!is_alive(group));
    }

    /// The pipe closes as it does if this process is killed.
    #[test]
    fn the_guard_ends_the_server_if_this_process_dies() {
        let (mut server, _folder) = start("exec sleep 100");
        drop(server.guard.stdin.take());
        wait(GRACE, || server.ended().is_some());
        assert_eq!(server.ended().as_deref(), Some("signal: 15 (SIGTERM)"));
    }
}
