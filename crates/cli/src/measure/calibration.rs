//! Sends a few requests before the first level, to check that the target answers and to count its tokens per word.
//!
//! A load whose requests are all refused measures nothing, and one request is enough to find out. So the first request is a
//! request of the load, for every source of prompts. A refused field is left out of all later requests
//! (`client/fallback.rs`), and `--wait-ready` waits for an answer. Every other refusal ends the command: a model that is not
//! served is a wrong flag, the rest is a failing target. `--force` sends the load anyway.

use std::sync::Arc;

use plimsoll_client::fallback::{fall_back, has_optional_fields};
use plimsoll_client::{Client, Clock, Control, LevelPlan, LevelTraffic, MemorySink, Sink};
use plimsoll_model::{Attempt, How, Load, Span};
use plimsoll_workload::{Arrival, ArrivalSpec, Documents, Prompts, Scenario, Schedule, Size};

use super::refusal;
use super::target::{AGAIN, Ready};
use crate::exit::Stop;
use crate::screen::Screen;
use crate::shard::{ShardAgreement, ShardRequest, TargetFacts};

/// Words of the calibration's two prompts.
const CALIBRATION_WORDS: [u32; 2] = [64, 512];

/// Longest wait for an answer of the calibration. For a slower endpoint, a word counts as a token.
const CALIBRATION_PATIENCE: Span = Span::from_secs(20);

/// Maximum output tokens of the first request, so that the answer comes soon. OpenAI's newest models refuse a lower limit.
const FIRST_OUTPUT: u32 = 16;
/// Maximum words of the first request, if its prompt is drawn.
const FIRST_WORDS: u32 = 64;

/// Consecutive server failures after which the load is not sent.
/// With 4, a server that fails a tenth of its requests stops one load in ten thousand.
const FAILURES: u32 = 4;

/// The settings for the requests before the load.
pub(super) struct BeforeLoad<'a, S> {
    /// Starts a separate client, whose requests are announced and count against no ceiling.
    pub start: S,
    /// URL of the endpoint for these requests: of several the first that answers.
    pub url: &'a str,
    pub listed: &'a [String],
    /// Highest rate that may be offered, requests/s.
    pub max_rate: Option<f64>,
    /// Whether the load is sent even if these requests are refused.
    pub force: bool,
    /// Limit on the wait for the target; `None` if the command does not wait.
    pub ready: Option<Ready>,
}

/// The kind of requests before the load.
#[derive(Clone, Copy)]
enum Which {
    /// Four requests with one output token and a known length.
    Calibration,
    /// One request of the load, but short, with its attempt number.
    First(u32),
}

