//! Converts metrics pushed by OpenTelemetry to the series that a metrics endpoint would expose, one endpoint per resource.
//!
//! Every sum becomes a monotonic counter, because later stages compute differences. A cumulative point is added to the
//! counts of earlier processes; a delta point is added to all earlier points. A restart with a later start time therefore
//! loses no counts. Two processes are never confused. Buckets of base 2 use the edges 2^(i/2^scale), which are also exact
//! edges of finer scales. If a sender becomes coarser, the earlier counts are merged to its scale. The smallest and largest
//! observation bound the values within a bucket.
//!
//! A resource is identified by `service.instance.id`, or else by other attributes. A silent resource is lost, unless a
//! later process of its service has replaced it.

use std::collections::{BTreeMap, HashMap, HashSet};

use plimsoll_model::{At, Span};
use plimsoll_wire::exposition::ExposedValue;
use plimsoll_wire::otlp_metrics::{
    MeasuredBuckets, MeasuredHistogram, MeasuredPoint, MeasuredResource, MeasuredValue,
};

use crate::clock::{self, Clock};
use crate::metrics::foreign::ForeignPages;
use crate::metrics::pushed::{PushCounts, Skew};
use crate::metrics::told::ScrapeLog;

/// Attributes that identify a resource, the most specific first.
const IDENTITY: [&str; 7] = [
    "service.instance.id",
    "k8s.pod.name",
    "host.name",
    "process.pid",
    "service.name",
    "service.namespace",
    "k8s.namespace.name",
];
/// Most resources and series that are kept.
const MOST_SOURCES: usize = 10_000;
const MOST_SERIES: usize = 20_000;
/// Most non-empty buckets of one series.
const MOST_BUCKETS: usize = 512;
/// Default export interval of OpenTelemetry SDKs (`OTEL_METRIC_EXPORT_INTERVAL`).
const UNTOLD_CADENCE: Span = Span::from_secs(60);
/// Slack for the exporters' response timeout and the batching of collectors.
const BATCH: Span = Span::from_secs(10);

/// The resources that push to one address.
pub struct OtlpSource {
    clock: Clock,
    knows: fn(&str) -> bool,
    rows: ScrapeLog,
    pages: ForeignPages,
    sources: HashMap<String, Source>,
    series: usize,
    skew: Skew,
    counts: PushCounts,
}

type SeriesKey = (String, Vec<(String, String)>);

/// One pushing resource and its series.
struct Source {
    name: String,
    service: String,
    began: At,
    heard: At,
    patience: Span,
    is_told: bool,
    series: HashMap<SeriesKey, SeriesState>,
}

struct SeriesState {
    start: i64,
    newest: i64,
    /// Total of the points before this start time or delta.
    before: Option<Total>,
    last: Total,
    /// Smallest and largest observation since the last emitted row.
    bounds: [Option<f64>; 2],
    is_told: bool,
}

/// The accumulated value of a series.
#[derive(Clone, PartialEq, Debug)]
enum Total {
    Level(f64),
    Count(f64),
    Histogram { count: u64, sum: Option<f64>, ladder: Ladder },
}

/// The bucket counts of a histogram.
#[derive(Clone, PartialEq, Debug)]
enum Ladder {
    /// Upper edges and counts; the last count is above all edges.
    Explicit(Vec<f64>, Vec<u64>),
    /// Counts by bucket index at this scale, and the count of zeros.
    Exponential { scale: i32, zero: u64, threshold: f64, counts: BTreeMap<i64, u64> },
}

impl OtlpSource {
    pub fn new(clock: Clock, knows: fn(&str) -> bool, rows: ScrapeLog) -> OtlpSource {
        OtlpSource {
            clock,
            knows,
            rows,
            pages: ForeignPages::new(knows),
            sources: HashMap::new(),
            series: 0,
            skew: Skew::default(),
            counts: PushCounts::default(),
        }
    }

    /// Returns the counts of received samples.
    pub fn counts(&self) -> PushCounts {
        self.counts.clone()
    }

