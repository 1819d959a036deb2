//! Does a plan hold where it is carried out? `cargo bench -p plimsoll --bench plans`.
//! Words: `part=held,knee` `only=NAME` `seconds=90` (of a held plan) `low=180` (of the run at low load) `sweep=420`.
//!
//! `held`: five plans from a profile, a load and a promise, each then carried out on the live engine over loopback with the number of
//! replicas that the plan says and with one fewer; `plimsoll gate` judges both runs by the same promise.
//! `knee`: a run of the live engine at low load, a plan from nothing but that run (and what its operator knows: slots and token budget),
//! and a sweep of the same engine: the stability limit and the load at which the promise breaks, predicted against measured. A sweep knows
//! the second only between two levels, so the same plan from the engine's own profile stands beside it.

mod kit;

use std::process::{Command, ExitCode, Stdio};

use kit::{Args, Client, Engine, Ran, Result, bar, plimsoll, say};
use plimsoll_measure::findings::{CapacityLine, Findings, Percentiles, Reading};
use plimsoll_plan::finding::PlanFinding;
use tempfile::TempDir;

/// Distance from what is measured that a predicted line may have.
const WITHIN: f64 = 0.10;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let parts = args.get("part").unwrap_or("held,knee");
        if parts.contains("held") {
            held(args)?;
        }
        if parts.contains("knee") {
            knees(args)?;
        }
        Ok(())
    })
}

// ---------------------------------------------------------------------------------------------- held

/// A fleet, its load and its promise.
struct System {
    name: &'static str,
    /// Words of the engine that a fleet is started with and planned for.
    engine: &'static [&'static str],
    /// Words of the load.
    load: &'static [&'static str],
    rate: &'static str,
    /// Metric, percentile and ceiling in ms.
    slo: &'static [(&'static str, &'static str, f64)],
}

const CHAT: &[&str] = &["--isl", "lognormal:256,0.6", "--osl", "lognormal:64,0.5"];

const SYSTEMS: [System; 5] = [
    System {
        name: "demo",
        engine: &["--profile", "demo", "--route", "round_robin"],
        load: CHAT,
        rate: "165",
        slo: &[("ttft", "95", 60.0)],
    },
    System {
        name: "queue",
        engine: &["--profile", "mm8", "--route", "least_requests"],
        load: &["--isl", "4", "--osl", "1"],
        rate: "1500",
        slo: &[("e2e", "95", 40.0)],
    },
    System {
        name: "8b",
        engine: &["--profile", "llama-3.1-8b@h100", "--route", "round_robin"],
        load: &["--isl", "lognormal:512,0.5", "--osl", "lognormal:128,0.5"],
        rate: "75",
        slo: &[("ttft", "95", 150.0), ("tpot", "95", 16.0)],
    },
    System {
        name: "70b",
        engine: &["--profile", "llama-3.1-70b@h100x4", "--route", "least_requests"],
        load: &["--isl", "lognormal:1024,0.5", "--osl", "lognormal:96,0.5"],
        rate: "20",
        slo: &[("ttft", "95", 500.0), ("tpot", "95", 45.0)],
    },
    System {
        name: "bursts",
        engine: &["--profile", "qwen2.5-7b@a100", "--route", "power_of_two"],
        load: &["--isl", "lognormal:512,0.5", "--osl", "lognormal:64,0.5", "--arrivals", "gamma:2.5"],
        rate: "40",
        slo: &[("ttft", "90", 300.0), ("tpot", "90", 35.0)],
    },
];

fn held(args: &Args) -> Result<()> {
    let time = format!("{}s", args.number("seconds", 90.0)?);
    say(
        "plan     replicas  carried out with  expected              measured [95 %]                gate          run",
    );
    let (mut good, mut all) = (0, 0);
    for system in SYSTEMS.iter().filter(|system| args.get("only").is_none_or(|only| only == system.name)) {
        all += 1;
        good += u32::from(system.is_held(&time)?);
    }
    bar("plans that hold with R and not with R - 1", format!("{good} of {all}"), "all", good == all);
    Ok(())
}

