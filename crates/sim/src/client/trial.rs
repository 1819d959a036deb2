//! A measurement protocol as data, and a small client that runs it against an engine and keeps only sums.
//!
//! The results of a benchmark depend on its protocol. A closed loop and a single wave of equal requests differ by a
//! third in the time per token. The protocol is therefore stored, drawn from, and run. The full virtual client
//! (`client`) does more (time-outs, retries, records of every request) and is slower; a fit runs a protocol some
//! thousand times.
//!
//! It always terminates: the number of requests is fixed, and an engine answers or rejects each.

use plimsoll_math::rng::Stream;
use plimsoll_math::{dist, quantile};
use plimsoll_model::{At, Span};
use plimsoll_workload::Size;

use crate::engine::Engine;
use crate::spec::EngineSpec;
use crate::spec::error::SimSpecError;
use crate::traffic::{Detail, RequestEvent, Submit};

/// The pace and sizes of requests.
#[derive(Clone, PartialEq, Debug)]
pub struct ProtocolSpec {
    pub pace: SendPace,
    pub sizes: Sizes,
    pub requests: u32,
    /// Number of warm-up requests, which are not measured.
    pub warm_up: u32,
}

#[derive(Copy, Clone, PartialEq, Debug)]
pub enum SendPace {
    /// A constant number in flight: the next request is sent when one ends.
    Closed {
        /// Number of requests that are kept in flight.
        concurrency: u32,
        start: Start,
    },
    /// All requests simultaneously, once.
    Wave,
    /// Random arrival times, independent of the responses (Poisson).
    Open {
        /// Mean arrival rate of the open loop in requests/s.
        rate_per_s: f64,
    },
}

/// The start of a closed loop.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Start {
    /// All simultaneously; with responses of one length they stay synchronised for long.
    AtOnce,
    /// As in a loop that has run for long. The first outputs are cut to 1/n, 2/n, … of their length, so that they end
    /// in sequence. They are never measured.
    Staggered,
}

#[derive(Clone, PartialEq, Debug)]
pub enum Sizes {
    /// Drawn from distributions. An empirical distribution needs a file, which a protocol does not have, and draws
    /// zero.
    Drawn {
        prompt: Size,
        /// Output tokens.
        output: Size,
    },
    /// Listed prompt and output tokens, in order and repeated.
    Listed(Vec<(u32, u32)>),
}

/// A sent request: its time, tokens and blocks.
#[derive(Clone, PartialEq, Default, Debug)]
pub struct TrialRequest {
    /// Time after the first request in ns.
    pub after_ns: i64,
    pub prompt_tokens: u32,
    pub output_tokens: u32,
    /// Names of the prompt's blocks; empty if it shares none.
    pub blocks: Vec<u64>,
}

#[derive(Clone, PartialEq, Debug)]
pub struct Trial {
    /// Number of measured requests with a response.
    pub answered: u32,
    pub refused: u32,
    /// Time from sent to the first token.
    pub ttft: Figures,
    /// (end − first token) / (tokens − 1), per request.
    pub tpot: Figures,
    pub e2e: Figures,
    /// Output tokens/s from the first send to the last end.
    pub tokens_per_s: f64,
    pub preempted: u64,
    /// Reason why the figures are not a steady state; `None` if they are.
    pub unsteady: Option<String>,
}

/// A metric over the requests in ms; NaN without values.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Figures {
    pub mean: f64,
    pub p50: f64,
    pub p90: f64,
    pub p99: f64,
}

impl ProtocolSpec {
    /// Returns the number of unmeasured requests at the start.
    fn unmeasured(&self) -> u32 {
        match self.pace {
            SendPace::Closed { concurrency, start: Start::Staggered } => self.warm_up.max(concurrency),
            _ => self.warm_up,
        }
    }

