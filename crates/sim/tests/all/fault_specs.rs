//! Faults and fleets in files: both forms are equal, and errors list the valid values.

use plimsoll_model::Span;
use plimsoll_sim::spec::fault::{FAULT_KINDS, check};
use plimsoll_sim::{
    ColdStartSpec, FaultKind, FaultSpec, FleetSpec, LawSpec, World, WorldSpec, catalogue::profile,
};

use crate::util::queue;

fn of_file(json: &str) -> Result<FaultSpec, serde_json::Error> {
    serde_json::from_str(json)
}

/// One line of each kind.
const LINES: [&str; 17] = [
    "slow:factor=3,at=20s,for=5s,replica=1",
    "noisy:factor=2,on=1s,off=4s",
    "stall:at=20s,for=2s,every=10s,times=3",
    "host_bound:step=500us",
    "kv_pressure:share=0.5",
    "cache_flush:every=30s",
    "crash:for=20s,notice=3s",
    "lost:at=1m,replica=0",
    "connection_limit:limit=8,backlog=4",
    "batch_window:window=50ms",
    "error:share=0.1,status=503,retry_after=2s",
    "reset:share=0.01",
    "rate_limit:rate=5,burst=10,retry_after=1s",
    "disconnect:share=0.05,tokens=7",
    "buffering:every=200ms,tokens=16",
    "dependency:delay=30ms,spread=exponential",
    "scale_to_zero:idle=1m",
];

#[test]
fn every_kind_is_read_and_written_back_the_same() {
    let kinds: Vec<&str> = LINES.iter().map(|line| line.split(':').next().unwrap()).collect();
    assert_eq!(kinds, FAULT_KINDS);
    for line in LINES {
        let fault = FaultSpec::parse(line).unwrap_or_else(|e| panic!("{line}: {e}"));
        assert_eq!(FaultSpec::parse(&fault.to_string()).unwrap(), fault, "{line}");
        let json = serde_json::to_string(&fault).unwrap();
        assert_eq!(of_file(&json).unwrap(), fault, "{json}");
    }
}

