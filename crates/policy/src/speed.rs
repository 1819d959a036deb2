//! Replica speed: prefill and decode times, learnt from completed requests.
//!
//! The pool has two lines. One is the time to first token over the uncached prompt tokens ahead; the other is the
//! time per token over the decoding requests. Each replica has a factor on each line: measured over expected time. A
//! line per replica lost, because each slope had only dozens of requests. Equal replicas came out 30 % apart, and one
//! of eight got half more than its share of requests. The p99 was then three times that of least requests without
//! shared prompts. Unknown values come from [`UNKNOWN`].
//!
//! A replica's factors age while other replicas get requests. A replica that was slow once therefore seems average
//! again after a while, and gets a request that measures it.
//!
//! Lines and factors only fix their product: if the lines rise, all factors fall. A factor is therefore relative to
//! the mean of all factors ([`center`]), which is also the default of a new replica. The lines are learnt as if the
//! mean were 1. A default of 1 lost: a replica that was the only one came out at 0.9, because the first estimate had
//! raised the lines. Replicas that joined later seemed a tenth slower and got none of four hundred requests.

use plimsoll_model::{At, Span};

use crate::line::{KEPT, LENT, LinearEstimator, LinearFit};
use crate::load::Booking;

#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Speed {
    /// Time to first token in s over the prompt tokens to compute, minus one decode step.
    pub prefill: LinearFit,
    /// Time between two tokens in s over the decoding requests.
    pub step: LinearFit,
    /// Extra time in s per output token compared with an average replica, if certain ([`SURE`]). Without it, a
    /// replica with fast first tokens and ten times slower streams would get its full share of requests.
    pub late: f64,
}

/// Ratio to the average decode step from which the extra time of a whole response counts. A response has hundreds of
/// steps, and equal replicas differ by the prompts computed between steps. Counting from the average lost, because
/// this noise outweighed cached prompts. In simulated chat with little cache, the p99 TTFT was 1.15 times that of a
/// router with perfect knowledge; it is 1.07 now.
const SURE: f64 = 1.25;

/// Initial speed: 2 000 prompt tokens per s (as in SMG) and decode steps of 20 ms. All replicas start equal. The
/// speed only decides the value of a cached prefix against a queue for the first few requests.
pub const UNKNOWN: Speed = Speed {
    prefill: LinearFit { base: 0.02, per: 1.0 / 2_000.0 },
    step: LinearFit { base: 0.02, per: 0.000_2 },
    late: 0.0,
};

/// Assumed response length in tokens before the first response ends.
const ANSWER: f64 = 128.0;
/// Weight of a new response in the mean length.
const FRESH: f64 = 0.02;

/// Factor by which estimates age more slowly than a replica with its share of requests forgets.
const SLOWER: f64 = 8.0;
/// Number of other replicas that are aged with each point, in rotation.
const IN_TURN: usize = 2;

#[derive(Clone, PartialEq, Debug)]
pub struct Speeds {
    prefill: LinearEstimator,
    step: LinearEstimator,
    pool: Speed,
    each: Vec<Factors>,
    /// Factors of an unknown replica.
    prefill_center: f64,
    step_center: f64,
    answer: f64,
    /// Number of points, and the next replica to age.
    points: u64,
    turn: usize,
}

/// The slowness of a replica relative to the pool.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct Factors {
    prefill: Ratio,
    step: Ratio,
    /// Number of points when the factors were last aged.
    at: u64,
}

/// Sum of measured times over sum of expected times, because a long request carries more information than a short
/// one.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Ratio {
    took: f64,
    expected: f64,
    weight: f64,
    /// Precomputed terms of the factor, own + leans · center, because each decision reads them for every replica.
    own: f64,
    leans: f64,
}

impl Default for Ratio {
    fn default() -> Ratio {
        Ratio { took: 0.0, expected: 0.0, weight: 0.0, own: 0.0, leans: 1.0 }
    }
}

/// Limit on the measured speed relative to the expected one. A time near zero would otherwise dominate a mean of
/// speeds.
const FASTEST: f64 = 1e3;

/// Returns the factor of an average replica: the mean of speeds, weighted by certainty. A mean of times lost, because
/// one stalled replica would make all others seem fast and a new one slow.
fn center<'a>(each: impl Iterator<Item = &'a Ratio>) -> f64 {
    let known = each.filter(|one| one.is_known());
    let (weight, speeds) = known.fold((0.0, 0.0), |(weight, speeds), one| {
        let speed = (one.expected / one.took).min(FASTEST);
        (weight + one.weight, speeds + one.weight * speed)
    });
    if speeds > 0.0 { weight / speeds } else { 1.0 }
}

impl Ratio {
    fn learn(&mut self, took: f64, expected: f64) {
        self.took = self.took * KEPT + took;
        self.expected = self.expected * KEPT + expected;
        self.weight = self.weight * KEPT + 1.0;
        self.settle();
    }

