//! Records turned into columns: one row per request in the order of due times, one array per metric.
//!
//! A summary reads each metric many times and each record once, so the records (half a kilobyte each, with their
//! events elsewhere) are walked a single time here. Here too stand the two rules that all metrics share: a request's
//! end is its last attempt's, and what failed is [`INFINITE`] while what does not exist is [`ABSENT`]; the two are
//! never mixed and neither is ever zero. Sorting the records themselves lost: they are large and mostly in order.

use plimsoll_model::{At, Attempt, Broken, By, Event, How, TokensRule};

/// Rank of a request that failed or never ended: later than every time.
pub const INFINITE: i64 = i64::MAX;
/// The metric does not exist for this request.
pub const ABSENT: i64 = i64::MIN;
/// Token count that nobody reported.
pub const UNKNOWN: u32 = u32::MAX;

/// What became of a request, as far as statistics ask.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Fate {
    /// A whole answer.
    Finished,
    /// A whole answer that is wrong.
    Broken,
    /// The reader left, as the scenario asked.
    Cancelled,
    /// No answer.
    Failed,
}

impl Fate {
    fn of(attempt: &Attempt) -> Fate {
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
    /// When it was due.
    pub due: Vec<i64>,
    /// When it ended, however it ended; [`INFINITE`] where it was given up while in flight.
    pub end: Vec<i64>,
    /// When the first attempt was sent: its due time where it failed before that, [`INFINITE`] where nothing left.
    pub begun: Vec<i64>,
    /// How its last attempt ended.
    pub how: Vec<How>,
    /// What became of it.
    pub fate: Vec<Fate>,
    /// What was wrong with a whole answer.
    pub broken: Vec<Option<Broken>>,
    /// Attempts made at it.
    pub attempts: Vec<u16>,
    /// Index of its last attempt in the slice handed in.
    pub last: Vec<u32>,

    /// `ttft`.
    pub ttft: Vec<i64>,
    /// `ttft_after_send`.
    pub ttft_after_send: Vec<i64>,
    /// `ttfb`.
    pub ttfb: Vec<i64>,
    /// `ttfot`.
    pub ttfot: Vec<i64>,
    /// `e2e`.
    pub e2e: Vec<i64>,
    /// `e2e_after_send`.
    pub e2e_after_send: Vec<i64>,
    /// `tpot`.
    pub tpot: Vec<i64>,
    /// `ntpot`.
    pub ntpot: Vec<i64>,

    /// Prompt tokens asked.
    pub asked_prompt: Vec<u32>,
    /// Output tokens asked.
    pub asked_output: Vec<u32>,
    /// Prompt tokens reported; [`UNKNOWN`] where not.
    pub prompt: Vec<u32>,
    /// Output tokens reported or counted; [`UNKNOWN`] where not.
    pub output: Vec<u32>,
    /// Cached prompt tokens reported; [`UNKNOWN`] where not.
    pub cached: Vec<u32>,

    /// Gaps between token events, pooled in the order of requests.
    pub gaps: Vec<i64>,
    /// For each request, where its gaps begin in `gaps`.
    pub gap_from: Vec<usize>,
    /// For each request, how many of its gaps have exact times at both ends.
    pub gaps_exact: Vec<u32>,
    /// The rule by which this level's tokens per event are known.
    pub rule: TokensRule,
    /// True where every event of every request of that rule carries one token, so that `itl` is `event_gap`.
    pub one_token_events: bool,
}

impl Columns {
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

    /// Reads the records of one level. `attempts` may be in any order; several attempts at a request become one row.
    pub fn read(attempts: &[&Attempt]) -> Columns {
        let order = by_request(attempts);
        let mut columns =
            Columns { rule: common_rule(attempts), one_token_events: true, ..Columns::default() };
        columns.reserve(order.len(), attempts);
        let mut rows = order.as_slice();
        while let Some((request, _, _)) = rows.first() {
            let tries = rows.iter().take_while(|row| row.0 == *request).count();
            let (first, last) = (rows[0].2 as usize, rows[tries - 1].2 as usize);
            columns.begun.push(begun(attempts[first], attempts[last]).0);
            columns.push(attempts[first].due, attempts[last], tries, last);
            rows = &rows[tries..];
        }
        columns.gap_from.push(columns.gaps.len());
        columns
    }

    fn reserve(&mut self, rows: usize, attempts: &[&Attempt]) {
        let events: usize = attempts.iter().map(|a| a.events.len()).sum();
        self.gaps.reserve(events);
        for column in [
            &mut self.due,
            &mut self.end,
            &mut self.ttft,
            &mut self.ttft_after_send,
            &mut self.ttfb,
            &mut self.ttfot,
            &mut self.e2e,
            &mut self.e2e_after_send,
            &mut self.tpot,
            &mut self.ntpot,
        ] {
            column.reserve(rows);
        }
    }

