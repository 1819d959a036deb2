//! Behaviour of the crate, against independent truth.

#[path = "all/active.rs"]
mod active;
#[path = "all/active_outside.rs"]
mod active_outside;
#[path = "all/active_systems.rs"]
#[expect(dead_code, reason = "the example plays them all")]
mod active_systems;
#[path = "all/asked.rs"]
mod asked;
#[path = "all/beside.rs"]
mod beside;
#[path = "all/device.rs"]
mod device;
#[path = "all/diagnosed/mod.rs"]
mod diagnosed;
#[path = "all/drafts.rs"]
mod drafts;
#[path = "all/inside.rs"]
mod inside;
#[path = "all/loads.rs"]
mod loads;
#[path = "all/machine.rs"]
mod machine;
#[path = "all/misdiagnoses.rs"]
mod misdiagnoses;
#[path = "all/network.rs"]
mod network;
#[path = "all/on_a_clock.rs"]
mod on_a_clock;
#[path = "all/on_pages.rs"]
mod on_pages;
#[path = "all/told_apart.rs"]
mod told_apart;
#[path = "all/traced.rs"]
mod traced;
#[path = "all/two_faults.rs"]
mod two_faults;
#[path = "all/validation.rs"]
mod validation;
#[path = "all/windows.rs"]
mod windows;
