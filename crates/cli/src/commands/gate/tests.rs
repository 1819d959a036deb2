//! A run whose rows are not held is judged as one whose rows are: to the byte, in every form that is written.

use plimsoll_judge::gate::RowRole;
use plimsoll_lab::records::{MS, answer, broken, event, failure, level, manifest};
use plimsoll_model::{Broken, EndedBy, How, Level, Load, ServerStage, Span, TimeBase};
use plimsoll_store::RunWriter;

use super::*;

/// What a run is made of.
struct Made {
    rates: Vec<f64>,
    purpose: &'static str,
    events: bool,
    stages: bool,
}

/// Answers of two classes and many lengths, failures, second tries, broken answers, readers who left and turns of sessions, in the order
/// in which they ended.
fn made(spec: &Made) -> (tempfile::TempDir, String) {
    let (mut rows, mut levels, mut from) = (Vec::new(), Vec::new(), 0);
    for (id, rate) in spec.rates.iter().enumerate() {
        let seconds = 20;
        let mut level = Level { id: id as u32, purpose: spec.purpose.into(), ..level(*rate, seconds) };
        let shift = Span(from * MS);
        for at in [&mut level.start, &mut level.stop, &mut level.drained] {
            *at += shift;
        }
        let n = (*rate * seconds as f64) as u64;
        level.arrivals = n;
        for request in 0..n {
            let due = (1e3 * request as f64 / rate) as i64;
            let ttft = 20 + (request as i64 * 7919) % 60 + id as i64 * 15;
            let tries = if request % 11 == 0 { 2 } else { 1 };
            for attempt in 0..tries {
                let mut row = match attempt + 1 < tries || request % 90 == 3 {
                    true => failure(request, due, How::Shed, ttft),
                    false => answer(request, due, ttft, ttft + 40 + (request as i64 % 30), 6),
                };
                if request % 97 == 5 {
                    row = broken(row, Broken::CutShort);
                }
                if request % 101 == 7 {
                    row.outcome =
                        plimsoll_model::Outcome::new(How::Cancelled, plimsoll_model::By::Client, false);
                }
                if request % 90 == 3 {
                    row.answer.error = Some(format!("busy {}", request % 3));
                    row.answer.status = Some(503);
                }
                if !spec.events {
                    row.events.clear();
                } else if request % 3 == 0 && row.outcome.is_finished() {
                    row.events.push(event(ttft + 70, 2));
                }
                if spec.stages && request % 50 != 1 && row.outcome.is_finished() {
                    row.answer.stages = ["queue", "prefill", "decode"]
                        .map(|name| ServerStage { name: name.into(), took: Span(ttft * MS / 3) })
                        .to_vec();
                }
                row.sent = row.sent.map(|sent| sent + Span((request as i64 % 5) * MS));
                (row.level, row.attempt, row.class) = (id as u32, attempt, (request % 3 == 1).into());
                (row.session, row.turn) = (Some(request / 4), (request % 4) as u16);
                row.asked_prompt = 10 + (request as u32 * 31) % 900;
                row.answer.tokens.prompt =
                    row.answer.tokens.prompt.map(|_| row.asked_prompt + request as u32 % 2);
                row.shift(shift);
                rows.push(row);
            }
        }
        levels.push(level);
        from += (seconds + 1) * 1_000;
    }
    rows.sort_by_key(|row| row.end);
    let scenario = serde_json::json!({"classes": [{"name": "chat"}, {"name": "search"}]});
    written(&rows, Manifest { time: TimeBase::Virtual, scenario, ..manifest(levels) })
}

/// The run of these rows, and the folder in which it lies.
fn written(rows: &[Attempt], manifest: Manifest) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().join("run");
    let writer = RunWriter::create(&dir, manifest.clone()).expect("a folder");
    rows.iter().for_each(|row| writer.attempt(row));
    writer.finish(manifest).expect("written");
    (folder, dir.display().to_string())
}

/// Every kind of budget.
const ALL: &str = "version: 1
stages: {p: 95, total: 80ms, slices: {queue: 20ms, prefill: 40ms}}
price: {price: 2.49USD/gpu-hour, gpus: 1, date: 2026-11-01, source: list}
budgets:
  - {id: ttft, metric: ttft, p: 95, max: 60ms}
  - {id: sent, metric: ttft, p: 90, max: 90ms, scope: engine}
  - {id: whole, metric: e2e, p: 99, max: 400ms, relative: +10%}
  - {id: first, metric: ttfb, p: 50, max: 90ms}
  - {id: seen, metric: ttfot, p: 50, max: 90ms}
  - {id: per-token, metric: tpot, p: 90, max: 20ms}
  - {id: normed, metric: ntpot, p: 90, max: 40ms}
  - {id: gaps, metric: event_gap, p: 90, max: 20ms}
  - {id: itl, metric: itl, p: 90, max: 20ms}
  - {id: ratio, metric: ttft_tail_ratio, max: 3}
  - {id: errors, metric: error_rate, max: 1%}
  - {id: again, metric: error_and_retry_rate, max: 20%, relative: +10%}
  - {id: rate, metric: throughput, min: 5/s}
  - {id: good, metric: goodput, min: 5/s}
  - {id: tokens, metric: output_tokens_per_s, min: 20/s}
  - {id: cost, metric: cost_per_request, max: 0.01 USD}
  - {id: long, metric: ttft, p: 90, max: 80ms, slice: {prompt_tokens: 512..}}
  - {id: search, metric: e2e, p: 90, max: 80ms, slice: {class: search}}
  - {id: none, metric: e2e, p: 90, max: 80ms, slice: {class: nobody}}
  - {id: onset, metric: throughput_before_onset, min: 5/s}
