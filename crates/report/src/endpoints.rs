//! A load that went to several endpoints: what each came to, beside the whole.

use plimsoll_measure::findings::{LevelSummary, Percentiles, Reading, TargetSummary};
use plimsoll_model::Manifest;

use crate::table::Table;
use crate::{figure, words};

/// The endpoints of a run, as its rows number them.
pub(crate) fn of(manifest: &Manifest) -> Vec<String> {
    let target = manifest.scenario.get("target");
    let further = target.and_then(|target| target.get("further_urls")?.as_array());
    let further = further.into_iter().flatten().filter_map(|url| Some(url.as_str()?.to_owned()));
    std::iter::once(manifest.target.url.clone()).chain(further).collect()
}

/// What was measured, in a title: the first endpoint, and how many there are beside it.
pub(crate) fn title(manifest: &Manifest) -> String {
    match of(manifest).len() - 1 {
        0 => manifest.target.url.clone(),
        more => {
            format!("{} and {} beside it", manifest.target.url, figure::counted(more as u64, "endpoint"))
        }
    }
}

/// Its URL, else its number.
pub(crate) fn name(endpoints: &[String], one: &TargetSummary) -> String {
    endpoints.get(usize::from(one.target)).cloned().unwrap_or_else(|| format!("number {}", one.target))
}

/// The latencies of an endpoint that are shown, their medians and 99th percentiles.
pub(crate) const LATENCIES: [&str; 3] = ["ttft", "tpot", "e2e"];

/// These, as far as they exist.
pub(crate) fn latencies(one: &TargetSummary) -> [Option<&Percentiles>; 3] {
    [one.ttft.as_ref(), one.tpot.as_ref(), one.e2e.as_ref()]
}

/// A row for each endpoint, without `tpot`, for which a line has no room; empty where there is one.
pub(crate) fn table(summary: &LevelSummary, endpoints: &[String]) -> Table {
    let mut table =
        Table::new(&["<endpoint", "requests", "failed", "done/s", "ttft p50", "p99", "e2e p50", "p99"]);
    for one in &summary.targets {
        let mut row = vec![
            name(endpoints, one),
            figure::count(one.requests),
            figure::count(one.failed),
            one.achieved_per_s.value().map(figure::number).unwrap_or_default(),
        ];
        let cell = |reading: &Reading| words::latency_cell(reading).0;
        for set in [one.ttft.as_ref(), one.e2e.as_ref()] {
            row.extend(
                [set.map(|set| cell(&set.p50)), set.map(|set| cell(&set.p99))].map(Option::unwrap_or_default),
            );
        }
        table.row(row);
    }
    table
}
