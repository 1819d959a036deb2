//! A budget file held against the gateway's own traffic while it goes on: the rows that are recorded, judged as `watch` judges pages.

use std::path::Path;
use std::sync::Arc;

use plimsoll_client::Clock;
use plimsoll_gateway::budget::{Budget, BudgetPages};
use plimsoll_model::{At, Attempt, BudgetState, Span};
use plimsoll_policy::ClassSpec;
use plimsoll_watch::{AlertSpec, Light, RowState, WatchFinding, WatchSpec, Watched};
use plimsoll_wire::prometheus::PrometheusPage;
use serde_json::json;

use crate::budget_file;
use crate::commands::watch::page;
use crate::exit::Stop;
use crate::out;

/// Between two evaluations: what acts on the state acts within a second.
const EVERY: Span = Span::from_secs(1);
/// How far verdicts look back where the file doesn't say.
const WINDOW: Span = Span::from_secs(300);

/// A budget in force.
pub struct Watching {
    watched: Watched,
    light: Light,
    told: Arc<Budget>,
    clock: Clock,
    due: At,
    state: BudgetState,
    quiet: bool,
}

impl Watching {
    /// Begins with nothing seen. `classes`: the gateway's, in order.
    ///
    /// # Errors
    /// The file can't be read, is wrong, or slices by a class that the gateway has not.
    pub fn start(
        path: &Path,
        classes: &[ClassSpec],
        told: Arc<Budget>,
        (clock, quiet): (Clock, bool),
    ) -> Result<Watching, Stop> {
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
        let watched = Watched::new(file, WatchSpec { every: EVERY, window });
        let watched = watched.of_requests(AlertSpec::default(), now);
        let mut watching = Watching {
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

    /// Takes the rows of a request that is over.
    pub fn take(&mut self, rows: Vec<Attempt>) {
        self.watched.take(rows);
    }

    /// Evaluates, where it is time to.
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
        self.told.tell(state, BudgetPages { json, metrics: metrics(state, &found) });
    }
}

/// Rows of requests tell a class by its place in the gateway's file.
fn number_of(class: &str, classes: &[ClassSpec]) -> Option<String> {
    classes.iter().position(|known| known.name == class).map(|place| place.to_string())
}

/// The worst row, in words.
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
    let help = "Where the budget stands: 0 green, 1 amber, 2 red.";
    page.gauge("plimsoll_gateway_budget_state", help, &[(&[], f64::from(state as u8))]);
    let help = "Requests of the window that were shed; each is over every ceiling.";
    page.gauge("plimsoll_gateway_budget_shed", help, &[(&[], found.shed.unwrap_or(0) as f64)]);
    page.finish() + &page::metrics(found, &[], &[])
}
