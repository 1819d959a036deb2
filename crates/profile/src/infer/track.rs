//! The engine's steps, seen in the tokens of everybody's answers.
//!
//! An engine that batches continuously hands out tokens at the end of each step, to all that decode. So the tokens of the
//! *other* answers show when steps end, and a request that waits can only get in at such an end: its prompt was computed in the
//! step, or the few steps, that end with its first token, and before that it waited. No server has to say anything.
//!
//! What it rests on is checked, not assumed: from one token of an answer to the next there must be one step, mostly. Replicas
//! that nobody tells apart, proxies that buffer and servers that flush by a timer fail that, and then there is no track.
//! Reading the split off a queueing formula lost: it knows means, and of an engine that nobody knows.

use std::collections::BTreeMap;

use plimsoll_model::Attempt;

use super::rows::ClientRow;

#[derive(Clone, Debug)]
struct Steps {
    /// When they ended, ns, rising.
    ends: Vec<i64>,
    /// Did some answer have a token at this end and at the one before? Else the engine may have been idle between.
    continuous: Vec<bool>,
    /// What a step without any prompt takes hereabouts, ns.
    plain: Vec<i64>,
}

/// The steps of all engines that can be told apart.
#[derive(Clone, Debug)]
pub struct Track {
    by_replica: BTreeMap<Option<String>, Steps>,
    /// Time per prompt token that steps with prompts take longer, ns.
    pub per_token_ns: f64,
    /// From sending to the earliest moment at which anybody was taken: network and what stands before the queue, ns.
    pub front_ns: i64,
    /// How far that may be off, ns.
    pub front_half_ns: i64,
    /// How well ends of steps are known, ns.
    pub blur_ns: i64,
}

/// When a request's prompt was begun and done, ns. `early` and `late` bound the beginning.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PromptTimes {
    pub at: i64,
    pub early: i64,
    pub late: i64,
    /// The end of the step that made its first token.
    pub done: i64,
}

/// Fewest steps that are a track.
const FEWEST_STEPS: usize = 200;
/// Share of the pairs of tokens that must have one step between them.
const ONE_STEP: f64 = 0.6;
/// Share of the tokens without a time of their own beyond which steps are missing from what is seen.
const COALESCED: f64 = 0.1;
/// Share of the mean wait to which what stands before the queue must be known.
const FRONT_KNOWN: f64 = 0.2;
/// Steps on either side among which the plain ones are looked for.
const AROUND: usize = 60;

