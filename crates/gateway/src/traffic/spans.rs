//! Spans of a request in OpenTelemetry's GenAI conventions: the request, its queue time and each attempt. Prompts,
//! answers and keys are left out, because they are confidential.

use plimsoll_model::{At, Attempt, AttributeValue, How, SpanEvent, SpanKind, TraceSpan};

use super::{TrafficRow, UpstreamAttempt};

/// The values that the spans of all requests share.
#[derive(Clone, Debug)]
pub struct SpanNames {
    pub service: String,
    /// Class names by their index in the configuration.
    pub classes: Vec<String>,
}

/// Returns the spans of a finished request; none if it is not traced. `rows` are its attempts, on an axis with zero
/// at `zero_ns` (ns of the Unix epoch).
pub fn spans(told: &TrafficRow, rows: &[Attempt], zero_ns: i64, names: &SpanNames) -> Vec<TraceSpan> {
    let (Some(context), Some(first), Some(last)) = (told.context, rows.first(), rows.last()) else {
        return Vec::new();
    };
    let ns = |at: At| zero_ns + at.0;
    let blank =
        || TraceSpan { trace: context.trace, service: Some(names.service.clone()), ..TraceSpan::blank() };
    // Other paths are left out, because they may contain confidential data.
    let route = told.protocol.operation().and(told.protocol.route());
    let over = rows.iter().filter_map(|row| row.end).max().unwrap_or(first.due);
    let class = names.classes.get(usize::from(told.class));
    let mut all = vec![TraceSpan {
        id: context.root,
        parent: context.parent,
        name: route.as_ref().map_or("POST".to_owned(), |route| format!("POST {route}")),
        kind: SpanKind::Server,
        start_ns: ns(first.due),
        end_ns: ns(over),
        failed: is_failure(last),
        attributes: sorted([
            ("http.request.method", Some(text("POST"))),
            (
                "http.response.status_code",
                last.answer.status.map(|status| AttributeValue::Int(status.into())),
            ),
            ("url.path", route.as_ref().map(text)),
            ("error.type", error(last)),
            ("plimsoll.class", class.map(text)),
            ("plimsoll.queue_s", Some(AttributeValue::Real(told.held.as_secs_f64()))),
        ]),
        ..blank()
    }];
    if told.held.0 > 0 {
        let begun = ns(first.due) + told.read.0;
        all.push(TraceSpan {
            id: context.attempt(usize::MAX - 1),
            parent: Some(context.root),
            name: "queue".to_owned(),
            kind: SpanKind::Internal,
            start_ns: begun,
            end_ns: begun + told.held.0,
            ..blank()
        });
    }
    let tries = rows.iter().zip(&told.tries);
    all.extend(tries.filter_map(|(row, one)| try_span(told, (row, one), (blank(), ns))));
    all
}

/// Returns the span of an attempt, or `None` if it was not sent.
fn try_span(
    told: &TrafficRow,
    (row, one): (&Attempt, &UpstreamAttempt),
    (blank, ns): (TraceSpan, impl Fn(At) -> i64),
) -> Option<TraceSpan> {
    let (context, at) = (told.context?, row.sent?);
    let operation = told.protocol.operation();
    let what = operation.unwrap_or("POST");
    let model = told.asked.model.as_deref();
    let place = &one.replica.place;
    let tokens = &row.answer.tokens;
    let count = |tokens: Option<u32>| tokens.map(|tokens| AttributeValue::Int(tokens.into()));
    let first = row.first_token.map(|first| AttributeValue::Real((first - at).as_secs_f64()));
    Some(TraceSpan {
        id: context.attempt(one.number),
        parent: Some(context.root),
        name: model.map_or(what.to_owned(), |model| format!("{what} {model}")),
        kind: SpanKind::Client,
        start_ns: ns(at),
        end_ns: ns(row.end.unwrap_or(at).max(at)),
        failed: is_failure(row),
        attributes: sorted([
            ("gen_ai.operation.name", operation.map(text)),
            ("gen_ai.provider.name", Some(text(told.protocol.provider()))),
            ("gen_ai.request.model", model.map(text)),
            ("gen_ai.response.model", one.model.as_ref().map(text)),
            ("gen_ai.request.max_tokens", count(told.asked.most_tokens)),
            ("gen_ai.request.stream", Some(AttributeValue::Flag(told.asked.streams))),
            ("gen_ai.usage.input_tokens", count(tokens.prompt)),
            ("gen_ai.usage.output_tokens", count(tokens.output)),
            ("gen_ai.usage.cache_read.input_tokens", count(tokens.cached)),
            ("gen_ai.response.time_to_first_chunk", first),
            ("server.address", Some(text(&place.host))),
            ("server.port", Some(AttributeValue::Int(place.port.into()))),
            ("http.response.status_code", row.answer.status.map(|status| AttributeValue::Int(status.into()))),
            ("error.type", error(row)),
            ("plimsoll.replica", Some(text(&one.replica.name))),
        ]),
        events: row
            .first_token
            .map(|at| SpanEvent { at_ns: ns(at), name: "first_token".to_owned() })
            .into_iter()
            .collect(),
        ..blank
    })
}

fn is_failure(row: &Attempt) -> bool {
    !matches!(row.outcome.how, How::Finished | How::Cancelled)
}

fn error(row: &Attempt) -> Option<AttributeValue> {
    let named = match row.answer.status {
        Some(status) if status >= 400 => status.to_string(),
        _ => row.outcome.how.name().to_owned(),
    };
    (row.outcome.how != How::Finished).then_some(AttributeValue::Text(named))
}

fn text(of: impl AsRef<str>) -> AttributeValue {
    AttributeValue::Text(of.as_ref().to_owned())
}

/// Returns the known attributes, sorted by key.
fn sorted<const N: usize>(of: [(&str, Option<AttributeValue>); N]) -> Vec<(String, AttributeValue)> {
    let mut known: Vec<_> =
        of.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
    known.sort_by(|a, b| a.0.cmp(&b.0));
    known
}
