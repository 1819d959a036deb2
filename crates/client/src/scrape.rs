//! Looks at servers' pages while a load runs, on the run's own clock.
//!
//! On a thread of its own with connections of its own: the workers that send the load share nothing with it but the machine.
//! Rows are kept where a value has changed since the last look, because a page of a thousand rows a second would outweigh the
//! records; a mark says that somebody looked, another one that a look failed, and NaN that a series has left the page. Names that
//! nobody reads are kept at the first look and then once a minute.
//!
//! Nothing is asked of a host that the user did not name, no redirect is followed, and keys go to the endpoint's own host alone.

use std::cell::RefCell;
use std::collections::HashMap;
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;

use http::Uri;
use plimsoll_model::{At, Protocol, Sample, Span, join_labels};
use plimsoll_wire::Head;
use plimsoll_wire::exposition::{self, Row};
use plimsoll_workload::{Connections, ScrapeSpec, TargetSpec};
use tokio::runtime::{Builder, LocalOptions, LocalRuntime};

use crate::clock::Clock;
use crate::exchange::{Outgoing, Watch, exchange};
use crate::keeping::Known;
use crate::pool::{Held, Pool};
use crate::stamp::Meter;
use crate::target::{Target, TargetError};

/// Longest page, bytes.
const PAGE_MAX: usize = 16 << 20;
/// Series of one page that are followed.
const MOST_SERIES: usize = 50_000;
/// Longest wait for a page, unless looks are further apart.
const PATIENCE: Span = Span::from_secs(2);
/// Looks between two rows of a name that nobody reads.
const UNKNOWN_EVERY: u64 = 60;

/// Where a Triton shows its metrics.
const TRITON_PORT: u16 = 8002;

