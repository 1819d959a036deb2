//! Samples as they come from the scraper → blocks of time: what each row of the budget counted between two scrapes, replica by replica.
//!
//! A scraper writes a row where a value has changed, so that the last value of each series is kept when what lies before the last blocks is
//! forgotten. A block is what came between two ticks; a tick without a good scrape makes none, and the next one counts from the last good scrape:
//! counters lose nothing but what a process takes with it when it dies.

use std::collections::{HashMap, VecDeque};

use plimsoll_judge::budget::{Budget, BudgetFile};
use plimsoll_measure::server_side::table::SignalPart;
use plimsoll_measure::server_side::{
    FAILED, LEFT, PAGE_LABEL, PATIENCE, Replica, SCRAPE, Series, ServerSide, Signal,
};
use plimsoll_model::{At, Attempt, Sample, Span, split_labels};

use crate::alert::cold::ReplicaSeen;
use crate::alert::{AlertKind, Board, FirstTokens, Kept, Minute, board};
use crate::block::Block;
use crate::finding::ReplicaNow;
use crate::over::{Over, over};
use crate::recall::Recall;
use crate::record::{AlertWindow, BEFORE, Recent};
use crate::requests;
use crate::rows::{self, Source};
use crate::samples::Samples;
use crate::{Alert, AlertSpec, FleetNow, WatchFinding};

/// How a budget is watched.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct WatchSpec {
    /// Between two scrapes.
    pub every: Span,
    /// How far rows look back.
    pub window: Span,
}

/// A page without a good scrape for so many cadences is lost, and never sooner than this: a scrape may be slow.
const LOST_AFTER: i64 = 3;
const LOST_AT_LEAST: Span = Span::from_secs(2);
/// Nothing has moved for so long with requests running: stalled. A page that counts no tokens says nothing while long answers are written.
const STALLED: Span = Span::from_secs(30);
const STALLED_WITHOUT_TOKENS: Span = Span::from_secs(600);

/// Of a replica that has not moved for so long, however it ended, nothing is remembered.
const FORGOTTEN: Span = Span::from_secs(86_400);

/// What moves while a replica computes.
const COUNTERS: [Signal; 4] = [Signal::Finished, Signal::OutputTokens, Signal::PromptTokens, Signal::Steps];

/// Labels of `…_info` series that another release has another value of.
const VERSION_LABELS: [&str; 3] = ["version", "revision", "image"];

/// A replica that nothing tells from others.
const THE_SERVER: &str = "the server";

/// One page's scrapes.
#[derive(Copy, Clone, Debug, Default)]
struct PageSeen {
    tried: Option<At>,
    first: Option<At>,
    good: Option<At>,
    /// Lost after so long, where that is its sender's choice.
    patience: Option<Span>,
}

/// A budget file and what has been seen of the traffic it is held against.
#[derive(Clone, Debug)]
pub struct Watched {
    file: BudgetFile,
    spec: WatchSpec,
    samples: Samples,
    recall: Recall,
    blocks: VecDeque<Block>,
    pages: HashMap<String, PageSeen>,
    /// The last tick that made a block.
    last: Option<At>,
    /// When a counter of a replica moved last, or it had nothing to do.
    moved: HashMap<String, At>,
    side: ServerSide,
    /// Requests that ended since the last tick, where they are what is watched.
    requests: Option<Vec<Attempt>>,
    /// Those of the last minutes, where windows of alerts are kept.
    recent: Option<Recent>,
    alerts: Board,
}

impl Watched {
    /// Begins with nothing seen.
    pub fn new(file: BudgetFile, spec: WatchSpec) -> Watched {
        Watched {
            alerts: Board::new(&file, AlertSpec::default(), spec.every),
            file,
            spec,
            samples: Samples::default(),
            recall: Recall::default(),
            blocks: VecDeque::new(),
            pages: HashMap::new(),
            last: None,
            moved: HashMap::new(),
            side: ServerSide::default(),
            requests: None,
            recent: None,
        }
    }

    /// Windows of alerts are kept: requests are remembered for it.
    #[must_use]
    pub fn recording(self) -> Watched {
        Watched { recent: Some(Recent::default()), ..self }
    }

