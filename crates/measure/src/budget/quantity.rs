//! Amounts with their units, as people write them in a budget file: `2s`, `45ms`, `1%`, `10/s`, `0.0031 USD`, `3`.
//!
//! The written form is the only one, as everywhere in this tool; a number whose unit nobody knows lost. Which unit a metric
//! takes is [`super::BudgetMetric`]'s to say.

use std::fmt;

use plimsoll_workload::as_text;
use plimsoll_workload::units::{Rate, parse_span};

use crate::say::number;

/// What an amount counts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Unit {
    /// Seconds.
    Time,
    /// A share of 1; written in per cent.
    Share,
    /// Per second.
    Rate,
    /// A sum in this currency.
    Money(String),
    /// A bare number, such as a ratio.
    Plain,
}

impl Unit {
    /// What to write, for a refusal.
    pub fn want(&self) -> &'static str {
        match self {
            Unit::Time => "a length of time such as 2s or 45ms",
            Unit::Share => "a share such as 1%",
            Unit::Rate => "a rate such as 10/s or 600/m",
            Unit::Money(_) => "a sum with its currency such as 0.0031 USD",
            Unit::Plain => "a number above 0 such as 3",
        }
    }

    /// The same unit; a currency matches any currency.
    pub fn like(&self, other: &Unit) -> bool {
        std::mem::discriminant(self) == std::mem::discriminant(other)
    }
}

/// An amount with its unit.
#[derive(Clone, PartialEq, Debug)]
pub struct Amount {
    /// How much: seconds, a share of 1, per second, units of the currency, or a bare number.
    pub value: f64,
    /// Of what.
    pub unit: Unit,
}

/// A text that is no amount, with what would be one.
const AMOUNT_WANT: &str = "an amount above 0 with its unit, such as 2s, 45ms, 1%, 10/s, 0.0031 USD, or a bare number for \
                           a ratio";

impl Amount {
    /// Seconds.
    pub fn seconds(value: f64) -> Amount {
        Amount { value, unit: Unit::Time }
    }

    /// A share of 1.
    pub fn share(value: f64) -> Amount {
        Amount { value, unit: Unit::Share }
    }

    /// Reads an amount.
    ///
    /// # Errors
    /// What an amount looks like, where the text is none or not above 0 (0 % is one: it allows nothing).
    pub fn parse(text: &str) -> Result<Amount, String> {
        let bad = || format!("`{text}` is not {AMOUNT_WANT}");
        let trimmed = text.trim();
        let figure = |text: &str| text.trim().parse::<f64>().ok().filter(|x| x.is_finite() && *x >= 0.0);
        let (value, unit) = if let Some(share) = trimmed.strip_suffix('%') {
            return figure(share).map(|share| Amount::share(share / 100.0)).ok_or_else(bad);
        } else if trimmed.contains('/') {
            (Rate::parse(trimmed).map_err(|_| bad())?.as_per_s(), Unit::Rate)
        } else if let Some(plain) = figure(trimmed) {
            (plain, Unit::Plain)
        } else if let Some((sum, currency)) = money(trimmed) {
            (figure(sum).ok_or_else(bad)?, Unit::Money(currency.to_owned()))
        } else {
            (parse_span(trimmed).map_err(|_| bad())?.as_secs_f64(), Unit::Time)
        };
        if value > 0.0 { Ok(Amount { value, unit }) } else { Err(bad()) }
    }
}

/// `0.0031 USD`, `0.0031USD`: a figure and three capital letters.
fn money(text: &str) -> Option<(&str, &str)> {
    let at = text.len().checked_sub(3).filter(|at| text.is_char_boundary(*at))?;
    let (sum, currency) = text.split_at(at);
    currency.bytes().all(|c| c.is_ascii_uppercase()).then_some((sum, currency))
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Figures in files are exact: what is read back is what was written.
        match &self.unit {
            Unit::Time if self.value < 1.0 => write!(f, "{}ms", exact(1e3 * self.value)),
            Unit::Time => write!(f, "{}s", exact(self.value)),
            Unit::Share => write!(f, "{}%", exact(100.0 * self.value)),
            Unit::Rate => write!(f, "{}/s", exact(self.value)),
            Unit::Money(currency) => write!(f, "{} {currency}", exact(self.value)),
            Unit::Plain => f.write_str(&exact(self.value)),
        }
    }
}

