//! Records as columns: one row per request in the order of due times, one array per metric.
//!
//! A summary reads each metric many times and each record once. [`crate::gather`] therefore reads the records (half a kilobyte
//! each, with their events elsewhere) once. All metrics share two rules. The outcome of a request is that of its last attempt.
//! A failed value is [`INFINITE`] and a value that does not exist is [`ABSENT`]; neither is ever zero. Sorting the records
//! themselves was rejected because they are large and mostly in order.

use plimsoll_model::{At, Attempt, Broken, By, How, TokensRule};

use crate::gather::LevelAccumulator;
use crate::sessions::SessionTurn;

/// Value of a request that failed or never ended; it ranks above every time.
pub const INFINITE: i64 = i64::MAX;
/// Value of a metric that does not exist for a request.
pub const ABSENT: i64 = i64::MIN;
/// Share of complete responses with unknown tokens above which figures per token depend on a selection.
pub(crate) const OUTPUT: f64 = 0.02;
/// Value of an unreported token count.
pub const UNKNOWN: u32 = u32::MAX;

/// The outcome class of a request for statistics.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    Finished,
    /// Complete response that is wrong.
    Broken,
    /// Planned cancellation by the client.
    Cancelled,
    Failed,
}

impl Fate {
    /// Returns the class of an attempt's outcome.
    pub fn of(attempt: &Attempt) -> Fate {
        match (attempt.outcome.how, attempt.outcome.by) {
            (How::Finished, _) if attempt.answer.broken.is_some() => Fate::Broken,
            (How::Finished, _) => Fate::Finished,
            (How::Cancelled, By::Client) => Fate::Cancelled,
            _ => Fate::Failed,
        }
    }

    /// Returns whether a complete response arrived, correct or not.
    pub fn ended_well(self) -> bool {
        matches!(self, Fate::Finished | Fate::Broken)
    }
}

/// The requests of one level in the order of their due times, as columns. Times are in ns.
#[derive(Default)]
pub struct Columns {
    pub due: Vec<i64>,
    /// End of the request, with any outcome; [`INFINITE`] if it was abandoned in flight.
    pub end: Vec<i64>,
    /// Send time in ns of the first attempt of each retried request, by ascending index. Other requests use `sent_after`.
    pub(crate) begun: Vec<(u32, i64)>,
    pub how: Vec<How>,
    pub fate: Vec<Fate>,
    /// Fault of a complete response; empty if there is none in the level.
    pub(crate) broken: Vec<Option<Broken>>,
    /// Number of attempts; empty if all requests had one.
    pub(crate) attempts: Vec<u16>,
    /// Index of the last attempt in the input slice; empty if rows were gathered without keeping attempts.
    pub last: Vec<u32>,
    /// Index of the class in the scenario; empty if all requests have the first.
    pub(crate) class: Vec<u16>,
    /// Whether requests of each class ask for output tokens; empty if all do.
    pub(crate) has_tokens: Vec<bool>,
    /// Whether responses of each class have a number of output tokens; empty if all do. Speech has first samples only.
    pub(crate) has_counts: Vec<bool>,
    /// Number of the endpoint; empty if all requests went to the first.
    pub(crate) target: Vec<u16>,
    /// Stage times that the server reported.
    pub(crate) stages: Stages,

    pub ttft: Vec<i64>,
    pub ttfb: Vec<i64>,
    /// Values of `ttfot`; empty if they all equal `ttft`.
    pub(crate) ttfot: Vec<i64>,
    pub e2e: Vec<i64>,
    pub tpot: Vec<i64>,
    /// Delay in ns from due to the send time of the last attempt; [`ABSENT`] if not sent, empty if all are 0.
    ///
    /// Latencies from the send time are computed on demand: as columns they took a fifth of the memory of ten million requests.
    pub(crate) sent_after: Vec<i64>,

    /// Values of `session_e2e` at the first request of each session; empty if there are no sessions.
    pub session_e2e: Vec<i64>,
    /// Position in the session; empty if there are no sessions.
    pub sessions: Vec<SessionTurn>,

    pub asked_prompt: Vec<u32>,
    /// Number of images; empty if there are none.
    pub(crate) images: Vec<u32>,
    /// Duration of audio in ms; empty if there is none.
    pub(crate) audio_ms: Vec<u32>,
    /// `e2e` per second of audio in ns, the real-time factor times 10⁹; empty without audio.
    pub rtf: Vec<i64>,
    /// Number of documents; empty if there are none.
    pub(crate) documents: Vec<u32>,
    pub asked_output: Vec<u32>,
    /// Reported prompt tokens; [`UNKNOWN`] if not reported.
    pub prompt: Vec<u32>,
    /// Reported or counted output tokens; [`UNKNOWN`] if neither.
    pub output: Vec<u32>,
    /// Reported cached prompt tokens; [`UNKNOWN`] if not reported, empty if no response reports them.
    pub(crate) cached: Vec<u32>,

