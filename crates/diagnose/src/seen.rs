//! One level in rows: a row per request, times in seconds, in order of due times, with the concurrency around each
//! request.
//!
//! [`plimsoll_measure::columns`] serves percentiles and keeps one array per metric. Facts need several values of one
//! request (replica, concurrency, prompt length), so they get rows. Values that were not reported are `None`; times
//! of failed requests are `+∞`.

use std::collections::BTreeMap;

use plimsoll_model::{At, Attempt, By, EventKind, How, Level, Load, TcpFacts};

/// A long gap between two tokens of a response, compared with the other gaps.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Gap {
    pub row: u32,
    /// Time of the earlier token, in s since the start of the level.
    pub from: f64,
    /// Time of the later token, in s since the start of the level.
    pub to: f64,
}

/// The token gaps of a response within one second of the level.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TokenPace {
    pub row: u32,
    /// Start of the second, in s since the start of the level.
    pub at: f64,
    /// Median token gap in that second, s.
    pub gap: f64,
    /// Mean number of responses in flight in that second, including this one; on its replica if the replica is
    /// reported.
    pub concurrency: f64,
}

#[derive(Clone, Debug)]
pub struct RequestView {
    pub request: u64,
    /// Due time, in s since the start of the level.
    pub due: f64,
    /// Send time of the first attempt, in s since the start of the level; `+∞` if it was never sent.
    pub sent: f64,
    /// Send time of the last attempt, in s since the start of the level.
    pub sent_last: f64,
    /// End time, in s since the start of the level; `+∞` if the request never ended.
    pub end: f64,
    /// Time to first token from due, in s; `+∞` if failed, NaN if there is none.
    pub ttft: f64,
    /// Time to first token of the last attempt from its send time, s.
    pub ttft_sent: f64,
    /// Time per output token after the first, s.
    pub tpot: f64,
    /// Latency of the whole response from due, s.
    pub e2e: f64,
    /// Time from due to the send of the first attempt, s.
    pub lag: f64,
    /// Time from due (or from the start of connecting) to the connection, in s; 0 for a reused connection.
    pub connect: f64,
    /// Time from sent to the first byte of the response head, s.
    pub head: f64,
    /// Prompt tokens, reported by the server or requested.
    pub prompt: f64,
    /// Prompt tokens from a cache; `None` if not reported.
    pub cached: Option<f64>,
    /// Output tokens, reported by the server or counted.
    pub output: f64,
    pub attempts: u32,
    pub how: How,
    pub by: By,
    pub ok: bool,
    /// Set if the client cancelled the request on purpose.
    pub cancelled: bool,
    pub class: u16,
    /// Index into [`DiagnosedLevel::replicas`]; `None` if the replica is not reported.
    pub replica: Option<u16>,
    /// Set if the connection had carried an earlier request.
    pub reused: bool,
    /// Kernel statistics of the last attempt's connection; counters are summed over all attempts.
    pub tcp: TcpFacts,
    /// Hash of the first block of the prompt; `None` if unknown.
    pub beginning: Option<u64>,
    /// Number of leading prompt blocks that are shared with an earlier prompt of the level.
    pub shared_blocks: u32,
    pub blocks: u32,
    /// Other requests in flight at the send time.
    pub beside: u32,
    /// Mean number of other requests in flight while this one streams.
    pub beside_streaming: f64,
    pub events: u32,
    /// Share of the gaps that are nearly zero.
    pub coalesced: f64,
    /// Longest gap between token events, s.
    pub gap_max: f64,
    /// Median gap between token events, s.
    pub gap_p50: f64,
    /// Queue time reported by the server, in s; `None` if not reported.
    pub queue: Option<f64>,
    /// Prefill time reported by the server, in s; `None` if not reported.
    pub prefill: Option<f64>,
    /// Decode time reported by the server, in s; `None` if not reported.
    pub decode: Option<f64>,
    /// Times of other stages (in front of the engine): index into [`DiagnosedLevel::stages`], seconds.
    pub other: Vec<(u16, f64)>,
}

impl RequestView {
    /// Returns the total time of the stages in front of the engine; `None` if none is reported.
    pub(crate) fn before_engine(&self) -> Option<f64> {
        (!self.other.is_empty()).then(|| self.other.iter().map(|stage| stage.1).sum())
    }

    /// Returns the tokens per token event; NaN for a short or unstreamed response.
    pub fn chunk(&self) -> f64 {
        if self.ok && self.events >= 1 && self.output >= 8.0 {
            self.output / f64::from(self.events)
        } else {
            f64::NAN
        }
    }
}

