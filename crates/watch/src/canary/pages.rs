//! Metrics pages of both sides → what each replica counted, minute by minute.
//!
//! Scrape by scrape, as a watch counts ([`crate::scraped`]): what a page said is forgotten once the next scrape has come.

use std::collections::HashMap;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{PageLayout, ServerSide, Signal};
use plimsoll_model::{Arm, At, PageRead, PageSaid, Span};

use super::finding::CanaryFinding;
use super::judge::CanarySpec;
use super::trial::{MINUTE, MinuteSource, ReplicaSeen, SIGNALS, Trial};
use crate::lint::counts_failures;
use crate::scraped::{Layouts, Scraped, Step};

/// What came between two scrapes that lie further apart is left out: a page that is back tells all that it counted while it was away, which is the
/// load of no minute. A scrape that is lost at the slowest cadence (30 s) is under it.
const TOGETHER: Span = Span(MINUTE.0 / 2 * 3);

/// Two sides of a fleet, by their pages.
#[derive(Clone, Debug)]
pub struct Canary {
    arms: HashMap<String, Arm>,
    layouts: Layouts,
    pages: HashMap<String, Scraped>,
    /// What each replica has counted since the last minute was over, by its name.
    minute: HashMap<String, Counted>,
    trial: Trial,
}

/// What a replica counted.
#[derive(Clone, Debug)]
struct Counted {
    seen: ReplicaSeen,
    scraped: Span,
    fell: bool,
}

impl Canary {
    /// Nothing seen yet. `arms`: the side of each page, by its name.
    pub fn new(spec: CanarySpec, budget: Option<BudgetFile>, arms: HashMap<String, Arm>) -> Canary {
        Canary {
            arms,
            layouts: Layouts::default(),
            pages: HashMap::new(),
            minute: HashMap::new(),
            trial: Trial::new(spec, budget, MinuteSource::Pages),
        }
    }

    /// Takes what came of a page.
    pub fn read(&mut self, read: PageRead) {
        let PageRead { page, at, said: PageSaid::Values(series, values) } = read else { return };
        let Some(arm) = self.arms.get(&page).copied() else { return };
        let scraped = self.pages.entry(page.clone()).or_default();
        let Some(Step { side, layout, from: Some(from), .. }) =
            scraped.read(&page, at, (series, values), &mut self.layouts)
        else {
            return;
        };
        if at - from > TOGETHER {
            return;
        }
        for (number, replica) in side.replicas().iter().enumerate() {
            let fresh = || Counted {
                seen: ReplicaSeen { name: replica.name.clone(), arm, ..ReplicaSeen::default() },
                scraped: Span::ZERO,
                fell: false,
            };
            let one = self.minute.entry(replica.name.clone()).or_insert_with(fresh);
            one.count((&side, number), &layout, (from, at));
        }
    }

    /// Counts the minute, where one is over. Says whether it was.
    pub fn tick(&mut self, now: At) -> bool {
        let Some(minute) = self.trial.due(now) else { return false };
        self.layouts.forget();
        // A process that lived through it, and was scraped for half of it at least.
        let lived = |one: &Counted| !one.fell && one.scraped >= Span(MINUTE.0 / 2);
        let each = self.minute.drain().map(|(_, one)| one).filter(lived);
        let mut seen: Vec<ReplicaSeen> = each.map(|one| one.seen).collect();
        // The same order each time: groups are drawn from it by a seed.
        seen.sort_unstable_by(|a, b| a.name.cmp(&b.name));
        self.trial.minute(&seen, minute);
        true
    }

    /// What is known now.
    pub fn finding(&self, now: At) -> CanaryFinding {
        self.trial.finding(now)
    }
}

impl Counted {
    /// Adds what came between two scrapes.
    fn count(&mut self, (side, number): (&ServerSide, usize), layout: &PageLayout, (from, to): (At, At)) {
        let gained = |signal| side.gained_of(number, signal, from, to);
        let counters = [Signal::Finished, Signal::OutputTokens, Signal::PromptTokens].map(gained);
        if let Some(any) = counters.iter().flatten().next() {
            self.scraped += any.to - any.from;
        }
        self.fell |= counters.iter().flatten().any(|gained| gained.resets > 0);
        let [finished, _, prompt] = counters.map(|gained| gained.map(|gained| gained.value.max(0.0)));
        let add = |sum: &mut Option<u64>, more: f64| *sum = Some(sum.unwrap_or(0) + more.round() as u64);
        finished.into_iter().for_each(|more| add(&mut self.seen.finished, more));
        self.seen.prompt_tokens += prompt.unwrap_or(0.0);
        if counts_failures(|signal| layout.may_say(signal)) {
            let failed = [Signal::Failed, Signal::Refused].into_iter().filter_map(gained);
            add(&mut self.seen.failed, failed.map(|gained| gained.value.max(0.0)).sum());
        }
        for signal in SIGNALS {
            let Some(came) = side.histogram_of(number, signal, from, to) else { continue };
            let all = match self.seen.latencies.remove(&signal) {
                Some(all) => all.with(came),
                None => came,
            };
            self.seen.latencies.insert(signal, all);
        }
    }
}