    /// Gaps between token events in ns, pooled in the order of requests.
    pub gaps: Vec<i64>,
    /// Start of each request's gaps in `gaps`; empty if there are none.
    pub(crate) gap_from: Vec<usize>,
    /// Number of each request's gaps with exact times at both ends; empty if there are none.
    pub(crate) gaps_exact: Vec<u32>,
    /// Rule for the tokens per event of this level.
    pub rule: TokensRule,
    /// Set if every event of every request of that rule has one token, so that `itl` equals `event_gap`.
    pub one_token_events: bool,

    /// Missing or repeated rows, and timestamps that go backwards.
    pub(crate) odd: RowAnomalies,
    /// Complete responses with an unknown token count, because the server's count contradicts their events.
    pub(crate) claims: Claims,
    /// Number of complete responses of two tokens or more.
    pub(crate) multi_token: u64,
    /// Number of complete responses of two tokens or more that arrived in one event.
    pub(crate) in_one_event: u64,
    /// Due time and outcome of every attempt that was followed by a retry.
    pub(crate) earlier: Vec<(i64, How)>,
    /// Attempts without a response, with their error.
    pub(crate) lost: Vec<FailedAttempt>,
    pub(crate) words: Vec<FailureText>,
    /// Content of each token event, pooled like `gaps`; empty if every event has one token.
    pub(crate) carried: Vec<EventTokens>,
    /// Number of token events of each request; empty if every event has one token.
    pub(crate) events: Vec<u32>,
    /// Rule for the tokens per event of each request; empty if every event has one token.
    pub(crate) rules: Vec<TokensRule>,
}

/// The stages that servers reported, for all requests.
#[derive(Default)]
pub(crate) struct Stages {
    pub names: Vec<String>,
    /// Number of stages of each request; empty if there are none.
    pub counts: Vec<u16>,
    /// Start of each request's stages in `times`; empty if there are none.
    pub from: Vec<usize>,
    /// Index of the name and duration in ns, pooled in the order of requests.
    pub times: Vec<(u32, i64)>,
}

/// The faults of the rows of all attempts, including retried ones.
#[derive(Default)]
pub(crate) struct RowAnomalies {
    /// Repeated rows of an attempt.
    pub doubled: u64,
    /// Attempts without a row although a later attempt of the request has one.
    pub missing: u64,
    /// Complete responses without the timestamp of their send or end.
    pub unstamped: u64,
    /// Largest backward step in ns of each attempt with one, and whether all its timestamps are of one clock.
    pub back: Vec<(i64, bool)>,
}

/// The sums over responses whose server's count contradicts their events.
#[derive(Copy, Clone, Default, Debug)]
pub(crate) struct Claims {
    pub answers: u64,
    pub tokens: u64,
    pub texts: u64,
    pub empties: u64,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct FailedAttempt {
    pub due: i64,
    pub words: u32,
}

/// The error of a failed attempt: outcome, HTTP status, and the beginning of the text.
pub(crate) type FailureText = (How, Option<u16>, String);

/// The content of one token event.
#[derive(Copy, Clone, Debug)]
pub(crate) struct EventTokens {
    /// Number of tokens; 0 if unknown.
    pub tokens: u16,
    /// Set if the time is only an upper bound.
    pub coalesced: bool,
}

impl Columns {
    /// Returns whether more token counts are contradicted than figures per token may leave out.
    pub(crate) fn contradicts(&self) -> bool {
        let answers = self.fate.iter().filter(|fate| fate.ended_well()).count();
        self.claims.answers as f64 > OUTPUT * answers as f64
    }

    pub fn len(&self) -> usize {
        self.due.len()
    }

    pub fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    /// Returns the number of requests due before this instant, which is the index of the next one.
    pub fn first_due_from(&self, at: At) -> usize {
        self.due.partition_point(|due| *due < at.0)
    }

    /// Returns name and values of the leading metric: `ttft` if responses stream, else `e2e`.
    pub fn leading(&self) -> (&'static str, &[i64]) {
        let streams =
            self.fate.iter().zip(&self.ttft).any(|(fate, ttft)| fate.ended_well() && *ttft != ABSENT);
        if streams { ("ttft", &self.ttft) } else { ("e2e", &self.e2e) }
    }

    /// Returns the fault of a complete response.
    pub fn broken(&self, row: usize) -> Option<Broken> {
        self.broken.get(row).copied().flatten()
    }

