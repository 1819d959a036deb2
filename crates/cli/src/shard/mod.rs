//! Sends one load from several machines. Each draws the whole schedule and sends its part, and all start simultaneously.
//!
//! Before the load starts, the machines agree on the values that must be equal: scenario, nonce, start and the result of the
//! prompts' calibration. If they meet in a shared place, shard 0 decides. If they only have a start time,
//! each decides separately, and `plimsoll merge` checks whether they agreed.

mod fetch;
mod levels;
mod meet;
mod part;
mod upload;

use std::sync::Arc;

use plimsoll_client::clock::realtime_ns;
use plimsoll_client::clock_error::wall_clock_error_ns;
use plimsoll_client::{Clock, Control};
use plimsoll_model::{At, Manifest, RunState, Shard, ShardPart, Span};
use plimsoll_profile::names::instant_ns;

use crate::exit::{Exit, Stop};
use crate::flags::ShardArgs;

use crate::place::{self, ShardStore};

pub use fetch::{TempFolder, fetch};
pub use levels::{LevelParts, Levels, NextLevel};
pub use meet::TargetFacts;
pub use part::ShardLevel;
pub use upload::{Upload, UploadTarget, of_shard};

/// Lateness of the start after which a shard sends nothing, because it would send all overdue requests simultaneously.
const LATE: Span = Span(1_000_000_000);

/// Time before the start at which connections are opened.
const AHEAD: Span = Span(1_500_000_000);

/// The configuration of this machine's part of a shared load.
#[derive(Debug)]
pub struct ShardRequest {
    pub shard: Shard,
    /// The command. A `run` is one level that all shards send; for a `sweep` and a `gate`, shard 0 announces the levels.
    command: &'static str,
    start: StartBy,
    /// Whether the nonce is configured; if not, the shards agree on one.
    nonce_is_said: bool,
}

#[derive(Debug)]
enum StartBy {
    /// At this time of every machine's clock, in ns since the Unix epoch.
    Time(i64),
    /// As soon as all shards have met in this place; fails after this time.
    Meeting(Arc<dyn ShardStore>, Span),
}

#[derive(Debug)]
pub struct ShardAgreement {
    /// Part of the load that this machine sends.
    pub shard: Shard,
    /// Start in ns since the Unix epoch.
    start_unix_ns: i64,
    /// Start on this run's time axis.
    pub at: At,
    /// Largest error of this machine's clock before the start, in ns; `None` if it is unknown.
    clock_error_ns: Option<i64>,
    /// Levels of a search, which shard 0 announces; `None` for a `run`.
    pub levels: Option<Levels>,
}

impl ShardRequest {
    /// Parses the flags; `None` if this machine sends the whole load.
    pub fn of(
        args: &ShardArgs,
        nonce_is_said: bool,
        command: &'static str,
    ) -> Result<Option<ShardRequest>, Stop> {
        let Some(text) = &args.shard else { return Ok(None) };
        let shard = Shard::parse(text).ok_or_else(|| {
            Stop::usage(format!(
                "--shard {text}: write its number, from 0, and how many there are: 0/4, 1/4, 2/4, 3/4"
            ))
        })?;
        let start = match (&args.start_at, &args.rendezvous) {
            (Some(_), None) if command != "run" => {
                return Err(Stop::usage(format!(
                    "--start-at: a {command} chooses each level from earlier results, so its shards need --rendezvous PLACE"
                )));
            }
            (Some(text), None) => StartBy::Time(start_at(text)?),
            (None, Some(path)) => {
                let patience = plimsoll_workload::parse_span(&args.shard_wait)
                    .map_err(|e| Stop::usage(format!("--shard-wait: {e}")))?;
                StartBy::Meeting(place::open("--rendezvous", path)?, patience)
            }
            _ => {
                return Err(Stop::usage(
                    "--shard: needs a common start: --rendezvous PLACE (a shared folder, s3://bucket/prefix) or --start-at TIME",
                ));
            }
        };
        if matches!(start, StartBy::Time(_)) && !nonce_is_said {
            return Err(Stop::usage(
                "--start-at: shards that do not meet must be given the same --nonce (any number that no earlier run had)",
            ));
        }
        Ok(Some(ShardRequest { shard, command, start, nonce_is_said }))
    }

    fn agreed(&self, clock: Clock, start_unix_ns: i64) -> ShardAgreement {
        ShardAgreement {
            shard: self.shard,
            start_unix_ns,
            at: clock.at_unix(start_unix_ns),
            clock_error_ns: wall_clock_error_ns(),
            levels: None,
        }
    }
}

impl ShardAgreement {
    /// Returns the part of a level that this shard sends, or `None` if it sends no request.
    ///
    /// `concurrency` is the number of requests in flight; `None` for an open loop. In a search, shard 0 sends a level
    /// that can't be divided, such as one request at a time.
    pub fn takes(&self, concurrency: Option<u32>) -> Option<Shard> {
        let of = match &self.levels {
            Some(_) => concurrency.unwrap_or(u32::MAX).clamp(1, self.shard.of),
            None => self.shard.of,
        };
        (self.shard.index < of).then_some(Shard { of, ..self.shard })
    }

