//! `plimsoll interleave` measures two live endpoints alternately (A B B A …) and writes two ordinary run
//! folders.
//!
//! Block i of A and block i of B have one schedule, with identical arrivals, sizes and prompt lengths. Their
//! texts differ (B's nonce is A's plus one), because both endpoints may share a backend. A prompt that A's
//! block left in the cache would make B appear fast. Between two blocks all requests end, so that no arm
//! meets the queue of the other.
//!
//! Concurrent blocks were rejected because endpoints that share a GPU, a switch or this machine would slow
//! each other down by unknown amounts. A fixed order A B A B was rejected because a drift (a throttling GPU,
//! the hour of the day) would always affect B later.

use std::path::{Path, PathBuf};

use plimsoll_judge::compare::Margins;
use plimsoll_judge::compare::finding::Comparison;
use plimsoll_judge::quality::Quality;
use plimsoll_judge::sequential::{
    InterleaveState, InterleaveWatch, PercentileGuard, SequentialSpec, SequentialVerdict,
};
use plimsoll_measure::findings::Findings;
use plimsoll_model::{Attempt, EndedBy, Load, Span};
use plimsoll_report::{figure, quality as words, watch};
use plimsoll_workload::{LoadSpec, Scenario, parse_span};
use serde_json::json;

use super::compare;
use super::run::{ceiling_flags, rate, window};
use crate::exit::{Exit, Stop};
use crate::flags::{InterleaveArgs, OutputArgs, OutputFormat, TargetArgs};
use crate::measure::{
    FinishedMeasurement, LevelStep, MeasurementSession, MeasurementStart, folder, look, max_rate, random,
    stop_limits,
};
use crate::out;
use crate::resolve::{self, Draft};

/// Default number of warm-up requests per endpoint before its first block.
const WARM_UP: u32 = 10;

/// The finished run of an endpoint.
struct Arm {
    closed: FinishedMeasurement,
    findings: Findings,
}

/// Measures and prints. The exit code reports whether B is worse.
pub fn run(args: &InterleaveArgs) -> Result<Exit, Stop> {
    let quality = compare::quality_of(&args.judged)?;
    let spec = compare::spec(&args.judged)?;
    let plan = Plan::new(args)?;
    plan.look()?;
    let home = home(&args.output)?;
    let [a, b] = plan.begin(args, &home)?;
    let (arms, looked, stopped) = plan.measure(args, &spec.margins, a, b)?;
    let found = compare::of_folders(&home.join("a"), &home.join("b"), &spec);
    if let Ok((names, comparison)) = &found {
        compare::page(&args.judged, names, comparison)?;
    }
    let compared = found;
    let told = InterleaveReport {
        home: &home,
        arms: &arms,
        looked: &looked,
        compared: &compared,
        quality: quality.as_ref(),
    };
    told.print(args);
    Ok(told.exit(args, stopped))
}

/// The load, its duration and the rules for an early end.
struct Plan {
    scenarios: [Scenario; 2],
    load: Load,
    window: Span,
    requests: Option<u64>,
    pause: Span,
    watch: SequentialSpec,
    command: String,
}

impl Plan {
    fn new(args: &InterleaveArgs) -> Result<Plan, Stop> {
        if args.alternations == 0 {
            return Err(Stop::usage("--alternations 0: at least one block of each endpoint"));
        }
        if !(args.alpha > 0.0 && args.alpha < 0.5) {
            return Err(Stop::usage(format!("--alpha {}: a chance over 0 and under 0.5", args.alpha)));
        }
        let time =
            |flag: &str, text: &str| parse_span(text).map_err(|e| Stop::usage(format!("{flag} {text}: {e}")));
        let least_time = time("--least-time", &args.least_time)?;
        let pause = time("--pause", &args.pause)?;
        let nonce = args.workload.nonce.unwrap_or_else(random);
        let a = scenario(args, &args.target.url, [None, None], nonce)?;
        let of_b = [args.model_b.clone(), args.key_env_b.clone()];
        let b = scenario(args, &args.url_b, of_b, nonce.wrapping_add(1))?;
        let (scenario, window) = a;
        let load = load(&scenario, args)?;
        let requests = match scenario.load {
            LoadSpec::Closed { requests, .. } => requests,
            _ => None,
        };
        let watch = SequentialSpec { alpha: args.alpha, least_time, least_n_eff: args.least_n_eff };
        let command = command(args, &scenario);
        Ok(Plan { scenarios: [scenario, b.0], load, window, requests, pause, watch, command })
    }

