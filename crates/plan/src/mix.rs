//! What formulas need of a load: lengths, what of the prompts a cache holds, and how bunched the arrivals are.
//!
//! Everything is taken from requests as they are drawn (or stand in a trace), lengths jointly, because long prompts often have
//! short answers. Moments are over all of them; what percentiles need is a sample in strata of answer and prompt. Two laws with
//! a correlation lost: a trace has neither.
//!
//! How bunched arrivals are depends on how far one looks. The coefficient of variation of the gaps says it of independent gaps;
//! in a trace most of it is slow, so that it is the index of dispersion of counts (variance over mean) at the time that a replica
//! takes to forget, after Whitt and You, "Using robust queueing to expose the impact of dependence in single-server queues",
//! Operations Research 66 (2018).

use std::collections::HashMap;

use plimsoll_model::Span;
use plimsoll_sim::spec::BLOCK_TOKENS;
use plimsoll_sim::{BatchingSpec, ModeSpec};
use plimsoll_workload::draw::Arrival;
use plimsoll_workload::{ArrivalSpec, Schedule};

use super::spec::{PlanError, PlanSpec};

/// One request as far as formulas see it.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct MixRow {
    /// Prompt tokens (rows of a batch, for an engine of batches).
    pub prompt: u32,
    /// Of those, how many the prefix cache holds.
    pub cached: u32,
    /// Tokens of the answer.
    pub output: u32,
}

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Mix {
    /// A sample in strata of answer and prompt, in ascending order of the answer.
    rows: Vec<MixRow>,
    /// Means over all requests.
    pub means: MixMeans,
    /// Coefficient of variation of the gaps between arrivals.
    pub gap_cv: f64,
    /// Index of dispersion by the number of arrivals looked at: 1 for Poisson.
    dispersion: Vec<(f64, f64)>,
    /// Requests that it rests on.
    pub requests: u64,
}

/// Means over all requests of a mix.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct MixMeans {
    /// Prompt tokens, I.
    pub prompt: f64,
    /// Prompt tokens that have to be computed.
    pub fresh: f64,
    /// Tokens of an answer, O.
    pub output: f64,
    /// Tokens of an answer after the first.
    pub more: f64,
    /// Answers' second moment, `E[O²]`.
    pub output_squared: f64,
    /// Mean context of a sequence that decodes: Σ O (I + O/2) / Σ O, which is I + `E[O²]/(2 E[O])` where lengths are independent.
    pub context: f64,
    /// Σ fresh (2 cached + fresh) per request: twice the pairs of prefill attention.
    pub pairs: f64,
}

/// Requests of the sample.
const STRATA: usize = 1024;
/// Most requests that are drawn or read for a mix.
const MOST: f64 = 40_000.0;
/// An index of dispersion rests on at least so many windows.
const LEAST_WINDOWS: usize = 30;

impl Mix {
    /// The mix of these requests, with arrivals by chance (Poisson). `None` without requests.
    pub fn new(rows: &[MixRow]) -> Option<Mix> {
        let means = MixMeans::of(rows)?;
        Some(Mix {
            rows: strata(rows),
            means,
            gap_cv: 1.0,
            dispersion: vec![(1.0, 1.0)],
            requests: rows.len() as u64,
        })
    }

    /// Of pairs of prompt and answer, nothing of them cached.
    pub fn from_pairs(pairs: &[(u32, u32)]) -> Option<Mix> {
        let rows: Vec<MixRow> =
            pairs.iter().map(|&(prompt, output)| MixRow { prompt, cached: 0, output }).collect();
        Mix::new(&rows)
    }

    /// The same lengths with independent gaps of this coefficient of variation.
    #[must_use]
    pub fn with_gap_cv(self, cv: f64) -> Mix {
        Mix { gap_cv: cv, dispersion: vec![(1.0, cv * cv)], ..self }
    }

    /// The same lengths with arrivals that vary so many times as much.
    #[must_use]
    pub fn bunched(&self, factor: f64) -> Mix {
        let dispersion = self.dispersion.iter().map(|&(over, is)| (over, is * factor * factor)).collect();
        Mix { gap_cv: self.gap_cv * factor, dispersion, ..self.clone() }
    }

