//! Sorts predictions into ranked and ruled-out levers.

use plimsoll_math::rng::Stream;
use plimsoll_measure::findings::Estimate;

use super::catalogue::Lever;
use super::finding::{FigureOrigin, LeverFinding, LeverOrder, LeverSpec, RankedLever, UnrankedLever};
use super::predict::{Gain, LeverPrediction};

/// Probability of being the best from which a lever shares the first rank.
const TIE: f64 = 0.1;
const DRAWS: u32 = 2000;

impl LeverFinding {
    /// Sorts predictions into ranked and ruled-out levers, with ties and probabilities.
    pub(super) fn order(&mut self, predicted: Vec<LeverPrediction>, spec: &LeverSpec) {
        let effort = |p: &LeverPrediction| spec.efforts.of(p.lever, p.hourly, spec.by);
        let gain = |p: &LeverPrediction| match (spec.by, &p.cost) {
            (LeverOrder::Cost, Some(cost)) => cost.estimate,
            _ => p.latency.estimate,
        };
        let (predicted, unpriced): (Vec<LeverPrediction>, Vec<LeverPrediction>) =
            predicted.into_iter().partition(|p| spec.by == LeverOrder::Latency || p.cost.is_some());
        for p in unpriced {
            let why = match p.hourly {
                None => format!("{}: its price per hour is not known; rank --by latency", p.setting),
                Some(_) => format!(
                    "{}: the goal is met, or missed, at every simulated load (a quarter to 32 times this load)",
                    p.setting
                ),
            };
            self.open.push(UnrankedLever::new(p.lever, why));
        }
        let (kept, useless): (Vec<LeverPrediction>, Vec<LeverPrediction>) =
            predicted.into_iter().partition(|p| gain(p).upper > SMALLEST);
        let mut out: Vec<(&Lever, Vec<&LeverPrediction>)> = Vec::new();
        for p in &useless {
            match out.last_mut().filter(|(lever, _)| lever.id == p.lever.id) {
                Some((_, settings)) => settings.push(p),
                None => out.push((p.lever, vec![p])),
            }
        }
        for (lever, settings) in out {
            let best = settings.iter().map(|p| gain(p)).max_by(|a, b| a.value.total_cmp(&b.value));
            let Some(best) = best else { continue };
            let names: Vec<&str> = settings.iter().map(|p| p.setting.as_str()).collect();
            let at_best = if settings.len() > 1 { "at best " } else { "" };
            let why = format!("simulated ({}): {at_best}{}", names.join("; "), change_words(&best, spec));
            self.ruled_out.push(UnrankedLever::new(lever, why));
        }
        let chances = chances(&kept, spec, effort);
        let mut ranked: Vec<RankedLever> = kept
            .iter()
            .zip(chances)
            .map(|(p, chance)| {
                let days = effort(p);
                let lower = gain(p).lower;
                // A high effort must not reduce a loss.
                let score = if lower > 0.0 { lower / days } else { lower };
                ranked(p, days, score, chance)
            })
            .collect();
        ranked.sort_by(|a, b| b.score.total_cmp(&a.score));
        // From the top on, each lever that is likely enough to be the best shares the first rank.
        let mut tied = true;
        for (i, lever) in ranked.iter_mut().enumerate() {
            tied &= i == 0 || lever.probability_of_best >= TIE;
            lever.place = if tied { 1 } else { i as u32 + 1 };
        }
        self.ranked = ranked;
        self.bounded.sort_by(|a, b| b.at_most.total_cmp(&a.at_most));
    }
}

/// Largest gain that counts as no gain: half a percent does not justify a change.
const SMALLEST: f64 = 0.005;

fn change_words(gain: &Estimate, spec: &LeverSpec) -> String {
    let what = match spec.by {
        LeverOrder::Latency => format!("{} p{}", spec.goal.metric.name(), 100.0 * spec.goal.percentile),
        LeverOrder::Cost => "cost per request".to_owned(),
    };
    let percent = |share: f64| match format!("{:+.1}", -100.0 * share).replace('-', "−") {
        none if none == "−0.0" || none == "+0.0" => "0".to_owned(),
        some => some,
    };
    format!("{what} {} % [{}, {}]", percent(gain.value), percent(gain.upper), percent(gain.lower))
}

fn ranked(p: &LeverPrediction, effort_days: f64, score: f64, probability_of_best: f64) -> RankedLever {
    RankedLever {
        place: 0,
        lever: p.lever.id.into(),
        name: p.lever.name.into(),
        setting: p.setting.clone(),
        latency: p.latency.estimate,
        cost: p.cost.as_ref().map(|cost| cost.estimate),
        effort_days,
        hourly: p.hourly,
        score,
        probability_of_best,
        assumes: p.assumes.clone(),
        risk: p.lever.risk.into(),
        touches_model: p.lever.touches_model,
        reversible: p.lever.reversible.name().into(),
        first: p.lever.first.into(),
        how: FigureOrigin::Simulated,
    }
}

/// Returns the probability that each lever is the best per day of effort. The schedules are resampled jointly for all
/// levers. The assumption of a lever is equally likely at its worst, its best and its middle.
fn chances(kept: &[LeverPrediction], spec: &LeverSpec, effort: impl Fn(&LeverPrediction) -> f64) -> Vec<f64> {
    let gains: Vec<(&Gain, f64)> = kept
        .iter()
        .map(|p| match (spec.by, &p.cost) {
            (LeverOrder::Cost, Some(cost)) => (cost, effort(p)),
            _ => (&p.latency, effort(p)),
        })
        .collect();
    let mut wins = vec![0u32; kept.len()];
    let mut stream = Stream::new(spec.seed, "lever chances", 0);
    let count = gains.iter().map(|(gain, _)| gain.logs.len()).min().unwrap_or(0);
    if count == 0 {
        return vec![0.0; kept.len()];
    }
    for _ in 0..DRAWS {
        let drawn: Vec<usize> = (0..count).map(|_| stream.below(count as u64) as usize).collect();
        let mut score = |(gain, days): &(&Gain, f64)| {
            let case = stream.below(gain.range.len() as u64 + 1) as usize;
            let logs = if case == 0 { &gain.logs } else { &gain.range[case - 1] };
            let mean = drawn.iter().map(|i| logs[*i]).sum::<f64>() / count as f64;
            let saved = 1.0 - mean.exp();
            if saved > 0.0 { saved / days } else { saved }
        };
        let scores: Vec<f64> = gains.iter().map(&mut score).collect();
        if let Some(best) = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b])) {
            wins[best] += 1;
        }
    }
    wins.into_iter().map(|won| f64::from(won) / f64::from(DRAWS)).collect()
}
