//! The results: confusion matrix, recall and precision with intervals, wrong verdicts, false alarms, curves; as
//! Markdown.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use plimsoll_diagnose::causes::row;
use plimsoll_diagnose::fact::Observed;
use plimsoll_diagnose::{Cause, Layer};

use super::Judged;
use super::fault::Class;
use super::lack::Lack;
use super::truth::Happened;

/// A share: `are` of `of`.
#[derive(Copy, Clone, PartialEq, Default, Debug)]
pub struct Share {
    pub of: u64,
    pub are: u64,
}

impl Share {
    /// Counts the cases that satisfy `are`.
    pub fn count<'a>(cases: impl Iterator<Item = &'a Judged>, are: impl Fn(&Judged) -> bool) -> Share {
        let mut share = Share::default();
        cases.for_each(|case| share.add(are(case)));
        share
    }

    fn add(&mut self, is: bool) {
        self.of += 1;
        self.are += u64::from(is);
    }

    /// Returns the share, 0 to 1; NaN without cases.
    pub fn value(self) -> f64 {
        self.are as f64 / self.of as f64
    }

    /// Returns Wilson's 95 % interval (1927).
    pub fn interval(self) -> (f64, f64) {
        if self.of == 0 {
            return (0.0, 1.0);
        }
        let (n, p, z) = (self.of as f64, self.value(), 1.96f64);
        let centre = (p + z * z / (2.0 * n)) / (1.0 + z * z / n);
        let half = z / (1.0 + z * z / n) * (p * (1.0 - p) / n + z * z / (4.0 * n * n)).sqrt();
        ((centre - half).max(0.0), (centre + half).min(1.0))
    }

    fn text(self) -> String {
        if self.of == 0 {
            return "none".to_owned();
        }
        let (low, high) = self.interval();
        let percent = |x: f64| 100.0 * x;
        format!("{:.1} % [{:.1}, {:.1}] of {}", percent(self.value()), percent(low), percent(high), self.of)
    }
}

/// The figures with acceptance limits.
#[derive(Clone, Debug)]
pub struct Score {
    pub macro_f1: f64,
    pub worst: (String, f64),
    pub layer: Share,
    pub layer_named: Share,
    pub false_blame: Share,
    /// Share of wrong layers, including second verdicts.
    pub false_blame_by_any: Share,
    /// Share of single faults and clean runs with a second cause that was not injected.
    pub false_second: Share,
    pub false_alarm: Share,
    pub abstained: Share,
    pub top_two: Share,
    pub right: Share,
    /// Per class: name, cases, recall, precision, F1.
    pub classes: Vec<(String, Share, Share, f64)>,
}

fn right(case: &Judged) -> bool {
    case.class.causes().contains(&case.said.cause)
}

fn blames_wrongly(case: &Judged) -> bool {
    case.said.names() && !case.class.layers().contains(&case.said.layer)
}

/// Returns whether a second cause was named that was not injected.
fn false_second(case: &Judged) -> bool {
    case.said.second.is_some_and(|cause| !case.class.causes().contains(&cause))
}

fn blames_wrongly_by_any(case: &Judged) -> bool {
    let second = case.said.second.map(Cause::layer);
    blames_wrongly(case) || second.is_some_and(|layer| !case.class.layers().contains(&layer))
}

/// Returns whether the fault is of a kind that a rule covers.
fn listed(case: &&Judged) -> bool {
    !case.class.is_pair() && !case.class.is_unlisted() && case.class != Class::Clean
}

