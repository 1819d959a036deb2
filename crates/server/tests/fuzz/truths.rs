//! Fuzzes the truth log of an engine: a log that parses is written back unchanged.

use plimsoll_server::truth::read;
use serde_json::to_string;

pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok((header, records)) = read(text) else { return };
    let mut lines = vec![to_string(&header).expect("a header")];
    lines.extend(records.iter().map(|record| to_string(record).expect("a record")));
    let (again, those) = read(&lines.join("\n")).expect("what was written");
    assert_eq!((again, those), (header, records));
}
