//! The configuration of a simulated world: an engine, its replicas, the router, and the faults.

use plimsoll_model::Span;
use plimsoll_policy::{AdmissionControlSpec, AutoscaleSpec, ParsedSetting, RouteSpec, SettingError};
use plimsoll_workload::parse_span;
use plimsoll_workload::units::{SpanText, span_text};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::engine::scheduler::policy::PolicySpec;
use crate::spec::error::{SimSpecError, not_negative, positive, within};
use crate::spec::fault::{FaultKind, FaultSpec};
use crate::spec::{EngineSpec, ModeSpec, StepSpec};

pub const MAX_REPLICAS: u32 = plimsoll_policy::MOST_REPLICAS;

/// A simulated world: replicas of an engine, and their environment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct WorldSpec {
    /// Engine that runs on each replica.
    pub engine: EngineSpec,
    /// Number of replicas, and their environment.
    #[serde(default)]
    pub fleet: FleetSpec,
    /// Faults to simulate [default: none].
    #[serde(default)]
    pub faults: Vec<FaultSpec>,
}

/// The replicas and their environment.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct FleetSpec {
    /// Number of replicas at the start, all ready [default: 1].
    pub replicas: u32,
    /// Routing policy of the simulated router.
    pub route: RouteSpec,
    /// Gateway in front of the replicas, as in its file; replaces `route` [default: none].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gateway: Option<AdmissionControlSpec>,
    /// Age of the replica loads that the router uses, including its own placements [default: 0].
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub load_information_delay: Span,
    /// Autoscaler of the replicas [default: none].
    pub autoscale: Option<AutoscaleSpec>,
    /// Time from the request for a replica to its readiness.
    pub cold_start: ColdStartSpec,
    /// Separate replicas for prefill and decode [default: none].
    pub disaggregation: Option<DisaggregationSpec>,
    /// Adapters that a replica loads when a request needs them [default: none].
    pub adapters: Option<AdapterSpec>,
}

impl Default for FleetSpec {
    fn default() -> FleetSpec {
        FleetSpec {
            replicas: 1,
            route: RouteSpec::default(),
            gateway: None,
            load_information_delay: Span::ZERO,
            autoscale: None,
            cold_start: ColdStartSpec::default(),
            disaggregation: None,
            adapters: None,
        }
    }
}

/// The time from the request for a replica to its readiness, as the sum of these parts.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ColdStartSpec {
    /// Time to provision a machine [default: 0].
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub provision: Span,
    /// Time to pull the image [default: 30s].
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub image_pull: Span,
    /// Weights to load per GPU in GB (10^9 bytes) [default: the weights of the step model, else 0].
    pub weights_gb: Option<f64>,
    /// Disk speed in GB/s; the slowest of the three speeds counts [default: 2 GB/s if none of the three is given].
    pub disk_gb_per_s: Option<f64>,
    /// Speed of the network that transfers the weights in GB/s.
    pub network_gb_per_s: Option<f64>,
    /// Speed of the bus to the GPU in GB/s.
    pub pcie_gb_per_s: Option<f64>,
    /// Time for compilation and graph capture [default: 40s].
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub compile: Span,
    /// Duration of the first, warming request [default: 0].
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub first_request: Span,
}

impl Default for ColdStartSpec {
    fn default() -> ColdStartSpec {
        ColdStartSpec {
            provision: Span::ZERO,
            image_pull: Span::from_secs(30),
            weights_gb: None,
            disk_gb_per_s: None,
            network_gb_per_s: None,
            pcie_gb_per_s: None,
            compile: Span::from_secs(40),
            first_request: Span::ZERO,
        }
    }
}

/// Default speed of loading weights, GB/s.
const WEIGHTS_GB_PER_S: f64 = 2.0;

/// Separate replicas for prefill and decode, with a transfer of the KV cache between them.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DisaggregationSpec {
    /// Number of replicas for prefill.
    pub prefill_replicas: u32,
    /// Number of replicas for decode.
    pub decode_replicas: u32,
    /// Speed of the KV transfer in GB/s.
    #[serde(default = "transfer_gb_per_s")]
    pub transfer_gb_per_s: f64,
    /// KV cache per token in bytes [default: derived from the step model].
    #[serde(default)]
    pub kv_bytes_per_token: Option<f64>,
}

/// Adapters (LoRA); each replica has loaded some of them. The simulation ignores their effect on step times.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AdapterSpec {
    /// Names of the adapters, as in the `model` field of requests.
    #[serde(default)]
    pub names: Vec<String>,
    /// Maximum number of loaded adapters per replica; the least recently used idle one is evicted.
    pub slots: u32,
    /// Time to load an adapter, such as `200ms`.
    #[serde(with = "span_text")]
    #[schemars(with = "SpanText")]
    pub load: Span,
}

