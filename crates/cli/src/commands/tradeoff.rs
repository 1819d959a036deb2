//! `plimsoll tradeoff` weighs speed and cost of a change against its accuracy.

use std::path::{Path, PathBuf};

use plimsoll_interop::evals::{self, EvalScore};
use plimsoll_judge::compare::finding::Comparison;
use plimsoll_judge::compare::{CompareSpec, DifferencePolicy, Margins};
use plimsoll_judge::cost::{Bill, cost};
use plimsoll_judge::tradeoff::{
    AccuracyChange, CostChange, SpeedChange, TaskScore, TradeoffFinding, TradeoffVerdict, judge,
};
use plimsoll_measure::findings::{Estimate, Findings, Reading};
use plimsoll_model::Load;
use plimsoll_report::{load, tradeoff as text};

use super::compare;
use crate::answer::{self, AnswerHead, AnswerVerdict};
use crate::exit::{Exit, Stop};
use crate::flags::{OutputFormat, PriceArgs, TradeoffArgs};
use crate::{baseline, eval_file, out, price, rows};

/// Prints the trade-off.
pub fn run(args: &TradeoffArgs) -> Result<Exit, Stop> {
    out::place_for(args.html.as_deref())?;
    if !(args.max_loss >= 0.0 && args.max_loss <= 100.0) {
        return Err(Stop::usage(format!("--max-loss {}: points from 0 to 100", args.max_loss)));
    }
    let prices = prices(args)?;
    let accuracy = accuracy(args)?;
    let [base, candidate] = [&args.base, &args.candidate].map(|name| baseline::resolve(name));
    let (base, candidate) = (base?.dir, candidate?.dir);
    if compare::same_folder(&base, &candidate) {
        return Err(Stop::usage(format!(
            "{} and {} are one run: name the changed one",
            args.base, args.candidate
        )));
    }
    let differing =
        if args.despite_differences { DifferencePolicy::Standardise } else { DifferencePolicy::Refuse };
    let spec = CompareSpec { margins: Margins::default(), differing };
    let (_, comparison) = compare::of_folders(&base, &candidate, &spec)?;
    let change = cost_change(&base, &candidate, &prices, args)?;
    let found = judge(speed(&comparison), change, accuracy, args.max_loss);
    print(args, &found)
}

fn print(args: &TradeoffArgs, found: &TradeoffFinding) -> Result<Exit, Stop> {
    let names = (args.base.as_str(), args.candidate.as_str());
    if let Some(path) = &args.html {
        out::file(path, text::page(names, found))?;
    }
    let (verdict, exit) = match found.verdict {
        TradeoffVerdict::Pays => (AnswerVerdict::Pass, Exit::Done),
        TradeoffVerdict::DoesNotPay => (AnswerVerdict::Broken, Exit::Broken),
        TradeoffVerdict::CannotTell => (AnswerVerdict::Inconclusive, Exit::Inconclusive),
    };
    match args.format {
        OutputFormat::Text => out::line(&text::render(names, found)),
        OutputFormat::Json => {
            let head = AnswerHead {
                verdict: Some(verdict),
                headline: Some(text::headline(found)),
                reasons: vec![found.why.clone()],
                run: Some(args.candidate.clone()),
                ..AnswerHead::default()
            };
            answer::print(head, found);
        }
    }
    Ok(exit)
}

/// Returns the prices of both sides as flags.
fn prices(args: &TradeoffArgs) -> Result<[PriceArgs; 2], Stop> {
    if args.price.price.is_none() {
        return Err(Stop::usage(
            "--price: a trade-off needs the price of the endpoint, such as --price 2.49USD/gpu-hour --gpus 8",
        ));
    }
    let candidate = PriceArgs {
        price: args.candidate_price.clone().or(args.price.price.clone()),
        gpus: args.candidate_gpus.or(args.price.gpus),
    };
    Ok([args.price.clone(), candidate])
}

/// Returns the figures of speed that decide the comparison.
fn speed(comparison: &Comparison) -> Vec<SpeedChange> {
    let rows = comparison.groups.iter().flat_map(|group| &group.rows).chain(&comparison.lines);
    // A paired change without the figures of both sides is a row of `compare`.
    let rows = rows.filter(|row| row.primary && row.base.value.is_some() && row.metric != "error_rate");
    let change = rows.map(|row| SpeedChange {
        name: format!("{} {}", row.metric, row.statistic),
        base: row.base.value,
        candidate: row.candidate.value,
        effect: row.effect,
        verdict: row.verdict,
    });
    change.collect()
}

fn cost_change(
    base: &Path,
    candidate: &Path,
    prices: &[PriceArgs; 2],
    args: &TradeoffArgs,
) -> Result<CostChange, Stop> {
    let one = |dir: &Path, price: &PriceArgs| -> Result<(Findings, Bill), Stop> {
        let (manifest, findings) = rows::load(dir)?;
        let bill = price::bill(price, Some(&manifest.target))?;
        let bill = bill.ok_or_else(|| Stop::usage("--price: is missing"))?;
        Ok((findings, bill))
    };
    let (a, b) = (one(base, &prices[0])?, one(candidate, &prices[1])?);
    if a.1.currency != b.1.currency {
        return Err(Stop::usage(format!(
            "--candidate-price: is in {}, and --price in {}; use one currency",
            b.1.currency, a.1.currency
        )));
    }
    let [(at, of_base, fixed), (_, of_candidate, _)] = [at(&args.base, &a)?, at(&args.candidate, &b)?];
    let mut change = CostChange::new(a.1.currency.clone(), at, of_base, of_candidate);
    // At one offered load both runs finish equally many tokens, whatever their capacity.
    change.blind = (fixed && a.1.rate == b.1.rate).then(|| {
        "both runs carry one offered load at one price, so their cost is equal by design: compare two sweeps with --slo, two \
         closed loops (--concurrency), or set --candidate-gpus"
            .to_owned()
    });
    Ok(change)
}

