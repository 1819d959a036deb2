//! Converts a run of a gateway's traffic into a run that can be sent again.
//!
//! Such a run has no scenario, because no load was configured. Its traffic is a trace (times, lengths, shared prefixes as block
//! hashes), which is written into the run folder. Synthetic prompts have the recorded lengths and shared prefixes.

use std::fmt::Write;
use std::path::Path;

use plimsoll_model::{Attempt, Load, Manifest, Span};
use plimsoll_workload::{ArrivalSpec, LoadSpec, Scenario, Schedule, TraceSizes};
use serde_json::json;

use crate::commands::gateway::record::KIND;
use crate::rows::WholeRun;

/// Name of the trace in the run folder.
const TRACE: &str = "schedule.jsonl";
/// Tokens per block of a run.
const BLOCK_TOKENS: u32 = 16;

/// Returns whether a gateway recorded the run.
pub fn is_traffic(manifest: &Manifest) -> bool {
    manifest.kind == KIND
}

/// Gives the run a scenario that replays its traffic, as a trace that is written into its folder.
///
/// # Errors
/// The run has no requests, or the folder can't be written.
pub fn as_trace(dir: &Path, run: &mut WholeRun) -> Result<(), String> {
    let path = dir.join(TRACE);
    let lines = lines(&run.attempts);
    if lines.is_empty() {
        return Err("has no answered request, so there is nothing to replay".into());
    }
    if std::fs::read_to_string(&path).is_ok_and(|written| written == lines) {
        // The file exists already with this content.
    } else {
        std::fs::write(&path, &lines).map_err(|e| format!("{TRACE} can't be written into it: {e}"))?;
    }
    let [level] = &mut run.manifest.levels[..] else { return Err("has no level".into()) };
    let mut scenario = Scenario {
        arrivals: ArrivalSpec::Trace {
            file: path.display().to_string(),
            speed: None,
            sizes: TraceSizes::Own,
            repeat: false,
        },
        ..Scenario::default()
    };
    scenario.nonce = Some(0);
    scenario.target.url.clone_from(&run.manifest.target.url);
    scenario.attach(|name| std::fs::read(name).map_err(|e| e.to_string())).map_err(|e| e.to_string())?;
    let window = scenario.trace_window().map_err(|e| e.to_string())?.unwrap_or(level.window());
    let window = Span(window.0.max(1_000_000));
    scenario.load = LoadSpec::Open { rate: None, window, warm_up: 0, alone: 0 };
    let rate_per_s = scenario.rate().map_err(|e| e.to_string())?;
    let drawn = Schedule::generate(&scenario, rate_per_s, window, level.id).map_err(|e| e.to_string())?;
    level.load = Load::Open { rate_per_s };
    level.stop = level.start + window;
    (level.arrivals, level.schedule_hash) = (drawn.arrivals.len() as u64, drawn.hash());
    run.manifest.scenario = serde_json::to_value(&scenario).map_err(|e| e.to_string())?;
    Ok(())
}

/// Returns the requests in Mooncake's format in order of arrival.
/// A request without a complete answer gets its output limit as length, or the mean length of the others.
fn lines(attempts: &[Attempt]) -> String {
    let mut firsts: Vec<&Attempt> = attempts.iter().filter(|attempt| attempt.attempt == 0).collect();
    firsts.sort_by_key(|attempt| (attempt.due, attempt.request));
    let known: Vec<u64> = attempts.iter().filter_map(|a| a.answer.tokens.output.map(u64::from)).collect();
    let mean = known.iter().sum::<u64>().checked_div(known.len() as u64).unwrap_or(0);
    let mut text = String::new();
    let Some(first) = firsts.first().map(|attempt| attempt.due) else { return text };
    for one in firsts {
        let prompt = one.answer.tokens.prompt.unwrap_or(one.asked_prompt).max(1);
        let asked = Some(u64::from(one.asked_output)).filter(|tokens| *tokens > 0);
        let output = one.answer.tokens.output.map(u64::from).or(asked).unwrap_or(mean).max(1);
        let blocks = (prompt / BLOCK_TOKENS) as usize;
        let mut ids: Vec<u64> = one.prompt_blocks.iter().copied().take(blocks).collect();
        // Blocks without a recorded hash are unique.
        ids.extend((ids.len()..blocks).map(|place| own(one.request, place as u64)));
        let row = json!({
            "timestamp": (one.due - first).0 as f64 / 1e6,
            "input_length": prompt,
            "output_length": output,
            "hash_ids": ids,
        });
        let _ = writeln!(text, "{row}");
    }
    text
}

/// Returns a unique block name: other names are hashes, which are almost never this large.
fn own(request: u64, place: u64) -> u64 {
    u64::MAX - ((request << 24) | place)
}
