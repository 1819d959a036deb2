//! The progress display: a live block on a terminal, plain lines elsewhere, JSON lines on request. Everything goes to stderr.
//!
//! The block is redrawn in place with three escape sequences. A full-screen interface was rejected, because it hides earlier
//! output, and users scroll back after the run to see the finished levels.
//! On a terminal, `q` or Ctrl-C stops the load: once to drain, twice to stop immediately.

use std::io::{IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::Duration;

use crossterm::event::{Event, KeyCode, KeyModifiers};
use crossterm::terminal;

use crate::progress::{self, ProgressFigures};

/// Redraw interval of the live block.
pub const REDRAW: Duration = Duration::from_millis(250);

/// Interval of plain lines without a terminal, in seconds.
const PLAIN_EVERY_S: f64 = 5.0;

/// Interval of JSON lines with figures, in seconds.
const JSON_EVERY_S: f64 = 1.0;

/// Environment variable of a command whose load stops immediately if its stdin ends, so that it ends with its parent.
pub const STOP_WITH_STDIN: &str = "PLIMSOLL_STOP_WITH_STDIN";

pub struct Screen {
    kind: Kind,
    /// Number of lines of the live block that are on the terminal.
    drawn: usize,
    /// Time of the last plain line, in seconds.
    last_plain_s: f64,
    /// Longest time of the load after the phase that runs, s; `None` if unknown.
    pub after_s: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quiet,
    Plain,
    Terminal,
    Json,
}

impl Screen {
    /// Returns a live block if stderr is a terminal, else plain lines; with `quiet`, no output.
    pub fn new(quiet: bool) -> Screen {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let kind = match (quiet, std::io::stderr().is_terminal() && !dumb) {
            _ if progress::is_json() => Kind::Json,
            (true, _) => Kind::Quiet,
            (false, true) => Kind::Terminal,
            (false, false) => Kind::Plain,
        };
        Screen { kind, drawn: 0, last_plain_s: f64::NEG_INFINITY, after_s: Some(0.0) }
    }

    /// Prints a permanent line above the live block.
    pub fn say(&mut self, line: &str) {
        match self.kind {
            Kind::Quiet => return,
            Kind::Json => return line.lines().for_each(progress::message),
            Kind::Plain | Kind::Terminal => {}
        }
        let mut out = self.erased();
        match self.kind {
            Kind::Terminal => out.extend(crate::out::fold(line).split('\n').flat_map(|line| [line, "\r\n"])),
            _ => out.extend([line, "\n"]),
        }
        write(&out);
    }

    /// Shows the current state: `block` on a terminal, `plain` (one line every few seconds) elsewhere.
    pub fn show(&mut self, elapsed_s: f64, block: &[String], plain: &str) {
        match self.kind {
            Kind::Quiet => {}
            Kind::Plain => {
                if self.is_due(elapsed_s, PLAIN_EVERY_S) {
                    write(&format!("{plain}\n"));
                }
            }
            Kind::Json => {
                if self.is_due(elapsed_s, JSON_EVERY_S) {
                    progress::phase(plain);
                }
            }
            Kind::Terminal => {
                let width = terminal::size().map_or(80, |(columns, _)| usize::from(columns)).max(20);
                let mut out = self.erased();
                for line in block {
                    out.extend(line.chars().take(width - 1));
                    out.push_str("\r\n");
                }
                self.drawn = block.len();
                write(&out);
            }
        }
    }

    /// Returns whether `every_s` passed since the last line, and records the line.
    fn is_due(&mut self, elapsed_s: f64, every_s: f64) -> bool {
        let is_due = elapsed_s - self.last_plain_s >= every_s || elapsed_s < self.last_plain_s;
        if is_due {
            self.last_plain_s = elapsed_s;
        }
        is_due
    }

    /// Begins a load, for JSON lines.
    pub fn begin(&mut self, phase: &str) {
        if self.kind == Kind::Json {
            self.last_plain_s = 0.0;
            progress::phase(phase);
        }
    }

    /// Returns whether a JSON line with figures is due.
    pub fn wants_figures(&mut self, elapsed_s: f64) -> bool {
        self.kind == Kind::Json && self.is_due(elapsed_s, JSON_EVERY_S)
    }

    /// Writes the figures of a load as a JSON line; nothing on other screens. `left_s` is the time to the end of the load, s.
    pub fn figures(&self, left_s: Option<f64>, figures: ProgressFigures) {
        if self.kind == Kind::Json {
            let eta_s = left_s.zip(self.after_s).map(|(left_s, after_s)| left_s + after_s);
            progress::state(eta_s, Some(figures));
        }
    }

    /// Removes the live block from the terminal.
    pub fn clear(&mut self) {
        if self.kind == Kind::Terminal {
            let out = self.erased();
            write(&out);
        }
    }

    /// Returns the escape sequences that erase the live block.
    fn erased(&mut self) -> String {
        let drawn = std::mem::take(&mut self.drawn);
        if drawn == 0 { String::new() } else { format!("\x1b[{drawn}A\x1b[0J") }
    }
}

/// Writes and ignores errors, because a closed terminal must not end the measurement.
fn write(text: &str) {
    if text.is_empty() {
        return;
    }
    let mut stderr = std::io::stderr().lock();
    let _ = stderr.write_all(text.as_bytes());
    let _ = stderr.flush();
}

/// Returns a bar of `width` characters for a share of 0 to 1.
pub fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

/// A watch on the keyboard and the signals; calls `stop` for every Ctrl-C, `q` or termination signal.
pub struct KeyWatch {
    ended: Arc<AtomicBool>,
    keys: Option<JoinHandle<()>>,
}

impl KeyWatch {
    /// Starts the watch. Signals are caught when this returns, so a Ctrl-C that answers a later line does not kill the process.
    /// With `keyboard`, single keys are read too if stdin and stderr are a terminal.
    pub fn start(keyboard: bool, stop: impl Fn() + Send + Sync + 'static) -> KeyWatch {
        let stop = Arc::new(stop);
        let ended = Arc::new(AtomicBool::new(false));
        let on_signal = Arc::clone(&stop);
        let (ready, caught) = mpsc::channel();
        // The thread sleeps in the kernel until a signal comes and dies with the process.
        std::thread::spawn(move || watch_signals(ready, &*on_signal));
        if std::env::var_os(STOP_WITH_STDIN).is_some() {
            let on_end = Arc::clone(&stop);
            std::thread::spawn(move || {
                let _ = std::io::copy(&mut std::io::stdin().lock(), &mut std::io::sink());
                // Two stops end the load immediately.
                on_end();
                on_end();
            });
        }
        // An error means that the thread could not start; then signals have their default effect.
        let _ = caught.recv();
        let interactive = keyboard && std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
        let keys = (interactive && terminal::enable_raw_mode().is_ok()).then(|| {
            let ended = Arc::clone(&ended);
            std::thread::spawn(move || watch_keys(&ended, &*stop))
        });
        KeyWatch { ended, keys }
    }
}

impl Drop for KeyWatch {
    fn drop(&mut self) {
        self.ended.store(true, Ordering::Relaxed);
        if let Some(keys) = self.keys.take() {
            let _ = keys.join();
            let _ = terminal::disable_raw_mode();
        }
    }
}

fn watch_signals(ready: mpsc::Sender<()>, stop: &dyn Fn()) {
    use tokio::signal::unix::{SignalKind, signal};
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_io().build() else { return };
    runtime.block_on(async {
        let (Ok(mut interrupt), Ok(mut terminate)) =
            (signal(SignalKind::interrupt()), signal(SignalKind::terminate()))
        else {
            return;
        };
        let _ = ready.send(());
        loop {
            let got = tokio::select! { got = interrupt.recv() => got, got = terminate.recv() => got };
            if got.is_none() {
                return;
            }
            stop();
        }
    });
}

fn watch_keys(ended: &AtomicBool, stop: &dyn Fn()) {
    while !ended.load(Ordering::Relaxed) {
        match crossterm::event::poll(Duration::from_millis(100)) {
            Ok(true) => {}
            Ok(false) => continue,
            Err(_) => return,
        }
        if let Ok(Event::Key(key)) = crossterm::event::read() {
            let control_c = key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
            if control_c || key.code == KeyCode::Char('q') {
                stop();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use nix::sys::signal::{Signal, raise};

    use super::{KeyWatch, bar};

    /// The signal would kill this process if the handler were installed after the return.
    #[test]
    fn a_signal_is_caught_as_soon_as_the_watch_stands() {
        let (said, stopped) = mpsc::channel();
        let _watch = KeyWatch::start(false, move || {
            let _ = said.send(());
        });
        raise(Signal::SIGINT).expect("sent");
        stopped.recv().expect("caught");
    }

    #[test]
    fn a_bar_is_as_long_as_asked() {
        assert_eq!(bar(0.5, 4), "██░░");
        assert_eq!(bar(7.0, 3), "███");
        assert_eq!(bar(-1.0, 3), "░░░");
    }
}