";

fn budget(folder: &Path, text: &str) -> BudgetText {
    let path = folder.join("budget.yaml");
    std::fs::write(&path, text).expect("written");
    budget_file::read(&path).unwrap_or_else(|stop| panic!("{}", stop.line))
}

/// The run's verdict in all its forms.
fn forms(budget: &BudgetText, (run, rows): (GatedRun, Rows), base: &Option<MeasuredRun<'_>>) -> Vec<String> {
    let measured = rows.measured(&run.manifest, &budget.file);
    let finding = gate::gate(&budget.file, &measured, base.as_ref());
    let place = |path: &str| {
        let place = budget.place(path);
        (place.line, place.column)
    };
    vec![
        serde_json::to_string_pretty(&finding).expect("json"),
        serde_json::to_string_pretty(&measured.findings).expect("json"),
        pages::render(&finding),
        pages::junit::render(&finding),
        pages::markdown(&finding),
        format!("{:#}", pages::sarif::render(&finding, "budget.yaml", place)),
    ]
}

fn held(run: &str) -> (GatedRun, Rows) {
    let StoredRun { dir, manifest, attempts, samples, .. } =
        open(run).unwrap_or_else(|stop| panic!("{}", stop.line));
    (GatedRun { dir, manifest }, Rows::Held(attempts, samples))
}

fn streamed(run: &str) -> (GatedRun, Rows) {
    let read = read(run, ColumnSelection::Budget).unwrap_or_else(|stop| panic!("{}", stop.line));
    assert!(matches!(read.1, Rows::Streamed(..)), "held");
    read
}

#[test]
fn rows_that_are_not_held_are_judged_the_same() {
    let one = |events, stages| Made { rates: vec![80.0], purpose: "run", events, stages };
    let sweep = Made { rates: vec![20.0, 40.0, 60.0, 80.0], purpose: "climb", events: false, stages: true };
    let at_60 = ALL.replacen("version: 1\n", "version: 1\nload: {rate: 60/s}\n", 1);
    for (spec, text) in [
        (one(true, true), ALL),
        (one(false, true), ALL),
        (one(true, false), ALL),
        (Made { rates: vec![40.0, 40.0], ..one(false, false) }, ALL),
        (sweep, &at_60),
    ] {
        let (folder, run) = made(&spec);
        let (_other, base) = made(&Made { rates: spec.rates.clone(), events: !spec.events, ..spec });
        let budget = budget(folder.path(), text);
        let (base_run, base_rows) = streamed(&base);
        let (held_base, held_rows) = held(&base);
        let base = Some(base_rows.measured(&base_run.manifest, &budget.file));
        let of_held = Some(held_rows.measured(&held_base.manifest, &budget.file));
        let (mine, truth) = (forms(&budget, streamed(&run), &base), forms(&budget, held(&run), &of_held));
        for (mine, truth) in mine.iter().zip(&truth) {
            assert_eq!(mine, truth);
        }
        // And there was something to judge.
        let finding: GateFinding = serde_json::from_str(&truth[0]).expect("a finding");
        let judged = finding.rows.iter().filter(|row| !row.missing).count();
        assert!(judged >= 10, "{} of {}", judged, finding.rows.len());
    }
}

/// What was in flight is drawn again beside the rows, so that they are needed.
#[test]
fn a_run_that_was_cut_off_is_held() {
    let (_folder, run) = made(&Made { rates: vec![40.0], purpose: "run", events: false, stages: false });
    let mut manifest = plimsoll_store::read_manifest(Path::new(&run)).expect("there");
    manifest.levels[0].ended_by = EndedBy::Cut;
    manifest.levels[0].load = Load::Closed { concurrency: 2 };
    plimsoll_store::replace_manifest(Path::new(&run), &manifest).expect("written");
    let (_, rows) = read(&run, ColumnSelection::Budget).unwrap_or_else(|stop| panic!("{}", stop.line));
    assert!(matches!(rows, Rows::Held(..)));
}

/// A row that is only watched was not read again with the stages when it failed, so that it said the run holds no stage times.
#[test]
fn a_watched_row_that_fails_names_the_stage() {
    let staged = |request: u64| {
        let mut row = answer(request, 10 * request as i64, 50, 70, 3);
        let stage = |name: &str, ms: i64| ServerStage { name: name.into(), took: Span(ms * MS) };
        row.answer.stages = vec![stage("queue", 30), stage("prefill", 20)];
        row
    };
    let rows: Vec<Attempt> = (0..4_000).map(staged).collect();
    let (folder, run) = written(&rows, manifest(vec![Level { arrivals: 4_000, ..level(100.0, 40) }]));
    let budget = budget(
        folder.path(),
        "version: 1
policy: {primary: [whole]}
budgets:
  - {id: whole, metric: e2e, p: 90, max: 1s}
  - {id: first, metric: ttft, p: 90, max: 40ms}
",
    );
    let (named, rows) = read(&run, ColumnSelection::Findings).unwrap_or_else(|stop| panic!("{}", stop.line));
    let (_, finding) = located((&named, rows), (&run, ColumnSelection::Findings), &budget.file, None)
        .unwrap_or_else(|stop| panic!("{}", stop.line));
    let [whole, first] = &finding.rows[..] else { panic!("{finding:?}") };
    assert_eq!((whole.role, whole.held), (RowRole::Decides, Held::Pass), "{}", whole.why);
    assert_eq!((first.role, first.held), (RowRole::Watched, Held::Fail), "{}", first.why);
    assert!(first.why.contains("queue takes 60.0 % of the time"), "{}", first.why);
}
