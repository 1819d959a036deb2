//! Tables of other tools: cells of SQLite databases, with missing tables and columns.

use std::path::Path;

use plimsoll_model::AttributeValue::{self, Int, Real, Text};
use plimsoll_store::ExportedTables;
use rusqlite::Connection;

type Row = Vec<Option<AttributeValue>>;

fn rows(path: &Path, table: &str, columns: &[&'static str]) -> Option<Vec<Row>> {
    let mut rows = Vec::new();
    let tables = ExportedTables::open(path).expect("opened");
    let any = tables.each_row(table, columns, &mut |row| rows.push(row.to_vec())).expect("read");
    any.then_some(rows)
}

#[test]
fn cells_have_the_type_of_their_value() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("a.sqlite");
    let database = Connection::open(&path).expect("created");
    let made =
        "CREATE TABLE t (start INTEGER, \"end\" INTEGER, text, extra BLOB); CREATE TABLE empty (start);
        INSERT INTO t VALUES (1, 9223372036854775807, 'a', x'00'), (-2, NULL, 1.5, 'b')";
    database.execute_batch(made).expect("written");
    drop(database);
    assert!(ExportedTables::is_at(&path, "any"));
    let read = rows(&path, "t", &["end", "missing", "text", "extra"]).expect("the table");
    assert_eq!(
        read,
        [
            vec![Some(Int(i64::MAX)), None, Some(Text("a".into())), None],
            vec![None, None, Some(Real(1.5)), Some(Text("b".into()))],
        ]
    );
    assert_eq!(rows(&path, "empty", &["start"]), Some(Vec::new()));
    assert_eq!(rows(&path, "absent", &["start"]), None);
    // Opening creates no file.
    assert!(ExportedTables::open(&folder.path().join("nowhere.sqlite")).is_err());
    assert!(!folder.path().join("nowhere.sqlite").exists());
}
