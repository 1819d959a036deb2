//! Tests the files with another reader: pyarrow.

use std::collections::BTreeSet;
use std::process::Command;

use plimsoll_lab::parts::or_skipped;
use plimsoll_model::*;

use crate::kit::{answered, opened, written};

const SCRIPT: &str = r#"
import json, sys
import pyarrow.parquet as pq
requests = pq.read_table(sys.argv[1] + "/requests.parquet")
series = pq.read_table(sys.argv[1] + "/server.parquet")
print(json.dumps({
    "columns": requests.column_names,
    "types": {name: str(requests.schema.field(name).type) for name in
        ["request", "session", "due_ns", "event_offset_ns", "event_kind", "event_coalesced", "outcome", "stage_name"]},
    "rows": requests.slice(0, 3).to_pylist(),
    "offset_sum": sum(sum(x) for x in requests["event_offset_ns"].to_pylist()),
    "kinds": pq.read_schema(sys.argv[1] + "/requests.parquet").metadata[b"plimsoll.event_kinds"].decode(),
    "series": series.to_pylist(),
}))
"#;

/// Rewrites the file in other forms: v2 pages, other codecs and sizes; and by Polars and DuckDB, if installed.
const REWRITE: &str = r#"
import sys
import pyarrow.parquet as pq
source = sys.argv[1] + "/requests.parquet"
table = pq.read_table(source)
out = lambda name: sys.argv[1] + "/" + name + ".rewritten"
pq.write_table(table, out("pyarrow-v2"), compression="zstd", data_page_version="2.0", row_group_size=333)
pq.write_table(table, out("pyarrow-plain"), compression="none", use_dictionary=False, data_page_size=500)
for codec in ["snappy", "gzip", "lz4"]:
    pq.write_table(table, out("pyarrow-" + codec), compression=codec)
try:
    import pandas
    pandas.read_parquet(source).to_parquet(out("pandas"))
except ImportError:
    pass
try:
    import polars
    polars.read_parquet(source).write_parquet(out("polars"))
except ImportError:
    pass
try:
    import duckdb
    duckdb.sql(f"copy (select * from '{source}') to '{out('duckdb')}' (format parquet)")
except ImportError:
    pass
"#;

#[test]
fn files_that_others_rewrote_read_back() {
    let Some(python) = python() else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let mut attempts: Vec<Attempt> = (0..1000).map(|i| answered(i, (i % 6) as usize)).collect();
    attempts[3].session = Some(u64::MAX);
    attempts[3].prompt_blocks = vec![u64::MAX, 1];
    attempts[4].answer.broken = Some(Broken::Repeated);
    attempts[5].level = u32::MAX;
    written(&dir, &attempts, &[]);
    let out = Command::new(&python).args(["-c", REWRITE]).arg(&dir).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let mut by = vec![];
    for entry in std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.extension().is_some_and(|e| e == "rewritten") {
            std::fs::rename(&entry, dir.join("requests.parquet")).unwrap();
            assert!(opened(&dir).attempts == attempts, "{}", entry.display());
            by.push(entry.file_stem().unwrap().to_owned());
        }
    }
    assert!(by.len() >= 2);
    println!("read back what {by:?} rewrote");
}

/// Returns the interpreter, if it has pyarrow.
fn python() -> Option<String> {
    let python = std::env::var("PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import pyarrow.parquet"]).output();
    or_skipped(match found {
        Ok(out) if out.status.success() => Ok(python),
        _ => Err(format!(
            "{python} has no pyarrow (scripts/real-server setup pyarrow, and name its python in PYTHON)"
        )),
    })
}

/// Returns the columns of `requests.parquet` that the documentation lists.
fn documented(page: &str) -> BTreeSet<&str> {
    let section = page.split("\n## ").find(|section| section.starts_with("requests.parquet")).unwrap();
    let rows = section.lines().filter(|line| line.starts_with("| `"));
    let names =
        rows.filter_map(|row| row.split('|').nth(1)).flat_map(|names| names.split('`').skip(1).step_by(2));
    names.collect()
}

#[test]
fn pyarrow_reads_what_was_written() {
    let Some(python) = python() else { return };
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("r");
    let mut attempts: Vec<Attempt> = (0..1000).map(|i| answered(i, (i % 6) as usize)).collect();
    attempts[0].session = Some(u64::MAX);
    attempts[0].answer.text = Some("naïve ✓".into());
    attempts[0].answer.stages = vec![ServerStage { name: "queue".into(), took: Span(-1) }];
    attempts[1].outcome = Outcome::new(How::Timeout, By::Client, true);
    attempts[1].end = None;
    let samples =
        [Sample { at: At(-4), source: "gpu".into(), name: "p".into(), labels: "".into(), value: 0.5 }];
    written(&dir, &attempts, &samples);
    let out = Command::new(&python).args(["-c", SCRIPT]).arg(&dir).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let got: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();

    let seen: BTreeSet<&str> =
        got["columns"].as_array().unwrap().iter().filter_map(|name| name.as_str()).collect();
    let page =
        std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/run-folder.md"))
            .unwrap();
    assert_eq!(seen, documented(&page));
    assert_eq!(
        got["types"],
        serde_json::json!({
            "request": "uint64", "session": "uint64", "due_ns": "int64",
            "event_offset_ns": "list<element: int64 not null>", "event_kind": "list<element: uint8 not null>",
            "event_coalesced": "list<element: bool not null>", "outcome": "string",
            "stage_name": "list<element: string not null>",
        })
    );
    let rows = &got["rows"];
    assert_eq!(rows[0]["session"], u64::MAX);
    assert_eq!(rows[0]["text"], "naïve ✓");
    assert_eq!((&rows[0]["stage_name"][0], &rows[0]["stage_ns"][0]), (&"queue".into(), &(-1).into()));
    assert_eq!(rows[0]["event_offset_ns"], serde_json::json!([]));
    assert_eq!(rows[1]["session"], serde_json::Value::Null);
    assert_eq!((&rows[1]["outcome"], &rows[1]["outcome_by"]), (&"timeout".into(), &"client".into()));
    assert_eq!(rows[1]["end_ns"], serde_json::Value::Null);
    for (i, attempt) in attempts.iter().take(3).enumerate() {
        let row = &rows[i];
        assert_eq!(row["request"], attempt.request);
        assert_eq!(row["due_ns"], attempt.due.0);
        assert_eq!(row["sent_ns"], attempt.sent.unwrap().0);
        let of = |get: fn(&Event) -> serde_json::Value| -> serde_json::Value {
            attempt.events.iter().map(get).collect()
        };
        assert_eq!(row["event_offset_ns"], of(|e| e.offset.0.into()));
        assert_eq!(row["event_kind"], of(|e| (e.kind as u8).into()));
        assert_eq!(row["event_tokens"], of(|e| e.tokens.into()));
        assert_eq!(row["event_coalesced"], of(|e| e.coalesced.into()));
        assert_eq!(row["event_user_delay_ns"], of(|e| e.user_delay_ns.into()));
    }
    let sum: i64 = attempts.iter().flat_map(|a| &a.events).map(|e| e.offset.0).sum();
    assert_eq!(got["offset_sum"], sum);
    assert_eq!(got["kinds"], "content,reasoning,tool_call,role,empty,finish,usage,error,done,body");
    assert_eq!(
        got["series"],
        serde_json::json!([{"at_ns": -4, "source": "gpu", "name": "p", "labels": "", "value": 0.5}])
    );
}
