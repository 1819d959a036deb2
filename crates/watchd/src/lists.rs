//! Target lists that change during a watch: a file or URL in Prometheus format, or the addresses of a DNS
//! name.

use std::collections::HashSet;
use std::net::ToSocketAddrs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_client::metrics::pages;
use plimsoll_client::metrics::scrape::Scraper;
use plimsoll_console::exit::{Exit, Stop};
use plimsoll_console::out;
use plimsoll_model::Span;
use plimsoll_report::watched as words;
use plimsoll_store::StoreError;
use plimsoll_wire::prometheus_api;
use plimsoll_workload::TargetSpec;
use plimsoll_workload::scrape::ScrapeSpec;

use crate::LOOK;
use crate::config::WatchConfig;
use crate::file::PageList;
use crate::names::known;

/// Minimum interval between two reads of a list. A longer scrape interval applies instead.
const EVERY: Span = Span::from_secs(10);

impl PageList {
    /// Returns the display name of the list.
    fn name(&self) -> String {
        match self {
            PageList::File(path) => path.display().to_string(),
            PageList::Url(url) => url.clone(),
            PageList::Name(host, ..) => host.clone(),
        }
    }

    /// Returns the current metrics endpoints of the list as `NAME=URL`. Blocks for a few seconds at most.
    fn read(&self, target: &TargetSpec) -> Result<Vec<String>, String> {
        let list = match self {
            PageList::Name(host, port, path) => {
                let found = (host.as_str(), *port).to_socket_addrs().map_err(|e| e.to_string())?;
                return Ok(found.map(|addr| format!("{addr}=http://{addr}{path}")).collect());
            }
            PageList::File(path) => std::fs::read(path).map_err(|e| out::why_unread(&e))?,
            PageList::Url(url) => pages::fetch(target, url)?,
        };
        prometheus_api::targets(&list)
    }
}

/// Updates the scraper from the lists until the watch ends, then stops the scraper. If a list can't be read,
/// the endpoints stay unchanged.
pub fn follow(
    asked: &WatchConfig,
    scraper: Scraper,
    over: Arc<AtomicBool>,
) -> JoinHandle<Result<bool, StoreError>> {
    let (target, lists, fixed) = (asked.target.clone(), asked.lists.clone(), asked.fixed.clone());
    let mut scrape = asked.scrape.clone();
    let pause = Span(EVERY.0.max(scrape.every.0)).as_duration();
    std::thread::spawn(move || {
        let (mut waited, mut unread) = (Duration::ZERO, None);
        while !over.load(Ordering::Relaxed) {
            std::thread::sleep(LOOK);
            waited += LOOK;
            if lists.is_empty() || waited < pause {
                continue;
            }
            waited = Duration::ZERO;
            let now = read(&lists, &target, &fixed).map_err(|stop| stop.line).and_then(|pages| {
                let spec = ScrapeSpec { pages, ..scrape.clone() };
                if spec != scrape {
                    let found = pages::trust(&target, &spec).map_err(|e| e.to_string())?;
                    out::note(&words::pages_now(found.len()));
                    scraper.replace(known(found));
                    scrape = spec;
                }
                Ok(())
            });
            // An error is reported once, and again if the reason changes.
            if let Some(why) = now.as_ref().err().filter(|why| unread.as_ref() != Some(*why)) {
                out::note(&format!("{why}; the list of endpoints is unchanged"));
            }
            unread = now.err();
        }
        scraper.stop();
        Ok(false)
    })
}

/// Returns the metrics endpoints at the start of a watch. If other endpoints are named, a list whose server
/// is unreachable is reread later.
///
/// # Errors
/// Fails if a file can't be read, or if a list can't be read and no other endpoint is named.
pub fn begin(lists: &[PageList], target: &TargetSpec, fixed: &[String]) -> Result<Vec<String>, Stop> {
    read(lists, target, fixed).or_else(|stop| match stop.exit {
        Exit::Unreachable if !fixed.is_empty() => {
            out::note(&format!(
                "{}; the watch begins with its other sources and retries this list",
                stop.line
            ));
            Ok(fixed.to_vec())
        }
        _ => Err(stop),
    })
}

/// Returns the fixed and the listed endpoints, without duplicates.
pub fn read(lists: &[PageList], target: &TargetSpec, fixed: &[String]) -> Result<Vec<String>, Stop> {
    let mut pages = fixed.to_vec();
    for list in lists {
        let mut listed = list.read(target).map_err(|why| {
            let line = format!("{}: {why}", list.name());
            // An unreadable file is a mistake of the user; any other list may be reachable later.
            if matches!(list, PageList::File(_)) { Stop::usage(line) } else { Stop::unreachable(line) }
        })?;
        // Sorted, so that a new order in the list is not a change.
        listed.sort_unstable();
        pages.extend(listed);
    }
    let mut seen = HashSet::new();
    pages.retain(|page| seen.insert(page.clone()));
    Ok(pages)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::file::beside;

    #[test]
    fn targets_are_pages_by_prometheus_own_labels_each_once() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(
            folder.path().join("targets.json"),
            r#"[{"targets": ["b:1", "a:1", "a:1"], "labels": {"env": "prod"}},
                {"targets": ["c:2"], "labels": {"__scheme__": "https", "__metrics_path__": "/prom"}}]"#,
        )
        .expect("written");
        let list = beside(&folder.path().join("watch.yaml"), Path::new("targets.json"));
        let found = read(&[list.clone(), list.clone()], &TargetSpec::default(), &[]).expect("a list");
        assert_eq!(found, ["a:1=http://a:1/metrics", "b:1=http://b:1/metrics", "c:2=https://c:2/prom"]);
        std::fs::write(folder.path().join("targets.json"), "targets: [a]").expect("written");
        let why = list.read(&TargetSpec::default()).expect_err("no JSON");
        assert!(why.contains("\"targets\""), "{why}");
    }

    #[test]
    fn a_name_has_a_page_at_each_of_its_addresses() {
        let list = PageList::of_name("http://127.0.0.1:8000").expect("a name");
        assert_eq!(
            list.read(&TargetSpec::default()).as_deref(),
            Ok(&["127.0.0.1:8000=http://127.0.0.1:8000/metrics".to_owned()][..])
        );
        let list = PageList::of_name("http://vllm/prom/metrics");
        assert_eq!(list, Ok(PageList::Name("vllm".to_owned(), 80, "/prom/metrics".to_owned())));
        for (url, word) in [
            ("vllm:8000", "as one of its replicas"),
            ("http://vllm:no", "as one"),
            ("http://u:p@h", "as one"),
            ("https://vllm:8000", "certificate"),
        ] {
            assert!(PageList::of_name(url).expect_err(url).contains(word), "{url}");
        }
    }
}
