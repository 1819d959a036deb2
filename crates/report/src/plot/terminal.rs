//! A curve in 80 columns: braille dots for the lines, so that a slope looks like one, words at their ends.
//!
//! Lines are told apart by their strokes (solid, dashed, dotted) as well as by their names, because colour is not always there and a paste
//! never has it.

use plimsoll_analysis::calc::{Axis, Curve, Line};

use super::{place, ticks, title};

/// Columns in all.
const WIDTH: usize = 80;
/// Rows of the drawing.
const ROWS: usize = 16;
/// Columns kept at the right for the names of lines that end there.
const NAMES: usize = 8;

/// The cells of a drawing.
struct Canvas {
    columns: usize,
    /// Braille dots of each cell.
    dots: Vec<u8>,
    /// What stands in a cell instead of its dots.
    words: Vec<Option<char>>,
}

/// A curve, with axes and names; no line is over 80 columns.
pub fn terminal(curve: &Curve) -> String {
    let labels = ticks(&curve.y, 5);
    let margin = labels.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    let columns = WIDTH - margin - 2 - NAMES;
    let mut canvas = Canvas {
        columns: columns + NAMES,
        dots: vec![0; (columns + NAMES) * ROWS],
        words: vec![None; (columns + NAMES) * ROWS],
    };
    let spot = Spots { curve, columns };
    for mark in &curve.marks {
        canvas.mark(&spot, mark.x, &mark.name);
    }
    for (i, line) in curve.lines.iter().enumerate() {
        canvas.line(&spot, line, i);
    }
    for line in &curve.lines {
        canvas.name(&spot, line);
    }
    for point in &curve.points {
        let Some((column, row)) = spot.cell(point.at) else { continue };
        canvas.put(column, row, if point.name.is_empty() { "○" } else { "●" });
        canvas.beside(column, row, &point.name);
    }
    let mut out = format!("{}{}\n", " ".repeat(margin + 1), title(&curve.y));
    for row in 0..ROWS {
        let label = labels.iter().find(|(value, _)| spot.row(*value) == Some(row));
        let (label, stroke) = label.map_or(("", '│'), |(_, label)| (label.as_str(), '┤'));
        let line = format!("{label:>margin$} {stroke}{}", canvas.row(row));
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out.push_str(&foot(&curve.x, margin, columns));
    out
}

/// The horizontal axis: its line, its ticks, its title.
fn foot(axis: &Axis, margin: usize, columns: usize) -> String {
    let mut line: Vec<char> = vec!['─'; columns];
    let mut words: Vec<char> = vec![' '; columns + NAMES];
    let mut free = 0;
    for (value, label) in ticks(axis, 8) {
        let column = (place(axis, value) * (columns - 1) as f64).round() as usize;
        let width = label.chars().count();
        let start = (column + 1).saturating_sub(width.div_ceil(2));
        if column >= columns || start < free || start + width > words.len() {
            continue;
        }
        line[column] = '┬';
        label.chars().enumerate().for_each(|(i, c)| words[start + i] = c);
        free = start + width + 1;
    }
    let pad = " ".repeat(margin + 1);
    let words: String = words.into_iter().collect();
    let title = title(axis);
    let indent = margin + 2 + (columns.saturating_sub(title.chars().count())) / 2;
    format!(
        "{pad}└{}\n{pad} {}\n{}{title}\n",
        line.into_iter().collect::<String>(),
        words.trim_end(),
        " ".repeat(indent)
    )
}

/// Where values lie on the canvas.
struct Spots<'a> {
    curve: &'a Curve,
    columns: usize,
}

impl Spots<'_> {
    /// The dot of a point, counted from the top left; rows may lie outside.
    fn dot(&self, [x, y]: [f64; 2]) -> (i64, i64) {
        let across = place(&self.curve.x, x) * (2 * self.columns - 1) as f64;
        let up = place(&self.curve.y, y) * (4 * ROWS - 1) as f64;
        (across.round() as i64, (4 * ROWS as i64 - 1) - up.round().clamp(-1e6, 1e6) as i64)
    }

    fn cell(&self, at: [f64; 2]) -> Option<(usize, usize)> {
        let (x, y) = self.dot(at);
        let inside = x >= 0 && y >= 0 && x < 2 * self.columns as i64 && y < 4 * ROWS as i64;
        inside.then_some((x as usize / 2, y as usize / 4))
    }

    fn row(&self, y: f64) -> Option<usize> {
        self.cell([self.curve.x.range[0], y]).map(|(_, row)| row)
    }
}