    /// Requests themselves are watched, from this instant on, and no pages.
    #[must_use]
    pub fn of_requests(self, alerts: AlertSpec, now: At) -> Watched {
        let alerts = Board::of_requests(&self.file, alerts, self.spec.every);
        Watched { alerts, requests: Some(Vec::new()), last: Some(now), ..self }
    }

    /// Takes requests that have ended.
    pub fn take(&mut self, attempts: impl IntoIterator<Item = Attempt>) {
        if let Some(pending) = &mut self.requests {
            pending.extend(attempts);
        }
    }

    /// With other settings of its alerts, before anything is seen.
    #[must_use]
    pub fn alerting(self, alerts: AlertSpec) -> Watched {
        Watched { alerts: Board::new(&self.file, alerts, self.spec.every), ..self }
    }

    /// Goes on where an earlier watch ended; its times are in this one's.
    #[must_use]
    pub fn resuming(mut self, kept: Kept, now: At) -> Watched {
        // What was stalled is so until something of it moves, however short this watch has looked.
        let stalled = kept.alerts.iter().filter(|alert| alert.kind == AlertKind::Stalled && alert.stands());
        self.moved.extend(stalled.map(|alert| {
            let name = if alert.about == THE_SERVER { "" } else { alert.about.as_str() };
            (name.to_owned(), At::ZERO + Span::from_secs_f64(alert.since_s))
        }));
        self.alerts.resume(kept, now);
        self
    }

    /// What rows counted in the minutes that began after this instant; the newest of each is left out, because it goes on.
    pub fn minutes_after(&self, at: At) -> Vec<(String, Minute)> {
        self.alerts.minutes_after(at)
    }

    /// Alerts that stand, and the last that were resolved, the newest first.
    pub fn alerts(&self) -> Vec<Alert> {
        self.alerts.alerts()
    }

    /// The window of the alerts that fired at this tick; `None` = there are none.
    pub fn fired(&self, now: At) -> Option<AlertWindow> {
        let alerts = self.alerts.fired(now);
        let since = alerts.iter().map(|alert| board::at(alert.since_s)).min()?.min(now);
        let from = since - BEFORE;
        let samples = match self.requests {
            None => self.recall.samples(from, now),
            Some(_) => Vec::new(),
        };
        let attempts = self.recent.as_ref().map(|recent| recent.window((from, since, now)));
        Some(AlertWindow { alerts, from, since, to: now, samples, attempts: attempts.unwrap_or_default() })
    }

    /// The run folder in which that window is kept.
    pub fn recorded(&mut self, now: At, run: &str) {
        self.alerts.recorded(now, run);
    }

    /// The budget.
    pub fn file(&self) -> &BudgetFile {
        &self.file
    }

    /// Takes a row of the scraper.
    pub fn push(&mut self, sample: Sample) {
        if [SCRAPE, FAILED, LEFT, PATIENCE].contains(&sample.name.as_str()) {
            let labels = split_labels(&sample.labels);
            let page =
                labels.iter().find(|(name, _)| name == PAGE_LABEL).map_or("", |(_, page)| page.as_str());
            if sample.name == LEFT {
                self.pages.remove(page);
                self.alerts.cold.left(page);
                return;
            }
            let seen = self.pages.entry(page.to_owned()).or_default();
            if sample.name == PATIENCE {
                seen.patience = Some(Span::from_secs_f64(sample.value));
                return;
            }
            seen.tried = seen.tried.max(Some(sample.at));
            if sample.name == SCRAPE && sample.value > 0.0 {
                seen.first = Some(seen.first.map_or(sample.at, |first| first.min(sample.at)));
                seen.good = seen.good.max(Some(sample.at));
            }
        }
        if sample.name.ends_with("_info") && !sample.value.is_nan() {
            self.version(&sample.labels);
        }
        self.recall.push(&sample);
        self.samples.push(sample);
    }

    /// The watch began then on the wall clock.
    #[must_use]
    pub fn begun_at(mut self, unix_s: f64) -> Watched {
        self.alerts.cold.began(unix_s);
        self
    }

    /// Notes which version a page is of, where one of its labels says so.
    fn version(&mut self, labels: &str) {
        let labels = split_labels(labels);
        let page = labels.iter().find(|(name, _)| name == PAGE_LABEL).map_or("", |(_, page)| page.as_str());
        let told: Vec<String> = labels
            .iter()
            .filter(|(name, _)| VERSION_LABELS.contains(&name.as_str()))
            .map(|(name, value)| format!("{name} {value}"))
            .collect();
        if !told.is_empty() {
            self.alerts.cold.version(page, told.join(", "));
        }
    }