/// Scores cases: pairs are left out of the classes; clean runs and unlisted faults are separate classes.
pub fn score(cases: &[&Judged]) -> Score {
    let all = || cases.iter().copied();
    let single = || all().filter(|case| !case.class.is_pair());
    let faults = || all().filter(listed);
    let mut classes = Vec::new();
    let mut names: BTreeMap<(usize, Cause), Vec<Class>> = BTreeMap::new();
    for case in single() {
        let cause = case.class.causes()[0];
        let place = Class::ALL.iter().position(|class| class.causes()[0] == cause).unwrap_or(usize::MAX);
        let of = names.entry((place, cause)).or_default();
        if !of.contains(&case.class) {
            of.push(case.class);
        }
    }
    for ((_, cause), of) in names {
        let recall = Share::count(single().filter(|case| of.contains(&case.class)), right);
        let precision = Share::count(single().filter(|case| case.said.cause == cause), right);
        let (r, p) = (recall.value(), if precision.of == 0 { 0.0 } else { precision.value() });
        let f1 = if r + p > 0.0 { 2.0 * r * p / (r + p) } else { 0.0 };
        classes.push((cause.id(), recall, precision, f1));
    }
    let macro_f1 = classes.iter().map(|class| class.3).sum::<f64>() / classes.len().max(1) as f64;
    let worst = classes.iter().min_by(|a, b| a.1.value().total_cmp(&b.1.value()));
    let worst = worst.map_or((String::new(), f64::NAN), |class| (class.0.clone(), class.1.value()));
    let in_layer = |case: &Judged| case.class.layers().contains(&case.said.layer);
    let top_two = |case: &Judged| {
        let said = &case.said;
        [Some(said.cause), said.runner_up, said.second]
            .iter()
            .flatten()
            .any(|c| case.class.causes().contains(c))
    };
    Score {
        macro_f1,
        worst,
        layer: Share::count(faults(), in_layer),
        layer_named: Share::count(faults().filter(|case| case.said.names()), in_layer),
        false_blame: Share::count(single(), blames_wrongly),
        false_blame_by_any: Share::count(single(), blames_wrongly_by_any),
        false_second: Share::count(single(), false_second),
        false_alarm: Share::count(all().filter(|case| case.class == Class::Clean), |case| case.said.names()),
        abstained: Share::count(faults(), |case| case.said.layer == Layer::Unknown),
        top_two: Share::count(faults(), top_two),
        right: Share::count(faults(), right),
        classes,
    }
}

/// Returns whether the case counts among significant cases. Clean runs and faults outside the target always do.
fn material(case: &&Judged) -> bool {
    case.class == Class::Clean || case.truth.material
}

/// Returns the case with the class that happened instead of the injected one.
pub fn as_happened(case: &Judged) -> Judged {
    let mut case = case.clone();
    match case.truth.happened {
        Happened::Injected => {}
        Happened::Instead(class) => case.class = class,
        Happened::Not => case.truth.material = false,
    }
    case
}

/// Returns the whole report as Markdown.
pub fn report(cases: &[Judged], title: &str) -> String {
    let mut text = String::new();
    let others = other_definitions(cases);
    let cases: Vec<Judged> = cases.iter().map(as_happened).collect();
    let all: Vec<&Judged> = cases.iter().collect();
    let noticed: Vec<&Judged> = cases.iter().filter(material).collect();
    let (score_all, score_material) = (score(&all), score(&noticed));
    let systems: std::collections::BTreeSet<u64> = cases.iter().map(|case| case.system).collect();
    let _ = writeln!(text, "### {title}\n");
    let _ = writeln!(
        text,
        "{} systems, {} cases, {} of them material or clean.\n",
        systems.len(),
        all.len(),
        noticed.len()
    );
    figures(&mut text, &score_material, &score_all);
    came_to_pass(&mut text, &cases);
    text += &others;
    for (heading, of, score) in [("Material", &noticed, &score_material), ("All injected", &all, &score_all)]
    {
        confusion(&mut text, heading, of, score);
    }
    pairs(&mut text, &noticed);
    curve(&mut text, &all);
    reliability(&mut text, &noticed);
    lacking(&mut text, &noticed);
    text
}

fn figures(text: &mut String, material: &Score, all: &Score) {
    let _ = writeln!(text, "| figure | bar | material | all injected |\n| --- | --- | --- | --- |");
    let mut row = |name: &str, bar: &str, of: &dyn Fn(&Score) -> String| {
        let _ = writeln!(text, "| {name} | {bar} | {} | {} |", of(material), of(all));
    };
    row("macro-F1", "≥ 0.90", &|s| format!("{:.3}", s.macro_f1));
    row("lowest recall of a class", "≥ 0.80", &|s| format!("{:.2} ({})", s.worst.1, s.worst.0));
    row("layer right, of all faults", "≥ 97 %", &|s| s.layer.text());
    row("layer right, of those named", "", &|s| s.layer_named.text());
    row("false blame (a wrong layer named)", "≤ 2 %", &|s| s.false_blame.text());
    row("the same, second verdicts counted as well", "≤ 2 %", &|s| s.false_blame_by_any.text());
    row("a second cause named of a single fault", "", &|s| s.false_second.text());
    row("false alarm on clean runs", "≤ 1 %", &|s| s.false_alarm.text());
    row("cause right", "", &|s| s.right.text());
    row("cause right in two guesses", "", &|s| s.top_two.text());
    row("\"inconclusive\" of a known fault", "", &|s| s.abstained.text());
    let _ = writeln!(text);
}

