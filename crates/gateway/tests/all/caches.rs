//! What answers say of replicas' caches decides where requests go.

use crate::kit::{Act, Mock, gateway, is_empty, request, send};

/// Forty requests that begin alike, one after another; how many each of two replicas got.
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
    // A server without a prefix cache says so with each answer: then nothing speaks for the replica that was asked before.
    let none = shared_out(Act::Cached(0));
    assert!(none.iter().all(|&count| count >= 8), "{none:?}");
}
