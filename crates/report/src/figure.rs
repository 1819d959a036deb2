//! Formats numbers: three significant digits, a unit, and never more precision than is known.
//!
//! Every displayed number is formatted here, in the terminal and on the page, so that a figure
//! never has two spellings. Latencies are in ms up to a second, because this is their usual unit (tables keep it throughout).
//! Time spans are in seconds from one second on.

use plimsoll_measure::findings::Estimate;

/// Formats a number with three significant digits and thin spaces between thousands: `1 250`, `0.0312`.
pub fn number(value: f64) -> String {
    if value.is_nan() {
        return "–".into();
    }
    if value.is_infinite() {
        return if value > 0.0 { "∞".into() } else { "−∞".into() };
    }
    let magnitude = value.abs();
    let text = if magnitude == 0.0 {
        "0".to_string()
    } else if magnitude >= 100.0 {
        group(format!("{value:.0}"))
    } else if magnitude >= 10.0 {
        format!("{value:.1}")
    } else if magnitude >= 1.0 {
        format!("{value:.2}")
    } else {
        let decimals = (2 - magnitude.log10().floor() as i32).clamp(2, 9) as usize;
        trim_zeros(format!("{value:.decimals$}"))
    };
    text.replace('-', "−")
}

/// Formats a number of a formula, which has no error: four significant digits, no trailing zeros: `18.05`, `51.2`, `1250`.
pub fn exact(value: f64) -> String {
    if !value.is_finite() || value == 0.0 {
        return if value == 0.0 { "0".into() } else { number(value) };
    }
    let decimals = (3 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if decimals == 0 { group(text).replace('-', "−") } else { trim_zeros(text).replace('-', "−") }
}

/// Formats a time of a formula in the usual unit; the argument is in seconds.
pub(crate) fn exact_time(seconds: f64) -> String {
    if !seconds.is_finite() {
        return number(seconds);
    }
    match seconds.abs() {
        0.0 => "0 ms".into(),
        short if short < 1e-3 => format!("{} µs", exact(seconds * 1e6)),
        short if short < 1.0 => format!("{} ms", exact(seconds * 1e3)),
        _ => format!("{} s", exact(seconds)),
    }
}

/// Formats a percentile as its share, with as many digits as its distance from one needs: `p99.49`, `p99.90`, `p99.99990`.
pub fn percentile(share: f64) -> String {
    let decimals = (-(1.0 - share).log10()).floor().clamp(0.0, 12.0) as usize;
    format!("p{:.decimals$}", 100.0 * share)
}

/// Formats a round number for the ticks of an axis: `0`, `0.5`, `10 000`.
pub fn plain(value: f64) -> String {
    let short: f64 = format!("{value:.9e}").parse().unwrap_or(value);
    let text = format!("{short}");
    if text.contains('.') { text.replace('-', "−") } else { group(text).replace('-', "−") }
}

/// Formats a count with its noun: `1 request`, `12 345 requests`.
pub fn counted(n: u64, one: &str) -> String {
    format!("{} {one}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Formats a whole number with separated thousands: `12 345`.
pub fn count(value: u64) -> String {
    group(value.to_string())
}

/// Formats a duration in nanoseconds: `12.3 ms`, `845 µs`, `12.4 s`, `3 min 20 s`.
pub fn duration_ns(ns: f64) -> String {
    if !ns.is_finite() {
        return number(ns);
    }
    let magnitude = ns.abs();
    // Timestamps are whole nanoseconds, so a result below half of one is zero.
    if magnitude < 0.5 {
        "0 ms".into()
    } else if magnitude < 100_000.0 {
        format!("{} µs", number(ns / 1e3))
    } else if magnitude < 1e9 {
        format!("{} ms", number(ns / 1e6))
    } else if magnitude < 120e9 {
        format!("{} s", number(ns / 1e9))
    } else {
        let seconds = (ns / 1e9).round() as i64;
        let (hours, minutes, rest) = (seconds / 3600, seconds % 3600 / 60, seconds % 60);
        match (hours, rest) {
            (0, 0) => format!("{minutes} min"),
            (0, _) => format!("{minutes} min {rest} s"),
            _ => format!("{hours} h {minutes} min"),
        }
    }
}

/// Formats milliseconds without a unit, for columns with the unit in the header.
pub(crate) fn millis(ns: f64) -> String {
    number(ns / 1e6)
}

/// Formats a share between 0 and 1 as a percentage: `98.3 %`.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return number(share);
    }
    let value = share * 100.0;
    let text = if value == 0.0 || (value - 100.0).abs() < 1e-9 {
        format!("{value:.0}")
    } else if value.abs() < 0.1 {
        number(value)
    } else if value.abs() < 99.0 {
        format!("{value:.1}")
    } else if value.abs() < 100.0 {
        format!("{value:.2}")
    } else if value.abs() < 1000.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    };
    format!("{} %", text.replace('-', "−"))
}

/// Formats a probability from few cases as a percentage, never rounded to certainty.
pub fn chance(p: f64) -> String {
    match p {
        p if p > 0.999 => "over 99.9 %".to_owned(),
        p if p < 0.001 => "under 0.1 %".to_owned(),
        p => format!("{:.1} %", 100.0 * p),
    }
}

/// Formats a rate per second: `512/s`.
pub fn per_second(rate: f64) -> String {
    format!("{}/s", number(rate))
}

