//! A watch file, and a list of targets in one. A parsed source is a page, an address or a list, and is equal after it is re-read.

use std::path::Path;

use plimsoll_wire::prometheus_api::{TARGETS_MOST, targets};

#[path = "../../../watchd/src/file.rs"]
#[allow(dead_code, reason = "of the file its shape is looked at, not what each field is for")]
mod file;

use file::{WatchFile, page};

pub fn check(bytes: &[u8]) {
    if let Ok(pages) = targets(bytes) {
        assert!(pages.len() <= TARGETS_MOST && pages.iter().all(|page| page.len() < 3 * 4096));
    }
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(read) = WatchFile::read(text) else { return };
    let _ = read.alerts.check();
    for kept in [&read.record, &read.history].into_iter().flatten() {
        let _ = kept.check("history");
    }
    let Ok(named) = read.named(Path::new("watch.yaml")) else { return };
    for url in &named.pages {
        assert_eq!(page(url).as_ref(), Ok(url));
    }
}
