//! Defines the state of a budget under live traffic.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

crate::named! {
    /// State of a budget, the best first.
    #[derive(
        Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    #[repr(u8)]
    pub enum BudgetState {
        /// All evidence is within the limit.
        #[default]
        Green = 0 => "green",
        /// The budget may be broken, or its burn rate is too high.
        Amber = 1 => "amber",
        /// The budget is broken.
        Red = 2 => "red",
    }
}

impl BudgetState {
    /// Returns the state that is stored as this number.
    pub fn from_u8(n: u8) -> Option<BudgetState> {
        BudgetState::ALL.get(usize::from(n)).copied()
    }
}
