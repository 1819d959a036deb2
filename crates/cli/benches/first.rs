//! How long from exec to the first request? `cargo bench -p plimsoll --bench first`. Words: `times=10`.
//!
//! The end is the server's stamp of the request's last bytes, so that nothing of the client's own account is believed.
//! Two figures: the first request of any kind that asks for an answer (the calibration's), and the first one that is
//! measured. The second waits for the calibration's answers, that is for the server; the bar holds for an engine that
//! answers at once, and the canned engine (150 ms to a first token) is printed beside it.

mod kit;

use std::process::ExitCode;

use kit::{Args, Engine, Ran, Result, bar, quantile, say};

/// From exec to the first measured request, at most.
const BAR_MS: f64 = 200.0;

/// An engine that answers at once.
const INSTANT: &str = r#"{"name": "instant", "mode": {"kind": "canned",
  "ttft": {"law": "deterministic", "ms": 0.01}, "gap": {"law": "deterministic", "ms": 0.01}}}"#;

fn main() -> ExitCode {
    kit::main(|args: &Args| {
        let times = args.number("times", 10.0)? as usize;
        let (any, measured) = measure(INSTANT, times)?;
        report("answers at once", any, measured.clone());
        let middle = quantile(&mut measured.clone(), 0.5) / 1e6;
        bar(
            "exec to first measured request, median",
            format!("{middle:.1} ms"),
            "≤ 200 ms",
            middle <= BAR_MS,
        );
        let (any, measured) = measure("canned", times)?;
        report("canned, first token 150 ms", any, measured);
        Ok(())
    })
}

fn measure(profile: &str, times: usize) -> Result<(Vec<i64>, Vec<i64>)> {
    let (mut any, mut measured) = (Vec::new(), Vec::new());
    for _ in 0..times {
        let engine = Engine::start(profile)?;
        // Constant arrivals: the first is due at once, and no draw of a gap is in the figure.
        let load =
            ["--rate", "1000/s", "--arrivals", "constant", "--for", "100ms", "--osl", "1", "--isl", "16"];
        let ran = Ran::run(&engine.url, &load)?;
        let records = engine.stop()?;
        let first = format!("{}-0-", ran.manifest.id);
        let since = |ns: i64| ns - ran.spawned_ns;
        any.extend(records.iter().map(|record| since(record.arrival_ns)).min());
        let is_measured = |id: &Option<String>| id.as_deref().is_some_and(|id| id.starts_with(&first));
        measured.extend(
            records
                .iter()
                .filter(|record| is_measured(&record.id))
                .map(|record| since(record.arrival_ns))
                .min(),
        );
    }
    Ok((any, measured))
}

fn report(name: &str, mut any: Vec<i64>, mut measured: Vec<i64>) {
    let line = |values: &mut Vec<i64>| {
        format!(
            "median {:.1}  least {:.1}  most {:.1} ms",
            quantile(values, 0.5) / 1e6,
            quantile(values, 0.0) / 1e6,
            quantile(values, 1.0) / 1e6
        )
    };
    say(format!("{name}, {} runs", measured.len()));
    say(format!("  exec to the first request of the calibration: {}", line(&mut any)));
    say(format!("  exec to the first measured request:           {}", line(&mut measured)));
}