    /// Returns the requests of this protocol in order, drawn from `seed`. Closed loops have no times.
    fn requests(&self, seed: u64) -> Vec<TrialRequest> {
        let mut lengths = Stream::new(seed, "trial lengths", 0);
        let mut times = Stream::new(seed, "trial times", 0);
        let mut after_s = 0.0;
        let count = self.requests + self.unmeasured();
        let one = |index: u32| {
            if let SendPace::Open { rate_per_s } = self.pace {
                after_s += dist::exponential(&mut times, 1.0 / rate_per_s);
            }
            let (prompt_tokens, mut output_tokens) = self.sizes.draw(index, &mut lengths);
            if let SendPace::Closed { concurrency, start: Start::Staggered } = self.pace
                && index < concurrency
            {
                let cut = u64::from(output_tokens) * u64::from(index + 1) / u64::from(concurrency);
                output_tokens = (cut as u32).max(1);
            }
            TrialRequest {
                after_ns: (after_s * 1e9) as i64,
                prompt_tokens,
                output_tokens,
                blocks: Vec::new(),
            }
        };
        (0..count).map(one).collect()
    }
}

impl Sizes {
    fn draw(&self, index: u32, stream: &mut Stream) -> (u32, u32) {
        match self {
            Sizes::Drawn { prompt, output } => {
                (prompt.sample(stream).unwrap_or(1), output.sample(stream).unwrap_or(1))
            }
            Sizes::Listed(pairs) if pairs.is_empty() => (1, 1),
            Sizes::Listed(pairs) => pairs[index as usize % pairs.len()],
        }
    }

    /// Returns the mean prompt and output tokens; `None` if a distribution needs a file.
    pub fn means(&self) -> Option<(f64, f64)> {
        match self {
            Sizes::Drawn { prompt, output } => {
                let files = plimsoll_workload::ParsedFiles::default();
                Some((prompt.mean(&files).ok()?, output.mean(&files).ok()?))
            }
            Sizes::Listed(pairs) => {
                let count = pairs.len().max(1) as f64;
                let sums = pairs
                    .iter()
                    .fold((0.0, 0.0), |sum, pair| (sum.0 + f64::from(pair.0), sum.1 + f64::from(pair.1)));
                Some((sums.0 / count, sums.1 / count))
            }
        }
    }
}

/// Runs a protocol against an idle engine.
///
/// # Errors
/// Fails if the specification is invalid.
pub fn run(spec: &EngineSpec, protocol: &ProtocolSpec, seed: u64) -> Result<Trial, SimSpecError> {
    let requests = protocol.requests(seed);
    let at_once = match protocol.pace {
        SendPace::Closed { concurrency, .. } => concurrency.max(1) as usize,
        SendPace::Wave => requests.len(),
        SendPace::Open { .. } => 0,
    };
    let mut client = Client::new(spec, &requests, at_once, seed)?;
    client.play();
    let mut trial = client.conclude(protocol.unmeasured() as usize);
    if matches!(protocol.pace, SendPace::Wave) {
        trial.unsteady = None;
    }
    Ok(trial)
}

/// Sends these requests at their times to an idle engine.
///
/// # Errors
/// Fails if the specification is invalid.
pub fn replay(spec: &EngineSpec, requests: &[TrialRequest], seed: u64) -> Result<Trial, SimSpecError> {
    let mut client = Client::new(spec, requests, 0, seed)?;
    client.play();
    Ok(Trial { unsteady: None, ..client.conclude(0) })
}

/// Times of a request in ns: sent, first token, end. Negative if not reached.
#[derive(Copy, Clone, Debug)]
struct Times {
    sent: i64,
    first: i64,
    end: i64,
}

struct Client<'a> {
    engine: Engine,
    requests: &'a [TrialRequest],
    times: Vec<Times>,
    next: usize,
    /// Number of requests in flight of a loop; 0 if requests are sent at their times.
    at_once: usize,
    refused: u32,
}

