//! Search for the best of several settings of a server: a stepper that requests measurements, results in, next measurement out.
//!
//! Every setting is measured shortly. Then a setting leaves that is worse than the leader beyond both intervals, and the others
//! are measured for twice the time. Settings that tie with the leader stay, so noise removes no setting. The classic halving
//! was rejected because it drops half of the settings even if their intervals overlap. Two intervals of 95 % that do not overlap
//! differ with a probability of about 99.4 %, which leaves room for some ten comparisons with the leader.

mod load;

pub use load::{LoadLevel, LoadSearch, SATURATED, is_within};

use std::cmp::Ordering;
use std::collections::BTreeMap;

use plimsoll_measure::findings::Estimate;
use plimsoll_model::Span;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The figure that ranks the settings.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TuneGoal {
    /// Highest load within the limits; without limits, the saturating throughput.
    Load,
    /// Lowest cost per million good output tokens.
    Cost,
}

/// The result of one measurement of a setting.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TuneTrial {
    /// Number of the setting, from 0.
    pub setting: usize,
    /// Number of the rung, from 0; each rung takes twice the time of the rung before.
    pub rung: u32,
    /// Load in requests per second, 0 if no load met the limits; its ends are proven. `null` if the measurement failed.
    pub load: Option<Estimate>,
    /// Cost per million good output tokens; `null` without a price.
    pub cost: Option<Estimate>,
    /// Reason of a failure: the server ended, was never ready, or gave no figure; `null` if there is a load.
    pub why: Option<String>,
    /// Run folder, below the folder of the tuning; `null` if the server was never ready.
    pub run: Option<String>,
    /// Command line of the server.
    pub launch: String,
}

impl TuneTrial {
    /// Returns the figure of the goal; `None` if the measurement failed.
    pub fn figure(&self, goal: TuneGoal) -> Option<&Estimate> {
        match goal {
            TuneGoal::Load => self.load.as_ref(),
            TuneGoal::Cost => self.cost.as_ref(),
        }
    }

    /// Returns lower end, value and upper end of the figure, with a sign that makes more better.
    fn merit(&self, goal: TuneGoal) -> Option<[f64; 3]> {
        let own = self.figure(goal)?;
        Some(match goal {
            TuneGoal::Load => [own.lower, own.value, own.upper],
            TuneGoal::Cost => [-own.upper, -own.value, -own.lower],
        })
    }
}

/// The settings of a search.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct TuneSpec {
    pub goal: TuneGoal,
    /// Number of settings.
    pub settings: usize,
    /// Time of a measurement in the first rung.
    pub first: Span,
    /// Largest number of rungs.
    pub rungs: u32,
}

impl TuneSpec {
    /// Returns the time of a measurement in this rung.
    pub fn time(&self, rung: u32) -> Span {
        Span(self.first.0.saturating_mul(1 << rung.min(30)))
    }

    /// Returns the time of the whole search in seconds if this share of the settings stays after each rung, without the starts of
    /// the server.
    pub fn time_s(&self, stays: f64) -> f64 {
        let left = |rung: u32| (self.settings as f64 * stays.powi(rung as i32)).ceil();
        let goes_on = |rung: &u32| *rung == 0 || left(rung - 1) > 1.0;
        (0..self.rungs).filter(goes_on).map(|rung| left(rung) * self.time(rung).as_secs_f64()).sum()
    }
}

/// The next step of a search.
#[derive(Copy, Clone, PartialEq, Debug)]
pub enum TuneNext {
    /// Measure this setting for this time, and pass the result to [`TuneSearch::observe`].
    Measure {
        setting: usize,
        rung: u32,
        time: Span,
    },
    Done,
}

/// The search. Its state is the list of its results, so a search that was cut off continues from them.
pub struct TuneSearch {
    spec: TuneSpec,
    trials: Vec<TuneTrial>,
}

impl TuneSearch {
    /// Returns a search that continues after these results.
    pub fn new(spec: TuneSpec, trials: Vec<TuneTrial>) -> TuneSearch {
        TuneSearch { spec, trials }
    }

    /// Returns the next step. Repeated calls without [`TuneSearch::observe`] return an equal step.
    pub fn next_step(&self) -> TuneNext {
        self.state().0
    }

    /// Takes the result of a measurement.
    pub fn observe(&mut self, trial: TuneTrial) {
        self.trials.push(trial);
    }

    /// Returns the results in order of execution.
    pub fn trials(&self) -> &[TuneTrial] {
        &self.trials
    }

