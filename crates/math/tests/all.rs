//! Tests of the mathematics against formulas, published values, other software, and queues of known distribution.

#[path = "all/anytime.rs"]
mod anytime;
#[path = "all/chance.rs"]
mod chance;
#[path = "all/coverage.rs"]
mod coverage;
#[path = "all/curves.rs"]
mod curves;
#[path = "all/joint.rs"]
mod joint;
#[path = "all/laws.rs"]
mod laws;
#[path = "all/least_squares.rs"]
mod least_squares;
#[path = "all/paired.rs"]
mod paired;
#[path = "all/quantiles.rs"]
mod quantiles;
#[path = "all/queueing.rs"]
mod queueing;
#[path = "all/series.rs"]
mod series;
#[path = "all/special.rs"]
mod special;
#[path = "all/two_sample.rs"]
mod two_sample;

/// Checks that both values are finite and within a relative distance; a failure names the comparison.
#[track_caller]
fn close(what: &str, got: f64, wanted: f64, relative: f64) {
    let gap = (got - wanted).abs();
    assert!(
        gap <= relative * wanted.abs(),
        "{what}: got {got:e}, wanted {wanted:e}, off by {:e}",
        gap / wanted.abs()
    );
}
