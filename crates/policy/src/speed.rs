//! How fast each replica computes prompts and writes answers, learnt from the requests that it served.
//!
//! Two lines of the pool: the time to the first token over the prompt tokens that had to be computed before it, and the time between two tokens over
//! the requests that decode together. And of each replica two factors on them, what its requests took over what the lines expected. A line for each
//! replica lost: its slope rests on some dozens of its own requests, replicas that are alike came out 30 % apart, and half more requests than its share
//! went to one of eight, so that p99 was three times that of least requests where prompts share nothing. What is not known yet is taken from
//! [`UNKNOWN`].
//!
//! What is known of a replica ages while others are asked: one that was slow once and is avoided since comes to look like the pool again, and
//! gets a request that shows whether it still is.
//!
//! The lines and the factors fix only each other's product: as the lines rise, all factors fall. So what a factor means is what it is beside the
//! others' mean ([`center`]), to which one that is unknown leans, and the lines are learnt as if that mean were 1. Leaning on 1 lost: a replica
//! that had served alone came out at 0.9 because the first guess had raised the lines, and others that joined it, taken for a tenth slower, got none of four hundred
//! requests.

use plimsoll_model::{At, Span};

use crate::line::{KEPT, LENT, Learnt, Line};
use crate::load::Booking;

/// How fast a replica is.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Speed {
    /// Seconds to the first token over prompt tokens to compute, less one step.
    pub prefill: Line,
    /// Seconds between two tokens over requests that decode.
    pub step: Line,
    /// Seconds by which each token of an answer comes later than from an average replica, as far as that is sure ([`SURE`]). Without it a
    /// replica whose first tokens come in time and whose answers take ten times as long gets as many requests as the others.
    pub late: f64,
}

/// A replica's steps must be so many times as long as the average one's before a request pays for its whole answer: an answer has hundreds, and
/// by prompts computed between them replicas that are alike differ too. Counted from the average on, cached prompts lost against that chance: of our simulated
/// chat with little room p99 of the first token was 1.15 times that of a router which knows every cache, where it is 1.07 now.
const SURE: f64 = 1.25;

/// What is taken before the first answer: 2 000 prompt tokens a second (what SMG takes too) and steps of 20 ms. All replicas are
/// taken alike, so it decides only how much a cached prefix is worth against a queue, for the first few requests.
pub const UNKNOWN: Speed = Speed {
    prefill: Line { base: 0.02, per: 1.0 / 2_000.0 },
    step: Line { base: 0.02, per: 0.000_2 },
    late: 0.0,
};

/// Tokens of an answer before any has ended.
const ANSWER: f64 = 128.0;
/// What an answer's length weighs in the mean.
const FRESH: f64 = 0.02;

/// What is known ages by this much less than what a replica with its share of the requests forgets.
const SLOWER: f64 = 8.0;
/// Replicas besides its own whose speed is brought up to date with each point, in turn.
const IN_TURN: usize = 2;

#[derive(Clone, PartialEq, Debug)]
pub struct Speeds {
    prefill: Learnt,
    step: Learnt,
    pool: Speed,
    each: Vec<Factors>,
    /// What the factors of a replica are of which nothing is known.
    prefill_center: f64,
    step_center: f64,
    answer: f64,
    /// Points so far, and whose turn it is to be brought up to date.
    points: u64,
    turn: usize,
}

/// How much slower than the pool a replica is.
#[derive(Copy, Clone, PartialEq, Debug, Default)]
struct Factors {
    prefill: Ratio,
    step: Ratio,
    /// Points there were when it was brought up to date.
    at: u64,
}

/// What requests took over what was expected, sum over sum: a long one says more than a short one.
#[derive(Copy, Clone, PartialEq, Debug)]
struct Ratio {
    took: f64,
    expected: f64,
    weight: f64,
    /// Its factor is the first, and so much of the center: kept because a decision reads it of every replica.
    own: f64,
    leans: f64,
}

impl Default for Ratio {
    fn default() -> Ratio {
        Ratio { took: 0.0, expected: 0.0, weight: 0.0, own: 0.0, leans: 1.0 }
    }
}

/// So much faster than expected is taken to be no replica's own: one that took no time at all would be the whole of a mean of speeds.
const FASTEST: f64 = 1e3;

/// The factor of an average replica: the mean of speeds, each counted as far as it is known. Not the mean of times, because one replica that stands
/// still would make all others look fast beside it, and a newcomer slow.
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
        // It leans on the center, as if so many requests of its own had taken just that.
        let all = self.weight + LENT;
        (self.own, self.leans) = match self.is_known() {
            true => (self.weight * self.took / self.expected / all, LENT / all),
            false => (0.0, 1.0),
        };
    }

    fn is_known(&self) -> bool {
        self.weight > 1e-6 && self.expected > 0.0
    }

    /// How much slower than the lines it is, where an average replica is by `center`.
    fn factor(&self, center: f64) -> f64 {
        self.own + self.leans * center
    }
}

impl Default for Speeds {
    fn default() -> Speeds {
        Speeds {
            prefill: Learnt::default(),
            step: Learnt::default(),
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
    /// A replica's.
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

    /// Tokens that an answer has, as a mean of late.
    pub fn answer_tokens(&self) -> f64 {
        self.answer
    }

    /// A request's first token came.
    pub fn first(&mut self, booking: &Booking, at: At) {
        let step = self.of(booking.replica).step.at(f64::from(booking.beside));
        let all = (at - booking.sent).as_secs_f64();
        // A quarter is the prompt's at the least: were nothing of it, a replica whose steps are longer than its first tokens take would compute
        // prompts in no time, and beside it the others would look slow.
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

    /// A request's answer of so many tokens ended; `beside`: requests that decode there now.
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

    /// What was known of a replica is of another that had its number.
    pub fn forget(&mut self, replica: u32) {
        if let Some(own) = self.each.get_mut(replica as usize) {
            *own = Factors { at: self.points, ..Factors::default() };
        }
    }

    /// A replica's place; with each point it and some others, in turn, are brought up to date.
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

    /// Ages what is known of a replica to now.
    fn bring(&mut self, place: usize) {
        let many = self.each.len() as f64;
        let own = &mut self.each[place];
        let factor = KEPT.powf((self.points - own.at) as f64 / (SLOWER * many));
        own.at = self.points;
        own.prefill.age(factor);
        own.step.age(factor);
    }
}