    /// Counts what came since the last tick, and forgets what is older than the window.
    pub fn tick(&mut self, now: At) {
        if let Some(pending) = &mut self.requests {
            let ended = std::mem::take(pending);
            let block = requests::block(&self.file, &ended, (self.last.unwrap_or(now), now));
            self.blocks.push_back(block.clone());
            self.alert(now, Some(&block));
            if let Some(recent) = &mut self.recent {
                recent.push(ended, now);
            }
            self.last = Some(now);
            self.leave(now);
            return;
        }
        self.side = self.samples.read();
        let fresh = self.pages.values().filter_map(|page| page.good).max();
        let fresh = fresh.filter(|fresh| self.last.is_none_or(|last| *fresh > last));
        let block = self.last.or(self.twice()).zip(fresh).map(|(last, fresh)| self.block(last, fresh));
        if let Some(fresh) = fresh {
            self.moves(self.last.unwrap_or(fresh), fresh);
        }
        self.blocks.extend(block.clone());
        self.alert(now, block.as_ref());
        let Some(fresh) = fresh else { return };
        self.last = Some(fresh);
        self.leave(now);
        self.samples.forget_before(fresh - Span(2 * self.spec.every.0.max(1)));
    }

    /// The first scrape of a page that has had another since: what is pushed may come several at a time.
    fn twice(&self) -> Option<At> {
        self.pages.values().filter(|page| page.first < page.good).filter_map(|page| page.first).min()
    }

    /// Lets go of what is older than the window.
    fn leave(&mut self, now: At) {
        while self.blocks.front().is_some_and(|block| block.at < now - self.spec.window) {
            self.blocks.pop_front();
        }
    }

    fn alert(&mut self, now: At, block: Option<&Block>) {
        let lost: Vec<String> = self.lost(now).into_iter().map(str::to_owned).collect();
        let replicas = self.replicas(now);
        let silent: Vec<String> = replicas.iter().filter(|r| !r.answers).map(|r| r.name.clone()).collect();
        let stalled: Vec<(String, f64)> =
            replicas.into_iter().filter_map(|replica| Some((replica.name, replica.stalled_s?))).collect();
        let pages = self.pages.len();
        let seen = block.map_or(Vec::new(), |block| self.seen((block.at - block.length, block.at), &silent));
        self.alerts.step(&board::Seen {
            now,
            block,
            lost: &lost,
            pages,
            stalled: &stalled,
            silent: &silent,
            replicas: &seen,
        });
        // Requests themselves are diagnosed from their run, which has all of them.
        if self.requests.is_none() {
            self.diagnose(now);
        }
    }

    /// What the pages tell of each replica that answers.
    fn seen(&self, (from, to): (At, At), silent: &[String]) -> Vec<ReplicaSeen> {
        let replica = |(number, replica): (usize, &Replica)| {
            let name = name_of(replica);
            let stood = |signal, part| self.side.stood_of(number, signal, &part, to);
            let first = stood(Signal::Ttft, SignalPart::Sum).zip(stood(Signal::Ttft, SignalPart::Count));
            let came = self.side.histogram_of(number, Signal::Ttft, from, to);
            (!silent.contains(&name)).then(|| ReplicaSeen {
                began_s: level(self.side.gauge_of(number, Signal::StartTime)),
                fell: self.fell(number, (from, to)),
                answered: stood(Signal::Finished, SignalPart::Counter),
                first,
                came: came.and_then(|came| came.sum.zip(came.count)),
                name,
            })
        };
        self.side.replicas().iter().enumerate().filter_map(replica).collect()
    }

    /// Did one of its counters begin anew?
    fn fell(&self, replica: usize, (from, to): (At, At)) -> bool {
        let gained = COUNTERS.iter().filter_map(|signal| self.side.gained_of(replica, *signal, from, to));
        gained.into_iter().any(|gained| gained.resets > 0)
    }

    /// Asks the pages what is to blame for the alerts that fired just now: once, however many they are.
    fn diagnose(&mut self, now: At) {
        let Some(since) = self.alerts.undiagnosed(now) else { return };
        let found = self.recall.diagnose((since, now), self.alerts.good(), self.spec.every);
        self.alerts.diagnosed(now, &found);
    }

