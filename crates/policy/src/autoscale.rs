//! How many replicas there should be: the autoscaler as a file or a flag has it.
//!
//! An autoscaler says *when* it wants to look ([`Keda::next_at`]) and is then shown the fleet. It asks for a number; who
//! starts and stops replicas, and how long that takes, is somebody else's.

use plimsoll_model::At;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keda::{Keda, KedaSpec};
use crate::setting::{SettingError, Written};

/// An autoscaler.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AutoscaleSpec {
    /// KEDA on the number of waiting requests.
    Keda(KedaSpec),
}

impl AutoscaleSpec {
    /// Parses `keda:target=4,min=1,max=20`, as a flag has it: a parameter that is left out keeps its default.
    ///
    /// # Errors
    /// An unknown autoscaler, parameter or value, with what there is.
    pub fn parse(text: &str) -> Result<AutoscaleSpec, SettingError> {
        let mut written = Written::parse(text)?;
        let spec = AutoscaleSpec::read(&mut written)?;
        written.finish()?;
        spec.validate()?;
        Ok(spec)
    }

    fn read(written: &mut Written) -> Result<AutoscaleSpec, SettingError> {
        if written.name != "keda" {
            let (asked, known) = (written.name.clone(), vec!["keda"]);
            return Err(SettingError::UnknownName { what: "autoscaler", asked, known });
        }
        let count = |written: &mut Written, key| written.take(key, "a whole number", |_: &u32| true);
        let number = |written: &mut Written, key| written.take(key, "a number", |_: &f64| true);
        let target = written.take("target", "a number over 0", |target: &f64| *target > 0.0)?;
        let target = target
            .ok_or_else(|| written.missing("target", "waiting requests per replica, such as target=4"))?;
        let usual = KedaSpec::new(target);
        Ok(AutoscaleSpec::Keda(KedaSpec {
            activation: number(written, "activation")?.unwrap_or(usual.activation),
            polling_s: count(written, "polling_s")?.unwrap_or(usual.polling_s),
            cooldown_s: count(written, "cooldown_s")?.unwrap_or(usual.cooldown_s),
            tolerance: number(written, "tolerance")?.unwrap_or(usual.tolerance),
            min: count(written, "min")?.unwrap_or(usual.min),
            max: count(written, "max")?.unwrap_or(usual.max),
            ..usual
        }))
    }

    /// Checks everything that the types can't.
    ///
    /// # Errors
    /// A number is outside what its field means.
    pub fn validate(&self) -> Result<(), SettingError> {
        let AutoscaleSpec::Keda(keda) = self;
        keda.validate("autoscale")
    }

    /// Fewest and most replicas.
    pub fn range(&self) -> (u32, u32) {
        let AutoscaleSpec::Keda(keda) = self;
        (keda.min, keda.max)
    }

    /// The autoscaler at work from `now` on.
    pub fn start(&self, now: At) -> Keda {
        let AutoscaleSpec::Keda(keda) = self;
        Keda::new(keda, now)
    }
}
