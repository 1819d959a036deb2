//! The part of a level that counts: the warm-up cut, and whether latency still drifts behind it.
//!
//! The cut is MSER-5 in arrival order (White, Cobb, Spratt 2000), on the logarithm of the leading latency. On the
//! latencies themselves a single burst in the first half decides where the statistic is least, and the "warm-up"
//! then removes exactly the tail that was to be measured. For the same reason a cut must earn its place: it is taken
//! only where it lowers the statistic by more than [`GAIN`] and where what is cut differs in its mean from what is kept
//! by more than a series of that memory does by chance: the least of many statistics is always somewhere, and without
//! this every third steady series of a few hundred requests is cut. Schruben's test of the whole series (1983) lost: no
//! sharper, and it asks another question than the cut. A fixed share was the alternative; it wastes time on
//! targets that are warm and is too short for those that are not.
//!
//! Where the rate of arrivals has a shape, its front is what was asked for, and nothing is cut.

use plimsoll_math::series;
use plimsoll_model::{At, Level, RateCourse};

use crate::columns::{ABSENT, Columns, INFINITE};
use crate::findings::Drift;

/// Smallest relative gain of the MSER statistic that is worth throwing requests away for. A steady series of a
/// thousand correlated latencies gains up to a few per cent by chance.
const GAIN: f64 = 0.05;

/// Confidence at which the mean of what is cut must differ from that of what is kept. The cut was chosen among many for
/// looking different, so the usual 95 % would be none.
const DIFFERS: f64 = 0.999;

/// Fewest answers on which a warm-up is looked for: with fewer, one series in eight is cut for nothing whatever the test.
const FEWEST: usize = 100;

/// Fewest values of a front's first half that have a mean worth comparing.
const FEWEST_OF_FRONT: usize = 4;

/// Share of the series beyond which a cut stands at the end of MSER's search (half of it) rather than at a minimum.
const AT_THE_BOUND: f64 = 0.45;

/// Longest series that the cut is searched on; longer ones are thinned to it. Finding a warm-up to one part in fifty
/// thousand helps nobody.
const LONGEST: usize = 50_000;

/// Where the window begins.
pub struct Cut {
    /// Index of the first request that counts.
    pub from: usize,
    /// Its due time, or the start of the level where nothing is cut.
    pub at: At,
    /// How it was found.
    pub rule: String,
}

/// Finds the warm-up of a level.
pub fn cut(columns: &Columns, level: &Level) -> Cut {
    let (metric, latency) = columns.leading();
    let nothing = |rule: String| Cut { from: 0, at: level.start, rule };
    if level.rate_course == RateCourse::Shaped {
        return nothing("the arrivals have a shape, whose front is part of it; nothing cut".into());
    }
    let times: Vec<(usize, f64)> = latency
        .iter()
        .enumerate()
        .filter(|(_, ns)| **ns != INFINITE && **ns != ABSENT)
        .map(|(i, ns)| (i, (*ns).max(1) as f64))
        .collect();
    if times.len() < FEWEST {
        return nothing(format!("{} answers are too few to find a warm-up; nothing cut", times.len()));
    }
    let thin = times.len().div_ceil(LONGEST);
    let series: Vec<f64> = times.iter().step_by(thin).map(|(_, ns)| ns.ln()).collect();
    let d = series::mser5(&series);
    if d == 0 || mser(&series[d..]) > (1.0 - GAIN) * mser(&series) {
        return nothing(format!("MSER-5 on ln {metric}: no warm-up found"));
    }
    // A least value at the bound of the search says that there is no steady part to cut down to: an overloaded level.
    if d as f64 > AT_THE_BOUND * series.len() as f64 {
        return nothing(format!("MSER-5 on ln {metric}: no steady part found; nothing cut"));
    }
    if !series::front_differs(&series, d, DIFFERS) {
        return nothing(format!("MSER-5 on ln {metric}: no warm-up that chance would not make"));
    }
    // A warm-up is worst where the level begins. A front that begins like the rest and ends unlike it holds something that
    // happened, such as a pause: that was measured, and stays.
    let half = (d / 2).max(FEWEST_OF_FRONT).min(d);
    let beginning = [&series[..half], &series[d..]].concat();
    if !series::front_differs(&beginning, half, DIFFERS) {
        return nothing(format!("MSER-5 on ln {metric}: the level begins as it goes on; nothing cut"));
    }
    let from = times[(d * thin).min(times.len() - 1)].0;
    Cut { from, at: At(columns.due[from]), rule: format!("MSER-5 on ln {metric}: {from} requests cut") }
}

/// s²/n over batches of five: what MSER-5 makes least.
fn mser(series: &[f64]) -> f64 {
    let batches: Vec<f64> = series.chunks_exact(5).map(|c| c.iter().sum::<f64>() / 5.0).collect();
    let n = batches.len() as f64;
    let mean = batches.iter().sum::<f64>() / n;
    batches.iter().map(|b| (b - mean) * (b - mean)).sum::<f64>() / (n * n)
}

/// Medians that the trend is tested on: enough for the test, few enough that neighbours hardly depend.
const MEDIANS: usize = 40;
/// Drift that matters: a tenth of the median over the window.
const DRIFT_MATTERS: f64 = 0.1;

/// The trend of the leading latency over the requests `from..to`.
pub fn drift(columns: &Columns, from: usize, to: usize) -> Drift {
    let (metric, latency) = columns.leading();
    let values: Vec<i64> =
        latency[from..to].iter().copied().filter(|ns| *ns != INFINITE && *ns != ABSENT).collect();
    let parts = MEDIANS.min(values.len() / 10);
    let silent = Drift { metric: metric.to_owned(), p: None, change_share: None, drifts: false };
    if parts < 10 {
        return silent;
    }
    let medians: Vec<f64> = (0..parts)
        .map(|part| {
            let mut some = values[part * values.len() / parts..(part + 1) * values.len() / parts].to_vec();
            let middle = some.len() / 2;
            *some.select_nth_unstable(middle).1 as f64
        })
        .collect();
    let Some(trend) = series::mann_kendall_hamed_rao(&medians) else {
        return silent;
    };
    let mut sorted = medians.clone();
    sorted.sort_unstable_by(f64::total_cmp);
    let change = trend.slope_sen * parts as f64 / sorted[parts / 2].max(1.0);
    let drifts = trend.p < 0.01 && change.abs() > DRIFT_MATTERS;
    Drift { metric: metric.to_owned(), p: Some(trend.p), change_share: Some(change), drifts }
}
