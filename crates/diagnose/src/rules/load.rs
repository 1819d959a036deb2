//! L: what is asked of the target has changed. Asked before the stack: more or longer requests make every queue longer, and a
//! verdict on the queue would send a person to the wrong door.

use std::collections::BTreeMap;

use plimsoll_math::two_sample::{Flips, mean_ratio};

use super::{Fired, beyond, medians, within};
use crate::apart::moves_single_requests;
use crate::bench::{Bench, BenchArm};
use crate::fired::ALONE_NEEDED;
use crate::ratio::{Effect, STRETCHES};
use crate::seen::{RequestRow, Seen};
use crate::verdict::Evidence;
use crate::{Cause, Counter};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{number, percent, ratio_ends};

/// Ratio of a descriptor of the load from which it counts as changed.
const CHANGED: f64 = 1.2;
/// p from which its change is more than chance.
const SURE: f64 = 0.01;
/// How well single requests speak for a change of the load where nobody knows them.
const UNKNOWN: f64 = 0.85;

/// `× 1.5 [1.4, 1.6]`; what is known and no estimate has no interval.
pub fn times(of: &Estimate) -> String {
    if of.lower == of.value && of.upper == of.value {
        return format!("× {}", number(of.value));
    }
    format!("× {} {}", number(of.value), ratio_ends(of.lower, of.upper))
}

/// The ratio of arrivals a second, by stretches, of all that came; with its p.
pub fn of_rates(base: &Seen<'_>, now: &Seen<'_>) -> Option<(Estimate, f64)> {
    let rates = |seen: &Seen<'_>| -> Vec<f64> {
        let mut counts = [0.0; STRETCHES];
        for due in &seen.due {
            counts[((due / seen.length * STRETCHES as f64).max(0.0) as usize).min(STRETCHES - 1)] += 1.0;
        }
        counts.iter().map(|count| count * STRETCHES as f64 / seen.length).collect()
    };
    let (a, b) = (rates(base), rates(now));
    if base.due.is_empty() || now.due.is_empty() {
        return None;
    }
    let found = mean_ratio(&a, &b, &Flips::new(STRETCHES), 0.95);
    let n = base.due.len().min(now.due.len()) as u64;
    let estimate = Estimate {
        value: found.value,
        lower: found.interval.lower,
        upper: found.interval.upper,
        n,
        n_eff: n as f64,
    };
    Some((estimate, found.p))
}

/// Standard deviations of a count of independent arrivals within which as many came as were asked for.
const AS_ASKED: f64 = 4.0;

/// The ratio of the rates that an open loop was asked for, where both sides were asked for one and as much came. It is no estimate: the
/// counts of two Poisson schedules of a hundred requests differ by a fifth by chance, what they were drawn for does not. `None` where the
/// rate was read off the arrivals themselves (a recorded schedule, a run of another tool), for there it is a count as well.
fn of_asked(base: &Seen<'_>, now: &Seen<'_>) -> Option<Rates> {
    let asked = |seen: &Seen<'_>| match seen.level.load {
        plimsoll_model::Load::Open { rate_per_s } => {
            let (due, came) = (rate_per_s * seen.length, seen.due.len() as f64);
            let counted = (due - seen.level.arrivals as f64).abs() < 0.5;
            let as_asked = (due - came).abs() <= AS_ASKED * libm::sqrt(due);
            (rate_per_s > 0.0 && as_asked && !counted).then_some(rate_per_s)
        }
        _ => None,
    };
    let (from, to) = (asked(base)?, asked(now)?);
    let (value, n) = (to / from, base.due.len().min(now.due.len()) as u64);
    let ratio = Estimate { value, lower: value, upper: value, n, n_eff: n as f64 };
    Some(Rates { ratio, p: 0.0, what: "requests a second asked for", from, to })
}

