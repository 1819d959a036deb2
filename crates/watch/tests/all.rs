//! The crate's tests, one binary.

#[path = "all/over.rs"]
mod over;
#[path = "all/watched.rs"]
mod watched;
