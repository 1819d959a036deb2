//! Finds the exporters of the target's machine: the metrics of its GPUs, CPUs and containers.
//!
//! Exporters have usual ports, so nothing needs to be configured. Only loopback and private addresses are contacted, because
//! a port of a public host may be any service. A request goes to the address that was judged and not to the name, because a name
//! may resolve to another address later. It carries no keys and follows no redirect. A page counts only if its
//! metric names prove a known exporter. Ports of a process table were rejected, because the target is often another machine.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use http::Uri;
use plimsoll_model::Span;
use plimsoll_wire::exposition::ExposedValue;

/// Longest wait for the page of a port, and for the address of a name. A dropped connection delays a run by this time.
pub(crate) const PATIENCE: Span = Span::from_millis(1_000);

/// A known exporter, recognised by its metric names.
#[derive(PartialEq, Eq, Debug)]
pub struct Exporter {
    /// Beginnings of names that no other server uses.
    proof: &'static [&'static str],
    /// Beginnings of the names that describe the machine. The rest describes the exporter's own process.
    families: &'static [&'static str],
}

/// DCGM exporter, AMD's device metrics exporter, node_exporter and cAdvisor.
static KNOWN: [Exporter; 4] = [
    Exporter { proof: &["DCGM_FI_"], families: &["DCGM_FI_"] },
    Exporter {
        proof: &[
            "gpu_nodes_total",
            "gpu_gfx_activity",
            "gpu_package_power",
            "gpu_energy_consumed",
            "amd_gpu_",
        ],
        families: &["gpu_", "amd_gpu_"],
    },
    Exporter { proof: &["node_exporter_build_info", "node_cpu_seconds_total"], families: &["node_"] },
    Exporter { proof: &["cadvisor_version_info", "container_cpu_usage_seconds"], families: &["container_"] },
];

impl Exporter {
    /// Returns the exporter that this page proves.
    pub(crate) fn of(rows: &[ExposedValue]) -> Option<&'static Exporter> {
        KNOWN.iter().find(|known| rows.iter().any(|row| begins(&row.name, known.proof)))
    }

    /// Returns whether the exporter reports GPUs.
    pub fn is_of_gpus(&self) -> bool {
        self == &KNOWN[0] || self == &KNOWN[1]
    }

    /// Returns whether the series describes the machine. Of the CPU times only the stolen time is used, because a machine
    /// has one series per core and mode.
    pub fn keeps(&self, row: &ExposedValue) -> bool {
        let stolen = || row.labels.iter().any(|(key, value)| key == "mode" && value == "steal");
        begins(&row.name, self.families) && (row.name != "node_cpu_seconds_total" || stolen())
    }
}

fn begins(name: &str, with: &[&str]) -> bool {
    with.iter().any(|begin| name.starts_with(begin))
}

/// Returns the addresses of these ports of the target's machine, except its own; empty if its address is public or unknown.
pub(crate) async fn sockets(origin: &str, ports: &[u16]) -> Vec<SocketAddr> {
    let Some((host, own)) = host_of(origin) else { return Vec::new() };
    let asked = tokio::time::timeout(PATIENCE.as_duration(), address(&host));
    let Ok(Some(address)) = asked.await else { return Vec::new() };
    ports.iter().filter(|port| **port != own).map(|port| SocketAddr::new(address, *port)).collect()
}

fn host_of(origin: &str) -> Option<(String, u16)> {
    let uri: Uri = origin.parse().ok()?;
    let usual = if uri.scheme_str() == Some("https") { 443 } else { 80 };
    let host = uri.host()?.trim_start_matches('[').trim_end_matches(']').to_owned();
    Some((host, uri.port_u16().unwrap_or(usual)))
}

/// Returns the private address of a host, IPv4 first; `None` if the host has a public address or is unknown.
async fn address(host: &str) -> Option<IpAddr> {
    let found: Vec<IpAddr> = tokio::net::lookup_host((host, 0)).await.ok()?.map(|found| found.ip()).collect();
    let all = found.iter().all(|address| is_private(*address));
    all.then(|| found.iter().find(|address| address.is_ipv4()).or(found.first()).copied())?
}

/// Returns whether an address is loopback, private (RFC 1918, RFC 4193) or link-local.
fn is_private(address: IpAddr) -> bool {
    let v4 = |v4: Ipv4Addr| v4.is_loopback() || v4.is_private() || v4.is_link_local();
    match address {
        IpAddr::V4(address) => v4(address),
        IpAddr::V6(address) => match address.to_ipv4_mapped() {
            Some(mapped) => v4(mapped),
            None => address.is_loopback() || address.is_unique_local() || address.is_unicast_link_local(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_private_addresses_are_contacted() {
        let private = [
            "127.0.0.1",
            "127.9.9.9",
            "10.1.2.3",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.7.7",
            "169.254.3.4",
            "::1",
            "fd00::1",
            "fc12::9",
            "fe80::1",
            "::ffff:10.0.0.1",
        ];
        let public = [
            "8.8.8.8",
            "172.15.0.1",
            "172.32.0.1",
            "192.169.0.1",
            "100.64.0.1",
            "169.253.0.1",
            "0.0.0.0",
            "2001:db8::1",
            "::ffff:8.8.8.8",
            "::",
            "fec0::1",
        ];
        for (addresses, is) in [(&private[..], true), (&public[..], false)] {
            for text in addresses {
                let address: IpAddr = text.parse().expect("an address");
                assert_eq!(is_private(address), is, "{text}");
            }
        }
    }

    #[test]
    fn a_page_proves_its_exporter_by_its_names() {
        let row = |name: &str, labels: &[(&str, &str)]| ExposedValue {
            name: name.to_owned(),
            labels: labels.iter().map(|(a, b)| ((*a).to_owned(), (*b).to_owned())).collect(),
            value: 1.0,
        };
        let of = |names: &[&str]| Exporter::of(&names.iter().map(|name| row(name, &[])).collect::<Vec<_>>());
        for (names, number) in [
            (&["process_cpu_seconds_total", "DCGM_FI_DEV_GPU_UTIL"][..], 0),
            (&["gpu_nodes_total"], 1),
            (&["amd_gpu_gfx_activity"], 1),
            (&["node_load1", "node_cpu_seconds_total"], 2),
            (&["machine_cpu_cores", "container_cpu_usage_seconds_total"], 3),
        ] {
            assert_eq!(of(names), Some(&KNOWN[number]), "{names:?}");
        }
        // Engines and web servers that listen on these ports.
        for names in
            [&["vllm:gpu_cache_usage_perc"][..], &["llamacpp:requests_processing"], &["go_goroutines"], &[]]
        {
            assert_eq!(of(names), None, "{names:?}");
        }
        let node = &KNOWN[2];
        assert!(node.keeps(&row("node_cpu_seconds_total", &[("cpu", "0"), ("mode", "steal")])));
        assert!(!node.keeps(&row("node_cpu_seconds_total", &[("cpu", "0"), ("mode", "idle")])));
        assert!(node.keeps(&row("node_pressure_cpu_waiting_seconds_total", &[])));
        assert!(!node.keeps(&row("process_cpu_seconds_total", &[])));
    }
}
