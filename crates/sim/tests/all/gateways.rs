//! The least-cost route compared with an oracle that reads every engine's cache, and several gateways compared with
//! one. The engines run in virtual time; each gateway has a separate router and separate counts, as on several
//! machines.

use plimsoll_math::rng::{Stream, mix};
use plimsoll_model::{At, Span};
use plimsoll_policy::{
    BlockEnds, Booking, ExpectedHit, ReplicaLoad, ReplicaView, ReportedLoad, RequestFacts, RouteSpec, Router,
    Telemetry, cost, unseen,
};
use plimsoll_sim::{Emission, Engine, RequestEvent, Submit};

use crate::routes::{KV_BLOCKS, Outcome, chat, hot, mean, replica, unshared};
use crate::util::Act;

const REPLICAS: u32 = 8;
/// Block size of the engines.
const BLOCK_TOKENS: u32 = 16;

/// The source of a gateway's knowledge of caches.
#[derive(Copy, Clone, PartialEq)]
enum Knows {
    /// Its own earlier requests.
    Sent,
    /// The engine itself.
    Truth,
}

/// The requests of a seed.
type Traffic = fn(u64) -> Vec<(At, Act)>;

struct Gateway {
    knows: Knows,
    /// Number of other gateways, as configured.
    others: u32,
    /// Whether it scrapes the engines.
    reads: bool,
    /// Known replicas.
    of: std::ops::Range<u32>,
    telemetry: Telemetry,
    router: Router,
    loads: Vec<ReplicaLoad>,
    chance: Stream,
}

/// Scrape interval of a replica, and delay of a response.
const EVERY: Span = Span::from_secs(1);
const TAKES: Span = Span::from_millis(20);

/// A scrape that is due or in progress.
#[derive(Copy, Clone, PartialEq, PartialOrd, Debug)]
struct Poll {
    at: At,
    gateway: usize,
    replica: u32,
    said: Option<(f64, f64)>,
}

impl Gateway {
    fn new(number: u64, knows: Knows, others: u32) -> Gateway {
        let spec = RouteSpec::parse("least_cost").expect("sound");
        Gateway {
            knows,
            others,
            reads: false,
            of: 0..REPLICAS,
            telemetry: Telemetry::default(),
            router: Router::new(&spec),
            loads: vec![ReplicaLoad::default(); REPLICAS as usize],
            chance: Stream::new(number, "test.gateway", 0),
        }
    }

    fn reading(self) -> Gateway {
        Gateway { reads: true, ..self }
    }

    /// Returns the estimated load of other gateways on a replica.
    fn others_on(&mut self, replica: u32, now: At) -> ReplicaLoad {
        self.telemetry.bring(now);
        let said = self.telemetry.others(replica);
        said.unwrap_or_else(|| unseen(&self.loads, self.loads.len(), self.others))
    }

    /// Returns the first scrape of each replica, staggered.
    fn polls(&self, gateway: usize) -> Vec<Poll> {
        let mut chance = Stream::new(gateway as u64, "test.poll", 0);
        let mut poll = |replica| {
            let at = At(chance.below(EVERY.0 as u64) as i64);
            Poll { at, gateway, replica, said: None }
        };
        (0..REPLICAS).filter(|_| self.reads).map(&mut poll).collect()
    }

    /// Starts or completes a scrape; returns its next step.
    fn poll(&mut self, poll: Poll, engines: &[Engine]) -> Poll {
        let own = self.loads[poll.replica as usize];
        match poll.said {
            None => {
                self.telemetry.ask(poll.replica, own);
                let gauges = engines[poll.replica as usize].gauges();
                let said = Some((f64::from(gauges.running), f64::from(gauges.waiting)));
                Poll { at: poll.at + TAKES, said, ..poll }
            }
            Some((running, waiting)) => {
                let said = ReportedLoad {
                    running: Some(running),
                    waiting: Some(waiting),
                    ..ReportedLoad::default()
                };
                self.telemetry.told(poll.replica, said, own, At(poll.at.0 - TAKES.0 / 2));
                Poll { at: At(poll.at.0 + EVERY.0 - TAKES.0), said: None, ..poll }
            }
        }
    }

