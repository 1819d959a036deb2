//! Reads the metrics of a Prometheus server's targets, with the timestamp of each scrape.
//!
//! The series `up` shows the targets, the target labels, and the failed scrapes. A watch therefore selects targets by
//! labels (`{job="vllm"}`). The query returns raw samples and no rates. A target that Prometheus no longer lists was
//! removed and is not lost; if Prometheus itself does not respond, all targets are lost.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use plimsoll_model::{At, Sample, Span};
use plimsoll_wire::exposition::{self, ExposedValue};
use plimsoll_wire::prometheus_api::RangeSeries;

use crate::clock::{self, Clock};
use crate::metrics::foreign::{ForeignPages, UNSCRAPED};
use crate::metrics::pages::{MetricsPage, MetricsPageReader, PATIENCE};
use crate::metrics::told::{PageLogState, ScrapeLog};

/// Lookback window for the scrape interval of the targets.
const LOOK_BACK: Span = Span::from_secs(300);
/// Lead of the Prometheus clock that is an error. Two synchronised machines differ by less.
const AHEAD: Span = Span::from_secs(2);

pub(crate) struct PrometheusSource {
    looker: MetricsPageReader,
    taken: TargetState,
}

struct TargetState {
    pages: ForeignPages,
    began: bool,
    doubles: Doubles,
}

/// The targets that are skipped, each with the target that is read instead, because both scrape one server.
///
/// A PodMonitor and a ServiceMonitor may both select a server. While Prometheus lists the first target, the other stays
/// skipped even if scrapes fail in turn.
#[derive(Default)]
struct Doubles(BTreeMap<TargetId, TargetId>);

/// The labels `job` and `instance` of a target.
type TargetId = (String, String);

struct Scrape {
    at_unix: i64,
    target: String,
    is_up: bool,
    rows: Vec<ExposedValue>,
}

impl PrometheusSource {
    pub fn new(looker: MetricsPageReader, knows: fn(&str) -> bool) -> PrometheusSource {
        PrometheusSource { looker, taken: TargetState::new(knows) }
    }

    /// Returns the metrics endpoint that represents the Prometheus server.
    pub fn page(&self) -> &MetricsPage {
        &self.looker.page
    }

    /// Discards the last values, as if they were never received.
    pub fn forget(&mut self) {
        self.taken.pages.forget();
    }

    /// Queries the samples since the last query, with an overlap because a sample may become visible some time after its
    /// timestamp.
    pub async fn scrape(&mut self, (clock, patience, every): (Clock, Span, Span), rows: &ScrapeLog) {
        let (matchers, names) = self.looker.page.asks_prometheus().unwrap_or_default();
        let back_s = (3.0 * every.as_secs_f64()).ceil().max(2.0);
        let asked = expression(matchers, &format!("__name__=~\"up|{names}\""), Span::from_secs_f64(back_s));
        let found = self.looker.query(&asked, patience).await;
        let found = found.map(|series| scrapes(series, &mut self.taken.doubles));
        // A restarted Prometheus has scraped no target yet, which does not mean that the targets were removed.
        let found = found.and_then(|found| match found.is_empty() {
            true => Err("Prometheus has scraped no target".to_owned()),
            false => Ok(found),
        });
        match found {
            Ok(found) => self.taken.take(clock, found, rows),
            Err(why) => self.taken.pages.all_failed(clock.now(), &why, rows),
        }
    }
}

impl TargetState {
    fn new(knows: fn(&str) -> bool) -> TargetState {
        TargetState { pages: ForeignPages::new(knows), began: false, doubles: Doubles::default() }
    }

