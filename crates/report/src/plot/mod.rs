//! Curves of laws, drawn: in the terminal, and as an SVG file of its own.
//!
//! Both draw the same thing by the same rules: what lies beyond an axis is cut off there, lines are named where they end instead of in a
//! legend, and ticks are round numbers. Reading order: here (ticks and words of an axis), `terminal`, `svg`.

mod svg;
mod terminal;

pub use svg::svg;
pub use terminal::terminal;

use plimsoll_analysis::calc::{Axis, Quantity};

use crate::figure;

/// An axis's unit: its name, and how much of the axis's own unit it is.
struct Scale {
    unit: &'static str,
    of: f64,
}

/// The unit in which an axis is labelled: of times the one in which its end is a number to read.
fn scale(axis: &Axis) -> Scale {
    match axis.quantity {
        Quantity::Time if axis.range[1] >= 2.0 => Scale { unit: "s", of: 1.0 },
        Quantity::Time if axis.range[1] >= 2e-3 => Scale { unit: "ms", of: 1e-3 },
        Quantity::Time => Scale { unit: "µs", of: 1e-6 },
        Quantity::Share | Quantity::Percentile => Scale { unit: "%", of: 0.01 },
        Quantity::Rate => Scale { unit: "/s", of: 1.0 },
        Quantity::TokenRate => Scale { unit: "tokens/s", of: 1.0 },
        Quantity::Factor => Scale { unit: "×", of: 1.0 },
        Quantity::Count | Quantity::Plain => Scale { unit: "", of: 1.0 },
    }
}

/// The axis's title: what it shows, and in what.
fn title(axis: &Axis) -> String {
    match scale(axis).unit {
        "" => axis.name.clone(),
        unit if axis.name.ends_with(unit) => axis.name.clone(),
        unit => format!("{} ({unit})", axis.name),
    }
}

/// Round values within the axis with their labels: steps of 1, 2 or 5, on a logarithmic one 1, 2, 5 of each decade.
fn ticks(axis: &Axis, most: usize) -> Vec<(f64, String)> {
    let unit = scale(axis).of;
    let [from, to] = axis.range.map(|end| end / unit);
    let values: Vec<f64> = if axis.log { decades(from, to, most) } else { steps(from, to, most) };
    values.into_iter().map(|value| (value * unit, figure::plain(value))).collect()
}

fn steps(from: f64, to: f64, most: usize) -> Vec<f64> {
    let rough = (to - from) / most.max(1) as f64;
    if !(rough.is_finite() && rough > 0.0) {
        return vec![from];
    }
    let power = 10f64.powf(rough.log10().floor());
    let step =
        [1.0, 2.0, 5.0, 10.0].map(|times| times * power).into_iter().find(|step| *step >= rough * 0.999);
    let step = step.unwrap_or(10.0 * power);
    let first = (from / step - 1e-9).ceil() as i64;
    let last = (to / step + 1e-9).floor() as i64;
    (first..=last).map(|i| i as f64 * step).collect()
}

fn decades(from: f64, to: f64, most: usize) -> Vec<f64> {
    let (first, last) = (from.log10().floor() as i32, to.log10().ceil() as i32);
    let with = |times: &[f64]| -> Vec<f64> {
        let all = (first..=last).flat_map(|power| times.iter().map(move |t| t * 10f64.powi(power)));
        all.filter(|x| *x >= from * 0.999 && *x <= to * 1.001).collect()
    };
    let fine = with(&[1.0, 2.0, 5.0]);
    if fine.len() <= most { fine } else { with(&[1.0]) }
}

/// Where a value lies on its axis: 0 at its start, 1 at its end.
fn place(axis: &Axis, value: f64) -> f64 {
    let [from, to] = axis.range;
    if axis.log { (value / from).ln() / (to / from).ln() } else { (value - from) / (to - from) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(range: [f64; 2], log: bool, quantity: Quantity) -> Axis {
        Axis { name: "x".into(), quantity, range, log }
    }

    fn labels(axis: &Axis, most: usize) -> Vec<String> {
        ticks(axis, most).into_iter().map(|(_, label)| label).collect()
    }

    #[test]
    fn ticks_are_round() {
        assert_eq!(labels(&axis([0.0, 4.2], false, Quantity::Rate), 5), ["0", "1", "2", "3", "4"]);
        assert_eq!(labels(&axis([0.0, 0.73], false, Quantity::Time), 4), ["0", "200", "400", "600"]);
        assert_eq!(
            labels(&axis([0.0, 1.1], false, Quantity::Share), 6),
            ["0", "20", "40", "60", "80", "100"]
        );
        assert_eq!(
            labels(&axis([1.0, 100.0], true, Quantity::Factor), 9),
            ["1", "2", "5", "10", "20", "50", "100"]
        );
        assert_eq!(
            labels(&axis([1.0, 1e4], true, Quantity::Count), 8),
            ["1", "10", "100", "1000", "10\u{202f}000"]
        );
        assert_eq!(title(&axis([0.0, 0.73], false, Quantity::Time)), "x (ms)");
    }
}