impl Canvas {
    fn row(&self, row: usize) -> String {
        let cell = |column: usize| {
            let i = row * self.columns + column;
            match (self.words[i], self.dots[i]) {
                (Some(word), _) => word,
                (None, 0) => ' ',
                (None, dots) => char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' '),
            }
        };
        (0..self.columns).map(cell).collect()
    }

    fn set(&mut self, x: i64, y: i64) {
        if x < 0 || y < 0 || x >= 2 * self.columns as i64 || y >= 4 * ROWS as i64 {
            return;
        }
        let (x, y) = (x as usize, y as usize);
        // Braille's dots are numbered down the left column, then the right, the lowest pair last (Unicode 2800).
        let bit = [[0x01, 0x02, 0x04, 0x40], [0x08, 0x10, 0x20, 0x80]][x % 2][y % 4];
        self.dots[y / 4 * self.columns + x / 2] |= bit;
    }

    /// A line, its strokes by its place: solid, dashed, dotted.
    fn line(&mut self, spot: &Spots<'_>, line: &Line, nth: usize) {
        // By the way gone, not by x: a steep stretch keeps its strokes.
        let drawn = |way: i64| match nth % 3 {
            0 => true,
            1 => way % 7 < 4,
            _ => way % 3 == 0,
        };
        let mut way = 0;
        let dots: Vec<(i64, i64)> = line.at.iter().map(|at| spot.dot(*at)).collect();
        for pair in dots.windows(2) {
            let [(x0, y0), (x1, y1)] = *pair else { continue };
            // What climbs out of the drawing ends at its edge.
            let (y0, y1) = (y0.clamp(-8, 4 * ROWS as i64 + 8), y1.clamp(-8, 4 * ROWS as i64 + 8));
            let steps = (x1 - x0).abs().max((y1 - y0).abs()).max(1);
            for i in 0..=steps {
                let at = |a: i64, b: i64| a + ((b - a) as f64 * i as f64 / steps as f64).round() as i64;
                let (x, y) = (at(x0, x1), at(y0, y1));
                if drawn(way + i) && x < 2 * spot.columns as i64 {
                    self.set(x, y);
                }
            }
            way += steps;
        }
    }

    /// The name of a line: at the right edge where it ends there, else beside it, from its end back to the first place that is free.
    fn name(&mut self, spot: &Spots<'_>, line: &Line) {
        let width = line.name.chars().count();
        for (column, row) in line.at.iter().rev().filter_map(|at| spot.cell(*at)) {
            let beyond = column + 2 >= spot.columns && width < NAMES;
            let left = column.checked_sub(width + 1);
            let start = if beyond { Some(spot.columns + 1) } else { left };
            if let Some(start) = start.filter(|start| self.is_free(*start, row, width)) {
                return self.put(start, row, &line.name);
            }
        }
    }

    /// Is there neither a word nor a dot in these cells?
    fn is_free(&self, column: usize, row: usize, width: usize) -> bool {
        let cells = row * self.columns + column..row * self.columns + column + width;
        let inside = row < ROWS && column + width <= self.columns;
        inside && cells.clone().all(|i| self.words[i].is_none() && self.dots[i] == 0)
    }

    fn mark(&mut self, spot: &Spots<'_>, x: f64, name: &str) {
        let Some((column, _)) = spot.cell([x, spot.curve.y.range[0]]) else { return };
        for row in 1..ROWS {
            self.put(column, row, "┊");
        }
        let width = name.chars().count();
        self.put(column.saturating_sub(width / 2).min(self.columns - width.min(self.columns)), 0, name);
    }

    /// A word near a cell: where nothing else is, else over what is there.
    fn beside(&mut self, column: usize, row: usize, word: &str) {
        let width = word.chars().count();
        let right = column + 2;
        let left = column.saturating_sub(width + 1);
        let places =
            [(right, row + 1), (right, row), (left, row.wrapping_sub(1)), (left, row), (left, row + 1)];
        let free = places.into_iter().find(|(start, row)| *row < ROWS && self.is_free(*start, *row, width));
        let (start, row) = free.unwrap_or((right, row));
        self.put(start, row, word);
    }

    fn put(&mut self, column: usize, row: usize, word: &str) {
        for (i, c) in word.chars().enumerate().take_while(|(i, _)| column + i < self.columns) {
            self.words[row * self.columns + column + i] = Some(c);
        }
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_analysis::calc::{Mark, Point, Quantity};

    use super::*;

    fn curve() -> Curve {
        let x = Axis::to("rate", Quantity::Rate, 4.0);
        Curve {
            lines: vec![
                Line::of("mean", &x, |rate| 0.1 / (1.0 - (rate / 4.0).min(0.999))),
                Line::of("p99", &x, |rate| 0.46 / (1.0 - (rate / 4.0).min(0.999))),
            ],
            y: Axis::to("wait + service", Quantity::Time, 3.0),
            points: vec![Point { at: [2.0, 0.2], name: "here".into() }],
            marks: vec![Mark { x: 4.0, name: "limit".into() }],
            x,
        }
    }

    #[test]
    fn a_curve_fits_into_eighty_columns_and_names_everything() {
        let drawn = terminal(&curve());
        assert!(drawn.lines().all(|line| line.chars().count() <= WIDTH), "{drawn}");
        assert_eq!(drawn.lines().count(), ROWS + 4, "{drawn}");
        for word in ["wait + service (s)", "rate (/s)", "mean", "p99", "here", "limit", "●"] {
            assert_eq!(drawn.matches(word).count(), 1, "{word}: {drawn}");
        }
    }

    /// A straight line from corner to corner has a dot in the first and the last cell, and none in the other corners.
    #[test]
    fn a_line_is_where_its_points_are() {
        let x = Axis::to("x", Quantity::Count, 1.0);
        let lines = vec![Line::of("", &x, |x| x)];
        let y = Axis::to("y", Quantity::Count, 1.0);
        let drawn = terminal(&Curve { lines, points: Vec::new(), marks: Vec::new(), x, y });
        let rows: Vec<Vec<char>> = drawn.lines().map(|line| line.chars().collect()).collect();
        let dots = |row: &[char]| row.iter().filter(|c| ('\u{2801}'..='\u{28ff}').contains(*c)).count();
        assert!(rows[1..=ROWS].iter().all(|row| (3..=6).contains(&dots(row))), "{drawn}");
        let margin = 5;
        assert!(('\u{2801}'..='\u{28ff}').contains(&rows[ROWS][margin]), "{drawn}");
        assert_eq!(rows[1][margin], ' ', "{drawn}");
    }
}