impl System {
    /// Is the promise held live with as many replicas as planned, and broken with one fewer?
    fn is_held(&self, time: &str) -> Result<bool> {
        let folder = tempfile::tempdir()?;
        let words = [
            self.engine,
            &["--rate", self.rate, "--slo", &self.promise(), "--utilisation", "0.97"],
            self.load,
        ];
        let plan = plan(&folder, &words.concat())?;
        let chosen = plan.chosen.ok_or("the plan chose nothing")?;
        let replicas = chosen.replicas;
        let tried = plan.simulated.map_or_else(Vec::new, |answer| answer.tried);
        let mut verdicts = Vec::new();
        for carried in [replicas, replicas - 1] {
            let (code, ran) = self.carry_out(carried, time)?;
            let expected = tried.iter().find(|tried| tried.replicas == carried).map(|tried| &tried.figures);
            let figures: Vec<String> = (0..self.slo.len())
                .map(|i| expected.map_or("-".to_owned(), |figures| spell(&figures[i].value)))
                .collect();
            say(format!(
                "{:<8} {replicas:>8}  {carried:>16}  {:<20}  {:<29}  {:<12}  {}",
                self.name,
                figures.join(", "),
                self.measured(&ran)?.join(", "),
                verdict(code),
                ran.verdict()
            ));
            verdicts.push(code);
        }
        Ok(verdicts == [Some(0), Some(1)])
    }

    fn promise(&self) -> String {
        let ceilings = self.slo.iter().map(|(metric, p, ms)| format!("{metric} p{p} < {ms}ms"));
        ceilings.collect::<Vec<_>>().join(", ")
    }

    /// The budget file of the promise.
    fn budget(&self) -> String {
        let rows = self.slo.iter().map(|(metric, p, ms)| {
            format!("  - {{id: {metric}-p{p}, metric: {metric}, p: {p}, max: {ms}ms}}\n")
        });
        format!("version: 1\nname: {}\nbudgets:\n{}", self.name, rows.collect::<String>())
    }

    /// One run with so many replicas: what `gate` says of it, and the run.
    fn carry_out(&self, replicas: u32, time: &str) -> Result<(Option<i32>, Ran)> {
        let count = replicas.to_string();
        let (profile, route) = (self.engine[1], &self.engine[2..]);
        let engine = Engine::start_with(profile, &[&["--replicas", &count], route].concat())?;
        let ran = Client::start(&engine.url, &[&["--rate", self.rate, "--for", time], self.load].concat())?
            .end()?;
        engine.stop()?;
        let budget = ran.folder.path().join("budget.yaml");
        std::fs::write(&budget, self.budget())?;
        let status = Command::new(plimsoll())
            .args(["gate", "--budget"])
            .arg(&budget)
            .arg(ran.dir())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()?;
        Ok((status.code(), ran))
    }

    fn measured(&self, ran: &Ran) -> Result<Vec<String>> {
        let summary = ran.summary()?;
        let latency = &summary.latency;
        let one = |(metric, p, _): &(&str, &str, f64)| {
            let found = match *metric {
                "ttft" => latency.ttft.as_ref(),
                "tpot" => latency.tpot.as_ref(),
                _ => Some(&latency.e2e),
            };
            let at = |found: &Percentiles| if *p == "90" { found.p90.clone() } else { found.p95.clone() };
            found.map(at).map_or("-".to_owned(), |value| spell(&value))
        };
        Ok(self.slo.iter().map(one).collect())
    }
}

/// What an exit code of `gate` says.
fn verdict(code: Option<i32>) -> String {
    match code {
        Some(0) => "held".to_owned(),
        Some(1) => "broken".to_owned(),
        Some(3) => "inconclusive".to_owned(),
        Some(4) => "invalid".to_owned(),
        other => format!("ended {other:?}"),
    }
}

/// A time in ms with its interval.
fn spell(reading: &Reading) -> String {
    match reading {
        Reading::Estimate(e) => {
            format!("{:.1} [{:.1}, {:.1}]", 1e3 * e.value, 1e3 * e.lower, 1e3 * e.upper)
        }
        Reading::Refused { .. } => "refused".to_owned(),
    }
}

/// `plimsoll plan WORDS`, read back from its file.
fn plan(folder: &TempDir, words: &[&str]) -> Result<PlanFinding> {
    let file = folder.path().join("plan.json");
    let ended = Command::new(plimsoll())
        .arg("plan")
        .args(words)
        .arg("--out")
        .arg(&file)
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .output()?;
    let text = std::fs::read_to_string(&file)
        .map_err(|_| format!("no plan: {}", String::from_utf8_lossy(&ended.stderr)))?;
    Ok(serde_json::from_str(&text)?)
}

// ---------------------------------------------------------------------------------------------- knee

/// An engine that is asked at low load what it would bear.
struct Asked {
    name: &'static str,
    profile: &'static str,
    load: &'static [&'static str],
    /// About a quarter of what it bears.
    low: &'static str,
    slo: &'static str,
    /// What its operator knows of it.
    told: &'static [&'static str],
}

