//! The page of a profiler's timeline: what each device's time went by as a bar, the steps as bars beside each other, and the tables.
//!
//! Bars are plain elements, as on the page of a profile: they print, and need no script.

use maud::{Markup, html};
use plimsoll_diagnose::device::{Device, DeviceFinding, DeviceStep, KindTime, Launches, Top};

use super::page::page;
use crate::device::{seconds, short};
use crate::{figure, words};

/// What only this page needs: the bars of a profile's page.
const CSS: &str = include_str!("profile.css");
/// Steps drawn; of more, the slowest.
const STEPS: usize = 40;

/// What a device's time goes by, with the bar's colour: as on a profile's page, red is waiting and blue is computing.
const COMPUTING: (&str, &str) = ("computing", "#2f6fb5");
const EXCHANGE: (&str, &str) = ("exchange only", "#8f7fc4");
const COPY: (&str, &str) = ("copy only", "#9aa86b");
const LAUNCHED: (&str, &str) = ("idle: launched", "#e88a7d");
const HOST: (&str, &str) = ("idle: host", "#d9534f");
const IDLE: (&str, &str) = ("idle", "#a8a8a8");
const OTHER: (&str, &str) = ("exchange and copy", "#7a8ca3");

/// The whole page.
pub fn render(name: &str, finding: &DeviceFinding) -> String {
    let content = html! {
        header {
            h1 { "Profiler’s timeline " (name) }
            div.verdict { p { (words::sentence(&finding.says)) } }
        }
        (devices(finding))
        (kinds(&finding.kinds))
        (tops("Longest on the device", &finding.top, finding.more))
        (launches(finding.launches.as_ref()))
        (meanwhile(finding))
        (tops("Longest on the host, without what it called", &finding.host_top, 0))
        (steps(&finding.steps))
        @if !finding.notes.is_empty() {
            section { h2 { "What to know" } ul { @for note in &finding.notes { li { (words::sentence(note)) } } } }
        }
    };
    page(&format!("Plimsoll profile: {name}"), CSS, None, &content)
}

fn devices(finding: &DeviceFinding) -> Markup {
    html! { @if !finding.devices.is_empty() { section {
        h2 { "Devices, over " (seconds(finding.window_s)) }
        div.bands { @for device in &finding.devices { (band(&device.device, &shares(device), &format!("{} busy", figure::percent(device.busy)))) } }
        p.legend { @for (part, colour) in used(finding) { span { (swatch(colour)) (part) } } }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr {
                th.left scope="col" { "device" } th scope="col" { "busy" } th scope="col" { "computing" } th scope="col" { "exchange only" } th scope="col" { "copy only" } th scope="col" { "idle: host" } th scope="col" { "idle: launched" }
                th scope="col" { "streams" } th scope="col" { "kernels, copies" }
            } }
            tbody { @for device in &finding.devices { tr {
                td.left { (device.device) } td { (figure::percent(device.busy)) } td { (figure::percent(device.computing)) }
                td { (figure::percent(device.collective_alone)) } td { (figure::percent(device.copy_alone)) }
                td { (unknown(device.host_idle)) } td { (unknown(device.queued_idle)) }
                td { (figure::count(device.streams)) } td { (figure::count(device.activities)) }
            } } }
        } }
    } } }
}

/// A device's time, exclusive and whole.
fn shares(device: &Device) -> Vec<((&'static str, &'static str), f64)> {
    let idle = 1.0 - device.busy;
    let other = device.busy - device.computing - device.collective_alone - device.copy_alone;
    let mut all = vec![
        (COMPUTING, device.computing),
        (EXCHANGE, device.collective_alone),
        (COPY, device.copy_alone),
        (OTHER, other.max(0.0)),
    ];
    match (device.queued_idle, device.host_idle) {
        (Some(queued), Some(host)) => all.extend([(LAUNCHED, queued), (HOST, host)]),
        _ => all.push((IDLE, idle)),
    }
    all.retain(|(_, share)| *share > 5e-4);
    all
}

fn used(finding: &DeviceFinding) -> Vec<(&'static str, &'static str)> {
    let all = [COMPUTING, EXCHANGE, COPY, OTHER, LAUNCHED, HOST, IDLE];
    let is = |part: &(&str, &str)| {
        finding.devices.iter().any(|device| shares(device).iter().any(|(of, _)| of == part))
    };
    all.into_iter().filter(is).collect()
}