    /// Processes a request. Returns new warnings, each reported once, and the number of unreadable points.
    pub fn take(&mut self, resources: Vec<MeasuredResource>) -> (Vec<String>, u64) {
        let (now, unix) = (self.clock.now(), clock::realtime_ns());
        self.counts.requests += 1;
        let newest = resources.iter().flat_map(|one| one.points.iter().map(|point| point.at_unix)).max();
        let rejected = resources.iter().map(|one| one.rejected).sum();
        for resource in resources {
            self.resource(resource, now);
        }
        self.replaced(now);
        let skew = newest.and_then(|newest| self.skew.of(Span(unix - newest)));
        (skew.into_iter().collect(), rejected)
    }

    fn resource(&mut self, resource: MeasuredResource, now: At) {
        let MeasuredResource { attributes, points, .. } = resource;
        let knows = self.knows;
        let (known, unknown): (Vec<_>, Vec<_>) =
            points.into_iter().partition(|point| names(point).iter().any(|name| knows(name)));
        self.counts.unknown += unknown.len() as u64;
        if known.is_empty() {
            return;
        }
        let value = |name: &str| {
            attributes.iter().find(|(key, _)| key == name).map_or("", |(_, value)| value.as_str())
        };
        let key = IDENTITY.map(value).join("\u{1f}");
        if !self.sources.contains_key(&key) {
            if self.sources.len() >= MOST_SOURCES {
                self.counts.over_bound += known.len() as u64;
                return;
            }
            let name = self.named(&IDENTITY.map(value));
            let service = value("service.name").to_owned();
            self.sources.insert(key.clone(), Source::new(name, service, now));
        }
        let Some(source) = self.sources.get_mut(&key) else { return };
        source.heard = now;
        let before = source.series.len();
        let mut at_unix = i64::MIN;
        for point in known {
            let at = point.at_unix;
            let room = MOST_SERIES.saturating_sub(self.series + source.series.len() - before);
            match source.take(point, room) {
                PointOutcome::Point => {
                    self.counts.taken += 1;
                    at_unix = at_unix.max(at);
                }
                PointOutcome::Old => self.counts.out_of_order += 1,
                PointOutcome::Full => self.counts.over_bound += 1,
            }
        }
        self.series = self.series + source.series.len() - before;
        if at_unix > i64::MIN {
            self.tell(&key, at_unix, now);
        }
    }

    fn tell(&mut self, key: &str, at_unix: i64, now: At) {
        let Some(source) = self.sources.get_mut(key) else { return };
        let (clock, when) = (self.clock, (self.clock, now));
        if clock.at_unix(at_unix) < At::ZERO {
            return;
        }
        if !std::mem::replace(&mut source.is_told, true) {
            // A process that began after the start of the watch counts from zero. Of an older process the first point is
            // the baseline.
            let began = |held: &SeriesState| held.start > 0 && clock.at_unix(held.start) >= At::ZERO;
            let starts = source.series.values().filter(|held| began(held)).map(|held| held.start);
            if let Some(start) = starts.max().filter(|start| *start < at_unix) {
                let base = source.rows(began);
                self.pages.scrape(when, &source.name, start, Ok(base), &self.rows);
            }
        }
        if self.pages.scrape(when, &source.name, at_unix, Ok(source.rows(|_| false)), &self.rows) {
            source.series.values_mut().for_each(|held| held.is_told = true);
        }
        let cadence = self.pages.cadence(&source.name);
        source.patience = Span(3 * cadence.unwrap_or(UNTOLD_CADENCE).0) + BATCH;
        self.counts.cadence = self.counts.cadence.max(cadence);
        self.pages.may_be_silent(&source.name, source.patience, &self.rows);
    }

    /// Removes silent sources that a newer process of their service has replaced.
    fn replaced(&mut self, now: At) {
        let mut newest: HashMap<&str, At> = HashMap::new();
        for source in self.sources.values() {
            let began = newest.entry(&source.service).or_insert(source.began);
            *began = source.began.max(*began);
        }
        let has_heir =
            |gone: &&Source| newest.get(gone.service.as_str()).is_some_and(|new| *new > gone.heard);
        let silent = self.sources.values().filter(|source| now - source.heard > source.patience);
        let gone: HashSet<String> = silent.filter(has_heir).map(|source| source.name.clone()).collect();
        if gone.is_empty() {
            return;
        }
        self.sources.retain(|_, source| !gone.contains(&source.name));
        self.series = self.sources.values().map(|source| source.series.len()).sum();
        self.pages.keep(|name| !gone.contains(name), &self.rows);
    }

