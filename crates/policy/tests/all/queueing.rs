//! Queueing: properties that hold for all inputs, and cases that are computed by hand.

use std::collections::{BTreeMap, HashMap};

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, BudgetState, Span};
use plimsoll_policy::{
    AdmissionClassSpec, AdmissionControlSpec, AdmissionController, AdmissionDecision, AdmissionParams,
    AdmissionSpec, DequeueDecision, FairQueue, Order, QueueShare, QueuedRequestFacts, Refusal,
    ReplicaAvailability, ReplicaLoad, ReplicaOutcome, RequestFacts, RouteSpec, SentRequest,
};
use proptest::prelude::*;

fn order(class: usize, tenant: u64, due: i64) -> Order {
    Order { class, tenant, due: At(due) }
}

fn held(tokens: u64) -> QueueShare {
    QueueShare { requests: 1, tokens, bytes: 4 * tokens }
}

#[test]
fn a_tenants_earliest_deadline_goes_first_and_what_has_none_by_its_turn() {
    let mut queue = FairQueue::new([0.0]);
    for (due, name) in [(30, "late"), (10, "soon"), (20, "between"), (10, "soon too")] {
        queue.put(order(0, 1, due), held(5), name);
    }
    let served: Vec<&str> = std::iter::from_fn(|| queue.serve(queue.next(|_| true)?, 5)).collect();
    assert_eq!(served, ["soon", "soon too", "between", "late"]);
    assert_eq!(queue.held(), QueueShare::default());
}

/// Tenant 1 has 300 tokens in requests of 100, tenant 2 has one request of 50, and class 1 has 40 tokens.
#[test]
fn what_is_ahead_is_what_fair_turns_would_serve_before() {
    let mut queue = FairQueue::new([0.0, 0.0]);
    for due in 0..3 {
        queue.put(order(0, 1, due), held(100), ());
    }
    queue.put(order(0, 2, 0), held(50), ());
    queue.put(order(1, 1, 0), held(40), ());
    // Its own three requests are ahead, and tenant 2 gets its 50 tokens in the meantime.
    assert_eq!(queue.ahead(order(0, 1, 9)), 350);
    // The deadline precedes its own requests: only the first token of a tenant with an equal count is ahead.
    assert_eq!(queue.ahead(order(0, 1, -1)), 1);
    // A tenant without requests waits at most for the first token of each other tenant.
    assert_eq!(queue.ahead(order(0, 3, 9)), 2);
    // The lower class waits for all of the higher class and for its own.
    assert_eq!(queue.ahead(order(1, 1, 9)), 350 + 40);
}

#[test]
fn where_there_is_no_room_the_longest_queues_last_gives_way() {
    let mut queue = FairQueue::new([0.0, 0.0]);
    let tickets: Vec<u64> = (0..3).map(|due| queue.put(order(0, 1, due), held(100), ())).collect();
    queue.put(order(0, 2, 0), held(50), ());
    assert_eq!(queue.longest(order(0, 2, 0), held(100)), Some(tickets[2]), "150 are fewer than 300");
    assert_eq!(queue.longest(order(0, 1, 0), held(1)), None, "its own is the longest");
    assert_eq!(queue.longest(order(1, 2, 0), held(1)), None, "nobody of a class before gives way");
    let bulk = queue.put(order(1, 1, 0), held(1), ());
    assert_eq!(queue.longest(order(0, 1, 0), held(500)), Some(bulk), "the last class gives way to the first");
}

#[test]
fn settings_out_of_range_are_named() {
    let spec = AdmissionSpec::default();
    assert_eq!(spec.validate(), Ok(()));
    let class = |name: &str, share| AdmissionClassSpec {
        name: name.to_owned(),
        share,
        slo_ttft_ms: None,
        gives_way: false,
    };
    for (spec, says) in [
        (AdmissionSpec { ahead_s: -1.0, ..spec.clone() }, "ahead_s"),
        (AdmissionSpec { per_replica: Some(0), ..spec.clone() }, "per_replica"),
        (AdmissionSpec { slo_ttft_ms: Some(f64::NAN), ..spec.clone() }, "slo_ttft_ms"),
        (AdmissionSpec { classes: vec![], ..spec.clone() }, "the list is empty"),
        (AdmissionSpec { classes: vec![class("a", 0.0), class("a", 0.0)], ..spec.clone() }, "\"a\""),
        (AdmissionSpec { classes: vec![class("a", 0.6), class("b", 0.6)], ..spec.clone() }, "1.2"),
    ] {
        let said = spec.validate().expect_err("refused").to_string();
        assert!(said.contains(says), "{said}");
    }
}

