//! `plimsoll schema` prints the JSON Schema of an input or output format.

use plimsoll_diagnose::Diagnosis;
use plimsoll_gateway::GatewaySpec;
use plimsoll_judge::budget::{BudgetFile, SplitFile};
use plimsoll_judge::compare::finding::Comparison;
use plimsoll_judge::cost::PriceSpec;
use plimsoll_judge::cost::audit::AuditFinding;
use plimsoll_judge::gate::GateFinding;
use plimsoll_judge::quality::{ItemSpec, Quality};
use plimsoll_judge::tradeoff::TradeoffFinding;
use plimsoll_judge::tune::TuneFinding;
use plimsoll_measure::findings::Findings;
use plimsoll_model::Manifest;
use plimsoll_plan::calc::LawFinding;
use plimsoll_plan::file::PlanFile;
use plimsoll_plan::levers::finding::LeverFinding;
use plimsoll_plan::spec::PredictionBand;
use plimsoll_profile::RuleFile;
use plimsoll_sim::EngineSpec;
use plimsoll_workload::Scenario;
use schemars::schema_for;

use crate::answer::JsonAnswer;
use crate::exit::{Exit, Stop};
use crate::flags::{SchemaArgs, SchemaOf};
use crate::out;
use crate::progress::ProgressLine;
use crate::simulation::SimulationSpec;

/// Returns the schema of a scenario with the additional keys of a run folder: search, traffic kinds, metrics
/// endpoints and simulated world. `run`, `sweep` and `simulate` set these keys from their flags.
fn scenario() -> schemars::Schema {
    let mut schema = schema_for!(Scenario);
    if let Some(properties) = schema.get_mut("properties").and_then(serde_json::Value::as_object_mut) {
        for (name, description) in [
            ("sweep", "Search of a sweep"),
            ("traffic", "Arrival process of each kind of traffic of a sweep"),
            ("scraped", "Metrics endpoints that were scraped"),
            ("world", "Simulated target"),
        ] {
            properties.insert(
                name.into(),
                serde_json::json!({"description": format!("{description}; in a run's manifest only"), "type": ["object", "array"]}),
            );
        }
    }
    schema
}

pub fn run(args: &SchemaArgs) -> Result<Exit, Stop> {
    out::raw_json(&of(args.of));
    Ok(Exit::Done)
}

/// Returns the schema of a file or an output.
pub fn of(file: SchemaOf) -> schemars::Schema {
    match file {
        SchemaOf::Scenario => scenario(),
        SchemaOf::Manifest => schema_for!(Manifest),
        SchemaOf::Findings => schema_for!(Findings),
        SchemaOf::Profile => schema_for!(EngineSpec),
        SchemaOf::Price => schema_for!(PriceSpec),
        SchemaOf::Simulation => schema_for!(SimulationSpec),
        SchemaOf::Eval => schema_for!(ItemSpec),
        SchemaOf::Quality => schema_for!(Quality),
        SchemaOf::Gateway => schema_for!(GatewaySpec),
        SchemaOf::Budget => schema_for!(BudgetFile),
        SchemaOf::Gate => schema_for!(GateFinding),
        SchemaOf::Comparison => schema_for!(Comparison),
        SchemaOf::Diagnosis => schema_for!(Diagnosis),
        SchemaOf::Levers => schema_for!(LeverFinding),
        SchemaOf::Plan => schema_for!(PlanFile),
        SchemaOf::Band => schema_for!(PredictionBand),
        SchemaOf::Audit => schema_for!(AuditFinding),
        SchemaOf::Tradeoff => schema_for!(TradeoffFinding),
        SchemaOf::Tune => schema_for!(TuneFinding),
        SchemaOf::Stages => schema_for!(RuleFile),
        SchemaOf::Split => schema_for!(SplitFile),
        SchemaOf::Answer => schema_for!(JsonAnswer<serde_json::Value>),
        SchemaOf::Law => schema_for!(LawFinding),
        SchemaOf::Progress => schema_for!(ProgressLine),
    }
}
