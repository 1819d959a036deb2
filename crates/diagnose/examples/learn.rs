//! Learns the frequency of each fact for each cause, and the weight of each fact, and writes a table of
//! `src/likelihood/`.
//!
//! `cargo run --release -p plimsoll-diagnose --example learn -- CASES… [--write FILE] [--judge CASES…]`
//!
//! CASES are files of evaluated cases: JSON lines of the example `diagnose` (`--keep`), or a table of recorded runs
//! of real servers (`tests/fixtures/real.tsv`; rows of the half `held` are never used for learning). `--experiments`
//! reads tables of experiments on endpoints (`tests/fixtures/real-experiments.tsv`, and the output of the example
//! `active --cases N`). `--pages` uses the facts from metrics only of simulated cases (`--lack Requests`). A case
//! counts if its fault is significant, or if there is none. `--judge` prints the accuracy of the most likely cause on
//! other files.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "an example that prints a table")]

#[path = "../tests/all/diagnosed/mod.rs"]
#[expect(dead_code, reason = "this example reads what the other one judged")]
mod diagnosed;

use std::collections::BTreeMap;
use std::fmt::Write;

use diagnosed::kept::Kept;
use diagnosed::lack::Lack;
use diagnosed::truth::Happened;
use plimsoll_diagnose::belief::{CausePosterior, EvidenceSource, Likelihood};
use plimsoll_diagnose::causes::{BY_ACCIDENT, FactFrequency, FactRelation, causes};
use plimsoll_diagnose::facts::Observed;
use plimsoll_diagnose::{Cause, Layer};

/// Weight of a case of a real server, in simulated cases, because there are few real ones and they matter most.
const REAL: f64 = 6.0;
/// Server name of simulated cases.
const SIMULATED: &str = "simulated";
/// Weight of a case with reduced evidence, because it is the same run.
const LESS: f64 = 0.4;
/// Weight of the table of causes, in cases.
const BELIEVED: f64 = 5.0;
/// Weight of a case outside the table, because only a few kinds were simulated.
const UNLISTED: f64 = 0.25;
/// Initial weight of a fact, and its strength in cases.
const WEIGHT: (f64, f64) = (1.0, 4.0);

/// One case with its facts.
struct Sample {
    causes: Vec<Cause>,
    layers: Vec<Layer>,
    observed: Vec<(usize, usize)>,
    counts: f64,
    two: bool,
    name: String,
}

fn main() {
    let mut words = std::env::args().skip(1).peekable();
    let (mut learn, mut judge, mut write) = (Vec::new(), Vec::new(), None);
    let (mut to_judge, mut from) = (false, EvidenceSource::Records);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--write" => write = words.next(),
            "--judge" => to_judge = true,
            "--experiments" => from = EvidenceSource::Experiments,
            "--pages" => from = EvidenceSource::Pages,
            file if to_judge => judge.push(file.to_owned()),
            file => learn.push(file.to_owned()),
        }
    }
    let samples: Vec<Sample> = learn.iter().flat_map(|file| read(file, false, from)).collect();
    let learnt = match samples.is_empty() {
        true => Likelihood::learnt(from).clone(),
        false => weigh(count(&samples), &samples),
    };
    if let Some(path) = write {
        std::fs::write(&path, table(&learnt, samples.len())).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
    if !samples.is_empty() {
        report("learnt from", &learnt, &samples);
    }
    for file in judge {
        report(&file, &learnt, &read(&file, true, from));
    }
}

fn read(file: &str, held: bool, from: EvidenceSource) -> Vec<Sample> {
    if file.ends_with(".tsv") { real(file, held) } else { simulated(file, from == EvidenceSource::Pages) }
}

