//! The engine's steps, seen in the tokens of all responses.
//!
//! An engine with continuous batching emits tokens at the end of each step, to all decoding requests. The tokens of
//! the *other* responses therefore show the ends of steps, and a waiting request can start only at such an end. Its
//! prefill took the step, or the few steps, that end with its first token, and before that it waited. No server
//! support is necessary.
//!
//! The assumption is checked: between two successive tokens of a response there must usually be one step. Unnamed
//! replicas, buffering proxies and servers that flush by a timer violate it, and then there is no track. A split by a
//! queueing formula was rejected, because it has only means, and needs an engine model that is unknown.

use std::collections::BTreeMap;

use plimsoll_model::Attempt;

use super::rows::ClientRow;

#[derive(Clone, Debug)]
struct Steps {
    /// Ends of the steps in ns, ascending.
    ends: Vec<i64>,
    /// Set if a response has a token at this end and at the previous one. Otherwise the engine may have been idle in
    /// between.
    continuous: Vec<bool>,
    /// Duration of a nearby step without prefill, ns.
    plain: Vec<i64>,
}

/// The steps of all distinguished engines.
#[derive(Clone, Debug)]
pub struct Track {
    by_replica: BTreeMap<Option<String>, Steps>,
    /// Additional time per prompt token of steps with prefills, ns.
    pub per_token_ns: f64,
    /// Minimum time from sent to the start of a prefill (network and front end), ns.
    pub front_ns: i64,
    /// Uncertainty of that time, ns.
    pub front_half_ns: i64,
    /// Uncertainty of the ends of steps, ns.
    pub blur_ns: i64,
}

/// The start and end of a request's prefill in ns. `early` and `late` bound the start.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PromptTimes {
    pub at: i64,
    pub early: i64,
    pub late: i64,
    /// End of the step with the first token.
    pub done: i64,
}

/// Minimum number of steps of a track.
const FEWEST_STEPS: usize = 200;
/// Minimum share of token pairs with exactly one step in between.
const ONE_STEP: f64 = 0.6;
/// Maximum share of tokens without a separate time, because further steps would be missing from the track.
const COALESCED: f64 = 0.1;
/// Maximum uncertainty of the front time as a share of the mean wait.
const FRONT_KNOWN: f64 = 0.2;
/// Number of steps on either side that are searched for steps without prefill.
const AROUND: usize = 60;

impl Track {
    /// Finds the steps in all responses of a level.
    ///
    /// # Errors
    /// Fails with the reason as a phrase if there is no track.
    pub fn of(attempts: &[&Attempt]) -> Result<Track, String> {
        coalesced(attempts)?;
        let mut by_replica: BTreeMap<Option<String>, Vec<&Attempt>> = BTreeMap::new();
        for attempt in attempts {
            by_replica.entry(attempt.answer.replica.clone()).or_default().push(attempt);
        }
        // Requests that failed before their placement have no replica and no tokens.
        by_replica.retain(|_, own| own.iter().any(|attempt| attempt.first_token.is_some()));
        let blur_ns = blur(attempts).ok_or("too few token events were kept to see the engine's steps")?;
        let mut found = BTreeMap::new();
        for (replica, own) in by_replica {
            found.insert(replica, Steps::of(&own, blur_ns)?);
        }
        if found.is_empty() {
            return Err("no answer came token by token".into());
        }
        let mut track =
            Track { by_replica: found, per_token_ns: 0.0, front_ns: 0, front_half_ns: 0, blur_ns };
        let rows: Vec<ClientRow<'_>> = attempts.iter().filter_map(|attempt| ClientRow::of(attempt)).collect();
        track.learn(&rows)?;
        Ok(track)
    }

