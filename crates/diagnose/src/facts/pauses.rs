//! Answers that pause: who pauses with whom, when, and what runs meanwhile.
//!
//! A stall is a stretch in which every answer that a replica streams has no token, that the baseline's longest pauses and the prompts then
//! read do not explain. Where answers catch up afterwards (what was held comes at once) the tokens were made in time and only their way
//! was blocked: no engine's stall. But where requests that were sent meanwhile were acknowledged by the server's kernel, the way was open and
//! its process stood still.

use std::collections::BTreeMap;

use plimsoll_math::proportion::proves_over;
use plimsoll_math::quantile::order_statistic;
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{chance as by_chance, ms, number, percent};

use super::alone::{PromptLaw, alone_tpot, alone_ttft, computed};
use super::{Finding, Is, Observed};
use crate::RunData;
use crate::effect::share;
use crate::frame::{Frame, Frames};
use crate::seen::{Gap, LONG_GAP_S, RequestRow, SeenLevel};

/// Chance of a rhythm from which it is none.
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
    let is = match () {
        () if told >= HABIT && !lost => Is::Yes,
        () if stalls.is_empty() => Is::No,
        () => Is::Unclear,
    };
    let mut lasts: Vec<f64> = stalls.iter().map(|stall| stall.to - stall.from).collect();
    let middle = order_statistic(&mut lasts, 0.5).unwrap_or(0.0);
    let says = format!(
        "{} stall{} of {} (median) in which every answer paused ({} of them in all, and {} requests waited for them to end) beside no long prompt",
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

/// At even intervals, by more than chance: of instants at random a third of the distances fit one.
fn regular_stalls(stalls: &[Stall]) -> Option<Finding> {
    // Ends stand closer to a clock than beginnings: who waits is missed only at his next token.
    let at: Vec<f64> = stalls.iter().map(|stall| stall.to).collect();
    let (every, fits) = regular(&at)?;
    let n = at.len() as f64 - 1.0;
    let fit = (fits * n).round() as u64;
    let chance = 1.0 - plimsoll_math::proportion::binomial_cdf(fit.saturating_sub(1), n as u64, 1.0 / 3.0);
    let is = match () {
        () if fits >= 0.75 && chance < RHYTHM_BY_CHANCE => Is::Yes,
        () if fits < 0.6 => Is::No,
        () => Is::Unclear,
    };
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

/// Shortest stall, s.
pub(super) const LEAST_STALL_S: f64 = 0.2;
/// Times the median gap that a stall must last.
const TIMES: f64 = 8.0;
/// Share of the answers being streamed that must pause together.
const TOGETHER: f64 = 0.8;

/// Witnesses of stalls from which they are no accident, however few: each would have had to pause by itself at that instant.
const WITNESSES: usize = 8;
/// Witnesses that are worth a stall more.
const WORTH: f64 = 2.5;
/// Stalls from which they are a habit.
const HABIT: f64 = 4.0;

/// Seconds after which a kernel sends again what was not acknowledged, at the latest (the least time-out of Linux).
const ASKED_AGAIN_S: f64 = 0.2;

/// Prompt tokens from which a prompt is long: several pieces of any size that servers read prompts in.
pub(super) const LONG_PROMPT: f64 = 4_000.0;

/// A stretch in which everybody pauses.
#[derive(Copy, Clone, Debug)]
pub struct Stall {
    /// From, s since the level began.
    pub from: f64,
    pub to: f64,
    pub paused: usize,
    /// Requests that waited for their first token throughout, for longer than is usual, and got it when it ended.
    pub waited: usize,
    /// Requests sent within it reached the server's kernel: nothing had to be sent again.
    pub way_clear: bool,
    /// The replica they all stream from, where one is told.
    pub replica: Option<u16>,
    /// A prompt much longer than others was being read.
    pub long_prompt: bool,
    /// What had been held came at once afterwards.
    pub caught_up: bool,
}

/// Times the baseline's usual longest pause of an answer from which a pause is news.
const NEWS: f64 = 1.25;

/// The same without the pauses beside prompts much longer than the others: they are left out of the stalls too, and a hundred prompts of
/// which one makes eight answers pause for a second would hide every stall that is shorter.
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

fn usual_of(frames: &Frames<'_>, pauses: impl Fn(&SeenLevel<'_>) -> Vec<f64>) -> f64 {
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

/// The shortest gap that may be part of a stall.
fn least(seen: &SeenLevel<'_>, usual: f64) -> f64 {
    LEAST_STALL_S.max(TIMES * seen.gap_p50).max(NEWS * usual)
}

/// Finds the stalls of a level, replica by replica where they are told apart. `overdue`: seconds that a first token takes at most, as a rule.
pub fn stalls(seen: &SeenLevel<'_>, least: f64, overdue: f64) -> Vec<Stall> {
    let mut gaps: Vec<&Gap> = seen.gaps.iter().filter(|gap| gap.to - gap.from >= least).collect();
    gaps.sort_by(|a, b| a.from.total_cmp(&b.from));
    let long = long_prompts(seen);
    let mut found: Vec<Stall> = Vec::new();
    let mut at = 0;
    while at < gaps.len() {
        let (mut from, mut to) = (gaps[at].from, gaps[at].to);
        let mut members = vec![gaps[at]];
        at += 1;
        // Those that overlap by most of their length are one event.
        while at < gaps.len() && gaps[at].from < from + 0.5 * (to - from) {
            (from, to) = (from.max(gaps[at].from), to.min(gaps[at].to).max(from));
            members.push(gaps[at]);
            at += 1;
        }
        if to - from < 0.5 * LEAST_STALL_S {
            continue;
        }
        let of = |row: &RequestRow| row.replica;
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

/// Answers in the middle of their stream throughout this stretch.
fn streaming(seen: &SeenLevel<'_>, from: f64, to: f64, replica: Option<u16>) -> usize {
    let in_stream = |row: &&RequestRow| {
        let first = row.sent_last + row.ttft_sent;
        (replica.is_none() || row.replica == replica) && row.events > 1 && first < from && row.end > to
    };
    seen.rows.iter().filter(in_stream).count()
}

/// Requests that wait through this stretch for a first token that is overdue at its end, and get it there; and whether the way to the server
/// was clear meanwhile: segments of requests sent within the stretch were acknowledged and none was sent again.
fn waiting_through(
    seen: &SeenLevel<'_>,
    (from, to): (f64, f64),
    replica: Option<u16>,
    overdue: f64,
) -> (usize, bool) {
    let edge = 0.1 * (to - from);
    let first = |row: &RequestRow| row.sent_last + row.ttft_sent;
    let own = || seen.rows.iter().filter(|row| replica.is_none() || row.replica == replica);
    let waits = |row: &&RequestRow| row.sent_last + overdue < to && first(row) >= to - edge;
    // One that comes long after the end waits for something else.
    let waiting: Vec<&RequestRow> =
        own().filter(waits).filter(|row| first(row) <= to + overdue + edge).collect();
    let sent_within = waiting.iter().filter(|row| row.sent_last > from && row.sent_last + ASKED_AGAIN_S < to);
    let again: Vec<Option<u32>> = sent_within.map(|row| row.tcp.retransmits).collect();
    (waiting.len(), !again.is_empty() && again.iter().all(|again| *again == Some(0)))
}

/// A stretch in which a prompt much longer than the others was being read, from its sending to its first token.
#[derive(Copy, Clone, Debug)]
pub(super) struct PromptReading {
    pub(super) from: f64,
    pub(super) to: f64,
    pub(super) replica: Option<u16>,
    /// Longest pause that it explains, s.
    pub(super) explains: f64,
}

impl PromptReading {
    pub(super) fn of(row: &RequestRow, explains: f64) -> PromptReading {
        PromptReading {
            from: row.sent_last,
            to: row.sent_last + row.ttft_sent,
            replica: row.replica,
            explains,
        }
    }

    /// Is it under way in this stretch, where a request of this replica would notice?
    pub(super) fn overlaps(&self, from: f64, to: f64, replica: Option<u16>) -> bool {
        let same = replica.is_none() || self.replica.is_none() || replica == self.replica;
        same && self.from < to && self.to > from
    }

    /// Is it under way at this instant, where a request of this replica would notice, and may it make a pause of so many seconds?
    pub(super) fn holds_up(&self, at: f64, replica: Option<u16>, lasts: f64) -> bool {
        let same = replica.is_none() || self.replica.is_none() || replica == self.replica;
        same && self.from <= at && at <= self.to && lasts <= self.explains
    }
}

/// Tokens from which a prompt is much longer than the others: four times the usual one, and long in itself, for nobody's chunk is smaller
/// than a few hundred tokens.
pub(crate) fn long_from(seen: &SeenLevel<'_>) -> f64 {
    let mut prompts: Vec<f64> = seen.rows.iter().map(|row| row.prompt).collect();
    order_statistic(&mut prompts, 0.5).map_or(f64::INFINITY, |middle| LONG_PROMPT.max(4.0 * middle))
}

/// When prompts much longer than the others were being read.
pub(super) fn long_prompts(seen: &SeenLevel<'_>) -> Vec<PromptReading> {
    let least = long_from(seen);
    seen.rows
        .iter()
        .filter(|row| row.prompt >= least && row.ttft_sent.is_finite())
        .map(|row| PromptReading::of(row, f64::INFINITY))
        .collect()
}

/// Share of a stall that the prompts read in it must take by themselves for it to be no stall of its own.
pub(super) const COVERS: f64 = 0.7;

/// What the prompts take by themselves whose first tokens came in this stall or with its end: everybody waits for the steps that
/// read them, one after the other, and what makes them slow (a model, a cache that was lost) shows on single requests too. s.
fn reading(seen: &SeenLevel<'_>, law: &PromptLaw, stall: &Stall) -> f64 {
    let lasts = stall.to - stall.from;
    let ends_it = |row: &&RequestRow| {
        let first = row.sent_last + row.ttft_sent;
        let same = stall.replica.is_none() || row.replica == stall.replica;
        same && first > stall.from + 0.1 * lasts && first <= stall.to + 0.1 * lasts
    };
    seen.rows.iter().filter(ends_it).map(|row| law.per_token * computed(row)).sum()
}

/// What the prompts that are read explain of a short halt of everybody.
pub(crate) struct Excuses {
    /// When first tokens came, rising, and what their prompts take by themselves, s.
    read: Vec<(f64, f64)>,
    long: Vec<PromptReading>,
}

/// The excuses of the level under judgement, by what prompts take now or took before, whatever is more.
pub(crate) fn excuses(frames: &Frames<'_>) -> Excuses {
    let of = |arm: &Frame<'_>| PromptLaw::of(&arm.alone).or_else(|| PromptLaw::of(&arm.seen.rows));
    let laws = [frames.base.as_ref().and_then(of), of(&frames.candidate)];
    let per_token = laws.iter().flatten().map(|law| law.per_token).fold(0.0, f64::max);
    let came = frames.now().rows.iter().filter(|row| row.ttft_sent.is_finite());
    let mut read: Vec<(f64, f64)> =
        came.map(|row| (row.sent_last + row.ttft_sent, per_token * computed(row))).collect();
    read.sort_by(|a, b| a.0.total_cmp(&b.0));
    Excuses { read, long: long_prompts(frames.now()) }
}

impl Excuses {
    /// Was a long prompt read in this stretch, or prompts that take most of it and whose first tokens came with its end?
    pub fn explains(&self, from: f64, to: f64) -> bool {
        let lasts = to - from;
        let begin = self.read.partition_point(|(at, _)| *at <= from + 0.1 * lasts);
        let end = self.read.partition_point(|(at, _)| *at <= to + 0.1 * lasts);
        let takes: f64 = self.read[begin..end].iter().map(|(_, takes)| takes).sum();
        takes >= COVERS * lasts || self.long.iter().any(|read| read.from < to && read.to > from)
    }
}

/// Did tokens come coalesced, of answers that did not before? They were made in time and their way was blocked, and who had ended before it
/// was free again shows a pause and no burst.
pub(crate) fn coalesced_more(frames: &Frames<'_>) -> bool {
    let coalesced = |seen: &SeenLevel<'_>| {
        seen.rows.iter().filter(|row| row.coalesced > 0.01).count() as f64 / seen.rows.len().max(1) as f64
    };
    coalesced(frames.now()) > frames.before().map_or(0.0, coalesced) + 0.05
}

/// Stalls that the engine made and that neither the baseline nor a prompt that is read explains.
fn of_engine(frames: &Frames<'_>) -> Vec<Stall> {
    let least = least(frames.now(), usual_beside_no_long_prompt(frames));
    // Where single requests are too few, the line through all of them: its fixed part holds what they wait, its slope is theirs.
    let law = PromptLaw::of(&frames.candidate.alone).or_else(|| PromptLaw::of(&frames.now().rows));
    let explained = |seen: &SeenLevel<'_>, f: &Stall| {
        law.is_some_and(|law| reading(seen, &law, f) >= COVERS * (f.to - f.from))
    };
    let (coalesced, overdue) = (coalesced_more(frames), overdue(frames));
    let of = |seen: &SeenLevel<'_>| -> Vec<Stall> {
        // What comes at once afterwards was held by the way, unless requests got through it meanwhile: then it was held by the server's end.
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

/// Share of a silence within which those who waited must go on after it, and by which their beginnings must lie apart.
const GO_ON: f64 = 0.15;
const APART: f64 = 0.25;

/// Stretches in which nobody gets anything of whom several are there: an answer is being told and others wait, or several wait that were sent
/// apart, and go on together. Short answers show a process that stops this way alone: hardly one is being told at any time.
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

/// The silences of a level, of one replica or of several that nobody tells apart.
fn silent(side: &RunData<'_>, seen: &SeenLevel<'_>, least: f64) -> Vec<Stall> {
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
    let first = |row: &RequestRow| row.sent_last + row.ttft_sent;
    // By when they were sent: who is still there was sent no longer ago than the longest request takes.
    let (mut rows, unended): (Vec<&RequestRow>, Vec<&RequestRow>) =
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

/// Who waits for a first token is a witness only where the kernel's figures show that his request arrived: else he may wait in any queue, and a
/// stall is what several answers pause in.
fn open_way(mut stalls: Vec<Stall>) -> Vec<Stall> {
    let clear = stalls.iter().filter(|f| f.way_clear).count();
    if 3 * clear < stalls.len() {
        stalls.retain(|f| f.paused >= 2);
        stalls.iter_mut().for_each(|f| f.waited = 0);
    }
    stalls
}

/// What a first token takes as a rule (p95 of the baseline, else twice the run's own median), s: who waits for longer is overdue.
fn overdue(frames: &Frames<'_>) -> f64 {
    let first = |seen: &SeenLevel<'_>| seen.finite(|row| row.ttft_sent);
    let usual = match frames.before() {
        Some(base) => order_statistic(&mut first(base), 0.95),
        None => order_statistic(&mut first(frames.now()), 0.5).map(|middle| 2.0 * middle),
    };
    usual.unwrap_or(f64::INFINITY)
}

/// Those who stood still in a stall beside the first of each: by themselves they would have gone on.
fn witnesses(stalls: &[Stall]) -> usize {
    stalls.iter().map(|f| f.paused + f.waited - 1).sum()
}

/// How regular instants are: the median distance, and the share of distances that are a whole multiple of it to within an
/// eighth (nobody streamed during the ones between). Of instants at random about a third are. A coefficient of variation lost:
/// one stall that was not seen, or one that was none, decides it.
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

/// Were segments lost on the connections of most who stood still? Then it was the way that stood still: a process that stops does not keep
/// its kernel from saying what it received.
fn packets_lost(frames: &Frames<'_>, stalls: &[Stall]) -> bool {
    let struck = |row: &&RequestRow| stalls.iter().any(|f| row.sent_last < f.to && row.end >= f.to);
    let lost: Vec<bool> = frames
        .now()
        .rows
        .iter()
        .filter(struck)
        .map(|row| row.tcp.retransmits.is_some_and(|n| n > 0))
        .collect();
    2 * lost.iter().filter(|lost| **lost).count() > lost.len()
}

/// Shortest pause beside a long prompt that counts, s: what a person notices.
const FELT_S: f64 = 0.12;
/// Chance of so many pauses' lying beside a long prompt by accident from which on it may be one.
const ACCIDENT: f64 = 0.001;

/// Do others pause while a long prompt is read, more often than chance lets them?
fn beside_prompt(frames: &Frames<'_>) -> Option<Finding> {
    let seen = frames.now();
    let mut longest = frames.before().map(|base| base.finite(|row| row.gap_max)).unwrap_or_default();
    let usual = order_statistic(&mut longest, 0.99).unwrap_or(0.0);
    let least = FELT_S.max(5.0 * seen.gap_p50).max(1.5 * usual);
    let long = held_up_by(frames, seen, least);
    let none = |says: &str| Some(Finding::new(Observed::PausesBesidePrompt, Is::No, says.to_owned()));
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
        return none("hardly an answer pauses");
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
    let is = match () {
        () if odds >= 5.0 && share.value >= 0.6 && proves_over(with, all, always, ACCIDENT) && news => {
            Is::Yes
        }
        () if odds < 2.0 || share.value < 0.3 || !news => Is::No,
        () => Is::Unclear,
    };
    let says = format!(
        "{} pauses of over {} in other requests' answers, {} of them while a long prompt was being read (which is so {} of the time)",
        gaps.len(),
        ms(least),
        percent(share.value),
        percent(always)
    );
    let still: f64 = gaps.iter().map(|gap| gap.1 - gap.0).sum();
    let finding = Finding::new(Observed::PausesBesidePrompt, is, says).figure(share, 0.6);
    Some(finding.touching(seen.share_of_streaming(still)))
}

/// The prompts that may make others pause for so long or longer: those that are long, and, where what single requests take is known, those
/// that take most of a pause to read by themselves. Not where prompts are longer altogether: every one is then read for longer.
fn held_up_by(frames: &Frames<'_>, seen: &SeenLevel<'_>, least: f64) -> Vec<PromptReading> {
    let mut long = long_prompts(seen);
    let law = PromptLaw::of(&frames.candidate.alone).filter(|law| law.per_token > 0.0);
    let as_long = frames.ratio(|row| row.prompt, 0.5).is_none_or(|effect| effect.ratio.value < 1.15);
    let Some(law) = law.filter(|_| as_long) else { return long };
    let explains = |row: &RequestRow| law.per_token * computed(row) / COVERS;
    let known =
        |row: &RequestRow| long.iter().any(|read| read.from == row.sent_last && read.replica == row.replica);
    let more: Vec<PromptReading> = seen
        .rows
        .iter()
        .filter(|row| explains(row) >= least && row.ttft_sent.is_finite() && !known(row))
        .map(|row| PromptReading::of(row, explains(row)))
        .collect();
    long.extend(more);
    long
}

/// A pause: from, to, was a long prompt beside it, and the replica.
type Pause = (f64, f64, bool, Option<u16>);

/// Instants at which it is looked whether a long prompt is being read.
const LOOKS: u32 = 2_000;

/// Share of the time in which a long prompt is being read anyway, where these pauses are: on the replica of each, for a fleet reads one
/// somewhere nearly always.
fn read_anyway(
    seen: &SeenLevel<'_>,
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

/// Pauses that begin while an earlier one lasts are one event: what holds one answer up holds up all beside it. Events, and how many of
/// them a long prompt was beside.
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

/// Pauses per request that the baseline had as well: as long, or, beside its own long prompts, half as long as these usually are. What makes
/// those longer (a slower model, a cache that was lost) is then the news.
fn had_before(base: &SeenLevel<'_>, gaps: &[Pause], least: f64) -> f64 {
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
