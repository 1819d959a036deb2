//! Metrics of servers during a load.
//!
//! Endpoints are scraped ([`pages`], [`scrape`], [`targets`]) or pushed ([`pushed`], [`measured`]). Exporters of GPUs and hosts
//! are found on their usual ports. [`told`] writes the samples.

pub(crate) mod each;
pub(crate) mod exporters;
pub(crate) mod foreign;
pub mod measured;
pub(crate) mod nvml;
pub mod pages;
pub mod pushed;
pub mod scrape;
pub(crate) mod shared;
pub mod targets;
pub mod told;
