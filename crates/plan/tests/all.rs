//! Tests of the crate against independent references.

#[path = "all/calibrate.rs"]
mod calibrate;
#[path = "all/effect.rs"]
mod effect;
#[path = "all/fit.rs"]
mod fit;
#[path = "all/fit_systems.rs"]
mod fit_systems;
#[path = "all/lever_fronts.rs"]
mod lever_fronts;
#[path = "all/lever_systems.rs"]
mod lever_systems;
#[path = "all/levers.rs"]
mod levers;
#[path = "all/plan_bounds.rs"]
mod plan_bounds;
#[path = "all/plan_search.rs"]
mod plan_search;
#[path = "all/plan_sessions.rs"]
mod plan_sessions;
#[path = "all/plan_simulated.rs"]
mod plan_simulated;
#[path = "all/plan_systems.rs"]
#[expect(dead_code, reason = "some is for the example")]
mod plan_systems;
#[path = "all/recorded.rs"]
mod recorded;
#[path = "all/replay.rs"]
mod replay;
#[path = "all/roofline.rs"]
mod roofline;
#[path = "all/what_if.rs"]
mod what_if;
