//! Conversion of a level's records to columns as the requests end, without keeping the records.
//!
//! A level of one day has a million records of half a kilobyte each, and the figures need a fifth of that. Each record is
//! therefore split when it ends. At the end of the level the rows are sorted by due time, then by number, and the attempts of
//! a request become one row. Records in memory use this path too ([`Columns::read`]), so a run gathered row by row and the
//! run read back give equal results.
//!
//! Joining the attempts of a request as they end was rejected: the last attempt is known only at the end of the level.

use std::collections::BTreeMap;

use plimsoll_model::{At, Attempt, Broken, Event, EventKind, How, ServerStage, TokensRule};

use crate::columns::{
    ABSENT, Columns, EventTokens, FailedAttempt, FailureText, Fate, INFINITE, RowAnomalies, UNKNOWN,
};
use crate::sessions::{self, SessionTurn};

/// Number of characters of an error text that are compared and shown.
const ERROR_CHARS: usize = 160;

/// Rules that can determine the tokens per event.
const RULES: [TokensRule; 3] = [TokensRule::UsageTotal, TokensRule::UsageRunning, TokensRule::Tokeniser];

/// The data that figures need of the records of one level so far.
#[derive(Default)]
pub struct LevelAccumulator {
    /// One row per attempt, in order of arrival.
    columns: Columns,
    request: Vec<u64>,
    /// Attempt number of each row; empty if all are 0.
    attempt: Vec<u16>,
    /// Whether each token event of the row has one token; empty if this applies to all rows.
    one_token: Vec<bool>,
    /// Whether several tokens arrived in one event; empty if this applies to no row.
    one_event: Vec<bool>,
    /// Number of attempts by the rule of their tokens, in the order of [`RULES`].
    by_rule: [u64; 3],
    words: BTreeMap<FailureText, u32>,
    stages: BTreeMap<String, u32>,
    finished: u64,
    first_tries: u64,
    last_end: Option<At>,
}

impl LevelAccumulator {
    pub(crate) fn with_capacity(rows: usize, events: usize) -> LevelAccumulator {
        let mut gathered = LevelAccumulator::default();
        let columns = &mut gathered.columns;
        columns.gaps.reserve(events);
        columns.carried.reserve(events);
        for column in times(columns) {
            column.reserve(rows);
        }
        gathered
    }

    /// Adds a record that has ended. A retry keeps the due time of its request.
    pub fn push(&mut self, attempt: &Attempt) {
        self.push_row(attempt.due, attempt);
    }

    pub fn attempts(&self) -> u64 {
        self.request.len() as u64
    }

    /// Returns the number of attempts with a complete response so far.
    pub fn finished(&self) -> u64 {
        self.finished
    }

    /// Returns the number of first attempts so far, which is the number of requests.
    pub(crate) fn first_tries(&self) -> u64 {
        self.first_tries
    }

    /// Returns the latest end so far.
    pub(crate) fn last_end(&self) -> Option<At> {
        self.last_end
    }

    /// Records the storage index of the last row, for [`Columns::last`].
    pub(crate) fn keep_index(&mut self, index: u32) {
        self.columns.last.push(index);
    }

    /// Adds a record with the due time of its request.
    pub(crate) fn push_row(&mut self, due: At, attempt: &Attempt) {
        let fate = Fate::of(attempt);
        let rows = self.request.len();
        self.request.push(attempt.request);
        put(&mut self.attempt, rows, attempt.attempt, 0);
        self.finished += u64::from(attempt.outcome.is_finished());
        self.first_tries += u64::from(attempt.attempt == 0);
        self.last_end = self.last_end.max(attempt.end);
        if let Some(i) = RULES.iter().position(|rule| *rule == attempt.answer.tokens.rule) {
            self.by_rule[i] += 1;
        }
        if !attempt.outcome.is_finished() && attempt.outcome.how != How::Cancelled {
            self.push_words(due, attempt);
        }
        self.columns.odd.look(due, attempt);
        self.push_metrics(due, attempt, fate);
        put(&mut self.columns.class, rows, attempt.class, 0);
        put(&mut self.columns.target, rows, attempt.target, 0);
        put(&mut self.columns.images, rows, attempt.media.images, 0);
        put(&mut self.columns.audio_ms, rows, attempt.media.audio_ms.min(u32::MAX.into()) as u32, 0);
        put(&mut self.columns.documents, rows, attempt.media.documents, 0);
        put(&mut self.columns.broken, rows, attempt.answer.broken, None);
        self.push_pieces(rows, attempt, fate);
        self.push_events(rows, attempt, fate);
        self.push_stages(rows, &attempt.answer.stages);
    }

