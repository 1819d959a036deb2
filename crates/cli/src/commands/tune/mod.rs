//! `plimsoll tune` starts a server with different flags, measures each setting and returns the best one.

mod folder;
mod plan;
mod server;
mod template;
mod trial;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use clap::FromArgMatches;
use plimsoll_judge::tune::{SettingFinding, TuneFinding, TuneNext, TuneSearch, TuneTrial};
use plimsoll_report::{figure, tune as text};
use serde_json::json;

use crate::answer::{self, AnswerHead};
use crate::exit::{Exit, Stop};
use crate::flags::{Cli, Command, OutputFormat, TuneArgs};
use crate::help::{self, HelpDetail};
use crate::measure::folder as new_folder;
use crate::out;
use crate::resolve::quoted;
use crate::screen::{KeyWatch, Screen};
use folder::TuneState;
use plan::TunePlan;
use trial::TrialRunner;

/// Tunes a server, or continues an earlier tuning.
pub fn run(args: &TuneArgs) -> Result<Exit, Stop> {
    let Some(dir) = &args.resume else { return tune(args, std::env::args().skip(1).collect()) };
    let words = TuneState::read(dir)?.words;
    let wrong = || Stop::usage(format!("{}: its command line is of another version", dir.display()));
    let matches = help::command(HelpDetail::Full)
        .try_get_matches_from(std::iter::once("plimsoll".to_owned()).chain(words.iter().cloned()))
        .map_err(|_| wrong())?;
    let cli = Cli::from_arg_matches(&matches).map_err(|_| wrong())?;
    let Command::Tune(mut earlier) = cli.command else { return Err(wrong()) };
    earlier.output.out = Some(dir.clone());
    (earlier.output.format, earlier.output.quiet) = (args.output.format, args.output.quiet);
    earlier.dry_run = args.dry_run;
    tune(&earlier, words)
}

fn tune(args: &TuneArgs, words: Vec<String>) -> Result<Exit, Stop> {
    let mut plan = TunePlan::of(args)?;
    if args.dry_run {
        print_plan(&plan, args.output.format);
        return Ok(Exit::Done);
    }
    let (dir, mut state) = open(args, &plan, words)?;
    plan.scenario.nonce = Some(state.nonce);
    let mut screen = Screen::new(args.output.quiet);
    screen.say(&announced(&plan, state.trials.len()));
    let stops = Arc::new(AtomicU32::new(0));
    let on_stop = Arc::clone(&stops);
    // Keys are read by each measurement, so this watch takes only signals.
    let _watch = KeyWatch::start(false, move || {
        on_stop.fetch_add(1, Ordering::Relaxed);
    });
    let command = ["plimsoll".to_owned()].into_iter().chain(state.words.iter().map(|word| quoted(word)));
    let command = command.collect::<Vec<_>>().join(" ");
    let runner = TrialRunner { plan: &plan, dir: &dir, output: &args.output, command, stops: &stops };
    let mut search = TuneSearch::new(plan.spec, state.trials.clone());
    while let TuneNext::Measure { setting, rung, time } = search.next_step() {
        let (name, most) = (plan.name(setting), figure::duration_ns(time.0 as f64));
        screen.say(&format!("rung {}: {name}, {most}", rung + 1));
        let trial = match stops.load(Ordering::Relaxed) {
            0 => runner.measure(setting, rung, time)?,
            _ => None,
        };
        let Some(trial) = trial else { break };
        screen.say(&match (&trial.load, &trial.why) {
            (Some(load), _) => format!("  {name}: {}", figure::per_second(load.value)),
            (None, why) => format!("  {name}: failed, {}", why.as_deref().unwrap_or_default()),
        });
        state.trials.push(trial.clone());
        state.write(&dir)?;
        search.observe(trial);
    }
    let finding = finding(&plan, &search, &dir);
    print(&finding, args.output.format);
    Ok(exit(&finding))
}

