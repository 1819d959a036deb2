//! What tests hold the product against: records made by hand, and systems whose truth is known without it.
//!
//! [`records`] is a small language for records, [`queues`] steps queues by their recursion, [`sessions`] sessions whose turns wait for each other, [`systems`] are steady servers with their percentiles, [`arms`] are pairs of them with the
//! tests that are wrong for such data, [`parts`] are what a test needs of the machine, [`corpus`] is what fuzzing learnt. Nothing here is in the binary.

pub mod arms;
pub mod corpus;
pub mod parts;
pub mod queues;
pub mod records;
pub mod sessions;
pub mod systems;