impl<S: Fn(&Scenario) -> Result<Client, Stop>> BeforeLoad<'_, S> {
    /// Prepares the prompts for the target: calibrates them and sends the first request.
    ///
    /// The calibration is copied from `beside` if a concurrent run exists. In a shared load, one shard calibrates for all.
    /// A repeated load is sent unchanged.
    pub fn prepare(
        &self,
        (beside, again, shard): (Option<&Scenario>, bool, Option<&ShardRequest>),
        (scenario, facts): (&mut Scenario, TargetFacts),
        (clock, control, screen): (Clock, &Control, &mut Screen),
    ) -> Result<(TargetFacts, Option<ShardAgreement>), Stop> {
        if let Some(known) = beside {
            scenario.prompts.words_per_token = known.prompts.words_per_token;
            scenario.prompts.template_tokens = known.prompts.template_tokens;
            scenario.target.ignore_eos &= known.target.ignore_eos;
            scenario.target.length_field = known.target.length_field.clone();
        }
        if beside.is_some() || again {
            self.first(scenario, clock, screen)?;
            return Ok((facts, None));
        }
        let ask = |scenario: &mut Scenario, facts, screen: &mut Screen| {
            self.calibrate(scenario, facts, (clock, screen))
        };
        match shard {
            None => Ok((ask(scenario, facts, screen)?, None)),
            Some(asked) => {
                let (facts, all) = asked.agree(scenario, facts, (clock, control, screen), ask)?;
                Ok((facts, Some(all)))
            }
        }
    }

    /// Measures the tokens per word of the server's tokeniser and the tokens of its chat template, for prompts of the right length.
    ///
    /// The `usage` of prompts of two lengths gives a line. Skipped if the scenario sets the values, if the prompts are the
    /// user's own, or if the server reports no usage.
    fn calibrate(
        &self,
        scenario: &mut Scenario,
        mut facts: TargetFacts,
        (clock, screen): (Clock, &mut Screen),
    ) -> Result<TargetFacts, Stop> {
        self.first(scenario, clock, screen)?;
        if !is_to_be_calibrated(scenario) {
            return Ok(facts);
        }
        screen.say("first, 4 requests of one output token each measure the tokens per word");
        let rows = self.ask(scenario, Which::Calibration)?;
        self.fit(scenario, &rows, &mut facts, screen);
        Ok(facts)
    }

    /// Sends a request of the load, without the refused fields, until it is answered or finally refused.
    fn first(&self, scenario: &mut Scenario, clock: Clock, screen: &mut Screen) -> Result<(), Stop> {
        // A class with its own target is probed only: one request can't stand for all stages of a chain.
        if scenario.own_targets().next().is_some() {
            return Ok(());
        }
        let is_unlisted = refusal::is_unlisted(&scenario.target, self.listed);
        let may_fall_back = has_optional_fields(&scenario.target) && !is_known(scenario);
        if !is_unlisted && self.ready.is_none() && !may_fall_back {
            return Ok(());
        }
        let (mut said, mut tries) = (false, 0);
        loop {
            let rows = self.ask(scenario, Which::First(tries))?;
            tries += 1;
            let Some(row) = rows.first().filter(|row| !row.outcome.is_finished()) else { return Ok(()) };
            let why = row.answer.error.as_deref().unwrap_or(row.outcome.how.name());
            if refusal::of(&rows).is_some()
                && let Some(line) = fall_back(&mut scenario.target, why)
            {
                screen.say(&line);
                continue;
            }
            match &self.ready {
                Some(ready) if refusal::may_pass(row) && clock.now() < ready.until => {
                    if !said {
                        screen.say(&format!("waiting up to {} for the target: {why}", ready.text));
                        said = true;
                    }
                    std::thread::sleep(AGAIN.min(ready.until - clock.now()).max(Span::ZERO).as_duration());
                }
                _ if self.force => return Ok(()),
                // The load counts occasional failures of the server; only consecutive failures mean that every request fails.
                None if is_servers(row) && tries < FAILURES => {}
                ready
                    if ready.is_some() || refusal::of(&rows).is_some() || row.outcome.how == How::Refused =>
                {
                    return Err(refusal::stop(&scenario.target.only(self.url), row, self.listed));
                }
                // A shed or late request may succeed under the load itself, and the load counts broken connections.
                _ => return Ok(()),
            }
        }
    }

    fn ask(&self, scenario: &Scenario, which: Which) -> Result<Vec<Attempt>, Stop> {
        let asked = Scenario { target: scenario.target.only(self.url), ..scenario.clone() };
        let client = (self.start)(&asked)?;
        let plan = plan(&asked, which, self.max_rate)?;
        let memory = Arc::new(MemorySink::default());
        let sink: Arc<dyn Sink> = memory.clone();
        client.run_level(&plan, &sink, &Control::default()).map_err(|e| Stop::invalid(e.to_string()))?;
        Ok(memory.take_attempts())
    }

    fn fit(&self, scenario: &mut Scenario, rows: &[Attempt], facts: &mut TargetFacts, screen: &mut Screen) {
        let Some(line) = line(rows) else {
            screen.say("the server reports no usage: prompt lengths are estimated from words, unchecked");
            facts.insert("tokens_per_word".into(), None);
            return;
        };
        facts.insert("tokens_per_word".into(), Some(format!("{:.4}", line.tokens_per_word)));
        if (0.0625..=16.0).contains(&line.tokens_per_word) {
            // Rounded to four digits, because the factor is stored and the text must follow from the stored value.
            scenario.prompts.words_per_token = (1e4 / line.tokens_per_word).round() / 1e4;
            scenario.prompts.template_tokens = line.template_tokens;
            facts.insert("template_tokens".into(), Some(line.template_tokens.to_string()));
        }
    }
}

fn is_to_be_calibrated(scenario: &Scenario) -> bool {
    let prompts = &scenario.prompts;
    let reported = scenario.target.protocol.reports_prompt_tokens();
    prompts.file.is_none() && reported && !is_known(scenario) && scenario.classes.is_empty()
}