    /// Notes which replicas moved, or had nothing to do.
    fn moves(&mut self, from: At, to: At) {
        for (number, replica) in self.side.replicas().iter().enumerate() {
            let gains = COUNTERS.iter().filter_map(|signal| self.side.gained_of(number, *signal, from, to));
            let moves = gains.into_iter().any(|gained| gained.value > 0.0);
            let running = level(self.side.gauge_of(number, Signal::Running));
            let is_idle = running.is_none_or(|running| running < 1.0);
            let moved = self.moved.entry(replica.name.clone()).or_insert(to);
            if moves || is_idle {
                *moved = to;
            }
        }
        // Names of pods never come again.
        self.moved.retain(|_, moved| *moved >= to - FORGOTTEN);
    }

    fn block(&self, from: At, to: At) -> Block {
        let gained = |signal| self.side.gained(signal, from, to);
        let failed = [Signal::Failed, Signal::Refused];
        let failed: f64 = failed.iter().filter_map(|signal| gained(*signal)).map(|gained| gained.value).sum();
        let finished = gained(Signal::Finished);
        let restarts =
            (0..self.side.replicas().len()).filter(|number| self.fell(*number, (from, to))).count();
        Block {
            at: to,
            length: to - from,
            rows: self.file.budgets.iter().map(|budget| self.row(budget, failed, (from, to))).collect(),
            first: self.side.histogram(Signal::Ttft, from, to).filter(|b| !b.edges.is_empty()).map(
                |buckets| {
                    let computed = gained(Signal::PromptTokens).map(|prompt| {
                        prompt.value - gained(Signal::CachedTokens).map_or(0.0, |cached| cached.value)
                    });
                    let waited_s =
                        self.side.histogram(Signal::QueueTime, from, to).and_then(|queue| queue.sum);
                    FirstTokens { buckets, computed, waited_s }
                },
            ),
            finished: finished.map(|gained| gained.value),
            output_tokens: gained(Signal::OutputTokens).map(|gained| gained.value),
            restarts: restarts as u64,
            shed: 0,
            waiting: self
                .per_replica(self.side.gauge(Signal::Waiting).and_then(|series| series.mean(from, to)), to),
            waiting_by_little: self.per_replica(self.side.waiting_by_little(from, to), to),
        }
    }

    fn per_replica(&self, value: Option<f64>, now: At) -> Option<f64> {
        let answering = self.replicas(now).iter().filter(|replica| replica.answers).count();
        value.filter(|_| answering > 0).map(|value| value / answering as f64)
    }

    /// What one row counted; failures are over every ceiling.
    fn row(&self, budget: &Budget, failed: f64, (from, to): (At, At)) -> Option<Over> {
        let failed = Over::failed(failed.max(0.0).round() as u64);
        match rows::source(budget) {
            Source::Latency { signal, limit_s } => {
                let each = (0..self.side.replicas().len())
                    .filter_map(|replica| self.side.histogram_of(replica, signal, from, to));
                let each: Vec<Over> = each.filter_map(|buckets| over(&buckets, limit_s)).collect();
                let all = match each.is_empty() {
                    true => over(&self.side.histogram(signal, from, to)?, limit_s)?,
                    false => each.into_iter().fold(Over::default(), Over::with),
                };
                // Between tokens there is no request that could fail.
                Some(if signal == Signal::Itl { all } else { all.with(failed) })
            }
            Source::Errors if !crate::lint::counts_failures(&self.side) => None,
            Source::Errors => {
                let finished = self.side.gained(Signal::Finished, from, to)?.value.max(0.0).round() as u64;
                Some(failed.with(Over { n: finished, ..Over::default() }))
            }
            Source::Values { .. } | Source::Shares(_) | Source::Nothing(_) => None,
        }
    }

