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
    pub fn counter<'a, L: AsRef<[Label<'a>]>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.family(name, help, "counter", samples);
    }

    /// Adds a gauge with one sample per set of labels.
    pub fn gauge<'a, L: AsRef<[Label<'a>]>>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.family(name, help, "gauge", samples);
    }

    /// Adds a histogram per set of labels: its observations per bucket (not cumulative), and their sum. `bounds` are the
    /// ascending upper bounds, without `+Inf`. The last bucket is above them; missing buckets count as zero.
    pub fn histograms<'a, L: AsRef<[Label<'a>]>, C: AsRef<[u64]>>(
        &mut self,
        name: &str,
        help: &str,
        bounds: &[f64],
        each: impl IntoIterator<Item = (L, C, f64)>,
    ) {
        self.head(name, help, "histogram");
        for (labels, counts, sum) in each {
            let (labels, counts) = (labels.as_ref(), counts.as_ref());
            let mut total = 0;
            for (i, bound) in bounds.iter().copied().chain([f64::INFINITY]).enumerate() {
                total += counts.get(i).copied().unwrap_or(0);
                let mut text = String::new();
                figure(bound, &mut text);
                let all = [labels, &[("le", text.as_str())]].concat();
                self.sample(&format!("{name}_bucket"), &all, total as f64);
            }
            self.sample(&format!("{name}_sum"), labels, sum);
            self.sample(&format!("{name}_count"), labels, total as f64);
        }
    }

    /// Returns the text of the exposition.
    pub fn finish(self) -> String {
        self.out
    }

    fn family<'a, L: AsRef<[Label<'a>]>>(
        &mut self,
        name: &str,
        help: &str,
        kind: &str,
        samples: impl IntoIterator<Item = (L, f64)>,
    ) {
        self.head(name, help, kind);
        samples.into_iter().for_each(|(labels, value)| self.sample(name, labels.as_ref(), value));
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
