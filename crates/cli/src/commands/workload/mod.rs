//! `plimsoll workload` converts production traffic to a replayable trace and reports the fidelity of the
//! trace.
//!
//! The report is based on the load that a run of the file would send. The written bytes are re-read, the
//! schedule is drawn, and the prompt blocks are named as in a run. Only then are log and workload comparable.

mod pages;
mod sources;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_measure::faithful::{self, EndCounts, Reconstruction, TrafficSample};
use plimsoll_model::RequestLog;
use plimsoll_plan::effect::{self, EffectCase, EffectFinding};
use plimsoll_plan::replay::ReplayRequest;
use plimsoll_report::figure::counted;
use plimsoll_sim::WorldSpec;
use plimsoll_workload::trace::TraceRow;
use plimsoll_workload::{
    ArrivalSpec, BlockNames, LoadSpec, Rate, RebuildSpec, RebuiltTrace, Reuse, Scenario, Schedule, Size,
    TraceSizes, parse_span, rebuild,
};
use serde_json::json;

use crate::commands::engine;
use crate::exit::{Exit, Stop};
use crate::flags::{FromLogArgs, OutputFormat};
use crate::out;

/// Block size of engines in tokens.
const BLOCK_TOKENS: u32 = 16;

/// Reads the sources, writes the workload and prints the report.
pub fn run(args: &FromLogArgs) -> Result<Exit, Stop> {
    out::place_for(args.out.as_deref())?;
    let law = |flag: &str, text: &Option<String>| match text {
        Some(text) => Size::parse(text).map(Some).map_err(|e| Stop::usage(format!("--{flag}: {e}"))),
        None => Ok(None),
    };
    let wrong =
        |flag: &'static str| move |e: plimsoll_workload::SpecError| Stop::usage(format!("--{flag}: {e}"));
    let spec = RebuildSpec {
        prompt: law("isl", &args.isl)?,
        output: law("osl", &args.osl)?,
        session_rate: args
            .session_rate
            .as_deref()
            .map(Rate::parse)
            .transpose()
            .map_err(wrong("session-rate"))?,
        max_wait: args.max_wait.as_deref().map(parse_span).transpose().map_err(wrong("max-wait"))?,
        seed: args.seed,
    };
    let engine = engine::find(&args.profile)?;
    let world = WorldSpec { engine, fleet: Default::default(), faults: Vec::new() };
    let mut logged = sources::read(args)?;
    if let Some(model) = &args.model {
        only(&mut logged, model)?;
    }
    let rebuilt = rebuild(&logged, &spec).map_err(|e| Stop::usage(e.to_string()))?;
    let text = rebuilt.text();
    let (scenario, schedule) = sent(&text, args.seed)?;
    let mut names = BlockNames::new(&scenario).map_err(|e| Stop::invalid(e.to_string()))?;
    let made = reconstruction(&logged, &rebuilt, (&scenario, &schedule), &mut names)?;
    let workload = replayed(&rebuilt, (&scenario, &schedule), &mut names);
    let effect = effect(&world, (&logged, &rebuilt, &spec), &workload);
    if let Some(path) = &args.out {
        write(path, &text)?;
    }
    match args.format {
        OutputFormat::Text => out::line(&plimsoll_report::workload::text(&made, &effect)),
        OutputFormat::Json => out::json(&json!({
            "made": made,
            "effect": effect.as_ref().ok(),
            "effect_not_told": effect.as_ref().err(),
        })),
    }
    if let Some(path) = &args.out {
        out::note(&format!("{}: {}", path.display(), counted(rebuilt.rows.len() as u64, "request")));
    }
    Ok(Exit::Done)
}

fn only(logged: &mut RequestLog, model: &str) -> Result<(), Stop> {
    let known = models(logged);
    logged.retain(|one| one.model.as_deref() == Some(model));
    if !logged.requests.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = known.into_iter().map(|(name, _)| name).collect();
    let known = if names.is_empty() { "none at all".to_owned() } else { names.join(", ") };
    Err(Stop::usage(format!("--model {model}: no request for it; the log names {known}")))
}

fn models(logged: &RequestLog) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for model in logged.requests.iter().filter_map(|one| one.model.as_deref()) {
        *counts.entry(model).or_default() += 1;
    }
    let mut all: Vec<(String, u64)> = counts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

