//! One level in rows: a row per request, in seconds, in the order of due times, with who was there beside it.
//!
//! [`plimsoll_measure::columns`] serves percentiles and keeps one array per metric; facts ask of one request at a time (which replica,
//! how many beside it, how long its prompt), so they get rows. What nobody reported is `None`, what failed is `+∞`.

use std::collections::BTreeMap;

use plimsoll_model::{At, Attempt, By, EventKind, How, Level, Load, TcpFacts};

/// A gap between two tokens of an answer that is long beside the others.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Gap {
    pub row: u32,
    /// Seconds since the level began at which the token before it came.
    pub from: f64,
    /// At which the next came.
    pub to: f64,
}

/// How fast an answer's tokens came within one second of the level.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TokenPace {
    pub row: u32,
    /// When, s since the level began.
    pub at: f64,
    /// Median gap of its tokens in that second, s.
    pub gap: f64,
    /// Answers under way in that second, itself among them, on its replica where that is told; mean.
    pub concurrency: f64,
}

#[derive(Clone, Debug)]
pub struct RequestRow {
    pub request: u64,
    /// When it was due, s since the level began.
    pub due: f64,
    /// When its first attempt was sent, s since the level began; `+∞` = never.
    pub sent: f64,
    /// When its last attempt was sent.
    pub sent_last: f64,
    /// When it ended, `+∞` = never.
    pub end: f64,
    /// First token from due, s; `+∞` = failed, NaN = it has none.
    pub ttft: f64,
    /// First token of the last attempt from its own sending.
    pub ttft_sent: f64,
    /// Time per token after the first, s.
    pub tpot: f64,
    /// The whole answer from due, s.
    pub e2e: f64,
    /// Seconds from due to sent, of the first attempt.
    pub lag: f64,
    /// From due (or from the connection's begin) to the connection; 0 where it was kept.
    pub connect: f64,
    /// From sent to the first byte of the head.
    pub head: f64,
    /// Prompt tokens, reported or asked.
    pub prompt: f64,
    /// Prompt tokens from a cache, where reported.
    pub cached: Option<f64>,
    /// Output tokens, reported or counted.
    pub output: f64,
    pub attempts: u32,
    pub how: How,
    pub by: By,
    pub ok: bool,
    pub cancelled: bool,
    pub class: u16,
    /// Which replica answered, where it is said: index into [`SeenLevel::replicas`].
    pub replica: Option<u16>,
    /// The connection had carried a request before.
    pub reused: bool,
    /// What the kernel knows of the connection of the last attempt; what it counts is added up over all of them.
    pub tcp: TcpFacts,
    /// Hash of the first block of its prompt; `None` = not known.
    pub beginning: Option<u64>,
    /// Blocks of its prompt that an earlier prompt of the level began with too.
    pub shared_blocks: u32,
    pub blocks: u32,
    /// Requests in flight when it was sent, itself left out.
    pub beside: u32,
    /// Requests in flight, itself left out, averaged over its streaming.
    pub beside_streaming: f64,
    pub events: u32,
    /// Share of its gaps that are as good as nothing.
    pub coalesced: f64,
    /// Longest gap between token events, s.
    pub gap_max: f64,
    /// Median gap between token events, s.
    pub gap_p50: f64,
    /// Stages the server says: queue, prefill, decode.
    pub queue: Option<f64>,
    pub prefill: Option<f64>,
    pub decode: Option<f64>,
    /// Stages of other names (what a request needs before the engine): index into [`SeenLevel::stages`], seconds.
    pub other: Vec<(u16, f64)>,
}

impl RequestRow {
    /// All stages of other names together; `None` where none is told.
    pub(crate) fn before_engine(&self) -> Option<f64> {
        (!self.other.is_empty()).then(|| self.other.iter().map(|stage| stage.1).sum())
    }

    /// Tokens per event that carried some; NaN of a short or unstreamed answer.
    pub fn chunk(&self) -> f64 {
        if self.ok && self.events >= 1 && self.output >= 8.0 {
            self.output / f64::from(self.events)
        } else {
            f64::NAN
        }
    }
}

/// One level as the rules see it.
#[derive(Clone, Debug)]
pub struct SeenLevel<'a> {
    pub level: &'a Level,
    /// Requests in the order of due times.
    pub rows: Vec<RequestRow>,
    /// When each request was due, s since the level began, of all that came: where rows are taken out with a cause's effect, the load was as it was.
    pub due: Vec<f64>,
    pub replicas: Vec<String>,
    /// Names of the stages that are not the engine's queue, prefill and decode.
    pub stages: Vec<String>,
    pub attempts_by: BTreeMap<How, u64>,
    /// Ends of attempts that found no answer: when (s), how, row.
    pub lost: Vec<(f64, How, u32)>,
    /// Gaps of more than [`LONG_GAP_S`], by time of their end.
    pub gaps: Vec<Gap>,
    /// How fast tokens came, by answer and second.
    pub paces: Vec<TokenPace>,
    /// Median of all gaps, s.
    pub gap_p50: f64,
    /// Seconds in which arrivals fell.
    pub length: f64,
}

