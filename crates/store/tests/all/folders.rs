//! Tests the files of a folder at each moment, and their interpretation by a reader.

use std::fs;

use plimsoll_model::*;
use plimsoll_store::folder::{DAMAGED, LOG, MANIFEST, REQUESTS, RESERVE, SERIES};
use plimsoll_store::{
    ColumnSelection, Origin, RunWriter, StoreError, content_hash, each_attempt, open, read_manifest,
    replace_manifest,
};

use crate::kit::{abandoned, answered, level, manifest, opened, written};

fn names(dir: &std::path::Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn sample() -> Sample {
    Sample { at: At(5), source: "client".into(), name: "in_flight".into(), labels: "".into(), value: 3.0 }
}

#[test]
fn a_finished_run_is_two_or_three_files() {
    let temp = tempfile::tempdir().unwrap();
    let (bare, full) = (temp.path().join("deep/er/bare"), temp.path().join("full"));
    written(&bare, &[], &[]);
    assert_eq!(names(&bare), [REQUESTS, MANIFEST]);
    assert_eq!(opened(&bare).attempts, []);
    written(&full, &[answered(1, 3)], &[sample()]);
    assert_eq!(names(&full), [REQUESTS, MANIFEST, SERIES]);
    let run = opened(&full);
    assert_eq!(
        (run.origin, run.recovered, run.manifest.progress),
        (Origin::Finished, None, RunState::Complete)
    );
    assert_eq!((run.attempts, run.samples), (vec![answered(1, 3)], vec![sample()]));
}

/// Rows in the caller's memory give the files that the log gives, byte for byte. If their number differs from the log's,
/// the log applies, because it has every record.
#[test]
fn held_rows_make_the_files_that_the_log_makes() {
    let temp = tempfile::tempdir().unwrap();
    // Over one row group, so that rows in memory are split like pushed ones.
    let rows: Vec<Attempt> = (0..70_000).map(|n| answered(n, (n % 3) as usize)).collect();
    let from = |name: &str, held: Option<&[Attempt]>| {
        let dir = temp.path().join(name);
        let writer = RunWriter::create(&dir, manifest()).unwrap();
        rows.iter().for_each(|attempt| writer.attempt(attempt));
        writer.sample(&sample());
        let manifest = writer.manifest();
        match held {
            Some(held) => writer.finish_with(manifest, held, &[sample()]).unwrap(),
            None => writer.finish(manifest).unwrap(),
        }
        assert_eq!(names(&dir), [REQUESTS, MANIFEST, SERIES]);
        (fs::read(dir.join(REQUESTS)).unwrap(), fs::read(dir.join(SERIES)).unwrap())
    };
    let by_log = from("log", None);
    assert!(by_log == from("held", Some(&rows)), "the held rows wrote other bytes");
    assert!(by_log == from("short", Some(&rows[1..])), "a record is missing");
    assert_eq!(opened(&temp.path().join("held")).attempts, rows);
}

#[test]
fn an_existing_folder_is_refused_and_left_alone() {
    let temp = tempfile::tempdir().unwrap();
    let error = RunWriter::create(temp.path(), manifest()).err().unwrap();
    assert!(matches!(error, StoreError::Exists { .. }), "{error}");
    let said = format!(
        "{}: already exists, and a run is never overwritten; name another folder",
        temp.path().display()
    );
    assert_eq!(error.to_string(), said);
    assert_eq!(names(temp.path()), [""; 0]);
}

#[test]
fn levels_and_changes_reach_the_manifest_whoever_reads_it() {
    let temp = tempfile::tempdir().unwrap();
    for (name, finish) in [("done", true), ("dead", false)] {
        let dir = temp.path().join(name);
        let writer = RunWriter::create(&dir, manifest()).unwrap();
        writer.level(&level(0)).unwrap();
        writer.update(|m| m.findings = Some(serde_json::json!({"onset": 4}))).unwrap();
        writer.level(&level(1)).unwrap();
        writer.level(&Level { arrivals: 9, ..level(0) }).unwrap();
        if finish {
            // The caller's copy has the findings but no levels.
            let manifest = Manifest { levels: vec![], ..writer.manifest() };
            writer.finish(manifest).unwrap();
        } else {
            drop(writer);
        }
        let run = opened(&dir);
        assert_eq!(run.manifest.findings, Some(serde_json::json!({"onset": 4})));
        assert_eq!(run.manifest.levels, [Level { arrivals: 9, ..level(0) }, level(1)]);
    }
}

#[test]
fn a_number_that_json_cannot_hold_is_refused_at_once() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let writer = RunWriter::create(&dir, manifest()).unwrap();
    let odd = Level { load: Load::Open { rate_per_s: f64::NAN }, ..level(0) };
    assert!(writer.level(&odd).unwrap_err().to_string().contains("not written"));
    writer.attempt(&answered(1, 1));
    writer.finish(Manifest { levels: vec![odd], ..manifest() }).unwrap_err();
    assert_eq!(opened(&dir).attempts, [answered(1, 1)]);
}

