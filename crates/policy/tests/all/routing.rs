//! Each routing policy in cases that are small enough to compute by hand.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::{BlockEnds, Booking, ReplicaLoad, ReplicaView, RequestFacts, RouteSpec, Router};

fn view(replica: u32, requests: u32, tokens: u64) -> ReplicaView {
    ReplicaView {
        replica,
        load: ReplicaLoad { requests, tokens, ..ReplicaLoad::default() },
        penalty: Span::ZERO,
    }
}

fn views(requests: &[u32]) -> Vec<ReplicaView> {
    let numbered = (0u32..).zip(requests);
    numbered.map(|(replica, &requests)| view(replica, requests, u64::from(requests) * 100)).collect()
}

fn router(text: &str) -> Router {
    Router::new(&RouteSpec::parse(text).expect("the test's route is sound"))
}

/// Returns the replicas of `n` requests without facts, at constant loads.
fn picks(router: &mut Router, views: &[ReplicaView], n: u64) -> Vec<u32> {
    let facts = RequestFacts::default();
    let mut pick = |id| {
        router.pick(views, &facts, &mut Stream::new(7, "route", id)).map(|pick| views[pick.place].replica)
    };
    (0..n).map(|id| pick(id).expect("there are replicas")).collect()
}

#[test]
fn round_robin_takes_turns_and_closes_the_gap_when_one_leaves() {
    let mut router = router("round_robin");
    assert_eq!(picks(&mut router, &views(&[9, 0, 0]), 4), [0, 1, 2, 0]);
    let without_one: Vec<ReplicaView> =
        views(&[0, 0, 0]).into_iter().filter(|view| view.replica != 1).collect();
    assert_eq!(picks(&mut router, &without_one, 3), [2, 0, 2]);
}

#[test]
fn no_replica_is_no_answer() {
    for name in [
        "round_robin",
        "random",
        "least_requests",
        "least_tokens",
        "power_of_two",
        "peak_ewma",
        "session",
        "prefix",
        "least_cost",
    ] {
        let facts = RequestFacts { session: Some(1), blocks: &[1, 2], ..RequestFacts::default() };
        assert_eq!(router(name).pick(&[], &facts, &mut Stream::new(1, "route", 0)), None, "{name}");
    }
}

#[test]
fn random_is_even_within_four_deviations() {
    let n = 40_000;
    let chosen = picks(&mut router("random"), &views(&[5, 0, 0, 100]), n);
    for replica in 0..4 {
        let count = chosen.iter().filter(|&&chosen| chosen == replica).count() as f64;
        // Binomial: mean n/4, variance n · 1/4 · 3/4.
        assert!((count - 10_000.0).abs() < 4.0 * (n as f64 * 0.1875).sqrt(), "{replica}: {count}");
    }
}

#[test]
fn least_requests_takes_the_least_and_turns_among_equals() {
    assert_eq!(picks(&mut router("least_requests"), &views(&[3, 1, 2]), 2), [1, 1]);
    assert_eq!(picks(&mut router("least_requests"), &views(&[1, 3, 1, 1]), 4), [0, 2, 3, 0]);
}

#[test]
fn least_tokens_counts_tokens_and_not_requests() {
    let views = [view(0, 1, 9_000), view(1, 8, 800)];
    assert_eq!(picks(&mut router("least_tokens"), &views, 1), [1]);
    assert_eq!(picks(&mut router("least_requests"), &views, 1), [0]);
}

/// Of six pairs with loads 0 < 1 < 2 < 3, the lowest load wins 3, the next 2, then 1, and the highest none.
#[test]
fn power_of_two_wins_pairs_as_counted_by_hand() {
    let n = 60_000;
    let chosen = picks(&mut router("power_of_two"), &views(&[0, 1, 2, 3]), n);
    for (replica, pairs) in [(0, 3.0), (1, 2.0), (2, 1.0)] {
        let share = pairs / 6.0;
        let count = chosen.iter().filter(|&&chosen| chosen == replica).count() as f64;
        let deviation = (n as f64 * share * (1.0 - share)).sqrt();
        assert!((count - n as f64 * share).abs() < 4.0 * deviation, "{replica}: {count}");
    }
    assert!(!chosen.contains(&3));
}

