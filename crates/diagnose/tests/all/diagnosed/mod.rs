//! The validation of the diagnosis: random systems, injected faults, their effect on users, and the verdicts.
//!
//! The ground truth of a case is the injected fault; separate simulations decide whether it is significant (`truth`).
//! No code here depends on the method of the diagnosis, which gets only the contents of a run folder.

pub mod fault;
pub mod kept;
pub mod lack;
pub mod run;
pub mod score;
pub mod system;
pub mod truth;

use std::collections::BTreeMap;

use plimsoll_diagnose::frame::Frames;
use plimsoll_diagnose::{Case, Cause, DiagnoseSpec, Diagnosis, Layer, RunData, diagnose, facts};
use plimsoll_measure::findings::BudgetSpec;
use plimsoll_sim::Events;
use serde::{Deserialize, Serialize};

use fault::{Class, SEVERITIES};
use lack::Lack;
use run::{Evidence, Setup};
use system::System;
use truth::{Facts, Reference, Truth};

/// The cases to evaluate per system.
#[derive(Clone, Debug)]
pub struct Plan {
    pub classes: Vec<Class>,
    /// Severities, from 0 to 4.
    pub severities: Vec<usize>,
    pub clean: usize,
    /// Severities at which the diagnosis is repeated with reduced evidence.
    pub lacking_at: Vec<usize>,
    /// Kinds of reduced evidence.
    pub lacks: Vec<Lack>,
    /// Whether three other runs of each side are evaluated too.
    pub elsewhere: bool,
    /// Whether every request needs a dependency, with any fault.
    pub depending: bool,
    /// Whether the full verdicts are stored.
    pub verbose: bool,
}

/// One case and its verdict.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Judged {
    pub system: u64,
    pub class: Class,
    pub severity: usize,
    /// Effect on users.
    pub truth: Truth,
    /// Verdict of the diagnosis.
    pub said: Said,
    /// Verdicts with reduced evidence.
    pub lacking: Vec<(Lack, Said)>,
    /// System and full diagnosis, if requested.
    #[serde(skip)]
    pub detail: String,
}

/// A short form of a diagnosis.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Said {
    pub cause: Cause,
    pub layer: Layer,
    pub confidence: f64,
    pub runner_up: Option<Cause>,
    pub second: Option<Cause>,
    /// State of each fact, one letter each.
    #[serde(default)]
    pub facts: String,
}

impl Said {
    fn of((diagnosis, facts): &(Diagnosis, String)) -> Said {
        let first = &diagnosis.verdicts[0];
        Said {
            cause: first.cause,
            layer: first.layer,
            confidence: first.confidence,
            runner_up: first.runner_up.as_ref().map(|runner_up| runner_up.cause),
            second: diagnosis.verdicts.get(1).map(|verdict| verdict.cause),
            facts: facts.clone(),
        }
    }

    /// Returns whether a fault was named.
    pub fn names(&self) -> bool {
        !matches!(self.cause, Cause::Nothing | Cause::Unknown)
    }
}

/// Runs the diagnosis.
pub fn ask(
    base: Option<&Evidence>,
    candidate: &Evidence,
    budget: Option<&BudgetSpec>,
) -> (Diagnosis, String) {
    fn side(evidence: &Evidence) -> RunData<'_> {
        let Evidence { levels, attempts, samples, facts } = evidence;
        RunData { levels, attempts, samples, facts }
    }
    let spec = DiagnoseSpec::default();
    let case = Case {
        candidate: side(candidate),
        baseline: base.map(side),
        budget,
        device: None,
        validity: None,
        spec: &spec,
    };
    let facts =
        Frames::new(&case).map_or_else(String::new, |frames| facts::letters(&facts::observe(&frames)));
    (diagnose(&case), facts)
}

/// A baseline and its derived data, reused by the classes that share it.
struct Base {
    system: System,
    evidence: Evidence,
    facts: Facts,
    references: BTreeMap<bool, Reference>,
}

impl Base {
    fn of(system: System) -> Base {
        let evidence = Setup::of(&system).run(base_seed(&system));
        let facts = Facts::of(&evidence);
        Base { system, evidence, facts, references: BTreeMap::new() }
    }