fn simulated(file: &str, pages: bool) -> Vec<Sample> {
    let kept = Kept::open(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut all = Vec::new();
    for case in kept.into_cases() {
        let class = match case.truth.happened {
            Happened::Injected => case.class,
            Happened::Instead(class) => class,
            Happened::Not => continue,
        };
        let is_clean = class.causes() == [Cause::Nothing];
        if !case.truth.material && !is_clean {
            continue;
        }
        let mut add = |facts: &str, counts: f64, with: &str| {
            let observed = letters(facts);
            // A case whose evidence can't show the fault teaches nothing, and is no miss.
            if !class.causes().iter().any(|cause| was_asked(*cause, &observed)) {
                return;
            }
            all.push(Sample {
                causes: class.causes().to_vec(),
                layers: class.layers(),
                observed,
                counts: if class.is_unlisted() { UNLISTED * counts } else { counts },
                two: class.is_pair(),
                name: format!("{} {class:?} {}{with}", case.system, case.severity),
            });
        };
        if !pages {
            add(&case.said.facts, 1.0, "");
        }
        for (lack, said) in case.lacking.iter().filter(|(lack, _)| (*lack == Lack::Requests) == pages) {
            add(&said.facts, if pages { 1.0 } else { LESS }, &format!(" without {lack:?}"));
        }
    }
    all
}

/// Returns whether a decisive fact of this cause was checked.
fn was_asked(cause: Cause, observed: &[(usize, usize)]) -> bool {
    let decisive = &plimsoll_diagnose::causes::row(cause).decisive;
    decisive.is_empty() || decisive.iter().any(|fact| observed.iter().any(|(of, _)| *of == *fact as usize))
}

/// Reads lines `server, fault, severity, half, material, causes, layers, facts`; causes, layers and facts are
/// separated by commas.
fn real(file: &str, held: bool) -> Vec<Sample> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{file}: {e}"));
    let mut lines = text.lines().filter(|line| !line.starts_with('#'));
    let facts: Vec<Option<Observed>> = lines
        .next()
        .unwrap_or("")
        .split('\t')
        .next_back()
        .unwrap_or("")
        .split(',')
        .map(Observed::of_word)
        .collect();
    let mut all = Vec::new();
    for line in lines {
        let columns: Vec<&str> = line.split('\t').collect();
        let [server, fault, severity, half, material, of, layers, states] = columns[..] else { continue };
        if material != "yes" || (half == "held") != held {
            continue;
        }
        let word = |text: &str| serde_json::Value::String(text.to_owned());
        let state = |(fact, letter): (&Option<Observed>, char)| Some(((*fact)? as usize, place(letter)?));
        all.push(Sample {
            causes: of.split(',').filter_map(|cause| serde_json::from_value(word(cause)).ok()).collect(),
            layers: layers.split(',').filter_map(|layer| serde_json::from_value(word(layer)).ok()).collect(),
            observed: facts.iter().zip(states.chars()).filter_map(state).collect(),
            counts: if server == SIMULATED { 1.0 } else { REAL },
            two: false,
            name: format!("{server} {fault} {severity}"),
        });
    }
    all
}

fn letters(facts: &str) -> Vec<(usize, usize)> {
    facts.chars().enumerate().filter_map(|(fact, letter)| Some((fact, place(letter)?))).collect()
}

fn place(letter: char) -> Option<usize> {
    "ynu".chars().position(|of| of == letter)
}

/// Returns the frequencies of each fact for each cause: counts, with a few cases added from the table of causes.
fn count(samples: &[Sample]) -> Likelihood {
    let (rows, facts) = (causes(), Observed::ALL.len());
    let mut counts = vec![vec![[0.0; 3]; facts]; rows.len()];
    for sample in samples {
        // Use the first accepted cause with an observed decisive fact. Two faults show the facts of either, and are
        // not counted.
        let seen = |cause: &&Cause| decided_for(sample, **cause) != Some(false);
        let what = match sample.causes.len() {
            1 => sample.causes.first(),
            _ => sample.causes.iter().find(seen),
        };
        let Some(own) = rows.iter().position(|row| Some(&row.cause) == what) else { continue };
        if sample.two {
            continue;
        }
        for (fact, is) in &sample.observed {
            counts[own][*fact][*is] += sample.counts;
        }
    }
    // By accident: the unweighted mean over the causes that are unrelated to a fact.
    let mut by_accident = vec![[0.0; 3]; facts];
    for (fact, often) in by_accident.iter_mut().enumerate() {
        let mut sum = BY_ACCIDENT;
        for (row, counts) in rows.iter().zip(&counts) {
            let n: f64 = counts[fact].iter().sum();
            if row.shows(Observed::ALL[fact]) == FactRelation::Never && n >= 3.0 {
                (0..3).for_each(|is| sum[is] += counts[fact][is] / n);
            }
        }
        let all: f64 = sum.iter().sum();
        *often = sum.map(|n| n / all);
        // Equal prompts are independent of the fault.
        if Observed::ALL[fact] == Observed::SamePrompts {
            *often = [0.5, 0.48, 0.02];
        }
    }
    let of = rows.iter().zip(&counts).map(|(row, counts)| {
        let cell = |fact: usize| -> FactFrequency {
            if row.shows(Observed::ALL[fact]) == FactRelation::Never {
                return by_accident[fact];
            }
            let often = row.presumed(Observed::ALL[fact], by_accident[fact]);
            // Faults outside the table may show any fact; the few simulated kinds are no rule.
            let believed = if row.cause == Cause::Unknown { 20.0 * BELIEVED } else { BELIEVED };
            let n: f64 = counts[fact].iter().sum::<f64>() + believed;
            std::array::from_fn(|is| (counts[fact][is] + believed * often[is]) / n)
        };
        (0..facts).map(cell).collect()
    });
    let asked = samples.iter().filter(|sample| !sample.two && decided(sample).is_some());
    let (n, unseen) = asked.fold((2.0, 0.2), |(n, unseen), sample| {
        (n + sample.counts, unseen + if decided(sample) == Some(false) { sample.counts } else { 0.0 })
    });
    Likelihood { of: of.collect(), by_accident, weight: vec![WEIGHT.0; facts], missed: unseen / n }
}

