//! How far a level may be trusted: every check on the generator, the window and the answers, with its limits argued.
//!
//! *Invalid* means that the figures are not the target's, so nothing may pass on them. *Suspect* means that they are,
//! but something beside them must be read. That a target is slow, failing or overloaded is a result and never makes a
//! level invalid; only a measurement that did not happen does.

use plimsoll_model::{EndedBy, How, Level, Load, RateCourse, SizeUnit, StampSource};

use crate::findings::{Kept, LevelFinding, LevelSummary, Passed, Reading, Reason, Trust, Validity};
use crate::say::{count, ms, number, percent};

/// Lag that no pacer on a shared machine avoids, ms; below it a share of a very short latency says nothing.
const LAG_FLOOR_MS: f64 = 0.5;
/// Lag against latency, p99 against p99 and median against median. At 5 % it moves a figure that starts at the due time
/// by about what repeated runs differ; at 50 % the generator is half of what is measured.
const LAG: Limits = Limits { suspect: 0.05, invalid: 0.5 };
/// Kernel-to-user delay, p99 against the median latency. Kernel stamps are right whatever it is; a reader this slow
/// lets socket buffers fill and then slows the sender.
const USER_DELAY: Limits = Limits { suspect: 0.25, invalid: 1.0 };
/// The same floor for it, ms.
const USER_DELAY_FLOOR_MS: f64 = 2.0;
/// Time runnable and not running, where the kernel stamps arrivals. The stamps do not care, and what a send loses is lag,
/// which is judged by itself; a fifth of the time is where reading and sending could slow the load in ways not stamped.
const RUN_QUEUE: Limits = Limits { suspect: 0.2, invalid: 0.5 };
/// The same where stamps are user space's: each waits for a CPU with this chance, so that 5 % reaches every p95.
const RUN_QUEUE_OWN_STAMPS: Limits = Limits { suspect: 0.05, invalid: 0.2 };
/// CPU share of the busiest worker. A queue at 85 % load doubles delays (M/M/1: 6.7 ×); at 97 % the generator queues.
const CPU: Limits = Limits { suspect: 0.85, invalid: 0.97 };
/// Share of events whose time is only an upper bound. Gap percentiles above it describe reads rather than events.
const COALESCED: f64 = 0.2;
/// Little's law: sampled in-flight counter against the records, beyond what sampling and the generator's own delay explain.
/// 5 % is a percentile's own interval; a fifth means records are missing or stamps are wrong.
const LITTLE: Limits = Limits { suspect: 0.05, invalid: 0.2 };
/// Broken answers: they are fast because they are broken. Half of them, and the service was not measured.
const BROKEN: Limits = Limits { suspect: 0.01, invalid: 0.5 };
/// Failed requests.
const ERRORS: f64 = 0.01;
/// Attempts for which this machine had no socket. They stand among the target's errors and are none of them.
const NO_SOCKET: Limits = Limits { suspect: 0.0, invalid: 0.01 };
/// Share of descriptors or local ports in use from which on the next level may run out of them.
const ROOM: f64 = 0.9;
/// Descriptors that a run takes beside its connections.
const OWN_DESCRIPTORS: u64 = 64;
/// Sum of reported against asked tokens.
const TOKENS: f64 = 0.05;

#[derive(Copy, Clone)]
struct Limits {
    suspect: f64,
    invalid: f64,
}

impl Limits {
    fn judge(&self, figure: f64) -> Trust {
        match figure {
            f if f > self.invalid => Trust::Invalid,
            f if f > self.suspect => Trust::Suspect,
            _ => Trust::Valid,
        }
    }
}

/// The verdict on one level.
pub fn judge(level: &Level, summary: &LevelSummary) -> Validity {
    let mut bench = Bench { level: level.id, validity: Validity::default() };
    if reached(&mut bench, summary) {
        generator(&mut bench, level, summary);
        window(&mut bench, level, summary);
        answers(&mut bench, summary);
    }
    ended(&mut bench, level, summary);
    bench.done()
}

