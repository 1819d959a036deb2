"""Sends spans with the OpenTelemetry SDK, and prints as JSON what the SDK says it sent.

usage: otel_send.py HOST:PORT grpc|http [gzip]
"""
import json
import sys

from opentelemetry import trace
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

where, how, *more = sys.argv[1:]
if how == "grpc":
    from grpc import Compression
    from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter

    compression = Compression.Gzip if more else Compression.NoCompression
    exporter = OTLPSpanExporter(endpoint=where, insecure=True, compression=compression, timeout=60)
else:
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    compression = Compression.Gzip if more else Compression.NoCompression
    exporter = OTLPSpanExporter(endpoint=f"http://{where}/v1/traces", compression=compression, timeout=60)

provider = TracerProvider(resource=Resource.create({"service.name": f"shop-{how}", "host.name": "h1"}))
kept = InMemorySpanExporter()
provider.add_span_processor(SimpleSpanProcessor(kept))
provider.add_span_processor(BatchSpanProcessor(exporter, max_queue_size=4096, max_export_batch_size=100))
tracer = provider.get_tracer("otel_send")
for n in range(150):
    with tracer.start_as_current_span("request", kind=trace.SpanKind.SERVER) as root:
        root.set_attribute("n", n)
        with tracer.start_as_current_span("chat tiny", kind=trace.SpanKind.CLIENT) as call:
            call.set_attribute("gen_ai.request.model", "tiny")
            call.set_attribute("gen_ai.server.time_to_first_token", 0.03125 + n / 64)
            call.set_attribute("gen_ai.usage.output_tokens", 8)
            call.set_attribute("stream", n % 2 == 0)
            call.set_attribute("stop", ["a", "b"])
            call.add_event("gen_ai.token", {"index": 0})
            if n % 10 == 0:
                call.set_status(trace.Status(trace.StatusCode.ERROR, "boom"))
flushed = provider.force_flush(60000)
provider.shutdown()


def plain(span):
    return {
        "trace": f"{span.context.trace_id:032x}",
        "id": f"{span.context.span_id:016x}",
        "parent": f"{span.parent.span_id:016x}" if span.parent else None,
        "name": span.name,
        "kind": span.kind.name.lower(),
        "start_ns": span.start_time,
        "end_ns": span.end_time,
        "failed": span.status.status_code is trace.StatusCode.ERROR,
        "attributes": {k: list(v) if isinstance(v, tuple) else v for k, v in span.attributes.items()},
        "events": [[event.timestamp, event.name] for event in span.events],
    }


json.dump({"flushed": flushed, "spans": [plain(span) for span in kept.get_finished_spans()]}, sys.stdout)
