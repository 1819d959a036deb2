//! Draws a gate's finding as one picture: each row's measured interval in multiples of its limit.
//!
//! Rows have different units, so they share an axis only as multiples of the limit. The axis is logarithmic, because a limit of five times
//! the percentile and one of 1.1 times it must both be readable. The SVG needs no other file, because a pull
//! request shows it without styles or scripts.

use std::fmt::Write;

use plimsoll_judge::gate::{GateFinding, GateRow, RowRole};
use plimsoll_measure::findings::{Estimate, Held};

use super::junit::escape;
use super::{name, verdict_words, word};
use crate::words;

/// Rows that are drawn, worst first; the title counts the others.
const ROWS: usize = 12;
const WIDTH: f64 = 860.0;
const LEFT: f64 = 230.0;
const RIGHT: f64 = 560.0;
const TOP: f64 = 60.0;
const STEP: f64 = 30.0;
/// Outermost ends of the axis, in multiples of the limit.
const FAR: (f64, f64) = (0.01, 100.0);
/// Labelled multiples of the limit, if the axis reaches them.
const TICKS: [(f64, &str); 7] = [
    (0.01, "0.01×"),
    (0.1, "0.1×"),
    (0.5, "0.5×"),
    (1.0, "limit"),
    (2.0, "2×"),
    (10.0, "10×"),
    (100.0, "100×"),
];

/// Returns the picture as an SVG document of at most 12 rows.
pub fn picture(finding: &GateFinding) -> String {
    let rows: Vec<&GateRow> = finding.worst_first();
    let drawn = &rows[..rows.len().min(ROWS)];
    let ends = drawn.iter().filter_map(|row| multiples(row)).flat_map(|ratio| [ratio.lower, ratio.upper]);
    let (least, most) = ends
        .filter(|end| end.is_finite() && *end > 0.0)
        .fold((0.5f64, 2.0f64), |(low, high), end| (low.min(end), high.max(end)));
    let (from, to) = ((least / 1.2).max(FAR.0).ln(), (most * 1.2).min(FAR.1).ln());
    let x = |ratio: f64| {
        LEFT + (RIGHT - LEFT) * ((ratio.max(f64::MIN_POSITIVE).ln() - from) / (to - from)).clamp(0.0, 1.0)
    };
    let bottom = TOP + STEP * drawn.len() as f64;
    let height = bottom + 34.0;
    let more = rows.len() - drawn.len();
    let mut title = format!("{}: {}", words::marked(verdict_words(finding.verdict)), finding.budget);
    if more > 0 {
        let _ = write!(title, " (and {more} more rows)");
    }
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
         role=\"img\" aria-label=\"{}\" font-family=\"system-ui,sans-serif\" font-size=\"13\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n\
         <text x=\"16\" y=\"30\" font-size=\"17\" font-weight=\"600\" fill=\"#1f2328\">{}</text>\n",
        escape(&finding.headline),
        escape(&cut(&title, 90)),
    );
    let mut labelled = f64::NEG_INFINITY;
    for (ratio, label) in TICKS {
        if ratio.ln() < from || ratio.ln() > to || (ratio != 1.0 && (x(ratio) - labelled).abs() < 40.0) {
            continue;
        }
        labelled = x(ratio);
        let (at, stroke, wide) =
            if ratio == 1.0 { (x(ratio), "#1f2328", 2) } else { (x(ratio), "#d0d7de", 1) };
        let _ = writeln!(
            svg,
            "<line x1=\"{at:.1}\" y1=\"{:.1}\" x2=\"{at:.1}\" y2=\"{bottom:.1}\" stroke=\"{stroke}\" stroke-width=\"{wide}\"/>\
             <text x=\"{at:.1}\" y=\"{:.1}\" text-anchor=\"middle\" fill=\"#59636e\">{label}</text>",
            TOP - 8.0,
            bottom + 18.0,
        );
    }
    for (i, row) in drawn.iter().enumerate() {
        let y = TOP + STEP * (i as f64 + 0.5);
        let colour = colour(row);
        let _ = write!(
            svg,
            "<text x=\"16\" y=\"{:.1}\" fill=\"#1f2328\">{}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" fill=\"#1f2328\">{} {}</text>",
            y + 4.5,
            escape(&cut(&format!("{} {}", words::marked(word(finding.verdict, row)), name(row)), 30)),
            RIGHT + 16.0,
            y + 4.5,
            escape(&cut(&row.measured_shown, 30)),
            escape(&row.limit_shown),
        );
        if let Some(ratio) = multiples(row) {
            let (low, high) = (x(ratio.lower), x(ratio.upper));
            let _ = write!(
                svg,
                "<rect x=\"{low:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"12\" rx=\"3\" fill=\"{colour}\" opacity=\".3\"/>\
                 <circle cx=\"{:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"{colour}\"/>",
                y - 6.0,
                (high - low).max(2.0),
                x(ratio.value),
            );
        }
        svg.push('\n');
    }
    svg.push_str("</svg>\n");
    svg
}

/// The measured figure of a row in multiples of its limit. `None` where either is absent or the limit is 0.
fn multiples(row: &GateRow) -> Option<Estimate> {
    let limit = row.limit.filter(|limit| *limit > 0.0)?;
    let seen = row.measured.seen()?;
    Some(Estimate {
        value: seen.value / limit,
        lower: seen.lower / limit,
        upper: seen.upper / limit,
        ..*seen
    })
}

fn colour(row: &GateRow) -> &'static str {
    match (row.role, row.held) {
        (RowRole::Tracked, _) => "#59636e",
        (_, Held::Pass) => "#1a7f37",
        (_, Held::Fail) => "#cf222e",
        (_, Held::Inconclusive) => "#9a6700",
    }
}

/// A text of at most `most` characters.
fn cut(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    text.chars().take(most - 1).chain(['…']).collect()
}
