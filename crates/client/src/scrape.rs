//! Looks at servers' pages while a load runs, on the run's own clock.
//!
//! On a thread of its own with connections of its own: the workers that send the load share nothing with it but the machine.
//! What is kept of a page is in [`crate::told`], which pages there are is found in [`crate::pages`].

use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::thread::JoinHandle;

use plimsoll_model::{At, Span};
use tokio::runtime::LocalRuntime;

use crate::clock::Clock;
use crate::pages::{Looker, MetricsPage, PATIENCE, runtime};
use crate::targets::Targets;
use crate::told::{ToRows, Told};

/// Scrapes until it is stopped.
#[derive(Debug)]
pub struct Scraper {
    asked: Arc<(Mutex<Asked>, Condvar)>,
    looked: mpsc::Receiver<()>,
    thread: Option<JoinHandle<()>>,
}

/// What the scraper is asked for beside its rounds.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
enum Wish {
    #[default]
    Nothing,
    /// A scrape now, with a row for every series.
    Whole,
    /// A last scrape.
    End,
}

/// What is asked of the scraper's thread.
#[derive(Debug, Default)]
struct Asked {
    wish: Wish,
    /// The pages from now on, where they are others.
    pages: Option<Vec<MetricsPage>>,
}

impl Scraper {
    /// Begins to scrape these pages. Returns after the first scrape, so that counters have a value from before the load.
    /// `knows` says which names anybody reads.
    ///
    /// # Errors
    /// This machine has no thread for it.
    pub fn start(
        pages: Vec<MetricsPage>,
        every: Span,
        clock: Clock,
        knows: fn(&str) -> bool,
        rows: ToRows,
    ) -> std::io::Result<Scraper> {
        let asked: Arc<(Mutex<Asked>, Condvar)> = Arc::default();
        let (asks, (told, looked)) = (Arc::clone(&asked), mpsc::channel());
        let thread = std::thread::Builder::new().name("scrape".into()).spawn(move || {
            let Ok(runtime) = runtime() else { return };
            let pages = runtime.block_on(async {
                let several = pages.iter().any(|page| !page.name.is_empty());
                let new = |(number, page): (usize, MetricsPage)| {
                    Source::new(page, clock, (several, several || number == 0), knows)
                };
                pages.into_iter().enumerate().map(new).collect::<Vec<_>>()
            });
            Rounds { runtime, pages, every: Span(every.0.max(1_000_000)), clock, knows, rows }
                .go(&asks, &told);
        })?;
        let _ = looked.recv();
        Ok(Scraper { asked, looked, thread: Some(thread) })
    }

    /// Looks now and keeps every row, so that whoever reads a part of a run finds a value in it. Waits for that scrape, but not for
    /// long: a page that hangs does not hold up a level.
    pub fn whole(&self) {
        while self.looked.try_recv().is_ok() {}
        self.ask(Wish::Whole);
        let _ = self.looked.recv_timeout(PATIENCE.as_duration());
    }

    /// Scrapes these pages from now on: those that are no longer among them have left, and those that stay go on as they were.
    /// Each has a name.
    pub fn replace(&self, pages: Vec<MetricsPage>) {
        if let Ok(mut now) = self.asked.0.lock() {
            now.pages = Some(pages);
        }
        self.asked.1.notify_all();
    }

    /// Takes a last scrape and ends.
    pub fn stop(mut self) {
        self.end();
    }

    fn ask(&self, wish: Wish) {
        if let Ok(mut now) = self.asked.0.lock() {
            now.wish = wish;
        }
        self.asked.1.notify_all();
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
    pages: Vec<Source>,
    every: Span,
    clock: Clock,
    knows: fn(&str) -> bool,
    rows: ToRows,
}

impl Rounds {
    /// Looks at every page at each due time; a scrape that takes longer than the distance leaves the ones out that it missed.
    fn go(mut self, asked: &(Mutex<Asked>, Condvar), told: &mpsc::Sender<()>) {
        let mut due = self.clock.now();
        loop {
            self.scrape();
            let _ = told.send(());
            let now = self.clock.now();
            while due <= now {
                due += self.every;
            }
            let Asked { wish, pages } = wait(due, self.clock, asked);
            pages.into_iter().for_each(|pages| self.replace(pages));
            match wish {
                Wish::Nothing => {}
                Wish::Whole => self.pages.iter_mut().for_each(Source::forget),
                // What happened since the last scrape counts as well.
                Wish::End => return self.scrape(),
            }
        }
    }

