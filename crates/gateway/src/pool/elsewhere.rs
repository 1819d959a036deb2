//! Replicas as other proxies know them: by their addresses.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plimsoll_policy::QueuedAsk;

use super::{Booked, ReplicaPool};
use crate::replica::Replica;
use crate::request::ParsedRequest;

impl ReplicaPool {
    /// The numbers of the replicas at these addresses, in ascending order: `ip:port`, or an `ip` for all its ports. What is no address is nobody's.
    pub fn at(&self, addresses: &[String]) -> Vec<u32> {
        // Read before the lock is taken: there may be thousands.
        let exact: HashSet<SocketAddr> = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        let hosts: HashSet<IpAddr> = addresses.iter().filter_map(|one| one.parse().ok()).collect();
        let inner = self.lock();
        let endpoints = inner.each().filter_map(|one| Some((one.place.endpoint()?, one.number)));
        let is_named = |endpoint: &SocketAddr| exact.contains(endpoint) || hosts.contains(&endpoint.ip());
        let mut numbers: Vec<u32> =
            endpoints.filter(|(endpoint, _)| is_named(endpoint)).map(|(_, number)| number).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Who would get a request if the one that it is booked on could not be reached, the best first, so many at most. Nothing is booked there.
    pub fn next_best(&self, asked: &ParsedRequest, booked: &Booked, most: usize) -> Vec<Arc<Replica>> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let ranked = inner.front.next_best(&asked.facts(), &booked.sent, now);
        ranked.into_iter().take(most).map(|number| Arc::clone(&inner.each[number as usize])).collect()
    }
}
