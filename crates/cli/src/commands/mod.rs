//! One file per command: flags in, exit out.

pub mod demo;
pub mod doctor;
pub mod engine;
pub mod report;
pub mod run;
pub mod schema;
pub mod show;
pub mod sweep;
