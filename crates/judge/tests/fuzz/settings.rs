//! Budget files, scenarios and engines: YAML and JSON from unknown sources.

use plimsoll_judge::budget::{BudgetFile, check_shape, read_split};
use plimsoll_sim::EngineSpec;
use plimsoll_workload::Scenario;
use serde_json::Value;

pub fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(value) = serde_saphyr::from_str::<Value>(text) {
        let _ = check_shape(&value);
        let _ = read_split(&value);
        let _ = Scenario::from_json(&value);
        if let Ok(engine) = serde_json::from_value::<EngineSpec>(value) {
            let _ = engine.validate();
        }
    }
    if let Ok(file) = serde_saphyr::from_str::<BudgetFile>(text) {
        let _ = file.check();
    }
}
