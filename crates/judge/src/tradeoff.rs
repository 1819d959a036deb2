//! Trade-off of a change: cost and speed against accuracy, such as FP8 weights in place of BF16.
//!
//! Costs of two runs are independent. The interval of their ratio and of their difference is by MOVER (Zou and Donner, *Stat.
//! Med.* 27, 2008), which combines the two intervals. Accuracies are compared item by item where both sides list their items:
//! right or wrong by Tango's interval, other scores by the mean difference. Without items, the standard errors add.
//!
//! The price of a point is saving / points lost. It is bounded only if both intervals exclude zero, because a ratio to a
//! difference that may be zero has no mean. Otherwise it has a lower bound, or none.

use std::collections::BTreeMap;

use plimsoll_math::paired::difference;
use plimsoll_math::special::normal_inv;
use plimsoll_measure::findings::Estimate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::compare::finding::{ChangeVerdict, Effect};
use crate::quality::{Quality, QualityFigure};

/// Items below which a difference without Tango's interval is not judged.
const FEWEST: u64 = 30;

/// The answer to whether a change pays.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum TradeoffVerdict {
    /// The candidate is proven cheaper, and its accuracy within the tolerated loss.
    Pays,
    /// The candidate loses more accuracy than tolerated, or costs more without a gain.
    DoesNotPay,
    /// The data allow both.
    CannotTell,
}

/// The trade-off between two runs.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TradeoffFinding {
    /// Verdict on the change.
    pub verdict: TradeoffVerdict,
    /// Reason of the verdict, as a sentence.
    pub why: String,
    /// Figures of speed that decide the comparison of the runs.
    pub speed: Vec<SpeedChange>,
    /// Change of the cost.
    pub cost: CostChange,
    /// Change of the accuracy.
    pub accuracy: AccuracyChange,
    /// Price of one point of accuracy.
    pub point: PointPrice,
    /// Tolerated loss of accuracy in points.
    pub max_loss: f64,
}

/// One figure of speed on both sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct SpeedChange {
    /// Metric with its statistic, such as `tpot p50`.
    pub name: String,
    /// Figure of the base in seconds or per second; `null` if missing.
    pub base: Option<f64>,
    /// Figure of the candidate in seconds or per second; `null` if missing.
    pub candidate: Option<f64>,
    /// Effect with its interval; `null` if it cannot be computed.
    pub effect: Option<Effect>,
    /// Verdict of the comparison on the figure.
    pub verdict: ChangeVerdict,
}

/// A value with the ends of its 95 % interval.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TradeoffRange {
    /// Point estimate of the value.
    pub value: f64,
    /// Lower end of the interval.
    pub lower: f64,
    /// Upper end of the interval.
    pub upper: f64,
}

/// The cost of a million output tokens on both sides.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct CostChange {
    /// Currency of the amounts, such as `USD`.
    pub currency: String,
    /// Load of the costs, as a phrase.
    pub at: String,
    /// Cost of a million output tokens of the base.
    pub base: Estimate,
    /// Cost of a million output tokens of the candidate.
    pub candidate: Estimate,
    /// Candidate's cost divided by the base's.
    pub ratio: TradeoffRange,
    /// Base's cost less the candidate's, per million output tokens.
    pub saving: TradeoffRange,
    /// Reason why the runs cannot show a difference of cost; `null` if they can.
    pub blind: Option<String>,
}

/// The accuracy on both sides, in points of 100.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AccuracyChange {
    /// Tool that scored the answers.
    pub source: String,
    /// Mean score of the base over all items, in points.
    pub base: f64,
    /// Mean score of the candidate over all items, in points.
    pub candidate: f64,
    /// Candidate less base in points, with the number of items.
    pub difference: QualityFigure,
    /// Set if both sides are compared item by item.
    pub is_paired: bool,
    /// Results of each task. Their intervals share the error of 5 % (Bonferroni).
    pub tasks: Vec<TaskChange>,
}

/// The accuracy of one task on both sides, in points of 100.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct TaskChange {
    /// Task with its metric, such as `gsm8k exact_match,strict-match`.
    pub name: String,
    /// Score of the base in points.
    pub base: f64,
    /// Score of the candidate in points.
    pub candidate: f64,
    /// Candidate less base in points, with the number of items.
    pub difference: QualityFigure,
    /// Set if both sides are compared item by item.
    pub is_paired: bool,
}

