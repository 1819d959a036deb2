//! Records turned into columns: one row per request in the order of due times, one array per metric.
//!
//! A summary reads each metric many times and each record once, so the records (half a kilobyte each, with their
//! events elsewhere) are walked a single time, by [`crate::gather`]. Here stand the two rules that all metrics share: a request's
//! end is its last attempt's, and what failed is [`INFINITE`] while what does not exist is [`ABSENT`]; the two are
//! never mixed and neither is ever zero. Sorting the records themselves lost: they are large and mostly in order.

use plimsoll_model::{At, Attempt, Broken, By, How, TokensRule};

use crate::gather::Gathered;
use crate::sessions::SessionTurn;

/// Rank of a request that failed or never ended: later than every time.
pub const INFINITE: i64 = i64::MAX;
/// The metric does not exist for this request.
pub const ABSENT: i64 = i64::MIN;
/// Share of whole answers whose tokens may be unknown where those of others are known: beyond it, what a figure per token rests on is a
/// choice.
pub(crate) const OUTPUT: f64 = 0.02;
/// Token count that nobody reported.
pub const UNKNOWN: u32 = u32::MAX;

/// What became of a request, as far as statistics ask.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    Finished,
    /// A whole answer that is wrong.
    Broken,
    /// The reader left, as the scenario asked.
    Cancelled,
    Failed,
}

impl Fate {
    /// How a request ended, by its last attempt.
    pub fn of(attempt: &Attempt) -> Fate {
        match (attempt.outcome.how, attempt.outcome.by) {
            (How::Finished, _) if attempt.answer.broken.is_some() => Fate::Broken,
            (How::Finished, _) => Fate::Finished,
            (How::Cancelled, By::Client) => Fate::Cancelled,
            _ => Fate::Failed,
        }
    }

    /// Did a whole answer arrive, right or wrong?
    pub fn ended_well(self) -> bool {
        matches!(self, Fate::Finished | Fate::Broken)
    }
}

/// All requests of one level, in the order of their due times. Times are ns.
#[derive(Default)]
pub struct Columns {
    pub due: Vec<i64>,
    /// When it ended, however it ended; [`INFINITE`] where it was given up while in flight.
    pub end: Vec<i64>,
    /// When it was sent first, for each request that was tried again: its index, rising, and ns. What was sent once was sent `sent_after`.
    pub(crate) begun: Vec<(u32, i64)>,
    pub how: Vec<How>,
    pub fate: Vec<Fate>,
    /// What was wrong with a whole answer; empty where nothing was with any.
    pub(crate) broken: Vec<Option<Broken>>,
    /// Attempts made at it; empty where one was at each.
    pub(crate) attempts: Vec<u16>,
    /// Index of its last attempt in the slice handed in; empty where rows were gathered and not kept.
    pub last: Vec<u32>,
    /// Index of its class in the scenario; empty where all are of the first.
    pub(crate) class: Vec<u16>,
    /// Number of the endpoint that it went to; empty where all went to the first.
    pub(crate) target: Vec<u16>,
    /// What the server said of its stages.
    pub(crate) stages: Stages,

    /// `ttft`.
    pub ttft: Vec<i64>,
    /// `ttfb`.
    pub ttfb: Vec<i64>,
    /// `ttfot`; empty where it is `ttft` throughout.
    pub(crate) ttfot: Vec<i64>,
    /// `e2e`.
    pub e2e: Vec<i64>,
    /// `tpot`.
    pub tpot: Vec<i64>,
    /// By how much its last attempt was sent after it was due; [`ABSENT`] where it was not, empty where all were at once. What is counted from there
    /// is worked out when it is asked for: as columns they were a fifth of what a run of ten million requests took.
    pub(crate) sent_after: Vec<i64>,

    /// `session_e2e`, at the first request of each session; empty where there are no sessions.
    pub session_e2e: Vec<i64>,
    /// Its place in its session; empty where no request has one.
    pub sessions: Vec<SessionTurn>,

