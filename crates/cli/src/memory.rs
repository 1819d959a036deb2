//! Where the rows of a long run lie while a command reads them: what is too much for memory, on disk.

/// It is the system's until a run is read.
#[cfg(target_os = "linux")]
#[global_allocator]
static MEMORY: plimsoll_store::Large = plimsoll_store::Large::new();

/// From now on large tables may lie in files without a name.
pub fn may_lie_on_disk() {
    #[cfg(target_os = "linux")]
    MEMORY.spill();
}

/// Not from now on: whoever sends a load must not wait for a disk.
pub fn waits_for_no_disk() {
    #[cfg(target_os = "linux")]
    MEMORY.hold();
}
