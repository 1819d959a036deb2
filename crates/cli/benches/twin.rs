//! A watch that is killed again and again beside one that is left alone: does its history say what came, and name what it did not see?
//! `cargo bench -p plimsoll --bench twin`, in real time. Words: `minutes=60`, `kill=30` (s between kills), `rate=5` (requests a second).
//!
//! Both watch the page of one embedded engine under a steady low load. The truth is the engine's own log: when each request ended. A stretch of blocks without a gap must
//! hold just the requests that ended in it, and what a killed watch lacks beside its twin must lie in gaps that its history names.

mod kit;

use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};

use kit::{Args, Client, Engine, Result, bar, monotonic_ns, plimsoll, say, wait_until};
use nix::sys::signal::{Signal as Kill, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::Pid;
use plimsoll_measure::server_side::{FAILED, Signal};
use plimsoll_watch::history::HistoryBlock;
use plimsoll_watch::history::read::blocks;

/// A scrape lies somewhere between its question and its answer, so that a request which ended just then may be on either side: at each end of a stretch so many.
const AT_AN_END: f64 = 1.0;
/// So long before the end nothing more is sent, s: the last block holds it all.
const STILL: f64 = 25.0;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let seconds = 60.0 * args.number("minutes", 60.0)?;
        let (every_s, rate) = (args.number("kill", 30.0)?, args.number("rate", 5.0)?);
        let folder = tempfile::tempdir()?;
        let engine = Engine::start("demo")?;
        let begun = monotonic_ns();
        let wall_ns = realtime_ns()? - begun;
        let [left, killed] = ["left", "killed"].map(|name| Watch::new(folder.path(), name, &engine.url));
        let (left, mut killed) = (left?, killed?);
        let sends = [format!("{rate}/s"), format!("{}s", (seconds - STILL).max(1.0))];
        let load = ["--rate", &sends[0], "--for", &sends[1], "--isl", "64", "--osl", "8"];
        let client = Client::start(&engine.url, &load)?;
        let end = begun + (seconds * 1e9) as i64;
        let mut kills = 0;
        loop {
            let due = begun + ((kills + 1) as f64 * every_s * 1e9) as i64;
            if due >= end {
                break;
            }
            wait_until(due);
            killed.again()?;
            kills += 1;
        }
        wait_until(end);
        let histories = [left.end()?, killed.end()?];
        client.end()?;
        let mut ends: Vec<i64> =
            engine.stop()?.iter().filter_map(|record| Some(record.end_ns? + wall_ns)).collect();
        ends.sort_unstable();
        let [left, killed] = histories.map(|history| Kept::read(&history, &ends));
        judged(&left?, &killed?, (kills, ends.len()));
        Ok(())
    })
}

fn judged(left: &Kept, killed: &Kept, (kills, ended): (usize, usize)) {
    say(format!("{kills} kills; {ended} requests ended by the engine's log"));
    for (name, kept) in [("left alone", left), ("killed", killed)] {
        let Kept { watched_s, gaps, counted, truth, missed, .. } = kept;
        say(format!(
            "  {name}: {} blocks, {watched_s:.0} s watched, {gaps} gaps; {counted:.0} requests counted, {truth} ended meanwhile, {missed} in its gaps",
            kept.blocks
        ));
    }
    let off = |kept: &Kept| kept.stretches.iter().map(|off| off.abs()).fold(0.0, f64::max);
    let worst = off(left).max(off(killed));
    bar("stretch off the log by", format!("{worst:.0}"), "≤ 2 (its ends)", worst <= 2.0 * AT_AN_END);
    bar("gaps of the one left alone", left.gaps, "0", left.gaps == 0);
    bar("gaps named, a kill each", killed.gaps, &format!("{kills}"), killed.gaps == kills);
    bar("gaps that rows name", killed.named, &format!("{}", killed.gaps), killed.named == killed.gaps);
    // Beside its twin: what it lacks lies in its gaps. What their ends add or lose goes either way, so that the sum grows with its root.
    let most = 3.0 * AT_AN_END * (killed.gaps.max(1) as f64).sqrt();
    let lacks = left.counted - killed.counted - (left.truth as f64 - killed.truth as f64);
    bar(
        "lacked beside its twin, in no gap",
        format!("{lacks:.0}"),
        &format!("≤ {most:.0} (3 √gaps)"),
        lacks.abs() <= most,
    );
    let most = 2.0 * AT_AN_END * killed.gaps as f64;
    bar(
        "first tokens beside requests",
        format!("{:.0}", killed.first - killed.counted),
        "as many",
        (killed.first - killed.counted).abs() <= most,
    );
}

