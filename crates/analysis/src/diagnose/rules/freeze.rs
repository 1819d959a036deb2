//! S3, S5 and their like: answers that pause. Told apart by who pauses with whom, when, and what runs meanwhile.
//!
//! A freeze is a stretch in which every answer that a replica streams has no token. If a long prompt is being read meanwhile it
//! is head-of-line blocking; if freezes come at even distances something runs at that interval; else the host is busy now and
//! then. Where answers catch up afterwards (what was held comes in one lump) the tokens were made in time and only their way was
//! blocked: no engine's freeze, so these rules keep quiet. But where requests that were sent meanwhile were acknowledged by the server's
//! kernel, the way was open and its process stood still.

use std::collections::BTreeMap;

use plimsoll_math::proportion::proves_over;
use plimsoll_math::quantile::{of_sorted, order_statistic, sort};

use super::load::{Law, alone_tpot, alone_ttft, computed};
use super::{Fired, beyond};
use crate::diagnose::bench::{Arm, Bench};
use crate::diagnose::company;
use crate::diagnose::seen::{Gap, LONG_GAP_S, Row, Seen};
use crate::diagnose::verdict::Evidence;
use crate::diagnose::{Cause, Counter};
use crate::findings::Estimate;
use crate::say::{ms, number, percent};

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
const LONG_PROMPT: f64 = 4_000.0;

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
fn usual(bench: &Bench<'_>) -> f64 {
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
        let of = |row: &Row| row.replica;
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
    let in_stream = |row: &&Row| {
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
    let first = |row: &Row| row.sent_last + row.ttft_sent;
    let own = || seen.rows.iter().filter(|row| replica.is_none() || row.replica == replica);
    let waits = |row: &&Row| row.sent_last + overdue < to && first(row) >= to - edge;
    // One that comes long after the end waits for something else.
    let waiting: Vec<&Row> = own().filter(waits).filter(|row| first(row) <= to + overdue + edge).collect();
    let sent_within = waiting.iter().filter(|row| row.sent_last > from && row.sent_last + ASKED_AGAIN_S < to);
    let again: Vec<Option<u32>> = sent_within.map(|row| row.tcp.retransmits).collect();
    (waiting.len(), !again.is_empty() && again.iter().all(|again| *again == Some(0)))
}

/// A stretch in which a prompt much longer than the others was being read, from its sending to its first token.
#[derive(Copy, Clone, Debug)]
struct Reading {
    from: f64,
    to: f64,
    replica: Option<u16>,
    /// Longest pause that it explains, s.
    explains: f64,
}

impl Reading {
    fn of(row: &Row, explains: f64) -> Reading {
        Reading { from: row.sent_last, to: row.sent_last + row.ttft_sent, replica: row.replica, explains }
    }

    /// Is it under way in this stretch, where a request of this replica would notice?
    fn overlaps(&self, from: f64, to: f64, replica: Option<u16>) -> bool {
        let same = replica.is_none() || self.replica.is_none() || replica == self.replica;
        same && self.from < to && self.to > from
    }

    /// Is it under way at this instant, where a request of this replica would notice, and may it make a pause of so many seconds?
    fn holds_up(&self, at: f64, replica: Option<u16>, lasts: f64) -> bool {
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
fn long_prompts(seen: &Seen<'_>) -> Vec<Reading> {
    let least = long_from(seen);
    seen.rows
        .iter()
        .filter(|row| row.prompt >= least && row.ttft_sent.is_finite())
        .map(|row| Reading::of(row, f64::INFINITY))
        .collect()
}

/// Are pauses worth speaking of?
pub fn worse(bench: &Bench<'_>) -> bool {
    ["pause", "ttft", "tpot", "e2e"].iter().any(|metric| bench.suspects(metric))
}

/// Share of a freeze that the prompts read in it must take by themselves for it to be no freeze of its own.
const COVERS: f64 = 0.7;

/// What the prompts take by themselves whose first tokens came in this freeze or with its end: everybody waits for the steps that
/// read them, one after the other, and what makes them slow (a model, a cache that was lost) shows on single requests too. s.
fn reading(seen: &Seen<'_>, law: &Law, freeze: &Freeze) -> f64 {
    let lasts = freeze.to - freeze.from;
    let ends_it = |row: &&Row| {
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
    long: Vec<Reading>,
}

/// The excuses of the level under judgement, by what prompts take now or took before, whatever is more.
pub fn excuses(bench: &Bench<'_>) -> Excuses {
    let of = |arm: &Arm<'_>| Law::of(&arm.alone).or_else(|| Law::of(&arm.seen.rows));
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
    let struck = |row: &&Row| freezes.iter().any(|f| row.sent_last < f.to && row.end >= f.to);
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
        "{} freeze{} of {} (median) in which every answer paused ({} of them in all, and {} requests waited for them to end), {when}; no long prompt was being read",
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

/// Share of the pauses that must lie beside a long prompt: where half of them do not, something else makes pauses as well.
const BESIDE: f64 = 0.6;
/// Ratio of the median prompt up to which prompts are as long as before.
const AS_LONG: f64 = 1.15;
/// Chance of so much longer prompts from which on it is none.
const SURE: f64 = 0.01;
/// Shortest pause beside a long prompt that counts, s: what a person notices.
const FELT_S: f64 = 0.12;
/// Share of the answers that such a pause must be in where there is no baseline.
const MET: f64 = 0.05;
/// Fewest pauses to speak of.
const FEWEST: usize = 3;
/// Chance of so many pauses' lying beside a long prompt by accident from which on it may be one. It, and no number of long prompts,
/// decides whether two are enough: beside two readings of a second in three minutes nothing pauses twice by accident.
const ACCIDENT: f64 = 0.001;

/// A pause: from, to, was a long prompt beside it, and the replica.
type Pause = (f64, f64, bool, Option<u16>);

/// Instants at which it is looked whether a long prompt is being read.
const LOOKS: u32 = 2_000;

/// Share of the time in which a long prompt is being read anyway, where these pauses are: on the replica of each, for a fleet reads one
/// somewhere nearly always.
fn read_anyway(
    seen: &Seen<'_>,
    long: &[Reading],
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

/// The prompts that may make others pause for so long or longer: those that are long, and, where what single requests take is known, those
/// that take most of a pause to read by themselves. Not where a cache was lost or prompts are longer altogether: every one is then read for longer.
fn held_up_by(bench: &Bench<'_>, seen: &Seen<'_>, least: f64) -> Vec<Reading> {
    let mut long = long_prompts(seen);
    let law = Law::of(&bench.candidate.alone).filter(|law| law.per_token > 0.0);
    let as_long = bench.ratio(|row| row.prompt, 0.5).is_none_or(|effect| effect.ratio.value < AS_LONG);
    let Some(law) = law.filter(|_| as_long && super::engine::read_again(bench) <= 1.0) else { return long };
    let explains = |row: &Row| law.per_token * computed(row) / COVERS;
    let known = |row: &Row| long.iter().any(|read| read.from == row.sent_last && read.replica == row.replica);
    let more: Vec<Reading> = seen
        .rows
        .iter()
        .filter(|row| explains(row) >= least && row.ttft_sent.is_finite() && !known(row))
        .map(|row| Reading::of(row, explains(row)))
        .collect();
    long.extend(more);
    long
}

/// Is it every prompt that is longer, the usual one among them? Then some are long for no other reason than that all are.
fn all_longer(bench: &Bench<'_>) -> bool {
    let usual = bench.ratio(|row| row.prompt, 0.5);
    usual.is_some_and(|effect| effect.ratio.value >= AS_LONG && effect.p < SURE)
}

/// S3: long prompts hold up everybody else's tokens.
pub fn head_of_line(bench: &Bench<'_>) -> Option<Fired> {
    // Answers that are held back on their way pause together whatever else goes on; on a slow replica, or once everything has become slower,
    // the same prompts are read for longer.
    let confident =
        |rule: super::Rule| rule(bench).is_some_and(|fired| fired.confidence >= bench.case.spec.confident);
    let others: [super::Rule; 4] =
        [super::front::buffering, super::replicas::bad, super::measurement::drift, super::model::slower];
    if !worse(bench) || in_lumps(bench) || all_longer(bench) || others.into_iter().any(confident) {
        return None;
    }
    let seen = bench.now();
    // A pause counts where it is also long beside the median gap and beside what was usual.
    let least = FELT_S.max(5.0 * seen.gap_p50).max(1.5 * usual(bench));
    let long = held_up_by(bench, seen, least);
    let innocent = |gap: &&Gap| {
        let row = &seen.rows[gap.row as usize];
        gap.to - gap.from >= least && row.prompt < LONG_PROMPT
    };
    let beside = |gap: &Gap| {
        let (middle, replica) = (0.5 * (gap.from + gap.to), seen.rows[gap.row as usize].replica);
        let lasts = gap.to - gap.from;
        (gap.from, gap.to, long.iter().any(|read| read.holds_up(middle, replica, lasts)), replica)
    };
    let mut gaps: Vec<Pause> = seen.gaps.iter().filter(innocent).map(beside).collect();
    if long.is_empty() || gaps.len() < FEWEST {
        return None;
    }
    // With nothing to hold it against, some such pauses are what long prompts make on any engine: they must be many enough for a p95.
    let mut paused: Vec<u32> = seen.gaps.iter().filter(innocent).map(|gap| gap.row).collect();
    paused.sort_unstable();
    paused.dedup();
    let met = paused.len() as f64 / seen.rows.len().max(1) as f64;
    if bench.base.is_none() && bench.material.broken.is_empty() && met < MET {
        return None;
    }
    gaps.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (all, with) = events(&gaps);
    let beside = gaps.iter().filter(|gap| gap.2).count() as f64;
    let always = read_anyway(seen, &long, least, gaps.iter().map(|gap| gap.3));
    let n = gaps.len() as f64;
    let share = super::share(beside, n, n / all);
    let half = 0.5 / f64::from(LOOKS);
    let odds = (beside + 0.5) / (n - beside + 0.5) * (1.0 - always + half) / (always + half);
    if odds < 5.0 || share.value < BESIDE || !proves_over(with, all, always, ACCIDENT) {
        return None;
    }
    // Did the baseline have them as well, or, beside its own long prompts, some half as long? What makes those longer (a slower model, a
    // cache that was lost) is then the news.
    let mut lasting: Vec<f64> = gaps.iter().map(|(from, to, ..)| to - from).collect();
    let half = 0.5 * order_statistic(&mut lasting, 0.5).unwrap_or(least);
    let before = bench.before().map_or(0.0, |base| {
        let long = long_prompts(base);
        let read = |gap: &Gap| {
            let (middle, row) = (0.5 * (gap.from + gap.to), &base.rows[gap.row as usize]);
            row.prompt < LONG_PROMPT && long.iter().any(|read| read.holds_up(middle, row.replica, 0.0))
        };
        let lasts = |gap: &Gap| gap.to - gap.from;
        let had = |gap: &&Gap| lasts(gap) >= least || lasts(gap) >= half && read(gap);
        base.gaps.iter().filter(had).count() as f64 / base.rows.len().max(1) as f64
    });
    if n / (seen.rows.len() as f64) < 2.0 * before {
        return None;
    }
    let says = format!(
        "{} pauses of over {} in other people's answers at {} times, {} of them while a long prompt was being read (which is so {} of the time): odds ratio {}",
        gaps.len(),
        ms(least),
        number(all),
        percent(share.value),
        percent(always),
        number(odds)
    );
    let preempted = bench
        .candidate
        .gauges
        .gained(crate::server_side::Signal::Preempted)
        .map(|n| Evidence::said("preemptions", format!("{} preemptions during the level", number(n))));
    let confidence = beyond(odds, 5.0) * beyond(share.value, 0.5) / 0.72;
    Some(
        Fired::new(Cause::HeadOfLine, confidence.min(0.97), says.clone())
            .with(Evidence::figure("paused_beside_long_prompt", says, share, Some(BESIDE)).inferred())
            .maybe(preempted)
            .counted(Counter::Moved { name: "pauses of innocents beside a long prompt".into(), by: beside }),
    )
}

/// Somebody else on the machine: tokens come slower for stretches of seconds, on a replica, and as fast as ever between. Slower than beside
/// as many others in the baseline: what makes a queue makes larger batches, and slow seconds with them.
pub fn noisy(bench: &Bench<'_>) -> Option<Fired> {
    if !worse(bench) {
        return None;
    }
    // A step holds more answers at one time than at another: only what is slow beside as many is a neighbour's.
    let company = company::Law::of(bench.before().unwrap_or(bench.now()));
    let alone = Law::of(&bench.candidate.alone);
    let of = |seen: &Seen<'_>| slow_stretches(seen, company.as_ref(), alone.as_ref());
    let (found, slow) = of(bench.now())?;
    let before = bench.before().and_then(of).map_or(0.0, |(share, _)| share.value);
    if found.value < 0.06 || found.value > 0.75 || found.value < 2.5 * before + 0.03 {
        return None;
    }
    let says = format!(
        "in {} of the seconds a replica's tokens come {} times slower than its usual, in stretches of several seconds ({} in the baseline)",
        percent(found.value),
        number(slow),
        percent(before)
    );
    let confidence = beyond(found.value, 0.08) * beyond(slow - 1.0, 0.4) / 0.72;
    Some(
        Fired::new(Cause::NoisyNeighbour, confidence.min(0.95), says.clone())
            .with(Evidence::figure("slow_seconds", says, found, Some(0.06)).inferred())
            .counted(Counter::Moved { name: "seconds with slow tokens, share".into(), by: found.value }),
    )
}

/// Share of a second from which its prompts, at what single requests take, explain that tokens are slow in it.
const READING: f64 = 0.4;

/// Seconds that a prompt token takes to be read: of single requests, else of the fastest tenth among the longer half of the prompts. What they
/// wait for beside is in that too, so that more time counts as read than was.
fn per_token(seen: &Seen<'_>, alone: Option<&Law>) -> f64 {
    if let Some(law) = alone {
        return law.per_token;
    }
    let read = |row: &&Row| row.ok && row.ttft_sent.is_finite();
    let mut prompts: Vec<f64> = seen.rows.iter().filter(read).map(computed).collect();
    sort(&mut prompts);
    let Some(middle) = of_sorted(&prompts, 0.5) else { return 0.0 };
    let longer = seen.rows.iter().filter(read).filter(|row| computed(row) >= middle);
    let mut each: Vec<f64> = longer.map(|row| row.ttft_sent / computed(row)).collect();
    sort(&mut each);
    of_sorted(&each, 0.1).unwrap_or(0.0)
}

/// Share of each second in which prompts are read, at so many seconds a token, up to their first tokens; by replica.
fn reading_by_second(seen: &Seen<'_>, per_token: f64, several: usize, seconds: usize) -> Vec<Vec<f64>> {
    let mut reading = vec![vec![0.0; seconds + 1]; several];
    for row in seen.rows.iter().filter(|row| row.ttft_sent.is_finite()) {
        let replica = usize::from(row.replica.unwrap_or(0)).min(several - 1);
        let until = row.sent_last + row.ttft_sent;
        let from = (until - per_token * computed(row)).max(row.sent_last);
        let first = (from.max(0.0) as usize).min(seconds);
        for (second, read) in (first..).zip(&mut reading[replica][first..]) {
            let (begin, end) = (second as f64, second as f64 + 1.0);
            if until <= begin {
                break;
            }
            *read += (until.min(end) - from.max(begin)).max(0.0);
        }
    }
    reading
}

/// Share of (replica, second) cells whose typical gap is 1.4 times the replica's usual, as it is and beside as many answers, in runs of two
/// or more; and by how much. Seconds in which prompts were read for the most part are none.
fn slow_stretches(
    seen: &Seen<'_>,
    law: Option<&company::Law>,
    alone: Option<&Law>,
) -> Option<(Estimate, f64)> {
    let seconds = seen.length.ceil() as usize;
    let several = seen.replicas.len().max(1);
    let reading = reading_by_second(seen, per_token(seen, alone), several, seconds);
    let (mut cells, mut slow, mut ratios) = (0.0, 0.0, Vec::new());
    for (replica, reading) in reading.iter().enumerate() {
        let mut by_second: Vec<Vec<(f64, f64)>> = vec![Vec::new(); seconds + 1];
        for pace in seen.paces.iter() {
            let row = &seen.rows[pace.row as usize];
            if seen.replicas.is_empty() || row.replica == Some(replica as u16) {
                let alike = law.map_or(1.0, |law| law.at(pace.company));
                by_second[(pace.at.max(0.0) as usize).min(seconds)].push((pace.gap, pace.gap / alike));
            }
        }
        let middle = |of: &[f64]| if of.len() >= 3 { order_statistic(&mut of.to_vec(), 0.5) } else { None };
        let middles = |of: fn(&(f64, f64)) -> f64| -> Vec<Option<f64>> {
            by_second.iter().map(|paces| middle(&paces.iter().map(of).collect::<Vec<_>>())).collect()
        };
        // The lower half is what is usual: a neighbour who is there half of the time must not become the usual.
        let usual = |middles: &[Option<f64>]| {
            let mut known: Vec<f64> = middles.iter().flatten().copied().collect();
            sort(&mut known);
            of_sorted(&known, 0.35)
        };
        let (middles, alike) = (middles(|pace| pace.0), middles(|pace| pace.1));
        let (Some(usual), Some(usual_alike)) = (usual(&middles), usual(&alike)) else { continue };
        let over = |middle: &Option<f64>, usual: f64| middle.is_some_and(|m| m >= 1.4 * usual);
        let is_slow: Vec<bool> = middles
            .iter()
            .zip(&alike)
            .zip(reading)
            .map(|((middle, alike), reading)| {
                *reading < READING && over(middle, usual) && over(alike, usual_alike)
            })
            .collect();
        for (k, middle) in middles.iter().enumerate() {
            let Some(middle) = middle else { continue };
            cells += 1.0;
            let neighbour = (k > 0 && is_slow[k - 1]) || is_slow.get(k + 1).copied().unwrap_or(false);
            if is_slow[k] && neighbour {
                slow += 1.0;
                ratios.push(middle / usual);
            }
        }
    }
    if cells < 40.0 {
        return None;
    }
    let share = super::share(slow, cells, 4.0);
    Some((share, order_statistic(&mut ratios, 0.5).unwrap_or(1.0)))
}
