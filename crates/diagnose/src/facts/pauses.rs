//! Facts on pauses in responses: the responses that pause together, the times, and concurrent work.
//!
//! A stall is a period in which no streaming response of a replica gets a token. Pauses that the baseline's longest
//! pauses or concurrent prefills explain are left out. If tokens arrive together afterwards, the engine made them in
//! time and only the path was blocked; that is no stall of the engine. However, if the server's kernel acknowledged
//! requests sent meanwhile, the path was open and the process stalled.

use std::collections::BTreeMap;

use plimsoll_math::proportion::proves_over;
use plimsoll_math::quantile::order_statistic;
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{chance as by_chance, ms, number, percent};

use super::alone::{PromptLaw, alone_tpot, alone_ttft, computed};
use super::{FactState, Finding, Observed};
use crate::RunData;
use crate::effect::share;
use crate::frame::{Frame, Frames};
use crate::seen::{DiagnosedLevel, Gap, LONG_GAP_S, RequestView};

/// Maximum probability that a rhythm is random.
const RHYTHM_BY_CHANCE: f64 = 0.01;

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    let stalls = of_engine(frames);
    let still: f64 =
        stalls.iter().map(|stall| (stall.to - stall.from) * (stall.paused + stall.waited) as f64).sum();
    let touches = frames.now().share_of_streaming(still);
    found.push(stalled(frames, &stalls).touching(touches));
    found.extend(regular_stalls(&stalls).map(|finding| finding.touching(touches)));
    found.extend(beside_prompt(frames));
}

fn stalled(frames: &Frames<'_>, stalls: &[Stall]) -> Finding {
    let sure = stalls.iter().any(|stall| stall.way_clear);
    let told = stalls.len() as f64;
    let told = if sure { told.max(witnesses(stalls) as f64 / WORTH) } else { told };
    let lost = told < 2.0 * HABIT && packets_lost(frames, stalls);
    let is = FactState::of(told >= HABIT && !lost, stalls.is_empty());
    let mut lasts: Vec<f64> = stalls.iter().map(|stall| stall.to - stall.from).collect();
    let middle = order_statistic(&mut lasts, 0.5).unwrap_or(0.0);
    let says = format!(
        "{} stall{} of {} (median) in which every answer paused ({} pauses in all, and {} requests waited for their end) without a long prompt",
        stalls.len(),
        if stalls.len() == 1 { "" } else { "s" },
        ms(middle),
        stalls.iter().map(|stall| stall.paused).sum::<usize>(),
        stalls.iter().map(|stall| stall.waited).sum::<usize>()
    );
    let figure = Estimate {
        value: middle,
        lower: lasts.iter().copied().fold(f64::INFINITY, f64::min),
        upper: lasts.iter().copied().fold(0.0, f64::max),
        n: stalls.len() as u64,
        n_eff: told,
    };
    let finding = Finding::new(Observed::Stalls, is, says);
    if stalls.is_empty() { finding } else { finding.figure(figure, LEAST_STALL_S) }
}

/// Checks whether stalls come at regular intervals beyond chance: for random instants a third of the distances fits
/// one interval.
fn regular_stalls(stalls: &[Stall]) -> Option<Finding> {
    // Ends are closer to a clock than starts, because a stall becomes visible only at the next token.
    let at: Vec<f64> = stalls.iter().map(|stall| stall.to).collect();
    let (every, fits) = regular(&at)?;
    let n = at.len() as f64 - 1.0;
    let fit = (fits * n).round() as u64;
    let chance = 1.0 - plimsoll_math::proportion::binomial_cdf(fit.saturating_sub(1), n as u64, 1.0 / 3.0);
    let is = FactState::of(fits >= 0.75 && chance < RHYTHM_BY_CHANCE, fits < 0.6);
    let mut lasts: Vec<f64> = stalls.iter().map(|stall| stall.to - stall.from).collect();
    let says = format!(
        "{} stalls of {} (median) come every {} s: {} of the distances between them fit ({})",
        stalls.len(),
        ms(order_statistic(&mut lasts, 0.5).unwrap_or(0.0)),
        number(every),
        percent(fits),
        by_chance(chance)
    );
    Some(Finding::new(Observed::RegularStalls, is, says).figure(share(fits * n, n, 1.0), 0.75))
}

