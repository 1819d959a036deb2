//! Reads Triton's configuration and statistics around the load, for the rules on its batcher.

use std::time::Duration;

use plimsoll_client::doctor::{CheckSeverity, DoctorFinding};
use plimsoll_client::metrics::pages;
use plimsoll_measure::findings::Metric;
use plimsoll_model::Protocol;
use plimsoll_profile::Stage;
use plimsoll_report::figure::centile;
use plimsoll_wire::kserve::batching::{BatchingConfig, BatchingStats, read_batching, read_stats};
use plimsoll_workload::TargetSpec;

use super::batching::{BatcherCheck, QueueLimit};
use crate::budget_file::{self, BudgetText};
use crate::exit::Stop;
use crate::flags::DoctorArgs;

/// Pause between two reads of the counters, and the most reads, until they include the load's last batch.
const SETTLE_PAUSE: Duration = Duration::from_millis(100);
const SETTLE_READS: u32 = 20;

/// The models of a Triton server, with their counters before the load.
pub struct TritonModels {
    models: Vec<TritonModel>,
}

struct TritonModel {
    name: String,
    url: String,
    config: BatchingConfig,
    /// Counters before the load; the error if the server reports none.
    before: Result<BatchingStats, String>,
}

impl TritonModels {
    /// Reads the target's model and, of an ensemble, its steps. Empty without a KServe model over HTTP that reports its configuration.
    pub fn read(target: &TargetSpec) -> TritonModels {
        let mut models = Vec::new();
        if let (Protocol::Kserve, Some(name)) = (target.protocol, &target.model) {
            let version = target.version.as_ref().map(|v| format!("/versions/{v}")).unwrap_or_default();
            models.extend(TritonModel::read(target, name, &version));
            let mut steps = models.first().map(|own| own.config.steps.clone()).unwrap_or_default();
            steps.sort_unstable();
            steps.dedup();
            models.extend(steps.iter().filter_map(|step| TritonModel::read(target, step, "")));
        }
        TritonModels { models }
    }

    /// Reads the counters again and returns the findings. `finished` is the number of finished requests of the load.
    pub fn findings(
        &self,
        target: &TargetSpec,
        args: &DoctorArgs,
        (limits, finished): (&[QueueLimit], u64),
    ) -> Vec<DoctorFinding> {
        let has_steps = self.models.len() > 1;
        let mut findings = Vec::new();
        // An ensemble has no batcher. Its steps have.
        for model in self.models.iter().filter(|own| !has_steps || own.config.steps.is_empty()) {
            let stats = match &model.before {
                Ok(before) => model.settled(target, before, finished),
                Err(why) => Err(why.clone()),
            };
            if let Err(why) = &stats {
                findings.push(DoctorFinding {
                    check: "batches",
                    severity: CheckSeverity::Limited,
                    found: format!("the server reports no statistics of {} ({why})", model.name),
                    fix: "rules on measured batches need Triton's statistics extension".into(),
                });
            }
            let check = BatcherCheck {
                config: &model.config,
                stats: &stats.unwrap_or_default(),
                compiled: args.compiled_batch.or(model.config.compiled),
                limits,
                concurrency: args.concurrency,
            };
            let mut own = check.findings();
            if has_steps {
                own.iter_mut().for_each(|one| one.found.insert_str(0, &format!("{}: ", model.name)));
            }
            findings.extend(own);
        }
        findings
    }
}

impl TritonModel {
    fn read(target: &TargetSpec, name: &str, version: &str) -> Option<TritonModel> {
        let (base, query) =
            target.url.split_once('?').map_or((target.url.as_str(), None), |(a, b)| (a, Some(b)));
        let query = query.map(|query| format!("?{query}")).unwrap_or_default();
        let url = |page: &str| format!("{}/models/{name}{version}/{page}{query}", base.trim_end_matches('/'));
        let config = read_batching(&pages::fetch(target, &url("config")).ok()?)?;
        let mut model = TritonModel {
            name: name.to_owned(),
            url: url("stats"),
            config,
            before: Ok(BatchingStats::default()),
        };
        model.before = model.stats(target);
        Some(model)
    }

    /// Returns the events after `before`. Triton counts a batch after it has sent the responses, so that the last one may be
    /// missing at first.
    fn settled(
        &self,
        target: &TargetSpec,
        before: &BatchingStats,
        finished: u64,
    ) -> Result<BatchingStats, String> {
        for _ in 0..SETTLE_READS {
            let stats = self.stats(target)?.since(before);
            if stats.requests.count >= finished {
                return Ok(stats);
            }
            std::thread::sleep(SETTLE_PAUSE);
        }
        Ok(self.stats(target)?.since(before))
    }

    fn stats(&self, target: &TargetSpec) -> Result<BatchingStats, String> {
        let body = pages::fetch(target, &self.url)?;
        read_stats(&body).ok_or_else(|| "the response has no model_stats".to_owned())
    }
}

/// Returns the limits that the budget sets on a request's time or on its queue time.
pub fn limits(args: &DoctorArgs) -> Result<Vec<QueueLimit>, Stop> {
    let budget = match &args.budget {
        Some(path) => budget_file::read(path)?,
        None if args.slo.is_empty() => return Ok(Vec::new()),
        None => BudgetText::inline(&args.slo)?,
    };
    let is_queue = |name: &str| matches!(Stage::from_name(name), Some(Stage::Queue | Stage::BatchWait));
    let slices = budget.file.stages.iter().flat_map(|stages| &stages.slices);
    let mut limits: Vec<QueueLimit> = slices
        .filter(|(name, _)| is_queue(name))
        .map(|(name, slice)| QueueLimit {
            name: format!("slice {name}"),
            limit_s: slice.value,
            is_slice: true,
        })
        .collect();
    // A response is whole here, so that a limit on the first token is a limit on the request.
    let whole = budget.file.per_request().latency.into_iter().filter(|own| own.metric != Metric::Tpot);
    limits.extend(whole.map(|own| QueueLimit {
        name: format!("{} p{}", own.metric.name(), centile(own.percentile)),
        limit_s: own.limit_s,
        is_slice: false,
    }));
    match limits.is_empty() {
        true => Err(Stop::usage(
            "doctor: the budget has no limit on e2e or ttft and no slice of queue or batch_wait; add one",
        )),
        false => Ok(limits),
    }
}
