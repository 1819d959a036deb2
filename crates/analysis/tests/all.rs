//! Behaviour of the crate, against independent truth.

#[path = "all/accuracy.rs"]
mod accuracy;
#[path = "all/blind.rs"]
mod blind;
