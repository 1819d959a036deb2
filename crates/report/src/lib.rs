//! Findings → bytes: the terminal's text and the page.
//!
//! Nothing is computed here: a figure that is not in [`plimsoll_measure::Findings`] or the manifest is not shown. What this
//! crate decides is order, wording and drawing. JSON output needs nothing from here: the findings serialise as they
//! are.
//!
//! Reading order: [`figure`] (how numbers look), [`table`] (plain text tables), [`headline`] (the verdict in
//! sentences), [`text`] (the terminal), [`compare`] (two runs), [`history`] (a line of results), [`kept`] (what a watch keeps of the past), [`profile`] (where the time went), [`html`], [`gate`] (what a budget came to), [`watch`] (verdicts while it goes on), [`traces`] (what lies in a heap of spans), [`import`] (what another tool's file comes to), [`workload`] (what became of a log), [`mlflow`] (a run for its experiments), [`split`] (a total over stages), [`calc`] (what a law answers), [`plan`] (a plan; [`plan_envelope`], [`plan_verify`]).

mod active;
pub mod calc;
pub mod canaried;
pub mod cold_start;
pub mod compare;
mod cost;
pub mod csv;
pub mod demo_gateway;
pub mod device;
pub mod diagnose;
pub mod document;
mod endpoints;
pub mod figure;
pub mod fold;
pub mod gate;
pub mod headline;
pub mod history;
pub mod html;
pub mod import;
pub mod kept;
pub mod levers;
pub mod mlflow;
mod network;
pub mod paint;
pub mod plan;
pub mod plan_envelope;
pub mod plan_verify;
pub mod profile;
pub mod quality;
pub mod selftest;
mod server;
pub mod split;
pub mod table;
pub mod text;
pub mod traces;
pub mod wait;
pub mod watch;
pub mod watched;
pub mod what_if;
mod words;
pub mod workload;

pub use fold::fold;
pub use paint::paint;
