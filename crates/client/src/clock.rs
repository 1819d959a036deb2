//! Reads the machine's clocks; no other file of the crate reads them.
//!
//! Every time is on one axis, [`At`]: nanoseconds of CLOCK_MONOTONIC since the run's anchor. Kernel receive stamps use
//! CLOCK_REALTIME, which NTP slews and users set. A [`ClockTie`] keeps the difference of the two clocks. It resamples the
//! difference after a few milliseconds and counts the steps between samples. `std::time::Instant` was rejected, because it
//! can't be compared with another process's log, and a truth log needs that.

use std::cell::Cell;

use nix::time::{ClockId, clock_gettime};
use plimsoll_model::{At, ClockAnchor, Span};

/// Age in ns at which a tie is resampled. Slewing moves realtime by at most 500 ppm: 5 µs in this time.
const TIE_AGE_NS: i64 = 10_000_000;
/// Smallest jump in ns between two ties that slewing cannot explain.
const STEP_NS: i64 = 1_000_000;
/// The fastest slew that Linux applies, ns per µs elapsed (500 ppm).
const SLEW_PER_US: f64 = 0.5;
/// User-kernel delay in ns that triggers a new tie, because the tie may be stale.
const SUSPECT_NS: i64 = 2_000_000;

fn read(id: ClockId) -> i64 {
    match clock_gettime(id) {
        Ok(t) => t.tv_sec() * 1_000_000_000 + t.tv_nsec(),
        // Every kernel that runs Rust has the clocks used here; only a thread clock may be missing in a sandbox.
        Err(_) => 0,
    }
}

pub fn monotonic_ns() -> i64 {
    read(ClockId::CLOCK_MONOTONIC)
}

/// Returns CLOCK_REALTIME in ns since the Unix epoch.
pub fn realtime_ns() -> i64 {
    read(ClockId::CLOCK_REALTIME)
}

/// Returns the CPU time of the calling thread in ns.
pub fn thread_cpu_ns() -> i64 {
    read(ClockId::CLOCK_THREAD_CPUTIME_ID)
}

/// Returns the CPU time of the process in ns.
pub fn process_cpu_ns() -> i64 {
    read(ClockId::CLOCK_PROCESS_CPUTIME_ID)
}

/// Returns the time that the calling thread was runnable but not running, in ns; `None` if the kernel does not report it.
pub(crate) fn thread_run_queue_ns() -> Option<i64> {
    run_queue_of(std::path::Path::new("/proc/thread-self/schedstat"))
}

fn run_queue_of(path: &std::path::Path) -> Option<i64> {
    // "time on cpu, time waiting, slices": Documentation/scheduler/sched-stats.rst.
    std::fs::read_to_string(path).ok()?.split_whitespace().nth(1)?.parse().ok()
}

/// Reads both clocks at one instant: realtime between two monotonic reads. Returns also the distance of these reads in ns.
fn tie() -> (i64, ClockAnchor) {
    let before = monotonic_ns();
    let realtime_ns = realtime_ns();
    let gap = monotonic_ns() - before;
    (gap, ClockAnchor { monotonic_ns: before + gap / 2, realtime_ns })
}

/// Reads both clocks at one instant.
pub fn anchor() -> ClockAnchor {
    tie().1
}

/// Reads both clocks at one instant: the closest pair of three.
fn tie_once() -> ClockAnchor {
    [tie(), tie(), tie()].into_iter().min_by_key(|tie| tie.0).map_or_else(anchor, |tie| tie.1)
}

/// The time axis of a run.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Clock {
    anchor: ClockAnchor,
}

impl Clock {
    /// Starts an axis whose zero is now.
    pub fn start() -> Clock {
        Clock { anchor: tie_once() }
    }

    /// Returns this axis tied to a different wall-clock time, to simulate a machine with a wrong clock.
    #[must_use]
    pub fn with_realtime(self, realtime_ns: i64) -> Clock {
        Clock { anchor: ClockAnchor { realtime_ns, ..self.anchor } }
    }

    /// Returns the tie between the axis and the machine's clocks, for the manifest.
    pub fn anchor(&self) -> ClockAnchor {
        self.anchor
    }

    pub fn now(&self) -> At {
        At(monotonic_ns() - self.anchor.monotonic_ns)
    }

    /// Returns the time at which CLOCK_REALTIME will read `unix_ns` if it is not set or slewed.
    pub fn at_unix(&self, unix_ns: i64) -> At {
        let tie = tie_once();
        At(unix_ns - tie.realtime_ns + self.from_monotonic_ns(tie.monotonic_ns).0)
    }

