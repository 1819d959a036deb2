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

/// How far into a line a stamp may reach: behind the names of a pod and its container (`kubectl logs --prefix`) or a log level.
const NEAR: usize = 160;
/// Days before each month of a common year. Where no year is told, a start through the night after a 29 February runs backwards by this, and
/// is none that is shown; by those of a leap year one through that of a 28 February would be a day too long three years in four.
const BEFORE: [u32; 12] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334];

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

/// `2m41s  Normal  Scheduled` and `Normal  Scheduled  27s (x3 over 66s)`: how long ago, as kubectl prints events.
static AGO: LazyLock<Option<Regex>> = LazyLock::new(|| {
    regex(
        r"^\s*(?:(?:Normal|Warning)\s+\w+\s+((?:\d+[dhms])+)\s|((?:\d+[dhms])+)(?:\s+\(x\d+ over \w+\))?\s+(?:Normal|Warning)\s)",
    )
});

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
        return clock(&own, 2, days_before(number(&own, 1), number(&own, 2)), 1);
    }
    if let Some(own) = found(&GLOG) {
        return clock(&own, 1, 0.0, 2);
    }
    if let Some(own) = found(&MONTH_DAY) {
        return clock(&own, 1, 0.0, 3);
    }
    ago(line)
}

/// An age of an event as a stamp that lies so long back; kubectl cuts it off behind its last unit.
pub(super) fn ago(line: &str) -> Option<Stamp> {
    let own = AGO.as_ref()?.captures(line)?;
    let (mut at_s, mut within_s, mut digits) = (0.0, 1.0, 0.0);
    for c in own.get(1).or(own.get(2))?.as_str().chars() {
        match c.to_digit(10) {
            Some(digit) => digits = 10.0 * digits + f64::from(digit),
            None => {
                within_s = match c {
                    'd' => 86_400.0,
                    'h' => 3_600.0,
                    'm' => 60.0,
                    _ => 1.0,
                };
                at_s -= digits * within_s;
                digits = 0.0;
            }
        }
    }
    Some(Stamp { at_s, within_s, kind: 4 })
}

/// Days before this year, with the leap day of its own where this month comes after it (the Gregorian calendar); counted from near 2000, where
/// the calendar's 400 years begin, so that microseconds are left in the seconds.
fn days_before(year: f64, month: f64) -> f64 {
    let leap_days =
        |years: f64| libm::floor(years / 4.0) - libm::floor(years / 100.0) + libm::floor(years / 400.0);
    let year = year - 2000.0;
    let before = year - 1.0;
    365.0 * before + leap_days(if month > 2.0 { year } else { before })
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

#[cfg(test)]
mod tests {
    use super::of;

    fn apart(from: &str, to: &str) -> f64 {
        let (a, b) = (of(from).expect("a stamp"), of(to).expect("a stamp"));
        assert_eq!(a.kind, b.kind);
        b.at_s - a.at_s
    }

    /// Minutes through a midnight are minutes, whatever the calendar does there.
    #[test]
    fn a_start_through_a_midnight_is_as_long_as_it_is() {
        for (from, to) in [
            ("2026-02-28T23:59:00Z", "2026-03-01T00:01:00Z"),
            ("2028-02-28T23:59:00Z", "2028-02-29T00:01:00Z"),
            ("2028-02-29T23:59:00Z", "2028-03-01T00:01:00Z"),
            ("2026-12-31T23:59:00Z", "2027-01-01T00:01:00Z"),
            ("2028-12-31T23:59:00Z", "2029-01-01T00:01:00Z"),
            ("INFO 02-28 23:59:00", "INFO 03-01 00:01:00"),
            ("I0228 23:59:00.000000", "I0301 00:01:00.000000"),
        ] {
            assert!((apart(from, to) - 120.0).abs() < 1e-3, "{from} to {to}: {} s", apart(from, to));
        }
        // Without a year these run backwards, which is no length.
        assert!(apart("INFO 12-31 23:59:00", "INFO 01-01 00:01:00") < 0.0);
        assert!(apart("INFO 02-29 23:59:00", "INFO 03-01 00:01:00") < 0.0);
    }
}
