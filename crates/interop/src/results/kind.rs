//! Detects the tool that wrote a file by its first bytes. File names were rejected, because results are renamed, moved and compressed.

/// The supported formats, as an error message lists them.
pub const UNDERSTOOD: &str = "results of vLLM bench, SGLang bench, GuideLLM (JSON), AIPerf, MLPerf LoadGen and Endpoints \
    and k6 (--out json or csv)";

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kind {
    /// Result of `vllm bench serve --save-result`, also as JSON Lines.
    Vllm,
    Sglang,
    GuideLlm,
    /// Rows of AIPerf, in the file `profile_export.jsonl`.
    AiPerfRows,
    /// Aggregates of AIPerf, in the file `profile_export_aiperf.json`.
    AiPerfSummary,
    /// Any file of GenAI-Perf or perf_analyzer.
    GenAiPerf,
    InferencePerf,
    /// Trace of LoadGen, in the file `mlperf_log_trace.json`.
    LoadGenTrace,
    /// Detail log of LoadGen, in the file `mlperf_log_detail.txt`.
    LoadGenDetail,
    /// Events of MLPerf Endpoints, in the file `events.jsonl`.
    EndpointsEvents,
    /// Aggregates of MLPerf Endpoints, in the file `result_summary.json`.
    EndpointsSummary,
    /// Settings of MLPerf Endpoints, in the file `config.yaml`.
    EndpointsConfig,
    K6Points,
    K6Csv,
    K6Summary,
    GenAiBench,
    Locust,
    /// Benchmark report of llm-d.
    BenchmarkReport,
    Oha,
    GuideLlmCsv,
    /// Aggregates of AIPerf or GenAI-Perf as CSV.
    GenAiCsv,
}

impl Kind {
    /// Returns the name of the tool that writes this format.
    pub fn tool(self) -> &'static str {
        match self {
            Kind::Vllm => "vLLM bench",
            Kind::Sglang => "SGLang bench",
            Kind::GuideLlm | Kind::GuideLlmCsv => "GuideLLM",
            Kind::AiPerfRows | Kind::AiPerfSummary => "AIPerf",
            Kind::GenAiPerf => "GenAI-Perf",
            Kind::GenAiCsv => "AIPerf or GenAI-Perf",
            Kind::InferencePerf => "inference-perf",
            Kind::LoadGenTrace | Kind::LoadGenDetail => "MLPerf LoadGen",
            Kind::EndpointsEvents | Kind::EndpointsSummary | Kind::EndpointsConfig => "MLPerf Endpoints",
            Kind::K6Points | Kind::K6Csv | Kind::K6Summary => "k6",
            Kind::GenAiBench => "genai-bench",
            Kind::Locust => "Locust",
            Kind::BenchmarkReport => "benchmark report",
            Kind::Oha => "oha",
        }
    }

    /// Returns whether the file has one row per request.
    pub(crate) fn has_rows(self) -> bool {
        matches!(
            self,
            Kind::Vllm
                | Kind::Sglang
                | Kind::GuideLlm
                | Kind::AiPerfRows
                | Kind::LoadGenTrace
                | Kind::EndpointsEvents
                | Kind::K6Points
                | Kind::K6Csv
        )
    }

    /// Returns the reason why a file without rows can't be imported on its own.
    pub(super) fn why_not(self) -> &'static str {
        match self {
            Kind::AiPerfSummary => {
                "aggregates only, whose percentiles have no interval; import the folder with profile_export.jsonl"
            }
            Kind::GenAiPerf | Kind::InferencePerf | Kind::GenAiBench => {
                "results of this tool are not read; measure with AIPerf, GuideLLM or `vllm bench serve` and import \
                 that, or with `plimsoll run`"
            }
            Kind::LoadGenDetail => {
                "settings and aggregates only; requests are in mlperf_log_trace.json, which needs enable_trace"
            }
            Kind::EndpointsSummary | Kind::EndpointsConfig => {
                "no requests in it; import the folder with events.jsonl"
            }
            Kind::K6Summary => {
                "aggregates only; import what `k6 run --out json=FILE` wrote, or a folder with both"
            }
            Kind::Locust => {
                "counts in buckets of two digits and no requests, of a closed loop: no percentile can be recomputed, \
                 and Locust has no output with rows"
            }
            Kind::BenchmarkReport => {
                "aggregates only, whose percentiles have no interval: nothing can be recomputed; import what the \
                 tool behind it wrote"
            }
            Kind::Oha => {
                "aggregates only; requests are in the SQLite file of --db-url, which is not read yet"
            }
            Kind::GuideLlmCsv => "aggregates only; import the JSON report",
            Kind::GenAiCsv => "aggregates only; import the folder with the profile_export of each request",
            _ => "no request in it",
        }
    }
}