/// Returns the load of the cost as a phrase, the cost of a million output tokens, and whether the load is an offered rate.
fn at(name: &str, (findings, bill): &(Findings, Bill)) -> Result<(String, Estimate, bool), Stop> {
    let costs = cost(findings, bill);
    let estimate = |reading: &Reading| match reading {
        Reading::Estimate(e) if e.value.is_finite() && e.lower > 0.0 && e.upper.is_finite() => Ok(*e),
        Reading::Estimate(_) => {
            Err(Stop::usage(format!("{name}: the cost has an open interval; measure longer")))
        }
        Reading::Refused { why, .. } => {
            Err(Stop::usage(format!("{name}: has no cost of output tokens: {why}")))
        }
    };
    if !findings.lines.is_empty() {
        let line = costs.at_budget.iter().find(|line| line.rate.is_some());
        let line = line.ok_or_else(|| {
            Stop::usage(format!(
                "{name}: the sweep found no budget limit; sweep longer, or with another --slo"
            ))
        })?;
        let at = format!("the budget limit, {} traffic", line.traffic);
        return Ok((at, estimate(&line.costs.per_million_output)?, false));
    }
    let last = costs.levels.last().zip(findings.levels.last());
    let (level, found) = last.ok_or_else(|| Stop::usage(format!("{name}: has no level with figures")))?;
    let cost = estimate(&level.costs.per_million_output)?;
    Ok((load(&found.summary.load), cost, matches!(found.summary.load, Load::Open { .. })))
}

fn accuracy(args: &TradeoffArgs) -> Result<AccuracyChange, Stop> {
    if let Some(path) = &args.quality {
        let quality = eval_file::results(path)?;
        return AccuracyChange::of_quality(&quality).ok_or_else(|| {
            Stop::usage(format!("{}: has no scores; give the items a score", path.display()))
        });
    }
    let (Some(base), Some(candidate)) = (&args.base_eval, &args.candidate_eval) else {
        return Err(Stop::usage(
            "an accuracy is missing: add --quality FILE, or --base-eval and --candidate-eval of lm-evaluation-harness",
        ));
    };
    let metric = args.metric.as_deref();
    let [a, b] = [HarnessResults::read(base, metric)?, HarnessResults::read(candidate, metric)?];
    let mut tasks = Vec::new();
    for (score, own) in &a.scores {
        let same = |other: &&(EvalScore, TaskScore)| {
            (&other.0.task, &other.0.metric, &other.0.filter) == (&score.task, &score.metric, &score.filter)
        };
        if let Some((_, theirs)) = b.scores.iter().find(same) {
            let name = format!("{} {},{}", score.task, score.metric, score.filter);
            tasks.push((name, own.clone(), theirs.clone()));
        }
    }
    let left = a.scores.len() + b.scores.len() - 2 * tasks.len();
    if left > 0 {
        out::note(&format!("{left} tasks are on one side only and are left out"));
    }
    AccuracyChange::of_tasks("lm-evaluation-harness", &tasks).ok_or_else(|| {
        let (base, candidate) = (base.display(), candidate.display());
        let why =
            if tasks.is_empty() { "no task in common" } else { "a task without samples and standard error" };
        Stop::usage(format!("{base} and {candidate}: {why}; run the harness alike, with --log_samples"))
    })
}

/// The scores of one side.
struct HarnessResults {
    scores: Vec<(EvalScore, TaskScore)>,
}

impl HarnessResults {
    fn read(path: &Path, metric: Option<&str>) -> Result<HarnessResults, Stop> {
        let file = if path.is_dir() { newest(path, "results_", ".json")? } else { path.to_path_buf() };
        let wrong = |at: &Path, e: &dyn std::fmt::Display| Stop::usage(format!("{}: {e}", at.display()));
        let read = |at: &Path| std::fs::read_to_string(at).map_err(|e| out::unread(at.display(), &e));
        let scores = evals::scores(&read(&file)?, metric).map_err(|e| wrong(&file, &e))?;
        let folder = file.parent().unwrap_or(Path::new("."));
        // A folder gathers several runs of the harness, whose files share the time in their names.
        let name = file.file_stem().and_then(|name| name.to_str()).unwrap_or_default();
        let time = name.strip_prefix("results_").unwrap_or_default();
        let each = scores.into_iter().map(|score| {
            let samples = folder.join(format!("samples_{}_{time}.jsonl", score.task));
            let items = match samples.is_file() {
                true => evals::items(&read(&samples)?, &score).map_err(|e| wrong(&samples, &e))?,
                false => std::collections::BTreeMap::new(),
            };
            let EvalScore { value, standard_error, n, .. } = score;
            Ok::<_, Stop>((score, TaskScore { value, standard_error, n, items }))
        });
        Ok(HarnessResults { scores: each.collect::<Result<_, Stop>>()? })
    }
}

/// Returns the newest file of a folder with this name, because the harness puts its time into the name.
fn newest(folder: &Path, start: &str, end: &str) -> Result<PathBuf, Stop> {
    let entries = std::fs::read_dir(folder).map_err(|e| out::unread(folder.display(), &e))?;
    let fits = |path: &PathBuf| {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|n| n.starts_with(start) && n.ends_with(end))
    };
    let newest = entries.flatten().map(|entry| entry.path()).filter(fits).max();
    newest.ok_or_else(|| Stop::usage(format!("{}: has no {start}*{end}; name the file", folder.display())))
}
