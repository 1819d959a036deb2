//! A server for the benches, in a process of its own: paced or flooding token streams, or one small answer.
//!
//! `canned paced N` tokens 100 ms apart · `canned flood N` all at once in writes of their own · `canned whole`
//! Prints its address on the first line. One thread, no HTTP library: what it costs must not hide what the client costs.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::runtime::{Builder, LocalOptions};

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
const WHOLE: &str = r#"{"id":"c","object":"chat.completion","created":1,"model":"m","choices":[{"index":0,"message":{"role":"assistant","content":"a b c d"},"finish_reason":"length"}],"usage":{"prompt_tokens":8,"completion_tokens":4,"total_tokens":12}}"#;

#[derive(Clone, Copy)]
enum Mode {
    Paced(u32, u64),
    Flood(u32),
    Whole,
}

#[allow(clippy::print_stdout)]
fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n = args.get(2).and_then(|n| n.parse().ok()).unwrap_or(50);
    let gap = args.get(3).and_then(|n| n.parse().ok()).unwrap_or(100);
    let mode = match args.get(1).map(String::as_str) {
        Some("flood") => Mode::Flood(n),
        Some("whole") => Mode::Whole,
        _ => Mode::Paced(n, gap),
    };
    let runtime =
        Builder::new_current_thread().enable_all().build_local(LocalOptions::default()).expect("a runtime");
    runtime.block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("an address"));
        let phase = Rc::new(Cell::new(0u64));
        while let Ok((stream, _)) = listener.accept().await {
            let _ = stream.set_nodelay(true);
            tokio::task::spawn_local(serve(stream, mode, Rc::clone(&phase)));
        }
    });
}

async fn serve(mut stream: TcpStream, mode: Mode, phase: Rc<Cell<u64>>) {
    let mut buffer = vec![0; 2048];
    let mut have = 0;
    loop {
        let Ok(n) = stream.read(&mut buffer[have..]).await else { return };
        if n == 0 {
            return;
        }
        have += n;
        if !complete(&buffer[..have]) {
            if have == buffer.len() {
                buffer.resize(have * 2, 0);
            }
            continue;
        }
        have = 0;
        let answered = match mode {
            Mode::Whole => {
                let head = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    WHOLE.len()
                );
                stream.write_all((head + WHOLE).as_bytes()).await
            }
            Mode::Flood(n) => flood(&mut stream, n).await,
            Mode::Paced(n, gap) => paced(&mut stream, n, gap, &phase).await,
        };
        if answered.is_err() {
            return;
        }
    }
}

fn complete(bytes: &[u8]) -> bool {
    let Some(end) = bytes.windows(4).position(|w| w == b"\r\n\r\n") else { return false };
    let head = String::from_utf8_lossy(&bytes[..end]).to_lowercase();
    let length =
        head.lines().find_map(|l| l.strip_prefix("content-length:")?.trim().parse().ok()).unwrap_or(0);
    bytes.len() >= end + 4 + length
}

fn event(i: u32) -> String {
    let data = format!(
        "data: {{\"id\":\"chatcmpl-0123456789abcdef\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
         \"model\":\"meta-llama/Llama-3.1-8B-Instruct\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" word{i}\"}},\
         \"logprobs\":null,\"finish_reason\":null}}]}}\n\n"
    );
    format!("{:x}\r\n{data}\r\n", data.len())
}

const LAST: &str = "51\r\ndata: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"length\"}],\"model\":\"m\"}\n\n\r\n";
const DONE: &str = "e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n";

async fn flood(stream: &mut TcpStream, n: u32) -> std::io::Result<()> {
    let mut bytes = HEAD.to_vec();
    for i in 0..n {
        bytes.extend_from_slice(event(i).as_bytes());
    }
    bytes.extend_from_slice((LAST.to_owned() + DONE).as_bytes());
    stream.write_all(&bytes).await
}

/// Streams spread over the gap, so that events arrive one by one and not in volleys.
async fn paced(stream: &mut TcpStream, n: u32, gap: u64, phase: &Cell<u64>) -> std::io::Result<()> {
    phase.set(phase.get() + 1);
    let start = tokio::time::Instant::now() + Duration::from_micros(phase.get() * 7_919 % (gap * 1000));
    stream.write_all(HEAD).await?;
    for i in 0..n {
        tokio::time::sleep_until(start + Duration::from_millis(gap * u64::from(i))).await;
        stream.write_all(event(i).as_bytes()).await?;
    }
    stream.write_all((LAST.to_owned() + DONE).as_bytes()).await
}
