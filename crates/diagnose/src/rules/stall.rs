//! S5 and its like: answers that pause. Told apart by who pauses with whom, when, and what runs meanwhile.
//!
//! A freeze is a stretch in which every answer that a replica streams has no token. If a long prompt is being read meanwhile it
//! is head-of-line blocking (`ahead`); if freezes come at even distances something runs at that interval; else the host is busy now and
//! then. Where answers catch up afterwards (what was held comes in one lump) the tokens were made in time and only their way was
//! blocked: no engine's freeze, so these rules keep quiet. But where requests that were sent meanwhile were acknowledged by the server's
//! kernel, the way was open and its process stood still.

use std::collections::BTreeMap;

use plimsoll_math::quantile::order_statistic;

use super::load::{Law, alone_tpot, alone_ttft, computed};
use super::{Fired, beyond};
use crate::bench::{Bench, BenchArm};
use crate::seen::{Gap, LONG_GAP_S, RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};

/// Shortest freeze, s.
const SHORTEST_S: f64 = 0.2;
/// Times the median gap that a freeze must last.
const TIMES: f64 = 8.0;
/// Share of the answers being streamed that must pause together.
const TOGETHER: f64 = 0.8;

/// Witnesses of freezes from which they are no accident, however few: each would have had to pause by itself at that instant.
const WITNESSES: usize = 8;
/// Witnesses that are worth a freeze more.
const WORTH: f64 = 2.5;
/// Freezes from which they are a habit.
const HABIT: f64 = 4.0;

/// Seconds after which a kernel sends again what was not acknowledged, at the latest (the least time-out of Linux).
const ASKED_AGAIN_S: f64 = 0.2;

/// Prompt tokens from which a prompt is long: several pieces of any size that servers read prompts in.
pub(super) const LONG_PROMPT: f64 = 4_000.0;

/// A stretch in which everybody pauses.
#[derive(Copy, Clone, Debug)]
pub struct Freeze {
    /// From, s since the level began.
    pub from: f64,
    /// To.
    pub to: f64,
    /// Answers that paused.
    pub paused: usize,
    /// Requests that waited for their first token throughout, for longer than is usual, and got it when it ended.
    pub waited: usize,
    /// Requests sent within it reached the server's kernel: nothing had to be sent again.
    pub way_clear: bool,
    /// The replica they all stream from, where one is told.
    pub replica: Option<u16>,
    /// A prompt much longer than others was being read.
    pub long_prompt: bool,
    /// What had been held came in a lump afterwards.
    pub caught_up: bool,
}

/// Times the baseline's usual longest pause of an answer from which a pause is news.
const NEWS: f64 = 1.25;

/// The longest pause that is usual: the baseline's p99 of the longest gap of its answers. A prompt that is read in large pieces
/// makes everybody pause, and did so before. Where single requests are slower for sure (per token, or to their first one), so is every
/// step that others wait for, and the pauses are as many times as long; and so they are where more of each prompt is read for what a
/// cache lost.
pub(super) fn usual(bench: &Bench<'_>) -> f64 {
    usual_of(bench, |seen| seen.finite(|row| row.gap_max))
}

