//! OTLP metrics: bodies of the real SDK with the values of its own protobuf classes, and invalid bytes.

use plimsoll_wire::otlp_metrics::{MeasuredBuckets, MeasuredHistogram, MeasuredPoint, MeasuredValue, read};
use proptest::prelude::*;

const DELTA: &[u8] = include_bytes!("../../fixtures/otlp/delta_metrics.binpb");
const EXPONENTIAL: &[u8] = include_bytes!("../../fixtures/otlp/exponential_metrics.binpb");

fn points(body: &[u8]) -> Vec<MeasuredPoint> {
    let mut found = read(body).expect("a body");
    assert_eq!((found.len(), found[0].rejected), (1, 0));
    let instance = found[0].attributes.iter().find(|(key, _)| key == "service.instance.id").expect("said");
    assert!(instance.1.starts_with("inst-"), "{instance:?}");
    found.remove(0).points
}

fn histogram(point: &MeasuredPoint) -> &MeasuredHistogram {
    match &point.value {
        MeasuredValue::Histogram(histogram) => histogram,
        other => panic!("{other:?}"),
    }
}

/// Values from `ExportMetricsServiceRequest.ParseFromString` of opentelemetry-proto.
#[test]
fn points_are_what_the_senders_own_classes_read() {
    let found = points(DELTA);
    assert_eq!(found.len(), 6);
    let (first, held) = (&found[0], histogram(&found[0]));
    assert_eq!(
        (first.name.as_str(), first.unit.as_str(), first.is_delta),
        ("gen_ai.client.operation.duration", "s", true)
    );
    assert_eq!((first.start_unix, first.at_unix), (1_795_404_758_755_636_431, 1_795_404_761_267_823_970));
    assert!(first.labels.contains(&("gen_ai.operation.name".to_owned(), "chat".to_owned())));
    assert_eq!((held.count, held.sum), (6, Some(0.158_731_491_999_787_98)));
    assert_eq!((held.min, held.max), (Some(0.006_175_527_999_857_877), Some(0.062_208_926_000_039_355)));
    let MeasuredBuckets::Explicit { bounds, counts } = &held.buckets else { panic!("{held:?}") };
    assert_eq!((bounds.len(), bounds[0], bounds[13]), (14, 0.01, 81.92));
    assert_eq!(counts[..5], [1, 3, 0, 2, 0]);

    let found = points(EXPONENTIAL);
    let held = histogram(&found[0]);
    let MeasuredBuckets::Exponential { scale, zero, offset, counts, .. } = &held.buckets else {
        panic!("{held:?}")
    };
    assert_eq!((found[0].is_delta, held.count, *scale, *zero, *offset), (false, 6, 5, 0, -227));
    assert_eq!((counts.len(), counts.iter().sum::<u64>(), counts[0]), (160, 6, 1));
    // The smallest value is in the first bucket, the largest in the last.
    let edge = |index: i32| (f64::from(index) / 32.0).exp2();
    assert!(held.min.is_some_and(|min| edge(-227) < min && min <= edge(-226)), "{held:?}");
    let last = -227 + counts.iter().rposition(|count| *count > 0).expect("some") as i32;
    assert!(held.max.is_some_and(|max| edge(last) < max && max <= edge(last + 1)), "{held:?}");
}

#[test]
fn buckets_that_do_not_add_up_are_left_out_and_counted() {
    // The count of the first point is six: fixed64 in field 4, with one byte changed.
    let place = DELTA.windows(9).position(|bytes| bytes == [0x21, 6, 0, 0, 0, 0, 0, 0, 0]).expect("a count");
    let mut body = DELTA.to_vec();
    body[place + 1] = 7;
    let found = read(&body).expect("a body");
    assert_eq!((found[0].points.len(), found[0].rejected), (5, 1));
    assert!(read(b"{\"resourceMetrics\": []}").is_err());
}

proptest! {
    #[test]
    fn damage_never_panics(place in 0usize..4_000, byte in any::<u8>(), cut in 0usize..4_000) {
        for body in [DELTA, EXPONENTIAL] {
            let mut body = body.to_vec();
            let len = body.len();
            body[place % len] = byte;
            body.truncate(cut.max(1).min(len));
            let _ = read(&body);
        }
    }
}