    /// Returns the CLOCK_MONOTONIC reading at `at`, to arm an absolute timer.
    pub fn to_monotonic_ns(self, at: At) -> i64 {
        at.0.saturating_add(self.anchor.monotonic_ns)
    }

    /// Converts a CLOCK_MONOTONIC reading to the run's axis.
    pub fn from_monotonic_ns(&self, ns: i64) -> At {
        At(ns - self.anchor.monotonic_ns)
    }
}

/// The tie between CLOCK_REALTIME and the run's axis. Each thread has one, because a tie is cheap (six clock reads).
#[derive(Debug)]
pub struct ClockTie {
    clock: Clock,
    /// Realtime minus run axis, in ns.
    offset: Cell<i64>,
    tied_at: Cell<At>,
    steps: Cell<u32>,
}

impl ClockTie {
    pub fn new(clock: Clock) -> ClockTie {
        let ties =
            ClockTie { clock, offset: Cell::new(0), tied_at: Cell::new(At::ZERO), steps: Cell::new(0) };
        let (offset, at) = ties.sample();
        ties.offset.set(offset);
        ties.tied_at.set(at);
        ties
    }

    fn sample(&self) -> (i64, At) {
        let tie = tie_once();
        let at = self.clock.from_monotonic_ns(tie.monotonic_ns);
        (tie.realtime_ns - at.0, at)
    }

    /// Resamples the tie, and counts a step if the realtime clock moved more than slewing can.
    pub fn refresh(&self) {
        let (offset, at) = self.sample();
        if is_step(offset - self.offset.get(), at - self.tied_at.get()) {
            self.steps.set(self.steps.get() + 1);
        }
        self.offset.set(offset);
        self.tied_at.set(at);
    }

    /// Returns the number of realtime clock steps detected.
    pub fn steps(&self) -> u32 {
        self.steps.get()
    }

    /// Converts a kernel stamp (CLOCK_REALTIME ns) to the run's axis; `user` is the user-space stamp of that read. The
    /// result is never later than `user`. Returns `None` if the clock was set between stamp and read.
    pub fn place(&self, kernel_realtime_ns: i64, user: At) -> Option<At> {
        if (user - self.tied_at.get()).0 > TIE_AGE_NS {
            self.refresh();
        }
        let mut delay = user.0 - (kernel_realtime_ns - self.offset.get());
        if !(-1_000..=SUSPECT_NS).contains(&delay) {
            self.refresh();
            delay = user.0 - (kernel_realtime_ns - self.offset.get());
        }
        // Reads of two clocks agree to well under a microsecond. A slightly negative delay is that error; a larger one is a
        // step.
        match delay {
            d if d < -50_000 => None,
            d => Some(user + Span(-d.max(0))),
        }
    }
}

fn is_step(moved: i64, elapsed: Span) -> bool {
    moved.abs() as f64 > STEP_NS as f64 + elapsed.0.max(0) as f64 / 1e3 * SLEW_PER_US
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_axis_runs_forward_and_round_trips() {
        let clock = Clock::start();
        let a = clock.now();
        let b = clock.now();
        assert!(b >= a && a >= At::ZERO);
        assert_eq!(clock.from_monotonic_ns(clock.to_monotonic_ns(At(77))), At(77));
    }

    #[test]
    fn a_step_is_more_than_slewing_can_do() {
        // 500 ppm for ten seconds is 5 ms: no step. The same 5 ms within 10 ms is one.
        assert!(!is_step(5_000_000, Span::from_secs(10)));
        assert!(is_step(5_000_000, Span::from_millis(10)));
        assert!(is_step(-5_000_000, Span::from_millis(10)));
        assert!(!is_step(900_000, Span::ZERO));
    }

    #[test]
    fn a_kernel_stamp_is_placed_before_its_read() {
        let clock = Clock::start();
        let ties = ClockTie::new(clock);
        let stamp = realtime_ns();
        let user = clock.now();
        let placed = ties.place(stamp, user).expect("clocks agree");
        assert!(placed <= user);
        assert!((user - placed).0 < 1_000_000_000);
        // A stamp from the future cannot be placed.
        assert_eq!(ties.place(stamp + 3_600_000_000_000, user), None);
        assert_eq!(ties.steps(), 0);
    }

    #[test]
    fn the_thread_clocks_say_something() {
        assert!(thread_cpu_ns() > 0 && process_cpu_ns() > 0);
    }
}