/// How two rates compare.
pub struct Rates {
    /// Second over first.
    pub ratio: Estimate,
    /// Two-sided p of "equal"; 0 of rates that are known.
    pub p: f64,
    /// Of what.
    pub what: &'static str,
    /// The first.
    pub from: f64,
    /// The second.
    pub to: f64,
}

/// The rates that were asked for where they are known, else those that came.
pub fn rates(base: &Seen<'_>, now: &Seen<'_>) -> Option<Rates> {
    of_asked(base, now).or_else(|| {
        let (ratio, p) = of_rates(base, now)?;
        Some(Rates { ratio, p, what: "requests a second", from: base.rate(), to: now.rate() })
    })
}

/// How the single requests of both sides compare, prompts of like length against each other: first tokens and later ones.
/// `None` = nobody knows.
fn alone_as_before(bench: &Bench<'_>) -> Option<f64> {
    let base = bench.base.as_ref()?;
    let worst = [over_law(base, &bench.candidate, Law::was_read_on), alone_tpot(base, &bench.candidate)];
    let worst = worst.into_iter().flatten().map(|ratio| ratio.value).fold(f64::NAN, f64::max);
    (!worst.is_nan()).then_some(worst)
}

/// Time per token of single requests.
pub fn alone_tpot(base: &BenchArm<'_>, now: &BenchArm<'_>) -> Option<Estimate> {
    let of = |arm: &BenchArm<'_>| -> Vec<f64> {
        arm.alone.iter().map(|row| row.tpot).filter(|x| x.is_finite()).collect()
    };
    medians(&of(base), &of(now), 0.9)
}

/// First tokens of single requests, each over what the baseline takes for a prompt of that length.
pub fn alone_ttft(base: &BenchArm<'_>, now: &BenchArm<'_>) -> Option<Estimate> {
    over_law(base, now, Law::covers)
}

/// The same of prompts of a length that it `covers`.
fn over_law(
    base: &BenchArm<'_>,
    now: &BenchArm<'_>,
    covers: fn(&Law, &RequestRow) -> bool,
) -> Option<Estimate> {
    let law = Law::of(&base.alone)?;
    let over = |arm: &BenchArm<'_>| -> Vec<f64> {
        let in_range = |row: &&RequestRow| covers(&law, row);
        arm.alone
            .iter()
            .filter(in_range)
            .map(|row| row.ttft_sent / law.at(row))
            .filter(|x| x.is_finite())
            .collect()
    };
    medians(&over(base), &over(now), 0.9)
}

/// First token of a single request by the prompt tokens that had to be computed: a line through the medians of lower and upper half.
#[derive(Copy, Clone, Debug)]
pub struct Law {
    /// At no tokens, s.
    pub fixed: f64,
    /// Per token, s.
    pub per_token: f64,
    low: f64,
    /// Middle of the upper third.
    middle: f64,
    high: f64,
}

/// Prompt tokens that had to be computed, as far as is known.
pub fn computed(row: &RequestRow) -> f64 {
    (row.prompt - row.cached.unwrap_or(0.0)).max(1.0)
}

impl Law {
    /// Reads it off single requests (the three-group resistant line of Tukey 1977, with two groups).
    pub fn of(rows: &[RequestRow]) -> Option<Law> {
        Law::of_metric(rows, |row| row.ttft_sent)
    }

    /// The same of another time that a single request takes.
    pub fn of_metric(rows: &[RequestRow], of: impl Fn(&RequestRow) -> f64) -> Option<Law> {
        let mut points: Vec<(f64, f64)> = rows
            .iter()
            .map(|row| (computed(row), of(row)))
            .filter(|(_, y)| y.is_finite() && *y > 0.0)
            .collect();
        if points.len() < ALONE_NEEDED {
            return None;
        }
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        let middle = |part: &[(f64, f64)]| {
            let mut y: Vec<f64> = part.iter().map(|p| p.1).collect();
            let at = y.len() / 2;
            (part[part.len() / 2].0, *y.select_nth_unstable_by(at, f64::total_cmp).1)
        };
        let third = points.len() / 3;
        let ((x0, y0), (x1, y1)) = (middle(&points[..third]), middle(&points[points.len() - third..]));
        let per_token = if x1 > 1.05 * x0 { ((y1 - y0) / (x1 - x0)).max(0.0) } else { 0.0 };
        let residual: Vec<(f64, f64)> = points.iter().map(|(x, y)| (*x, y - per_token * x)).collect();
        let (low, high) = (points[0].0, points[points.len() - 1].0);
        Some(Law { fixed: middle(&residual).1.max(0.0), per_token, low, middle: x1, high })
    }