    fn push_words(&mut self, due: At, attempt: &Attempt) {
        let text = attempt.answer.error.as_deref().unwrap_or("").chars().take(ERROR_CHARS).collect();
        let next = self.words.len() as u32;
        let words = *self.words.entry((attempt.outcome.how, attempt.answer.status, text)).or_insert(next);
        self.columns.lost.push(FailedAttempt { due: due.0, words });
    }

    fn push_metrics(&mut self, due: At, last: &Attempt, fate: Fate) {
        let columns = &mut self.columns;
        let rows = columns.due.len();
        let empty = last.answer.broken == Some(Broken::Empty);
        let since = |origin: Option<At>, stamp: Option<At>| match (fate, origin, stamp) {
            // An empty response counts as a failure, however fast it was.
            (Fate::Failed, _, _) => INFINITE,
            (Fate::Broken, _, _) if empty => INFINITE,
            (_, Some(origin), Some(stamp)) => (stamp - origin).0,
            // A client that left before the first token did not receive one.
            (Fate::Cancelled, _, None) => INFINITE,
            _ => ABSENT,
        };
        // A planned cancellation cuts the response, so its duration does not describe the server.
        let whole = |latency: i64| if fate == Fate::Cancelled { ABSENT } else { latency };
        let output = output_tokens(last);

        columns.due.push(due.0);
        columns.end.push(match last.outcome.how {
            How::Unfinished | How::NeverSent => INFINITE,
            _ => last.end.map_or(INFINITE, |end| end.0),
        });
        columns.how.push(last.outcome.how);
        columns.fate.push(fate);
        let (ttft, ttfot) = (since(Some(due), last.first_token), since(Some(due), last.first_visible));
        if ttfot != ttft || !columns.ttfot.is_empty() {
            // The earlier rows had equal values.
            columns.ttfot.extend_from_slice(&columns.ttft[columns.ttfot.len()..]);
            columns.ttfot.push(ttfot);
        }
        columns.ttft.push(ttft);
        columns.ttfb.push(since(Some(due), last.first_byte));
        columns.e2e.push(whole(since(Some(due), last.end)));
        columns.tpot.push(whole(tpot(fate, empty, last, output)));
        put(&mut columns.sent_after, rows, last.sent.map_or(ABSENT, |sent| (sent - due).0), 0);
        if last.turns > 0 || !columns.sessions.is_empty() {
            // The earlier rows had no session.
            columns.sessions.resize(columns.due.len() - 1, SessionTurn::default());
            let session = last.session.unwrap_or_default();
            let resent = last.resent.unwrap_or(UNKNOWN);
            columns.sessions.push(SessionTurn { session, turn: last.turn, turns: last.turns, resent });
        }
        columns.asked_prompt.push(last.asked_prompt);
        columns.asked_output.push(last.asked_output);
        columns.prompt.push(last.answer.tokens.prompt.unwrap_or(UNKNOWN));
        columns.output.push(output);
        put(&mut columns.cached, rows, last.answer.tokens.cached.unwrap_or(UNKNOWN), UNKNOWN);
    }