    /// Returns a unique name: the most specific attribute if that suffices.
    fn named(&self, identity: &[&str; 7]) -> String {
        let is_free = |name: &String| !self.sources.values().any(|source| source.name == *name);
        let told: Vec<&str> = identity.iter().copied().filter(|text| !text.is_empty()).collect();
        let mut names = (1..=told.len()).map(|count| told[..count].join("/"));
        names.find(is_free).unwrap_or_else(|| format!("resource {}", self.sources.len() + 1))
    }
}

/// The result of processing a point.
enum PointOutcome {
    Point,
    Old,
    Full,
}

/// Returns the names under which a metrics endpoint would expose the point.
fn names(point: &MeasuredPoint) -> Vec<String> {
    match &point.value {
        MeasuredValue::Histogram(_) => {
            ["_bucket", "_sum", "_count"].map(|end| format!("{}{end}", point.name)).to_vec()
        }
        _ => vec![point.name.clone()],
    }
}

impl Source {
    fn new(name: String, service: String, now: At) -> Source {
        let patience = Span(3 * UNTOLD_CADENCE.0) + BATCH;
        Source { name, service, began: now, heard: now, patience, is_told: false, series: HashMap::new() }
    }

    /// Processes a point; `room` is the number of series that may be added.
    fn take(&mut self, point: MeasuredPoint, room: usize) -> PointOutcome {
        let MeasuredPoint { name, unit, labels, start_unix, at_unix, is_delta, value } = point;
        // Label names follow Prometheus, so that one table of names serves both sources.
        let mut labels: Vec<(String, String)> =
            labels.into_iter().map(|(key, value)| (key.replace('.', "_"), value)).collect();
        labels.sort_unstable();
        let bounds = match &value {
            MeasuredValue::Histogram(histogram) if histogram.count > 0 => [histogram.min, histogram.max],
            _ => [None, None],
        };
        let factor = if unit == "ms" && name.starts_with("gen_ai") { 1e-3 } else { 1.0 };
        let bounds = bounds.map(|bound| bound.map(|bound| bound * factor));
        let last = Total::of(value, factor);
        let key = (name, labels);
        let Some(held) = self.series.get_mut(&key) else {
            if room == 0 {
                return PointOutcome::Full;
            }
            let held = SeriesState {
                start: start_unix,
                newest: at_unix,
                before: None,
                last,
                bounds,
                is_told: false,
            };
            self.series.insert(key, held);
            return PointOutcome::Point;
        };
        if at_unix <= held.newest {
            return PointOutcome::Old;
        }
        if is_delta || start_unix != held.start || last.fell_behind(&held.last) {
            let before = std::mem::replace(&mut held.last, last);
            held.before = Some(before.with(held.before.take()));
        } else {
            held.last = last;
        }
        // A collector may split an export in two; the second part is then emitted with the next export.
        let [low, high] = held.bounds;
        let both = [low.zip(bounds[0]).map(|(a, b)| a.min(b)), high.zip(bounds[1]).map(|(a, b)| a.max(b))];
        held.bounds = if std::mem::take(&mut held.is_told) { bounds } else { both };
        (held.start, held.newest) = (start_unix, at_unix);
        PointOutcome::Point
    }

    /// Returns all rows; series for which `is_nothing` returns true have the value zero.
    fn rows(&self, is_nothing: impl Fn(&SeriesState) -> bool) -> Vec<ExposedValue> {
        let mut rows = Vec::new();
        for ((name, labels), held) in &self.series {
            let nothing = is_nothing(held);
            let total = held.last.clone().with(held.before.clone());
            total.rows((name, labels), nothing, &mut rows);
            for (bound, end) in held.bounds.iter().zip(["_observed_min", "_observed_max"]) {
                let bound = bound.filter(|_| !nothing);
                rows.extend(bound.map(|value| row(format!("{name}{end}"), labels.clone(), value)));
            }
        }
        rows
    }
}

fn row(name: String, labels: Vec<(String, String)>, value: f64) -> ExposedValue {
    ExposedValue { name, labels, value }
}

