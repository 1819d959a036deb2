//! Renders a tuning: the best setting with its command, the settings that tie with it, and a table of all.

use plimsoll_judge::tune::{SettingFinding, SettingPlace, TuneFinding, TuneGoal};
use plimsoll_measure::findings::Estimate;

use crate::figure;
use crate::table::TextTable;

/// Returns the verdict in one sentence.
pub fn headline(finding: &TuneFinding) -> String {
    let Some(best) = finding.best() else {
        let measured = finding.settings.iter().any(|setting| setting.trial.load.is_some());
        return match (measured, finding.is_complete) {
            (true, _) => format!("No setting carries a load within {}.", finding.slo.join(", ")),
            (false, false) => "Stopped before a setting was measured.".to_owned(),
            (false, true) => "No setting could be measured.".to_owned(),
        };
    };
    let so_far = if finding.is_complete { "" } else { " so far" };
    let unit = match finding.goal {
        TuneGoal::Load => "",
        TuneGoal::Cost => " per million good output tokens",
    };
    let tied = match finding.settings.iter().filter(|one| one.standing == SettingPlace::Tied).count() {
        0 => String::new(),
        1 => "; 1 other setting ties".to_owned(),
        n => format!("; {n} other settings tie"),
    };
    format!("Best{so_far}: {}, {}{unit}{tied}.", name(best), amount(finding, best))
}

/// Returns the result for a terminal or a pipe.
pub fn render(finding: &TuneFinding) -> String {
    let mut lines = vec![headline(finding)];
    lines.extend(finding.best().map(|best| format!("\nCommand  {}", best.trial.launch)));
    let figure = match finding.goal {
        TuneGoal::Load if finding.slo.is_empty() => "throughput",
        TuneGoal::Load => "load",
        TuneGoal::Cost => "cost per Mtok",
    };
    let mut table = TextTable::new(&["<setting", figure, "95 % interval", "rungs", "<"]);
    let mut failures = Vec::new();
    for one in &finding.settings {
        let place = match one.standing {
            SettingPlace::Best | SettingPlace::Tied if finding.best().is_none() => "none",
            SettingPlace::Best => "best",
            SettingPlace::Tied => "tied",
            SettingPlace::Worse | SettingPlace::Failed => "worse",
        };
        match (one.trial.figure(finding.goal), &one.trial.why) {
            (_, Some(why)) => failures.push(format!("  {}: failed, {why}", name(one))),
            (Some(own), None) => {
                let rungs = (one.trial.rung + 1).to_string();
                table.row([name(one), amount(finding, one), interval(own), rungs, place.to_owned()]);
            }
            (None, None) => {}
        }
    }
    if !table.is_empty() {
        lines.push(format!("\n{}", table.render(2).trim_end()));
    }
    lines.extend(failures);
    if !finding.slo.is_empty() {
        lines.push(format!("\nLimits   {}", finding.slo.join(", ")));
    }
    lines.join("\n")
}

/// Returns the values of a setting; `as given` if nothing varies.
fn name(setting: &SettingFinding) -> String {
    let values: Vec<String> = setting.values.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if values.is_empty() { "as given".to_owned() } else { values.join(" ") }
}

fn amount(finding: &TuneFinding, setting: &SettingFinding) -> String {
    let value = setting.trial.figure(finding.goal).map_or(f64::INFINITY, |own| own.value);
    match finding.goal {
        TuneGoal::Load => figure::per_second(value),
        TuneGoal::Cost if value.is_infinite() => "no load".to_owned(),
        TuneGoal::Cost => {
            format!("{} {}", figure::number(value), finding.currency.as_deref().unwrap_or_default())
        }
    }
}

fn interval(own: &Estimate) -> String {
    match own.upper.is_infinite() {
        true => format!("from {}", figure::number(own.lower)),
        false => figure::interval(&figure::number(own.lower), &figure::number(own.upper)),
    }
}