/// Returns whether a decisive fact was seen; `None` if the cause needs none.
fn decided(sample: &Sample) -> Option<bool> {
    decided_for(sample, *sample.causes.first()?)
}

fn decided_for(sample: &Sample, cause: Cause) -> Option<bool> {
    let decisive = &plimsoll_diagnose::causes::row(cause).decisive;
    let seen =
        sample.observed.iter().any(|(fact, is)| *is == 0 && decisive.iter().any(|of| *of as usize == *fact));
    (!decisive.is_empty()).then_some(seen)
}

/// Returns the weights that maximise the likelihood of the true cause, by coordinate descent on the mean logarithmic
/// loss of single causes. No weight is zero, because other cases may need a fact.
fn weigh(mut learnt: Likelihood, samples: &[Sample]) -> Likelihood {
    let rows = causes();
    let single: Vec<&Sample> = samples.iter().filter(|sample| !sample.two).collect();
    let mut scores: Vec<Vec<f64>> = single
        .iter()
        .map(|sample| (0..rows.len()).map(|row| learnt.single(row, &sample.observed)).collect())
        .collect();
    let own: Vec<Vec<usize>> = single
        .iter()
        .map(|sample| (0..rows.len()).filter(|row| sample.causes.contains(&rows[*row].cause)).collect())
        .collect();
    for _ in 0..4 {
        for fact in 0..Observed::ALL.len() {
            let touched: Vec<(usize, usize)> = single
                .iter()
                .enumerate()
                .filter_map(|(n, sample)| Some((n, sample.observed.iter().find(|(of, _)| *of == fact)?.1)))
                .collect();
            let loss = |weight: f64| -> f64 {
                let more = weight - learnt.weight[fact];
                let of = |(n, is): &(usize, usize)| {
                    let score = |row: usize| scores[*n][row] + more * learnt.of[row][fact][*is].ln();
                    single[*n].counts
                        * (log_sum(0..rows.len(), &score) - log_sum(own[*n].iter().copied(), &score))
                };
                let held = WEIGHT.1 * (weight - WEIGHT.0) * (weight - WEIGHT.0);
                touched.iter().map(of).sum::<f64>() + held
            };
            let best = (4..=20)
                .map(|k| 0.05 * f64::from(k))
                .min_by(|a, b| loss(*a).total_cmp(&loss(*b)))
                .unwrap_or(WEIGHT.0);
            let more = best - learnt.weight[fact];
            for (n, is) in touched {
                (0..rows.len()).for_each(|row| scores[n][row] += more * learnt.of[row][fact][is].ln());
            }
            learnt.weight[fact] = best;
        }
    }
    learnt
}

fn log_sum(rows: impl Iterator<Item = usize> + Clone, score: &impl Fn(usize) -> f64) -> f64 {
    let most = rows.clone().map(score).fold(f64::NEG_INFINITY, f64::max);
    most + rows.map(|row| (score(row) - most).exp()).sum::<f64>().ln()
}

