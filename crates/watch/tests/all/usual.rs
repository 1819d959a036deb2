//! A fleet with known ground truth, given to a watch and to a real Prometheus, and the alarms of both.
//!
//! Its metrics have vLLM's edges and are scraped every 15 s in virtual time. The watch gets the scrapes, and the same
//! samples become blocks of Prometheus (`promtool tsdb create-blocks-from openmetrics`). A Prometheus with these
//! blocks evaluates an expression at each evaluation time of a rule. The effect of `for:` is computed here by
//! Prometheus' rule. An alert fires at the first evaluation that is at least `for` after the first of an unbroken
//! series. It ends with the first empty evaluation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_math::dist::exponential;
use plimsoll_math::rng::Stream;
use plimsoll_model::{At, PageRead, PageSaid, Sample, SeriesName, Span, join_labels};
use plimsoll_watch::export::{ExportKind, ExportSource, ExportSpec, export};
use plimsoll_watch::{Alert, AlertKind, BudgetWatch, BudgetWatchSpec};
use serde_json::Value;

/// Scrape interval, s.
pub const EVERY_S: u64 = 15;
/// Evaluation interval, as in the exported rules.
pub const STEP_S: u64 = 30;
/// Start in Unix time, at a multiple of the block length.
const BEGIN_S: u64 = 1_700_028_000;
/// Duration of one block: promtool reads all samples for each block that it makes.
const BLOCK_S: u64 = 18 * 3600;
/// Maximum number of points in a response of Prometheus.
const MOST_POINTS: u64 = 11_000;
const FAMILY: &str = "vllm:time_to_first_token_seconds";
/// All edges of vLLM, s.
const EDGES: [&str; 23] = [
    "0.001", "0.005", "0.01", "0.02", "0.04", "0.06", "0.08", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5",
    "5.0", "7.5", "10.0", "20.0", "40.0", "80.0", "160.0", "640.0", "2560.0", "+Inf",
];
/// The ceiling of a p99 is an edge, so that no interpolation is needed.
const CEILING: &str = "0.5";
const ALLOWED: f64 = 0.01;
/// Buckets under and over the ceiling: index, share, edges.
const UNDER: [(usize, f64, [f64; 2]); 5] = [
    (5, 0.05, [0.04, 0.06]),
    (6, 0.15, [0.06, 0.08]),
    (7, 0.25, [0.08, 0.1]),
    (8, 0.45, [0.1, 0.25]),
    (9, 0.1, [0.25, 0.5]),
];
const OVER: [(usize, f64, [f64; 2]); 4] =
    [(10, 0.4, [0.5, 0.75]), (11, 0.3, [0.75, 1.0]), (12, 0.25, [1.0, 2.5]), (13, 0.05, [2.5, 5.0])];
const REPLICAS: usize = 2;

/// Start and end, s.
pub type Stretch = (u64, u64);

/// Traffic with known ground truth.
#[derive(Clone, Debug)]
pub struct System {
    pub name: String,
    /// Mean requests per second of a day: 0.4 to 1.6 times as many by the hour, the mean at the start of a day.
    pub per_s: f64,
    /// Number of requests that arrive together, and are over the ceiling together.
    pub alike: u64,
    /// Share over the ceiling, and another share in an interval, s.
    pub share: f64,
    pub fault: Option<(f64, f64, f64)>,
    /// Before this time Prometheus gets only the ceiling's bucket and the last one, because no rule uses the others
    /// then.
    pub whole_from_s: u64,
    pub seed: u64,
}

#[derive(Clone, Default)]
struct Replica {
    next_s: f64,
    counts: [u64; 23],
    sum_s: f64,
    busy: bool,
}

/// A running system with its watch.
pub struct Fleet {
    pub system: System,
    stream: Stream,
    replicas: Vec<Replica>,
    series: Arc<[SeriesName]>,
    watched: BudgetWatch,
    alerts: BTreeMap<String, Alert>,
}

pub fn budget(name: &str) -> BudgetFile {
    let row = r#"{"id": "ttft", "metric": "ttft", "p": "99", "max": "500ms"}"#;
    serde_json::from_str(&format!("{{\"version\": 1, \"name\": \"{name}\", \"budgets\": [{row}]}}"))
        .expect("a budget")
}

