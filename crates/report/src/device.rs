//! A profiler's timeline as text: what the time went by, the devices, their work by kind and by name, launches, steps.

use plimsoll_diagnose::device::{Device, DeviceFinding, DeviceStep, Launches, Top};

use crate::figure;
use crate::table::Table;

/// Longest name shown, letters.
const NAME: usize = 68;
/// Steps shown; of more, the first and the slowest.
const STEPS: usize = 16;

/// The whole page.
pub fn render(name: &str, finding: &DeviceFinding) -> String {
    let mut page = vec![format!("Profiler's timeline {name}"), String::new(), finding.says.clone()];
    if !finding.devices.is_empty() {
        page.push(String::new());
        page.push(format!("Devices, over {}", seconds(finding.window_s)));
        page.push(devices(&finding.devices));
    }
    if !finding.kinds.is_empty() {
        let mut table = Table::new(&["<kind (by name)", "count", "time", "share"]);
        for kind in &finding.kinds {
            let share = figure::percent(kind.share);
            table.row([kind.kind.word().to_owned(), figure::count(kind.count), seconds(kind.total_s), share]);
        }
        section(&mut page, "Device time by kind", &table);
    }
    if !finding.top.is_empty() {
        section(&mut page, "Longest on the device", &top(&finding.top));
        if finding.more > 0 {
            page.push(format!("  and {} more names", figure::count(finding.more)));
        }
    }
    if let Some(launches) = &finding.launches {
        page.push(String::new());
        page.extend(launched(launches));
    }
    if !finding.host_meanwhile.is_empty() {
        page.push(String::new());
        page.push("While a device waited for the host, the host was in".into());
        for did in &finding.host_meanwhile {
            let name = if did.name.is_empty() { "nothing that was recorded" } else { &did.name };
            page.push(format!("  {} {}", figure::percent(did.share), short(name)));
        }
    }
    if !finding.host_top.is_empty() {
        section(&mut page, "Longest on the host, without what it called", &top(&finding.host_top));
    }
    page.extend(steps(&finding.steps));
    if !finding.notes.is_empty() {
        page.push(String::new());
        page.extend(finding.notes.iter().map(|note| format!("- {note}")));
    }
    page.join("\n")
}

fn section(page: &mut Vec<String>, title: &str, table: &Table) {
    page.push(String::new());
    page.push(title.to_owned());
    page.push(table.render(2).trim_end().to_owned());
}

pub(crate) fn seconds(s: f64) -> String {
    figure::duration_ns(1e9 * s)
}

/// A name that fits a line: C++ says its arguments at length.
pub(crate) fn short(name: &str) -> String {
    let name = name.strip_prefix("void ").unwrap_or(name);
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let head: String = name.chars().take(NAME - 1).collect();
    format!("{head}…")
}

fn devices(devices: &[Device]) -> String {
    let mut table = Table::new(&[
        "<device",
        "busy",
        "computing",
        "exchange only",
        "copy only",
        "idle: host",
        "idle: launched",
        "streams",
    ]);
    let unknown = |share: Option<f64>| share.map_or_else(|| "–".to_owned(), figure::percent);
    for device in devices {
        table.row([
            device.device.clone(),
            figure::percent(device.busy),
            figure::percent(device.computing),
            figure::percent(device.collective_alone),
            figure::percent(device.copy_alone),
            unknown(device.host_idle),
            unknown(device.queued_idle),
            figure::count(device.streams),
        ]);
    }
    table.render(2).trim_end().to_owned()
}

fn top(top: &[Top]) -> Table {
    let mut table = Table::new(&["time", "share", "count", "mean", "<name"]);
    for one in top {
        table.row([
            seconds(one.total_s),
            figure::percent(one.share),
            figure::count(one.count),
            seconds(one.mean_s),
            short(&one.name),
        ]);
    }
    table
}

fn launched(launches: &Launches) -> Vec<String> {
    vec![
        format!(
            "Launches: {} of {} each, together {} times the device time that they launched",
            figure::counted(launches.count, "call"),
            seconds(launches.call_mean_s),
            figure::number(launches.call_over_device)
        ),
        format!(
            "  from call to begin {} (p50), {} (p99); the host waited for the device {} of the time",
            seconds(launches.delay_p50_s),
            seconds(launches.delay_p99_s),
            figure::percent(launches.synchronising)
        ),
    ]
}

fn steps(steps: &[DeviceStep]) -> Vec<String> {
    if steps.is_empty() {
        return Vec::new();
    }
    let mut shown: Vec<&DeviceStep> = steps.iter().collect();
    if steps.len() > STEPS {
        shown.sort_by(|a, b| b.took_s.total_cmp(&a.took_s));
        shown.truncate(STEPS);
        shown.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }
    let mut table = Table::new(&["<step", "at", "took", "busy", "idle: host", "device work"]);
    for step in &shown {
        table.row([
            short(&step.name),
            seconds(step.at_s),
            seconds(step.took_s),
            figure::percent(step.busy),
            step.host_idle.map_or_else(|| "–".to_owned(), figure::percent),
            figure::count(step.activities),
        ]);
    }
    let mut times: Vec<f64> = steps.iter().map(|step| step.took_s).collect();
    times.sort_by(f64::total_cmp);
    let (first, middle, last) = (times[0], times[times.len() / 2], times[times.len() - 1]);
    let which =
        if shown.len() < steps.len() { format!(", the {STEPS} slowest of them") } else { String::new() };
    vec![
        String::new(),
        format!(
            "Steps: {} of {} to {}, the middle one {}{which}",
            steps.len(),
            seconds(first),
            seconds(last),
            seconds(middle)
        ),
        table.render(2).trim_end().to_owned(),
    ]
}
