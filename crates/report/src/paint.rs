//! Colours the marked verdicts for a terminal, and no other text.
//!
//! Text is built without colour and painted on output, so that a pipe, a file and a test get equal text. Only
//! a mark with its word is painted, never a figure.

/// Marks with their colours (ECMA-48): green, red, yellow.
const MARKS: [(&str, &str); 3] = [("\u{2713} ", "32"), ("\u{2717} ", "31"), ("? ", "33")];

/// Words that follow a mark.
const WORDS: [&str; 8] =
    ["valid", "pass", "invalid", "broken", "short", "suspect", "inconclusive", "missing"];

/// Returns the text with its marked verdicts in colour.
pub fn paint(text: &str) -> String {
    let mut painted = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((at, length, colour)) = next(rest) {
        painted.push_str(&rest[..at]);
        painted.push_str(&format!("\u{1b}[{colour}m{}\u{1b}[0m", &rest[at..at + length]));
        rest = &rest[at + length..];
    }
    painted.push_str(rest);
    painted
}

/// Returns the position, the length and the colour of the next marked verdict.
fn next(text: &str) -> Option<(usize, usize, &'static str)> {
    let of = |(mark, colour): &(&'static str, &'static str)| {
        text.match_indices(mark).find_map(|(at, _)| {
            // A question mark at the end of a word is punctuation.
            if !text[..at].chars().next_back().is_none_or(char::is_whitespace) {
                return None;
            }
            let behind = &text[at + mark.len()..];
            let says = |word: &&&str| {
                behind.get(..word.len()).is_some_and(|head| head.eq_ignore_ascii_case(word))
                    && !behind[word.len()..].starts_with(char::is_alphanumeric)
            };
            WORDS.iter().find(says).map(|word| (at, mark.len() + word.len(), *colour))
        })
    };
    MARKS.iter().filter_map(of).min_by_key(|found| found.0)
}

#[cfg(test)]
mod tests {
    use super::paint;

    #[test]
    fn marked_verdicts_are_painted_and_nothing_else() {
        let text = "\u{2717} BROKEN: is it so? missing rows\n  \u{2713} pass  a\n  ? inconclusive  b ? maybe";
        let painted = paint(text);
        assert_eq!(
            painted,
            "\u{1b}[31m\u{2717} BROKEN\u{1b}[0m: is it so? missing rows\n  \u{1b}[32m\u{2713} pass\u{1b}[0m  a\n  \
             \u{1b}[33m? inconclusive\u{1b}[0m  b ? maybe"
        );
    }
}
