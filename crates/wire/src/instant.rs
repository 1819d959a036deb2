//! Parses and formats instants of logs and results, as ns of the Unix epoch.

/// Limit of instants, ns, so that the difference of two can't overflow.
pub const FURTHEST: i64 = 4_000_000_000_000_000_000;

/// Parses `2026-11-23T03:32:36.801160981Z`, or a time with an offset, as ns of the Unix epoch.
pub fn iso_ns(text: &str) -> Option<i64> {
    let number = |from: usize, to: usize| text.get(from..to)?.parse::<i64>().ok();
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute) = (number(11, 13)?, number(14, 16)?);
    let rest = text.get(17..)?;
    let zone = rest.find(['Z', '+', '-'])?;
    let seconds = decimal_ns(rest.get(..zone)?)?;
    let offset = match rest.get(zone..)? {
        "Z" => 0,
        zone => {
            let sign = if zone.starts_with('-') { -1 } else { 1 };
            let hours: i64 = zone.get(1..3)?.parse().ok()?;
            sign * (60 * hours + zone.get(4..6)?.parse::<i64>().ok()?)
        }
    };
    let minutes = (days(year, month, day) * 24 + hour) * 60 + minute - offset;
    minutes.checked_mul(60_000_000_000)?.checked_add(seconds).filter(|ns| *ns > 0 && *ns < FURTHEST)
}

/// Returns days since 1970-01-01 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`).
pub fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Formats whole seconds of the Unix epoch as `2026-11-23T03:32:36Z` (as above, `civil_from_days`).
pub fn iso(seconds: i64) -> String {
    let (day, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let day = day + 719_468;
    let (era, of_era) = (day.div_euclid(146_097), day.rem_euclid(146_097));
    let year = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (date, month) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = year + era * 400 + i64::from(month <= 2);
    let (hour, minute) = (second / 3_600, second / 60 % 60);
    format!("{year:04}-{month:02}-{date:02}T{hour:02}:{minute:02}:{:02}Z", second % 60)
}

/// Parses `1795404494.0524008` as ns; `None` if it has an exponent or is out of range.
pub fn decimal_ns(text: &str) -> Option<i64> {
    let (sign, digits) = text.strip_prefix('-').map_or((1, text), |rest| (-1, rest));
    let (units, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if !units.bytes().chain(fraction.bytes()).all(|b| b.is_ascii_digit()) || units.is_empty() {
        return None;
    }
    let units: i64 = units.parse().ok()?;
    let mut ns = 0i64;
    for i in 0..9 {
        ns = ns * 10 + fraction.as_bytes().get(i).map_or(0, |b| i64::from(b - b'0'));
    }
    ns += i64::from(fraction.as_bytes().get(9).is_some_and(|b| *b >= b'5'));
    units.checked_mul(1_000_000_000)?.checked_add(ns)?.checked_mul(sign)
}

#[cfg(test)]
mod tests {
    use super::{iso, iso_ns};

    #[test]
    fn instants_with_and_without_an_offset_are_the_same() {
        let utc = iso_ns("2026-11-23T03:32:36.801160981Z").expect("an instant");
        assert_eq!(utc, 1_795_404_756_801_160_981);
        assert_eq!(iso_ns("2026-11-23T05:32:36.801160981+02:00"), Some(utc));
        assert_eq!(iso_ns("yesterday"), None);
    }

    #[test]
    fn seconds_are_written_as_they_are_read() {
        assert_eq!(iso(0), "1970-01-01T00:00:00Z");
        // A leap day, its neighbours, and the turn of a year.
        for seconds in [951_782_399, 951_782_400, 951_868_800, 1_795_404_756, 1_798_761_599, 3_999_999_999] {
            assert_eq!(iso_ns(&iso(seconds)), Some(seconds * 1_000_000_000), "{}", iso(seconds));
        }
        assert_eq!(iso(951_782_400), "2000-02-29T00:00:00Z");
    }
}