/// Returns the folder and its state: a new folder, or one with an equal tuning.
fn open(args: &TuneArgs, plan: &TunePlan, words: Vec<String>) -> Result<(PathBuf, TuneState), Stop> {
    if let Some(dir) = args.output.out.as_ref().filter(|dir| TuneState::is_in(dir)) {
        let state = TuneState::read(dir)?;
        state.check(plan, dir)?;
        return Ok((dir.clone(), state));
    }
    let dir = new_folder(&args.output, "tune")?;
    std::fs::create_dir_all(&dir).map_err(|e| Stop::usage(format!("{}: {e}", dir.display())))?;
    let state = TuneState::new(plan, words, plan.scenario.nonce.unwrap_or_default());
    state.write(&dir)?;
    Ok((dir, state))
}

fn announced(plan: &TunePlan, done: usize) -> String {
    let time = |stays: f64| figure::duration_ns(plan.spec.time_s(stays) * 1e9);
    let settings = figure::counted(plan.settings.len() as u64, "setting");
    let line = match time(0.0) == time(1.0) {
        true => format!("{settings}: about {}, without the starts of the server", time(1.0)),
        false => format!(
            "{settings}: about {} if half of them leave after each rung ({} to {}), without the starts of the server",
            time(0.5),
            time(0.0),
            time(1.0)
        ),
    };
    match done {
        0 => line,
        n => format!("{line}; {} made before", figure::counted(n as u64, "measurement")),
    }
}

fn print_plan(plan: &TunePlan, format: OutputFormat) {
    let launch = |setting: usize| {
        let (words, _) = plan.launch(setting, "{port}");
        words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
    };
    let all = 0..plan.settings.len();
    match format {
        OutputFormat::Json => {
            let settings: Vec<_> = all.map(|i| json!({"name": plan.name(i), "launch": launch(i)})).collect();
            out::json(&json!({"settings": settings, "most_s": plan.spec.time_s(1.0)}));
        }
        OutputFormat::Text => {
            out::line(&announced(plan, 0));
            all.for_each(|i| out::line(&format!("  {}: {}", plan.name(i), launch(i))));
        }
    }
}

fn finding(plan: &TunePlan, search: &TuneSearch, dir: &Path) -> TuneFinding {
    let of = |(standing, trial): (_, TuneTrial)| SettingFinding {
        values: plan.settings[trial.setting].iter().cloned().collect(),
        standing,
        trial,
    };
    TuneFinding {
        goal: plan.spec.goal,
        slo: plan.slo.clone(),
        currency: plan.bills.first().map(|bill| bill.currency.clone()),
        is_complete: search.next_step() == TuneNext::Done,
        settings: search.ranking().into_iter().map(of).collect(),
        folder: dir.display().to_string(),
    }
}

fn print(finding: &TuneFinding, format: OutputFormat) {
    let dir = quoted(&finding.folder);
    let resume = format!("plimsoll tune --resume {dir}");
    let next: Vec<String> =
        [format!("plimsoll ls {dir}")].into_iter().chain((!finding.is_complete).then_some(resume)).collect();
    match format {
        OutputFormat::Json => {
            let headline = Some(text::headline(finding));
            answer::print(AnswerHead { headline, next, ..AnswerHead::default() }, finding);
        }
        OutputFormat::Text => {
            out::line(&text::render(finding));
            out::line(&format!("Runs     {}; logs of the servers: {dir}/*.log", next[0]));
            next.iter().skip(1).for_each(|resume| out::line(&format!("Go on    {resume}")));
        }
    }
}

fn exit(finding: &TuneFinding) -> Exit {
    let measured = finding.settings.iter().any(|setting| setting.trial.load.is_some());
    match (finding.is_complete, finding.best()) {
        (false, _) => Exit::Interrupted,
        (true, Some(_)) => Exit::Done,
        (true, None) if measured => Exit::Broken,
        (true, None) => Exit::Unreachable,
    }
}