    /// Checks that both endpoints respond, before any file is written.
    fn look(&self) -> Result<(), Stop> {
        for scenario in &self.scenarios {
            look(&mut scenario.clone(), None)?;
        }
        Ok(())
    }

    /// Creates both folders and prepares the clients.
    fn begin(&self, args: &InterleaveArgs, home: &Path) -> Result<[MeasurementSession; 2], Stop> {
        let output = |arm: &str| OutputArgs { out: Some(home.join(arm)), ..args.output.clone() };
        let (of_a, of_b) = (output("a"), output("b"));
        let limits = stop_limits(&args.ceilings)?;
        let begin = |scenario: &Scenario, output| MeasurementStart {
            reproduce: Some(self.command.clone()),
            ..MeasurementStart::new("run", scenario.clone(), &args.client, limits, output)
        };
        let mut a = MeasurementSession::begin(begin(&self.scenarios[0], &of_a))?;
        a.screen.say(&self.announced(args.alternations));
        let b = MeasurementSession::begin_beside(begin(&self.scenarios[1], &of_b), &a)?;
        Ok([a, b])
    }

    fn announced(&self, alternations: u32) -> String {
        let blocks = 2.0 * f64::from(alternations);
        let length = match self.requests {
            Some(requests) => format!("blocks of {requests} requests"),
            None => {
                let whole = blocks * (self.window.0 + self.pause.0) as f64;
                format!(
                    "blocks of {}: about {}, plus the time of the last answers",
                    figure::duration_ns(self.window.0 as f64),
                    figure::duration_ns(whole)
                )
            }
        };
        format!("A B B A …: {alternations} blocks of each endpoint, {length}")
    }

    /// Runs the blocks. With `--stop-early` the run ends once harm, or its absence, is proven. The user may
    /// stop it too.
    fn measure(
        &self,
        args: &InterleaveArgs,
        margins: &Margins,
        mut a: MeasurementSession,
        mut b: MeasurementSession,
    ) -> Result<([Arm; 2], InterleaveState, bool), Stop> {
        let warm_up = match self.scenarios[0].load.warm_up() {
            0 => WARM_UP,
            asked => asked,
        };
        for (measure, arm) in [(&mut a, "A"), (&mut b, "B")] {
            let concurrency = match self.load {
                Load::Closed { concurrency } => concurrency.min(warm_up),
                _ => 1,
            };
            let step = LevelStep::of_requests("warmup", concurrency, warm_up.into());
            let measured = measure.level(&step, &format!("{arm}: warm-up"))?;
            measure.keep(measured);
        }
        let mut watch = InterleaveWatch::new(self.watch, guards(margins));
        for pair in 0..args.alternations {
            let Some((rows_a, rows_b, took)) = self.pair(&mut a, &mut b, (pair, args.alternations))? else {
                break;
            };
            watch.push(&rows_a, &rows_b, took);
            let looked = watch.looked();
            a.screen.say(&watch::line(&looked, args.alternations));
            let settled = !matches!(looked.verdict, SequentialVerdict::GoOn { .. });
            if args.stop_early && settled {
                break;
            }
        }
        let stopped = a.interrupted() || b.interrupted();
        let close = |measure: MeasurementSession| {
            let findings = measure.analyse();
            Arm { closed: measure.finish(&findings), findings }
        };
        Ok(([close(a), close(b)], watch.looked(), stopped))
    }