pub(super) const LEAST_STALL_S: f64 = 0.2;
/// Minimum stall as a multiple of the median gap.
const TIMES: f64 = 8.0;
/// Minimum share of the streaming responses that pause together.
const TOGETHER: f64 = 0.8;

/// Number of affected responses from which stalls are no accident, however few stalls there are. Each response would
/// have paused independently at that instant.
const WITNESSES: usize = 8;
/// Number of affected responses that count as one more stall.
const WORTH: f64 = 2.5;
/// Number of stalls from which they are recurrent.
const HABIT: f64 = 4.0;

/// Maximum time in s until a kernel retransmits unacknowledged data (the minimum time-out of Linux).
const ASKED_AGAIN_S: f64 = 0.2;

/// Minimum tokens of a long prompt: several prefill chunks of any server.
pub(super) const LONG_PROMPT: f64 = 4_000.0;

/// A period in which all responses pause.
#[derive(Copy, Clone, Debug)]
pub struct Stall {
    /// Start, in s since the start of the level.
    pub from: f64,
    /// End, in s since the start of the level.
    pub to: f64,
    pub paused: usize,
    /// Number of requests that waited for their first token throughout, for longer than usual, and got it at the end.
    pub waited: usize,
    /// Set if requests sent during the stall reached the server's kernel without retransmission.
    pub way_clear: bool,
    /// Replica of all paused responses; `None` if not reported.
    pub replica: Option<u16>,
    /// Set during the prefill of a prompt that is much longer than the others.
    pub long_prompt: bool,
    /// Set if delayed tokens arrived together afterwards.
    pub caught_up: bool,
}

/// Multiple of the baseline's usual longest pause from which a pause is new.
const NEWS: f64 = 1.25;

/// Returns the baseline's usual longest pause without pauses next to very long prompts. The stalls leave those pauses
/// out too. Otherwise one in a hundred prompts that pauses eight responses for a second would hide every shorter
/// stall.
fn usual_beside_no_long_prompt(frames: &Frames<'_>) -> f64 {
    usual_of(frames, |seen| {
        let long = long_prompts(seen);
        let mut longest = seen.finite(|row| if row.gap_max < LONG_GAP_S { row.gap_max } else { f64::NAN });
        let mut own: BTreeMap<u32, f64> = BTreeMap::new();
        for gap in &seen.gaps {
            let replica = seen.rows[gap.row as usize].replica;
            let read = long.iter().any(|read| read.overlaps(gap.from, gap.to, replica));
            let lasts = if read { 0.0 } else { gap.to - gap.from };
            own.entry(gap.row).and_modify(|most| *most = most.max(lasts)).or_insert(lasts);
        }
        longest.extend(own.into_values());
        longest
    })
}

fn usual_of(frames: &Frames<'_>, pauses: impl Fn(&DiagnosedLevel<'_>) -> Vec<f64>) -> f64 {
    let mut longest = frames.before().map(pauses).unwrap_or_default();
    let slower = frames.base.as_ref().map_or(1.0, |base| {
        let now = &frames.candidate;
        let ratios = [alone_ttft(base, now), alone_tpot(base, now)];
        ratios
            .into_iter()
            .flatten()
            .filter(|ratio| ratio.lower > 1.05)
            .map(|ratio| ratio.value)
            .fold(1.0, f64::max)
    });
    slower * order_statistic(&mut longest, 0.99).unwrap_or(0.0)
}

/// Returns the minimum gap of a stall.
fn least(seen: &DiagnosedLevel<'_>, usual: f64) -> f64 {
    LEAST_STALL_S.max(TIMES * seen.gap_p50).max(NEWS * usual)
}

