//! The driver against servers that do exactly what a script says, on real sockets.

mod bad;
mod connections;
mod control;
mod rig;
mod secrets;
mod server;
mod stamps;
mod tls;