/// The verdict on a run from those on its levels. A single level is the run. Of many, those that are invalid are left
/// out of the lines, so the run is suspect; where half of them are, nothing is left to stand on. That a level *meant*
/// to overload the target overloads it does not count against a sweep.
pub fn judge_run(levels: &[LevelFinding]) -> Validity {
    if let [only] = levels {
        return only.validity.clone();
    }
    let mut run = Validity::default();
    if levels.is_empty() {
        run.verdict = Trust::Invalid;
        run.reasons.push(Reason {
            check: "levels".into(),
            verdict: Trust::Invalid,
            level: None,
            figure: "no level was run".into(),
            means: "nothing was measured".into(),
            advice: "run it again".into(),
        });
        return run;
    }
    let invalid = levels.iter().filter(|l| l.validity.verdict == Trust::Invalid).count();
    for level in levels {
        let placed = !matches!(level.summary.purpose.as_str(), "run" | "hold");
        let overloaded = level.summary.stability.verdict == Kept::Unstable;
        let meant = |reason: &Reason| match reason.check.as_str() {
            "steady_state" | "samples" | "errors" => placed,
            // What an overloaded target still holds when the drain ends is part of the overload.
            "ended" => placed && overloaded,
            _ => false,
        };
        run.reasons.extend(level.validity.reasons.iter().filter(|reason| !meant(reason)).cloned());
    }
    run.reasons.sort_by(|a, b| b.verdict.cmp(&a.verdict).then(a.level.cmp(&b.level)));
    run.verdict = match (2 * invalid >= levels.len(), run.reasons.is_empty()) {
        (true, _) => Trust::Invalid,
        (false, false) => Trust::Suspect,
        (false, true) => Trust::Valid,
    };
    let mut seen = std::collections::BTreeSet::new();
    for passed in levels.iter().flat_map(|l| &l.validity.passed) {
        let failed = run.reasons.iter().any(|reason| reason.check == passed.check);
        if !failed && seen.insert(passed.check.clone()) {
            run.passed.push(Passed {
                check: passed.check.clone(),
                figure: "on every level that it applies to".into(),
                note: passed.note.clone(),
            });
        }
    }
    run
}

/// Where the findings of a level are collected.
struct Bench {
    level: u32,
    validity: Validity,
}

impl Bench {
    fn say(&mut self, check: &str, verdict: Trust, figure: String, means: &str, advice: &str) {
        if verdict == Trust::Valid {
            self.validity.passed.push(Passed { check: check.into(), figure, note: None });
            return;
        }
        self.validity.reasons.push(Reason {
            check: check.into(),
            verdict,
            level: Some(self.level),
            figure,
            means: means.into(),
            advice: advice.into(),
        });
    }

    /// Something about the check that was made last, where it passed.
    fn note(&mut self, note: &str) {
        if let Some(passed) = self.validity.passed.last_mut() {
            passed.note = Some(note.into());
        }
    }

    fn done(mut self) -> Validity {
        self.validity.reasons.sort_by_key(|reason| std::cmp::Reverse(reason.verdict));
        self.validity.verdict = self.validity.reasons.first().map_or(Trust::Valid, |reason| reason.verdict);
        self.validity
    }
}

/// Did anything come back at all?
fn reached(bench: &mut Bench, summary: &LevelSummary) -> bool {
    let counts = &summary.counts;
    if counts.requests > 0 && counts.finished + counts.cancelled > 0 {
        bench.say(
            "reached",
            Trust::Valid,
            format!("{} of {} finished", counts.finished, counts.requests),
            "",
            "",
        );
        return true;
    }
    let unreached = [How::Refused, How::Redirected, How::NeverSent].iter();
    let silent: u64 = unreached.filter_map(|how| counts.by_outcome.get(how)).sum();
    let (means, advice) = if silent == counts.requests {
        ("nothing reached the target", "check the address, the name and the network")
    } else {
        (
            "the target gave no whole answer",
            "look at the errors, for a wrong key, path or model fails every request",
        )
    };
    bench.say("reached", Trust::Invalid, format!("0 of {} finished", counts.requests), means, advice);
    false
}

