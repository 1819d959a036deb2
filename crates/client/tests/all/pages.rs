//! Tests the discovery of metrics endpoints: other services are never scraped, and keys never reach another host.

use std::net::TcpListener;

use plimsoll_client::metrics::pages::find;
use plimsoll_model::Protocol;
use plimsoll_workload::{ScrapeSpec, TargetSpec};

use crate::server::{Seen, Server, Step, json, write};

/// Response of Triton 2.51 to `/v2`.
const TRITON: &str = r#"{"name":"triton","version":"2.51.0","extensions":["binary_tensor_data"]}"#;
/// Exposition for a model that no other server of this machine has.
const PAGE: &str = "# TYPE nv_inference_request_success counter\n\
    nv_inference_request_success{model=\"of-this-test\",version=\"1\"} 3\n\
    nv_gpu_utilization{gpu_uuid=\"GPU-1\"} 0.5\n";

/// A server, and another one two ports above it.
struct Pair {
    server: Server,
    beside: Server,
}

impl Pair {
    fn new(metadata: &'static str, page: &'static str) -> Pair {
        let (one, two) = (0..200)
            .find_map(|_| {
                let one = TcpListener::bind("127.0.0.1:0").ok()?;
                let above = one.local_addr().ok()?.port().checked_add(2)?;
                Some((one, TcpListener::bind(("127.0.0.1", above)).ok()?))
            })
            .unwrap();
        let server = Server::on(one, move |seen| vec![shown(seen, "/v2", metadata)], None);
        let beside = Server::on(two, move |seen| vec![shown(seen, "/metrics", page)], None);
        Pair { server, beside }
    }

    /// Returns the URLs of the endpoints found.
    fn found(&self, model: Option<&str>) -> Vec<String> {
        let target = TargetSpec {
            url: format!("http://{}/v2", self.server.addr),
            protocol: Protocol::Kserve,
            model: model.map(str::to_owned),
            headers: [("x-key".to_owned(), "of-the-endpoint".to_owned())].into(),
            ..TargetSpec::default()
        };
        let pages = find(&target, &ScrapeSpec::default()).unwrap();
        pages.into_iter().map(|page| page.url).collect()
    }
}

fn shown(seen: &Seen, path: &str, body: &str) -> Step {
    match seen.head.split(' ').nth(1) == Some(path) {
        true => write(format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len())),
        false => json("404 Not Found", "", "{}"),
    }
}

fn keys(server: &Server) -> Vec<bool> {
    server.seen().iter().map(|seen| seen.head.contains("of-the-endpoint")).collect()
}

#[test]
fn the_page_of_a_triton_lies_two_ports_above_it_and_gets_no_keys() {
    let pair = Pair::new(TRITON, PAGE);
    let page = format!("http://{}/metrics", pair.beside.addr);
    assert_eq!(pair.found(Some("of-this-test")), std::slice::from_ref(&page));
    assert_eq!(pair.found(None), [page]);
    assert!(keys(&pair.server).iter().all(|sent| *sent));
    assert_eq!(keys(&pair.beside), [false, false]);
}

#[test]
fn a_neighbour_is_nobody_s_page_unless_it_is_the_server_s() {
    // Another Triton on this host, and an exposition that is not Triton's.
    let other = "nv_inference_request_success{model=\"another\",version=\"1\"} 3\n";
    for page in [other, "vllm:num_requests_running{model=\"of-this-test\"} 1\n", ""] {
        assert!(Pair::new(TRITON, page).found(Some("of-this-test")).is_empty(), "{page}");
    }
    // Without a report as Triton there is no metrics port above, and no request is sent there.
    for metadata in [r#"{"name":"mlserver","version":"1.7.1"}"#, "triton", ""] {
        let pair = Pair::new(metadata, PAGE);
        assert!(pair.found(Some("of-this-test")).is_empty(), "{metadata}");
        assert_eq!(pair.beside.accepted(), 0, "{metadata}");
    }
}

const DCGM: &str = "process_cpu_seconds_total 9\nDCGM_FI_DEV_POWER_USAGE{gpu=\"0\",UUID=\"GPU-1\"} 300\n";

/// A server whose `/metrics` is this page.
fn serving(page: &'static str) -> Server {
    Server::plain(move |seen| vec![shown(seen, "/metrics", page)])
}

/// Returns the names and URLs of the endpoints found beside `url`, with these ports of exporters.
fn beside(url: &str, ports: &[&Server]) -> Vec<(String, String)> {
    let headers = [("x-key".to_owned(), "of-the-endpoint".to_owned())].into();
    let target = TargetSpec { url: url.to_owned(), headers, ..TargetSpec::default() };
    let ports = ports.iter().map(|server| server.addr.port()).collect();
    let pages = find(&target, &ScrapeSpec { ports, ..ScrapeSpec::default() }).unwrap();
    pages.into_iter().map(|page| (page.name, page.url)).collect()
}

#[test]
fn exporters_of_the_machine_are_found_by_their_names_and_get_no_keys() {
    let engine = serving("vllm:num_requests_running 1\n");
    let (gpu, web) = (serving(DCGM), serving("http_requests_total 3\n"));
    let (own, port) = (format!("http://{}/metrics", engine.addr), engine.addr.port());
    let page = format!("http://{}/metrics", gpu.addr);
    for host in ["127.0.0.1", "localhost"] {
        let own = format!("http://{host}:{port}/metrics");
        let found = beside(&format!("http://{host}:{port}/v1"), &[&web, &gpu, &engine]);
        let named = [(format!("{host}:{port}"), own), (gpu.addr.to_string(), page.clone())];
        assert_eq!(found, named);
    }
    assert!(keys(&engine).iter().all(|sent| *sent));
    assert_eq!((keys(&gpu), keys(&web)), (vec![false; 2], vec![false; 2]));
    // Without exporters the endpoint has no name, as before, and no other port is contacted.
    assert_eq!(beside(&own, &[]), [(String::new(), own)]);
    assert_eq!((gpu.accepted(), web.accepted()), (2, 2));
}

#[test]
fn a_port_that_never_answers_delays_a_run_by_a_second() {
    let engine = serving("vllm:num_requests_running 1\n");
    let silent: Vec<Server> = (0..20).map(|_| Server::plain(|_| vec![Step::Hold])).collect();
    let clock = plimsoll_client::Clock::start();
    let found = beside(&format!("http://{}", engine.addr), &silent.iter().collect::<Vec<_>>());
    assert_eq!(found.len(), 1);
    // The waits overlap; in a row they would take twenty seconds.
    assert!(clock.now().as_secs_f64() < 10.0, "{:?}", clock.now());
}
