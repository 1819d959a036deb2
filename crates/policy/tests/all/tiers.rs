//! Fallback lists of models: the tier of a request, and queueing across models.

use std::collections::BTreeMap;

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::{
    AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams, AdmissionSpec,
    DequeueDecision, QueuedRequestFacts, Refusal, ReplicaOutcome, RequestFacts, RouteSpec, SentRequest,
};
use proptest::prelude::*;

const LARGE: u64 = 1;
const SMALL: u64 = 2;
const CHAT: u64 = 100;

#[derive(Clone, Copy, Debug)]
struct Prompt {
    model: u64,
    tokens: u32,
}

impl QueuedRequestFacts for Prompt {
    fn facts(&self) -> RequestFacts<'_> {
        RequestFacts {
            model: Some(self.model),
            prompt_tokens: self.tokens,
            streams: true,
            ..RequestFacts::default()
        }
    }
}

fn at(s: f64) -> At {
    At::ZERO + Span::from_secs_f64(s)
}

/// Returns a pool with these models, and `chat` as a fallback list of large and small.
fn front(models: &[u64]) -> AdmissionController<Prompt> {
    let route = RouteSpec::parse("least_cost").expect("sound");
    let admission = AdmissionSpec { requests: 10_000, ..AdmissionSpec::default() };
    let spec = AdmissionControlSpec { route, admission, ..AdmissionControlSpec::default() };
    let mut front = AdmissionController::new(&spec, models.len(), At::ZERO);
    front.set_tiers([(CHAT, vec![LARGE, SMALL])]);
    for (replica, model) in (0u32..).zip(models) {
        front.set_models(replica, Some(vec![*model]));
        front.set_up(replica, true);
    }
    front
}

fn offer(
    front: &mut AdmissionController<Prompt>,
    model: u64,
    slo_s: Option<f64>,
    now: At,
) -> AdmissionDecision {
    let prompt = Prompt { model, tokens: 1_000 };
    let terms =
        AdmissionParams { class: 0, tenant: 0, came: now, slo: slo_s.map(Span::from_secs_f64), bytes: 0 };
    front.offer(&prompt.facts(), &terms, now, &mut Stream::new(1, "test", 0), || prompt)
}

fn sent(offer: AdmissionDecision) -> SentRequest {
    match offer {
        AdmissionDecision::Sent(sent) => sent,
        other => panic!("room: {other:?}"),
    }
}

/// The initial speed is 2 000 tokens/s with steps of 20 ms. So 1 000 tokens take 0.54 s on an idle replica and 1.04 s
/// behind another request.
#[test]
fn the_first_choice_answers_unless_it_would_be_late() {
    let mut front = front(&[LARGE, SMALL]);
    let first = sent(offer(&mut front, CHAT, Some(1.0), at(0.0)));
    assert_eq!((first.booking.replica, first.tier), (0, 0));
    assert!(front.passed().is_empty());
    let second = sent(offer(&mut front, CHAT, Some(1.0), at(0.0)));
    assert_eq!((second.booking.replica, second.tier), (1, 1));
    let [(0, Some(late))] = front.passed() else { panic!("{:?}", front.passed()) };
    assert!((late.as_secs_f64() - 0.04).abs() < 0.011, "{late:?}");
    // Now both tiers would be late; a request with more time still gets the first one.
    assert!(matches!(
        offer(&mut front, CHAT, Some(1.0), at(0.0)),
        AdmissionDecision::Refused(Refusal::Late(_))
    ));
    assert_eq!(sent(offer(&mut front, CHAT, Some(1.1), at(0.0))).tier, 0);
    // Without a TTFT objective, no tier is late.
    assert!(matches!(offer(&mut front, CHAT, None, at(0.0)), AdmissionDecision::Queued { .. }));
}

#[test]
fn the_next_stands_in_where_the_first_has_no_replica() {
    let mut front = front(&[LARGE, SMALL]);
    front.set_up(0, false);
    assert_eq!(sent(offer(&mut front, CHAT, None, at(0.0))).tier, 1);
    assert_eq!(front.passed(), [(0, None)]);
    front.set_up(0, true);
    assert_eq!(sent(offer(&mut front, CHAT, None, at(0.0))).tier, 0);
    // A request for a specific model gets no other.
    front.set_up(0, false);
    assert!(matches!(offer(&mut front, LARGE, None, at(0.0)), AdmissionDecision::Queued { .. }));
    // Without any replica the request waits for the first one that comes up.
    front.set_up(1, false);
    let AdmissionDecision::Queued { ticket, .. } = offer(&mut front, CHAT, None, at(0.0)) else {
        panic!("it waits")
    };
    front.set_up(1, true);
    let (told, given) = front.pump_one(at(1.0), &mut Stream::new(1, "test", 0)).expect("one goes");
    let DequeueDecision::Sent(given) = given else { panic!("{given:?}") };
    assert_eq!((told, given.booking.replica, given.tier), (ticket, 1, 1));
}

/// A replica gets 2 000 tokens ahead; a third request waits for the first tier until they are computed.
#[test]
fn who_waits_for_a_replica_that_goes_away_gets_what_stands_in() {
    let mut front = front(&[LARGE, SMALL]);
    (0..2).for_each(|_| assert_eq!(sent(offer(&mut front, CHAT, None, at(0.0))).tier, 0));
    let AdmissionDecision::Queued { ticket, .. } = offer(&mut front, CHAT, None, at(0.0)) else {
        panic!("no room")
    };
    let mut chance = Stream::new(1, "test", 0);
    assert!(front.pump_one(at(0.1), &mut chance).is_none(), "small has room, and is not what is waited for");
    front.set_up(0, false);
    let Some((told, DequeueDecision::Sent(given))) = front.pump_one(at(0.2), &mut chance) else {
        panic!("it goes")
    };
    assert_eq!((told, given.tier), (ticket, 1));
    assert_eq!(front.passed(), [(0, None)]);
    assert!(!front.has_waiting());
}