proptest! {
    /// Two tenants that always wait get tokens that differ by at most their largest requests, at any time.
    #[test]
    fn backlogged_tenants_get_equal_tokens(sizes in prop::collection::vec((1u64..5_000, 1u64..50), 40..120)) {
        let mut queue = FairQueue::new([0.0]);
        let (mut served, mut most) = ([0u64; 2], [0u64; 2]);
        for (due, &(large, small)) in (0..).zip(&sizes) {
            queue.put(order(0, 1, due), held(large), (0, large));
            for _ in 0..20 {
                queue.put(order(0, 2, due), held(small), (1, small));
            }
            most = [most[0].max(large), most[1].max(small)];
        }
        let mut left = [sizes.len(), 20 * sizes.len()];
        while left.iter().all(|&left| left > 0) {
            let ticket = queue.next(|_| true).expect("both wait");
            let (_, held, &(who, tokens)) = queue.get(ticket).expect("it waits");
            prop_assert_eq!(held.tokens, tokens);
            queue.serve(ticket, tokens);
            served[who] += tokens;
            left[who] -= 1;
            let apart = served[0].abs_diff(served[1]);
            prop_assert!(apart <= most[0] + most[1], "{:?} apart by {}", served, apart);
        }
    }

    /// The lower class gets its share while the higher class always waits, and at most one request more.
    #[test]
    fn a_class_behind_gets_its_share_and_no_more(share in 0.02f64..0.5, sizes in prop::collection::vec(1u64..2_000, 300)) {
        let mut queue = FairQueue::new([0.0, share]);
        let (mut served, mut most) = ([0u64; 2], 0);
        for (due, &size) in (0..).zip(&sizes) {
            queue.put(order(0, 1, due), held(size), (0, size));
            queue.put(order(1, 2, due), held(size), (1, size));
            most = most.max(size);
        }
        while queue.held_by(0).requests > 0 {
            let ticket = queue.next(|_| true).expect("somebody waits");
            let &(class, tokens) = queue.get(ticket).expect("it waits").2;
            queue.serve(ticket, tokens);
            served[class] += tokens;
            let due = share * (served[0] + served[1]) as f64;
            prop_assert!(served[1] as f64 <= due + 1.0, "{:?} for a share of {}", served, share);
            prop_assert!(served[1] as f64 + 2.0 * most as f64 >= due, "{:?} for a share of {}", served, share);
        }
    }
}

struct Prompt(u32);

impl QueuedRequestFacts for Prompt {
    fn facts(&self) -> RequestFacts<'_> {
        RequestFacts { prompt_tokens: self.0, streams: true, ..RequestFacts::default() }
    }
}

fn at(s: f64) -> At {
    At::ZERO + Span::from_secs_f64(s)
}

fn front(replicas: u32, admission: AdmissionSpec) -> AdmissionController<Prompt> {
    let route = RouteSpec::parse("least_cost").expect("sound");
    let mut front = AdmissionController::new(
        &AdmissionControlSpec { route, admission, ..AdmissionControlSpec::default() },
        replicas as usize,
        At::ZERO,
    );
    (0..replicas).for_each(|replica| front.set_up(replica, true));
    front
}

fn terms(came: At, slo_s: Option<f64>) -> AdmissionParams {
    AdmissionParams { class: 0, tenant: 0, came, slo: slo_s.map(Span::from_secs_f64), bytes: 0 }
}

/// At most one request per replica, so that the queue is predictable.
fn one_each() -> AdmissionSpec {
    AdmissionSpec { per_replica: Some(1), wait_s: 10.0, ..AdmissionSpec::default() }
}

fn offer(
    front: &mut AdmissionController<Prompt>,
    tokens: u32,
    terms: AdmissionParams,
    chance: &mut Stream,
) -> AdmissionDecision {
    front.offer(&Prompt(tokens).facts(), &terms, terms.came, chance, || Prompt(tokens))
}

