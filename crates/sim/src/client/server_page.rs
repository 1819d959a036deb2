//! The scraped metrics of simulated servers, with vLLM's names, units and labels, and only metrics that vLLM exports.
//! Engines that compute whole batches export Triton's metrics.
//!
//! Rows are written if a value changed since the last scrape, as by the live scraper; the first scrape of a level
//! writes all. A replica that does not respond has gaps (NaN), and a restarted one counts from zero.

use plimsoll_model::{At, Sample, SharedText, join_labels};

use crate::client::RowSink;
use crate::engine::meter::{BucketHistogram, ReplicaMeter};
use crate::fleet::world::World;
use crate::spec::error::BLOCK_TOKENS;
use crate::traffic::EngineGauges;

/// The values of the last scrape, in order of the rows.
///
/// All samples share their texts, because readers find a series by the addresses of its texts.
#[derive(Debug)]
pub(crate) struct ServerPage {
    source: SharedText,
    scrape_name: SharedText,
    last: Vec<PageRow>,
    layout: Vec<ReplicaLayout>,
}

impl Default for ServerPage {
    fn default() -> ServerPage {
        let (source, scrape_name) = ("server".into(), "scrape_samples".into());
        ServerPage { source, scrape_name, last: Vec::new(), layout: Vec::new() }
    }
}

/// A row of the last scrape. Its texts are formatted once, because an hour has millions of samples.
#[derive(Debug)]
struct PageRow {
    value: f64,
    /// Name and labels; `None` if the row has not been written in this layout.
    texts: Option<(SharedText, SharedText)>,
}

/// The properties of a replica that select its rows.
#[derive(PartialEq, Debug)]
struct ReplicaLayout {
    batches: bool,
    kv_blocks: u32,
    drafts: bool,
    steps: bool,
}

struct PageScrape<'a> {
    at: At,
    last: &'a mut Vec<PageRow>,
    source: SharedText,
    place: usize,
    answers: bool,
    found: u32,
    rows: &'a mut dyn RowSink,
}

impl ServerPage {
    /// Scrapes the metrics of all replicas.
    pub fn scrape(&mut self, at: At, world: &mut World, rows: &mut dyn RowSink) {
        let replicas = world.replica_gauges();
        let answering = world.answering();
        let iterations = world.iterations();
        let tells_tokens = world.tells_tokens();
        let ready = world.gauges().ready;
        let layout = replicas.iter().enumerate().map(|(number, gauges)| ReplicaLayout {
            batches: gauges.batches,
            kv_blocks: gauges.kv_blocks,
            drafts: gauges.totals.drafts.checked > 0,
            steps: matches!(iterations.get(number), Some(Some(_))),
        });
        let layout: Vec<ReplicaLayout> = layout.collect();
        if layout != self.layout {
            self.last.iter_mut().for_each(|row| row.texts = None);
            self.layout = layout;
        }
        let (last, source) = (&mut self.last, self.source.clone());
        let mut scrape = PageScrape { at, last, source, place: 0, answers: true, found: 0, rows };
        scrape.put("plimsoll_replicas_ready", &[], f64::from(ready));
        for (number, gauges) in replicas.iter().enumerate() {
            scrape.answers = answering.get(number).copied().unwrap_or(false);
            let engine = number.to_string();
            let engine = ("engine", engine.as_str());
            let meter = world.meter(number as u32);
            if gauges.batches {
                scrape.triton(engine.1, gauges, meter);
            } else {
                scrape.state(engine, gauges);
                scrape.requests(engine, meter, tells_tokens);
                if let Some(Some(histogram)) = iterations.get(number) {
                    scrape.histogram("iteration_tokens_total", engine, histogram, 1.0, true);
                }
            }
        }
        let found = f64::from(scrape.found);
        let (source, name, labels) = (scrape.source, self.scrape_name.clone(), SharedText::default());
        rows.sample(Sample { at, source, name, labels, value: found });
    }
}

