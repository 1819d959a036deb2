//! How fast each replica computes prompts and writes answers, learnt from the requests that it served.
//!
//! Two lines per replica: the time to the first token over the prompt tokens that had to be computed before it, and the time between two tokens over
//! the requests that decode together. What is not known of a replica is taken from the pool, what is not known of the pool from [`UNKNOWN`].

use plimsoll_model::{At, Span};

use crate::line::{Learnt, Line};
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

/// See the module.
#[derive(Clone, PartialEq, Debug)]
pub struct Speeds {
    pool: Measured,
    each: Vec<Measured>,
    answer: f64,
}

#[derive(Copy, Clone, PartialEq, Debug)]
struct Measured {
    prefill: Learnt,
    step: Learnt,
    speed: Speed,
}

impl Default for Measured {
    fn default() -> Measured {
        Measured { prefill: Learnt::default(), step: Learnt::default(), speed: UNKNOWN }
    }
}

impl Default for Speeds {
    fn default() -> Speeds {
        Speeds { pool: Measured::default(), each: Vec::new(), answer: ANSWER }
    }
}

impl Speeds {
    /// A replica's.
    pub fn of(&self, replica: u32) -> Speed {
        match self.each.get(replica as usize) {
            Some(own) if own.prefill != Learnt::default() => own.speed,
            _ => self.pool.speed,
        }
    }

    /// Tokens that an answer has, as a mean of late.
    pub fn answer_tokens(&self) -> f64 {
        self.answer
    }

    /// A request's first token came.
    pub fn first(&mut self, booking: &Booking, at: At) {
        let step = self.of(booking.replica).step.at(f64::from(booking.beside));
        let took = ((at - booking.sent).as_secs_f64() - step).max(0.0);
        self.learn(booking.replica, UNKNOWN.prefill, |one| {
            (&mut one.prefill, &mut one.speed.prefill, booking.work as f64, took)
        });
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
        self.learn(booking.replica, UNKNOWN.step, |one| (&mut one.step, &mut one.speed.step, among, gap));
    }

    /// One point, into the pool's line first and then into the replica's, which leans on it.
    fn learn(
        &mut self,
        replica: u32,
        unknown: Line,
        point: impl Fn(&mut Measured) -> (&mut Learnt, &mut Line, f64, f64),
    ) {
        let place = replica as usize;
        if self.each.len() <= place {
            self.each.resize(place + 1, Measured::default());
        }
        let mut prior = unknown;
        for one in [&mut self.pool, &mut self.each[place]] {
            let (learnt, line, x, y) = point(one);
            learnt.learn(x, y, prior);
            *line = learnt.line(prior);
            prior = *line;
        }
    }
}
