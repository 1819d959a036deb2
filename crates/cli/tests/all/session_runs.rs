//! Sessions whose turns wait for each other, sent by several machines, sent again, and cut off in the middle.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use plimsoll_model::{Attempt, How};
use tempfile::TempDir;

use crate::agents::growing;
use crate::kit::{Engine, PLIMSOLL, begun, ended, plimsoll, run_folder, until};

/// Predecessors of each turn of a session, by number; all but the first wait 20 ms.
const AFTER: [&[u16]; 5] = [&[], &[0], &[0], &[1, 2], &[3]];
const WAIT_NS: i64 = 20_000_000;

struct Field {
    folder: TempDir,
    engine: Engine,
}

impl Field {
    fn new() -> Field {
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("agents.jsonl"), growing()).expect("written");
        Field { folder, engine: Engine::start("canned") }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn load(&self, speed: &str) -> Vec<String> {
        let trace = self.at("agents.jsonl");
        ["--trace", &trace, "--speed", speed, "--scrape", "off", "-q"].map(str::to_owned).to_vec()
    }

    fn measured(&self, args: &[&str], out: &str) -> Vec<Attempt> {
        let run = self.at(out);
        let ended = plimsoll(&[args, &["-o", &run]].concat());
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
        rows(&run)
    }
}

fn rows(run: &str) -> Vec<Attempt> {
    plimsoll_store::open(Path::new(run)).expect("a run").attempts
}

fn by_turn(rows: &[Attempt]) -> BTreeMap<(u64, u16), &Attempt> {
    let all: BTreeMap<(u64, u16), &Attempt> =
        rows.iter().map(|row| ((row.session.expect("a session"), row.turn), row)).collect();
    assert_eq!(all.len(), rows.len(), "a turn that is there twice");
    all
}

/// Every turn that was sent is due when all that it comes after have ended, and its wait.
fn all_waited(rows: &[Attempt]) {
    let turns = by_turn(rows);
    for ((session, turn), row) in &turns {
        let before: Vec<&&Attempt> =
            AFTER[usize::from(*turn)].iter().filter_map(|of| turns.get(&(*session, *of))).collect();
        assert_eq!(before.len(), AFTER[usize::from(*turn)].len(), "turn {turn} of {session}");
        let last = before.iter().filter_map(|row| row.end).max();
        if let Some(last) = last {
            assert!(before.iter().all(|row| row.outcome.is_finished()), "turn {turn} of {session}");
            assert_eq!(row.due.0, last.0 + WAIT_NS, "turn {turn} of {session}");
        }
    }
}

/// Returns the requests of a session's rows, independent of the sender.
fn asked(rows: &[Attempt]) -> Vec<(u64, u16, u64, u32, u32, Option<u32>)> {
    let turns = by_turn(rows);
    let of = |(key, row): (&(u64, u16), &&Attempt)| {
        (key.0, key.1, row.request, row.asked_prompt, row.asked_output, row.resent)
    };
    turns.iter().map(of).collect()
}

#[test]
fn shards_send_whole_sessions_and_together_all_of_them() {
    let field = Field::new();
    let (load, place) = (field.load("20"), field.at("place"));
    let shard = |index: u32| {
        let shard = format!("{index}/2");
        let args = ["run", &field.engine.url, "--shard", &shard, "--rendezvous", &place];
        begun(Command::new(PLIMSOLL).args(args).args(&load))
    };
    let both = [shard(0), shard(1)];
    for one in both {
        let ended = ended(one);
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    }
    let merged = plimsoll(&["merge", &place, "-o", &field.at("merged"), "--format", "json"]);
    assert!(matches!(merged.code, 0 | 4), "{}", merged.stderr);
    let all = rows(&field.at("merged"));
    all_waited(&all);
    assert_eq!(all.len(), 150);
    for index in 0..2u64 {
        let own = rows(&Path::new(&place).join(format!("shard-{index}-of-2")).display().to_string());
        assert!(own.iter().all(|row| row.session.is_some_and(|session| session % 2 == index)));
        assert_eq!(own.len(), 75);
    }
    let load: Vec<&str> = load.iter().map(String::as_str).collect();
    let one = field.measured(&[&["run", &field.engine.url][..], &load].concat(), "one");
    all_waited(&one);
    assert_eq!(asked(&all), asked(&one));
    let told = &merged.json()["findings"]["levels"][0]["summary"]["sessions"];
    assert_eq!((told["begun"].as_u64(), told["failed"].as_u64()), (Some(30), Some(0)), "{told}");
}

