//! Requests → findings: each latency split into stages, and compared with a budget, a baseline and the isolated
//! model.

use super::ceilings::ceilings;
use super::finding::{PathFinding, ProfileFinding, ProfiledLatency, StageFinding, UnmappedSpan};
use super::floor::ModelFloor;
use super::names;
use super::read::{Requests, UnattributedTime};
use super::sample::LatencySample;
use super::slices::slices;
use super::tail;
use plimsoll_measure::budget::StageBudget;
use plimsoll_measure::say;

/// Maximum number of listed names without a stage.
const LISTED: usize = 20;

/// The references and settings of a profile.
#[derive(Default)]
pub struct ProfileSpec<'a> {
    pub seed: u64,
    /// Slices of a latency budget, and the error probability of a verdict; `None` without a budget.
    pub budget: Option<(&'a StageBudget, f64)>,
    /// Requests to compare with; `None` without a baseline.
    pub baseline: Option<&'a Requests>,
    pub floors: &'a [ModelFloor],
}

pub fn judge(requests: &Requests, spec: &ProfileSpec<'_>) -> ProfileFinding {
    let samples: Vec<LatencySample<'_>> = [ProfiledLatency::E2e, ProfiledLatency::Ttft]
        .into_iter()
        .filter_map(|of| LatencySample::new(&requests.list, of))
        .collect();
    let paths: Vec<PathFinding> = samples.iter().map(|sample| path(sample, requests, spec.seed)).collect();
    let whole = samples.iter().find(|sample| sample.of == ProfiledLatency::E2e);
    let mut notes = notes(requests);
    let mut changes = Vec::new();
    if let Some(baseline) = spec.baseline {
        for sample in &samples {
            let change = LatencySample::new(&baseline.list, sample.of)
                .ok_or_else(|| "the baseline has no such requests".to_owned())
                .and_then(|base| tail::change(&base, sample, spec.seed));
            match change {
                Ok(change) => changes.push(change),
                Err(why) => notes.push(format!("{} is not compared: {why}", sample.of.name())),
            }
        }
    }
    ProfileFinding {
        count: requests.count.clone(),
        stand_for: whole.map_or(0.0, LatencySample::stand_for),
        length_s: whole.map_or(0.0, |sample| sample.length_s),
        names_version: names::version(),
        unmapped: whole.map_or_else(Vec::new, |sample| unmapped(sample, &requests.nameless)),
        slices: match (whole, spec.budget) {
            (Some(sample), Some((budget, alpha))) => slices(sample, budget, alpha),
            _ => Vec::new(),
        },
        changes,
        floors: spec
            .floors
            .iter()
            .map(|floor| floor.against(paths.iter().find(|p| p.of == ProfiledLatency::E2e)))
            .collect(),
        paths,
        notes,
    }
}

fn path(sample: &LatencySample<'_>, requests: &Requests, seed: u64) -> PathFinding {
    let (tail, shares) = tail::tail(sample, seed);
    let total_s = sample.mean_s(&sample.total);
    let stages = sample
        .stages
        .iter()
        .map(|stage| {
            let column = sample.column(*stage);
            let times = sample.times(&column);
            StageFinding {
                stage: *stage,
                known: requests.known[stage.index()].unwrap_or(super::finding::KnownBy::Traced),
                requests: column.iter().filter(|ns| **ns > 0).count() as u64,
                of_mean: times.mean_s / total_s,
                share: sample.ratio(&column, &sample.total),
                tail_share: shares.iter().find(|(one, _)| one == stage).map(|(_, share)| share.clone()),
                times,
                error: None,
                note: None,
            }
        })
        .collect();
    PathFinding {
        of: sample.of,
        requests: sample.total.len() as u64,
        times: sample.times(&sample.total),
        stages,
        ceilings: Some(ceilings(sample, &shares)),
        tail,
    }
}

fn unmapped(sample: &LatencySample<'_>, nameless: &[UnattributedTime]) -> Vec<UnmappedSpan> {
    let weight = sample.stand_for();
    let mean_ns = sample.mean_s(&sample.total) * 1e9;
    let one = |found: &UnattributedTime| {
        let own = found.weighted_ns / weight;
        UnmappedSpan {
            name: found.name.clone(),
            service: found.service.clone(),
            spans: found.spans,
            share: own / mean_ns,
            mean_s: own / 1e9,
            why: found
                .engine
                .then(|| "time in the engine's span beyond queue, prefill and decode".to_owned()),
        }
    };
    nameless.iter().take(LISTED).map(one).collect()
}

/// Returns remarks on repaired, rejected and excluded traces.
fn notes(requests: &Requests) -> Vec<String> {
    let count = &requests.count;
    let of = |n: u64, what: &str| (n > 0).then(|| format!("{} {what}", say::count(n, "request")));
    let spans = |n: u64, what: &str| (n > 0).then(|| format!("{} {what}", say::count(n, "span")));
    let failed = if count.failed == 1 {
        "ended in an error and is set aside"
    } else {
        "ended in errors and are set aside"
    };
    let found = [
        of(count.failed, failed),
        of(count.skewed, "set aside: no clock shift fits a server's span into its client's"),
        (count.rootless > 0).then(|| {
            format!(
                "{} set aside: no span contains the others, so the request's duration is unknown",
                say::count(count.rootless, "trace")
            )
        }),
        of(count.empty, "set aside: no time passed in them"),
        of(count.shifted, "with a server's clock moved into its client's span"),
        of(count.extended, "extended to the last byte of a stream that outlived its root"),
        of(
            count.root_parent_missing,
            "whose first span has a parent that is not in the traces: what happened before it is not in these figures",
        ),
        spans(count.background, "that went on after the request; that part is not counted"),
        spans(count.orphans, "without a parent, assigned to the root of that time"),
        spans(count.lost, "without parent or root, left out"),
        spans(count.duplicates, "came twice, counted once"),
        spans(
            count.clashes,
            "with the id of another span of the same trace: both are kept, and their children are assigned by a guess",
        ),
        spans(count.loops, "in a loop of parents, which was cut"),
        spans(count.negative, "with an end before the start, counted with no length"),
        of(
            count.residual_over_5_percent,
            "whose engine stages miss its own end to end by more than 5 % (a preemption, or work that has no stage)",
        ),
    ];
    let mut notes: Vec<String> = found.into_iter().flatten().collect();
    let with = count.profiled - count.no_first_token;
    if with > 0 && count.no_first_token > 0 {
        notes.push(format!(
            "{} without a first token: ttft is of the other {with}",
            say::count(count.no_first_token, "request")
        ));
    }
    notes
}