    /// For this request, s.
    pub fn at(&self, row: &RequestRow) -> f64 {
        self.fixed + self.per_token * computed(row)
    }

    /// Does the line reach this far? Half beyond what it was read on.
    fn covers(&self, row: &RequestRow) -> bool {
        (0.5 * self.low..=1.5 * self.high).contains(&computed(row))
    }

    /// Up to the middle of the upper third: a server that reads prompts in pieces takes a step more for each further piece, and what is longer
    /// than all but a few of the baseline's prompts may be in pieces that those never were.
    fn was_read_on(&self, row: &RequestRow) -> bool {
        (0.5 * self.low..=self.middle).contains(&computed(row))
    }
}

/// How well "the single requests are as before" holds: 1 for sure, less where nobody knows, 0 where they are not. Where a cause was found
/// that moves them, they say nothing more.
pub fn unmoved(bench: &Bench<'_>) -> f64 {
    if bench.found.iter().any(|found| moves_single_requests(*found)) {
        return UNKNOWN;
    }
    match alone_as_before(bench) {
        Some(ratio) => within(ratio, 1.15).min(0.95) / 0.95,
        None => UNKNOWN,
    }
}

/// L1: more requests, or more of them in flight.
pub fn higher_rate(bench: &Bench<'_>) -> Option<Fired> {
    let (base, now) = (bench.before()?, bench.now());
    if !(bench.suspects("ttft") || bench.suspects("tpot") || bench.suspects("e2e") || bench.material.is()) {
        return None;
    }
    // How many a closed loop keeps in flight is what it asks for, and its rate what it gets. Beside an open loop only the rate compares: one
    // that is higher all the same is more to do, and one that is lower says nothing of what was asked.
    let Rates { ratio: rate, p, what, from, to } = match (in_flight(base), in_flight(now)) {
        (Some(from), Some(to)) => {
            let value = to / from;
            let ratio = Estimate { value, lower: value, upper: value, n: 1, n_eff: 1.0 };
            Rates { ratio, p: 0.0, what: "requests in flight", from, to }
        }
        _ => rates(base, now)?,
    };
    if rate.value < CHANGED - 1e-9 || p > SURE {
        return None;
    }
    let confidence = beyond(rate.value, CHANGED) / 0.7 * beyond(rate.lower, 1.1).min(0.9) * unmoved(bench);
    let says = format!("{} {what} before, {} now: {}", number(from), number(to), times(&rate));
    Some(
        Fired::new(Cause::HigherRate, confidence, says.clone())
            .with(Evidence::figure("rate_ratio", says, rate, Some(CHANGED)))
            .maybe(alone_evidence(bench))
            .counted(Counter::Moved { name: format!("{what}, ratio"), by: rate.value }),
    )
}

fn in_flight(seen: &Seen<'_>) -> Option<f64> {
    match seen.level.load {
        plimsoll_model::Load::Closed { concurrency } | plimsoll_model::Load::Saturating { concurrency } => {
            Some(f64::from(concurrency.max(1)))
        }
        _ => None,
    }
}

pub fn alone_evidence(bench: &Bench<'_>) -> Option<Evidence> {
    let base = bench.base.as_ref()?;
    let ratio = alone_ttft(base, &bench.candidate)?;
    let says = format!("first token of single requests {}", times(&ratio));
    Some(Evidence::figure("alone_ttft_ratio", says, ratio, Some(1.15)))
}

