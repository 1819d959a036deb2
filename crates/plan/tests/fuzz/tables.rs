//! Tables of published or measured figures that an engine is compared with.

use plimsoll_plan::calibrate::rows::{RowDefaults, read};

pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let _ = read(text, &RowDefaults::default());
}