impl Total {
    fn of(value: MeasuredValue, factor: f64) -> Total {
        let MeasuredHistogram { count, sum, buckets, .. } = match value {
            MeasuredValue::Gauge(value) => return Total::Level(value),
            MeasuredValue::Count(value) => return Total::Count(value),
            MeasuredValue::Histogram(histogram) => histogram,
        };
        let ladder = match buckets {
            MeasuredBuckets::Explicit { bounds, counts } => {
                Ladder::Explicit(bounds.into_iter().map(|edge| edge * factor).collect(), counts)
            }
            // Powers of two in ms are no powers of two in s, so only sum and count are kept.
            MeasuredBuckets::Exponential { .. } if factor != 1.0 => Ladder::Explicit(Vec::new(), Vec::new()),
            MeasuredBuckets::Exponential { scale, zero, zero_threshold, offset, counts } => {
                let counts = counts.into_iter().enumerate().filter(|(_, count)| *count > 0);
                let counts = counts.map(|(place, count)| (i64::from(offset) + place as i64, count)).collect();
                Ladder::Exponential { scale, zero, threshold: zero_threshold, counts }
            }
        };
        Total::Histogram { count, sum: sum.map(|sum| sum * factor), ladder }
    }

    /// Returns whether the value fell, so that another process with an equal start time reports it.
    fn fell_behind(&self, before: &Total) -> bool {
        match (self, before) {
            (Total::Count(now), Total::Count(before)) => now < before,
            (Total::Histogram { count: now, .. }, Total::Histogram { count: before, .. }) => now < before,
            _ => false,
        }
    }

    /// Adds an earlier total; returns `self` if the two have different kinds.
    fn with(self, before: Option<Total>) -> Total {
        match (self, before) {
            (Total::Count(now), Some(Total::Count(before))) => Total::Count(now + before),
            (
                Total::Histogram { count, sum, ladder },
                Some(Total::Histogram { count: n, sum: s, ladder: l }),
            ) => match ladder.with(&l) {
                Ok(ladder) => {
                    let sum = sum.zip(s).map(|(a, b)| a + b);
                    Total::Histogram { count: count + n, sum, ladder }
                }
                // The sender changed its bucket edges, so the buckets restart.
                Err(ladder) => Total::Histogram { count, sum, ladder },
            },
            (now, _) => now,
        }
    }

    fn rows(
        &self,
        (name, labels): (&str, &Vec<(String, String)>),
        nothing: bool,
        rows: &mut Vec<ExposedValue>,
    ) {
        let if_any = |value: f64| if nothing { 0.0 } else { value };
        let (count, sum, ladder) = match self {
            Total::Level(value) => return rows.push(row(name.to_owned(), labels.clone(), *value)),
            Total::Count(value) => return rows.push(row(name.to_owned(), labels.clone(), if_any(*value))),
            Total::Histogram { count, sum, ladder } => (*count, *sum, ladder),
        };
        let mut rung = |edge: String, below: u64| {
            let mut labels = labels.clone();
            labels.push(("le".to_owned(), edge));
            rows.push(row(format!("{name}_bucket"), labels, if_any(below as f64)));
        };
        ladder.rungs().into_iter().for_each(|(edge, below)| rung(edge.to_string(), below));
        if !ladder.is_empty() {
            rung("+Inf".to_owned(), count);
        }
        rows.extend(sum.map(|sum| row(format!("{name}_sum"), labels.clone(), if_any(sum))));
        rows.push(row(format!("{name}_count"), labels.clone(), if_any(count as f64)));
    }
}

/// Merges buckets of base 2 to a scale that is lower by `by`; at each step two neighbours become one.
fn coarser(counts: &BTreeMap<i64, u64>, by: i32) -> BTreeMap<i64, u64> {
    let mut all = BTreeMap::new();
    for (index, count) in counts {
        *all.entry(index >> by).or_insert(0) += count;
    }
    all
}

impl Ladder {
    fn is_empty(&self) -> bool {
        matches!(self, Ladder::Explicit(_, counts) if counts.is_empty())
    }