    fn push(&mut self, due: At, last: &Attempt, tries: usize, index: usize) {
        let fate = Fate::of(last);
        let empty = last.answer.broken == Some(Broken::Empty);
        let since = |origin: Option<At>, stamp: Option<At>| match (fate, origin, stamp) {
            // An answer with nothing in it is no answer, however fast it came.
            (Fate::Failed, _, _) => INFINITE,
            (Fate::Broken, _, _) if empty => INFINITE,
            (_, Some(origin), Some(stamp)) => (stamp - origin).0,
            // Who left before the first token never saw one.
            (Fate::Cancelled, _, None) => INFINITE,
            _ => ABSENT,
        };
        // A planned cancellation cuts the answer: its length in time says nothing about the server.
        let whole = |latency: i64| if fate == Fate::Cancelled { ABSENT } else { latency };
        let e2e = whole(since(Some(due), last.end));
        let output = output_tokens(last);

        self.due.push(due.0);
        self.end.push(match last.outcome.how {
            How::Unfinished | How::NeverSent => INFINITE,
            _ => last.end.map_or(INFINITE, |end| end.0),
        });
        self.how.push(last.outcome.how);
        self.fate.push(fate);
        self.broken.push(last.answer.broken);
        self.attempts.push(tries.min(usize::from(u16::MAX)) as u16);
        self.last.push(index as u32);
        self.ttft.push(since(Some(due), last.first_token));
        self.ttft_after_send.push(since(last.sent, last.first_token));
        self.ttfb.push(since(Some(due), last.first_byte));
        self.ttfot.push(since(Some(due), last.first_visible));
        self.e2e.push(e2e);
        self.e2e_after_send.push(whole(since(last.sent, last.end)));
        self.tpot.push(whole(tpot(fate, empty, last, output)));
        self.ntpot.push(match (e2e, output) {
            (INFINITE, _) => INFINITE,
            (ABSENT, _) | (_, UNKNOWN | 0) => ABSENT,
            (e2e, tokens) => e2e / i64::from(tokens),
        });
        self.asked_prompt.push(last.asked_prompt);
        self.asked_output.push(last.asked_output);
        self.prompt.push(last.answer.tokens.prompt.unwrap_or(UNKNOWN));
        self.output.push(output);
        self.cached.push(last.answer.tokens.cached.unwrap_or(UNKNOWN));
        self.gap_from.push(self.gaps.len());
        self.push_gaps(fate, last);
    }

    fn push_gaps(&mut self, fate: Fate, last: &Attempt) {
        let mut previous: Option<&Event> = None;
        let mut exact = 0;
        for event in last.events.iter().filter(|event| event.kind.is_token()) {
            if let Some(before) = previous {
                self.gaps.push((event.offset - before.offset).0);
                exact += u32::from(!event.coalesced && !before.coalesced);
            }
            self.one_token_events &= event.tokens == 1;
            previous = Some(event);
        }
        // The gap in which a stream broke never ended.
        if fate == Fate::Failed && previous.is_some() {
            self.gaps.push(INFINITE);
        }
        self.one_token_events &= last.answer.tokens.rule == self.rule || previous.is_none();
        self.gaps_exact.push(exact);
    }

    /// Gaps per token of the requests from `from` on, with the number of them that are exact. Only requests whose
    /// tokens per event are known by this level's rule take part.
    pub fn itl(&self, attempts: &[&Attempt], from: usize) -> (Vec<i64>, u64) {
        let mut gaps = Vec::new();
        let mut exact = 0;
        for (row, index) in self.last.iter().enumerate().skip(from) {
            let last = attempts[*index as usize];
            if last.answer.tokens.rule != self.rule {
                continue;
            }
            let mut previous: Option<&Event> = None;
            for event in last.events.iter().filter(|event| event.kind.is_token() && event.tokens > 0) {
                if let Some(before) = previous {
                    gaps.push((event.offset - before.offset).0);
                    exact += u64::from(!event.coalesced && !before.coalesced);
                }
                gaps.extend(std::iter::repeat_n(0, usize::from(event.tokens) - 1));
                previous = Some(event);
            }
            if self.fate[row] == Fate::Failed && previous.is_some() {
                gaps.push(INFINITE);
            }
        }
        (gaps, exact)
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

/// The known rule that most requests have; unknown where none has one.
fn common_rule(attempts: &[&Attempt]) -> TokensRule {
    let rules = [TokensRule::UsageTotal, TokensRule::UsageRunning, TokensRule::Tokeniser];
    let mut counts = [0usize; 3];
    for attempt in attempts {
        if let Some(i) = rules.iter().position(|rule| *rule == attempt.answer.tokens.rule) {
            counts[i] += 1;
        }
    }
    let most = (0..3).max_by_key(|i| counts[*i]).filter(|i| counts[*i] > 0);
    most.map_or(TokensRule::Unknown, |i| rules[i])
}

/// Output tokens as reported, else as counted in the events where the rule knows them.
fn output_tokens(last: &Attempt) -> u32 {
    let tokens = &last.answer.tokens;
    match (tokens.output, tokens.rule) {
        (Some(n), _) => n,
        (None, TokensRule::Unknown) => UNKNOWN,
        (None, _) => last.events.iter().filter(|e| e.kind.is_token()).map(|e| u32::from(e.tokens)).sum(),
    }
}

fn begun(first: &Attempt, last: &Attempt) -> At {
    match (first.sent, last.outcome.how) {
        (Some(sent), _) => sent,
        (None, How::NeverSent) => At(INFINITE),
        (None, _) => first.due,
    }
}

/// (last token − first token) / (n − 1); absent under two tokens and where all came at one instant.
fn tpot(fate: Fate, empty: bool, last: &Attempt, output: u32) -> i64 {
    if fate == Fate::Failed || empty {
        return if last.asked_output == 1 { ABSENT } else { INFINITE };
    }
    match (last.first_token, last.last_token) {
        (Some(first), Some(end)) if output != UNKNOWN && output >= 2 && end > first => {
            (end - first).0 / i64::from(output - 1)
        }
        _ => ABSENT,
    }
}