#[test]
fn a_request_that_failed_goes_on_and_not_back() {
    let mut front = front(&[LARGE, LARGE, SMALL]);
    let mut chance = Stream::new(1, "test", 0);
    let facts = |tier| RequestFacts { model: Some(CHAT), tier, prompt_tokens: 10, ..RequestFacts::default() };
    let mut again = |front: &mut AdmissionController<Prompt>, tier, tried: &[u32]| {
        front.again(&facts(tier), tried, at(0.0), &mut chance).map(|sent| (sent.booking.replica, sent.tier))
    };
    assert_eq!(again(&mut front, 0, &[0]), Some((1, 0)), "the other one of the same model");
    assert_eq!(again(&mut front, 0, &[0, 1]), Some((2, 1)));
    assert_eq!(again(&mut front, 1, &[2]), None, "large was passed over when it came");
    assert_eq!(again(&mut front, 0, &[0, 1, 2]), None);
}

/// Fifty requests wait for large, which is 25 s of work. A request for small waits only for small.
#[test]
fn who_waits_for_another_model_is_before_nobody() {
    let mut front = front(&[LARGE, SMALL]);
    for _ in 0..52 {
        let _ = offer(&mut front, LARGE, None, at(0.0));
    }
    assert_eq!(front.held_by(0).requests, 50);
    let small = sent(offer(&mut front, SMALL, Some(5.0), at(0.0)));
    assert!(small.expected < Span::from_secs(1), "{:?}", small.expected);
    sent(offer(&mut front, SMALL, None, at(0.0)));
    // Half a second is for its own prompt, and one second for the work on the replica. Each queued request for small
    // adds half a second, and half of its own prompt is added.
    for n in 0..4 {
        let queued = offer(&mut front, SMALL, Some(2.9), at(0.0));
        match n {
            0..3 => assert!(matches!(queued, AdmissionDecision::Queued { .. }), "{n}: {queued:?}"),
            _ => assert!(matches!(queued, AdmissionDecision::Refused(Refusal::Late(_))), "{queued:?}"),
        }
    }
    // A request for either model would be late at both.
    assert!(matches!(
        offer(&mut front, CHAT, Some(1.5), at(0.0)),
        AdmissionDecision::Refused(Refusal::Late(_))
    ));
}

proptest! {
    /// For any events, even with clock steps of hours, a request is only on a replica that serves its tier's model.
    /// Every request is accounted for.
    #[test]
    fn nobody_is_asked_what_it_does_not_serve(
        events in proptest::collection::vec((0u8..9, 0u32..4, any::<u16>()), 1..400),
    ) {
        let serves = [LARGE, LARGE, SMALL, SMALL];
        let mut front = front(&serves);
        let mut chance = Stream::new(5, "test", 0);
        let (mut running, mut waiting) = (Vec::<(u64, SentRequest)>::new(), BTreeMap::<u64, u64>::new());
        let (mut came, mut over, mut now) = (0, 0, at(0.0));
        let check = |model: u64, sent: &SentRequest| {
            let asked = if model == CHAT { [LARGE, SMALL][sent.tier as usize] } else { model };
            assert_eq!(serves[sent.booking.replica as usize], asked, "{sent:?}");
        };
        for &(what, replica, number) in &events {
            now += Span::from_millis(50);
            match what {
                0..3 => {
                    came += 1;
                    let model = [LARGE, SMALL, CHAT][usize::from(what)];
                    match offer(&mut front, model, (number % 3 > 0).then(|| f64::from(number % 7)), now) {
                        AdmissionDecision::Sent(sent) => { check(model, &sent); running.push((model, sent)); }
                        AdmissionDecision::Queued { ticket, .. } => drop(waiting.insert(ticket, model)),
                        AdmissionDecision::Refused(_) => over += 1,
                    }
                }
                3 => front.set_up(replica, number % 3 > 0),
                4 => if let Some((_, sent)) = running.get_mut(usize::from(number) % 16)
                    && sent.booking.first.is_none() { front.first(sent, now); },
                5 | 6 => if usize::from(number) % 16 < running.len() {
                    let (_, sent) = running.swap_remove(usize::from(number) % 16);
                    front.ended(sent, (what == 5).then_some(ReplicaOutcome::Worked), 10, now, &mut chance);
                    over += 1;
                },
                7 => now += Span::from_secs(i64::from(number) - 32_768),
                _ => if let Some(ticket) = waiting.keys().next().copied() {
                    let left = if number % 2 == 0 { front.leave(ticket) } else { front.expire(ticket, now).is_some() };
                    // The request may have lost its place to another one; the next pump reports it.
                    if left { waiting.remove(&ticket); over += 1; }
                },
            }
            let mut given = Vec::new();
            front.pump(now, &mut chance, &mut given);
            for (ticket, given) in given {
                let model = waiting.remove(&ticket).expect("it waited");
                match given {
                    DequeueDecision::Sent(sent) => { check(model, &sent); running.push((model, sent)); }
                    DequeueDecision::Refused(_) => over += 1,
                }
            }
            prop_assert_eq!(came, over + running.len() + waiting.len());
        }
        waiting.keys().for_each(|ticket| assert!(front.leave(*ticket)));
        prop_assert!(!front.has_waiting());
        prop_assert_eq!(front.held_by(0).tokens, 0);
    }
}