/// Returns the text of the table: only cells that differ from the presumed ones.
fn table(learnt: &Likelihood, cases: usize) -> String {
    let rounded = |often: FactFrequency| often.map(|share| (1e4 * share).round() / 1e4);
    let mut text = format!(
        "# How often each cause shows each fact: cause, fact, yes, no; the rest is unclear. Cause * is by accident, with the fact's weight.\n# Learnt by examples/learn.rs from {cases} cases. Not to be edited by hand.\n"
    );
    let _ = writeln!(text, "*\tmissed\t{:.4}", learnt.missed);
    for fact in Observed::ALL {
        let (often, weight) = (learnt.by_accident[*fact as usize], learnt.weight[*fact as usize]);
        let _ = writeln!(text, "*\t{}\t{:.4}\t{:.4}\t{weight:.2}", fact.word(), often[0], often[1]);
    }
    for (row, of) in causes().iter().zip(&learnt.of) {
        for fact in Observed::ALL {
            let (often, presumed) = (
                rounded(of[*fact as usize]),
                row.presumed(*fact, rounded(learnt.by_accident[*fact as usize])),
            );
            if (0..2).any(|is| (often[is] - presumed[is]).abs() > 1e-4) {
                let _ =
                    writeln!(text, "{}\t{}\t{:.4}\t{:.4}", row.cause.id(), fact.word(), often[0], often[1]);
            }
        }
    }
    text
}

/// Prints the accuracy of the most likely cause and its layer, and the wrong verdicts.
fn report(name: &str, learnt: &Likelihood, samples: &[Sample]) {
    let (mut n, mut cause_right, mut layer_right, mut wrong, mut unsure) = (0, 0, 0, 0, 0);
    let mut instead: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut told: Vec<(f64, bool)> = Vec::new();
    for sample in samples {
        let belief: CausePosterior = learnt.posterior(&sample.observed, |_| false);
        let (cause, p) = belief.first();
        let layer = plimsoll_diagnose::causes::row(cause).layer;
        n += 1;
        let is_right = sample.causes.contains(&cause);
        cause_right += usize::from(is_right);
        let in_layer = sample.layers.contains(&layer);
        told.push((p, is_right));
        match () {
            () if in_layer => layer_right += 1,
            () if cause == Cause::Unknown || p < 0.6 && belief.in_layer_of(cause) < 0.8 => unsure += 1,
            () if cause == Cause::Nothing => {}
            () => wrong += 1,
        }
        if !is_right {
            *instead.entry((sample.causes[0].id(), cause.id())).or_default() += 1;
            if name.ends_with(".tsv") || std::env::var("EACH").is_ok() {
                eprintln!("{}: {} {p:.2}", sample.name, cause.id());
            }
        }
    }
    let of = |k: usize| 100.0 * k as f64 / n.max(1) as f64;
    println!(
        "{name}: {n} cases, cause {:.1} %, layer {:.1} %, wrong layer {:.1} %, unsure {:.1} %",
        of(cause_right),
        of(layer_right),
        of(wrong),
        of(unsure)
    );
    for (low, high) in [(0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 0.99), (0.99, 1.01)] {
        let within: Vec<bool> =
            told.iter().filter(|(p, _)| (low..high).contains(p)).map(|(_, is)| *is).collect();
        let right = within.iter().filter(|is| **is).count();
        println!("  said at {low} to {high}: {right} of {} right", within.len());
    }
    println!("  macro-F1 of single causes {:.3}", macro_f1(learnt, samples));
    let mut instead: Vec<_> = instead.into_iter().collect();
    instead.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
    for ((is, said), n) in instead.iter().take(40) {
        println!("  {is}: {said} {n}");
    }
}

/// Returns the mean over the causes of the harmonic mean of recall and precision.
fn macro_f1(learnt: &Likelihood, samples: &[Sample]) -> f64 {
    let mut counts: BTreeMap<Cause, [f64; 3]> = BTreeMap::new();
    for sample in samples.iter().filter(|sample| !sample.two) {
        let said = learnt.posterior(&sample.observed, |_| false).first().0;
        let is = if sample.causes.contains(&said) { said } else { sample.causes[0] };
        counts.entry(is).or_default()[0] += 1.0;
        counts.entry(said).or_default()[1] += 1.0;
        counts.entry(is).or_default()[2] += f64::from(u8::from(is == said));
    }
    let injected: Vec<&[f64; 3]> = counts.values().filter(|[is, ..]| *is > 0.0).collect();
    injected.iter().map(|[is, said, both]| 2.0 * both / (is + said)).sum::<f64>()
        / injected.len().max(1) as f64
}