/// Formats an interval of formatted numbers: `[480, 545]`.
pub fn interval(lower: &str, upper: &str) -> String {
    format!("[{lower}, {upper}]")
}

/// Formats a value with its interval: `512 ms [480 ms, 545 ms]`.
pub(crate) fn estimated(e: &Estimate, spell: impl Fn(f64) -> String) -> String {
    format!("{} {}", spell(e.value), interval(&spell(e.lower), &spell(e.upper)))
}

/// Formats a date and time in UTC, from nanoseconds since 1970.
pub fn date(realtime_ns: i64) -> String {
    let seconds = realtime_ns.div_euclid(1_000_000_000);
    let (days, in_day) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    format!("{} {:02}:{:02} UTC", day(days), in_day / 3600, in_day % 3600 / 60)
}

/// Formats an instant for other programs (RFC 3339): `2026-11-20T11:56:04.631Z`, from milliseconds since 1970.
pub fn rfc3339(realtime_ms: i64) -> String {
    let (days, in_day) = (realtime_ms.div_euclid(86_400_000), realtime_ms.rem_euclid(86_400_000));
    let (seconds, ms) = (in_day / 1000, in_day % 1000);
    format!("{}T{:02}:{:02}:{:02}.{ms:03}Z", day(days), seconds / 3600, seconds / 60 % 60, seconds % 60)
}

/// Formats a day as `2026-11-20`, from days since 1970 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `civil_from_days`).
fn day(days: i64) -> String {
    let z = days + 719_468;
    let era = z.div_euclid(146_097);
    let doe = z.rem_euclid(146_097);
    let yoe = (doe - doe / 1460 + doe / 36_524 - doe / 146_096) / 365;
    let doy = doe - (365 * yoe + yoe / 4 - yoe / 100);
    let mp = (5 * doy + 2) / 153;
    let day = doy - (153 * mp + 2) / 5 + 1;
    let month = if mp < 10 { mp + 3 } else { mp - 9 };
    let year = yoe + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

/// Separates thousands by spaces, from five digits on (four read well without).
fn group(digits: String) -> String {
    let (sign, digits) = match digits.strip_prefix('-') {
        Some(rest) => ("-", rest.to_string()),
        None => ("", digits),
    };
    if digits.len() < 5 {
        return format!("{sign}{digits}");
    }
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push('\u{202f}');
        }
        out.push(c);
    }
    format!("{sign}{out}")
}

fn trim_zeros(text: String) -> String {
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_string() } else { text }
}

/// Formats a probability as the number of its percentile: `99`, `99.9`.
pub fn centile(p: f64) -> String {
    let text = format!("{:.2}", p * 100.0);
    text.trim_end_matches('0').trim_end_matches('.').to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_digits_are_enough() {
        for (value, shown) in [
            (0.0, "0"),
            (1.0, "1.00"),
            (12.34, "12.3"),
            (123.4, "123"),
            (1234.0, "1234"),
            (12345.0, "12\u{202f}345"),
            (1234567.0, "1\u{202f}234\u{202f}567"),
            (0.01234, "0.0123"),
            (-2.34567, "−2.35"),
            (f64::INFINITY, "∞"),
            (f64::NAN, "–"),
        ] {
            assert_eq!(number(value), shown);
        }
    }

    #[test]
    fn figures_of_formulas_keep_the_digits_that_are_checked() {
        for (value, shown) in [
            (18.05, "18.05"),
            (51.2, "51.2"),
            (0.0957, "0.0957"),
            (1250.0, "1250"),
            (12500.4, "12\u{202f}500"),
            (3.0, "3"),
            (-0.5, "−0.5"),
        ] {
            assert_eq!(exact(value), shown);
        }
        for (share, shown) in
            [(0.994884, "p99.49"), (0.998995, "p99.90"), (0.95, "p95.0"), (0.9999990, "p99.99990")]
        {
            assert_eq!(percentile(share), shown);
        }
        assert_eq!(
            (exact_time(0.2), exact_time(2.5), exact_time(3e-5)),
            ("200 ms".into(), "2.5 s".into(), "30 µs".into())
        );
        assert_eq!((plain(0.30000000000000004), plain(20000.0)), ("0.3".into(), "20\u{202f}000".into()));
    }

    #[test]
    fn durations_take_the_unit_people_use() {
        for (ns, shown) in [
            (850.0, "0.85 µs"),
            (85_000.0, "85.0 µs"),
            (850_000.0, "0.85 ms"),
            (12_340_000.0, "12.3 ms"),
            (3_900_000_000.0, "3.90 s"),
            (61e9, "61.0 s"),
            (200e9, "3 min 20 s"),
            (7200e9, "2 h 0 min"),
        ] {
            assert_eq!(duration_ns(ns), shown);
        }
    }

    #[test]
    fn a_share_near_the_ends_keeps_its_digits() {
        assert_eq!(percent(0.0), "0 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(percent(0.9962), "99.62 %");
        assert_eq!(percent(0.123), "12.3 %");
        assert_eq!(percent(0.00012), "0.012 %");
        assert_eq!(percent(1.336), "133.6 %");
        assert_eq!(percent(15.479), "1548 %");
        assert_eq!(chance(0.99999), "over 99.9 %");
        assert_eq!(chance(0.5), "50.0 %");
    }
    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00 UTC");
        assert_eq!(date(951_782_400_000_000_000), "2000-02-29 00:00 UTC");
        assert_eq!(date(1_795_179_600_000_000_000), "2026-11-20 13:00 UTC");
    }
}