fn place_session(router: &mut Router, views: &[ReplicaView], session: u64) -> u32 {
    let facts = RequestFacts { session: Some(session), ..RequestFacts::default() };
    let place =
        router.pick(views, &facts, &mut Stream::new(1, "route", session)).expect("there are replicas");
    views[place.place].replica
}

/// With rendezvous hashing, only the keys of a removed replica move.
#[test]
fn sessions_move_only_with_their_replica() {
    let mut router = router("session");
    let all = views(&[0; 5]);
    let without_two: Vec<ReplicaView> = all.iter().copied().filter(|view| view.replica != 2).collect();
    let mut moved = 0;
    for session in 0..5_000 {
        let before = place_session(&mut router, &all, session);
        let after = place_session(&mut router, &without_two, session);
        assert!(before == 2 || before == after, "session {session} moved from {before} to {after}");
        moved += u32::from(before == 2);
    }
    // Binomial: 5000 keys over five replicas, four deviations.
    assert!((f64::from(moved) - 1_000.0).abs() < 4.0 * (5_000.0f64 * 0.16).sqrt(), "{moved}");
}

/// With c = 1.25 and m = 15 requests on n = 4 replicas, the bound is ⌈1.25 · 16 / 4⌉ = 5.
#[test]
fn a_session_over_the_bound_spills_to_one_and_the_same_place() {
    let mut router = router("session:bound=1.25");
    let home = place_session(&mut router, &views(&[0; 4]), 77);
    let loaded = |home_requests: u32| {
        let mut views = views(&[0; 4]);
        let others = (15 - home_requests) / 3;
        views.iter_mut().for_each(|view| view.load.requests = others);
        views[home as usize].load.requests = home_requests;
        views[(home as usize + 1) % 4].load.requests += 15 - home_requests - 3 * others;
        views
    };
    assert_eq!(place_session(&mut router, &loaded(4), 77), home);
    let spilt = place_session(&mut router, &loaded(6), 77);
    assert_ne!(spilt, home);
    assert_eq!(place_session(&mut router, &loaded(9), 77), spilt);
}

fn place_prompt(router: &mut Router, views: &[ReplicaView], blocks: &[u64]) -> u32 {
    let place = router
        .pick(views, &RequestFacts { blocks, ..RequestFacts::default() }, &mut Stream::new(1, "route", 0))
        .expect("there are replicas");
    views[place.place].replica
}

#[test]
fn prefix_goes_where_the_longest_beginning_went() {
    let mut router = router("prefix");
    let idle = views(&[0; 3]);
    assert_eq!(place_prompt(&mut router, &idle, &[1, 2, 3]), 0); // nobody knows it: in turn among equals
    assert_eq!(place_prompt(&mut router, &idle, &[9, 8, 7]), 1);
    assert_eq!(place_prompt(&mut router, &idle, &[1, 2, 4]), 0);
    assert_eq!(place_prompt(&mut router, &idle, &[9, 8, 7, 6]), 1);
    // Replica 2 is next in rotation, and gets a prompt without a shared prefix.
    assert_eq!(place_prompt(&mut router, &idle, &[5, 5, 5]), 2);
    // The hash of a block covers its prefix, so a match of later blocks only is none.
    assert_eq!(place_prompt(&mut router, &idle, &[100, 2, 3]), 0);
}

