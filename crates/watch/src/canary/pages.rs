//! Metrics endpoints of both sides → counts of each replica by minute.
//!
//! Counting is per scrape, as in a watch ([`crate::page_state`]): the values of a scrape are dropped after the next one.

use std::collections::HashMap;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::{PageLayout, ServerSide, Signal};
use plimsoll_model::{Arm, At, PageRead, PageSaid, Span};

use super::finding::CanaryFinding;
use super::judge::CanarySpec;
use super::trial::{CanaryTrial, MINUTE, MinuteSource, ReplicaMinuteCounts, SIGNALS};
use crate::lint::counts_failures;
use crate::page_state::{Layouts, PageState, ScrapeDelta};

/// Maximum distance of two scrapes. Beyond it the gain is left out, because a returning endpoint reports its whole
/// outage, which is the load of no minute. One lost scrape at the slowest interval (30 s) is within it.
const TOGETHER: Span = Span(MINUTE.0 / 2 * 3);

/// The two sides of a fleet, by their metrics endpoints.
#[derive(Clone, Debug)]
pub struct Canary {
    arms: HashMap<String, Arm>,
    layouts: Layouts,
    pages: HashMap<String, PageState>,
    /// Counts of each replica in the open minute, by name.
    minute: HashMap<String, ScrapedMinute>,
    trial: CanaryTrial,
}

#[derive(Clone, Debug)]
struct ScrapedMinute {
    seen: ReplicaMinuteCounts,
    scraped: Span,
    fell: bool,
}

impl Canary {
    /// Returns an analysis without data. `arms` is the side of each endpoint by name.
    pub fn new(spec: CanarySpec, budget: Option<BudgetFile>, arms: HashMap<String, Arm>) -> Canary {
        Canary {
            arms,
            layouts: Layouts::default(),
            pages: HashMap::new(),
            minute: HashMap::new(),
            trial: CanaryTrial::new(spec, budget, MinuteSource::Pages),
        }
    }

    /// Adds a scrape of an endpoint.
    pub fn read(&mut self, read: PageRead) {
        let PageRead { page, at, said: PageSaid::Values(series, values) } = read else { return };
        let Some(arm) = self.arms.get(&page).copied() else { return };
        let scraped = self.pages.entry(page.clone()).or_default();
        let Some(ScrapeDelta { side, layout, from: Some(from), .. }) =
            scraped.read(&page, at, (series, values), &mut self.layouts)
        else {
            return;
        };
        if at - from > TOGETHER {
            return;
        }
        for (number, replica) in side.replicas().iter().enumerate() {
            let fresh = || ScrapedMinute {
                seen: ReplicaMinuteCounts {
                    name: replica.name.clone(),
                    arm,
                    ..ReplicaMinuteCounts::default()
                },
                scraped: Span::ZERO,
                fell: false,
            };
            let one = self.minute.entry(replica.name.clone()).or_insert_with(fresh);
            one.count((&side, number), &layout, (from, at));
        }
    }

    /// Evaluates the minute if it is complete. Returns whether it was.
    pub fn tick(&mut self, now: At) -> bool {
        let Some(minute) = self.trial.due(now) else { return false };
        self.layouts.forget();
        // The process must have lived through the minute, with scrapes for at least half of it.
        let lived = |one: &ScrapedMinute| !one.fell && one.scraped >= Span(MINUTE.0 / 2);
        let each = self.minute.drain().map(|(_, one)| one).filter(lived);
        self.trial.minute(each.map(|one| one.seen).collect(), minute);
        true
    }

    pub fn finding(&self, now: At) -> CanaryFinding {
        self.trial.finding(now)
    }
}

impl ScrapedMinute {
    /// Adds the counts between two scrapes.
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
