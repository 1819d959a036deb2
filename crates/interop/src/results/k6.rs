//! Parses k6's points: `--out json` (a line per point, to the nanosecond) and `--out csv` (to the second, unless configured otherwise).
//!
//! The points of one request follow each other; their `time` is the *end*. The request started `http_req_blocked`, `_connecting`,
//! `_tls_handshaking` and `_duration` before. `http_req_waiting` is the time to the first byte; k6 has no tokens.
//! `dropped_iterations` are arrivals that had no free virtual user: they were due and never sent.

use plimsoll_model::{
    By, Doubt, Foreign, ForeignClock, ForeignPart, ForeignRow, ForeignStatistic, How, Outcome, Rank,
};
use plimsoll_wire::instant::{decimal_ns, iso_ns};

use super::json::{self, Json};
use super::{CUT, FileRead, ForeignError, failed, later, partial, said, signed_ns};

/// The metrics of a request, in the order of k6.
const METRICS: [&str; 7] = [
    "http_req_duration",
    "http_req_blocked",
    "http_req_connecting",
    "http_req_tls_handshaking",
    "http_req_sending",
    "http_req_waiting",
    "http_req_receiving",
];

/// A request with points still to come.
#[derive(Clone, PartialEq, Debug)]
struct Request {
    end: Option<i64>,
    ms: [f64; METRICS.len()],
    status: Option<u16>,
    failed: bool,
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct Lines {
    is_csv: bool,
    columns: Vec<String>,
    requests: Vec<Request>,
    dropped: Vec<i64>,
    iterations: u64,
    cut: bool,
    /// Whether a timestamp has a fraction of a second.
    fine: bool,
}

impl Lines {
    pub(super) fn json() -> Lines {
        Lines::default()
    }

    pub(super) fn csv() -> Lines {
        Lines { is_csv: true, ..Lines::default() }
    }

    pub(super) fn line(&mut self, line: &[u8]) -> Option<()> {
        if self.is_csv { self.of_csv(line) } else { self.of_json(line) }
    }

    fn of_json(&mut self, line: &[u8]) -> Option<()> {
        let document = json::read(line).ok()?;
        if !document.whole {
            self.cut = true;
            return Some(());
        }
        let root = &document.root;
        if root.get("type").text()? != "Point" {
            return Some(());
        }
        let data = root.get("data");
        let at = data.get("time").text().and_then(iso_ns);
        let status = data.at(&["tags", "status"]).text().and_then(|text| text.parse().ok());
        self.point(root.get("metric").text()?, at, data.get("value").finite()?, status);
        Some(())
    }

    fn of_csv(&mut self, line: &[u8]) -> Option<()> {
        let text = std::str::from_utf8(line).ok()?.trim_end_matches('\r');
        let cells: Vec<&str> = text.split(',').collect();
        if self.columns.is_empty() {
            self.columns = cells.iter().map(|cell| (*cell).to_owned()).collect();
            return Some(());
        }
        let cell = |name: &str| {
            let at = self.columns.iter().position(|column| column == name)?;
            cells.get(at).copied().filter(|cell| !cell.is_empty())
        };
        let stamp = cell("timestamp")?;
        let at = decimal_ns(stamp)
            .map(|ns| if ns > 1 << 62 { ns / 1_000_000_000 } else { ns })
            .filter(|ns| *ns >= 0)
            .or_else(|| iso_ns(stamp))
            .map(|ns| later(ns, 0));
        let (metric, status) = (cell("metric_name")?, cell("status").and_then(|text| text.parse().ok()));
        let value: f64 = cell("metric_value")?.parse().ok().filter(|v: &f64| v.is_finite())?;
        let metric = metric.to_owned();
        self.point(&metric, at, value, status);
        Some(())
    }