/// A latency that figures of the generator are held against, ms: the median, or a millisecond where there is none.
fn scale_ms(summary: &LevelSummary) -> f64 {
    let leading = summary.latency.leading();
    let median = leading.p50.value().filter(|s| s.is_finite()).or(leading.mean_finite_s);
    (1e3 * median.unwrap_or(0.001)).max(0.001)
}

/// The highest percentile of the leading latency that is shown and finite, ms.
fn tail_ms(summary: &LevelSummary) -> f64 {
    let rows = summary.latency.leading().rows();
    let shown = rows.into_iter().filter(|(p, _)| *p <= 0.99).filter_map(|(_, reading)| reading.value());
    1e3 * shown.filter(|s| s.is_finite()).fold(0.0, f64::max)
}

/// What the generator says of itself, from the most frequent trouble to the rarest.
fn generator(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    punctual(bench, level, summary);
    machine(bench, summary);
    stamps(bench, summary);
    counted(bench, summary);
    kept(bench, summary);
    room(bench, summary);
    let health = &summary.generator;
    if let Some(since) = health.closed_since {
        bench.say(
            "closed_since",
            Trust::Suspect,
            format!("closed from t={} s", number((since - level.start).as_secs_f64())),
            "a ceiling held arrivals back, and from there on the load followed the server",
            "raise the ceiling, or read the level as a closed loop",
        );
    }
}

/// Did it send and read in time?
fn punctual(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let health = &summary.generator;
    let scale = scale_ms(summary);
    // Once a ceiling of the user's held arrivals back, lateness is the ceiling's and judged as such below.
    if matches!(level.load, Load::Open { .. }) && health.lag.count > 0 && health.closed_since.is_none() {
        // Like with like: the lag's tail is what it adds to a tail, its median what it adds to a median.
        // Of few arrivals the p99 is the largest, which is one hiccup of a machine.
        let (name, lag_ns) = match health.lag.count {
            0..1000 => ("p90", health.lag.p90_ns),
            _ => ("p99", health.lag.p99_ns),
        };
        let (lag_ms, tail_ms) = (lag_ns as f64 / 1e6, tail_ms(summary).max(scale));
        let share = (lag_ms / tail_ms).max(health.lag.p50_ns as f64 / 1e6 / scale);
        let verdict = if lag_ms > LAG_FLOOR_MS { LAG.judge(share) } else { Trust::Valid };
        bench.say(
            "schedule_lag",
            verdict,
            format!("{name} {}, {} of the latency it is part of", ms(lag_ms / 1e3), percent(share)),
            "requests left late, and the latencies contain that delay of the generator",
            "give the generator more workers or a quieter machine, or read the after_send figures",
        );
    }
    if health.user_delay.count > 0 {
        let delay_ms = health.user_delay.p99_ns as f64 / 1e6;
        let over = delay_ms > USER_DELAY_FLOOR_MS;
        bench.say(
            "user_delay",
            if over { USER_DELAY.judge(delay_ms / scale) } else { Trust::Valid },
            format!("from the kernel's stamp to the generator p99 {}", ms(delay_ms / 1e3)),
            "the generator read late, so buffers may have filled and slowed the server",
            "give the generator more workers or a quieter machine",
        );
    }
}

/// Did the machine leave it the CPU it needs?
fn machine(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    if let Some(share) = health.run_queue_share_max {
        bench.say(
            "run_queue",
            if health.stamps == StampSource::Kernel { RUN_QUEUE } else { RUN_QUEUE_OWN_STAMPS }.judge(share),
            format!("the worker worst off waited for a CPU {} of the time", percent(share)),
            "other work on this machine delayed the generator",
            "stop the other work, or run the generator on another machine",
        );
    }
    if let Some(share) = health.cpu_share_max {
        bench.say(
            "cpu",
            CPU.judge(share),
            format!("the busiest worker used {} of a CPU", percent(share)),
            "the generator may be the bottleneck",
            "give the generator more workers or a larger machine",
        );
    }
}

