//! Terminal output of a command: text, JSON answers, progress, live block and exit codes.
//!
//! It is a crate below `cli` and `watchd`, because both print and end with the same codes.

pub mod answer;
pub mod exit;
pub mod numbered;
pub mod out;
pub mod page_server;
pub mod progress;
pub mod screen;