/// The larger of the ratios at p50 and p95 that is sure.
fn longer(bench: &Bench<'_>, of: impl Fn(&RequestRow) -> f64 + Copy) -> Option<(f64, Effect)> {
    let sure = |p: f64| {
        let effect = bench.ratio(of, p)?;
        (effect.ratio.value >= CHANGED && effect.p < SURE).then_some((p, effect))
    };
    let found = [sure(0.5), sure(0.95)];
    found.into_iter().flatten().max_by(|a, b| a.1.ratio.value.total_cmp(&b.1.ratio.value))
}

/// L2: longer prompts.
pub fn longer_prompts(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("ttft") || bench.suspects("tpot") || bench.suspects("e2e")) {
        return None;
    }
    let (p, effect) = longer(bench, |row| row.prompt)?;
    let ratio = effect.ratio;
    let confidence = beyond(ratio.value, CHANGED) / 0.7 * beyond(ratio.lower, 1.05).min(0.9) * unmoved(bench);
    let says = format!(
        "prompt tokens p{} {} -> {} ({})",
        number(100.0 * p),
        number(effect.base),
        number(effect.candidate),
        times(&ratio)
    );
    Some(
        Fired::new(Cause::LongerPrompts, confidence, says.clone())
            .with(Evidence::figure("prompt_ratio", says, ratio, Some(CHANGED)))
            .maybe(alone_evidence(bench))
            .counted(Counter::Moved { name: "prompt tokens, ratio".into(), by: ratio.value }),
    )
}

/// L3: longer answers; of the same prompts it is the model's behaviour.
pub fn longer_answers(bench: &Bench<'_>) -> Option<Fired> {
    if !(bench.suspects("e2e") || bench.suspects("ttft") || bench.suspects("tpot")) {
        return None;
    }
    let (p, effect) = longer(bench, |row| if row.ok { row.output } else { f64::NAN })?;
    let ratio = effect.ratio;
    let same = same_prompts(bench);
    let cause = match same {
        Some(share) if share >= 0.9 => Cause::LongerAnswersToSamePrompts,
        _ => Cause::LongerAnswers,
    };
    let told = if same.is_some() { 1.0 } else { 0.9 };
    let confidence =
        beyond(ratio.value, CHANGED) / 0.7 * beyond(ratio.lower, 1.05).min(0.9) * unmoved(bench) * told;
    let says = format!(
        "output tokens p{} {} -> {} ({})",
        number(100.0 * p),
        number(effect.base),
        number(effect.candidate),
        times(&ratio)
    );
    let paired = same.map(|share| {
        Evidence::said(
            "same_prompts",
            format!("{} of the prompts are the baseline's, one by one", percent(share)),
        )
    });
    Some(
        Fired::new(cause, confidence, says.clone())
            .with(Evidence::figure("output_ratio", says, ratio, Some(CHANGED)))
            .maybe(paired)
            .counted(Counter::Moved { name: "output tokens, ratio".into(), by: ratio.value }),
    )
}

/// Share of the requests whose prompt is the baseline's of the same number; `None` where prompts are not known.
pub fn same_prompts(bench: &Bench<'_>) -> Option<f64> {
    // Where prompts are not named by their blocks, their lengths one by one tell: hundreds of them do not agree by chance.
    let key = |row: &RequestRow| (row.beginning, row.prompt as u64);
    let base: BTreeMap<u64, (Option<u64>, u64)> =
        bench.before()?.rows.iter().map(|row| (row.request, key(row))).collect();
    let mut lengths: Vec<u64> = base.values().map(|key| key.1).collect();
    lengths.sort_unstable();
    lengths.dedup();
    if lengths.len() < 10 && base.values().any(|key| key.0.is_none()) {
        return None;
    }
    let pairs: Vec<bool> =
        bench.now().rows.iter().filter_map(|row| Some(*base.get(&row.request)? == key(row))).collect();
    let same = pairs.iter().filter(|same| **same).count();
    (pairs.len() >= 30).then(|| same as f64 / pairs.len() as f64)
}