fn series() -> Vec<SeriesName> {
    let one = |name: &str, labels: &[(&str, &str)]| SeriesName {
        name: name.to_owned(),
        labels: labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
    };
    let buckets = EDGES.iter().map(|le| one(&format!("{FAMILY}_bucket"), &[("le", le)]));
    let rest = [
        one(&format!("{FAMILY}_count"), &[]),
        one(&format!("{FAMILY}_sum"), &[]),
        one("vllm:generation_tokens_total", &[]),
        one("vllm:request_success_total", &[("finished_reason", "stop")]),
        one("vllm:request_success_total", &[("finished_reason", "error")]),
        one("vllm:num_requests_running", &[]),
        one("vllm:num_requests_waiting", &[]),
    ];
    buckets.chain(rest).collect()
}

impl Fleet {
    pub fn new(system: System) -> Fleet {
        let spec = BudgetWatchSpec { every: Span::from_secs(EVERY_S as i64), window: Span::from_secs(300) };
        Fleet {
            stream: Stream::new(system.seed, "usual", 0),
            replicas: vec![Replica::default(); REPLICAS],
            series: series().into(),
            watched: BudgetWatch::new(budget(&system.name), spec),
            alerts: BTreeMap::new(),
            system,
        }
    }

    /// Adds the traffic until then, and the state of the watch.
    pub fn step(&mut self, at_s: u64) {
        let now = At(at_s as i64 * 1_000_000_000);
        for (place, replica) in self.replicas.iter_mut().enumerate() {
            replica.until(at_s as f64, &self.system, &mut self.stream);
            let said = PageSaid::Values(Arc::clone(&self.series), replica.values());
            self.watched.read(PageRead { page: place.to_string(), at: now, said });
        }
        self.watched.tick(now);
        let alerts = self.watched.alerts().into_iter();
        let alerts = alerts.filter(|alert| alert.kind != AlertKind::Watchdog);
        self.alerts.extend(alerts.map(|alert| (alert.id.clone(), alert)));
    }

    /// Writes the samples for Prometheus.
    pub fn write(&self, at_s: u64, text: &mut String) {
        for (place, replica) in self.replicas.iter().enumerate() {
            let mut below = 0;
            for (le, count) in EDGES.iter().zip(replica.counts) {
                below += count;
                if at_s >= self.system.whole_from_s || [CEILING, "+Inf"].contains(le) {
                    let (job, at_s) = (&self.system.name, BEGIN_S + at_s);
                    let labels = format_args!("job=\"{job}\",instance=\"{place}\",le=\"{le}\"");
                    let _ = writeln!(text, "{FAMILY}_bucket{{{labels}}} {below} {at_s}");
                }
            }
        }
    }

    /// Returns the alarms of broken ceilings and burn rates.
    pub fn alarms(&self) -> Vec<Stretch> {
        let ours = self.alerts.values().filter(|alert| is_ours(alert));
        ours.map(|alert| (alert.fired_s as u64, alert.resolved_s.map_or(u64::MAX, |s| s as u64))).collect()
    }

    /// Returns the other alarms.
    pub fn others(&self) -> Vec<&Alert> {
        self.alerts.values().filter(|alert| !is_ours(alert)).collect()
    }

    /// Returns the number of requests so far, and of those over the ceiling.
    pub fn counted(&self) -> (u64, u64) {
        let all = self.replicas.iter().map(|replica| replica.counts.iter().sum::<u64>()).sum();
        (all, self.replicas.iter().map(|replica| replica.counts[10..].iter().sum::<u64>()).sum())
    }

    /// Returns the rules of `plimsoll export`: recording rules, and the alerting rules of the row.
    pub fn exported(&self) -> Vec<Rule> {
        let named = |one: SeriesName| Sample {
            at: At::ZERO,
            source: "server".into(),
            labels: join_labels(&one.labels.iter().map(|(k, v)| (&**k, &**v)).collect::<Vec<_>>()).into(),
            name: one.name.into(),
            value: 0.0,
        };
        let page: Vec<Sample> = series().into_iter().map(named).collect();
        let name = &self.system.name;
        let source = ExportSource::new("vllm".into(), vec![("job".into(), name.clone())], &page);
        let exported = export(ExportKind::Rules, &budget(name), &source, &ExportSpec::default());
        rules(&exported.expect("everything is said").files[0].text)
    }
}

fn is_ours(alert: &Alert) -> bool {
    matches!(alert.kind, AlertKind::CeilingBroken | AlertKind::BurnRate)
}

