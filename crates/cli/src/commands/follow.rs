//! Runs a shard other than shard 0 in a sweep or a gate. It measures its parts of the levels that shard 0
//! announces, and writes its run.
//!
//! A follower decides nothing, because shard 0 evaluates the rows of all shards. So it needs neither the
//! search nor the baseline of the budget.

use std::path::Path;

use serde_json::json;

use super::merge;
use crate::exit::{Exit, Stop};
use crate::flags::{ClientArgs, OutputArgs, OutputFormat};
use crate::measure::{FollowerResult, MeasurementSession, MeasurementStart};
use crate::out;
use crate::shard::{ShardRequest, Upload, of_shard};
use plimsoll_client::StopLimits;
use plimsoll_report::figure::counted;
use plimsoll_workload::Scenario;

/// Folder of the merged run, in the place where each shard writes its run.
pub const WHOLE: &str = "run";

pub struct Follower<'a> {
    /// Kind of the followed run: `sweep` or `gate`.
    pub kind: &'static str,
    pub scenario: Scenario,
    pub asked: ShardRequest,
    pub rendezvous: Option<&'a Path>,
    pub client: &'a ClientArgs,
    pub limits: StopLimits,
    pub output: &'a OutputArgs,
}

/// Measures the announced levels until the end.
pub fn run(follower: Follower<'_>) -> Result<Exit, Stop> {
    let Follower { kind, scenario, asked, rendezvous, client, limits, output } = follower;
    let shard = asked.shard;
    let place = output.out.as_deref().or(rendezvous).map(|place| place.display().to_string());
    let format = output.format;
    let (output, put) = of_shard(output, rendezvous, merge::folder(shard))?;
    let measure = MeasurementSession::begin(MeasurementStart {
        shard: Some(asked),
        ..MeasurementStart::new(kind, scenario, client, limits, &output)
    })?;
    let upload = put.map(|put| put.start(&measure.folder())).transpose()?;
    let FollowerResult { closed, levels, stopped } = measure.follow()?;
    upload.map(Upload::finish).transpose()?;
    let whole = format!("{}/{WHOLE}", place.unwrap_or_default().trim_end_matches('/'));
    if let Some(why) = &closed.unkept {
        return Err(Stop::invalid(format!("{}: the run can't be kept whole: {why}", closed.dir.display())));
    }
    if stopped {
        return Err(Stop {
            exit: Exit::Interrupted,
            line: format!("shard {shard}: stopped after {}", counted(levels.into(), "level")),
        });
    }
    if format == OutputFormat::Json {
        out::json(&json!({"shard": shard, "levels": levels, "whole": whole}));
    }
    let what = if kind == "gate" { "the verdict" } else { "what was found" };
    out::note(&format!(
        "shard {shard}: sent its part of {}; shard 0 reports {what} from the merged run in {whole}",
        counted(levels.into(), "level")
    ));
    Ok(Exit::Done)
}