    fn take(&mut self, clock: Clock, scrapes: Vec<Scrape>, rows: &ScrapeLog) {
        let mut newest: HashMap<String, i64> = HashMap::new();
        for scrape in &scrapes {
            let last = newest.entry(scrape.target.clone()).or_insert(scrape.at_unix);
            *last = (*last).max(scrape.at_unix);
        }
        let upto = clock.now();
        for Scrape { at_unix, target, is_up, rows: found } in scrapes {
            // Of the scrapes before the watch, the newest is the baseline of the counters.
            if !self.began && newest.get(&target) != Some(&at_unix) {
                continue;
            }
            // Prometheus accepts an exposition that ends early.
            let cut = exposition::check_rows(&found).err().map(|cut| cut.to_string());
            let found = match cut.as_deref() {
                _ if !is_up => Err(UNSCRAPED),
                Some(cut) => Err(cut),
                None => Ok(found),
            };
            self.pages.scrape((clock, upto), &target, at_unix, found, rows);
        }
        self.began = true;
        self.pages.keep(|name| newest.contains_key(name), rows);
    }
}

/// A series without the target labels: its name and remaining labels.
type OwnSeries<'a> = (&'a str, Vec<&'a (String, String)>);

/// One target, described by its series.
#[derive(Default)]
struct DescribedTarget<'a> {
    labels: &'a [(String, String)],
    series: HashSet<OwnSeries<'a>>,
    /// Start times of its process, from its own series.
    began: HashSet<u64>,
}

impl DescribedTarget<'_> {
    /// Returns whether both targets show one server: they share most series, and an address or one process of one pod.
    fn is(&self, other: &DescribedTarget<'_>) -> bool {
        let same =
            |name: &str| label(self.labels, name).is_some_and(|it| label(other.labels, name) == Some(it));
        let is_one_process = same("pod") && same("namespace") && !self.began.is_disjoint(&other.began);
        let shared = self.series.intersection(&other.series).count();
        (same("instance") || is_one_process) && 2 * shared > self.series.len().min(other.series.len())
    }
}

