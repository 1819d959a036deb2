//! `plimsoll calibrate` fits the constants of a simulated engine to measured rows or a run, and writes the
//! profile.

use crate::rows;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use plimsoll_model::{Attempt, Level, Load, Span};
use plimsoll_plan::calibrate::{
    AskedProtocol, Calibration, CalibrationError, MeasuredFigures, MeasuredRow, RowDefaults, calibrate, kind,
    rows as table,
};
use plimsoll_sim::EngineSpec;
use plimsoll_sim::catalogue::origin::HeldOut;
use plimsoll_sim::client::trial::{ProtocolSpec, SendPace, Sizes, Start};
use serde_json::json;

use crate::commands::engine;
use crate::exit::{Exit, Stop};
use crate::flags::{CalibrateArgs, OutputFormat};
use crate::{fitted, out};

/// Fits, prints the error on held-out rows, and writes the profile.
pub fn run(args: &CalibrateArgs) -> Result<Exit, Stop> {
    if let (Some(dir), None) = (&args.run, &args.profile) {
        return fit_to(dir, args);
    }
    let engine = args.profile.as_deref().map(engine::find).transpose()?;
    let (rows, mut notes) = match (&args.run, &args.from) {
        (Some(dir), None) => of_run(dir, engine)?,
        (None, Some(file)) => of_table(file, engine, args.protocol.clone())?,
        _ => return Err(Stop::usage("name one of a RUN folder and --from FILE")),
    };
    let rows = match &args.only {
        Some(text) => only(rows, text)?,
        None => rows,
    };
    if args.out.exists() {
        return Err(Stop::usage(format!("--out {}: it exists; name a new file", args.out.display())));
    }
    let found = calibrate(&rows, args.seed).map_err(|e| match e {
        CalibrationError::Mixed(_) => Stop::usage(format!("{e} (--only takes the rows of one)")),
        e => Stop::usage(e.to_string()),
    })?;
    notes.extend(found.notes.iter().cloned());
    // The profile is JSON, which is valid YAML and preserves every number.
    let mut text = serde_json::to_string_pretty(&found.profile).unwrap_or_default();
    text.push('\n');
    out::file(&args.out, text)?;
    match args.format {
        OutputFormat::Json => out::json(&json!({"calibration": found, "rows": rows.len(), "notes": notes})),
        OutputFormat::Text => out::line(&text_of(&found, rows.len(), &notes)),
    }
    out::note(&format!("profile written to {}", args.out.display()));
    Ok(Exit::Done)
}

/// Fits an engine without an initial profile to a run, prints it and writes it as a profile.
fn fit_to(dir: &Path, args: &CalibrateArgs) -> Result<Exit, Stop> {
    if args.out.exists() {
        return Err(Stop::usage(format!("--out {}: it exists; name a new file", args.out.display())));
    }
    let rows = rows::whole(dir)?;
    let fitted = fitted::of_run(&rows, &args.target, args.level, args.seed)?;
    let mut text = serde_json::to_string_pretty(&fitted.engine).unwrap_or_default();
    text.push('\n');
    out::file(&args.out, text)?;
    match args.format {
        OutputFormat::Json => out::json(&fitted),
        OutputFormat::Text => {
            out::line(&plimsoll_report::what_if::fitted(&dir.display().to_string(), &fitted))
        }
    }
    out::note(&format!("profile written to {}", args.out.display()));
    Ok(Exit::Done)
}

/// Returns the rows whose engine description ([`kind`]) contains this text.
fn only(rows: Vec<MeasuredRow>, text: &str) -> Result<Vec<MeasuredRow>, Stop> {
    let kinds: BTreeSet<String> = rows.iter().map(|row| kind(&row.engine)).collect();
    let kept: Vec<MeasuredRow> = rows.into_iter().filter(|row| kind(&row.engine).contains(text)).collect();
    if kept.is_empty() {
        let kinds = kinds.into_iter().collect::<Vec<_>>().join("; ");
        return Err(Stop::usage(format!("--only {text}: no row has this engine; engines: {kinds}")));
    }
    Ok(kept)
}

fn of_table(
    file: &Path,
    engine: Option<EngineSpec>,
    protocol: Option<String>,
) -> Result<(Vec<MeasuredRow>, Vec<String>), Stop> {
    let text = std::fs::read_to_string(file)
        .map_err(|e| crate::out::unread(format!("--from {}", file.display()), &e))?;
    let table = table::read(&text, &RowDefaults { engine, protocol })
        .map_err(|e| Stop::usage(format!("--from {}: {e}", file.display())))?;
    Ok((table.rows, table.notes))
}

