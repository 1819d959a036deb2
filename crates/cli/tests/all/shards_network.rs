//! Shards as on separate machines: each in a network namespace with its own address behind a bridge.
//! Their monotonic clocks start at different times (as after a boot). They share one wall clock, so they start simultaneously.
//!
//! If the machine does not allow it (no namespaces, no `ip`), the test prints the reason and passes.

use std::collections::BTreeSet;
use std::process::Command;

use super::kit::{PLIMSOLL, plimsoll};
use crate::shards::open;
use crate::shards_search::of_one_machine;

/// Boot delay of each shard's machine, s.
const BOOTS_S: [i64; 4] = [0, 5000, 90_000, 123];

/// Script that checks the requirements: a bridge, a pair of devices, a time namespace.
const POSSIBLE: &str =
    "ip link add br0 type bridge && ip link add v0 type veth peer name e0 && unshare -T --monotonic 5 true";

/// The script of the test: in a namespace with a bridge, an engine on it, then a shard in each of `$N` namespaces behind it.
///
/// `$P` is the binary, `$D` a folder, `$BOOTS` a word for each shard. At the end it prints a line per shard with the packets
/// that went over its own device.
///
/// A shard reports that it is in its namespace before it gets a device, because `unshare` may still be in ours when its process exists.
/// The device would then stay here and the shard would wait for it forever. Every wait has an end, because a waiting process
/// keeps our output open.
const FIELD: &str = r#"
set -e
ip link set lo up
ip link add br0 type bridge && ip addr add 10.78.0.1/24 dev br0 && ip link set br0 up
mkfifo $D/hold
$P engine --profile demo --listen 10.78.0.1:8123 --until-stdin-ends < $D/hold > $D/said & exec 3> $D/hold
for i in $(seq 300); do [ -s $D/said ] && break; sleep 0.1; done
i=0
for boot in $BOOTS; do
  unshare -n -T --monotonic $boot sh -c "ip link set lo up && touch $D/apart-$i
    for k in \$(seq 300); do ip link show eth0 > /dev/null 2>&1 && break; sleep 0.1; done
    ip addr add 10.78.0.$((i + 2))/24 dev eth0 && ip link set eth0 up
    timeout 120 $P run http://10.78.0.1:8123/v1 --shard $i/$N --rendezvous $D/place $LOAD > $D/out-$i 2>&1
    echo \$? > $D/code-$i" &
  pid=$!
  for k in $(seq 300); do [ -e $D/apart-$i ] && break; sleep 0.1; done
  ip link add v$i type veth peer name eth0 netns $pid
  ip link set v$i master br0 && ip link set v$i up
  i=$((i + 1))
done
# The devices go with their namespaces, so the counters are read while the shards live.
for look in $(seq 240); do
  [ $(ls $D | grep -c ^code-) -lt $N ] || break
  for k in $(seq 0 $((N - 1))); do
    ip -s link show v$k > $D/new 2> /dev/null && mv $D/new $D/device-$k || true
  done
  sleep 0.25
done
for k in $(seq 0 $((N - 1))); do
  echo "shard $k code $(cat $D/code-$k) packets $(awk 'received { print $2; exit } /RX:/ { received = 1 }' $D/device-$k)"
done
"#;

fn script(text: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args(["-rn", "sh", "-c", text]);
    command
}

/// Returns the reason why this machine can't run the test; `None` if it can.
fn impossible() -> Option<String> {
    let tried = match script(POSSIBLE).output() {
        Ok(tried) => tried,
        Err(e) => return Some(format!("unshare: {e}")),
    };
    (!tried.status.success()).then(|| String::from_utf8_lossy(&tried.stderr).trim().to_owned())
}

#[test]
fn shards_of_several_machines_begin_together_whenever_they_booted() {
    if let Some(why) = impossible() {
        return eprintln!("SKIPPED, no machines of our own here: {why}");
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("utf-8");
    let load = "--rate 200/s --for 3s --osl 4 --isl 32 --seed 5 --scrape off -q";
    let boots = BOOTS_S.map(|s| s.to_string()).join(" ");
    let of = BOOTS_S.len();
    let ended = script(FIELD)
        .envs([("P", PLIMSOLL), ("D", dir), ("LOAD", load), ("N", &of.to_string())])
        .env("BOOTS", boots)
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&ended.stdout).into_owned();
    let errors = String::from_utf8_lossy(&ended.stderr).into_owned();
    let lines: Vec<&str> = said.lines().filter(|line| line.starts_with("shard ")).collect();
    assert_eq!(lines.len(), of, "{said}{errors}");
    let merged = format!("{dir}/merged");
    let merge = plimsoll(&["merge", &format!("{dir}/place"), "-o", &merged, "--format", "json"]);
    assert!(matches!(merge.code, 0 | 4), "{}{said}", merge.stderr);
    let run = open(&merged);
    // The arrivals equal one machine's schedule, drawn from the scenario here.
    let level = &run.manifest.levels[0];
    let schedule = of_one_machine(&run, level);
    let drawn: BTreeSet<_> = schedule.arrivals.iter().map(|one| (one.id, one.due.0)).collect();
    let sent = run.attempts.iter().map(|row| (row.request, (row.due - level.start).0)).collect();
    assert_eq!(drawn, sent);
    assert!(run.attempts.iter().all(|row| row.sent.is_some()), "none was lost on the way");
    let mut first = None;
    for (index, (line, boot_s)) in lines.iter().zip(BOOTS_S).enumerate() {
        assert!(line.contains("code 0") || line.contains("code 4"), "{line}\n{errors}");
        let part = open(format!("{dir}/place/shard-{index}-of-{of}"));
        // Each request is at least one packet, and it went over the shard's own device.
        let packets: usize = line.rsplit(' ').next().and_then(|n| n.parse().ok()).expect("a number");
        assert!(packets > part.attempts.len() && !part.attempts.is_empty(), "{line}");
        // All of them share the kernel's clock beneath their namespaces': there they began at one instant.
        let began =
            part.manifest.clock.monotonic_ns + part.manifest.levels[0].start.0 - boot_s * 1_000_000_000;
        let apart = (began - *first.get_or_insert(began)).abs();
        assert!(apart <= 1_000_000, "shard {index} began {apart} ns apart");
    }
}
