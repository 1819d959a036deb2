//! Metrics endpoints: real expositions, the corners of both formats, and damaged bytes.

use plimsoll_wire::exposition::{
    CutPage, ExposedValue, Exposition, PageText, check_end, llamacpp_props, llamacpp_slots, sglang_loads,
};
use proptest::prelude::*;

const PAGES: [&[u8]; 6] = [
    include_bytes!("../../fixtures/llama.cpp/metrics_busy_8_on_4_slots.txt"),
    include_bytes!("../../fixtures/vllm-cpu/metrics_excerpt.txt"),
    include_bytes!("../../fixtures/infinity-emb/metrics.txt"),
    include_bytes!("../../fixtures/triton/metrics_page.txt"),
    include_bytes!("../../fixtures/prometheus/pushgateway_excerpt.txt"),
    include_bytes!("../../fixtures/vllm-h100/metrics_excerpt.txt"),
];

fn read(page: &[u8]) -> Exposition {
    plimsoll_wire::exposition::read(page).expect("a whole page")
}

fn value(page: &[u8], name: &str, label: Option<(&str, &str)>) -> f64 {
    let is = |row: &&ExposedValue| {
        row.name == name
            && label.is_none_or(|(key, value)| row.labels.iter().any(|(k, v)| k == key && v == value))
    };
    let rows = read(page).rows;
    let found: Vec<&ExposedValue> = rows.iter().filter(is).collect();
    assert_eq!(found.len(), 1, "{name} {label:?}");
    found[0].value
}

fn bits(values: impl IntoIterator<Item = f64>) -> Vec<u64> {
    values.into_iter().map(f64::to_bits).collect()
}

/// Parsing an exposition by its known text gives the result of a full parse, also for others with this text.
#[test]
fn a_page_that_is_read_again_says_the_same() {
    for page in PAGES {
        let all = read(page).rows;
        let (text, rows) = PageText::of(page, |_| true).expect("values and nothing else");
        assert_eq!(rows.len(), all.len());
        let known = text.values(page).expect("its own text");
        assert_eq!(bits(known), bits(all.iter().map(|row| row.value)));
        let (text, _) = PageText::of(page, |row| row.name == all[0].name).expect("the same");
        let wanted = all.iter().filter(|row| row.name == all[0].name).map(|row| row.value);
        assert_eq!(bits(text.values(page).expect("its own text")), bits(wanted));
    }
    let (text, _) = PageText::of(b"# x\na 1\nb{l=\"1\"} 2\n# end\n", |_| true).expect("a page");
    assert_eq!(text.values(b"# x\na -3.5\nb{l=\"1\"} +Inf\n# end\n"), Some(vec![-3.5, f64::INFINITY]));
    for other in ["# x\na 1\nb{l=\"2\"} 2\n# end\n", "# x\na 1\n", "# x\na 1 7\nb{l=\"1\"} 2\n# end\n", ""] {
        assert_eq!(text.values(other.as_bytes()), None, "{other}");
    }
    assert!(PageText::of(b"a 1 1700000000\n", |_| true).is_none(), "a stamp is another one each time");
}

#[test]
fn real_pages_are_read_whole() {
    for page in PAGES {
        let reading = read(page);
        let lines = String::from_utf8_lossy(page)
            .lines()
            .filter(|line| !line.starts_with('#') && !line.trim().is_empty() && !line.contains("_created"))
            .count();
        assert_eq!((reading.rows.len(), reading.skipped), (lines, 0));
    }
    assert_eq!(value(PAGES[0], "llamacpp:requests_processing", None), 4.0);
    assert_eq!(value(PAGES[1], "vllm:request_success_total", Some(("finished_reason", "length"))), 18.0);
    assert_eq!(value(PAGES[5], "vllm:generation_tokens_total", None), 125_079.0);
    assert_eq!(value(PAGES[3], "nv_inference_queue_duration_us", Some(("model", "slowid"))), 154_388.0);
}

