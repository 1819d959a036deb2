//! A few requests before the first level: does the target answer them, and how many tokens does its tokeniser make of a word?
//!
//! A load whose every request is refused measures nothing, and what refuses it is known after one. So what the target says to these
//! ends the command before the load: a model that it does not serve is a wrong flag, anything else is a target that fails. `--force`
//! sends the load all the same.

use std::sync::Arc;

use plimsoll_client::{Client, Clock, Control, LevelPlan, LevelTraffic, Memory, Sink};
use plimsoll_model::{Attempt, Carries, How, Load, Protocol, Span};
use plimsoll_workload::{Arrival, ArrivalSpec, Documents, Prompts, Scenario, Schedule, Size};

use super::refusal;
use crate::exit::Stop;
use crate::screen::Screen;
use crate::shard::{Agreed, Asked, Facts};

/// Words of the calibration's two prompts.
const CALIBRATION_WORDS: [u32; 2] = [64, 512];

/// Longest wait for an answer of the calibration: an endpoint that needs longer is measured with words as tokens.
const CALIBRATION_PATIENCE: Span = Span::from_secs(20);

/// A field that some servers refuse, as transformers serve does: `Unexpected fields in the request: {'ignore_eos'}`.
const IGNORE_EOS: &str = "ignore_eos";

/// What the requests before the load are sent with.
pub(super) struct BeforeLoad<'a, S> {
    /// Starts a client of its own: what it sends is announced, and counts against no ceiling.
    pub start: S,
    /// The endpoint that is asked: of several the first that answers.
    pub url: &'a str,
    /// The models that it lists.
    pub listed: &'a [String],
    /// The highest rate that may be offered.
    pub max_rate: Option<f64>,
    /// Is the load to be sent whatever is said to these?
    pub force: bool,
}

/// Which requests.
#[derive(Clone, Copy)]
enum Which {
    /// Four of one output token and known length.
    Calibration,
    /// One, as the load will send it.
    First,
}

impl<S: Fn(&Scenario) -> Result<Client, Stop>> BeforeLoad<'_, S> {
    /// What prompts need of the target: as a run beside found it, or asked, by one shard for all; a load that is sent again is sent as it was.
    pub fn prepare(
        &self,
        (beside, again, shard): (Option<&Scenario>, bool, Option<&Asked>),
        (scenario, facts): (&mut Scenario, Facts),
        (clock, control, screen): (Clock, &Control, &mut Screen),
    ) -> Result<(Facts, Option<Agreed>), Stop> {
        if let Some(known) = beside {
            scenario.prompts.words_per_token = known.prompts.words_per_token;
            scenario.prompts.template_tokens = known.prompts.template_tokens;
            scenario.target.ignore_eos &= known.target.ignore_eos;
        }
        if beside.is_some() || again {
            self.check(scenario)?;
            return Ok((facts, None));
        }
        let ask =
            |scenario: &mut Scenario, facts, screen: &mut Screen| self.calibrate(scenario, facts, screen);
        match shard {
            None => Ok((ask(scenario, facts, screen)?, None)),
            Some(asked) => {
                let (facts, all) = asked.agree(scenario, facts, (clock, control, screen), ask)?;
                Ok((facts, Some(all)))
            }
        }
    }

    /// Finds how many tokens the server's tokeniser makes of a word and what its chat template adds, so that prompts have the length asked
    /// for: prompts of two lengths and their `usage` give a line. Left alone where the scenario says it, where prompts are the user's own,
    /// and where the server reports no usage.
    fn calibrate(
        &self,
        scenario: &mut Scenario,
        mut facts: Facts,
        screen: &mut Screen,
    ) -> Result<Facts, Stop> {
        if !is_to_be_calibrated(scenario) {
            self.check(scenario)?;
            return Ok(facts);
        }
        screen.say(
            "first, 4 requests of one output token each, to see how many tokens the server makes of a word",
        );
        let mut rows = self.ask(scenario, Which::Calibration)?;
        if scenario.target.ignore_eos && all_refuse(&rows, IGNORE_EOS) {
            screen.say(
                "the server refuses ignore_eos: asked again without it; answers end where the model ends them (--natural-length)",
            );
            scenario.target.ignore_eos = false;
            rows = self.ask(scenario, Which::Calibration)?;
        }
        if rows.iter().all(|row| row.outcome.how == How::Refused) && !rows.is_empty() {
            let why = rows[0].answer.error.clone().unwrap_or_default();
            return Err(Stop::unreachable(format!("{}: nothing reaches it: {why}", self.url)));
        }
        if !self.force && refusal::of(&rows).is_some() {
            // A server may refuse an answer of one token and take the load: what counts is a request of the load.
            self.answers(scenario)?;
        }
        self.fit(scenario, &rows, &mut facts, screen);
        Ok(facts)
    }

    /// A model that the endpoint does not list may be an alias that it serves all the same: one request tells.
    fn check(&self, scenario: &Scenario) -> Result<(), Stop> {
        match !self.force && refusal::is_unlisted(&scenario.target, self.listed) {
            true => self.answers(scenario),
            false => Ok(()),
        }
    }

    /// Ends the command where a request of the load is refused.
    fn answers(&self, scenario: &Scenario) -> Result<(), Stop> {
        let rows = self.ask(scenario, Which::First)?;
        refusal::of(&rows)
            .map_or(Ok(()), |row| Err(refusal::stop(&scenario.target.only(self.url), row, self.listed)))
    }

    fn ask(&self, scenario: &Scenario, which: Which) -> Result<Vec<Attempt>, Stop> {
        let asked = Scenario { target: scenario.target.only(self.url), ..scenario.clone() };
        let client = (self.start)(&asked)?;
        let plan = plan(&asked, which, self.max_rate)?;
        let memory = Arc::new(Memory::default());
        let sink: Arc<dyn Sink> = memory.clone();
        client.run_level(&plan, &sink, &Control::default()).map_err(|e| Stop::invalid(e.to_string()))?;
        Ok(memory.take_attempts())
    }

    fn fit(&self, scenario: &mut Scenario, rows: &[Attempt], facts: &mut Facts, screen: &mut Screen) {
        let Some(line) = line(rows) else {
            screen.say("the server reports no usage: prompt lengths are counted in words and not checked");
            facts.insert("tokens_per_word".into(), None);
            return;
        };
        facts.insert("tokens_per_word".into(), Some(format!("{:.4}", line.tokens_per_word)));
        if (0.0625..=16.0).contains(&line.tokens_per_word) {
            // Four digits: the factor is written down, and the text must follow from what is written.
            scenario.prompts.words_per_token = (1e4 / line.tokens_per_word).round() / 1e4;
            scenario.prompts.template_tokens = line.template_tokens;
            facts.insert("template_tokens".into(), Some(line.template_tokens.to_string()));
        }
    }
}

