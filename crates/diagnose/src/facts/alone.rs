//! Facts on isolated requests, compared with the isolated requests of the baseline: their latency, its growth, and
//! the affected requests.
//!
//! If isolated requests are too few, times to first token under concurrency are used. A constant delay shifts the
//! fastest tenth as much as the median, and a delay per prompt token follows the prompt length under concurrency too.

use plimsoll_math::quantile::{of_sorted, order_statistic, sort};
use plimsoll_measure::findings::Estimate;
use plimsoll_measure::say::{ms, number, percent};

use super::load::times;
use super::pauses::LEAST_STALL_S;
use super::{FactState, Finding, Observed, over, yes_if};
use crate::effect::{ALONE_NEEDED, medians, share};
use crate::effect::{of_units, spearman, stretches};
use crate::frame::{Frame, Frames};
use crate::seen::{DiagnosedLevel, RequestView};

/// Minimum ratio of medians from which isolated requests are slower, and minimum of its lower bound.
const SLOWER: (f64, f64) = (1.08, 1.03);
/// Both limits for times to first token, whose spread is wider.
const LATER: (f64, f64) = (1.1, 1.04);
/// Minimum ratio of the faster quarter, because slow kernels slow down every request.
const FOR_ALL: f64 = 1.04;
/// Minimum fixed delay: in seconds, and as a share of the usual time to first token.
const FIXED: (f64, f64) = (0.003, 0.08);

pub fn find(frames: &Frames<'_>, found: &mut Vec<Finding>) {
    found.extend(tokens_slower(frames));
    found.extend(first_later(frames));
    found.extend(fixed_delay(frames).or_else(|| fixed_beside_others(frames)));
    found.extend(later_by_prompt(frames).or_else(|| by_prompt_beside_others(frames)));
    found.extend(later_by_answer(frames));
    found.extend(over_budget(frames));
    found.extend(pauses(frames));
}

fn tokens_slower(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.base.as_ref()?;
    let ratio = alone_tpot(base, &frames.candidate)?;
    let (a, b) = (alone(base, |row| row.tpot), alone(&frames.candidate, |row| row.tpot));
    let for_all = of_sorted(&b, 0.25)? / of_sorted(&a, 0.25)? >= FOR_ALL;
    let says = format!("time per token of single requests {}", times(&ratio));
    let is = over(&ratio, ratio.lower > SLOWER.1 && for_all, SLOWER.0);
    Some(Finding::new(Observed::AloneTokensSlower, is, says).figure(ratio, SLOWER.0))
}

fn first_later(frames: &Frames<'_>) -> Option<Finding> {
    let ratio = alone_ttft(frames.base.as_ref()?, &frames.candidate)?;
    let says = format!("first token of single requests {}", times(&ratio));
    let is = over(&ratio, ratio.lower > LATER.1, LATER.0);
    Some(Finding::new(Observed::AloneFirstLater, is, says).figure(ratio, LATER.0))
}

/// Returns the ratio of isolated times to first token to the baseline's times for prompts of equal length.
pub fn alone_ttft(base: &Frame<'_>, now: &Frame<'_>) -> Option<Estimate> {
    let law = PromptLaw::of(&base.alone)?;
    let over = |arm: &Frame<'_>| -> Vec<f64> {
        let in_range = |row: &&RequestView| law.covers(row);
        let ratios = arm.alone.iter().filter(in_range).map(|row| row.ttft_sent / law.at(row));
        ratios.filter(|x| x.is_finite()).collect()
    };
    medians(&over(base), &over(now), 0.95)
}

/// Checks for a delay of every isolated request that does not depend on its length: the middle half is within a third
/// of the delay.
fn fixed_delay(frames: &Frames<'_>) -> Option<Finding> {
    let (before, now, typical) = added(frames)?;
    let middle = median_added(&before, &now)?;
    let needed = FIXED.0.max(FIXED.1 * typical);
    let spread = of_sorted(&now, 0.75)? - of_sorted(&now, 0.25)?;
    let was = of_sorted(&before, 0.75)? - of_sorted(&before, 0.25)?;
    let slope = lines(frames).map_or(0.0, |(first, second)| {
        let mut prompts: Vec<f64> = frames.candidate.alone.iter().map(computed).collect();
        let at = order_statistic(&mut prompts, 0.5).unwrap_or(0.0);
        (second.per_token - first.per_token) * at
    });
    let is = match () {
        () if middle.value < 0.5 * needed || middle.upper < needed => FactState::No,
        () if slope > 0.5 * middle.value || spread > was + 0.6 * middle.value => FactState::No,
        () if middle.value >= needed
            && middle.lower > 0.3 * needed
            && spread <= was + 0.35 * middle.value =>
        {
            FactState::Yes
        }
        () => FactState::Unclear,
    };
    let says = format!(
        "the first token of a single request is {} later at any prompt length (was {})",
        ms(middle.value),
        ms(typical)
    );
    Some(Finding::new(Observed::FixedDelay, is, says).figure(middle, needed))
}