/// Returns the stalls of a level, per replica if replicas are distinguished. `overdue` is the usual maximum of the
/// time to first token in s.
pub fn stalls(seen: &DiagnosedLevel<'_>, least: f64, overdue: f64) -> Vec<Stall> {
    let mut gaps: Vec<&Gap> = seen.gaps.iter().filter(|gap| gap.to - gap.from >= least).collect();
    gaps.sort_by(|a, b| a.from.total_cmp(&b.from));
    let long = long_prompts(seen);
    let mut found: Vec<Stall> = Vec::new();
    let mut at = 0;
    while at < gaps.len() {
        let (mut from, mut to) = (gaps[at].from, gaps[at].to);
        let mut members = vec![gaps[at]];
        at += 1;
        // Gaps that overlap by most of their length are one event.
        while at < gaps.len() && gaps[at].from < from + 0.5 * (to - from) {
            (from, to) = (from.max(gaps[at].from), to.min(gaps[at].to).max(from));
            members.push(gaps[at]);
            at += 1;
        }
        if to - from < 0.5 * LEAST_STALL_S {
            continue;
        }
        let of = |row: &RequestView| row.replica;
        let first = of(&seen.rows[members[0].row as usize]);
        let one_replica = members.iter().all(|gap| of(&seen.rows[gap.row as usize]) == first);
        let streaming = streaming(seen, from, to, if one_replica { first } else { None });
        let coalesced = members.iter().filter(|gap| seen.rows[gap.row as usize].coalesced > 0.01).count();
        let replica = if one_replica { first } else { None };
        let (waited, way_clear) = waiting_through(seen, (from, to), replica, overdue);
        if members.len() + waited >= 2 && members.len() as f64 >= TOGETHER * streaming as f64 {
            found.push(Stall {
                from,
                to,
                paused: members.len(),
                waited,
                way_clear,
                replica,
                long_prompt: long.iter().any(|read| read.from < to && read.to > from),
                caught_up: 3 * coalesced > members.len(),
            });
        }
    }
    found
}

/// Returns the number of responses that stream throughout this period.
fn streaming(seen: &DiagnosedLevel<'_>, from: f64, to: f64, replica: Option<u16>) -> usize {
    let in_stream = |row: &&RequestView| {
        let first = row.sent_last + row.ttft_sent;
        (replica.is_none() || row.replica == replica) && row.events > 1 && first < from && row.end > to
    };
    seen.rows.iter().filter(in_stream).count()
}

/// Returns the requests that wait throughout this period for an overdue first token and get it at its end. Returns
/// also whether the path was clear: segments sent in the period were acknowledged without retransmission.
fn waiting_through(
    seen: &DiagnosedLevel<'_>,
    (from, to): (f64, f64),
    replica: Option<u16>,
    overdue: f64,
) -> (usize, bool) {
    let edge = 0.1 * (to - from);
    let first = |row: &RequestView| row.sent_last + row.ttft_sent;
    let own = || seen.rows.iter().filter(|row| replica.is_none() || row.replica == replica);
    let waits = |row: &&RequestView| row.sent_last + overdue < to && first(row) >= to - edge;
    // A request that ends long after the period waits for another reason.
    let waiting: Vec<&RequestView> =
        own().filter(waits).filter(|row| first(row) <= to + overdue + edge).collect();
    let sent_within = waiting.iter().filter(|row| row.sent_last > from && row.sent_last + ASKED_AGAIN_S < to);
    let again: Vec<Option<u32>> = sent_within.map(|row| row.tcp.retransmits).collect();
    (waiting.len(), !again.is_empty() && again.iter().all(|again| *again == Some(0)))
}

/// The prefill of a prompt that is much longer than the others, from its send time to its first token.
#[derive(Copy, Clone, Debug)]
pub(super) struct PromptReading {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) replica: Option<u16>,
    /// Longest pause that the prefill explains, s.
    pub(super) explains: f64,
}

impl PromptReading {
    pub(super) fn of(row: &RequestView, explains: f64) -> PromptReading {
        PromptReading {
            from: row.sent_last,
            to: row.sent_last + row.ttft_sent,
            replica: row.replica,
            explains,
        }
    }

