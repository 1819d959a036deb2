//! Everything the binary promises, tried from the outside: one test binary, a small language in [`kit`].

#[path = "all/kit.rs"]
mod kit;

#[path = "all/bad_input.rs"]
mod bad_input;
#[path = "all/bad_servers.rs"]
mod bad_servers;
#[path = "all/browser.rs"]
mod browser;
#[path = "all/kill.rs"]
mod kill;
#[path = "all/parity.rs"]
mod parity;
#[path = "all/real_server.rs"]
mod real_server;
#[path = "all/repeat.rs"]
mod repeat;
#[path = "all/secrets.rs"]
mod secrets;
#[path = "all/tidy.rs"]
mod tidy;