/// Are the stamps those of single events, by the kernel's clock?
fn stamps(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    if health.stamps != StampSource::Kernel {
        let busy = health.cpu_share_max.is_some_and(|s| s > 0.7)
            || health.run_queue_share_max.is_some_and(|s| s > 0.02);
        bench.say(
            "stamps",
            if busy { Trust::Suspect } else { Trust::Valid },
            format!("arrival stamps: {:?}", health.stamps).to_lowercase(),
            "without the kernel's stamps a busy generator adds its own delay to every latency",
            "run on Linux with receive time stamps, or keep the generator idle",
        );
    }
    if health.events > 0 {
        // The last token of an answer often shares its read with the stream's end: that is no buffering.
        let last_tokens = summary.counts.finished.min(health.events_coalesced);
        let share = (health.events_coalesced - last_tokens) as f64 / health.events as f64;
        bench.say(
            "coalesced",
            if share > COALESCED { Trust::Suspect } else { Trust::Valid },
            format!("{} of the events came with a later one in the same read", percent(share)),
            "event gaps and itl describe reads rather than events, while ttft and e2e stand",
            "look for buffering between server and generator",
        );
    }
}

/// Do its own counter and clock agree with the records?
fn counted(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    if let Some(little) = summary.concurrency.little.as_ref().filter(|little| little.from_records >= 1.0) {
        let beyond = little.disagreement.abs() - little.tolerance;
        bench.say(
            "little",
            LITTLE.judge(beyond),
            format!(
                "{} in flight by the {}'s counter, {} by the records",
                number(little.sampled_mean),
                little.source,
                number(little.from_records)
            ),
            "the counter and the records disagree by more than late sending explains, so records are missing or stamps \
             are wrong",
            "do not use the figures, and report this as a fault of the generator",
        );
    }
    if health.clock_steps > 0 {
        bench.say(
            "clock",
            Trust::Suspect,
            count(health.clock_steps.into(), "step") + " of the realtime clock",
            "kernel stamps follow the realtime clock, so those near a step may be off by its size",
            "let the clock settle and run again",
        );
    }
}

/// Were the connections that it kept still there when it used them again? What the target does with them is no fault of the
/// measurement: it is told, because it costs the requests that have to make another one, and fails those that meet an end.
fn kept(bench: &mut Bench, summary: &LevelSummary) {
    let Some(kept) = summary.generator.kept.filter(|kept| kept.looks + kept.lost > 0) else { return };
    let looks = count(kept.looks, "look") + " at kept connections before they were used again";
    bench.say("kept_connections", Trust::Valid, format!("{}, {} found ended", looks, kept.ended), "", "");
    if kept.ended + kept.lost == 0 {
        return;
    }
    let tried = (kept.looks + kept.lost).max(1);
    let lost = match kept.lost {
        0 => String::new(),
        lost => format!(" ({} met the end on the way and failed)", count(lost, "request")),
    };
    let rest = match kept.rest {
        Some(rest) => format!("; kept ones now rest {} before they are used again", ms(rest.as_secs_f64())),
        None => String::new(),
    };
    bench.note(&format!(
        "within a second of an answer and without a word the server ended {} of the connections that it was to keep{lost}{rest}, and \
         a request that finds none waits for a new one",
        percent((kept.ended + kept.lost) as f64 / tried as f64)
    ));
}