/// The same without the pauses beside prompts much longer than the others: they are left out of the freezes too, and a hundred prompts of
/// which one makes eight answers pause for a second would hide every freeze that is shorter.
fn usual_beside_no_long_prompt(bench: &Bench<'_>) -> f64 {
    usual_of(bench, |seen| {
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

fn usual_of(bench: &Bench<'_>, pauses: impl Fn(&Seen<'_>) -> Vec<f64>) -> f64 {
    let mut longest = bench.before().map(pauses).unwrap_or_default();
    let slower = bench.base.as_ref().map_or(1.0, |base| {
        let now = &bench.candidate;
        let ratios = [alone_ttft(base, now), alone_tpot(base, now)];
        ratios
            .into_iter()
            .flatten()
            .filter(|ratio| ratio.lower > 1.05)
            .map(|ratio| ratio.value)
            .fold(1.0, f64::max)
    });
    slower * super::engine::read_again(bench) * order_statistic(&mut longest, 0.99).unwrap_or(0.0)
}

/// The shortest gap that may be part of a freeze.
fn least(seen: &Seen<'_>, usual: f64) -> f64 {
    SHORTEST_S.max(TIMES * seen.gap_p50).max(NEWS * usual)
}

/// Finds the freezes of a level, replica by replica where they are told apart. `overdue`: seconds that a first token takes at most, as a rule.
pub fn freezes(seen: &Seen<'_>, least: f64, overdue: f64) -> Vec<Freeze> {
    let mut gaps: Vec<&Gap> = seen.gaps.iter().filter(|gap| gap.to - gap.from >= least).collect();
    gaps.sort_by(|a, b| a.from.total_cmp(&b.from));
    let long = long_prompts(seen);
    let mut found: Vec<Freeze> = Vec::new();
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
        if to - from < 0.5 * SHORTEST_S {
            continue;
        }
        let of = |row: &RequestRow| row.replica;
        let first = of(&seen.rows[members[0].row as usize]);
        let one_replica = members.iter().all(|gap| of(&seen.rows[gap.row as usize]) == first);
        let streaming = streaming(seen, from, to, if one_replica { first } else { None });
        let lumps = members.iter().filter(|gap| seen.rows[gap.row as usize].lumped > 0.01).count();
        let replica = if one_replica { first } else { None };
        let (waited, way_clear) = waiting_through(seen, (from, to), replica, overdue);
        if members.len() + waited >= 2 && members.len() as f64 >= TOGETHER * streaming as f64 {
            found.push(Freeze {
                from,
                to,
                paused: members.len(),
                waited,
                way_clear,
                replica,
                long_prompt: long.iter().any(|read| read.from < to && read.to > from),
                caught_up: 3 * lumps > members.len(),
            });
        }
    }
    found
}

/// Answers in the middle of their stream throughout this stretch.
fn streaming(seen: &Seen<'_>, from: f64, to: f64, replica: Option<u16>) -> usize {
    let in_stream = |row: &&RequestRow| {
        let first = row.sent_last + row.ttft_sent;
        (replica.is_none() || row.replica == replica) && row.events > 1 && first < from && row.end > to
    };
    seen.rows.iter().filter(in_stream).count()
}

/// Requests that wait through this stretch for a first token that is overdue at its end, and get it there; and whether the way to the server
/// was clear meanwhile: segments of requests sent within the stretch were acknowledged and none was sent again.
fn waiting_through(
    seen: &Seen<'_>,
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
pub fn long_from(seen: &Seen<'_>) -> f64 {
    let mut prompts: Vec<f64> = seen.rows.iter().map(|row| row.prompt).collect();
    order_statistic(&mut prompts, 0.5).map_or(f64::INFINITY, |middle| LONG_PROMPT.max(4.0 * middle))
}

/// When prompts much longer than the others were being read.
pub(super) fn long_prompts(seen: &Seen<'_>) -> Vec<PromptReading> {
    let least = long_from(seen);
    seen.rows
        .iter()
        .filter(|row| row.prompt >= least && row.ttft_sent.is_finite())
        .map(|row| PromptReading::of(row, f64::INFINITY))
        .collect()
}

/// Are pauses worth speaking of?
pub fn worse(bench: &Bench<'_>) -> bool {
    ["pause", "ttft", "tpot", "e2e"].iter().any(|metric| bench.suspects(metric))
}

/// Share of a freeze that the prompts read in it must take by themselves for it to be no freeze of its own.
pub(super) const COVERS: f64 = 0.7;

/// What the prompts take by themselves whose first tokens came in this freeze or with its end: everybody waits for the steps that
/// read them, one after the other, and what makes them slow (a model, a cache that was lost) shows on single requests too. s.
fn reading(seen: &Seen<'_>, law: &Law, freeze: &Freeze) -> f64 {
    let lasts = freeze.to - freeze.from;
    let ends_it = |row: &&RequestRow| {
        let first = row.sent_last + row.ttft_sent;
        let same = freeze.replica.is_none() || row.replica == freeze.replica;
        same && first > freeze.from + 0.1 * lasts && first <= freeze.to + 0.1 * lasts
    };
    seen.rows.iter().filter(ends_it).map(|row| law.per_token * computed(row)).sum()
}

/// What the prompts that are read explain of a short halt of everybody.
pub struct Excuses {
    /// When first tokens came, rising, and what their prompts take by themselves, s.
    read: Vec<(f64, f64)>,
    long: Vec<PromptReading>,
}

/// The excuses of the level under judgement, by what prompts take now or took before, whatever is more.
pub fn excuses(bench: &Bench<'_>) -> Excuses {
    let of = |arm: &BenchArm<'_>| Law::of(&arm.alone).or_else(|| Law::of(&arm.seen.rows));
    let laws = [bench.base.as_ref().and_then(of), of(&bench.candidate)];
    let per_token = laws.iter().flatten().map(|law| law.per_token).fold(0.0, f64::max);
    let came = bench.now().rows.iter().filter(|row| row.ttft_sent.is_finite());
    let mut read: Vec<(f64, f64)> =
        came.map(|row| (row.sent_last + row.ttft_sent, per_token * computed(row))).collect();
    read.sort_by(|a, b| a.0.total_cmp(&b.0));
    Excuses { read, long: long_prompts(bench.now()) }
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

/// Did tokens come in lumps, of answers that did not before? They were made in time and their way was blocked, and who had ended before it
/// was free again shows a pause and no lump.
pub fn in_lumps(bench: &Bench<'_>) -> bool {
    let lumps = |seen: &Seen<'_>| {
        seen.rows.iter().filter(|row| row.lumped > 0.01).count() as f64 / seen.rows.len().max(1) as f64
    };
    lumps(bench.now()) > bench.before().map_or(0.0, lumps) + 0.05
}

/// Freezes that the engine made and that the baseline (or a prompt that is read) does not explain.
fn of_engine(bench: &Bench<'_>) -> Vec<Freeze> {
    // A slower model reads long prompts for longer, in more and longer pauses: those of before are part of what is usual then.
    let slower = super::model::slower(bench).is_some_and(|it| it.confidence >= bench.case.spec.confident);
    let usual = if slower { usual(bench) } else { usual_beside_no_long_prompt(bench) };
    let least = least(bench.now(), usual);
    // What single requests show as well, a third of them, is no freeze of everybody: each answer pauses for itself.
    let alone = &bench.candidate.alone;
    let pausing = alone.iter().filter(|row| row.gap_max >= least).count();
    if 3 * pausing > alone.len() && !alone.is_empty() {
        return Vec::new();
    }
    let lumps = in_lumps(bench);
    // Where single requests are too few, the line through all of them: its fixed part holds what they wait, its slope is theirs.
    let law = Law::of(alone).or_else(|| Law::of(&bench.now().rows));
    let explained = |seen: &Seen<'_>, f: &Freeze| {
        law.is_some_and(|law| reading(seen, &law, f) >= COVERS * (f.to - f.from))
    };
    let overdue = overdue(bench);
    let of = |seen: &Seen<'_>| -> Vec<Freeze> {
        // What comes in a lump afterwards was held by the way, unless requests got through it meanwhile: then it was held by the server's end.
        let held = |f: &Freeze| (lumps || f.caught_up) && !f.way_clear;
        let own = |f: &Freeze| !f.long_prompt && !held(f) && !explained(seen, f);
        freezes(seen, least, overdue).into_iter().filter(own).collect()
    };
    let own = open_way(of(bench.now()));
    let before = bench.before().map_or(0.0, |base| of(base).len() as f64 / base.length);
    let paused = own.iter().map(|f| f.paused).sum::<usize>() as f64 / own.len().max(1) as f64;
    let together = paused >= 2.5 || own.iter().any(|f| f.waited > 0) && witnesses(&own) >= WITNESSES;
    if own.len() as f64 / bench.now().length > 3.0 * before && together { own } else { Vec::new() }
}

