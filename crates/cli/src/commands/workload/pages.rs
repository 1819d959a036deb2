//! Server metrics as a source of a workload: from a Prometheus server, a saved response, or a recorded watch.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use plimsoll_client::metrics::{pages, targets};
use plimsoll_client::target::without_user;
use plimsoll_measure::counted;
use plimsoll_model::{RequestLog, Sample};
use plimsoll_wire::prometheus_api;
use plimsoll_workload::TargetSpec;

use crate::exit::Stop;
use crate::flags::FromLogArgs;
use crate::trace_file;

/// Start of the response to a Prometheus range query.
const ANSWER: &[u8] = br#"{"status":"success","data":{"resultType":"matrix""#;

/// Returns the requests that a Prometheus server counted, from its URL or a saved response. Returns `None` if
/// the source is neither.
pub fn of(source: &Path, args: &FromLogArgs) -> Result<Option<RequestLog>, Stop> {
    let name = source.display().to_string();
    let series = if ["http://", "https://"].iter().any(|scheme| name.starts_with(scheme)) {
        let target = TargetSpec { url: name, key_env: args.key_env.clone(), ..TargetSpec::default() };
        pages::kept(&target, &counted::names())
    } else if is_answer(source)? {
        let mut body = Vec::new();
        let damage = trace_file::pieces(source, |piece| {
            body.extend_from_slice(piece);
            Ok(ControlFlow::Continue(()))
        })?;
        trace_file::note_damage(source, damage);
        prometheus_api::range(&body)
    } else {
        return Ok(None);
    };
    let kept = series.and_then(|series| targets::kept(series, counted::reads));
    let (begin_ns, rows) = kept.map_err(|why| wrong(source, &why))?;
    logged(source, &rows, begin_ns, args.seed).map(Some)
}

/// Returns the requests that these samples counted.
pub fn logged(source: &Path, rows: &[Sample], begin_ns: i64, seed: u64) -> Result<RequestLog, Stop> {
    counted::logged(rows, begin_ns, seed).map_err(|why| wrong(source, &why))
}

fn wrong(source: &Path, why: &str) -> Stop {
    Stop::usage(format!("{}: {why}", targets::decoded(&without_user(&source.display().to_string()))))
}

fn is_answer(file: &Path) -> Result<bool, Stop> {
    let mut head = Vec::new();
    if fs::metadata(file).is_ok_and(|data| data.is_file()) {
        trace_file::pieces(file, |piece| {
            head.extend_from_slice(piece);
            Ok(if head.len() < ANSWER.len() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) })
        })?;
    }
    let mut tight = head;
    tight.retain(|byte| !byte.is_ascii_whitespace());
    Ok(tight.starts_with(ANSWER))
}