    pub asked_prompt: Vec<u32>,
    /// Pictures sent; empty where there are none.
    pub(crate) images: Vec<u32>,
    /// Sound sent, ms; empty where there is none.
    pub(crate) audio_ms: Vec<u32>,
    /// Documents sent; empty where there are none.
    pub(crate) documents: Vec<u32>,
    pub asked_output: Vec<u32>,
    /// Prompt tokens reported; [`UNKNOWN`] where not.
    pub prompt: Vec<u32>,
    /// Output tokens reported or counted; [`UNKNOWN`] where not.
    pub output: Vec<u32>,
    /// Cached prompt tokens reported; [`UNKNOWN`] where not, empty where none were.
    pub(crate) cached: Vec<u32>,

    /// Gaps between token events, pooled in the order of requests.
    pub gaps: Vec<i64>,
    /// For each request, where its gaps begin in `gaps`; empty where there are none.
    pub(crate) gap_from: Vec<usize>,
    /// For each request, how many of its gaps have exact times at both ends; empty where there are none.
    pub(crate) gaps_exact: Vec<u32>,
    /// The rule by which this level's tokens per event are known.
    pub rule: TokensRule,
    /// True where every event of every request of that rule carries one token, so that `itl` is `event_gap`.
    pub one_token_events: bool,

    /// What no attempt can be: rows that are missing or doubled, stamps that go back.
    pub(crate) odd: Odd,
    /// Whole answers whose tokens nobody knows because the server's count contradicts their events.
    pub(crate) claims: Claims,
    /// Whole answers of two tokens or more.
    pub(crate) multi_token: u64,
    /// Of these, those that came in one event.
    pub(crate) in_one_event: u64,
    /// Due time and end of every attempt after which the same request was tried again.
    pub(crate) earlier: Vec<(i64, How)>,
    /// Every attempt that found no answer, and in which words.
    pub(crate) lost: Vec<Lost>,
    /// The words, each once.
    pub(crate) words: Vec<Words>,
    /// What each token event carries, pooled as `gaps` are; empty where every event carries one token.
    pub(crate) carried: Vec<Carried>,
    /// For each request, how many token events it has; empty likewise.
    pub(crate) events: Vec<u32>,
    /// For each request, by which rule its tokens per event are known; empty likewise.
    pub(crate) rules: Vec<TokensRule>,
}

/// Stages that servers told, of all requests.
#[derive(Default)]
pub(crate) struct Stages {
    /// Their names, each once.
    pub names: Vec<String>,
    /// For each request, how many it has; empty where there are none.
    pub counts: Vec<u16>,
    /// For each request, where they begin in `times`; empty likewise.
    pub from: Vec<usize>,
    /// Index of the name and ns, pooled in the order of requests.
    pub times: Vec<(u32, i64)>,
}

/// What is wrong with the rows as such: of all attempts, those that were tried again too.
#[derive(Default)]
pub(crate) struct Odd {
    /// Rows beyond the first of the same attempt.
    pub doubled: u64,
    /// Attempts without a row at whose request a later one has one.
    pub missing: u64,
    /// Whole answers without the stamp of their sending or of their end.
    pub unstamped: u64,
    /// By how many ns the stamps of an attempt go back at most, for those that do, and whether all are of one clock.
    pub back: Vec<(i64, bool)>,
}

/// Answers whose server's count contradicts their events: sums over them.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Claims {
    pub answers: u64,
    /// Tokens that the server reports.
    pub tokens: u64,
    pub texts: u64,
    pub empties: u64,
}

/// An attempt that found no answer.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Lost {
    pub due: i64,
    pub words: u32,
}

/// In which words an attempt failed: how, the HTTP status, the beginning of the text.
pub(crate) type Words = (How, Option<u16>, String);

/// What one token event carries.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Carried {
    /// Tokens; 0 = unknown.
    pub tokens: u16,
    /// Is its time an upper bound only?
    pub coalesced: bool,
}

