//! Plain text tables: columns aligned by spaces, readable without colour and when piped.
//!
//! Box-drawing lines were tried and dropped: they break when a line is cut, and a table that is pasted into a chat
//! should survive it.

use crate::words::WIDTH;

/// A table under construction: a header and rows of cells.
#[derive(Debug, Default)]
pub struct Table {
    header: Vec<String>,
    left: Vec<bool>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// A table with these columns. A header that starts with `<` is aligned to the left (the sign is dropped).
    pub fn new(columns: &[&str]) -> Table {
        let left = columns.iter().map(|name| name.starts_with('<')).collect();
        let header = columns.iter().map(|name| name.trim_start_matches('<').to_string()).collect();
        Table { header, left, rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row(&mut self, cells: impl IntoIterator<Item = String>) {
        self.rows.push(cells.into_iter().collect());
    }

    /// No rows yet?
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The header and the rows as cells, each with whether it is aligned to the left. Columns that are empty in every row are left out.
    pub(crate) fn cells(&self) -> Vec<Vec<(&str, bool)>> {
        fn at(row: &[String], i: usize) -> &str {
            row.get(i).map_or("", String::as_str)
        }
        let kept: Vec<usize> =
            (0..self.header.len()).filter(|&i| self.rows.iter().any(|row| !at(row, i).is_empty())).collect();
        let all = std::iter::once(&self.header).chain(&self.rows);
        all.map(|row| kept.iter().map(|&i| (at(row, i), self.left[i])).collect()).collect()
    }

    /// The table, each line indented by `indent` spaces. Columns that are empty in every row are left out; those that do not fit into
    /// [`WIDTH`] columns go on below, the first column again beside them.
    pub fn render(&self, indent: usize) -> String {
        let cells = self.cells();
        let columns = cells.first().map_or(0, Vec::len);
        let wide = |column: usize| cells.iter().map(|row| width(row[column].0)).max().unwrap_or(0);
        let widths: Vec<usize> = (0..columns).map(wide).collect();
        let mut out = String::new();
        if columns == 0 {
            return out;
        }
        let mut next = 1;
        loop {
            let mut block = vec![0];
            let mut taken = indent + widths.first().copied().unwrap_or(0);
            while next < columns && (block.len() == 1 || taken + 2 + widths[next] <= WIDTH) {
                taken += 2 + widths[next];
                block.push(next);
                next += 1;
            }
            let goes_on =
                block.last() != Some(&(columns.max(1) - 1)) || block.get(1).is_some_and(|at| *at > 1);
            for row in &cells {
                // What stands in the first column only stood in the first block.
                let empty = block.iter().skip(1).all(|at| row[*at].0.is_empty());
                if goes_on && block.get(1).is_some_and(|at| *at > 1) && empty {
                    continue;
                }
                out.push_str(&line(indent, &block, row, &widths));
            }
            if next >= columns {
                return out;
            }
        }
    }
}

fn line(indent: usize, block: &[usize], row: &[(&str, bool)], widths: &[usize]) -> String {
    let mut line = " ".repeat(indent);
    for (position, at) in block.iter().enumerate() {
        if position > 0 {
            line.push_str("  ");
        }
        let (text, left) = row[*at];
        let pad = " ".repeat(widths[*at] - width(text));
        match left {
            true => line.extend([text, &pad]),
            false => line.extend([pad.as_str(), text]),
        }
    }
    format!("{}\n", line.trim_end())
}

/// Columns a text takes: one per character, which holds for everything printed here.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let mut table = Table::new(&["<name", "value", "note"]);
        table.row(["a".into(), "1.00".into()]);
        table.row(["long name".into(), "12 ms".into()]);
        assert_eq!(table.render(2), "  name       value\n  a           1.00\n  long name  12 ms\n");
    }

    #[test]
    fn what_does_not_fit_goes_on_below() {
        let long = |c: char| c.to_string().repeat(30);
        let mut table = Table::new(&["<name", "<first", "<second", "<third"]);
        table.row(["a".into(), long('x'), long('y'), long('z')]);
        table.row([String::new(), "[1, 2]".into(), String::new(), "[3, 4]".into()]);
        table.row(["b".into(), long('u'), long('v')]);
        let [x, y, z, u, v] = ['x', 'y', 'z', 'u', 'v'].map(long);
        let first =
            format!("name  first{}second\na     {x}  {y}\n      [1, 2]\nb     {u}  {v}\n", " ".repeat(27));
        let second = format!("name  third\na     {z}\n      [3, 4]\n");
        assert_eq!(table.render(0), first + &second);
    }
}
