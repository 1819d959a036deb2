//! Parts that a test needs and this machine may lack: another's server, a browser, a library of Python's.
//!
//! On a developer's machine such a test says why it is skipped and passes. Where `PLIMSOLL_REQUIRE` is set (`.ci/run` sets it, after it has installed
//! them) it fails, because a test that is always skipped proves nothing.

/// The part, or the reason on the screen.
///
/// # Panics
/// It is missing where all parts are required.
#[expect(clippy::print_stderr, reason = "a test that is skipped says why")]
pub fn or_skipped<T>(part: Result<T, String>) -> Option<T> {
    match part {
        Ok(part) => Some(part),
        Err(why) => {
            assert!(std::env::var_os("PLIMSOLL_REQUIRE").is_none(), "PLIMSOLL_REQUIRE is set and {why}");
            eprintln!("SKIPPED: {why}");
            None
        }
    }
}
