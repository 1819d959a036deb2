//! Position of the first difference of two answers, in tokens of one fixed rule.
//!
//! The servers' tokenisers are not known here and may differ. The events of a stream are no tokens either, because an event may
//! contain several. Both answers are therefore split by one rule: a word (letters and digits), or any other single character.
//! White space only separates. Positions are comparable between servers, at about three quarters of a model's token count.

/// Returns the tokens of a text.
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

/// Returns the number of equal tokens before the first difference; `None` if all tokens are equal.
pub fn first_divergence(a: &[&str], b: &[&str]) -> Option<usize> {
    let common = a.iter().zip(b).take_while(|(a, b)| a == b).count();
    (common < a.len() || common < b.len()).then_some(common)
}

/// Returns the share of positions, of the longer answer, with equal tokens; 1 for two empty answers.
pub fn alike(a: &[&str], b: &[&str]) -> f64 {
    let longer = a.len().max(b.len());
    let same = a.iter().zip(b).filter(|(a, b)| a == b).count();
    if longer == 0 { 1.0 } else { same as f64 / longer as f64 }
}