    fn choose(&mut self, now: At, request: &Submit, engines: &[Engine]) -> Booking {
        let (replica, uncached, expected) = match self.knows {
            Knows::Sent => {
                let views: Vec<ReplicaView> = self
                    .of
                    .clone()
                    .map(|replica| ReplicaView {
                        replica,
                        load: self.loads[replica as usize].and(self.others_on(replica, now)),
                        ..ReplicaView::default()
                    })
                    .collect();
                let facts = RequestFacts {
                    blocks: &request.blocks,
                    ends: BlockEnds::Every(BLOCK_TOKENS),
                    prompt_tokens: request.prompt_tokens,
                    ..RequestFacts::default()
                };
                let pick = self.router.pick(&views, &facts, &mut self.chance).expect("there are replicas");
                (views[pick.place].replica, pick.uncached, pick.expected)
            }
            Knows::Truth => self.cheapest(request, engines),
        };
        let on = self.loads[replica as usize].and(self.others_on(replica, now));
        let own = ReplicaLoad::of_one(u64::from(request.prompt_tokens), uncached);
        self.loads[replica as usize].add(own);
        self.telemetry.sent(own);
        Booking { expected, ..Booking::new(replica, on, own, now) }
    }

    /// The oracle: the same cost, from the blocks that the engines have cached or will have computed by the turn of
    /// this request.
    fn cheapest(&self, request: &Submit, engines: &[Engine]) -> (u32, u32, ExpectedHit) {
        let costs = (0u32..).zip(engines).zip(&self.loads).map(|((replica, engine), &load)| {
            let uncached = request.prompt_tokens - engine.cached_prefix(&request.blocks);
            let cost = cost::seconds(&self.router.speed(replica), load, uncached, 150.0, cost::WEIGHT);
            (cost, replica, uncached)
        });
        let (_, replica, uncached) = costs.min_by(|a, b| a.0.total_cmp(&b.0)).expect("there are replicas");
        (replica, uncached, ExpectedHit::default())
    }

    fn heard(&mut self, booking: &mut Booking, at: At, tokens: Option<u32>) {
        let others = self.others_on(booking.replica, at);
        let load = &mut self.loads[booking.replica as usize];
        match tokens {
            None if booking.first.is_none() => {
                self.router.first(booking, at);
                load.take(booking.load);
                booking.load = booking.load.begun();
                load.add(booking.load);
                booking.first = Some((at, load.and(others).decoding));
            }
            None => {}
            Some(tokens) => {
                self.router.ended(booking, load.and(others).decoding, tokens, at);
                load.take(booking.load);
                self.telemetry.ended(booking, at);
            }
        }
    }
}

/// A request in flight, and the cached share of its prompt.
#[derive(Clone)]
struct Flight {
    gateway: usize,
    booking: Booking,
    found: f64,
}

