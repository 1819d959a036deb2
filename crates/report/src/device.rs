//! Renders a profiler's timeline: the use of time, the devices, their work by kind and by name, launches, steps.
//!
//! On a page, bars next to each other show each device's time and the steps. Bars are plain elements, as on the page of a profile:
//! they print, and need no script.

use maud::{Markup, html};
use plimsoll_diagnose::device::{Device, DeviceFinding, DeviceStep, HostShare, Launches, LayerTime, Top};

use crate::document::{Document, Phrase};
use crate::html::bars::{BARS_CSS, Piece, bar, swatch};
use crate::table::TextTable;
use crate::{figure, words};

/// Longest name shown, in characters.
const NAME: usize = 68;
/// Multiple of the mean from which the longest of equal layers is named.
const LONG: f64 = 2.0;
/// Limit of steps in the terminal's table and on a page; the slowest are shown.
const STEPS: usize = 16;
const DRAWN_STEPS: usize = 40;

/// A use of a device's time, with the bar's colour: as on a profile's page, red is waiting and blue is computing.
type Part = (&'static str, &'static str);
const COMPUTING: Part = ("computing", "#2f6fb5");
const EXCHANGE: Part = ("exchange only", "#8f7fc4");
const COPY: Part = ("copy only", "#9aa86b");
const LAUNCHED: Part = ("idle: launched", "#e88a7d");
const HOST: Part = ("idle: host", "#d9534f");
const IDLE: Part = ("idle", "#a8a8a8");
const OTHER: Part = ("exchange and copy", "#7a8ca3");

pub fn render(name: &str, finding: &DeviceFinding) -> String {
    document(finding).text(&format!("Profiler's timeline {name}"))
}

pub fn page(name: &str, finding: &DeviceFinding) -> String {
    let heading = format!("Profiler’s timeline {name}");
    document(finding).page(&format!("Plimsoll profile: {name}"), &heading.into(), BARS_CSS)
}

fn document(finding: &DeviceFinding) -> Document {
    let mut document = Document::default();
    document.verdict(&[words::sentence(&finding.says)]);
    document.section(format!("Devices, over {}", seconds(finding.window_s)), |section| {
        section.drawn(bands(finding));
        section.table(devices(&finding.devices));
    });
    let mut kinds = TextTable::new(&["<kind (by name)", "count", "time", "share"]);
    for kind in &finding.kinds {
        let share = figure::percent(kind.share);
        kinds.row([kind.kind.word().to_owned(), figure::count(kind.count), seconds(kind.total_s), share]);
    }
    document.titled("Device time by kind", kinds);
    document.titled(
        "Device time by layer (ranges and operators that launched it; nested)",
        layers(&finding.layers),
    );
    document.section("Longest on the device", |section| {
        section.table(top(&finding.top));
        if finding.more > 0 {
            section.says(format!("and {} more names", figure::count(finding.more)));
        }
    });
    if let Some(launches) = &finding.launches {
        document.section("Launches", |section| {
            launched(launches).into_iter().for_each(|says| section.says(says))
        });
    }
    document
        .titled("While a device waited for the host, the host was in", meanwhile(&finding.host_meanwhile));
    document.titled("Longest on the host (self time)", top(&finding.host_top));
    steps(&mut document, &finding.steps);
    document.notes(finding.notes.iter().cloned());
    document
}

fn seconds(s: f64) -> String {
    figure::duration_ns(1e9 * s)
}

fn share(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), figure::percent)
}

/// Shortens a name to one line, because C++ names include their arguments.
fn short(name: &str) -> String {
    let name = name.strip_prefix("void ").unwrap_or(name);
    if name.chars().count() <= NAME {
        return name.to_owned();
    }
    let head: String = name.chars().take(NAME - 1).collect();
    format!("{head}…")
}

fn devices(devices: &[Device]) -> TextTable {
    let mut table = TextTable::new(&[
        "<device",
        "busy",
        "computing",
        "exchange only",
        "copy only",
        "idle: host",
        "idle: launched",
        "streams",
        "+kernels, copies",
    ]);
    for device in devices {
        table.row([
            device.device.clone(),
            figure::percent(device.busy),
            figure::percent(device.computing),
            figure::percent(device.collective_alone),
            figure::percent(device.copy_alone),
            share(device.host_idle),
            share(device.queued_idle),
            figure::count(device.streams),
            figure::count(device.activities),
        ]);
    }
    table
}

fn bands(finding: &DeviceFinding) -> Markup {
    let all = [COMPUTING, EXCHANGE, COPY, OTHER, LAUNCHED, HOST, IDLE];
    let drawn =
        |part: &&Part| finding.devices.iter().any(|device| shares(device).iter().any(|(of, _)| of == *part));
    html! { @if !finding.devices.is_empty() {
        div.bands { @for device in &finding.devices {
            @let pieces = shares(device).into_iter().map(|(part, share)| piece(part, share, share));
            (bar(&device.device, pieces, &format!("{} busy", figure::percent(device.busy))))
        } }
        p.legend { @for (part, colour) in all.iter().filter(drawn) { span { (swatch(colour)) (part) } } }
    } }
}

/// Returns a piece with this share of a device's time, drawn with width `wide`.
fn piece((name, colour): Part, share: f64, wide: f64) -> Piece {
    Piece { says: format!("{name} {}", figure::percent(share)), colour, share: wide, inferred: false }
}