/// Who waits for a first token is a witness only where the kernel's figures show that his request arrived: else he may wait in any queue, and a
/// freeze is what several answers pause in.
fn open_way(mut freezes: Vec<Freeze>) -> Vec<Freeze> {
    let clear = freezes.iter().filter(|f| f.way_clear).count();
    if 3 * clear < freezes.len() {
        freezes.retain(|f| f.paused >= 2);
        freezes.iter_mut().for_each(|f| f.waited = 0);
    }
    freezes
}

/// What a first token takes as a rule (p95 of the baseline, else twice the run's own median), s: who waits for longer is overdue.
fn overdue(bench: &Bench<'_>) -> f64 {
    let first = |seen: &Seen<'_>| seen.finite(|row| row.ttft_sent);
    let usual = match bench.before() {
        Some(base) => order_statistic(&mut first(base), 0.95),
        None => order_statistic(&mut first(bench.now()), 0.5).map(|middle| 2.0 * middle),
    };
    usual.unwrap_or(f64::INFINITY)
}

/// Those who stood still in a freeze beside the first of each: by themselves they would have gone on.
fn witnesses(freezes: &[Freeze]) -> usize {
    freezes.iter().map(|f| f.paused + f.waited - 1).sum()
}

/// How regular instants are: the median distance, and the share of distances that are a whole multiple of it to within an
/// eighth (nobody streamed during the ones between). Of instants at random about a third are. A coefficient of variation lost:
/// one freeze that was not seen, or one that was none, decides it.
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
fn packets_lost(bench: &Bench<'_>, freezes: &[Freeze]) -> bool {
    let struck = |row: &&RequestRow| freezes.iter().any(|f| row.sent_last < f.to && row.end >= f.to);
    let lost: Vec<bool> = bench
        .now()
        .rows
        .iter()
        .filter(struck)
        .map(|row| row.tcp.retransmits.is_some_and(|n| n > 0))
        .collect();
    2 * lost.iter().filter(|lost| **lost).count() > lost.len()
}

