//! Compares the reference server's log with the requested load and the printed figures.

use std::collections::{HashMap, HashSet};

use plimsoll_model::{At, Attempt, How};
use plimsoll_report::figure;
use plimsoll_report::selftest::SelftestRow;
use serde_json::Value;

use super::witness::{STOP_NS, TOKENS, TimeBracket, WitnessedOutcome, WitnessedRequest, number_of};

/// Maximum difference between a figure and the reference: a share, or seconds.
const SHARE: f64 = 0.02;
const SECONDS: f64 = 0.0002;
/// Maximum error of a request's figure in seconds, for 99 of 100 requests.
const EACH_S: f64 = 0.001;
/// Maximum send delay after the due time in seconds, for 99 of 100 requests.
const LATE_S: f64 = 0.010;

/// A figure of one request: minimum and maximum from the reference log, ns, and the value of the run, s.
type BoundedFigure = (i64, i64, f64);
/// A function that reads a figure from a row and from the reference log of its request.
type FigureReader<'a> = &'a dyn Fn(&Attempt, &WitnessedRequest) -> Option<(TimeBracket, f64)>;

/// An open loop: the requested load, rows and findings of the run, and the reference log.
pub struct OpenLoop<'a> {
    pub rate_per_s: f64,
    pub window_s: f64,
    pub prompt_tokens: usize,
    pub rows: &'a [Attempt],
    pub findings: &'a Value,
    pub seen: &'a [WitnessedRequest],
    /// Offset from the rows' zero to the machine's clock, ns.
    pub zero_ns: i64,
    /// Start of the server stall, ns; `None` without a stall. With a stall, some requests fail too.
    pub stopped_ns: Option<i64>,
}

fn row(check: &str, truth: String, found: String, bar: &str, holds: bool) -> SelftestRow {
    SelftestRow { check: check.into(), truth, found, bar: bar.into(), holds }
}

fn time(seconds: f64) -> String {
    figure::duration_ns(seconds * 1e9)
}

fn sorted(values: impl Iterator<Item = f64>) -> Vec<f64> {
    let mut all: Vec<f64> = values.collect();
    all.sort_by(f64::total_cmp);
    all
}

/// Returns the nearest-rank quantile: the smallest value that a share `p` of the values does not exceed.
fn rank(sorted: &[f64], p: f64) -> f64 {
    let place = (p * sorted.len() as f64).ceil() as usize;
    sorted.get(place.clamp(1, sorted.len().max(1)) - 1).copied().unwrap_or(f64::NAN)
}

