//! A decision as text: the assumption of a pass, or a provisional answer while the proof is open.

use super::exceed::{Count, Decision};
use super::quantity::{AmountUnit, shown};
use crate::findings::{Held, VerdictBasis};
use crate::say::{count as plural, length};

impl Decision {
    /// Returns a phrase that explains the verdict, or an empty one. `over` describes a request that counts against the budget, such as
    /// `over 500 ms`. `per_s` is the number of requests per second; `None` if a longer run has no more of them.
    pub fn words(&self, count: &Count, over: &str, per_s: Option<f64>) -> String {
        match (self.held, self.by) {
            (Held::Inconclusive, _) => self.provisional(count, over, per_s),
            (Held::Pass, Some(VerdictBasis::Far)) => {
                let slowest = count.slowest.map_or(0.0, |slowest| slowest.value_s);
                let slowest = shown(slowest, &AmountUnit::Time);
                format!("the slowest of {} took {slowest}; assumes no bursts far slower than it", count.n)
            }
            _ => self.missed.map_or(String::new(), |missed| {
                let missed = plural(missed, "request");
                format!("0 of {} {over}; a burst of more than {missed} could have been missed", count.n)
            }),
        }
    }

    /// Returns `0 of 707 over 500 ms, worst 246 ms: would pass; a verdict needs about 1400 more requests, 2 min more at this load`.
    fn provisional(&self, count: &Count, over: &str, per_s: Option<f64>) -> String {
        if count.n == 0 || count.over_least != count.over_most {
            return String::new();
        }
        let worst = count.slowest.map_or(String::new(), |slowest| {
            format!(", worst {}", shown(slowest.value_s, &AmountUnit::Time))
        });
        let seen = format!("{} of {} {over}{worst}", count.over_most, count.n);
        let holds = count.over_most as f64 <= self.allowed * count.n as f64;
        let tends = if holds { "would pass" } else { "would break" };
        let more = self.needed.map(|needed| needed.saturating_sub(count.n).max(1));
        let then = match more {
            // Without the correlation of neighbours, no length can be named.
            None if count.worth.is_none() => return format!("{seen}: {tends}"),
            None => {
                let sooner = if holds { "; a wider limit or a lower load needs fewer" } else { "" };
                format!("a verdict needs more than ten times the requests of this run{sooner}")
            }
            Some(more) => {
                let time = per_s.filter(|per_s| *per_s > 0.0).map_or(String::new(), |per_s| {
                    format!(", {} more at this load", length(more as f64 / per_s))
                });
                format!("a verdict needs about {}{time}", plural(more, "more request"))
            }
        };
        format!("{seen}: {tends}; {then}")
    }
}
