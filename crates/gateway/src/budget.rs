//! The state of the SLO budget on the gateway's traffic. The evaluator writes it; request handling and the admin API
//! read it.
//!
//! Evaluator and readers do not depend on each other. Work that is shed first (bulk requests, hedges, canaries) reads
//! one atomic number per request.

use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use plimsoll_model::BudgetState;

/// State value without an active budget.
const NONE: u8 = u8::MAX;

#[derive(Debug)]
pub struct LiveBudget {
    state: AtomicU8,
    pages: Mutex<BudgetStatusPages>,
}

/// The budget's reports for the admin API.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct BudgetStatusPages {
    pub json: String,
    pub metrics: String,
}

impl Default for LiveBudget {
    fn default() -> LiveBudget {
        LiveBudget { state: AtomicU8::new(NONE), pages: Mutex::default() }
    }
}

impl LiveBudget {
    /// Returns the state, or `None` without a budget.
    pub fn state(&self) -> Option<BudgetState> {
        BudgetState::from_u8(self.state.load(Ordering::Relaxed))
    }

    /// Stores the result of an evaluation.
    pub fn tell(&self, state: BudgetState, pages: BudgetStatusPages) {
        *self.lock() = pages;
        self.state.store(state as u8, Ordering::Relaxed);
    }

    pub fn pages(&self) -> BudgetStatusPages {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, BudgetStatusPages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
