//! The pages of a diagnosis and of a run's server side contain the same figures as the JSON.

use std::path::Path;

use serde_json::Value;

use super::kit::{plimsoll, run_folder};

/// Returns a text as escaped on a page.
fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

fn texts<'a>(list: &'a Value, key: &str) -> Vec<&'a str> {
    list.as_array().expect("a list").iter().map(|one| one[key].as_str().expect("text")).collect()
}

#[test]
fn a_diagnosis_as_a_page_says_all_that_its_json_says() {
    let (folder, before) = run_folder();
    let after = folder.path().join("after").to_str().expect("utf-8").to_owned();
    let page = folder.path().join("page.html").to_str().expect("utf-8").to_owned();
    let run = |rate: &str, at: &str| {
        let ended =
            plimsoll(&["simulate", "--profile", "demo", "--rate", rate, "--for", "30s", "-q", "-o", at]);
        assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    };
    run("20/s", &before);
    run("90/s", &after);
    let judged = ["diagnose", &after, "--baseline", &before, "--format", "json", "--html", &page];
    let said = plimsoll(&judged).json();
    assert_eq!(said["answer"], "found", "{said}");
    let html = std::fs::read_to_string(&page).expect("a page");
    let verdict = &said["verdicts"][0];
    let mut wanted = vec![said["verdicts"][0]["layer"].as_str().expect("a layer").replace('_', " ")];
    wanted.extend(["says", "do_first", "do_not"].map(|key| verdict[key].as_str().expect("text").to_owned()));
    wanted.extend(texts(&verdict["evidence"], "says").into_iter().map(str::to_owned));
    wanted.extend(texts(&said["questions"], "says").into_iter().map(str::to_owned));
    wanted.extend(texts(&said["cleared"], "says").into_iter().map(str::to_owned));
    wanted.extend(texts(&said["missing"], "what").into_iter().map(str::to_owned));
    wanted.extend(verdict["runner_up"]["why"].as_str().map(str::to_owned));
    for text in wanted {
        assert!(html.contains(&escaped(&text)), "not on the page: {text}");
    }
    assert!(!html.contains("<script") && !html.contains("src=\"http"), "nothing runs, nothing is fetched");
    let nowhere = plimsoll(&["diagnose", &after, "--baseline", &before, "--html", "/nowhere/page.html"]);
    assert!(nowhere.code == 2 && nowhere.stderr.contains("/nowhere/page.html"), "{}", nowhere.stderr);
}

/// The drawn time series against the rows of server.parquet, integrated here manually.
#[test]
fn the_servers_course_is_the_mean_of_its_own_rows() {
    let (_folder, run) = run_folder();
    let args =
        ["simulate", "--profile", "demo", "--rate", "50/s", "--for", "20s", "--osl", "64", "-q", "-o", &run];
    assert!(matches!(plimsoll(&args).code, 0 | 4));
    let findings = plimsoll(&["show", &run, "--format", "json"]).json()["findings"].clone();
    let told = &findings["server"]["levels"][0];
    let bucket_s = findings["levels"][0]["summary"]["timeline"]["bucket_s"].as_f64().expect("a timeline");
    let read = plimsoll_store::open(Path::new(&run)).expect("a run");
    let start = read.manifest.levels[0].start;
    let mut rows: Vec<(f64, f64)> = read
        .samples
        .iter()
        .filter(|sample| sample.name == "vllm:num_requests_running")
        .map(|sample| ((sample.at - start).as_secs_f64(), sample.value))
        .collect();
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    let course = told["course"].as_array().expect("a course");
    assert!(course.len() >= 10, "{told}");
    let mut compared = 0;
    for moment in course {
        let middle = moment["at_s"].as_f64().expect("a time");
        let (from, to) = (middle - bucket_s / 2.0, middle + bucket_s / 2.0);
        // The last interval extends past the last scrape: only complete intervals are compared.
        if rows.last().is_none_or(|last| last.0 < to) || rows[0].0 > from {
            continue;
        }
        let mut area = 0.0;
        for (place, (at, value)) in rows.iter().enumerate() {
            let next = rows.get(place + 1).map_or(f64::INFINITY, |next| next.0);
            area += value * (next.min(to) - at.max(from)).max(0.0);
        }
        let said = moment["running"].as_f64().expect("a vLLM tells");
        assert!((said - area / bucket_s).abs() < 1e-6, "at {middle} s: {said}, by hand {}", area / bucket_s);
        compared += 1;
    }
    assert!(compared >= 5, "{compared} of {}", course.len());
    let page = plimsoll(&["report", &run]);
    let html = std::fs::read_to_string(page.stdout.trim()).expect("a page");
    assert!(html.contains("id=\"server-0\"") && html.contains("id=\"server-kv-0\""));
    assert!(html.contains("requests in the server") && html.contains("KV cache in use"), "axes are named");
    assert!(html.contains("unknown (never zero): the most that may run"), "what is not told is named");
}
