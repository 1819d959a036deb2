//! KEDA: a ScaledObject on the number of waiting requests per replica.
//!
//! The query returns the sum: KEDA passes it to the autoscaler as an average value, which divides it by the target. A
//! missing source is not an empty queue: nulls are an error, and `fallback` keeps the present replicas.

use std::fmt::Write as _;

use plimsoll_judge::budget::BudgetFile;
use plimsoll_measure::server_side::Signal;

use super::rules::gauge;
use super::source::{ExportSource, quoted};
use super::{ExportSpec, slug};

/// Returns the document.
///
/// # Errors
/// Fails if the target, the scaled object, or the source's signal is missing.
pub(crate) fn scaled_object(
    file: &BudgetFile,
    source: &ExportSource,
    spec: &ExportSpec,
) -> Result<String, String> {
    let target = spec
        .queue_per_replica
        .ok_or("keda: no queue length per replica; set it, for example --queue-per-replica 4")?;
    let deployment =
        spec.deployment.as_deref().ok_or("keda: no deployment to scale; name it with --deployment NAME")?;
    let waiting = gauge(source, Signal::Waiting)
        .ok_or_else(|| format!("keda: {} exposes no gauge of requests that wait", source.name))?;
    // A gateway's gauges include the requests on its replicas, waiting or not, and its queue.
    let is_gateway = source.name == "gateway";
    let query = match gauge(source, Signal::Running).filter(|_| is_gateway) {
        Some(running) => format!("{running} + {waiting}"),
        None => waiting,
    };
    let what = if is_gateway {
        "requests in flight per replica, including waiting ones"
    } else {
        "requests that wait per replica"
    };
    let name = spec.name(file);
    let address = spec.prometheus.as_deref().unwrap_or("http://prometheus-server.monitoring:9090");
    let mut out = format!("# plimsoll export: {what}, on what {} exposes.\n", source.name);
    out += "# Scale down slowly, because a new replica is cold; scale up immediately, because a queue grows by the second.\n";
    let _ = write!(
        out,
        "apiVersion: keda.sh/v1alpha1\nkind: ScaledObject\nmetadata:\n  name: {name}\nspec:\n  scaleTargetRef:\n    name: {deployment}\n  \
         minReplicaCount: 1\n  pollingInterval: 15\n  cooldownPeriod: 300\n  fallback:\n    failureThreshold: 4\n    replicas: 1\n    \
         behavior: currentReplicas\n  advanced:\n    horizontalPodAutoscalerConfig:\n      behavior:\n        scaleDown:\n          \
         stabilizationWindowSeconds: 300\n  triggers:\n    - type: prometheus\n      metricType: AverageValue\n      metadata:\n        \
         serverAddress: {address}\n        query: {query}\n        threshold: {threshold}\n        activationThreshold: \"0\"\n        \
         ignoreNullValues: \"false\"\n",
        name = slug(&format!("{name}-queue")),
        deployment = quoted(deployment),
        address = quoted(address),
        query = quoted(&query),
        threshold = quoted(&target.to_string()),
    );
    Ok(out)
}
