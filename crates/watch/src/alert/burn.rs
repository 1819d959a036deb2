//! The burn rate of a row's error budget: pairs of windows (Google's SRE workbook, chapter 5), each with statistical
//! evidence.
//!
//! Burn = share over the ceiling / allowed share. A pair fires if the share is proven beyond factor × allowed in its
//! long *and* its short window. One error at night therefore does not page. If factor × allowed is at least 1, a pair
//! can never fire. The lint then refuses pairs that no row can reach.

use std::collections::VecDeque;

use plimsoll_math::proportion::proves_over;
use plimsoll_measure::budget::LEAST_N_EFF;
use plimsoll_model::{At, Span};
use serde::{Deserialize, Serialize};

use crate::over::{OverCount, count};

/// Two windows, and the burn rate that both must prove.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    pub long_s: i64,
    /// Short window in s, which shows that the burn continues.
    pub short_s: i64,
    /// Burn rate as a multiple of the rate that uses up the error budget in 30 days.
    pub factor: f64,
}

/// The workbook's pairs: 2, 5, 10 and 10 % of a month's error budget.
pub const PAIRS: [Pair; 4] = [
    Pair { long_s: 3600, short_s: 300, factor: 14.4 },
    Pair { long_s: 6 * 3600, short_s: 1800, factor: 6.0 },
    Pair { long_s: 86_400, short_s: 7200, factor: 3.0 },
    Pair { long_s: 3 * 86_400, short_s: 6 * 3600, factor: 1.0 },
];

/// Error probability of a proof per evaluation; there are 43 200 evaluations a month.
const ALPHA: f64 = 1e-5;
/// Interval of the stored counts.
const MINUTE: Span = Span::from_secs(60);
/// Maximum window in s: counts of a month are kept.
const LONGEST_S: i64 = 30 * 86_400;
/// Minimum window in s that contains more than one stored count.
const SHORTEST_S: i64 = 120;
/// Maximum number of pairs; more are a mistake.
const MOST: usize = 16;

impl Pair {
    /// Returns whether a row with this allowed share can reach the burn rate.
    pub fn reachable(&self, allowed: f64) -> bool {
        self.factor * allowed < 1.0
    }

    /// Returns the pair in the form `14.4 (1 h, 5 min)`.
    pub fn words(&self) -> String {
        format!("{} ({}, {})", self.factor, span_words(self.long_s), span_words(self.short_s))
    }
}

/// Checks the pairs.
///
/// # Errors
/// Fails if pairs can't be evaluated, with one line of text.
pub fn check(pairs: &[Pair]) -> Result<(), String> {
    let fits = |pair: &Pair| {
        (SHORTEST_S..pair.long_s).contains(&pair.short_s)
            && pair.long_s <= LONGEST_S
            && pair.factor > 0.0
            && pair.factor.is_finite()
    };
    match pairs.iter().find(|pair| !fits(pair)) {
        Some(pair) => Err(format!(
            "alerts.burn: {} can't be watched; write a factor above 0, short_s from {SHORTEST_S}, long_s above short_s and at most {LONGEST_S}",
            pair.words()
        )),
        None if pairs.len() > MOST => Err(format!("alerts.burn: {} pairs; at most {MOST}", pairs.len())),
        None => Ok(()),
    }
}

/// Returns a duration in the form `5 min`, `6 h` or `3 d`.
pub(crate) fn span_words(seconds: i64) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Minute {
    /// End of its first block.
    pub begun: At,
    pub watched: Span,
    pub over: OverCount,
}

/// The counts of one row per minute, for the longest window.
#[derive(Clone, PartialEq, Debug)]
pub struct Burn {
    pairs: Vec<Pair>,
    minutes: VecDeque<Minute>,
    /// Set if the last minute is incomplete. Minutes of an earlier watch are complete.
    is_open: bool,
}

impl Default for Burn {
    fn default() -> Burn {
        Burn::new(PAIRS.to_vec())
    }
}

impl Burn {
    pub fn new(pairs: Vec<Pair>) -> Burn {
        Burn { pairs, minutes: VecDeque::new(), is_open: false }
    }

    /// Adds the counts of a block.
    pub fn push(&mut self, from: At, to: At, over: OverCount) {
        let is_open = std::mem::replace(&mut self.is_open, true);
        match self.minutes.back_mut().filter(|minute| is_open && to - minute.begun < MINUTE) {
            Some(minute) => {
                minute.watched += to - from;
                minute.over = minute.over.with(over);
            }
            None => self.minutes.push_back(Minute { begun: to, watched: to - from, over }),
        }
        self.forget(to);
    }

    /// Adds the minutes of an earlier watch, oldest first.
    pub fn resume(&mut self, minutes: impl IntoIterator<Item = Minute>, now: At) {
        self.minutes.extend(minutes);
        self.is_open = false;
        self.forget(now);
    }

    /// Returns the complete minutes that began after this instant.
    pub(crate) fn closed_after(&self, at: At) -> impl Iterator<Item = Minute> + '_ {
        let closed = self.minutes.len().saturating_sub(usize::from(self.is_open));
        self.minutes.iter().take(closed).copied().filter(move |minute| minute.begun > at)
    }

    fn forget(&mut self, now: At) {
        let longest = Span::from_secs(self.pairs.iter().map(|pair| pair.long_s).max().unwrap_or(0));
        while self.minutes.front().is_some_and(|minute| minute.begun < now - longest) {
            self.minutes.pop_front();
        }
    }

    /// Returns the first proven pair, and the share over the ceiling in its long window.
    pub fn proven(&self, now: At, allowed: f64) -> Option<(Pair, f64)> {
        self.pairs.iter().copied().filter(|pair| pair.reachable(allowed)).find_map(|pair| {
            // At least half of the long window must have been watched, because the rate of ten minutes is not the
            // rate of three days.
            let watched = self.window(now, pair.long_s).map(|minute| minute.watched.0).sum::<i64>();
            let is_known = watched >= Span::from_secs(pair.long_s).0 / 2;
            let limit = pair.factor * allowed;
            let (share, effect) = is_known.then(|| self.over(now, pair.long_s, limit, None)).flatten()?;
            self.over(now, pair.short_s, limit, Some(effect))?;
            Some((pair, share))
        })
    }

    fn window(&self, now: At, window_s: i64) -> impl Iterator<Item = &Minute> {
        let from = self.minutes.partition_point(|minute| minute.begun < now - Span::from_secs(window_s));
        self.minutes.range(from..)
    }

    /// Returns the share over the ceiling in this window and its design effect, if it is proven beyond the limit. A
    /// short window has too few minutes for a design effect, so it uses that of the long one.
    fn over(&self, now: At, window_s: i64, limit: f64, effect: Option<f64>) -> Option<(f64, f64)> {
        let minutes: Vec<OverCount> = self.window(now, window_s).map(|minute| minute.over).collect();
        let all: OverCount = minutes.iter().copied().sum();
        let share = all.least as f64 / all.n.max(1) as f64;
        if share <= limit {
            return None;
        }
        let n_eff = match effect {
            None => count(&minutes, all).worth?.n_eff,
            Some(effect) => all.n as f64 / effect,
        };
        // Evaluated at every scrape: the full `decide` costs a hundred times as much.
        let proven = n_eff >= LEAST_N_EFF && proves_over(share * n_eff, n_eff, limit, ALPHA);
        proven.then_some((share, all.n as f64 / n_eff))
    }
}
