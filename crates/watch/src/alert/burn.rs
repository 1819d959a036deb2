//! How fast a row's allowance is used up: pairs of windows (Google's SRE workbook, chapter 5), each held by evidence.
//!
//! Burn = share over / share allowed. A pair fires where in its long *and* its short window the share is proven beyond factor × allowed, so that one error
//! at night is no page. Where factor × allowed is 1 or more a pair can never fire: the lint refuses what no row can reach instead of being silent.

use std::collections::VecDeque;

use plimsoll_math::proportion::proves_over;
use plimsoll_measure::budget::LEAST_N_EFF;
use plimsoll_model::{At, Span};
use serde::{Deserialize, Serialize};

use crate::over::{OverCount, count};

/// Two windows, and how many times the allowance's pace both must prove.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Pair {
    /// How far the long one looks back, s.
    pub long_s: i64,
    /// And the short one: that it goes on.
    pub short_s: i64,
    /// Times the pace that uses the allowance up in 30 days.
    pub factor: f64,
}

/// The workbook's pairs: 2, 5, 10 and 10 % of a month's allowance.
pub const PAIRS: [Pair; 4] = [
    Pair { long_s: 3600, short_s: 300, factor: 14.4 },
    Pair { long_s: 6 * 3600, short_s: 1800, factor: 6.0 },
    Pair { long_s: 86_400, short_s: 7200, factor: 3.0 },
    Pair { long_s: 3 * 86_400, short_s: 6 * 3600, factor: 1.0 },
];

/// Chance of a proof by luck, of each look: it is looked 43 200 times a month.
const ALPHA: f64 = 1e-5;
/// Counts are kept per minute.
const MINUTE: Span = Span::from_secs(60);
/// The longest window: counts of a month are kept at most.
const LONGEST_S: i64 = 30 * 86_400;
/// The shortest window that holds more than one of the counts that are kept.
const SHORTEST_S: i64 = 120;
/// More pairs than this are a slip.
const MOST: usize = 16;

impl Pair {
    /// Can a row that allows this share ever burn so fast?
    pub fn reachable(&self, allowed: f64) -> bool {
        self.factor * allowed < 1.0
    }

    /// `14.4 (1 h, 5 min)`.
    pub fn words(&self) -> String {
        format!("{} ({}, {})", self.factor, span_words(self.long_s), span_words(self.short_s))
    }
}

/// # Errors
/// Pairs that can't be watched, in one line.
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

/// `5 min`, `6 h`, `3 d`.
pub(crate) fn span_words(seconds: i64) -> String {
    match seconds {
        s if s % 86_400 == 0 => format!("{} d", s / 86_400),
        s if s % 3600 == 0 => format!("{} h", s / 3600),
        s if s % 60 == 0 => format!("{} min", s / 60),
        s => format!("{s} s"),
    }
}

/// What a minute counted.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Minute {
    /// The end of its first block.
    pub begun: At,
    pub watched: Span,
    pub over: OverCount,
}

/// One row's counts per minute, for as long as the longest window.
#[derive(Clone, PartialEq, Debug)]
pub struct Burn {
    pairs: Vec<Pair>,
    minutes: VecDeque<Minute>,
    /// Does the last minute go on? What an earlier watch counted is closed.
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

    /// What a block from one instant to another counted.
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

    /// Minutes that an earlier watch counted, the oldest first.
    pub fn resume(&mut self, minutes: impl IntoIterator<Item = Minute>, now: At) {
        self.minutes.extend(minutes);
        self.is_open = false;
        self.forget(now);
    }

    /// The minutes that are over and begun after this instant.
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

    /// The first pair that is proven, and the share over in its long window.
    pub fn proven(&self, now: At, allowed: f64) -> Option<(Pair, f64)> {
        self.pairs.iter().copied().filter(|pair| pair.reachable(allowed)).find_map(|pair| {
            // Half of the long window must have been watched: the pace of ten minutes is not the pace of three days.
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

    /// The share over in this window and its design effect, where it is proven beyond the limit. A short window has too few minutes to
    /// tell how alike its requests are: it takes the long one's effect.
    fn over(&self, now: At, window_s: i64, limit: f64, effect: Option<f64>) -> Option<(f64, f64)> {
        let minutes: Vec<OverCount> = self.window(now, window_s).map(|minute| minute.over).collect();
        let all = minutes.iter().copied().fold(OverCount::default(), OverCount::with);
        let share = all.least as f64 / all.n.max(1) as f64;
        if share <= limit {
            return None;
        }
        let n_eff = match effect {
            None => count(&minutes, all).worth?.n_eff,
            Some(effect) => all.n as f64 / effect,
        };
        // Asked at every scrape: what `decide` would say besides costs a hundred times as much.
        let proven = n_eff >= LEAST_N_EFF && proves_over(share * n_eff, n_eff, limit, ALPHA);
        proven.then_some((share, all.n as f64 / n_eff))
    }
}
