//! Checks whether this machine is fit to measure, before limits break a run, and names a fix for each problem.
//!
//! The checks read /proc and query the kernel. They open only sockets and change nothing.

use std::fs;
use std::sync::mpsc;

use plimsoll_model::{Host, Quantiles, Span};

use crate::clock::{Clock, thread_run_queue_ns};
use crate::histogram::LogHistogram;
use crate::http1::tcp::kernel_stamps_available;
use crate::timer::{self, Timer};

/// The severity of a check's result.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum CheckSeverity {
    Good,
    /// A run works, but measures or carries less than it could.
    Limited,
    /// The requested run cannot work on this machine.
    Bad,
}

#[derive(Clone, PartialEq, Debug)]
pub struct DoctorFinding {
    /// Stable name of the check, for scripts.
    pub check: &'static str,
    pub severity: CheckSeverity,
    /// Result as one line of text.
    pub found: String,
    /// Recommended fix; empty if there is no problem.
    pub fix: String,
}

/// Runs every check, which takes about a second. `connections` is the number that a run may need simultaneously, if known.
pub fn check(connections: Option<u32>) -> Vec<DoctorFinding> {
    let mut findings = vec![
        descriptors(connections),
        ports(connections),
        backlog(),
        stamps(),
        timer_slack(),
        run_queue(),
        cores(),
    ];
    findings.extend(governor());
    findings.push(gpus());
    findings.push(pacer());
    findings
}

/// Reports the GPUs that the driver of this machine shows; none is no problem, because most endpoints are on other machines.
fn gpus() -> DoctorFinding {
    let found = match crate::metrics::nvml::gpus() {
        0 => "no NVML on this machine: metrics of GPUs come from an exporter".to_owned(),
        n => format!("NVML reports {n} GPUs on this machine"),
    };
    finding("gpus", CheckSeverity::Good, found, "")
}

fn finding(check: &'static str, severity: CheckSeverity, found: String, fix: &str) -> DoctorFinding {
    let fix = if severity == CheckSeverity::Good { String::new() } else { fix.to_owned() };
    DoctorFinding { check, severity, found, fix }
}

/// Returns the soft and the hard limit on open files.
pub(crate) fn descriptor_limit() -> Option<(u64, u64)> {
    nix::sys::resource::getrlimit(nix::sys::resource::Resource::RLIMIT_NOFILE).ok()
}

/// Raises the soft limit on open files to the hard limit if the system permits it; returns the resulting soft limit.
pub fn raise_descriptor_limit() -> Option<u64> {
    use nix::sys::resource::{Resource, setrlimit};
    let (soft, hard) = descriptor_limit()?;
    if soft < hard && setrlimit(Resource::RLIMIT_NOFILE, hard, hard).is_err() {
        return Some(soft);
    }
    Some(hard)
}

fn descriptors(connections: Option<u32>) -> DoctorFinding {
    // In addition to connections: the run's files, the runtime's descriptors, and a reserve.
    let need = u64::from(connections.unwrap_or(4_000)) + 64;
    match descriptor_limit() {
        None => finding("descriptors", CheckSeverity::Limited, "limit not known".into(), "check `ulimit -n`"),
        Some((soft, hard)) => finding(
            "descriptors",
            if hard.max(soft) >= need {
                CheckSeverity::Good
            } else if connections.is_some() {
                CheckSeverity::Bad
            } else {
                CheckSeverity::Limited
            },
            format!("{soft} open files (may be raised to {hard}), {need} needed"),
            "raise the hard limit: `ulimit -Hn` in the shell, LimitNOFILE in a unit, --ulimit nofile in a container",
        ),
    }
}

/// Returns the number of local ports for connections to one address.
pub(crate) fn local_ports() -> Option<u32> {
    let text = fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").ok()?;
    let mut ends = text.split_whitespace().map_while(|n| n.parse::<u32>().ok());
    let (low, high) = (ends.next()?, ends.next()?);
    Some(high.saturating_sub(low) + 1)
}

/// Returns the connections that listening sockets in this network namespace have dropped because their queue was full.
pub fn listen_overflows() -> Option<u64> {
    netstat(&fs::read_to_string("/proc/net/netstat").ok()?, "TcpExt:", "ListenOverflows")
}

/// Returns one counter of /proc/net/netstat, which has a line of names and a line of numbers per group.
fn netstat(text: &str, group: &str, name: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with(group)).map(str::split_whitespace);
    let (mut names, mut values) = (lines.next()?, lines.next()?);
    values.nth(names.position(|one| one == name)?)?.parse().ok()
}

fn ports(connections: Option<u32>) -> DoctorFinding {
    let Some(range) = local_ports() else {
        return finding("ports", CheckSeverity::Limited, "range of local ports not known".into(), "");
    };
    let need = connections.unwrap_or(4_000);
    finding(
        "ports",
        if range > need { CheckSeverity::Good } else { CheckSeverity::Limited },
        format!("{range} local ports to each address of the target"),
        "widen it: sysctl -w net.ipv4.ip_local_port_range='1024 65535', or give the target several addresses",
    )
}

fn backlog() -> DoctorFinding {
    let limit =
        fs::read_to_string("/proc/sys/net/core/somaxconn").ok().and_then(|t| t.trim().parse::<u32>().ok());
    match limit {
        Some(n) => finding(
            "backlog",
            if n >= 1024 { CheckSeverity::Good } else { CheckSeverity::Limited },
            format!("a server on this machine queues at most {n} connections"),
            "sysctl -w net.core.somaxconn=4096 (matters where the server runs here)",
        ),
        None => finding("backlog", CheckSeverity::Limited, "not known".into(), ""),
    }
}