    /// Returns whether the prefill overlaps this period and affects requests of this replica.
    pub(super) fn overlaps(&self, from: f64, to: f64, replica: Option<u16>) -> bool {
        let same = replica.is_none() || self.replica.is_none() || replica == self.replica;
        same && self.from < to && self.to > from
    }

    /// Returns whether the prefill is in progress at this instant, affects this replica, and explains a pause of
    /// `lasts` seconds.
    pub(super) fn holds_up(&self, at: f64, replica: Option<u16>, lasts: f64) -> bool {
        let same = replica.is_none() || self.replica.is_none() || replica == self.replica;
        same && self.from <= at && at <= self.to && lasts <= self.explains
    }
}

/// Returns the minimum tokens of a very long prompt: four times the median and at least `LONG_PROMPT`. Every server's
/// chunk has at least a few hundred tokens.
pub(crate) fn long_from(seen: &DiagnosedLevel<'_>) -> f64 {
    let mut prompts: Vec<f64> = seen.rows.iter().map(|row| row.prompt).collect();
    order_statistic(&mut prompts, 0.5).map_or(f64::INFINITY, |middle| LONG_PROMPT.max(4.0 * middle))
}

/// Returns the prefills of very long prompts.
pub(super) fn long_prompts(seen: &DiagnosedLevel<'_>) -> Vec<PromptReading> {
    let least = long_from(seen);
    seen.rows
        .iter()
        .filter(|row| row.prompt >= least && row.ttft_sent.is_finite())
        .map(|row| PromptReading::of(row, f64::INFINITY))
        .collect()
}

/// Minimum share of a stall that concurrent prefills must take to explain it.
pub(super) const COVERS: f64 = 0.7;

/// Returns the prefill time of the prompts whose first tokens came during the stall or at its end, in s. All requests
/// wait for these steps in sequence. The reason for slow prefills (a slower model, a lost cache) is visible in
/// isolated requests too.
fn reading(seen: &DiagnosedLevel<'_>, law: &PromptLaw, stall: &Stall) -> f64 {
    let lasts = stall.to - stall.from;
    let ends_it = |row: &&RequestView| {
        let first = row.sent_last + row.ttft_sent;
        let same = stall.replica.is_none() || row.replica == stall.replica;
        same && first > stall.from + 0.1 * lasts && first <= stall.to + 0.1 * lasts
    };
    seen.rows.iter().filter(ends_it).map(|row| law.per_token * computed(row)).sum()
}

/// The prefills that explain short common pauses.
pub(crate) struct ExpectedPauses {
    /// Times of the first tokens, ascending, and the prefill times of their prompts in s.
    read: Vec<(f64, f64)>,
    long: Vec<PromptReading>,
}

/// Returns the prefills of the analysed level. Prefill times use the larger of the present and the earlier time per
/// token.
pub(crate) fn excuses(frames: &Frames<'_>) -> ExpectedPauses {
    let of = |arm: &Frame<'_>| PromptLaw::of(&arm.alone).or_else(|| PromptLaw::of(&arm.seen.rows));
    let laws = [frames.base.as_ref().and_then(of), of(&frames.candidate)];
    let per_token = laws.iter().flatten().map(|law| law.per_token).fold(0.0, f64::max);
    let came = frames.now().rows.iter().filter(|row| row.ttft_sent.is_finite());
    let mut read: Vec<(f64, f64)> =
        came.map(|row| (row.sent_last + row.ttft_sent, per_token * computed(row))).collect();
    read.sort_by(|a, b| a.0.total_cmp(&b.0));
    ExpectedPauses { read, long: long_prompts(frames.now()) }
}

impl ExpectedPauses {
    /// Returns whether prefills explain this period: a long prompt overlaps it, or prompts with first tokens at its
    /// end take most of it.
    pub fn explains(&self, from: f64, to: f64) -> bool {
        let lasts = to - from;
        let begin = self.read.partition_point(|(at, _)| *at <= from + 0.1 * lasts);
        let end = self.read.partition_point(|(at, _)| *at <= to + 0.1 * lasts);
        let takes: f64 = self.read[begin..end].iter().map(|(_, takes)| takes).sum();
        takes >= COVERS * lasts || self.long.iter().any(|read| read.from < to && read.to > from)
    }
}

