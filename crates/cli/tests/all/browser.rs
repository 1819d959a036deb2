//! The demo from end to end, and its report in a real browser: no console errors, every plot drawn.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::kit::{plimsoll, run_folder};

fn chromium() -> Option<&'static str> {
    ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    })
}

/// The page after its scripts ran, and what it said on the console.
fn open(browser: &str, page: &Path) -> (String, String) {
    let profile = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(browser)
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--enable-logging=stderr",
            "--virtual-time-budget=4000",
        ])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(["--window-size=1280,1600", "--dump-dom"])
        .arg(format!("file://{}", page.display()))
        .output()
        .expect("the browser starts");
    let console: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains("CONSOLE") || line.contains("Refused"))
        .map(String::from)
        .collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), console.join("\n"))
}

#[test]
fn the_demo_leaves_a_report_that_draws_itself() {
    let (_folder, run) = run_folder();
    let ended = plimsoll(&["demo", "--time", "14s", "-q", "-o", &run]);
    // A loaded machine may make the measurement invalid (4); what it prints and leaves must be whole all the same.
    assert!(ended.code == 0 || ended.code == 4, "{}{}", ended.stdout, ended.stderr);
    for words in ["queueing onset", "stability limit", "budget line", "Trust:", "report.html"] {
        assert!(ended.stdout.contains(words), "{words} is missing in:\n{}", ended.stdout);
    }
    let page = Path::new(&run).join("report.html");
    let html = std::fs::read_to_string(&page).expect("the report is there");
    for outside in ["http-equiv=\"refresh\"", "src=\"http", "href=\"http", "@import"] {
        assert!(!html.contains(outside), "the page refers to the outside: {outside}");
    }
    let Some(browser) = chromium() else {
        eprintln!("SKIPPED: no chromium on this machine; the report was written and not looked at");
        return;
    };
    let (dom, console) = open(browser, &page);
    assert_eq!(console, "", "the page complains");
    let specs =
        html.split("id=\"charts\">").nth(1).and_then(|rest| rest.split("</script>").next()).expect("charts");
    let specs: serde_json::Value = serde_json::from_str(specs).expect("charts are JSON");
    let wanted = specs.as_object().expect("by id").len();
    assert!(wanted >= 2, "a sweep has a curve and its throughput, found {wanted} charts");
    assert!(dom.contains(&format!("data-plots=\"{wanted}\"")), "not every plot was drawn");
    assert_eq!(dom.matches("<canvas").count(), wanted, "every plot is a canvas");
}
