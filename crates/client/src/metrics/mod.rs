//! Metrics of servers during a load: endpoints that are scraped ([`pages`], [`scrape`], [`targets`]) or pushed ([`pushed`],
//! [`measured`]), exporters of GPUs and hosts, and the samples that they give ([`told`]).

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
