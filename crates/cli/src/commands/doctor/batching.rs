//! Rules on Triton's dynamic batcher: its settings against the compiled profile, the budget, the load and the batches that ran.
//!
//! Each rule uses only Triton's configuration, its counters during the load, and flags. A TensorRT plan does not report its
//! profile over Triton's API; therefore `--compiled-batch` sets it.

use plimsoll_client::doctor::{CheckSeverity, DoctorFinding};
use plimsoll_report::figure;
use plimsoll_wire::kserve::batching::{
    BatchingConfig, BatchingStats, CompiledBatch, DynamicBatching, TimeSum,
};

/// Share of a request's time in the queue from which a change of batching or instances helps.
const QUEUE_SHARE: f64 = 0.2;
/// Fewest executions for a rule on measured batches.
const EXECUTIONS_MIN: u64 = 20;
/// Requests per execution from which requests share batches.
const SHARED: f64 = 1.05;
/// Share of a request's time above which a delay matters.
const FELT: f64 = 0.01;
/// Share of a single row's time at which a row of a large batch saves nothing.
const NO_GAIN: f64 = 0.9;

/// A time limit on a request or on its queue time.
#[derive(Clone, PartialEq, Debug)]
pub struct QueueLimit {
    /// Source of the limit, for text.
    pub name: String,
    pub limit_s: f64,
    /// Whether the limit is on the queue time only. Otherwise it includes the execution.
    pub is_slice: bool,
}

/// One model under the load.
pub struct BatcherCheck<'a> {
    pub config: &'a BatchingConfig,
    /// Counters during the load; all 0 if the server reports none.
    pub stats: &'a BatchingStats,
    pub compiled: Option<CompiledBatch>,
    pub limits: &'a [QueueLimit],
    /// Requests in flight.
    pub concurrency: u32,
}

fn good(check: &'static str, found: String) -> DoctorFinding {
    DoctorFinding { check, severity: CheckSeverity::Good, found, fix: String::new() }
}

fn limited(check: &'static str, found: String, fix: impl Into<String>) -> DoctorFinding {
    DoctorFinding { check, severity: CheckSeverity::Limited, found, fix: fix.into() }
}

fn listed(sizes: &[u64]) -> String {
    sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(", ")
}

/// Formats a mean number of rows; a whole one has no decimals.
fn rows_text(rows: f64) -> String {
    if rows.fract() == 0.0 { figure::plain(rows) } else { figure::number(rows) }
}

fn time(seconds: f64) -> String {
    figure::duration_ns(seconds * 1e9)
}