const ASKED: [Asked; 2] = [
    Asked {
        name: "demo",
        profile: "demo",
        load: CHAT,
        low: "30",
        slo: "ttft p95 < 60ms",
        told: &["--slots", "6", "--token-budget", "512"],
    },
    Asked {
        name: "small",
        profile: r#"{"name": "small", "mode": {"kind": "batching", "max_seqs": 16, "token_budget": 1024, "kv_blocks": 8192,
            "step": {"kind": "linear", "base_us": 4000, "decode_us": 60, "prefill_us": 12, "context_ns": 20}}}"#,
        load: &["--isl", "lognormal:384,0.5", "--osl", "lognormal:96,0.5"],
        low: "6",
        slo: "ttft p95 < 300ms",
        told: &["--slots", "16", "--token-budget", "1024"],
    },
];

fn knees(args: &Args) -> Result<()> {
    let (low, sweep) = (args.number("low", 180.0)?, args.number("sweep", 420.0)?);
    say(
        "engine   low load  in flight   limit: predicted  swept [bracket]          off   breaks: predicted  by its profile  swept [bracket]",
    );
    let (mut good, mut all) = (0, 0);
    for asked in ASKED.iter().filter(|asked| args.get("only").is_none_or(|only| only == asked.name)) {
        all += 1;
        good += u32::from(asked.is_foretold(&format!("{low}s"), &format!("{sweep}s"))?);
    }
    bar("limit and break predicted within 10 %", format!("{good} of {all}"), "all", good == all);
    Ok(())
}

impl Asked {
    fn is_foretold(&self, low: &str, sweep: &str) -> Result<bool> {
        let engine = Engine::start(self.profile)?;
        let quiet =
            Client::start(&engine.url, &[&["--rate", self.low, "--for", low], self.load].concat())?.end()?;
        let folder = tempfile::tempdir()?;
        let run = quiet.dir().display().to_string();
        let foretold = plan(&folder, &[&["--from", &run, "--slo", self.slo], self.told].concat())?;
        let own = self.by_profile()?;
        let words = [&["--time", sweep, "--slo", self.slo], self.load].concat();
        let swept = Client::start_as("sweep", &engine.url, &words)?.end()?;
        engine.stop()?;
        let limit = foretold.bounds.as_ref().map_or(f64::NAN, |bounds| bounds.limit_per_s);
        let (foretold, own) = (breaks(&foretold), breaks(&own));
        let (stability, budget) = lines(&swept.findings)?;
        let limit_off = limit / stability.rate().map_or(f64::NAN, |rate| rate.value) - 1.0;
        say(format!(
            "{:<8} {:>7}/s  {:>9.2}   {limit:>16.1}  {:<22} {:>+5.1} %   {foretold:>17.1}  {own:>14.1}  {}   {} | {}",
            self.name,
            self.low,
            quiet.summary()?.concurrency.mean,
            bracket(Some(&stability)),
            100.0 * limit_off,
            bracket(budget.as_ref()),
            quiet.verdict(),
            swept.verdict()
        ));
        Ok(limit_off.abs() <= WITHIN && (foretold / own - 1.0).abs() <= WITHIN)
    }

    /// The same promise planned for with the engine as it is.
    fn by_profile(&self) -> Result<PlanFinding> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("profile.json");
        let mut profile = self.profile.to_owned();
        if profile.starts_with('{') {
            std::fs::write(&file, &profile)?;
            profile = file.display().to_string();
        }
        let words = ["--profile", &profile, "--rate", self.low, "--slo", self.slo];
        plan(&folder, &[&words[..], self.load].concat())
    }
}

/// The load at which a plan breaks, requests per second.
fn breaks(plan: &PlanFinding) -> f64 {
    plan.chosen.as_ref().and_then(|chosen| chosen.breaks_at.value()).unwrap_or(f64::NAN)
}

/// Stability limit and budget limit of a sweep.
fn lines(findings: &Findings) -> Result<(CapacityLine, Option<CapacityLine>)> {
    let lines = findings.lines.first().ok_or("the sweep has no lines")?;
    Ok((lines.stability.clone(), lines.budget.clone()))
}

/// A line with the levels that it lies between.
fn bracket(line: Option<&CapacityLine>) -> String {
    match line.and_then(CapacityLine::rate) {
        Some(rate) => format!("{:.1} [{:.1}, {:.1}]", rate.value, rate.lower, rate.upper),
        None => format!("{line:?}"),
    }
}
