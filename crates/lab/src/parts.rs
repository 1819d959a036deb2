//! External parts that a test needs and a machine may lack: another server, a browser, a Python library.
//!
//! On a developer's machine a test without its part prints the reason and passes. If `PLIMSOLL_REQUIRE` is set, the test fails,
//! because a test that is always skipped proves nothing. `.ci/run` sets the variable after it has installed the parts.

/// Returns the part, or prints the reason and returns `None`.
///
/// # Panics
/// Panics if the part is missing and all parts are required.
#[expect(clippy::print_stderr, reason = "a skipped test prints the reason")]
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
