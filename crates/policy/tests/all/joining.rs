//! Requests that are sent as one: worked by hand, and against servers in virtual time whose law is known.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::{JoinOffer, JoinSize, JoinSpec, JoinTicket, Joiner};

fn ms(ms: f64) -> At {
    At::ZERO + Span::from_secs_f64(ms / 1e3)
}

const ONE: JoinSize = JoinSize { inputs: 1, tokens: 10 };

fn joiner(change: impl FnOnce(&mut JoinSpec)) -> Joiner<&'static str> {
    let mut spec = JoinSpec::default();
    change(&mut spec);
    spec.validate().expect("a sound spec");
    Joiner::new(&spec)
}

#[test]
fn who_finds_a_free_replica_goes_alone_and_an_end_is_the_turn_of_who_waits() {
    let mut joiner = joiner(|_| {});
    let mut offer = |key, replicas, at| joiner.offer((&key, 1), ONE, replicas, ms(at));
    assert_eq!(offer("a", 2, 0.0), (JoinOffer::Alone, None));
    assert_eq!(offer("a", 2, 1.0), (JoinOffer::Alone, None), "the second replica");
    assert_eq!(offer("a", 2, 2.0), (JoinOffer::Opens(1, ms(202.0)), None));
    assert_eq!(offer("b", 2, 3.0), (JoinOffer::Opens(2, ms(203.0)), None), "another tenant's");
    assert_eq!(offer("a", 2, 4.0), (JoinOffer::Joins(1), None));
    assert_eq!(joiner.offer((&"a", 7), ONE, 2, ms(4.0)).0, JoinOffer::Joins(1), "the key says with whom");
    assert_eq!(joiner.ended(1, 2), Some(1), "the oldest");
    assert_eq!(joiner.under_way(), 2);
    assert_eq!(joiner.ended(1, 2), Some(2));
    assert_eq!((joiner.ended(1, 2), joiner.ended(1, 2), joiner.under_way()), (None, None, 0));
    // Of another model nothing is under way.
    assert_eq!(joiner.offer((&"c", 2), ONE, 1, ms(7.0)).0, JoinOffer::Alone);
}

#[test]
fn as_many_as_may_be_go_at_once_and_what_does_not_fit_begins_anew() {
    let mut joiner = joiner(|spec| (spec.inputs, spec.tokens) = (4, 50));
    let mut offer = |inputs, tokens| joiner.offer((&"a", 1), JoinSize { inputs, tokens }, 1, ms(0.0));
    assert_eq!(offer(1, 10).0, JoinOffer::Alone);
    assert_eq!(offer(2, 10).0, JoinOffer::Opens(1, ms(200.0)));
    assert_eq!(offer(2, 10), (JoinOffer::Joins(1), Some(1)), "four inputs");
    assert_eq!(offer(3, 10).0, JoinOffer::Opens(2, ms(200.0)));
    assert_eq!(offer(2, 10), (JoinOffer::Opens(3, ms(200.0)), Some(2)), "five do not fit");
    assert_eq!(offer(1, 40), (JoinOffer::Joins(3), Some(3)), "fifty tokens");
    assert_eq!((offer(4, 1), offer(1, 50)), ((JoinOffer::Alone, None), (JoinOffer::Alone, None)));
}

#[test]
fn a_replica_that_works_at_several_is_sent_as_many_and_one_that_hangs_holds_nobody_for_ever() {
    let mut joiner = joiner(|spec| spec.at_once = 2);
    let mut offer = |key, replicas, at| joiner.offer((&key, 1), ONE, replicas, ms(at)).0;
    assert_eq!([0.0, 1.0].map(|at| offer("a", 1, at)), [JoinOffer::Alone; 2]);
    assert_eq!(offer("a", 1, 2.0), JoinOffer::Opens(1, ms(202.0)));
    // Where no replica may get any, they wait together for one.
    assert_eq!(offer("b", 0, 3.0), JoinOffer::Opens(2, ms(203.0)));
    assert!(joiner.close(1) && !joiner.close(1));
    assert_eq!(joiner.under_way(), 3);
    assert_eq!((joiner.ended(1, 1), joiner.ended(1, 1)), (None, Some(2)));
}

#[test]
fn who_leaves_makes_room_and_what_failed_goes_alone_for_a_while() {
    let mut joiner = joiner(|spec| spec.inputs = 3);
    let mut offer = |at| joiner.offer((&"a", 1), ONE, 1, ms(at));
    assert_eq!(
        (offer(0.0).0, offer(0.0).0, offer(0.0).0),
        (JoinOffer::Alone, JoinOffer::Opens(1, ms(200.0)), JoinOffer::Joins(1))
    );
    assert!(joiner.left(1, ONE));
    assert_eq!(joiner.offer((&"a", 1), ONE, 1, ms(0.0)), (JoinOffer::Joins(1), None));
    assert!(joiner.left(1, ONE) && joiner.left(1, ONE) && !joiner.left(1, ONE), "nobody is left");
    assert_eq!(joiner.ended(1, 1), None);
    joiner.failed(&"a", ms(0.0));
    let mut offer = |key, at| joiner.offer((&key, 1), ONE, 1, ms(at)).0;
    assert_eq!((offer("a", 9_999.0), offer("a", 9_999.0)), (JoinOffer::Alone, JoinOffer::Alone));
    assert_eq!(offer("b", 9_999.0), JoinOffer::Opens(2, ms(10_199.0)), "others are joined");
    assert_eq!(offer("a", 10_000.0), JoinOffer::Opens(3, ms(10_200.0)));
}

/// A server that works at one request at a time, which takes `each` and `input` for each input, ms.
struct Law {
    each: f64,
    input: f64,
}

