"""Measures known requests with the OpenTelemetry SDK, sends them in four exports, and prints as JSON what was measured.

usage: otel_measure.py HOST:PORT delta|cumulative explicit|exponential SEED [grpc]
"""
import json
import random
import sys

from opentelemetry.sdk.metrics import Counter, Histogram, MeterProvider
from opentelemetry.sdk.metrics.export import AggregationTemporality, PeriodicExportingMetricReader
from opentelemetry.sdk.metrics.view import ExponentialBucketHistogramAggregation, View
from opentelemetry.sdk.resources import Resource

where, temporality, buckets, seed, *more = sys.argv[1:]
if more:
    from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter

    to = {"endpoint": where, "insecure": True}
else:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter

    to = {"endpoint": f"http://{where}/v1/metrics", "headers": {"Authorization": "Bearer sesame"}}

prefer = AggregationTemporality.DELTA if temporality == "delta" else AggregationTemporality.CUMULATIVE
exporter = OTLPMetricExporter(preferred_temporality={Histogram: prefer, Counter: prefer}, timeout=60, **to)
# By hand: one export for each flush.
reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
views = [View(instrument_type=Histogram, aggregation=ExponentialBucketHistogramAggregation())]
provider = MeterProvider(
    metric_readers=[reader],
    resource=Resource.create({"service.name": "engine", "service.instance.id": f"{temporality}-{buckets}"}),
    views=views if buckets == "exponential" else [],
)
meter = provider.get_meter("otel_measure")
EDGES = [0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0]
how = {"unit": "s", "explicit_bucket_boundaries_advisory": EDGES}
ttft = meter.create_histogram("gen_ai.server.time_to_first_token", **how)
whole = meter.create_histogram("gen_ai.server.request.duration", **how)
other = meter.create_counter("shop.orders")

chance = random.Random(int(seed))
measured = {"ttft": [], "e2e": [], "failed": 0}
said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny"}
for export in range(4):
    for n in range(50):
        # Each export reaches further than the one before, so that new buckets come above and below.
        first = chance.lognormvariate(-3.6, 0.3 + 0.4 * export)
        all_of_it = chance.uniform(0.26, 0.39)
        ttft.record(first, said)
        whole.record(all_of_it, said)
        other.add(1)
        measured["ttft"].append(first)
        measured["e2e"].append(all_of_it)
    whole.record(0.001, {**said, "error.type": "500"})
    measured["failed"] += 1
    assert provider.force_flush(60_000)
provider.shutdown()
json.dump(measured, sys.stdout)