/// With ε = 0.25 and m = 7 on n = 3, the bound is ⌈1.25 · 8 / 3⌉ = 4 requests. The holder has 4, so the least loaded
/// replica gets the request. Afterwards both hold the prefix, and the less loaded one gets the next request.
#[test]
fn prefix_leaves_a_holder_over_the_bound_for_the_least_loaded() {
    let mut router = router("prefix:bound=1.25");
    assert_eq!(place_prompt(&mut router, &views(&[0; 3]), &[1, 2, 3]), 0);
    assert_eq!(place_prompt(&mut router, &views(&[3, 3, 1]), &[1, 2, 3]), 0);
    assert_eq!(place_prompt(&mut router, &views(&[4, 2, 1]), &[1, 2, 3]), 2);
    assert_eq!(place_prompt(&mut router, &views(&[2, 0, 1]), &[1, 2, 3]), 2);
}

#[test]
fn prefix_forgets_a_replica_that_lost_its_cache() {
    let mut router = router("prefix");
    let idle = views(&[0; 2]);
    assert_eq!(place_prompt(&mut router, &idle, &[1, 2]), 0);
    router.forget(0);
    assert_eq!(place_prompt(&mut router, &idle, &[1, 2]), 1);
    assert_eq!(place_prompt(&mut router, &idle, &[1, 2]), 1);
}

#[test]
fn the_index_is_bounded_and_keeps_what_is_asked_for() {
    let mut index = plimsoll_policy::affinity::PrefixIndex::new(100);
    for block in 0..10_000u64 {
        index.learn(3, &[block + 1_000], 16);
        index.learn(1, &[7], 16);
        assert!(index.len() <= 101, "{} blocks", index.len());
    }
    assert_eq!(found(&mut index, 7).first().map(|found| found.replica), Some(1));
    assert!(found(&mut index, 1_000).is_empty());
}

/// The index against a list of holders for each block, on prompts that branch at random blocks.
#[test]
fn matches_are_those_of_a_list_of_holders_per_block() {
    let mut chance = Stream::new(5, "branches", 0);
    for _ in 0..200 {
        let mut index = plimsoll_policy::affinity::PrefixIndex::new(1 << 20);
        let mut holders = std::collections::HashMap::<u64, Vec<(u32, u32)>>::new();
        let (mut losses, mut prompts, mut next) = ([0; 12], vec![Vec::<u64>::new()], 1);
        for _ in 0..100 {
            // A prompt continues a part of an earlier one.
            let mut prompt = prompts[chance.below(prompts.len() as u64) as usize].clone();
            prompt.truncate(chance.below(prompt.len() as u64 + 1) as usize);
            let more = chance.below(6);
            prompt.extend(next..next + more);
            next += more;

            let mut expected = Vec::<(u32, u32)>::new();
            for (depth, block) in (0..).zip(&prompt) {
                for &(replica, epoch) in holders.get(block).into_iter().flatten() {
                    if epoch != losses[replica as usize] {
                        continue;
                    }
                    if depth == 0 {
                        expected.push((replica, 1));
                    } else if let Some(known) = expected.iter_mut().find(|known| **known == (replica, depth))
                    {
                        known.1 += 1;
                    }
                }
            }
            expected.sort_by_key(|known| std::cmp::Reverse(known.1));
            let mut found = Vec::new();
            index.matches(&prompt, &mut found);
            assert_eq!(found.iter().map(|one| (one.replica, one.blocks)).collect::<Vec<_>>(), expected);

            let replica = chance.below(12) as u32;
            if chance.below(20) == 0 {
                index.forget(replica);
                losses[replica as usize] += 1;
            }
            index.learn(replica, &prompt, 16);
            let latest = (replica, losses[replica as usize]);
            for block in &prompt {
                let known = holders.entry(*block).or_default();
                known.retain(|one| *one != latest);
                known.insert(0, latest);
                known.truncate(8);
            }
            assert_eq!(index.len(), holders.len());
            prompts.push(prompt);
        }
    }
}