/// Returns whether the scenario sets the target's tokens per word; then only the load is sent.
fn is_known(scenario: &Scenario) -> bool {
    scenario.prompts.words_per_token != 1.0 || scenario.prompts.template_tokens != 0
}

/// Returns whether the server failed at a request that may be valid.
fn is_servers(row: &Attempt) -> bool {
    matches!(row.outcome.how, How::ServerError | How::StreamError)
}

fn plan(scenario: &Scenario, which: Which, max_rate: Option<f64>) -> Result<LevelPlan, Stop> {
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
    let mut plain = scenario.clone();
    plain.arrivals = ArrivalSpec::Constant;
    plain.prompts.sessions = None;
    plain.client.timeouts.total = plain.client.timeouts.total.min(CALIBRATION_PATIENCE);
    plain.client.drain = CALIBRATION_PATIENCE;
    let count = match which {
        Which::First(_) => {
            plain.prompts.shared_prefix = None;
            // The words differ from the calibration's, because these prompts must not hit a cache.
            plain.seed = plain.seed.wrapping_add(1);
            (plain.prompts.images, plain.prompts.audio) = (None, None);
            1
        }
        Which::Calibration => {
            plain.prompts.shared_prefix = None;
            // Media are left out, because their tokens would be counted as the template's.
            (plain.prompts.images, plain.prompts.audio) = (None, None);
            // The document has no length, so that the words are the query's and the template includes one document.
            if plain.target.protocol.takes_texts() {
                plain.target.documents = Some(Documents { count: Size::Fixed(1), length: None });
            }
            2 * CALIBRATION_WORDS.len()
        }
    };
    // Requests are 10 ms apart, or further apart if the highest rate requires it.
    let rate_per_s = max_rate.map_or(100.0, |most| most.min(100.0));
    let window = Span::from_secs_f64((count as f64 + 0.5) / rate_per_s);
    let mut schedule = Schedule::generate(&plain, rate_per_s, window, u32::MAX).map_err(wrong)?;
    schedule.arrivals.truncate(count);
    if let Which::First(_) = which {
        for arrival in &mut schedule.arrivals {
            arrival.output_tokens = arrival.output_tokens.min(FIRST_OUTPUT);
            if plain.prompts.file.is_none() && !plain.classes.iter().any(|class| class.prompts.is_some()) {
                arrival.prompt_tokens = arrival.prompt_tokens.min(FIRST_WORDS);
            }
        }
    }
    if let Which::Calibration = which {
        for (i, arrival) in schedule.arrivals.iter_mut().enumerate() {
            let arrival: &mut Arrival = arrival;
            arrival.prompt_tokens = CALIBRATION_WORDS[i % 2];
            arrival.output_tokens = 1;
        }
    }
    let prompts = Arc::new(Prompts::new(&plain, 0).map_err(wrong)?);
    let requests = LevelTraffic::Open(Arc::new(schedule));
    // The level has a unique number, because request ids and traces depend on it.
    let id = match which {
        Which::Calibration => u32::MAX,
        Which::First(tries) => u32::MAX - 1 - tries,
    };
    Ok(LevelPlan {
        id,
        traffic: "calibration".into(),
        purpose: "calibration".into(),
        seed: scenario.seed,
        warm: Some(count as u32),
        ..LevelPlan::new(&plain, Load::Open { rate_per_s }, requests, window, prompts)
    })
}

/// A line: prompt tokens as counted by the server over words.
#[derive(Clone, Copy, Debug)]
struct Line {
    tokens_per_word: f64,
    /// Tokens that the chat template adds to each prompt.
    template_tokens: u32,
}

fn line(rows: &[Attempt]) -> Option<Line> {
    let mean = |words: u32| {
        let of = rows.iter().filter(|row| row.asked_prompt == words);
        let tokens: Vec<f64> = of.filter_map(|row| row.answer.tokens.prompt).map(f64::from).collect();
        (!tokens.is_empty()).then(|| tokens.iter().sum::<f64>() / tokens.len() as f64)
    };
    let [short, long] = CALIBRATION_WORDS;
    let (few, many) = (mean(short)?, mean(long)?);
    let tokens_per_word = (many - few) / f64::from(long - short);
    let template_tokens = (few - tokens_per_word * f64::from(short)).round().max(0.0) as u32;
    Some(Line { tokens_per_word, template_tokens })
}