/// Returns the uses of a device's time, exclusive and complete.
fn shares(device: &Device) -> Vec<(Part, f64)> {
    let other = device.busy - device.computing - device.collective_alone - device.copy_alone;
    let mut all = vec![
        (COMPUTING, device.computing),
        (EXCHANGE, device.collective_alone),
        (COPY, device.copy_alone),
        (OTHER, other.max(0.0)),
    ];
    match (device.queued_idle, device.host_idle) {
        (Some(queued), Some(host)) => all.extend([(LAUNCHED, queued), (HOST, host)]),
        _ => all.push((IDLE, 1.0 - device.busy)),
    }
    all.retain(|(_, share)| *share > 5e-4);
    all
}

fn layers(layers: &[LayerTime]) -> TextTable {
    let mut table = TextTable::new(&["time", "share", "count", "<mostly", "<layer"]);
    for one in layers {
        let mostly = format!("{} {}", one.kind.word(), figure::percent(one.kind_share));
        let mut name = short(&one.layer);
        // One of many equal layers that takes far longer than their mean is named.
        if one.ranges > 1 && one.longest_s * one.ranges as f64 > LONG * one.total_s {
            name = format!("{name}; {} of it {}", seconds(one.longest_s), short(&one.longest));
        }
        let (time, share) = (seconds(one.total_s), figure::percent(one.share));
        table.row([time, share, figure::count(one.activities), mostly, name]);
    }
    table
}

fn top(top: &[Top]) -> TextTable {
    let mut table = TextTable::new(&["time", "share", "count", "mean", "<name"]);
    for one in top {
        let name = short(&one.name);
        table.row([
            seconds(one.total_s).into(),
            figure::percent(one.share).into(),
            figure::count(one.count).into(),
            seconds(one.mean_s).into(),
            Phrase::drawn(name.as_str(), html! { span title=(one.name) { (name) } }),
        ]);
    }
    table
}

fn launched(launches: &Launches) -> [String; 2] {
    [
        format!(
            "{} of {} each, together {} times the device time that they launched.",
            figure::counted(launches.count, "call"),
            seconds(launches.call_mean_s),
            figure::number(launches.call_over_device)
        ),
        format!(
            "From call to begin {} (p50), {} (p99). The host waited for the device {} of the time.",
            seconds(launches.delay_p50_s),
            seconds(launches.delay_p99_s),
            figure::percent(launches.synchronising)
        ),
    ]
}

fn meanwhile(host: &[HostShare]) -> TextTable {
    let mut table = TextTable::new(&["", "<"]);
    for did in host {
        let name =
            if did.name.is_empty() { "nothing that was recorded".to_owned() } else { short(&did.name) };
        table.row([figure::percent(did.share), name]);
    }
    table
}

/// Returns at most `most` of the slowest steps, in their original order.
fn slowest(steps: &[DeviceStep], most: usize) -> Vec<&DeviceStep> {
    let mut shown: Vec<&DeviceStep> = steps.iter().collect();
    if steps.len() > most {
        shown.sort_by(|a, b| b.took_s.total_cmp(&a.took_s));
        shown.truncate(most);
        shown.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }
    shown
}

fn steps(document: &mut Document, steps: &[DeviceStep]) {
    let mut times: Vec<f64> = steps.iter().map(|step| step.took_s).collect();
    times.sort_by(f64::total_cmp);
    let [Some(first), Some(last)] = [times.first(), times.last()] else { return };
    let range = format!(
        "{} of {} to {}",
        figure::counted(steps.len() as u64, "step"),
        seconds(*first),
        seconds(*last)
    );
    let heading = format!("{range}, the middle one {}", seconds(times[times.len() / 2]));
    document.section(heading, |section| {
        section.drawn(step_bands(steps, *last));
        section.terminal(|section| {
            if steps.len() > STEPS {
                section.says(format!("The {STEPS} slowest of them:"));
            }
            let mut table = TextTable::new(&["<step", "at", "took", "busy", "idle: host", "device work"]);
            for step in slowest(steps, STEPS) {
                table.row([
                    short(&step.name),
                    seconds(step.at_s),
                    seconds(step.took_s),
                    figure::percent(step.busy),
                    share(step.host_idle),
                    figure::count(step.activities),
                ]);
            }
            section.table(table);
        });
    });
}

/// Returns the steps on one scale: the duration, and the work of the devices.
fn step_bands(steps: &[DeviceStep], longest_s: f64) -> Markup {
    let of = |step: &DeviceStep| {
        let host = step.host_idle.unwrap_or(0.0);
        let otherwise = (1.0 - step.busy - host).max(0.0);
        let parts =
            [(("busy", COMPUTING.1), step.busy), (HOST, host), (("idle otherwise", IDLE.1), otherwise)];
        parts.map(|(part, share)| piece(part, share, share * step.took_s / longest_s.max(1e-12)))
    };
    html! {
        @if steps.len() > DRAWN_STEPS { p.small.soft { "The slowest " (DRAWN_STEPS) " of them:" } }
        div.bands { @for step in slowest(steps, DRAWN_STEPS) {
            (bar(&short(&step.name), of(step), &seconds(step.took_s)))
        } }
        p.legend {
            span { (swatch(COMPUTING.1)) "busy" } span { (swatch(HOST.1)) "idle: host" } span { (swatch(IDLE.1)) "idle otherwise" }
        }
    }
}