    /// Counts the events that the tokens of a complete response arrived in, and compares them with the server's count.
    fn push_pieces(&mut self, rows: usize, last: &Attempt, fate: Fate) {
        let tokens = &last.answer.tokens;
        let texts = last.events.iter().filter(|event| event.kind.is_token()).count() as u64;
        let whole = last.events.iter().any(|event| event.kind == EventKind::Body);
        let columns = &mut self.columns;
        if let Some(claimed) = tokens.claimed.filter(|_| fate.ended_well()) {
            let empty = last.events.iter().filter(|event| event.kind == EventKind::Empty).count() as u64;
            columns.claims.answers += 1;
            columns.claims.tokens += u64::from(claimed);
            columns.claims.texts += texts;
            columns.claims.empties += empty;
        }
        // If the server of a stream reports no count, the requested length replaces it.
        let known = tokens.output.or(tokens.claimed);
        let length = known.or((texts > 0).then_some(last.asked_output)).unwrap_or(0);
        let is_many = fate.ended_well() && length > 1;
        let in_one = is_many && (texts == 1 || (whole && texts == 0));
        columns.multi_token += u64::from(is_many && !last.events.is_empty());
        columns.in_one_event += u64::from(in_one);
        put(&mut self.one_event, rows, in_one && texts == 1, false);
    }

    /// Removes first-token times if most responses arrived in one event.
    ///
    /// Such an event is the whole response, so its time is not that of a first token.
    fn take_whole_answers(&mut self) {
        let columns = &mut self.columns;
        if 2 * columns.in_one_event <= columns.multi_token {
            return;
        }
        for (row, _) in self.one_event.iter().enumerate().filter(|(_, one)| **one) {
            columns.ttft[row] = ABSENT;
            if let Some(ttfot) = columns.ttfot.get_mut(row) {
                *ttfot = ABSENT;
            }
        }
    }

    fn push_stages(&mut self, rows: usize, stages: &[ServerStage]) {
        put(&mut self.columns.stages.counts, rows, stages.len().min(usize::from(u16::MAX)) as u16, 0);
        for stage in stages.iter().take(usize::from(u16::MAX)) {
            let known = self.stages.get(&stage.name).copied();
            let name = known.unwrap_or_else(|| {
                let next = self.stages.len() as u32;
                self.stages.insert(stage.name.clone(), next);
                next
            });
            self.columns.stages.times.push((name, stage.took.0));
        }
    }

    fn push_events(&mut self, rows: usize, last: &Attempt, fate: Fate) {
        let columns = &mut self.columns;
        let mut previous: Option<&Event> = None;
        let (mut exact, mut events, mut one_token) = (0, 0, true);
        for event in last.events.iter().filter(|event| event.kind.is_token()) {
            if let Some(before) = previous {
                columns.gaps.push((event.offset - before.offset).0);
                exact += u32::from(!event.coalesced && !before.coalesced);
            }
            columns.carried.push(EventTokens { tokens: event.tokens, coalesced: event.coalesced });
            one_token &= event.tokens == 1;
            events += 1;
            previous = Some(event);
        }
        // The gap in which a stream broke never ended.
        if fate == Fate::Failed && previous.is_some() {
            columns.gaps.push(INFINITE);
        }
        // A rule applies only to a row with events.
        let rule = if events == 0 { TokensRule::Unknown } else { last.answer.tokens.rule };
        put(&mut columns.gaps_exact, rows, exact, 0);
        put(&mut columns.events, rows, events, 0);
        put(&mut columns.rules, rows, rule, TokensRule::Unknown);
        put(&mut self.one_token, rows, one_token, true);
    }