fn first(row: &RequestView) -> f64 {
    row.ttft_sent - row.before_engine().unwrap_or(0.0)
}

/// Checks for a fixed delay under concurrency: the fastest tenth is later by as much as the median, for all prompts.
fn fixed_beside_others(frames: &Frames<'_>) -> Option<Finding> {
    let (base, now) = (frames.before()?, frames.now());
    let (whole, quick) = (frames.ratio(first, 0.5)?, frames.ratio(first, 0.1)?);
    let law = PromptLaw::of_metric(&base.rows, first)?;
    let over_law = |seen: &DiagnosedLevel<'_>| {
        let mut over: Vec<f64> =
            seen.rows.iter().map(|row| first(row) - law.at(row)).filter(|x| x.is_finite()).collect();
        sort(&mut over);
        over
    };
    let (before, after) = (over_law(base), over_law(now));
    let more = |p: f64| Some(of_sorted(&after, p)? - of_sorted(&before, p)?);
    let (low, middle, high) = (more(0.1)?, more(0.5)?, more(0.9)?);
    let needed = FIXED.0.max(FIXED.1 * whole.base);
    let sure = whole.p < 0.01 && quick.p < 0.01 && quick.ratio.value > 1.0;
    let even = low >= 0.7 * middle && high <= 1.5 * middle;
    let is = match () {
        () if middle < 0.5 * needed || low < 0.3 * middle => FactState::No,
        () if middle >= needed && sure && even => FactState::Yes,
        () => FactState::Unclear,
    };
    let says = format!("every first token comes {} later, the fastest tenth by {}", ms(middle), ms(low));
    Some(Finding::new(Observed::FixedDelay, is, says).figure(whole.added(middle), needed))
}

/// Checks whether times to first token of isolated requests scale with their prompts: a steeper slope, not an added
/// constant.
fn later_by_prompt(frames: &Frames<'_>) -> Option<Finding> {
    let base = frames.base.as_ref()?;
    let whole = alone_ttft(base, &frames.candidate)?;
    let (before, after) = lines(frames)?;
    let typical = order_statistic(&mut base.alone.iter().map(computed).collect::<Vec<_>>(), 0.5)?;
    // The prompts are too short to show a slope.
    if before.per_token * typical < 0.25 * before.fixed.max(1e-9) {
        return None;
    }
    let slope = after.per_token / before.per_token.max(1e-12);
    let grown = (whole.value - 1.0) * (before.fixed + before.per_token * typical);
    let steep = slope >= 1.0 + 0.5 * (whole.value - 1.0) && after.fixed - before.fixed < 0.6 * grown;
    let is = match over(&whole, whole.lower > LATER.1, LATER.0) {
        FactState::Yes => yes_if(steep),
        is => is,
    };
    let says = format!(
        "prefill per prompt token of single requests × {}, the first token {}",
        number(slope),
        times(&whole)
    );
    Some(Finding::new(Observed::LaterByPrompt, is, says).figure(whole, LATER.0))
}

fn by_prompt_beside_others(frames: &Frames<'_>) -> Option<Finding> {
    let (base, now) = (frames.before()?, frames.now());
    let before = PromptLaw::of_metric(&base.rows, first)?;
    let over_law = |seen: &DiagnosedLevel<'_>| stretches(seen, |row| first(row) / before.at(row));
    let whole = of_units(over_law(base), over_law(now), 0.5, frames.case.spec.confidence)?;
    let added: Vec<(f64, f64)> = now
        .rows
        .iter()
        .map(|row| (computed(row), first(row) - before.at(row)))
        .filter(|(_, y)| y.is_finite())
        .collect();
    let (x, y): (Vec<f64>, Vec<f64>) = added.into_iter().unzip();
    let (rho, p) = spearman(&x, &y)?;
    let is = match over(&whole.ratio, whole.p < 0.01, LATER.0) {
        FactState::Yes => yes_if(rho >= 0.3 && p < 1e-3),
        is => is,
    };
    let says = format!(
        "first tokens of concurrent requests {}, rank correlation with the prompt {}",
        times(&whole.ratio),
        number(rho)
    );
    Some(Finding::new(Observed::LaterByPrompt, is, says).figure(whole.ratio, LATER.0))
}

