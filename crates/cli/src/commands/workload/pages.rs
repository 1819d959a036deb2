//! Pages of servers as a source: what a Prometheus kept of them, asked for or saved, and what a watch wrote.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;

use plimsoll_client::{pages, targets};
use plimsoll_measure::counted;
use plimsoll_model::{Logged, Sample};
use plimsoll_wire::prometheus_api;
use plimsoll_workload::TargetSpec;

use crate::exit::Stop;
use crate::trace_file;

/// How the answer to a query of a range begins.
const ANSWER: &[u8] = br#"{"status":"success","data":{"resultType":"matrix""#;

/// The requests that a Prometheus counted, by its URL or by its answer in a file; `None` = it is neither.
pub fn of(source: &Path, seed: u64) -> Result<Option<Logged>, Stop> {
    let name = source.display().to_string();
    let wrong = |why: String| Stop::usage(format!("{}: {why}", targets::decoded(&name)));
    let body = if ["http://", "https://"].iter().any(|scheme| name.starts_with(scheme)) {
        let url = targets::history_url(&name, &counted::names()).map_err(wrong)?;
        let target = TargetSpec { url: name.clone(), ..TargetSpec::default() };
        pages::fetch(&target, &url).map_err(wrong)?
    } else if is_answer(source)? {
        let mut body = Vec::new();
        let damage = trace_file::pieces(source, |piece| {
            body.extend_from_slice(piece);
            Ok(ControlFlow::Continue(()))
        })?;
        trace_file::note_damage(source, damage);
        body
    } else {
        return Ok(None);
    };
    let (begin_ns, rows) = prometheus_api::range(&body)
        .and_then(|series| targets::kept(series, counted::reads))
        .map_err(wrong)?;
    logged(source, &rows, begin_ns, seed).map(Some)
}

/// The requests that these pages counted.
pub fn logged(source: &Path, rows: &[Sample], begin_ns: i64, seed: u64) -> Result<Logged, Stop> {
    let logged = counted::logged(rows, begin_ns, seed);
    logged.map_err(|why| Stop::usage(format!("{}: {why}", targets::decoded(&source.display().to_string()))))
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