impl OpenLoop<'_> {
    fn fate(&self, row: &Attempt) -> WitnessedOutcome {
        WitnessedOutcome::of(row.request, self.stopped_ns.is_some())
    }

    fn ns(&self, at: At) -> i64 {
        self.zero_ns + at.0
    }

    fn by_number(&self) -> HashMap<u64, &WitnessedRequest> {
        self.seen.iter().filter_map(|seen| Some((number_of(&seen.name)?, seen))).collect()
    }

    /// Checks that the sent load equals the requested load.
    pub fn sent(&self) -> Vec<SelftestRow> {
        vec![self.once("every request once"), self.arrivals(), self.late(), self.lengths(), self.different()]
    }

    /// Checks the sent load while the server stalls and some requests fail.
    pub fn sent_in_trouble(&self) -> Vec<SelftestRow> {
        let stopped_ns = self.stopped_ns.unwrap_or(0);
        let stop = stopped_ns..stopped_ns + STOP_NS;
        let due = self.rows.iter().filter(|row| stop.contains(&self.ns(row.due))).count();
        let came = self.seen.iter().filter(|seen| stop.contains(&seen.came)).count();
        let stands = row(
            "as many while the server stalls",
            format!("{due} due in that second"),
            came.to_string(),
            "within 3",
            due > 0 && due.abs_diff(came) <= 3,
        );
        vec![self.once("every request once, while some fail"), stands]
    }

    /// Checks that the printed figures are correct.
    pub fn printed(&self) -> Vec<SelftestRow> {
        let summary = &self.findings["levels"][0]["summary"];
        let mut found = Vec::new();
        for (metric, values) in self.latencies() {
            found.push(each(&format!("{metric} of each request"), &values, EACH_S));
            found.extend(percentiles(metric, &values, &summary["latency"][metric]));
        }
        found
    }

    /// Checks the printed outcomes, and the latency of requests that waited during the stall.
    pub fn printed_in_trouble(&self) -> Vec<SelftestRow> {
        let waited = self.latencies().into_iter().filter(|(metric, _)| *metric != "tpot");
        let waited = waited.map(|(metric, values)| {
            // About ninety responses start simultaneously after the stall. A client that reads two tokens
            // together stamps both with the later time.
            each(&format!("{metric}, with requests that waited for the server"), &values, LATE_S)
        });
        std::iter::once(self.outcomes()).chain(waited).collect()
    }

    fn once(&self, check: &str) -> SelftestRow {
        let witnessed = self.by_number();
        let once = self.seen.len() == self.rows.len()
            && witnessed.len() == self.rows.len()
            && self.rows.iter().all(|row| witnessed.contains_key(&row.request));
        row(
            check,
            format!("{} due", figure::counted(self.rows.len() as u64, "request")),
            format!("{}, {} different", self.seen.len(), witnessed.len()),
            "the same",
            once,
        )
    }

    /// Tests the gaps between arrivals for an exponential distribution (Kolmogorov–Smirnov at 1 %), and
    /// checks their number.
    fn arrivals(&self) -> SelftestRow {
        let came = sorted(self.seen.iter().map(|seen| seen.came as f64 / 1e9));
        let gaps = sorted(came.windows(2).map(|pair| pair[1] - pair[0]));
        let n = gaps.len().max(1) as f64;
        let distance = gaps.iter().enumerate().map(|(place, gap)| {
            let law = 1.0 - (-gap * self.rate_per_s).exp();
            (law - place as f64 / n).abs().max((law - (place + 1) as f64 / n).abs())
        });
        let distance = distance.fold(0.0, f64::max);
        let expected = self.rate_per_s * self.window_s;
        let off = (self.seen.len() as f64 - expected) / expected.sqrt();
        row(
            "a Poisson process of its rate",
            format!("{} a second for {} s", figure::number(self.rate_per_s), figure::number(self.window_s)),
            format!(
                "{} a second, gaps {distance:.3} from the law",
                figure::number(self.seen.len() as f64 / self.window_s)
            ),
            "chance, 1 in 100",
            distance <= 1.63 / n.sqrt() && off.abs() <= 3.0,
        )
    }

    fn late(&self) -> SelftestRow {
        let witnessed = self.by_number();
        let late = sorted(self.rows.iter().filter_map(|row| {
            let came = witnessed.get(&row.request)?.came;
            Some((came - self.ns(row.due)) as f64 / 1e9)
        }));
        let (p50, p99) = (rank(&late, 0.5), rank(&late, 0.99));
        row(
            "when it is due",
            "immediately".into(),
            format!("after {} (p50), {} (p99)", time(p50), time(p99)),
            "p99 10 ms",
            p99 <= LATE_S && late.first().is_some_and(|least| *least >= 0.0),
        )
    }

    fn lengths(&self) -> SelftestRow {
        let n = self.seen.len();
        let exact = self.seen.iter().filter(|seen| seen.asked == TOKENS as u64).count();
        let words = self.seen.iter().map(|seen| seen.words).sum::<usize>() as f64 / n.max(1) as f64;
        row(
            "lengths",
            format!("prompts of {} tokens, answers of {TOKENS}", self.prompt_tokens),
            format!("{words:.1} on average, {TOKENS} in {exact} of {n}"),
            "within 2 %, all",
            (words / self.prompt_tokens as f64 - 1.0).abs() <= SHARE && exact == n,
        )
    }

    fn different(&self) -> SelftestRow {
        let different: HashSet<u64> = self.seen.iter().map(|seen| seen.prompt).collect();
        row(
            "no prompt twice, for a cache to answer",
            format!("{} different", self.seen.len()),
            different.len().to_string(),
            "the same",
            different.len() == self.seen.len(),
        )
    }

    /// Returns the figures of each request that finished.
    fn latencies(&self) -> [(&'static str, Vec<BoundedFigure>); 3] {
        let witnessed = self.by_number();
        let whole = |pick: FigureReader<'_>| -> Vec<BoundedFigure> {
            let of = |row: &Attempt| {
                let seen =
                    witnessed.get(&row.request).filter(|_| self.fate(row) == WitnessedOutcome::Whole)?;
                let ((least, most), printed) = pick(row, seen)?;
                Some((least, most, printed))
            };
            self.rows.iter().filter_map(of).collect()
        };
        let since_due = |bracket: TimeBracket, row: &Attempt| {
            (bracket.0 - self.ns(row.due), bracket.1 - self.ns(row.due))
        };
        let ttft = whole(&|row, seen| {
            Some((since_due(*seen.tokens.first()?, row), (row.first_token? - row.due).as_secs_f64()))
        });
        let e2e = whole(&|row, seen| Some((since_due(seen.end?, row), (row.end? - row.due).as_secs_f64())));
        let tpot = whole(&|row, seen| {
            let (first, last) = (seen.tokens.first()?, seen.tokens.last()?);
            let each = (seen.tokens.len() as i64 - 1).max(1);
            let decode = (row.last_token? - row.first_token?).as_secs_f64() / each as f64;
            Some((((last.0 - first.1) / each, (last.1 - first.0) / each), decode))
        });
        [("ttft", ttft), ("tpot", tpot), ("e2e", e2e)]
    }

    /// Compares the outcome of each request with the script.
    fn outcomes(&self) -> SelftestRow {
        let as_scripted = |row: &&Attempt| {
            let how = row.outcome.how;
            match self.fate(row) {
                WitnessedOutcome::Whole => how == How::Finished,
                WitnessedOutcome::Error => how == How::ServerError,
                WitnessedOutcome::Reset => how == How::Reset,
                WitnessedOutcome::Cut => how == How::Truncated,
            }
        };
        let right = self.rows.iter().filter(as_scripted).count();
        let of = |fate| self.rows.iter().filter(|row| self.fate(row) == fate).count();
        let printed = self.findings["levels"][0]["summary"]["counts"]["failed"].as_u64().unwrap_or(0);
        let failed = of(WitnessedOutcome::Error) + of(WitnessedOutcome::Reset) + of(WitnessedOutcome::Cut);
        row(
            "how each ended",
            format!(
                "{} errors, {} resets, {} cut short",
                of(WitnessedOutcome::Error),
                of(WitnessedOutcome::Reset),
                of(WitnessedOutcome::Cut)
            ),
            format!("{printed} failed; {right} of {} outcomes correct", self.rows.len()),
            "all",
            right == self.rows.len() && printed as usize == failed,
        )
    }
}

