//! The flags of `plimsoll k8s`.

use clap::Args;

use super::{OutputFormat, RunArgs, SearchArgs};

/// `plimsoll k8s`
#[derive(Args, Debug)]
pub struct K8sArgs {
    #[command(flatten)]
    pub run: RunArgs,
    /// A sweep instead of one load
    #[arg(long, help_heading = "Kubernetes")]
    pub sweep: bool,
    #[command(flatten)]
    pub search: SearchArgs,
    /// Number of pods; each sends one shard of the load
    #[arg(long, value_name = "N", help_heading = "Kubernetes")]
    pub shards: u32,
    /// PersistentVolumeClaim (ReadWriteMany) for the runs of all pods
    #[arg(long, value_name = "NAME", required_unless_present = "place", help_heading = "Kubernetes")]
    pub claim: Option<String>,
    /// Object store in place of a claim: s3://bucket/prefix, gs:// or az://
    #[arg(long, value_name = "URL", conflicts_with = "claim", help_heading = "Kubernetes")]
    pub place: Option<String>,
    /// Secret with the environment of the store (AWS_ACCESS_KEY_ID, …)
    #[arg(long, value_name = "SECRET", help_heading = "Kubernetes")]
    pub place_secret: Option<String>,
    /// Service account of the pods
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub service_account: Option<String>,
    /// Secret and key that hold the API key
    #[arg(long, value_name = "SECRET/KEY", help_heading = "Kubernetes")]
    pub key_secret: Option<String>,
    /// Container image [default: plimsoll:VERSION]
    #[arg(long, value_name = "IMAGE", help_heading = "Kubernetes")]
    pub image: Option<String>,
    /// Name of the Job [default: plimsoll- and a random number]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub name: Option<String>,
    /// Namespace [default: kubectl's]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub namespace: Option<String>,
    /// Whole CPUs per pod
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Kubernetes")]
    pub cpus: u32,
    /// Memory per pod
    #[arg(long, value_name = "SIZE", default_value = "2Gi", help_heading = "Kubernetes")]
    pub memory: String,
}

impl K8sArgs {
    /// Returns the output format: text is YAML.
    pub fn format(&self) -> OutputFormat {
        self.run.output.format
    }
}
