//! Evaluates a budget on the live traffic of the gateway. The recorded rows are judged as `watch` judges
//! metrics endpoints.

use std::path::Path;
use std::sync::Arc;

use plimsoll_client::Clock;
use plimsoll_gateway::budget::{BudgetStatusPages, LiveBudget};
use plimsoll_model::{At, Attempt, BudgetState, Span};
use plimsoll_policy::AdmissionClassSpec;
use plimsoll_watch::{AlertSpec, BudgetWatch, BudgetWatchSpec, Light, RowState, WatchFinding};
use plimsoll_watchd::page;
use plimsoll_wire::prometheus::PrometheusPage;
use serde_json::json;

use crate::budget_file;
use crate::exit::Stop;
use crate::out;

/// Evaluation interval, so that reactions to the state take at most a second.
const EVERY: Span = Span::from_secs(1);
/// Default evaluation window.
const WINDOW: Span = Span::from_secs(300);

/// The evaluation of an active budget.
pub struct LiveBudgetEvaluator {
    watched: BudgetWatch,
    light: Light,
    told: Arc<LiveBudget>,
    clock: Clock,
    due: At,
    state: BudgetState,
    quiet: bool,
}

impl LiveBudgetEvaluator {
    /// Starts without data. `classes` are the classes of the gateway in order.
    ///
    /// # Errors
    /// Fails if the file is unreadable or invalid, or slices by an unknown class.
    pub fn start(
        path: &Path,
        classes: &[AdmissionClassSpec],
        told: Arc<LiveBudget>,
        (clock, quiet): (Clock, bool),
    ) -> Result<LiveBudgetEvaluator, Stop> {
        let mut file = budget_file::read(path)?.file;
        for budget in &mut file.budgets {
            let sliced = budget.slice.as_mut().and_then(|slice| slice.class.as_mut());
            if let Some(class) = sliced.filter(|class| class.parse::<u16>().is_err()) {
                *class = number_of(class, classes).ok_or_else(|| {
                    let known: Vec<&str> = classes.iter().map(|class| class.name.as_str()).collect();
                    let path = path.display();
                    Stop::usage(format!(
                        "{path}: class {class:?} is none of the gateway's: {}",
                        known.join(", ")
                    ))
                })?;
            }
        }
        let window = file.load.as_ref().and_then(|load| load.window).unwrap_or(WINDOW).max(Span(8 * EVERY.0));
        let now = clock.now();
        let watched = BudgetWatch::new(file, BudgetWatchSpec { every: EVERY, window });
        let watched = watched.of_requests(AlertSpec::default(), now);
        let mut watching = LiveBudgetEvaluator {
            watched,
            light: Light::default(),
            told,
            clock,
            due: now,
            state: BudgetState::Green,
            quiet,
        };
        watching.look();
        Ok(watching)
    }

    /// Records the rows of a finished request.
    pub fn take(&mut self, rows: Vec<Attempt>) {
        self.watched.take(rows);
    }

    /// Evaluates the budget if the interval has passed.
    pub fn look(&mut self) {
        let now = self.clock.now();
        if now < self.due {
            return;
        }
        while self.due <= now {
            self.due += EVERY;
        }
        self.watched.tick(now);
        let found = self.watched.finding(now);
        let state = self.light.step(&found, now);
        if state != self.state && !self.quiet {
            out::note(&format!("budget: {} → {}{}", self.state.name(), state.name(), why(&found)));
        }
        self.state = state;
        let json = json!({"state": state, "finding": found}).to_string();
        self.told.tell(state, BudgetStatusPages { json, metrics: metrics(state, &found) });
    }
}

/// Returns the index of a class as text, because rows contain the class index.
fn number_of(class: &str, classes: &[AdmissionClassSpec]) -> Option<String> {
    classes.iter().position(|known| known.name == class).map(|place| place.to_string())
}

fn why(found: &WatchFinding) -> String {
    let worst = found
        .rows
        .iter()
        .filter(|row| row.state != RowState::Holds && row.n > 0)
        .min_by_key(|row| RowState::ALL.iter().position(|state| *state == row.state));
    worst.map_or(String::new(), |row| format!(": {} ({}): {}", row.id, row.budget, row.why))
}

fn metrics(state: BudgetState, found: &WatchFinding) -> String {
    let mut page = PrometheusPage::new();
    let help = "Budget state: 0 green, 1 amber, 2 red.";
    page.gauge("plimsoll_gateway_budget_state", help, [([], f64::from(state as u8))]);
    let help = "Requests of the window that were shed; each is over every ceiling.";
    page.gauge("plimsoll_gateway_budget_shed", help, [([], found.shed.unwrap_or(0) as f64)]);
    page.finish() + &page::metrics(found, &[], &[])
}