    fn age(&mut self, factor: f64) {
        self.took *= factor;
        self.expected *= factor;
        self.weight *= factor;
        self.settle();
    }

    fn settle(&mut self) {
        // The factor leans on the center, as if `LENT` of its requests had taken exactly that.
        let all = self.weight + LENT;
        (self.own, self.leans) = match self.is_known() {
            true => (self.weight * self.took / self.expected / all, LENT / all),
            false => (0.0, 1.0),
        };
    }

    fn is_known(&self) -> bool {
        self.weight > 1e-6 && self.expected > 0.0
    }

    /// Returns the slowness relative to the lines, given the `center` of all factors.
    fn factor(&self, center: f64) -> f64 {
        self.own + self.leans * center
    }
}

impl Default for Speeds {
    fn default() -> Speeds {
        Speeds {
            prefill: LinearEstimator::default(),
            step: LinearEstimator::default(),
            pool: UNKNOWN,
            each: Vec::new(),
            prefill_center: 1.0,
            step_center: 1.0,
            answer: ANSWER,
            points: 0,
            turn: 0,
        }
    }
}

impl Speeds {
    /// Returns the speed of a replica.
    pub fn of(&self, replica: u32) -> Speed {
        let (prefill, average) = (self.prefill_center, self.step_center);
        let own = self.each.get(replica as usize);
        let (prefill, step) =
            own.map_or((prefill, average), |own| (own.prefill.factor(prefill), own.step.factor(average)));
        Speed {
            prefill: self.pool.prefill.times(prefill),
            step: self.pool.step.times(step),
            late: self.pool.step.base * (step - SURE * average).max(0.0),
        }
    }

    /// Returns the recent mean length of responses in tokens.
    pub fn answer_tokens(&self) -> f64 {
        self.answer
    }

    /// Records the first token of a request.
    pub fn first(&mut self, booking: &Booking, at: At) {
        let step = self.of(booking.replica).step.at(f64::from(booking.beside));
        let all = (at - booking.sent).as_secs_f64();
        // At least a quarter of the time counts as prefill. Otherwise a replica whose decode steps exceed its TTFT
        // would compute prompts in no time, and the others would look slow.
        let took = (all - step).max(all / 4.0);
        let place = self.place(booking.replica);
        let center = self.prefill_center;
        let slower = self.each[place].prefill.factor(center) / center;
        let x = booking.work as f64;
        let took = self.prefill.learn(x, took / slower, UNKNOWN.prefill) * slower;
        self.each[place].prefill.learn(took, self.pool.prefill.at(x));
        self.pool.prefill = self.prefill.line(UNKNOWN.prefill);
        self.prefill_center = self::center(self.each.iter().map(|own| &own.prefill));
    }

    /// Records the end of a response with this many tokens. `beside` is the number of requests that decode on the
    /// replica now.
    pub fn ended(&mut self, booking: &Booking, beside: u32, tokens: u32, at: At) {
        self.answer += FRESH * (f64::from(tokens) - self.answer);
        let Some((first, then)) = booking.first else { return };
        let took = at - first;
        if tokens < 2 || took <= Span::ZERO {
            return;
        }
        let gap = took.as_secs_f64() / f64::from(tokens - 1);
        let among = f64::from(then + beside) / 2.0;
        let place = self.place(booking.replica);
        let center = self.step_center;
        let slower = self.each[place].step.factor(center) / center;
        let gap = self.step.learn(among, gap / slower, UNKNOWN.step) * slower;
        self.each[place].step.learn(gap, self.pool.step.at(among));
        self.pool.step = self.step.line(UNKNOWN.step);
        self.step_center = self::center(self.each.iter().map(|own| &own.step));
    }

    /// Resets a replica whose number was reused.
    pub fn forget(&mut self, replica: u32) {
        if let Some(own) = self.each.get_mut(replica as usize) {
            *own = Factors { at: self.points, ..Factors::default() };
        }
    }

    /// Returns the index of a replica. Each point ages the factors of this replica and of some others, in rotation.
    fn place(&mut self, replica: u32) -> usize {
        let place = replica as usize;
        if self.each.len() <= place {
            self.each.resize(place + 1, Factors { at: self.points, ..Factors::default() });
        }
        self.points += 1;
        let many = self.each.len();
        self.bring(place);
        for _ in 0..IN_TURN.min(many) {
            self.turn = (self.turn + 1) % many;
            self.bring(self.turn);
        }
        place
    }

    /// Ages the factors of a replica to the current point.
    fn bring(&mut self, place: usize) {
        let many = self.each.len() as f64;
        let own = &mut self.each[place];
        let factor = KEPT.powf((self.points - own.at) as f64 / (SLOWER * many));
        own.at = self.points;
        own.prefill.age(factor);
        own.step.age(factor);
    }
}