/// Returns the scenario and schedule of this trace at its own rate.
fn sent(text: &str, seed: u64) -> Result<(Scenario, Schedule), Stop> {
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(format!("the workload can't be replayed: {e}"));
    let file = "workload".to_owned();
    let mut scenario = Scenario {
        arrivals: ArrivalSpec::Trace { file, speed: None, sizes: TraceSizes::Own, repeat: false },
        seed,
        ..Scenario::default()
    };
    scenario.attach(|_| Ok(text.as_bytes().to_vec())).map_err(wrong)?;
    // A session whose turns wait only for each other has no rate, so any rate works.
    let own_rate = scenario.trace().ok().flatten().map(|trace| trace.rate_per_s());
    let rate =
        own_rate.is_some_and(|own| own.is_err()).then(|| Rate::per_s(1.0)).transpose().map_err(wrong)?;
    scenario.load = LoadSpec::Open { rate, window: LONG, warm_up: 0, alone: 0 };
    let rate = scenario.rate().map_err(wrong)?;
    let window = scenario.trace_window().map_err(wrong)?.unwrap_or(LONG);
    let schedule = Schedule::generate(&scenario, rate, window, 0).map_err(wrong)?;
    Ok((scenario, schedule))
}

/// Any window works, because the trace has its own.
const LONG: plimsoll_model::Span = plimsoll_model::Span::from_secs(3_600);

fn reconstruction(
    logged: &RequestLog,
    rebuilt: &RebuiltTrace,
    (scenario, schedule): (&Scenario, &Schedule),
    names: &mut BlockNames,
) -> Result<Reconstruction, Stop> {
    let trace = scenario.trace().ok().flatten().ok_or_else(|| Stop::invalid("the workload has no trace"))?;
    let hashed = if rebuilt.reuse == Reuse::Hashes { rebuilt.block_tokens } else { 0 };
    let source = TrafficSample {
        is_relative: logged.is_relative,
        counts_only: logged.counts_only,
        ..TrafficSample::of_log(&rebuilt.logged, hashed)
    };
    let workload = TrafficSample::of_schedule(schedule, names, trace, &took_ns(rebuilt));
    let sessions = trace.graph.as_ref().map_or(0, |graph| graph.sessions.len() as u64);
    let last = rebuilt.rows.last().map_or(0.0, |row| row.at.as_secs_f64());
    Ok(Reconstruction {
        source: logged.source.to_owned(),
        stamp: logged.stamp.to_owned(),
        requests: rebuilt.rows.len() as u64,
        span_s: last,
        ended: EndCounts::of(&rebuilt.logged),
        refused: rebuilt.refused as u64,
        models: models(logged),
        lengths_drawn: rebuilt.drawn as u64,
        reuse: match rebuilt.reuse {
            Reuse::Hashes => "by the hashes of prompts' blocks",
            Reuse::Cached => {
                "fitted: each prompt shares as many tokens as its server read from a cache; the shared texts are synthetic"
            }
            Reuse::Grown => {
                "assumed: each call of an agent begins with the prompt and the answer of the previous call, if the call is long enough"
            }
            Reuse::Unknown => "not known: no two prompts of the workload begin alike",
        },
        spread_s: rebuilt.spread.map(|tick| tick.as_secs_f64()),
        sessions,
        waits_cut: rebuilt.waits_cut as u64,
        begins_drawn: logged.is_relative,
        kept_share: logged.kept_share,
        left_out: logged.left_out.clone(),
        blind: logged.blind.iter().map(|line| (*line).to_owned()).collect(),
        properties: faithful::properties(&source, &workload, logged.tick_ns),
    })
}

/// Returns the duration of each request in the log, ns, in the order of the workload's lines. The value is 0
/// if no request waits for it.
fn took_ns(rebuilt: &RebuiltTrace) -> Vec<i64> {
    rebuilt.logged.iter().map(|one| one.turn.as_ref().map_or(0, |turn| turn.took_ns)).collect()
}

/// Returns the requests that a run sends, in the order of the workload's lines.
fn replayed(
    rebuilt: &RebuiltTrace,
    (scenario, schedule): (&Scenario, &Schedule),
    names: &mut BlockNames,
) -> Vec<ReplayRequest> {
    let Ok(Some(trace)) = scenario.trace() else { return Vec::new() };
    let due = faithful::stepped(schedule, trace, &took_ns(rebuilt));
    let mut workload: Vec<ReplayRequest> = due
        .into_iter()
        .zip(&schedule.arrivals)
        .map(|(due_ns, one)| ReplayRequest {
            due_ns,
            prompt: one.prompt_tokens,
            output: one.output_tokens,
            blocks: names.of(one),
            session: None,
            turn: None,
            think_ns: None,
        })
        .collect();
    workload.sort_by_key(|one| one.due_ns);
    workload
}