/// Plays a script through gateways; `front` selects the gateway of a request. One replica may be slower by a factor.
fn play(
    script: &[(At, Act)],
    mut gateways: Vec<Gateway>,
    front: impl Fn(&Submit) -> usize,
    slow: Option<(usize, f64)>,
    kv_blocks: u32,
) -> Outcome {
    let engine = |seed| Engine::new(&replica(kv_blocks), seed).expect("sound");
    let mut engines: Vec<Engine> = (0..u64::from(REPLICAS)).map(engine).collect();
    if let Some((place, factor)) = slow {
        engines[place].set_speed(factor);
    }
    let requests: Vec<(At, &Submit)> = script
        .iter()
        .filter_map(|(at, act)| match act {
            Act::Submit(request) => Some((*at, request)),
            Act::Cancel(_) => None,
        })
        .collect();
    let mut flights: Vec<Option<Flight>> = vec![None; requests.len()];
    let (mut waits, mut cached, mut placed) = (Vec::new(), 0u64, [0u32; REPLICAS as usize]);
    let mut said: Vec<Emission> = Vec::new();
    let mut next = 0;
    let mut polls: Vec<Poll> =
        gateways.iter().enumerate().flat_map(|(place, one)| one.polls(place)).collect();
    loop {
        let turn = engines
            .iter()
            .enumerate()
            .filter_map(|(place, engine)| Some((engine.next_event()?, place)))
            .min();
        let due = requests.get(next).map(|(at, _)| *at);
        let poll = polls.iter_mut().min_by(|a, b| a.partial_cmp(b).expect("numbers"));
        match (turn, due) {
            // A scrape shows the events up to its time.
            (turn, due)
                if poll.as_ref().is_some_and(|poll| {
                    turn.is_none_or(|(at, _)| poll.at < at) && due.is_some_and(|due| poll.at < due)
                }) =>
            {
                if let Some(poll) = poll {
                    *poll = gateways[poll.gateway].poll(*poll, &engines);
                }
            }
            (Some((at, place)), due) if due.is_none_or(|due| at < due) => {
                engines[place].step(at, &mut said);
            }
            (_, Some(due)) => {
                let request = requests[next].1;
                next += 1;
                let gateway = front(request);
                let booking = gateways[gateway].choose(due, request, &engines);
                placed[booking.replica as usize] += 1;
                flights[request.id as usize] = Some(Flight { gateway, booking, found: 0.0 });
                engines[booking.replica as usize].submit(due, request.clone()).expect("there is room");
            }
            (Some(_), None) => unreachable!("no request is due before an event that there is"),
            (None, None) => break,
        }
        for emission in said.drain(..) {
            let flight = flights[emission.id as usize].as_mut().expect("it was sent");
            let gateway = &mut gateways[flight.gateway];
            let (came, request) = requests[emission.id as usize];
            match emission.what {
                RequestEvent::Admitted { cached: tokens } => {
                    cached += u64::from(tokens);
                    flight.found = f64::from(tokens) / f64::from(request.prompt_tokens);
                }
                RequestEvent::PrefillDone => {
                    waits.push((emission.at - came).as_secs_f64());
                    gateway.heard(&mut flight.booking, emission.at, None);
                }
                RequestEvent::Finished { .. } => {
                    gateway.heard(&mut flight.booking, emission.at, Some(request.output_tokens));
                    gateway.router.cached(&flight.booking, flight.found);
                }
                _ => {}
            }
        }
    }
    assert_eq!(waits.len(), requests.len(), "everybody is answered");
    waits.sort_by(f64::total_cmp);
    let prompts: u64 = requests.iter().map(|(_, request)| u64::from(request.prompt_tokens)).sum();
    Outcome {
        ttft_p99_s: waits[waits.len() * 99 / 100],
        hits: cached as f64 / prompts as f64,
        skew: f64::from(placed.iter().copied().max().unwrap_or(0)) * f64::from(REPLICAS)
            / requests.len() as f64,
    }
}

fn one(knows: Knows, make: Traffic, slow: Option<(usize, f64)>, kv_blocks: u32) -> Outcome {
    mean((1..=6).map(|seed| play(&make(seed), vec![Gateway::new(seed, knows, 0)], |_| 0, slow, kv_blocks)))
}

fn eight(others: u32, front: fn(&Submit) -> usize) -> Outcome {
    let gateways = || (0..8).map(|number| Gateway::new(number, Knows::Sent, others)).collect();
    mean((1..=3).map(|seed| play(&chat(seed), gateways(), front, None, KV_BLOCKS)))
}

/// With one router for all requests, hits are at least 98 % of the oracle's, and the p99 is at most 1.1 times its.
#[test]
fn what_was_sent_says_almost_as_much_as_what_is_cached() {
    let cases = [
        ("chat", chat as Traffic, None, KV_BLOCKS),
        ("hot", hot, None, KV_BLOCKS),
        ("unshared", unshared, None, KV_BLOCKS),
        ("one slow", chat, Some((3, 2.0)), KV_BLOCKS),
        // With a sixth of the space, evicted blocks are known only from the engine's responses.
        ("little room", chat, None, KV_BLOCKS / 6),
    ];
    for (what, make, slow, room) in cases {
        let (own, oracle) = (one(Knows::Sent, make, slow, room), one(Knows::Truth, make, slow, room));
        let figures = format!("{what}: {own:.3?}, the oracle {oracle:.3?}");
        assert!(own.hits >= 0.98 * oracle.hits, "{figures}");
        assert!(own.ttft_p99_s <= 1.1 * oracle.ttft_p99_s, "{figures}");
    }
}