    /// Estimates the cost of a prompt token and the front time from the track itself.
    fn learn(&mut self, rows: &[ClientRow<'_>]) -> Result<(), String> {
        let over: f64 = self.by_replica.values().flat_map(Steps::over_plain).sum();
        let tokens: f64 = rows
            .iter()
            .filter(|row| self.steps(row).is_some_and(|(steps, i)| steps.continuous[i]))
            .map(|row| row.uncached)
            .sum();
        if tokens <= 0.0 {
            return Err("no prompt was computed while another answer was being written".into());
        }
        self.per_token_ns = over / tokens;
        // A prefill starts after the request has arrived, so the minimum time from sent to that step is the front
        // time. A low percentile replaces the minimum, because a single timestamp may be wrong.
        let mut before: Vec<i64> = rows
            .iter()
            .filter_map(|row| {
                let (steps, i) = self.steps(row)?;
                let start = steps.ends[i.checked_sub(1)?];
                (steps.continuous[i] && start > row.sent).then(|| start - row.sent)
            })
            .collect();
        if before.len() < 20 {
            return Err(
                "too few requests waited for a step of others to measure the time before the queue".into()
            );
        }
        before.sort_unstable();
        // The wait for the next step is uniform from zero, so two low percentiles extrapolate to its start.
        let (low, next) = (before[before.len() / 50], before[before.len() / 25]);
        self.front_ns = (2 * low - next).max(0);
        self.front_half_ns = next - low + self.blur_ns;
        let mean = rows.iter().map(|row| row.wait() as f64).sum::<f64>() / rows.len().max(1) as f64;
        if self.front_half_ns as f64 > FRONT_KNOWN * mean {
            return Err("the time before the queue varies too much to separate it from the queue".into());
        }
        Ok(())
    }

    /// Returns the steps of the replica that responded, and the index of the step with the first token.
    fn steps(&self, row: &ClientRow<'_>) -> Option<(&Steps, usize)> {
        let steps = self.by_replica.get(&row.attempt.answer.replica)?;
        let after = steps.ends.partition_point(|end| *end <= row.first);
        Some((steps, after.checked_sub(1)?))
    }

    /// Returns the prefill times of these requests in order; `None` for a request without a step.
    ///
    /// Prefills are computed in order of arrival, so the work is counted backwards. The last request takes the step
    /// of its first token, and as many before as its prefill cost needs. The rest of a step belongs to its
    /// predecessor. `all` are all requests of the level.
    pub fn begun(&self, all: &[ClientRow<'_>]) -> Vec<Option<PromptTimes>> {
        let ways =
            [(1.0, LATE), (1.0, LIKELY), (1.5, EARLY)].map(|(cost, lack)| self.starts(all, cost, lack));
        (0..all.len())
            .map(|i| {
                let (steps, step) = self.steps(&all[i])?;
                let [late, at, early] = [ways[0][i]?, ways[1][i]?, ways[2][i]?];
                let (at, done) = (at.min(late), steps.ends[step]);
                let (mut late, mut early) = (late, early.min(at));
                // A request at an idle engine starts on arrival, which is known as precisely as the front time.
                if at <= all[i].sent + self.front_ns {
                    late = (late + self.front_half_ns).min(done.max(at));
                    early = (early - self.front_half_ns).max(all[i].sent);
                }
                Some(PromptTimes { at, late, early, done: done.max(at) })
            })
            .collect()
    }

    /// Assigns steps backwards, as described in [`begun`](Track::begun). A request stops when at most `lack` of its
    /// cost is missing.
    fn starts(&self, all: &[ClientRow<'_>], cost: f64, lack: f64) -> Vec<Option<i64>> {
        let mut left: BTreeMap<&Option<String>, Vec<f64>> =
            self.by_replica.iter().map(|(name, steps)| (name, steps.over_plain())).collect();
        let mut order: Vec<(usize, usize)> =
            (0..all.len()).filter_map(|i| Some((self.steps(&all[i])?.1, i))).collect();
        order.sort_by_key(|(step, i)| std::cmp::Reverse((*step, all[*i].sent)));
        let mut starts = vec![None; all.len()];
        for (step, i) in order {
            let row = &all[i];
            let (Some((steps, _)), Some(left)) = (self.steps(row), left.get_mut(&row.attempt.answer.replica))
            else {
                continue;
            };
            let arrived = (row.sent + self.front_ns).min(row.first);
            let needed = cost * self.per_token_ns * row.uncached;
            starts[i] = Some(steps.back(left, step, arrived, (needed, lack)));
        }
        starts
    }
}

/// Accepted missing share of a prefill's cost, and of a plain step, before another step is assigned. Chunks that
/// share a step cost less, and a small prefill is hidden in a step.
const LIKELY: f64 = 0.25;
/// Accepted missing share for the latest possible start.
const LATE: f64 = 0.6;
/// Accepted missing share for the earliest possible start.
const EARLY: f64 = 0.03;

impl Steps {
    fn of(attempts: &[&Attempt], blur_ns: i64) -> Result<Steps, String> {
        let mut instants: Vec<i64> = tokens(attempts).flatten().collect();
        instants.sort_unstable();
        let mut ends: Vec<i64> = Vec::new();
        let mut previous = i64::MIN;
        for at in instants {
            if ends.is_empty() || at - previous > blur_ns {
                ends.push(at);
            }
            previous = at;
        }
        if ends.len() < FEWEST_STEPS {
            return Err(format!("{} steps of the engine are visible, {FEWEST_STEPS} are needed", ends.len()));
        }
        let mut continuous = vec![false; ends.len()];
        let (mut pairs, mut one) = (0u64, 0u64);
        for stream in tokens(attempts) {
            let mut before: Option<usize> = None;
            for at in stream {
                let here = ends.partition_point(|end| *end <= at) - 1;
                if let Some(before) = before.filter(|before| *before < here) {
                    pairs += 1;
                    one += u64::from(here - before == 1);
                    continuous[before + 1..=here].fill(true);
                }
                before = Some(here);
            }
        }
        if pairs == 0 || (one as f64) < ONE_STEP * pairs as f64 {
            return Err(format!(
                "tokens do not come in common steps ({:.0} % of the gaps contain one step; {:.0} % are needed): several engines \
                 behind one address, or a buffering proxy",
                100.0 * one as f64 / pairs.max(1) as f64,
                100.0 * ONE_STEP
            ));
        }
        let plain = plain(&ends, &continuous);
        Ok(Steps { ends, continuous, plain })
    }

    fn took(&self, i: usize) -> i64 {
        if i == 0 { 0 } else { self.ends[i] - self.ends[i - 1] }
    }

    /// Returns the time of each step beyond a plain one in ns; zero if the engine may have been idle.
    fn over_plain(&self) -> Vec<f64> {
        let over =
            |i: usize| if self.continuous[i] { (self.took(i) - self.plain[i]).max(0) as f64 } else { 0.0 };
        (0..self.ends.len()).map(over).collect()
    }

    /// Returns the start of the prefill, searched backwards from step `i`, which has the first token. The time is
    /// taken from `left`.
    fn back(&self, left: &mut [f64], i: usize, arrived: i64, (asked, lack): (f64, f64)) -> i64 {
        let (mut i, mut needed) = (i, asked);
        loop {
            let Some(before) = i.checked_sub(1) else { return arrived };
            let start = self.ends[before].max(arrived);
            // Without concurrent responses the length of a step is unknown: all of it may be this prefill's.
            let there = if self.continuous[i] { left[i] } else { (self.ends[i] - start).max(0) as f64 };
            let takes = needed.min(there);
            left[i] = (left[i] - takes).max(0.0);
            needed -= takes;
            // A step without remaining time has no part of this prefill.
            let more = self.continuous[before] && left[before] > LEAST * self.plain[before] as f64;
            let enough = needed <= (lack * asked).max(lack * self.plain[i] as f64);
            if self.ends[before] <= arrived || enough || !self.continuous[i] || !more {
                return start.min(self.ends[i]);
            }
            i = before;
        }
    }
}

/// Minimum remaining share of a plain step; less is noise.
const LEAST: f64 = 0.05;

/// Returns the duration of steps without prefill around each step: a low quantile of its neighbours.
fn plain(ends: &[i64], continuous: &[bool]) -> Vec<i64> {
    let took: Vec<i64> = (0..ends.len())
        .map(|i| if i > 0 && continuous[i] { ends[i] - ends[i - 1] } else { i64::MAX })
        .collect();
    // Recomputed at intervals, because the batch changes slowly.
    let stride = AROUND / 4;
    let mut found: Vec<i64> = Vec::with_capacity(took.len());
    for from in (0..took.len()).step_by(stride) {
        let low = from.saturating_sub(AROUND);
        let high = (from + stride + AROUND).min(took.len());
        let mut some: Vec<i64> = took[low..high].iter().copied().filter(|ns| *ns != i64::MAX).collect();
        let value = if some.is_empty() {
            found.last().copied().unwrap_or(0)
        } else {
            let place = some.len() / 10;
            *some.select_nth_unstable(place).1
        };
        found.extend(std::iter::repeat_n(value, stride.min(took.len() - from)));
    }
    found
}

/// Returns the token times of each response in ns. A token from one read with a later one has no separate time.
fn tokens<'a>(attempts: &'a [&'a Attempt]) -> impl Iterator<Item = impl Iterator<Item = i64> + 'a> + 'a {
    attempts.iter().filter_map(|attempt| {
        let sent = attempt.sent?.0;
        let own = attempt.events.iter().filter(|event| event.kind.is_token() && !event.coalesced);
        Some(own.map(move |event| sent + event.offset.0))
    })
}

/// Fails if too many tokens have no separate time.
fn coalesced(attempts: &[&Attempt]) -> Result<(), String> {
    let (mut together, mut all) = (0u64, 0u64);
    for event in attempts.iter().flat_map(|attempt| &attempt.events).filter(|event| event.kind.is_token()) {
        all += 1;
        together += u64::from(event.coalesced);
    }
    let share = together as f64 / all.max(1) as f64;
    if share <= COALESCED {
        return Ok(());
    }
    Err(format!(
        "{:.0} % of the tokens came together with later ones and have no separate time",
        100.0 * share
    ))
}

/// Returns the distance in ns below which two tokens belong to one step: a twentieth of the usual gap.
fn blur(attempts: &[&Attempt]) -> Option<i64> {
    const ENOUGH_GAPS: usize = 20_000;
    let mut gaps: Vec<i64> = Vec::new();
    for stream in tokens(attempts) {
        let instants: Vec<i64> = stream.collect();
        gaps.extend(instants.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > 0));
        if gaps.len() > ENOUGH_GAPS {
            break;
        }
    }
    if gaps.len() < FEWEST_STEPS {
        return None;
    }
    let middle = gaps.len() / 2;
    let usual = *gaps.select_nth_unstable(middle).1;
    Some((usual / 20).clamp(1_000, 3_000_000))
}
