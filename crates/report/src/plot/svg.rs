//! A curve as an SVG file that stands alone: its own colours for light and dark, no script, no font of its own.

use std::fmt::Write;

use plimsoll_analysis::calc::{Curve, Line, Mark, Point};

use super::{place, ticks, title};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 430.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 670.0;
const TOP: f64 = 52.0;
const BOTTOM: f64 = 370.0;

/// The report's colours (`html/page.css`), light and dark.
const STYLE: &str = "\
:root{--paper:#fbfaf7;--ink:#1c2430;--soft:#5d6877;--line:#dcdfe4;--s0:#0b5cad;--s1:#c26a00;--s2:#b3261e;--s3:#1d7a46}\
@media(prefers-color-scheme:dark){:root{--paper:#12161c;--ink:#e6e9ee;--soft:#9aa5b4;--line:#303947;--s0:#6db3f8;--s1:#f2b04c;--s2:#ff8a80;--s3:#5fce8f}}\
text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:var(--soft)}.name{font-weight:600;paint-order:stroke;stroke:var(--paper);stroke-width:4px}.title{font-size:16px;font-weight:650;fill:var(--ink)}";

/// The drawing of a curve under this heading.
pub fn svg(heading: &str, curve: &Curve) -> String {
    let frame = Frame { curve };
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{heading}\">\
         <style>{STYLE}</style>\
         <clipPath id=\"in\"><rect x=\"{LEFT}\" y=\"{TOP}\" width=\"{}\" height=\"{}\"/></clipPath>\
         <rect width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"var(--paper)\"/>\
         <text class=\"title\" x=\"{LEFT}\" y=\"24\">{heading}</text>",
        RIGHT - LEFT,
        BOTTOM - TOP,
        heading = escaped(heading)
    );
    frame.axes(&mut out);
    curve.marks.iter().for_each(|mark| frame.mark(&mut out, mark));
    let leaves = |line: &Line| line.at.last().is_some_and(|[_, y]| *y > curve.y.range[1]);
    for (i, line) in curve.lines.iter().enumerate() {
        // Lines that climb out of the frame do so side by side: each name stands lower on its line than the next one's.
        let below = curve.lines[i + 1..].iter().filter(|other| leaves(other) && leaves(line)).count();
        frame.line(&mut out, line, i, below);
    }
    curve.points.iter().for_each(|point| frame.point(&mut out, point));
    out.push_str("</svg>\n");
    out
}

struct Frame<'a> {
    curve: &'a Curve,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> f64 {
        LEFT + (RIGHT - LEFT) * place(&self.curve.x, value)
    }

    fn y(&self, value: f64) -> f64 {
        // Far beyond the frame is as good as infinitely far, and keeps the numbers short.
        BOTTOM - (BOTTOM - TOP) * place(&self.curve.y, value).clamp(-5.0, 5.0)
    }

    fn axes(&self, out: &mut String) {
        for (value, label) in ticks(&self.curve.y, 6) {
            let y = self.y(value);
            let _ = write!(
                out,
                "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{RIGHT}\" y2=\"{y:.1}\" stroke=\"var(--line)\"/>\
                 <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">{label}</text>",
                LEFT - 8.0,
                y + 4.5
            );
        }
        for (value, label) in ticks(&self.curve.x, 9) {
            let x = self.x(value);
            let _ = write!(
                out,
                "<line x1=\"{x:.1}\" y1=\"{BOTTOM}\" x2=\"{x:.1}\" y2=\"{:.1}\" stroke=\"var(--soft)\"/>\
                 <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                BOTTOM + 5.0,
                BOTTOM + 20.0
            );
        }
        let _ = write!(
            out,
            "<line x1=\"{LEFT}\" y1=\"{BOTTOM}\" x2=\"{RIGHT}\" y2=\"{BOTTOM}\" stroke=\"var(--soft)\"/>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>\
             <text x=\"8\" y=\"{:.1}\">{}</text>",
            0.5 * (LEFT + RIGHT),
            BOTTOM + 44.0,
            escaped(&title(&self.curve.x)),
            TOP - 10.0,
            escaped(&title(&self.curve.y))
        );
    }

    fn mark(&self, out: &mut String, mark: &Mark) {
        let x = self.x(mark.x);
        if !(LEFT..=RIGHT + 0.5).contains(&x) {
            return;
        }
        let _ = write!(
            out,
            "<line x1=\"{x:.1}\" y1=\"{TOP}\" x2=\"{x:.1}\" y2=\"{BOTTOM}\" stroke=\"var(--soft)\" stroke-dasharray=\"2 4\"/>\
             <text x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{}</text>",
            TOP - 10.0,
            escaped(&mark.name)
        );
    }

    /// A line and its name: at its end, or, where it leaves the frame, so many steps below the top.
    fn line(&self, out: &mut String, line: &Line, nth: usize, below: usize) {
        let color = format!("var(--s{})", nth % 4);
        let dash = ["", " stroke-dasharray=\"8 4\"", " stroke-dasharray=\"2 4\""][nth % 3];
        let path: Vec<String> =
            line.at.iter().map(|[x, y]| format!("{:.1},{:.1}", self.x(*x), self.y(*y))).collect();
        let _ = write!(
            out,
            "<polyline clip-path=\"url(#in)\" fill=\"none\" stroke=\"{color}\" stroke-width=\"2.2\" stroke-linejoin=\"round\"{dash} points=\"{}\"/>",
            path.join(" ")
        );
        let [from, to] = self.curve.y.range;
        let top = to - 0.17 * (below as f64 + 0.3) * (to - from);
        let leaves = line.at.last().is_some_and(|[_, y]| *y > to);
        let shown = |y: f64| y >= from && y <= if leaves { top } else { to };
        let Some([x, y]) = line.at.iter().rev().find(|[_, y]| shown(*y)) else { return };
        let (x, y) = (self.x(*x), self.y(*y).max(TOP + 10.0));
        let (x, anchor) = if !leaves && x > RIGHT - 12.0 { (RIGHT + 7.0, "start") } else { (x - 8.0, "end") };
        let _ = write!(
            out,
            "<text class=\"name\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" style=\"fill:{color}\">{}</text>",
            y + 4.0,
            escaped(&line.name)
        );
    }

    fn point(&self, out: &mut String, point: &Point) {
        let (x, y) = (self.x(point.at[0]), self.y(point.at[1]));
        if !(LEFT - 0.5..=RIGHT + 0.5).contains(&x) || !(TOP - 0.5..=BOTTOM + 0.5).contains(&y) {
            return;
        }
        if point.name.is_empty() {
            let _ = write!(
                out,
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"4\" fill=\"none\" stroke=\"var(--ink)\" stroke-width=\"1.6\"/>"
            );
            return;
        }
        let (beside, anchor) = if x > RIGHT - 60.0 { (x - 10.0, "end") } else { (x + 10.0, "start") };
        let _ = write!(
            out,
            "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"5\" fill=\"var(--ink)\"/>\
             <text class=\"name\" x=\"{beside:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" style=\"fill:var(--ink)\">{}</text>",
            y + 16.0,
            escaped(&point.name)
        );
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
