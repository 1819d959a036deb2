//! Renders the parts of a load: the result of each endpoint, and of each class or stage of a chain.

use plimsoll_measure::findings::{GroupSummary, LevelSummary};
use plimsoll_model::Manifest;
use serde_json::Value;

use crate::document::{Phrase, latency};
use crate::figure;
use crate::table::TextTable;

/// The names of a run's endpoints and classes, in the order of their numbers in its rows.
pub(crate) struct GroupNames {
    endpoints: Vec<String>,
    classes: Vec<String>,
    is_chain: bool,
}

impl GroupNames {
    pub fn of(manifest: &Manifest) -> GroupNames {
        let further = |target: Option<&Value>| -> Vec<String> {
            let urls = target.and_then(|target| target.get("further_urls")?.as_array());
            urls.into_iter().flatten().filter_map(|url| Some(url.as_str()?.to_owned())).collect()
        };
        let main = manifest.scenario.get("target");
        let mut endpoints = vec![manifest.target.url.clone()];
        endpoints.extend(further(main));
        let shared = endpoints.clone();
        let classes = manifest.scenario.get("classes").and_then(Value::as_array);
        let classes: &[Value] = classes.map_or(&[], Vec::as_slice);
        for target in classes.iter().filter_map(|class| class.get("target").filter(|own| own.is_object())) {
            match target.get("url").and_then(Value::as_str).filter(|url| url.contains("://")) {
                Some(url) => {
                    endpoints.push(url.to_owned());
                    endpoints.extend(further(Some(target)));
                }
                None => endpoints.extend(shared.iter().cloned()),
            }
        }
        let name = |class: &Value| class.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        GroupNames { endpoints, classes: classes.iter().map(name).collect(), is_chain: manifest.is_chain() }
    }

    /// Returns whether the classes are the stages of a chain.
    pub fn is_chain(&self) -> bool {
        self.is_chain
    }

    /// Returns the heading of the classes.
    pub fn class_heading(&self) -> &'static str {
        if self.is_chain { "By stage" } else { "By class" }
    }

    /// Returns a table with a row per endpoint; empty for one endpoint, and for a chain, whose stages are the endpoints.
    pub fn endpoint_table(&self, summary: &LevelSummary) -> TextTable {
        let all = summary.targets.iter().filter(|_| !self.is_chain).map(|one| (one.target, &one.of));
        table("<endpoint", &self.endpoints, all)
    }

    /// Returns a table with a row per class; empty for one class.
    pub fn class_table(&self, summary: &LevelSummary) -> TextTable {
        let heading = if self.is_chain { "<stage" } else { "<class" };
        table(heading, &self.classes, summary.classes.iter().map(|one| (one.class, &one.of)))
    }
}

/// Returns the target in a title: the first endpoint, and the number of further ones.
pub(crate) fn title(manifest: &Manifest) -> String {
    let own = &manifest.target.url;
    let mut others = GroupNames::of(manifest).endpoints;
    others.retain(|url| url != own && !own.starts_with("simulated:"));
    others.dedup();
    match others.len() {
        0 => manifest.target.url.clone(),
        more => {
            format!("{} and {}", manifest.target.url, figure::counted(more as u64, "more endpoint"))
        }
    }
}

/// Returns a table with a row per group; a line has no room for `tpot` beside the rest on a narrow screen.
fn table<'a>(
    heading: &'static str,
    names: &[String],
    groups: impl Iterator<Item = (u16, &'a GroupSummary)>,
) -> TextTable {
    let columns =
        [heading, "requests", "failed", "done/s", "ttft p50", "p99", "+tpot p50", "+p99", "e2e p50", "p99"];
    let mut table = TextTable::new(&columns);
    for (number, one) in groups {
        let name = names.get(usize::from(number)).cloned();
        let done = one.achieved_per_s.value().map(figure::number).unwrap_or_default();
        let counts = [
            name.unwrap_or_else(|| format!("number {number}")),
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
