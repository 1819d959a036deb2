//! Fair queue: the next request is chosen by class, then by the tenant with the fewest served tokens, then by
//! deadline.
//!
//! Among tenants, this is start-time fair queuing (Goyal, Vin, Cheng 1996) over the tokens of a request at dispatch.
//! It is equal to the virtual token counter of Sheng et al. (2024). Each tenant's counter grows by its served tokens,
//! and the lowest is next. A returning tenant starts at the level of the others. No tenant can save up credit, and
//! none is penalised for service in an idle period. Two waiting tenants differ by at most their largest request.
//! Deficit round robin lost, because it gives equal shares only within a quantum that must be configured.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use plimsoll_model::At;

/// Number of a request in the queue.
pub type Ticket = u64;

/// Limit on idle tenants that a class remembers because they were served ahead of others.
const REMEMBERED: usize = 4_096;

/// The amount of queue that requests occupy.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct QueueShare {
    pub requests: u32,
    /// Prompt tokens to compute.
    pub tokens: u64,
    pub bytes: u64,
}

/// The position of a request in the order of service.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// Class index; 0 has the highest priority.
    pub class: usize,
    pub tenant: u64,
    /// Deadline, which orders the requests of a tenant.
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
    /// Served tokens, starting at the level of the tenant's arrival.
    served: u64,
    tokens: u64,
    waiting: BTreeSet<(At, Ticket)>,
}

#[derive(Clone, Debug, Default)]
struct Class {
    share: f64,
    /// Tokens left of the class's share.
    credit: f64,
    /// Start level of a returning tenant: the counter of the tenant served last.
    level: u64,
    held: QueueShare,
    tenants: HashMap<u64, Tenant>,
    /// Waiting tenants, least served first.
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
    /// Returns an empty queue. `shares` is the share of tokens that each class gets while a higher class waits.
    pub fn new(shares: impl IntoIterator<Item = f64>) -> FairQueue<T> {
        let classes = shares.into_iter().map(|share| Class { share, ..Class::default() });
        FairQueue { classes: classes.collect(), items: BTreeMap::new(), held: QueueShare::default(), last: 0 }
    }

    /// Sets the share of tokens that a class gets while a higher class waits.
    pub(crate) fn set_share(&mut self, class: usize, share: f64) {
        self.classes[class].share = share;
    }

    /// Returns the total of the queued requests.
    pub fn held(&self) -> QueueShare {
        self.held
    }

    /// Returns the total of the queued requests of a class.
    pub fn held_by(&self, class: usize) -> QueueShare {
        self.classes[class].held
    }

    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Adds a request and returns its ticket.
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

    /// Returns the next request that satisfies `may`.
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

    pub fn get(&self, ticket: Ticket) -> Option<(Order, QueueShare, &T)> {
        self.items.get(&ticket).map(|item| (item.order, item.held, &item.what))
    }

    /// Removes a request without service.
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

    /// Removes a request for service, at a cost of this many tokens.
    pub fn serve(&mut self, ticket: Ticket, tokens: u64) -> Option<T> {
        let Order { class, tenant, .. } = self.items.get(&ticket)?.order;
        // A share applies only to service while a higher class waits, so the highest class saves up no credit.
        let passed = self.classes.iter_mut().filter(|each| each.held.requests > 0).skip(1);
        passed.for_each(|each| each.credit += each.share * tokens as f64);
        if self.classes[..class].iter().any(|before| before.held.requests > 0) {
            self.classes[class].credit -= tokens as f64;
        }
        let what = self.leave(ticket);
        self.charge(class, tenant, tokens);
        what
    }

    /// Charges served tokens to a tenant, also for requests that did not wait.
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

    /// Returns the tokens served before a request that would arrive now. These are all of higher classes, the earlier
    /// deadlines of its tenant, and an equal amount of every other tenant.
    pub fn ahead(&self, order: Order) -> u64 {
        self.ahead_among(order, 1.0, |_| true)
    }

    /// Returns the tokens of [`ahead`](FairQueue::ahead), limited to competing requests. Requests of its tenant are
    /// filtered by `count`; of the others, `share` of the tokens count.
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
            // Another tenant is served until its counter reaches the final one of this tenant; the request that
            // crosses it is included.
            let room = (until + 1).checked_sub(served)?;
            Some(class.tenants[&tenant].tokens.min(room))
        });
        own + (share * (before + others.sum::<u64>()) as f64) as u64
    }

    /// Returns the request that is dropped for a new one if the queue is full: the last of the largest tenant in the
    /// lowest class. Returns `None` if that class is higher than the new request's, or that tenant is not larger.
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

    /// Forgets an idle tenant unless it is ahead of the others. Otherwise it could return as if it had received no
    /// service.
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