    fn replace(&mut self, pages: Vec<MetricsPage>) {
        let now = self.clock.now();
        let is = |source: &Source, page: &MetricsPage| {
            source.page().name == page.name && source.page().url == page.url
        };
        self.pages.retain_mut(|source| {
            let stays = pages.iter().any(|page| is(source, page));
            if let Source::Page(_, told) = source
                && !stays
            {
                told.left(now, &self.rows);
            }
            stays
        });
        let new = pages.into_iter().filter(|page| !self.pages.iter().any(|source| is(source, page)));
        let new: Vec<MetricsPage> = new.collect();
        // Connections belong to this runtime.
        let (clock, knows) = (self.clock, self.knows);
        let new =
            async { new.into_iter().map(|page| Source::new(page, clock, (true, true), knows)).collect() };
        let new: Vec<Source> = self.runtime.block_on(new);
        self.pages.extend(new);
    }

    /// All pages at once: the instant is one, and a page that hangs delays none.
    fn scrape(&mut self) {
        let patience = Span(PATIENCE.0.max(self.every.0.min(10_000_000_000)));
        let how = (self.clock, patience, self.every);
        let scrapes = self.pages.iter_mut().map(|page| page.scrape(how, &self.rows));
        self.runtime.block_on(futures_util::future::join_all(scrapes));
    }
}

/// Waits until `due`, or until something is asked for before.
fn wait(due: At, clock: Clock, (asked, changed): &(Mutex<Asked>, Condvar)) -> Asked {
    let over = || Asked { wish: Wish::End, pages: None };
    let Ok(mut now) = asked.lock() else { return over() };
    loop {
        let left = due - clock.now();
        if now.wish != Wish::Nothing || now.pages.is_some() || left.0 <= 0 {
            return std::mem::take(&mut *now);
        }
        match changed.wait_timeout(now, left.as_duration()) {
            Ok((guard, _)) => now = guard,
            Err(_) => return over(),
        }
    }
}

/// Where rows come from.
enum Source {
    Page(Looker, Told),
    Targets(Targets),
}

impl Source {
    fn new(page: MetricsPage, clock: Clock, (named, marks): (bool, bool), knows: fn(&str) -> bool) -> Source {
        let name = named.then(|| page.name.clone());
        let looker = Looker::new(page, clock);
        match looker.page.asks_prometheus() {
            Some(_) => Source::Targets(Targets::new(looker, knows)),
            None => Source::Page(looker, Told::new((name, marks), knows)),
        }
    }

    fn page(&self) -> &MetricsPage {
        match self {
            Source::Page(looker, _) => &looker.page,
            Source::Targets(targets) => targets.page(),
        }
    }

    /// What it said last counts as never said.
    fn forget(&mut self) {
        match self {
            Source::Page(_, told) => told.forget(),
            Source::Targets(targets) => targets.forget(),
        }
    }

    async fn scrape(&mut self, (clock, patience, every): (Clock, Span, Span), rows: &ToRows) {
        let (looker, told) = match self {
            Source::Targets(targets) => return targets.scrape((clock, patience, every), rows).await,
            Source::Page(looker, told) => (looker, told),
        };
        if looker.page.is_constant() && told.scrapes > 0 {
            return;
        }
        let asked = clock.now();
        let found = looker.get(patience).await;
        // A page is made somewhere between the question and the answer.
        let at = At(asked.0 + (clock.now() - asked).0 / 2);
        match found {
            Ok(found) => told.tell(at, found, rows),
            Err(why) if told.marks => told.failed(at, &why, rows),
            Err(_) => told.tell(at, Vec::new(), rows),
        }
    }
}
