//! Traces of others on their way to a collector: spans are taken, a trace is decided when it is whole, and what is kept goes on as it came, but for its weight.
//!
//! Nobody who sends waits for the collector: what is held is bounded twice, before a trace is decided and behind that, and what went for want of room is counted.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use plimsoll_client::{Clock, Poster};
use plimsoll_model::Span;
use plimsoll_policy::{TailCounts, TailSpan, TailSpec, TailStage};
use plimsoll_profile::names::Facts;
use plimsoll_server::collector::{self, Collecting, CollectorConfig, PushSink};
use plimsoll_wire::prometheus::{Label, PrometheusPage};
use plimsoll_wire::trace::export::HTTP_TRACES;
use plimsoll_wire::trace::passing::{PassingSpan, SpanBytes};
use plimsoll_workload::TargetSpec;
use serde::Serialize;

use super::LOOK;
use super::asked::span;
use super::file::{CollectorSpec, TracesSpec, listen};
use super::pushed::bearer;
use crate::exit::Stop;
use crate::out;
use crate::span_sender::{SpanCounts, SpanSender};

/// The same, checked, with its keys.
pub struct AskedTraces {
    config: CollectorConfig,
    poster: Poster,
    spec: TailSpec,
}

impl TracesSpec {
    /// # Errors
    /// The first that can't be, in one line.
    pub fn asked(&self) -> Result<AskedTraces, Stop> {
        let wrong = |why: String| Stop::usage(format!("traces.{why}"));
        let addr = listen(&self.listen).ok_or_else(|| {
            wrong(format!("listen: {}: write PORT or ADDRESS:PORT, on which it takes OTLP", self.listen))
        })?;
        let usual = TailSpec::default();
        let spec = TailSpec {
            keep: self.keep,
            wait: span("traces.wait", self.wait.as_ref())?.unwrap_or(usual.wait),
            most_bytes: self.memory_mb.map_or(usual.most_bytes, |mb| mb.saturating_mul(1 << 20)),
        };
        self.keep.validate().map_err(|e| Stop::usage(e.to_string()))?;
        if spec.wait > Span::from_secs(600) {
            return Err(wrong("wait: at most 10m".to_owned()));
        }
        if !(1..=1 << 20).contains(&(spec.most_bytes >> 20)) {
            return Err(wrong("memory_mb: from 1 to 1048576".to_owned()));
        }
        let bearer = bearer("traces", self.key_env.as_ref(), self.key_file.as_ref())?;
        let config = CollectorConfig { bearer, ..CollectorConfig::new(vec![addr]) };
        Ok(AskedTraces { config, poster: self.to.poster(addr).map_err(wrong)?, spec })
    }
}

impl CollectorSpec {
    fn poster(&self, own: SocketAddr) -> Result<Poster, String> {
        if !self.url.starts_with("http://") && !self.url.starts_with("https://") {
            return Err(format!("to.url: {:?} is no URL; write http://host:4318", self.url));
        }
        let target = TargetSpec {
            url: self.url.trim_end_matches('/').trim_end_matches(HTTP_TRACES).to_owned(),
            stream: false,
            headers: self.headers.clone(),
            key_env: self.key_env.clone(),
            key_file: self.key_file.clone(),
            ca_file: self.ca_file.clone(),
            tls_verify: !self.insecure,
            ..TargetSpec::default()
        };
        let poster = Poster::new(&target, HTTP_TRACES).map_err(|e| format!("to: {e}"))?;
        if listen(&poster.authority()) == Some(own) {
            return Err(format!("to.url: {} is where traces are taken; name another collector", self.url));
        }
        Ok(poster)
    }
}

impl AskedTraces {
    /// What is asked, for people.
    pub fn line(&self) -> String {
        let (TailSpec { keep, wait, most_bytes }, to) = (&self.spec, self.poster.authority());
        let rest = format!("{} % of the rest up to {} a second", 100.0 * keep.share, keep.rest_per_s);
        let (failed, slow) = (keep.failed_per_s, keep.slow_per_s);
        format!(
            "traces to {to}: failed ones up to {failed} a second, slow ones up to {slow}, {rest}; decided {} s after their root, {} MB held at most",
            wait.as_secs_f64(),
            most_bytes >> 20
        )
    }
}

/// Spans that go on, with their trace.
type Passed = (u128, SpanBytes);

/// Traces on their way.
pub struct Traces {
    stage: Arc<Mutex<TailStage<Passed>>>,
    sender: Arc<SpanSender<(SpanBytes, f64)>>,
    collecting: Collecting,
    ticker: Option<JoinHandle<()>>,
    over: Arc<AtomicBool>,
    clock: Clock,
    to: String,
}