impl Doubles {
    /// Finds the duplicates among these targets. Of the targets of one server, the first by job is read.
    fn find(&mut self, ups: &[RangeSeries], others: &[RangeSeries]) {
        let mut shown: BTreeMap<TargetId, DescribedTarget<'_>> = BTreeMap::new();
        for up in ups {
            shown.entry(id_of(&up.labels)).or_default().labels = &up.labels;
        }
        for series in others {
            let Some(target) = shown.get_mut(&id_of(&series.labels)) else { continue };
            let own = series.labels.iter().filter(|label| !target.labels.contains(label)).collect();
            if series.name == "process_start_time_seconds" {
                target.began.extend(series.values.iter().map(|value| value.1.to_bits()));
            }
            target.series.insert((&series.name, own));
        }
        self.0.retain(|_, read| shown.contains_key(read));
        let mut read: Vec<(&TargetId, &DescribedTarget<'_>)> = Vec::new();
        for (id, target) in shown.iter().filter(|(id, _)| !self.0.contains_key(*id)).collect::<Vec<_>>() {
            match read.iter().find(|(_, other)| target.is(other)) {
                Some((other, _)) => _ = self.0.insert(id.clone(), (*other).clone()),
                None => read.push((id, target)),
            }
        }
    }
}

fn label(labels: &[(String, String)], name: &str) -> Option<String> {
    labels.iter().find(|(key, _)| key == name).map(|(_, value)| value.clone())
}

fn id_of(labels: &[(String, String)]) -> TargetId {
    (label(labels, "job").unwrap_or_default(), label(labels, "instance").unwrap_or_default())
}

/// Returns the scrapes in these series, oldest first.
fn scrapes(series: Vec<RangeSeries>, doubles: &mut Doubles) -> Vec<Scrape> {
    let (mut ups, others): (Vec<RangeSeries>, Vec<RangeSeries>) =
        series.into_iter().partition(|series| series.name == "up");
    doubles.find(&ups, &others);
    ups.retain(|up| !doubles.0.contains_key(&id_of(&up.labels)));
    let mut jobs: HashMap<String, usize> = HashMap::new();
    ups.iter().for_each(|up| *jobs.entry(id_of(&up.labels).1).or_default() += 1);
    let name = |(job, instance): &TargetId| match jobs.get(instance) {
        Some(1) | None => instance.clone(),
        Some(_) => format!("{job}/{instance}"),
    };
    let mut found: BTreeMap<(i64, String), Scrape> = BTreeMap::new();
    let mut labels_of: HashMap<String, Vec<(String, String)>> = HashMap::new();
    for up in ups {
        let target = name(&id_of(&up.labels));
        for (at_unix, value) in up.values {
            let scrape = Scrape { at_unix, target: target.clone(), is_up: value > 0.0, rows: Vec::new() };
            found.insert((at_unix, target.clone()), scrape);
        }
        labels_of.insert(target, up.labels);
    }
    for series in others {
        if doubles.0.contains_key(&id_of(&series.labels)) {
            continue;
        }
        let target = name(&id_of(&series.labels));
        let Some(targets) = labels_of.get(&target) else { continue };
        let labels: Vec<(String, String)> =
            series.labels.into_iter().filter(|label| !targets.contains(label)).collect();
        for (at_unix, value) in series.values {
            // A sample with another timestamp comes from the exposition or a rule and belongs to no scrape.
            if let Some(scrape) = found.get_mut(&(at_unix, target.clone())) {
                scrape.rows.push(ExposedValue { name: series.name.clone(), labels: labels.clone(), value });
            }
        }
    }
    found.into_values().collect()
}

/// Converts the history in Prometheus to the rows of a watch: changed values, oldest first.
///
/// Also returns the time of the first scrape in ns since the Unix epoch, which is [`At::ZERO`] of the rows. `knows` selects
/// the names.
pub fn kept(series: Vec<RangeSeries>, knows: fn(&str) -> bool) -> Result<(i64, Vec<Sample>), String> {
    let series = series.into_iter().filter(|series| series.name == "up" || knows(&series.name));
    let scrapes = scrapes(series.collect(), &mut Doubles::default());
    let begin = scrapes.first().map(|scrape| scrape.at_unix);
    let begin = begin.ok_or(
        "the answer contains no scrape of a target: select targets by their labels ({job=\"vllm\"}) and no metric names, because the series `up` must be included",
    )?;
    let rows: Arc<Mutex<Vec<Sample>>> = Arc::default();
    let into = Arc::clone(&rows);
    let to_rows =
        ScrapeLog::changes(move |sample| into.lock().unwrap_or_else(PoisonError::into_inner).push(sample));
    let mut pages: HashMap<String, PageLogState> = HashMap::new();
    for Scrape { at_unix, target, is_up, rows } in scrapes {
        let page = pages
            .entry(target)
            .or_insert_with_key(|name| PageLogState::new((Some(name.clone()), true), knows));
        match is_up {
            true => page.tell(At(at_unix.saturating_sub(begin)), rows, &to_rows),
            false => page.failed(At(at_unix.saturating_sub(begin)), UNSCRAPED, &to_rows),
        }
    }
    let rows = std::mem::take(&mut *rows.lock().unwrap_or_else(PoisonError::into_inner));
    Ok((begin, rows))
}

fn expression(matchers: &str, name: &str, back: Span) -> String {
    let comma = if matchers.is_empty() { "" } else { "," };
    format!("{{{matchers}{comma}{name}}}[{}ms]", back.0 / 1_000_000)
}

/// Returns the longest of the targets' typical scrape intervals.
///
/// # Errors
/// Fails if Prometheus does not respond, has no such targets, or has a different clock.
pub(crate) async fn cadence(looker: &MetricsPageReader, matchers: &str) -> Result<Span, String> {
    let ups = looker.query(&expression(matchers, "__name__=\"up\"", LOOK_BACK), PATIENCE).await?;
    let newest = ups.iter().filter_map(|up| up.values.last()).map(|value| value.0).max();
    let Some(newest) = newest else {
        return Err(format!("no target has {{{matchers}}}; pick them by labels of targets, such as job"));
    };
    let usual = |up: &RangeSeries| {
        let mut gaps: Vec<i64> = up.values.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let middle = gaps.len() / 2;
        (!gaps.is_empty()).then(|| Span(*gaps.select_nth_unstable(middle).1))
    };
    let cadence = ups.iter().filter_map(usual).max();
    let cadence =
        cadence.ok_or("Prometheus has scraped them only once; start again after a second scrape")?;
    let age = Span(clock::realtime_ns() - newest);
    if age < Span(-AHEAD.0) || age > Span(3 * cadence.0).max(Span::from_secs(10)) {
        let (age, cadence) = (age.as_secs_f64(), cadence.as_secs_f64());
        return Err(format!(
            "its newest scrape is {age:.0} s old by this machine's clock, and it scrapes every {cadence:.0} s: synchronise the clocks, or check why it stopped"
        ));
    }
    // Rounded to a value of Prometheus' configuration, because scrapes are a few milliseconds off.
    Ok(Span((cadence.0 as f64 / 1e8).round().max(1.0) as i64 * 100_000_000))
}

/// Returns the server's URL and the query for its history, restricted to these names (RE2) and the scrapes themselves.
///
/// An example of `url` is `http://HOST:9090/api/v1/query?query={job="vllm"}[6h]`.
///
/// # Errors
/// Fails if the URL has no selector or no range.
pub(crate) fn kept_query<'a>(url: &'a str, names: &str) -> Result<(&'a str, String), String> {
    let asked = url.split_once("?query=").map(|(server, selector)| (server, decoded(selector)));
    let parts = asked.as_ref().and_then(|(server, selector)| {
        let (matchers, back) = selector.trim().strip_prefix('{')?.split_once('}')?;
        back.trim().starts_with('[').then_some((*server, matchers.trim().trim_end_matches(','), back.trim()))
    });
    let (server, matchers, back) = parts.ok_or(
        "name the targets and the lookback: http://HOST:9090/api/v1/query?query={job=\"vllm\"}[6h], or [6h] offset 1d",
    )?;
    let comma = if matchers.is_empty() { "" } else { "," };
    Ok((server, format!("{{{matchers}{comma}__name__=~\"up|{names}\"}}{back}")))
}

