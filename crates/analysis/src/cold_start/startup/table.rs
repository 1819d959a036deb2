//! The table of lines that known servers write while they start: data (`data/startup/lines.json`), each with the versions that it was seen in.
//!
//! A line says how long something took, or stands where it begins or ends, or that a start begins or is over. What a server that is not
//! in the table writes is nothing, never a guess.

use std::sync::OnceLock;

use regex::Regex;
use serde::Deserialize;

use super::StartStage;

/// What a line does.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Does {
    /// A process begins.
    Start,
    /// Says how long a stage took.
    Told,
    /// A stage begins here.
    Begin,
    /// It ends here.
    End,
    /// The server answers from here on.
    Ready,
}

#[derive(Deserialize)]
struct RuleSpec {
    engine: String,
    does: Does,
    #[serde(default)]
    stage: Option<StartStage>,
    /// Stands in every such line: asked first, because most lines of a log have none of these.
    has: String,
    pattern: String,
    /// Does the stage begin or end somewhere near this line and not at it? What is between such lines is the most that it took.
    #[serde(default)]
    near: bool,
    /// Stages whose times lie within the one that is told: what is left is this stage's.
    #[serde(default)]
    without: Vec<StartStage>,
}

#[derive(Deserialize)]
struct File {
    version: u32,
    rules: Vec<RuleSpec>,
}

/// One line of the table.
pub(super) struct Rule {
    /// Its place.
    pub place: usize,
    pub engine: String,
    pub does: Does,
    pub stage: Option<StartStage>,
    pub has: String,
    pub pattern: Regex,
    pub near: bool,
    pub without: Vec<StartStage>,
}

/// The table, in order: of two lines that tell the same stage the first counts.
pub(super) fn rules() -> &'static [Rule] {
    static RULES: OnceLock<Vec<Rule>> = OnceLock::new();
    RULES.get_or_init(|| {
        let file: File = serde_json::from_str(include_str!("../../../data/startup/lines.json"))
            .expect("the table of startup lines is part of the program");
        assert_eq!(file.version, 1, "the layout of the table of startup lines");
        let rule = |(place, spec): (usize, RuleSpec)| Rule {
            place,
            pattern: Regex::new(&spec.pattern).expect("a pattern of the table of startup lines"),
            engine: spec.engine,
            does: spec.does,
            stage: spec.stage,
            has: spec.has,
            near: spec.near,
            without: spec.without,
        };
        file.rules.into_iter().enumerate().map(rule).collect()
    })
}
