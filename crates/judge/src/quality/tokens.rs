//! Where two answers part, counted in tokens of one fixed rule.
//!
//! Neither server's tokeniser is known here, and two servers need not have the same; the pieces of a stream are no tokens either (several
//! come in one event). So both answers are cut by the same rule: a word (letters and digits), or any other sign by itself; blanks only
//! separate. Positions are thereby comparable between any two servers, and about three quarters of a model's own count.

/// The tokens of a text.
pub fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut word: Option<usize> = None;
    for (at, c) in text.char_indices() {
        if c.is_alphanumeric() {
            word.get_or_insert(at);
            continue;
        }
        if let Some(from) = word.take() {
            found.push(&text[from..at]);
        }
        if !c.is_whitespace() {
            found.push(&text[at..at + c.len_utf8()]);
        }
    }
    found.extend(word.map(|from| &text[from..]));
    found
}

/// The tokens before two answers part; `None` where they have the same tokens throughout.
pub fn first_divergence(a: &[&str], b: &[&str]) -> Option<usize> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    (common < a.len() || common < b.len()).then_some(common)
}

/// The share of places, of the longer answer's, at which both have the same token; 1 for two empty ones.
pub fn alike(a: &[&str], b: &[&str]) -> f64 {
    let longer = a.len().max(b.len());
    let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
    if longer == 0 { 1.0 } else { same as f64 / longer as f64 }
}