impl Replica {
    fn until(&mut self, at_s: f64, system: &System, stream: &mut Stream) {
        self.busy = false;
        loop {
            let hour = (self.next_s / 86_400.0 * std::f64::consts::TAU).sin();
            let per_s = system.per_s * (1.0 + 0.6 * hour) / REPLICAS as f64;
            let next_s = self.next_s + exponential(stream, system.alike as f64 / per_s);
            // The gap is drawn again at each scrape because it is memoryless.
            if next_s > at_s {
                self.next_s = at_s;
                return;
            }
            (self.next_s, self.busy) = (next_s, true);
            let fault = system.fault.filter(|(from, until, _)| (*from..*until).contains(&next_s));
            let over = stream.chance(fault.map_or(system.share, |fault| fault.2));
            (0..system.alike).for_each(|_| self.request(over, stream));
        }
    }

    fn request(&mut self, over: bool, stream: &mut Stream) {
        let mut left = stream.uniform();
        let buckets: &[(usize, f64, [f64; 2])] = if over { &OVER } else { &UNDER };
        let own = buckets.iter().find(|(_, share, _)| {
            left -= share;
            left < 0.0
        });
        let (place, _, [low, high]) = own.unwrap_or(&buckets[0]);
        self.counts[*place] += 1;
        self.sum_s += low + (high - low) * stream.uniform();
    }

    fn values(&self) -> Vec<f64> {
        let mut below = 0;
        let buckets = self.counts.iter().map(|count| {
            below += count;
            below as f64
        });
        let mut values: Vec<f64> = buckets.collect();
        let all = values[22];
        values.extend([all, self.sum_s, 100.0 * all, all, 0.0, f64::from(u8::from(self.busy)), 0.0]);
        values
    }
}

#[derive(Clone, Debug)]
pub struct Rule {
    pub name: String,
    pub expr: String,
    /// Duration of `for:`; `None` for a recording rule.
    pub for_s: Option<u64>,
}

/// Parses the rules in a file of `plimsoll export` (one line each except for expressions) and returns the row's
/// rules.
fn rules(text: &str) -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    for line in text.lines() {
        let found = line.strip_prefix("      - record: ").or(line.strip_prefix("      - alert: "));
        match (found, rules.last_mut()) {
            (Some(name), _) => {
                rules.push(Rule { name: name.to_owned(), expr: String::new(), for_s: None });
            }
            (None, Some(rule)) => {
                if let Some(part) = line.strip_prefix("          ") {
                    rule.expr += &format!("{part}\n");
                } else if let Some(span) = line.strip_prefix("        for: ") {
                    let unit = if span.ends_with('m') { 60 } else { 1 };
                    rule.for_s =
                        Some(unit * span.trim_end_matches(['m', 's']).parse::<u64>().expect("a span"));
                }
            }
            (None, None) => {}
        }
    }
    let kinds = [AlertKind::CeilingBroken, AlertKind::BurnRate].map(AlertKind::alert_name);
    rules.retain(|rule| rule.for_s.is_none() || kinds.contains(&rule.name));
    rules
}

impl Rule {
    pub fn new(expr: String, for_s: u64) -> Rule {
        Rule { name: String::new(), expr, for_s: Some(for_s) }
    }

    fn needs(&self, recorded: &str) -> bool {
        self.expr.contains(&format!("{recorded}{{"))
    }
}

/// Returns the usual rules with their conditions: the workbook's four pairs, and the quantile of a minute and of
/// five.
pub fn usual() -> [(&'static str, Vec<Rule>); 3] {
    let rate =
        |le: &str, window: &str| format!("sum by (job) (rate({FAMILY}_bucket{{le=\"{le}\"}}[{window}]))");
    let over = |window: &str, factor: f64| {
        format!("(1 - {} / {}) > {factor} * {ALLOWED}", rate(CEILING, window), rate("+Inf", window))
    };
    let pair = |(long, short, factor): (&str, &str, f64)| {
        Rule::new(format!("{} and {}", over(long, factor), over(short, factor)), 0)
    };
    let pairs = [("1h", "5m", 14.4), ("6h", "30m", 6.0), ("1d", "2h", 3.0), ("3d", "6h", 1.0)];
    let quantile = |window: &str| {
        let sum = format!("sum by (job, le) (rate({FAMILY}_bucket[{window}]))");
        vec![Rule::new(format!("histogram_quantile(0.99, {sum}) > {CEILING}"), 60)]
    };
    [
        ("burn rates", pairs.map(pair).to_vec()),
        ("quantile of 1 min", quantile("1m")),
        ("quantile of 5 min", quantile("5m")),
    ]
}

/// A Prometheus, its blocks, and the samples of future blocks.
pub struct Prometheus {
    folder: tempfile::TempDir,
    text: String,
    server: Option<(Child, String)>,
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.stop();
    }
}