fn realtime_ns() -> Result<i64> {
    let now = clock_gettime(ClockId::CLOCK_REALTIME)?;
    Ok(now.tv_sec() * 1_000_000_000 + now.tv_nsec())
}

// ---------------------------------------------------------------------------------------------- watches

/// A watch that keeps a history and a journal.
struct Watch {
    child: Child,
    file: PathBuf,
    history: PathBuf,
}

impl Watch {
    fn new(folder: &Path, name: &str, url: &str) -> Result<Watch> {
        let (budget, file) = (folder.join("budget.yaml"), folder.join(format!("{name}.yaml")));
        std::fs::write(&budget, "version: 1\nbudgets:\n  - {id: ttft, metric: ttft, p: 99, max: 500ms}\n")?;
        let history = folder.join(name);
        let text = format!(
            "sources: [{{url: \"{}\"}}]\nbudget: {}\nevery: 1s\nlisten: 127.0.0.1:0\njournal: {}\nhistory: {{dir: {}}}\n",
            url.replace("/v1", "/metrics"),
            budget.display(),
            folder.join(format!("{name}.journal")).display(),
            history.display()
        );
        std::fs::write(&file, text)?;
        Ok(Watch { child: start(&file)?, file, history })
    }

    /// Killed, and started anew at once.
    fn again(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            return Err(format!("a watch ended by itself: {status}").into());
        }
        self.child.kill()?;
        self.child.wait()?;
        self.child = start(&self.file)?;
        Ok(())
    }

    /// Ends it as a terminal would; its history.
    fn end(mut self) -> Result<PathBuf> {
        kill(Pid::from_raw(self.child.id().cast_signed()), Kill::SIGTERM)?;
        self.child.wait()?;
        Ok(self.history.clone())
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(file: &Path) -> Result<Child> {
    let mut command = Command::new(plimsoll());
    command.arg("watch").arg(file).arg("-q").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command.spawn()?)
}

// ---------------------------------------------------------------------------------------------- histories

/// What a history says, beside the log.
struct Kept {
    blocks: usize,
    watched_s: f64,
    /// Between its first and its last block.
    gaps: usize,
    /// Rows that say that nothing was watched.
    named: usize,
    counted: f64,
    first: f64,
    /// Of each stretch without a gap, what was counted less what ended in it.
    stretches: Vec<f64>,
    /// Requests that ended in blocks, and between them.
    truth: usize,
    missed: usize,
}

impl Kept {
    fn read(history: &Path, ends: &[i64]) -> Result<Kept> {
        let out = history.with_extension("run");
        let cut =
            Command::new(plimsoll()).args(["watch", "cut"]).arg(history).arg("-o").arg(&out).output()?;
        if !cut.status.success() {
            return Err(String::from_utf8_lossy(&cut.stderr).into_owned().into());
        }
        let run = plimsoll_store::open(&out)?;
        let begins = run.manifest.clock.realtime_ns;
        let all = blocks(&run.samples);
        if all.is_empty() {
            return Err(format!("{}: the history holds no block", history.display()).into());
        }
        let ended = |from: i64, to: i64| {
            ends.partition_point(|end| *end <= begins + to)
                - ends.partition_point(|end| *end <= begins + from)
        };
        let whole: Vec<&[HistoryBlock]> = all.chunk_by(|a, b| a.to == b.from).collect();
        let span = |part: &[HistoryBlock]| (part[0].from.0, part[part.len() - 1].to.0);
        let finished =
            |part: &[HistoryBlock]| part.iter().map(|block| gained(block, Signal::Finished)).sum::<f64>();
        let within = |part: &[HistoryBlock]| ended(span(part).0, span(part).1);
        let taken = |block: &HistoryBlock| -> f64 {
            let own = block.histograms.iter().filter(|((_, signal), _)| *signal == Signal::Ttft);
            own.flat_map(|(_, ladders)| ladders).map(|ladder| ladder.counts.iter().sum::<f64>()).sum()
        };
        Ok(Kept {
            blocks: all.len(),
            watched_s: all.iter().map(|block| block.watched.as_secs_f64()).sum(),
            gaps: whole.len() - 1,
            named: run.samples.iter().filter(|sample| sample.name == FAILED).count(),
            counted: finished(&all),
            first: all.iter().map(taken).sum(),
            stretches: whole.iter().map(|part| finished(part) - within(part) as f64).collect(),
            truth: whole.iter().map(|part| within(part)).sum(),
            missed: whole.windows(2).map(|pair| ended(span(pair[0]).1, span(pair[1]).0)).sum(),
        })
    }
}

fn gained(block: &HistoryBlock, signal: Signal) -> f64 {
    block.counters.iter().find(|((_, one), _)| *one == signal).map_or(0.0, |(_, gained)| *gained)
}
