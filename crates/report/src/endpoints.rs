//! Renders a load on several endpoints: the result of each, and the total.

use plimsoll_measure::findings::LevelSummary;
use plimsoll_model::Manifest;

use crate::document::{Phrase, latency};
use crate::figure;
use crate::table::TextTable;

/// Returns the endpoints of a run, in the order of their numbers in its rows.
pub(crate) fn of(manifest: &Manifest) -> Vec<String> {
    let target = manifest.scenario.get("target");
    let further = target.and_then(|target| target.get("further_urls")?.as_array());
    let further = further.into_iter().flatten().filter_map(|url| Some(url.as_str()?.to_owned()));
    std::iter::once(manifest.target.url.clone()).chain(further).collect()
}

/// Returns the target in a title: the first endpoint, and the number of further ones.
pub(crate) fn title(manifest: &Manifest) -> String {
    match of(manifest).len() - 1 {
        0 => manifest.target.url.clone(),
        more => {
            format!("{} and {}", manifest.target.url, figure::counted(more as u64, "more endpoint"))
        }
    }
}

/// Returns a table with a row per endpoint; a line has no room for `tpot`. Empty for one endpoint.
pub(crate) fn table(summary: &LevelSummary, endpoints: &[String]) -> TextTable {
    let columns = [
        "<endpoint",
        "requests",
        "failed",
        "done/s",
        "ttft p50",
        "p99",
        "+tpot p50",
        "+p99",
        "e2e p50",
        "p99",
    ];
    let mut table = TextTable::new(&columns);
    for one in &summary.targets {
        let url = endpoints.get(usize::from(one.target)).cloned();
        let done = one.achieved_per_s.value().map(figure::number).unwrap_or_default();
        let counts = [
            url.unwrap_or_else(|| format!("number {}", one.target)),
            figure::count(one.requests),
            figure::count(one.failed),
            done,
        ];
        let sets = [one.ttft.as_ref(), one.tpot.as_ref(), one.e2e.as_ref()];
        let latencies = sets.into_iter().flat_map(|set| {
            set.map_or_else(<[Phrase; 2]>::default, |set| [latency(&set.p50), latency(&set.p99)])
        });
        table.row(counts.map(Phrase::from).into_iter().chain(latencies));
    }
    table
}