/// The price of one point of accuracy, per million output tokens.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "is", rename_all = "snake_case")]
pub enum PointPrice {
    /// Both changes are proven, with one sign: each point costs this.
    Known {
        /// Money saved per point lost, or paid per point gained.
        price: TradeoffRange,
    },
    /// The saving is proven, the loss is not: each point lost returns at least this.
    AtLeast {
        /// Lower end of the saving divided by the upper end of the loss.
        price: f64,
    },
    /// The price has no bound, or there is nothing to trade.
    None {
        /// Reason, as a phrase.
        why: String,
    },
}

/// The score of one task on one side.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TaskScore {
    /// Mean score over the items, 0 to 1.
    pub value: f64,
    /// Standard error of the mean; `None` if unknown.
    pub standard_error: Option<f64>,
    /// Number of scored items.
    pub n: u64,
    /// Score of each item; empty without items.
    pub items: BTreeMap<u64, f64>,
}

impl CostChange {
    /// Returns the change between two costs of a million output tokens.
    pub fn new(currency: String, at: String, base: Estimate, candidate: Estimate) -> CostChange {
        let half = |a: f64, b: f64| (a * a + b * b).sqrt();
        let (b, c) = (&base, &candidate);
        let ln = |a: f64, b: f64| (a / b).ln();
        let ratio = c.value / b.value;
        let saving = b.value - c.value;
        CostChange {
            ratio: TradeoffRange {
                value: ratio,
                lower: ratio * (-half(ln(c.value, c.lower), ln(b.upper, b.value))).exp(),
                upper: ratio * half(ln(c.upper, c.value), ln(b.value, b.lower)).exp(),
            },
            saving: TradeoffRange {
                value: saving,
                lower: saving - half(b.value - b.lower, c.upper - c.value),
                upper: saving + half(b.upper - b.value, c.value - c.lower),
            },
            currency,
            at,
            base,
            candidate,
            blind: None,
        }
    }
}

impl AccuracyChange {
    /// Returns the scores of `plimsoll quality`; `None` if it scored nothing.
    pub fn of_quality(found: &Quality) -> Option<AccuracyChange> {
        let scores = found.scores.as_ref()?;
        Some(AccuracyChange {
            source: "plimsoll quality".to_owned(),
            base: 100.0 * scores.a.value,
            candidate: 100.0 * scores.b.value,
            difference: points(&scores.difference),
            is_paired: true,
            tasks: Vec::new(),
        })
    }

    /// Returns the change over tasks that both sides scored, weighted by their items; `None` without tasks or errors.
    pub fn of_tasks(source: &str, tasks: &[(String, TaskScore, TaskScore)]) -> Option<AccuracyChange> {
        let z = |level: f64| normal_inv(0.5 + level / 2.0);
        let level = 1.0 - 0.05 / tasks.len().max(1) as f64;
        let pairs: Vec<TaskPairs> = tasks.iter().map(|(_, a, b)| TaskPairs::of(a, b)).collect();
        let each = tasks.iter().zip(&pairs).map(|((name, a, b), pairs)| {
            Some(TaskChange {
                name: name.clone(),
                base: 100.0 * a.value,
                candidate: 100.0 * b.value,
                difference: points(&pairs.figure(level, z(level))?),
                is_paired: pairs.is_paired,
            })
        });
        let each: Vec<TaskChange> = each.collect::<Option<_>>()?;
        let n: u64 = pairs.iter().map(|pairs| pairs.n).sum();
        let mean = |of: fn(&TaskScore) -> f64, side: fn(&(String, TaskScore, TaskScore)) -> &TaskScore| {
            tasks.iter().zip(&pairs).map(|(task, pairs)| of(side(task)) * pairs.n as f64).sum::<f64>()
                / n as f64
        };
        let whole = TaskPairs::joined(&pairs)?;
        Some(AccuracyChange {
            source: source.to_owned(),
            base: 100.0 * mean(|score| score.value, |task| &task.1),
            candidate: 100.0 * mean(|score| score.value, |task| &task.2),
            difference: points(&whole.figure(0.95, z(0.95))?),
            is_paired: whole.is_paired,
            tasks: each,
        })
    }
}

/// The difference of one task, before its interval.
#[derive(Clone, Debug)]
struct TaskPairs {
    n: u64,
    value: f64,
    variance: Option<f64>,
    /// Items that only the base and only the candidate answered right; `None` if scores are not 0 or 1.
    discordant: Option<(u64, u64)>,
    is_paired: bool,
}

