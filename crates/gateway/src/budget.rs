//! The budget in force on the gateway's own traffic: who evaluates it tells its state here, who acts on it or is asked for it reads it.
//!
//! Neither needs the other: whatever may give way (bulk, hedges, canaries) reads one number on the way of a request.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::BudgetState;

/// No budget is in force.
const NONE: u8 = u8::MAX;

#[derive(Debug)]
pub struct Budget {
    state: AtomicU8,
    pages: Mutex<BudgetPages>,
}

/// What operators are shown of it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BudgetPages {
    /// Its rows, as JSON.
    pub json: String,
    /// The same as lines of a metrics page.
    pub metrics: String,
}

impl Default for Budget {
    fn default() -> Budget {
        Budget { state: AtomicU8::new(NONE), pages: Mutex::default() }
    }
}

impl Budget {
    /// Where it stands; `None` = there is none.
    pub fn state(&self) -> Option<BudgetState> {
        BudgetState::from_u8(self.state.load(Ordering::Relaxed))
    }

    /// It was evaluated.
    pub fn tell(&self, state: BudgetState, pages: BudgetPages) {
        *self.lock() = pages;
        self.state.store(state as u8, Ordering::Relaxed);
    }

    /// What was told last.
    pub fn pages(&self) -> BudgetPages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BudgetPages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