/// Returns whether more responses are coalesced than before. Their tokens were made in time and the path was blocked.
/// A response that ended before the path was free shows a pause and no burst.
pub(crate) fn coalesced_more(frames: &Frames<'_>) -> bool {
    let coalesced = |seen: &DiagnosedLevel<'_>| {
        seen.rows.iter().filter(|row| row.coalesced > 0.01).count() as f64 / seen.rows.len().max(1) as f64
    };
    coalesced(frames.now()) > frames.before().map_or(0.0, coalesced) + 0.05
}

/// Returns the stalls of the engine that neither the baseline nor a prefill explains.
fn of_engine(frames: &Frames<'_>) -> Vec<Stall> {
    let least = least(frames.now(), usual_beside_no_long_prompt(frames));
    // If isolated requests are too few, the line uses all requests: its fixed part contains their waits, its slope is
    // the prefill's.
    let law = PromptLaw::of(&frames.candidate.alone).or_else(|| PromptLaw::of(&frames.now().rows));
    let explained = |seen: &DiagnosedLevel<'_>, f: &Stall| {
        law.is_some_and(|law| reading(seen, &law, f) >= COVERS * (f.to - f.from))
    };
    let (coalesced, overdue) = (coalesced_more(frames), overdue(frames));
    let of = |seen: &DiagnosedLevel<'_>| -> Vec<Stall> {
        // Tokens that arrive together were delayed on the path, unless requests passed it meanwhile; then the
        // server's process delayed them.
        let held = |f: &Stall| (coalesced || f.caught_up) && !f.way_clear;
        let own = |f: &Stall| !f.long_prompt && !held(f) && !explained(seen, f);
        stalls(seen, least, overdue).into_iter().filter(own).collect()
    };
    let mut own = open_way(of(frames.now()));
    let silent = silences(frames);
    if !silent.is_empty() {
        own.extend(silent);
        own.sort_by(|a, b| a.from.total_cmp(&b.from));
        own.dedup_by(|next, kept| next.from < kept.to);
        return own;
    }
    let before = frames.before().map_or(0.0, |base| of(base).len() as f64 / base.length);
    let paused = own.iter().map(|f| f.paused).sum::<usize>() as f64 / own.len().max(1) as f64;
    let together = paused >= 2.5 || own.iter().any(|f| f.waited > 0) && witnesses(&own) >= WITNESSES;
    if own.len() as f64 / frames.now().length <= 3.0 * before || !together {
        own.clear();
    }
    own.sort_by(|a, b| a.from.total_cmp(&b.from));
    own.dedup_by(|next, kept| next.from < kept.to);
    own
}

/// Parts of a silence: the waiting requests must resume within the first part after it, and their starts must differ
/// by the second.
const GO_ON: f64 = 0.15;
const APART: f64 = 0.25;

/// Returns the periods in which none of several requests receives data. Either one streams and others wait, or
/// several that were sent at different times wait and resume together. Short responses show a stalled process only
/// this way, because at most times none of them streams.
fn silences(frames: &Frames<'_>) -> Vec<Stall> {
    let Some(base) = frames.case.baseline.as_ref().zip(frames.before()) else { return Vec::new() };
    let longest =
        silent(base.0, base.1, 0.5 * LEAST_STALL_S).iter().map(|it| it.to - it.from).fold(0.0, f64::max);
    let least = LEAST_STALL_S.max(TIMES * frames.now().gap_p50).max(NEWS * longest);
    let law = PromptLaw::of(&frames.candidate.alone).or_else(|| PromptLaw::of(&frames.now().rows));
    let explained =
        |it: &Stall| law.is_some_and(|law| reading(frames.now(), &law, it) >= COVERS * (it.to - it.from));
    let mut found = silent(&frames.case.candidate, frames.now(), least);
    found.retain(|it| !it.long_prompt && !explained(it));
    if coalesced_more(frames) { Vec::new() } else { found }
}