/// Checks the figure of each request against the bounds of the reference log, and reports the p99 of the
/// errors.
fn each(check: &str, values: &[BoundedFigure], most_s: f64) -> SelftestRow {
    let off = sorted(values.iter().map(|(least, most, printed)| {
        let (least, most) = (*least as f64 / 1e9, *most as f64 / 1e9);
        (least - printed).max(printed - most).max(0.0)
    }));
    let p99 = rank(&off, 0.99);
    row(
        check,
        figure::counted(values.len() as u64, "request"),
        format!("off by {} (p50), {} (p99)", time(rank(&off, 0.5)), time(p99)),
        &format!("p99 {} ms", figure::number(most_s * 1e3)),
        !values.is_empty() && p99 <= most_s,
    )
}

/// Compares printed percentiles with nearest-rank percentiles of the reference log.
fn percentiles(metric: &str, values: &[BoundedFigure], printed: &Value) -> Option<SelftestRow> {
    let bounds = [|one: &BoundedFigure| one.0, |one: &BoundedFigure| one.1]
        .map(|pick| sorted(values.iter().map(|one| pick(one) as f64 / 1e9)));
    let (mut truth, mut found, mut holds) = (Vec::new(), Vec::new(), true);
    for (name, p) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99)] {
        let Some(value) = printed[name]["value"].as_f64() else { continue };
        let [least, most] = bounds.each_ref().map(|bound| rank(bound, p));
        let room = (SHARE * least).max(SECONDS);
        truth.push(format!("{name} {}", time(0.5 * (least + most))));
        found.push(time(value));
        holds &= (least - room..=most + room).contains(&value);
    }
    let (truth, seen) = (truth.join(", "), found.join(", "));
    (!found.is_empty()).then(|| row(&format!("{metric} percentiles"), truth, seen, "2 % or 0.2 ms", holds))
}

