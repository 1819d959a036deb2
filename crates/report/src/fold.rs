//! Folds sentences to a terminal's width; tables stay unchanged.
//!
//! Only terminal output is folded: in a pipe a sentence stays on its line, where a search finds it.

use crate::words::wrap_at;

/// Folds every sentence that exceeds the width at spaces, with its own indent. A line with two spaces inside is a row of a
/// table.
pub fn fold(text: &str, width: usize) -> String {
    let folded = text.lines().map(|line| {
        let bare = line.trim_start();
        let indent = line.chars().count() - bare.chars().count();
        match line.chars().count() > width && !bare.contains("  ") && !bare.contains("http") {
            true => wrap_at(indent, bare, width).trim_end_matches('\n').to_owned(),
            false => line.to_owned(),
        }
    });
    folded.collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::fold;

    #[test]
    fn sentences_are_folded_and_rows_are_not() {
        let text = "  one two three four\n  a  row  of  cells  that  is  wide\nshort\n\nfive six seven";
        assert_eq!(
            fold(text, 12),
            "  one two\n  three four\n  a  row  of  cells  that  is  wide\nshort\n\nfive six\nseven"
        );
    }
}
