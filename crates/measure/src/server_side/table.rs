//! The names of signals per server: the reader of `data/signals.tsv`.
//!
//! The names are in a data file and not in code, because they change with servers and users extend them. Names are compared
//! without the difference between `:`, `.` and `_`, so that one row matches all spellings. Spellings of vLLM under Ray, newer SGLang
//! pages and OpenTelemetry differ in these characters. A vendor may add a prefix to a server's name: `ray_vllm_…`,
//! `kserve_vllm:…`.

use std::collections::{BTreeSet, HashMap};
use std::sync::OnceLock;

use super::signal::{SeriesKind, Signal};

/// Server name of the series that `watch` stores as history.
///
/// There is one name per signal of engines, and one per signal of gateways in front of them.
pub const HISTORY: &str = "plimsoll_history";

const FILE: &str = include_str!("../../data/signals.tsv");

/// Version of the table; a run stores the version that it was read with.
pub const VERSION: u32 = 1;

/// The component that a figure comes from. An engine and the gateway in front of it count the same requests.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SignalLayer {
    Engine,
    Gateway,
    Gpu,
    /// A machine, or one of its containers.
    Host,
    Process,
}

/// The part of a signal that a name contains.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum SignalPart {
    Gauge,
    Counter,
    /// Cumulative bucket of a histogram, with its edge in the label `le`.
    Bucket,
    Sum,
    Count,
    /// Smallest value that was observed since the previous scrape.
    Min,
    Max,
    /// Number that is written in this label.
    Label(String),
}

#[derive(Clone, PartialEq, Debug)]
pub struct SignalName {
    /// Server that uses the name: `vllm`, `sglang`, …
    pub server: &'static str,
    pub layer: SignalLayer,
    pub signal: Signal,
    pub part: SignalPart,
    /// Allowed values per label; empty allows all samples.
    pub only: Vec<(&'static str, Vec<&'static str>)>,
    /// Factor from the name's unit to the signal's unit.
    pub factor: f64,
    /// Priority of the name: the lowest rank on a page is read; series with equal ranks are added.
    pub rank: u32,
    /// Line in the table: of two servers on one page the earlier is read.
    pub order: usize,
}

/// The names of all servers.
#[derive(Debug, Default)]
pub struct SignalTable {
    rows: HashMap<String, Vec<SignalName>>,
    replica_labels: HashMap<&'static str, Vec<&'static str>>,
    /// First words of names that belong to one server. They are recognised behind a vendor prefix too.
    brands: BTreeSet<&'static str>,
}

