//! Autoscaler configuration, from a file or a flag.
//!
//! An autoscaler states its next evaluation time ([`Keda::next_at`]) and then gets the state of the fleet. It returns
//! a number of replicas; starting and stopping them is the caller's responsibility.

use plimsoll_model::At;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::keda::{Keda, KedaSpec};
use crate::setting::{ParsedSetting, SettingError};

/// Settings of the autoscaler, by its kind.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum AutoscaleSpec {
    /// KEDA, scaling on the number of waiting requests.
    Keda(KedaSpec),
}

impl AutoscaleSpec {
    /// Parses `keda:target=4,min=1,max=20`, as in a flag. Omitted parameters keep their defaults.
    ///
    /// # Errors
    /// Fails if the autoscaler, a parameter or a value is unknown; the error lists the alternatives.
    pub fn parse(text: &str) -> Result<AutoscaleSpec, SettingError> {
        let mut written = ParsedSetting::parse(text)?;
        let spec = AutoscaleSpec::read(&mut written)?;
        written.finish()?;
        spec.validate()?;
        Ok(spec)
    }

    fn read(written: &mut ParsedSetting) -> Result<AutoscaleSpec, SettingError> {
        if written.name != "keda" {
            let (asked, known) = (written.name.clone(), vec!["keda"]);
            return Err(SettingError::UnknownName { what: "autoscaler", asked, known });
        }
        let count = |written: &mut ParsedSetting, key| written.take(key, "a whole number", |_: &u32| true);
        let number = |written: &mut ParsedSetting, key| written.take(key, "a number", |_: &f64| true);
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

    /// Checks the rules that the types cannot express.
    ///
    /// # Errors
    /// Fails if a number is out of range.
    pub fn validate(&self) -> Result<(), SettingError> {
        let AutoscaleSpec::Keda(keda) = self;
        keda.validate("autoscale")
    }

    /// Returns the minimum and maximum number of replicas.
    pub fn range(&self) -> (u32, u32) {
        let AutoscaleSpec::Keda(keda) = self;
        (keda.min, keda.max)
    }

    /// Returns an autoscaler that starts at `now`.
    pub fn start(&self, now: At) -> Keda {
        let AutoscaleSpec::Keda(keda) = self;
        Keda::new(keda, now)
    }
}
