//! S3: a long prompt that is read in front of everybody's tokens.

use std::collections::BTreeMap;

use plimsoll_math::proportion::proves_over;
use plimsoll_math::quantile::order_statistic;

use super::load::{Law, computed};
use super::stall::{COVERS, LONG_PROMPT, PromptReading, in_lumps, long_prompts, usual, worse};
use super::{Fired, beyond};
use crate::bench::Bench;
use crate::seen::{Gap, RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::say::{ms, number, percent};

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
/// Times at which somebody paused beside a long prompt from which on they are no accident of this run, and confidence at most under it: of
/// five such verdicts on simulated runs four were right.
const SEVERAL: f64 = 3.0;
const ONCE_OR_TWICE: f64 = 0.6;
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

/// The prompts that may make others pause for so long or longer: those that are long, and, where what single requests take is known, those
/// that take most of a pause to read by themselves. Not where a cache was lost or prompts are longer altogether: every one is then read for longer.
fn held_up_by(bench: &Bench<'_>, seen: &Seen<'_>, least: f64) -> Vec<PromptReading> {
    let mut long = long_prompts(seen);
    let law = Law::of(&bench.candidate.alone).filter(|law| law.per_token > 0.0);
    let as_long = bench.ratio(|row| row.prompt, 0.5).is_none_or(|effect| effect.ratio.value < AS_LONG);
    let Some(law) = law.filter(|_| as_long && super::engine::read_again(bench) <= 1.0) else { return long };
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

/// Is it every prompt that is longer, the usual one among them? Then some are long for no other reason than that all are.
fn all_longer(bench: &Bench<'_>) -> bool {
    let usual = bench.ratio(|row| row.prompt, 0.5);
    usual.is_some_and(|effect| effect.ratio.value >= AS_LONG && effect.p < SURE)
}

/// Pauses per request that the baseline had as well: as long, or, beside its own long prompts, half as long as these usually are. What makes
/// those longer (a slower model, a cache that was lost) is then the news.
fn had_before(base: &Seen<'_>, gaps: &[Pause], least: f64) -> f64 {
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
    let before = bench.before().map_or(0.0, |base| had_before(base, &gaps, least));
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
        .gained(plimsoll_measure::server_side::Signal::Preempted)
        .map(|n| Evidence::said("preemptions", format!("{} preemptions during the level", number(n))));
    let confidence = beyond(odds, 5.0) * beyond(share.value, 0.5) / 0.72;
    // However many pause at once: two such prompts in one run and none in the other may be chance.
    let most = if with < SEVERAL { ONCE_OR_TWICE } else { 0.97 };
    Some(
        Fired::new(Cause::HeadOfLine, confidence.min(most), says.clone())
            .with(Evidence::figure("paused_beside_long_prompt", says, share, Some(BESIDE)).inferred())
            .maybe(preempted)
            .counted(Counter::Moved {
                name: "decode stalls of other requests during long prefills".into(),
                by: beside,
            }),
    )
}