/// Why nothing can be scraped.
#[derive(Debug, thiserror::Error)]
pub enum ScrapeError {
    /// A page cannot be used as it is written.
    #[error("--scrape {page}: {source}")]
    Target {
        /// As the user wrote it.
        page: String,
        /// What is wrong.
        source: TargetError,
    },
    /// A page that was named does not answer as one.
    #[error("--scrape {page}: {why}")]
    Silent {
        /// As the user wrote it.
        page: String,
        /// What came instead.
        why: String,
    },
    /// This machine cannot make the attempt.
    #[error("cannot scrape: {0}")]
    Local(#[from] std::io::Error),
}

/// How an answer is read.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
enum Form {
    Text,
    SglangLoads,
    LlamaSlots,
    /// Asked once: it does not change.
    LlamaProps,
}

impl Form {
    fn read(self, body: &[u8]) -> Vec<Row> {
        match self {
            Form::Text => exposition::read(body).rows,
            Form::SglangLoads => exposition::sglang_loads(body),
            Form::LlamaSlots => exposition::llamacpp_slots(body),
            Form::LlamaProps => exposition::llamacpp_props(body),
        }
    }
}

/// A page that is there.
#[derive(Clone, Debug)]
pub struct Page {
    /// What it is called, where there are several; else empty.
    pub name: String,
    /// Its URL, for people.
    pub url: String,
    target: Target,
    form: Form,
}

/// Finds the pages that are to be scraped: those that are named, else what the endpoint's own host shows. None is no error
/// where none was named. Blocks for some seconds at most.
///
/// # Errors
/// A named page can't be used or does not answer as one.
pub fn find(target: &TargetSpec, spec: &ScrapeSpec) -> Result<Vec<Page>, ScrapeError> {
    let (target, spec) = (target.clone(), spec.clone());
    let thread = std::thread::Builder::new().name("scrape-find".into()).spawn(move || {
        let runtime = runtime()?;
        runtime.block_on(async {
            match spec.pages.is_empty() {
                false => named(&target, &spec.pages).await,
                true if spec.discover => Ok(discovered(&target).await),
                true => Ok(Vec::new()),
            }
        })
    })?;
    thread.join().unwrap_or_else(|_| Err(std::io::Error::other("the scraping thread died").into()))
}

fn runtime() -> std::io::Result<LocalRuntime> {
    Builder::new_current_thread().enable_all().build_local(LocalOptions::default())
}

async fn named(target: &TargetSpec, pages: &[String]) -> Result<Vec<Page>, ScrapeError> {
    let mut found: Vec<Page> = Vec::new();
    for (number, text) in pages.iter().enumerate() {
        let (name, url) = match text.split_once('=') {
            Some((name, url)) if !name.contains("//") => (name.to_owned(), url),
            _ => (if pages.len() > 1 { (number + 1).to_string() } else { String::new() }, text.as_str()),
        };
        let wrong = |source| ScrapeError::Target { page: text.clone(), source };
        let at = Target::new(&spec_of(target, url), None).map_err(wrong)?;
        let path = at.path("");
        let forms: &[Form] = match path.trim_end_matches('/').rsplit('/').next().unwrap_or_default() {
            "loads" => &[Form::SglangLoads],
            "slots" => &[Form::LlamaSlots],
            _ => &[Form::Text],
        };
        let page = Page { name, url: url.to_owned(), target: at, form: forms[0] };
        match Looker::new(page.clone(), Clock::start()).get(PATIENCE).await {
            Ok(_) => found.push(page),
            Err(why) => return Err(ScrapeError::Silent { page: text.clone(), why }),
        }
    }
    Ok(found)
}

/// What the endpoint's host shows, without being told.
async fn discovered(target: &TargetSpec) -> Vec<Page> {
    let Some(origin) = origin(&target.url) else { return Vec::new() };
    let mut places =
        vec![(format!("{origin}/metrics"), Form::Text), (format!("{origin}/prometheus/metrics"), Form::Text)];
    if target.protocol == Protocol::Kserve
        && let Some(host) = host_of(&origin)
    {
        places.push((format!("http://{host}:{TRITON_PORT}/metrics"), Form::Text));
    }
    let mut found = Vec::new();
    for (url, form) in places {
        if let Some(page) = look_for(target, &url, form).await {
            found.push(page);
            break;
        }
    }
    for (path, form) in
        [("v1/loads", Form::SglangLoads), ("slots", Form::LlamaSlots), ("props", Form::LlamaProps)]
    {
        found.extend(look_for(target, &format!("{origin}/{path}"), form).await);
    }
    // One server's pages: their names differ, their series do not overlap.
    found
}

async fn look_for(target: &TargetSpec, url: &str, form: Form) -> Option<Page> {
    let at = Target::new(&spec_of(target, url), None).ok()?;
    let page = Page { name: String::new(), url: url.to_owned(), target: at, form };
    let rows = Looker::new(page.clone(), Clock::start()).get(PATIENCE).await.ok()?;
    (!rows.is_empty()).then_some(page)
}

/// The target of a page: keys and headers only where it is the endpoint's own host.
fn spec_of(target: &TargetSpec, url: &str) -> TargetSpec {
    let page = TargetSpec {
        url: url.to_owned(),
        tls_verify: target.tls_verify,
        ca_file: target.ca_file.clone(),
        stream: false,
        ..TargetSpec::default()
    };
    let same = |a: Option<Uri>, b: Option<Uri>| match (a, b) {
        (Some(a), Some(b)) => a.host() == b.host() && a.scheme() == b.scheme(),
        _ => false,
    };
    if !same(url.parse().ok(), target.url.parse().ok()) {
        return page;
    }
    TargetSpec {
        headers: target.headers.clone(),
        key_env: target.key_env.clone(),
        key_file: target.key_file.clone(),
        ..page
    }
}

fn origin(url: &str) -> Option<String> {
    let uri: Uri = url.parse().ok()?;
    Some(format!("{}://{}", uri.scheme_str()?, uri.authority()?))
}

fn host_of(origin: &str) -> Option<String> {
    origin.parse::<Uri>().ok()?.host().map(str::to_owned)
}

/// Scrapes until it is stopped.
#[derive(Debug)]
pub struct Scraper {
    wish: Arc<(Mutex<Wish>, Condvar)>,
    looked: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// What the scraper is asked for beside its rounds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Wish {
    #[default]
    Nothing,
    /// A look now, with a row for every series.
    Whole,
    /// A last look.
    End,
}

/// Where rows go. Called from the scraper's thread.
pub type ToRows = Arc<dyn Fn(Sample) + Send + Sync>;

impl Scraper {
    /// Begins to look at these pages. Returns after the first look, so that counters have a value from before the load.
    /// `knows` says which names anybody reads.
    ///
    /// # Errors
    /// This machine has no thread for it.
    pub fn start(
        pages: Vec<Page>,
        every: Span,
        clock: Clock,
        knows: fn(&str) -> bool,
        rows: ToRows,
    ) -> std::io::Result<Scraper> {
        let wish: Arc<(Mutex<Wish>, Condvar)> = Arc::default();
        let (wished, (told, looked)) = (Arc::clone(&wish), mpsc::channel());
        let thread = std::thread::Builder::new().name("scrape".into()).spawn(move || {
            let Ok(runtime) = runtime() else { return };
            let pages = runtime.block_on(async {
                let several = pages.iter().any(|page| !page.name.is_empty());
                let new = |(number, page): (usize, Page)| {
                    let marks = several || number == 0;
                    Follower::new(Looker::new(page, clock), (several, marks), knows)
                };
                pages.into_iter().enumerate().map(new).collect::<Vec<_>>()
            });
            Rounds { runtime, pages, every: Span(every.0.max(1_000_000)), clock, rows }.go(&wished, &told);
        })?;
        let _ = looked.recv();
        Ok(Scraper { wish, looked, thread: Some(thread) })
    }