/// When each of these arrivals (ms) is answered, and how many requests the server saw; without a joiner each is one.
fn served(law: &Law, arrivals: &[f64], spec: Option<&JoinSpec>) -> (Vec<f64>, Vec<usize>) {
    let mut joiner: Joiner<()> = Joiner::new(&spec.cloned().unwrap_or_default());
    let mut answered = vec![f64::NAN; arrivals.len()];
    let mut waiting: Vec<(JoinTicket, f64, Vec<usize>)> = Vec::new();
    // Requests at the server, with when each is done.
    let mut sent: Vec<(f64, Vec<usize>)> = Vec::new();
    let (mut free, mut sizes) = (0.0_f64, Vec::new());
    let mut next = 0;
    loop {
        let done = sent.iter().map(|(at, _)| *at).fold(f64::INFINITY, f64::min);
        let due = waiting.iter().map(|(_, at, _)| *at).fold(f64::INFINITY, f64::min);
        let arrival = arrivals.get(next).copied().unwrap_or(f64::INFINITY);
        let now = done.min(due).min(arrival);
        if now.is_infinite() {
            return (answered, sizes);
        }
        let mut begins: Vec<Vec<usize>> = Vec::new();
        let turn = |waiting: &mut Vec<(JoinTicket, f64, Vec<usize>)>, ticket: Option<JoinTicket>| {
            let place = waiting.iter().position(|(of, ..)| Some(*of) == ticket);
            place.map(|place| waiting.remove(place).2)
        };
        if now == done {
            let place = sent.iter().position(|(at, _)| *at == done).expect("it is there");
            let (_, each) = sent.remove(place);
            each.iter().for_each(|one| answered[*one] = now);
            let ticket = spec.and_then(|_| joiner.ended(1, 1));
            begins.extend(turn(&mut waiting, ticket));
        } else if now == due {
            let place = waiting.iter().position(|(_, at, _)| *at == due).expect("it is there");
            assert!(joiner.close(waiting[place].0));
            begins.push(waiting.remove(place).2);
        } else if spec.is_none() {
            begins.push(vec![next]);
            next += 1;
        } else {
            let (offer, closes) = joiner.offer((&(), 1), ONE, 1, ms(now));
            match offer {
                JoinOffer::Alone => begins.push(vec![next]),
                JoinOffer::Opens(ticket, until) => {
                    waiting.push((ticket, (until - At::ZERO).as_secs_f64() * 1e3, vec![next]));
                }
                JoinOffer::Joins(ticket) => {
                    waiting
                        .iter_mut()
                        .filter(|(of, ..)| *of == ticket)
                        .for_each(|(.., each)| each.push(next));
                }
            }
            begins.extend(turn(&mut waiting, closes));
            next += 1;
        }
        for each in begins {
            free = free.max(now) + law.each + law.input * each.len() as f64;
            sizes.push(each.len());
            sent.push((free, each));
        }
    }
}

fn arrivals(per_s: f64, count: usize, seed: u64) -> Vec<f64> {
    let mut chance = Stream::new(seed, "arrivals", 0);
    let mut at = 0.0;
    (0..count)
        .map(|_| {
            at += -(1.0 - chance.uniform()).ln() / per_s * 1e3;
            at
        })
        .collect()
}

fn mean_latency(arrivals: &[f64], answered: &[f64]) -> f64 {
    arrivals.iter().zip(answered).map(|(came, done)| done - came).sum::<f64>() / arrivals.len() as f64
}

/// A server that takes 50 ms for a request and 1 ms for each of its inputs does 19.6 requests a second, or 30 joined ones of 32 inputs each: 390 inputs.
#[test]
fn a_server_holds_the_load_that_its_law_says() {
    let law = Law { each: 50.0, input: 1.0 };
    let spec = JoinSpec::default();
    for seed in 0..5 {
        // Under a tenth of what it can do alone: the few that meet another wait for it as they would in its queue.
        let quiet = arrivals(1.0, 400, seed);
        let (alone, joined) = (served(&law, &quiet, None).0, served(&law, &quiet, Some(&spec)).0);
        let (alone, joined) = (mean_latency(&quiet, &alone), mean_latency(&quiet, &joined));
        assert!((joined / alone - 1.0).abs() < 0.01, "{joined} against {alone} ms");
        for (per_s, count) in [(30.0, 3_000), (100.0, 3_000), (300.0, 3_000)] {
            let came = arrivals(per_s, count, seed);
            let (alone, each) = served(&law, &came, None);
            // Alone the queue grows for as long as they come: the last is done when all have been worked at.
            assert_eq!(each.len(), count);
            assert!(*alone.last().expect("some") >= 51.0 * count as f64);
            let (joined, sizes) = served(&law, &came, Some(&spec));
            assert_eq!(sizes.iter().sum::<usize>(), count, "each is in one of them");
            assert!(sizes.iter().all(|size| *size <= 32));
            // Each waits for what is worked at and for its own; at 300/s some are full before, and wait for a third.
            let most = joined.iter().zip(&came).map(|(done, came)| done - came).fold(0.0, f64::max);
            assert!(most <= 3.0 * (50.0 + 32.0), "{most} ms at {per_s}/s");
            // As many inputs as come while one is worked at, n = rate × (50 ms + n × 1 ms): fewer and the queue would grow; and one more where nobody had come.
            let fill = count as f64 / sizes.len() as f64;
            let per_ms = count as f64 / came.last().expect("some");
            let [least, most] = [0.0, 1.0].map(|more| (per_ms * 50.0 + more) / (1.0 - per_ms));
            assert!(fill > 0.95 * least && fill < 1.05 * most, "{fill} inputs, by the law {least} to {most}");
        }
    }
}
