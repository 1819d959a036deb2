//! Bytes per second at which result files of other tools are read, one core; goal: 300 MB/s.

#![expect(clippy::print_stdout, clippy::disallowed_methods, reason = "a bench that prints its figures")]

use std::time::Instant;

use plimsoll_interop::results::{ForeignFeed, assemble, sniff};

/// About so many bytes of each.
const BYTES: usize = 128 << 20;

fn main() {
    // Cargo calls benches without `--bench` when it tests, and test runners with `--list`.
    if !std::env::args().any(|word| word == "--bench") {
        return;
    }
    let point = |metric: &str, value: &str| {
        format!(
            "{{\"metric\":\"{metric}\",\"type\":\"Point\",\"data\":{{\"time\":\"2026-11-23T03:32:36.801160981Z\",\"value\":{value},\
             \"tags\":{{\"expected_response\":\"true\",\"group\":\"\",\"method\":\"POST\",\"name\":\"chat\",\"scenario\":\"open\",\
             \"status\":\"200\",\"url\":\"chat\"}}}}}}\n"
        )
    };
    let k6 = point("http_reqs", "1")
        + &point("http_req_duration", "10.125989")
        + &point("http_req_waiting", "9.860225");
    let gaps = vec!["0.6137209999999999"; 128].join(",");
    let aiperf = format!(
        "{{\"metadata\":{{\"credit_issued_ns\":1795404583142549327,\"request_start_ns\":1795404583143822487,\
         \"request_end_ns\":1795404583158492477,\"benchmark_phase\":\"profiling\"}},\"metrics\":{{\"time_to_first_token\":\
         {{\"value\":7.886749,\"unit\":\"ms\"}},\"inter_chunk_latency\":{{\"value\":[{gaps}],\"unit\":\"ms\"}}}}}}\n"
    );
    let n = BYTES / 2600;
    let list = |one: &str| vec![one; n].join(", ");
    let vllm = format!(
        "{{\"endpoint_type\": \"openai\", \"request_throughput\": 1.0, \"output_lens\": [{}], \"ttfts\": [{}], \"itls\": [{}], \
         \"latencies\": [{}], \"start_times\": [{}]}}",
        list("129"),
        list("0.004481082999973296"),
        list(&format!("[{gaps}]")),
        list("0.08869388499994784"),
        list("1036.028811928")
    );
    for (name, bytes) in [
        ("k6 json", k6.repeat(BYTES / k6.len())),
        ("AIPerf", aiperf.repeat(BYTES / aiperf.len())),
        ("vLLM", vllm),
    ] {
        let begun = Instant::now();
        let head = bytes.as_bytes().get(..64 << 10).unwrap_or_default();
        let Some(kind) = sniff(head) else {
            println!("{name}: not known");
            continue;
        };
        let mut feed = ForeignFeed::new(kind);
        bytes.as_bytes().chunks(1 << 20).for_each(|piece| feed.push(piece));
        let requests =
            assemble(&[feed.end()]).map_or(0, |read| read.parts.iter().map(|part| part.rows.len()).sum());
        let took = begun.elapsed().as_secs_f64();
        println!(
            "{name:8} {:5.0} MB/s, {requests} requests of {} MB",
            bytes.len() as f64 / 1e6 / took,
            bytes.len() / 1_000_000
        );
    }
}