impl TaskPairs {
    fn of(base: &TaskScore, candidate: &TaskScore) -> TaskPairs {
        let is_paired = !base.items.is_empty() && base.items.keys().eq(candidate.items.keys());
        if !is_paired {
            let errors = base.standard_error.zip(candidate.standard_error);
            let variance = errors.map(|(a, b)| a * a + b * b);
            let value = candidate.value - base.value;
            return TaskPairs { n: base.n.min(candidate.n), value, variance, discordant: None, is_paired };
        }
        let differences: Vec<f64> =
            base.items.values().zip(candidate.items.values()).map(|(a, b)| b - a).collect();
        let n = differences.len() as f64;
        let value = differences.iter().sum::<f64>() / n;
        let squares: f64 = differences.iter().map(|d| (d - value) * (d - value)).sum();
        let is_right = |score: &f64| *score == 0.0 || *score == 1.0;
        let binary = base.items.values().chain(candidate.items.values()).all(is_right);
        let count = |sign: f64| differences.iter().filter(|d| **d == sign).count() as u64;
        TaskPairs {
            n: differences.len() as u64,
            value,
            // Equal scores on every item prove no difference of zero: one item of the next n may differ.
            variance: (n > 1.0).then(|| (squares / (n - 1.0) / n).max(1.0 / (n * n))),
            discordant: binary.then(|| (count(-1.0), count(1.0))),
            is_paired,
        }
    }

    /// Returns all tasks as one, weighted by their items.
    fn joined(all: &[TaskPairs]) -> Option<TaskPairs> {
        let n: u64 = all.iter().map(|own| own.n).sum();
        let share = |own: &TaskPairs| own.n as f64 / n as f64;
        let variance = all.iter().map(|own| Some(own.variance? * share(own).powi(2))).sum();
        let discordant = all.iter().try_fold((0, 0), |sum, own| {
            let (a, b) = own.discordant?;
            Some((sum.0 + a, sum.1 + b))
        });
        (n > 0).then(|| TaskPairs {
            n,
            value: all.iter().map(|own| own.value * share(own)).sum(),
            variance,
            discordant,
            is_paired: all.iter().all(|own| own.is_paired),
        })
    }

    fn figure(&self, level: f64, z: f64) -> Option<QualityFigure> {
        let figure = |lower, upper| QualityFigure { value: self.value, lower, upper, n: self.n };
        if let Some((only_base, only_candidate)) = self.discordant {
            let ends = difference(only_base, only_candidate, self.n, level)?;
            return Some(figure(ends.lower, ends.upper));
        }
        let half = z * self.variance?.sqrt();
        Some(figure(self.value - half, self.value + half))
    }
}

fn points(share: &QualityFigure) -> QualityFigure {
    QualityFigure {
        value: 100.0 * share.value,
        lower: 100.0 * share.lower,
        upper: 100.0 * share.upper,
        ..*share
    }
}

/// Returns the price of a point from the saving and the difference of accuracy in points.
pub fn point_price(saving: &TradeoffRange, difference: &QualityFigure) -> PointPrice {
    let none = |why: &str| PointPrice::None { why: why.to_owned() };
    // A gain that is paid for is the mirror image of a loss that is paid back.
    let sign = if saving.lower > 0.0 { 1.0 } else { -1.0 };
    let turned = |value: f64, a: f64, b: f64| TradeoffRange {
        value: sign * value,
        lower: (sign * a).min(sign * b),
        upper: (sign * a).max(sign * b),
    };
    let money = turned(saving.value, saving.lower, saving.upper);
    let lost = turned(-difference.value, -difference.upper, -difference.lower);
    if money.lower <= 0.0 {
        return none("the difference of cost may be zero");
    }
    if lost.lower > 0.0 {
        let value = money.value / lost.value;
        let half = |a: f64, b: f64| (a.ln().powi(2) + b.ln().powi(2)).sqrt();
        return PointPrice::Known {
            price: TradeoffRange {
                value,
                lower: value * (-half(money.value / money.lower, lost.upper / lost.value)).exp(),
                upper: value * half(money.upper / money.value, lost.value / lost.lower).exp(),
            },
        };
    }
    match (sign > 0.0, lost.upper > 0.0) {
        (true, true) => PointPrice::AtLeast { price: money.lower / lost.upper },
        (true, false) => none("no accuracy is lost"),
        (false, _) => none("no gain of accuracy is proven"),
    }
}

/// Returns the verdict on a change, with its price of a point.
pub fn judge(
    speed: Vec<SpeedChange>,
    cost: CostChange,
    accuracy: AccuracyChange,
    max_loss: f64,
) -> TradeoffFinding {
    let point = point_price(&cost.saving, &accuracy.difference);
    let (verdict, why) = decide(&cost, &accuracy, max_loss);
    TradeoffFinding { verdict, why, speed, cost, accuracy, point, max_loss }
}

