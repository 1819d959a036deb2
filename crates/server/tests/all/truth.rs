//! Checks that the truth log has the events of every request in causal order.

use std::collections::BTreeSet;
use std::path::Path;

use plimsoll_server::truth::{Header, TrueOutcome, TruthRecord, read};
use plimsoll_server::{EngineServerConfig, ServeError, serve};

use super::http::{Client, canned, chat, config, post, stuck};

fn logged(mut config: EngineServerConfig, path: &Path) -> EngineServerConfig {
    config.truth_log = Some(path.to_owned());
    config
}

fn log(path: &Path) -> (Header, Vec<TruthRecord>) {
    read(&std::fs::read_to_string(path).unwrap()).unwrap()
}

#[test]
fn concurrent_streams_are_all_there_and_in_order() {
    const CLIENTS: usize = 40;
    const TURNS: usize = 3;
    const TOKENS: usize = 12;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let running = serve(logged(config(canned(5.0, 2.0)), &path)).unwrap();
    let addr = running.addr();
    std::thread::scope(|scope| {
        for client in 0..CLIENTS {
            scope.spawn(move || {
                let mut socket = Client::connect(addr);
                for turn in 0..TURNS {
                    let id = format!("run-0-{client}-{turn}");
                    let body = chat(client + 1, TOKENS as u32, r#","stream":true"#);
                    socket.post("/v1/chat/completions", &id, &body);
                    let answer = socket.answer();
                    assert!(answer.clean);
                    assert_eq!(answer.chunks.len(), TOKENS + 2);
                }
            });
        }
    });
    running.shutdown().unwrap();
    let (header, records) = log(&path);
    assert_eq!((header.plimsoll_truth, header.model.as_str()), (1, "tiny"));
    assert!(header.clock.monotonic_ns > 0 && header.clock.realtime_ns > header.clock.monotonic_ns);
    let ids: BTreeSet<_> = records.iter().filter_map(|record| record.id.clone()).collect();
    assert_eq!((records.len(), ids.len()), (CLIENTS * TURNS, CLIENTS * TURNS));
    for record in &records {
        assert_eq!((record.ending, record.status, record.stream), (TrueOutcome::Finished, 200, true));
        assert_eq!((record.steps_ns.len(), record.writes_ns.len()), (TOKENS, TOKENS));
        let (admitted, prefill) = (record.admitted_ns.unwrap(), record.prefill_ns.unwrap());
        let order = [header.clock.monotonic_ns, record.arrival_ns, record.submitted_ns, admitted, prefill];
        assert!(order.is_sorted(), "{record:?}");
        assert!(prefill <= record.steps_ns[0]);
        assert!(record.writes_ns.is_sorted());
        assert!(record.steps_ns.iter().zip(&record.writes_ns).all(|(step, write)| step <= write));
        // Virtual time is exact for any lateness of the writes: 5 ms, then 2 ms each, to the nanosecond.
        assert_eq!(record.steps_ns[0] - record.submitted_ns, 5_000_000);
        assert!(record.steps_ns.windows(2).all(|pair| pair[1] - pair[0] == 2_000_000));
        assert_eq!(record.end_ns, record.steps_ns.last().copied());
    }
    // Loopback has software receive stamps on every supported Linux; a kernel without them would fail here.
    let stamped = records.iter().filter(|record| record.arrival_kernel).count();
    assert!(stamped == 0 || stamped == records.len(), "{stamped} of {}", records.len());
}

#[test]
fn whole_refused_and_cancelled_requests_have_their_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let running = serve(logged(config(canned(2.0, 1.0)), &path)).unwrap();
    post(running.addr(), "/v1/chat/completions", &chat(4, 5, ""));
    post(running.addr(), "/v1/chat/completions", "{");
    running.shutdown().unwrap();
    let (_, records) = log(&path);
    assert_eq!(records.len(), 2);
    let whole = records.iter().find(|record| record.status == 200).unwrap();
    assert_eq!((whole.steps_ns.len(), whole.writes_ns.len(), whole.prompt_tokens), (5, 1, 4));
    assert!(whole.writes_ns[0] >= whole.steps_ns[4]);
    let refused = records.iter().find(|record| record.status == 400).unwrap();
    assert_eq!((refused.ending, refused.number), (TrueOutcome::Rejected, None));

    let path = folder.path().join("stuck.jsonl");
    let running = serve(logged(config(stuck()), &path)).unwrap();
    let mut client = Client::connect(running.addr());
    client.post("/v1/chat/completions", "left", &chat(4, 5, r#","stream":true"#));
    client.head().unwrap();
    let stopper = running.stopper();
    stopper.now();
    running.wait().unwrap();
    let (_, records) = log(&path);
    assert_eq!(records.len(), 1);
    assert_eq!((records[0].id.as_deref(), records[0].ending), (Some("left"), TrueOutcome::Cancelled));
    assert!(records[0].admitted_ns.is_some() && records[0].steps_ns.is_empty());
}

#[test]
fn a_log_is_never_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    std::fs::write(&path, "mine").unwrap();
    let refused = serve(logged(config(canned(1.0, 1.0)), &path));
    assert!(matches!(refused, Err(ServeError::Truth { .. })));
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine");
}

#[test]
fn a_log_cut_short_is_read_as_far_as_it_goes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let running = serve(logged(config(canned(1.0, 1.0)), &path)).unwrap();
    (0..3).for_each(|_| drop(post(running.addr(), "/v1/chat/completions", &chat(1, 3, ""))));
    running.shutdown().unwrap();
    let text = std::fs::read_to_string(&path).unwrap();
    let (_, records) = read(&text[..text.len() - 20]).unwrap();
    assert_eq!(records.len(), 2);
    assert_eq!(read("no header\n").unwrap_err().0, 1);
}

#[test]
fn a_client_that_does_not_read_holds_its_tokens_back_and_loses_none() {
    // Some 6 MB, more than both socket buffers, so the server must wait for the client within a frame.
    const TOKENS: u32 = 30_000;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("truth.jsonl");
    let running = serve(logged(config(canned(1.0, 0.000_001)), &path)).unwrap();
    let mut client = Client::connect(running.addr());
    client.post("/v1/chat/completions", "slow", &chat(1, TOKENS, r#","stream":true"#));
    client.head().unwrap();
    // Another client is served while this one does not read.
    assert_eq!(post(running.addr(), "/v1/chat/completions", &chat(1, 5, "")).status, 200);
    let mut chunks = 0;
    while client.chunk().is_some_and(|chunk| !chunk.is_empty()) {
        chunks += 1;
    }
    assert_eq!(chunks, TOKENS + 2);
    running.shutdown().unwrap();
    let (_, records) = log(&path);
    let slow = records.iter().find(|record| record.id.as_deref() == Some("slow")).unwrap();
    assert_eq!((slow.steps_ns.len(), slow.writes_ns.len()), (TOKENS as usize, TOKENS as usize));
    assert!(slow.writes_ns.is_sorted());
}