impl Columns {
    /// Are more counts of tokens contradicted than the figures per token may leave out?
    pub(crate) fn contradicts(&self) -> bool {
        let answers = self.fate.iter().filter(|fate| fate.ended_well()).count();
        self.claims.answers as f64 > OUTPUT * answers as f64
    }

    /// Requests.
    pub fn len(&self) -> usize {
        self.due.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Requests due before this instant: the index of the first one that is not.
    pub fn first_due_from(&self, at: At) -> usize {
        self.due.partition_point(|due| *due < at.0)
    }

    /// The metric that leads: `ttft` where answers stream, else `e2e`.
    pub fn leading(&self) -> (&'static str, &[i64]) {
        let streams =
            self.fate.iter().zip(&self.ttft).any(|(fate, ttft)| fate.ended_well() && *ttft != ABSENT);
        if streams { ("ttft", &self.ttft) } else { ("e2e", &self.e2e) }
    }

    /// What was wrong with a whole answer.
    pub fn broken(&self, row: usize) -> Option<Broken> {
        self.broken.get(row).copied().flatten()
    }

    /// When it was sent first: its due time where it failed before that, [`INFINITE`] where nothing left.
    pub(crate) fn begun(&self, row: usize) -> i64 {
        if let Ok(again) = self.begun.binary_search_by_key(&(row as u32), |(row, _)| *row) {
            return self.begun[again].1;
        }
        self.sent(row).unwrap_or(if self.how[row] == How::NeverSent { INFINITE } else { self.due[row] })
    }

    /// When its last attempt was sent.
    pub(crate) fn sent(&self, row: usize) -> Option<i64> {
        let after = self.sent_after.get(row).copied().unwrap_or(0);
        (after != ABSENT).then(|| self.due[row] + after)
    }

    /// Attempts made at a request.
    pub fn attempts(&self, row: usize) -> u16 {
        self.attempts.get(row).copied().unwrap_or(1)
    }

    /// Cached prompt tokens that were reported; [`UNKNOWN`] where not.
    pub fn cached(&self, row: usize) -> u32 {
        self.cached.get(row).copied().unwrap_or(UNKNOWN)
    }

    /// `ttfot`.
    pub fn ttfot(&self, row: usize) -> i64 {
        self.ttfot.get(row).copied().unwrap_or(self.ttft[row])
    }

    /// `ttft_after_send`.
    pub fn ttft_after_send(&self, row: usize) -> i64 {
        self.after_send(row, self.ttft[row])
    }

    /// `e2e_after_send`.
    pub fn e2e_after_send(&self, row: usize) -> i64 {
        self.after_send(row, self.e2e[row])
    }

    fn after_send(&self, row: usize, from_due: i64) -> i64 {
        match (from_due, self.sent_after.get(row).copied().unwrap_or(0)) {
            (INFINITE | ABSENT, _) => from_due,
            (_, ABSENT) => ABSENT,
            (from_due, later) => from_due - later,
        }
    }

    /// `ntpot`.
    pub fn ntpot(&self, row: usize) -> i64 {
        match (self.e2e[row], self.output[row]) {
            (INFINITE, _) => INFINITE,
            (ABSENT, _) | (_, UNKNOWN | 0) => ABSENT,
            (e2e, tokens) => e2e / i64::from(tokens),
        }
    }

    /// The class of a request, by its number in the scenario.
    pub fn class(&self, row: usize) -> u16 {
        self.class.get(row).copied().unwrap_or(0)
    }

    /// The stages that a server told of a request, ns each.
    pub fn stages(&self, row: usize) -> impl Iterator<Item = (&str, i64)> {
        let Stages { names, from, times, .. } = &self.stages;
        let own = from.get(row).zip(from.get(row + 1)).map_or(0..0, |(from, to)| *from..*to);
        times[own].iter().map(|(name, ns)| (names[*name as usize].as_str(), *ns))
    }

    /// The gaps between the token events of the requests `from..to`, in their order.
    pub fn gaps(&self, from: usize, to: usize) -> &[i64] {
        match (self.gap_from.get(from), self.gap_from.get(to)) {
            (Some(from), Some(to)) => &self.gaps[*from..*to],
            _ => &[],
        }
    }

    /// How many gaps of the requests `from..to` have exact times at both ends.
    pub(crate) fn exact_gaps(&self, from: usize, to: usize) -> u64 {
        self.gaps_exact.iter().take(to).skip(from).map(|n| u64::from(*n)).sum()
    }

    /// Reads the records of one level. `attempts` may be in any order; several attempts at a request become one row.
    pub fn read(attempts: &[&Attempt]) -> Columns {
        let events = attempts.iter().map(|attempt| attempt.events.len()).sum();
        let mut gathered = Gathered::with_capacity(attempts.len(), events);
        let (mut request, mut due) = (None, At::ZERO);
        for (of, _, index) in by_request(attempts) {
            let attempt = attempts[index as usize];
            if request != Some(of) {
                (request, due) = (Some(of), attempt.due);
            }
            gathered.push_row(due, attempt);
            gathered.keep_index(index);
        }
        gathered.into_columns()
    }

    /// Gaps per token of the requests from `from` on, with the number of them that are exact. Only requests whose
    /// tokens per event are known by this level's rule take part.
    pub fn itl(&self, from: usize) -> (Vec<i64>, u64) {
        if self.one_token_events {
            return (self.gaps(from, self.len()).to_vec(), self.exact_gaps(from, self.len()));
        }
        let (mut all, mut exact) = (Vec::new(), 0);
        let mut carried = self.carried.as_slice();
        for row in 0..self.len() {
            let events = self.events.get(row).map_or(0, |n| *n as usize);
            let (own, later) = carried.split_at(events);
            carried = later;
            let rule = self.rules.get(row).copied().unwrap_or_default();
            if row < from || rule != self.rule {
                continue;
            }
            let gaps = self.gaps(row, row + 1);
            let mut previous: Option<&Carried> = None;
            let mut since = 0;
            for (i, event) in own.iter().enumerate() {
                since += if i == 0 { 0 } else { gaps[i - 1] };
                // How much an event without a count carries is unknown: the gap goes on to the next that has one.
                if event.tokens == 0 {
                    continue;
                }
                if let Some(before) = previous {
                    all.push(since);
                    exact += u64::from(!event.coalesced && !before.coalesced);
                }
                all.extend(std::iter::repeat_n(0, usize::from(event.tokens) - 1));
                (previous, since) = (Some(event), 0);
            }
            if self.fate[row] == Fate::Failed && previous.is_some() {
                all.push(INFINITE);
            }
        }
        (all, exact)
    }
}

/// (request, attempt, index), rising; sorted only where the records are not in that order already.
fn by_request(attempts: &[&Attempt]) -> Vec<(u64, u16, u32)> {
    let mut order: Vec<(u64, u16, u32)> =
        attempts.iter().enumerate().map(|(i, a)| (a.request, a.attempt, i as u32)).collect();
    if !order.is_sorted() {
        order.sort_unstable();
    }
    // Rows must come out by due time. Requests are numbered as they fall due, so this is rarely more than a look.
    let due_of = |row: &(u64, u16, u32)| attempts[row.2 as usize].due;
    if order.windows(2).any(|pair| pair[0].0 != pair[1].0 && due_of(&pair[0]) > due_of(&pair[1])) {
        let mut first_due = At::ZERO;
        let mut keyed: Vec<(At, (u64, u16, u32))> = Vec::with_capacity(order.len());
        let mut request = None;
        for row in order {
            if request != Some(row.0) {
                (request, first_due) = (Some(row.0), attempts[row.2 as usize].due);
            }
            keyed.push((first_due, row));
        }
        keyed.sort_unstable();
        return keyed.into_iter().map(|(_, row)| row).collect();
    }
    order
}