fn decide(cost: &CostChange, accuracy: &AccuracyChange, max_loss: f64) -> (TradeoffVerdict, String) {
    use TradeoffVerdict::{CannotTell, DoesNotPay, Pays};
    let d = &accuracy.difference;
    let cut = |value: f64| format!("{value:.2}");
    let range = |f: &QualityFigure| format!("{} [{}, {}]", cut(f.value), cut(f.lower), cut(f.upper));
    if d.n < FEWEST {
        return (CannotTell, format!("{} items are too few: score at least {FEWEST}", d.n));
    }
    if d.upper < -max_loss {
        let why = format!("accuracy changes by {} points, beyond the tolerated loss of {max_loss}", range(d));
        return (DoesNotPay, why);
    }
    let fallen = |task: &&TaskChange| task.difference.n >= FEWEST && task.difference.upper < -max_loss;
    if let Some(task) = accuracy.tasks.iter().find(fallen) {
        let (name, range) = (&task.name, range(&task.difference));
        return (
            DoesNotPay,
            format!("{name} changes by {range} points, beyond the tolerated loss of {max_loss}"),
        );
    }
    if let Some(blind) = &cost.blind {
        return (CannotTell, blind.clone());
    }
    let ratio = &cost.ratio;
    let times = format!("{:.3} [{:.3}, {:.3}]", ratio.value, ratio.lower, ratio.upper);
    if ratio.lower > 1.0 {
        return match d.upper > max_loss {
            false => (
                DoesNotPay,
                format!(
                    "cost is {times} × the base's, and accuracy gains at most {} points",
                    cut(d.upper.max(0.0))
                ),
            ),
            true if d.lower > 0.0 => (
                CannotTell,
                format!(
                    "accuracy gains {} points at {times} × the cost: the price of a point decides",
                    range(d)
                ),
            ),
            true => (
                CannotTell,
                format!("cost is {times} × the base's, and a gain of accuracy is open: score more items"),
            ),
        };
    }
    if ratio.upper >= 1.0 {
        return (
            CannotTell,
            format!("cost is {times} × the base's, so a saving is not proven: measure longer"),
        );
    }
    if d.lower >= -max_loss {
        return (Pays, format!("cost is {times} × the base's, and accuracy changes by {} points", range(d)));
    }
    let missing = d.value + max_loss;
    let more = (missing > 0.0).then(|| (d.n as f64 * ((d.value - d.lower) / missing).powi(2)).ceil());
    let more = more.filter(|n| *n < 1e7).map_or(String::new(), |n| format!(", about {n:.0} in all"));
    (
        CannotTell,
        format!(
            "accuracy changes by {} points, and a loss over {max_loss} is possible: score more items{more}",
            range(d)
        ),
    )
}

#[cfg(test)]
mod tests {
    use plimsoll_math::dist::normal;
    use plimsoll_math::rng::Stream;

    use super::*;

    const Z: f64 = 1.959_963_984_540_054;

    fn estimate(value: f64, error: f64) -> Estimate {
        Estimate { value, lower: value - Z * error, upper: value + Z * error, n: 100, n_eff: 100.0 }
    }

    fn cost(base: f64, candidate: f64) -> CostChange {
        CostChange::new("USD".into(), "a load".into(), estimate(base, 0.01), estimate(candidate, 0.01))
    }

    fn accuracy(value: f64, half: f64) -> AccuracyChange {
        let difference = QualityFigure { value, lower: value - half, upper: value + half, n: 1000 };
        AccuracyChange {
            source: "test".into(),
            base: 70.0,
            candidate: 70.0 + value,
            difference,
            is_paired: true,
            tasks: Vec::new(),
        }
    }

    /// 2000 pairs of normal estimates: each interval contains its true value in about 95 % of them.
    #[test]
    fn intervals_of_cost_and_point_cover_the_truth() {
        let mut stream = Stream::new(7, "tradeoff", 0);
        let mut inside = [0; 3];
        for _ in 0..2000 {
            let [base, candidate] = [2.0, 1.2].map(|mean| normal(&mut stream, mean, 0.05));
            let change =
                CostChange::new("USD".into(), String::new(), estimate(base, 0.05), estimate(candidate, 0.05));
            let lost = normal(&mut stream, 3.0, 0.3);
            let difference =
                QualityFigure { value: -lost, lower: -lost - Z * 0.3, upper: -lost + Z * 0.3, n: 100 };
            let within = |range: &TradeoffRange, truth: f64| range.lower <= truth && truth <= range.upper;
            inside[0] += usize::from(within(&change.ratio, 0.6));
            inside[1] += usize::from(within(&change.saving, 0.8));
            let PointPrice::Known { price } = point_price(&change.saving, &difference) else {
                panic!("no price")
            };
            inside[2] += usize::from(within(&price, 0.8 / 3.0));
        }
        assert!(inside.iter().all(|n| (1870..=1930).contains(n)), "{inside:?}");
    }