#[test]
fn time_that_ran_out_is_seen_when_it_is_the_requests_turn() {
    let (mut front, mut chance) = (front(1, one_each()), Stream::new(1, "test", 0));
    let AdmissionDecision::Sent(first) = offer(&mut front, 1_000, terms(at(0.0), None), &mut chance) else {
        panic!("room")
    };
    let AdmissionDecision::Queued { until, .. } =
        offer(&mut front, 1_000, terms(at(0.0), Some(20.0)), &mut chance)
    else {
        panic!("it waits")
    };
    assert_eq!(until, at(10.0), "no longer than anybody may wait");
    let mut out = Vec::new();
    front.pump(at(1.0), &mut chance, &mut out);
    assert!(out.is_empty(), "the replica is full");
    front.ended(first, Some(ReplicaOutcome::Worked), 0, at(10.5), &mut chance);
    front.pump(at(10.5), &mut chance, &mut out);
    assert!(matches!(out[..], [(_, DequeueDecision::Refused(Refusal::Expired))]), "{out:?}");
    assert!(!front.has_waiting());
}

#[test]
fn a_deadline_that_cannot_be_met_is_refused_at_once_with_the_time_to_come_back() {
    let (mut front, mut chance) = (front(1, one_each()), Stream::new(1, "test", 0));
    // The replica is idle, so no estimate is reliable, and the request is admitted despite the prediction.
    let AdmissionDecision::Sent(_) = offer(&mut front, 1_000_000, terms(at(0.0), Some(0.01)), &mut chance)
    else {
        panic!("an idle replica is asked")
    };
    // The initial estimate is 2 000 tokens per s, so 10 000 tokens ahead take 5 s.
    for _ in 0..10 {
        assert!(matches!(
            offer(&mut front, 1_000, terms(at(0.0), None), &mut chance),
            AdmissionDecision::Queued { .. }
        ));
    }
    let AdmissionDecision::Refused(Refusal::Late(after)) =
        offer(&mut front, 1_000, terms(at(0.0), Some(2.0)), &mut chance)
    else {
        panic!("it would be late")
    };
    assert!(after > Span::from_secs(2), "{after:?}");
    let patient = offer(&mut front, 1_000, terms(at(0.0), Some(3_000.0)), &mut chance);
    assert!(matches!(patient, AdmissionDecision::Queued { .. }), "{patient:?}");
}

#[test]
fn without_replicas_requests_wait_and_are_told_so() {
    let (mut front, mut chance) =
        (front(1, AdmissionSpec { requests: 2, ..one_each() }), Stream::new(1, "test", 0));
    front.set_up(0, false);
    let AdmissionDecision::Queued { ticket, until } =
        offer(&mut front, 10, terms(at(0.0), None), &mut chance)
    else {
        panic!("it waits")
    };
    let AdmissionDecision::Queued { ticket: second, .. } =
        offer(&mut front, 10, terms(at(0.0), Some(0.001)), &mut chance)
    else {
        panic!("it waits until its time is over")
    };
    let third = offer(&mut front, 10, terms(at(0.0), None), &mut chance);
    assert_eq!(third, AdmissionDecision::Refused(Refusal::NoReplica), "two may wait");
    assert_eq!(front.expire(second, at(0.001)), Some(Refusal::NoReplica));
    assert_eq!((until, front.expire(ticket, until)), (at(10.0), Some(Refusal::NoReplica)));
    assert_eq!(front.expire(ticket, until), None, "once");
}

#[test]
fn no_more_is_sent_ahead_than_keeps_a_replica_busy() {
    let spec = AdmissionSpec { ahead_s: 1.0, ..AdmissionSpec::default() };
    let (mut front, mut chance) = (front(1, spec), Stream::new(1, "test", 0));
    // By the initial estimate, 500 tokens take 0.25 s, so four requests take 1 s.
    let sent: Vec<bool> = (0..6)
        .map(|_| {
            matches!(offer(&mut front, 500, terms(at(0.0), None), &mut chance), AdmissionDecision::Sent(_))
        })
        .collect();
    assert_eq!(sent, [true, true, true, true, false, false]);
    // A prompt of one minute and a second one are sent ahead, but no third one.
    let spec = AdmissionSpec { ahead_s: 1.0, ..AdmissionSpec::default() };
    let mut front = self::front(1, spec);
    let sent: Vec<bool> = (0..4)
        .map(|_| {
            matches!(
                offer(&mut front, 120_000, terms(at(0.0), None), &mut chance),
                AdmissionDecision::Sent(_)
            )
        })
        .collect();
    assert_eq!(sent, [true, true, false, false]);
}