/// S5: everyone freezes together.
pub fn stall(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    let mut freezes = of_engine(bench);
    freezes.sort_by(|a, b| a.from.total_cmp(&b.from));
    freezes.dedup_by(|next, kept| next.from < kept.to);
    let told = freezes.len() as f64;
    let sure = freezes.iter().any(|f| f.way_clear);
    let told = if sure { told.max(witnesses(&freezes) as f64 / WORTH) } else { told };
    if told < HABIT || (freezes.len() as f64) < HABIT && packets_lost(bench, &freezes) {
        return None;
    }
    let at: Vec<f64> = freezes.iter().map(|f| f.from).collect();
    let mut lasts: Vec<f64> = freezes.iter().map(|f| f.to - f.from).collect();
    let middle = order_statistic(&mut lasts, 0.5)?;
    let rhythm = regular(&at);
    let (every, fits) = rhythm.unwrap_or((f64::NAN, 0.0));
    let periodic = fits >= 0.75;
    let cause = if periodic { Cause::PeriodicStall } else { Cause::HostContention };
    let when = match (rhythm, periodic) {
        (None, _) => "too few to know a rhythm".to_owned(),
        (_, true) => format!("every {} s ({} of the distances fit)", number(every), percent(fits)),
        (_, false) => format!("at uneven distances ({} of them fit one interval)", percent(fits)),
    };
    let says = format!(
        "{} stall{} of {} (median) in which every answer paused ({} of them in all, and {} requests waited for them to end), {when}; no long prompt was being read",
        freezes.len(),
        if freezes.len() == 1 { "" } else { "s" },
        ms(middle),
        freezes.iter().map(|freeze| freeze.paused).sum::<usize>(),
        freezes.iter().map(|freeze| freeze.waited).sum::<usize>()
    );
    let counter = match bench.candidate.gauges.collections() {
        Some(n) if n > 0.0 => Counter::Moved { name: "garbage collections during the level".into(), by: n },
        _ => {
            Counter::Moved { name: "stretches without a token from anybody".into(), by: freezes.len() as f64 }
        }
    };
    let confidence =
        beyond(told, HABIT) * beyond(middle, SHORTEST_S).max(0.75) / 0.72 * if periodic { 1.0 } else { 0.92 };
    let figure = Estimate {
        value: middle,
        lower: lasts.iter().copied().fold(f64::INFINITY, f64::min),
        upper: lasts.iter().copied().fold(0.0, f64::max),
        n: freezes.len() as u64,
        n_eff: freezes.len() as f64,
    };
    let mut fired = Fired::new(cause, confidence.min(0.97), says.clone())
        .with(Evidence::figure("freeze_s", says, figure, Some(SHORTEST_S)).inferred())
        .counted(counter);
    fired.struck.during = freezes.iter().map(|f| (f.from - 0.1, f.to + 0.1)).collect();
    Some(fired)
}