/// Adds the number of cases that happened as another class than the injected one.
fn came_to_pass(text: &mut String, cases: &[Judged]) {
    let of = |is: fn(&Happened) -> bool| cases.iter().filter(|case| is(&case.truth.happened)).count();
    let (instead, not) = (of(|h| matches!(h, Happened::Instead(_))), of(|h| matches!(h, Happened::Not)));
    let _ = writeln!(
        text,
        "{instead} retry storms in which hardly a request was tried again are counted as the slowdown that they are, {not} bursts in \
         which arrivals did not gather as not material.\n"
    );
}

/// Returns the figures under the earlier definitions of the ground truth: other runs, and the injected class
/// regardless of its outcome.
fn other_definitions(cases: &[Judged]) -> String {
    let elsewhere = |case: &Judged| {
        let mut case = case.clone();
        case.truth.material = case.truth.elsewhere;
        case
    };
    let here: Vec<Judged> = cases.iter().map(as_happened).collect();
    let there: Vec<Judged> = cases.iter().map(elsewhere).map(|case| as_happened(&case)).collect();
    let injected: Vec<Judged> = cases.iter().map(elsewhere).collect();
    let mut text = String::new();
    let _ = writeln!(text, "#### The same by other definitions of the truth\n");
    let _ = writeln!(
        text,
        "| material is what users notice | faults | macro-F1 | lowest recall | layer right | false blame | retry storms | bursts |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    for (name, of) in [
        ("in the run itself, against itself without the fault (this page)", &here),
        ("in three other runs of each side", &there),
        ("in three other runs, storms and bursts as injected", &injected),
    ] {
        let noticed: Vec<&Judged> = of.iter().filter(material).collect();
        let scored = score(&noticed);
        let recall = |cause: Cause| {
            let found = scored.classes.iter().find(|class| class.0 == cause.id());
            found.map_or("none".to_owned(), |class| format!("{:.2} of {}", class.1.value(), class.1.of))
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {:.3} | {:.2} ({}) | {} | {} | {} | {} |",
            scored.layer.of,
            scored.macro_f1,
            scored.worst.1,
            scored.worst.0,
            scored.layer.text(),
            scored.false_blame.text(),
            recall(Cause::RetryStorm),
            recall(Cause::Bursts),
        );
    }
    moved(&mut text, &here, &there);
    text
}

/// Adds the cases on which the definitions disagree, and their verdicts.
fn moved(text: &mut String, here: &[Judged], there: &[Judged]) {
    let counts = |case: &Judged| material(&case) && !case.class.is_pair() && case.class != Class::Clean;
    let of = |is: &dyn Fn(&Judged, &Judged) -> bool| {
        let of: Vec<&Judged> = here.iter().zip(there).filter(|(a, b)| is(a, b)).map(|(a, _)| a).collect();
        let said = Share::count(of.iter().copied(), right);
        let nothing = Share::count(of.iter().copied(), |case| case.said.cause == Cause::Nothing);
        format!("{} ({} of them named right, {} called nothing)", said.of, said.are, nothing.are)
    };
    let _ = writeln!(
        text,
        "\nFaults that are material in the run itself alone: {}; in three other runs alone: {}.\n",
        of(&|here, there| counts(here) && !counts(there)),
        of(&|here, there| !counts(here) && counts(there)),
    );
}

fn confusion(text: &mut String, heading: &str, cases: &[&Judged], score: &Score) {
    let _ = writeln!(text, "#### {heading}: what was injected, and what was said\n");
    let _ = writeln!(text, "| injected | cases | recall | precision | F1 | said instead |");
    let _ = writeln!(text, "| --- | --- | --- | --- | --- | --- |");
    for (name, recall, precision, f1) in &score.classes {
        let mut instead: BTreeMap<String, u64> = BTreeMap::new();
        let of = cases.iter().filter(|c| !c.class.is_pair() && c.class.causes()[0].id() == *name);
        for case in of.filter(|case| !right(case)) {
            *instead.entry(case.said.cause.id()).or_default() += 1;
        }
        let mut instead: Vec<(String, u64)> = instead.into_iter().collect();
        instead.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(&b.0)));
        let instead: Vec<String> = instead.into_iter().map(|(name, n)| format!("{name} {n}")).collect();
        let precise = if precision.of == 0 { "-".to_owned() } else { format!("{:.2}", precision.value()) };
        let (low, high) = recall.interval();
        let _ = writeln!(
            text,
            "| {name} | {} | {:.2} [{low:.2}, {high:.2}] | {precise} | {f1:.2} | {} |",
            recall.of,
            recall.value(),
            instead.join(", ")
        );
    }
    let _ = writeln!(text);
}