#[derive(Clone, Debug)]
enum Act {
    Come { tokens: u32, class: usize, tenant: u64, slo_s: Option<f64> },
    First,
    End(Option<bool>),
    Leave,
    Down(u32),
    Up(u32),
}

fn acts() -> impl Strategy<Value = Vec<(f64, Act)>> {
    let come = (1u32..20_000, 0usize..2, 0u64..4, prop::option::of(0.01f64..20.0))
        .prop_map(|(tokens, class, tenant, slo_s)| Act::Come { tokens, class, tenant, slo_s });
    let act = prop_oneof![
        6 => come,
        3 => Just(Act::First),
        4 => prop::option::of(any::<bool>()).prop_map(Act::End),
        1 => Just(Act::Leave),
        1 => (0u32..3).prop_map(Act::Down),
        2 => (0u32..3).prop_map(Act::Up),
    ];
    prop::collection::vec((0.0f64..0.5, act), 1..200)
}

/// The results of all requests, as reported to their callers.
#[derive(Default)]
struct Told {
    running: Vec<SentRequest>,
    waiting: BTreeMap<u64, At>,
    answers: HashMap<u64, u32>,
    refused_or_sent: u32,
}

impl Told {
    fn of(&mut self, out: &mut Vec<(u64, DequeueDecision)>) {
        for (ticket, given) in out.drain(..) {
            *self.answers.entry(ticket).or_default() += 1;
            assert!(self.waiting.remove(&ticket).is_some(), "{ticket} was told twice, or after it had left");
            if let DequeueDecision::Sent(sent) = given {
                self.running.push(sent);
            }
        }
    }
}

proptest! {
    /// For any sequence of events, each request gets exactly one result, and no load remains booked at the end.
    #[test]
    fn each_request_is_told_one_thing_and_nothing_stays_booked(acts in acts(), seed in any::<u64>()) {
        let spec = AdmissionSpec { requests: 12, tokens: 100_000, per_replica: Some(3), wait_s: 5.0, ..AdmissionSpec::default() };
        let (mut front, mut chance) = (front(3, spec), Stream::new(seed, "test", 0));
        let (mut now, mut told, mut out, mut came) = (At::ZERO, Told::default(), Vec::new(), 0u32);
        let mut left = 0u32;
        for (passed, act) in acts {
            now += Span::from_secs_f64(passed);
            let late: Vec<u64> = told.waiting.iter().filter(|(_, until)| **until <= now).map(|(t, _)| *t).collect();
            for ticket in late {
                prop_assert!(front.expire(ticket, now).is_some());
                told.waiting.remove(&ticket);
                *told.answers.entry(ticket).or_default() += 1;
            }
            match act {
                Act::Come { tokens, class, tenant, slo_s } => {
                    came += 1;
                    let terms = AdmissionParams { class, tenant, ..terms(now, slo_s) };
                    match offer(&mut front, tokens, terms, &mut chance) {
                        AdmissionDecision::Sent(sent) => { told.running.push(sent); told.refused_or_sent += 1; }
                        AdmissionDecision::Refused(_) => told.refused_or_sent += 1,
                        AdmissionDecision::Queued { ticket, until } => { told.waiting.insert(ticket, until); }
                    }
                }
                Act::First => if let Some(sent) = told.running.iter_mut().find(|sent| sent.booking.first.is_none()) {
                    front.first(sent, now);
                },
                Act::End(verdict) => if !told.running.is_empty() {
                    let sent = told.running.remove(0);
                    let verdict = verdict.map(|worked| if worked { ReplicaOutcome::Worked } else { ReplicaOutcome::Shed(None) });
                    front.ended(sent, verdict, 5, now, &mut chance);
                },
                Act::Leave => if let Some((ticket, _)) = told.waiting.pop_first() {
                    prop_assert!(front.leave(ticket));
                    left += 1;
                },
                Act::Down(replica) => front.set_up(replica, false),
                Act::Up(replica) => front.set_up(replica, true),
            }
            front.pump(now, &mut chance, &mut out);
            told.of(&mut out);
            let held: u32 = (0..2).map(|class| front.held_by(class).requests).sum();
            prop_assert_eq!(held as usize, told.waiting.len());
            prop_assert!(held <= 12);
            prop_assert!((0..3).all(|replica| front.load(replica).requests <= 3));
        }
        (0..3).for_each(|replica| front.set_up(replica, true));
        while !told.running.is_empty() || !told.waiting.is_empty() {
            if let Some(sent) = told.running.pop() {
                front.ended(sent, Some(ReplicaOutcome::Worked), 5, now, &mut chance);
            }
            front.pump(now, &mut chance, &mut out);
            told.of(&mut out);
        }
        prop_assert!(told.answers.values().all(|&count| count == 1));
        prop_assert_eq!(told.answers.len() as u32 + told.refused_or_sent + left, came);
        prop_assert!((0..3).all(|replica| front.load(replica) == plimsoll_policy::ReplicaLoad::default()));
    }
}