/// Of a small index, each prompt of blocks that were sent last is found whole.
#[test]
fn a_full_index_has_the_latest_prompts() {
    let mut index = plimsoll_policy::affinity::PrefixIndex::new(100);
    let prompt = |turn: u64| (1..=10).map(|block| turn * 10 + block).collect::<Vec<u64>>();
    for turn in 0..1_000 {
        index.learn(2, &prompt(turn), 160);
        assert!(index.len() <= 100, "{} blocks", index.len());
        let mut found = Vec::new();
        for recent in turn.saturating_sub(4)..=turn {
            index.matches(&prompt(recent), &mut found);
            assert_eq!(found.first().map(|one| one.blocks), Some(10), "turn {recent} of {turn}");
        }
    }
    let long: Vec<u64> = (1_000_000..1_000_200).collect();
    index.learn(1, &long, 3_200);
    assert!(index.len() <= 100, "{} blocks", index.len());
    let mut found = Vec::new();
    index.matches(&long, &mut found);
    assert_eq!(found.first().map(|one| (one.replica, one.blocks)), Some((1, 50)));
}

/// One of two replicas took 1 s. Every pair contains both, so the slow one gets no request until the load of the
/// other outweighs its latency.
#[test]
fn peak_ewma_leaves_a_slow_replica_at_its_first_slow_answer() {
    let mut router = router("peak_ewma");
    let took = |router: &mut Router, replica, ms: i64| {
        let booking = Booking::new(replica, ReplicaLoad::default(), ReplicaLoad::default(), At::ZERO);
        router.first(&booking, At::ZERO + Span::from_millis(ms));
    };
    took(&mut router, 0, 100);
    took(&mut router, 1, 100);
    let both = picks(&mut router, &views(&[0, 0]), 1_000);
    assert!((400..600).contains(&both.iter().filter(|&&chosen| chosen == 0).count()));
    took(&mut router, 1, 1_000);
    assert_eq!(picks(&mut router, &views(&[0, 0]), 100), [0; 100]);
    // The costs are 1 s × 1 and 0.1 s × 11.
    assert_eq!(picks(&mut router, &views(&[10, 0]), 100), [1; 100]);
}

#[test]
fn unknown_words_are_refused_with_what_there_is() {
    let refused = |text: &str| RouteSpec::parse(text).unwrap_err().to_string();
    assert_eq!(
        refused("fastest"),
        "unknown routing policy \"fastest\"; there are: round_robin, random, least_requests, least_tokens, \
         power_of_two, peak_ewma, session, prefix, least_cost"
    );
    assert_eq!(refused("session:bond=2"), "session: unknown parameter \"bond\"; allowed: bound");
    assert_eq!(refused("session:bound=0.5"), "session: bound: \"0.5\" is not a number from 1, such as 1.25");
    assert_eq!(refused("session:bound"), "\"session:bound\" is not name:key=value,key=value");
    assert_eq!(
        refused("peak_ewma:decay_s=0"),
        "peak_ewma: decay_s: \"0\" is not seconds from 0.1 to 3600, such as 10"
    );
    assert_eq!(refused("power_of_two:load=cpu"), "power_of_two: load: \"cpu\" is not requests or tokens");
}