#[test]
fn sessions_are_sent_again_with_the_same_prompts() {
    let field = Field::new();
    let load = field.load("20");
    let load: Vec<&str> = load.iter().map(String::as_str).collect();
    let first = field.measured(&[&["run", &field.engine.url][..], &load].concat(), "first");
    let again = field.measured(&["rerun", &field.at("first"), "--target", &field.engine.url, "-q"], "again");
    all_waited(&again);
    assert_eq!(asked(&first), asked(&again));
    let blocks = |rows: &[Attempt]| -> Vec<Vec<u64>> {
        by_turn(rows).values().map(|row| row.prompt_blocks.clone()).collect()
    };
    assert_eq!(blocks(&first), blocks(&again));
    assert!(blocks(&first).iter().any(|blocks| blocks.len() > 8));
}

#[test]
fn a_killed_run_of_sessions_keeps_what_was_sent() {
    let field = Field::new();
    let run = field.at("run");
    let mut child = Command::new(PLIMSOLL)
        .args(["run", &field.engine.url, "-o", &run])
        .args(field.load("3"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("the binary starts");
    let log = Path::new(&run).join("records.log");
    until("the log grows", || fs::metadata(&log).is_ok_and(|meta| meta.len() > 12_000));
    child.kill().expect("killed");
    child.wait().expect("ended");
    let shown = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(shown["progress"]["state"], "partial");
    let all = rows(&run);
    assert!(all.len() > 15 && all.len() < 150, "{} rows", all.len());
    // What was never due leaves no row; what was sent came after whole answers.
    let sent: Vec<Attempt> = all.iter().filter(|row| row.outcome.how != How::NeverSent).cloned().collect();
    all_waited(&sent);
    assert!(sent.iter().all(|row| matches!(row.outcome.how, How::Finished | How::Unfinished)));
    // A session with a turn that never ended is as good as failed, as a request is; whole ones have all five turns.
    let of = |n: usize, how: How| {
        let mut count: BTreeMap<u64, usize> = BTreeMap::new();
        for row in sent.iter().filter(|row| row.outcome.how == how) {
            *count.entry(row.session.expect("a session")).or_default() += 1;
        }
        count.values().filter(|turns| **turns >= n).count() as u64
    };
    let sessions = &shown["findings"]["levels"][0]["summary"]["sessions"];
    let told = |name: &str| sessions[name].as_u64().unwrap_or_else(|| panic!("{name}: {sessions}"));
    let whole = sessions["tokens"]["sessions"].as_u64().unwrap_or(0);
    let counts = &shown["findings"]["levels"][0]["summary"]["counts"]["by_outcome"];
    let (open, ended) = (counts["unfinished"].as_u64().unwrap_or(0), of(5, How::Finished));
    assert!(told("failed") <= open && whole <= ended, "{open} {ended} {sessions}");
    assert_eq!(told("begun"), told("failed") + told("not_counted") + whole, "{sessions}");
    let again = plimsoll(&["show", &run, "--format", "json"]).json();
    assert_eq!(&again["findings"]["levels"][0]["summary"]["sessions"], sessions);
}

/// Two sessions that start half a second apart are not 18 requests a second: the rate covers the time in which requests are due.
#[test]
fn a_trace_of_few_sessions_says_the_rate_that_it_asks() {
    let (folder, run) = run_folder();
    let trace = folder.path().join("few.jsonl");
    let row = |session: &str, begins: u32, turn: u32| {
        let after =
            if turn == 0 { String::new() } else { format!(r#","after":["{}"],"wait_ms":3000"#, turn - 1) };
        format!(
            r#"{{"session_id":"{session}","id":"{turn}","timestamp":{begins}{after},"input_length":100,"output_length":9}}"#
        )
    };
    let rows: Vec<String> = [("a", 0), ("b", 560)]
        .iter()
        .flat_map(|(name, begins)| (0..10).map(move |n| row(name, *begins, n)))
        .collect();
    std::fs::write(&trace, rows.join("\n")).expect("written");
    let trace = trace.display().to_string();
    let ended = plimsoll(&["simulate", "--trace", &trace, "-q", "-o", &run, "--format", "json"]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let asked = ended.json()["levels"][0]["load"]["rate_per_s"].as_f64().expect("a rate");
    // 20 requests, the last of them due after 560 ms and nine waits.
    assert!((asked / (20.0 / 27.56) - 1.0).abs() < 1e-6, "{asked}");
    let shown = plimsoll(&["show", &run]);
    assert!(shown.stdout.contains("open loop at 0.726/s"), "{}", shown.stdout);
}