/// Returns the served share of the second class, whose configured share is 0.4. Both classes always wait.
fn share_of_bulk(state: BudgetState, gives_way: bool) -> f64 {
    let mut admission = AdmissionSpec { wait_s: 1e4, ..one_each() };
    admission.classes[1] = AdmissionClassSpec { share: 0.4, gives_way, ..admission.classes[1].clone() };
    let (mut front, mut chance) = (front(1, admission), Stream::new(1, "test", 0));
    let mut class_of = HashMap::new();
    let AdmissionDecision::Sent(mut running) = offer(&mut front, 100, terms(at(0.0), None), &mut chance)
    else {
        panic!("it is free")
    };
    for class in [0, 1].repeat(200) {
        let terms = AdmissionParams { class, ..terms(at(0.0), None) };
        let AdmissionDecision::Queued { ticket, .. } = offer(&mut front, 100, terms, &mut chance) else {
            panic!("it waits")
        };
        class_of.insert(ticket, class);
    }
    front.set_budget_state(state);
    let (mut bulk, mut given) = (0, Vec::new());
    for turn in 0..200 {
        let now = at(0.1 * f64::from(turn + 1));
        front.ended(running, Some(ReplicaOutcome::Worked), 0, now, &mut chance);
        front.pump(now, &mut chance, &mut given);
        let Some((ticket, DequeueDecision::Sent(sent))) = given.pop() else {
            panic!("there is room for one")
        };
        (running, bulk) = (sent, bulk + class_of[&ticket]);
    }
    bulk as f64 / 200.0
}

#[test]
fn a_class_that_gives_way_has_half_its_share_while_the_budget_may_be_broken() {
    for (state, gives_way, share) in [
        (BudgetState::Green, true, 0.4),
        (BudgetState::Amber, true, 0.2),
        // Queued requests keep their place when the state turns red.
        (BudgetState::Red, true, 0.2),
        (BudgetState::Amber, false, 0.4),
    ] {
        let served = share_of_bulk(state, gives_way);
        assert!((served - share).abs() < 0.015, "{state:?}, gives way: {gives_way}: {served}");
    }
}

#[test]
fn a_broken_budget_refuses_what_gives_way_and_still_counts_it_as_load() {
    let (mut front, mut chance) = (front(2, AdmissionSpec::default()), Stream::new(1, "test", 0));
    let bulk = |came| AdmissionParams { class: 1, ..terms(came, None) };
    front.set_budget_state(BudgetState::Red);
    for _ in 0..100 {
        let refused = offer(&mut front, 1_000, bulk(at(0.0)), &mut chance);
        let AdmissionDecision::Refused(Refusal::HeldBack(after)) = refused else { panic!("{refused:?}") };
        assert!((40.0..=60.0).contains(&after.as_secs_f64()), "{after:?}");
    }
    assert!(front.signal(at(0.0)).offered_tokens_per_s > 1_000.0);
    assert!(matches!(offer(&mut front, 10, terms(at(0.0), None), &mut chance), AdmissionDecision::Sent(_)));
    front.set_budget_state(BudgetState::Amber);
    assert!(matches!(offer(&mut front, 10, bulk(at(0.1)), &mut chance), AdmissionDecision::Sent(_)));
}