    /// Returns the columns after all records were added.
    pub(crate) fn into_columns(mut self) -> Columns {
        let mut words: Vec<_> = std::mem::take(&mut self.words).into_iter().collect();
        words.sort_unstable_by_key(|(_, index)| *index);
        self.columns.words = words.into_iter().map(|(words, _)| words).collect();
        let mut stages: Vec<_> = std::mem::take(&mut self.stages).into_iter().collect();
        stages.sort_unstable_by_key(|(_, index)| *index);
        self.columns.stages.names = stages.into_iter().map(|(name, _)| name).collect();
        self.columns.rule = self.rule();
        self.take_whole_answers();
        let order = self.order();
        let again = |a: usize, b: usize| self.request[a] == self.request[b];
        if order.is_some() || (1..self.request.len()).any(|i| again(i - 1, i)) {
            let order = order.unwrap_or_else(|| (0..self.request.len() as u32).collect());
            self.arrange(order);
        } else {
            self.columns.odd.missing = self.attempt.iter().map(|n| u64::from(*n)).sum();
            (self.request, self.attempt) = (Vec::new(), Vec::new());
        }
        let LevelAccumulator { mut columns, one_token, .. } = self;
        let own_rule = |(rule, events): (&TokensRule, &u32)| *rule == columns.rule || *events == 0;
        let unknown = columns.rule == TokensRule::Unknown;
        let rules = match columns.rules.is_empty() {
            true => columns.events.iter().all(|events| *events == 0 || unknown),
            false => columns.rules.iter().zip(&columns.events).all(own_rule),
        };
        columns.one_token_events = one_token.iter().all(|one| *one) && rules;
        columns.gap_from = starts(columns.gaps_of_rows());
        columns.stages.from = starts(columns.stages.counts.iter().map(|n| usize::from(*n)));
        columns.stages.counts = Vec::new();
        columns.session_e2e = sessions::e2e(&columns);
        for row in sessions::broken_off(&columns) {
            // Nobody waits for a turn that can't be sent.
            columns.end[row] = columns.due[row];
        }
        leave_out_classes_without_tokens(&mut columns);
        columns.rtf = rtf(&columns);
        if columns.one_token_events {
            (columns.carried, columns.events, columns.rules) = (Vec::new(), Vec::new(), Vec::new());
        }
        columns
    }

    /// Returns the known rule of most attempts; unknown if no attempt has one.
    fn rule(&self) -> TokensRule {
        let most = (0..3).max_by_key(|i| self.by_rule[*i]).filter(|i| self.by_rule[*i] > 0);
        most.map_or(TokensRule::Unknown, |i| RULES[i])
    }

    /// Returns the order of attempts by due time, request number and attempt number; `None` if they are already in order.
    ///
    /// Requests are numbered by due time, so the numbers nearly always suffice.
    fn order(&self) -> Option<Vec<u32>> {
        let (due, request) = (&self.columns.due, &self.request);
        let key = |i: usize| (request[i], self.attempt_of(i));
        let late = |a: usize, b: usize| request[a] != request[b] && due[a] > due[b];
        if (1..request.len()).all(|i| key(i - 1) <= key(i) && !late(i - 1, i)) {
            return None;
        }
        let mut order = by_number(request);
        for tries in order.chunk_by_mut(|a, b| request[*a as usize] == request[*b as usize]) {
            tries.sort_by_key(|i| self.attempt_of(*i as usize));
        }
        if order.windows(2).any(|pair| late(pair[0] as usize, pair[1] as usize)) {
            let mut first_due = vec![0; due.len()];
            let mut first = order[0] as usize;
            for i in order.iter().map(|i| *i as usize) {
                first = if request[i] == request[first] { first } else { i };
                first_due[i] = due[first];
            }
            order.sort_unstable_by_key(|i| (first_due[*i as usize], key(*i as usize), *i));
        }
        Some(order)
    }

    fn attempt_of(&self, row: usize) -> u16 {
        self.attempt.get(row).copied().unwrap_or(0)
    }