/// L4: the same kinds of request in other shares; weighted to the baseline's shares it is as before (Simpson's paradox).
pub fn other_mix(bench: &Bench<'_>) -> Option<Fired> {
    let (base, now) = (bench.before()?, bench.now());
    let shares = |seen: &Seen<'_>| -> BTreeMap<u16, f64> {
        let mut of = BTreeMap::new();
        seen.rows.iter().for_each(|row| *of.entry(row.class).or_insert(0.0) += 1.0 / seen.rows.len() as f64);
        of
    };
    let (before, after) = (shares(base), shares(now));
    let classes: Vec<u16> = before.keys().chain(after.keys()).copied().collect();
    // The population stability index; half a request stands for none.
    let of = |shares: &BTreeMap<u16, f64>, class: &u16, n: usize| {
        shares.get(class).copied().unwrap_or(0.5 / n as f64)
    };
    let mut distinct = classes.clone();
    distinct.sort_unstable();
    distinct.dedup();
    let psi: f64 = distinct
        .iter()
        .map(|class| {
            let (a, b) = (of(&before, class, base.rows.len()), of(&after, class, now.rows.len()));
            (b - a) * libm::log(b / a)
        })
        .sum();
    if distinct.len() < 2 || psi < 0.03 || !["ttft", "tpot", "e2e", "pause"].iter().any(|m| bench.suspects(m))
    {
        return None;
    }
    // More of one kind than chance gives, each kind as it was, and kinds that differ. A few very long prompts where there were none
    // are another matter: what they do to the rest is asked later.
    let share = |shares: &BTreeMap<u16, f64>, class: &u16, n: usize| of(shares, class, n);
    let (n0, n1) = (base.rows.len() as f64, now.rows.len() as f64);
    let moved = distinct.iter().any(|class| {
        let (a, b) = (share(&before, class, base.rows.len()), share(&after, class, now.rows.len()));
        let between = plimsoll_math::proportion::newcombe((a * n0, n0), (b * n1, n1), 0.99);
        (between.lower > 0.0 || between.upper < 0.0) && (b - a).abs() > 0.02
    });
    let (steady, apart) = kinds(base, now, &distinct)?;
    if !moved || !steady || apart < 1.3 || distinct.iter().any(|class| !before.contains_key(class)) {
        return None;
    }
    let large = bench.material.moved.iter().filter(|m| m.large);
    let worst = large.max_by(|a, b| a.effect.ratio.value.total_cmp(&b.effect.ratio.value))?;
    let metric = crate::material::metric(worst.metric);
    let standard = standardised(base, now, metric, worst.percentile, &before);
    let raw = worst.effect.ratio;
    let confidence = beyond(psi, 0.03) * beyond(apart, 1.3) / 0.72;
    let one = |class: &u16| {
        let (a, b) = (share(&before, class, base.rows.len()), share(&after, class, now.rows.len()));
        format!("class {class} {} -> {}", percent(a), percent(b))
    };
    let shares: Vec<String> = distinct.iter().map(one).collect();
    let says = format!(
        "{} (stability index {}); within each class lengths are as before",
        shares.join(", "),
        number(psi)
    );
    let weighted = standard.map_or("unknown".to_owned(), |s| format!("× {}", number(s)));
    let told = format!("{} {} as it is; weighted to the old mix {weighted}", worst.metric, times(&raw));
    let mut fired = Fired::new(Cause::OtherMix, confidence.min(0.97), says.clone())
        .with(Evidence::said("mix", says))
        .with(Evidence::figure("raw_ratio", told, raw, None))
        .counted(Counter::Moved { name: "population stability index of the classes".into(), by: psi });
    fired.explains =
        standard.map(|s| (libm::log(raw.value / s.max(1e-3)) / libm::log(raw.value)).clamp(0.0, 1.0));
    Some(fired)
}

