//! Checks of the load and the timestamps, from measurements of the generator and its machine.

use plimsoll_model::{Level, Load, StampSource};

use super::records::LOST_SHARDS;
use super::{Bench, Limits};
use crate::findings::{LevelSummary, LittlesLawCheck, Trust};
use crate::say::{count, ms, number, percent};

/// Lag in ms that no pacer on a shared machine avoids. Below it, a share of a very short latency means nothing.
const LAG_FLOOR_MS: f64 = 0.5;
/// Lag divided by latency, p99 by p99 and median by median.
///
/// At 5 % the lag changes a latency from the due time by about the difference of repeated runs. At 50 % the generator is half
/// of the measurement.
const LAG: Limits = Limits { suspect: 0.05, invalid: 0.5 };
/// Kernel-to-user delay at p99, divided by the median latency.
///
/// Kernel timestamps are correct in any case, but a reader this slow lets socket buffers fill and then slows the sender.
const USER_DELAY: Limits = Limits { suspect: 0.25, invalid: 1.0 };
/// User delay in ms below which the share is not evaluated.
const USER_DELAY_FLOOR_MS: f64 = 2.0;
/// Share of time runnable and not running, if the kernel stamps arrivals.
///
/// The timestamps are not affected, and the delay of a send is lag, which has its own check. From a fifth of the time on,
/// reading and sending could slow the load without a trace in the timestamps.
const RUN_QUEUE: Limits = Limits { suspect: RUN_QUEUE_SUSPECT, invalid: 0.5 };
/// Run-queue share above which a run is suspect. The check of a machine before a run uses this limit too.
pub const RUN_QUEUE_SUSPECT: f64 = 0.2;
/// Share of time runnable and not running, if user space stamps arrivals.
///
/// Each timestamp waits for a CPU with this probability, so 5 % affects every p95.
const RUN_QUEUE_OWN_STAMPS: Limits = Limits { suspect: 0.05, invalid: 0.2 };
/// CPU share of the busiest worker. A queue at 85 % load increases delays (M/M/1: 6.7 ×); at 97 % the generator queues.
const CPU: Limits = Limits { suspect: 0.85, invalid: 0.97 };
/// Share of events whose time is only an upper bound. Above it, gap percentiles describe reads and not events.
const COALESCED: f64 = 0.2;
/// Little's law: disagreement of the sampled in-flight counter with the records.
///
/// Sampling error and the generator's delay are subtracted. 5 % is a percentile's interval; with a fifth, records are missing
/// or timestamps are wrong.
const LITTLE: Limits = Limits { suspect: 0.05, invalid: 0.2 };
/// Share of attempts without a socket on this machine. They appear among the target's errors but are not its errors.
const NO_SOCKET: Limits = Limits { suspect: 0.0, invalid: 0.01 };
/// Share of used descriptors or local ports above which the next level may run out.
const ROOM: f64 = 0.9;
/// Seconds after which Linux retransmits a SYN.
const SYN_AGAIN_S: f64 = 1.0;
/// Descriptors of a run in addition to its connections.
const OWN_DESCRIPTORS: u64 = 64;
/// Advice for a starved generator.
///
/// Engine workers that spin, as in vLLM, take every core of a shared machine. With priority over them the generator takes
/// the few microseconds that it needs, which makes no difference to the engine.
const AHEAD: &str = "put the generator ahead of other work (`chrt -f 5 plimsoll …` as root, else `nice -n -10`), give it a quieter \
     machine or more workers";

/// Checks the generator's measurements, from the most frequent problem to the rarest.
pub fn generator(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    punctual(bench, level, summary);
    machine(bench, summary);
    stamps(bench, summary);
    counted(bench, summary);
    kept(bench, summary);
    room(bench, summary);
    shards(bench, summary);
    let health = &summary.generator;
    if let Some(since) = health.closed_since {
        bench.say(
            "closed_since",
            Trust::Suspect,
            format!("closed from t={} s", number((since - level.start).as_secs_f64())),
            "the ceiling delayed arrivals, and from then on the load followed the server",
            "raise the ceiling, or read the level as a closed loop",
        );
    }
}

