//! Checks the connection policy, which is part of the experiment, by connection counts on the server.

use plimsoll_client::Control;
use plimsoll_model::{At, Attempt, Span};
use plimsoll_workload::Connections;

use crate::rig::{Rig, ms, run_on};
use crate::server::{Server, Step, good, json, write};

fn twenty() -> Vec<Span> {
    (0..20).map(ms).collect()
}

#[test]
fn fresh_is_one_connection_per_request_and_says_so_to_the_server() {
    let server = Server::plain(|_| vec![good(), Step::Close]);
    let mut rig = Rig::at(server.url());
    rig.client.connections = Connections::Fresh;
    let (level, rows) = rig.run(&twenty());
    assert!(rows.iter().all(|r| r.outcome.is_finished() && !r.reused));
    assert_eq!((server.accepted(), level.generator.connects), (20, 20));
    assert!(server.seen().iter().all(|s| s.head.to_lowercase().contains("connection: close")));
    let numbers: std::collections::BTreeSet<_> = rows.iter().map(|r| r.connection).collect();
    assert_eq!(numbers.len(), 20);
}

#[test]
fn prewarmed_stand_before_the_first_arrival() {
    let server = Server::plain(|_| vec![good()]);
    let rig = Rig::at(server.url());
    let mut plan = rig.plan(&[Span::ZERO; 5]);
    plan.warm = Some(8);
    let (level, rows) = run_on(&rig.start(), &plan, &Control::default());
    assert_eq!((server.accepted(), level.generator.connects, level.generator.sockets_max), (8, 8, 8));
    for row in rows {
        assert!(row.connected.unwrap() < level.start && row.sent.unwrap() >= level.start);
        assert!(!row.reused, "a warmed connection has carried nothing yet");
    }
}

#[test]
fn a_bounded_pool_never_passes_its_limit_and_waiting_counts_from_due() {
    let server = Server::plain(|_| vec![good()]);
    let mut rig = Rig::at(server.url());
    rig.workers = 4;
    rig.client.connections = Connections::Pool { limit: 2 };
    let (level, rows) = rig.run(&[Span::ZERO; 30]);
    assert_eq!(rows.len(), 30);
    assert!(rows.iter().all(|r| r.outcome.is_finished() && r.due == level.start));
    assert!(server.accepted() <= 2 && server.open_max() <= 2, "{}", server.accepted());
    assert!(level.generator.closed_since.is_some_and(|at| at >= level.start));
    assert_eq!(level.generator.workers, 2);
}

/// Eight requests at a time use two places, so each waits for a place, which is no part of the target's time. Six of eight
/// always wait, so the wait is three times the response time, independent of pauses of the machine.
#[test]
fn a_closed_loop_behind_its_own_pool_says_how_long_it_waited() {
    let server = Server::plain(|_| vec![good()]);
    let mut rig = Rig::at(server.url());
    rig.client.connections = Connections::Pool { limit: 2 };
    rig.window = ms(400);
    let (_, rows) = rig.run_until(20, &rig.closed(8));
    let fine: Vec<_> = rows.iter().filter(|r| r.outcome.is_finished()).collect();
    // The first two get a place immediately.
    let waited = fine.iter().filter(|r| Some(r.due) < r.sent).count();
    assert!(fine.len() >= 8 && waited + 2 >= fine.len() / 2, "{waited} of {} waited", fine.len());
    let of = |part: &dyn Fn(&Attempt) -> Option<Span>| {
        fine.iter().filter_map(|r| part(r)).map(|s| s.as_secs_f64()).sum::<f64>()
    };
    let (waiting, answering) = (of(&|r| Some(r.sent? - r.due)), of(&|r| Some(r.end? - r.sent?)));
    assert!(waiting > answering, "{waiting} s of waiting, {answering} s of being answered");
}

#[test]
fn a_kept_connection_that_the_server_closed_is_replaced_without_a_trace_of_error() {
    // Closes after each response without announcing it.
    let server = Server::plain(|_| vec![good(), Step::Close]);
    let rig = Rig::at(server.url());
    let client = rig.start();
    for n in 0..5 {
        let (_, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &Control::default());
        assert!(rows[0].outcome.is_finished(), "{n}: {:#?}", rows[0]);
        assert!(!rows[0].reused);
    }
    assert_eq!(server.accepted(), 5);
}

#[test]
fn a_request_that_was_written_is_never_sent_again_in_secret() {
    // Answers the first request on a connection and closes it at the second.
    let server = Server::plain(|seen| if seen.nth == 0 { vec![good()] } else { vec![Step::Close] });
    let rig = Rig::at(server.url());
    let client = rig.start();
    let run = || run_on(&client, &rig.plan(&[Span::ZERO]), &Control::default()).1.remove(0);
    assert!(run().outcome.is_finished());
    let row = run();
    assert_eq!((row.outcome.how, row.reused), (plimsoll_model::How::Reset, true));
    assert_eq!(server.seen().len(), 2);
}

