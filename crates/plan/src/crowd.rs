//! How many requests a replica that batches continuously holds at a rate, and what their steps take.
//!
//! Prompts go first, and their backlog comes and goes within some steps; the number n that decodes changes over a whole answer. So
//! the backlog is solved for a given n ([`Backlog`]), and n sees its means:
//!
//! * t̄(n) = t_e(n) / (1 − σ), the mean step: t_e without prompts, σ = λ w the share of the time that goes into prompts, w what one
//!   adds to the steps;
//! * X(n), what decoding takes longer for beginning where prompts bunch: what one's prompt leaves behind it beyond the mean backlog,
//!   w/m (V₁ − V̄)(1 − σ^D)/(1 − σ), in no more than D full steps;
//! * a request in service stays own steps + D t̄(n) + X(n), D being the steps that it decodes: a birth and death process in n
//!   ([`Chain`]), whose mean is exact for Poisson arrivals and short prompts (insensitivity: Kelly, "Reversibility and Stochastic
//!   Networks", 1979, chapter 3).
//!
//! Arrivals are bunched by v, and each prompt that is computed holds up all that decode, so that more come meanwhile: over D steps the
//! number computed varies v/(1 − σ)² times as by chance. It starts at what the backlog's law has for one step and is taken as an
//! autoregression between the two; answers of various lengths smooth it by E\[min of two\]/E\[one\], as in the infinite server queue
//! (Eckberg 1983). States lie that times (1 − σ) apart: the process here forgets 1/(1 − σ) as fast as time does.

use super::backlog::{Backlog, Course, evens};
use super::chain::Chain;
use super::mix::Mix;
use super::sharing::Sharing;
use super::steady::Share;

/// See the module.
pub(super) struct Crowd<'a> {
    pub sharing: &'a Sharing,
    pub share: Share,
    /// Steps that a mean request decodes.
    pub decoding: f64,
    /// The backlog at some numbers that decode, ascending.
    views: Vec<View>,
    /// The replica at some numbers in service, ascending.
    table: Vec<HeldSlots>,
    /// The number in service or waiting for a slot; none where nobody decodes.
    pub chain: Option<Chain>,
    /// Share of the time that goes into prompts.
    pub prefill: f64,
    /// ln t_e by ln n.
    pub slope: f64,
    /// What an arrival meets of the backlog, over what one by chance would: under 1 where they come evenly.
    pub meets: f64,
    /// The same of what comes after one.
    pub follows: f64,
    /// Tokens of the mean prompt.
    prompt: f64,
}

/// The replica while so many are in service.
#[derive(Copy, Clone, Default, Debug)]
pub(super) struct HeldSlots {
    number: f64,
    /// How long each stays, s.
    service_s: f64,
    /// How many of them decode.
    pub decodes: f64,
    /// Mean step, s.
    pub step_s: f64,
}

/// The backlog beside this many that decode.
pub(super) struct View {
    decodes: f64,
    pub backlog: Backlog,
    /// X, s.
    bunch_s: f64,
    /// From a prompt's first step to its first token, s.
    own_s: f64,
}

/// Most of a step that may go into prompts.
const MOST_PREFILL: f64 = 0.985;
/// Views lie so many standard deviations of the number apart; one view does where steps differ by less than this over that.
const APART: f64 = 1.2;
const ALIKE: f64 = 0.03;
/// Every whole number up to here is a point of the table of services.
const DENSE: f64 = 8.0;