    /// Returns the manifest entry of this shard in its current state.
    pub fn part(&self, arrivals: u64, schedule_hash: String) -> ShardPart {
        ShardPart {
            shard: self.shard,
            start_unix_ns: self.start_unix_ns,
            arrivals,
            schedule_hash,
            progress: RunState::Running,
            clock_error_ns: self.clock_error_ns,
            host: None,
            lost: 0,
        }
    }

    /// Returns the run id that all shards use for their requests, from the values that they agreed on.
    pub fn run_id(&self, key: u64) -> String {
        format!("{:016x}", key ^ (self.start_unix_ns as u64).rotate_left(17))
    }

    /// Records in the manifest how the part ended. A single shard is marked as a part, so no judge treats it as a complete run.
    pub fn close(&mut self, manifest: &mut Manifest) {
        if let (0, Some(levels)) = (self.shard.index, &mut self.levels) {
            return levels.close(manifest);
        }
        let Some(part) = &mut manifest.shard else { return };
        let before = self.levels.as_ref().map_or(self.clock_error_ns, Levels::worst_clock_error_ns);
        part.clock_error_ns = larger_error(before, wall_clock_error_ns());
        part.progress = manifest.progress.clone();
        let why = match &manifest.progress {
            RunState::Partial { why } => format!(", and {why}"),
            _ => String::new(),
        };
        let shard = self.shard;
        let why = format!("shard {shard}, a part of a load that plimsoll merge puts together{why}");
        manifest.progress = RunState::Partial { why };
    }

    /// Waits until it is time to open connections.
    pub fn wait(&self, clock: Clock, control: &Control) -> Result<(), Stop> {
        let late = clock.now() - self.at;
        if late > LATE {
            return Err(Stop::invalid(format!(
                "shard {} is {:.1} s late for the common start, so nothing was sent: all its requests would be due immediately",
                self.shard,
                late.as_secs_f64()
            )));
        }
        until(clock, self.at + -AHEAD, control)
    }
}

/// Sleeps until `at`, unless the user stops the run.
fn until(clock: Clock, at: At, control: &Control) -> Result<(), Stop> {
    loop {
        if control.stops() > 0 {
            return Err(stopped());
        }
        let left = at - clock.now();
        if left <= Span::ZERO {
            return Ok(());
        }
        std::thread::sleep(left.min(Span::from_millis(50)).as_duration());
    }
}

fn stopped() -> Stop {
    let line = "stopped before the common start: this shard sent nothing".to_owned();
    Stop { exit: Exit::Interrupted, line }
}

fn start_at(text: &str) -> Result<i64, Stop> {
    let seconds = || text.parse::<i64>().ok().and_then(|s| s.checked_mul(1_000_000_000));
    let ns = instant_ns(text).or_else(seconds).ok_or_else(|| {
        Stop::usage(format!(
            "--start-at {text}: write a time such as 2026-11-25T14:30:00Z, or seconds since 1970 (date -d 'now + 2 min' +%s)"
        ))
    })?;
    let left_s = (ns - realtime_ns()) as f64 / 1e9;
    if left_s < 0.0 {
        return Err(Stop::usage(format!(
            "--start-at {text}: {:.0} s in the past; choose a time after all shards have started",
            -left_s
        )));
    }
    if left_s > 86_400.0 {
        return Err(Stop::usage(format!("--start-at {text}: more than a day from now")));
    }
    Ok(ns)
}

/// Returns the larger of two clock errors in ns; `None` if either is unknown.
fn larger_error(a: Option<i64>, b: Option<i64>) -> Option<i64> {
    a.zip(b).map(|(a, b)| a.max(b))
}

/// Returns the first path at which two scenarios differ, with both values.
pub fn difference(
    a: &serde_json::Value,
    b: &serde_json::Value,
    path: &str,
) -> Option<(String, String, String)> {
    use serde_json::Value;
    if let (Value::Object(a), Value::Object(b)) = (a, b) {
        let keys: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
        return keys.into_iter().find_map(|key| {
            let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
            let of = |map: &serde_json::Map<String, Value>| map.get(key).cloned().unwrap_or(Value::Null);
            difference(&of(a), &of(b), &path)
        });
    }
    (a != b).then(|| (path.to_owned(), a.to_string(), b.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_difference_is_named_with_its_place() {
        let a = json!({"seed": 1, "load": {"rate": "10/s", "window": "1s"}});
        assert_eq!(difference(&a, &a, ""), None);
        let b = json!({"seed": 1, "load": {"rate": "20/s", "window": "1s"}});
        let found = difference(&a, &b, "").expect("they differ");
        assert_eq!(found, ("load.rate".into(), "\"10/s\"".into(), "\"20/s\"".into()));
        let none = json!({"load": {"rate": "10/s", "window": "1s"}});
        assert_eq!(difference(&a, &none, "").map(|found| found.0), Some("seed".into()));
    }

    #[test]
    fn a_start_is_a_time_to_come() {
        let soon = realtime_ns() / 1_000_000_000 + 60;
        assert_eq!(start_at(&soon.to_string()).expect("a minute from now"), soon * 1_000_000_000);
        for wrong in ["soon", "2026-01-01T00:00:00Z", "12", "2199-01-01T00:00:00Z", ""] {
            assert!(start_at(wrong).is_err(), "{wrong}");
        }
    }
}