#[test]
fn the_corners_of_both_formats() {
    let page = br#"# TYPE a counter
a_total{path="C:\\dir \"x\"\n",le="+Inf",} 1.5e3 1395066363000
b 1 # {trace_id="x"} 0.67 1520879607.789
c{} NaN
d{x="1"}+Inf
e -Inf 12
"quoted" 1
{"http.server.duration",code="200"} 7
a_created{path="y"} 1.7e9
# EOF
"#;
    let page = String::from_utf8_lossy(page).replace('\n', "\r\n");
    let reading = read(page.as_bytes());
    let names: Vec<&str> = reading.rows.iter().map(|row| row.name.as_str()).collect();
    assert_eq!((names, reading.skipped), (vec!["a_total", "b", "c", "d", "e", "http.server.duration"], 1));
    let labels = [("path".to_owned(), "C:\\dir \"x\"\n".to_owned()), ("le".to_owned(), "+Inf".to_owned())];
    assert_eq!((reading.rows[0].labels.as_slice(), reading.rows[0].value), (&labels[..], 1500.0));
    assert!(reading.rows[2].value.is_nan());
    assert_eq!((reading.rows[3].value, reading.rows[4].value), (f64::INFINITY, f64::NEG_INFINITY));
}

#[test]
fn of_a_page_only_the_names_that_are_wanted_are_read() {
    let page =
        b"a 1\nb{x=\"1\"} 2\nb{x=\"2\"} 3\na 4\n{\"b\",x=\"3\"} 5\n{\"c\"} 6\nb{broken 7\nc nonsense\n";
    let asked = std::cell::Cell::new(0);
    let reading = plimsoll_wire::exposition::read_of(page, |name| {
        asked.set(asked.get() + 1);
        name == "b"
    });
    let reading = reading.expect("a whole page");
    let values: Vec<f64> = reading.rows.iter().map(|row| row.value).collect();
    assert_eq!((values, reading.skipped), (vec![2.0, 3.0, 5.0], 1));
    assert_eq!(asked.get(), 7, "once for lines of one name that follow each other");
}

#[test]
fn lines_that_are_none_are_skipped_and_counted() {
    let page = "ok 1\n<html>\nx{y=\"1\" 3\nz{y=1} 3\nw infinity\nv\nu{=\"a\"} 1\n";
    let reading = read(page.as_bytes());
    assert_eq!((reading.rows.len(), reading.skipped), (1, 6));
    assert_eq!(read(b"").rows.len(), 0);
}

/// An exposition that ends inside a line or inside a histogram is rejected, so that it gives no counts.
#[test]
fn a_page_whose_end_is_missing_is_no_page() {
    let page = PAGES[1];
    let text = String::from_utf8_lossy(page);
    let histograms = ["_bucket{", "_sum{", "_count{"];
    let mut cuts = [0, 0];
    for end in 1..page.len() {
        let cut = &page[..end];
        let last = text[..end].lines().rfind(|line| !line.starts_with('#')).unwrap_or_default();
        let next = text[end..].lines().find(|line| !line.starts_with('#')).unwrap_or_default();
        let stem = |line: &str| {
            histograms.iter().find_map(|part| line.split_once(part)).map(|(stem, _)| stem.to_owned())
        };
        let is_line = !cut.ends_with(b"\n") && !last.is_empty();
        // Counts precede sums here, so that after both nothing is missing.
        let is_histogram = last.contains("_bucket{") && stem(last) == stem(next);
        // An exposition that ends inside its first sample has nothing to count.
        let has_sample = text[..end].lines().filter(|line| !line.starts_with('#')).count() > 1;
        if has_sample && (is_line || is_histogram) {
            cuts[usize::from(!is_line)] += 1;
            assert!(plimsoll_wire::exposition::read(cut).is_err(), "cut at {end}: {last}");
            assert!(PageText::of(cut, |_| true).is_none());
            assert!(plimsoll_wire::exposition::read_of(cut, |name| name.ends_with("_running")).is_err());
        }
    }
    assert!(cuts[0] > 1_000 && cuts[1] > 10, "{cuts:?}");
    let (known, _) = PageText::of(b"a 1\nb 22\n", |_| true).expect("a page");
    assert_eq!(known.values(b"a 1\nb 2"), None, "perhaps 22");
}

