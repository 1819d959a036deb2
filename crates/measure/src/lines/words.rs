//! Conversion of a load to other units: tokens, requests in flight, users.

use plimsoll_model::SizeUnit;

use super::{LineLevel, mix};
use crate::findings::{LoadKeptUp, LoadWords};

/// Converts a load to other units.
pub(super) struct Words<'a> {
    pub(super) good: &'a [&'a LineLevel],
    pub(super) think_time_s: f64,
}

impl Words<'_> {
    pub(super) fn at(&self, rate: f64) -> LoadWords {
        let mix = mix(self.good, self.good);
        let tokens = |figures: &crate::findings::LengthFigures| {
            Some(rate * figures.reported_mean.unwrap_or(figures.asked_mean)).filter(|t| *t > 0.0)
        };
        let in_flight = self.in_flight(rate);
        let items = mix.unit == SizeUnit::Items;
        LoadWords {
            input_tokens_per_s: tokens(&mix.prompt).filter(|_| !items),
            output_tokens_per_s: tokens(&mix.output).filter(|_| !items),
            items_per_s: tokens(&mix.prompt).filter(|_| items),
            in_flight,
            users: in_flight.map(|n| n + rate * self.think_time_s),
        }
    }

    /// Returns the requests in flight at a load, interpolated linearly between the stable levels from zero at no load.
    ///
    /// `None` beyond the last stable level.
    pub(super) fn in_flight(&self, rate: f64) -> Option<f64> {
        let mut before = (0.0, 0.0);
        for level in self.good.iter().filter(|o| o.kept() != LoadKeptUp::Unstable) {
            let here = (level.rate(), level.finding.summary.concurrency.mean);
            if here.0 >= rate && here.0 > before.0 {
                return Some(before.1 + (rate - before.0) / (here.0 - before.0) * (here.1 - before.1));
            }
            before = here;
        }
        // Within two per cent of the last level, its figure is used.
        (before.0 > 0.0 && rate <= 1.02 * before.0).then_some(before.1)
    }
}