    /// What is known now.
    pub fn finding(&self, now: At) -> WatchFinding {
        let lost = self.lost(now);
        let fleet = self.fleet(now);
        let still: Vec<f64> = fleet.replicas.iter().filter_map(|replica| replica.stalled_s).collect();
        let busy = |replica: &&ReplicaNow| replica.answers && replica.running.is_some_and(|r| r >= 1.0);
        let seen = rows::Seen {
            blocks: &self.blocks,
            lost: [lost.len(), self.pages.len()],
            stalled: [still.len(), fleet.replicas.iter().filter(busy).count()],
            stalled_s: still.iter().copied().fold(0.0, f64::max),
            began: self.last.is_some(),
            of_requests: self.requests.is_some(),
        };
        let rows = self.file.budgets.iter().enumerate();
        let rows = rows.map(|(place, budget)| rows::row(&self.file, budget, place, &seen)).collect();
        WatchFinding {
            budget: self.file.name.clone(),
            at_s: now.0 as f64 / 1e9,
            window_s: self.spec.window.as_secs_f64(),
            rows,
            shed: self.requests.is_some().then(|| self.blocks.iter().map(|block| block.shed).sum()),
            fleet,
            alerts: self.alerts.alerts(),
        }
    }

    /// Pages without a good scrape for some cadences.
    fn lost(&self, now: At) -> Vec<&str> {
        let patience = Span(LOST_AFTER * self.spec.every.0).max(LOST_AT_LEAST);
        let is_lost = |page: &PageSeen| {
            let patience = page.patience.map_or(patience, |own| own.max(patience));
            page.good.is_none_or(|good| good < now - patience)
        };
        self.pages.iter().filter(|(_, page)| is_lost(page)).map(|(name, _)| name.as_str()).collect()
    }

    fn replicas(&self, now: At) -> Vec<ReplicaNow> {
        let lost = self.lost(now);
        let replica = |(number, replica): (usize, &Replica)| {
            let running = level(self.side.gauge_of(number, Signal::Running));
            let answers = !lost.contains(&replica.page.as_str());
            let stalled_s =
                running.filter(|running| answers && *running >= 1.0).and_then(|_| self.stalled(replica));
            ReplicaNow {
                name: name_of(replica),
                running,
                waiting: level(self.side.gauge_of(number, Signal::Waiting)),
                answers,
                stalled_s,
            }
        };
        self.side.replicas().iter().enumerate().map(replica).collect()
    }

    /// For how long nothing of a replica has moved, s, where that is too long.
    fn stalled(&self, replica: &Replica) -> Option<f64> {
        // By its own page: another's, that was read later, says nothing of it.
        let still = self.pages.get(&replica.page)?.good? - *self.moved.get(&replica.name)?;
        let least = if self.side.has(Signal::OutputTokens) { STALLED } else { STALLED_WITHOUT_TOKENS };
        (still >= least).then(|| still.as_secs_f64())
    }

    fn fleet(&self, now: At) -> FleetNow {
        let lost = self.lost(now);
        let seconds: f64 = self.blocks.iter().map(|block| block.length.as_secs_f64()).sum();
        let rate = |of: fn(&Block) -> Option<f64>| {
            let gained: Vec<f64> = self.blocks.iter().filter_map(of).collect();
            (!gained.is_empty() && seconds > 0.0).then(|| gained.iter().sum::<f64>() / seconds)
        };
        let replicas = self.replicas(now);
        // Replica by replica, because pages are read one after the other: the newest instant is known of the last one alone.
        let each = |signal| -> Vec<f64> {
            let level = |number| level(self.side.gauge_of(number, signal));
            let answering = replicas.iter().enumerate().filter(|(_, replica)| replica.answers);
            answering.filter_map(|(number, _)| level(number)).collect()
        };
        let sum = |signal| each(signal).into_iter().reduce(|all, one| all + one);
        FleetNow {
            pages: [(self.pages.len() - lost.len()) as u64, self.pages.len() as u64],
            running: sum(Signal::Running),
            waiting: sum(Signal::Waiting),
            requests_per_s: rate(|block| block.finished),
            output_tokens_per_s: rate(|block| block.output_tokens),
            kv_usage: each(Signal::KvUsage).into_iter().reduce(f64::max),
            restarts: self.blocks.iter().map(|block| block.restarts).sum(),
            replicas,
        }
    }
}

fn name_of(replica: &Replica) -> String {
    if replica.name.is_empty() { THE_SERVER.to_owned() } else { replica.name.clone() }
}

fn level(series: Option<Series>) -> Option<f64> {
    series.and_then(|series| series.steps.last().map(|step| step.value))
}