impl PageScrape<'_> {
    fn state(&mut self, engine: (&str, &str), gauges: &EngineGauges) {
        self.put("vllm:num_requests_running", &[engine], f64::from(gauges.running));
        self.put("vllm:num_requests_waiting", &[engine], f64::from(gauges.waiting));
        self.put("vllm:num_preemptions_total", &[engine], gauges.totals.preempted as f64);
        if gauges.kv_blocks == 0 {
            return;
        }
        self.put("vllm:kv_cache_usage_perc", &[engine], gauges.kv_usage());
        self.put("vllm:prefix_cache_queries_total", &[engine], gauges.totals.prefix_queries as f64);
        self.put("vllm:prefix_cache_hits_total", &[engine], gauges.totals.prefix_hits as f64);
        let drafts = &gauges.totals.drafts;
        if drafts.checked > 0 {
            self.put("vllm:spec_decode_num_drafts_total", &[engine], drafts.checked as f64);
            self.put("vllm:spec_decode_num_draft_tokens_total", &[engine], drafts.proposed as f64);
            self.put("vllm:spec_decode_num_accepted_tokens_total", &[engine], drafts.accepted as f64);
        }
        let (size, blocks) = (BLOCK_TOKENS.to_string(), gauges.kv_blocks.to_string());
        self.put(
            "vllm:cache_config_info",
            &[engine, ("block_size", &size), ("num_gpu_blocks", &blocks)],
            1.0,
        );
    }

    fn requests(&mut self, engine: (&str, &str), meter: &ReplicaMeter, tells_tokens: bool) {
        self.put("vllm:prompt_tokens_total", &[engine], meter.prompt_tokens as f64);
        self.put("vllm:generation_tokens_total", &[engine], meter.generation_tokens as f64);
        for (reason, n) in meter.ended() {
            self.put("vllm:request_success_total", &[engine, ("finished_reason", reason)], n as f64);
        }
        for (name, histogram) in meter.times() {
            // If tokens between the first and the last are skipped, their gaps are unknown.
            let known = tells_tokens || name != "inter_token_latency_seconds";
            self.histogram(name, engine, histogram, 1e9, known);
        }
        for (name, histogram) in meter.sizes() {
            self.histogram(name, engine, histogram, 1.0, true);
        }
    }

    /// Writes Triton's counters in its units. With several servers the label is the replica's number, because Triton
    /// has no such label.
    fn triton(&mut self, engine: &str, gauges: &EngineGauges, meter: &ReplicaMeter) {
        let totals = &gauges.totals;
        let labels = [("model", "model"), ("replica", engine), ("version", "1")];
        let us = |ns: u64| (ns / 1_000) as f64;
        for (name, value) in [
            ("nv_inference_request_success", totals.finished as f64),
            ("nv_inference_count", totals.items as f64),
            ("nv_inference_exec_count", totals.steps as f64),
            ("nv_inference_request_duration_us", us(meter.e2e.sum)),
            ("nv_inference_queue_duration_us", us(totals.queue_ns)),
            ("nv_inference_compute_input_duration_us", us(totals.input_ns)),
            ("nv_inference_compute_infer_duration_us", us(totals.compute_ns)),
            ("nv_inference_compute_output_duration_us", us(totals.output_ns)),
            ("nv_inference_pending_request_count", f64::from(gauges.waiting)),
        ] {
            self.put(name, &labels, value);
        }
        for (reason, n) in [("CANCELED", meter.aborted), ("REJECTED", meter.failed)] {
            let labels = [labels[0], ("reason", reason), labels[1], labels[2]];
            self.put("nv_inference_request_failure", &labels, n as f64);
        }
    }

    fn histogram(
        &mut self,
        name: &str,
        engine: (&str, &str),
        histogram: &BucketHistogram,
        unit: f64,
        known: bool,
    ) {
        let answers = self.answers;
        self.answers = answers && known;
        let mut total = 0;
        for (place, count) in histogram.counts.iter().enumerate() {
            total += count;
            self.put_row(total as f64, || {
                let edge = histogram.bounds.get(place).map_or(f64::INFINITY, |bound| *bound as f64 / unit);
                let edge = if edge.is_finite() { edge.to_string() } else { "+Inf".to_owned() };
                texts(&format!("vllm:{name}_bucket"), &[engine, ("le", &edge)])
            });
        }
        let of_all = |part: &str| texts(&format!("vllm:{name}_{part}"), &[engine]);
        self.put_row(histogram.sum as f64 / unit, || of_all("sum"));
        self.put_row(total as f64, || of_all("count"));
        self.answers = answers;
    }

    /// Writes a value if it changed since the last scrape.
    fn put(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.put_row(value, || texts(name, labels));
    }

    /// Writes a value if it changed; `texts` returns the name and labels of the row.
    fn put_row(&mut self, value: f64, texts: impl Fn() -> (SharedText, SharedText)) {
        let value = if self.answers { value } else { f64::NAN };
        self.found += u32::from(self.answers);
        let place = self.place;
        self.place += 1;
        if self.last.len() <= place {
            self.last.push(PageRow { value: f64::NAN, texts: None });
        }
        let row = &mut self.last[place];
        let before = std::mem::replace(&mut row.value, value);
        if before.to_bits() == value.to_bits() || (before.is_nan() && value.is_nan()) {
            return;
        }
        debug_assert!(row.texts.as_ref().is_none_or(|known| *known == texts()), "a row of another series");
        let (name, labels) = row.texts.get_or_insert_with(texts).clone();
        self.rows.sample(Sample { at: self.at, source: self.source.clone(), name, labels, value });
    }
}

fn texts(name: &str, labels: &[(&str, &str)]) -> (SharedText, SharedText) {
    (name.into(), join_labels(labels).into())
}