    /// Arranges the rows in this order, with the attempts of a request as one row.
    fn arrange(&mut self, order: Vec<u32>) {
        let columns = &mut self.columns;
        let (mut lasts, mut tried) = (Vec::with_capacity(order.len()), Vec::new());
        let mut rest = order.as_slice();
        while let Some(first) = rest.first() {
            let request = self.request[*first as usize];
            let tries = rest.iter().take_while(|i| self.request[**i as usize] == request).count();
            let numbers = rest[..tries].iter().map(|i| self.attempt.get(*i as usize).copied().unwrap_or(0));
            columns.odd.count(numbers);
            let (first, last) = (*first as usize, rest[tries - 1]);
            put(&mut tried, lasts.len(), tries.min(usize::from(u16::MAX)) as u16, 1);
            for row in rest[..tries - 1].iter().map(|row| *row as usize) {
                columns.earlier.push((columns.due[row], columns.how[row]));
            }
            // The values of a request are in the row of its last attempt, because that row is kept.
            if tries > 1 {
                columns.begun.push((lasts.len() as u32, begun(columns, &rest[..tries])));
            }
            columns.due[last as usize] = columns.due[first];
            lasts.push(last);
            rest = &rest[tries..];
        }
        drop(order);
        (self.request, self.attempt) = (Vec::new(), Vec::new());
        columns.attempts = tried;
        let gap_from = starts(columns.gaps_of_rows());
        pick_runs(&mut columns.gaps, &gap_from, &lasts);
        drop(gap_from);
        let event_from = starts(columns.events.iter().map(|n| *n as usize));
        pick_runs(&mut columns.carried, &event_from, &lasts);
        drop(event_from);
        let stage_from = starts(columns.stages.counts.iter().map(|n| usize::from(*n)));
        pick_runs(&mut columns.stages.times, &stage_from, &lasts);
        drop(stage_from);
        pick(&mut columns.stages.counts, &lasts);
        pick(&mut columns.class, &lasts);
        pick(&mut columns.target, &lasts);
        pick(&mut columns.images, &lasts);
        pick(&mut columns.audio_ms, &lasts);
        pick(&mut columns.documents, &lasts);
        times(columns).into_iter().for_each(|column| pick(column, &lasts));
        pick(&mut columns.how, &lasts);
        pick(&mut columns.fate, &lasts);
        pick(&mut columns.broken, &lasts);
        pick(&mut columns.ttfot, &lasts);
        pick(&mut columns.sent_after, &lasts);
        pick(&mut columns.last, &lasts);
        if !columns.sessions.is_empty() {
            pick(&mut columns.sessions, &lasts);
        }
        pick(&mut columns.asked_prompt, &lasts);
        pick(&mut columns.asked_output, &lasts);
        pick(&mut columns.prompt, &lasts);
        pick(&mut columns.output, &lasts);
        pick(&mut columns.cached, &lasts);
        pick(&mut columns.gaps_exact, &lasts);
        pick(&mut columns.events, &lasts);
        pick(&mut columns.rules, &lasts);
        pick(&mut self.one_token, &lasts);
    }
}

fn times(columns: &mut Columns) -> [&mut Vec<i64>; 6] {
    [
        &mut columns.due,
        &mut columns.end,
        &mut columns.ttft,
        &mut columns.ttfb,
        &mut columns.e2e,
        &mut columns.tpot,
    ]
}

/// Returns rows in the order of their request number; rows of one request keep their order.
///
/// Numbers count up from the level's first, so a counting sort is enough.
fn by_number(request: &[u64]) -> Vec<u32> {
    let rows = 0..request.len() as u32;
    let least = request.iter().copied().min().unwrap_or(0);
    let most = request.iter().copied().max().unwrap_or(0);
    if most - least > 2 * request.len() as u64 {
        let mut order: Vec<u32> = rows.collect();
        order.sort_by_key(|i| request[*i as usize]);
        return order;
    }
    let mut next = vec![0u32; (most - least) as usize + 2];
    request.iter().for_each(|number| next[(number - least) as usize + 1] += 1);
    for i in 1..next.len() {
        next[i] += next[i - 1];
    }
    let mut order = vec![0; request.len()];
    for i in rows {
        let at = &mut next[(request[i as usize] - least) as usize];
        order[*at as usize] = i;
        *at += 1;
    }
    order
}

/// Appends a value after `rows` others to a column that stays empty while all values are `usual`.
fn put<T: Copy + PartialEq>(column: &mut Vec<T>, rows: usize, value: T, usual: T) {
    if column.len() < rows && value != usual {
        column.resize(rows, usual);
    }
    if column.len() == rows && (rows > 0 || value != usual) {
        column.push(value);
    }
}