#[test]
fn a_run_being_written_opens_as_a_snapshot_and_is_not_touched() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let writer = RunWriter::create(&dir, manifest()).unwrap();
    writer.attempt(&answered(1, 2));
    writer.flush().unwrap();
    let before = names(&dir);
    let run = opened(&dir);
    assert_eq!((run.origin, run.manifest.progress), (Origin::Live, RunState::Running));
    assert_eq!(run.recovered.as_deref(), Some("still being written; this is a snapshot"));
    assert_eq!(run.attempts, [answered(1, 2)]);
    assert_eq!(names(&dir), before);
    // The writer is unaffected.
    writer.attempt(&answered(2, 2));
    assert_eq!(writer.attempts(|a| a.request == 2).unwrap(), [answered(2, 2)]);
    writer.finish(manifest()).unwrap();
    assert_eq!(opened(&dir).attempts.len(), 2);
}

#[test]
fn a_dead_run_is_recovered_once_and_marked_partial() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    abandoned(&dir, &[answered(1, 2), answered(2, 2)], &[sample()]);
    assert_eq!(names(&dir), [RESERVE, LOG, MANIFEST]);
    let run = opened(&dir);
    assert_eq!(run.origin, Origin::Recovered { converted: true });
    let why = "recovered 2 attempts from the log: the run was cut off".to_owned();
    assert_eq!(run.recovered, Some(why.clone()));
    assert_eq!(names(&dir), [REQUESTS, MANIFEST, SERIES]);
    let again = opened(&dir);
    assert_eq!((again.origin, again.manifest.progress), (Origin::Finished, RunState::Partial { why }));
    assert_eq!((again.attempts, again.samples), (run.attempts, run.samples));
}

#[test]
fn a_torn_tail_costs_the_torn_record() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    abandoned(&dir, &[answered(1, 2), answered(2, 2)], &[]);
    let log = fs::read(dir.join(LOG)).unwrap();
    fs::write(dir.join(LOG), &log[..log.len() - 7]).unwrap();
    let run = opened(&dir);
    assert_eq!(run.attempts, [answered(1, 2)]);
    let said = run.recovered.unwrap();
    assert!(said.contains("bytes of a record that was being written were dropped"), "{said}");
    assert!(!dir.join(LOG).exists());
}

#[test]
fn a_damaged_log_is_kept_beside_what_could_be_read() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    abandoned(&dir, &[answered(1, 2), answered(2, 2), answered(3, 2)], &[]);
    let mut log = fs::read(dir.join(LOG)).unwrap();
    let at = log.len() - 100;
    log[at] ^= 0x40;
    fs::write(dir.join(LOG), &log).unwrap();
    let run = opened(&dir);
    assert!(run.attempts.len() < 3);
    assert!(run.recovered.unwrap().contains("the log is damaged at byte"));
    assert_eq!(fs::read(dir.join(DAMAGED)).unwrap(), log);
    assert_eq!(opened(&dir).origin, Origin::Finished);
}