/// Up to twelve significant digits: enough for what a person wrote, without the last bits of a product.
fn exact(x: f64) -> String {
    let short: f64 = format!("{x:.11e}").parse().unwrap_or(x);
    format!("{short}")
}

impl Amount {
    /// As it is shown beside a figure: `350 ms`, `3 s`, `1 %`, `12/s`, `0.0031 USD`.
    pub fn shown(&self) -> String {
        shown(self.value, &self.unit)
    }
}

/// A figure of this unit as it is shown: four digits, `inf` for what failed.
pub fn shown(value: f64, unit: &Unit) -> String {
    match unit {
        Unit::Time if value.is_infinite() => "infinite".to_owned(),
        Unit::Time if value.abs() < 1.0 => format!("{} ms", number(1e3 * value)),
        Unit::Time => format!("{} s", number(value)),
        Unit::Share => format!("{} %", number(100.0 * value)),
        Unit::Rate => format!("{}/s", number(value)),
        Unit::Money(currency) => format!("{} {currency}", number(value)),
        Unit::Plain => number(value),
    }
}

/// A change against a baseline: `+10%` allows a tenth more, `-5%` a twentieth less.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Relative(pub f64);

impl Relative {
    /// Reads `+10%` or `-5%`.
    ///
    /// # Errors
    /// What a change looks like.
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

/// A percentile of requests, as `99`, `99.9` or `p99`.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
pub struct Percentile(pub f64);

impl Percentile {
    /// Reads `99`, `p99` or `99.9`.
    ///
    /// # Errors
    /// What a percentile looks like.
    pub fn parse(text: &str) -> Result<Percentile, String> {
        let bad = || format!("`{text}` is not a percentile between 1 and 100, such as 99 (not 0.99) or 99.9");
        let figure: f64 = text.trim().trim_start_matches(['p', 'P']).parse().map_err(|_| bad())?;
        if (1.0..100.0).contains(&figure) { Ok(Percentile(figure / 100.0)) } else { Err(bad()) }
    }

    /// The name of it: `p99`.
    pub fn name(self) -> String {
        format!("p{}", exact(100.0 * self.0))
    }
}

impl fmt::Display for Percentile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&exact(100.0 * self.0))
    }
}

/// Prompt lengths from (inclusive) to (exclusive), tokens: `0..512`, `512..`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PromptBucket {
    /// The least that is in it.
    pub from: u32,
    /// The least beyond it; `None` = no end.
    pub to: Option<u32>,
}

impl PromptBucket {
    /// Reads `0..512` or `512..`.
    ///
    /// # Errors
    /// What a bucket looks like.
    pub fn parse(text: &str) -> Result<PromptBucket, String> {
        let bad = || format!("`{text}` is not a range of prompt tokens such as 0..512 or 512..");
        let (from, to) = text.trim().split_once("..").ok_or_else(bad)?;
        let whole = |text: &str| text.trim().parse::<u32>().map_err(|_| bad());
        let from = if from.trim().is_empty() { 0 } else { whole(from)? };
        let to = if to.trim().is_empty() { None } else { Some(whole(to)?) };
        if to.is_some_and(|to| to <= from) { Err(bad()) } else { Ok(PromptBucket { from, to }) }
    }

    /// Is a prompt of this length in it?
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

as_text!(Amount, ["string", "number"], "amount", AMOUNT_WANT, ["2s", "45ms", "1%", "10/s", "0.0031 USD"]);
as_text!(
    Relative,
    ["string", "number"],
    "relative",
    "a change against the baseline such as +10%",
    ["+10%", "-5%"]
);
as_text!(Percentile, ["string", "number"], "percentile", "a percentile such as 99", ["99", "99.9"]);
as_text!(
    PromptBucket,
    ["string", "number"],
    "bucket",
    "a range of prompt tokens such as 0..512",
    ["0..512", "512.."]
);