/// One level as seen by the facts.
#[derive(Clone, Debug)]
pub struct DiagnosedLevel<'a> {
    pub level: &'a Level,
    /// Requests in order of due times.
    pub rows: Vec<RequestView>,
    /// Due times of all requests, in s since the start of the level. They stay complete when rows are removed
    /// together with a cause's effect, because the load does not change.
    pub due: Vec<f64>,
    pub replicas: Vec<String>,
    /// Names of the stages other than the engine's queue, prefill and decode.
    pub stages: Vec<String>,
    pub attempts_by: BTreeMap<How, u64>,
    /// Ends of attempts without a response: time (s), outcome, row.
    pub lost: Vec<(f64, How, u32)>,
    /// Gaps longer than [`LONG_GAP_S`], in order of their end.
    pub gaps: Vec<Gap>,
    /// Token pace by response and second.
    pub paces: Vec<TokenPace>,
    /// Median of all gaps in seconds.
    pub gap_p50: f64,
    /// Duration of the arrivals in seconds.
    pub length: f64,
}

/// Minimum length of recorded gaps, in s: users notice a tenth of a second, and no healthy step is as long.
pub(crate) const LONG_GAP_S: f64 = 0.1;
/// Stages inside the engine; others count as in front of it.
const ENGINE: [&str; 3] = ["queue", "prefill", "decode"];
/// Limit below which a gap counts as zero, in s: the two tokens arrived together.
const COALESCED_S: f64 = 2e-4;

impl<'a> DiagnosedLevel<'a> {
    /// Returns the share of `still_s` in all waiting for tokens. `still_s` counts each second once per stalled
    /// response.
    pub(crate) fn share_of_streaming(&self, still_s: f64) -> f64 {
        let streamed = |row: &RequestView| (row.end - row.sent_last).max(0.0);
        let all: f64 = self.rows.iter().map(streamed).filter(|s| s.is_finite()).sum();
        (still_s / all.max(1e-9)).min(1.0)
    }

    /// Reads a level. `attempts` may also contain attempts of other levels, in any order, and requests that were due
    /// before the level. Such requests only count as concurrent requests.
    pub fn read(level: &'a Level, attempts: &[Attempt]) -> DiagnosedLevel<'a> {
        let mut own: Vec<&Attempt> = attempts.iter().filter(|a| a.level == level.id).collect();
        own.sort_by_key(|a| (a.request, a.attempt));
        let mut seen = DiagnosedLevel {
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

    /// Returns the arrival rate in requests per second.
    pub fn rate(&self) -> f64 {
        self.due.len() as f64 / self.length
    }

    /// Returns the mean number of requests in flight during the arrivals.
    pub fn in_flight(&self) -> f64 {
        let there = |row: &RequestView| (row.end.min(self.length) - row.sent.max(0.0)).max(0.0);
        self.rows.iter().map(there).sum::<f64>() / self.length
    }

    /// Returns whether the load is a closed loop.
    pub fn is_closed(&self) -> bool {
        !matches!(self.level.load, Load::Open { .. })
    }

    /// Returns the finite values of a metric.
    pub fn finite(&self, of: impl Fn(&RequestView) -> f64) -> Vec<f64> {
        self.rows.iter().map(of).filter(|x| x.is_finite()).collect()
    }

    pub fn alone(&self) -> impl Iterator<Item = &RequestView> {
        self.rows
            .iter()
            .filter(|row| row.ok && row.attempts == 1 && row.beside == 0 && row.beside_streaming < 0.1)
    }

    /// Removes rows together with all data that belongs to them.
    pub fn retain(&mut self, keep: impl Fn(&RequestView) -> bool) {
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
        self.rows.push(RequestView {
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

    /// Marks the blocks of each prompt that began an earlier prompt.
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

    /// Counts the concurrent requests of each request, by one sweep over sends and ends.
    fn count_beside(&mut self) {
        let mut edges: Vec<(f64, i32)> = Vec::with_capacity(2 * self.rows.len());
        for row in &self.rows {
            if row.sent.is_finite() {
                edges.push((row.sent, 1));
                edges.push((if row.end.is_finite() { row.end.max(row.sent) } else { f64::MAX }, -1));
            }
        }
        edges.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        // Requests in flight after each edge, and their integral up to the edge.
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

/// Returns the index of `name` in `names` and appends the name if it is new.
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