    /// Returns the first send time in ns.
    ///
    /// It is the due time if the request failed before that, and [`INFINITE`] if it was never sent.
    pub(crate) fn begun(&self, row: usize) -> i64 {
        if let Ok(again) = self.begun.binary_search_by_key(&(row as u32), |(row, _)| *row) {
            return self.begun[again].1;
        }
        self.sent(row).unwrap_or(if self.how[row] == How::NeverSent { INFINITE } else { self.due[row] })
    }

    /// Returns the send time of the last attempt in ns; `None` if not sent.
    pub(crate) fn sent(&self, row: usize) -> Option<i64> {
        let after = self.sent_after.get(row).copied().unwrap_or(0);
        (after != ABSENT).then(|| self.due[row] + after)
    }

    pub fn attempts(&self, row: usize) -> u16 {
        self.attempts.get(row).copied().unwrap_or(1)
    }

    /// Returns the reported cached prompt tokens; [`UNKNOWN`] if not reported.
    pub fn cached(&self, row: usize) -> u32 {
        self.cached.get(row).copied().unwrap_or(UNKNOWN)
    }

    pub fn ttfot(&self, row: usize) -> i64 {
        self.ttfot.get(row).copied().unwrap_or(self.ttft[row])
    }

    pub fn ttft_after_send(&self, row: usize) -> i64 {
        self.after_send(row, self.ttft[row])
    }

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

    pub fn ntpot(&self, row: usize) -> i64 {
        match (self.e2e[row], self.output[row]) {
            (INFINITE, _) => INFINITE,
            (ABSENT, _) | (_, UNKNOWN | 0) => ABSENT,
            (e2e, tokens) => e2e / i64::from(tokens),
        }
    }

    /// Returns whether a request's class asks for output tokens.
    pub(crate) fn has_tokens(&self, row: usize) -> bool {
        self.has_tokens.get(usize::from(self.class(row))).copied().unwrap_or(true)
    }

    /// Returns whether responses of a request's class have a number of output tokens.
    pub(crate) fn has_counts(&self, row: usize) -> bool {
        self.has_counts.get(usize::from(self.class(row))).copied().unwrap_or(true)
    }

    /// Returns the index of a request's class in the scenario.
    pub fn class(&self, row: usize) -> u16 {
        self.class.get(row).copied().unwrap_or(0)
    }

    /// Returns the stages that a server reported for a request, in ns.
    pub fn stages(&self, row: usize) -> impl Iterator<Item = (&str, i64)> {
        let Stages { names, from, times, .. } = &self.stages;
        let own = from.get(row).zip(from.get(row + 1)).map_or(0..0, |(from, to)| *from..*to);
        times[own].iter().map(|(name, ns)| (names[*name as usize].as_str(), *ns))
    }

    /// Returns the gaps between the token events of the requests `from..to`, in their order.
    pub fn gaps(&self, from: usize, to: usize) -> &[i64] {
        match (self.gap_from.get(from), self.gap_from.get(to)) {
            (Some(from), Some(to)) => &self.gaps[*from..*to],
            _ => &[],
        }
    }

    /// Returns the number of gaps of the requests `from..to` with exact times at both ends.
    pub(crate) fn exact_gaps(&self, from: usize, to: usize) -> u64 {
        self.gaps_exact.iter().take(to).skip(from).map(|n| u64::from(*n)).sum()
    }

    /// Converts the records of one level. `attempts` may be in any order; the attempts of a request become one row.
    pub fn read(attempts: &[&Attempt]) -> Columns {
        let events = attempts.iter().map(|attempt| attempt.events.len()).sum();
        let mut gathered = LevelAccumulator::with_capacity(attempts.len(), events);
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

    /// Returns the gaps per token of the requests from `from` on, and the number of exact ones.
    ///
    /// Only requests whose tokens per event are known by this level's rule count.
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
            let mut previous: Option<&EventTokens> = None;
            let mut since = 0;
            for (i, event) in own.iter().enumerate() {
                since += if i == 0 { 0 } else { gaps[i - 1] };
                // An event without a count has an unknown number of tokens, so the gap continues to the next event with a count.
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

/// Returns (request, attempt, index) in ascending order; sorts only if the records are not in order.
fn by_request(attempts: &[&Attempt]) -> Vec<(u64, u16, u32)> {
    let mut order: Vec<(u64, u16, u32)> =
        attempts.iter().enumerate().map(|(i, a)| (a.request, a.attempt, i as u32)).collect();
    if !order.is_sorted() {
        order.sort_unstable();
    }
    // Rows must be in order of due times. Requests are numbered by due time, so they rarely need sorting.
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