/// Checks that a closed loop keeps its number of requests in flight.
pub fn closed(concurrency: u32, requests: u64, seen: &[WitnessedRequest], most: u32) -> Vec<SelftestRow> {
    let first = seen.iter().map(|seen| seen.came).min().unwrap_or(0);
    let last = seen.iter().filter_map(|seen| Some(seen.end?.1)).max().unwrap_or(0);
    let busy: i64 = seen.iter().filter_map(|seen| Some(seen.end?.1 - seen.came)).sum();
    let mean = busy as f64 / (last - first).max(1) as f64;
    vec![row(
        "a closed loop keeps its number in flight",
        format!("{concurrency} in flight, {requests} requests"),
        format!("{mean:.1} on average, never more than {most}, {} requests", seen.len()),
        "from 80 % on, never more",
        most <= concurrency && mean >= 0.8 * f64::from(concurrency) && seen.len() as u64 == requests,
    )]
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{At, Attempt, Outcome, Span};
    use serde_json::json;

    use super::*;

    fn ms(ms: i64) -> i64 {
        ms * 1_000_000
    }

    /// Creates 200 requests at 10 ms intervals with scripted outcomes, and the reference log.
    fn loaded() -> (Vec<Attempt>, Vec<WitnessedRequest>) {
        let each = (0..200u64).map(|n| {
            let due = At(ms(10 * n as i64));
            let mut row = Attempt::new(n, 0, 0, due);
            row.first_token = Some(due + Span(ms(30)));
            row.last_token = Some(due + Span(ms(90)));
            row.end = Some(due + Span(ms(90)));
            row.outcome = match WitnessedOutcome::of(n, true) {
                WitnessedOutcome::Whole => Outcome::FINISHED,
                WitnessedOutcome::Error => Outcome::new(How::ServerError, plimsoll_model::By::Server, false),
                WitnessedOutcome::Reset => Outcome::new(How::Reset, plimsoll_model::By::Network, true),
                WitnessedOutcome::Cut => Outcome::new(How::Truncated, plimsoll_model::By::Server, false),
            };
            let at = |ns: i64| (due.0 + ns - 10_000, due.0 + ns + 10_000);
            let seen = WitnessedRequest {
                name: format!("r-0-{n}-0"),
                came: due.0 + 100_000,
                words: 64,
                asked: TOKENS as u64,
                prompt: n,
                tokens: (0..TOKENS as i64).map(|token| at(ms(30 + 4 * token))).collect(),
                end: Some(at(ms(90))),
            };
            (row, seen)
        });
        each.unzip()
    }

    fn broken(rows: &[Attempt], seen: &[WitnessedRequest], p50: f64) -> Vec<String> {
        let percentile = |value: f64| json!({"p50": {"value": value}});
        let summary = json!({
            "counts": {"failed": rows.iter().filter(|row| WitnessedOutcome::of(row.request, true) != WitnessedOutcome::Whole).count()},
            "latency": {"ttft": percentile(p50), "tpot": percentile(0.004), "e2e": percentile(0.09)},
        });
        let findings = json!({"levels": [{"summary": summary}]});
        let open = OpenLoop {
            rate_per_s: 100.0,
            window_s: 2.0,
            prompt_tokens: 64,
            rows,
            findings: &findings,
            seen,
            zero_ns: 0,
            stopped_ns: Some(ms(500)),
        };
        let all = open.sent().into_iter().chain(open.printed());
        let all = all.chain(open.sent_in_trouble()).chain(open.printed_in_trouble());
        all.filter(|row| !row.holds).map(|row| row.check).collect()
    }

    /// Even arrivals are not a Poisson process; all other checks pass. Each injected error fails exactly its
    /// own check.
    #[test]
    fn each_lie_is_found() {
        const EVEN: &str = "a Poisson process of its rate";
        let (rows, seen) = loaded();
        assert_eq!(broken(&rows, &seen, 0.030), [EVEN]);
        assert_eq!(broken(&rows, &seen, 0.031), [EVEN, "ttft percentiles"]);
        let mut late = seen.clone();
        late.iter_mut().take(10).for_each(|seen| seen.came += ms(20));
        assert_eq!(broken(&rows, &late, 0.030), [EVEN, "when it is due"]);
        let mut twice = seen.clone();
        twice.push(seen[3].clone());
        assert_eq!(
            broken(&rows, &twice, 0.030),
            [
                "every request once",
                EVEN,
                "no prompt twice, for a cache to answer",
                "every request once, while some fail"
            ]
        );
        let mut short = seen.clone();
        short[5].asked = 8;
        assert_eq!(broken(&rows, &short, 0.030), [EVEN, "lengths"]);
        let mut held = seen.clone();
        held.iter_mut().skip(60).take(40).for_each(|seen| seen.came += ms(1_000));
        assert!(broken(&rows, &held, 0.030).contains(&"as many while the server stalls".to_owned()));
        let mut hidden = rows.clone();
        hidden[17].outcome = Outcome::FINISHED;
        assert_eq!(broken(&hidden, &seen, 0.030), [EVEN, "how each ended"]);
        let mut early = rows.clone();
        early.iter_mut().for_each(|row| row.first_token = Some(row.due + Span(ms(25))));
        let found = broken(&early, &seen, 0.030);
        assert!(found.contains(&"ttft of each request".to_owned()), "{found:?}");
    }
}
