//! The network's figures against a network whose delay and losses are known.
//!
//! The network is a TUN device with a relay behind it, in a separate network namespace (`servers/lossy_network.py`).
//! If the machine does not allow it (no namespaces, no /dev/net/tun, no Python), the tests print the reason and pass.

use std::process::Command;

use serde_json::Value;

use super::kit::{PLIMSOLL, plimsoll, undisturbed};

/// Runs a shell script in the namespace; `$P` is the binary, `$U1` and `$U2` an engine past and through the relay, `$D` a folder.
/// The relay's own last line, or why there is no such network here.
fn inside(delay_ms: u32, drop_every: u32, folder: &str, script: &str) -> Result<String, String> {
    let relay = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/servers/lossy_network.py");
    let possible = "python3 -c 'import fcntl, os, struct; \
                    fcntl.ioctl(os.open(\"/dev/net/tun\", os.O_RDWR), 0x400454CA, struct.pack(\"16sH\", b\"t0\", 0x1001))' && ip link";
    let tried =
        Command::new("unshare").args(["-rn", "sh", "-c", possible]).output().map_err(|e| e.to_string())?;
    if !tried.status.success() {
        return Err(String::from_utf8_lossy(&tried.stderr).trim().to_owned());
    }
    let whole = format!(
        "mkfifo $D/hold; $P engine --profile demo --listen 0.0.0.0:$PORT --until-stdin-ends < $D/hold > $D/said & \
         exec 3> $D/hold; for i in $(seq 300); do [ -s $D/said ] && break; sleep 0.1; done; {script}"
    );
    let (delay, every) = (delay_ms.to_string(), drop_every.to_string());
    let ended = Command::new("unshare")
        .args(["-rn", "python3", relay, &delay, &every, "sh", "-c", &whole])
        .envs([("PORT", "8123"), ("P", PLIMSOLL), ("D", folder)])
        .envs([("U1", "http://10.77.0.1:8123/v1"), ("U2", "http://10.77.0.2:8123/v1")])
        .output()
        .map_err(|e| e.to_string())?;
    let stdout = String::from_utf8_lossy(&ended.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&ended.stderr).into_owned();
    let last = stdout.lines().rev().find(|line| line.starts_with("network "));
    Ok(last.unwrap_or_else(|| panic!("the relay said {stdout}\n{stderr}")).to_owned())
}

/// `name=N` of the relay's line.
fn counted(line: &str, name: &str) -> f64 {
    let of = |word: &str| word.strip_prefix(name)?.strip_prefix('=')?.parse().ok();
    line.split(' ').find_map(of).unwrap_or_else(|| panic!("no {name} in {line}"))
}

fn shown(run: &str) -> Value {
    let ended = plimsoll(&["show", run, "--format", "json"]);
    assert!(matches!(ended.code, 0 | 4), "{}", ended.stderr);
    ended.json()["findings"].clone()
}

#[test]
fn a_longer_way_is_told_and_blamed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("utf-8");
    let run = "--rate 40/s --for 8s --osl 16 --scrape off --seed 5 -q";
    let script =
        format!("$P run $U1 {run} -o $D/near > /dev/null; $P run $U2 {run} -o $D/far > /dev/null; true");
    if let Err(why) = inside(10, 0, dir, &script) {
        return eprintln!("SKIPPED, no network of our own here: {why}");
    }
    let (near, far) = (format!("{dir}/near"), format!("{dir}/far"));
    let (before, after) = (shown(&near), shown(&far));
    let least = |findings: &Value| findings["network"]["rtt_min_p50_s"].as_f64().expect("Linux tells");
    assert!(least(&before) < 0.005, "{}", before["network"]);
    // Ten milliseconds there and ten back; a relay that is late makes it more, never less.
    assert!((0.020..0.060).contains(&least(&after)), "{}", after["network"]);
    let text = plimsoll(&["show", &far, "--details"]).stdout;
    assert!(text.contains("Network, as this machine's kernel sees it"), "{text}");
    if [&before, &after].iter().all(|findings| undisturbed(&findings["levels"][0])) {
        let diagnosis = plimsoll(&["diagnose", &far, "--baseline", &near, "--format", "json"]).json();
        let verdict = &diagnosis["verdicts"][0];
        assert_eq!(
            (&verdict["layer"], &verdict["cause"]),
            (&"network".into(), &"longer_round_trip".into()),
            "{verdict}"
        );
    }
}

#[test]
fn what_the_network_drops_is_what_is_sent_again() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let dir = folder.path().to_str().expect("utf-8");
    let script =
        "$P run $U2 --rate 40/s --for 8s --osl 4 --scrape off --seed 5 -q -o $D/run > /dev/null; true";
    let relay = match inside(2, 20, dir, script) {
        Ok(relay) => relay,
        Err(why) => return eprintln!("SKIPPED, no network of our own here: {why}"),
    };
    let findings = shown(&format!("{dir}/run"));
    let network = &findings["network"];
    let of = |name: &str| network[name].as_f64().unwrap_or_else(|| panic!("no {name} in {network}"));
    let dropped = counted(&relay, "dropped_to");
    assert!(dropped >= 5.0, "{relay}");
    // Requests of the probe before the run pass the relay as well and leave no row.
    assert!(of("sent_again") >= dropped - 3.0, "{relay} {network}");
    assert!(of("sent") >= of("sent_again") + of("attempts") - 1.0, "{network}");
    if undisturbed(&findings["levels"][0]) {
        // Needless retransmissions (the acknowledgement was lost or late) are added.
        let acknowledgements = counted(&relay, "dropped_from");
        assert!(of("sent_again") <= dropped + acknowledgements, "{relay} {network}");
        assert!(of("disordered_in") <= acknowledgements + dropped, "{relay} {network}");
    }
}
