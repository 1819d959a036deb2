//! Tables: at a terminal, aligned columns that need no colour; on a page, also the cells that need more room.
//!
//! Box-drawing lines were rejected: they break when a line is cut, and a table must survive pasting into a chat.

use maud::{Markup, html};

use crate::document::{Phrase, escaped};
use crate::words::WIDTH;

/// A table under construction: a header and rows of cells.
#[derive(Clone, Debug, Default)]
pub struct TextTable {
    columns: Vec<Column>,
    rows: Vec<Row>,
}

#[derive(Clone, Debug)]
struct Column {
    name: String,
    left: bool,
    page_only: bool,
}

#[derive(Clone, Debug)]
struct Row {
    cells: Vec<Phrase>,
    page_only: bool,
}

impl TextTable {
    /// Creates a table with these columns. Name prefixes are removed: `<` aligns to the left, a `+` before it keeps the column for pages.
    pub fn new(columns: &[&str]) -> TextTable {
        let column = |name: &&str| Column {
            name: name.trim_start_matches(['+', '<']).to_owned(),
            left: name.trim_start_matches('+').starts_with('<'),
            page_only: name.starts_with('+'),
        };
        TextTable { columns: columns.iter().map(column).collect(), rows: Vec::new() }
    }

    /// Adds a row; missing cells are empty.
    pub fn row<C: Into<Phrase>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(Row { cells: cells.into_iter().map(Into::into).collect(), page_only: false });
    }

    /// Adds a row for pages only.
    pub(crate) fn page_row<C: Into<Phrase>>(&mut self, cells: impl IntoIterator<Item = C>) {
        self.rows.push(Row { cells: cells.into_iter().map(Into::into).collect(), page_only: true });
    }

    /// Returns whether the table has no rows.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns whether the table has no rows for a terminal.
    pub(crate) fn is_silent(&self) -> bool {
        self.rows.iter().all(|row| row.page_only)
    }

    /// Returns the shown columns: those with content in the rows that are shown.
    fn shown(&self, page: bool) -> Vec<usize> {
        let rows = || self.rows.iter().filter(move |row| page || !row.page_only);
        let has = |i: usize| rows().any(|row| row.cells.get(i).is_some_and(|cell| !cell.is_empty()));
        (0..self.columns.len()).filter(|&i| (page || !self.columns[i].page_only) && has(i)).collect()
    }

    /// Returns the markup for a page.
    pub(crate) fn markup(&self) -> Markup {
        let shown = self.shown(true);
        let class = |column: usize| self.columns[column].left.then_some("left");
        html! {
            div.scroll tabindex="0" role="region" aria-label="Table" { table {
                @if shown.iter().any(|&i| !self.columns[i].name.is_empty()) {
                    thead { tr { @for &i in &shown {
                        @let name = &self.columns[i].name;
                        @if name.is_empty() { td {} } @else { th class=[class(i)] scope="col" { (name) } }
                    } } }
                }
                tbody { @for row in &self.rows { tr {
                    @for &i in &shown { @match row.cells.get(i) {
                        Some(cell) if cell.wraps() => { td.wrap { (cell.markup()) } }
                        Some(cell) => { td class=[class(i)] { (cell.markup()) } }
                        None => { td {} }
                    } }
                } } }
            } }
        }
    }

    /// Returns the header and the rows for a terminal, each cell with whether it is left-aligned.
    fn cells(&self) -> Vec<Vec<(&str, bool)>> {
        let shown = self.shown(false);
        let header = shown.iter().map(|&i| (self.columns[i].name.as_str(), self.columns[i].left)).collect();
        let rows = self.rows.iter().filter(|row| !row.page_only).map(|row| {
            let cell =
                |&i: &usize| (row.cells.get(i).map_or("", |cell| cell.text.as_str()), self.columns[i].left);
            shown.iter().map(cell).collect()
        });
        // A header with only empty names is omitted.
        let named = shown.iter().any(|&i| !self.columns[i].name.is_empty());
        named.then_some(header).into_iter().chain(rows).collect()
    }

    /// Returns the table in Markdown, which requires a header.
    pub(crate) fn markdown(&self) -> String {
        let shown = self.shown(false);
        let line = |cells: &mut dyn Iterator<Item = String>| {
            format!("| {} |\n", cells.collect::<Vec<_>>().join(" | "))
        };
        let mut out = line(&mut shown.iter().map(|&i| escaped(&self.columns[i].name)));
        out +=
            &line(&mut shown.iter().map(|&i| if self.columns[i].left { "---" } else { "---:" }.to_owned()));
        for row in self.rows.iter().filter(|row| !row.page_only) {
            out += &line(
                &mut shown
                    .iter()
                    .map(|&i| row.cells.get(i).map_or(String::new(), |cell| escaped(&cell.text))),
            );
        }
        out
    }

    /// Returns the table, each line indented by `indent` spaces.
    ///
    /// Columns that are empty in every row are left out. Columns that exceed [`WIDTH`] continue below, next to a copy of the first column.
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
                // A row with only its first column was in the first block already.
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

/// Returns the columns of a text: one per character, which is correct for all printed text.
fn width(text: &str) -> usize {
    text.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_and_empty_ones_vanish() {
        let mut table = TextTable::new(&["<name", "value", "note"]);
        table.row(["a", "1.00"]);
        table.row(["long name", "12 ms"]);
        assert_eq!(table.render(2), "  name       value\n  a           1.00\n  long name  12 ms\n");
    }

    #[test]
    fn a_column_that_only_page_rows_fill_is_for_pages() {
        let mut table = TextTable::new(&["<name", "value", "note"]);
        table.row(["a", "1.00"]);
        table.page_row(["b", "2.00", "far"]);
        assert_eq!(table.render(0), "name  value\na      1.00\n");
        assert_eq!(table.markdown(), "| name | value |\n| --- | ---: |\n| a | 1.00 |\n");
        let page = table.markup().into_string();
        assert!(page.contains(">note<") && page.contains(">far<"), "{page}");
    }

    #[test]
    fn a_page_wraps_sentences_and_no_figures() {
        let long = "needs 1000 effective samples to be told from no change, has 240";
        let drawn = |text: &str| Phrase::drawn("inconclusive", html! { b { (text) } });
        let mut table = TextTable::new(&["<figure", "<verdict"]);
        table.row(["12 ms".into(), drawn(long).sentence()]);
        table.row(["1 250 ms".into(), drawn("holds")]);
        table.row(["9 ms".into(), Phrase::from(long)]);
        let page = table.markup().into_string();
        assert_eq!(page.matches("<td class=\"wrap\">").count(), 2, "{page}");
        assert!(page.contains("<td class=\"left\"><b>holds</b></td>"), "{page}");
    }

    #[test]
    fn what_does_not_fit_goes_on_below() {
        let long = |c: char| c.to_string().repeat(30);
        let mut table = TextTable::new(&["<name", "<first", "<second", "<third"]);
        table.row(["a".to_owned(), long('x'), long('y'), long('z')]);
        table.row(["", "[1, 2]", "", "[3, 4]"]);
        table.row(["b".to_owned(), long('u'), long('v')]);
        let [x, y, z, u, v] = ['x', 'y', 'z', 'u', 'v'].map(long);
        let first =
            format!("name  first{}second\na     {x}  {y}\n      [1, 2]\nb     {u}  {v}\n", " ".repeat(27));
        let second = format!("name  third\na     {z}\n      [3, 4]\n");
        assert_eq!(table.render(0), first + &second);
    }
}
