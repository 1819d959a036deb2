//! Replica metrics: load of other clients, and metrics that are stale, empty, wrong, slow or missing.

use std::thread::sleep;
use std::time::{Duration, Instant};

use plimsoll_gateway::telemetry::read;
use plimsoll_gateway::{Gateway, GatewaySpec, TelemetrySpec};
use plimsoll_policy::{PageStanding, ReplicaAvailability, RouteSpec};

use crate::failing::keep_asking;
use crate::kit::{Act, Mock, ask, gateway, get, is_empty, until};

/// Selects a policy that counts requests, because learnt speeds would depend on the load of this machine.
fn by_requests(spec: &mut GatewaySpec) {
    spec.route = RouteSpec::LeastRequests {};
}

/// Returns a metrics page with constant content.
fn shows(text: &str) -> Act {
    Act::Text(text.to_owned())
}

fn standing(gateway: &Gateway, replica: usize) -> PageStanding {
    gateway.pool.shown().0[replica].page.standing
}

/// Sends requests with this behaviour on both replicas. Returns the share of the first one; each request is answered
/// once.
fn share_of_first(mocks: [&Mock; 2], gateway: &Gateway, lasts: Duration) -> f64 {
    let before = mocks.map(Mock::count);
    let answers = keep_asking(gateway, lasts);
    assert!(answers.iter().all(|(_, status)| *status == 200), "everybody is answered");
    let [first, second] = [0, 1].map(|place| mocks[place].count() - before[place]);
    assert_eq!(first + second, answers.len(), "and by one replica once");
    let standings = gateway.pool.shown().0.iter().map(|shown| shown.standing).collect::<Vec<_>>();
    assert_eq!(standings, [ReplicaAvailability::Ready; 2], "a page says nothing of who answers");
    is_empty(gateway);
    first as f64 / answers.len() as f64
}

#[test]
fn where_others_have_their_work_fewer_requests_go() {
    let act = || Act::Stream(10, Duration::from_millis(3));
    let (busy, free) = (Mock::new(act()), Mock::new(act()));
    busy.shows(Act::Metrics(40, 30));
    free.shows(Act::Metrics(0, 0));
    let gateway = gateway(&[&busy, &free], |spec| spec.admin = Some(([127, 0, 0, 1], 0).into()));
    until("both pages are read", || (0..2).all(|place| standing(&gateway, place) == PageStanding::Believed));
    let page = gateway.pool.shown().0[0].page;
    assert_eq!((page.others, page.said.and_then(|said| said.kv_usage)), (70, Some(0.5)));
    // The loop is short, because the busy mock answers as fast as the idle one, and the router would learn that.
    assert!((0..12).all(|_| ask(&gateway).status == 200));
    assert_eq!((busy.count(), free.count()), (0, 12), "where seventy requests of others are nothing goes");
    let admin = gateway.admin.expect("asked for");
    let metrics = get(admin, "/metrics", "").text();
    for line in [
        "plimsoll_gateway_replica_page_age_seconds{replica=\"r0\"} ",
        "plimsoll_gateway_replica_page_believed{replica=\"r0\"} 1",
        "plimsoll_gateway_replica_kv_usage{replica=\"r1\"} 0.5",
        "plimsoll_gateway_replica_others_requests{replica=\"r0\"} ",
        "plimsoll_gateway_pages_total{replica=\"r1\",outcome=\"read\"} ",
    ] {
        assert!(metrics.contains(line), "{line} in {metrics}");
    }
    let replicas = get(admin, "/v1/replicas", "").text();
    assert!(replicas.contains("\"standing\":\"believed\""), "{replicas}");
}

/// Any behaviour of the first replica's metrics endpoint leaves the requests unaffected.
#[test]
fn a_page_that_is_none_costs_no_request_and_no_replica() {
    let pages = [
        ("missing", Act::Status(404, "")),
        ("empty", shows("")),
        ("HTML", shows("<!doctype html><html><body>vllm:num_requests_running</body></html>")),
        ("no numbers", shows("vllm:num_requests_running NaN\nvllm:num_requests_waiting -5\n")),
        ("an error", Act::Status(500, "")),
        ("a close", Act::Hang),
        ("hangs", Act::Silence),
        ("a stream without end", Act::Flood(10_000)),
    ];
    for (what, page) in pages {
        let act = || Act::Stream(10, Duration::from_millis(3));
        let (odd, plain) = (Mock::new(act()), Mock::new(act()));
        odd.shows(page);
        plain.shows(Act::Metrics(0, 0));
        let gateway = gateway(&[&odd, &plain], by_requests);
        let began = Instant::now();
        let share = share_of_first([&odd, &plain], &gateway, Duration::from_millis(1_500));
        assert!((0.2..0.8).contains(&share), "{what}: {share}");
        assert!(began.elapsed() < Duration::from_secs(15), "{what}: {:?}", began.elapsed());
        assert_eq!(standing(&gateway, 0), PageStanding::Unknown, "{what}");
        until("the other's page is read", || standing(&gateway, 1) == PageStanding::Believed);
    }
}