    #[test]
    fn the_verdict_follows_from_both_intervals() {
        use TradeoffVerdict::{CannotTell, DoesNotPay, Pays};
        for (base, candidate, points, half, verdict) in [
            (2.0, 1.0, -0.1, 0.3, Pays),
            (2.0, 1.0, -0.9, 0.3, CannotTell),
            (2.0, 1.0, -2.0, 0.3, DoesNotPay),
            (2.0, 2.01, -0.1, 0.3, CannotTell),
            (2.0, 3.0, -0.1, 0.3, DoesNotPay),
            (2.0, 3.0, 2.0, 0.3, CannotTell),
            (2.0, 1.0, 2.0, 0.3, Pays),
        ] {
            let found = judge(Vec::new(), cost(base, candidate), accuracy(points, half), 1.0);
            assert_eq!(found.verdict, verdict, "{base} {candidate} {points}: {}", found.why);
        }
        let mut few = accuracy(0.0, 0.1);
        few.difference.n = 29;
        assert_eq!(judge(Vec::new(), cost(2.0, 1.0), few, 1.0).verdict, CannotTell);
    }

    #[test]
    fn a_point_has_no_price_where_a_difference_may_be_zero() {
        let price = |candidate: f64, points: f64| {
            point_price(&cost(2.0, candidate).saving, &accuracy(points, 0.5).difference)
        };
        assert!(matches!(price(1.0, -2.0), PointPrice::Known { price } if (price.value - 0.5).abs() < 1e-12));
        assert!(matches!(price(3.0, 2.0), PointPrice::Known { price } if (price.value - 0.5).abs() < 1e-12));
        // The saving is at least 1 − 0.0277, the loss at most 0.6.
        assert!(
            matches!(price(1.0, -0.1), PointPrice::AtLeast { price } if (price - 0.9723 / 0.6).abs() < 1e-3)
        );
        for (candidate, points) in [(2.0, -2.0), (1.0, 2.0), (3.0, -2.0), (3.0, 0.1)] {
            assert!(matches!(price(candidate, points), PointPrice::None { .. }), "{candidate} {points}");
        }
    }

    /// By hand: 3 of 100 items lost and 1 gained is −2 points; means by standard errors of 0.03 and 0.04 add to 0.05.
    #[test]
    fn items_are_paired_if_both_sides_have_the_same() {
        let side = |right: &dyn Fn(u64) -> bool| TaskScore {
            value: (0..100).filter(|i| right(*i)).count() as f64 / 100.0,
            standard_error: Some(0.03),
            n: 100,
            items: (0..100).map(|i| (i, f64::from(u8::from(right(i))))).collect(),
        };
        let (a, b) = (side(&|i| i < 60), side(&|i| (3..61).contains(&i)));
        let found = AccuracyChange::of_tasks("t", &[("x".into(), a.clone(), b.clone())]).expect("a change");
        let tango = difference(3, 1, 100, 0.95).expect("an interval");
        assert!((found.difference.value + 2.0).abs() < 1e-9 && found.is_paired);
        assert!((found.difference.lower - 100.0 * tango.lower).abs() < 1e-9);
        let apart = |score: &TaskScore, error| TaskScore {
            items: BTreeMap::new(),
            standard_error: Some(error),
            ..score.clone()
        };
        let (a, b) = (apart(&a, 0.03), apart(&b, 0.04));
        let found = AccuracyChange::of_tasks("t", &[("x".into(), a.clone(), b.clone())]).expect("a change");
        assert!((found.difference.upper - (-2.0 + 5.0 * Z)).abs() < 1e-6 && !found.is_paired);
        // Two equal tasks halve the variance; a task without an error has no interval.
        let both = [("x".into(), a.clone(), b.clone()), ("y".into(), a.clone(), b.clone())];
        let found = AccuracyChange::of_tasks("t", &both).expect("a change");
        assert!((found.difference.upper - (-2.0 + 5.0 * Z / 2f64.sqrt())).abs() < 1e-6);
        assert!(found.tasks[0].difference.upper > -2.0 + 5.0 * Z);
        let none = TaskScore { standard_error: None, ..b };
        assert!(AccuracyChange::of_tasks("t", &[("x".into(), a, none)]).is_none());
    }
}
