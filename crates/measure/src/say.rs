//! Numbers in sentences: at most four significant digits, shares in per cent, durations in milliseconds.
//!
//! Sentences of findings begin in lower case and end without a full stop; the caller puts them in place. Raw results such as
//! 1281.8667 were rejected because their digits claim a precision that no interval supports.

/// Returns a number with at most four significant digits: `1282`, `83.5`, `0.01235`.
pub fn number(x: f64) -> String {
    if !x.is_finite() {
        return if x.is_nan() { "unknown" } else { "infinite" }.to_owned();
    }
    if x == 0.0 {
        return "0".to_owned();
    }
    let places = (3 - x.abs().log10().floor() as i32).clamp(0, 9) as usize;
    let digits = format!("{x:.places$}");
    if places == 0 {
        return digits;
    }
    digits.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Returns a share in per cent with one decimal: `12.3 %`.
pub fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

/// Formats seconds in milliseconds, for example `12.5 ms`.
pub fn ms(seconds: f64) -> String {
    format!("{} ms", number(1e3 * seconds))
}

/// Returns a duration for planning, rounded up: `85 s`, `7 min 12 s`, `3 h 38 min`.
pub fn length(seconds: f64) -> String {
    let whole = seconds.ceil().max(0.0) as u64;
    match (whole / 3600, whole % 3600 / 60, whole % 60) {
        (0, ..2, _) => format!("{whole} s"),
        (0, minutes, 0) => format!("{minutes} min"),
        (0, minutes, rest) => format!("{minutes} min {rest} s"),
        (hours, minutes, _) => format!("{hours} h {minutes} min"),
    }
}

/// Returns a number with the singular or plural noun: `1 request`, `2 requests`.
pub fn count(n: u64, one: &str) -> String {
    format!("{n} {one}{}", if n == 1 { "" } else { "s" })
}

/// Returns the interval of a ratio: `[1.5, 2.2]`. An unbounded end has no number: `[up to 2.2]`, `[at least 1.5]`.
pub fn ratio_ends(lower: f64, upper: f64) -> String {
    match (lower > 0.0, upper.is_finite()) {
        (true, true) => format!("[{}, {}]", number(lower), number(upper)),
        (true, false) => format!("[at least {}]", number(lower)),
        (false, true) => format!("[up to {}]", number(upper)),
        (false, false) => "[bounded on neither side]".to_owned(),
    }
}

/// Returns a p-value: `p 0.012`, `p under 0.001`; further digits carry no information.
pub fn chance(p: f64) -> String {
    if p < 0.001 { "p under 0.001".to_owned() } else { format!("p {p:.3}") }
}

#[cfg(test)]
mod tests {
    use super::{chance, count, ms, number, percent, ratio_ends};

    #[test]
    fn figures_are_short() {
        assert_eq!(chance(0.000_999), "p under 0.001");
        assert_eq!(chance(0.0123), "p 0.012");
        assert_eq!(number(1281.8667), "1282");
        assert_eq!(number(123_456.7), "123457");
        assert_eq!(number(83.5), "83.5");
        assert_eq!(number(0.012_345_6), "0.01235");
        assert_eq!(number(-2.5), "-2.5");
        assert_eq!(number(f64::INFINITY), "infinite");
        assert_eq!(ratio_ends(1.5, 2.25), "[1.5, 2.25]");
        assert_eq!(ratio_ends(0.0, 3.582), "[up to 3.582]");
        assert_eq!(ratio_ends(1.5, f64::INFINITY), "[at least 1.5]");
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(ms(0.012_5), "12.5 ms");
        assert_eq!((count(1, "step"), count(2, "step")), ("1 step".into(), "2 steps".into()));
    }
}
