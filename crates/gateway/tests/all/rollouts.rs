//! Canary and shadow: traffic shares, operator commands, and no effect of a shadow on clients.

use std::net::SocketAddr;
use std::time::Duration;

use plimsoll_gateway::rollout::{RolloutState, SplitVerdict};
use plimsoll_gateway::stats::RequestEnd;
use plimsoll_gateway::{Gateway, GatewaySpec, ReplicaRole, RolloutSpec, ShadowSpec};

use crate::kit::{ASK, Act, Answer, Mock, ask, gateway, get, is_empty, request, send, until};

/// Returns a gateway whose last replica has this role.
fn on_trial(mocks: &[&Mock], role: ReplicaRole, change: impl FnOnce(&mut GatewaySpec)) -> Gateway {
    gateway(mocks, |spec| {
        spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
        spec.replicas[mocks.len() - 1].role = role;
        change(spec);
    })
}

fn of_session(gateway: &Gateway, session: &str) -> Answer {
    let text = String::from_utf8(request(ASK)).expect("text");
    let text = text.replacen("Host:", &format!("x-session-id: {session}\r\nHost:"), 1);
    send(gateway.addr, text.as_bytes()).expect("an answer")
}

/// Returns which of `count` sessions are answered by this replica.
fn sessions_of(gateway: &Gateway, replica: &str, count: usize) -> Vec<usize> {
    let is_of = |n: &usize| {
        let answer = of_session(gateway, &format!("s{n}"));
        assert_eq!(answer.status, 200);
        answer.header("x-plimsoll-replica") == Some(replica)
    };
    (0..count).filter(is_of).collect()
}

