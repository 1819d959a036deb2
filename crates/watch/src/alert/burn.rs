//! How fast a row's allowance is used up: four pairs of windows (Google's SRE workbook, chapter 5), each held by evidence.
//!
//! Burn = share over / share allowed. A pair fires where in its long *and* its short window the share is proven beyond factor × allowed, so that one error
//! at night is no page. A pair whose factor × allowed is 1 or more can never fire, and is named by the lint instead of being silent.

use std::collections::VecDeque;

use plimsoll_math::quantile::EffectiveN;
use plimsoll_measure::budget::{Count, decide};
use plimsoll_measure::findings::Held;
use plimsoll_model::{At, Span};

use crate::over::Over;
use crate::rows;

/// Two windows, and how many times the allowance's pace both must prove.
#[derive(Copy, Clone, PartialEq, Debug)]
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

impl Pair {
    /// Can a row that allows this share ever burn so fast?
    pub fn reachable(&self, allowed: f64) -> bool {
        self.factor * allowed < 1.0
    }
}

/// One row's counts per minute, for as long as the longest window.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct Burn {
    minutes: VecDeque<(At, Over)>,
    began: Option<At>,
}

impl Burn {
    /// What a block that ended at `at` counted.
    pub fn push(&mut self, at: At, over: Over) {
        self.began = self.began.or(Some(at));
        match self.minutes.back_mut().filter(|(begun, _)| at - *begun < MINUTE) {
            Some((_, minute)) => *minute = minute.with(over),
            None => self.minutes.push_back((at, over)),
        }
        let longest = PAIRS.iter().map(|pair| pair.long_s).max().unwrap_or(0);
        while self.minutes.front().is_some_and(|(begun, _)| *begun < at - Span::from_secs(longest)) {
            self.minutes.pop_front();
        }
    }

    /// The first pair that is proven, and the share over in its long window.
    pub fn proven(&self, now: At, allowed: f64) -> Option<(Pair, f64)> {
        PAIRS.into_iter().filter(|pair| pair.reachable(allowed)).find_map(|pair| {
            // Half of the long window must be known: the pace of ten minutes is not the pace of three days.
            let known = now - self.began? >= Span::from_secs(pair.long_s / 2);
            let limit = pair.factor * allowed;
            let (share, effect) = known.then(|| self.over(now, pair.long_s, limit, None)).flatten()?;
            self.over(now, pair.short_s, limit, Some(effect))?;
            Some((pair, share))
        })
    }

    /// The share over in this window and its design effect, where it is proven beyond the limit. A short window has too few minutes to
    /// tell how alike its requests are: it takes the long one's effect.
    fn over(&self, now: At, window_s: i64, limit: f64, effect: Option<f64>) -> Option<(f64, f64)> {
        let from = self.minutes.partition_point(|(begun, _)| *begun < now - Span::from_secs(window_s));
        let minutes: Vec<Over> = self.minutes.range(from..).map(|(_, over)| *over).collect();
        let all = minutes.iter().copied().fold(Over::default(), Over::with);
        let share = all.least as f64 / all.n.max(1) as f64;
        if share <= limit {
            return None;
        }
        let count = match effect {
            None => rows::count(&minutes, all),
            Some(effect) => Count {
                n: all.n,
                over_least: all.least,
                over_most: all.most,
                worth: Some(EffectiveN::known(all.n as f64 / effect)),
            },
        };
        let effect = all.n as f64 / count.worth?.n_eff;
        (decide(&count, limit, ALPHA).held == Held::Fail).then_some((share, effect))
    }
}
