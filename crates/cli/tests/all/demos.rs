//! The demos that are named: what they print is what they measured.

use crate::kit::plimsoll;

#[test]
fn the_gateways_demo_puts_two_measured_ways_side_by_side() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("demo").display().to_string();
    let ended = plimsoll(&["demo", "gateway", "--time", "12s", "-q", "--format", "json", "-o", &out]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    let told = ended.json();
    let met = |way: &str| told[way]["met"].clone();
    let requests = met("round_robin")["counts"]["requests"].as_u64().expect("a count");
    assert!(requests > 50, "{requests}");
    assert_eq!(met("gateway")["counts"]["requests"].as_u64(), Some(requests), "the same requests");
    for way in ["round_robin", "gateway"] {
        let taken: Vec<u64> = told[way]["replicas"]
            .as_array()
            .expect("replicas")
            .iter()
            .map(|replica| replica["requests"].as_u64().expect("a count"))
            .collect();
        assert_eq!(taken.len(), 3, "{taken:?}");
        assert!(taken.iter().sum::<u64>() >= requests, "{taken:?}");
    }
    // Round robin gives each replica a third, minus a few that a slow replica did not get.
    let each = told["round_robin"]["replicas"].as_array().expect("replicas");
    let least = each.iter().filter_map(|replica| replica["requests"].as_u64()).min().expect("three");
    assert!(4 * least >= requests, "{each:?}");
    // Both are runs like any.
    for way in ["round-robin", "gateway"] {
        let shown = plimsoll(&["show", &format!("{out}/{way}"), "--format", "json"]);
        assert_eq!(shown.json()["levels"][0]["arrivals"].as_u64(), Some(requests), "{way}");
    }
    let again = plimsoll(&["demo", "gateway", "-o", &out]);
    assert_eq!(again.code, 2);
    assert!(again.stderr.contains("it exists"), "{}", again.stderr);
}

/// Too short for an alert, which takes minutes: the rows are judged, the page is served, and the demo's own verdict is none.
#[test]
fn the_watchs_demo_judges_a_page_and_says_what_was_done() {
    let folder = tempfile::tempdir().expect("a folder");
    let out = folder.path().join("demo").display().to_string();
    let ended = plimsoll(&["demo", "watch", "--time", "14s", "-o", &out]);
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(ended.stderr.contains("http://127.0.0.1:"), "where its page is: {}", ended.stderr);
    assert!(ended.stderr.contains("The fault: from about +7s on"), "{}", ended.stderr);
    for row in ["ttft p95 ≤ 100 ms", "itl p95 ≤ 25 ms"] {
        assert!(ended.stdout.contains(row), "{}", ended.stdout);
    }
}
