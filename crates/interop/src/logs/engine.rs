//! Parses the logs of engines: vLLM's with `--enable-log-requests`, and llama.cpp's.
//!
//! vLLM logs when a request arrived, to the second and without a year, and no lengths. The log of llama.cpp has for each slot the start
//! of a task and the computed tokens, without a wall clock. Its `n_tokens` at the end is prompt plus answer less the last
//! token, which is never computed.

use std::collections::BTreeMap;

use plimsoll_model::{How, LoggedRequest};
use plimsoll_wire::instant::days;

use super::Line;

const S: i64 = 1_000_000_000;

#[derive(Debug, Default)]
pub(super) struct State {
    /// llama.cpp: tasks in a slot.
    tasks: BTreeMap<u64, Task>,
    /// vLLM: the year, and the previous instant.
    year: i64,
    before: i64,
    /// Dynamo: tokens per block.
    pub(super) block_tokens: u32,
}

#[derive(Debug)]
struct Task {
    line: u64,
    at_ns: i64,
    prompt_computed: Option<u32>,
    output: Option<u32>,
}

impl State {
    /// Adds unfinished tasks as requests of unknown length; returns their number.
    pub(super) fn unfinished(&mut self, requests: &mut Vec<LoggedRequest>) -> u64 {
        let open = std::mem::take(&mut self.tasks);
        let n = open.len() as u64;
        requests.extend(open.into_values().map(|task| {
            let mut one = LoggedRequest::new(task.line, task.at_ns);
            one.how = How::Unfinished;
            one
        }));
        n
    }
}

/// Parses a line of vLLM:
/// `(APIServer pid=9) INFO 02-13 11:33:33 [logger.py:49] Received request chatcmpl-…: params: …`
pub(super) fn vllm(at: u64, line: &[u8], state: &mut State) -> Line {
    let text = String::from_utf8_lossy(line);
    let Some((before, _)) = text.split_once("Received request ") else { return Line::Other(None) };
    let expected = Line::Unread("INFO MM-DD HH:MM:SS before \"Received request\"");
    let mut words = before.split_whitespace();
    let Some((day, time)) =
        words.find(|word| *word == "INFO").and_then(|_| Some((words.next()?, words.next()?)))
    else {
        return expected;
    };
    let number = |text: Option<&str>| text.and_then(|text| text.parse::<i64>().ok());
    let mut day = day.split('-');
    let mut time = time.split(':');
    let (month, day) = (number(day.next()), number(day.next()));
    let (h, m, s) = (number(time.next()), number(time.next()), number(time.next()));
    let (Some(month @ 1..=12), Some(day @ 1..=31), Some(h @ 0..24), Some(m @ 0..60), Some(s @ 0..=60)) =
        (month, day, h, m, s)
    else {
        return expected;
    };
    // The log has no year: start at any year, and take the next one when the dates restart.
    let instant = |year: i64| (days(2000 + year, month, day) * 86_400 + h * 3_600 + m * 60 + s) * S;
    if instant(state.year) + 180 * 86_400 * S < state.before {
        state.year += 1;
    }
    let came = instant(state.year);
    state.before = came;
    Line::of(LoggedRequest::new(at, came))
}

/// Parses a line of llama.cpp:
/// `0.00.130.234 I slot print_timing: id  3 | task 0 | prompt eval time = 6.71 ms / 207 tokens (…)`
pub(super) fn llama(at: u64, line: &[u8], state: &mut State) -> Line {
    let text = String::from_utf8_lossy(line);
    let Some((head, rest)) = text.split_once("| task ") else { return Line::Other(None) };
    let Some((task, said)) = rest.split_once('|') else { return Line::Other(None) };
    let Ok(task) = task.trim().parse::<u64>() else { return Line::Other(None) };
    if head.contains("launch_slot_") {
        let Some(at_ns) = head.split_whitespace().next().and_then(since_start) else {
            return Line::Unread("a stamp since the start (M.SS.mmm.uuu) before the line");
        };
        state.tasks.insert(task, Task { line: at, at_ns, prompt_computed: None, output: None });
        return Line::Other(None);
    }
    let Some(known) = state.tasks.get_mut(&task) else {
        return Line::Other(head.contains("release").then_some("a task whose beginning is not in the log"));
    };
    let tokens = || said.split_once('/').and_then(|(_, after)| after.split_whitespace().next()?.parse().ok());
    if said.contains("prompt eval time") {
        known.prompt_computed = tokens();
    } else if said.contains(" eval time") {
        known.output = tokens();
    } else if head.contains("release") {
        let known = state.tasks.remove(&task);
        return known.map_or(Line::Other(None), |known| Line::of(released(&known, said)));
    }
    Line::Other(None)
}

fn released(task: &Task, said: &str) -> LoggedRequest {
    let mut one = LoggedRequest::new(task.line, task.at_ns);
    let held =
        said.split_once("n_tokens = ").and_then(|(_, n)| n.split(',').next()?.trim().parse::<u32>().ok());
    let whole = !said.contains("truncated = 1");
    one.output = task.output.filter(|n| *n > 0);
    one.prompt =
        held.zip(one.output).filter(|_| whole).and_then(|(held, output)| (held + 1).checked_sub(output));
    one.prompt = one.prompt.filter(|n| *n > 0);
    one.cached = one.prompt.zip(task.prompt_computed).and_then(|(prompt, done)| prompt.checked_sub(done));
    if one.output.is_none() {
        one.how = How::Cancelled;
    }
    one
}

/// Parses minutes, seconds, milliseconds and microseconds since the start.
fn since_start(stamp: &str) -> Option<i64> {
    let parts: Vec<i64> = stamp.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    match parts[..] {
        [m, s, ms, us] if m < 1 << 32 => Some((m * 60 + s) * S + ms * 1_000_000 + us * 1_000),
        _ => None,
    }
}