/// A number belongs to its replica while requests run on it. The next replica with this number starts without
/// history.
#[test]
fn a_replica_that_has_gone_leaves_nothing_to_the_one_that_gets_its_number() {
    let (mut front, mut chance) = (front(2, AdmissionSpec::default()), Stream::new(1, "test", 0));
    front.set_models(0, Some(vec![7]));
    front.set_models(1, Some(vec![8]));
    let ask = RequestFacts {
        model: Some(7),
        prompt_tokens: 1_000,
        blocks: &[1, 2],
        streams: true,
        ..RequestFacts::default()
    };
    let AdmissionDecision::Sent(mut sent) =
        front.offer(&ask, &terms(at(0.0), None), at(0.0), &mut chance, || Prompt(1_000))
    else {
        panic!("room")
    };
    assert_eq!(sent.booking.replica, 0);
    let (fresh, slow) = (front.speed(0), at(30.0));
    front.set_draining(0, true);
    assert!(!front.part(0), "a request runs there");
    front.first(&mut sent, slow);
    front.ended(sent, Some(ReplicaOutcome::Shed(None)), 10, slow, &mut chance);
    assert!(front.speed(0).prefill.per > fresh.prefill.per && front.health().penalty(0, slow) > Span::ZERO);
    assert!(front.part(0));
    assert_eq!((front.health().count(), front.health().standing(0, slow)), (1, ReplicaAvailability::Down));
    assert!(front.serve_alike(), "what it served is nobody's");
    assert_eq!([front.join(), front.join()], [0, 2], "its number is free, and then there is a new one");
    assert_eq!(front.load(0), ReplicaLoad::default());
    assert_eq!(
        front.health().standing(0, slow),
        ReplicaAvailability::Down,
        "until somebody says that it answers"
    );
    front.set_up(0, true);
    assert_eq!(
        (front.health().standing(0, slow), front.health().penalty(0, slow)),
        (ReplicaAvailability::Ready, Span::ZERO)
    );
    assert_eq!(front.speed(0), front.speed(2), "as fast as the pool, until its own requests tell");
    front.set_models(0, Some(vec![7]));
    let found = front.offer(&ask, &terms(slow, None), slow, &mut chance, || Prompt(1_000));
    let AdmissionDecision::Sent(next) = found else { panic!("room") };
    assert_eq!((next.booking.replica, next.booking.expected.share), (0, 0.0), "and with an empty cache");
}

/// One replica serves alone for a long time, then two equal ones join. With at most one request at a time on each,
/// each gets about a third.
#[test]
fn replicas_that_join_get_their_share_where_nothing_waits() {
    let (mut front, mut chance) = (front(1, AdmissionSpec::default()), Stream::new(3, "test", 0));
    front.set_up(0, true);
    let mut served = [0; 3];
    for number in 0..704u32 {
        if number == 300 {
            (0..2).for_each(|_| {
                let replica = front.join();
                front.set_up(replica, true);
            });
        }
        let (now, tokens) = (at(f64::from(number)), 50 + chance.below(2_000) as u32);
        let AdmissionDecision::Sent(mut sent) = offer(&mut front, tokens, terms(now, None), &mut chance)
        else {
            panic!("room");
        };
        served[sent.booking.replica as usize] += u32::from(number >= 300);
        // The replicas compute 20 000 tokens per s with steps of 8 ms, both within 10 %.
        let noise = 0.9 + 0.2 * chance.uniform();
        let first = now + Span::from_secs_f64(noise * (0.008 + f64::from(tokens) / 20_000.0));
        front.first(&mut sent, first);
        let end = first + Span::from_secs_f64(noise * 0.008 * 49.0);
        front.ended(sent, Some(ReplicaOutcome::Worked), 50, end, &mut chance);
    }
    assert!(served.iter().all(|&served| served >= 404 / 6), "{served:?}");
}
