//! Plain text tables: columns aligned by spaces, readable without colour and when piped.
//!
//! Box-drawing lines were tried and dropped: they break when a line is cut, and a table that is pasted into a chat
//! should survive it.

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

    /// The table, each line indented by `indent` spaces. Columns that are empty in every row are left out.
    pub fn render(&self, indent: usize) -> String {
        let cell = |row: &Vec<String>, i: usize| row.get(i).cloned().unwrap_or_default();
        let kept: Vec<usize> = (0..self.header.len())
            .filter(|&i| self.rows.iter().any(|row| !cell(row, i).is_empty()))
            .collect();
        let widths: Vec<usize> = kept
            .iter()
            .map(|&i| {
                let body = self.rows.iter().map(|row| width(&cell(row, i))).max().unwrap_or(0);
                body.max(width(&self.header[i]))
            })
            .collect();
        let mut out = String::new();
        for row in std::iter::once(&self.header).chain(&self.rows) {
            let mut line = " ".repeat(indent);
            for (position, (&i, &wide)) in kept.iter().zip(&widths).enumerate() {
                if position > 0 {
                    line.push_str("  ");
                }
                let text = cell(row, i);
                let pad = " ".repeat(wide - width(&text));
                if self.left[i] {
                    line.push_str(&text);
                    line.push_str(&pad);
                } else {
                    line.push_str(&pad);
                    line.push_str(&text);
                }
            }
            out.push_str(line.trim_end());
            out.push('\n');
        }
        out
    }
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
}