/// Returns the URL of a Prometheus server with a selector such as `{job="vllm"}`.
pub fn url(server: &str, selector: &str) -> String {
    format!("{}/api/v1/query?query={}", server.trim_end_matches('/'), encoded(selector))
}

/// Returns the matchers within the braces of the URL's selector.
pub(crate) fn matchers(url: &str) -> Result<String, String> {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let selector = query.split('&').find_map(|part| part.strip_prefix("query=")).unwrap_or_default();
    let selector = decoded(selector);
    let inner = selector.trim().strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let inner = inner.ok_or_else(|| {
        "names no targets; write their labels in braces: /api/v1/query?query={job=\"vllm\"}".to_owned()
    })?;
    Ok(inner.trim().trim_end_matches(',').to_owned())
}

/// Decodes a percent-encoded part of a URL.
pub fn decoded(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

pub(crate) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, NON_ALPHANUMERIC).to_string()
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use plimsoll_model::Sample;

    use super::*;

    /// Series of the targets a and b, scraped at these seconds before now.
    struct Fleet {
        now: i64,
        series: Vec<RangeSeries>,
    }

    impl Fleet {
        fn new() -> Fleet {
            Fleet { now: clock::realtime_ns(), series: Vec::new() }
        }

        fn with(mut self, name: &str, target: &str, values: &[(f64, f64)]) -> Fleet {
            let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
            let mut labels = vec![label("instance", target), label("job", "llm")];
            if name != "up" {
                labels.push(label("model_name", "m"));
            }
            let at = |ago_s: f64| self.now - (ago_s * 1e9) as i64;
            let values = values.iter().map(|&(ago_s, value)| (at(ago_s), value)).collect();
            self.series.push(RangeSeries { name: name.to_owned(), labels, values });
            self
        }
    }

    /// Returns the rows of one query result as text.
    fn told(taken: &mut TargetState, clock: Clock, fleet: Fleet) -> Vec<(i64, String)> {
        let kept: Arc<Mutex<Vec<Sample>>> = Arc::default();
        let into = Arc::clone(&kept);
        let rows = ScrapeLog::changes(move |sample| into.lock().expect("nobody panicked").push(sample));
        let scraped = scrapes(fleet.series, &mut taken.doubles);
        taken.take(clock, scraped, &rows);
        let kept = kept.lock().expect("nobody panicked");
        let word = |s: &Sample| (s.at.0, format!("{}{{{}}} {}", s.name, s.labels, s.value));
        kept.iter().map(word).collect()
    }

    fn words(rows: &[(i64, String)]) -> Vec<&str> {
        rows.iter().map(|row| row.1.as_str()).collect()
    }

    #[test]
    fn each_scrape_is_told_once_and_late_ones_count_from_when_they_are_seen() {
        let (mut taken, clock) = (TargetState::new(|_| true), Clock::start());
        // Two scrapes precede the watch; the newer is the baseline. A rule's sample at another time is no scrape.
        let first = Fleet::new().with("up", "a", &[(3.0, 1.0), (2.0, 1.0)]).with(
            "done",
            "a",
            &[(3.0, 5.0), (2.0, 7.0)],
        );
        let first = first.with("done", "a", &[(2.5, 99.0)]);
        let rows = told(&mut taken, clock, first);
        assert_eq!(words(&rows), ["scrape_samples{source=a} 1", "done{model_name=m,source=a} 7"]);
        // An unchanged query result emits no row.
        let again = Fleet { now: taken.pages.newest("a") + 2_000_000_000, series: Vec::new() };
        let again = again.with("up", "a", &[(2.0, 1.0)]).with("done", "a", &[(2.0, 7.0)]);
        assert_eq!(told(&mut taken, clock, again), []);
        // The scrape of b is older than the last row of a and arrives only now, so its row follows that row.
        let told_to = taken.pages.told_to;
        let late = Fleet { now: taken.pages.newest("a"), series: Vec::new() };
        let late = late.with("up", "a", &[(0.0, 1.0), (-1.0, 0.0)]).with("done", "a", &[(0.0, 7.0)]);
        let late = late.with("up", "b", &[(0.5, 1.0)]).with("done", "b", &[(0.5, 3.0)]);
        let rows = told(&mut taken, clock, late);
        assert_eq!(
            words(&rows),
            [
                "scrape_samples{source=b} 1",
                "done{model_name=m,source=b} 3",
                "scrape_failed{source=a,why=Prometheus could not scrape it} 1"
            ]
        );
        assert!(rows.iter().all(|row| row.0 >= told_to.0), "{rows:?} {told_to:?}");
    }

    #[test]
    fn a_target_that_is_taken_away_is_said_to_have_left() {
        let (mut taken, clock) = (TargetState::new(|_| true), Clock::start());
        let both = Fleet::new().with("up", "a", &[(2.0, 1.0)]).with("up", "b", &[(2.0, 1.0)]);
        told(&mut taken, clock, both.with("done", "b", &[(2.0, 4.0)]));
        let one = Fleet::new().with("up", "a", &[(0.0, 1.0)]);
        let rows = told(&mut taken, clock, one);
        assert_eq!(
            words(&rows),
            [
                "scrape_samples{source=a} 0",
                "scrape_samples{source=b} 0",
                "done{model_name=m,source=b} NaN",
                "scrape_left{source=b} 1"
            ]
        );
        assert_eq!(taken.pages.newest("b"), i64::MIN);
    }

    #[test]
    fn two_jobs_of_one_instance_are_two_targets() {
        let up = |job: &str| RangeSeries {
            name: "up".to_owned(),
            labels: [("instance", "h:1"), ("job", job)].map(|(a, b)| (a.to_owned(), b.to_owned())).to_vec(),
            values: vec![(1, 1.0)],
        };
        let found = scrapes(vec![up("llm"), up("router")], &mut Doubles::default());
        let names: Vec<&str> = found.iter().map(|scrape| scrape.target.as_str()).collect();
        assert_eq!(names, ["llm/h:1", "router/h:1"]);
    }

    /// Returns a series of a target from labels as text and one value.
    fn shows(name: &str, labels: &str, value: f64) -> RangeSeries {
        let labels = labels.split(',').filter_map(|label| label.split_once('='));
        let labels = labels.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        RangeSeries { name: name.to_owned(), labels, values: vec![(1, value)] }
    }

    /// Returns the result of reading two targets with these series and `up`.
    fn read(one: &str, other: &str, own: &[(&str, &str, [f64; 2])]) -> Vec<(String, usize)> {
        let mut all = vec![shows("up", one, 1.0), shows("up", other, 1.0)];
        for (name, labels, values) in own {
            all.push(shows(name, &format!("{one},{labels}"), values[0]));
            all.push(shows(name, &format!("{other},{labels}"), values[1]));
        }
        let found = scrapes(all, &mut Doubles::default());
        found.into_iter().map(|scrape| (scrape.target, scrape.rows.len())).collect()
    }

    #[test]
    fn a_server_that_two_jobs_scrape_is_read_once() {
        let page = [("vllm:n", "model_name=m", [5.0, 7.0]), ("vllm:k", "model_name=m", [1.0, 1.0])];
        let once = vec![("h:1".to_owned(), 2)];
        assert_eq!(read("instance=h:1,job=a", "instance=h:1,job=b,endpoint=http", &page), once);
        // The two jobs use different names, but the pod and the start time of the process are equal.
        let began = |one: f64, other: f64| {
            [page.to_vec(), vec![("process_start_time_seconds", "", [one, other])]].concat()
        };
        let (by_pod, by_address) =
            ("instance=v-0,job=a,pod=v-0,namespace=n", "instance=h:1,job=b,pod=v-0,namespace=n");
        assert_eq!(read(by_pod, by_address, &began(8.25, 8.25)), [("v-0".to_owned(), 3)]);
        // Two engines of one pod, and two replicas with equal start times.
        assert_eq!(read(by_pod, by_address, &began(8.25, 8.26)).len(), 2);
        assert_eq!(read("instance=h:1,job=a", "instance=h:2,job=b", &began(8.25, 8.25)).len(), 2);
    }

    #[test]
    fn a_double_stays_out_while_prometheus_has_the_other() {
        let mut doubles = Doubles::default();
        let target = |job: &str| {
            let labels = format!("instance=h:1,job={job}");
            vec![shows("up", &labels, 1.0), shows("vllm:n", &labels, 5.0)]
        };
        let names = |series: Vec<RangeSeries>, doubles: &mut Doubles| -> Vec<String> {
            scrapes(series, doubles).into_iter().map(|scrape| scrape.target).collect()
        };
        assert_eq!(names([target("a"), target("b")].concat(), &mut doubles), ["h:1"]);
        let failed = vec![shows("up", "instance=h:1,job=a", 0.0)];
        assert_eq!(names([failed, target("b")].concat(), &mut doubles), ["h:1"]);
        assert_eq!(doubles.0.len(), 1);
        // The job that was read no longer exists.
        assert_eq!(names(target("b"), &mut doubles), ["h:1"]);
        assert!(doubles.0.is_empty());
    }

    #[test]
    fn a_page_of_which_a_part_is_missing_is_a_scrape_that_failed() {
        let (mut taken, clock) = (TargetState::new(|_| true), Clock::start());
        let bucket = |fleet: Fleet, name: &str| fleet.with(name, "a", &[(2.0, 4.0)]);
        let page = bucket(Fleet::new().with("up", "a", &[(2.0, 1.0)]), "ttft_count");
        let mut page = bucket(page, "ttft_bucket");
        page.series[2].labels.push(("le".to_owned(), "0.5".to_owned()));
        let rows = told(&mut taken, clock, page);
        assert_eq!(rows.len(), 1);
        assert!(rows[0].1.starts_with("scrape_failed") && rows[0].1.contains("cut short"), "{rows:?}");
    }

    #[test]
    fn a_url_says_its_matchers() {
        let named = url("http://p:9090/", "{job=\"a b\", }");
        assert_eq!(named, "http://p:9090/api/v1/query?query=%7Bjob%3D%22a%20b%22%2C%20%7D");
        assert_eq!(matchers(&named).as_deref(), Ok("job=\"a b\""));
        assert_eq!(
            expression("job=\"a\"", "__name__=\"up\"", Span::from_secs(3)),
            "{job=\"a\",__name__=\"up\"}[3000ms]"
        );
        assert!(
            matchers("http://p/api/v1/query").is_err() && matchers("http://p/api/v1/query?query=up").is_err()
        );
    }
}