/// Simulates log and workload on one engine. If the log lacks details, alternatives of the log are simulated
/// too.
fn effect(
    world: &WorldSpec,
    (logged, rebuilt, spec): (&RequestLog, &RebuiltTrace, &RebuildSpec),
    workload: &[ReplayRequest],
) -> Result<EffectFinding, String> {
    let source: Vec<ReplayRequest> = (rebuilt.rows.iter().zip(&rebuilt.logged).zip(workload).enumerate())
        .map(|(i, ((row, one), sent))| match rebuilt.reuse {
            Reuse::Unknown => ReplayRequest { blocks: Vec::new(), ..as_logged(i, row, one, rebuilt) },
            // The assumption about the log equals the sent workload.
            Reuse::Grown => ReplayRequest { blocks: sent.blocks.clone(), ..as_logged(i, row, one, rebuilt) },
            Reuse::Hashes | Reuse::Cached => as_logged(i, row, one, rebuilt),
        })
        .collect();
    let mut others = Vec::new();
    if rebuilt.spread.is_some() {
        let first = rebuilt.logged.first().map_or(0, |one| one.at_ns);
        let at_ticks = workload.iter().zip(&rebuilt.logged);
        let at_ticks =
            at_ticks.map(|(one, logged)| ReplayRequest { due_ns: logged.at_ns - first, ..one.clone() });
        others.push(("all requests of a tick arrived together".to_owned(), at_ticks.collect()));
    }
    let like = |blocks: fn(u32) -> Vec<u64>| -> Vec<ReplayRequest> {
        workload.iter().map(|one| ReplayRequest { blocks: blocks(one.prompt), ..one.clone() }).collect()
    };
    match rebuilt.reuse {
        Reuse::Unknown => {
            others.push(("half of each prompt were one shared beginning".to_owned(), like(half_shared)));
        }
        Reuse::Grown => others.push(("no prompt began as one before it".to_owned(), like(|_| Vec::new()))),
        Reuse::Hashes | Reuse::Cached => {}
    }
    if logged.counts_only.is_some() {
        let tick = logged.tick_ns.max(1);
        let at_once = |one: &ReplayRequest| ReplayRequest { due_ns: one.due_ns / tick * tick, ..one.clone() };
        others.push((
            "all requests that ended between two scrapes arrived together".to_owned(),
            workload.iter().map(at_once).collect(),
        ));
        others.push(("the longest prompts had the longest answers".to_owned(), paired(workload)));
    }
    if rebuilt.drawn > 0 {
        let again = rebuild(logged, &RebuildSpec { seed: spec.seed ^ 1, ..spec.clone() })
            .map_err(|e| e.to_string())?;
        let lengths = workload.iter().zip(&again.rows);
        let lengths = lengths.map(|(one, row)| ReplayRequest {
            prompt: row.prompt_tokens,
            output: row.output_tokens,
            ..one.clone()
        });
        others.push(("the lengths that are drawn were drawn again".to_owned(), lengths.collect()));
    }
    effect::effect(&EffectCase { world, seed: spec.seed, source: &source, workload, others })
}

/// Returns the requests with outputs reassigned, so that the longest prompt has the longest output.
fn paired(workload: &[ReplayRequest]) -> Vec<ReplayRequest> {
    let mut by_prompt: Vec<usize> = (0..workload.len()).collect();
    by_prompt.sort_by_key(|place| workload[*place].prompt);
    let mut outputs: Vec<u32> = workload.iter().map(|one| one.output).collect();
    outputs.sort_unstable();
    let mut paired = workload.to_vec();
    by_prompt.into_iter().zip(outputs).for_each(|(place, output)| paired[place].output = output);
    paired
}

/// Returns a request of the log with its blocks split to sixteen tokens. A length that the log lacks is the
/// drawn one.
fn as_logged(
    place: usize,
    row: &TraceRow,
    one: &plimsoll_model::LoggedRequest,
    rebuilt: &RebuiltTrace,
) -> ReplayRequest {
    let named = if rebuilt.reuse == Reuse::Hashes { &one.blocks } else { &row.blocks };
    let per_block = u64::from(rebuilt.block_tokens.max(1));
    let own = |block: u64| u64::MAX - ((place as u64) << 24 | block);
    let blocks = (0..u64::from(row.prompt_tokens / BLOCK_TOKENS)).map(|block| {
        // The name combines the log's block that contains the last token with the position in that block.
        let within = ((block + 1) * u64::from(BLOCK_TOKENS) - 1) / per_block;
        let name = named.get(within as usize).map_or_else(|| own(block), |id| id.rotate_left(17));
        name ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    ReplayRequest {
        due_ns: one.at_ns - rebuilt.logged.first().map_or(0, |first| first.at_ns),
        prompt: row.prompt_tokens,
        output: row.output_tokens,
        blocks: blocks.collect(),
        session: None,
        turn: None,
        think_ns: None,
    }
}

/// Returns block names for a prompt whose first half is common to all prompts.
fn half_shared(prompt: u32) -> Vec<u64> {
    (0..u64::from(prompt / 2 / BLOCK_TOKENS)).collect()
}

fn write(path: &Path, text: &str) -> Result<(), Stop> {
    if path.extension().is_none_or(|ending| ending != "gz") {
        return out::file(path, text);
    }
    let mut packed = GzEncoder::new(Vec::new(), Compression::default());
    let packed = packed.write_all(text.as_bytes()).and_then(|()| packed.finish());
    out::file(path, packed.map_err(|e| Stop::invalid(format!("{}: {e}", path.display())))?)
}
