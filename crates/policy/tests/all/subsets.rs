//! Requests with an allowlist of replicas: no other replica ever gets them, and they do not block requests that can
//! go elsewhere.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::{
    AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams, AdmissionSpec,
    DequeueDecision, QueuedRequestFacts, Refusal, ReplicaLoad, ReplicaOutcome, RequestFacts, RouteSpec,
    SentRequest, Ticket,
};
use proptest::prelude::*;

const REPLICAS: u32 = 5;
const ROUTES: [&str; 9] = [
    "least_cost",
    "round_robin",
    "random",
    "least_requests",
    "least_tokens",
    "power_of_two",
    "peak_ewma",
    "session",
    "prefix",
];

#[derive(Clone, Debug)]
struct Ask {
    among: Option<Vec<u32>>,
    blocks: Vec<u64>,
}

impl Ask {
    fn of(among: Option<Vec<u32>>, prompt: u64) -> Ask {
        Ask { among, blocks: (0..4).map(|block| prompt * 100 + block).collect() }
    }
}

impl QueuedRequestFacts for Ask {
    fn facts(&self) -> RequestFacts<'_> {
        let among = self.among.as_deref();
        RequestFacts {
            session: Some(self.blocks[0]),
            blocks: &self.blocks,
            prompt_tokens: 400,
            among,
            ..RequestFacts::default()
        }
    }
}

fn front(route: &str, per_replica: u32) -> AdmissionController<Ask> {
    let route = RouteSpec::parse(route).expect("sound");
    let admission = AdmissionSpec { per_replica: Some(per_replica), ..AdmissionSpec::default() };
    let spec = AdmissionControlSpec { route, admission, ..AdmissionControlSpec::default() };
    let mut front = AdmissionController::new(&spec, REPLICAS as usize, At::ZERO);
    (0..REPLICAS).for_each(|replica| front.set_up(replica, true));
    front
}

fn terms(now: At) -> AdmissionParams {
    AdmissionParams { class: 0, tenant: 0, came: now, slo: None, bytes: 0 }
}

#[test]
fn who_allows_nobody_that_is_there_is_told_so_at_once() {
    let (mut front, mut chance) = (front("least_cost", 8), Stream::new(1, "test", 0));
    let mut offer = |front: &mut AdmissionController<Ask>, among: Option<Vec<u32>>| {
        let ask = Ask::of(among, 1);
        front.offer(&ask.facts(), &terms(At::ZERO), At::ZERO, &mut chance, || ask.clone())
    };
    assert_eq!(offer(&mut front, Some(vec![])), AdmissionDecision::Refused(Refusal::NoReplica));
    front.set_up(2, false);
    assert_eq!(offer(&mut front, Some(vec![2])), AdmissionDecision::Refused(Refusal::NoReplica));
    assert!(
        matches!(offer(&mut front, Some(vec![2, 3])), AdmissionDecision::Sent(sent) if sent.booking.replica == 3)
    );
    (0..REPLICAS).for_each(|replica| front.set_up(replica, false));
    assert!(
        matches!(offer(&mut front, None), AdmissionDecision::Queued { .. }),
        "others wait for a restart to be over"
    );
}

#[test]
fn the_next_best_are_the_others_in_the_order_of_their_cost_and_nothing_is_booked() {
    let (mut front, mut chance) = (front("least_cost", 8), Stream::new(1, "test", 0));
    let mut sent = Vec::new();
    // The number of requests decreases with the replica number.
    for replica in 0..REPLICAS {
        for _ in replica..REPLICAS {
            let ask = Ask::of(Some(vec![replica]), u64::from(replica) * 10 + sent.len() as u64);
            let offer = front.offer(&ask.facts(), &terms(At::ZERO), At::ZERO, &mut chance, || ask.clone());
            let AdmissionDecision::Sent(one) = offer else { panic!("room: {offer:?}") };
            sent.push(one);
        }
    }
    let loads = |front: &AdmissionController<Ask>| {
        (0..REPLICAS).map(|replica| front.load(replica)).collect::<Vec<ReplicaLoad>>()
    };
    let before = loads(&front);
    let ask = Ask::of(None, 999);
    let last = sent.last().expect("sent");
    assert_eq!(last.booking.replica, 4);
    assert_eq!(front.next_best(&ask.facts(), last, At::ZERO), [3, 2, 1, 0]);
    let some = Ask::of(Some(vec![0, 2, 4]), 999);
    assert_eq!(front.next_best(&some.facts(), last, At::ZERO), [2, 0]);
    assert_eq!(loads(&front), before);
}

