//! Rules that decide whether an answer is right.
//!
//! Evaluation harnesses use these rules for free wording: the last number, the letter after "answer". A model as judge was
//! rejected because it is another endpoint with errors, and its score is not reproducible.

use regex::{Regex, RegexBuilder};

use super::ScoreSpec;

/// Maximum size of a compiled pattern in bytes.
const PATTERN_MAX: usize = 1 << 20;

/// A compiled rule for right answers.
#[derive(Clone, Debug)]
pub enum ScoreRule {
    /// Equal text, except for white space.
    Exact(String),
    Regex(Box<Regex>),
    /// Right choice of several.
    Choice {
        answer: String,
        choices: Vec<String>,
    },
    /// Last number in the answer.
    Numeric {
        answer: f64,
        /// Maximum absolute difference, the larger of the tolerance and the relative one.
        within: f64,
    },
}

impl ScoreRule {
    /// Compiles a rule.
    ///
    /// # Errors
    /// Fails if the specification is not valid, with a message for the user.
    pub fn new(spec: &ScoreSpec) -> Result<ScoreRule, String> {
        match spec {
            ScoreSpec::Exact { answer } => Ok(ScoreRule::Exact(squeezed(answer))),
            ScoreSpec::Regex { pattern } => {
                let built = RegexBuilder::new(pattern).size_limit(PATTERN_MAX).build();
                let first = |e: regex::Error| {
                    let text = e.to_string();
                    text.lines().last().unwrap_or_default().trim_start_matches("error: ").to_owned()
                };
                built
                    .map(|regex| ScoreRule::Regex(Box::new(regex)))
                    .map_err(|e| format!("pattern: {}", first(e)))
            }
            ScoreSpec::Choice { answer, choices } => {
                let usual = || ["A", "B", "C", "D"].map(str::to_owned).to_vec();
                let choices = choices.clone().unwrap_or_else(usual);
                match choices.contains(answer) {
                    true => Ok(ScoreRule::Choice { answer: answer.clone(), choices }),
                    false => Err(format!("answer {answer:?} is none of the choices {}", choices.join(", "))),
                }
            }
            ScoreSpec::Numeric { answer, tolerance, relative } => {
                let good = answer.is_finite() && *tolerance >= 0.0 && *relative >= 0.0;
                let within = tolerance.max(relative * answer.abs());
                good.then_some(ScoreRule::Numeric { answer: *answer, within })
                    .ok_or_else(|| "a tolerance is a number of at least 0".to_owned())
            }
        }
    }

    /// Returns whether this answer is right.
    pub fn is_right(&self, text: &str) -> bool {
        match self {
            ScoreRule::Exact(answer) => squeezed(text) == *answer,
            ScoreRule::Regex(regex) => regex.is_match(text),
            ScoreRule::Choice { answer, choices } => choice(text, choices) == Some(answer.as_str()),
            // A small tolerance covers the binary error of decimals: 0.3 is within 0.1 of 0.2.
            ScoreRule::Numeric { answer, within } => last_number(text).is_some_and(|number| {
                (number - answer).abs() <= within * (1.0 + 1e-9) + 1e-12 * answer.abs()
            }),
        }
    }
}

/// Returns a text with single spaces between words and none around it.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the choice that an answer makes; `None` if it makes none, or several.
///
/// It is the first choice after the last "answer", else the choice at the beginning, else the only choice that occurs.
pub fn choice<'a>(text: &str, choices: &'a [String]) -> Option<&'a str> {
    let named = |part: &str| -> Vec<&'a str> {
        let words = part.split(|c: char| !c.is_alphanumeric());
        words.filter_map(|word| choices.iter().find(|choice| *choice == word)).map(String::as_str).collect()
    };
    // Lower case keeps positions in ASCII text only; other text is not searched for "answer".
    let after = text.is_ascii().then(|| text.to_ascii_lowercase().rfind("answer")).flatten();
    if let Some(found) = after.and_then(|at| named(&text[at + "answer".len()..]).first().copied()) {
        return Some(found);
    }
    let start = text.trim_start_matches(|c: char| !c.is_alphanumeric());
    let word: &str = start.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default();
    let follows = start[word.len()..].chars().next();
    if let Some(found) = choices.iter().find(|choice| *choice == word)
        // "A) …" and "A" are choices; "A dog …" is not.
        && follows.is_none_or(|c| !c.is_whitespace() || c == '\n')
    {
        return Some(found);
    }
    let mut all = named(text);
    all.dedup();
    if all.len() == 1 { all.first().copied() } else { None }
}

/// Returns the last number in a text; commas may separate thousands.
pub fn last_number(text: &str) -> Option<f64> {
    let bytes = text.as_bytes();
    let end = bytes.iter().rposition(u8::is_ascii_digit)? + 1;
    let part = |b: u8| b.is_ascii_digit() || b == b'.' || b == b',';
    let mut start = bytes[..end].iter().rposition(|b| !part(*b)).map_or(0, |at| at + 1);
    // In 1e-5 only the exponent was found.
    let mantissa = |start: usize| {
        let sign = start.checked_sub(1).filter(|at| matches!(bytes[*at], b'-' | b'+'));
        let e = sign.unwrap_or(start).checked_sub(1).filter(|at| matches!(bytes[*at], b'e' | b'E'))?;
        e.checked_sub(1).filter(|at| bytes[*at].is_ascii_digit())
    };
    if let Some(last) = mantissa(start) {
        start = bytes[..=last].iter().rposition(|b| !part(*b)).map_or(0, |at| at + 1);
    }
    // A comma before the first digit belongs to the sentence; a point is part of the number.
    while start < end && bytes[start] == b',' {
        start += 1;
    }
    let before = text.get(..start)?;
    let minus = before.strip_suffix(['-', '−']).is_some_and(|sign| !sign.ends_with(char::is_alphanumeric));
    let number: f64 = text[start..end].replace(',', "").parse().ok()?;
    Some(if minus { -number } else { number })
}
