//! What one small request costs the server: kept connections that ask for one token, not streamed, and ask again.
//!
//! `cargo run --release -p plimsoll-server --example requests -- [CONNECTIONS=32] [SECONDS=5]`

#![expect(clippy::print_stdout, reason = "it is here to print")]

use std::cell::Cell;
use std::error::Error;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use plimsoll_server::{EngineServerConfig, clock, serve};
use plimsoll_sim::{CannedSpec, EngineSpec, LawSpec, ModeSpec};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

async fn ask(addr: SocketAddr, answers: Rc<Cell<u64>>) -> std::io::Result<()> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.set_nodelay(true)?;
    let body = r#"{"messages":[{"role":"user","content":"one two three"}],"max_tokens":1}"#;
    let request = format!(
        "POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut buffer = vec![0; 4096];
    loop {
        socket.write_all(request.as_bytes()).await?;
        let mut end = false;
        while !end {
            let n = socket.read(&mut buffer).await?;
            // The answer is one write of the server, and its last byte closes the object.
            end = n == 0 || buffer[n - 1] == b'}';
        }
        answers.set(answers.get() + 1);
    }
}

async fn server_cpu(addr: SocketAddr) -> Result<f64, Box<dyn Error>> {
    let mut socket = TcpStream::connect(addr).await?;
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n").await?;
    let mut text = String::new();
    socket.read_to_string(&mut text).await?;
    let line = text.lines().find(|line| line.starts_with("plimsoll_engine_cpu_seconds_total"));
    Ok(line.and_then(|line| line.rsplit(' ').next()).ok_or("no CPU time on the page")?.parse()?)
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let connections: u64 = args.next().map_or(Ok(32), |a| a.parse())?;
    let seconds: u64 = args.next().map_or(Ok(5), |a| a.parse())?;
    let law = LawSpec::Deterministic { ms: 0.001 };
    let engine =
        EngineSpec { name: "instant".to_owned(), mode: ModeSpec::Canned(CannedSpec { ttft: law, gap: law }) };
    let running = serve(EngineServerConfig::new(([127, 0, 0, 1], 0).into(), engine))?;
    let addr = running.addr();
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build_local(Default::default())?;
    let (answers, wall, server, client) = runtime.block_on(async {
        let answers = Rc::new(Cell::new(0));
        for _ in 0..connections {
            tokio::task::spawn_local(ask(addr, answers.clone()));
        }
        let (from, cpu, own) = (clock::monotonic_ns(), server_cpu(addr).await?, clock::thread_cpu_ns());
        tokio::time::timeout(Duration::from_secs(seconds), std::future::pending::<()>()).await.ok();
        let wall = (clock::monotonic_ns() - from) as f64 / 1e9;
        let client = (clock::thread_cpu_ns() - own) as f64 / 1e9;
        Ok::<_, Box<dyn Error>>((answers.get() as f64, wall, server_cpu(addr).await? - cpu, client))
    })?;
    println!(
        "{:.0} requests/s  server CPU {:.1} µs/request  client CPU {:.1} µs/request",
        answers / wall,
        server * 1e6 / answers,
        client * 1e6 / answers
    );
    running.stopper().now();
    running.wait()?;
    Ok(())
}
