//! Behaviour of the crate, against independent truth.

#[path = "all/accuracy.rs"]
mod accuracy;
#[path = "all/active.rs"]
mod active;
#[path = "all/active_outside.rs"]
mod active_outside;
#[path = "all/active_systems.rs"]
#[expect(dead_code, reason = "the example plays them all")]
mod active_systems;
#[path = "all/arms.rs"]
mod arms;
#[path = "all/asked.rs"]
mod asked;
#[path = "all/beside.rs"]
mod beside;
#[path = "all/blind.rs"]
mod blind;
#[path = "all/budget.rs"]
mod budget;
#[path = "all/calibrate.rs"]
mod calibrate;
#[path = "all/cold_starts.rs"]
mod cold_starts;
#[path = "all/compare.rs"]
mod compare;
#[path = "all/cost.rs"]
mod cost;
#[path = "all/device.rs"]
mod device;
#[path = "all/diagnosed/mod.rs"]
mod diagnosed;
#[path = "all/engines.rs"]
mod engines;
#[path = "all/failing.rs"]
mod failing;
#[path = "all/fit.rs"]
mod fit;
#[path = "all/fit_systems.rs"]
mod fit_systems;
#[path = "all/gate.rs"]
mod gate;
#[path = "all/gate_looks.rs"]
mod gate_looks;
#[path = "all/gathered.rs"]
mod gathered;
#[path = "all/history.rs"]
mod history;
#[path = "all/idle_cost.rs"]
mod idle_cost;
#[path = "all/impossible.rs"]
mod impossible;
#[path = "all/incidents.rs"]
mod incidents;
#[path = "all/infer.rs"]
mod infer;
#[path = "all/infer_systems.rs"]
#[expect(dead_code, reason = "some is for the example")]
mod infer_systems;
#[path = "all/inside.rs"]
mod inside;
#[path = "all/lever_fronts.rs"]
mod lever_fronts;
#[path = "all/lever_systems.rs"]
mod lever_systems;
#[path = "all/levers.rs"]
mod levers;
#[path = "all/lint.rs"]
mod lint;
#[path = "all/loads.rs"]
mod loads;
#[path = "all/looks.rs"]
mod looks;
#[path = "all/metrics.rs"]
mod metrics;
#[path = "all/misdiagnoses.rs"]
mod misdiagnoses;
#[path = "all/network.rs"]
mod network;
#[path = "all/on_a_clock.rs"]
mod on_a_clock;
#[path = "all/plan.rs"]
mod plan;
#[path = "all/plan_formula.rs"]
mod plan_formula;
#[path = "all/plan_search.rs"]
mod plan_search;
#[path = "all/plan_simulated.rs"]
mod plan_simulated;
#[path = "all/plan_systems.rs"]
#[expect(dead_code, reason = "some is for the example")]
mod plan_systems;
#[path = "all/plan_what_if.rs"]
mod plan_what_if;
#[path = "all/profile/mod.rs"]
mod profile;
#[path = "all/quality.rs"]
mod quality;
#[path = "../../math/tests/all/queues.rs"]
#[expect(dead_code, reason = "the queue of batches is for other tests")]
mod queues;
#[path = "all/records.rs"]
mod records;
#[path = "all/sampled.rs"]
mod sampled;
#[path = "all/sequential.rs"]
mod sequential;
#[path = "all/server_side.rs"]
mod server_side;
#[path = "all/steady.rs"]
mod steady;
#[path = "all/stepper.rs"]
mod stepper;
#[path = "all/told_apart.rs"]
mod told_apart;
#[path = "all/traced.rs"]
mod traced;
#[path = "all/trust.rs"]
mod trust;
#[path = "all/two_arms.rs"]
mod two_arms;
#[path = "all/two_faults.rs"]
mod two_faults;
#[path = "all/unprobed.rs"]
mod unprobed;
#[path = "all/validation.rs"]
mod validation;
#[path = "all/verdicts.rs"]
mod verdicts;
#[path = "all/what_if.rs"]
mod what_if;
#[path = "all/windows.rs"]
mod windows;
