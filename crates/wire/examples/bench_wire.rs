//! What decoding and writing cost: `cargo run --release -p plimsoll-wire --example bench_wire`.
//!
//! Prints ns per event on one thread, best of five passes over one million events, for the typical chunk of about 224
//! bytes: coalesced into 64 KiB reads and one event per read; fitting the stream's form, with running usage, and never
//! fitting it (then every chunk is read by serde).

#![expect(clippy::disallowed_methods, reason = "a bench measures the machine's own clock")]
#![expect(clippy::print_stdout, reason = "its figures are for the screen")]

use std::time::Instant;

use bytes::BytesMut;
use plimsoll_model::Protocol;
use plimsoll_wire::server::{ChunkWriter, GenerateRequest, word};
use plimsoll_wire::{Decoded, Decoder};

const EVENTS: usize = 100_000;
const PASSES: usize = 10;

fn main() {
    println!("{:<44} {:>9} {:>10} {:>12}", "decode", "bytes/ev", "ns/event", "M events/s");
    for (name, body) in [
        ("one form", plain(|_| String::new())),
        ("one form, running usage", running()),
        ("never the same form (serde)", plain(|n| format!(",\"obfuscation\":\"{n:06}\""))),
        ("one form, a quarter of texts escaped", escaped()),
    ] {
        decode(&format!("{name}, 64 KiB reads"), &body, |body| body.chunks(64 << 10).collect());
        decode(&format!("{name}, a read each"), &body, split_events);
    }
    write(false);
    write(true);
}

fn split_events(body: &[u8]) -> Vec<&[u8]> {
    let mut rest = body;
    let mut pieces = Vec::new();
    while let Some(end) = rest.windows(2).position(|w| w == b"\n\n") {
        pieces.push(&rest[..end + 2]);
        rest = &rest[end + 2..];
    }
    pieces
}

fn decode<'a>(name: &str, body: &'a [u8], cut: impl Fn(&'a [u8]) -> Vec<&'a [u8]>) {
    let pieces = cut(body);
    let mut out: Vec<Decoded> = Vec::with_capacity(1024);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let begun = Instant::now();
        let mut events = 0;
        for _ in 0..PASSES {
            let mut decoder = Decoder::new(Protocol::Chat, true, 200, Some("text/event-stream"), false);
            for piece in &pieces {
                decoder.feed(piece, &mut out);
                events += out.len();
                out.clear();
            }
        }
        assert_eq!(events, EVENTS * PASSES);
        best = best.min(begun.elapsed().as_nanos() as f64 / events as f64);
    }
    println!("{name:<44} {:>9} {best:>10.1} {:>12.2}", body.len() / EVENTS, 1e3 / best);
}

fn write(running: bool) {
    let asked = GenerateRequest {
        endpoint: Protocol::Chat,
        prompt_tokens: 500,
        continuous_usage: running,
        ..GenerateRequest::default()
    };
    let mut best = f64::INFINITY;
    let mut bytes = 0;
    for _ in 0..5 {
        let mut writer = ChunkWriter::new(&asked, "chatcmpl-99e6d968d137c202", 1_795_174_765, "llama-3.1-8b");
        let mut out = BytesMut::with_capacity(64 << 10);
        let begun = Instant::now();
        for n in 0..EVENTS * PASSES {
            writer.token(&mut out, word(n as u64), 1);
            bytes = out.len();
            out.clear();
        }
        best = best.min(begun.elapsed().as_nanos() as f64 / (EVENTS * PASSES) as f64);
    }
    let name = if running { "write a chunk, running usage" } else { "write a chunk" };
    println!("{name:<44} {bytes:>9} {best:>10.1} {:>12.2}", 1e3 / best);
}

fn chunk(text: &str, tail: &str) -> String {
    format!(
        "data: {{\"id\":\"chatcmpl-99e6d968d137c202\",\"object\":\"chat.completion.chunk\",\"created\":1795174765,\
         \"model\":\"llama-3.1-8b\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"logprobs\":null,\
         \"finish_reason\":null,\"token_ids\":null}}]{tail}}}\n\n"
    )
}

fn plain(tail: impl Fn(usize) -> String) -> Vec<u8> {
    (0..EVENTS).map(|n| chunk(word(n as u64), &tail(n))).collect::<String>().into_bytes()
}

fn escaped() -> Vec<u8> {
    (0..EVENTS)
        .map(|n| chunk(if n % 4 == 3 { " a\\n\\\"b\\\"" } else { word(n as u64) }, ""))
        .collect::<String>()
        .into_bytes()
}

fn running() -> Vec<u8> {
    let usage = |n: usize| {
        format!(
            ",\"usage\":{{\"prompt_tokens\":500,\"total_tokens\":{},\"completion_tokens\":{}}}",
            n + 501,
            n + 1
        )
    };
    (0..EVENTS).map(|n| chunk(word(n as u64), &usage(n))).collect::<String>().into_bytes()
}