impl Prometheus {
    /// Starts Prometheus.
    ///
    /// # Errors
    /// Fails if Prometheus is not installed.
    pub fn new() -> Result<Prometheus, String> {
        for program in ["prometheus", "promtool"] {
            let ran = Command::new(program).arg("--version").output();
            ran.map_err(|_| format!("{program} is not installed: apt-get install prometheus"))?;
        }
        let folder = tempfile::tempdir().expect("a folder for its blocks");
        std::fs::write(folder.path().join("prometheus.yml"), "global: {}\n").expect("room for its file");
        Ok(Prometheus { folder, text: String::new(), server: None })
    }

    /// Plays these systems to their end; the scrapes become blocks.
    pub fn play(&mut self, fleets: &mut [Fleet], until_s: u64) {
        for at_s in (0..=until_s).step_by(EVERY_S as usize) {
            for fleet in &mut *fleets {
                fleet.step(at_s);
                fleet.write(at_s, &mut self.text);
            }
            if (at_s + EVERY_S).is_multiple_of(BLOCK_S) {
                self.import();
            }
        }
        self.import();
        self.restart();
    }

    fn import(&mut self) {
        let path = |name: &str| self.folder.path().join(name);
        let text = format!("# TYPE {FAMILY} histogram\n{}# EOF\n", self.text);
        std::fs::write(path("samples"), text).expect("room for samples");
        self.text.clear();
        let ran = Command::new("promtool")
            .args(["tsdb", "create-blocks-from", "openmetrics", "-q", "--max-block-duration=18h"])
            .args([path("samples"), path("data")])
            // Otherwise it would spend most of its time collecting garbage.
            .env("GOGC", "400")
            .output()
            .expect("promtool runs");
        assert!(ran.status.success(), "promtool: {}", String::from_utf8_lossy(&ran.stderr));
    }