    /// Returns the next step, and the settings that tie after the last complete rung, the best first.
    fn state(&self) -> (TuneNext, Vec<usize>) {
        let mut field: Vec<usize> = (0..self.spec.settings).collect();
        for rung in 0..self.spec.rungs {
            if let Some(setting) = field.iter().copied().find(|setting| self.of(*setting, rung).is_none()) {
                let time = self.spec.time(rung);
                // Results of the first rung are compared before it is complete.
                let ties = if rung == 0 { self.survivors(&field, rung) } else { field };
                return (TuneNext::Measure { setting, rung, time }, ties);
            }
            field = self.survivors(&field, rung);
            if field.len() <= 1 {
                break;
            }
        }
        (TuneNext::Done, field)
    }

    fn of(&self, setting: usize, rung: u32) -> Option<&TuneTrial> {
        self.trials.iter().find(|trial| trial.setting == setting && trial.rung == rung)
    }

    /// Returns the settings that are not proven worse than the leader of this rung, the leader first.
    fn survivors(&self, field: &[usize], rung: u32) -> Vec<usize> {
        let merit = |setting: &usize| Some((*setting, self.of(*setting, rung)?.merit(self.spec.goal)?));
        let mut ranked: Vec<(usize, [f64; 3])> = field.iter().filter_map(merit).collect();
        ranked.sort_by(|a, b| b.1[1].total_cmp(&a.1[1]));
        let least = ranked.first().map_or(f64::INFINITY, |(_, leader)| leader[0]);
        ranked.into_iter().filter(|(_, own)| own[2] >= least).map(|(setting, _)| setting).collect()
    }

    /// Returns the last measurement of each setting with its place, the best first and failures last.
    pub fn ranking(&self) -> Vec<(SettingPlace, TuneTrial)> {
        let ties = self.state().1;
        let merit = |trial: &TuneTrial| trial.merit(self.spec.goal).map(|own| own[1]);
        let place = |trial: &TuneTrial| match ties.iter().position(|setting| *setting == trial.setting) {
            _ if merit(trial).is_none() => SettingPlace::Failed,
            Some(0) => SettingPlace::Best,
            Some(_) => SettingPlace::Tied,
            None => SettingPlace::Worse,
        };
        let last = |setting: usize| self.trials.iter().rfind(|trial| trial.setting == setting);
        let all = (0..self.spec.settings).filter_map(last);
        let mut ranked: Vec<_> = all.map(|trial| (place(trial), trial.clone())).collect();
        ranked.sort_by(|a, b| {
            a.0.cmp(&b.0).then(merit(&b.1).partial_cmp(&merit(&a.1)).unwrap_or(Ordering::Equal))
        });
        ranked
    }
}

/// The place of a setting in the ranking.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SettingPlace {
    /// Best figure of the last rung.
    Best,
    /// Not distinguishable from the best: the intervals overlap.
    Tied,
    /// Worse than the best, beyond both intervals.
    Worse,
    /// The measurement failed.
    Failed,
}

/// A setting of the server with its place and its longest measurement.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SettingFinding {
    /// Values of the setting by name.
    pub values: BTreeMap<String, String>,
    /// Place in the ranking.
    pub standing: SettingPlace,
    /// Last measurement.
    #[serde(flatten)]
    pub trial: TuneTrial,
}

/// The result of a tuning.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TuneFinding {
    /// Figure that ranks the settings.
    pub goal: TuneGoal,
    /// Limits of the load as typed; empty for the saturating throughput.
    pub slo: Vec<String>,
    /// Currency of the costs; `null` without a price.
    pub currency: Option<String>,
    /// Set if every planned measurement was made.
    pub is_complete: bool,
    /// Settings that were measured, the best first.
    pub settings: Vec<SettingFinding>,
    /// Folder of the runs and of the servers' logs.
    pub folder: String,
}

impl TuneFinding {
    /// Returns the best setting; `None` if no setting carried a load within the limits.
    pub fn best(&self) -> Option<&SettingFinding> {
        let carries = |one: &&SettingFinding| one.trial.load.is_some_and(|load| load.value > 0.0);
        self.settings.first().filter(|first| first.standing == SettingPlace::Best).filter(carries)
    }
}

/// Returns the cost per million good output tokens of a load.
///
/// `tokens` is the mean number of good output tokens per request, and `per_hour` the price of the server.
pub fn cost(load: &Estimate, tokens: f64, per_hour: f64) -> Estimate {
    let of = |load: f64| match load * tokens {
        rate if rate > 0.0 => per_hour / 3600.0 / rate * 1e6,
        _ => f64::INFINITY,
    };
    Estimate { value: of(load.value), lower: of(load.upper), upper: of(load.lower), ..*load }
}

#[cfg(test)]
mod tests {
    use plimsoll_math::rng::Stream;

    use super::*;

    fn spec(settings: usize) -> TuneSpec {
        TuneSpec { goal: TuneGoal::Load, settings, first: Span::from_secs(60), rungs: 3 }
    }