/// Returns the silences of a level, of one replica or of several that are not distinguished.
fn silent(side: &RunData<'_>, seen: &DiagnosedLevel<'_>, least: f64) -> Vec<Stall> {
    let mut events: Vec<f64> = seen.rows.iter().map(|row| row.end).filter(|end| end.is_finite()).collect();
    for attempt in side.attempts.iter().filter(|attempt| attempt.level == seen.level.id) {
        let Some(sent) = attempt.sent else { continue };
        let sent = (sent - seen.level.start).as_secs_f64();
        events.extend(
            attempt
                .events
                .iter()
                .filter(|event| event.kind.is_token())
                .map(|event| sent + event.offset.as_secs_f64()),
        );
    }
    plimsoll_math::quantile::sort(&mut events);
    let long = long_prompts(seen);
    let first = |row: &RequestView| row.sent_last + row.ttft_sent;
    // Sorted by send time: an unfinished request was sent at most the longest request time ago.
    let (mut rows, unended): (Vec<&RequestView>, Vec<&RequestView>) =
        seen.rows.iter().partition(|row| row.end.is_finite());
    rows.sort_by(|a, b| a.sent_last.total_cmp(&b.sent_last));
    let longest = rows.iter().map(|row| row.end - row.sent_last).fold(0.0, f64::max);
    let of = |pair: &[f64]| {
        let (from, to) = (pair[0], pair[1]);
        let lasts = to - from;
        let sent_by = |at: f64| rows.partition_point(|row| row.sent_last < at);
        let sent_before = to - GO_ON * lasts;
        let near = &rows[sent_by(from - longest)..sent_by(sent_before)];
        let there = near.iter().chain(&unended).filter(|row| row.sent_last < sent_before && row.end >= to);
        let (mut told, mut waiting) = (0, Vec::new());
        for row in there {
            match first(row) {
                at if at <= from => told += 1,
                at if at <= to + GO_ON * lasts => waiting.push(row.sent_last.max(from)),
                _ => {}
            }
        }
        let apart = waiting.iter().copied().fold(0.0, f64::max)
            - waiting.iter().copied().fold(f64::INFINITY, f64::min);
        let together =
            told >= 2 || told >= 1 && !waiting.is_empty() || waiting.len() >= 2 && apart >= APART * lasts;
        together.then(|| Stall {
            from,
            to,
            paused: told,
            waited: waiting.len(),
            way_clear: false,
            replica: None,
            long_prompt: long.iter().any(|read| read.from < to && read.to > from),
            caught_up: false,
        })
    };
    events.windows(2).filter(|pair| pair[1] - pair[0] >= least).filter_map(of).collect()
}

/// Removes waiting requests unless the kernel's statistics show that they arrived. Otherwise they may wait in any
/// queue, and a stall needs several paused responses.
fn open_way(mut stalls: Vec<Stall>) -> Vec<Stall> {
    let clear = stalls.iter().filter(|f| f.way_clear).count();
    if 3 * clear < stalls.len() {
        stalls.retain(|f| f.paused >= 2);
        stalls.iter_mut().for_each(|f| f.waited = 0);
    }
    stalls
}

/// Returns the usual maximum of the time to first token in s: p95 of the baseline, else twice the run's own median. A
/// longer wait is overdue.
fn overdue(frames: &Frames<'_>) -> f64 {
    let first = |seen: &DiagnosedLevel<'_>| seen.finite(|row| row.ttft_sent);
    let usual = match frames.before() {
        Some(base) => order_statistic(&mut first(base), 0.95),
        None => order_statistic(&mut first(frames.now()), 0.5).map(|middle| 2.0 * middle),
    };
    usual.unwrap_or(f64::INFINITY)
}

/// Returns the number of paused responses beyond the first of each stall; without a common stall they would have
/// continued.
fn witnesses(stalls: &[Stall]) -> usize {
    stalls.iter().map(|f| f.paused + f.waited - 1).sum()
}