impl AdapterSpec {
    /// Parses `NAME+NAME:slots=2,load=500ms`. By default there are as many slots as names, and loading takes no time.
    ///
    /// # Errors
    /// Fails if a parameter is unknown or a value can't be parsed.
    pub fn parse(text: &str) -> Result<AdapterSpec, SettingError> {
        let mut written = ParsedSetting::parse(text)?;
        let names: Vec<String> = written.name.split('+').map(|name| name.trim().to_owned()).collect();
        let slots = written.take("slots", "a whole number from 1", |&slots: &u32| slots > 0)?;
        let load = written.take_with("load", "a span such as 500ms", |text| {
            parse_span(text).ok().filter(|span| span.0 >= 0)
        })?;
        let slots = slots.unwrap_or(names.len() as u32);
        written.finish()?;
        Ok(AdapterSpec { names, slots, load: load.unwrap_or(Span::ZERO) })
    }

    fn validate(&self) -> Result<(), SimSpecError> {
        within("fleet.adapters.slots", self.slots, 1, u32::MAX, "a whole number from 1")?;
        let refused = |why: String| SettingError::Conflict { name: "fleet.adapters.names".to_owned(), why };
        for (place, name) in self.names.iter().enumerate() {
            if name.is_empty() {
                return Err(refused("a name is empty; give each adapter one".to_owned()).into());
            }
            if self.names[..place].contains(name) {
                return Err(refused(format!("{name} is there twice; name each adapter once")).into());
            }
        }
        Ok(())
    }
}

impl WorldSpec {
    /// Returns the names of the fleet's adapters.
    pub fn adapter_names(&self) -> &[String] {
        self.fleet.adapters.as_ref().map_or(&[], |adapters| &adapters.names)
    }

    /// Returns a world with one replica and no router or faults.
    pub fn one(engine: EngineSpec) -> WorldSpec {
        WorldSpec { engine, fleet: FleetSpec::default(), faults: Vec::new() }
    }

    /// Checks all constraints that the types do not express.
    pub fn validate(&self) -> Result<(), SimSpecError> {
        self.engine.validate()?;
        self.fleet.validate()?;
        let kv_bytes = self.fleet.disaggregation.as_ref().map(|split| split.kv_bytes(&self.engine));
        kv_bytes.transpose()?;
        if self.fleet.disaggregation.is_some() && self.fleet.adapters.is_some() {
            let why =
                "adapters and disaggregation are not simulated together; leave one of them out".to_owned();
            return Err(SettingError::Conflict { name: "fleet".to_owned(), why }.into());
        }
        if self.fleet.adapters.is_some() && matches!(self.engine.mode, ModeSpec::Dynamic(_)) {
            let why =
                "an engine of kind dynamic serves one model of tensors; leave the adapters out".to_owned();
            return Err(SettingError::Conflict { name: "fleet.adapters".to_owned(), why }.into());
        }
        self.faults.iter().try_for_each(|fault| self.check_fault(fault))
    }

    fn check_fault(&self, fault: &FaultSpec) -> Result<(), SimSpecError> {
        let conflict = |why: String| {
            let name = format!("fault {}", fault.name());
            Err(SimSpecError::Setting(SettingError::Conflict { name, why }))
        };
        let batching = matches!(self.engine.mode, ModeSpec::Batching(_));
        if fault.kind.needs_cache() && !batching {
            return conflict("it acts on a KV cache; use an engine of kind batching".to_owned());
        }
        if fault.kind.needs_steps() && !batching && !matches!(self.engine.mode, ModeSpec::Dynamic(_)) {
            return conflict(
                "it acts on an engine's steps; use an engine of kind batching or dynamic".to_owned(),
            );
        }
        if self.fleet.disaggregation.is_some() && matches!(fault.kind, FaultKind::ScaleToZero { .. }) {
            return conflict("prefill and decode replicas do not sleep; leave it out".to_owned());
        }
        let most = self.fleet.most_replicas();
        if let Some(replica) = fault.replica
            && replica >= most
        {
            return conflict(format!("there is no replica {replica}; the last is {}", most - 1));
        }
        Ok(())
    }

    /// Returns whether the world has one replica and no router, gateway or other environment.
    pub(crate) fn is_one(&self) -> bool {
        let fleet = &self.fleet;
        fleet.replicas == 1
            && fleet.autoscale.is_none()
            && fleet.disaggregation.is_none()
            && fleet.adapters.is_none()
            && fleet.gateway.is_none()
            && self.faults.is_empty()
    }
}