fn pairs(text: &mut String, cases: &[&Judged]) {
    let of: Vec<&&Judged> = cases.iter().filter(|case| case.class.is_pair()).collect();
    if of.is_empty() {
        return;
    }
    let _ = writeln!(text, "#### Two faults at once\n");
    let _ =
        writeln!(text, "| pair | cases | first verdict is one of them | both named | wrong layer named |");
    let _ = writeln!(text, "| --- | --- | --- | --- | --- |");
    for class in Class::ALL.into_iter().filter(|class| class.is_pair()) {
        let here = || of.iter().filter(|case| case.class == class).map(|case| **case);
        let one = Share::count(here(), right);
        if one.of == 0 {
            continue;
        }
        let both = Share::count(here(), |case| {
            let named = [Some(case.said.cause), case.said.second];
            case.class.causes().iter().all(|cause| named.contains(&Some(*cause)))
        });
        let wrong = Share::count(here(), blames_wrongly);
        let names: Vec<String> = class.causes().iter().map(|cause| cause.id()).collect();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} |",
            names.join(" + "),
            one.of,
            one.are,
            both.are,
            wrong.are
        );
    }
    let _ = writeln!(text);
}

fn curve(text: &mut String, cases: &[&Judged]) {
    let _ = writeln!(text, "#### Detection against what the user notices\n");
    let _ = writeln!(
        text,
        "The largest ratio of a median or 99th percentile (ttft, tpot, e2e, longest pause), candidate over baseline.\n"
    );
    let _ = writeln!(text, "| effect | cases | cause right | nothing said | inconclusive | another cause |");
    let _ = writeln!(text, "| --- | --- | --- | --- | --- | --- |");
    let edges = [0.0, 1.05, 1.1, 1.25, 1.5, 2.0, 3.0, f64::INFINITY];
    for pair in edges.windows(2) {
        let of: Vec<&&Judged> = cases
            .iter()
            .filter(|case| listed(case))
            .filter(|case| !matches!(case.class, Class::LostRows | Class::OverBudget))
            .filter(|case| (pair[0]..pair[1]).contains(&case.truth.effect))
            .collect();
        let share = |is: &dyn Fn(&Judged) -> bool| {
            let n = of.iter().filter(|case| is(case)).count();
            if of.is_empty() {
                "-".to_owned()
            } else {
                format!("{:.0} %", 100.0 * n as f64 / of.len() as f64)
            }
        };
        let _ = writeln!(
            text,
            "| {} to {} | {} | {} | {} | {} | {} |",
            pair[0],
            if pair[1].is_finite() { pair[1].to_string() } else { "more".to_owned() },
            of.len(),
            share(&right),
            share(&|case| case.said.cause == Cause::Nothing && !right(case)),
            share(&|case| case.said.cause == Cause::Unknown && !right(case)),
            share(&|case| case.said.names() && !right(case)),
        );
    }
    let _ = writeln!(text);
}

fn reliability(text: &mut String, cases: &[&Judged]) {
    let _ = writeln!(text, "#### Is the confidence what it says?\n");
    let _ = writeln!(
        text,
        "| confidence | verdicts | mean confidence | cause right |\n| --- | --- | --- | --- |"
    );
    let edges = [0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.01];
    let (mut error, mut total) = (0.0, 0.0);
    for pair in edges.windows(2) {
        let of: Vec<&&Judged> = cases
            .iter()
            .filter(|case| case.said.names() && (pair[0]..pair[1]).contains(&case.said.confidence))
            .collect();
        if of.is_empty() {
            continue;
        }
        let n = of.len() as f64;
        let mean = of.iter().map(|case| case.said.confidence).sum::<f64>() / n;
        let correct = of.iter().filter(|case| right(case)).count() as f64 / n;
        (error, total) = (error + n * (mean - correct).abs(), total + n);
        let _ = writeln!(text, "| {} to {} | {n} | {mean:.2} | {correct:.2} |", pair[0], pair[1].min(1.0));
    }
    let _ =
        writeln!(text, "\nMean difference between the two, weighted: {:.3}.\n", error / f64::max(total, 1.0));
    by_layer(text, cases);
}