fn is_to_be_calibrated(scenario: &Scenario) -> bool {
    let prompts = &scenario.prompts;
    let texts = !matches!(scenario.target.protocol, Protocol::Http | Protocol::Transcriptions)
        && scenario.target.protocol.carries() != Carries::Tensors;
    let is_said = prompts.words_per_token != 1.0 || prompts.template_tokens != 0;
    prompts.file.is_none() && texts && !is_said && scenario.classes.is_empty()
}

fn plan(scenario: &Scenario, which: Which, max_rate: Option<f64>) -> Result<LevelPlan, Stop> {
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
    let mut plain = scenario.clone();
    plain.arrivals = ArrivalSpec::Constant;
    plain.prompts.sessions = None;
    plain.client.timeouts.total = plain.client.timeouts.total.min(CALIBRATION_PATIENCE);
    plain.client.drain = CALIBRATION_PATIENCE;
    let count = match which {
        Which::First => 1,
        Which::Calibration => {
            plain.prompts.shared_prefix = None;
            // What these come to in tokens would be held for the template's.
            (plain.prompts.images, plain.prompts.audio) = (None, None);
            // With one document the words are the asked ones, and the template is that of a document.
            if plain.target.protocol.takes_texts() {
                plain.target.documents = Some(Documents { count: Size::Fixed(1), length: None });
            }
            2 * CALIBRATION_WORDS.len()
        }
    };
    // Ten milliseconds apart, or further where the highest rate asks for it.
    let rate_per_s = max_rate.map_or(100.0, |most| most.min(100.0));
    let window = Span::from_secs_f64((count as f64 + 0.5) / rate_per_s);
    let mut schedule = Schedule::generate(&plain, rate_per_s, window, u32::MAX).map_err(wrong)?;
    schedule.arrivals.truncate(count);
    if let Which::Calibration = which {
        for (i, arrival) in schedule.arrivals.iter_mut().enumerate() {
            let arrival: &mut Arrival = arrival;
            arrival.prompt_tokens = CALIBRATION_WORDS[i % 2];
            arrival.output_tokens = 1;
        }
    }
    let prompts = Arc::new(Prompts::new(&plain, 0).map_err(wrong)?);
    let requests = LevelTraffic::Open(Arc::new(schedule));
    Ok(LevelPlan {
        id: u32::MAX,
        traffic: "calibration".into(),
        purpose: "calibration".into(),
        seed: scenario.seed,
        warm: Some(count as u32),
        ..LevelPlan::new(&plain, Load::Open { rate_per_s }, requests, window, prompts)
    })
}

/// Are all of these refused with words that name `field`?
fn all_refuse(rows: &[Attempt], field: &str) -> bool {
    let names = |row: &Attempt| row.answer.error.as_deref().is_some_and(|error| error.contains(field));
    !rows.is_empty() && rows.iter().all(|row| row.outcome.how == How::ClientError && names(row))
}

/// Prompt tokens as the server counts them, over words.
#[derive(Clone, Copy, Debug)]
struct Line {
    tokens_per_word: f64,
    /// What the chat template adds to each prompt.
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
