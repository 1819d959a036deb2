//! The crate's tests, one binary.

#[path = "all/agree.rs"]
mod agree;
#[path = "all/alerts.rs"]
mod alerts;
#[path = "all/canary.rs"]
mod canary;
#[path = "all/canary_judged.rs"]
mod canary_judged;
#[path = "all/cold_starts.rs"]
mod cold_starts;
#[path = "all/costs.rs"]
mod costs;
#[path = "all/diagnosed.rs"]
mod diagnosed;
#[path = "all/doubled.rs"]
mod doubled;
#[path = "all/export.rs"]
mod export;
#[path = "all/history.rs"]
mod history;
#[path = "all/over.rs"]
mod over;
#[path = "all/pages.rs"]
mod pages;
#[path = "all/requests.rs"]
mod requests;
#[path = "all/stretches.rs"]
mod stretches;
#[path = "all/tails.rs"]
mod tails;
#[path = "all/usual.rs"]
mod usual;
#[path = "all/usual_rules.rs"]
mod usual_rules;
#[path = "all/watched.rs"]
mod watched;
#[path = "all/weeks.rs"]
mod weeks;