/// Checks whether the time to first token depends on the response length; a prefill has no such dependency.
fn later_by_answer(frames: &Frames<'_>) -> Option<Finding> {
    frames.base.as_ref()?;
    // Compare also with the candidate's own line by prompts, because the lengths of forty prompts and responses may
    // correlate by accident.
    let goes = goes_with(frames, |arms| arms.1, |row| row.output);
    let says = "the added time to first token grows with the answer length".to_owned();
    Some(Finding::new(Observed::LaterByAnswer, yes_if(goes), says))
}

/// Checks whether isolated requests exceed the ceilings. A ceiling on a p95 is out of reach if more than one in
/// twenty isolated requests exceeds it.
fn over_budget(frames: &Frames<'_>) -> Option<Finding> {
    let budget = frames.case.budget?;
    let mut worst: Option<Finding> = None;
    for ceiling in &budget.latency {
        let of = crate::material::metric(ceiling.metric.name());
        let values: Vec<f64> = frames.candidate.alone.iter().map(of).filter(|x| !x.is_nan()).collect();
        if values.len() < ALONE_NEEDED {
            continue;
        }
        let over = values.iter().filter(|x| **x > ceiling.limit_s).count() as f64;
        let (share, allowed) = (share(over, values.len() as f64, 1.0), 1.0 - ceiling.percentile);
        let is = FactState::of(share.lower > allowed, share.value <= allowed);
        let says = format!(
            "{} of the single requests are over {} {} ({} may be)",
            percent(share.value),
            ceiling.metric.name(),
            ms(ceiling.limit_s),
            percent(allowed)
        );
        if worst.as_ref().is_none_or(|worst| is == FactState::Yes && worst.is != FactState::Yes) {
            worst = Some(Finding::new(Observed::AloneOverBudget, is, says).figure(share, allowed));
        }
    }
    worst
}

/// Checks whether a third of the isolated requests pause too. Each response then pauses independently, and there is
/// no common stall.
fn pauses(frames: &Frames<'_>) -> Option<Finding> {
    let rows = &frames.candidate.alone;
    let longest = |rows: &[RequestView]| -> Vec<f64> {
        rows.iter().map(|row| row.gap_max).filter(|x| x.is_finite()).collect()
    };
    let own = longest(rows);
    let usual =
        frames.base.as_ref().and_then(|base| order_statistic(&mut longest(&base.alone), 0.95)).unwrap_or(0.0);
    let least = LEAST_STALL_S.max(2.0 * usual);
    let pausing = own.iter().filter(|pause| **pause >= least).count();
    let says = format!("{pausing} of {} single requests pause for over {}", own.len(), ms(least));
    (own.len() >= ALONE_NEEDED)
        .then(|| Finding::new(Observed::AlonePauses, yes_if(3 * pausing > own.len()), says))
}

/// Returns the ratio of the time per output token of isolated requests.
pub fn alone_tpot(base: &Frame<'_>, now: &Frame<'_>) -> Option<Estimate> {
    let of = |arm: &Frame<'_>| -> Vec<f64> {
        arm.alone.iter().map(|row| row.tpot).filter(|x| x.is_finite()).collect()
    };
    medians(&of(base), &of(now), 0.95)
}

/// Returns the finite values of isolated requests in ascending order.
fn alone(arm: &Frame<'_>, of: impl Fn(&RequestView) -> f64) -> Vec<f64> {
    let mut values: Vec<f64> = arm.alone.iter().map(of).filter(|x| x.is_finite()).collect();
    sort(&mut values);
    values
}

/// Returns the extra times to first token of isolated requests over the baseline at similar prompts, without stages
/// of dependencies, in ascending order in s.
pub(super) fn added(frames: &Frames<'_>) -> Option<(Vec<f64>, Vec<f64>, f64)> {
    let base = frames.base.as_ref()?;
    let engine = |row: &RequestView| row.ttft_sent - row.before_engine().unwrap_or(0.0);
    let law = PromptLaw::of_metric(&base.alone, engine)?;
    let over = |rows: &[RequestView]| -> Vec<f64> {
        let mut v: Vec<f64> =
            rows.iter().map(|row| engine(row) - law.at(row)).filter(|x| x.is_finite()).collect();
        sort(&mut v);
        v
    };
    let (before, now) = (over(&base.alone), over(&frames.candidate.alone));
    let mut typical: Vec<f64> =
        base.alone.iter().map(|row| row.ttft_sent).filter(|x| x.is_finite()).collect();
    let typical = order_statistic(&mut typical, 0.5)?;
    (before.len() >= ALONE_NEEDED && now.len() >= ALONE_NEEDED).then_some((before, now, typical))
}