    fn estimate(value: f64, half: f64) -> Estimate {
        Estimate { value, lower: value - half, upper: value + half, n: 100, n_eff: 100.0 }
    }

    fn trial(setting: usize, rung: u32, load: Option<Estimate>) -> TuneTrial {
        TuneTrial { setting, rung, load, cost: load, why: None, run: None, launch: String::new() }
    }

    /// Runs a search on settings with these true loads; the error shrinks with the root of the time.
    fn search(truth: &[Option<f64>], seed: u64) -> TuneSearch {
        let (mut tune, mut stream) =
            (TuneSearch::new(spec(truth.len()), Vec::new()), Stream::new(seed, "tune", 0));
        while let TuneNext::Measure { setting, rung, time } = tune.next_step() {
            let error = 0.1 / (time.as_secs_f64() / 60.0).sqrt();
            let normal = (0..12).map(|_| stream.uniform()).sum::<f64>() - 6.0;
            let load = |load: f64| estimate(load * (1.0 + error * normal), 1.96 * error * load);
            tune.observe(trial(setting, rung, truth[setting].map(load)));
        }
        tune
    }

    fn standing(tune: &TuneSearch, setting: usize) -> SettingPlace {
        tune.ranking().iter().find(|(_, trial)| trial.setting == setting).expect("ranked").0
    }

    #[test]
    fn the_true_best_is_best_or_tied_and_poor_settings_leave_early() {
        let truth = [Some(10.0), Some(40.0), None, Some(38.0), Some(5.0), Some(20.0), Some(8.0), Some(15.0)];
        let (mut lost, mut measured) = (0, 0);
        for seed in 0..200 {
            let tune = search(&truth, seed);
            lost += usize::from(standing(&tune, 1) > SettingPlace::Tied);
            measured += tune.trials().len() - 8;
            assert_eq!(standing(&tune, 2), SettingPlace::Failed);
            assert!([4, 6].iter().all(|poor| standing(&tune, *poor) == SettingPlace::Worse));
        }
        // Of 200 searches at most 2 % lose the true best, and on average at most three settings are in each later rung.
        assert!(lost <= 4 && measured < 200 * 6, "{lost} lost, {measured} measured again");
    }

    #[test]
    fn a_search_that_was_cut_off_continues_without_a_second_measurement() {
        let whole = search(&[Some(10.0), Some(40.0), Some(39.0)], 3);
        for cut in 0..whole.trials().len() {
            let TuneTrial { setting, rung, .. } = whole.trials()[cut];
            let tune = TuneSearch::new(spec(3), whole.trials()[..cut].to_vec());
            assert_eq!(tune.next_step(), TuneNext::Measure { setting, rung, time: spec(3).time(rung) });
        }
        assert_eq!(whole.next_step(), TuneNext::Done);
        let dead = search(&[None, None], 1);
        assert_eq!((dead.next_step(), dead.trials().len()), (TuneNext::Done, 2));
    }

    #[test]
    fn a_rung_that_was_cut_off_makes_no_setting_worse() {
        let one = |setting, rung, load| trial(setting, rung, Some(estimate(load, 3.0)));
        let tune =
            TuneSearch::new(spec(3), vec![one(0, 0, 10.0), one(1, 0, 9.0), one(2, 0, 2.0), one(1, 1, 9.5)]);
        assert_eq!(
            [0, 1, 2].map(|i| standing(&tune, i)),
            [SettingPlace::Best, SettingPlace::Tied, SettingPlace::Worse]
        );
        let cheap = TuneSpec { goal: TuneGoal::Cost, ..spec(3) };
        let tune = TuneSearch::new(cheap, tune.trials()[..3].to_vec());
        assert_eq!(
            [0, 1, 2].map(|i| standing(&tune, i)),
            [SettingPlace::Worse, SettingPlace::Worse, SettingPlace::Best]
        );
    }

    /// Eight settings of 60 s: 8, then 4 × 2 and 2 × 4 minutes; or 8 × (1 + 2 + 4).
    #[test]
    fn the_time_is_known_before_the_start() {
        assert_eq!([0.0, 0.5, 1.0].map(|stays| spec(8).time_s(stays)), [480.0, 1440.0, 3360.0]);
        assert_eq!(spec(1).time_s(1.0), 60.0);
    }

    /// 2 USD/h at 10 requests/s of 100 tokens: 3.6 million tokens an hour.
    #[test]
    fn the_cost_is_the_price_over_the_tokens() {
        let cost = cost(&Estimate { lower: 0.0, ..estimate(10.0, 2.0) }, 100.0, 2.0);
        assert!((cost.value - 2.0 / 3.6).abs() < 1e-9 && cost.upper.is_infinite());
        assert!((cost.lower - 2.0 / 4.32).abs() < 1e-9);
    }
}