fn pick<T: Copy>(column: &mut Vec<T>, rows: &[u32]) {
    if column.is_empty() {
        return;
    }
    *column = rows.iter().map(|row| column[*row as usize]).collect();
}

/// Picks the values of these rows if a row has several values, from `from[row]` on.
fn pick_runs<T: Copy>(values: &mut Vec<T>, from: &[usize], rows: &[u32]) {
    if values.is_empty() {
        return;
    }
    let mut picked = Vec::with_capacity(values.len());
    for row in rows.iter().map(|row| *row as usize) {
        picked.extend_from_slice(&values[from[row]..from[row + 1]]);
    }
    *values = picked;
}

/// Returns the start of each run of values, and the end of the last one; empty if there are no runs.
fn starts(lengths: impl ExactSizeIterator<Item = usize>) -> Vec<usize> {
    if lengths.len() == 0 {
        return Vec::new();
    }
    let mut from = Vec::with_capacity(lengths.len() + 1);
    let mut next = 0;
    from.push(next);
    for length in lengths {
        next += length;
        from.push(next);
    }
    from
}

impl Columns {
    /// Returns the number of gaps of each row: one between two events, and the gap in which a stream broke.
    fn gaps_of_rows(&self) -> impl ExactSizeIterator<Item = usize> {
        self.events.iter().zip(&self.fate).map(|(events, fate)| match *events as usize {
            0 => 0,
            events => events - 1 + usize::from(*fate == Fate::Failed),
        })
    }
}

/// Returns the send time of a request from its attempts in order of arrival.
///
/// It is the due time if the first attempt failed before it was sent, and [`INFINITE`] if no attempt was sent.
fn begun(columns: &Columns, attempts: &[u32]) -> i64 {
    let (first, last) = (attempts[0] as usize, attempts[attempts.len() - 1] as usize);
    let sent = attempts.iter().filter_map(|i| columns.sent(*i as usize));
    match (columns.sent(first), columns.how[last]) {
        (None, How::NeverSent) => INFINITE,
        (None, _) => columns.due[first],
        // Of two concurrent attempts the successful one is the last, although it may have been sent first.
        (Some(begun), _) => sent.fold(begun, i64::min),
    }
}

impl RowAnomalies {
    /// Checks the timestamps of an attempt against their only possible order.
    ///
    /// A failed attempt has only the timestamps that it reached. A rejection may arrive before the request is completely written,
    /// so the response of a failed attempt is not compared with its send time.
    fn look(&mut self, due: At, attempt: &Attempt) {
        let whole = attempt.outcome.is_finished();
        self.unstamped += u64::from(whole && (attempt.sent.is_none() || attempt.end.is_none()));
        let sent = attempt.sent.filter(|_| whole);
        let order = [sent, attempt.first_byte, attempt.first_token, attempt.last_token, attempt.end];
        let mut newest = sent.map_or(i64::MIN, |_| due.0);
        let mut back = attempt.sent.map_or(0, |sent| due.0.saturating_sub(sent.0));
        for stamp in order.into_iter().flatten() {
            back = back.max(newest.saturating_sub(stamp.0));
            newest = newest.max(stamp.0);
        }
        for pair in attempt.events.windows(2) {
            back = back.max(pair[0].offset.0.saturating_sub(pair[1].offset.0));
        }
        if back > 0 {
            self.back.push((back, attempt.kernel_stamps));
        }
    }

    /// Counts missing and repeated numbers among the attempts of a request, in ascending order.
    fn count(&mut self, numbers: impl Iterator<Item = u16>) {
        let (mut next, mut rows, mut different) = (0, 0, 0);
        for number in numbers {
            rows += 1;
            different += u64::from(u32::from(number) >= next);
            next = u32::from(number) + 1;
        }
        self.doubled += rows - different;
        self.missing += u64::from(next) - different;
    }
}

