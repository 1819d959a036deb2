//! Requests that wait, and who of them is next: by class, then the tenant that was served the fewest tokens, then the earliest deadline.
//!
//! Among tenants it is start-time fair queuing (Goyal, Vin, Cheng 1996) over the tokens that a request costs when it is sent, which is the virtual token
//! counter of Sheng et al. (2024) too: each tenant's counter grows by what it was served, the lowest is next, and one that was away starts where
//! the others are, so that nobody saves up and nobody is punished for having been served while nobody else asked. Two tenants that both wait
//! differ by at most their largest request. Deficit round robin gives the same shares within a quantum that somebody would have to choose.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use plimsoll_model::At;

/// A request's number in the queue.
pub type Ticket = u64;

/// Tenants without requests that a class remembers: those that were served ahead of others.
const REMEMBERED: usize = 4_096;

/// What a request takes of the queue.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct QueueShare {
    pub requests: u32,
    /// Prompt tokens to be computed.
    pub tokens: u64,
    pub bytes: u64,
}

/// Whose turn a request waits for.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// Its class; 0 goes first.
    pub class: usize,
    pub tenant: u64,
    /// Who of a tenant's requests is first: the one that must be answered first.
    pub due: At,
}

#[derive(Clone, Debug)]
struct Item<T> {
    order: Order,
    held: QueueShare,
    what: T,
}

#[derive(Clone, Debug, Default)]
struct Tenant {
    /// Tokens that it was served, from where it came in.
    served: u64,
    tokens: u64,
    waiting: BTreeSet<(At, Ticket)>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    share: f64,
    /// Tokens that it may still have of its share.
    credit: f64,
    /// Where a tenant comes in that was away: the counter of the one served last.
    level: u64,
    held: QueueShare,
    tenants: HashMap<u64, Tenant>,
    /// Tenants that wait, the least served first.
    waiting: BTreeSet<(u64, u64)>,
}

#[derive(Clone, Debug)]
pub struct FairQueue<T> {
    classes: Vec<Class>,
    items: BTreeMap<Ticket, Item<T>>,
    held: QueueShare,
    last: Ticket,
}

impl<T> FairQueue<T> {
    /// An empty one. `shares`: what each class gets of all tokens though one before it waits.
    pub fn new(shares: impl IntoIterator<Item = f64>) -> FairQueue<T> {
        let classes = shares.into_iter().map(|share| Class { share, ..Class::default() });
        FairQueue { classes: classes.collect(), items: BTreeMap::new(), held: QueueShare::default(), last: 0 }
    }

    /// Changes what a class gets of all tokens though one before it waits.
    pub(crate) fn set_share(&mut self, class: usize, share: f64) {
        self.classes[class].share = share;
    }

    /// What waits.
    pub fn held(&self) -> QueueShare {
        self.held
    }

    /// What waits of one class.
    pub fn held_by(&self, class: usize) -> QueueShare {
        self.classes[class].held
    }

    /// Does nobody wait?
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Takes a request in.
    pub fn put(&mut self, order: Order, held: QueueShare, what: T) -> Ticket {
        self.last += 1;
        let (ticket, class) = (self.last, &mut self.classes[order.class]);
        let tenant = class.tenants.entry(order.tenant).or_default();
        if tenant.waiting.is_empty() {
            tenant.served = tenant.served.max(class.level);
            class.waiting.insert((tenant.served, order.tenant));
        }
        tenant.waiting.insert((order.due, ticket));
        tenant.tokens += held.tokens;
        class.held.add(held);
        self.held.add(held);
        self.items.insert(ticket, Item { order, held, what });
        ticket
    }

    /// Who is next of those that `may` go now.
    pub fn next(&self, may: impl Fn(&T) -> bool) -> Option<Ticket> {
        let may = |ticket: &Ticket| self.items.get(ticket).is_some_and(|item| may(&item.what));
        if let Some(next) = self.next_class()?.head().filter(may) {
            return Some(next);
        }
        let tickets = self.classes.iter().flat_map(|class| {
            let tenants = class.waiting.iter().map(|(_, tenant)| &class.tenants[tenant]);
            tenants.flat_map(|tenant| tenant.waiting.iter().map(|&(_, ticket)| ticket))
        });
        tickets.into_iter().find(may)
    }

    /// A request that waits.
    pub fn get(&self, ticket: Ticket) -> Option<(Order, QueueShare, &T)> {
        self.items.get(&ticket).map(|item| (item.order, item.held, &item.what))
    }

    /// Takes a request out that is not served.
    pub fn leave(&mut self, ticket: Ticket) -> Option<T> {
        let item = self.items.remove(&ticket)?;
        let (order, class) = (item.order, &mut self.classes[item.order.class]);
        let tenant = class.tenants.get_mut(&order.tenant)?;
        tenant.waiting.remove(&(order.due, ticket));
        tenant.tokens -= item.held.tokens;
        if tenant.waiting.is_empty() {
            class.waiting.remove(&(tenant.served, order.tenant));
            class.forget(order.tenant);
        }
        class.held.take(item.held);
        self.held.take(item.held);
        if class.held.requests == 0 {
            class.credit = 0.0;
        }
        Some(item.what)
    }

