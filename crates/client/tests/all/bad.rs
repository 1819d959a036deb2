//! Checks that every misbehaving server leaves an outcome and its timestamps.

use std::net::TcpListener;

use plimsoll_client::target::Target;
use plimsoll_model::{Attempt, By, EventKind, How, Span};
use plimsoll_workload::RetryOn;

use crate::rig::{Rig, ms};
use crate::server::{SSE_HEAD, Server, Step, chunked, finish, good, json, token, write};

fn against(steps: impl Fn() -> Vec<Step> + Send + Sync + 'static) -> Attempt {
    with(steps, |_| {})
}

fn with(steps: impl Fn() -> Vec<Step> + Send + Sync + 'static, set: impl FnOnce(&mut Rig)) -> Attempt {
    let server = Server::plain(move |_| steps());
    let mut rig = Rig::at(server.url());
    set(&mut rig);
    rig.one()
}

#[track_caller]
fn check(row: &Attempt, how: How, by: By, retryable: bool, says: &str) {
    let got = (row.outcome.how, row.outcome.by, row.outcome.retryable);
    assert_eq!(got, (how, by, retryable), "{row:#?}");
    let error = row.answer.error.as_deref().unwrap_or_default();
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    assert!(row.end.is_some());
}

#[test]
fn a_good_answer_is_whole_and_its_stamps_are_in_order() {
    let row = against(|| vec![good()]);
    check(&row, How::Finished, By::Server, false, "");
    let stamps = [Some(row.due), row.sent, row.first_byte, row.first_token, row.last_token, row.end];
    let stamps = stamps.map(|at| at.expect("reached"));
    assert!(stamps.is_sorted(), "{stamps:?}");
    assert_eq!(row.answer.tokens.output, Some(3));
    assert_eq!(row.answer.text.as_deref(), Some("a b c "));
    let kinds: Vec<EventKind> = row.events.iter().map(|e| e.kind).collect();
    use EventKind::{Content, Done, Finish};
    assert_eq!(kinds, [Content, Content, Content, Finish, Done]);
    assert!(row.bytes_in > 300 && row.bytes_out > 100 && !row.reused);
}

#[test]
fn nobody_listens() {
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let row = Rig::at(format!("http://{port}/v1")).one();
    check(&row, How::Refused, By::Network, true, "cannot connect to 127.0.0.1");
    assert_eq!((row.sent, row.connected, row.first_byte), (None, None, None));
}

#[test]
fn the_name_is_not_found() {
    let row = Rig::at("http://no-such-host.invalid/v1").one();
    check(&row, How::Refused, By::Network, false, "no-such-host.invalid");
}

#[test]
fn reset_before_an_answer() {
    let row = against(|| vec![Step::Reset]);
    assert_eq!((row.outcome.how, row.outcome.retryable), (How::Reset, true));
    assert!(row.sent.is_some() && row.first_byte.is_none());
}

#[test]
fn closed_before_an_answer() {
    let row = against(|| vec![Step::Close]);
    assert_eq!((row.outcome.how, row.outcome.retryable), (How::Reset, true));
}

#[test]
fn closed_in_the_middle_of_a_stream_keeps_what_came() {
    let row = against(|| vec![write(format!("{SSE_HEAD}{}", token("a "))), Step::Close]);
    check(&row, How::Truncated, By::Network, true, "");
    assert_eq!(row.events.len(), 1);
    assert!(row.first_token.is_some() && row.end >= row.first_token);
}

#[test]
fn half_a_character_and_then_nothing() {
    let row = against(|| {
        let mut bytes = format!("{SSE_HEAD}{}", token("a ")).into_bytes();
        bytes.extend_from_slice(b"9\r\ndata: \xe2\x82");
        vec![Step::Write(bytes), Step::Close]
    });
    assert_eq!(row.outcome.how, How::Truncated);
}

