//! Traces of the gateway's own requests. They are sampled at the end of a request and sent to a collector.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Arc, Mutex, PoisonError};

use plimsoll_client::{Clock, PostClient};
use plimsoll_gateway::traffic::TrafficRow;
use plimsoll_gateway::traffic::spans::{SpanNames, spans};
use plimsoll_gateway::{GatewaySpec, TracesSpec, TrafficRecorder};
use plimsoll_model::{At, Attempt, AttributeValue, How, Span, TraceSpan};
use plimsoll_policy::{EndedTrace, KeptTrace, TailSampler};
use plimsoll_wire::prometheus::PrometheusPage;
use plimsoll_workload::TargetSpec;

use crate::exit::Stop;
use crate::span_sender::{SpanCounts, SpanSender};

/// The trace sampler and its sender.
pub struct GatewayTraces {
    sampler: TailSampler<Vec<TraceSpan>>,
    sender: SpanSender,
    names: SpanNames,
    clock: Clock,
    /// Metrics of the exporter in Prometheus format.
    told: Arc<Mutex<String>>,
    due: At,
}

/// Interval at which the sampler's clock and counts are checked.
const LOOK: Span = Span::from_millis(250);

impl GatewayTraces {
    /// # Errors
    /// Fails if the address or key of the collector is invalid.
    pub fn start(
        spec: &GatewaySpec,
        asked: &TracesSpec,
        clock: Clock,
        told: &TrafficRecorder,
    ) -> Result<GatewayTraces, Stop> {
        let key = asked.key.as_ref();
        let target = TargetSpec {
            url: asked.base().to_owned(),
            stream: false,
            headers: asked.headers.clone(),
            key_env: key.and_then(|key| key.env.clone()),
            key_file: key.and_then(|key| Some(key.file.as_ref()?.display().to_string())),
            ca_file: spec.ca_file.as_ref().map(|path| path.display().to_string()),
            tls_verify: !spec.insecure,
            ..TargetSpec::default()
        };
        if key.is_some_and(|key| key.sha256.is_some()) {
            return Err(Stop::usage("traces.key: a hash can't be shown to a collector; write env: or file:"));
        }
        let poster =
            PostClient::new(&target, "/v1/traces").map_err(|e| Stop::usage(format!("traces: {e}")))?;
        Ok(GatewayTraces {
            sampler: TailSampler::new(&asked.keep),
            sender: SpanSender::start(poster)?,
            names: SpanNames {
                service: asked.service.clone(),
                classes: spec.admission.classes.iter().map(|class| class.name.clone()).collect(),
            },
            clock,
            told: Arc::clone(&told.traced),
            due: At::ZERO,
        })
    }

    /// Records a finished request. `rows` are on an axis whose zero is `base`.
    pub fn take(&mut self, told: &TrafficRow, rows: &[Attempt], base: At) {
        let (Some(context), Some(first), Some(last)) = (told.context, rows.first(), rows.last()) else {
            return;
        };
        let zero_ns = self.clock.anchor().realtime_ns + base.0;
        let mut kind = DefaultHasher::new();
        (told.protocol, &told.asked.model).hash(&mut kind);
        let ended = EndedTrace {
            at: told.over,
            kind: kind.finish(),
            took: [last.first_token, last.end].map(|at| at.map(|at| at - first.due)),
            failed: !matches!(last.outcome.how, How::Finished | How::Cancelled),
            randomness: context.randomness,
            spans: spans(told, rows, zero_ns, &self.names),
        };
        let kept = self.sampler.push(ended);
        self.send(kept);
    }

    /// Sends the sampled traces of the last second.
    pub fn look(&mut self) {
        let now = self.clock.now();
        if now < self.due {
            return;
        }
        self.due = now + LOOK;
        let kept = self.sampler.turn(now);
        self.send(kept);
        let metrics = self.metrics();
        *self.told.lock().unwrap_or_else(PoisonError::into_inner) = metrics;
    }

    fn send(&self, kept: Vec<KeptTrace<Vec<TraceSpan>>>) {
        for one in kept {
            let why = AttributeValue::Text(one.stratum.name().to_owned());
            let mut spans = one.spans;
            spans.iter_mut().for_each(|span| span.weight = one.weight);
            if let Some(root) = spans.first_mut() {
                root.attributes.push(("plimsoll.sampled".to_owned(), why));
                root.attributes.sort_by(|a, b| a.0.cmp(&b.0));
            }
            self.sender.put(spans);
        }
    }

    fn metrics(&self) -> String {
        let mut page = PrometheusPage::new();
        let each = self.sampler.counted();
        let each = each.iter().flat_map(|(stratum, came, kept)| {
            [("ended", came), ("kept", kept)]
                .map(|(what, n)| ([("stratum", stratum.name()), ("what", what)], *n as f64))
        });
        page.counter("plimsoll_gateway_traces_total", "Traces that ended, and traces that were kept.", each);
        let counts = self.sender.counts();
        let named = counts.named().map(|(outcome, n)| ([("outcome", outcome)], n as f64));
        page.counter("plimsoll_gateway_spans_total", "Spans that were kept, by outcome.", named);
        page.gauge("plimsoll_gateway_spans_waiting", "Spans to be sent.", [([], counts.waiting as f64)]);
        page.finish()
    }

    pub fn end(mut self) -> SpanCounts {
        let kept = self.sampler.turn(At(i64::MAX));
        self.send(kept);
        self.sender.end()
    }
}
