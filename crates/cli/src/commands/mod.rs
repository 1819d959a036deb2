//! One file per command: flags in, exit out.

pub mod baseline;
pub mod budget;
pub mod calibrate;
pub mod collect;
pub mod compare;
pub mod demo;
pub mod diagnose;
pub mod diagnose_url;
pub mod doctor;
pub mod engine;
pub mod gate;
pub mod gate_url;
pub mod history;
pub mod interleave;
pub mod levers;
pub mod profile;
pub mod quality;
pub mod report;
pub mod rerun;
pub mod run;
pub mod schema;
pub mod show;
pub mod simulate;
pub mod sweep;
pub mod validate;