/// Returns the reported output tokens, or those counted in the events if the rule allows it.
///
/// A response without an event with tokens has an unknown number, which is not zero.
fn output_tokens(last: &Attempt) -> u32 {
    let tokens = &last.answer.tokens;
    let counted = || last.events.iter().filter(|e| e.kind.is_token()).map(|e| u32::from(e.tokens)).sum();
    match (tokens.output, tokens.rule) {
        (Some(n), _) => n,
        (None, _) if last.answer.broken == Some(Broken::Empty) => 0,
        (None, TokensRule::Unknown) => UNKNOWN,
        (None, _) => match counted() {
            0 => UNKNOWN,
            n => n,
        },
    }
}

/// Removes the token times of classes that ask for no output, if other classes have output.
///
/// Such a class is a stage of a chain, such as an embedding. Its failures are no first tokens that never came.
fn leave_out_classes_without_tokens(columns: &mut Columns) {
    let Some(most) = columns.class.iter().max() else { return };
    let mut has_tokens = vec![false; usize::from(*most) + 1];
    // Speech has a first sample and no output tokens.
    let mut has_counts = has_tokens.clone();
    for (row, class) in columns.class.iter().enumerate() {
        let has_token = columns.fate[row].ended_well() && columns.ttft[row] != ABSENT;
        let is_counted = columns.asked_output[row] > 0 || !matches!(columns.output[row], UNKNOWN | 0);
        has_tokens[usize::from(*class)] |= has_token || columns.asked_output[row] > 0;
        has_counts[usize::from(*class)] |= is_counted;
    }
    if !has_tokens.contains(&true) {
        return;
    }
    for row in 0..columns.class.len() {
        if !has_tokens[usize::from(columns.class[row])] {
            (columns.ttft[row], columns.tpot[row]) = (ABSENT, ABSENT);
            if let Some(ttfot) = columns.ttfot.get_mut(row) {
                *ttfot = ABSENT;
            }
        }
    }
    columns.has_counts =
        std::iter::zip(&has_tokens, has_counts).map(|(has, counts)| *has && counts).collect();
    columns.has_tokens = has_tokens;
}

/// Returns `e2e` per second of audio; empty without audio. A failure counts unless only silent requests of its class finished.
fn rtf(columns: &Columns) -> Vec<i64> {
    let rows = || 0..columns.e2e.len();
    let audio_ms = |row: usize| columns.audio_ms.get(row).copied().unwrap_or(0);
    // By class: whether a request finished with audio, and without.
    let mut ended: Vec<(bool, bool)> = Vec::new();
    for row in rows().filter(|row| !matches!(columns.e2e[*row], INFINITE | ABSENT)) {
        let class = usize::from(columns.class(row));
        ended.resize(ended.len().max(class + 1), (false, false));
        ended[class].0 |= audio_ms(row) > 0;
        ended[class].1 |= audio_ms(row) == 0;
    }
    let of_row = |row: usize| match (columns.e2e[row], audio_ms(row)) {
        (INFINITE, _) => match ended.get(usize::from(columns.class(row))) {
            Some((false, true)) => ABSENT,
            _ => INFINITE,
        },
        (ABSENT, _) | (_, 0) => ABSENT,
        (e2e, ms) => e2e.saturating_mul(1000) / i64::from(ms),
    };
    if rows().all(|row| of_row(row) == ABSENT) {
        return Vec::new();
    }
    rows().map(of_row).collect()
}

/// Returns (last token − first token) / (n − 1) with n streamed tokens.
///
/// Absent with fewer than two tokens, or if all arrived at one instant.
fn tpot(fate: Fate, empty: bool, last: &Attempt, output: u32) -> i64 {
    if fate == Fate::Failed || empty {
        return if last.asked_output == 1 { ABSENT } else { INFINITE };
    }
    let output =
        if output == UNKNOWN { 0 } else { last.answer.tokens.streamed(&last.events).unwrap_or(output) };
    match (last.first_token, last.last_token) {
        (Some(first), Some(end)) if output >= 2 && end > first => (end - first).0 / i64::from(output - 1),
        _ => ABSENT,
    }
}
