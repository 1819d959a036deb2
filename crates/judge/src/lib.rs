//! Findings → verdicts: what a product promises, whether a run keeps it, and what changed between two.
//!
//! Reading order: [`budget`] (the file of promises, what can't be meant in it and what can't be judged) and [`gate`] (a run held
//! to it). Beside them [`compare`] puts two runs side by side, [`history`] says since when a line of results has moved, [`cost`]
//! turns a price into what requests cost, [`quality`] says whether answers are as good as before, and [`sequential`] holds the
//! verdicts that may be asked for while a measurement goes on.

pub mod budget;
pub mod compare;
pub mod cost;
pub mod gate;
pub mod history;
pub mod quality;
pub mod sequential;
