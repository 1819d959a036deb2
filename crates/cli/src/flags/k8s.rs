//! The flags of `plimsoll k8s`.

use clap::Args;

use super::{Format, RunArgs, SearchArgs};

/// `plimsoll k8s`
#[derive(Args, Debug)]
pub struct K8sArgs {
    /// The load: what `plimsoll run` takes.
    #[command(flatten)]
    pub run: RunArgs,
    /// A sweep instead of one load: its search, whose pods are those of all its levels
    #[arg(long, help_heading = "Kubernetes")]
    pub sweep: bool,
    /// What a sweep looks for.
    #[command(flatten)]
    pub search: SearchArgs,
    /// Pods that the load is sent from, one shard each
    #[arg(long, value_name = "N", help_heading = "Kubernetes")]
    pub shards: u32,
    /// PersistentVolumeClaim that all pods can write to (ReadWriteMany): there they meet, and there their runs lie
    #[arg(long, value_name = "NAME", required_unless_present = "place", help_heading = "Kubernetes")]
    pub claim: Option<String>,
    /// Instead of a claim an object store: s3://bucket/prefix, gs:// or az://; the Job's name is put behind it
    #[arg(long, value_name = "URL", conflicts_with = "claim", help_heading = "Kubernetes")]
    pub place: Option<String>,
    /// Secret whose keys become the pods' environment, with what the store asks for (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_REGION)
    #[arg(long, value_name = "SECRET", help_heading = "Kubernetes")]
    pub place_secret: Option<String>,
    /// Service account of the pods, that has a role at the cloud
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub service_account: Option<String>,
    /// Secret that holds the API key, and the key's name in it
    #[arg(long, value_name = "SECRET/KEY", help_heading = "Kubernetes")]
    pub key_secret: Option<String>,
    /// Image with plimsoll [default: plimsoll:VERSION]
    #[arg(long, value_name = "IMAGE", help_heading = "Kubernetes")]
    pub image: Option<String>,
    /// Name of the Job, new for each run [default: plimsoll- and a random number]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub name: Option<String>,
    /// Namespace [default: the one that kubectl applies it in]
    #[arg(long, value_name = "NAME", help_heading = "Kubernetes")]
    pub namespace: Option<String>,
    /// Whole CPUs of each pod
    #[arg(long, value_name = "N", default_value_t = 2, help_heading = "Kubernetes")]
    pub cpus: u32,
    /// Memory of each pod
    #[arg(long, value_name = "SIZE", default_value = "2Gi", help_heading = "Kubernetes")]
    pub memory: String,
}

impl K8sArgs {
    /// How it is printed: YAML, or JSON.
    pub fn format(&self) -> Format {
        self.run.output.format
    }
}
