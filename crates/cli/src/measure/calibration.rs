//! How many tokens the server's tokeniser makes of a word, asked before the first level.

use std::collections::BTreeMap;
use std::sync::Arc;

use plimsoll_client::{Client, Control, LevelPlan, Memory, Sink, Traffic};
use plimsoll_model::{Load, Protocol, RateCourse, Span};
use plimsoll_workload::{Arrival, ArrivalSpec, Prompts, Scenario, Schedule};

use crate::exit::Stop;
use crate::screen::Screen;

/// Words of the calibration's two prompts.
const CALIBRATION_WORDS: [u32; 2] = [64, 512];

/// Longest wait for an answer of the calibration: an endpoint that needs longer is measured with words as tokens.
const CALIBRATION_PATIENCE: Span = Span::from_secs(20);

/// Finds how many tokens the server's tokeniser makes of a word, so that prompts have the length asked for: two prompts
/// of different length and the difference of their `usage`, which takes the chat template out. Left alone where the
/// scenario says it, where prompts are the user's own, and where the server reports no usage.
pub(super) fn calibrate(
    scenario: &mut Scenario,
    client: &Client,
    mut facts: BTreeMap<String, Option<String>>,
    max_rate: Option<f64>,
    screen: &mut Screen,
) -> Result<BTreeMap<String, Option<String>>, Stop> {
    let texts = !matches!(scenario.target.protocol, Protocol::Http | Protocol::Kserve);
    let synthetic = scenario.prompts.file.is_none() && texts;
    if !synthetic || scenario.prompts.words_per_token != 1.0 || !scenario.classes.is_empty() {
        return Ok(facts);
    }
    screen
        .say("first, 4 requests of one output token each, to see how many tokens the server makes of a word");
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
    let mut plain = scenario.clone();
    plain.arrivals = ArrivalSpec::Constant;
    plain.prompts.sessions = None;
    plain.prompts.shared_prefix = None;
    plain.client.timeouts.total = plain.client.timeouts.total.min(CALIBRATION_PATIENCE);
    plain.client.drain = CALIBRATION_PATIENCE;
    // Ten milliseconds apart, or further where the highest rate asks for it.
    let rate_per_s = max_rate.map_or(100.0, |most| most.min(100.0));
    let window = Span::from_secs_f64(4.5 / rate_per_s);
    let mut schedule = Schedule::generate(&plain, rate_per_s, window, u32::MAX).map_err(wrong)?;
    schedule.arrivals.truncate(4);
    for (i, arrival) in schedule.arrivals.iter_mut().enumerate() {
        let arrival: &mut Arrival = arrival;
        arrival.prompt_tokens = CALIBRATION_WORDS[i % 2];
        arrival.output_tokens = 1;
    }
    let plan = LevelPlan {
        id: u32::MAX,
        traffic: "calibration".into(),
        purpose: "calibration".into(),
        load: Load::Open { rate_per_s },
        rate_course: RateCourse::Even,
        requests: Traffic::Open(Arc::new(schedule)),
        window,
        client: plain.client.clone(),
        prompts: Arc::new(Prompts::new(&plain, 0).map_err(wrong)?),
        seed: scenario.seed,
        warm: Some(4),
        max_rate_per_s: None,
        class_models: Vec::new(),
        class_queues: Vec::new(),
    };
    let memory = Arc::new(Memory::default());
    let sink: Arc<dyn Sink> = memory.clone();
    client.run_level(&plan, &sink, &Control::default()).map_err(|e| Stop::invalid(e.to_string()))?;
    let rows = memory.take_attempts();
    if rows.iter().all(|row| row.outcome.how == plimsoll_model::How::Refused) && !rows.is_empty() {
        let why = rows[0].answer.error.clone().unwrap_or_default();
        return Err(Stop::unreachable(format!("{}: nothing reaches it: {why}", scenario.target.url)));
    }
    let mean = |words: u32| {
        let of = rows.iter().filter(|row| row.asked_prompt == words);
        let tokens: Vec<f64> = of.filter_map(|row| row.answer.tokens.prompt).map(f64::from).collect();
        (!tokens.is_empty()).then(|| tokens.iter().sum::<f64>() / tokens.len() as f64)
    };
    let [short, long] = CALIBRATION_WORDS;
    let (Some(few), Some(many)) = (mean(short), mean(long)) else {
        screen.say("the server reports no usage: prompt lengths are counted in words and not checked");
        facts.insert("tokens_per_word".into(), None);
        return Ok(facts);
    };
    let tokens_per_word = (many - few) / f64::from(long - short);
    facts.insert("tokens_per_word".into(), Some(format!("{tokens_per_word:.4}")));
    if (0.0625..=16.0).contains(&tokens_per_word) {
        // Four digits: the factor is written down, and the text must follow from what is written.
        scenario.prompts.words_per_token = (1e4 / tokens_per_word).round() / 1e4;
    }
    Ok(facts)
}