/// Returns a row per level of a run: its load, its request sizes in send order, and its means.
fn of_run(dir: &Path, engine: Option<EngineSpec>) -> Result<(Vec<MeasuredRow>, Vec<String>), Stop> {
    let engine = engine.ok_or_else(|| {
        Stop::usage("a run does not record its model and GPU; name them with --profile MODEL@GPU")
    })?;
    let run = plimsoll_store::open(dir).map_err(|e| Stop::usage(e.to_string()))?;
    let mut rows = Vec::new();
    let mut notes = Vec::new();
    for level in &run.manifest.levels {
        let of: Vec<&Attempt> = run.attempts.iter().filter(|one| one.level == level.id).collect();
        match level_row(level, &of, &engine) {
            Some(row) => rows.push(row),
            None => notes
                .push(format!("level {}: fewer than 8 answers with two tokens or more; not used", level.id)),
        }
    }
    Ok((rows, notes))
}

fn level_row(level: &Level, attempts: &[&Attempt], engine: &EngineSpec) -> Option<MeasuredRow> {
    let ms = |span: Span| span.as_millis_f64();
    let mut whole: Vec<(&Attempt, u32)> = attempts
        .iter()
        .filter(|one| one.first_token.is_some() && one.sent.is_some())
        .map(|one| (*one, one.answer.tokens.output.unwrap_or(one.asked_output)))
        .filter(|(one, tokens)| *tokens > 1 && one.last_token.is_some())
        .collect();
    whole.sort_by_key(|(one, _)| one.sent);
    if whole.len() < 8 {
        return None;
    }
    let count = whole.len() as f64;
    let mean = |of: &dyn Fn(&Attempt, u32) -> f64| {
        whole.iter().map(|(one, tokens)| of(one, *tokens)).sum::<f64>() / count
    };
    let (first, last) = (
        |one: &Attempt| one.first_token.unwrap_or(one.due),
        |one: &Attempt| one.last_token.unwrap_or(one.due),
    );
    let measured = MeasuredFigures {
        ttft_ms: Some(mean(&|one, _| ms(first(one) - one.sent.unwrap_or(one.due)))),
        tpot_ms: Some(mean(&|one, tokens| ms(last(one) - first(one)) / f64::from(tokens - 1))),
        e2e_ms: None,
        p99_ms: None,
    };
    let pace = match level.load {
        Load::Open { rate_per_s } => SendPace::Open { rate_per_s },
        Load::Wave { .. } => SendPace::Wave,
        Load::Closed { concurrency } | Load::Saturating { concurrency } => {
            SendPace::Closed { concurrency, start: Start::AtOnce }
        }
    };
    let sizes =
        whole.iter().map(|(one, tokens)| (one.answer.tokens.prompt.unwrap_or(one.asked_prompt), *tokens));
    let protocol = ProtocolSpec {
        pace,
        sizes: Sizes::Listed(sizes.collect()),
        requests: whole.len() as u32,
        warm_up: 0,
    };
    Some(MeasuredRow {
        line: level.id as usize,
        group: format!("level {}", level.id),
        engine: engine.clone(),
        asked: AskedProtocol::Protocol(protocol),
        measured,
    })
}

fn text_of(found: &Calibration, rows: usize, notes: &[String]) -> String {
    let mut text = format!("{} from {rows} rows\n\n", found.profile.name);
    for one in &found.factors {
        let wall = if one.at_bound { "  at its bound" } else { "" };
        // Writing to a string can't fail.
        let _ =
            writeln!(text, "  {:<8} × {:.3}{wall}", format!("{:?}", one.factor).to_lowercase(), one.value);
    }
    let _ = writeln!(text, "\n  mean |error| (p90)     before          fitted        held out");
    for line in &found.held_out {
        let of = |all: &[HeldOut]| {
            all.iter()
                .find(|one| one.metric == line.metric)
                .map_or_else(String::new, |one| format!("{:.1} % ({:.1})", one.mean_percent, one.p90_percent))
        };
        let _ = writeln!(
            text,
            "  {:<16} {:>15} {:>15} {:>15}",
            line.metric,
            of(&found.before),
            of(&found.fitted),
            of(&found.held_out)
        );
    }
    for line in &found.held_out {
        let low = (line.bias_log - 1.645 * line.spread_log).exp();
        let high = (line.bias_log + 1.645 * line.spread_log).exp();
        let _ = writeln!(
            text,
            "  band of {}: 9 of 10 within × {low:.2} to × {high:.2} of the simulation",
            line.metric
        );
    }
    for note in notes {
        let _ = writeln!(text, "  {note}");
    }
    text.trim_end().to_owned()
}