impl SignalTable {
    pub fn shipped() -> &'static SignalTable {
        static TABLE: OnceLock<SignalTable> = OnceLock::new();
        TABLE.get_or_init(|| SignalTable::read(FILE))
    }

    /// Returns the rows of a name; empty if the name is unknown.
    pub fn of(&self, name: &str) -> &[SignalName] {
        self.read_as(name).1
    }

    /// Returns the vendor prefix of a known name, and its rows.
    pub fn read_as<'a>(&self, name: &'a str) -> (&'a str, &[SignalName]) {
        let key = plain(name);
        let known = |from: usize| {
            let key = key.get(from..)?;
            self.rows.get(key).or_else(|| self.rows.get(key.strip_suffix("_total")?))
        };
        if let Some(rows) = known(0) {
            return ("", rows);
        }
        let begins = key.match_indices('_').map(|(at, _)| at + 1);
        let behind = begins.filter(|at| self.brands.iter().any(|brand| begins_with(&key[*at..], brand)));
        let found = behind.filter_map(|at| Some((&name[..at], known(at)?.as_slice()))).next();
        found.unwrap_or(("", &[]))
    }

    /// Returns a regular expression (RE2) that matches every name in the table and few others, by their first words.
    pub fn families(&self) -> String {
        // A machine has thousands of names that begin as its few in the table.
        let is_hosts = |rows: &[SignalName]| rows.iter().any(|row| row.layer == SignalLayer::Host);
        let names = self.rows.iter().filter(|(_, rows)| !is_hosts(rows)).map(|(name, _)| name);
        let begins = names.filter_map(|name| name.split('_').next());
        let families: BTreeSet<&str> = begins.filter(|begin| !begin.is_empty()).collect();
        let families: Vec<&str> = families.into_iter().collect();
        let brands: Vec<&str> = self.brands.iter().copied().collect();
        format!("({})[:_].+|.+[:_]({})[:_].+", families.join("|"), brands.join("|"))
    }

    /// Returns a regular expression (RE2) that matches the names of these signals in the spelling of any server.
    pub fn names(&self, signals: &[Signal]) -> String {
        const PARTS: [&str; 5] = ["_bucket", "_sum", "_count", "_observed_min", "_observed_max"];
        let told = self.rows.iter().filter(|(_, rows)| rows.iter().any(|row| signals.contains(&row.signal)));
        let whole =
            |name: &str| PARTS.iter().find_map(|part| name.strip_suffix(part)).unwrap_or(name).to_owned();
        // A dot matches the colon, dot or underscore that servers use.
        let names: BTreeSet<String> = told.map(|(name, _)| whole(name).replace('_', ".")).collect();
        let names: Vec<String> = names.into_iter().collect();
        format!("(.+[:_])?({})(_bucket|_sum|_count|_total)?", names.join("|"))
    }

    /// Returns whether this server has a name for this signal. Always false for a history, whose series are all on the page.
    pub fn says(&self, server: &str, signal: Signal) -> bool {
        if server == HISTORY {
            return false;
        }
        self.rows.values().flatten().any(|row| row.server == server && row.signal == signal)
    }

    /// Returns the labels that identify replicas on a page of this server.
    pub(crate) fn replica_labels(&self, server: &str) -> &[&'static str] {
        self.replica_labels.get(server).map_or(&[], Vec::as_slice)
    }

    fn read(text: &'static str) -> SignalTable {
        let mut table = SignalTable::default();
        let lines = text.lines().enumerate();
        for (order, line) in lines.filter(|(_, line)| !line.starts_with('#') && !line.is_empty()) {
            let cells: Vec<&'static str> = line.split('\t').collect();
            match cells.as_slice() {
                ["replica", server, labels] => {
                    let labels = labels.split(',').filter(|label| !label.is_empty()).collect();
                    table.replica_labels.insert(server, labels);
                }
                cells => table.add(order, cells),
            }
        }
        table.add_history();
        table
    }

    /// Adds the names of a history, which are derived from the signals so that the file needs no lines for them.
    fn add_history(&mut self) {
        for (signal, layer) in
            Signal::ALL.iter().flat_map(|one| [(*one, SignalLayer::Engine), (*one, SignalLayer::Gateway)])
        {
            let (part, only) = match signal.kind() {
                // The mean is stored with the minimum and the maximum.
                SeriesKind::Gauge => ("gauge", vec![("of", vec![""])]),
                SeriesKind::Counter => ("counter", Vec::new()),
                SeriesKind::Histogram => ("histogram", Vec::new()),
            };
            for (key, part) in parts(&kept_name(layer, signal), part) {
                let (server, only, order) = (HISTORY, only.clone(), usize::MAX);
                let row = SignalName { server, layer, signal, part, only, factor: 1.0, rank: 0, order };
                self.rows.entry(key).or_default().push(row);
            }
        }
    }

    /// Adds a row. An invalid row is left out; a test checks that the file has none.
    fn add(&mut self, order: usize, cells: &[&'static str]) {
        let &[server, layer, signal, part, name, only, factor, rank, ..] = cells else { return };
        let layer = match layer {
            "engine" => SignalLayer::Engine,
            "gateway" => SignalLayer::Gateway,
            "gpu" => SignalLayer::Gpu,
            "host" => SignalLayer::Host,
            "process" => SignalLayer::Process,
            _ => return,
        };
        let (Some(signal), Ok(factor), Ok(rank)) = (Signal::named(signal), factor.parse(), rank.parse())
        else {
            return;
        };
        let only = only.split(';').filter_map(|one| one.split_once('='));
        let only: Vec<_> = only.map(|(label, values)| (label, values.split('|').collect())).collect();
        // `process_…`, `node_…` and `replicas_…` begin with generic words.
        let is_generic = matches!(layer, SignalLayer::Process | SignalLayer::Host) || server == "plimsoll";
        if !is_generic {
            self.brands.extend(name.split([':', '.', '_']).next());
        }
        let base = plain(name);
        for (key, part) in parts(&base, part) {
            let row = SignalName { server, layer, signal, part, only: only.clone(), factor, rank, order };
            self.rows.entry(key).or_default().push(row);
        }
    }

    /// Returns the number of rows; the five rows of a histogram count separately.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.rows.values().map(Vec::len).sum()
    }
}

