//! Reference systems for tests: hand-written records, and systems whose truth is known without the product.
//!
//! - [`records`] is a small language for records.
//! - [`queues`] simulates queues by their recursion.
//! - [`sessions`] simulates sessions whose turns wait for each other.
//! - [`systems`] contains steady servers with their percentiles.
//! - [`arms`] contains pairs of queues with the tests that are wrong for such data.
//! - [`parts`] checks for the external programs that a test needs.
//! - [`corpus`] replays inputs that fuzzing found.
//!
//! The binary does not contain this crate.

pub mod arms;
pub mod corpus;
pub mod parts;
pub mod queues;
pub mod records;
pub mod sessions;
pub mod systems;