/// Did connections run out of what the machine has for them? `plimsoll doctor` asks before; this is what happened.
fn room(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    let Some(room) = &health.room else { return };
    let attempts = summary.counts.attempts.max(1);
    bench.say(
        "sockets",
        NO_SOCKET.judge(room.no_socket as f64 / attempts as f64),
        format!("{} found no descriptor, port or memory for a connection", count(room.no_socket, "attempt")),
        "this machine could not open all connections, and what failed there counts as an error of the target",
        "run `plimsoll doctor` and raise what it names, or keep fewer connections",
    );
    let mut near = |check: &str, used: u64, of: Option<u64>, what: &str, advice: &str| {
        let Some(of) = of else { return };
        let full = used as f64 > ROOM * of as f64;
        let verdict = if full { Trust::Suspect } else { Trust::Valid };
        let means =
            "the level came close to a limit of this machine, and a little more load is turned away here";
        bench.say(check, verdict, format!("{used} of {of} {what}"), means, advice);
    };
    let descriptors = u64::from(health.sockets_max) + OWN_DESCRIPTORS;
    near("descriptors", descriptors, room.descriptors, "open files", "raise the hard limit of open files");
    let ports = room.ports.map(u64::from);
    let advice = "widen net.ipv4.ip_local_port_range, keep connections, or give the target several addresses";
    near("ports", u64::from(health.connects), ports, "local ports to an address taken", advice);
    if let Some(turned_away) = room.listen_overflows {
        bench.say(
            "backlog",
            if turned_away > 0 { Trust::Suspect } else { Trust::Valid },
            format!("{} overflowed a listening queue of this machine", count(turned_away, "connection")),
            "a connection that finds the server's queue full is tried again a second later, which no server needs",
            "give the server a longer listen backlog (and net.core.somaxconn), or open connections ahead",
        );
    }
}

fn window(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let stability = &summary.stability;
    if matches!(level.load, Load::Open { .. }) {
        // Where the arrivals themselves change, latency has to: only what piles up speaks against the level then.
        let shaped = level.rate_course == RateCourse::Shaped;
        let steady = match (stability.verdict, summary.drift.drifts && !shaped) {
            (Kept::Unstable, _) | (_, true) => Trust::Suspect,
            _ => Trust::Valid,
        };
        let drift = match (summary.drift.p, summary.drift.change_share) {
            (Some(p), Some(change)) => {
                format!("; {} moves by {} over the window (p {p:.3})", summary.drift.metric, percent(change))
            }
            _ => String::new(),
        };
        let grows = stability.growth_share.is_some_and(|growth| growth.upper > stability.limit_share);
        let (means, advice) = if steady == Trust::Suspect && !grows && !summary.drift.drifts {
            (
                "the target turns load away, so the figures describe less load than was offered",
                "lower the load, or read the errors",
            )
        } else {
            (
                "there is no steady state, so the figures depend on the length of the level",
                "read the level as overloaded, or lower the load for figures that last",
            )
        };
        // What the data leave undecided has not passed either: it is not said.
        if steady == Trust::Suspect || stability.verdict != Kept::Undecided {
            bench.say("steady_state", steady, format!("{}{drift}", stability.why), means, advice);
            if shaped && steady == Trust::Valid {
                bench.note("latency follows the arrivals' own shape, and the figures hold for this window as a whole");
            }
        }
    }
    let leading = summary.latency.leading();
    let asks_for_tail = matches!(level.purpose.as_str(), "run" | "hold");
    let (verdict, figure) = match (&leading.p50, &leading.p99) {
        (Reading::Refused { why, .. }, _) => (Trust::Suspect, format!("{} p50 {why}", leading.metric)),
        (_, Reading::Refused { why, .. }) if asks_for_tail => {
            (Trust::Suspect, format!("{} p99 {why}", leading.metric))
        }
        _ => (Trust::Valid, format!("{} requests", leading.n)),
    };
    bench.say(
        "samples",
        verdict,
        figure,
        "too few requests for the percentiles that are refused",
        "give it more time or more load",
    );
}

