//! Renders findings as text and as pages.
//!
//! This crate computes no figures: a figure that is not in [`plimsoll_measure::Findings`] or the manifest is not shown. It
//! decides order, wording and drawing. JSON output bypasses it, because the findings serialise
//! unchanged.
//!
//! The output of a command is a [`document::Document`] (sections, sentences, tables, drawings). It is built once and rendered for a terminal,
//! as a page or as Markdown; JUnit and SARIF are in [`gate`].
//!
//! Reading order:
//!
//! - [`figure`], number formats
//! - [`table`] and [`document`]: elements of a page
//! - [`headline`], the verdict in sentences
//! - [`text`] and [`html`]: a run at a terminal and as a page
//! - one file per command: [`compare`], [`diagnose`], [`profile`], [`wait`], [`plan`], [`gate`] and so on

mod active;
pub mod audit;
pub mod browse;
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
mod pareto;
pub mod plan;
pub mod plan_envelope;
mod plan_tables;
pub mod plan_verify;
pub mod profile;
pub mod quality;
pub mod selftest;
mod server;
pub mod split;
pub mod table;
pub mod text;
pub mod traces;
pub mod tradeoff;
pub mod tune;
pub mod wait;
pub mod watch;
pub mod watched;
pub mod what_if;
mod words;
pub mod workload;

pub use fold::fold;
pub use paint::paint;
pub use words::{load, trust};
