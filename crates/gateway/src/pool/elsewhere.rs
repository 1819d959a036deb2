//! Lookup of replicas by address, for other proxies.

use std::collections::HashSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use plimsoll_policy::QueuedAsk;

use super::{ReplicaLease, ReplicaPool};
use crate::replica::Replica;
use crate::request::ParsedRequest;

impl ReplicaPool {
    /// Returns the numbers of the replicas at these addresses in ascending order. An address is `ip:port`, or an `ip`
    /// for all its ports; invalid addresses are ignored.
    pub fn at(&self, addresses: &[String]) -> Vec<u32> {
        // The addresses are parsed before the lock is taken, because there may be thousands.
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

    /// Returns up to `most` fallback replicas, best first, in case the booked one is unreachable. Nothing is booked.
    pub fn next_best(&self, asked: &ParsedRequest, booked: &ReplicaLease, most: usize) -> Vec<Arc<Replica>> {
        let now = self.clock.now();
        let mut inner = self.lock();
        let ranked = inner.front.next_best(&asked.facts(), &booked.sent, now);
        ranked.into_iter().take(most).map(|number| Arc::clone(&inner.each[number as usize])).collect()
    }
}
