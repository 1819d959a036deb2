//! Amounts with their units, as in a budget file: `2s`, `45ms`, `1%`, `10/s`, `0.0031 USD`, `3`.
//!
//! Every amount has a written unit. Numbers with an implied unit were rejected, because seconds and milliseconds would be confused.
//! [`super::BudgetMetric`] sets the unit of each metric.

use std::fmt;

use plimsoll_workload::as_text;
use plimsoll_workload::units::{Rate, parse_span};

use crate::say::number;

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum AmountUnit {
    /// In seconds.
    Time,
    /// A share of 1, written in per cent.
    Share,
    /// Per second.
    Rate,
    /// A sum of money in this currency.
    Money(String),
    /// In joules.
    Energy,
    /// Memory in bytes.
    Bytes,
    /// A number without a unit, such as a ratio.
    Plain,
}

/// Units of energy in J and of memory in bytes; a unit follows the longer ones that end with it.
const PHYSICAL: [(&str, f64, AmountUnit); 8] = [
    ("mJ", 1e-3, AmountUnit::Energy),
    ("kJ", 1e3, AmountUnit::Energy),
    ("J", 1.0, AmountUnit::Energy),
    ("TiB", 1_099_511_627_776.0, AmountUnit::Bytes),
    ("GiB", GIB, AmountUnit::Bytes),
    ("MiB", 1_048_576.0, AmountUnit::Bytes),
    ("GB", 1e9, AmountUnit::Bytes),
    ("MB", 1e6, AmountUnit::Bytes),
];

const GIB: f64 = 1_073_741_824.0;

impl AmountUnit {
    /// Returns an example for error messages.
    pub fn want(&self) -> &'static str {
        match self {
            AmountUnit::Time => "a length of time such as 2s or 45ms",
            AmountUnit::Share => "a share such as 1%",
            AmountUnit::Rate => "a rate such as 10/s or 600/m",
            AmountUnit::Money(_) => "a sum with its currency such as 0.0031 USD",
            AmountUnit::Energy => "an energy such as 0.5J or 500mJ",
            AmountUnit::Bytes => "a size of memory such as 72GiB",
            AmountUnit::Plain => "a number above 0 such as 3",
        }
    }

    /// Returns whether the units are equal; a currency equals any other.
    pub fn like(&self, other: &AmountUnit) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

#[derive(Clone, PartialEq, Debug)]
pub struct Amount {
    /// Number of seconds, share of 1, number per second, sum of money, or bare number.
    pub value: f64,
    pub unit: AmountUnit,
}

/// Examples of amounts, for error messages.
const AMOUNT_WANT: &str = "an amount above 0 with its unit, such as 2s, 45ms, 1%, 10/s, 0.0031 USD, 0.5J, 72GiB, or a bare number for \
                           a ratio";

impl Amount {
    pub fn seconds(value: f64) -> Amount {
        Amount { value, unit: AmountUnit::Time }
    }

    pub fn share(value: f64) -> Amount {
        Amount { value, unit: AmountUnit::Share }
    }

    /// Parses an amount.
    ///
    /// # Errors
    /// Fails if the text is no amount or not above 0, except `0%`, which allows nothing.
    pub fn parse(text: &str) -> Result<Amount, String> {
        let bad = || format!("`{text}` is not {AMOUNT_WANT}");
        let trimmed = text.trim();
        let figure = |text: &str| text.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        let (value, unit) = if let Some(share) = trimmed.strip_suffix('%') {
            return figure(share).map(|share| Amount::share(share / 100.0)).ok_or_else(bad);
        } else if trimmed.contains('/') {
            (Rate::parse(trimmed).map_err(|_| bad())?.as_per_s(), AmountUnit::Rate)
        } else if let Some(plain) = figure(trimmed) {
            (plain, AmountUnit::Plain)
        } else if let Some((figured, factor, unit)) = physical(trimmed) {
            (factor * figure(figured).ok_or_else(bad)?, unit)
        } else if let Some((sum, currency)) = money(trimmed) {
            (figure(sum).ok_or_else(bad)?, AmountUnit::Money(currency.to_owned()))
        } else {
            (parse_span(trimmed).map_err(|_| bad())?.as_secs_f64(), AmountUnit::Time)
        };
        if value > 0.0 { Ok(Amount { value, unit }) } else { Err(bad()) }
    }
}

/// Splits an energy or a size of memory, such as `0.5J` or `72 GiB`.
fn physical(text: &str) -> Option<(&str, f64, AmountUnit)> {
    let of = |(unit, factor, kind): (&str, f64, AmountUnit)| Some((text.strip_suffix(unit)?, factor, kind));
    PHYSICAL.into_iter().find_map(of)
}

/// Splits a sum of money, such as `0.0031 USD` or `0.0031USD`.
fn money(text: &str) -> Option<(&str, &str)> {
    let at = text.len().checked_sub(3).filter(|at| text.is_char_boundary(*at))?;
    let (sum, currency) = text.split_at(at);
    currency.bytes().all(|c| c.is_ascii_uppercase()).then_some((sum, currency))
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Exact, because a file is read back as it was written.
        match &self.unit {
            AmountUnit::Time if self.value < 1.0 => write!(f, "{}ms", exact(1e3 * self.value)),
            AmountUnit::Time => write!(f, "{}s", exact(self.value)),
            AmountUnit::Share => write!(f, "{}%", exact(100.0 * self.value)),
            AmountUnit::Rate => write!(f, "{}/s", exact(self.value)),
            AmountUnit::Money(currency) => write!(f, "{} {currency}", exact(self.value)),
            AmountUnit::Energy => write!(f, "{}J", exact(self.value)),
            AmountUnit::Bytes => write!(f, "{}GiB", exact(self.value / GIB)),
            AmountUnit::Plain => f.write_str(&exact(self.value)),
        }
    }
}