    /// Returns the effect on users of a run: compared with the run without the fault, and in other runs.
    fn truth(
        &mut self,
        class: Class,
        setup: &Setup,
        (judged, of): (&Evidence, u64),
        elsewhere: bool,
    ) -> Truth {
        let without = || Setup::of(&self.system).run(of);
        let own = match truth::by_definition(class) {
            true => truth::own(class, judged, judged),
            false => truth::own(class, &without(), judged),
        };
        let happened = truth::happened(class, &self.evidence, judged);
        let elsewhere = elsewhere && self.elsewhere(class, setup);
        Truth { elsewhere, happened, ..own }
    }

    fn elsewhere(&mut self, class: Class, setup: &Setup) -> bool {
        let pauses = truth::looks_at_pauses(class);
        let events = if pauses { Events::All } else { Events::Ends };
        let (system, seed) = (&self.system, base_seed(&self.system));
        let reference =
            self.references.entry(pauses).or_insert_with(|| Reference::of(&Setup::of(system), seed, events));
        truth::elsewhere(class, reference, setup, seed)
    }
}

fn base_seed(system: &System) -> u64 {
    1_000 * system.seed + 1
}

/// Returns the seed of a candidate. It differs for each, except in the class with equal prompts.
fn seed_of(system: &System, class: Class, severity: usize) -> u64 {
    match class {
        Class::SamePromptsLongerAnswers => base_seed(system),
        _ => base_seed(system) + 10 + 20 * class as u64 + severity as u64,
    }
}

/// Evaluates every `wanted` case of one system, and passes each on immediately.
pub fn judge_system(
    seed: u64,
    plan: &Plan,
    wanted: impl Fn(Class, usize) -> bool,
    mut then: impl FnMut(Judged),
) {
    let plain = match plan.depending {
        true => fault::depending(System::draw(seed)),
        false => System::draw(seed),
    };
    let mut shared = None;
    for &class in &plan.classes {
        let clean: Vec<usize> = (0..plan.clean).collect();
        let severities = if class == Class::Clean { &clean } else { &plan.severities };
        let left: Vec<usize> = severities.iter().copied().filter(|&at| wanted(class, at)).collect();
        if left.is_empty() {
            continue;
        }
        let variant = class.variant(&plain);
        let mut own = differs(&variant, &plain).then(|| Base::of(variant));
        let base = match &mut own {
            Some(own) => own,
            None => shared.get_or_insert_with(|| Base::of(plain.clone())),
        };
        left.into_iter().for_each(|severity| then(judge(base, class, severity, plan)));
    }
}

fn differs(a: &System, b: &System) -> bool {
    a.world != b.world
        || a.scenario != b.scenario
        || a.rate_per_s != b.rate_per_s
        || a.names_blocks != b.names_blocks
}

fn judge(base: &mut Base, class: Class, severity: usize, plan: &Plan) -> Judged {
    let (setup, budget) = class.inject(&base.system, &base.facts, severity.min(SEVERITIES - 1));
    // A clean run uses its number instead of a severity.
    let seed = seed_of(&base.system, class, severity);
    let candidate = setup.run(seed);
    let diagnosis = ask(Some(&base.evidence), &candidate, budget.as_ref());
    let truth = base.truth(class, &setup, (&candidate, seed), plan.elsewhere);
    let lacking = if plan.lacking_at.contains(&severity) {
        let with_less = |&lack: &Lack| (lack, lack.ask(&base.evidence, &candidate, budget.as_ref()));
        plan.lacks.iter().map(with_less).collect()
    } else {
        Vec::new()
    };
    let said = Said::of(&diagnosis);
    let right = class.causes().contains(&said.cause);
    let with_less = |(lack, (diagnosis, _)): &(Lack, (Diagnosis, String))| {
        let cause = diagnosis.verdicts[0].cause;
        (right && !class.causes().contains(&cause)).then(|| {
            let all = serde_json::to_string_pretty(&diagnosis).unwrap_or_default();
            format!("with {}: {}\n{all}", lack.name(), cause.id())
        })
    };
    let detail = if plan.verbose && right {
        lacking.iter().filter_map(with_less).collect::<Vec<_>>().join("\n")
    } else if plan.verbose {
        let diagnosis = serde_json::to_string_pretty(&diagnosis.0).unwrap_or_default();
        format!("{}\nfacts {:?}\ntruth {truth:?}\n{diagnosis}", base.system.name, base.facts)
    } else {
        String::new()
    };
    let lacking = lacking.into_iter().map(|(lack, diagnosis)| (lack, Said::of(&diagnosis))).collect();
    Judged { system: base.system.seed, class, severity, truth, said, lacking, detail }
}
