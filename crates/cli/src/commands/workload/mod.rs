//! `plimsoll workload`: production's traffic as a trace that can be replayed, and how like its source that is.
//!
//! The report is made of what a run of the file would send: the bytes that are written are read back, their schedule is drawn and its prompts'
//! blocks are named as a run does it. Only then do the log and the workload stand on equal terms.

mod sources;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use plimsoll_measure::faithful::{self, Ended, Reconstruction, Side};
use plimsoll_model::Logged;
use plimsoll_plan::effect::{self, EffectCase, EffectFinding};
use plimsoll_plan::replay::ReplayRequest;
use plimsoll_report::figure::counted;
use plimsoll_sim::WorldSpec;
use plimsoll_workload::trace::TraceRow;
use plimsoll_workload::{
    ArrivalSpec, BlockNames, LoadSpec, RebuildSpec, Rebuilt, Reuse, Scenario, Schedule, Size, TraceSizes,
    rebuild,
};
use serde_json::json;

use crate::commands::engine;
use crate::exit::{Exit, Stop};
use crate::flags::{Format, FromLogArgs};
use crate::out;

/// Tokens of a block as engines name them.
const BLOCK_TOKENS: u32 = 16;

/// Reads, writes and prints.
pub fn run(args: &FromLogArgs) -> Result<Exit, Stop> {
    out::place_for(args.out.as_deref())?;
    let law = |flag: &str, text: &Option<String>| match text {
        Some(text) => Size::parse(text).map(Some).map_err(|e| Stop::usage(format!("--{flag}: {e}"))),
        None => Ok(None),
    };
    let spec =
        RebuildSpec { prompt: law("isl", &args.isl)?, output: law("osl", &args.osl)?, seed: args.seed };
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
    let effect = effect(&world, (&logged, &rebuilt, &spec), &schedule, &mut names);
    if let Some(path) = &args.out {
        write(path, &text)?;
    }
    match args.format {
        Format::Text => out::line(&plimsoll_report::workload::text(&made, &effect)),
        Format::Json => out::json(&json!({
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

fn only(logged: &mut Logged, model: &str) -> Result<(), Stop> {
    let known = models(logged);
    logged.requests.retain(|one| one.model.as_deref() == Some(model));
    if !logged.requests.is_empty() {
        return Ok(());
    }
    let names: Vec<String> = known.into_iter().map(|(name, _)| name).collect();
    let known = if names.is_empty() { "none at all".to_owned() } else { names.join(", ") };
    Err(Stop::usage(format!("--model {model}: no request for it; the log names {known}")))
}

fn models(logged: &Logged) -> Vec<(String, u64)> {
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for model in logged.requests.iter().filter_map(|one| one.model.as_deref()) {
        *counts.entry(model).or_default() += 1;
    }
    let mut all: Vec<(String, u64)> = counts.into_iter().map(|(name, n)| (name.to_owned(), n)).collect();
    all.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    all
}

/// What a run of this trace sends, at its own rate.
fn sent(text: &str, seed: u64) -> Result<(Scenario, Schedule), Stop> {
    let wrong = |e: plimsoll_workload::SpecError| Stop::usage(format!("the workload can't be replayed: {e}"));
    let file = "workload".to_owned();
    let mut scenario = Scenario {
        arrivals: ArrivalSpec::Trace { file, speed: None, sizes: TraceSizes::Own, repeat: false },
        seed,
        ..Scenario::default()
    };
    scenario.attach(|_| Ok(text.as_bytes().to_vec())).map_err(wrong)?;
    scenario.load = LoadSpec::Open { rate: None, window: LONG, warm_up: 0, alone: 0 };
    let rate = scenario.rate().map_err(wrong)?;
    let window = scenario.trace_window().map_err(wrong)?.unwrap_or(LONG);
    let schedule = Schedule::generate(&scenario, rate, window, 0).map_err(wrong)?;
    Ok((scenario, schedule))
}

/// Any window: the trace has its own.
const LONG: plimsoll_model::Span = plimsoll_model::Span::from_secs(3_600);

fn reconstruction(
    logged: &Logged,
    rebuilt: &Rebuilt,
    (scenario, schedule): (&Scenario, &Schedule),
    names: &mut BlockNames,
) -> Result<Reconstruction, Stop> {
    let trace =
        scenario.trace().ok().flatten().ok_or_else(|| Stop::invalid("the workload holds no trace"))?;
    let hashed = if rebuilt.reuse == Reuse::Hashes { rebuilt.block_tokens } else { 0 };
    let source = Side::of_log(&rebuilt.logged, hashed);
    let workload = Side::of_schedule(schedule, names, trace);
    let last = rebuilt.rows.last().map_or(0.0, |row| row.at.as_secs_f64());
    Ok(Reconstruction {
        source: logged.source.to_owned(),
        stamp: logged.stamp.to_owned(),
        requests: rebuilt.rows.len() as u64,
        span_s: last,
        ended: Ended::of(&rebuilt.logged),
        refused: rebuilt.refused as u64,
        models: models(logged),
        lengths_drawn: rebuilt.drawn as u64,
        reuse: match rebuilt.reuse {
            Reuse::Hashes => "by the hashes of prompts' blocks",
            Reuse::Cached => {
                "fitted: each prompt shares as many tokens as its server took from a cache, and which text that was is made up"
            }
            Reuse::Unknown => "not known: no two prompts of the workload begin alike",
        },
        spread_s: rebuilt.spread.map(|tick| tick.as_secs_f64()),
        kept_share: logged.kept_share,
        left_out: logged.left_out.clone(),
        blind: logged.blind.iter().map(|line| (*line).to_owned()).collect(),
        properties: faithful::properties(&source, &workload, logged.tick_ns),
    })
}

/// Log and workload on one engine, and what the log may have been where it does not say.
fn effect(
    world: &WorldSpec,
    (logged, rebuilt, spec): (&Logged, &Rebuilt, &RebuildSpec),
    schedule: &Schedule,
    names: &mut BlockNames,
) -> Result<EffectFinding, String> {
    let workload: Vec<ReplayRequest> = schedule
        .arrivals
        .iter()
        .map(|one| ReplayRequest {
            due_ns: one.due.0,
            prompt: one.prompt_tokens,
            output: one.output_tokens,
            blocks: names.of(one),
            session: None,
        })
        .collect();
    let source: Vec<ReplayRequest> =
        rebuilt.rows.iter().zip(&rebuilt.logged).map(|(row, one)| as_logged(row, one, rebuilt)).collect();
    let mut others = Vec::new();
    if rebuilt.spread.is_some() {
        let first = rebuilt.logged.first().map_or(0, |one| one.at_ns);
        let at_ticks = workload.iter().zip(&rebuilt.logged);
        let at_ticks =
            at_ticks.map(|(one, logged)| ReplayRequest { due_ns: logged.at_ns - first, ..one.clone() });
        others.push(("all of a tick came at once".to_owned(), at_ticks.collect()));
    }
    if rebuilt.reuse == Reuse::Unknown {
        let halves =
            workload.iter().map(|one| ReplayRequest { blocks: half_shared(one.prompt), ..one.clone() });
        others.push(("half of each prompt were one shared beginning".to_owned(), halves.collect()));
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
    effect::effect(&EffectCase { world, seed: spec.seed, source: &source, workload: &workload, others })
}

/// A request as the log has it, its blocks cut to sixteen tokens. A length that the log does not say is the one drawn.
fn as_logged(row: &TraceRow, one: &plimsoll_model::LoggedRequest, rebuilt: &Rebuilt) -> ReplayRequest {
    let named = if rebuilt.reuse == Reuse::Hashes { &one.blocks } else { &row.blocks };
    let per_block = u64::from(rebuilt.block_tokens.max(1));
    let own = |block: u64| u64::MAX - (u64::from(row.line) << 24 | block);
    let blocks = (0..u64::from(row.prompt_tokens / BLOCK_TOKENS)).map(|block| {
        // The block in which its last token lies names it, with its place in there.
        let within = ((block + 1) * u64::from(BLOCK_TOKENS) - 1) / per_block;
        let name = named.get(within as usize).map_or_else(|| own(block), |id| id.rotate_left(17));
        name ^ block.wrapping_mul(0x9e37_79b9_7f4a_7c15)
    });
    ReplayRequest {
        due_ns: one.at_ns - rebuilt.logged.first().map_or(0, |first| first.at_ns),
        prompt: row.prompt_tokens,
        output: row.output_tokens,
        blocks: if rebuilt.reuse == Reuse::Unknown { Vec::new() } else { blocks.collect() },
        session: None,
    }
}

/// Names of a prompt whose first half all others have as well.
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