#[test]
fn file_and_line_say_the_same() {
    let of_file = |json: &str| serde_json::from_str::<RouteSpec>(json);
    assert_eq!(of_file(r#"{"policy":"prefix"}"#).unwrap(), RouteSpec::parse("prefix").unwrap());
    let session = of_file(r#"{"policy":"session","bound":2.0}"#).unwrap();
    assert_eq!(session, RouteSpec::parse("session:bound=2").unwrap());
    assert_eq!(of_file(r#""session:bound=2""#).unwrap(), session);
    for name in ["round_robin", "power_of_two:load=tokens", "peak_ewma:decay_s=0.3", "least_cost:weight=0.1"]
    {
        let spec = RouteSpec::parse(name).unwrap();
        assert_eq!(of_file(&serde_json::to_string(&spec).unwrap()).unwrap(), spec, "{name}");
    }
    for (json, says) in [
        (r#"{"policy":"random","bound":2.0}"#, "random: unknown parameter \"bound\""),
        (r#"{"policy":"session","bound":0.5}"#, "such as 1.25"),
        (r#"{"bound":2.0}"#, "missing field `policy`"),
        (r#""foo""#, "unknown routing policy \"foo\"; there are: round_robin"),
        ("7", "a route: least_cost, session:bound=1.5 or {policy: session, bound: 1.5}"),
    ] {
        let said = of_file(json).unwrap_err().to_string();
        assert!(said.contains(says), "{json}: {said}");
    }
}

fn found(
    index: &mut plimsoll_policy::affinity::PrefixIndex,
    block: u64,
) -> Vec<plimsoll_policy::affinity::PrefixMatch> {
    let mut found = Vec::new();
    index.matches(&[block], &mut found);
    found
}

/// The evidence by which an index learns about evictions.
#[derive(Copy, Clone, PartialEq)]
enum LearnsBy {
    Nothing,
    Answers,
}

/// Returns the share of prompts whose expected cache hit is wrong. The cache evicts the least recently used of 100
/// prompts. `beside` is the number of other prompts between two of its own.
fn mistaken(by: LearnsBy, beside: u64) -> f64 {
    let mut index = plimsoll_policy::affinity::PrefixIndex::new(100_000);
    let (mut cache, mut chance) = (Vec::<u64>::new(), Stream::new(1, "cache", 0));
    let mut wrong = 0;
    for turn in 0..4_000 {
        let name = 1 + chance.below(400);
        let others = (0..beside).map(|place| 1_000 + turn * beside + place);
        let matched = found(&mut index, name).first().copied();
        let expected = matched.map(|one| one.expected(f64::from(one.blocks))).unwrap_or_default();
        index.learn(0, &[name], if expected.share > 0.0 { 0 } else { 100 });
        let truly = cache.contains(&name);
        for name in std::iter::once(name).chain(others) {
            cache.retain(|&known| known != name);
            cache.push(name);
            if cache.len() > 100 {
                cache.remove(0);
            }
        }
        if by == LearnsBy::Answers {
            index.heard(0, expected, if truly { 1.0 } else { 0.0 });
        }
        wrong += u32::from(turn >= 1_000 && truly != (expected.share > 0.0));
    }
    f64::from(wrong) / 3_000.0
}

#[test]
fn a_replica_is_matched_as_far_back_as_its_answers_say() {
    let of = |beside| [LearnsBy::Nothing, LearnsBy::Answers].map(|by| mistaken(by, beside));
    for (beside, figures) in [0, 1, 4].map(|beside| (beside, of(beside))) {
        let [deaf, answers] = figures;
        println!("{beside} of others between two: {figures:.3?}");
        assert!(deaf > 0.6 && answers < 0.15, "{beside}: {figures:.3?}");
    }
}

/// Returns a router that learnt these prefill speeds and decode steps of 10 ms from exact times.
fn taught(prefill_per_s: &[f64]) -> Router {
    let mut router = router("least_cost");
    for round in 0..200i64 {
        for (replica, &speed) in (0u32..).zip(prefill_per_s) {
            let tokens = 100 + 10 * (round as u32 % 50);
            let sent = At::ZERO + Span::from_secs(round);
            let mut booking =
                Booking::new(replica, ReplicaLoad::default(), ReplicaLoad::of_one(200, tokens), sent);
            let first = sent + Span::from_secs_f64(0.010 + f64::from(tokens) / speed);
            router.first(&booking, first);
            booking.first = Some((first, 1));
            router.ended(&booking, 1, 11, first + Span::from_millis(100));
        }
    }
    router
}

#[test]
fn speeds_are_learnt_from_what_was_served() {
    let router = taught(&[1_000.0, 8_000.0]);
    let [slow, fast] = [router.speed(0).prefill, router.speed(1).prefill];
    assert!((slow.per * 1_000.0 - 1.0).abs() < 0.1, "{slow:?}");
    assert!((fast.per * 8_000.0 - 1.0).abs() < 0.2, "{fast:?}");
    let step = router.speed(0).step;
    assert!((step.at(1.0) - 0.010).abs() < 0.002, "{step:?}");
}

fn costs_least(router: &mut Router, views: &[ReplicaView], blocks: &[u64], prompt_tokens: u32) -> (u32, u32) {
    let facts =
        RequestFacts { blocks, ends: BlockEnds::Every(100), prompt_tokens, ..RequestFacts::default() };
    let pick = router.pick(views, &facts, &mut Stream::new(1, "route", 0)).expect("there are replicas");
    (views[pick.place].replica, pick.uncached)
}

/// At 1 000 tokens/s, 1 000 tokens take 1 s. A replica with 900 cached tokens takes 0.1 s, and is better until 900
/// other tokens wait in front of it.
#[test]
fn a_cached_prefix_is_worth_the_time_that_it_saves_and_no_more() {
    let blocks: Vec<u64> = (1..=9).collect();
    let mut router = taught(&[1_000.0, 1_000.0]);
    let home = costs_least(&mut router, &views(&[0, 0]), &blocks, 1_000);
    assert_eq!(home.1, 1_000, "nobody had it, and it is booked as it is before the index learns of it");
    let waiting = |tokens: u64| {
        let mut views = views(&[0, 0]);
        views[home.0 as usize].load.backlog = tokens;
        views
    };
    assert_eq!(costs_least(&mut router.clone(), &waiting(700), &blocks, 1_000), (home.0, 100));
    assert_eq!(costs_least(&mut router.clone(), &waiting(1_100), &blocks, 1_000), (1 - home.0, 1_000));
    // A recent rejection costs the seconds of its `Retry-After`.
    let mut refused = waiting(0);
    refused[home.0 as usize].penalty = Span::from_secs(2);
    assert_eq!(costs_least(&mut router, &refused, &blocks, 1_000).0, 1 - home.0);
}

#[test]
fn a_slow_replica_gets_its_share_and_not_half() {
    let mut router = taught(&[1_000.0, 4_000.0]);
    let mut loads = views(&[0, 0]);
    let mut sent = [0u32; 2];
    for id in 0..100u64 {
        let facts = RequestFacts { prompt_tokens: 500, ..RequestFacts::default() };
        let pick = router.pick(&loads, &facts, &mut Stream::new(1, "route", id)).expect("there are replicas");
        sent[pick.place] += 1;
        loads[pick.place].load.backlog += u64::from(pick.uncached);
    }
    // Queues of equal time give the slower replica a fifth of the work, except for random picks among equals.
    assert!((15..=25).contains(&sent[0]), "{sent:?}");
}

/// First tokens take equally long on both replicas. Decode steps take 30 ms on one and 3 ms on the other, so a step
/// exceeds the TTFT.
#[test]
fn a_replica_whose_answers_alone_are_slow_is_the_slow_one() {
    let mut router = router("least_cost");
    for round in 0..200i64 {
        for (replica, step_ms) in [(0, 30), (1, 3)] {
            let sent = At::ZERO + Span::from_secs(round);
            let mut booking = Booking::new(replica, ReplicaLoad::default(), ReplicaLoad::of_one(1, 1), sent);
            let first = sent + Span::from_millis(1 + round * 7 % 20);
            router.first(&booking, first);
            booking.first = Some((first, 0));
            router.ended(&booking, 0, 11, first + Span::from_millis(10 * step_ms));
        }
    }
    let [slow, fast] = [0, 1].map(|replica| router.speed(replica));
    let ratio = slow.prefill.at(1.0) / fast.prefill.at(1.0);
    assert!((0.2..5.0).contains(&ratio), "{slow:?} {fast:?}");
    // The mean of both rates is 1/2 (1/30 + 1/3) steps per ms: 5.5 ms per step.
    assert!(
        (slow.late / (0.030 - 1.25 * 0.005_45) - 1.0).abs() < 0.15 && fast.late == 0.0,
        "{slow:?} {fast:?}"
    );
    // The response is much shorter on the fast replica, although it has concurrent streams.
    let mut loads = views(&[0, 0]);
    loads[1].load.decoding = 8;
    let facts = RequestFacts { prompt_tokens: 1, ..RequestFacts::default() };
    let picks = (0..100).map(|id| router.pick(&loads, &facts, &mut Stream::new(1, "route", id)));
    assert!(picks.into_iter().all(|pick| pick.is_some_and(|pick| pick.place == 1)));
}

/// A replica that was once ten times slower gets requests again, because its estimate ages while the other one
/// serves.
#[test]
fn a_replica_that_was_slow_once_is_not_avoided_for_ever() {
    let mut router = taught(&[400.0, 4_000.0]);
    let asked = |router: &mut Router| {
        let facts = RequestFacts { prompt_tokens: 500, ..RequestFacts::default() };
        let loads = views(&[0, 0]);
        (0..20_000u64).find(|&id| {
            let pick =
                router.pick(&loads, &facts, &mut Stream::new(1, "route", id)).expect("there are replicas");
            let sent = At::ZERO + Span::from_secs(1_000 + id as i64);
            let mut booking = Booking::new(1, ReplicaLoad::default(), ReplicaLoad::of_one(500, 500), sent);
            let first = sent + Span::from_millis(135);
            router.first(&booking, first);
            booking.first = Some((first, 1));
            router.ended(&booking, 1, 11, first + Span::from_millis(100));
            pick.place == 0
        })
    };
    let after = asked(&mut router);
    assert!(after.is_some_and(|after| (50..10_000).contains(&after)), "{after:?}");
}

/// With one own observation, a replica resembles the pool and not the initial estimate.
#[test]
fn a_replica_that_served_one_request_long_ago_gets_its_share() {
    let mut router = taught(&[4_000.0]);
    let once = Booking::new(1, ReplicaLoad::default(), ReplicaLoad::of_one(500, 300), At::ZERO);
    router.first(&once, At::ZERO + Span::from_millis(85));
    let ratio = router.speed(1).prefill.at(400.0) / router.speed(0).prefill.at(400.0);
    assert!((0.8..1.25).contains(&ratio), "{ratio}");
}

/// A single replica is the average one, independent of the initial estimate. Of several, the average has the mean of
/// their speeds.
#[test]
fn a_replica_of_which_nothing_is_known_is_an_average_one() {
    for speed in [500.0, 2_000.0, 50_000.0] {
        let router = taught(&[speed]);
        let [known, fresh] = [0, 7].map(|replica| router.speed(replica));
        for tokens in [0.0, 100.0, 10_000.0] {
            let ratio = fresh.prefill.at(tokens) / known.prefill.at(tokens);
            assert!((ratio - 1.0).abs() < 1e-9, "{speed} at {tokens}: {ratio}");
        }
        assert!((fresh.step.at(1.0) / known.step.at(1.0) - 1.0).abs() < 1e-9, "{speed}");
        assert!((known.prefill.at(350.0) / (350.0 / speed) - 1.0).abs() < 0.05, "{speed}: {known:?}");
    }
    let router = taught(&[1_000.0, 4_000.0]);
    let per_s = 1.0 / router.speed(7).prefill.per;
    assert!((per_s / 2_500.0 - 1.0).abs() < 0.1, "{per_s}");
    // A nearly stalled replica makes neither the others look fast nor a new one slow.
    let router = taught(&[10.0, 4_000.0, 4_000.0, 4_000.0]);
    let per_s = 1.0 / router.speed(7).prefill.per;
    assert!((2_700.0..4_400.0).contains(&per_s), "{per_s}");
}