#[test]
fn answers_that_do_not_stream_keep_their_connection() {
    let body = r#"{"choices":[{"message":{"content":"a b c"},"finish_reason":"length"}],"usage":{"prompt_tokens":4,"completion_tokens":3}}"#;
    let server = Server::plain(move |_| vec![json("200 OK", "x-replica: r7\r\n", body)]);
    let mut rig = Rig::at(server.url());
    rig.target.stream = false;
    let (_, rows) = rig.run_until(2, &rig.closed(1));
    for row in &rows {
        assert!(row.outcome.is_finished(), "{row:#?}");
        assert_eq!((row.answer.tokens.output, row.first_token), (Some(3), None));
        assert_eq!(row.answer.replica.as_deref(), Some("r7"));
        assert!(row.end > Some(At::ZERO) && row.events.len() == 1);
    }
    assert_eq!(server.accepted(), 1, "one after another: one connection");
}

/// Returns the number of connections for two sequential requests that get this response.
fn connections_for(answer: &'static str) -> u32 {
    let server = Server::plain(move |_| vec![write(answer)]);
    let mut rig = Rig::at(server.url());
    rig.target.stream = false;
    let client = rig.start();
    for _ in 0..2 {
        let (_, rows) = run_on(&client, &rig.plan(&[Span::ZERO]), &Control::default());
        assert!(rows[0].outcome.is_finished(), "{:#?}", rows[0]);
    }
    server.accepted()
}

#[test]
fn a_connection_is_kept_only_where_its_answer_leaves_it_clean() {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n";
    let leak = |rest: &str| &*Box::leak(format!("{head}{rest}").into_boxed_str());
    let body = r#"{"choices":[{"message":{"content":"a b c"}}],"usage":{"completion_tokens":3}}"#;
    let length = body.len();
    assert_eq!(connections_for(leak(&format!("content-length: {length}\r\n\r\n{body}"))), 1);
    assert_eq!(connections_for(leak(&format!("content-length: {length}\r\n\r\n{body} and more"))), 2);
    assert_eq!(
        connections_for(leak(&format!("connection: close\r\ncontent-length: {length}\r\n\r\n{body}"))),
        2
    );
}

#[test]
fn an_interim_answer_is_not_the_answer() {
    let server = Server::plain(|_| vec![write("HTTP/1.1 100 Continue\r\n\r\n"), good()]);
    let row = Rig::at(server.url()).one();
    assert!(row.outcome.is_finished() && row.events.len() == 5, "{row:#?}");
}

#[test]
fn a_refusal_is_heard_before_the_request_is_written() {
    // Reads no bytes, so a request larger than the socket buffers is never complete.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addr = listener.local_addr().unwrap();
    let server = std::thread::spawn(move || {
        use std::io::Write as _;
        let (mut stream, _) = listener.accept().unwrap();
        let body = r#"{"error":{"message":"too long"}}"#;
        let head = "HTTP/1.1 413 Too Large\r\ncontent-type: application/json\r\ncontent-length: ";
        stream.write_all(format!("{head}{}\r\n\r\n{body}", body.len()).as_bytes()).unwrap();
        stream
    });
    let mut rig = Rig::at(format!("http://{addr}/v1"));
    rig.target.extra.insert("padding".into(), "x".repeat(32 << 20).into());
    let row = rig.one();
    assert_eq!(
        (row.outcome.how, row.answer.status),
        (plimsoll_model::How::ClientError, Some(413)),
        "{row:#?}"
    );
    assert_eq!(row.answer.error.as_deref(), Some("too long"));
    assert!(row.bytes_out > 0 && row.bytes_out < 32 << 20, "{}", row.bytes_out);
    drop(server.join().unwrap());
}

/// Compares the kernel's facts with known values: a request of one segment on loopback, without loss.
#[test]
fn each_attempt_is_told_of_its_own_connection_only() {
    let server = Server::plain(|_| vec![good()]);
    let rig = Rig::at(server.url());
    let (_, rows) = rig.run(&twenty());
    assert!(rows.iter().all(|r| r.outcome.is_finished()));
    if !cfg!(target_os = "linux") || rows.iter().all(|r| r.tcp == plimsoll_model::TcpFacts::default()) {
        assert!(cfg!(not(target_os = "linux")) || !plimsoll_client::http1::tcp::kernel_stamps_available());
        return;
    }
    for row in &rows {
        let least = row.tcp.rtt_min.expect("Linux tells");
        // On loopback; a stall of the machine increases the value and never makes it zero.
        assert!(least > Span::ZERO && least < Span::from_secs(5), "{least}");
        assert_eq!((row.tcp.retransmits, row.tcp.segments_out), (Some(0), Some(1)), "{:?}", row.tcp);
        assert!(row.tcp.segments_in.is_some_and(|n| n >= 1) && row.tcp.out_of_order == Some(0));
    }
    // The facts of a connection that ends with its request are read before it is closed.
    let server = Server::plain(|_| vec![good(), Step::Close]);
    let mut rig = Rig::at(server.url());
    rig.client.connections = Connections::Fresh;
    let (_, rows) = rig.run(&twenty());
    assert!(rows.iter().all(|r| r.tcp.segments_out == Some(1) && r.tcp.rtt_min.is_some()));
}