/// Eight gateways without shared state. If sessions are assigned by a hash and each gateway knows the number of
/// gateways, the hits equal those of one. If turns of a session go to any gateway, or each assumes to be the only
/// one, they do not.
#[test]
fn eight_gateways_behind_a_hash_of_the_session_keep_the_hits_of_one() {
    let by_session = |request: &Submit| (mix(request.session.unwrap_or(0)) % 8) as usize;
    let alone = one(Knows::Sent, chat, None, KV_BLOCKS);
    let (hashed, unaware) = (eight(7, by_session), eight(0, by_session));
    let dealt = eight(7, |request| (request.id % 8) as usize);
    let figures =
        format!("one {alone:.3?}, by hash {hashed:.3?}, unaware {unaware:.3?}, in turn {dealt:.3?}");
    assert!(hashed.hits >= 0.98 * alone.hits, "{figures}");
    assert!(hashed.ttft_p99_s <= 1.4 * alone.ttft_p99_s, "{figures}");
    assert!(unaware.hits < 0.95 * hashed.hits && dealt.hits < 0.95 * hashed.hits, "{figures}");
}

/// Returns a separate router without knowledge of others.
fn router(number: u64, reads: bool) -> Gateway {
    let router = Gateway::new(number, Knows::Sent, 0);
    if reads { router.reading() } else { router }
}

/// Runs two routers in front of the same replicas, connected only by scrapes. If `other` has replicas, the second
/// router uses only those and scrapes nothing, like another service's.
fn two(make: Traffic, reads: bool, other: Option<u32>) -> Outcome {
    let half = |request: &Submit| (mix(request.session.unwrap_or(0)) % 2) as usize;
    mean((1..=6).map(|seed| {
        let second = match other {
            Some(replicas) => Gateway { of: 0..replicas, ..router(10 * seed + 1, false) },
            None => router(10 * seed + 1, reads),
        };
        play(&make(seed), vec![router(10 * seed, reads), second], half, None, KV_BLOCKS)
    }))
}

/// With scrapes the p99 is not worse than without, and better if others' work is uneven.
#[test]
fn what_pages_say_of_others_keeps_two_routers_out_of_each_others_way() {
    let cases = [
        ("chat", chat as Traffic, None, 1.05),
        ("hot", hot, None, 1.1),
        ("unshared", unshared, None, 1.05),
        ("chat, the other on four", chat, Some(4), 1.1),
        ("hot, the other on four", hot, Some(4), 0.95),
        ("unshared, the other on four", unshared, Some(4), 0.7),
    ];
    for (what, make, other, most) in cases {
        let (with, without) = (two(make, true, other), two(make, false, other));
        let figures = format!("{what}: with pages {with:.3?}, without {without:.3?}");
        println!("{figures}");
        assert!(with.ttft_p99_s <= most * without.ttft_p99_s, "{figures}");
        assert!(with.hits >= without.hits - 0.02, "{figures}");
    }
}

/// Eight routers with equal scrapes do not all choose the replica with spare capacity.
#[test]
fn eight_routers_that_read_the_same_pages_make_no_herd() {
    let by_session = |request: &Submit| (mix(request.session.unwrap_or(0)) % 8) as usize;
    let eight = |reads, make: Traffic| {
        let routers = |seed: u64| (0..8).map(|number| router(10 * seed + number, reads)).collect();
        mean((1..=3).map(|seed| play(&make(seed), routers(seed), by_session, None, KV_BLOCKS)))
    };
    for (what, make) in [("chat", chat as Traffic), ("hot", hot), ("unshared", unshared)] {
        let (with, without) = (eight(true, make), eight(false, make));
        let figures = format!("{what}: with pages {with:.3?}, without {without:.3?}");
        println!("{figures}");
        assert!(with.ttft_p99_s <= 1.15 * without.ttft_p99_s, "{figures}");
    }
}