fn stamps() -> DoctorFinding {
    if kernel_stamps_available() {
        finding("stamps", CheckSeverity::Good, "the kernel stamps arrivals".into(), "")
    } else {
        finding(
            "stamps",
            CheckSeverity::Limited,
            "the kernel gives no receive stamps: arrivals are stamped when they are read".into(),
            "use Linux, outside of a sandbox that filters SO_TIMESTAMPING; runs on this machine record `stamps: user`",
        )
    }
}

fn timer_slack() -> DoctorFinding {
    let sharp = std::thread::spawn(timer::sharpen_thread).join().unwrap_or(false);
    finding(
        "timer slack",
        if sharp { CheckSeverity::Good } else { CheckSeverity::Limited },
        if sharp { "1 ns".into() } else { "cannot be set: arrivals are sent up to 50 µs late".into() },
        "allow prctl(PR_SET_TIMERSLACK)",
    )
}

fn run_queue() -> DoctorFinding {
    match thread_run_queue_ns() {
        Some(_) => finding(
            "run queue",
            CheckSeverity::Good,
            "the kernel reports how long threads wait to run".into(),
            "",
        ),
        None => finding(
            "run queue",
            CheckSeverity::Limited,
            "waiting for a core cannot be seen: a busy machine shows only as lag".into(),
            "sysctl -w kernel.sched_schedstats=1, or a kernel with CONFIG_SCHED_INFO",
        ),
    }
}

fn cores() -> DoctorFinding {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    finding(
        "cores",
        if cores > 1 { CheckSeverity::Good } else { CheckSeverity::Limited },
        format!("{cores} for this process"),
        "give it two at least: one to send load, one for everything else",
    )
}

fn governor_name() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    Some(text.trim().to_owned())
}

fn governor() -> Option<DoctorFinding> {
    let name = governor_name()?;
    let severity = if name == "performance" { CheckSeverity::Good } else { CheckSeverity::Limited };
    Some(finding("governor", severity, name, "cpupower frequency-set -g performance"))
}

/// Returns this machine's description for the manifest.
pub fn host() -> Host {
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = cpu.lines().find_map(|l| l.strip_prefix("model name")).unwrap_or_default();
    Host {
        os: format!("{} {}", std::env::consts::OS, kernel.trim()).trim().to_owned(),
        cpu: model.trim_start_matches([' ', '\t', ':']).to_owned(),
        cores: std::thread::available_parallelism().map_or(1, |n| n.get() as u32),
        governor: governor_name(),
    }
}

fn pacer() -> DoctorFinding {
    match pacer_lateness(200, Span::from_millis(2)) {
        Ok(q) => punctual("pacer", &q),
        Err(error) => {
            finding("pacer", CheckSeverity::Bad, format!("no timer: {error}"), "allow timerfd_create")
        }
    }
}

/// Returns a finding on whether the pacer is late enough to distort a measurement.
pub fn punctual(check: &'static str, q: &Quantiles) -> DoctorFinding {
    finding(
        check,
        // A late median is caused by the timer. A late p99 is caused by the machine and adds to the measured p99.
        if q.p50_ns <= 200_000 && q.p99_ns <= 2_000_000 {
            CheckSeverity::Good
        } else {
            CheckSeverity::Limited
        },
        format!(
            "{} is late by {} µs at the median, {} µs at p99",
            timer::SOURCE,
            q.p50_ns / 1000,
            q.p99_ns / 1000
        ),
        "the machine is busy, or a virtual one that is not scheduled: free a core, or put plimsoll ahead of other work (`chrt -f 5` as root, \
         else `nice -n -10`)",
    )
}

/// Measures the lateness of `fires` timer wake-ups that are `every` apart.
///
/// # Errors
/// Fails if the system provides no timer or no runtime.
pub fn pacer_lateness(fires: u32, every: Span) -> std::io::Result<Quantiles> {
    let (result, done) = mpsc::channel();
    std::thread::Builder::new().name("pacer-check".into()).spawn(move || {
        timer::sharpen_thread();
        let _ = result.send(pace(fires, every));
    })?;
    done.recv().unwrap_or_else(|_| Err(std::io::Error::other("the checking thread died")))
}

fn pace(fires: u32, every: Span) -> std::io::Result<Quantiles> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let clock = Clock::start();
        let timer = Timer::new()?;
        let mut lateness = LogHistogram::default();
        let mut due = clock.now() + every;
        for _ in 0..fires {
            timer.arm(clock.to_monotonic_ns(due))?;
            while clock.now() < due {
                timer.fired().await?;
            }
            lateness.record((clock.now() - due).0);
            due += every;
        }
        Ok(lateness.quantiles())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_found_by_its_name_whatever_stands_before_it() {
        let text = "TcpExt: SyncookiesSent ListenOverflows ListenDrops\nTcpExt: 1 22 333\nIpExt: InOctets\nIpExt: 9\n";
        assert_eq!(netstat(text, "TcpExt:", "ListenOverflows"), Some(22));
        assert_eq!(netstat(text, "IpExt:", "InOctets"), Some(9));
        assert_eq!(netstat(text, "TcpExt:", "InOctets"), None);
        assert_eq!(netstat("", "TcpExt:", "ListenOverflows"), None);
    }
}
