//! Instants as logs and results write them, as ns of the Unix epoch.

use crate::foreign::FURTHEST;
use crate::foreign::json::decimal_ns;

/// `2026-11-23T03:32:36.801160981Z`, or with an offset, as ns of the Unix epoch.
pub(crate) fn iso_ns(text: &str) -> Option<i64> {
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

/// Days since 1970-01-01 (H. Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`).
pub(crate) fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let (era, of_era) = (year.div_euclid(400), year.rem_euclid(400));
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

#[cfg(test)]
mod tests {
    use super::iso_ns;

    #[test]
    fn instants_with_and_without_an_offset_are_the_same() {
        let utc = iso_ns("2026-11-23T03:32:36.801160981Z").expect("an instant");
        assert_eq!(utc, 1_795_404_756_801_160_981);
        assert_eq!(iso_ns("2026-11-23T05:32:36.801160981+02:00"), Some(utc));
        assert_eq!(iso_ns("yesterday"), None);
    }
}
