//! `plimsoll plan --search`: the settings that may vary, and the search within the remaining time of the
//! plan.

use std::collections::BTreeMap;

use plimsoll_judge::cost::{Price, PriceSpec};
use plimsoll_plan::planner::Planner;
use plimsoll_plan::search::ListedCandidate;
use plimsoll_plan::spec::check_scales;
use plimsoll_plan::vary::candidates;
use plimsoll_plan::{ConfigSearch, Mix, PlanSpec, VarySpec};

use super::experiments::{self, PlanEnd, TimeLimit};
use crate::commands::plan::refused;
use crate::exit::Stop;
use crate::flags::PlanSearchArgs;

const MOST_SIMULATED: usize = 12;

/// Returns the settings that may vary; `None` without `--search`.
pub fn vary(args: &PlanSearchArgs, plan: &PlanSpec) -> Result<Option<VarySpec>, Stop> {
    if !args.search {
        return Ok(None);
    }
    let mut vary = match args.vary.is_empty() {
        true => VarySpec::around(&plan.world.engine),
        false => VarySpec::default(),
    };
    for text in &args.vary {
        vary.add(text).map_err(refused)?;
    }
    vary.prices = prices(&args.price_of, plan)?;
    if let Some(gpu) = vary.prices.keys().find(|gpu| !vary.gpus.contains(gpu)) {
        return Err(Stop::usage(format!(
            "--price-of {gpu}: the search does not include this GPU; add --vary gpu={gpu}"
        )));
    }
    // A setting that the engine does not have is rejected before any simulation.
    candidates(plan, &vary).map_err(refused)?;
    Ok(Some(vary))
}

fn prices(texts: &[String], plan: &PlanSpec) -> Result<BTreeMap<String, PriceSpec>, Stop> {
    let mut out = BTreeMap::new();
    for text in texts {
        let wrong = |what: &str| Stop::usage(format!("--price-of {text}: {what}"));
        let (gpu, price) =
            text.split_once('=').ok_or_else(|| wrong("write GPU=PRICE, such as a100=1.60USD/gpu-hour"))?;
        let price = Price::parse(price.trim()).map_err(|e| wrong(&e.to_string()))?;
        let other = plan.price.as_ref().filter(|own| own.price.currency != price.currency);
        if let Some(own) = other {
            let own = &own.price.currency;
            return Err(wrong(&format!("--price is in {own}; give both in one currency")));
        }
        let price = PriceSpec::new(price);
        check_scales(&price).map_err(|_| wrong("give it per gpu-hour or per replica-hour"))?;
        out.insert(gpu.trim().to_owned(), price);
    }
    Ok(out)
}

/// Searches until done or until the time limit. The requested configuration is already simulated.
pub fn run(
    plan: &PlanSpec,
    mix: &Mix,
    vary: &VarySpec,
    (asked, ended): (&Planner, PlanEnd),
    limit: &mut TimeLimit,
) -> Result<ConfigSearch, Stop> {
    let mut search = ConfigSearch::new(plan, mix, vary).map_err(refused)?;
    while limit.over().is_none() && search.step() {
        let (all, searched) = search.progress();
        limit.show(&format!("searching: {searched} of {all} configurations"));
    }
    if ended != PlanEnd::Known {
        return Ok(search);
    }
    if let Some(listed) = search.asked() {
        search.take(&listed, &asked.finish());
    }
    for _ in 0..MOST_SIMULATED {
        let Some(listed) = search.next() else { break };
        if !simulate(&mut search, &listed, limit)? {
            break;
        }
    }
    Ok(search)
}

/// Simulates one candidate. Returns false if the time ran out; the candidate then keeps its bound.
fn simulate(
    search: &mut ConfigSearch,
    listed: &ListedCandidate,
    limit: &mut TimeLimit,
) -> Result<bool, Stop> {
    if limit.over().is_some() {
        return Ok(false);
    }
    let planner = Planner::new(&listed.spec, listed.start, listed.least).map_err(refused)?;
    let mut planner = planner.number_only();
    let known = experiments::run(&mut planner, limit).map_err(refused)? == PlanEnd::Known;
    if known {
        search.take(listed, &planner.finish());
    }
    Ok(known)
}