/// Are the lengths within each kind of request as before, and how far apart are the kinds? By medians of prompts and answers.
fn kinds(base: &Seen<'_>, now: &Seen<'_>, classes: &[u16]) -> Option<(bool, f64)> {
    let middle = |seen: &Seen<'_>, class: u16, of: fn(&RequestRow) -> f64| {
        let mut values: Vec<f64> =
            seen.rows.iter().filter(|row| row.class == class && row.ok).map(of).collect();
        (values.len() >= 15).then(|| plimsoll_math::quantile::order_statistic(&mut values, 0.5)).flatten()
    };
    let (mut steady, mut apart) = (true, 1.0f64);
    for of in [(|row: &RequestRow| row.prompt) as fn(&RequestRow) -> f64, |row| row.output] {
        let mut here: Vec<f64> = Vec::new();
        for class in classes {
            let (Some(a), Some(b)) = (middle(base, *class, of), middle(now, *class, of)) else { continue };
            // A median of a few lognormal lengths is off by a fifth.
            steady &= (0.75..=1.33).contains(&(b / a.max(1.0)));
            here.push(b);
        }
        let low = here.iter().copied().fold(f64::INFINITY, f64::min);
        let high = here.iter().copied().fold(0.0, f64::max);
        if here.len() > 1 {
            apart = apart.max(high / low.max(1.0));
        }
    }
    (apart > 1.0).then_some((steady, apart))
}

/// The ratio of a percentile with the candidate's rows weighted to the baseline's shares.
fn standardised(
    base: &Seen<'_>,
    now: &Seen<'_>,
    of: impl Fn(&RequestRow) -> f64,
    p: f64,
    shares: &BTreeMap<u16, f64>,
) -> Option<f64> {
    let mut counts: BTreeMap<u16, f64> = BTreeMap::new();
    now.rows.iter().for_each(|row| *counts.entry(row.class).or_insert(0.0) += 1.0);
    let weighted: Vec<(f64, f64)> = now
        .rows
        .iter()
        .filter(|row| !of(row).is_nan())
        .filter_map(|row| Some((of(row), shares.get(&row.class)? / counts[&row.class])))
        .collect();
    if weighted.len() < 30 {
        return None;
    }
    let arm = plimsoll_math::two_sample::Arm::weighted(&[weighted]);
    let values: Vec<f64> = base.rows.iter().map(of).filter(|x| !x.is_nan()).collect();
    let before = plimsoll_math::two_sample::Arm::new(&[values]);
    Some(arm.quantile(p) / before.quantile(p))
}

/// S11 from the load's side: the prompts themselves share less.
pub fn less_shared_prompts(bench: &Bench<'_>) -> Option<Fired> {
    let (base, now) = (bench.before()?, bench.now());
    if !(bench.suspects("ttft") || bench.suspects("e2e")) {
        return None;
    }
    let (before, after) = (shared(base)?, shared(now)?);
    let lost = before - after;
    if lost < 0.15 {
        return None;
    }
    let confidence = beyond(lost, 0.15) / 0.75 * unmoved(bench).max(0.8);
    let says = format!(
        "{} of the prompt blocks began an earlier prompt before, {} now",
        percent(before),
        percent(after)
    );
    Some(
        Fired::new(Cause::LessSharedPrompts, confidence, says.clone())
            .with(Evidence::said("shared_share", says))
            .counted(Counter::Moved { name: "share of prompt blocks seen before".into(), by: -lost }),
    )
}

/// Share of the blocks that began an earlier prompt; `None` where prompts are not known.
pub fn shared(seen: &Seen<'_>) -> Option<f64> {
    let blocks: f64 = seen.rows.iter().map(|row| f64::from(row.blocks)).sum();
    let shared: f64 = seen.rows.iter().map(|row| f64::from(row.shared_blocks)).sum();
    (blocks >= 100.0).then(|| shared / blocks)
}