#[test]
fn a_line_and_a_map_say_the_same() {
    let line = FaultSpec::parse("slow:factor=3,at=20s,for=5s,replica=1").unwrap();
    let map = of_file(r#"{"kind":"slow","factor":3,"at":"20s","for":"5s","replica":1}"#).unwrap();
    assert_eq!(line, map);
    assert_eq!(line.kind, FaultKind::Slow { factor: 3.0 });
    assert_eq!((line.at, line.lasts, line.replica), (Span::from_secs(20), Some(Span::from_secs(5)), Some(1)));
}

#[test]
fn what_is_not_known_is_refused_with_what_is() {
    let refused = |line: &str| FaultSpec::parse(line).unwrap_err().to_string();
    assert_eq!(
        refused("slowly:factor=3"),
        "unknown fault \"slowly\"; there are: slow, noisy, stall, host_bound, kv_pressure, cache_flush, crash, lost, \
         connection_limit, batch_window, error, reset, rate_limit, disconnect, buffering, dependency, scale_to_zero"
    );
    assert_eq!(
        refused("slow:factor=3,until=5s"),
        "slow: unknown parameter \"until\"; allowed: factor, at, for, replica"
    );
    assert_eq!(refused("slow:at=3s"), "slow: factor is missing: how many times as long, such as factor=3");
    assert_eq!(refused("slow:factor=0.5"), "slow: factor: \"0.5\" is not a number from 1 to 1000000");
    assert_eq!(
        refused("stall:at=20,for=2s"),
        "stall: at: \"20\" is not a span of time such as 250ms, 20s or 1m30s"
    );
    assert_eq!(refused("stall:at=20s"), "stall: for is missing: how long it lasts, such as for=2s");
    assert_eq!(refused("stall:for=2s,every=2s"), "stall: every must be longer than for, or it never ends");
    assert_eq!(refused("error:share=1.5"), "error: share: \"1.5\" is not a share over 0, at most 1");
    assert_eq!(
        refused("error:share=0.5,status=200"),
        "error: status: \"200\" is not an HTTP status from 400 to 599"
    );
    assert_eq!(refused("buffering"), "buffering: every is missing: give every=200ms, tokens=16 or both");
    assert!(
        of_file(r#"{"factor":3}"#).unwrap_err().to_string().starts_with("kind is missing; there are: slow, ")
    );
}

#[test]
fn a_fault_after_the_end_is_refused() {
    let faults =
        [FaultSpec::parse("slow:factor=2").unwrap(), FaultSpec::parse("stall:at=1m,for=2s").unwrap()];
    assert!(check(&faults, Span::from_secs(61)).is_ok());
    assert_eq!(
        check(&faults, Span::from_secs(60)).unwrap_err().to_string(),
        "fault stall: it begins at 1m, and the load ends at 1m; begin it earlier or run longer"
    );
}

fn world_error(spec: &WorldSpec) -> String {
    World::of(spec, 1).expect_err("refused").to_string()
}

#[test]
fn a_world_that_can_not_be_is_refused() {
    let servers = queue(1, LawSpec::Deterministic { ms: 1.0 }, None);
    let with = |fault: &str| WorldSpec {
        faults: vec![FaultSpec::parse(fault).unwrap()],
        ..WorldSpec::one(servers.clone())
    };
    assert_eq!(
        world_error(&with("slow:factor=2")),
        "fault slow: it acts on an engine's steps; use an engine of kind batching or dynamic"
    );
    assert_eq!(
        world_error(&with("reset:share=1,replica=1")),
        "fault reset: there is no replica 1; the last is 0"
    );
    let none =
        WorldSpec { fleet: FleetSpec { replicas: 0, ..FleetSpec::default() }, ..WorldSpec::one(servers) };
    assert_eq!(
        world_error(&none),
        "fleet.replicas: 0 is not at least 1; only an autoscaler scales from none"
    );
}

#[test]
fn a_world_is_read_from_a_file_and_unknown_keys_are_refused() {
    let json = r#"{
        "engine": {"mode": {"kind": "queue", "servers": 1, "service": {"law": "deterministic", "ms": 5}}},
        "fleet": {"replicas": 4, "route": {"policy": "prefix", "bound": 1.5}, "load_information_delay": "250ms"},
        "faults": ["reset:share=0.5", {"kind": "dependency", "delay": "30ms"}]
    }"#;
    let spec: WorldSpec = serde_json::from_str(json).unwrap();
    assert_eq!((spec.fleet.replicas, spec.faults.len()), (4, 2));
    assert_eq!(spec.fleet.load_information_delay, Span::from_millis(250));
    let written: WorldSpec = serde_json::from_str(&serde_json::to_string(&spec).unwrap()).unwrap();
    assert_eq!(written, spec);
    let unknown = json.replace("\"replicas\"", "\"replica_count\"");
    assert!(serde_json::from_str::<WorldSpec>(&unknown).is_err());
}

/// 30 s image + 16.06 GB over the default of 2 GB/s (8.03 s) + 40 s compile = 78.03 s. A disk of 1 GB/s behind a link
/// of 10 takes 16.06 s for the weights.
#[test]
fn a_cold_start_is_the_sum_of_its_parts() {
    let llama = profile::find("llama-3.1-8b@h100").expect("known").spec;
    let total = ColdStartSpec::default().total(&llama).as_secs_f64();
    assert!((total - 78.03).abs() < 0.01, "{total}");
    let spec = ColdStartSpec {
        provision: Span::from_secs(100),
        disk_gb_per_s: Some(1.0),
        network_gb_per_s: Some(10.0),
        first_request: Span::from_millis(500),
        ..ColdStartSpec::default()
    };
    let total = spec.total(&llama).as_secs_f64();
    assert!((total - 186.56).abs() < 0.01, "{total}");
    let given = ColdStartSpec { weights_gb: Some(4.0), ..ColdStartSpec::default() };
    assert_eq!(given.restart(&llama), Span::from_secs(42));
}