    /// What is drawn for this plan.
    ///
    /// # Errors
    /// The workload can't be drawn, or draws no request.
    pub fn draw(spec: &PlanSpec) -> Result<Mix, PlanError> {
        let traffic = &spec.traffic;
        let window_s = traffic.window_s.min(MOST / traffic.rate_per_s.max(f64::MIN_POSITIVE)).max(1e-3);
        let window = Span::from_secs_f64(window_s);
        let schedule = Schedule::generate(&traffic.scenario, traffic.rate_per_s, window, 0)?;
        let rows = rows(spec, &schedule.arrivals);
        let mix = Mix::new(&rows).ok_or_else(|| {
            PlanError::Setting(format!(
                "the load draws no request in {window_s:.4} s; give a higher rate or a longer window"
            ))
        })?;
        let times: Vec<f64> = schedule.arrivals.iter().map(|arrival| arrival.due.0 as f64 / 1e9).collect();
        Ok(match traffic.scenario.arrivals {
            ArrivalSpec::Poisson if traffic.scenario.prompts.sessions.is_none() => mix,
            ArrivalSpec::Constant => mix.with_gap_cv(0.0),
            ArrivalSpec::Gamma { cv } | ArrivalSpec::Weibull { cv } => mix.with_gap_cv(cv),
            _ => Mix { gap_cv: gap_cv(&times), dispersion: dispersion(&times), ..mix },
        })
    }

    /// The sample, in ascending order of the answer.
    pub fn rows(&self) -> &[MixRow] {
        &self.rows
    }

    /// Index of dispersion of the counts over so many arrivals.
    pub fn dispersion(&self, arrivals: f64) -> f64 {
        let place = self.dispersion.partition_point(|point| point.0 < arrivals);
        let place = place.min(self.dispersion.len().saturating_sub(1));
        self.dispersion.get(place).map_or(1.0, |point| point.1)
    }

    /// Share of the prompt tokens that the cache holds.
    pub fn hit_share(&self) -> f64 {
        if self.means.prompt > 0.0 { 1.0 - self.means.fresh / self.means.prompt } else { 0.0 }
    }

    /// The same requests with lengths changed by these factors, and the share of their prompts that is cached by another.
    #[must_use]
    pub fn scaled(&self, prompt: f64, output: f64, cached: f64) -> Mix {
        let times = |tokens: u32, factor: f64| (f64::from(tokens) * factor).round().max(0.0) as u32;
        let rows: Vec<MixRow> = self
            .rows
            .iter()
            .map(|row| {
                let longer = times(row.prompt, prompt).max(u32::from(row.prompt > 0));
                let cached = times(row.cached, prompt * cached).min(longer.saturating_sub(1));
                let output = times(row.output, output).max(u32::from(row.output > 0));
                MixRow { prompt: longer, cached, output }
            })
            .collect();
        let sample = MixMeans::of(&self.rows).unwrap_or_default();
        let after = MixMeans::of(&rows).unwrap_or_default();
        Mix { means: self.means.moved(&sample, &after), rows, ..self.clone() }
    }
}

impl MixMeans {
    fn of(rows: &[MixRow]) -> Option<MixMeans> {
        let count = rows.len() as f64;
        let mut sums = MixMeans::default();
        let mut context = 0.0;
        for row in rows {
            let (prompt, cached) = (f64::from(row.prompt), f64::from(row.cached.min(row.prompt)));
            let (output, fresh) = (f64::from(row.output), prompt - cached);
            sums.prompt += prompt;
            sums.fresh += fresh;
            sums.output += output;
            sums.more += (output - 1.0).max(0.0);
            sums.output_squared += output * output;
            sums.pairs += fresh * (2.0 * cached + fresh);
            context += output * (prompt + output / 2.0);
        }
        (!rows.is_empty()).then(|| MixMeans {
            prompt: sums.prompt / count,
            fresh: sums.fresh / count,
            output: sums.output / count,
            more: sums.more / count,
            output_squared: sums.output_squared / count,
            context: if sums.output > 0.0 { context / sums.output } else { sums.prompt / count },
            pairs: sums.pairs / count,
        })
    }

    /// These means, changed as those of a sample were.
    fn moved(&self, before: &MixMeans, after: &MixMeans) -> MixMeans {
        let by =
            |mean: f64, before: f64, after: f64| if before > 0.0 { mean * after / before } else { after };
        MixMeans {
            prompt: by(self.prompt, before.prompt, after.prompt),
            fresh: by(self.fresh, before.fresh, after.fresh),
            output: by(self.output, before.output, after.output),
            more: by(self.more, before.more, after.more),
            output_squared: by(self.output_squared, before.output_squared, after.output_squared),
            context: by(self.context, before.context, after.context),
            pairs: by(self.pairs, before.pairs, after.pairs),
        }
    }
}

/// At most so many requests that stand for all: one of each group of like answers, the prompt's rank within its group spread
/// evenly over the groups, so that both lengths keep their law.
fn strata(rows: &[MixRow]) -> Vec<MixRow> {
    let fresh = |row: &MixRow| row.prompt - row.cached.min(row.prompt);
    let mut sorted = rows.to_vec();
    sorted.sort_by_key(|row| (row.output, fresh(row), row.prompt));
    if sorted.len() <= STRATA {
        return sorted;
    }
    let bounds = |group: usize| group * sorted.len() / STRATA;
    let one = |group: usize| {
        let mut members = sorted[bounds(group)..bounds(group + 1)].to_vec();
        members.sort_by_key(|row| (fresh(row), row.output));
        // Multiples of the golden section.
        let place = (group as f64 + 0.5) * 0.618_033_988_749_895;
        members[((place - libm::floor(place)) * members.len() as f64) as usize]
    };
    let mut out: Vec<MixRow> = (0..STRATA).map(one).collect();
    out.sort_by_key(|row| row.output);
    out
}