fn operate(gateway: &Gateway, kind: &str, body: &str) -> Answer {
    let admin = gateway.admin.expect("an admin address");
    let text = format!(
        "POST /v1/canary HTTP/1.1\r\nHost: x\r\nConnection: close\r\ncontent-type: {kind}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    send(admin, text.as_bytes()).expect("an answer")
}

fn does(gateway: &Gateway, body: &str) -> Answer {
    operate(gateway, "application/json", body)
}

#[test]
fn a_canary_gets_its_share_of_sessions_and_keeps_them_as_it_grows() {
    let mocks = [Mock::new(Act::Answer), Mock::new(Act::Answer), Mock::new(Act::Answer)];
    let all = [&mocks[0], &mocks[1], &mocks[2]];
    let gateway = on_trial(&all, ReplicaRole::Canary, |spec| {
        spec.canary = Some(RolloutSpec { share: Some(0.2), ..RolloutSpec::default() });
    });
    let small = sessions_of(&gateway, "r2", 300);
    // The expected value is 60; a uniform hash stays within six standard deviations of a binomial.
    assert!((20..=100).contains(&small.len()), "{}", small.len());
    assert_eq!(sessions_of(&gateway, "r2", 300), small, "a session stays where it was");
    assert_eq!(does(&gateway, r#"{"do": "share", "share": 0.5}"#).status, 200);
    let large = sessions_of(&gateway, "r2", 300);
    assert!((100..=200).contains(&large.len()), "{}", large.len());
    assert!(small.iter().all(|session| large.contains(session)), "nobody goes back while it grows");
    // The default share gives each replica equal load.
    let mut spec = GatewaySpec { replicas: Vec::new(), ..GatewaySpec::default() };
    for (number, role) in [ReplicaRole::Serve, ReplicaRole::Serve, ReplicaRole::Serve, ReplicaRole::Canary]
        .into_iter()
        .enumerate()
    {
        let mut replica = plimsoll_gateway::ReplicaSpec::new(format!("http://h{number}"), None);
        replica.role = role;
        spec.replicas.push(replica);
    }
    assert_eq!(spec.canary_share(), Some(0.25));
    is_empty(&gateway);
}

#[test]
fn a_side_without_room_or_replicas_uses_the_other() {
    let mocks = [Mock::new(Act::Answer), Mock::new(Act::Silence)];
    let gateway = on_trial(&[&mocks[0], &mocks[1]], ReplicaRole::Canary, |spec| {
        spec.canary = Some(RolloutSpec { share: Some(1.0), ..RolloutSpec::default() });
        spec.admission.per_replica = Some(1);
    });
    let addr = gateway.addr;
    let stuck = std::thread::spawn(move || send(addr, &request(ASK)));
    until("the canary is full", || mocks[1].count() == 1);
    assert_eq!(ask(&gateway).header("x-plimsoll-replica"), Some("r0"));
    assert_eq!(gateway.pool.strayed(), 1);
    mocks[1].leave();
    drop(stuck.join());
    until("the canary is down", || !gateway.pool.is_up(1));
    assert_eq!(ask(&gateway).header("x-plimsoll-replica"), Some("r0"));
}

#[test]
fn an_operator_promotes_rolls_back_and_begins_again() {
    let mocks = [Mock::new(Act::Answer), Mock::new(Act::Answer)];
    let gateway = on_trial(&[&mocks[0], &mocks[1]], ReplicaRole::Canary, |_| {});
    let stand = || gateway.pool.rollout.as_ref().expect("a canary").stand();
    assert_eq!(stand(), RolloutState::Trial { share: 0.5 });
    let refused = does(&gateway, r#"{"do": "promote"}"#);
    assert_eq!((refused.status, stand()), (409, RolloutState::Trial { share: 0.5 }));
    assert!(refused.text().contains("has no verdict yet"), "{}", refused.text());
    assert_eq!(does(&gateway, r#"{"do": "roll_back"}"#).status, 200);
    assert_eq!(stand(), RolloutState::RolledBack);
    assert_eq!(sessions_of(&gateway, "r1", 40), Vec::<usize>::new());
    // This holds even if no other replica answers.
    mocks[0].set(Act::Status(503, "retry-after: 1\r\n"));
    assert_eq!(ask(&gateway).status, 503);
    mocks[0].set(Act::Answer);
    // A new share restarts the trial after a rollback.
    assert_eq!(does(&gateway, r#"{"do": "share", "share": 0.5}"#).status, 200);
    assert!(!sessions_of(&gateway, "r1", 40).is_empty());
    gateway
        .pool
        .rollout
        .as_ref()
        .expect("a canary")
        .judge(SplitVerdict { may_promote: true, ..SplitVerdict::default() });
    assert_eq!(does(&gateway, r#"{"do": "promote"}"#).status, 200);
    assert_eq!(stand(), RolloutState::Promoted);
    assert!(!sessions_of(&gateway, "r1", 40).is_empty(), "it serves like all others");
    let shown = get(gateway.admin.expect("an address"), "/v1/canary", "");
    assert!(shown.text().contains(r#""stage":"promoted""#));
}

#[test]
fn what_an_operator_can_not_mean_changes_nothing() {
    let mocks = [Mock::new(Act::Answer), Mock::new(Act::Answer)];
    let gateway = on_trial(&[&mocks[0], &mocks[1]], ReplicaRole::Canary, |_| {});
    for (body, status, said) in [
        (r#"{"do": "share", "share": 1.5}"#, 409, "no share from 0 to 1"),
        (r#"{"do": "halt"}"#, 400, "unknown variant"),
        ("{", 400, "write {"),
        (r#"{"do": "promote", "now": true}"#, 400, "now"),
    ] {
        let answer = does(&gateway, body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        assert!(answer.text().contains(said), "{body}: {}", answer.text());
    }
    // A page in a browser can send this content type without permission.
    assert_eq!(operate(&gateway, "text/plain", r#"{"do": "roll_back"}"#).status, 415);
    assert_eq!(gateway.pool.rollout.as_ref().expect("a canary").stand(), RolloutState::Trial { share: 0.5 });
    let plain = crate::kit::gateway(&[&mocks[0]], |spec| {
        spec.admin = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    });
    assert_eq!(does(&plain, r#"{"do": "roll_back"}"#).status, 404);
}

#[test]
fn a_shadow_gets_the_same_bytes_and_no_client_waits_for_it() {
    let mocks = [Mock::new(Act::Answer), Mock::new(Act::Silence)];
    let gateway = on_trial(&[&mocks[0], &mocks[1]], ReplicaRole::Shadow, |spec| {
        spec.shadow = Some(ShadowSpec { requests: 3, ..ShadowSpec::default() });
    });
    let shadows = gateway.shadows.clone().expect("a shadow");
    until("the shadow answers", || shadows.is_up(0));
    for n in 0..5 {
        assert_eq!(ask(&gateway).header("x-plimsoll-replica"), Some("r0"));
        until("its copy is sent or left out", || mocks[1].count() == (n + 1).min(3));
    }
    let body = |mock: &Mock| {
        let last = mock.last.lock().expect("nobody panicked").clone();
        let end = last.windows(4).position(|end| end == b"\r\n\r\n").expect("a head");
        last[end..].to_vec()
    };
    assert_eq!(body(&mocks[0]), body(&mocks[1]));
    assert_eq!((mocks[0].count(), mocks[1].count()), (5, 3), "no more copies than may be in progress");
    assert_eq!(gateway.stats.ended(RequestEnd::Answered), 5);
    assert_eq!(gateway.stats.all(), 5, "copies are no requests of clients'");
    let page = get(gateway.admin.expect("an address"), "/metrics", "").text();
    assert!(page.contains(r#"plimsoll_gateway_shadow_requests_total{outcome="overloaded"} 2"#), "{page}");
    // A shadow finishes its copies like any replica.
    mocks[1].set(Act::Stream(3, Duration::from_millis(1)));
    mocks[0].set(Act::Hang);
    assert_eq!(ask(&gateway).status, 502, "a shadow never stands in for anybody");
}

#[test]
fn roles_that_do_not_fit_are_refused() {
    let refused = |change: &dyn Fn(&mut GatewaySpec)| {
        let replica = |name| plimsoll_gateway::ReplicaSpec::new(format!("http://{name}"), None);
        let replicas = ["a", "b"].map(replica).to_vec();
        let mut spec = GatewaySpec { replicas, ..GatewaySpec::default() };
        change(&mut spec);
        spec.validate().expect_err("refused").to_string()
    };
    assert!(
        refused(&|spec| spec.replicas.iter_mut().for_each(|one| one.role = ReplicaRole::Canary))
            .contains("none of them serves")
    );
    assert!(refused(&|spec| spec.canary = Some(RolloutSpec::default())).contains("role: canary"));
    assert!(refused(&|spec| spec.shadow = Some(ShadowSpec::default())).contains("role: shadow"));
    let canary = |of: RolloutSpec| {
        move |spec: &mut GatewaySpec| {
            spec.replicas[1].role = ReplicaRole::Canary;
            spec.canary = Some(of.clone());
        }
    };
    let default = RolloutSpec::default;
    assert!(refused(&canary(RolloutSpec { share: Some(2.0), ..default() })).contains("canary.share"));
    assert!(refused(&canary(RolloutSpec { before_s: 60.0, ..default() })).contains("canary.before_s"));
    assert!(refused(&canary(RolloutSpec { alpha: 0.0, ..default() })).contains("canary.alpha"));
}
