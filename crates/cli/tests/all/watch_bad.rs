//! Pages that are none any more, or odd ones, under a watch: a state that says so, never a budget that holds, and nothing counted that was not there.

use std::io::Write;
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use serde_json::Value;

use crate::kit::{Server, reply, until};
use crate::watch::{EACH, page};
use crate::watch_page::{Watching, budget};

/// What a server answers instead of its page.
type Bad = fn(&mut TcpStream, &str);

/// The head of a whole page, of which this much comes.
fn part(socket: &mut TcpStream, whole: &str, bytes: usize) {
    let head =
        format!("HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: {}\r\n\r\n", whole.len());
    let _ = socket.write_all(head.as_bytes()).and_then(|()| socket.write_all(&whole.as_bytes()[..bytes]));
    let _ = socket.shutdown(std::net::Shutdown::Both);
}

const BAD: [(&str, Bad); 7] = [
    ("html", |socket, _| {
        reply(socket, "200 OK", "Content-Type: text/html\r\n", "<html><body>Sign in</body></html>")
    }),
    ("nothing", |socket, _| reply(socket, "200 OK", "", "")),
    ("no text", |socket, _| reply(socket, "200 OK", "", "\u{0}\u{1}vllm:\u{fffd}\u{7f} \u{0}\n")),
    ("error", |socket, page| reply(socket, "500 Internal Server Error", "", page)),
    // Its last line is "…_sum 2" of "…_sum 20…", or the like.
    ("cut in a number", |socket, page| part(socket, page, page.len() - 3)),
    ("half", |socket, page| part(socket, page, page.len() / 2)),
    ("endless", |socket, page| {
        let _ = socket.write_all(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n");
        while socket.write_all(page.as_bytes()).is_ok() {}
    }),
];

/// Each page is good, then bad, then good again: meanwhile its source is lost, and afterwards every request is counted once.
#[test]
fn a_page_that_is_none_is_a_lost_source_and_costs_no_count() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    std::thread::scope(|scope| {
        for (what, bad) in BAD {
            let budget = &budget;
            scope.spawn(move || {
                let (scrapes, is_bad) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
                let (seen, turned) = (Arc::clone(&scrapes), Arc::clone(&is_bad));
                let server = Server::start(move |_, socket| {
                    if turned.load(Ordering::SeqCst) {
                        // As many as there will be when it is good again, so that a part of a number is less.
                        return bad(socket, &page(seen.load(Ordering::SeqCst) * EACH + 1000, 0));
                    }
                    let scrape = seen.fetch_add(1, Ordering::SeqCst);
                    reply(socket, "200 OK", "Content-Type: text/plain\r\n", &page(scrape * EACH, 0));
                });
                let watching = Watching::start(&[&format!("{}/metrics", server.url)], budget, &[]);
                let row = || watching.json("/v1/rows")["rows"][0].clone();
                let n = || row()["n"].as_u64().unwrap_or(0);
                until("requests are counted", || n() >= 10 * EACH);
                is_bad.store(true, Ordering::SeqCst);
                until(what, || row()["state"] == "source_lost");
                assert!(watching.get("/metrics").contains("plimsoll_watch_pages_answering 0\n"), "{what}");
                is_bad.store(false, Ordering::SeqCst);
                let good = scrapes.load(Ordering::SeqCst);
                until("it is counted again", || n() >= (good + 1) * EACH);
                let found: Value = watching.json("/v1/rows");
                let counted = found["rows"][0]["n"].as_u64().expect("a count");
                // The first scrape is where counters begin; each later one brings as many.
                let most = (scrapes.load(Ordering::SeqCst) - 1) * EACH;
                assert!(counted <= most && counted.is_multiple_of(EACH), "{what}: {counted} of {most}");
                assert_eq!(found["fleet"]["restarts"], 0, "{what}: {found}");
            });
        }
    });
}

/// A page with lines twice, values that are no numbers and half a line at its end: what stands there is counted once, and nothing else.
#[test]
fn odd_lines_are_counted_once_or_not_at_all() {
    let folder = tempfile::tempdir().expect("a folder");
    let budget = budget(folder.path());
    let scrapes = Arc::new(AtomicU64::new(0));
    let seen = Arc::clone(&scrapes);
    let server = Server::start(move |_, socket| {
        let scrape = seen.fetch_add(1, Ordering::SeqCst);
        let page = page(scrape * EACH, 0);
        let odd = "vllm:prompt_tokens_total NaN\nvllm:num_requests_waiting NaN\nvllm:generation_tokens_tot";
        reply(socket, "200 OK", "Content-Type: text/plain\r\n", &format!("{page}{page}{odd}"));
    });
    let watching = Watching::start(&[&format!("{}/metrics", server.url)], &budget, &[]);
    let row = || watching.json("/v1/rows")["rows"][0].clone();
    until("it holds", || row()["state"] == "holds");
    let before = scrapes.load(Ordering::SeqCst);
    let counted = row()["n"].as_u64().expect("a count");
    let most = (scrapes.load(Ordering::SeqCst) - 1) * EACH;
    assert!(counted <= most && counted + 40 * EACH >= (before - 1) * EACH, "{counted} of {most}");
    let found = watching.json("/v1/rows");
    assert_eq!(found["fleet"]["waiting"], Value::Null, "{found}");
    assert_eq!(found["fleet"]["output_tokens_per_s"], Value::Null, "{found}");
}