/// The requests of a schedule, with what the prefix cache of one replica would hold of each.
fn rows(spec: &PlanSpec, arrivals: &[Arrival]) -> Vec<MixRow> {
    let mut cache = match &spec.world.engine.mode {
        ModeSpec::Batching(batching) if batching.prefix_cache => Some(Cache::new(batching)),
        _ => None,
    };
    let prompts = &spec.traffic.scenario.prompts;
    let mut said: HashMap<u64, u32> = HashMap::new();
    arrivals
        .iter()
        .map(|arrival| {
            let prompt = arrival.prompt_tokens.max(1);
            let held = match (&mut cache, prompts.shared_prefix, arrival.session) {
                (None, ..) => 0,
                (Some(_), Some(shared), None) => (shared.share.clamp(0.0, 1.0) * f64::from(prompt)) as u32,
                (Some(_), _, Some(session)) => said.insert(session, prompt).unwrap_or(0),
                (Some(cache), None, None) => cache.meet(&arrival.blocks, prompt),
            };
            let cached = (held / BLOCK_TOKENS * BLOCK_TOKENS).min((prompt - 1) / BLOCK_TOKENS * BLOCK_TOKENS);
            MixRow { prompt, cached, output: arrival.output_tokens }
        })
        .collect()
}

/// Which blocks of a trace one replica's cache holds, the least recently used leaving first.
struct Cache {
    tokens: f64,
    /// When a block was used last, and its tokens.
    used: HashMap<u64, (u64, f64)>,
    held: f64,
    clock: u64,
}

impl Cache {
    fn new(spec: &BatchingSpec) -> Cache {
        let tokens = spec.blocks().map_or(0.0, |blocks| f64::from(blocks) * f64::from(BLOCK_TOKENS));
        Cache { tokens, used: HashMap::new(), held: 0.0, clock: 0 }
    }

    /// Tokens of this prompt that are there; then all of it is.
    fn meet(&mut self, blocks: &[u64], prompt: u32) -> u32 {
        if blocks.is_empty() {
            return 0;
        }
        let each = f64::from(prompt) / blocks.len() as f64;
        let known = blocks.iter().take_while(|block| self.used.contains_key(block)).count();
        for &block in blocks {
            self.clock += 1;
            if self.used.insert(block, (self.clock, each)).is_none() {
                self.held += each;
            }
        }
        if self.held > self.tokens {
            self.make_room();
        }
        (known as f64 * each) as u32
    }

    /// A tenth more than needed, so that it is not done for each request.
    fn make_room(&mut self) {
        let mut by_age: Vec<(u64, u64, f64)> =
            self.used.iter().map(|(&block, &(clock, tokens))| (clock, block, tokens)).collect();
        by_age.sort_unstable_by_key(|entry| entry.0);
        for (_, block, tokens) in by_age {
            if self.held <= 0.9 * self.tokens {
                break;
            }
            self.used.remove(&block);
            self.held -= tokens;
        }
    }
}

/// Standard deviation of the gaps over their mean; 1 where there are too few to say.
fn gap_cv(times: &[f64]) -> f64 {
    let gaps: Vec<f64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    let count = gaps.len() as f64;
    let mean = gaps.iter().sum::<f64>() / count;
    if gaps.len() < 2 || mean <= 0.0 {
        return 1.0;
    }
    let variance = gaps.iter().map(|gap| (gap - mean) * (gap - mean)).sum::<f64>() / (count - 1.0);
    libm::sqrt(variance) / mean
}

/// Variance over mean of the counts in windows that hold 1, 2, 4, … arrivals on average.
fn dispersion(times: &[f64]) -> Vec<(f64, f64)> {
    let (Some(first), Some(last)) = (times.first(), times.last()) else { return vec![(1.0, 1.0)] };
    let span = last - first;
    let mut out = Vec::new();
    let mut arrivals = 1;
    while span > 0.0 && times.len() / arrivals >= LEAST_WINDOWS {
        let windows = times.len() / arrivals;
        let mut counts = vec![0.0; windows];
        for time in times {
            let place = ((time - first) / span * windows as f64) as usize;
            counts[place.min(windows - 1)] += 1.0;
        }
        let mean = times.len() as f64 / windows as f64;
        let squares: f64 = counts.iter().map(|count| (count - mean) * (count - mean)).sum();
        out.push((mean, squares / (windows as f64 - 1.0) / mean));
        arrivals *= 2;
    }
    if out.is_empty() { vec![(1.0, 1.0)] } else { out }
}