impl BatcherCheck<'_> {
    /// Returns the findings of every rule that applies.
    pub fn findings(&self) -> Vec<DoctorFinding> {
        let mut findings = vec![self.settings()];
        findings.extend(self.distribution());
        if let Some(compiled) = &self.compiled {
            findings.extend(self.profile(compiled));
        }
        if let Some(dynamic) = &self.config.dynamic {
            findings.extend(self.preferred(dynamic));
            findings.extend(self.delay(dynamic));
            findings.extend(self.fill(dynamic));
            findings.extend(self.queue_length(dynamic));
            findings.extend(self.sharing(dynamic));
        }
        findings.extend(self.waiting());
        findings.extend(self.instances());
        findings.extend(self.gain());
        findings
    }

    /// Mean rows of a request; 1 without a measurement, as the load sends one.
    fn rows(&self) -> f64 {
        let of_requests = self.stats.rows as f64 / self.stats.requests.count.max(1) as f64;
        if self.stats.rows == 0 || self.stats.requests.count == 0 { 1.0 } else { of_requests.max(1.0) }
    }

    fn rows_in_flight(&self) -> f64 {
        f64::from(self.concurrency) * self.rows()
    }

    /// Mean time of an execution in seconds; `None` without one.
    fn execution_s(&self) -> Option<f64> {
        let (count, ns) = self
            .stats
            .batches
            .values()
            .fold((0, 0u64), |sum, own| (sum.0 + own.count, sum.1.saturating_add(own.ns)));
        (count > 0).then(|| ns as f64 / count as f64 / 1e9)
    }

    /// Mean requests per execution; `None` with too few executions.
    fn requests_per_execution(&self) -> Option<f64> {
        let BatchingStats { requests, executions, .. } = self.stats;
        (*executions >= EXECUTIONS_MIN).then(|| requests.count as f64 / *executions as f64)
    }

    fn settings(&self) -> DoctorFinding {
        let BatchingConfig { max_batch, dynamic, is_sequence, instances, .. } = self.config;
        let batcher = match dynamic {
            Some(own) if own.preferred.is_empty() => format!("dynamic batching, delay {} µs", own.delay_us),
            Some(own) => {
                format!("dynamic batching to {} rows, delay {} µs", listed(&own.preferred), own.delay_us)
            }
            None if *is_sequence => "sequence batching".to_owned(),
            None => "no dynamic batching".to_owned(),
        };
        let instances = figure::counted(*instances, "instance");
        good("batcher", format!("{batcher}; max_batch_size {max_batch}, {instances}"))
    }

    /// The measured batches, by rows.
    fn distribution(&self) -> Option<DoctorFinding> {
        let BatchingStats { requests, rows, executions, batches, .. } = self.stats;
        if *executions == 0 {
            return None;
        }
        let mut parts: Vec<_> = batches.iter().collect();
        parts.sort_by_key(|(_, own)| std::cmp::Reverse(own.count));
        let rest: u64 = parts.iter().skip(6).map(|(_, own)| own.count).sum();
        parts.truncate(6);
        parts.sort_by_key(|(size, _)| **size);
        let mut sizes: Vec<String> = parts
            .iter()
            .map(|(size, own)| {
                let mean = own.mean_s().map(time).unwrap_or_default();
                format!("{} of {} ({mean})", own.count, figure::counted(**size, "row"))
            })
            .collect();
        if rest > 0 {
            sizes.push(format!("{rest} of other sizes"));
        }
        let mean = *rows as f64 / *executions as f64;
        Some(good(
            "batches",
            format!(
                "{} in {} ({} rows/execution): {}",
                figure::counted(requests.count, "request"),
                figure::counted(*executions, "execution"),
                rows_text(mean),
                sizes.join(", ")
            ),
        ))
    }

    /// The compiled profile against the largest batch, single requests and the batches that ran.
    fn profile(&self, compiled: &CompiledBatch) -> Vec<DoctorFinding> {
        const CHECK: &str = "compiled profile";
        let CompiledBatch { range, opt } = compiled;
        let own = format!("the compiled profile has {} to {} rows", range.min, range.max);
        let mut findings = Vec::new();
        if self.config.max_batch > range.max {
            findings.push(limited(
                CHECK,
                format!(
                    "{own}, max_batch_size is {}: larger batches fail or compile again",
                    self.config.max_batch
                ),
                format!("set max_batch_size: {}, or compile a larger maximum", range.max),
            ));
        }
        if range.min as f64 > self.rows() {
            findings.push(limited(
                CHECK,
                format!(
                    "{own}: a single request of {} is smaller",
                    figure::counted(self.rows() as u64, "row")
                ),
                "compile a minimum of 1 row; a delay does not guarantee that a batch fills",
            ));
        }
        let outside: u64 = self
            .stats
            .batches
            .iter()
            .filter(|(size, _)| !range.contains(**size))
            .map(|(_, own)| own.count)
            .sum();
        if outside > 0 {
            findings.push(limited(
                CHECK,
                format!("{own}: {outside} of {} executions were outside", self.stats.executions),
                "compile the sizes that run, or change max_batch_size and preferred_batch_size",
            ));
        }
        if let Some(median) = self.median_rows()
            && !(opt.div_ceil(2)..=opt.saturating_mul(2)).contains(&median)
        {
            findings.push(limited(
                CHECK,
                format!("the kernels are optimised for {opt} rows; half of the rows ran in batches of {median} or fewer"),
                format!("compile with an optimum near {median}, or add a profile for this size"),
            ));
        }
        if findings.is_empty() {
            findings.push(good(CHECK, own));
        }
        findings
    }

    /// Batch size below or at which half of the rows ran; `None` with too few executions.
    fn median_rows(&self) -> Option<u64> {
        let rows = |(size, own): (&u64, &TimeSum)| size.saturating_mul(own.count);
        let all: u64 = self.stats.batches.iter().map(rows).sum();
        let mut below = 0;
        let mut sizes = self.stats.batches.iter();
        sizes
            .find(|(size, own)| {
                below += rows((size, own));
                2 * below >= all
            })
            .map(|(size, _)| *size)
            .filter(|_| self.stats.executions >= EXECUTIONS_MIN)
    }

    /// Preferred sizes that can't run, that have no CUDA graph, or that the batches missed.
    fn preferred(&self, dynamic: &DynamicBatching) -> Vec<DoctorFinding> {
        const CHECK: &str = "preferred sizes";
        let max = self.config.max_batch;
        let sizes = |wrong: &dyn Fn(u64) -> bool| -> Vec<u64> {
            dynamic.preferred.iter().copied().filter(|size| wrong(*size)).collect()
        };
        let mut findings = Vec::new();
        let large = sizes(&|size| size > max);
        if !large.is_empty() {
            let found = format!("preferred {} is above max_batch_size {max}", listed(&large));
            findings.push(limited(
                CHECK,
                found,
                "remove it from preferred_batch_size, or raise max_batch_size",
            ));
        }
        if let Some(CompiledBatch { range, .. }) = self.compiled {
            let outside = sizes(&|size| !range.contains(size));
            if !outside.is_empty() {
                findings.push(limited(
                    CHECK,
                    format!(
                        "preferred {} is outside the compiled {} to {} rows",
                        listed(&outside),
                        range.min,
                        range.max
                    ),
                    "prefer sizes of the profile, its optimum first, or compile these sizes",
                ));
            }
        }
        let graphs = &self.config.graphs;
        let bare = sizes(&|size| !graphs.iter().any(|range| range.contains(size)));
        if !graphs.is_empty() && !bare.is_empty() {
            findings.push(limited(
                CHECK,
                format!("preferred {} has no CUDA graph", listed(&bare)),
                "add a graph_spec of this batch size, because other sizes launch each kernel",
            ));
        }
        findings
    }

    /// The delay against each limit of the budget.
    fn delay(&self, dynamic: &DynamicBatching) -> Vec<DoctorFinding> {
        const CHECK: &str = "queue delay";
        let delay_s = dynamic.delay_us as f64 / 1e6;
        let judged = self.limits.iter().map(|QueueLimit { name, limit_s, is_slice }| {
            let execution_s = if *is_slice { None } else { self.execution_s() };
            let left_s = limit_s - execution_s.unwrap_or(0.0);
            let with = execution_s.map(|s| format!(" and an execution of {}", time(s))).unwrap_or_default();
            let found = format!("delay {}{with}, limit {} ({name})", time(delay_s), time(*limit_s));
            if left_s <= 0.0 {
                limited(CHECK, found, "one execution exceeds the limit: no delay helps; use smaller batches")
            } else if delay_s >= left_s {
                let most_us = (left_s * 1e6 / 2.0).floor();
                let fix = format!(
                    "set max_queue_delay_microseconds to at most {most_us:.0}, half of the time left"
                );
                limited(CHECK, format!("{found}: a request that waits the delay misses it"), fix)
            } else {
                good(CHECK, found)
            }
        });
        judged.collect()
    }

    /// Whether the requests in flight can fill the smallest preferred batch.
    fn fill(&self, dynamic: &DynamicBatching) -> Option<DoctorFinding> {
        let least = dynamic.preferred.iter().copied().min().unwrap_or(self.config.max_batch);
        let in_flight = self.rows_in_flight();
        let request_s = self.stats.requests.mean_s().unwrap_or(0.0);
        let is_felt = dynamic.delay_us as f64 / 1e6 > FELT * request_s;
        (is_felt && in_flight < least as f64).then(|| {
            limited(
                "queue delay",
                format!(
                    "{} rows in flight cannot fill a batch of {least}: each batch waits the whole {} µs",
                    rows_text(in_flight),
                    dynamic.delay_us
                ),
                "at this concurrency, set max_queue_delay_microseconds: 0 or a smaller preferred size",
            )
        })
    }

    /// A queue without a limit, if the budget has one.
    fn queue_length(&self, dynamic: &DynamicBatching) -> Option<DoctorFinding> {
        let limit = self.limits.iter().min_by(|a, b| a.limit_s.total_cmp(&b.limit_s))?;
        let served = self.requests_per_execution()? * self.config.instances as f64;
        let requests = (limit.limit_s / self.execution_s()? * served).floor().max(1.0);
        (dynamic.max_queue == 0).then(|| {
            limited(
                "queue length",
                format!("the queue has no limit: under overload every request misses {}", limit.name),
                format!("set max_queue_size near {requests:.0}: the requests that this load's batches serve within the limit"),
            )
        })
    }

    /// A batcher that is on and joins no requests.
    fn sharing(&self, dynamic: &DynamicBatching) -> Option<DoctorFinding> {
        let per_execution = self.requests_per_execution()?;
        let is_idle = u64::from(self.concurrency) <= self.config.instances;
        // A second request that does not fit into the batch can't share it.
        let fits = 2.0 * self.rows() <= self.config.max_batch as f64;
        if per_execution >= SHARED || is_idle || !fits {
            return None;
        }
        let half_us = self.execution_s()? * 1e6 / 2.0;
        let fix = match dynamic.delay_us as f64 >= half_us {
            true => {
                "send requests of equal input shapes, or set allow_ragged_batch: only these share a batch"
                    .to_owned()
            }
            false => format!(
                "set max_queue_delay_microseconds near {half_us:.0}, half an execution; requests of unequal shapes share a \
                 batch only with allow_ragged_batch"
            ),
        };
        let found = format!("no batch joins requests, with {} in flight", self.concurrency);
        Some(limited("batch sharing", found, fix))
    }

    /// Queue time that batching or more instances would shorten.
    fn waiting(&self) -> Option<DoctorFinding> {
        const CHECK: &str = "queue time";
        let (queue_s, request_s) = (self.stats.queue.mean_s()?, self.stats.requests.mean_s()?);
        self.requests_per_execution()?;
        let share = queue_s / request_s;
        let found =
            format!("a request waits {} of {} ({})", time(queue_s), time(request_s), figure::percent(share));
        let BatchingConfig { dynamic, is_sequence, max_batch, instances, .. } = self.config;
        // The delay is a wait by configuration, not for a free instance.
        let delay_s = dynamic.as_ref().map_or(0.0, |own| own.delay_us as f64 / 1e6);
        if share < QUEUE_SHARE || queue_s <= delay_s {
            return Some(good(CHECK, found));
        }
        let fix = match (dynamic, max_batch) {
            (Some(_), _) => {
                let mean = self.stats.rows as f64 / self.stats.executions as f64;
                match mean < *max_batch as f64 / 2.0 && self.rows_in_flight() > instances.saturating_mul(*max_batch) as f64 {
                    true => "batches stay small although requests wait; check preferred_batch_size and input shapes".into(),
                    false => format!(
                        "{} busy: raise instance_group count if the device has room, or add a replica",
                        if *instances == 1 { "the instance is" } else { "the instances are" }
                    ),
                }
            }
            (None, _) if *is_sequence => "add sequence slots: max_candidate_sequences or instances".into(),
            (None, 2..) => "add `dynamic_batching { }`: each execution has one request".into(),
            (None, _) => {
                "raise instance_group count, or export the model with a batch dimension for dynamic batching"
                    .into()
            }
        };
        Some(limited(CHECK, found, fix))
    }

    /// Instances that the load cannot use.
    fn instances(&self) -> Option<DoctorFinding> {
        let BatchingConfig { instances, .. } = self.config;
        let concurrency = u64::from(self.concurrency);
        (*instances > concurrency).then(|| {
            limited(
                "instances",
                format!("{} in flight cannot use {instances} instances", figure::counted(concurrency, "request")),
                format!("set --concurrency to that of your run; instance_group count {concurrency} is enough for this load"),
            )
        })
    }

    /// Time per row of the smallest and the largest measured batch.
    fn gain(&self) -> Option<DoctorFinding> {
        const CHECK: &str = "batch gain";
        let mut common =
            self.stats.batches.iter().filter(|(size, own)| **size > 0 && own.count >= EXECUTIONS_MIN / 2);
        let ((small, few), (large, many)) = (common.next()?, common.next_back()?);
        let row_s = |size: u64, mean: f64| mean / size as f64;
        let (alone_s, joined_s) = (row_s(*small, few.mean_s()?), row_s(*large, many.mean_s()?));
        let found = format!(
            "a row takes {} in a batch of {small}, {} in a batch of {large}",
            time(alone_s),
            time(joined_s)
        );
        Some(match joined_s >= NO_GAIN * alone_s {
            true => limited(
                CHECK,
                found,
                "larger batches add latency and no throughput: set a delay of 0 and a smaller max_batch_size",
            ),
            false => good(CHECK, found),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use plimsoll_wire::kserve::batching::read_batching;

    /// Statistics of these batches: rows, executions and ms each, at `rows` per request, with a mean queue time.
    fn stats(batches: &[(u64, u64, u64)], rows: u64, queue_ms: u64) -> BatchingStats {
        let all: u64 = batches.iter().map(|(size, count, _)| size * count).sum();
        let requests = all / rows;
        let busy_ms: u64 = batches.iter().map(|(size, count, ms)| size / rows * count * ms).sum();
        let sum = |count: u64, ms: u64| TimeSum { count, ns: ms * 1_000_000 };
        BatchingStats {
            requests: sum(requests, busy_ms + requests * queue_ms),
            queue: sum(requests, requests * queue_ms),
            rows: all,
            executions: batches.iter().map(|(_, count, _)| count).sum(),
            batches: batches.iter().map(|(size, count, ms)| (*size, sum(*count, count * ms))).collect(),
        }
    }

    struct Case {
        config: String,
        stats: BatchingStats,
        compiled: Option<&'static str>,
        limit: Option<(f64, bool)>,
        concurrency: u32,
    }

    /// A healthy batcher: 8 in flight fill preferred batches of 4, which take 10 ms.
    fn sound() -> Case {
        Case {
            config: dynamic(r#""preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 1000"#, 1),
            stats: stats(&[(1, 20, 6), (4, 100, 10)], 1, 1),
            compiled: None,
            limit: None,
            concurrency: 8,
        }
    }

    fn dynamic(batcher: &str, instances: u64) -> String {
        let queue = r#""default_queue_policy": {"max_queue_size": 64}"#;
        format!(
            r#"{{"max_batch_size": 8, "dynamic_batching": {{{batcher}, {queue}}}, "instance_group": [{{"count": {instances}}}]}}"#
        )
    }

    /// The problems as `check: found → fix`.
    fn problems(case: &Case) -> Vec<String> {
        let config = read_batching(case.config.as_bytes()).expect("a configuration");
        let compiled = case.compiled.map(|text| text.parse().expect("a profile"));
        let limits: Vec<_> = case
            .limit
            .iter()
            .map(|(limit_s, is_slice)| QueueLimit {
                name: "e2e p95".into(),
                limit_s: *limit_s,
                is_slice: *is_slice,
            })
            .collect();
        let check = BatcherCheck {
            config: &config,
            stats: &case.stats,
            compiled,
            limits: &limits,
            concurrency: case.concurrency,
        };
        let bad = check.findings().into_iter().filter(|own| own.severity != CheckSeverity::Good);
        bad.map(|own| format!("{}: {} → {}", own.check, own.found, own.fix)).collect()
    }

    #[test]
    fn a_sound_batcher_has_no_problem() {
        assert_eq!(problems(&sound()), Vec::<String>::new());
        let compiled = Case { compiled: Some("1,4,8"), limit: Some((0.05, false)), ..sound() };
        assert_eq!(problems(&compiled), Vec::<String>::new());
    }

    #[test]
    fn each_disagreement_is_one_line() {
        let batcher = |text: &str| dynamic(text, 1);
        let off = r#"{"max_batch_size": 8, "instance_group": [{"count": 1}]}"#;
        let graphs = sound().config.replace(
            "\"instance_group\"",
            r#""optimization": {"cuda": {"graph_spec": [{"batch_size": 4}]}}, "instance_group""#,
        );
        for (case, says) in [
            (
                Case { compiled: Some("1,4,4"), ..sound() },
                &["max_batch_size: 4", "preferred 8 is outside the compiled 1 to 4"][..],
            ),
            (
                Case { compiled: Some("2,4,8"), ..sound() },
                &["request of 1 row is smaller", "20 of 120 executions were outside"],
            ),
            (Case { compiled: Some("1,16,32"), ..sound() }, &["optimised for 16 rows", "near 4"]),
            (Case { config: graphs, ..sound() }, &["preferred 8 has no CUDA graph"]),
            (
                Case { config: batcher(r#""preferred_batch_size": [4, 16]"#), ..sound() },
                &["preferred 16 is above max_batch_size 8"],
            ),
            // An execution takes (20 × 6 + 100 × 10) / 120 = 9.33 ms, which leaves 0.67 ms of 10 ms.
            (
                Case { limit: Some((0.010, false)), ..sound() },
                &["a request that waits the delay misses it", "at most 333,"],
            ),
            (Case { limit: Some((0.009, false)), ..sound() }, &["one execution exceeds the limit"]),
            // A slice of the queue excludes the execution.
            (Case { limit: Some((0.001, true)), ..sound() }, &["at most 500,"]),
            (Case { concurrency: 3, ..sound() }, &["3 rows in flight cannot fill a batch of 4"]),
            (
                Case { stats: stats(&[(1, 100, 6)], 1, 0), ..sound() },
                &["no batch joins requests, with 8 in flight", "near 3000"],
            ),
            (
                Case { config: off.into(), stats: stats(&[(1, 100, 6)], 1, 36), ..sound() },
                &["36.0 ms of 42.0 ms (85.7 %)", "dynamic_batching { }"],
            ),
            (
                Case { config: off.replace('8', "0"), stats: stats(&[(1, 100, 6)], 1, 36), ..sound() },
                &["batch dimension"],
            ),
            (
                Case { stats: stats(&[(8, 100, 20)], 1, 36), concurrency: 32, ..sound() },
                &["the instance is busy"],
            ),
            (
                Case { config: dynamic(r#""preferred_batch_size": [4]"#, 12), ..sound() },
                &["8 requests in flight cannot use 12 instances"],
            ),
            (
                Case { stats: stats(&[(1, 20, 6), (8, 100, 46)], 1, 1), ..sound() },
                &["6.00 ms in a batch of 1, 5.75 ms in a batch of 8"],
            ),
        ] {
            let found = problems(&case);
            let text = found.join("\n");
            assert!(says.iter().all(|part| text.contains(part)), "{says:?}: {text}");
            assert!(found.len() <= 3, "{text}");
        }
    }

    #[test]
    fn an_unlimited_queue_matters_with_a_budget() {
        let config = sound().config.replace("64", "0");
        assert_eq!(problems(&Case { config: config.clone(), ..sound() }), Vec::<String>::new());
        // 420 requests in 120 executions of 9.33 ms: 3.5 × 50 / 9.33 = 18.75 requests within 50 ms.
        let found = problems(&Case { config, limit: Some((0.05, false)), ..sound() });
        assert!(matches!(&found[..], [one] if one.contains("near 18:")), "{found:?}");
    }

    #[test]
    fn requests_that_fill_a_batch_alone_share_none() {
        let alone = Case { stats: stats(&[(8, 100, 20)], 8, 1), ..sound() };
        assert_eq!(problems(&alone), Vec::<String>::new());
        // A delay of 10 µs does not matter to requests of 7 ms and more.
        let config = sound().config.replace(": 1000", ": 10");
        assert_eq!(problems(&Case { config, concurrency: 3, ..sound() }), Vec::<String>::new());
        // Too few executions give no finding.
        let few = Case { stats: stats(&[(1, 19, 6)], 1, 1), ..sound() };
        assert_eq!(problems(&few), Vec::<String>::new());
    }
}