/// Returns up to twelve significant digits, which hide the rounding of a product.
fn exact(x: f64) -> String {
    let short: f64 = format!("{x:.11e}").parse().unwrap_or(x);
    format!("{short}")
}

impl Amount {
    /// Returns the text for display: `350 ms`, `3 s`, `1 %`, `12/s`, `0.0031 USD`.
    pub fn shown(&self) -> String {
        shown(self.value, &self.unit)
    }
}

/// Returns a figure in this unit with four digits; `infinite` for failed requests.
pub fn shown(value: f64, unit: &AmountUnit) -> String {
    match unit {
        AmountUnit::Time if value.is_infinite() => "infinite".to_owned(),
        AmountUnit::Time if value.abs() < 1.0 => format!("{} ms", number(1e3 * value)),
        AmountUnit::Time => format!("{} s", number(value)),
        AmountUnit::Share => format!("{} %", number(100.0 * value)),
        AmountUnit::Rate => format!("{}/s", number(value)),
        AmountUnit::Money(currency) => format!("{} {currency}", number(value)),
        AmountUnit::Energy => format!("{} J", number(value)),
        AmountUnit::Bytes => format!("{} GiB", number(value / GIB)),
        AmountUnit::Plain => number(value),
    }
}

/// An allowed change against a baseline, such as `+10%` or `-5%`.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Relative(pub f64);

impl Relative {
    /// Parses `+10%` or `-5%`.
    ///
    /// # Errors
    /// Fails if the text is no signed percentage above -100 %.
    pub fn parse(text: &str) -> Result<Relative, String> {
        let bad = || format!("`{text}` is not a change against the baseline such as +10% or -5%");
        let figure = text.trim().strip_suffix('%').ok_or_else(bad)?.trim();
        let signed = figure.starts_with(['+', '-']) || figure.parse::<f64>() == Ok(0.0);
        let share = figure.parse::<f64>().ok().filter(|share| signed && share.is_finite()).ok_or_else(bad)?;
        if share > -100.0 { Ok(Relative(share / 100.0)) } else { Err(bad()) }
    }
}

impl fmt::Display for Relative {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}%", if self.0 >= 0.0 { "+" } else { "" }, exact(100.0 * self.0))
    }
}

/// A percentile as a share of 1, written `99`, `99.9` or `p99`.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
pub struct PercentileLevel(pub f64);

impl PercentileLevel {
    /// Parses `99`, `p99` or `99.9`.
    ///
    /// # Errors
    /// Fails if the text is no number from 1 to below 100.
    pub fn parse(text: &str) -> Result<PercentileLevel, String> {
        let bad = || format!("`{text}` is not a percentile between 1 and 100, such as 99 (not 0.99) or 99.9");
        let figure: f64 = text.trim().trim_start_matches(['p', 'P']).parse().map_err(|_| bad())?;
        if (1.0..100.0).contains(&figure) { Ok(PercentileLevel(figure / 100.0)) } else { Err(bad()) }
    }

    /// Returns the name, such as `p99`.
    pub fn name(self) -> String {
        format!("p{}", exact(100.0 * self.0))
    }
}

impl fmt::Display for PercentileLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact(100.0 * self.0))
    }
}

/// A range of prompt lengths in tokens, such as `0..512` or `512..`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PromptBucket {
    /// First length, inclusive.
    pub from: u32,
    /// End, exclusive; `None` for no end.
    pub to: Option<u32>,
}

impl PromptBucket {
    /// Parses `0..512` or `512..`.
    ///
    /// # Errors
    /// Fails if the text is no range, or an empty one.
    pub fn parse(text: &str) -> Result<PromptBucket, String> {
        let bad = || format!("`{text}` is not a range of prompt tokens such as 0..512 or 512..");
        let (from, to) = text.trim().split_once("..").ok_or_else(bad)?;
        let whole = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        let from = if from.trim().is_empty() { 0 } else { whole(from)? };
        let to = if to.trim().is_empty() { None } else { Some(whole(to)?) };
        if to.is_some_and(|to| to <= from) { Err(bad()) } else { Ok(PromptBucket { from, to }) }
    }

    /// Returns whether the range contains this length.
    pub fn holds(&self, tokens: u32) -> bool {
        tokens >= self.from && self.to.is_none_or(|to| tokens < to)
    }
}

impl fmt::Display for PromptBucket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..", self.from)?;
        self.to.map_or(Ok(()), |to| write!(f, "{to}"))
    }
}

as_text!(
    Amount,
    ["string", "number"],
    "amount",
    AMOUNT_WANT,
    ["2s", "45ms", "1%", "10/s", "0.0031 USD", "0.5J", "72GiB"]
);
as_text!(
    Relative,
    ["string", "number"],
    "relative",
    "a change against the baseline such as +10%",
    ["+10%", "-5%"]
);
as_text!(PercentileLevel, ["string", "number"], "percentile", "a percentile such as 99", ["99", "99.9"]);
as_text!(
    PromptBucket,
    ["string", "number"],
    "bucket",
    "a range of prompt tokens such as 0..512",
    ["0..512", "512.."]
);