/// Returns the median extra time with an interval by order statistics.
pub(super) fn median_added(before: &[f64], now: &[f64]) -> Option<Estimate> {
    let n = now.len() as f64;
    let half = 0.98 * libm::sqrt(n);
    let at = |rank: f64| now[(rank.round().max(0.0) as usize).min(now.len() - 1)];
    let was = of_sorted(before, 0.5)?;
    let value = of_sorted(now, 0.5)? - was;
    Some(Estimate {
        value,
        lower: at(n / 2.0 - half) - was,
        upper: at(n / 2.0 + half) - was,
        n: now.len() as u64,
        n_eff: n,
    })
}

/// Returns the lines of the isolated time to first token per computed prompt token: baseline and candidate.
pub fn lines(frames: &Frames<'_>) -> Option<(PromptLaw, PromptLaw)> {
    Some((PromptLaw::of(&frames.base.as_ref()?.alone)?, PromptLaw::of(&frames.candidate.alone)?))
}

/// Minimum difference of the extra time between the lower and the upper third, as a share of the usual time to first
/// token. A rank correlation of microseconds proves no dependency.
const DIFFERS: f64 = 0.05;
/// Minimum difference as a share of the extra time of isolated requests.
const OF_ADDED: f64 = 0.1;

/// Returns whether the residual times to first token of isolated requests depend on `of`. The residual is taken from
/// the line of the baseline or of the candidate.
fn goes_with<'b>(
    frames: &'b Frames<'_>,
    line: impl Fn((&'b [RequestView], &'b [RequestView])) -> &'b [RequestView],
    of: impl Fn(&RequestView) -> f64,
) -> bool {
    let Some(base) = &frames.base else { return false };
    let Some(law) = PromptLaw::of(line((&base.alone, &frames.candidate.alone))) else { return false };
    let mut over: Vec<(f64, f64)> = frames
        .candidate
        .alone
        .iter()
        .map(|row| (of(row), row.ttft_sent - law.at(row)))
        .filter(|(_, y)| y.is_finite())
        .collect();
    over.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (x, y): (Vec<f64>, Vec<f64>) = over.into_iter().unzip();
    let third = y.len() / 3;
    let middle = |part: &[f64]| plimsoll_math::quantile::order_statistic(&mut part.to_vec(), 0.5);
    let apart = middle(&y[..third]).zip(middle(&y[y.len() - third..])).map(|(low, high)| high - low);
    let usual = of_sorted(&alone(base, |row| row.ttft_sent), 0.5).unwrap_or(f64::INFINITY);
    // A dependency of less than a tenth of the common extra time does not count.
    let before = PromptLaw::of(&base.alone);
    let mut added: Vec<f64> = frames
        .candidate
        .alone
        .iter()
        .filter_map(|row| Some(row.ttft_sent - before?.at(row)))
        .filter(|x| x.is_finite())
        .collect();
    let added = plimsoll_math::quantile::order_statistic(&mut added, 0.5).unwrap_or(0.0);
    apart.is_some_and(|apart| apart >= DIFFERS * usual && apart >= OF_ADDED * added)
        && matches!(crate::effect::spearman(&x, &y), Some((rho, p)) if rho > 0.5 && p < 0.01)
}

/// Time to first token of an isolated request by computed prompt tokens: a line through the medians of the lower and
/// the upper half.
#[derive(Copy, Clone, Debug)]
pub struct PromptLaw {
    /// Time of a prompt without tokens, in seconds.
    pub fixed: f64,
    /// Additional time per prompt token, in seconds.
    pub per_token: f64,
    low: f64,
    high: f64,
}

/// Returns the computed prompt tokens: prompt tokens without known cached tokens.
pub fn computed(row: &RequestView) -> f64 {
    (row.prompt - row.cached.unwrap_or(0.0)).max(1.0)
}

impl PromptLaw {
    /// Fits the line to isolated requests (the three-group resistant line of Tukey 1977, with two groups).
    pub fn of(rows: &[RequestView]) -> Option<PromptLaw> {
        PromptLaw::of_metric(rows, |row| row.ttft_sent)
    }

    /// Fits the line to another time of isolated requests.
    pub fn of_metric(rows: &[RequestView], of: impl Fn(&RequestView) -> f64) -> Option<PromptLaw> {
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
        Some(PromptLaw { fixed: middle(&residual).1.max(0.0), per_token, low, high })
    }

    /// Returns the time of the line for this request in s.
    pub fn at(&self, row: &RequestView) -> f64 {
        self.fixed + self.per_token * computed(row)
    }

    /// Returns whether the line covers the prompt of this request: up to half beyond the fitted range.
    fn covers(&self, row: &RequestView) -> bool {
        (0.5 * self.low..=1.5 * self.high).contains(&computed(row))
    }
}
