//! KServe over gRPC against NVIDIA's Triton: unary calls to a model whose time is known, and streams of a decoupled model.
//! Triton's counts of requests, rows and time must match the run.

use std::path::Path;

use plimsoll_model::{Attempt, EventKind, How, Span};
use serde_json::Value;

use crate::kit::{plimsoll, run_folder};
use crate::real::{self, Real, get};

/// One of Triton's counters for a model.
fn counter(page: &str, name: &str, model: &str) -> f64 {
    let sample = format!(r#"nv_inference_{name}{{model="{model}",version="1"}} "#);
    let line = page.lines().find_map(|line| line.strip_prefix(&sample));
    line.unwrap_or_else(|| panic!("no {sample}")).trim().parse().expect("a number")
}

/// A run's answer and rows, and Triton's page before and after.
struct Ran {
    json: Value,
    rows: Vec<Attempt>,
    pages: [String; 2],
}

impl Ran {
    fn new(triton: &Real, model: &str, more: &[&str]) -> Ran {
        let page = || get(triton.port + 2, "/metrics").expect("a metrics page");
        let before = page();
        let (_folder, folder) = run_folder();
        let url = format!("grpc://127.0.0.1:{}/v2/models/{model}", triton.port + 1);
        let fixed = ["run", &url, "--seed", "3", "-q", "-o", &folder, "--format", "json"];
        let ended = plimsoll(&[&fixed[..], more].concat());
        // A loaded machine may make the generator late (4); what the server did is judged strictly either way.
        assert!(ended.code == 0 || ended.code == 4, "{}", ended.stderr);
        let rows = plimsoll_store::open(Path::new(&folder)).expect("a run").attempts;
        Ran { json: ended.json(), rows, pages: [before, page()] }
    }

    fn counted(&self, name: &str, model: &str) -> f64 {
        counter(&self.pages[1], name, model) - counter(&self.pages[0], name, model)
    }

    fn of(&self, how: How) -> Vec<&Attempt> {
        self.rows.iter().filter(|row| row.outcome.how == how).collect()
    }
}

#[test]
fn triton_is_measured_over_grpc_and_agrees() {
    let Some(triton) = real::or_skipped(real::triton()) else { return };
    unary(&triton);
    streams(&triton);
    // An unknown model, and a missing --model with several models, are refused with the list of models.
    let url = format!("grpc://127.0.0.1:{}", triton.port + 1);
    let ended = plimsoll(&["run", &url, "--model", "nope", "--wave", "1"]);
    assert_eq!(ended.code, 2, "{}", ended.stderr);
    assert!(ended.stderr.contains("nope") && ended.stderr.contains("drip, lockstep"), "{}", ended.stderr);
    let ended = plimsoll(&["run", &url, "--wave", "1"]);
    assert!(ended.code == 2 && ended.stderr.contains("--model (drip, lockstep)"), "{}", ended.stderr);
    // The HTTP/1.1 port does not support gRPC, and the error names HTTP/2.
    let ended = plimsoll(&["run", &format!("grpc://127.0.0.1:{}", triton.port), "--wave", "1"]);
    assert!(ended.code == 5 && ended.stderr.contains("HTTP/2"), "{}", ended.stderr);
}

/// One at a time, three rows each: every request is a batch, of 5 + 3 ms and what the machine adds.
fn unary(triton: &Real) {
    let ran = Ran::new(triton, "lockstep", &["--concurrency", "1", "--batch", "3", "--for", "2s"]);
    let all = ran.rows.len() as f64;
    let counted = |name| ran.counted(name, "lockstep");
    assert!(
        all >= 20.0 && ran.of(How::Finished).len() == ran.rows.len(),
        "{}",
        ran.json["findings"]["levels"][0]
    );
    assert_eq!([counted("request_success"), counted("count"), counted("exec_count")], [all, 3.0 * all, all]);
    let took = |row: &Attempt| (row.end.expect("it finished") - row.due).as_secs_f64();
    let ours_us = 1e6 * ran.rows.iter().map(took).sum::<f64>() / all;
    let [theirs_us, compute_us] =
        ["request_duration_us", "compute_infer_duration_us"].map(|name| counted(name) / all);
    assert!(compute_us >= 8_000.0 && ours_us >= compute_us, "{ours_us} {compute_us}");
    assert!(ours_us - theirs_us < 20_000.0 + 0.5 * theirs_us, "client {ours_us} us, Triton {theirs_us} us");
    let facts = &ran.json["target"]["facts"];
    assert_eq!((&facts["engine"], &facts["max_batch"]), (&"triton".into(), &"16".into()));
    assert_eq!(facts["decoupled"], "false");
    // One connection carried them.
    assert!(ran.rows.iter().all(|row| row.connection == ran.rows[0].connection));

    // The load exceeds the queue: refused requests are shed and are not among the successes.
    let ran = Ran::new(triton, "lockstep", &["--rate", "300/s", "--batch", "16", "--for", "2s"]);
    let (finished, shed) = (ran.of(How::Finished), ran.of(How::Shed));
    assert_eq!(finished.len() as f64, ran.counted("request_success", "lockstep"));
    let words = shed.first().and_then(|row| row.answer.error.clone()).expect("some are shed");
    assert!(words.starts_with("UNAVAILABLE: ") && words.contains("Exceeds maximum queue size"), "{words}");
}

/// Six responses, 5 ms apart; if FAIL is drawn, two responses and an error.
fn streams(triton: &Real) {
    let ran = Ran::new(triton, "drip", &["--concurrency", "4", "--for", "3s"]);
    let (finished, broken) = (ran.of(How::Finished), ran.of(How::StreamError));
    assert_eq!(finished.len() + broken.len(), ran.rows.len(), "{}", ran.json["findings"]["levels"][0]);
    assert!(finished.len() > 20 && broken.len() > 20, "{} and {}", finished.len(), broken.len());
    // What breaks off after responses is no failure to Triton.
    assert_eq!(ran.counted("request_success", "drip"), ran.rows.len() as f64);
    let gap = Span::from_millis(5);
    for row in &finished {
        let tokens = row.events.iter().filter(|event| event.kind == EventKind::Content).count();
        assert_eq!((tokens, row.answer.tokens.output), (6, Some(6)), "{row:#?}");
        let [first, last] = [row.first_token, row.last_token].map(|at| at.expect("six tokens"));
        assert!(
            first - row.due >= gap && row.end.expect("it finished") - row.due >= Span(6 * gap.0),
            "{row:#?}"
        );
        assert!(last >= first);
    }
    let span =
        |row: &&&Attempt| (row.last_token.expect("tokens") - row.first_token.expect("tokens")).as_secs_f64();
    let mean_ms = 1e3 * finished.iter().map(|row| span(&row)).sum::<f64>() / finished.len() as f64 / 5.0;
    assert!(mean_ms >= 5.0, "a mean gap of {mean_ms} ms");
    for row in &broken {
        assert_eq!(row.events.iter().filter(|event| event.kind.is_token()).count(), 2, "{row:#?}");
        assert!(row.answer.error.as_deref().unwrap_or_default().contains("it breaks off"), "{row:#?}");
    }
    let latency = &ran.json["findings"]["levels"][0]["summary"]["latency"];
    // The mean covers finished requests, because the coin decides whether more than half finish.
    let tpot = &latency["tpot"]["mean_finite_s"];
    let tpot = tpot.as_f64().unwrap_or_else(|| panic!("{latency}"));
    assert!((5e-3..60e-3).contains(&tpot), "tpot {tpot} s");
    assert_eq!(ran.json["target"]["facts"]["decoupled"], "true");
}
