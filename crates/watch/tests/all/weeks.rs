//! Weeks of a budget file under watch in which no more requests are over its ceilings than allowed: how often it alarms all the same.
//!
//! Requests come in blocks of 10 s over the day of ServeGen's deepseek-r1 (alibaba/ServeGen, data/, Apache-2.0: all its clients in windows of ten minutes,
//! per cent of its mean), as bursty as its clients are one by one.

use plimsoll_math::dist;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_watch::alert::burn::PAIRS;
use plimsoll_watch::alert::detect::threshold;
use plimsoll_watch::alert::row::RowWatch;
use plimsoll_watch::over::OverCount;

const DAY: [u16; 144] = [
    93, 115, 125, 129, 128, 133, 134, 137, 136, 137, 137, 152, 200, 208, 206, 202, 204, 201, 197, 185, 179,
    184, 186, 143, 105, 107, 106, 105, 107, 110, 108, 105, 74, 90, 81, 86, 86, 90, 59, 71, 74, 69, 57, 66,
    58, 60, 53, 54, 63, 63, 48, 68, 52, 62, 32, 72, 79, 67, 82, 65, 86, 69, 79, 94, 66, 92, 102, 64, 93, 69,
    84, 86, 65, 73, 37, 37, 27, 30, 30, 32, 58, 64, 67, 76, 72, 68, 72, 68, 66, 65, 59, 57, 55, 72, 77, 102,
    99, 104, 116, 100, 57, 51, 56, 50, 62, 56, 48, 60, 67, 87, 74, 71, 73, 78, 64, 57, 52, 62, 56, 61, 107,
    153, 125, 125, 127, 107, 125, 125, 112, 203, 208, 200, 227, 266, 258, 222, 204, 139, 141, 101, 75, 84,
    160, 148,
];
/// Variance over mean of counts: the square of its clients' coefficient of variation.
const DISPERSION: f64 = 2.28 * 2.28;
const BLOCK: i64 = 10;
/// Blocks of a week.
const WEEK: i64 = 7 * 86_400 / BLOCK;
/// Blocks between two looks at burn rates.
const LOOK: i64 = 30;
const ALLOWED: f64 = 0.01;

/// What such a week is.
#[derive(Copy, Clone, Debug)]
pub struct Weeks {
    /// Requests per second over the day.
    pub per_s: f64,
    /// Of all requests so many are over, as a share of those that may.
    pub of_allowed: f64,
    /// So many that come together are over it together.
    pub alike: u64,
    /// Rows of the file.
    pub rows: usize,
    /// Those of busier blocks are over it a little more often.
    pub in_bursts: bool,
}

/// Weeks in which a ceiling was called broken, and in which a burn rate fired, one for each time.
#[derive(Default, Debug)]
pub struct Alarms {
    pub broken: Vec<i64>,
    pub burning: Vec<i64>,
}

/// A ceiling that was called broken is forgotten at once, so that the next one counts too; a burn rate counts when it begins to be proven. It is
/// looked at every five minutes, which is the shortest window of a pair, and where it can be proven.
pub fn alarms(of: Weeks, weeks: i64, seed: u64) -> Alarms {
    let most = threshold(BLOCK as f64, of.rows, 1.0);
    let mut found = Alarms::default();
    for row in 0..of.rows {
        let mut watch = RowWatch::new(ALLOWED, "requests", Span::from_secs(5), &PAIRS);
        let (mut stream, mut burns) = (Stream::new(seed, "weeks", row as u64), false);
        let (mut minutes, mut all) = (vec![(0, 0)], (0_u64, 0_u64));
        for block in 0..weeks * WEEK {
            let now = At((block + 1) * BLOCK * 1_000_000_000);
            let over = of.block(&mut stream, block);
            watch.push(now - Span::from_secs(BLOCK), now, over);
            if watch.broken(now, most).is_some() {
                watch.begin_again();
                found.broken.push(block / WEEK);
            }
            all = (all.0 + over.n, all.1 + over.least);
            if block % 6 == 5 {
                minutes.push(all);
            }
            if block % LOOK == LOOK - 1 {
                let is = of.may_burn(&minutes) && watch.burn.proven(now, ALLOWED).is_some();
                found.burning.extend((is && !burns).then_some(block / WEEK));
                burns = is;
            }
        }
    }
    found
}

impl Weeks {
    /// Is a pair's long window so far over its limit that it may be proven, and the short one over it? A proof of 1e-5 takes 4.2 standard deviations of as many
    /// independent groups; what is left out would take an effect that is read three times too small. `minutes`: all requests until each minute's end, from none on, and those over.
    fn may_burn(self, minutes: &[(u64, u64)]) -> bool {
        let last = minutes.len() - 1;
        let is_over = |window_s: i64, factor: f64, deviations: f64| {
            let before = minutes[last.saturating_sub(window_s as usize / 60)];
            let (n, k) = (minutes[last].0 - before.0, minutes[last].1 - before.1);
            let limit = factor * ALLOWED * n as f64;
            k as f64 > limit + deviations * (self.alike as f64 * limit).sqrt()
        };
        PAIRS
            .iter()
            .any(|pair| is_over(pair.long_s, pair.factor, 2.5) && is_over(pair.short_s, pair.factor, 0.0))
    }

    fn block(self, stream: &mut Stream, block: i64) -> OverCount {
        let percent = DAY[(block * BLOCK % 86_400 / 600) as usize];
        let mean = self.per_s * BLOCK as f64 * f64::from(percent) / 100.0;
        let came = dist::gamma(stream, mean / DISPERSION, DISPERSION);
        let n = (came + stream.uniform()).floor();
        // A little more often in busier blocks; of all requests as many as asked: E[n share] = share E[n].
        let by_size = if self.in_bursts { n / (mean + DISPERSION) } else { 1.0 };
        let k = self.over(stream, n as u64, (self.of_allowed * ALLOWED * by_size).min(1.0));
        OverCount { n: n as u64, least: k, most: k }
    }

    /// Of n requests those over: from one group that is over to the next one the number of groups is geometric.
    fn over(self, stream: &mut Stream, n: u64, share: f64) -> u64 {
        let (mut begun, mut over) = (0, 0);
        loop {
            let skipped = stream.uniform().ln() / (-share).ln_1p();
            if share <= 0.0 || skipped >= n as f64 {
                return over;
            }
            begun += skipped as u64 * self.alike;
            if begun >= n {
                return over;
            }
            over += self.alike.min(n - begun);
            begun += self.alike;
        }
    }
}
