//! The progress display: a live block on a terminal, plain lines elsewhere. Everything goes to stderr.
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

/// Redraw interval of the live block.
pub const REDRAW: Duration = Duration::from_millis(250);

/// Interval of plain lines without a terminal, in seconds.
const PLAIN_EVERY_S: f64 = 5.0;

pub struct Screen {
    kind: Kind,
    /// Number of lines of the live block that are on the terminal.
    drawn: usize,
    /// Time of the last plain line, in seconds.
    last_plain_s: f64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Quiet,
    Plain,
    Terminal,
}

impl Screen {
    /// Returns a live block if stderr is a terminal, else plain lines; with `quiet`, no output.
    pub fn new(quiet: bool) -> Screen {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let kind = match (quiet, std::io::stderr().is_terminal() && !dumb) {
            (true, _) => Kind::Quiet,
            (false, true) => Kind::Terminal,
            (false, false) => Kind::Plain,
        };
        Screen { kind, drawn: 0, last_plain_s: f64::NEG_INFINITY }
    }

    /// Prints a permanent line above the live block.
    pub fn say(&mut self, line: &str) {
        if self.kind == Kind::Quiet {
            return;
        }
        let mut out = self.erased();
        out.push_str(line);
        out.push_str("\r\n");
        if self.kind == Kind::Plain {
            out = out.replace("\r\n", "\n");
        }
        write(&out);
    }

    /// Shows the current state: `block` on a terminal, `plain` (one line every few seconds) elsewhere.
    pub fn show(&mut self, elapsed_s: f64, block: &[String], plain: &str) {
        match self.kind {
            Kind::Quiet => {}
            Kind::Plain => {
                if elapsed_s - self.last_plain_s >= PLAIN_EVERY_S || elapsed_s < self.last_plain_s {
                    self.last_plain_s = elapsed_s;
                    write(&format!("{plain}\n"));
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