proptest! {
    /// Under every policy, with queues, retries and changes of the replica set, a request goes only to an allowed
    /// replica and gets exactly one result.
    #[test]
    fn nobody_else_ever_gets_it(
        route in 0..ROUTES.len(),
        per_replica in 1u32..4,
        steps in prop::collection::vec((0u8..6, prop::option::of(0u32..32), 0u64..6), 1..120),
        seed: u64,
    ) {
        let (mut front, mut chance) = (front(ROUTES[route], per_replica), Stream::new(seed, "test", 0));
        let mut waiting: Vec<(Ticket, Ask)> = Vec::new();
        let mut open: Vec<(SentRequest, Ask)> = Vec::new();
        let (mut came, mut over) = (0, 0);
        for (number, (what, among, prompt)) in steps.into_iter().enumerate() {
            let now = At::ZERO + Span::from_millis(number as i64 * 10);
            let among = among.map(|bits| (0..REPLICAS).filter(|replica| bits >> replica & 1 == 1).collect());
            match what {
                0..=2 => {
                    let ask = Ask::of(among, prompt);
                    came += 1;
                    match front.offer(&ask.facts(), &terms(now), now, &mut chance, || ask.clone()) {
                        AdmissionDecision::Sent(sent) => open.push((sent, ask)),
                        AdmissionDecision::Queued { ticket, .. } => waiting.push((ticket, ask)),
                        AdmissionDecision::Refused(_) => over += 1,
                    }
                }
                3 if !open.is_empty() => {
                    let (sent, _) = open.remove(prompt as usize % open.len());
                    front.ended(sent, Some(ReplicaOutcome::Worked), 1, now, &mut chance);
                    over += 1;
                }
                4 if !open.is_empty() => {
                    let (sent, ask) = open.remove(prompt as usize % open.len());
                    front.ended(sent, Some(ReplicaOutcome::Shed(None)), 0, now, &mut chance);
                    match front.again(&ask.facts(), &[sent.booking.replica], now, &mut chance) {
                        Some(again) => open.push((again, ask)),
                        None => over += 1,
                    }
                }
                _ => front.set_up(prompt as u32 % REPLICAS, number % 3 != 0),
            }
            let mut out = Vec::new();
            front.pump(now, &mut chance, &mut out);
            for (ticket, given) in out {
                let place = waiting.iter().position(|(own, _)| *own == ticket).expect("it waited");
                let (_, ask) = waiting.remove(place);
                match given {
                    DequeueDecision::Sent(sent) => open.push((sent, ask)),
                    DequeueDecision::Refused(_) => over += 1,
                }
            }
            for (sent, ask) in &open {
                let may = ask.among.as_ref().is_none_or(|among| among.contains(&sent.booking.replica));
                prop_assert!(may, "{ask:?} at {}", sent.booking.replica);
                for next in front.next_best(&ask.facts(), sent, now) {
                    prop_assert!(next != sent.booking.replica);
                    prop_assert!(ask.among.as_ref().is_none_or(|among| among.contains(&next)));
                }
            }
            prop_assert_eq!(came, over + open.len() + waiting.len());
        }
        // With all replicas up and idle, the queue is empty.
        let now = At::ZERO + Span::from_secs(10);
        (0..REPLICAS).for_each(|replica| front.set_up(replica, true));
        for _ in 0..200 {
            for (sent, _) in open.drain(..) {
                front.ended(sent, Some(ReplicaOutcome::Worked), 1, now, &mut chance);
            }
            let mut out = Vec::new();
            front.pump(now, &mut chance, &mut out);
            for (ticket, given) in out {
                let place = waiting.iter().position(|(own, _)| *own == ticket).expect("it waited");
                let (_, ask) = waiting.remove(place);
                if let DequeueDecision::Sent(sent) = given {
                    open.push((sent, ask));
                }
            }
        }
        prop_assert!(waiting.is_empty(), "{waiting:?}");
    }
}
