//! Snapshots of the output: the findings of one real sweep, as text and as a page.

use plimsoll_measure::findings::{Findings, Held, LevelFinding, Trust};
use plimsoll_measure::server_side::ServerReport;
use plimsoll_model::{Load, Manifest, Span};
use plimsoll_report::html::PageContext;
use plimsoll_report::text::TextDetail;

/// A sweep of the demo engine, shortened to a few of its levels.
const SWEEP: &str = include_str!("../fixtures/sweep.json");

fn sweep() -> (Manifest, Findings) {
    let manifest: Manifest = serde_json::from_str(SWEEP).expect("a manifest");
    let findings =
        serde_json::from_value(manifest.findings.clone().expect("findings")).expect("findings as they are");
    (manifest, findings)
}

#[test]
fn the_terminal_says_the_same_as_ever() {
    let (manifest, findings) = sweep();
    insta::assert_snapshot!(plimsoll_report::text::render(&manifest, &findings, TextDetail::Full));
}

/// The default output fits on a screen, as wide as a terminal, with the result above the prompt.
#[test]
fn the_short_page_is_a_screen_and_ends_in_the_result() {
    let (manifest, findings) = sweep();
    let text = plimsoll_report::text::render(&manifest, &findings, TextDetail::Short);
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines.len() <= 48 && lines.iter().all(|line| line.chars().count() <= 80), "{text}");
    let sentences = plimsoll_report::headline::headline(&findings);
    let last = lines[lines.len() - sentences.len()..].join(" ");
    let result = sentences.last().expect("a result");
    assert!(last.split_whitespace().collect::<Vec<_>>().join(" ").ends_with(result.as_str()), "{text}");
    // Nothing is lost by it.
    let full = plimsoll_report::text::render(&manifest, &findings, TextDetail::Full);
    assert!(full.contains("Checked and fine") && !text.contains("Checked and fine"));
    assert!(full.lines().all(|line| line.chars().count() <= 80), "{full}");
}

/// A limit on requests in flight was reached two seconds into the level. The level is no longer an open loop, and no heading
/// calls it one.
#[test]
fn a_level_that_a_ceiling_closed_is_not_called_open() {
    let (manifest, mut findings) = sweep();
    let open = |level: &LevelFinding| matches!(level.summary.load, Load::Open { .. });
    findings.levels.retain(open);
    findings.levels.truncate(1);
    let summary = &mut findings.levels[0].summary;
    let start = summary.window.start - Span::from_secs_f64(summary.window.warm_up_s);
    summary.generator.closed_since = Some(start + Span::from_secs(2));
    let text = plimsoll_report::text::render(&manifest, &findings, TextDetail::Full);
    let page = plimsoll_report::html::render(&manifest, &findings, PageContext::default());
    for said in [&text, &page] {
        assert!(said.contains("closed by a ceiling since t=2.00 s"), "{text}");
        assert!(!said.contains("open loop"), "{text}");
    }
}

/// A run with a budget begins with its verdict, on the screen and in the first card of the page.
#[test]
fn a_run_with_a_budget_begins_with_its_verdict() {
    let (manifest, mut findings) = sweep();
    findings.lines.clear();
    findings.curves.clear();
    findings.levels.retain(|level| level.summary.budget.is_some());
    findings.levels.truncate(1);
    let first = |findings: &Findings| plimsoll_report::headline::headline(findings).swap_remove(0);
    for (held, says, class) in [
        (Held::Pass, " passes at ", "verdict pass"),
        (Held::Inconclusive, " is inconclusive at ", "verdict inconclusive"),
        (Held::Fail, " is broken at ", "verdict broken"),
    ] {
        let budget = findings.levels[0].summary.budget.as_mut().expect("a budget");
        budget.verdict = held;
        budget.rows[0].verdict = held;
        let said = first(&findings);
        assert!(said.starts_with("The budget (") && said.contains(says), "{said}");
        let page = plimsoll_report::html::render(&manifest, &findings, PageContext::default());
        let card = page.find(&format!("<div class=\"{class}\">")).expect("the card");
        assert!(page.find("<h2").is_some_and(|section| card < section), "the card is first");
    }
    let row = &mut findings.levels[0].summary.budget.as_mut().expect("a budget").rows[0];
    (row.verdict, row.needed, row.share_over.n) = (Held::Inconclusive, Some(900), 400);
    findings.levels[0].summary.budget.as_mut().expect("a budget").verdict = Held::Inconclusive;
    assert!(first(&findings).contains("a verdict needs about 500 more requests ("), "{}", first(&findings));
    findings.levels[0].validity.verdict = Trust::Invalid;
    assert!(first(&findings).contains(" is not judged at "), "{}", first(&findings));
}

#[test]
fn findings_survive_their_json() {
    let (manifest, findings) = sweep();
    let again = serde_json::to_value(&findings).expect("json");
    let read: Findings = serde_json::from_value(again).expect("findings");
    assert_eq!(read, findings);
    // The run is of an older version: counts that it lacks are zero.
    let then: Findings = serde_json::from_value(manifest.findings.expect("findings")).expect("findings");
    assert_eq!(read, then);
}

#[test]
fn the_page_holds_every_figure_and_nothing_from_outside() {
    let (manifest, findings) = sweep();
    let page = plimsoll_report::html::render(&manifest, &findings, PageContext::default());
    for lines in &findings.lines {
        for rate in [lines.onset.rate(), lines.stability.rate()].into_iter().flatten() {
            let figure = plimsoll_report::figure::number(rate.value);
            assert!(page.contains(&figure), "{figure} is not on the page");
        }
    }
    assert!(page.contains("Content-Security-Policy"));
    for outside in ["src=\"http", "href=\"http", "@import", "fetch(", "XMLHttpRequest"] {
        assert!(!page.contains(outside), "the page reaches outside: {outside}");
    }
}

#[test]
fn what_a_target_says_is_text_on_the_page_and_never_markup() {
    let (mut manifest, findings) = sweep();
    let evil = "</script><script>alert(1)</script>";
    manifest.target.url = evil.into();
    manifest.target.facts.insert("model".into(), Some(evil.into()));
    manifest.reproduce = evil.into();
    let page = plimsoll_report::html::render(&manifest, &findings, PageContext::default());
    assert!(!page.contains("<script>alert"), "a target's text became markup");
}

/// Headings that contain a result are shown even without text below them.
#[test]
fn the_verdict_and_the_scrapes_stand_there_without_anything_below_them() {
    let (manifest, mut findings) = sweep();
    findings.validity.reasons.clear();
    findings.validity.passed.clear();
    findings.validity.verdict = Trust::Suspect;
    let server = ServerReport {
        cadence_s: Some(1.0),
        scrapes: 200,
        failed: 0,
        replicas: 1,
        notes: Vec::new(),
        levels: Vec::new(),
    };
    findings.server = Some(server);
    let text = plimsoll_report::text::render(&manifest, &findings, TextDetail::Full);
    let page = plimsoll_report::html::render(&manifest, &findings, PageContext::default());
    for said in ["200 scrapes", "No shown level has server metrics.", "No check applied."] {
        assert!(text.contains(said) && page.contains(said), "{said} is not in {text}");
    }
    assert!(text.contains("Trust: ") && page.contains("Trust in the measurement: "), "{text}");
}