    fn point(&mut self, metric: &str, at: Option<i64>, value: f64, status: Option<u16>) {
        self.fine |= at.is_some_and(|at| at % 1_000_000_000 != 0);
        match metric {
            "http_reqs" => {
                self.requests.push(Request { end: at, ms: [0.0; METRICS.len()], status, failed: false });
            }
            "http_req_failed" => {
                if let Some(request) = self.requests.last_mut() {
                    request.failed = value > 0.0;
                }
            }
            "dropped_iterations" => {
                let n = (value as usize).min(1 << 20);
                self.dropped.extend(at.into_iter().flat_map(|at| std::iter::repeat_n(at, n)));
            }
            "iterations" => self.iterations += 1,
            metric => {
                let place = METRICS.iter().position(|known| *known == metric);
                if let (Some(place), Some(request)) = (place, self.requests.last_mut()) {
                    request.ms[place] = value;
                }
            }
        }
    }
}

pub(super) fn read(lines: &Lines, summary: Option<&FileRead>) -> Result<Foreign, ForeignError> {
    let summary = summary.map(FileRead::document).transpose()?;
    let root = summary.as_ref().map_or(&Json::Null, |document| &document.root);
    let mut part = ForeignPart::new("all requests");
    for request in &lines.requests {
        part.rows.push(row(request, lines.fine));
    }
    if lines.fine {
        for at in &lines.dropped {
            let mut row = ForeignRow::new(Outcome::new(How::NeverSent, By::Client, false));
            row.due = Some(*at);
            part.rows.push(row);
        }
        part.rows.sort_by_key(|row| row.due.or(row.sent));
    } else {
        part.seen.push(
            "timestamps are whole seconds: the schedule and the requests in flight cannot be checked".into(),
        );
    }
    if !lines.dropped.is_empty() {
        part.seen.push(format!(
            "{} arrivals had no free virtual user and were dropped: they count here as never sent, and in k6's latencies not at all",
            lines.dropped.len()
        ));
    }
    for (place, metric) in METRICS.iter().enumerate() {
        let values = lines.requests.iter().map(|request| request.ms[place]).collect();
        let column = part.column(metric, definition(metric), values);
        // At top level in --summary-export, one level deeper in handleSummary's.
        let block = root.at(&["metrics", metric]);
        let block = if block.has("values") { block.get("values") } else { block };
        said::block(&mut part, metric, Some(column), block, Rank::Linear);
    }
    let requests = part.column("http_reqs", "requests", vec![1.0; lines.requests.len()]);
    let count = root.at(&["metrics", "http_reqs", "count"]).finite();
    part.claim("http_reqs.count", Some(requests), ForeignStatistic::Count, (1.0, 0.0), count);
    let mut foreign = Foreign {
        tool: "k6",
        version: None,
        format: if lines.is_csv { "--out csv" } else { "--out json" },
        clock: if lines.fine { ForeignClock::Wall } else { ForeignClock::None },
        model: None,
        url: None,
        parts: vec![part],
        partial: None,
        doubts: vec![
            Doubt::CoordinatedOmission,
            Doubt::ClientLimit,
            Doubt::LateStamps,
            Doubt::RepeatedPrompts,
            Doubt::CutAnswers,
        ],
    };
    if !lines.fine {
        foreign.doubts.push(Doubt::NoOrder);
    }
    if lines.cut {
        partial(&mut foreign, CUT.to_owned());
    }
    Ok(foreign)
}

fn row(request: &Request, fine: bool) -> ForeignRow {
    let is_ok = !request.failed && request.status.is_none_or(|status| (1..400).contains(&status));
    let mut row = ForeignRow::new(if is_ok { Outcome::FINISHED } else { failed(request.status) });
    let ns = |ms: f64| signed_ns(ms.clamp(0.0, 1e9), 1e3);
    let [duration, blocked, connecting, tls, sending, waiting, _] = request.ms;
    let before = ns(blocked + connecting + tls);
    let begun = match request.end.filter(|_| fine) {
        Some(end) => later(end, -ns(duration) - before),
        None => 0,
    };
    row.sent = Some(begun);
    row.first_event = (waiting > 0.0).then(|| later(begun, before + ns(sending + waiting)));
    row.end = Some(later(begun, before + ns(duration)));
    row.status = request.status.filter(|status| *status > 0);
    row
}

fn definition(metric: &str) -> &'static str {
    match metric {
        "http_req_duration" => "sending + waiting + receiving: without the wait for a connection",
        "http_req_waiting" => "request sent → first byte",
        "http_req_blocked" => "wait for a free connection",
        _ => "as the rows keep it",
    }
}