/// Returns the latency in ms that figures of the generator are compared with: the median, or 1 ms if there is none.
fn scale_ms(summary: &LevelSummary) -> f64 {
    let leading = summary.latency.leading();
    let median = leading.p50.value().filter(|s| s.is_finite()).or(leading.mean_finite_s);
    (1e3 * median.unwrap_or(0.001)).max(0.001)
}

/// Returns the highest shown and finite percentile of the leading latency in ms.
fn tail_ms(summary: &LevelSummary) -> f64 {
    let rows = summary.latency.leading().rows();
    let shown = rows.into_iter().filter(|(p, _)| *p <= 0.99).filter_map(|(_, reading)| reading.value());
    1e3 * shown.filter(|s| s.is_finite()).fold(0.0, f64::max)
}

/// Checks that the generator sent and read in time.
fn punctual(bench: &mut Bench, level: &Level, summary: &LevelSummary) {
    let health = &summary.generator;
    let scale = scale_ms(summary);
    // If the user's maximum rate delayed arrivals, the lateness is its result and is checked below.
    if matches!(level.load, Load::Open { .. }) && health.lag.count > 0 && health.closed_since.is_none() {
        // The lag's tail is compared with a tail and its median with a median, because each adds to its counterpart.
        // With few arrivals the p99 is the largest lag, which may be one hiccup of the machine.
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
            &format!("{AHEAD}; or read the after_send figures"),
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
            AHEAD,
        );
    }
}

/// Checks that the machine gave the generator enough CPU time.
fn machine(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    if let Some(share) = health.run_queue_share_max {
        bench.say(
            "run_queue",
            if health.stamps == StampSource::Kernel { RUN_QUEUE } else { RUN_QUEUE_OWN_STAMPS }.judge(share),
            format!("the worker worst off waited for a CPU {} of the time", percent(share)),
            "other work on this machine delayed the generator",
            AHEAD,
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

/// Checks that timestamps are of single events, by the kernel's clock.
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
        // The last token of a response often shares its read with the end of the stream, which is no buffering.
        let last_tokens = summary.counts.finished.min(health.events_coalesced);
        let share = (health.events_coalesced - last_tokens) as f64 / health.events as f64;
        bench.say(
            "coalesced",
            if share > COALESCED { Trust::Suspect } else { Trust::Valid },
            format!("{} of the events came with a later one in the same read", percent(share)),
            "event gaps and itl describe reads rather than events; ttft and e2e remain valid",
            "check for buffering between server and generator",
        );
    }
}

/// Checks that the generator's counter and clock agree with the records.
fn counted(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    let enough = |little: &&LittlesLawCheck| little.from_records.max(little.sampled_mean) >= 1.0;
    if let Some(little) = summary.concurrency.little.as_ref().filter(enough) {
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
            "kernel stamps follow the realtime clock, so stamps near a step may be wrong by its size",
            "wait until the clock is synchronised, then repeat the run",
        );
    }
}

