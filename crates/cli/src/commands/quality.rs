//! `plimsoll quality` sends identical prompts at temperature 0 to two endpoints and compares the answers.
//!
//! Rounds alternate (A B, B A, …), each a closed loop over all items. Prompts are sent unchanged and without
//! salt. The comparison is about answers, and a warm cache gives identical answers sooner.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use plimsoll_client::{Client, ClientConfig, Clock, Control, LevelPlan, LevelTraffic, MemorySink, Sink};
use plimsoll_judge::quality::{Quality, QualityTarget, Rounds, ScoreVerdict, TargetAnswers, judge};
use plimsoll_model::{Attempt, Load};
use plimsoll_report::{figure, quality as words};
use plimsoll_workload::scenario::LONGEST;
use plimsoll_workload::{Prompts, Scenario, Schedule};
use serde_json::json;

use crate::eval_file::{self, EvalItem};
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, QualityArgs, TargetArgs};
use crate::measure::{look, random};
use crate::out;
use crate::resolve::Draft;
use crate::screen::{KeyWatch, Screen};

/// Maximum share of unanswered requests; above it the answers are not representative.
const UNANSWERED_MOST: f64 = 0.01;

/// Number of retries of a request without an answer.
const RETRIES: u32 = 2;

/// Finish reason of an answer that reached the token limit.
const CUT: &str = "length";

/// Name of the items in the scenario.
const ITEMS: &str = "eval";

/// Sends the prompts, judges, writes and prints.
pub fn run(args: &QualityArgs) -> Result<Exit, Stop> {
    check(args)?;
    let (items, digest) = eval_file::read(&args.eval)?;
    let path = place(args)?;
    let mut screen = Screen::new(args.quiet);
    let prompts = eval_file::prompts(&items, args.max_tokens);
    let key_file = |own: &Option<String>| if own.is_some() { None } else { args.target.key_file.clone() };
    let of_b = TargetArgs {
        url: args.url_b.clone(),
        model: args.model_b.clone().or(args.target.model.clone()),
        key_env: args.key_env_b.clone().or(args.target.key_env.clone()),
        key_file: key_file(&args.key_env_b),
        ..args.target.clone()
    };
    let mut arms = [Arm::new(&args.target, &prompts, &mut screen)?, Arm::new(&of_b, &prompts, &mut screen)?];
    let control = Arc::new(Control::default());
    let on_stop = Arc::clone(&control);
    let watch = KeyWatch::start(!args.quiet, move || on_stop.stop());
    announce(&mut screen, args, &items);
    for round in 0..args.repeat {
        for turn in 0..2 {
            let which = (round as usize + turn) % 2;
            let answered = arms[which].ask(args, items.len(), &control)?;
            if control.stops() > 0 {
                return Err(Stop { exit: Exit::Interrupted, line: "stopped; nothing was written".into() });
            }
            let name = ["A", "B"][which];
            screen.say(&format!(
                "{name} · round {} of {}: {answered} of {} answered",
                round + 1,
                args.repeat,
                items.len()
            ));
        }
    }
    drop(watch);
    let [a, b] = arms;
    let targets = [a.asked(), b.asked()];
    let mut found = judge((digest, targets), &items, (&a.said, &b.said), args.margin);
    if args.keep_answers {
        for (item, (a, b)) in found.items.iter_mut().zip(a.said.rounds.into_iter().zip(b.said.rounds)) {
            (item.answers_a, item.answers_b) = (Some(a), Some(b));
        }
    }
    write(&path, &found)?;
    match args.format {
        OutputFormat::Json => out::json(&found),
        OutputFormat::Text => {
            out::line(&words::text(&found));
            out::line(&format!("\nResults  {}", path.display()));
        }
    }
    Ok(exit(&found, items.len()))
}

fn check(args: &QualityArgs) -> Result<(), Stop> {
    let at_least_one =
        [("--repeat", args.repeat), ("--concurrency", args.concurrency), ("--max-tokens", args.max_tokens)];
    for (flag, value) in at_least_one {
        if value == 0 {
            return Err(Stop::usage(format!("{flag} 0: at least 1")));
        }
    }
    if !(0.0..1.0).contains(&args.margin) {
        return Err(Stop::usage(format!(
            "--margin {}: a share from 0 to 1, such as 0.02 for 2 points",
            args.margin
        )));
    }
    Ok(())
}

/// Prints the numbers of requests and tokens before the start.
fn announce(screen: &mut Screen, args: &QualityArgs, items: &[EvalItem]) {
    let requests = 2 * u64::from(args.repeat) * items.len() as u64;
    let tokens: u64 =
        items.iter().map(|(_, item, _)| u64::from(item.max_tokens.unwrap_or(args.max_tokens))).sum();
    screen.say(&format!(
        "{} items × {} rounds × 2 endpoints: {} requests, at most {} output tokens",
        items.len(),
        args.repeat,
        figure::count(requests),
        figure::count(2 * u64::from(args.repeat) * tokens)
    ));
}

/// An endpoint under comparison.
struct Arm {
    scenario: Scenario,
    client: Client,
    prompts: Arc<Prompts>,
    said: TargetAnswers,
    /// Error of the first request without an answer; `None` if all were answered.
    why: Option<String>,
}

