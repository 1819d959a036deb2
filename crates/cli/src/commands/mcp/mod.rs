//! `plimsoll mcp`: the commands as tools for agents, over the Model Context Protocol on stdin and stdout.
//!
//! Each tool builds the command line of an existing command and runs this binary as a child ([`child`]). So a tool and its command cannot
//! give different answers. The feature `mcp` has the protocol's library, which takes over 20 s to build.

mod caps;
mod child;
mod cut;
mod foreign;
mod server;
mod tools;

use rmcp::ServiceExt;
use rmcp::transport::stdio_pipes;

use crate::exit::{Exit, Stop};
use crate::flags::McpArgs;
use crate::{out, price};
use caps::{AllowedHosts, LoadCaps};
use server::ToolServer;
use tools::ToolContext;

/// Serves tools until the client leaves.
pub fn run(args: &McpArgs) -> Result<Exit, Stop> {
    let hosts = AllowedHosts::parse(&args.allow_load).map_err(Stop::usage)?;
    for (flag, value) in [("--max-minutes", Some(args.max_minutes)), ("--max-spend", args.max_spend)] {
        if value.is_some_and(|value| !value.is_finite() || value < 0.0) {
            return Err(Stop::usage(format!("{flag}: must be 0 or more")));
        }
    }
    if let Some(name) = args.key_env.as_ref().filter(|name| std::env::var_os(name).is_none()) {
        return Err(Stop::usage(format!("--key-env {name}: the environment has no such variable")));
    }
    let bill = price::bill(&args.price, None)?;
    let caps = LoadCaps::new(args.max_requests, args.max_tokens, args.max_minutes, (args.max_spend, bill));
    let key = args.key_env.iter().map(|name| format!("--key-env={name}"));
    let context = ToolContext { runs: args.runs.clone(), hosts, target_words: key.collect() };
    out::note(&format!(
        "plimsoll mcp: runs in {}, load on {}; an agent starts this command (plimsoll docs mcp)",
        args.runs.display(),
        context.hosts.line()
    ));
    let server = ToolServer::new(tools::all(), context, caps);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|e| Stop::invalid(format!("no runtime: {e}")))?;
    let ended = runtime.block_on(async {
        let serving = server
            .serve(stdio_pipes())
            .await
            .map_err(|e| Stop::usage(format!("mcp: {e}; an MCP client must send the first message")))?;
        serving.waiting().await.map_err(|e| Stop::invalid(format!("mcp: {e}")))
    });
    // A read of stdin can be pending, and must not hold the end.
    runtime.shutdown_background();
    ended.map(|_| Exit::Done)
}
