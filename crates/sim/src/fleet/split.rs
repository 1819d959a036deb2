//! Separate replicas for prefill and decode. A request computes its prompt and first token on one replica, its KV
//! cache is transferred, and the rest is generated on another.
//!
//! The first token is emitted when the cache has arrived at the decode replica, as with servers that respond from
//! there. It therefore waits only for the prefill and the transfer. A transfer takes tokens × bytes / bandwidth;
//! transfers do not delay each other.

use plimsoll_math::rng::Stream;
use plimsoll_model::{At, Span};
use plimsoll_policy::Router;

use crate::fleet::agenda::AgendaItem;
use crate::fleet::{Chosen, Fleet, NOWHERE, facts, failure_of};
use crate::spec::error::SimSpecError;
use crate::spec::fleet::WorldSpec;
use crate::traffic::{Emission, Failure, RequestEvent, Submit};

/// The state of separate prefill and decode replicas.
#[derive(Clone, Debug)]
pub(crate) struct Split {
    /// Number of prefill replicas, which come first; decode replicas follow.
    pub prefill: u32,
    decode: u32,
    bytes_per_token: f64,
    bytes_per_s: f64,
    router: Router,
    /// Number of KV caches in transfer between replicas.
    pub moving: u32,
}

impl Split {
    /// Returns the state for a specification; `None` without disaggregation.
    pub fn of(spec: &WorldSpec) -> Result<Option<Split>, SimSpecError> {
        let Some(split) = &spec.fleet.disaggregation else { return Ok(None) };
        Ok(Some(Split {
            prefill: split.prefill_replicas,
            decode: split.decode_replicas,
            bytes_per_token: split.kv_bytes(&spec.engine)?,
            bytes_per_s: split.transfer_gb_per_s * 1e9,
            router: Router::new(&spec.fleet.route),
            moving: 0,
        }))
    }

    /// Returns the total number of replicas.
    pub fn replicas(&self) -> u32 {
        self.prefill + self.decode
    }

    fn transfer(&self, tokens: u32) -> Span {
        Span::from_secs_f64(f64::from(tokens) * self.bytes_per_token / self.bytes_per_s)
    }
}

impl Fleet {
    /// Reduces a request to its prompt and first token. Returns the whole request if it has more tokens.
    pub(crate) fn part(&self, request: &mut Submit) -> Option<Box<Submit>> {
        if self.split.is_none() || request.output_tokens < 2 {
            return None;
        }
        let whole = Submit { handed_over: true, ..request.clone() };
        request.output_tokens = 1;
        Some(Box::new(whole))
    }

    /// Returns `true` if the client must not see the emission: a prefill replica's first token and end.
    pub(crate) fn part_way(&mut self, number: u32, emission: &Emission) -> bool {
        let Some(split) = &mut self.split else { return false };
        let Some(slot) = self.flights.find(emission.id) else { return false };
        let flight = self.flights.at_mut(slot);
        if number >= split.prefill {
            // The request left a queue before.
            return flight.began && matches!(emission.what, RequestEvent::Admitted { .. });
        }
        if flight.onward.is_none() {
            return false;
        }
        match emission.what {
            RequestEvent::Token { .. } => true,
            RequestEvent::Finished { .. } => {
                flight.held = flight.onward.take();
                flight.replica = NOWHERE;
                flight.tokens = 1;
                let (load, serial) = (flight.load, flight.serial);
                let tokens = flight.held.as_ref().map_or(0, |request| request.prompt_tokens.max(1));
                split.moving += 1;
                let (at, id) = (emission.at, emission.id);
                self.agenda
                    .note(at + split.transfer(tokens).max(Span(1)), AgendaItem::Handover { id, serial });
                let whole = flight.held.as_ref().map_or(0, |request| u64::from(request.output_tokens));
                flight.load.tokens = load.tokens - 1 + whole;
                let replica = &mut self.replicas[number as usize];
                replica.less(at, load, self.load_delay);
                replica.entered -= 1;
                self.after_end(at, number);
                true
            }
            _ => false,
        }
    }

    /// Continues a request on its decode replica after the transfer of its cache.
    pub(crate) fn hand_over(&mut self, at: At, id: u64, serial: u64) {
        let Some(slot) = self.flights.find(id).filter(|slot| self.flights.at(*slot).serial == serial) else {
            return;
        };
        let Some(request) = self.flights.at_mut(slot).held.take() else { return };
        let Some(chosen) = self.choose_writer(at, &request) else {
            self.flights.at_mut(slot).held = Some(request);
            return self.fail(at, id, Failure::Status { status: 503, why: "no replica is ready" }, false);
        };
        if let Some(split) = &mut self.split {
            split.moving -= 1;
        }
        let number = chosen.replica;
        self.flights.at_mut(slot).cut = self.faults.cut(number, id, request.output_tokens);
        self.placed(at, id, chosen);
        let taken = self.answer_of_the_dead(number, id).and_then(|()| self.give_engine(at, number, *request));
        if let Err(rejected) = taken {
            return self.fail(at, id, failure_of(&rejected), false);
        }
        if !self.buffer(number, at, id, 1, false) {
            let what = RequestEvent::Token { n: 1, last: false };
            self.replicas[number as usize].pending.push(Emission { at, id, what });
        }
    }

    /// Returns the decode replica of a request.
    fn choose_writer(&mut self, at: At, request: &Submit) -> Option<Chosen> {
        let split = self.split.as_mut()?;
        self.views.clear();
        let writers = (0u32..).zip(&mut self.replicas).skip(split.prefill as usize);
        let routable = writers.filter(|(_, replica)| replica.is_routable());
        self.views.extend(routable.map(|(number, replica)| replica.view(number, at, self.load_delay)));
        let mut chance = Stream::new(self.seed, "fleet.route.decode", request.id);
        let pick = split.router.pick(&self.views, &facts(request), &mut chance)?;
        // The prompt is computed already.
        Some(Chosen { replica: self.views[pick.place].replica, uncached: 0, expected: pick.expected })
    }
}