#[test]
fn a_page_says_what_is_missing() {
    let why = |page: &str| plimsoll_wire::exposition::read(page.as_bytes()).err().map(|cut| cut.to_string());
    let bucket = "h_bucket{m=\"a\",le=\"1\"} 2\n";
    assert_eq!(why("a 1\nb 12").as_deref(), Some("the page was cut short: it ends inside a line"));
    for page in [
        bucket.to_owned(),
        format!("{bucket}h_count{{m=\"a\"}} 2\n"),
        format!("{bucket}h_bucket{{m=\"a\",le=\"+Inf\"}} 2\nh_sum{{m=\"a\"}} 2\n"),
        // Parts of another histogram.
        format!("{bucket}h_bucket{{le=\"+Inf\",m=\"b\"}} 2\nh_count{{m=\"b\"}} 2\n"),
        format!("{bucket}h_bucket{{le=\"+Inf\",m=\"a\"}} 2\nh_count{{m=\"b\"}} 2\n# EO\n"),
    ] {
        assert!(why(&page).is_some_and(|why| why.contains("histogram h ")), "{page}");
    }
    // Complete ones: counts first, the mark of OpenMetrics (without a final newline), a login page, a gauge with a histogram's name.
    for page in [
        format!("h_count{{m=\"a\"}} 2\n{bucket}h_bucket{{le=\"+Inf\",m=\"a\"}} 2\n"),
        format!("{bucket}# EOF"),
        format!("{bucket}# EOF\n"),
        "<html><body>Sign in</body></html>".to_owned(),
        "token_bucket{user=\"a\"} 3\n".to_owned(),
        "a 1\n# HELP b of what has not happened yet\n# TYPE b counter\n".to_owned(),
        String::new(),
    ] {
        assert_eq!(why(&page), None, "{page}");
    }
    let open = Some("application/openmetrics-text; version=1.0.0");
    assert_eq!(check_end(b"a 1\n", open), Err(CutPage::NoEof));
    assert_eq!(check_end(b"a 1\n# EOF\n", open), Ok(()));
    assert_eq!(check_end(b"a 1\n", Some("text/plain")), Ok(()));
}

#[test]
fn json_pages_of_servers() {
    let body = br#"{"timestamp":"t","loads":[{"dp_rank":1,"num_running_reqs":3,"num_waiting_reqs":2,"max_total_num_tokens":100,
        "token_usage":0.5,"name":"x"},{"dp_rank":0,"max_total_num_tokens":0,"num_running_reqs":0}]}"#;
    let rows = sglang_loads(body);
    assert_eq!(rows.len(), 4);
    assert!(rows.iter().all(|row| row.labels == [("dp_rank".to_owned(), "1".to_owned())]));
    assert!(rows.iter().any(|row| row.name == "sglang_loads_num_waiting_reqs" && row.value == 2.0));
    assert!(sglang_loads(br#"{"loads":[]}"#).is_empty() && sglang_loads(b"[").is_empty());
    assert_eq!(llamacpp_props(br#"{"total_slots":4,"model_path":"x"}"#)[0].value, 4.0);
    let slots = llamacpp_slots(br#"[{"id":0,"is_processing":true},{"id":1,"is_processing":false}]"#);
    assert_eq!((slots[0].value, slots[1].value), (2.0, 1.0));
    assert!(llamacpp_slots(br#"[{"id":0}]"#).is_empty() && llamacpp_slots(b"[]").is_empty());
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..2_000)) {
        let lines = String::from_utf8_lossy(&bytes).lines().count();
        if let Ok(reading) = plimsoll_wire::exposition::read(&bytes) {
            prop_assert!(reading.rows.len() + reading.skipped <= lines);
        }
        let _ = (sglang_loads(&bytes), llamacpp_props(&bytes), llamacpp_slots(&bytes));
    }

    /// A real exposition with bytes changed, cut out or repeated somewhere.
    #[test]
    fn a_damaged_page_is_read(
        which in 0..PAGES.len(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0usize..3), 1..20),
    ) {
        let mut page = PAGES[which].to_vec();
        for (at, byte, how) in changes {
            let at = at.index(page.len());
            match how {
                0 => page[at] = byte,
                1 => _ = page.remove(at),
                _ => page.insert(at, byte),
            }
        }
        let reading = plimsoll_wire::exposition::read(&page);
        prop_assert!(reading.iter().flat_map(|reading| &reading.rows).all(|row| !row.name.is_empty()));
        // By the text of the undamaged exposition: an equal result, or none.
        let known = PageText::of(PAGES[which], |_| true).and_then(|(text, _)| text.values(&page));
        let reading = reading.unwrap_or_default();
        if let Some(values) = known {
            prop_assert_eq!(bits(values), bits(reading.rows.iter().map(|row| row.value)));
        }
    }
}