    /// Looks now and keeps every row, so that whoever reads a part of a run finds a value in it. Waits for that look, but not for
    /// long: a page that hangs does not hold up a level.
    pub fn whole(&self) {
        while self.looked.try_recv().is_ok() {}
        self.ask(Wish::Whole);
        let _ = self.looked.recv_timeout(PATIENCE.as_duration());
    }

    /// Takes a last look and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn ask(&self, wish: Wish) {
        if let Ok(mut now) = self.wish.0.lock() {
            *now = wish;
        }
        self.wish.1.notify_all();
    }

    fn end(&mut self) {
        self.ask(Wish::End);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.end();
    }
}

/// The scraper on its thread.
struct Rounds {
    runtime: LocalRuntime,
    pages: Vec<Follower>,
    every: Span,
    clock: Clock,
    rows: ToRows,
}

impl Rounds {
    /// Looks at every page at each due time; a look that takes longer than the distance leaves the ones out that it missed.
    fn go(mut self, wish: &(Mutex<Wish>, Condvar), told: &mpsc::Sender<()>) {
        let mut due = self.clock.now();
        loop {
            self.look();
            let _ = told.send(());
            let now = self.clock.now();
            while due <= now {
                due += self.every;
            }
            match wait(due, self.clock, wish) {
                Wish::Nothing => {}
                Wish::Whole => self.pages.iter_mut().for_each(Follower::forget),
                // What happened since the last look counts as well.
                Wish::End => return self.look(),
            }
        }
    }

    /// All pages at once: the instant is one, and a page that hangs delays none.
    fn look(&mut self) {
        let patience = Span(PATIENCE.0.max(self.every.0.min(10_000_000_000)));
        let looks = self.pages.iter_mut().map(|page| page.look(self.clock, patience, &self.rows));
        self.runtime.block_on(futures_util::future::join_all(looks));
    }
}

/// Waits until `due`, or until something is wished for before.
fn wait(due: At, clock: Clock, (wish, changed): &(Mutex<Wish>, Condvar)) -> Wish {
    let Ok(mut wished) = wish.lock() else { return Wish::End };
    loop {
        let left = due - clock.now();
        if *wished != Wish::Nothing || left.0 <= 0 {
            return std::mem::take(&mut *wished);
        }
        match changed.wait_timeout(wished, left.as_duration()) {
            Ok((guard, _)) => wished = guard,
            Err(_) => return Wish::End,
        }
    }
}

/// A page with its connection.
struct Looker {
    page: Page,
    pool: Pool,
}

impl Looker {
    fn new(page: Page, clock: Clock) -> Looker {
        let pool = Pool::new(
            page.target.resolve(),
            Meter::new(clock),
            Arc::new(AtomicU32::new(0)),
            Known::default(),
        );
        pool.set_policy(Connections::Prewarmed, 1, page.target.resolve());
        Looker { page, pool }
    }

    /// What the page says now, or why it says nothing.
    async fn get(&self, patience: Span) -> Result<Vec<Row>, String> {
        let target = &self.page.target;
        let uri = target.uri("").map_err(|e| e.to_string())?;
        let request = Outgoing::new(Some(target.gets(&uri).bare()));
        let seen = Seen::default();
        let asked = exchange(&self.pool, patience, &request, &seen);
        let ending = tokio::time::timeout(patience.as_duration(), asked).await;
        let Seen { head, body } = seen;
        let (head, body) = (head.into_inner(), body.into_inner());
        let Some(head) = head else {
            return Err(match ending {
                Err(_) => "timeout".to_owned(),
                Ok(_) => "no connection".to_owned(),
            });
        };
        if ending.is_err() {
            return Err("timeout".to_owned());
        }
        if head.status != 200 {
            return Err(format!("HTTP {}", head.status));
        }
        if body.len() > PAGE_MAX {
            return Err("the page is too long".to_owned());
        }
        Ok(self.page.form.read(&body))
    }
}