impl Client<'_> {
    fn new<'a>(
        spec: &EngineSpec,
        requests: &'a [TrialRequest],
        at_once: usize,
        seed: u64,
    ) -> Result<Client<'a>, SimSpecError> {
        let mut engine = Engine::new(spec, seed)?;
        engine.set_detail(Detail::Ends);
        let times = vec![Times { sent: -1, first: -1, end: -1 }; requests.len()];
        Ok(Client { engine, requests, times, next: 0, at_once, refused: 0 })
    }

    fn play(&mut self) {
        for _ in 0..self.at_once.min(self.requests.len()) {
            self.send(At(0));
        }
        let mut out = Vec::new();
        loop {
            let due = (self.at_once == 0).then(|| self.requests.get(self.next)).flatten();
            let limit = match (due.map(|sent| At(sent.after_ns)), self.engine.next_turn()) {
                (None, None) => return,
                (Some(due), None) => due,
                (None, Some(turn)) => turn,
                (Some(due), Some(turn)) => due.min(turn),
            };
            let now = self.engine.advance(limit, &mut out);
            for emission in out.drain(..) {
                let times = &mut self.times[emission.id as usize];
                match emission.what {
                    RequestEvent::Token { .. } if times.first < 0 => times.first = emission.at.0,
                    RequestEvent::Finished { .. } | RequestEvent::Failed(_) => {
                        times.end = emission.at.0;
                        if self.at_once > 0 {
                            self.send(emission.at);
                        }
                    }
                    _ => {}
                }
            }
            while self.at_once == 0 && self.requests.get(self.next).is_some_and(|sent| sent.after_ns <= now.0)
            {
                self.send(now);
            }
        }
    }

    /// Sends the next request. In a loop, a rejected request is replaced by the next one.
    fn send(&mut self, now: At) {
        while let Some(sent) = self.requests.get(self.next) {
            let id = self.next;
            self.next += 1;
            let submit = Submit {
                blocks: sent.blocks.clone(),
                ..Submit::new(id as u64, sent.prompt_tokens, sent.output_tokens)
            };
            match self.engine.submit(now, submit) {
                Ok(()) => {
                    self.times[id].sent = now.0;
                    return;
                }
                Err(_) => self.refused += 1,
            }
            if self.at_once == 0 {
                return;
            }
        }
    }

    fn conclude(self, skip: usize) -> Trial {
        let ms = |ns: i64| Span(ns).as_millis_f64();
        let done = |times: &&Times| times.sent >= 0 && times.first >= 0 && times.end >= 0;
        let kept: Vec<(Times, u32)> = self.times[skip.min(self.times.len())..]
            .iter()
            .zip(self.requests.iter().skip(skip))
            .filter(|(times, _)| done(times))
            .map(|(times, sent)| (*times, sent.output_tokens))
            .collect();
        let ttft: Vec<f64> = kept.iter().map(|(times, _)| ms(times.first - times.sent)).collect();
        let e2e: Vec<f64> = kept.iter().map(|(times, _)| ms(times.end - times.sent)).collect();
        let tpot: Vec<f64> = kept
            .iter()
            .filter(|(_, tokens)| *tokens > 1)
            .map(|(times, tokens)| ms(times.end - times.first) / f64::from(tokens - 1))
            .collect();
        let begin = kept.iter().map(|(times, _)| times.sent).min().unwrap_or(0);
        let end = kept.iter().map(|(times, _)| times.end).max().unwrap_or(0);
        let tokens: f64 = kept.iter().map(|(_, tokens)| f64::from(*tokens)).sum();
        Trial {
            answered: kept.len() as u32,
            refused: self.refused,
            unsteady: unsteady(&e2e),
            ttft: Figures::of(ttft),
            tpot: Figures::of(tpot),
            e2e: Figures::of(e2e),
            tokens_per_s: if end > begin { tokens / (ms(end - begin) / 1e3) } else { 0.0 },
            preempted: self.engine.gauges().totals.preempted,
        }
    }
}

/// Returns a reason if the second half of the responses is slower than the first by more than a quarter.
fn unsteady(e2e: &[f64]) -> Option<String> {
    let half = e2e.len() / 2;
    if half < 8 {
        return Some(format!("{} answers are too few to show a steady state", e2e.len()));
    }
    let mean = |part: &[f64]| part.iter().sum::<f64>() / part.len() as f64;
    let (early, late) = (mean(&e2e[..half]), mean(&e2e[half..]));
    (late > 1.25 * early).then(|| {
        format!(
            "answers take {late:.0} ms in the second half and {early:.0} ms in the first: no steady state"
        )
    })
}

impl Figures {
    fn of(mut values: Vec<f64>) -> Figures {
        if values.is_empty() {
            return Figures { mean: f64::NAN, p50: f64::NAN, p90: f64::NAN, p99: f64::NAN };
        }
        quantile::sort(&mut values);
        let mean = values.iter().sum::<f64>() / values.len() as f64;
        let at = |p| quantile::of_sorted(&values, p).unwrap_or(f64::NAN);
        Figures { mean, p50: at(0.5), p90: at(0.9), p99: at(0.99) }
    }
}