fn answers(bench: &mut Bench, summary: &LevelSummary) {
    let counts = &summary.counts;
    let broken: u64 = counts.broken.values().sum();
    if counts.finished > 0 {
        let share = broken as f64 / counts.finished as f64;
        let kinds: Vec<String> =
            counts.broken.iter().map(|(kind, n)| format!("{} {n}", kind.name())).collect();
        let list = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
        bench.say(
            "broken_answers",
            BROKEN.judge(share),
            format!("{broken} of {} answers{list}", counts.finished),
            "answers that are empty, repeated or of the wrong length come faster than right ones",
            "look at the answers, and pin the length (ignore_eos) if the model ends early",
        );
    }
    let failed = counts.failed - counts.cancelled.min(counts.failed);
    let share = failed as f64 / counts.requests.max(1) as f64;
    let kinds: Vec<String> = counts
        .by_outcome
        .iter()
        .filter(|(how, _)| **how != How::Finished)
        .map(|(how, n)| format!("{} {n}", how.name()))
        .collect();
    let list = if kinds.is_empty() { String::new() } else { format!(" ({})", kinds.join(", ")) };
    bench.say(
        "errors",
        if share > ERRORS { Trust::Suspect } else { Trust::Valid },
        format!("{failed} of {} requests{list}", counts.requests),
        "failed requests rank above every latency, so percentiles beyond their share are infinite",
        "find out why they fail before reading the tail",
    );
    if summary.lengths.unit == SizeUnit::Items {
        // Rows are sent, not estimated: there is no count of the server's to hold them against.
        return;
    }
    for (side, figures) in [("prompt", &summary.lengths.prompt), ("output", &summary.lengths.output)] {
        let Some(deviation) = figures.deviation else { continue };
        bench.say(
            &format!("{side}_tokens"),
            if deviation.abs() > TOKENS { Trust::Suspect } else { Trust::Valid },
            format!("{side} tokens reported are {:+.1} % off those asked", 100.0 * deviation),
            "the load is not the one that was asked for, and the figures per token shift with it",
            "set the tokeniser or the lengths so that the server's count agrees",
        );
    }
}

fn ended(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let (figure, means) = match level.ended_by {
        EndedBy::Complete => {
            // Nobody stopped it, and still requests were not sent.
            let never = summary.counts.by_outcome.get(&How::NeverSent).copied().unwrap_or(0);
            if never > 0 {
                bench.say(
                    "never_sent",
                    Trust::Invalid,
                    count(never, "request") + " never left the generator",
                    "the load that was asked for was not put on the target",
                    "see file descriptors, ports and CPU of the generator (doctor)",
                );
            }
            return;
        }
        EndedBy::DrainLimit => {
            ("the drain limit passed", "requests that were still in flight count as infinitely slow")
        }
        EndedBy::Cut => return cut_off(bench, level, summary),
        EndedBy::User | EndedBy::UserNow => ("stopped by the user", "the level is shorter than asked"),
        EndedBy::Ceiling => ("stopped at a ceiling", "the level is shorter than asked"),
        EndedBy::Errors => ("stopped for too many errors", "the level is shorter than asked"),
    };
    bench.say("ended", Trust::Suspect, figure.into(), means, "run it again for longer, or raise the limit");
}

/// A generator that was killed took the requests in flight with it. An open loop's are drawn again from the schedule
/// before the run is judged; a closed loop has noted each as it began. Where an older log has no such notes, it is known how
/// many there were, as many as it holds, and not which; so their weight in the tail is said.
fn cut_off(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let drawn = summary.counts.by_outcome.get(&How::Unfinished).copied().unwrap_or(0);
    let (figure, means) = match level.load {
        _ if drawn > 0 => {
            let from = if matches!(level.load, Load::Open { .. }) { "the schedule" } else { "the log" };
            (
                format!(
                    "the generator was cut off; {} then in flight came from {from}",
                    count(drawn, "request")
                ),
                "they keep their place in the tail, as infinitely slow".to_owned(),
            )
        }
        Load::Closed { concurrency }
        | Load::Saturating { concurrency }
        | Load::Wave { requests: concurrency } => {
            let ended =
                if matches!(level.load, Load::Wave { .. }) { summary.counts.requests as u32 } else { 0 };
            let concurrency = concurrency.saturating_sub(ended);
            let lost = f64::from(concurrency);
            let known = 100.0 * (1.0 - lost / (lost + summary.counts.requests as f64));
            (
                format!(
                    "the generator was cut off; the {} then in flight left no record, most of them slow ones",
                    count(u64::from(concurrency), "request")
                ),
                format!("they can lie beyond p{known:.1} of all: percentiles from there on may be too low"),
            )
        }
        Load::Open { .. } => (
            "the generator was cut off".to_owned(),
            "requests in flight left no record, and most of them were slow ones".to_owned(),
        ),
    };
    bench.say("ended", Trust::Suspect, figure, &means, "run it again to its end");
}