#[derive(Default)]
struct Seen {
    head: RefCell<Option<Head>>,
    body: RefCell<Vec<u8>>,
}

impl Watch for Seen {
    fn connected(&self, _: &Held) {}
    fn sent(&self) {}

    fn head(&self, head: Head) {
        *self.head.borrow_mut() = Some(head);
    }

    fn data(&self, bytes: &[u8]) -> bool {
        let mut body = self.body.borrow_mut();
        body.extend_from_slice(bytes);
        body.len() <= PAGE_MAX
    }
}

/// A page and what it said last.
struct Follower {
    looker: Looker,
    /// Is its name written on every row?
    named: bool,
    /// Does it mark the looks? Of several pages of one server the first does.
    marks: bool,
    knows: fn(&str) -> bool,
    looks: u64,
    series: HashMap<(String, String), Last>,
}

struct Last {
    value: f64,
    look: u64,
}

impl Follower {
    fn new(looker: Looker, (named, marks): (bool, bool), knows: fn(&str) -> bool) -> Follower {
        Follower { looker, named, marks, knows, looks: 0, series: HashMap::new() }
    }

    /// What it said last counts as never said.
    fn forget(&mut self) {
        self.series.values_mut().for_each(|last| last.value = f64::NAN);
    }

    async fn look(&mut self, clock: Clock, patience: Span, rows: &ToRows) {
        let constant = self.looker.page.form == Form::LlamaProps;
        if constant && self.looks > 0 {
            return;
        }
        let asked = clock.now();
        let found = self.looker.get(patience).await;
        // A page is made somewhere between the question and the answer.
        let at = At(asked.0 + (clock.now() - asked).0 / 2);
        match found {
            Ok(found) => self.tell(at, found, rows),
            Err(why) if self.marks => rows(self.row(at, "scrape_failed", &[("why", &why)], 1.0)),
            Err(_) => self.tell(at, Vec::new(), rows),
        }
    }

    fn tell(&mut self, at: At, found: Vec<Row>, rows: &ToRows) {
        self.looks += 1;
        let look = self.looks;
        if self.marks {
            rows(self.row(at, "scrape_samples", &[], found.len() as f64));
        }
        for Row { name, labels, value } in found {
            let labels: Vec<(&str, &str)> = labels.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            let text = self.labels(&labels);
            let known = (self.knows)(&name);
            let full = self.series.len() >= MOST_SERIES;
            let key = (name, text);
            match self.series.get_mut(&key) {
                Some(last) => {
                    last.look = look;
                    let same = last.value.to_bits() == value.to_bits();
                    if same || (!known && !look.is_multiple_of(UNKNOWN_EVERY)) {
                        continue;
                    }
                    last.value = value;
                }
                None if full => continue,
                None => _ = self.series.insert(key.clone(), Last { value, look }),
            }
            rows(sample(at, key.0, key.1, value));
        }
        self.series.retain(|(name, labels), last| {
            let gone = last.look != look;
            if gone {
                rows(sample(at, name.clone(), labels.clone(), f64::NAN));
            }
            !gone
        });
    }

    fn row(&self, at: At, name: &str, labels: &[(&str, &str)], value: f64) -> Sample {
        sample(at, name.to_owned(), self.labels(labels), value)
    }

    /// Labels as the run keeps them, with the page's name; a label of that name on the page is set aside as Prometheus does.
    fn labels(&self, labels: &[(&str, &str)]) -> String {
        if !self.named {
            return join_labels(labels);
        }
        let page = self.looker.page.name.as_str();
        let rename = |(key, value): &(&str, &str)| {
            let key = if *key == "source" { "exported_source" } else { key };
            (key.to_owned(), (*value).to_owned())
        };
        let mut all: Vec<(String, String)> = labels.iter().map(rename).collect();
        all.push(("source".to_owned(), page.to_owned()));
        join_labels(&all.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>())
    }
}

fn sample(at: At, name: String, labels: String, value: f64) -> Sample {
    let source = if name.starts_with("DCGM_") { "gpu" } else { "server" };
    Sample { at, source: source.to_owned(), name, labels, value }
}