/// Returns the regularity of instants: the median distance, and the share of distances within an eighth of a whole
/// multiple of it. Multiples count because no response may have streamed in between. For random instants about a
/// third fits. A coefficient of variation was rejected, because one missed or one false stall decides it.
pub fn regular(at: &[f64]) -> Option<(f64, f64)> {
    let gaps: Vec<f64> = at.windows(2).map(|w| w[1] - w[0]).collect();
    if gaps.len() < 3 {
        return None;
    }
    let middle = order_statistic(&mut gaps.clone(), 0.5)?;
    let fit = |gap: &&f64| {
        let times = (**gap / middle).round();
        (1.0..=3.0).contains(&times) && (**gap / middle - times).abs() <= 0.125
    };
    Some((middle, gaps.iter().filter(fit).count() as f64 / gaps.len() as f64))
}

/// Returns whether segments were lost on the connections of most stalled responses. The path then stalled, because a
/// stopped process does not keep its kernel from acknowledging data.
fn packets_lost(frames: &Frames<'_>, stalls: &[Stall]) -> bool {
    let struck = |row: &&RequestView| stalls.iter().any(|f| row.sent_last < f.to && row.end >= f.to);
    let lost: Vec<bool> = frames
        .now()
        .rows
        .iter()
        .filter(struck)
        .map(|row| row.tcp.retransmits.is_some_and(|n| n > 0))
        .collect();
    2 * lost.iter().filter(|lost| **lost).count() > lost.len()
}

/// Minimum pause next to a long prompt in s, because users notice it.
const FELT_S: f64 = 0.12;
/// Maximum probability that this many pauses coincide with long prompts by accident.
const ACCIDENT: f64 = 0.001;

