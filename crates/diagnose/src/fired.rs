//! What a rule says when it fires, and the figures that rules share.

use crate::cause::Cause;
use crate::experiment::Experiment;
use crate::verdict::{Counter, Evidence, RunnerUp, Verdict};
use plimsoll_math::special::normal_inv;
use plimsoll_measure::findings::Estimate;

/// Single requests below which none of their figures is used.
pub const ALONE_NEEDED: usize = 20;

/// What of a level a cause struck.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Struck {
    /// Stretches of time, s since the level began: requests in flight during one are left out.
    pub during: Vec<(f64, f64)>,
    /// Replica: its requests are left out.
    pub replica: Option<u16>,
    /// Seconds that every first token came later.
    pub delay_s: f64,
    /// What stages before the engine take more than the baseline's is subtracted; where none is told, the request is left out.
    pub stages: bool,
    /// Tokens came in lumps: of each answer, of either side, only the end is known.
    pub lumps: bool,
}

/// A rule that fired.
#[derive(Clone, Debug)]
pub struct Fired {
    /// What it says is wrong.
    pub cause: Cause,
    /// 0 to 1.
    pub confidence: f64,
    /// One sentence with the figure that decides.
    pub says: String,
    /// What speaks for it.
    pub evidence: Vec<Evidence>,
    /// The counter that must have moved.
    pub counter: Counter,
    /// Share of the excess that it explains.
    pub explains: Option<f64>,
    /// What it struck, so that its effect can be taken out.
    pub struck: Struck,
    /// The cheapest experiment that would overturn it.
    pub overturn: Experiment,
}

impl Fired {
    /// A rule that fired, with nothing beside it yet.
    pub fn new(cause: Cause, confidence: f64, says: String) -> Fired {
        Fired {
            cause,
            confidence: confidence.clamp(0.0, 1.0),
            says,
            evidence: Vec::new(),
            counter: Counter::NoneExists,
            explains: None,
            struck: Struck::default(),
            overturn: cause.overturned_by(),
        }
    }

    /// With this evidence.
    pub fn with(mut self, evidence: Evidence) -> Fired {
        self.evidence.push(evidence);
        self
    }

    /// With this evidence, where there is any.
    pub fn maybe(mut self, evidence: Option<Evidence>) -> Fired {
        self.evidence.extend(evidence);
        self
    }

    /// With this counter.
    pub fn counted(mut self, counter: Counter) -> Fired {
        self.counter = counter;
        self
    }

    /// With another experiment than the cause's usual one.
    pub fn overturned_by(mut self, experiment: Experiment) -> Fired {
        self.overturn = experiment;
        self
    }

    /// The verdict that it is, on its own.
    pub fn verdict(&self, runner_up: Option<RunnerUp>) -> Verdict {
        let about = self.cause.about();
        Verdict {
            layer: about.layer,
            cause: self.cause,
            rule: about.rule.to_owned(),
            confidence: self.confidence,
            says: self.says.clone(),
            explains: self.explains,
            evidence: self.evidence.clone(),
            counter: self.counter.clone(),
            runner_up,
            overturn: self.overturn,
            do_first: about.first.to_owned(),
            do_not: about.not.to_owned(),
        }
    }
}

/// How far a figure is beyond its limit, bounded: 0.7 at the limit, 0.85 at twice it, 1 far beyond; under it, it falls fast.
pub fn beyond(figure: f64, limit: f64) -> f64 {
    let ratio = figure / limit;
    match ratio {
        r if r.is_nan() || r <= 0.0 => 0.0,
        r if r >= 1.0 => 1.0 - 0.3 / r,
        r => 0.7 * r.powi(6),
    }
}

/// How far a figure stays within its limit: the same, turned around.
pub fn within(figure: f64, limit: f64) -> f64 {
    beyond(limit, figure)
}

/// A share with its interval, its n discounted by `design`.
pub fn share(k: f64, n: f64, design: f64) -> Estimate {
    let n_eff = (n / design.max(1.0)).max(1.0);
    let interval = plimsoll_math::proportion::clopper_pearson(k / n.max(1.0) * n_eff, n_eff, 0.95);
    Estimate { value: k / n.max(1.0), lower: interval.lower, upper: interval.upper, n: n as u64, n_eff }
}

/// The ratio of two medians of independent values, by the order statistics of each (a normal interval of the logarithms lost:
/// single requests are few and have atoms). `None` below twenty of a side.
pub fn medians(base: &[f64], candidate: &[f64], level: f64) -> Option<Estimate> {
    let (mut a, mut b) = (base.to_vec(), candidate.to_vec());
    if a.len() < ALONE_NEEDED || b.len() < ALONE_NEEDED {
        return None;
    }
    plimsoll_math::quantile::sort(&mut a);
    plimsoll_math::quantile::sort(&mut b);
    // Each side at the level whose two together have the asked one.
    let z = normal_inv(0.5 + 0.5 * level) / std::f64::consts::SQRT_2;
    let of = |sorted: &[f64]| {
        let n = sorted.len() as f64;
        let half = z * 0.5 * libm::sqrt(n);
        let at = |rank: f64| sorted[(rank.round().max(0.0) as usize).min(sorted.len() - 1)];
        (at(n / 2.0 - half - 0.5), at(n / 2.0 - 0.5), at(n / 2.0 + half - 0.5))
    };
    let ((a0, a1, a2), (b0, b1, b2)) = (of(&a), of(&b));
    (a0 > 0.0).then(|| {
        let n = a.len().min(b.len()) as u64;
        Estimate { value: b1 / a1, lower: b0 / a2, upper: b2 / a0, n, n_eff: n as f64 }
    })
}