impl Traces {
    /// Listens, and sends on.
    ///
    /// # Errors
    /// The address can't be had, or there is no thread.
    pub fn start(asked: AskedTraces, clock: Clock) -> Result<Traces, Stop> {
        let to = asked.poster.authority();
        let stage = Arc::new(Mutex::new(TailStage::new(&asked.spec)));
        let sender = Arc::new(SpanSender::start(asked.poster)?);
        let (taking, passing) = (Arc::clone(&stage), Arc::clone(&sender));
        let sink = PushSink::Passing(Box::new(move |spans| {
            let spans: Vec<_> = spans.into_iter().map(tail_span).collect();
            let kept = lock(&taking).take(spans, clock.now());
            send(&passing, kept);
        }));
        let collecting = collector::receive(asked.config, sink)
            .map_err(|e| Stop::usage(format!("traces.listen: {e}; name another port")))?;
        if let Some(addr) = collecting.addrs().first() {
            // Parents of this process wait for this line: it comes even when it is to be quiet.
            out::note(&format!("traces: OTLP is taken at http://{addr}{HTTP_TRACES}"));
        }
        let over = Arc::new(AtomicBool::new(false));
        let (ticking, passing, is_over) = (Arc::clone(&stage), Arc::clone(&sender), Arc::clone(&over));
        let ticker = std::thread::Builder::new().name("traces".into()).spawn(move || {
            while !is_over.load(Ordering::Relaxed) {
                let kept = lock(&ticking).tick(clock.now());
                send(&passing, kept);
                std::thread::sleep(LOOK);
            }
        });
        let ticker = ticker.map_err(|e| Stop::invalid(format!("no thread decides traces: {e}")))?;
        Ok(Traces { stage, sender, collecting, ticker: Some(ticker), over, clock, to })
    }

    /// What became of what came.
    pub fn told(&self) -> TracesTold {
        // The stage first: what it has let go by then the sender has, or is about to get.
        let stage = lock(&self.stage);
        let (spans, (open_traces, bytes), held) = (stage.counts(), stage.open_now(), stage.held());
        let strata = stage.counted().map(|(stratum, ended, kept)| StratumTold {
            stratum: stratum.name(),
            ended,
            kept,
        });
        drop(stage);
        let taken = self.collecting.stopper().counts();
        let requests = [
            ("taken", taken.requests),
            ("busy", taken.refused),
            ("unreadable", taken.malformed),
            ("something_else", taken.elsewhere + taken.tls),
        ];
        let invalid = taken.rejected;
        let sent = self.sender.counts();
        TracesTold { to: self.to.clone(), spans, open_traces, bytes, held, strata, requests, invalid, sent }
    }