/// Adds the accuracy by the named layer.
fn by_layer(text: &mut String, cases: &[&Judged]) {
    let _ = writeln!(
        text,
        "| layer named | verdicts | mean confidence | cause right | layer right | 0.5 to 0.7 | 0.7 to 0.9 | 0.9 to 1 |\n\
         | --- | --- | --- | --- | --- | --- | --- | --- |"
    );
    let mut layers: BTreeMap<&str, Vec<&Judged>> = BTreeMap::new();
    for case in cases.iter().filter(|case| case.said.names()) {
        layers.entry(case.said.layer.name()).or_default().push(case);
    }
    for (name, of) in layers {
        let all = || of.iter().copied();
        let mean = all().map(|case| case.said.confidence).sum::<f64>() / of.len() as f64;
        let located = Share::count(all(), |case| case.class.layers().contains(&case.said.layer));
        let within = |from: f64, to: f64| {
            let share = Share::count(all().filter(|case| (from..to).contains(&case.said.confidence)), right);
            if share.of == 0 { "-".to_owned() } else { format!("{:.2} of {}", share.value(), share.of) }
        };
        let _ = writeln!(
            text,
            "| {name} | {} | {mean:.2} | {:.2} | {:.2} | {} | {} | {} |",
            of.len(),
            Share::count(all(), right).value(),
            located.value(),
            within(0.0, 0.7),
            within(0.7, 0.9),
            within(0.9, 1.01)
        );
    }
    let _ = writeln!(text);
}

fn lacking(text: &mut String, cases: &[&Judged]) {
    let with: Vec<&Judged> = cases.iter().copied().filter(|case| !case.lacking.is_empty()).collect();
    if with.is_empty() {
        return;
    }
    let _ = writeln!(text, "#### With less to go by\n");
    let _ = writeln!(
        text,
        "| what is missing | cases | macro-F1 | layer right | false blame | false alarm | recall lost most |"
    );
    let _ = writeln!(text, "| --- | --- | --- | --- | --- | --- | --- |");
    let whole = score(&with);
    let mut row = |name: &str, cases: &[&Judged], whole: &Score| {
        let scored = score(cases);
        let mut lost: Vec<(String, f64)> = whole
            .classes
            .iter()
            .filter_map(|class| {
                let now = scored.classes.iter().find(|other| other.0 == class.0)?;
                Some((class.0.clone(), class.1.value() - now.1.value()))
            })
            .filter(|(_, lost)| *lost > 0.25)
            .collect();
        lost.sort_by(|a, b| b.1.total_cmp(&a.1));
        let lost: Vec<String> = lost.iter().take(6).map(|(name, by)| format!("{name} −{by:.2}")).collect();
        let percent = |share: Share| format!("{:.1} %", 100.0 * share.value());
        let _ = writeln!(
            text,
            "| {name} | {} | {:.3} | {} | {} | {} | {} |",
            cases.len(),
            scored.macro_f1,
            percent(scored.layer),
            percent(scored.false_blame),
            percent(scored.false_alarm),
            lost.join(", ")
        );
    };
    row("nothing", &with, &whole);
    for lack in Lack::ALL {
        let said = |case: &Judged| {
            let said = &case.lacking.iter().find(|(of, _)| *of == lack)?.1;
            (lack != Lack::Requests || on_a_page(case, &said.facts)).then(|| said.clone())
        };
        let (asked, less): (Vec<&Judged>, Vec<Judged>) = with
            .iter()
            .filter_map(|case| Some((*case, Judged { said: said(case)?, ..(*case).clone() })))
            .unzip();
        if !less.is_empty() {
            row(lack.name(), &less.iter().collect::<Vec<_>>(), &score(&asked));
        }
    }
    let _ = writeln!(text);
}

/// Returns whether a decisive fact of the injected class could be checked on metrics endpoints; always true without
/// an injection.
fn on_a_page(case: &Judged, facts: &str) -> bool {
    let asked = |fact: &Observed| facts.as_bytes().get(*fact as usize).is_some_and(|letter| *letter != b'-');
    // Errors happen in front of the servers, and no endpoint shows whether longer responses are for equal prompts.
    let elsewhere = matches!(case.class, Class::Errors | Class::Answers | Class::SamePromptsLongerAnswers);
    !elsewhere
        && case
            .class
            .causes()
            .iter()
            .any(|cause| *cause == Cause::Nothing || row(*cause).decisive.iter().any(asked))
}
