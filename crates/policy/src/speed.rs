//! How fast each replica computes prompts and writes answers, learnt from the requests that it served.
//!
//! Two lines per replica: the time to the first token over the prompt tokens that had to be computed before it, and the time between two tokens over
//! the requests that decode together. What is not known of a replica is taken from the pool, what is not known of the pool from [`UNKNOWN`].
//!
//! What is known of a replica ages while others are asked: one that was slow once and is avoided since comes to look like the pool again, and
//! gets a request that shows whether it still is.

use plimsoll_model::{At, Span};

use crate::line::{KEPT, Learnt, Line};
use crate::load::Booking;

/// How fast a replica is.
#[derive(Copy, Clone, PartialEq, Debug)]
pub struct Speed {
    /// Seconds to the first token over prompt tokens to compute, less one step.
    pub prefill: Line,
    /// Seconds between two tokens over requests that decode.
    pub step: Line,
}

/// What is taken before the first answer: 2 000 prompt tokens a second (what SMG takes too) and steps of 20 ms. All replicas are
/// taken alike, so it decides only how much a cached prefix is worth against a queue, for the first few requests.
pub const UNKNOWN: Speed =
    Speed { prefill: Line { base: 0.02, per: 1.0 / 2_000.0 }, step: Line { base: 0.02, per: 0.000_2 } };

/// Tokens of an answer before any has ended.
const ANSWER: f64 = 128.0;
/// What an answer's length weighs in the mean.
const FRESH: f64 = 0.02;

/// What is known ages by this much less than what a replica with its share of the requests forgets.
const SLOWER: f64 = 8.0;
/// Replicas besides its own whose speed is brought up to date with each point, in turn.
const IN_TURN: usize = 2;

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds {
    pool: Measured,
    each: Vec<Measured>,
    answer: f64,
    /// Points so far, and whose turn it is to be brought up to date.
    points: u64,
    turn: usize,
}

#[derive(Copy, Clone, PartialEq, Debug)]
struct Measured {
    prefill: Learnt,
    step: Learnt,
    speed: Speed,
    /// Points there were when it was brought up to date.
    at: u64,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured { prefill: Learnt::default(), step: Learnt::default(), speed: UNKNOWN, at: 0 }
    }
}

impl Measured {
    /// Ages what is known to `points` among `many` replicas, and leans it on the pool's speed.
    fn bring(&mut self, points: u64, many: usize, pool: Speed) {
        let passed = (points - self.at) as f64 / (SLOWER * many as f64);
        self.at = points;
        let factor = KEPT.powf(passed);
        self.prefill.age(factor);
        self.step.age(factor);
        self.speed = Speed { prefill: self.prefill.line(pool.prefill), step: self.step.line(pool.step) };
    }
}

impl Default for Speeds {
    fn default() -> Speeds {
        Speeds { pool: Measured::default(), each: Vec::new(), answer: ANSWER, points: 0, turn: 0 }
    }
}

impl Speeds {
    /// A replica's.
    pub fn of(&self, replica: u32) -> Speed {
        self.each.get(replica as usize).map_or(self.pool.speed, |own| own.speed)
    }

    /// Tokens that an answer has, as a mean of late.
    pub fn answer_tokens(&self) -> f64 {
        self.answer
    }

    /// A request's first token came.
    pub fn first(&mut self, booking: &Booking, at: At) {
        let step = self.of(booking.replica).step.at(f64::from(booking.beside));
        let took = ((at - booking.sent).as_secs_f64() - step).max(0.0);
        let x = booking.work as f64;
        self.learn(booking.replica, |one, prior| one.prefill.learn(x, took, prior.prefill));
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
        self.learn(booking.replica, |one, prior| one.step.learn(among, gap, prior.step));
    }

    /// One point, into the pool's line and into the replica's.
    fn learn(&mut self, replica: u32, point: impl Fn(&mut Measured, Speed)) {
        let place = replica as usize;
        if self.each.len() <= place {
            self.each.resize(
                place + 1,
                Measured { speed: self.pool.speed, at: self.points, ..Measured::default() },
            );
        }
        self.points += 1;
        point(&mut self.pool, UNKNOWN);
        let pool = &mut self.pool;
        pool.speed =
            Speed { prefill: pool.prefill.line(UNKNOWN.prefill), step: pool.step.line(UNKNOWN.step) };
        let many = self.each.len();
        point(&mut self.each[place], pool.speed);
        self.each[place].bring(self.points, many, pool.speed);
        for _ in 0..IN_TURN.min(many) {
            self.turn = (self.turn + 1) % many;
            self.each[self.turn].bring(self.points, many, pool.speed);
        }
    }
}