    /// What is open is decided as it is, and what is kept is sent within a few seconds. What became of it all.
    pub fn end(mut self) -> TracesTold {
        self.collecting.stopper().stop();
        self.over.store(true, Ordering::Relaxed);
        let _ = self.ticker.take().map(JoinHandle::join);
        let kept = lock(&self.stage).end(self.clock.now());
        send(&self.sender, kept);
        let told = self.told();
        // The sink holds the sender too, until nobody is received any more.
        drop(self.collecting);
        let sent = Arc::into_inner(self.sender).map_or(told.sent, SpanSender::end);
        TracesTold { sent, ..told }
    }
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Each trace by itself: where there is no room they go whole.
fn send(sender: &SpanSender<(SpanBytes, f64)>, kept: Vec<(Passed, f64)>) {
    let mut kept = kept.into_iter().peekable();
    while let Some(((trace, bytes), weight)) = kept.next() {
        let mut spans = vec![(bytes, weight)];
        while let Some(((_, bytes), weight)) = kept.next_if(|((own, _), _)| *own == trace) {
            spans.push((bytes, weight));
        }
        sender.put(spans);
    }
}

/// What is decided by.
fn tail_span(passing: PassingSpan) -> TailSpan<Passed> {
    let PassingSpan { span, randomness, bytes } = passing;
    let facts = Facts::of(&span);
    // Requests of one model and operation are compared with each other; names tell operations apart where nobody says them.
    let mut kind = DefaultHasher::new();
    (&span.service, &span.name, facts.operation, facts.model).hash(&mut kind);
    let since_start = facts.first_token_ns.map(|at| Span(at.saturating_sub(span.start_ns)));
    let told = facts.ttft_s.map(|s| Span((s * 1e9) as i64));
    TailSpan {
        trace: span.trace,
        is_root: span.parent.is_none(),
        kind: kind.finish(),
        start_ns: span.start_ns,
        end_ns: span.end_ns,
        first_token: told.or(since_start).filter(|took| took.0 >= 0),
        failed: span.failed || span.attribute("error.type").is_some(),
        randomness,
        weight: span.weight,
        bytes: bytes.len() + size_of::<TailSpan<Passed>>(),
        payload: (span.trace, bytes),
    }
}

/// Traces of one stratum.
#[derive(Copy, Clone, Serialize)]
pub struct StratumTold {
    stratum: &'static str,
    /// That were decided.
    ended: u64,
    /// That are kept.
    kept: u64,
}

/// What became of what came.
pub struct TracesTold {
    to: String,
    spans: TailCounts,
    open_traces: usize,
    bytes: usize,
    held: u64,
    strata: [StratumTold; 3],
    requests: [(&'static str, u64); 4],
    /// Spans without valid ids: their senders were told.
    invalid: u64,
    sent: SpanCounts,
}

impl TracesTold {
    /// For people, in one line.
    pub fn line(&self) -> String {
        let (ended, kept) = self.strata.iter().fold((0, 0), |(e, k), of| (e + of.ended, k + of.kept));
        let each: Vec<String> =
            self.strata.iter().map(|of| format!("{} {} of {}", of.stratum, of.kept, of.ended)).collect();
        let SpanCounts { sent, refused, dropped, waiting } = self.sent;
        let lost = [
            (self.spans.over_bound, "had no room"),
            (refused, "were refused there"),
            (dropped, "never reached it"),
            (waiting, "wait"),
        ];
        let lost: String = lost
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("; {count} {what}"))
            .collect();
        format!(
            "traces: {kept} of {ended} kept ({}); of {} spans {sent} are sent to {}{lost}",
            each.join(", "),
            self.spans.came,
            self.to
        )
    }

    /// For a metrics page.
    pub fn metrics(&self, page: &mut PrometheusPage) {
        let counter = |page: &mut PrometheusPage, name, help, of: &[([Label<'_>; 1], u64)]| {
            let of: Vec<(&[Label<'_>], f64)> =
                of.iter().map(|(labels, n)| (&labels[..], *n as f64)).collect();
            page.counter(name, help, &of);
        };
        let TailCounts { came, dropped, over_bound, late, early_traces, rootless_traces, .. } = self.spans;
        page.counter("plimsoll_watch_spans_received_total", "Spans that came", &[(&[], came as f64)]);
        let outcomes = [
            ("not_sampled", dropped),
            ("over_bound", over_bound),
            ("sent", self.sent.sent),
            ("refused", self.sent.refused),
            ("dropped", self.sent.dropped),
        ];
        let help = "Spans by what became of them";
        counter(page, "plimsoll_watch_spans_total", help, &outcomes.map(|(of, n)| ([("outcome", of)], n)));
        let help = "Spans that came after their trace was decided";
        page.counter("plimsoll_watch_spans_late_total", help, &[(&[], late as f64)]);
        let help = "Spans without valid ids, which were refused";
        page.counter("plimsoll_watch_spans_invalid_total", help, &[(&[], self.invalid as f64)]);
        let help = "Requests with spans, by how they were answered";
        let requests = self.requests.map(|(of, n)| ([("outcome", of)], n));
        counter(page, "plimsoll_watch_span_requests_total", help, &requests);
        let traces: Vec<([Label<'_>; 2], f64)> = self
            .strata
            .iter()
            .flat_map(|of| {
                [("ended", of.ended), ("kept", of.kept)]
                    .map(|(what, n)| ([("stratum", of.stratum), ("what", what)], n as f64))
            })
            .collect();
        let traces: Vec<(&[Label<'_>], f64)> = traces.iter().map(|(labels, n)| (&labels[..], *n)).collect();
        let help = "Traces that ended, and those of them that were kept";
        page.counter("plimsoll_watch_traces_total", help, &traces);
        let cut = [([("why", "no_room")], early_traces), ([("why", "no_root")], rootless_traces)];
        let help = "Traces that were decided before they were whole";
        counter(page, "plimsoll_watch_traces_early_total", help, &cut);
        for (name, help, value) in [
            ("plimsoll_watch_spans_held", "Spans whose trace is not decided", self.held),
            ("plimsoll_watch_spans_waiting", "Spans that are kept and not sent yet", self.sent.waiting),
            ("plimsoll_watch_traces_open", "Traces that are not decided", self.open_traces as u64),
            ("plimsoll_watch_trace_bytes_held", "Bytes of these", self.bytes as u64),
        ] {
            page.gauge(name, help, &[(&[], value as f64)]);
        }
    }

    /// For the page and for `/v1/rows`.
    pub fn json(&self) -> serde_json::Value {
        let TailCounts { came, dropped, over_bound, .. } = self.spans;
        let SpanCounts { sent, refused, dropped: away, waiting } = self.sent;
        serde_json::json!({
            "says": self.line(),
            "to": self.to,
            "strata": self.strata,
            "spans": {
                "received": came, "not_sampled": dropped, "over_bound": over_bound, "held": self.held,
                "sent": sent, "refused": refused, "dropped": away, "waiting": waiting,
            },
        })
    }
}