/// Both replicas have forty requests of others; the metrics of the first one report none.
#[test]
fn a_page_of_lying_zeros_attracts_no_herd() {
    let act = || Act::Stream(30, Duration::from_millis(20));
    let (liar, honest) = (Mock::new(act()), Mock::new(act()));
    liar.shows(shows("vllm:num_requests_running 0\nvllm:num_requests_waiting 0\n"));
    honest.shows(Act::Metrics(40, 0));
    let gateway = gateway(&[&liar, &honest], by_requests);
    until("both pages are read", || (0..2).all(|place| standing(&gateway, place) == PageStanding::Believed));
    let share = share_of_first([&liar, &honest], &gateway, Duration::from_secs(6));
    assert!(share < 0.8, "{share} went to the one that lies");
    assert!(honest.count() > 10, "{}", honest.count());
}

/// The metrics report seventy requests permanently, although none is left.
#[test]
fn a_page_that_stands_still_starves_nobody_for_long() {
    let act = || Act::Stream(10, Duration::from_millis(3));
    let (stale, plain) = (Mock::new(act()), Mock::new(act()));
    stale.shows(shows(
        "vllm:num_requests_running 40\nvllm:num_requests_waiting 30\nvllm:generation_tokens_total 5\n",
    ));
    plain.shows(Act::Metrics(0, 0));
    let gateway = gateway(&[&stale, &plain], by_requests);
    until("it is seen to stand still", || standing(&gateway, 0) == PageStanding::Still);
    let share = share_of_first([&stale, &plain], &gateway, Duration::from_secs(2));
    assert!((0.2..0.8).contains(&share), "{share}");
}

#[test]
fn a_page_that_hangs_hides_no_replica_that_goes() {
    let (a, b) = (Mock::new(Act::Answer), Mock::new(Act::Answer));
    a.shows(Act::Silence);
    let gateway = gateway(&[&a, &b], |_| {});
    until("its page was asked for", || a.pages.load(std::sync::atomic::Ordering::SeqCst) > 0);
    a.leave();
    until("it is seen to be gone", || !gateway.pool.is_up(0));
    assert!((0..20).all(|_| ask(&gateway).status == 200));
}

#[test]
fn pages_are_read_and_left_alone_as_the_file_says_while_it_runs() {
    let a = Mock::new(Act::Answer);
    a.shows(Act::Metrics(9, 0));
    let asked = || a.pages.load(std::sync::atomic::Ordering::SeqCst);
    let gateway = gateway(&[&a], |spec| spec.telemetry = None);
    sleep(Duration::from_millis(1_300));
    assert_eq!((asked(), standing(&gateway, 0)), (0, PageStanding::Unknown));
    let mut spec = crate::reloads::spec(&[&a]);
    spec.telemetry = Some(TelemetrySpec { every_s: 0.2, ..TelemetrySpec::default() });
    let reloaded = gateway.reloader().reload(&spec).expect("sound");
    assert!(!reloaded.later.contains(&"telemetry".to_owned()), "{reloaded:?}");
    until("it is read", || standing(&gateway, 0) == PageStanding::Believed);
    spec.telemetry = None;
    gateway.reloader().reload(&spec).expect("sound");
    until("nothing of it is kept", || standing(&gateway, 0) == PageStanding::Unknown);
    spec.telemetry = Some(TelemetrySpec { every_s: 60.0, ..TelemetrySpec::default() });
    let refused = gateway.reloader().reload(&spec).expect_err("too seldom").to_string();
    assert!(refused.contains("telemetry.every_s"), "{refused}");
}

#[test]
fn pages_of_every_kind_are_read_by_the_one_vocabulary() {
    let sglang = b"sglang:num_running_reqs{tp_rank=\"0\"} 3\nsglang:num_queue_reqs{tp_rank=\"0\"} 2\nsglang:token_usage 0.25\n";
    let said = read("/metrics", sglang).expect("a page");
    assert_eq!((said.running, said.waiting, said.kv_usage), (Some(3.0), Some(2.0), Some(0.25)));
    let loads = br#"{"loads": [{"dp_rank": 0, "num_running_reqs": 4, "num_waiting_reqs": 1, "max_total_num_tokens": 9}]}"#;
    let said = read("/v1/loads", loads).expect("a page");
    assert_eq!((said.running, said.waiting), (Some(4.0), Some(1.0)));
    let slots = br#"[{"id": 0, "is_processing": true}, {"id": 1, "is_processing": false}]"#;
    assert_eq!(read("/slots", slots).and_then(|said| said.running), Some(1.0));
    assert_eq!(read("/metrics", b"up 1\nprocess_cpu_seconds_total 5\n"), None);
}
