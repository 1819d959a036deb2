//! Reads the error bound of this machine's wall clock from the kernel (Linux: adjtimex(2); elsewhere unknown).
//!
//! A daemon (chrony, ntpd, PTP) reports its largest error against the reference to the kernel. The kernel lets the bound
//! grow until the next report. `nix` has no such call, so this file makes it. A comparison of clocks over UDP was rejected,
//! because sites already synchronise their machines.

/// Returns the largest error of the wall clock in ns; `None` if the clock is unsynchronised or the kernel reports no error.
#[cfg(target_os = "linux")]
#[expect(
    unsafe_code,
    reason = "no safe crate of the workspace calls adjtimex; the kernel writes one `timex` of this frame"
)]
pub fn wall_clock_error_ns() -> Option<i64> {
    use nix::libc;
    // SAFETY: a `timex` is plain numbers, for which zero is a value; without modes the kernel changes nothing and fills it.
    let (state, told) = unsafe {
        let mut told: libc::timex = std::mem::zeroed();
        (libc::adjtimex(&raw mut told), told)
    };
    error_ns(state, told.status, told.maxerror)
}

/// Returns `None`: the error is unknown on this system.
#[cfg(not(target_os = "linux"))]
pub fn wall_clock_error_ns() -> Option<i64> {
    None
}

/// `TIME_ERROR` and `STA_UNSYNC` of `include/uapi/linux/timex.h`.
#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
const UNSYNCHRONISED: (i32, i32) = (5, 0x40);

#[cfg_attr(not(target_os = "linux"), allow(dead_code))]
fn error_ns(state: i32, status: i32, most_us: i64) -> Option<i64> {
    let is_synchronised = (0..UNSYNCHRONISED.0).contains(&state) && status & UNSYNCHRONISED.1 == 0;
    is_synchronised.then(|| most_us.saturating_mul(1_000))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of `adjtimex -p` with chrony (state 0, PLL) and without a daemon (16 s, the kernel's limit), and of a
    /// kernel that refuses.
    #[test]
    fn a_clock_that_nothing_synchronises_has_no_error() {
        assert_eq!(error_ns(0, 0x2001, 1_544), Some(1_544_000));
        assert_eq!(error_ns(5, 0x40, 16_000_000), None);
        assert_eq!(error_ns(0, 0x2041, 16_000_000), None);
        assert_eq!(error_ns(-1, 0, 0), None);
    }
}
