//! Where a budget stands while traffic goes on.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

crate::named! {
    /// Where a budget stands, the better first.
    #[derive(
        Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Debug, Serialize, Deserialize, JsonSchema,
    )]
    #[serde(rename_all = "snake_case")]
    #[repr(u8)]
    pub enum BudgetState {
        /// All evidence is within the ceiling.
        #[default]
        Green = 0 => "green",
        /// It may be broken, or is being used up too fast.
        Amber = 1 => "amber",
        /// It is broken.
        Red = 2 => "red",
    }
}

impl BudgetState {
    /// The state of this number.
    pub fn from_u8(n: u8) -> Option<BudgetState> {
        BudgetState::ALL.get(usize::from(n)).copied()
    }
}
