//! Green, amber or red: what a budget's rows and alerts come to, for whoever acts on it while traffic goes on.
//!
//! Worse is believed at once, because what it protects is burning; better only after it has stayed so for a while, because what is done about red
//! (less bulk, no hedges) makes things better by itself, and would be taken back and done again every few seconds.

use plimsoll_model::{At, BudgetState, Span};

use crate::{AlertKind, RowState, WatchFinding};

/// How long it must have been better before it is called so.
const HOLD: Span = Span::from_secs(60);

#[derive(Copy, Clone, Debug, Default)]
pub struct Light {
    state: BudgetState,
    /// Since when it has been better than `state`, and the worst of that time.
    better: Option<(At, BudgetState)>,
}

impl Light {
    /// The state after another look.
    pub fn step(&mut self, found: &WatchFinding, now: At) -> BudgetState {
        let seen = seen(found);
        if seen >= self.state {
            (self.state, self.better) = (seen, None);
            return self.state;
        }
        let (since, worst) = self.better.map_or((now, seen), |(since, worst)| (since, worst.max(seen)));
        self.better = Some((since, worst));
        if now - since >= HOLD {
            (self.state, self.better) = (worst, None);
        }
        self.state
    }
}

/// What one look shows: red, a ceiling is broken for certain; amber, it is not yet certain, or what is allowed is used up too fast.
fn seen(found: &WatchFinding) -> BudgetState {
    let rows = || found.rows.iter();
    if rows().any(|row| matches!(row.state, RowState::Broken | RowState::Stalled)) {
        return BudgetState::Red;
    }
    let over = rows().any(|row| {
        let share = row.over.map(|[least, most]| (least + most) / 2.0).zip(row.allowed);
        row.state == RowState::CannotTell
            && row.n >= LEAST
            && share.is_some_and(|(over, allowed)| over > allowed)
    });
    let burns = found.alerts.iter().any(|alert| alert.kind == AlertKind::BurnRate && alert.stands());
    if over || burns { BudgetState::Amber } else { BudgetState::Green }
}

/// Of fewer requests one that is over makes a share that says nothing.
const LEAST: u64 = 20;
