//! The self-test as its users start it. Times are this machine's business; what was sent, and how each request ended, is not.

use serde_json::Value;

use crate::kit::plimsoll_in;

#[test]
fn what_was_sent_is_what_was_asked_and_the_page_says_so() {
    let folder = tempfile::tempdir().expect("a folder");
    let ended = plimsoll_in(folder.path(), &["selftest", "-q", "-o", "page.html", "--format", "json"]);
    assert!(matches!(ended.code, 0 | 4), "{} {}", ended.code, ended.stderr);
    let found: Value = ended.json();
    let rows = || ["sent", "printed"].into_iter().flat_map(|part| found[part].as_array().expect("rows"));
    assert_eq!(rows().count(), 17, "{found:#}");
    for check in [
        "every request once",
        "lengths",
        "no prompt twice, for a cache to answer",
        "every request once, while some fail",
        "how each ended",
    ] {
        let row = rows().find(|row| row["check"] == check).unwrap_or_else(|| panic!("no {check}"));
        assert_eq!(row["holds"], true, "{row}");
    }
    let page = std::fs::read_to_string(folder.path().join("page.html")).expect("a page");
    assert!(
        page.contains("Printed figures against true figures")
            && page.contains("every request once, while some fail")
    );
    // All temporary files are removed.
    assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 1);
}
