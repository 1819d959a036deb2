//! Routing by the cache hits that responses report.

use crate::kit::{Act, Mock, gateway, is_empty, request, send};

/// Sends forty sequential requests with a shared prefix. Returns the number of requests at each of two replicas.
fn shared_out(act: Act) -> [usize; 2] {
    let (a, b) = (Mock::new(act.clone()), Mock::new(act));
    let gateway = gateway(&[&a, &b], |_| {});
    let shared = "the same for all ".repeat(250);
    for number in 0..40 {
        let body = format!("{{\"prompt\":\"{shared}{number}{}\",\"max_tokens\":8}}", " and more".repeat(30));
        assert_eq!(send(gateway.addr, &request(&body)).map(|answer| answer.status), Some(200));
    }
    is_empty(&gateway);
    [a.count(), b.count()]
}

#[test]
fn requests_stay_where_their_prefix_is_cached_and_only_there() {
    let kept = shared_out(Act::Cached(900));
    assert!(kept.contains(&40), "{kept:?}");
    // A server without a prefix cache reports no hits, so nothing favours the previous replica.
    let none = shared_out(Act::Cached(0));
    assert!(none.iter().all(|&count| count >= 8), "{none:?}");
}