/// Returns the history name of a signal in the signal's unit, without the suffix of its part (`_total`, `_bucket`, …).
pub fn kept_name(layer: SignalLayer, signal: Signal) -> String {
    let whose = if layer == SignalLayer::Gateway { "gateways" } else { "fleet" };
    format!("plimsoll_{whose}_{}", signal.name())
}

impl SignalName {
    /// Returns whether the name applies to samples with these labels.
    pub fn allows(&self, labels: &[(String, String)]) -> bool {
        self.only.iter().all(|(label, values)| {
            let value = labels.iter().find(|(name, _)| name == label).map_or("", |(_, value)| value);
            // An empty value means that the label is absent; a star matches any value.
            values.contains(&value) || (!value.is_empty() && values.contains(&"*"))
        })
    }
}

/// Returns the names on the page that contain this part, without `_total`.
fn parts(base: &str, part: &str) -> Vec<(String, SignalPart)> {
    let stem = base.strip_suffix("_total").unwrap_or(base);
    match part {
        "gauge" => vec![(base.to_owned(), SignalPart::Gauge)],
        "counter" => vec![(stem.to_owned(), SignalPart::Counter)],
        "histogram" => vec![
            (format!("{base}_bucket"), SignalPart::Bucket),
            (format!("{base}_sum"), SignalPart::Sum),
            (format!("{base}_count"), SignalPart::Count),
            // No page has these names; OpenTelemetry senders report the values with each point.
            (format!("{base}_observed_min"), SignalPart::Min),
            (format!("{base}_observed_max"), SignalPart::Max),
        ],
        // The sum of a summary; a counter that is a sum.
        "sum" if base.ends_with("_duration_seconds") => vec![(format!("{base}_sum"), SignalPart::Sum)],
        "count" if base.ends_with("_duration_seconds") => vec![(format!("{base}_count"), SignalPart::Count)],
        "sum" => vec![(stem.to_owned(), SignalPart::Sum)],
        "count" => vec![(stem.to_owned(), SignalPart::Count)],
        part => part
            .strip_prefix("label:")
            .map(|label| vec![(base.to_owned(), SignalPart::Label(label.to_owned()))])
            .unwrap_or_default(),
    }
}

fn plain(name: &str) -> String {
    name.replace([':', '.'], "_")
}

fn begins_with(name: &str, word: &str) -> bool {
    name.strip_prefix(word).is_some_and(|rest| rest.starts_with('_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_file_is_read() {
        let written = FILE.lines().filter(|line| !line.starts_with('#') && !line.starts_with("replica\t"));
        let names: usize = written.map(|line| if line.contains("\thistogram\t") { 5 } else { 1 }).sum();
        let signals = Signal::ALL.iter().map(|one| if one.kind() == SeriesKind::Histogram { 10 } else { 2 });
        assert_eq!(SignalTable::shipped().len(), names + signals.sum::<usize>());
        assert!(
            FILE.starts_with(&format!(
                "# What servers call what they say of themselves. version\t{VERSION}\n"
            ))
        );
    }

    #[test]
    fn spellings_of_one_name_are_one() {
        let table = SignalTable::shipped();
        let spelt = [
            ("vllm:num_preemptions_total", ""),
            ("vllm_num_preemptions", ""),
            ("ray_vllm_num_preemptions_total", "ray_"),
            ("kserve_vllm:num_preemptions_total", "kserve_"),
            ("acme.cloud.vllm.num_preemptions", "acme.cloud."),
        ];
        for (name, vendor) in spelt {
            let (before, rows) = table.read_as(name);
            assert_eq!((before, rows[0].signal), (vendor, Signal::Preempted), "{name}");
        }
        for (name, signal) in
            [("acme_sglang:num_queue_reqs", Signal::Waiting), ("x_nv_gpu_power_usage", Signal::GpuPower)]
        {
            assert_eq!(table.of(name)[0].signal, signal, "{name}");
        }
        for name in
            ["windows_process_cpu_seconds_total", "myvllm:num_preemptions", "vllm_", "_vllm:", "é_vllm:é"]
        {
            assert!(table.of(name).is_empty(), "{name}");
        }
        assert_eq!(table.of("sglang_num_queue_reqs")[0].signal, Signal::Waiting);
        assert!(table.of("vllm:something_new").is_empty());
    }
}