#[test]
fn a_web_page_is_no_answer() {
    let page = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html>hi</html"; // one short on purpose
    let row = against(move || vec![write(&page[..page.len() - 1])]);
    check(&row, How::Malformed, By::Server, false, "web page");
}

#[test]
fn a_redirect_is_told_and_not_followed() {
    let other = Server::plain(|_| vec![good()]);
    let to = format!("location: {}/chat/completions\r\n", other.url());
    let row = against(move || vec![json("307 Temporary Redirect", &to, "{}")]);
    check(&row, How::Redirected, By::Server, false, &other.addr.to_string());
    assert_eq!(other.accepted(), 0);
}

#[test]
fn a_stream_that_never_ends_is_left_at_the_total_limit() {
    let never = || vec![write(format!("{SSE_HEAD}{}", token("a "))), Step::Hold];
    let row = with(never, |rig| rig.client.timeouts.total = ms(150));
    check(&row, How::Timeout, By::Client, true, "not ended in time");
    assert!(row.end.unwrap() - row.due >= ms(150));
    assert_eq!(row.events.len(), 1);
    assert!(row.first_token.is_some());
}

#[test]
fn no_token_in_time() {
    let row = with(|| vec![Step::Hold], |rig| rig.client.timeouts.first_token = Some(ms(60)));
    check(&row, How::Timeout, By::Client, true, "no token in time");
    assert!(row.sent.is_some() && row.first_byte.is_none());
}

#[test]
fn a_pause_longer_than_the_idle_limit() {
    let pause = || vec![write(format!("{SSE_HEAD}{}", token("a "))), Step::Hold];
    let row = with(pause, |rig| rig.client.timeouts.idle = Some(ms(60)));
    check(&row, How::Timeout, By::Client, true, "idle limit");
    assert_eq!(row.events.len(), 1);
}

#[test]
fn a_trickle_is_not_idle_and_still_ends() {
    let trickle = || vec![write(SSE_HEAD), Step::Forever(chunked(":").into_bytes(), 10)];
    let row = with(trickle, |rig| {
        rig.client.timeouts.idle = Some(Span::from_secs(10));
        rig.client.timeouts.total = ms(200);
    });
    check(&row, How::Timeout, By::Client, true, "not ended in time");
    assert!(row.bytes_in > SSE_HEAD.len() as u64);
}

#[test]
fn a_line_without_end_is_left_early() {
    let line = || {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ";
        vec![write(head), Step::Forever(vec![b'x'; 1 << 16], 0)]
    };
    let row = against(line);
    check(&row, How::Malformed, By::Server, false, "Plimsoll");
    assert!(row.bytes_in < 9 << 20, "{}", row.bytes_in);
}

#[test]
fn an_error_without_end_is_left_early() {
    let line = || {
        let head = "HTTP/1.1 500 No\r\ncontent-type: text/plain\r\n\r\nwhy: ";
        vec![write(head), Step::Forever(vec![b'x'; 1 << 16], 0)]
    };
    let row = against(line);
    check(&row, How::ServerError, By::Server, true, "why");
    assert!(row.bytes_in < 8 << 20, "{}", row.bytes_in);
}

#[test]
fn a_head_without_end() {
    let head = || vec![write("HTTP/1.1 200 OK\r\nx-long: "), Step::Forever(vec![b'x'; 1 << 16], 0)];
    check(&against(head), How::Malformed, By::Server, false, "");
    let many = (0..2000).map(|i| format!("x-{i}: y\r\n")).collect::<String>();
    let row = against(move || vec![json("200 OK", &many, "{}")]);
    check(&row, How::Malformed, By::Server, false, "");
}

#[test]
fn bytes_that_are_not_http() {
    let row = against(|| vec![write("SSH-2.0-OpenSSH_9.2\r\n\r\n"), Step::Close]);
    check(&row, How::Malformed, By::Server, false, "");
}

