//! The demo from end to end, and its report in a real browser: no console errors, every plot drawn.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use plimsoll_lab::parts::or_skipped;

use crate::kit::{plimsoll, run_folder};

pub fn chromium() -> Option<&'static str> {
    let found = ["chromium", "chromium-browser", "google-chrome"].into_iter().find(|name| {
        let found = Command::new(name).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        found.is_ok_and(|status| status.success())
    });
    or_skipped(found.ok_or_else(|| "there is no chromium on this machine; no page was looked at".to_owned()))
}

/// Returns the page after its scripts ran, and its console output. `more` is added to the browser's flags.
fn open(browser: &str, page: &Path, more: &[&str]) -> (String, String) {
    let more = [more, &["--virtual-time-budget=4000"]].concat();
    look(browser, &format!("file://{}", page.display()), &more)
}

/// Opens a page at a URL; otherwise like [`open`].
pub fn look(browser: &str, url: &str, more: &[&str]) -> (String, String) {
    let profile = tempfile::tempdir().expect("a temporary folder");
    let output = Command::new(browser)
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .args(more)
        .args(["--dump-dom", url])
        .output()
        .expect("the browser starts");
    let console: Vec<String> = String::from_utf8_lossy(&output.stderr)
        .lines()
        .filter(|line| line.contains("CONSOLE") || line.contains("Refused"))
        .map(String::from)
        .collect();
    (String::from_utf8_lossy(&output.stdout).into_owned(), console.join("\n"))
}

const DESK: &str = "--window-size=1280,1600";
const PHONE: &str = "--window-size=500,900";

/// Checks the accessibility of these pages with a script (`accessible.js`, by WCAG's criteria), light and dark, desktop and phone.
/// They are frames of one page, each as large as the window, because a browser takes seconds to start.
fn assert_accessible(browser: &str, pages: &[PathBuf]) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checked = folder.path().join("checked.html");
    let frames: String = pages.iter().map(|page| frame(page)).collect();
    std::fs::write(&checked, include_str!("accessible.html").replace("FRAMES", &frames)).expect("written");
    for (screen, more) in [(DESK, ""), (PHONE, ""), (DESK, "--force-dark-mode")] {
        let flags: Vec<&str> = [screen, more].into_iter().filter(|flag| !flag.is_empty()).collect();
        let (dom, _) = open(browser, &checked, &flags);
        let found = dom.split("data-found=\"").nth(1).and_then(|rest| rest.split('"').next());
        assert_eq!(found, Some(""), "{flags:?}");
    }
}

/// Returns a page with the checking script, as a frame.
fn frame(page: &Path) -> String {
    let html = std::fs::read_to_string(page).expect("a page");
    // The page's own policy forbids scripts where it has none.
    let policy = html.find("<meta http-equiv").expect("a policy");
    let end = policy + html[policy..].find('>').expect("closed") + 1;
    let script = format!("<script>{}</script></body>", include_str!("accessible.js"));
    let with = format!("{}{}", &html[..policy], &html[end..]).replacen("</body>", &script, 1);
    let quoted = with.replace('&', "&amp;").replace('"', "&quot;");
    let name = page.file_name().expect("a file").display();
    format!("<iframe title=\"{name}\" srcdoc=\"{quoted}\"></iframe>\n")
}

/// Every kind of page that a run, two runs and a plan leave.
#[test]
fn every_page_can_be_read_by_all() {
    let Some(browser) = chromium() else { return };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let at = |name: &str| folder.path().join(name).display().to_string();
    let load = [
        "simulate",
        "--profile",
        "llama-3.1-8b@h100",
        "--rate",
        "12/s",
        "--for",
        "40s",
        "--osl",
        "32",
        "-q",
        "-o",
    ];
    let runs = folder.path().display().to_string();
    let (one, other) = (at("one"), at("other"));
    assert_eq!(plimsoll(&[&load[..], &[&one]].concat()).code, 0);
    assert_eq!(plimsoll(&[&load[..], &[&other, "--fault", "slow:factor=1.6"]].concat()).code, 0);
    let swept = at("sweep");
    let sweep = [
        "simulate",
        "--sweep",
        "--profile",
        "demo",
        "--isl",
        "64",
        "--osl",
        "4",
        "--time",
        "40s",
        "-q",
        "-o",
        &swept,
    ];
    assert_eq!(plimsoll(&sweep).code, 0);
    let plan = [
        "plan",
        "--profile",
        "llama-3.1-8b@h100",
        "--rate",
        "10/s",
        "--isl",
        "256",
        "--osl",
        "32",
        "--slo",
        "ttft p99 < 1s",
        "-q",
    ];
    let pages: [(&str, Vec<&str>); 8] = [
        ("run", vec!["show", &one, "--html", "-o"]),
        ("slow", vec!["show", &other, "--html", "-o"]),
        ("sweep", vec!["show", &swept, "--html", "-o"]),
        ("compare", vec!["compare", &one, &other, "--html"]),
        ("diagnose", vec!["diagnose", &other, "--html"]),
        ("profile", vec!["profile", &one, "--html"]),
        ("browse", vec!["browse", &runs, "-o"]),
        ("plan", [&plan[..], &["--html"]].concat()),
    ];
    let made = pages.iter().map(|(name, args)| {
        let page = at(&format!("{name}.html"));
        let ended = plimsoll(&[&args[..], &[&page]].concat());
        assert!(ended.code < 2 || ended.code == 3, "{args:?} {}", ended.stderr);
        PathBuf::from(page)
    });
    assert_accessible(browser, &made.collect::<Vec<_>>());
}

#[test]
fn the_demo_leaves_a_report_that_draws_itself() {
    let (_folder, run) = run_folder();
    let ended = plimsoll(&["demo", "--time", "14s", "-q", "-o", &run]);
    // A loaded machine may make the measurement invalid (4); its output and files must be complete anyway.
    assert!(ended.code == 0 || ended.code == 4, "{}{}", ended.stdout, ended.stderr);
    for words in ["queueing onset", "stability limit", "budget limit", "report.html"] {
        assert!(ended.stdout.contains(words), "{words} is missing in:\n{}", ended.stdout);
    }
    // The verdict depends on the machine, but a verdict is always printed.
    let said = ended.words();
    let trust = ["All validity checks passed", "The measurement is"].iter().any(|words| said.contains(words));
    assert!(trust, "{}", ended.stdout);
    let page = Path::new(&run).join("report.html");
    let html = std::fs::read_to_string(&page).expect("the report is there");
    for outside in ["http-equiv=\"refresh\"", "src=\"http", "href=\"http", "@import"] {
        assert!(!html.contains(outside), "the page refers to the outside: {outside}");
    }
    let Some(browser) = chromium() else { return };
    let (dom, console) = open(browser, &page, &[DESK]);
    assert_eq!(console, "", "the page complains");
    let specs =
        html.split("id=\"charts\">").nth(1).and_then(|rest| rest.split("</script>").next()).expect("charts");
    let specs: serde_json::Value = serde_json::from_str(specs).expect("charts are JSON");
    let wanted = specs.as_object().expect("by id").len();
    assert!(wanted >= 2, "a sweep has a curve and its throughput, found {wanted} charts");
    assert!(dom.contains(&format!("data-plots=\"{wanted}\"")), "not every plot was drawn");
    assert_eq!(dom.matches("<canvas").count(), wanted, "every plot is a canvas");
}
