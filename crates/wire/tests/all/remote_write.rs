//! Bodies of Prometheus' remote write: real ones against what its API says of the same scrape, and bytes that are none.

use plimsoll_wire::remote_write::{RemoteWriteError, WrittenSeries, read};
use proptest::prelude::*;

const FIRST: &[u8] = include_bytes!("../../fixtures/prometheus/remote_write/001.snappy");
const KILLED: &[u8] = include_bytes!("../../fixtures/prometheus/remote_write/012.snappy");
const BACK: &[u8] = include_bytes!("../../fixtures/prometheus/remote_write/019.snappy");
const ASKED: &[u8] = include_bytes!("../../fixtures/prometheus/remote_write/029.snappy");
const MOST: usize = 1 << 20;

fn of<'a>(series: &'a [WrittenSeries], name: &str) -> &'a WrittenSeries {
    series.iter().find(|one| one.name == name).expect("it is there")
}

#[test]
fn a_sample_is_what_the_sender_itself_says_of_that_scrape() {
    let found = read(ASKED, MOST).expect("a body");
    let tokens = of(&found, "llamacpp:tokens_predicted_total");
    // As Prometheus' API answered for that instant: [1795404902.093,"3840"].
    assert_eq!(tokens.samples, [(1_795_404_902_093_000_000, Some(3840.0))]);
    let labels = [("instance", "127.0.0.1:23950"), ("job", "llama")];
    assert_eq!(tokens.labels, labels.map(|(a, b)| (a.to_owned(), b.to_owned())));
    assert_eq!(of(&read(FIRST, MOST).expect("a body"), "up").samples[0].1, Some(1.0));
    // Zero is a field that is left out of the message, and no less a value.
    assert_eq!(of(&read(BACK, MOST).expect("a body"), "llamacpp:requests_deferred").samples[0].1, Some(0.0));
}

#[test]
fn a_stale_marker_ends_a_series_and_is_no_value() {
    let found = read(KILLED, MOST).expect("a body");
    assert_eq!(found.len(), 6);
    for series in &found {
        let value = if series.name == "up" { Some(0.0) } else { None };
        assert_eq!(series.samples, [(1_795_404_885_093_000_000, value)], "{}", series.name);
    }
}

/// A message with this series, by hand: a name, one sample of this value.
fn message(name: &str, value: f64) -> Vec<u8> {
    let field = |number: u8, bytes: &[u8]| [&[number << 3 | 2, bytes.len() as u8], bytes].concat();
    let label = field(1, &[field(1, b"__name__"), field(2, name.as_bytes())].concat());
    let sample = field(2, &[&[1 << 3 | 1], &value.to_le_bytes()[..], &[2 << 3, 7]].concat());
    field(1, &[label, sample].concat())
}

fn packed(message: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(message).expect("it fits")
}

#[test]
fn what_is_no_such_body_says_why() {
    let one = read(&packed(&message("up", f64::NAN)), MOST).expect("a body");
    assert!(one[0].samples[0].1.is_some_and(f64::is_nan), "an ordinary NaN is a value");
    assert_eq!(one[0].samples[0].0, 7_000_000);
    let why = |body: &[u8], most| read(body, most).expect_err("no body");
    assert!(matches!(why(b"{\"streams\": []}", MOST), RemoteWriteError::Snappy(_)));
    assert!(matches!(why(&FIRST[..100], MOST), RemoteWriteError::Snappy(_)));
    assert!(matches!(why(&packed(b"not a message"), MOST), RemoteWriteError::Protobuf(_)));
    assert!(matches!(why(&packed(&message("", 1.0)), MOST), RemoteWriteError::Series("has no name")));
    // Four bytes that claim four GiB take no memory.
    assert_eq!(why(&[0xff, 0xff, 0xff, 0xff, 0x0f], MOST), RemoteWriteError::TooLarge(u32::MAX as usize));
    assert!(matches!(why(FIRST, 64), RemoteWriteError::TooLarge(_)));
    assert_eq!(read(&packed(b""), MOST), Ok(Vec::new()));
}

proptest! {
    #[test]
    fn any_bytes_are_read_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = read(&bytes, MOST);
        let _ = read(&packed(&bytes), MOST);
    }
}