fn band(name: &str, parts: &[((&'static str, &'static str), f64)], value: &str) -> Markup {
    html! { div.band {
        span.name { (name) }
        div.track { @for ((part, colour), share) in parts {
            div style=(format!("width:{:.3}%;background:{colour}", 100.0 * share)) title=(format!("{part} {}", figure::percent(*share))) {}
        } }
        span.value { (value) }
    } }
}

fn swatch(colour: &str) -> Markup {
    html! { i.swatch style=(format!("background:{colour}")) {} }
}

fn unknown(share: Option<f64>) -> String {
    share.map_or_else(|| "–".to_owned(), figure::percent)
}

fn kinds(kinds: &[KindTime]) -> Markup {
    html! { @if !kinds.is_empty() { section {
        h2 { "Device time by kind" }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th.left scope="col" { "kind (by name)" } th scope="col" { "count" } th scope="col" { "time" } th scope="col" { "share" } } }
            tbody { @for kind in kinds { tr {
                td.left { (kind.kind.word()) } td { (figure::count(kind.count)) } td { (seconds(kind.total_s)) } td { (figure::percent(kind.share)) }
            } } }
        } }
    } } }
}

fn tops(title: &str, tops: &[Top], more: u64) -> Markup {
    html! { @if !tops.is_empty() { section {
        h2 { (title) }
        div.scroll tabindex="0" role="region" aria-label="Table" { table {
            thead { tr { th scope="col" { "time" } th scope="col" { "share" } th scope="col" { "count" } th scope="col" { "mean" } th.left scope="col" { "name" } } }
            tbody { @for one in tops { tr {
                td { (seconds(one.total_s)) } td { (figure::percent(one.share)) } td { (figure::count(one.count)) } td { (seconds(one.mean_s)) }
                td.left title=(one.name) { (short(&one.name)) }
            } } }
        } }
        @if more > 0 { p.small.soft { "and " (figure::count(more)) " more names" } }
    } } }
}

fn launches(launches: Option<&Launches>) -> Markup {
    html! { @if let Some(found) = launches { section {
        h2 { "Launches" }
        p {
            (figure::count(found.count)) " calls of " (seconds(found.call_mean_s)) " each, together " (figure::number(found.call_over_device))
            " times the device time that they launched. From call to begin " (seconds(found.delay_p50_s)) " (p50), " (seconds(found.delay_p99_s))
            " (p99). The host waited for the device " (figure::percent(found.synchronising)) " of the time."
        }
    } } }
}

fn meanwhile(finding: &DeviceFinding) -> Markup {
    html! { @if !finding.host_meanwhile.is_empty() { section {
        h2 { "While a device waited for the host, the host was in" }
        div.scroll tabindex="0" role="region" aria-label="Table" { table { tbody { @for did in &finding.host_meanwhile { tr {
            td { (figure::percent(did.share)) }
            td.left { @if did.name.is_empty() { "nothing that was recorded" } @else { (short(&did.name)) } }
        } } } } }
    } } }
}

/// Each step to one scale: how long it took, and what its devices did.
fn steps(steps: &[DeviceStep]) -> Markup {
    let mut shown: Vec<&DeviceStep> = steps.iter().collect();
    if steps.len() > STEPS {
        shown.sort_by(|a, b| b.took_s.total_cmp(&a.took_s));
        shown.truncate(STEPS);
        shown.sort_by(|a, b| a.at_s.total_cmp(&b.at_s));
    }
    let longest = steps.iter().map(|step| step.took_s).fold(0.0, f64::max).max(1e-12);
    html! { @if !steps.is_empty() { section {
        h2 { (figure::count(steps.len() as u64)) " steps" @if shown.len() < steps.len() { ", the slowest " (figure::count(shown.len() as u64)) } }
        div.bands { @for step in &shown {
            @let scale = step.took_s / longest;
            @let host = step.host_idle.unwrap_or(0.0);
            @let parts = [(("busy", COMPUTING.1), step.busy), (HOST, host), (("idle otherwise", IDLE.1), (1.0 - step.busy - host).max(0.0))];
            (band(&short(&step.name), &parts.map(|(part, share)| (part, scale * share)), &seconds(step.took_s)))
        } }
        p.legend {
            span { (swatch(COMPUTING.1)) "busy" } span { (swatch(HOST.1)) "idle: host" } span { (swatch(IDLE.1)) "idle otherwise" }
        }
    } } }
}