/// Gaps from here on are kept, s: a person notices from a tenth of a second on, and no healthy step is as long.
pub(crate) const LONG_GAP_S: f64 = 0.1;
/// Stages that are the engine's own.
const ENGINE: [&str; 3] = ["queue", "prefill", "decode"];
/// Gaps under this are as good as nothing, s: two tokens that came at once.
const COALESCED_S: f64 = 2e-4;

impl<'a> SeenLevel<'a> {
    /// Share of all waiting for tokens that these seconds are, each counted once for every answer that stood still in it.
    pub(crate) fn share_of_streaming(&self, still_s: f64) -> f64 {
        let streamed = |row: &RequestRow| (row.end - row.sent_last).max(0.0);
        let all: f64 = self.rows.iter().map(streamed).filter(|s| s.is_finite()).sum();
        (still_s / all.max(1e-9)).min(1.0)
    }

    /// Reads a level. `attempts` may hold other levels' as well, in any order, and requests that were due before it began: of these is known
    /// who was in flight beside its own, and nothing else is asked of them.
    pub fn read(level: &'a Level, attempts: &[Attempt]) -> SeenLevel<'a> {
        let mut own: Vec<&Attempt> = attempts.iter().filter(|a| a.level == level.id).collect();
        own.sort_by_key(|a| (a.request, a.attempt));
        let mut seen = SeenLevel {
            level,
            rows: Vec::new(),
            due: Vec::new(),
            replicas: Vec::new(),
            stages: Vec::new(),
            attempts_by: BTreeMap::new(),
            lost: Vec::new(),
            gaps: Vec::new(),
            paces: Vec::new(),
            gap_p50: f64::NAN,
            length: (level.stop - level.start).as_secs_f64().max(1e-9),
        };
        let mut grouped: Vec<&[&Attempt]> = own.chunk_by(|a, b| a.request == b.request).collect();
        grouped.sort_by_key(|of| of[0].due);
        let mut all_gaps = Vec::new();
        for of in grouped {
            seen.push(of, &mut all_gaps);
        }
        seen.gap_p50 = plimsoll_math::quantile::order_statistic(&mut all_gaps, 0.5).unwrap_or(f64::NAN);
        seen.gaps.sort_by(|a, b| a.to.total_cmp(&b.to));
        seen.lost.sort_by(|a, b| a.0.total_cmp(&b.0));
        seen.share_beginnings(&own);
        seen.count_beside();
        super::concurrency::count(&seen.rows, seen.replicas.len(), &mut seen.paces);
        if seen.rows.first().is_some_and(|row| row.due < 0.0) {
            seen.retain(|row| row.due >= 0.0);
        }
        seen.due = seen.rows.iter().map(|row| row.due).collect();
        seen
    }

    /// Requests a second that came.
    pub fn rate(&self) -> f64 {
        self.due.len() as f64 / self.length
    }

    /// Requests in flight on average while arrivals fell.
    pub fn in_flight(&self) -> f64 {
        let there = |row: &RequestRow| (row.end.min(self.length) - row.sent.max(0.0)).max(0.0);
        self.rows.iter().map(there).sum::<f64>() / self.length
    }

    /// Is the load a closed loop's?
    pub fn is_closed(&self) -> bool {
        !matches!(self.level.load, Load::Open { .. })
    }

    /// The finite values of a metric.
    pub fn finite(&self, of: impl Fn(&RequestRow) -> f64) -> Vec<f64> {
        self.rows.iter().map(of).filter(|x| x.is_finite()).collect()
    }

    /// Requests that had the target to themselves.
    pub fn alone(&self) -> impl Iterator<Item = &RequestRow> {
        self.rows
            .iter()
            .filter(|row| row.ok && row.attempts == 1 && row.beside == 0 && row.beside_streaming < 0.1)
    }

    /// Leaves rows out, with all that was kept of them.
    pub fn retain(&mut self, keep: impl Fn(&RequestRow) -> bool) {
        let kept: Vec<bool> = self.rows.iter().map(keep).collect();
        let mut places = Vec::with_capacity(kept.len());
        let mut next = 0u32;
        for kept in &kept {
            places.push(kept.then_some(next));
            next += u32::from(*kept);
        }
        let place = |row: u32| places.get(row as usize).copied().flatten();
        for (_, how, row) in &self.lost {
            if place(*row).is_none()
                && let Some(count) = self.attempts_by.get_mut(how)
            {
                *count = count.saturating_sub(1);
            }
        }
        self.lost = self.lost.iter().filter_map(|(at, how, row)| Some((*at, *how, place(*row)?))).collect();
        self.gaps = self.gaps.iter().filter_map(|gap| Some(Gap { row: place(gap.row)?, ..*gap })).collect();
        self.paces =
            self.paces.iter().filter_map(|pace| Some(TokenPace { row: place(pace.row)?, ..*pace })).collect();
        let mut of = kept.iter();
        self.rows.retain(|_| of.next().copied().unwrap_or(false));
    }

    fn seconds(&self, at: At) -> f64 {
        (at - self.level.start).as_secs_f64()
    }

    fn push(&mut self, of: &[&Attempt], all_gaps: &mut Vec<f64>) {
        let index = self.rows.len() as u32;
        let (first, last) = (of[0], of[of.len() - 1]);
        for attempt in of.iter().filter(|of| of.due >= self.level.start) {
            *self.attempts_by.entry(attempt.outcome.how).or_default() += 1;
            if !attempt.outcome.is_finished() {
                let at = attempt.end.or(attempt.sent).unwrap_or(attempt.due);
                self.lost.push((self.seconds(at), attempt.outcome.how, index));
            }
        }
        let replica = last.answer.replica.as_ref().map(|name| place_of(&mut self.replicas, name));
        let gaps = self.gaps_of(last, index, all_gaps);
        let ok = last.outcome.is_finished();
        let cancelled = last.outcome.how == How::Cancelled && last.outcome.by == By::Client;
        let span = |from: Option<At>, to: Option<At>| match (from, to) {
            (Some(from), Some(to)) => (to - from).as_secs_f64(),
            _ => f64::NAN,
        };
        let ended = |x: f64| if ok || cancelled { x } else { f64::INFINITY };
        let output = last.answer.tokens.output.map_or(f64::from(gaps.events), f64::from);
        let stream = span(last.first_token, last.last_token);
        let tpot = if ok && output > 1.0 && stream > 0.0 { stream / (output - 1.0) } else { f64::NAN };
        let ttft = span(Some(first.due), last.first_token);
        let streamed = ttft.is_finite();
        let stage = |name: &str| {
            let found = last.answer.stages.iter().find(|stage| stage.name == name);
            found.map(|stage| stage.took.as_secs_f64())
        };
        let mut other: Vec<(u16, f64)> = Vec::new();
        for stage in last.answer.stages.iter().filter(|s| !ENGINE.contains(&s.name.as_str())) {
            other.push((place_of(&mut self.stages, &stage.name), stage.took.as_secs_f64()));
        }
        let kept = last.reused || last.connected.zip(last.sent).is_none();
        self.rows.push(RequestRow {
            request: first.request,
            due: self.seconds(first.due),
            sent: first.sent.map_or(f64::INFINITY, |at| self.seconds(at)),
            sent_last: last.sent.map_or(f64::INFINITY, |at| self.seconds(at)),
            end: last.end.map_or(f64::INFINITY, |at| self.seconds(at)),
            ttft: if streamed || ok || cancelled { ttft } else { f64::INFINITY },
            ttft_sent: span(last.sent, last.first_token),
            tpot,
            e2e: ended(span(Some(first.due), last.end)),
            lag: span(Some(first.due), first.sent),
            connect: if kept { 0.0 } else { span(Some(last.due), last.connected).max(0.0) },
            head: span(last.sent, last.first_byte),
            prompt: f64::from(last.answer.tokens.prompt.unwrap_or(last.asked_prompt)),
            cached: last.answer.tokens.cached.map(f64::from),
            output,
            attempts: of.len() as u32,
            how: last.outcome.how,
            by: last.outcome.by,
            ok,
            cancelled,
            class: last.class,
            replica,
            reused: last.reused,
            tcp: tcp_of(of),
            beginning: last.prompt_blocks.first().copied(),
            shared_blocks: 0,
            blocks: last.prompt_blocks.len() as u32,
            beside: 0,
            beside_streaming: 0.0,
            events: gaps.events,
            coalesced: gaps.coalesced,
            gap_max: gaps.longest,
            gap_p50: gaps.middle,
            queue: stage("queue"),
            prefill: stage("prefill"),
            decode: stage("decode"),
            other,
        });
    }

    fn gaps_of(&mut self, attempt: &Attempt, row: u32, all: &mut Vec<f64>) -> Gaps {
        let mut own: Vec<(f64, f64)> = Vec::new();
        let mut gaps = Gaps { events: 0, coalesced: f64::NAN, longest: f64::NAN, middle: f64::NAN };
        let Some(sent) = attempt.sent else { return gaps };
        let base = self.seconds(sent);
        let (mut before, mut coalesced, mut count): (Option<f64>, u32, u32) = (None, 0, 0);
        let is_token = |kind: EventKind| kind.is_token();
        for event in attempt.events.iter().filter(|event| is_token(event.kind)) {
            let at = base + event.offset.as_secs_f64();
            gaps.events += 1;
            if let Some(before) = before {
                let gap = at - before;
                count += 1;
                coalesced += u32::from(gap < COALESCED_S);
                gaps.longest = if gaps.longest > gap { gaps.longest } else { gap };
                all.push(gap);
                own.push((at, gap));
                if gap >= LONG_GAP_S {
                    self.gaps.push(Gap { row, from: before, to: at });
                }
            }
            before = Some(at);
        }
        if count > 0 {
            gaps.coalesced = f64::from(coalesced) / f64::from(count);
            let mut values: Vec<f64> = own.iter().map(|gap| gap.1).collect();
            gaps.middle = plimsoll_math::quantile::order_statistic(&mut values, 0.5).unwrap_or(f64::NAN);
            for second in own.chunk_by(|a, b| a.0.floor() == b.0.floor()) {
                let mut values: Vec<f64> = second.iter().map(|gap| gap.1).collect();
                if let Some(gap) = plimsoll_math::quantile::order_statistic(&mut values, 0.5) {
                    self.paces.push(TokenPace { row, at: second[0].0, gap, concurrency: f64::NAN });
                }
            }
        }
        gaps
    }

    /// Which blocks of each prompt began an earlier one.
    fn share_beginnings(&mut self, own: &[&Attempt]) {
        let by_request: BTreeMap<u64, &Attempt> = own.iter().rev().map(|a| (a.request, *a)).collect();
        let mut known = std::collections::HashSet::new();
        for row in &mut self.rows {
            let Some(attempt) = by_request.get(&row.request) else { continue };
            let blocks = &attempt.prompt_blocks;
            row.shared_blocks = blocks.iter().take_while(|block| known.contains(*block)).count() as u32;
            known.extend(blocks.iter().copied());
        }
    }

    /// Who was in flight beside each request, by one sweep over sends and ends.
    fn count_beside(&mut self) {
        let mut edges: Vec<(f64, i32)> = Vec::with_capacity(2 * self.rows.len());
        for row in &self.rows {
            if row.sent.is_finite() {
                edges.push((row.sent, 1));
                edges.push((if row.end.is_finite() { row.end.max(row.sent) } else { f64::MAX }, -1));
            }
        }
        edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        // In flight after each edge, and its integral up to it.
        let (mut n, mut area, mut at) = (0i32, 0.0, 0.0);
        let mut course: Vec<(f64, i32, f64)> = Vec::with_capacity(edges.len());
        for (time, step) in edges {
            let time = time.min(1e12);
            if let Some(last) = course.last() {
                area += f64::from(last.1) * (time - at);
            }
            n += step;
            at = time;
            course.push((time, n, area));
        }
        let at_time = |t: f64| -> (i32, f64) {
            match course.partition_point(|(time, ..)| *time <= t) {
                0 => (0, 0.0),
                k => (course[k - 1].1, course[k - 1].2 + f64::from(course[k - 1].1) * (t - course[k - 1].0)),
            }
        };
        for row in &mut self.rows {
            if !row.sent.is_finite() {
                continue;
            }
            row.beside = (at_time(row.sent).0 - 1).max(0) as u32;
            if row.end.is_finite() && row.end > row.sent {
                let mean = (at_time(row.end).1 - at_time(row.sent).1) / (row.end - row.sent);
                row.beside_streaming = (mean - 1.0).max(0.0);
            }
        }
    }
}

/// The place of a name among those that are known, itself the last of them where it is new.
fn place_of(names: &mut Vec<String>, name: &str) -> u16 {
    let place = names.iter().position(|known| known == name).unwrap_or_else(|| {
        names.push(name.to_owned());
        names.len() - 1
    });
    place.min(usize::from(u16::MAX)) as u16
}

fn tcp_of(of: &[&Attempt]) -> TcpFacts {
    let sum = |count: fn(&TcpFacts) -> Option<u32>| {
        of.iter().filter_map(|attempt| count(&attempt.tcp)).reduce(u32::saturating_add)
    };
    TcpFacts {
        retransmits: sum(|tcp| tcp.retransmits),
        segments_out: sum(|tcp| tcp.segments_out),
        segments_in: sum(|tcp| tcp.segments_in),
        out_of_order: sum(|tcp| tcp.out_of_order),
        ..of[of.len() - 1].tcp
    }
}

struct Gaps {
    events: u32,
    coalesced: f64,
    longest: f64,
    middle: f64,
}
