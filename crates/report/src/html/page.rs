//! The frame of every page: one file that opens offline, without network by its policy, with a script only if it has charts.
//!
//! A template engine with inheritance was rejected: several pages and one frame are a function.

use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::chart::Charts;

const UPLOT_JS: &str = include_str!("../../vendor/uplot/uPlot.iife.min.js");
const UPLOT_CSS: &str = include_str!("../../vendor/uplot/uPlot.min.css");
const PAGE_CSS: &str = include_str!("page.css");
const PAGE_JS: &str = include_str!("page.js");

/// Returns a page of `content` under `title`. `css` is the page's own style; `charts` adds the drawing script.
pub(crate) fn page(title: &str, css: &str, charts: Option<&Charts>, content: &Markup) -> String {
    let policy = match charts {
        Some(_) => "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:",
        None => "default-src 'none'; style-src 'unsafe-inline'; img-src data:",
    };
    let script = charts.map(|charts| {
        let data = serde_json::to_string(charts).unwrap_or_else(|_| "{}".into());
        scripts("charts", &data, PAGE_JS)
    });
    frame((title, css, policy), script, content)
}

/// A page whose own script shows `data`, which is JSON. A `live` page may query the server that it came from.
pub(crate) fn script_page(
    title: &str,
    css: &str,
    (data, script): (&str, &str),
    live: bool,
    content: &Markup,
) -> String {
    let policy = match live {
        true => {
            "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'"
        }
        false => "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:",
    };
    frame((title, css, policy), Some(scripts("data", data, script)), content)
}

fn frame((title, css, policy): (&str, &str, &str), script: Option<Markup>, content: &Markup) -> String {
    html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta http-equiv="Content-Security-Policy" content=(policy);
                meta name="color-scheme" content="light dark";
                link rel="icon" href="data:,";
                title { (title) }
                style {
                    @if script.is_some() { (PreEscaped(UPLOT_CSS)) }
                    (PreEscaped(PAGE_CSS)) (PreEscaped(css))
                }
            }
            body {
                main { (content) }
                @if let Some(script) = script { (script) }
            }
        }
    }
    .into_string()
}

/// Returns a page's data and the scripts that show it. A `<` in a name must not end the element that contains it.
fn scripts(id: &str, data: &str, script: &str) -> Markup {
    html! {
        script type="application/json" id=(id) { (PreEscaped(data.replace('<', "\\u003c"))) }
        script { (PreEscaped(UPLOT_JS)) }
        script { (PreEscaped(script)) }
    }
}