    /// Takes a request out that is served now and costs so many tokens.
    pub fn serve(&mut self, ticket: Ticket, tokens: u64) -> Option<T> {
        let Order { class, tenant, .. } = self.items.get(&ticket)?.order;
        // A share is of what is served while one before waits: a class that is first anyway saves nothing up.
        let passed = self.classes.iter_mut().filter(|each| each.held.requests > 0).skip(1);
        passed.for_each(|each| each.credit += each.share * tokens as f64);
        if self.classes[..class].iter().any(|before| before.held.requests > 0) {
            self.classes[class].credit -= tokens as f64;
        }
        let what = self.leave(ticket);
        self.charge(class, tenant, tokens);
        what
    }

    /// A tenant was served so many tokens, whether its request waited or not.
    pub(crate) fn charge(&mut self, class: usize, tenant: u64, tokens: u64) {
        let class = &mut self.classes[class];
        if class.tenants.len() > REMEMBERED + class.waiting.len() {
            class.tenants.retain(|_, tenant| !tenant.waiting.is_empty());
        }
        let one = class.tenants.entry(tenant).or_default();
        let before = (one.served, tenant);
        class.level = class.level.max(one.served);
        one.served = one.served.max(class.level) + tokens;
        if !one.waiting.is_empty() {
            class.waiting.remove(&before);
            class.waiting.insert((one.served, tenant));
        }
    }

    /// Tokens that are served before a request that would come now, as far as those go that are here: all of classes before its own, its tenant's own
    /// that are due before it, and of every other tenant as much as its own gets meanwhile.
    pub fn ahead(&self, order: Order) -> u64 {
        self.ahead_among(order, 1.0, |_| true)
    }

    /// The same, where only those that `count` stand in its way: of its tenant each is looked at, of all others they are `share` of the tokens.
    pub(crate) fn ahead_among(&self, order: Order, share: f64, count: impl Fn(&T) -> bool) -> u64 {
        let before: u64 = self.classes[..order.class].iter().map(|class| class.held.tokens).sum();
        let class = &self.classes[order.class];
        let own = class.tenants.get(&order.tenant).filter(|tenant| !tenant.waiting.is_empty());
        let (served, own) = own.map_or((class.level, 0), |tenant| {
            let first = tenant.waiting.iter().take_while(|(due, _)| *due <= order.due);
            let items = first.filter_map(|(_, ticket)| self.items.get(ticket));
            let tokens = items.filter(|item| count(&item.what)).map(|item| item.held.tokens);
            (tenant.served, tokens.sum())
        });
        let until = served.max(class.level) + own;
        let others = class.waiting.iter().filter(|(_, tenant)| *tenant != order.tenant);
        let others = others.map_while(|&(served, tenant)| {
            // Each is served until its counter is where this one's will be; the request that crosses that goes before too.
            let room = (until + 1).checked_sub(served)?;
            Some(class.tenants[&tenant].tokens.min(room))
        });
        own + (share * (before + others.sum::<u64>()) as f64) as u64
    }

    /// Who gives way to a newcomer where there is no room: the last of the tenant with the most tokens, in the last class; nobody if that is the
    /// newcomer's own, or one before its class.
    pub fn longest(&self, order: Order, held: QueueShare) -> Option<Ticket> {
        let (number, class) = self.classes.iter().enumerate().rfind(|(_, class)| class.held.requests > 0)?;
        if number < order.class {
            return None;
        }
        let tenants = class.waiting.iter().map(|(_, tenant)| (class.tenants[tenant].tokens, *tenant));
        let (tokens, tenant) = tenants.max()?;
        let own = class.tenants.get(&order.tenant).map_or(0, |tenant| tenant.tokens) + held.tokens;
        if number == order.class && (tenant == order.tenant || tokens <= own) {
            return None;
        }
        class.tenants[&tenant].waiting.last().map(|&(_, ticket)| ticket)
    }

    fn next_class(&self) -> Option<&Class> {
        let mut waiting = self.classes.iter().filter(|class| class.held.requests > 0);
        let first = waiting.next()?;
        let by_share = waiting.find(|class| {
            let head = class.head().and_then(|ticket| self.items.get(&ticket));
            class.share > 0.0 && head.is_some_and(|item| class.credit >= item.held.tokens as f64)
        });
        Some(by_share.unwrap_or(first))
    }
}

impl Class {
    fn head(&self) -> Option<Ticket> {
        let (_, tenant) = self.waiting.first()?;
        self.tenants[tenant].waiting.first().map(|&(_, ticket)| ticket)
    }

    /// A tenant without requests is remembered only while it is ahead of the others: then it must not come back as if it had had nothing.
    fn forget(&mut self, tenant: u64) {
        if self.tenants.get(&tenant).is_some_and(|one| one.served <= self.level) {
            self.tenants.remove(&tenant);
        }
    }
}

impl QueueShare {
    fn add(&mut self, other: QueueShare) {
        self.requests += other.requests;
        self.tokens += other.tokens;
        self.bytes += other.bytes;
    }

    fn take(&mut self, other: QueueShare) {
        self.requests -= other.requests;
        self.tokens -= other.tokens;
        self.bytes -= other.bytes;
    }
}