    /// Runs one block of each arm, in reversed order every time. Returns `None` if a block was cut short,
    /// because a pair must be complete.
    #[expect(clippy::type_complexity, reason = "the rows of A, of B, and the time B took")]
    fn pair(
        &self,
        a: &mut MeasurementSession,
        b: &mut MeasurementSession,
        (pair, of): (u32, u32),
    ) -> Result<Option<(Vec<Attempt>, Vec<Attempt>, Span)>, Stop> {
        let mut rows = [Vec::new(), Vec::new()];
        let mut took = Span::ZERO;
        for turn in 0..2 {
            let arm = (pair as usize + turn) % 2;
            let measure = if arm == 0 { &mut *a } else { &mut *b };
            if measure.stopped() {
                return Ok(None);
            }
            let step = LevelStep { requests: self.requests, ..LevelStep::new("run", self.load, self.window) };
            let title = format!("{} · block {} of {of}", ["A", "B"][arm], pair + 1);
            let measured = measure.level(&step, &title)?;
            let (ended_by, window) = (measured.level.ended_by, measured.level.window());
            rows[arm] = measured.records().to_vec();
            measure.keep(measured);
            if !matches!(ended_by, EndedBy::Complete | EndedBy::DrainLimit) {
                return Ok(None);
            }
            if arm == 1 {
                took = window;
            }
            std::thread::sleep(self.pause.as_duration());
        }
        let [rows_a, rows_b] = rows;
        Ok(Some((rows_a, rows_b, took)))
    }
}

/// Returns the scenario of one arm, and the duration of its blocks.
fn scenario(
    args: &InterleaveArgs,
    url: &str,
    [model, key_env]: [Option<String>; 2],
    nonce: u64,
) -> Result<(Scenario, Span), Stop> {
    let mut draft = Draft::new(args.workload.spec.as_deref())?;
    let shared = &args.target;
    let key_file = if key_env.is_some() { None } else { shared.key_file.clone() };
    draft.target(&TargetArgs {
        url: url.to_string(),
        model: model.or(shared.model.clone()),
        key_env: key_env.or(shared.key_env.clone()),
        key_file,
        ..shared.clone()
    })?;
    draft.workload(&args.workload)?;
    draft.client(&args.client)?;
    draft.load(&args.load, args.workload.trace.is_some())?;
    draft.set("nonce", nonce.into());
    let is_said = draft.has("load.window");
    let mut scenario = draft.finish(nonce)?;
    rate(&scenario)?;
    let window = window(&mut scenario, is_said)?;
    Ok((scenario, window))
}

/// Returns the load of every block.
fn load(scenario: &Scenario, args: &InterleaveArgs) -> Result<Load, Stop> {
    let most = max_rate(args.ceilings.max_rate.as_deref())?;
    match &scenario.load {
        LoadSpec::Open { .. } => {
            let rate_per_s = rate(scenario)?.unwrap_or_default();
            if most.is_some_and(|most| rate_per_s > most) {
                let rate = figure::per_second(rate_per_s);
                return Err(Stop::usage(format!("the rate {rate} is over --max-rate")));
            }
            Ok(Load::Open { rate_per_s })
        }
        LoadSpec::Closed { concurrency, .. } => Ok(Load::Closed { concurrency: *concurrency }),
        LoadSpec::Wave { requests, .. } => Ok(Load::Wave { requests: *requests }),
        LoadSpec::Saturating { .. } => Err(Stop::usage(
            "--saturate: two endpoints are compared at one load; name it with --rate or --concurrency",
        )),
    }
}

/// Returns the command that repeats both runs.
fn command(args: &InterleaveArgs, scenario: &Scenario) -> String {
    let urls = [&args.target.url, &args.url_b].map(|url| resolve::quoted(url));
    let head = format!("plimsoll interleave {}", urls.join(" "));
    let mut more = ceiling_flags(&args.client, &args.ceilings);
    more.push(("alternations", args.alternations.to_string()));
    more.extend(args.stop_early.then(|| ("stop-early", String::new())));
    more.extend(args.model_b.iter().map(|model| ("model-b", model.clone())));
    more.extend(args.key_env_b.iter().map(|name| ("key-env-b", name.clone())));
    let default = |text: &String, usual: &str| text != usual;
    more.extend(default(&args.least_time, "0s").then(|| ("least-time", args.least_time.clone())));
    more.extend((args.least_n_eff != 1000.0).then(|| ("least-n-eff", args.least_n_eff.to_string())));
    more.extend((args.alpha != 0.05).then(|| ("alpha", args.alpha.to_string())));
    more.extend(args.judged.margins.iter().map(|margin| ("margin", margin.clone())));
    more.extend(default(&args.pause, "1s").then(|| ("pause", args.pause.clone())));
    resolve::repeat(&head, scenario, &more)
}

