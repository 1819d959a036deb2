//! Predicted against actual waiting times: replicas of known speed in virtual time, at loads from 0.8 to 1.2.

use std::collections::HashMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::{
    AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams, AdmissionSpec,
    DequeueDecision, QueuedRequestFacts, ReplicaOutcome, RequestFacts, RouteSpec, SentRequest,
};

#[derive(Clone, Copy)]
struct Prompt(u32);

impl QueuedRequestFacts for Prompt {
    fn facts(&self) -> RequestFacts<'_> {
        RequestFacts { prompt_tokens: self.0, streams: true, ..RequestFacts::default() }
    }
}

/// A replica that computes prompts in sequence and decodes responses concurrently in its slots.
struct Server {
    tokens_per_s: f64,
    slots: usize,
    answer_s: f64,
    each: Vec<Replica>,
}

#[derive(Default)]
struct Replica {
    /// Queued prompts; the first one is in progress until `busy`.
    prompts: Vec<(u64, u32)>,
    busy: Option<At>,
    /// End times of the responses.
    answers: Vec<(At, u64)>,
}

impl Server {
    fn next(&self) -> At {
        let ends = self.each.iter().flat_map(|one| one.answers.iter().map(|(end, _)| *end).chain(one.busy));
        ends.min().unwrap_or(At::MAX)
    }

    fn start(&mut self, place: usize, now: At) {
        let one = &mut self.each[place];
        if one.busy.is_none()
            && one.answers.len() < self.slots
            && let Some((_, tokens)) = one.prompts.first()
        {
            one.busy = Some(now + Span::from_secs_f64(f64::from(*tokens) / self.tokens_per_s));
        }
    }
}

/// The results of a load: requests, sums of predicted and actual TTFT of the answered ones, and the rejected and late
/// shares.
#[derive(Debug)]
struct Outcome {
    answered: u32,
    refused: u32,
    expired: u32,
    late: u32,
    predicted_s: f64,
    came_s: f64,
    queued: u32,
}

fn outcome(server: &mut Server, rate_per_s: f64, slo_s: f64, seed: u64) -> Outcome {
    let route = RouteSpec::parse("least_cost").expect("sound");
    let spec = AdmissionControlSpec {
        route,
        admission: AdmissionSpec::default(),
        ..AdmissionControlSpec::default()
    };
    let mut front: AdmissionController<Prompt> = AdmissionController::new(&spec, server.each.len(), At::ZERO);
    (0..server.each.len() as u32).for_each(|replica| front.set_up(replica, true));
    let (mut chance, mut load) = (Stream::new(seed, "front", 0), Stream::new(seed, "load", 0));
    let mut seen =
        Outcome { answered: 0, refused: 0, expired: 0, late: 0, predicted_s: 0.0, came_s: 0.0, queued: 0 };
    let (mut running, mut came): (HashMap<u64, SentRequest>, HashMap<u64, At>) = Default::default();
    let mut waiting: HashMap<u64, (u64, Prompt)> = HashMap::new();
    let mut out: Vec<(u64, DequeueDecision)> = Vec::new();
    let (mut now, mut next, mut number) = (At::ZERO, At::ZERO, 0u64);
    // The first tenth is excluded, because the estimates are still being learnt.
    const ALL: u64 = 4_000;
    while number < ALL || !running.is_empty() {
        let event = server.next();
        let arrives = number < ALL && next <= event;
        now = now.max(if arrives { next } else { event });
        let mut sends = Vec::new();
        if arrives {
            number += 1;
            let tokens = 200 + load.below(3_000) as u32;
            next = now + Span::from_secs_f64(-(1.0 - load.uniform()).ln() / rate_per_s);
            came.insert(number, now);
            let terms = AdmissionParams {
                class: 0,
                tenant: 0,
                came: now,
                slo: Some(Span::from_secs_f64(slo_s)),
                bytes: 0,
            };
            match front.offer(&Prompt(tokens).facts(), &terms, now, &mut chance, || Prompt(tokens)) {
                AdmissionDecision::Sent(sent) => sends.push((number, Prompt(tokens), sent)),
                AdmissionDecision::Queued { ticket, .. } => {
                    seen.queued += 1;
                    waiting.insert(ticket, (number, Prompt(tokens)));
                }
                AdmissionDecision::Refused(_) => seen.refused += 1,
            }
        } else {
            for place in 0..server.each.len() {
                let one = &mut server.each[place];
                one.answers.retain(|&(end, id)| {
                    if end <= now {
                        let sent = running.remove(&id).expect("it runs");
                        front.ended(sent, Some(ReplicaOutcome::Worked), 100, now, &mut chance);
                    }
                    end > now
                });
                if one.busy.is_some_and(|busy| busy <= now) {
                    one.busy = None;
                    let (id, _) = one.prompts.remove(0);
                    one.answers.push((now + Span::from_secs_f64(server.answer_s), id));
                    let sent = running.get_mut(&id).expect("it runs");
                    front.first(sent, now);
                    let took = (now - came[&id]).as_secs_f64();
                    if id > ALL / 10 {
                        seen.answered += 1;
                        seen.late += u32::from(took > slo_s);
                        seen.predicted_s += sent.expected.as_secs_f64();
                        seen.came_s += took;
                    }
                }
                server.start(place, now);
            }
        }
        front.pump(now, &mut chance, &mut out);
        for (ticket, given) in out.drain(..) {
            let (id, prompt) = waiting.remove(&ticket).expect("it waits");
            match given {
                DequeueDecision::Sent(sent) => sends.push((id, prompt, sent)),
                DequeueDecision::Refused(_) => seen.expired += 1,
            }
        }
        for (id, prompt, sent) in sends {
            let place = sent.booking.replica as usize;
            running.insert(id, sent);
            server.each[place].prompts.push((id, prompt.0));
            server.start(place, now);
        }
    }
    seen
}

fn servers(slots: usize, answer_s: f64) -> Server {
    let each = (0..4).map(|_| Replica::default()).collect();
    Server { tokens_per_s: 10_000.0, slots, answer_s, each }
}

/// With a mean of 1 700 prompt tokens and 10 000 tokens/s on each of four replicas, the capacity is 23.5 requests per
/// s.
#[test]
fn the_predicted_wait_comes_where_prompts_are_what_takes_time() {
    for load in [0.8, 0.9, 1.0, 1.1, 1.2] {
        let seen = outcome(&mut servers(1_000, 2.0), load * 40_000.0 / 1_700.0, 4.0, 7);
        let ratio = seen.predicted_s / seen.came_s;
        println!("prompts, load {load}: predicted / came {ratio:.3}, {seen:?}");
        assert!((0.8..=1.25).contains(&ratio), "load {load}: {ratio}, {seen:?}");
        assert!(f64::from(seen.late) <= 0.05 * f64::from(seen.answered), "load {load}: {seen:?}");
    }
}

/// With eight slots on each of four replicas and responses of 4 s, the capacity is 8 requests per s. Prompts take a
/// sixth of a second.
#[test]
fn the_predicted_wait_comes_where_slots_are_what_is_short() {
    for load in [0.8, 0.9, 1.0, 1.1, 1.2] {
        let seen = outcome(&mut servers(8, 4.0), load * 32.0 / 4.17, 10.0, 7);
        let ratio = seen.predicted_s / seen.came_s;
        println!("slots, load {load}: predicted / came {ratio:.3}, {seen:?}");
        assert!((0.8..=1.25).contains(&ratio), "load {load}: {ratio}, {seen:?}");
    }
}