/// Reports kept connections that had ended before their reuse.
///
/// The target's handling of them is no fault of the measurement. It is reported because it costs a new connection, and
/// because requests that meet the end fail.
fn kept(bench: &mut Bench, summary: &LevelSummary) {
    let Some(kept) = summary.generator.kept.filter(|kept| kept.looks + kept.lost > 0) else { return };
    let looks = count(kept.looks, "check") + " of kept connections before they were used again";
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

/// Share of requests that lost shards never sent; the limits are equal to the limits of missing rows.
const LOST: Limits = Limits { suspect: 0.0, invalid: 0.01 };
/// Distance of shard clocks as a share of the mean gap between arrivals. Above it, an even process changes its arrivals.
///
/// At a tenth the coefficient of variation of the gaps is 0.1.
const SMEARED: f64 = 0.1;
/// Distance of shard clocks in seconds above which the shards did not start together.
const APART_S: f64 = 0.010;

/// Checks that all shards of a load sent requests and started together.
///
/// A latency uses the clock of one machine. A difference of clocks shifts the arrivals of one shard against the others.
/// Poisson arrivals stay Poisson; even arrivals do not stay even.
fn shards(bench: &mut Bench, summary: &LevelSummary) {
    let Some(shards) = summary.generator.shards else { return };
    let all = count(shards.of.into(), "shard");
    let never = shards.never_sent as f64 / summary.counts.requests.max(1) as f64;
    bench.say(
        LOST_SHARDS,
        LOST.judge(if shards.lost > 0 { never.max(1e-9) } else { 0.0 }),
        match shards.lost {
            0 => format!("all of {all} sent their part"),
            lost => {
                format!("{lost} of {all} were lost, and {} never sent", count(shards.never_sent, "request"))
            }
        },
        "the target received less than the requested load, so no verdict passes",
        "run all shards again",
    );
    let Some(apart_ns) = shards.clocks_apart_ns else {
        return bench.say(
            "shard_clocks",
            Trust::Suspect,
            "the clock errors of the shards are unknown".into(),
            "each latency uses one clock and remains valid, but the shards may have started apart, which changes the load",
            "synchronise the clocks of all machines (chrony, PTP)",
        );
    };
    let gap_s = 1.0 / summary.rates.offered_per_s.max(1e-9);
    let apart_s = apart_ns as f64 / 1e9;
    let smeared = shards.constant && apart_s > SMEARED * gap_s;
    bench.say(
        "shard_clocks",
        if smeared || apart_s > APART_S { Trust::Suspect } else { Trust::Valid },
        format!("no two of their clocks more than {} apart", ms(apart_s)),
        "the shards may have started that far apart, which smears evenly spaced arrivals; each latency uses one clock and remains valid",
        "use Poisson arrivals, or synchronise the clocks more closely (chrony, PTP)",
    );
}

/// Checks whether connections exhausted the machine's resources. `plimsoll doctor` checks before a run; this is the result.
fn room(bench: &mut Bench, summary: &LevelSummary) {
    let health = &summary.generator;
    let Some(room) = &health.room else { return };
    let attempts = summary.counts.attempts.max(1);
    bench.say(
        "sockets",
        NO_SOCKET.judge(room.no_socket as f64 / attempts as f64),
        format!("{} found no descriptor, port or memory for a connection", count(room.no_socket, "attempt")),
        "this machine could not open all connections, and these failures count as errors of the target",
        "run `plimsoll doctor` and raise what it names, or keep fewer connections",
    );
    let mut near = |check: &str, used: u64, of: Option<u64>, what: &str, advice: &str| {
        let Some(of) = of else { return };
        let full = used as f64 > ROOM * of as f64;
        let verdict = if full { Trust::Suspect } else { Trust::Valid };
        let means = "the level came close to a limit of this machine, which rejects slightly more load";
        bench.say(check, verdict, format!("{used} of {of} {what}"), means, advice);
    };
    let descriptors = u64::from(health.sockets_max) + OWN_DESCRIPTORS;
    near("descriptors", descriptors, room.descriptors, "open files", "raise the hard limit of open files");
    let ports = room.ports.map(u64::from);
    let advice = "widen net.ipv4.ip_local_port_range, keep connections, or give the target several addresses";
    near("ports", u64::from(health.connects), ports, "local ports to an address taken", advice);
    if let Some(turned_away) = room.listen_overflows {
        // The kernel counts for the whole machine, so another server's queue may overflow. A request of this run with a rejected
        // connection waited for the second attempt, or failed.
        let leading = summary.latency.leading();
        let waited =
            leading.infinite > 0 || leading.max_finite_s.is_some_and(|longest| longest >= SYN_AGAIN_S);
        bench.say(
            "backlog",
            if turned_away > 0 && waited { Trust::Suspect } else { Trust::Valid },
            format!("{} overflowed a listening queue of this machine", count(turned_away, "connection")),
            "the kernel retries such a connection after 1 s; that time is not server time",
            "give the server a longer listen backlog (and net.core.somaxconn), or open connections ahead",
        );
    }
}
