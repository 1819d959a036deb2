//! Behaviour of the crate, against independent truth.

#[path = "all/cold_starts.rs"]
mod cold_starts;
#[path = "all/infer.rs"]
mod infer;
#[path = "all/infer_systems.rs"]
#[expect(dead_code, reason = "some is for the example")]
mod infer_systems;
#[path = "all/profile/mod.rs"]
mod profile;