/// Checks whether other responses pause during the prefill of a long prompt more often than at random.
fn beside_prompt(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let mut longest = frames.before().map(|base| base.finite(|row| row.gap_max)).unwrap_or_default();
    let usual = order_statistic(&mut longest, 0.99).unwrap_or(0.0);
    let least = FELT_S.max(5.0 * seen.gap_p50).max(1.5 * usual);
    let long = held_up_by(frames, seen, least);
    let none = |says: &str| Some(Finding::new(Observed::PausesBesidePrompt, FactState::No, says.to_owned()));
    if !seen.gap_p50.is_finite() {
        return None;
    }
    if long.is_empty() {
        return none("no prompt is much longer than the others");
    }
    let others = |gap: &&Gap| gap.to - gap.from >= least && seen.rows[gap.row as usize].prompt < LONG_PROMPT;
    let beside = |gap: &Gap| {
        let (middle, replica) = (0.5 * (gap.from + gap.to), seen.rows[gap.row as usize].replica);
        let lasts = gap.to - gap.from;
        (gap.from, gap.to, long.iter().any(|read| read.holds_up(middle, replica, lasts)), replica)
    };
    let mut gaps: Vec<Pause> = seen.gaps.iter().filter(others).map(beside).collect();
    if gaps.len() < 3 {
        return none("almost no answer pauses");
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (all, with) = events(&gaps);
    let beside = gaps.iter().filter(|gap| gap.2).count() as f64;
    let always = read_anyway(seen, &long, least, gaps.iter().map(|gap| gap.3));
    let n = gaps.len() as f64;
    let share = share(beside, n, n / all);
    let half = 0.5 / f64::from(LOOKS);
    let odds = (beside + 0.5) / (n - beside + 0.5) * (1.0 - always + half) / (always + half);
    let before = frames.before().map_or(0.0, |base| had_before(base, &gaps, least));
    let news = n / (seen.rows.len() as f64) >= 2.0 * before;
    let is = FactState::of(
        odds >= 5.0 && share.value >= 0.6 && proves_over(with, all, always, ACCIDENT) && news,
        odds < 2.0 || share.value < 0.3 || !news,
    );
    let says = format!(
        "{} pauses of over {} in other requests' answers, {} of them while a long prompt was in prefill (which takes {} of the time)",
        gaps.len(),
        ms(least),
        percent(share.value),
        percent(always)
    );
    let still: f64 = gaps.iter().map(|gap| gap.1 - gap.0).sum();
    let finding = Finding::new(Observed::PausesBesidePrompt, is, says).figure(share, 0.6);
    Some(finding.touching(seen.share_of_streaming(still)))
}

/// Returns the prompts that may pause others for `least` seconds or longer: very long prompts, and prompts whose
/// isolated prefill takes most of a pause. The second kind is left out if prompts are longer in general, because
/// every prefill is then longer.
fn held_up_by(frames: &Frames<'_>, seen: &DiagnosedLevel<'_>, least: f64) -> Vec<PromptReading> {
    let mut long = long_prompts(seen);
    let law = PromptLaw::of(&frames.candidate.alone).filter(|law| law.per_token > 0.0);
    let as_long = frames.ratio(|row| row.prompt, 0.5).is_none_or(|effect| effect.ratio.value < 1.15);
    let Some(law) = law.filter(|_| as_long) else { return long };
    let explains = |row: &RequestView| law.per_token * computed(row) / COVERS;
    let known =
        |row: &RequestView| long.iter().any(|read| read.from == row.sent_last && read.replica == row.replica);
    let more: Vec<PromptReading> = seen
        .rows
        .iter()
        .filter(|row| explains(row) >= least && row.ttft_sent.is_finite() && !known(row))
        .map(|row| PromptReading::of(row, explains(row)))
        .collect();
    long.extend(more);
    long
}

/// A pause: start, end, whether it overlaps the prefill of a long prompt, and replica.
type Pause = (f64, f64, bool, Option<u16>);

/// Number of instants at which prefills of long prompts are sampled.
const LOOKS: u32 = 2_000;

/// Returns the share of time with a long prefill on the replicas of these pauses. Replicas are weighted because a
/// fleet nearly always has a long prefill on some replica.
fn read_anyway(
    seen: &DiagnosedLevel<'_>,
    long: &[PromptReading],
    least: f64,
    replicas: impl Iterator<Item = Option<u16>>,
) -> f64 {
    let mut known = BTreeMap::new();
    let mut of = |replica| {
        *known.entry(replica).or_insert_with(|| {
            let at = |k: u32| seen.length * (f64::from(k) + 0.5) / f64::from(LOOKS);
            let reads = |k: &u32| long.iter().any(|read| read.holds_up(at(*k), replica, least));
            (0..LOOKS).filter(reads).count() as f64 / f64::from(LOOKS)
        })
    };
    let shares: Vec<f64> = replicas.map(&mut of).collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

/// Returns the number of events and of events that overlap a long prompt. Pauses that start during an earlier one
/// belong to its event, because one cause pauses all concurrent responses.
fn events(gaps: &[Pause]) -> (f64, f64) {
    let (mut until, mut events) = (f64::NEG_INFINITY, Vec::new());
    for (from, to, beside, _) in gaps {
        match events.last_mut() {
            Some(any) if *from < until => *any |= *beside,
            _ => events.push(*beside),
        }
        until = to.max(until);
    }
    (events.len() as f64, events.iter().filter(|beside| **beside).count() as f64)
}

/// Returns the pauses per request in the baseline: equally long, or half as long next to its own long prompts. A
/// cause that lengthens the latter (a slower model, a lost cache) is then the change.
fn had_before(base: &DiagnosedLevel<'_>, gaps: &[Pause], least: f64) -> f64 {
    let mut lasting: Vec<f64> = gaps.iter().map(|(from, to, ..)| to - from).collect();
    let half = 0.5 * order_statistic(&mut lasting, 0.5).unwrap_or(least);
    let long = long_prompts(base);
    let read = |gap: &Gap| {
        let (middle, row) = (0.5 * (gap.from + gap.to), &base.rows[gap.row as usize]);
        row.prompt < LONG_PROMPT && long.iter().any(|read| read.holds_up(middle, row.replica, 0.0))
    };
    let lasts = |gap: &Gap| gap.to - gap.from;
    let had = |gap: &&Gap| lasts(gap) >= least || lasts(gap) >= half && read(gap);
    base.gaps.iter().filter(had).count() as f64 / base.rows.len().max(1) as f64
}