/// Every interrupted state of a run's end is completely readable.
#[test]
fn an_end_that_was_interrupted_reads_back_whole() {
    let temp = tempfile::tempdir().unwrap();
    let (dead, done) = (temp.path().join("dead"), temp.path().join("done"));
    abandoned(&dead, &[answered(1, 2)], &[sample()]);
    written(&done, &[answered(1, 2)], &[sample()]);
    let copies: [(&str, &[&str]); 4] = [
        ("drafts", &[]),
        ("series", &[SERIES]),
        ("manifest", &[SERIES, MANIFEST]),
        ("requests", &[SERIES, MANIFEST, REQUESTS]),
    ];
    for (stage, named) in copies {
        let dir = temp.path().join(stage);
        fs::create_dir(&dir).unwrap();
        for name in [LOG, MANIFEST, RESERVE] {
            fs::copy(dead.join(name), dir.join(name)).unwrap();
        }
        fs::write(dir.join(format!("{REQUESTS}.draft")), b"half a file").unwrap();
        for name in named {
            fs::copy(done.join(name), dir.join(name)).unwrap();
        }
        let run = opened(&dir);
        assert_eq!((run.attempts, run.samples), (vec![answered(1, 2)], vec![sample()]), "{stage}");
        assert!(!dir.join(LOG).exists() && !dir.join(RESERVE).exists(), "{stage}");
        assert_eq!(opened(&dir).origin, Origin::Finished, "{stage}");
    }
}

#[test]
fn what_is_no_run_is_said_in_one_line() {
    let temp = tempfile::tempdir().unwrap();
    let said = |error: StoreError| {
        let said = error.to_string();
        assert!(!said.contains('\n'), "{said}");
        said.replace(&temp.path().display().to_string(), "")
    };
    assert_eq!(said(open(&temp.path().join("none")).unwrap_err()), "/none: there is no such file or folder");
    fs::write(temp.path().join(MANIFEST), b"{\"schema\": 1}").unwrap();
    assert_eq!(said(open(temp.path()).unwrap_err()), ": not a run folder: requests.parquet is missing");
    fs::write(temp.path().join(REQUESTS), b"PAR1").unwrap();
    assert!(said(open(temp.path()).unwrap_err()).starts_with("/run.json: missing field"));
    fs::write(temp.path().join(MANIFEST), b"{\"schema\": 99, \"new\": []}").unwrap();
    let newer = open(temp.path()).unwrap_err();
    assert!(matches!(newer, StoreError::Schema { found: 99, known: 1, .. }), "{newer}");
}

#[test]
fn findings_may_be_replaced_in_a_finished_run_only() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    written(&dir, &[], &[]);
    let mut manifest = read_manifest(&dir).unwrap();
    manifest.findings = Some(serde_json::json!([1]));
    replace_manifest(&dir, &manifest).unwrap();
    assert_eq!(read_manifest(&dir).unwrap(), manifest);
    assert_eq!(names(&dir), [REQUESTS, MANIFEST]);
    assert!(replace_manifest(temp.path(), &manifest).is_err());
}

#[test]
fn records_after_the_end_are_counted_not_kept() {
    let temp = tempfile::tempdir().unwrap();
    let writer = RunWriter::create(&temp.path().join("r"), manifest()).unwrap();
    let sink = writer.sink();
    sink.attempt(&answered(1, 0));
    writer.finish(manifest()).unwrap();
    sink.attempt(&answered(2, 0));
    assert_eq!(sink.health().lost, 1);
    assert_eq!(opened(&temp.path().join("r")).attempts.len(), 1);
}

#[test]
fn many_threads_share_a_log() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let writer = RunWriter::create(&dir, manifest()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let sink = writer.sink();
            scope.spawn(move || (0..2_000).for_each(|i| sink.attempt(&answered(thread * 10_000 + i, 3))));
        }
    });
    writer.finish(manifest()).unwrap();
    let mut got = opened(&dir).attempts;
    // The order of each thread's records is kept.
    for thread in 0..8u64 {
        assert!(got.iter().map(|a| a.request).filter(|r| r / 10_000 == thread).is_sorted());
    }
    got.sort_by_key(|a| a.request);
    let want = (0..8).flat_map(|thread| (0..2_000).map(move |i| answered(thread * 10_000 + i, 3)));
    assert!(got.into_iter().eq(want));
}