#[test]
fn broken_transfer_coding() {
    let row = against(|| vec![write(format!("{SSE_HEAD}{}zz\r\n", token("a "))), Step::Hold]);
    check(&row, How::Malformed, By::Server, false, "");
    assert_eq!(row.events.len(), 1);
}

#[test]
fn a_refusal_is_tried_again_as_the_policy_says_and_each_try_has_its_row() {
    let server = Server::plain(|seen| {
        if seen.connection == 0 && seen.nth == 0 {
            vec![json("429 Too Many", "retry-after: 0\r\n", r#"{"error":{"message":"slow down"}}"#)]
        } else {
            vec![good()]
        }
    });
    let mut rig = Rig::at(server.url());
    rig.client.retries.max = 2;
    rig.client.retries.base = ms(1);
    rig.client.retries.on = vec![RetryOn::Shed];
    let (level, rows) = rig.run(&[Span::ZERO]);
    let got: Vec<_> = rows.iter().map(|r| (r.request, r.attempt, r.outcome.how)).collect();
    assert_eq!(got, [(0, 0, How::Shed), (0, 1, How::Finished)]);
    assert_eq!(rows[0].due, rows[1].due);
    assert_eq!(rows[0].answer.error.as_deref(), Some("slow down"));
    assert_eq!((level.arrivals, level.generator.lag.count), (1, 1));
    let ids: Vec<bool> = server.seen().iter().map(|s| s.head.contains("x-request-id: run0-7-0-")).collect();
    assert_eq!(ids, [true, true]);
}

/// The placeholders of a header identify the request: turns of a session share its name, attempts of a request share a
/// trace.
#[test]
fn headers_name_the_request_its_session_and_its_trace() {
    let server = Server::plain(|seen| match (seen.connection, seen.nth) {
        (0, 0) => vec![json("429 Too Many", "retry-after: 0\r\n", r#"{"error":{"message":"slow down"}}"#)],
        _ => vec![good()],
    });
    let mut rig = Rig::at(server.url());
    rig.client.retries.max = 2;
    rig.client.retries.base = ms(1);
    rig.client.retries.on = vec![RetryOn::Shed];
    let headers =
        [("X-Affinity", "{session}"), ("traceparent", "00-{trace}-{span}-01"), ("x-id", "<{request}>")];
    rig.target.headers = headers.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
    let (_, rows) = rig.run(&[Span::ZERO]);
    assert_eq!(rows.len(), 2);
    let header = |name: &str| -> Vec<String> {
        let of = |head: &str| {
            let line = head.lines().find_map(|line| line.strip_prefix(&format!("{name}: ")));
            line.unwrap_or_else(|| panic!("no {name}: {head}")).to_owned()
        };
        server.seen().iter().map(|seen| of(&seen.head)).collect()
    };
    assert_eq!(header("x-affinity"), ["run0-7-0", "run0-7-0"]);
    assert_eq!(header("x-id"), ["<run0-7-0-0>", "<run0-7-0-1>"]);
    let traces = header("traceparent");
    // printf %s run0-7-0 | sha256sum
    assert!(
        traces.iter().all(|trace| trace.starts_with("00-65cf5ee3279b93dcbd5ef3d45a5c5eb1-")),
        "{traces:?}"
    );
    assert_ne!(traces[0], traces[1]);

    rig.target.headers = [("x".to_owned(), "{sesion}".to_owned())].into();
    let refused = Target::new(&rig.target, None).expect_err("a slip").to_string();
    assert!(refused.contains("cannot send the header x: {sesion} is none of"), "{refused}");
}

#[test]
fn an_error_inside_a_stream_is_no_success() {
    let row = against(|| {
        let error = chunked("data: {\"error\":{\"message\":\"out of blocks\",\"code\":500}}\n\n");
        vec![write(format!("{SSE_HEAD}{}{error}{}", token("a "), finish()))]
    });
    check(&row, How::StreamError, By::Server, true, "out of blocks");
}