impl Arm {
    fn new(target: &TargetArgs, items: &[u8], screen: &mut Screen) -> Result<Arm, Stop> {
        let mut draft = Draft::new(None)?;
        draft.target(target)?;
        draft.set("target.temperature", 0.0.into());
        // An answer ends where the model ends it, because its length is part of the comparison.
        draft.set("target.ignore_eos", false.into());
        // Retries are safe here: a server may close a kept connection at any time, and only the answer
        // matters.
        draft.set("client.retries.max", RETRIES.into());
        draft.set("prompts", json!({"file": ITEMS, "salt": false}));
        let mut scenario = draft.finish_with(random(), |name| match name {
            ITEMS => Ok(items.to_vec()),
            other => std::fs::read(other).map_err(|e| e.to_string()),
        })?;
        if !scenario.target.protocol.takes_output_length() {
            let protocol = scenario.target.protocol.name();
            return Err(Stop::usage(format!(
                "--protocol {protocol}: its answers are no text; use chat, completions or responses"
            )));
        }
        look(&mut scenario, None)?.say(screen);
        let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
        let prompts = Arc::new(Prompts::new(&scenario, random()).map_err(wrong)?);
        let config = ClientConfig {
            target: scenario.target.clone(),
            classes: scenario.classes.clone(),
            key: None,
            workers: Some(1),
            run_id: format!("{:016x}", random()),
            clock: Clock::start(),
            keep_text: true,
        };
        let client = Client::start(config).map_err(|e| Stop::usage(e.to_string()))?;
        Ok(Arm { scenario, client, prompts, said: TargetAnswers::default(), why: None })
    }

    /// Sends every item once. Returns the number of answered items.
    fn ask(&mut self, args: &QualityArgs, items: usize, control: &Control) -> Result<usize, Stop> {
        let wrong = |e: plimsoll_workload::SpecError| Stop::usage(e.to_string());
        let sequence = Schedule::sequence(&self.scenario, 0).map_err(wrong)?.bounded(Some(items as u64));
        let concurrency = args.concurrency.min(u32::try_from(items).unwrap_or(u32::MAX));
        let requests = LevelTraffic::Closed { sequence, concurrency };
        let (load, prompts) = (Load::Closed { concurrency }, Arc::clone(&self.prompts));
        let plan = LevelPlan {
            purpose: "quality".into(),
            ..LevelPlan::new(&self.scenario, load, requests, LONGEST, prompts)
        };
        let memory = Arc::new(MemorySink::default());
        let sink: Arc<dyn Sink> = memory.clone();
        self.client.run_level(&plan, &sink, control).map_err(|e| Stop::invalid(e.to_string()))?;
        let is_first = self.said.rounds.is_empty();
        self.said.rounds.resize(items, Rounds::new());
        self.said.cut.resize(items, false);
        let mut said: Rounds = vec![None; items];
        let mut met = vec![None; items];
        for attempt in memory.take_attempts() {
            // Lines are used in order, so the number of a request is the number of its item.
            let Some(place) = usize::try_from(attempt.request).ok().filter(|place| *place < items) else {
                continue;
            };
            match attempt.outcome.is_finished() {
                true => {
                    self.said.cut[place] |= is_first && attempt.answer.finish_reason.as_deref() == Some(CUT);
                    said[place] = Some(attempt.answer.text.unwrap_or_default());
                }
                false => met[place] = Some(reason(&attempt)),
            }
        }
        let unanswered = said.iter().zip(met).filter(|(answer, _)| answer.is_none());
        self.why = self.why.take().or_else(|| unanswered.filter_map(|(_, why)| why).next());
        let answered = said.iter().flatten().count();
        for (rounds, answer) in self.said.rounds.iter_mut().zip(said) {
            rounds.push(answer);
        }
        Ok(answered)
    }

    fn asked(&self) -> QualityTarget {
        let unanswered = self.said.rounds.iter().flatten().filter(|answer| answer.is_none()).count() as u64;
        let target = &self.scenario.target;
        QualityTarget {
            url: target.url.clone(),
            model: target.model.clone(),
            unanswered,
            why: self.why.clone(),
            cut: 0,
        }
    }
}

/// Returns the error of a request without an answer.
fn reason(attempt: &Attempt) -> String {
    let what = attempt.answer.error.clone().unwrap_or_else(|| attempt.outcome.how.name().to_owned());
    attempt
        .answer
        .status
        .filter(|status| *status != 200)
        .map_or(what.clone(), |status| format!("HTTP {status}: {what}"))
}

/// Returns the path of the results. A named file must not exist; otherwise a new name is chosen.
fn place(args: &QualityArgs) -> Result<PathBuf, Stop> {
    if let Some(path) = &args.out {
        return match path.exists() {
            true => Err(Stop::usage(format!("{}: already exists; name another file", path.display()))),
            false => Ok(path.clone()),
        };
    }
    let home = Path::new("plimsoll-runs");
    std::fs::create_dir_all(home)
        .map_err(|e| Stop::usage(format!("{}: {e}; name a file with -o", home.display())))?;
    let free = (1..).map(|n| home.join(format!("quality-{n:03}.json"))).find(|path| !path.exists());
    free.ok_or_else(|| Stop::usage(format!("{}: full; name a file with -o", home.display())))
}

fn write(path: &Path, found: &Quality) -> Result<(), Stop> {
    let bytes = serde_json::to_vec_pretty(found).map_err(|e| Stop::invalid(e.to_string()))?;
    out::file(path, bytes)
}

fn exit(found: &Quality, items: usize) -> Exit {
    let asked = items as f64 * f64::from(found.rounds);
    let most = found.targets.iter().map(|target| target.unanswered as f64 / asked).fold(0.0, f64::max);
    match found.scores.as_ref().map(|scores| scores.verdict) {
        _ if most >= 1.0 => Exit::Unreachable,
        _ if most > UNANSWERED_MOST => Exit::Invalid,
        Some(ScoreVerdict::Worse) => Exit::Broken,
        Some(ScoreVerdict::Inconclusive) => Exit::Inconclusive,
        Some(ScoreVerdict::NotWorse) | None => Exit::Done,
    }
}
