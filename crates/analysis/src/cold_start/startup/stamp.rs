//! When a line of a log was written: the stamps that servers and those who collect their logs put in front.
//!
//! Only differences within one log are used, so that neither the year nor the zone has to be known, and a stamp's resolution is that
//! of its last digit. A library of date formats lost: five formats are told apart by where their digits stand.

use std::sync::LazyLock;

use regex::{Captures, Regex};

/// A stamp, s on an axis of its own kind, and the time that its last digit stands for, s.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Stamp {
    /// Where on the axis.
    pub at_s: f64,
    /// The least time that two stamps can differ by.
    pub within_s: f64,
    /// Which axis: stamps of different kinds are not compared.
    pub kind: u8,
}

/// How far into a line a stamp may begin: behind a container's name or a log level.
const NEAR: usize = 60;
/// Days before each month of a leap year.
const BEFORE: [u32; 12] = [0, 31, 60, 91, 121, 152, 182, 213, 244, 274, 305, 335];

/// `2026-02-26T05:24:09.123Z`, with a space or without the fraction: TGI, SGLang, and what collects logs.
static ISO: LazyLock<Option<Regex>> =
    LazyLock::new(|| regex(r"(\d{4})-(\d\d)-(\d\d)[T ](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"));
/// `03-18 13:41:03`: vLLM.
static MONTH_DAY: LazyLock<Option<Regex>> =
    LazyLock::new(|| regex(r"(?:^|[^\d-])(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"));
/// `I1122 11:36:16.008925`: Triton and whatever logs like Google.
static GLOG: LazyLock<Option<Regex>> =
    LazyLock::new(|| regex(r"(?:^|\s)[IWEF](\d\d)(\d\d) (\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?"));
/// `0.05.583.301 I`, minutes, seconds, ms, µs since the process began: llama.cpp.
static SINCE: LazyLock<Option<Regex>> =
    LazyLock::new(|| regex(r"^(\d{1,7})\.(\d\d)\.(\d\d\d)\.(\d\d\d) [A-Z] "));

fn regex(pattern: &str) -> Option<Regex> {
    Regex::new(pattern).ok()
}

/// The stamp of a line; `None` where it has none that is known.
pub fn of(line: &str) -> Option<Stamp> {
    let near = line.char_indices().nth(NEAR).map_or(line, |(end, _)| &line[..end]);
    let found = |of: &'static LazyLock<Option<Regex>>| of.as_ref()?.captures(near);
    if let Some(own) = found(&SINCE) {
        let [minutes, seconds, ms, us] = [1, 2, 3, 4].map(|n| number(&own, n));
        return Some(Stamp {
            at_s: 60.0 * minutes + seconds + 1e-3 * ms + 1e-6 * us,
            within_s: 1e-6,
            kind: 0,
        });
    }
    if let Some(own) = found(&ISO) {
        let year = number(&own, 1);
        // Leap days between years are no matter for the length of a start; that a year is over is.
        return clock(&own, 2, 366.0 * (year - 2000.0), 1);
    }
    if let Some(own) = found(&GLOG) {
        return clock(&own, 1, 0.0, 2);
    }
    found(&MONTH_DAY).and_then(|own| clock(&own, 1, 0.0, 3))
}

/// Month, day, hour, minute, second and fraction from this group on.
fn clock(own: &Captures<'_>, from: usize, days: f64, kind: u8) -> Option<Stamp> {
    let [month, day, hour, minute, second] = [0, 1, 2, 3, 4].map(|n| number(own, from + n));
    let before = BEFORE.get((month as usize).checked_sub(1)?)?;
    let fraction = own.get(from + 5).map_or("", |found| found.as_str());
    let within_s = libm::pow(10.0, -(fraction.len() as f64));
    let seconds = 86_400.0 * (days + f64::from(*before) + day) + 3600.0 * hour + 60.0 * minute + second;
    Some(Stamp { at_s: seconds + fraction.parse().unwrap_or(0.0) * within_s, within_s, kind })
}

fn number(own: &Captures<'_>, group: usize) -> f64 {
    own.get(group).and_then(|found| found.as_str().parse().ok()).unwrap_or(0.0)
}