    /// Adds earlier counts; fails with `self` if the edges differ.
    fn with(self, before: &Ladder) -> Result<Ladder, Ladder> {
        match (self, before) {
            (Ladder::Explicit(edges, mut counts), Ladder::Explicit(others, more)) if edges == *others => {
                counts.iter_mut().zip(more).for_each(|(count, more)| *count += more);
                Ok(Ladder::Explicit(edges, counts))
            }
            (
                Ladder::Exponential { scale, zero, threshold, counts },
                Ladder::Exponential { scale: s, zero: z, threshold: t, counts: c },
            ) => {
                let mut coarse = scale.min(*s);
                let mut all = coarser(&counts, scale - coarse);
                for (index, count) in coarser(c, s - coarse) {
                    *all.entry(index).or_insert(0) += count;
                }
                while all.len() > MOST_BUCKETS {
                    coarse -= 1;
                    all = coarser(&all, 1);
                }
                Ok(Ladder::Exponential {
                    scale: coarse,
                    zero: zero + z,
                    threshold: threshold.max(*t),
                    counts: all,
                })
            }
            (now, _) => Err(now),
        }
    }

    /// Returns the bucket edges with their cumulative counts.
    ///
    /// For base 2 both edges of each non-empty bucket are included. The count at any edge that appears later is then
    /// bounded by the next higher edge.
    fn rungs(&self) -> Vec<(f64, u64)> {
        let mut below = 0;
        match self {
            Ladder::Explicit(edges, counts) => {
                let rung = |(edge, count): (&f64, &u64)| {
                    below += count;
                    (*edge, below)
                };
                edges.iter().zip(counts).map(rung).collect()
            }
            Ladder::Exponential { scale, zero, threshold, counts } => {
                let edge = |index: i64| (index as f64 / f64::from(*scale).exp2()).exp2();
                below = *zero;
                let mut rungs = Vec::new();
                if *threshold > 0.0 || *zero > 0 {
                    rungs.push((*threshold, below));
                }
                for (index, count) in counts {
                    rungs.push((edge(*index), below));
                    below += count;
                    rungs.push((edge(index + 1), below));
                }
                rungs.retain(|rung| rung.0.is_finite());
                rungs.dedup_by(|a, b| a.0 == b.0);
                rungs
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use plimsoll_model::Sample;

    use super::*;

    const S: i64 = 1_000_000_000;

    struct Told {
        pages: OtlpSource,
        kept: Arc<Mutex<Vec<Sample>>>,
        zero: i64,
    }

    impl Told {
        fn new() -> Told {
            let kept: Arc<Mutex<Vec<Sample>>> = Arc::default();
            let into = Arc::clone(&kept);
            let rows = ScrapeLog::changes(move |sample| into.lock().expect("nobody panicked").push(sample));
            let clock = Clock::start();
            let pages = OtlpSource::new(clock, |name| name.starts_with("gen_ai"), rows);
            Told { pages, kept, zero: clock::realtime_ns() }
        }

        /// Sends a request with one point of this process. Returns the resulting rows as text, without the marks of
        /// scrapes.
        fn takes(
            &mut self,
            instance: &str,
            is_delta: bool,
            (start_s, at_s): (i64, i64),
            value: MeasuredValue,
        ) -> Vec<String> {
            let attribute = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let point = MeasuredPoint {
                name: "gen_ai.n".into(),
                unit: "s".into(),
                labels: vec![attribute("a.b", "c")],
                start_unix: self.zero + start_s * S,
                at_unix: self.zero + at_s * S,
                is_delta,
                value,
            };
            let attributes =
                vec![attribute("service.name", "engine"), attribute("service.instance.id", instance)];
            self.pages.take(vec![MeasuredResource { attributes, points: vec![point], rejected: 0 }]);
            let rows = std::mem::take(&mut *self.kept.lock().expect("nobody panicked"));
            let is_told = |s: &&Sample| s.name != "scrape_patience" && s.name != "scrape_samples";
            rows.iter().filter(is_told).map(|s| format!("{}{{{}}} {}", s.name, s.labels, s.value)).collect()
        }
    }

    fn count(n: f64) -> MeasuredValue {
        MeasuredValue::Count(n)
    }

    #[test]
    fn deltas_and_totals_and_restarts_become_one_counter_that_grows() {
        let row = |n: u32| vec![format!("gen_ai.n{{a_b=c,source=i}} {n}")];
        let mut told = Told::new();
        // Started during the watch, so the counter begins at zero.
        assert_eq!(told.takes("i", true, (1, 2), count(5.0)), [row(0), row(5)].concat());
        assert_eq!(told.takes("i", true, (2, 3), count(4.0)), row(9));
        assert_eq!(told.takes("i", true, (2, 3), count(4.0)), [""; 0], "an export that came twice");
        assert_eq!(told.pages.counts().out_of_order, 1);
        let mut told = Told::new();
        // Started before the watch, so the first point is the baseline.
        assert_eq!(told.takes("i", false, (-50, 2), count(70.0)), row(70));
        assert_eq!(told.takes("i", false, (-50, 3), count(80.0)), row(80));
        // Another process, whose count already exceeds that of the first.
        assert_eq!(told.takes("i", false, (3, 4), count(90.0)), row(170));
        // A process without a start time.
        assert_eq!(told.takes("i", false, (3, 5), count(1.0)), row(171));
    }

    #[test]
    fn a_sender_that_becomes_coarser_keeps_what_it_counted() {
        let mut told = Told::new();
        let histogram = |scale: i32, offset: i32, counts: &[u64]| {
            let buckets = MeasuredBuckets::Exponential {
                scale,
                zero: 0,
                zero_threshold: 0.0,
                offset,
                counts: counts.to_vec(),
            };
            let count = counts.iter().sum();
            MeasuredValue::Histogram(MeasuredHistogram {
                count,
                sum: None,
                min: None,
                max: Some(3.0),
                buckets,
            })
        };
        told.takes("i", true, (1, 2), histogram(1, 0, &[1, 2]));
        // (1, √2] and (√2, 2] merge to (1, 2] at half the scale.
        let mut rows = told.takes("i", true, (2, 3), histogram(0, 0, &[4, 5]));
        rows.sort();
        let edge = format!("gen_ai.n_bucket{{a_b=c,le={},source=i}} NaN", 0.5_f64.exp2());
        let now = ["le=+Inf", "le=2", "le=4"].iter().zip([12, 7, 12]);
        let mut now: Vec<String> = now
            .map(|(le, n)| format!("gen_ai.n_bucket{{a_b=c,{le},source=i}} {n}"))
            .chain([edge, "gen_ai.n_count{a_b=c,source=i} 12".to_owned()])
            .collect();
        now.sort();
        assert_eq!(rows, now);
    }

    #[test]
    fn the_largest_is_of_all_that_came_since_it_was_told() {
        let mut told = Told::new();
        let histogram = |max: f64| {
            let buckets = MeasuredBuckets::Explicit { bounds: vec![1.0], counts: vec![1, 0] };
            MeasuredValue::Histogram(MeasuredHistogram {
                count: 1,
                sum: None,
                min: None,
                max: Some(max),
                buckets,
            })
        };
        let max = |rows: Vec<String>| -> Vec<String> {
            rows.into_iter().filter(|row| row.contains("_observed_max")).collect()
        };
        let row = |max: f64| vec![format!("gen_ai.n_observed_max{{a_b=c,source=i}} {max}")];
        assert_eq!(max(told.takes("i", true, (1, 2), histogram(0.5))), row(0.5));
        // The second half of a split export is emitted with the next export.
        told.pages
            .sources
            .values_mut()
            .flat_map(|source| source.series.values_mut())
            .for_each(|held| held.newest -= 1);
        assert_eq!(told.takes("i", true, (1, 2), histogram(0.9)), [""; 0]);
        assert_eq!(max(told.takes("i", true, (2, 3), histogram(0.2))), row(0.9));
        assert_eq!(max(told.takes("i", true, (3, 4), histogram(0.3))), row(0.3));
    }

    #[test]
    fn a_process_in_whose_place_another_has_begun_has_left() {
        let mut told = Told::new();
        told.takes("old", false, (1, 2), count(5.0));
        told.takes("new", false, (1, 2), count(5.0));
        assert_eq!(told.pages.sources.len(), 2, "both speak");
        for source in told.pages.sources.values_mut().filter(|source| source.name == "old") {
            source.heard = At(source.began.0 - 1_000 * S);
        }
        let rows = told.takes("new", false, (1, 3), count(6.0));
        assert!(rows.contains(&"scrape_left{source=old} 1".to_owned()), "{rows:?}");
    }
}