/// Creates the folder for both runs.
fn home(output: &OutputArgs) -> Result<PathBuf, Stop> {
    let home = folder(output, "interleave")?;
    std::fs::create_dir_all(&home).map_err(|e| Stop::usage(format!("{}: {e}", home.display())))?;
    Ok(home)
}

/// Returns the watched percentiles with the margins of the comparison, so that both use equal margins.
fn guards(margins: &Margins) -> Vec<PercentileGuard> {
    [(0.5, margins.p50), (0.95, margins.p95), (0.99, margins.p99)]
        .map(|(percentile, margin)| PercentileGuard { percentile, margin })
        .to_vec()
}

struct InterleaveReport<'a> {
    home: &'a Path,
    arms: &'a [Arm; 2],
    looked: &'a InterleaveState,
    compared: &'a Result<([String; 2], Comparison), Stop>,
    quality: Option<&'a Quality>,
}

impl InterleaveReport<'_> {
    fn print(&self, args: &InterleaveArgs) {
        match args.output.format {
            OutputFormat::Json => self.print_json(),
            OutputFormat::Text => self.print_text(args),
        }
    }

    fn print_json(&self) {
        let arm = |(arm, name): (&Arm, &str)| {
            json!({
                "url": arm.closed.manifest.target.url,
                "folder": self.home.join(name).display().to_string(),
                "validity": arm.findings.validity,
            })
        };
        let arms: Vec<_> = self.arms.iter().zip(["a", "b"]).map(arm).collect();
        let comparison = self.compared.as_ref().ok().map(|(_, comparison)| comparison);
        let refused = self.compared.as_ref().err().map(|stop| stop.line.as_str());
        out::json(&json!({
            "a": arms[0], "b": arms[1], "any_time": self.looked, "comparison": comparison, "refused": refused,
            "quality": self.quality,
        }));
    }

    fn print_text(&self, args: &InterleaveArgs) {
        for (arm, name) in self.arms.iter().zip(["A", "B"]) {
            let (url, dir) = (&arm.closed.manifest.target.url, arm.closed.dir.display().to_string());
            out::line(&watch::arm(name, url, &arm.findings, &dir));
        }
        out::line("");
        match self.compared {
            Ok((names, comparison)) => {
                out::line(&plimsoll_report::compare::render((&names[0], &names[1]), comparison));
            }
            Err(stop) => out::line(&format!("No comparison: {}", stop.line)),
        }
        out::line(&format!("\n{}", watch::text(self.looked)));
        if args.stop_early {
            out::line(
                "             with --stop-early this verdict decides: the comparison above has no fixed length",
            );
        }
        if let Some(quality) = self.quality {
            out::line(&words::line(quality));
        }
        out::line(&format!("\nRepeat  {}", self.arms[0].closed.manifest.reproduce));
    }

    /// Returns the exit code. An invalid arm decides first. Without an early end the comparison decides,
    /// because its length was fixed beforehand. With `--stop-early` the anytime-valid sequential test
    /// decides.
    fn exit(&self, args: &InterleaveArgs, stopped: bool) -> Exit {
        for arm in self.arms {
            match arm.closed.exit(&arm.findings, stopped) {
                Exit::Done => {}
                other => return other,
            }
        }
        match (&self.looked.verdict, self.compared) {
            (SequentialVerdict::Harm { .. }, _) => Exit::Broken,
            (_, Ok((_, comparison))) if !args.stop_early => compare::exit(comparison.verdict),
            (SequentialVerdict::Promote, _) => Exit::Done,
            (SequentialVerdict::GoOn { .. }, _) => Exit::Inconclusive,
        }
    }
}
