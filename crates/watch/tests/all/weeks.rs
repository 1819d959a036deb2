//! Weeks of a budget file under watch with at most the allowed share over its ceilings: the number of false alarms.
//!
//! Requests come in blocks of 10 s over the day of ServeGen's deepseek-r1 (alibaba/ServeGen, data/, Apache-2.0).
//! The day has all its clients in windows of ten minutes, in per cent of its mean. Requests are as bursty as its single
//! clients.

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
/// Number of blocks of a week.
const WEEK: i64 = 7 * 86_400 / BLOCK;
/// Number of blocks between two evaluations of burn rates.
const LOOK: i64 = 30;
const ALLOWED: f64 = 0.01;

/// The traffic of such a week.
#[derive(Copy, Clone, Debug)]
pub struct Weeks {
    /// Requests per second over the day.
    pub per_s: f64,
    /// Share over the ceiling, as a fraction of the allowed share.
    pub of_allowed: f64,
    /// Number of requests that arrive together and are over the ceiling together.
    pub alike: u64,
    /// Number of rows of the file.
    pub rows: usize,
    /// Set if requests in busier blocks exceed the ceiling slightly more often.
    pub in_bursts: bool,
}

/// Weeks with an alarm of a broken ceiling, and of a burn rate, one entry per alarm.
#[derive(Default, Debug)]
pub struct Alarms {
    pub broken: Vec<i64>,
    pub burning: Vec<i64>,
}

/// Returns the alarms. A broken ceiling is reset immediately, so that the next one counts too; a burn rate counts
/// when it is first proven. Burn rates are evaluated every five minutes, the shortest window of a pair, and only if a
/// proof is possible.
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
    /// Returns whether a pair's long window may be proven and its short one is over the limit. A proof of 1e-5 takes
    /// 4.2 standard deviations of independent groups; skipped cases would need an effect underestimated by a factor
    /// of three. `minutes`: cumulative requests at each minute's end, from zero on, and those over.
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
        // Slightly more often in busier blocks, with the requested share over all requests: E[n share] = share E[n].
        let by_size = if self.in_bursts { n / (mean + DISPERSION) } else { 1.0 };
        let k = self.over(stream, n as u64, (self.of_allowed * ALLOWED * by_size).min(1.0));
        OverCount { n: n as u64, least: k, most: k }
    }

    /// Returns the number over the ceiling among n requests: the distance between two groups over it is geometric.
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