impl Track {
    /// Finds the steps in all answers of a level.
    ///
    /// # Errors
    /// Why there is no track, as a sentence part.
    pub fn of(attempts: &[&Attempt]) -> Result<Track, String> {
        coalesced(attempts)?;
        let mut by_replica: BTreeMap<Option<String>, Vec<&Attempt>> = BTreeMap::new();
        for attempt in attempts {
            by_replica.entry(attempt.answer.replica.clone()).or_default().push(attempt);
        }
        // Requests that failed before they were placed have no replica and no tokens.
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

    /// What a prompt token costs and what stands before the queue, both from the track itself.
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
        // Nobody is taken before he has arrived: the least time from sending to the step that took him is what stands
        // before the queue.
        // Not the least of all, because a single stamp may be wrong.
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
                "too few requests had to wait for a step of others to see what stands before the queue"
                    .into(),
            );
        }
        before.sort_unstable();
        // The wait for the next step begins at nothing and is even there: two low percentiles point at where it begins.
        let (low, next) = (before[before.len() / 50], before[before.len() / 25]);
        self.front_ns = (2 * low - next).max(0);
        self.front_half_ns = next - low + self.blur_ns;
        let mean = rows.iter().map(|row| row.wait() as f64).sum::<f64>() / rows.len().max(1) as f64;
        if self.front_half_ns as f64 > FRONT_KNOWN * mean {
            return Err("what stands before the queue varies too much to tell it from the queue".into());
        }
        Ok(())
    }

    /// The steps of the replica that answered, and the one that made the first token.
    fn steps(&self, row: &ClientRow<'_>) -> Option<(&Steps, usize)> {
        let steps = self.by_replica.get(&row.attempt.answer.replica)?;
        let after = steps.ends.partition_point(|end| *end <= row.first);
        Some((steps, after.checked_sub(1)?))
    }

    /// When the prompt of each of these requests was begun, in their order; `None` where one of them has no step.
    ///
    /// Prompts are computed in the order in which they came, so the work is counted backwards: the last request takes the step of
    /// its first token, and as many before it as its prompt's cost needs; what it leaves of a step is its predecessor's. `all` are
    /// the requests of the level, the ones asked for among them: each takes what is its own.
    pub fn begun(&self, all: &[ClientRow<'_>]) -> Vec<Option<PromptTimes>> {
        let ways =
            [(1.0, LATE), (1.0, LIKELY), (1.5, EARLY)].map(|(cost, lack)| self.starts(all, cost, lack));
        (0..all.len())
            .map(|i| {
                let (steps, step) = self.steps(&all[i])?;
                let [late, at, early] = [ways[0][i]?, ways[1][i]?, ways[2][i]?];
                let (at, done) = (at.min(late), steps.ends[step]);
                let (mut late, mut early) = (late, early.min(at));
                // Who met an idle engine began when he arrived, which is known no better than what stands before the queue.
                if at <= all[i].sent + self.front_ns {
                    late = (late + self.front_half_ns).min(done.max(at));
                    early = (early - self.front_half_ns).max(all[i].sent);
                }
                Some(PromptTimes { at, late, early, done: done.max(at) })
            })
            .collect()
    }

    /// Backwards through the steps: see [`begun`](Track::begun). A request is content when no more than `lack` of its cost is
    /// missing.
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

/// Share of a prompt's cost, and of a plain step, that may be missing before another step is taken for its own: chunks that ride
/// along cost less, and a prompt that is small beside a step hides in it.
const LIKELY: f64 = 0.25;
/// The same for the latest beginning that can be thought of.
const LATE: f64 = 0.6;
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
                "tokens do not come in common steps ({:.0} % of the gaps hold one step; {:.0} % are needed): several engines \
                 behind one address, or something that buffers",
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

    /// Time by which each step took longer than a plain one, ns; nothing where the engine may have been idle.
    fn over_plain(&self) -> Vec<f64> {
        let over =
            |i: usize| if self.continuous[i] { (self.took(i) - self.plain[i]).max(0) as f64 } else { 0.0 };
        (0..self.ends.len()).map(over).collect()
    }

    /// From the step `i` that ends with the first token back to where the prompt began; what it takes is taken from `left`.
    fn back(&self, left: &mut [f64], i: usize, arrived: i64, (asked, lack): (f64, f64)) -> i64 {
        let (mut i, mut needed) = (i, asked);
        loop {
            let Some(before) = i.checked_sub(1) else { return arrived };
            let start = self.ends[before].max(arrived);
            // Where nobody else was writing, a step has no length of its own: all of it may be this prompt's.
            let there = if self.continuous[i] { left[i] } else { (self.ends[i] - start).max(0) as f64 };
            let takes = needed.min(there);
            left[i] = (left[i] - takes).max(0.0);
            needed -= takes;
            // A step of which nothing is left holds no piece of this prompt.
            let more = self.continuous[before] && left[before] > LEAST * self.plain[before] as f64;
            let enough = needed <= (lack * asked).max(lack * self.plain[i] as f64);
            if self.ends[before] <= arrived || enough || !self.continuous[i] || !more {
                return start.min(self.ends[i]);
            }
            i = before;
        }
    }
}

/// Share of a plain step below which what is left of a longer one is noise.
const LEAST: f64 = 0.05;

/// What steps without prompts take around each step: a low quantile of their neighbours.
fn plain(ends: &[i64], continuous: &[bool]) -> Vec<i64> {
    let took: Vec<i64> = (0..ends.len())
        .map(|i| if i > 0 && continuous[i] { ends[i] - ends[i - 1] } else { i64::MAX })
        .collect();
    // Every so many steps anew: the batch changes slowly.
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

/// The instants of the tokens of each answer, ns. An event that came in one read with a later one has no time of its own.
fn tokens<'a>(attempts: &'a [&'a Attempt]) -> impl Iterator<Item = impl Iterator<Item = i64> + 'a> + 'a {
    attempts.iter().filter_map(|attempt| {
        let sent = attempt.sent?.0;
        let own = attempt.events.iter().filter(|event| event.kind.is_token() && !event.coalesced);
        Some(own.map(move |event| sent + event.offset.0))
    })
}

/// Are the tokens apart enough to have times of their own?
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
        "{:.0} % of the tokens came together with later ones and have no time of their own",
        100.0 * share
    ))
}

/// Two tokens nearer than this left the same step, ns: a twentieth of the usual gap.
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
