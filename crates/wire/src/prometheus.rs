//! Writes a metrics endpoint in the Prometheus text exposition format, version 0.0.4.
//!
//! A client library was rejected, because it brings a registry of live metrics. The engine owns its counts, and an exposition is a
//! snapshot of them.

use std::fmt::Write as _;

pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// An exposition under construction.
#[derive(Clone, Debug, Default)]
pub struct PrometheusPage {
    out: String,
}

/// Name and value of a label.
pub type Label<'a> = (&'a str, &'a str);

impl PrometheusPage {
    pub fn new() -> PrometheusPage {
        PrometheusPage::default()
    }

    /// Adds a counter with one sample per set of labels. By convention the name ends in `_total`.
    pub fn counter(
        &mut self,
        name: &str,
        help: &str,
        samples: &[(&[Label<'_>], f64)],
    ) -> &mut PrometheusPage {
        self.family(name, help, "counter", samples)
    }

    /// Adds a gauge with one sample per set of labels.
    pub fn gauge(&mut self, name: &str, help: &str, samples: &[(&[Label<'_>], f64)]) -> &mut PrometheusPage {
        self.family(name, help, "gauge", samples)
    }

    /// Adds a histogram. `bounds`: ascending upper bounds, without `+Inf`. `counts`: observations per bucket (not cumulative),
    /// one more than `bounds`; the last is for values above all bounds. Missing counts are zero.
    pub fn histogram(
        &mut self,
        name: &str,
        help: &str,
        labels: &[Label<'_>],
        bounds: &[f64],
        counts: &[u64],
        sum: f64,
    ) -> &mut PrometheusPage {
        self.histograms(name, help, bounds, &[(labels, counts, sum)])
    }

    /// Adds a histogram with these bounds for each set of labels: its counts per bucket, and its sum.
    pub fn histograms(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        each: &[(&[Label<'_>], &[u64], f64)],
    ) -> &mut PrometheusPage {
        self.head(name, help, "histogram");
        for (labels, counts, sum) in each {
            let mut total = 0;
            for (i, bound) in bounds.iter().copied().chain([f64::INFINITY]).enumerate() {
                total += counts.get(i).copied().unwrap_or(0);
                let mut text = String::new();
                figure(bound, &mut text);
                let mut all = labels.to_vec();
                all.push(("le", &text));
                self.sample(&format!("{name}_bucket"), &all, total as f64);
            }
            self.sample(&format!("{name}_sum"), labels, *sum);
            self.sample(&format!("{name}_count"), labels, total as f64);
        }
        self
    }

    /// Returns the text of the exposition.
    pub fn finish(self) -> String {
        self.out
    }

    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        samples: &[(&[Label<'_>], f64)],
    ) -> &mut PrometheusPage {
        self.head(name, help, kind);
        for (labels, value) in samples {
            self.sample(name, labels, *value);
        }
        self
    }

    fn head(&mut self, name: &str, help: &str, kind: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        let _ = writeln!(self.out, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn sample(&mut self, name: &str, labels: &[Label<'_>], value: f64) {
        self.out.push_str(name);
        for (i, (label, text)) in labels.iter().enumerate() {
            self.out.push(if i == 0 { '{' } else { ',' });
            self.out.push_str(label);
            self.out.push_str("=\"");
            for c in text.chars() {
                match c {
                    '\\' => self.out.push_str("\\\\"),
                    '"' => self.out.push_str("\\\""),
                    '\n' => self.out.push_str("\\n"),
                    other => self.out.push(other),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        self.out.push(' ');
        figure(value, &mut self.out);
        self.out.push('\n');
    }
}

/// Appends a number in the format's spelling: Go's spelling of the infinities and of NaN.
fn figure(value: f64, out: &mut String) {
    if value.is_nan() {
        out.push_str("NaN");
    } else if value.is_infinite() {
        out.push_str(if value > 0.0 { "+Inf" } else { "-Inf" });
    } else {
        let _ = write!(out, "{value}");
    }
}