    fn stop(&mut self) {
        if let Some((mut child, _)) = self.server.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Restarts Prometheus, because blocks are read at its start.
    fn restart(&mut self) {
        self.stop();
        let path = |name: &str| self.folder.path().join(name);
        let log = std::fs::File::create(path("log")).expect("a log");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", path("prometheus.yml").display()))
            .arg(format!("--storage.tsdb.path={}", path("data").display()))
            .args(["--storage.tsdb.retention.time=100y", "--web.listen-address=127.0.0.1:0"])
            .args(["--query.timeout=30m", "--query.max-samples=500000000"])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("prometheus runs");
        self.server = Some((child, String::new()));
        let address = listening(&path("log"));
        self.server.as_mut().expect("it was started").1 = address;
    }

    /// Returns the result of an expression at each evaluation in this interval, by system.
    pub fn range(&self, expr: &str, (from_s, until_s): Stretch) -> BTreeMap<String, Vec<(u64, f64)>> {
        let address = &self.server.as_ref().expect("it was started").1;
        let mut found: BTreeMap<String, Vec<(u64, f64)>> = BTreeMap::new();
        for first in (from_s..=until_s).step_by((STEP_S * MOST_POINTS) as usize) {
            let last = until_s.min(first + STEP_S * (MOST_POINTS - 1)) + BEGIN_S;
            let query = format!("query={}&start={}&end={last}&step={STEP_S}", escaped(expr), BEGIN_S + first);
            let body = get(address, &format!("/api/v1/query_range?{query}"));
            let answer: Value = serde_json::from_str(&body).expect("JSON");
            assert_eq!(answer["status"], "success", "{expr}: {answer}");
            for series in answer["data"]["result"].as_array().expect("series") {
                let labels = &series["metric"];
                let of = labels["job"].as_str().or(labels["budget"].as_str()).unwrap_or_default();
                let points = series["values"].as_array().expect("points").iter();
                found.entry(of.to_owned()).or_default().extend(points.map(|point| {
                    let value = point[1].as_str().expect("a value").parse().expect("a number");
                    (point[0].as_f64().expect("an instant") as u64 - BEGIN_S, value)
                }));
            }
        }
        found
    }

    /// Returns the times at which any alert of these rules fires, by system.
    pub fn alarms(&self, rules: &[Rule], stretch: Stretch) -> BTreeMap<String, Vec<Stretch>> {
        let mut found: BTreeMap<String, Vec<Stretch>> = BTreeMap::new();
        for rule in rules {
            for (system, points) in self.range(&rule.expr, stretch) {
                let firing = firing(points.iter().map(|point| point.0), rule.for_s.unwrap_or(0));
                found.entry(system).or_default().extend(firing);
            }
        }
        found
    }

    /// Evaluates the recording rules that alerting rules need, level by level, as if they had always existed.
    pub fn record(&mut self, systems: &[(String, Vec<Rule>)], until_s: u64) {
        let mut done: BTreeSet<&str> = BTreeSet::new();
        let all = &systems[0].1;
        let mut needed: BTreeSet<&str> = BTreeSet::new();
        for rule in all.iter().rev() {
            if rule.for_s.is_some() || needed.contains(rule.name.as_str()) {
                needed.extend(all.iter().filter(|one| rule.needs(&one.name)).map(|one| one.name.as_str()));
            }
        }
        while done.len() < needed.len() {
            let is_next = |rule: &&Rule| {
                let name = rule.name.as_str();
                needed.contains(name)
                    && !done.contains(name)
                    && needed.iter().all(|other| done.contains(other) || !rule.needs(other))
            };
            let next: Vec<&str> = all.iter().filter(is_next).map(|rule| rule.name.as_str()).collect();
            assert!(!next.is_empty(), "rules need each other: {done:?} of {needed:?}");
            for (system, rules) in systems {
                for rule in rules.iter().filter(|rule| next.contains(&rule.name.as_str())) {
                    let points = self.range(&rule.expr, (0, until_s)).into_values().flatten();
                    for (at_s, value) in points {
                        let (name, at_s) = (&rule.name, at_s + BEGIN_S);
                        let _ = writeln!(
                            self.text,
                            "{name}{{about=\"ttft\",budget=\"{system}\"}} {value} {at_s}"
                        );
                    }
                }
            }
            self.import();
            self.restart();
            done.extend(next);
        }
    }
}

/// Converts evaluations with a result to the times at which the alert fires.
fn firing(yielded: impl Iterator<Item = u64>, for_s: u64) -> Vec<Stretch> {
    let mut active: Vec<Stretch> = Vec::new();
    for at_s in yielded {
        match active.last_mut() {
            Some(last) if last.1 == at_s => last.1 = at_s + STEP_S,
            _ => active.push((at_s, at_s + STEP_S)),
        }
    }
    let stood = active.into_iter().map(|(from, until)| (from + for_s, until));
    stood.filter(|(from, until)| from < until).collect()
}

/// Returns the listen address once the server is ready.
fn listening(log: &Path) -> String {
    for _ in 0..3000 {
        let text = std::fs::read_to_string(log).unwrap_or_default();
        // From 3.0 on, other words are between the two.
        let listens = text.lines().find_map(|line| {
            let (_, rest) = line.split_once("msg=\"Listening on\"")?;
            rest.split_once(" address=")?.1.split_whitespace().next()
        });
        // Either line may come first.
        if let Some(address) = listens.filter(|_| text.contains("Server is ready")) {
            return address.to_owned();
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    panic!("prometheus does not start: {}", std::fs::read_to_string(log).unwrap_or_default());
}

fn escaped(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte.is_ascii_alphanumeric() {
            true => out.push(byte as char),
            false => _ = write!(out, "%{byte:02X}"),
        }
    }
    out
}

/// Sends an HTTP/1.0 request, because the response then comes in one piece.
fn get(address: &str, path: &str) -> String {
    let mut socket = std::net::TcpStream::connect(address).expect("prometheus answers");
    // Slightly longer than a query may take.
    socket.set_read_timeout(Some(std::time::Duration::from_secs(31 * 60))).expect("a timeout");
    write!(socket, "GET {path} HTTP/1.0\r\n\r\n").expect("asked");
    let mut answer = String::new();
    socket.read_to_string(&mut answer).expect("an answer");
    answer.split_once("\r\n\r\n").expect("a body").1.to_owned()
}