/// Detects the format from the first bytes of a file; 64 KiB suffice.
pub fn sniff(head: &[u8]) -> Option<Kind> {
    let head = head.strip_prefix(b"\xef\xbb\xbf").unwrap_or(head).trim_ascii_start();
    let has = |word: &str| memchr::memmem::find(head, word.as_bytes()).is_some();
    if head.starts_with(b":::MLLOG") {
        return Some(Kind::LoadGenDetail);
    }
    match head.first()? {
        b'{' => object(head, &has),
        b'[' if has("\"start_time\"") && has("\"info\"") && has("\"request\"") => Some(Kind::InferencePerf),
        b'[' if has("\"num_none_requests\"") => Some(Kind::Locust),
        b'[' => None,
        _ => plain(head, &has),
    }
}

fn object(head: &[u8], has: &dyn Fn(&str) -> bool) -> Option<Kind> {
    let all = |words: &[&str]| words.iter().all(|word| has(word));
    let first = head.get(..head.len().min(400)).unwrap_or(head);
    let early = |word: &str| memchr::memmem::find(first, word.as_bytes()).is_some();
    Some(if early("\"traceEvents\"") && all(&["\"GenerateLoadableSets\"", "LogDetail"]) {
        Kind::LoadGenTrace
    } else if early("\"event_type\"") && all(&["\"sample_uuid\"", "\"timestamp_ns\""]) {
        Kind::EndpointsEvents
    } else if early("\"metadata\"") && all(&["\"benchmark_phase\"", "\"request_start_ns\"", "\"metrics\""]) {
        Kind::AiPerfRows
    } else if early("\"guidellm_version\"")
        || (early("\"metadata\"") && all(&["\"benchmarks\"", "\"generative_benchmark"]))
        // Before 0.4 a file has only the benchmarks.
        || (early("\"benchmarks\"") && all(&["\"generative_benchmark", "\"run_stats\""]))
    {
        Kind::GuideLlm
    } else if early("\"aiperf_version\"") {
        Kind::AiPerfSummary
    } else if all(&["\"experiments\"", "\"response_timestamps\""])
        || all(&["\"input_config\"", "\"request_latency\"", "\"request_throughput\""])
    {
        Kind::GenAiPerf
    } else if all(&["\"endpoint_type\"", "\"request_throughput\""])
        || all(&["\"endpoint_type\"", "\"num_prompts\""])
    {
        Kind::Vllm
    } else if all(&["\"backend\"", "\"server_info\""]) && has("\"max_concurrency\"") {
        Kind::Sglang
    } else if early("\"backend\"") && all(&["\"tokenizer_id\"", "\"num_prompts\""]) {
        // `benchmark_serving.py`, before it became `vllm bench serve`.
        Kind::Vllm
    } else if all(&["\"aggregated_metrics\"", "\"num_concurrency\""]) {
        Kind::GenAiBench
    } else if early("\"n_samples_issued\"") {
        Kind::EndpointsSummary
    } else if all(&["\"load_summary\"", "\"successes\""]) {
        Kind::InferencePerf
    } else if (early("\"Metric\"") || early("\"Point\"")) && has("\"metric\"") {
        Kind::K6Points
    } else if early("\"metrics\"") && (has("\"http_req_duration\"") || has("\"iterations\"")) {
        Kind::K6Summary
    } else if all(&["\"latencyPercentiles\"", "\"summary\""]) {
        Kind::Oha
    } else {
        return None;
    })
}

fn plain(head: &[u8], has: &dyn Fn(&str) -> bool) -> Option<Kind> {
    let all = |words: &[&str]| words.iter().all(|word| has(word));
    if head.starts_with(b"metric_name,timestamp,metric_value") {
        return Some(Kind::K6Csv);
    }
    if head.starts_with(b"Type,Name,Request Count") || head.starts_with(b"Timestamp,User Count,Type") {
        return Some(Kind::Locust);
    }
    if head.starts_with(b"Metric,avg,min,max") {
        return Some(Kind::GenAiCsv);
    }
    if all(&["scheduler_random_seed:", "load_pattern:", "endpoint_config:"]) {
        return Some(Kind::EndpointsConfig);
    }
    if all(&["version:", "results:"]) && (has("request_performance:") || has("scenario:")) {
        return Some(Kind::BenchmarkReport);
    }
    let is_guidellm = head.starts_with(b"Run Info,") || (has("Scheduled Latency") && has("Request Counts"));
    is_guidellm.then_some(Kind::GuideLlmCsv)
}
