//! Draws the load limits: one axis of load with three lines and their intervals.
//!
//! The drawing is hand-written SVG, so that it works without scripts, on paper, and for a screen reader.

use std::fmt::Write;

use plimsoll_measure::findings::CapacityLines;

use crate::{figure, words};

const WIDTH: f64 = 1000.0;
const LEFT: f64 = 16.0;
const RIGHT: f64 = 984.0;
const AXIS_Y: f64 = 74.0;

/// Returns the drawing for one kind of traffic; `None` if no line was found.
pub fn draw(lines: &CapacityLines) -> Option<String> {
    let found: Vec<_> = words::named_lines(lines)
        .into_iter()
        .filter_map(|(name, line)| line.rate().map(|rate| (name, *rate)))
        .collect();
    let top =
        found.iter().map(|(_, rate)| rate.upper.min(rate.value * 2.0).max(rate.value)).fold(0.0, f64::max)
            * 1.18;
    if found.is_empty() || top <= 0.0 {
        return None;
    }
    let x = |load: f64| LEFT + (RIGHT - LEFT) * (load / top).clamp(0.0, 1.0);
    let mut svg = String::new();
    let spoken: Vec<String> =
        found.iter().map(|(name, rate)| format!("{name} {}", words::rate(rate))).collect();
    let _ = write!(
        svg,
        "<svg viewBox=\"0 0 {WIDTH} 128\" role=\"img\" aria-label=\"{}\" style=\"width:100%;height:auto;display:block\">",
        spoken.join("; ")
    );
    // Above the onset, every request delays the ones behind it.
    if let Some(onset) = lines.onset.rate() {
        let from = x(onset.value);
        let _ = write!(
            svg,
            "<rect x=\"{from:.1}\" y=\"{}\" width=\"{:.1}\" height=\"26\" fill=\"var(--borrowed)\"/>\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"end\" font-size=\"13\" fill=\"var(--soft)\">overload</text>",
            AXIS_Y - 13.0,
            RIGHT - from,
            RIGHT - 6.0,
            AXIS_Y + 30.0,
        );
    }
    let _ = write!(
        svg,
        "<line x1=\"{LEFT}\" y1=\"{AXIS_Y}\" x2=\"{RIGHT}\" y2=\"{AXIS_Y}\" stroke=\"var(--soft)\" stroke-width=\"2\"/>\
         <text x=\"{LEFT}\" y=\"{}\" font-size=\"13\" fill=\"var(--soft)\">0</text>",
        AXIS_Y + 30.0
    );
    // Names alternate above and below the axis, in the order of their loads, so that close lines don't overlap.
    let mut ordered = found;
    ordered.sort_by(|a, b| a.1.value.total_cmp(&b.1.value));
    for (i, (name, rate)) in ordered.iter().enumerate() {
        let (low, mid, high) = (x(rate.lower), x(rate.value), x(rate.upper));
        let color = match name.as_str() {
            "budget limit" => "var(--s3)",
            "stability limit" => "var(--ink)",
            _ => "var(--s2)",
        };
        let label_y = if i % 2 == 0 { if i == 2 { 16.0 } else { 40.0 } } else { 122.0 };
        let (near, far) = if label_y < AXIS_Y { (AXIS_Y, label_y + 5.0) } else { (AXIS_Y, label_y - 14.0) };
        let anchor = if mid > WIDTH * 0.78 {
            "end"
        } else if mid < WIDTH * 0.15 {
            "start"
        } else {
            "middle"
        };
        let _ = write!(
            svg,
            "<rect x=\"{low:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"14\" rx=\"3\" fill=\"{color}\" opacity=\".25\"/>\
             <line x1=\"{mid:.1}\" y1=\"{near:.1}\" x2=\"{mid:.1}\" y2=\"{far:.1}\" stroke=\"{color}\" stroke-width=\"1\"/>\
             <circle cx=\"{mid:.1}\" cy=\"{AXIS_Y}\" r=\"6\" fill=\"{color}\"/>\
             <text x=\"{mid:.1}\" y=\"{label_y:.1}\" text-anchor=\"{anchor}\" font-size=\"15\" font-weight=\"600\" fill=\"{color}\">{name} {}</text>",
            AXIS_Y - 7.0,
            (high - low).max(2.0),
            figure::per_second(rate.value),
        );
    }
    svg.push_str("</svg>");
    Some(svg)
}