/// Equal rows and manifest give an equal content hash. A changed row, sample or word of the manifest changes it; findings
/// do not, because they are recomputed.
#[test]
fn content_is_what_was_measured() {
    let temp = tempfile::tempdir().unwrap();
    let of = |name: &str, rows: &[Attempt], samples: &[Sample]| {
        let dir = temp.path().join(name);
        written(&dir, rows, samples);
        (content_hash(&dir).unwrap(), dir)
    };
    let (first, dir) = of("first", &[answered(1, 3)], &[]);
    assert_eq!(first.len(), 32);
    assert_eq!(of("same", &[answered(1, 3)], &[]).0, first);
    assert_ne!(of("row", &[answered(2, 3)], &[]).0, first);
    assert_ne!(of("sample", &[answered(1, 3)], &[sample()]).0, first);
    let manifest = read_manifest(&dir).unwrap();
    let judged = Manifest { findings: Some(serde_json::json!({"judged": "anew"})), ..manifest.clone() };
    replace_manifest(&dir, &judged).unwrap();
    assert_eq!(content_hash(&dir).unwrap(), first);
    replace_manifest(&dir, &Manifest { seed: 8, ..manifest }).unwrap();
    assert_ne!(content_hash(&dir).unwrap(), first);
    assert!(content_hash(&temp.path().join("none")).is_err());
}

/// Rows are refilled batch after batch, and a column with one value per row group is not decoded. No field may keep the
/// value of an earlier row, for any mix of varied and constant groups.
#[test]
fn rows_that_are_filled_again_hold_nothing_of_the_row_before() {
    let group = 64 << 10;
    let varied = |request: u64| {
        let mut row = answered(request, (request % 4) as usize);
        row.class = (request % 3) as u16;
        (row.session, row.turn) = ((request.is_multiple_of(5)).then_some(request), (request % 6) as u16);
        row.answer.error = (request.is_multiple_of(7)).then(|| format!("error {}", request % 2));
        row.answer.broken = (request.is_multiple_of(11)).then_some(Broken::Empty);
        row.answer.tokens.cached = (request.is_multiple_of(2)).then_some(7);
        row.answer.status = (request.is_multiple_of(3)).then_some(429);
        row.answer.stages =
            (0..request % 3).map(|i| ServerStage { name: format!("s{i}"), took: Span(i as i64) }).collect();
        row.outcome =
            if request.is_multiple_of(13) { Outcome::new(How::Shed, By::Server, true) } else { row.outcome };
        row.first_visible = row.first_visible.filter(|_| request.is_multiple_of(2));
        row.kernel_stamps = request.is_multiple_of(2);
        row
    };
    let bare = |request: u64| Attempt { end: None, ..Attempt::new(request, 0, 1, At(request as i64)) };
    let rows = (0..4 * group).map(|request| match request / group {
        1 => bare(request),
        2 => answered(request, 0),
        _ => varied(request),
    });
    let rows: Vec<Attempt> = rows.collect();
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    written(&dir, &rows, &[]);
    for columns in [ColumnSelection::Findings, ColumnSelection::Budget] {
        let mut next = rows.iter().cloned();
        let read = each_attempt(&dir, columns, |got| {
            let mut row = next.next().unwrap();
            row.events.iter_mut().for_each(|event| event.user_delay_ns = 0);
            let stages = if columns == ColumnSelection::Budget { row.answer.stages } else { Vec::new() };
            let tokens = Tokens { reasoning: None, ..row.answer.tokens };
            let Answer { status, broken, error, .. } = row.answer;
            row.answer = Answer { status, broken, error, tokens, stages, ..Answer::default() };
            (row.connected, row.bytes_out, row.bytes_in, row.reused) = (None, 0, 0, false);
            (row.tcp.rtt_var, row.outcome.retryable) = (None, false);
            assert_eq!(*got, row);
        });
        assert!(read.unwrap().is_some() && next.next().is_none());
    }
}