impl FleetSpec {
    fn validate(&self) -> Result<(), SimSpecError> {
        within("fleet.replicas", self.replicas, 0, MAX_REPLICAS, "a whole number from 1 to 10000")?;
        if self.replicas == 0 && self.autoscale.is_none() {
            return Err(crate::spec::range(
                "fleet.replicas",
                0,
                "at least 1; only an autoscaler scales from none",
            ));
        }
        if let Some(autoscale) = &self.autoscale {
            autoscale.validate()?;
        }
        self.cold_start.validate()?;
        if let Some(split) = &self.disaggregation {
            split.validate()?;
            if self.autoscale.is_some() || self.replicas != 1 {
                let why = "set the number with prefill_replicas and decode_replicas, without replicas and autoscale";
                let name = "fleet.disaggregation".to_owned();
                return Err(SettingError::Conflict { name, why: why.to_owned() }.into());
            }
        }
        if let Some(gateway) = &self.gateway {
            gateway.validate()?;
            let with = [
                ("autoscale", self.autoscale.is_some()),
                ("disaggregation", self.disaggregation.is_some()),
                ("adapters", self.adapters.is_some()),
                ("load_information_delay", self.load_information_delay > Span::ZERO),
            ];
            if let Some((other, _)) = with.into_iter().find(|(_, there)| *there) {
                let why = format!("it is not simulated together with {other}; leave one of them out");
                return Err(SettingError::Conflict { name: "fleet.gateway".to_owned(), why }.into());
            }
        }
        self.adapters.as_ref().map_or(Ok(()), AdapterSpec::validate)
    }

    /// Returns the maximum number of replicas at any time.
    pub(crate) fn most_replicas(&self) -> u32 {
        let split = self.disaggregation.as_ref();
        let split = split.map_or(0, |split| split.prefill_replicas.saturating_add(split.decode_replicas));
        let scaled = self.autoscale.as_ref().map_or(0, |autoscale| autoscale.range().1);
        self.replicas.max(scaled).max(split).max(1)
    }
}

impl ColdStartSpec {
    fn validate(&self) -> Result<(), SimSpecError> {
        if let Some(weights) = self.weights_gb {
            not_negative("fleet.cold_start.weights_gb", weights)?;
        }
        let speeds = [
            ("fleet.cold_start.disk_gb_per_s", self.disk_gb_per_s),
            ("fleet.cold_start.network_gb_per_s", self.network_gb_per_s),
            ("fleet.cold_start.pcie_gb_per_s", self.pcie_gb_per_s),
        ];
        speeds
            .into_iter()
            .filter_map(|(name, speed)| Some((name, speed?)))
            .try_for_each(|(name, speed)| positive(name, speed))
    }

    /// Returns the time from the request for a replica to its readiness.
    pub fn total(&self, engine: &EngineSpec) -> Span {
        self.provision + self.image_pull + self.restart(engine)
    }

    /// Returns the time from the start of a process on an existing machine to its readiness.
    pub fn restart(&self, engine: &EngineSpec) -> Span {
        let speeds = [self.disk_gb_per_s, self.network_gb_per_s, self.pcie_gb_per_s];
        let slowest = speeds.into_iter().flatten().fold(f64::INFINITY, f64::min);
        let speed = if slowest.is_finite() { slowest } else { WEIGHTS_GB_PER_S };
        let weights = self.weights_gb.unwrap_or_else(|| weights_gb(engine));
        Span::from_secs_f64(weights / speed) + self.compile + self.first_request
    }
}

impl DisaggregationSpec {
    fn validate(&self) -> Result<(), SimSpecError> {
        let many = "a whole number from 1 to 10000";
        within("fleet.disaggregation.prefill_replicas", self.prefill_replicas, 1, MAX_REPLICAS, many)?;
        within("fleet.disaggregation.decode_replicas", self.decode_replicas, 1, MAX_REPLICAS, many)?;
        positive("fleet.disaggregation.transfer_gb_per_s", self.transfer_gb_per_s)
    }

    /// Returns the KV cache per token in bytes over all GPUs of a replica.
    ///
    /// # Errors
    /// Fails if the value is neither given nor derivable from the step model.
    pub fn kv_bytes(&self, engine: &EngineSpec) -> Result<f64, SimSpecError> {
        let field = "fleet.disaggregation.kv_bytes_per_token";
        match (self.kv_bytes_per_token, &engine.mode) {
            (_, ModeSpec::Batching(batching))
                if !matches!(batching.policy, PolicySpec::Vllm(_) | PolicySpec::NoEvict(_)) =>
            {
                Err(crate::spec::range(
                    "fleet.disaggregation",
                    "this engine",
                    "for the policies vllm and no_evict",
                ))
            }
            (Some(bytes), ModeSpec::Batching(_)) => not_negative(field, bytes).map(|()| bytes),
            (None, ModeSpec::Batching(batching)) => match &batching.step {
                StepSpec::Roofline(roofline) => Ok(roofline.kv_bytes_per_layer()
                    * f64::from(roofline.model.layers)
                    * f64::from(roofline.tensor_parallel)),
                _ => Err(crate::spec::range(
                    field,
                    "nothing",
                    "enough: a linear step model has no default; give a number",
                )),
            },
            _ => {
                Err(crate::spec::range("fleet.disaggregation", "this engine", "for engines of kind batching"))
            }
        }
    }
}

/// Returns the weights per GPU in GB, 0 if unknown.
fn weights_gb(engine: &EngineSpec) -> f64 {
    match &engine.mode {
        ModeSpec::Batching(batching) => match &batching.step {
            StepSpec::Roofline(roofline) => roofline.weights_per_gpu() / 1e9,
            _ => 0.0,
        },
        _ => 0.0,
    }
}

fn transfer_gb_per_s() -> f64 {
    64.0
}
