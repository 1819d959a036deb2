//! What a faster endpoint costs in answers: the same prompts at temperature 0 to two targets, how far the answers agree, and how they score.
//!
//! Servers are not deterministic at temperature 0: what else is in the batch changes the order of additions, and with it, now and then, a
//! token. So each target is asked more than once, its disagreement with itself is the noise floor, and only what lies beyond it is the
//! change's. Agreement is description; the *scores* judge, item by item, by a paired test.
//!
//! What has no whole answer (refused, broken off half-way) takes no part in any figure, and is counted and named. An answer that
//! ends at the most tokens asked for is whole as far as it was asked for: it is compared and scored as it stands, because
//! a change that makes a model ramble must not hide its worst answers; but a score of half an answer is luck, so such answers
//! are counted, and the scores without them stand beside.
//!
//! Reading order: [`score`] (an item of the evaluation file, and whether an answer is right), [`tokens`] (where two
//! answers part), [`judge`].

pub mod score;
pub mod tokens;

mod judge;

use plimsoll_model::Message;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

pub use judge::judge;

/// Layout of the results file.
pub const QUALITY_SCHEMA: u32 = 1;

/// One line of an evaluation file.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ItemSpec {
    /// Name of the item in the results; none = its line.
    #[serde(default)]
    pub id: Option<String>,
    /// What is asked: one message of the user …
    #[serde(default)]
    pub prompt: Option<String>,
    /// … or a conversation.
    #[serde(default)]
    pub messages: Option<Vec<Message>>,
    /// Longest answer asked for; none = the command's.
    #[serde(default)]
    pub max_tokens: Option<u32>,
    /// What a right answer is; none = the item counts for agreement alone.
    #[serde(default)]
    pub score: Option<ScoreSpec>,
}

/// What a right answer is.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum ScoreSpec {
    /// This text, blanks aside.
    Exact {
        /// The text.
        answer: String,
    },
    /// A text in which this pattern is found.
    Regex {
        /// The pattern, as the crate `regex` has it.
        pattern: String,
    },
    /// This letter (or word) of several.
    Choice {
        /// The right one.
        answer: String,
        /// All of them; none = A B C D.
        #[serde(default)]
        choices: Option<Vec<String>>,
    },
    /// This number; the last one in the answer is taken.
    Numeric {
        /// The number.
        answer: f64,
        /// How far off it may be.
        #[serde(default)]
        tolerance: f64,
        /// How far off it may be, relative to the number.
        #[serde(default)]
        relative: f64,
    },
}

/// What one target said to one item, round by round; `None` = it did not answer.
pub type Rounds = Vec<Option<String>>;

/// What one target said to all items.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TargetAnswers {
    /// Item by item.
    pub rounds: Vec<Rounds>,
    /// Did its first answer to an item end at the most tokens asked for?
    pub cut: Vec<bool>,
}

/// The results.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Quality {
    /// Layout of this file.
    pub schema: u32,
    /// The evaluation file's digest (64 bits), so that two results can be told to be of one file.
    pub eval: String,
    /// The two targets, A first.
    pub targets: Vec<AskedTarget>,
    /// Times each was asked.
    pub rounds: u32,
    /// A against B, and each against itself.
    pub agreement: Agreement,
    /// The scores; none where no item has one.
    pub scores: Option<Scores>,
    /// Item by item.
    pub items: Vec<ItemFinding>,
}

/// A target that was asked.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct AskedTarget {
    /// The endpoint, without secrets.
    pub url: String,
    /// The model.
    pub model: Option<String>,
    /// Requests that got no answer, of all rounds.
    pub unanswered: u64,
    /// What the first of them met.
    pub why: Option<String>,
    /// First answers that ended at the most tokens asked for.
    #[serde(default)]
    pub cut: u64,
}

/// A share or mean with its interval at 95 %.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct QualityFigure {
    /// The value.
    pub value: f64,
    /// Lower end.
    pub lower: f64,
    /// Upper end.
    pub upper: f64,
    /// Items it rests on.
    pub n: u64,
}

/// How far answers agree.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Agreement {
    /// A against B.
    pub between: Alike,
    /// A against itself: the noise floor. `None` where it was asked once.
    pub a_itself: Option<Alike>,
    /// B against itself.
    pub b_itself: Option<Alike>,
    /// Tokens alike beyond the noise floor: the mean over items of (each against itself) − (A against B). `None` as above.
    pub beyond_noise: Option<QualityFigure>,
    /// Where A and B part, in tokens from the start: quartiles over the items that part.
    pub first_divergence: Option<Quartiles>,
    /// Tokens of B's answers over tokens of A's.
    pub length_ratio: Option<QualityFigure>,
    /// Items whose answer by B is longer, and shorter.
    pub longer_shorter: (u64, u64),
}

/// How alike two sets of answers are.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Alike {
    /// Share of items whose answers are the same, byte for byte.
    pub exact: QualityFigure,
    /// Mean over items of the share of places (of the longer answer) at which both have the same token.
    pub tokens: QualityFigure,
}

/// Three quartiles.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Quartiles {
    /// A quarter lies below.
    pub p25: f64,
    /// Half lies below.
    pub p50: f64,
    /// Three quarters lie below.
    pub p75: f64,
    /// Items.
    pub n: u64,
}

/// How both scored, on the first answer to each item that both answered.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Scores {
    /// Share right on A.
    pub a: QualityFigure,
    /// Share right on B.
    pub b: QualityFigure,
    /// B's share less A's: Tango's interval.
    pub difference: QualityFigure,
    /// Items right on A alone.
    pub only_a: u64,
    /// Items right on B alone.
    pub only_b: u64,
    /// McNemar's exact p-value that both are right equally often.
    pub p: f64,
    /// Items on which A's own answers differ in being right, of all its rounds; `None` where asked once.
    pub a_flips: Option<u64>,
    /// The same of B.
    pub b_flips: Option<u64>,
    /// How much worse B may be.
    pub margin: f64,
    /// What that amounts to.
    pub verdict: ScoreVerdict,
    /// The same without the items on which either first answer was cut; `None` where none was, or nothing is left.
    #[serde(default)]
    pub uncut: Option<Uncut>,
}

/// The scores of answers that ended by themselves.
#[derive(Copy, Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Uncut {
    /// B's share right less A's.
    pub difference: QualityFigure,
    /// What that amounts to.
    pub verdict: ScoreVerdict,
}

/// What the scores amount to.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScoreVerdict {
    /// B is worse by more than the margin, whatever the interval leaves open.
    Worse,
    /// B is not worse by more than the margin.
    NotWorse,
    /// The interval holds both.
    Inconclusive,
}

/// One item.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct ItemFinding {
    /// Line of the evaluation file.
    pub line: u64,
    /// Its name, if it has one.
    pub id: Option<String>,
    /// First answers the same, byte for byte; `None` where one is missing.
    pub same: Option<bool>,
    /// Tokens before the first answers part; `None` where they don't.
    pub first_divergence: Option<u64>,
    /// Tokens of A's first answer.
    pub tokens_a: Option<u64>,
    /// Tokens of B's first answer.
    pub tokens_b: Option<u64>,
    /// Was A's first answer right?
    pub right_a: Option<bool>,
    /// Was B's?
    pub right_b: Option<bool>,
    /// Did A's first answer end at the most tokens asked for?
    #[serde(default)]
    pub cut_a: bool,
    /// Did B's?
    #[serde(default)]
    pub cut_b: bool,
    /// A's answers, where asked to be kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_a: Option<Rounds>,
    /// B's answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answers_b: Option<Rounds>,
}
