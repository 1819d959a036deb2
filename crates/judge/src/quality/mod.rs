//! Comparison of the answers of two targets to equal prompts at temperature 0: agreement and scores.
//!
//! It measures the quality cost of a faster endpoint. Servers are not deterministic at temperature 0: concurrent requests in
//! the batch change the order of additions, and sometimes a token. Each target is therefore queried repeatedly. Its disagreement
//! with itself is the noise floor, and only the excess is attributed to the change. Agreement is descriptive; the *scores*
//! decide, item by item, with a paired test.
//!
//! Incomplete answers (refused, broken off) are in no figure, and are counted and listed. An answer that ends at the requested
//! maximum of tokens is complete in that respect. It is compared and scored, because a change that makes a model ramble must
//! not hide its worst answers. The score of half an answer is random, however, so these answers are counted, and the scores
//! without them are reported too.
//!
//! Reading order: [`score`] (an item of the evaluation file, and its rule for right answers), [`tokens`] (first difference of
//! two answers), [`judge`].

pub mod score;
pub mod tokens;

mod judge;

use plimsoll_model::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use judge::judge;

/// Version of the layout of the results file.
pub const QUALITY_SCHEMA: u32 = 1;

/// One line of an evaluation file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemSpec {
    /// Name of the item in the results; `null` uses its line number.
    #[serde(default)]
    pub id: Option<String>,
    /// Prompt as one user message. An item has either `prompt` or `messages`.
    #[serde(default)]
    pub prompt: Option<String>,
    /// Prompt as a conversation. An item has either `prompt` or `messages`.
    #[serde(default)]
    pub messages: Option<Vec<Message>>,
    /// Maximum tokens of the answer; `null` uses the command's maximum.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// Rule for a right answer; `null` if the item counts for agreement only.
    #[serde(default)]
    pub score: Option<ScoreSpec>,
}

/// A rule that recognises the right answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScoreSpec {
    /// The answer equals a text, except for white space.
    Exact {
        /// Expected text of the answer, except for white space.
        answer: String,
    },
    /// The answer matches a regular expression.
    Regex {
        /// Regular expression in the syntax of the crate `regex`.
        pattern: String,
    },
    /// The answer is one letter or word of several.
    Choice {
        /// Right choice among the listed ones.
        answer: String,
        /// All choices; `null` for A, B, C and D.
        #[serde(default)]
        choices: Option<Vec<String>>,
    },
    /// The last number in the answer equals a number.
    Numeric {
        /// Expected value of the last number.
        answer: f64,
        /// Maximum absolute difference from the number [default: 0].
        #[serde(default)]
        tolerance: f64,
        /// Maximum difference relative to the number.
        #[serde(default)]
        relative: f64,
    },
}

/// The answers of one target to one item by round; `None` if the target did not answer.
pub type Rounds = Vec<Option<String>>;

/// The answers of one target to all items.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TargetAnswers {
    pub rounds: Vec<Rounds>,
    /// Whether the first answer to each item ended at the requested maximum of tokens.
    pub cut: Vec<bool>,
}

/// The results of a comparison of answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Quality {
    /// Version of the layout of this file.
    pub schema: u32,
    /// Digest of the evaluation file (64 bits), which identifies the file in different results.
    pub eval: String,
    /// Results of the two targets, A first.
    pub targets: Vec<QualityTarget>,
    /// Number of rounds, each with one answer per item.
    pub rounds: u32,
    /// Agreement of A with B, and of each target with itself.
    pub agreement: Agreement,
    /// Scores; `null` if no item has a rule.
    pub scores: Option<Scores>,
    /// Results of each item in file order.
    pub items: Vec<ItemFinding>,
}

/// A target of the comparison, with its counts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "AskedTarget")]
pub struct QualityTarget {
    /// Address of the endpoint, without secrets.
    pub url: String,
    /// Name of the model; `null` if not given.
    pub model: Option<String>,
    /// Requests without an answer, over all rounds.
    pub unanswered: u64,
    /// Error of the first request without an answer; `null` if all were answered.
    pub why: Option<String>,
    /// First answers that ended at the requested maximum of tokens.
    #[serde(default)]
    pub cut: u64,
}

/// A share or mean with its 95 % interval.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QualityFigure {
    /// Point estimate of the share or mean.
    pub value: f64,
    /// Lower end of the confidence interval.
    pub lower: f64,
    /// Upper end of the confidence interval.
    pub upper: f64,
    /// Number of items behind the figure.
    pub n: u64,
}