impl<'a> Crowd<'a> {
    /// The replica under this share of a load; `None` where it does not keep up.
    pub fn new(sharing: &'a Sharing, share: Share) -> Option<Crowd<'a>> {
        let decoding = sharing.decoding();
        let prompt = sharing.prompts.mean;
        let added = sharing.step_s(1.0, prompt, 1.0) - sharing.step_s(1.0, 0.0, 0.0);
        let mut crowd = Crowd {
            sharing,
            share,
            decoding,
            views: Vec::new(),
            table: Vec::new(),
            chain: None,
            prefill: 0.0,
            slope: 0.0,
            meets: 1.0,
            follows: 1.0,
            prompt,
        };
        let about = crowd.balance(added);
        let view = crowd.view(about)?;
        let balance = crowd.balance(view.backlog.adds_s);
        crowd.prefill = (share.rate * view.backlog.adds_s).min(MOST_PREFILL);
        let sizes = (sharing.prompts.square / (prompt * prompt) - 1.0).max(0.0);
        crowd.meets = evens(share.local, crowd.prefill, sizes);
        // A router that looks at the load turns to the others as soon as it has sent one here.
        crowd.follows = evens(share.variance / share.pooled, crowd.prefill, sizes);
        let spread = crowd.spread(&view.backlog);
        if decoding > 0.0 {
            let next = 1.1 * balance + 1.0;
            crowd.slope = libm::log(crowd.empty_s(next) / crowd.empty_s(balance))
                / libm::log(next / balance.max(1.0)).max(1e-9);
            crowd.look_around(balance, spread);
        }
        crowd.views.push(view);
        crowd.views.sort_by(|a, b| a.decodes.total_cmp(&b.decodes));
        if decoding > 0.0 {
            crowd.table = crowd.table();
            crowd.chain = Some(crowd.chain(spread)?);
        }
        Some(crowd)
    }

    /// A step without prompts, s.
    pub fn empty_s(&self, decodes: f64) -> f64 {
        self.sharing.step_s(decodes.max(1.0), 0.0, 0.0)
    }

    /// A step full of prompts, s.
    pub fn full_s(&self, decodes: f64) -> f64 {
        let room = self.sharing.room(decodes);
        self.sharing.step_s(decodes, room, room / self.prompt)
    }

    /// t̄, s.
    fn step_s(&self, decodes: f64) -> f64 {
        let adds = self.between(decodes, |view| view.backlog.adds_s).max(0.0);
        let prefill = (self.share.rate * adds).min(MOST_PREFILL);
        (self.empty_s(decodes) / (1.0 - prefill)).min(self.full_s(decodes))
    }

    /// The view nearest to this number that decodes.
    pub fn near(&self, decodes: f64) -> &View {
        let apart = |view: &&View| (view.decodes - decodes).abs();
        self.views.iter().min_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap_or(&self.views[0])
    }

    /// The replica with so many in service, on the straight line between those of the table.
    pub fn held(&self, number: f64) -> HeldSlots {
        let place = self.table.partition_point(|held| held.number < number);
        let high = self.table.get(place).or(self.table.last()).copied().unwrap_or_default();
        let low =
            if place > 0 { self.table[place - 1] } else { HeldSlots { number: 0.0, decodes: 0.0, ..high } };
        let along =
            if high.number > low.number { (number - low.number) / (high.number - low.number) } else { 1.0 };
        let between = |low: f64, high: f64| low + (high - low) * along.clamp(0.0, 1.0);
        HeldSlots {
            number,
            service_s: between(low.service_s, high.service_s),
            decodes: between(low.decodes, high.decodes),
            step_s: between(low.step_s, high.step_s),
        }
    }

    /// Requests a second that end while so many are in service.
    pub fn served(&self, number: f64) -> f64 {
        number.max(1e-12) / self.held(number).service_s
    }

    /// Mean seconds from a prompt's first step to its first token, at the mean.
    pub fn mean_own_s(&self) -> f64 {
        self.own_s(self.chain.as_ref().map_or(0.0, |chain| self.held(chain.mean).decodes))
    }

    /// What its backlog at the first step of decoding adds to (or takes from) so many steps of a request, s.
    pub fn bunch_s(&self, view: &View, behind: f64, steps: f64) -> f64 {
        let prefill = (self.share.rate * view.backlog.adds_s).min(MOST_PREFILL);
        let fades = (1.0 - libm::pow(prefill, steps)) / (1.0 - prefill);
        view.backlog.adds_s / self.prompt * (behind - view.backlog.mean) * fades
    }

    fn decode_s(&self, decodes: f64) -> f64 {
        let bunch = self.follows * self.between(decodes, |view| view.bunch_s);
        (self.decoding * self.step_s(decodes) + bunch).max(1e-9)
    }

    fn own_s(&self, decodes: f64) -> f64 {
        self.between(decodes, |view| view.own_s).max(0.0)
    }

    /// The number that decodes at which as many end as come, where a prompt adds so much.
    fn balance(&self, adds_s: f64) -> f64 {
        let rest = (1.0 - self.share.rate * adds_s).max(1.0 - MOST_PREFILL);
        let (mut low, mut high) = (0.0, self.sharing.slots);
        for _ in 0..30 {
            let middle = 0.5 * (low + high);
            if middle * rest < self.share.rate * self.decoding * self.empty_s(middle) {
                low = middle;
            } else {
                high = middle;
            }
        }
        high
    }

    fn view(&self, decodes: f64) -> Option<View> {
        let Crowd { sharing, share, decoding, prompt, .. } = *self;
        let room = sharing.room(decodes);
        let step_s = |tokens: f64| sharing.step_s(decodes, tokens, tokens / prompt);
        let backlog = Backlog::new(&Course {
            prompts: &sharing.prompts,
            rate: share.rate,
            variance: share.local.max(1.0),
            room,
            decoding,
            empty_s: self.empty_s(decodes),
            step_s: &step_s,
        })?;
        // Steps are weighed by the tokens that they compute; what a mean prompt meets has the fewer of a mean one.
        let heavier = sharing.prompts.heavier(room);
        let pieces = libm::ceil(prompt / room - 1e-9).max(1.0);
        let met_s = backlog.by_tokens(|cells| backlog.seconds[cells]) - backlog.adds_s / prompt * heavier;
        let mut view = View { decodes, backlog, bunch_s: 0.0, own_s: pieces * met_s };
        let backlog = &view.backlog;
        let prefill = (share.rate * backlog.adds_s).min(MOST_PREFILL);
        let most = decoding * (step_s(room) - self.empty_s(decodes) / (1.0 - prefill)).max(0.0);
        let behind = |cells: usize| {
            backlog.left(cells) + share.rate * backlog.seconds[cells] * prompt - prefill * heavier
        };
        let bunch_s = backlog.by_tokens(|cells| self.bunch_s(&view, behind(cells), decoding).min(most));
        view.bunch_s = bunch_s;
        Some(view)
    }

    /// More views where the steps differ over the numbers that are common.
    fn look_around(&mut self, balance: f64, spread: f64) {
        let deviation =
            libm::sqrt(balance * spread / self.share.pooled / (1.0 - self.slope).max(0.2)) * APART;
        let low = (balance - deviation).max(balance.min(1.0));
        let high = (balance + deviation).min(self.sharing.slots);
        if self.empty_s(high) < (1.0 + ALIKE) * self.empty_s(low) {
            return;
        }
        let views: Vec<View> = [low, high].into_iter().filter_map(|decodes| self.view(decodes)).collect();
        self.views.extend(views);
    }

    /// A figure of the views around a number, on the straight line between them and some way beyond.
    fn between(&self, decodes: f64, figure: impl Fn(&View) -> f64) -> f64 {
        let place =
            self.views.partition_point(|view| view.decodes < decodes).clamp(1, self.views.len().max(2) - 1);
        let (Some(low), Some(high)) = (self.views.get(place - 1), self.views.get(place)) else {
            return self.views.first().map_or(0.0, figure);
        };
        if high.decodes <= low.decodes {
            return figure(high);
        }
        let along = ((decodes - low.decodes) / (high.decodes - low.decodes)).clamp(-1.0, 2.0);
        figure(low) * (1.0 - along) + figure(high) * along
    }

    /// Variance of the number that decodes over what it is by chance.
    fn spread(&self, backlog: &Backlog) -> f64 {
        let steps = self.decoding.max(1.0);
        let rest = 1.0 - self.prefill;
        let bunched = self.share.variance;
        let long =
            (if bunched > 1.0 { bunched } else { bunched.min(self.share.local) } / (rest * rest)).max(0.01);
        let first = backlog.dispersion.min(long).max(0.05);
        let fades = ((long - first) / (long + first)).clamp(0.0, 0.999_9);
        let over = first
            * ((1.0 + fades) / (1.0 - fades)
                - 2.0 * fades * (1.0 - libm::pow(fades, steps)) / (steps * (1.0 - fades) * (1.0 - fades)));
        (1.0 + (over - 1.0) * evenness(&self.sharing.mix)).max(0.1)
    }

    /// At 1, 2, 3, … in service, then an eighth more each, up to the slots.
    fn table(&self) -> Vec<HeldSlots> {
        let slots = self.sharing.slots;
        let mut out: Vec<HeldSlots> = Vec::with_capacity(64);
        let mut number: f64 = 1.0;
        while out.last().is_none_or(|held| held.number < slots) {
            number = number.min(slots);
            let mut decodes = number;
            for _ in 0..2 {
                let decode_s = self.decode_s(decodes);
                decodes = number * decode_s / (decode_s + self.own_s(decodes));
            }
            let service_s = self.decode_s(decodes) + self.own_s(decodes);
            out.push(HeldSlots { number, service_s, decodes, step_s: self.step_s(decodes) });
            number = if number < DENSE { number + 1.0 } else { number * 1.125 };
        }
        // The limit is that of slots that are all taken; it must not be passed by a hair earlier.
        let most = out.last().map_or(1.0, |held| held.service_s * self.sharing.limit_per_s() / slots);
        for held in &mut out {
            let full = held.number / slots;
            held.service_s /= 1.0 + (most - 1.0).max(0.0) * full * full;
        }
        out
    }

    fn chain(&self, spread: f64) -> Option<Chain> {
        let apart = spread * (1.0 - self.prefill);
        Chain::new(self.share.rate, self.share.pooled / apart, self.sharing.slots, |n| self.served(n))
    }
}

/// E\[the shorter of two answers\] / E\[an answer\]: 1 where all are alike, 1/2 for exponential ones.
fn evenness(mix: &Mix) -> f64 {
    let count = mix.rows().len() as f64;
    let (mut shorter, mut sum) = (0.0, 0.0);
    for (place, row) in mix.rows().iter().enumerate() {
        let more = (f64::from(row.output) - 1.0).max(0.0);
        shorter += more * (2.0 * (count - place as f64) - 1.0) / count;
        sum += more;
    }
    if sum > 0.0 { shorter / sum } else { 1.0 }
}
