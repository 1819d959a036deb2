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
                    @if charts.is_some() { (PreEscaped(UPLOT_CSS)) }
                    (PreEscaped(PAGE_CSS)) (PreEscaped(css))
                }
            }
            body {
                main { (content) }
                @if let Some(charts) = charts { (drawn(charts)) }
            }
        }
    }
    .into_string()
}

/// Returns the charts' data and the drawing script; a `<` in a name is escaped because it could end the element.
fn drawn(charts: &Charts) -> Markup {
    let data = serde_json::to_string(charts).unwrap_or_else(|_| "{}".into()).replace('<', "\\u003c");
    html! {
        script type="application/json" id="charts" { (PreEscaped(data)) }
        script { (PreEscaped(UPLOT_JS)) }
        script { (PreEscaped(PAGE_JS)) }
    }
}