/// The agreement of answers between the two targets.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Agreement {
    /// Agreement of answers of A with answers of B.
    pub between: AnswerSimilarity,
    /// Agreement of A with itself, which is the noise floor; `null` with one round.
    pub a_itself: Option<AnswerSimilarity>,
    /// Agreement of B with itself, which is the noise floor; `null` with one round.
    pub b_itself: Option<AnswerSimilarity>,
    /// Disagreement beyond the noise floor in equal tokens: mean over items of (each with itself) − (A with B); `null` with one round.
    pub beyond_noise: Option<QualityFigure>,
    /// Position of the first difference of A and B, in tokens from the start: quartiles over the items that differ.
    pub first_divergence: Option<Quartiles>,
    /// Tokens of B's answers divided by tokens of A's; `null` if A's answers are empty.
    pub length_ratio: Option<QualityFigure>,
    /// Number of items with a longer answer by B, and with a shorter one.
    pub longer_shorter: (u64, u64),
}

/// The similarity of two sets of answers.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Alike")]
pub struct AnswerSimilarity {
    /// Share of items with answers that are identical, byte for byte.
    pub exact: QualityFigure,
    /// Mean over items of the share of positions (of the longer answer) with equal tokens.
    pub tokens: QualityFigure,
}

/// The three quartiles of a value over items.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Quartiles {
    /// First quartile of the value over items.
    pub p25: f64,
    /// Median of the value over items.
    pub p50: f64,
    /// Third quartile of the value over items.
    pub p75: f64,
    /// Number of items behind the figure.
    pub n: u64,
}

/// The scores of both targets on the first answers to items that both answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Scores {
    /// Share of right answers by A.
    pub a: QualityFigure,
    /// Share of right answers by B.
    pub b: QualityFigure,
    /// Share of B minus share of A, with Tango's interval.
    pub difference: QualityFigure,
    /// Number of items that only A answered right.
    pub only_a: u64,
    /// Number of items that only B answered right.
    pub only_b: u64,
    /// McNemar's exact p-value for equal shares of right answers.
    pub p: f64,
    /// Items with both right and wrong answers by A, over all its rounds; `null` with one round.
    pub a_flips: Option<u64>,
    /// Items with both right and wrong answers by B, over all its rounds; `null` with one round.
    pub b_flips: Option<u64>,
    /// Maximum accepted decrease of the share from A to B.
    pub margin: f64,
    /// Verdict on the difference of the two targets.
    pub verdict: ScoreVerdict,
    /// Scores without the items with a cut first answer; `null` if no answer was cut or no item is left.
    #[serde(default)]
    pub uncut: Option<CompleteAnswerScores>,
}

/// The scores of items without cut answers.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Uncut")]
pub struct CompleteAnswerScores {
    /// Share of right answers by B minus that by A.
    pub difference: QualityFigure,
    /// Verdict on the difference of the two targets.
    pub verdict: ScoreVerdict,
}

/// The verdict on the difference of scores.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScoreVerdict {
    /// B is worse by more than the margin, over the whole interval.
    Worse,
    /// B is not worse by more than the margin.
    NotWorse,
    /// The interval contains both outcomes, so neither is proven.
    Inconclusive,
}

/// The result of one item of the evaluation.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ItemFinding {
    /// Line of the item in the evaluation file.
    pub line: u64,
    /// Name of the item; `null` if it has none.
    pub id: Option<String>,
    /// Whether the first answers are identical, byte for byte; `null` if one is missing.
    pub same: Option<bool>,
    /// Tokens before the first difference of the first answers; `null` if they do not differ.
    pub first_divergence: Option<u64>,
    /// Tokens of A's first answer; `null` if missing.
    pub tokens_a: Option<u64>,
    /// Tokens of B's first answer; `null` if missing.
    pub tokens_b: Option<u64>,
    /// Whether A's first answer is right; `null` without a rule or an answer.
    pub right_a: Option<bool>,
    /// Whether B's first answer is right; `null` without a rule or an answer.
    pub right_b: Option<bool>,
    /// Whether A's first answer ended at the requested maximum of tokens.
    #[serde(default)]
    pub cut_a: bool,
    /// Whether B's first answer ended at the requested maximum of tokens.
    #[serde(default)]
    pub cut_b: bool,
    /// Answers of A by round; absent unless requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_a: Option<Rounds>,
    /// Answers of B by round; absent unless requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_b: Option<Rounds>,
}
