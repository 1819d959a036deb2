//! The page of a plan, to be sent round: the number, the curve with its headroom, the options, what it costs.
//!
//! A reader decides about money with it, so that the assumptions stand on the first screen and not in an appendix. Tables are those of
//! the terminal; the charts show them again.

use maud::{Markup, html};
use plimsoll_measure::findings::{Estimate, Held, Reading};
use plimsoll_plan::finding::{Chosen, Expected, PlanFinding, PlanOption, PlanPoint};

use super::chart::{CeilingLine, Chart, ChartAxis, ChartMark, Charts, Series, Shade};
use super::page::{page, table_of};
use crate::figure::centile;
use crate::plan;
use crate::plan_envelope::fleet;
use crate::table::Table;
use crate::{figure, words};

/// What only a plan needs.
pub(super) const CSS: &str = include_str!("plan.css");
/// Curves that are drawn: more are a tangle.
const CURVES: usize = 5;
const COLORS: [&str; CURVES] = ["--s2", "--s0", "--s3", "--s1", "--s4"];

/// The whole page. `asked`: the command that repeats it.
pub fn render(found: &PlanFinding, asked: &str) -> String {
    let charts = charts(found);
    let content = html! {
        header { h1 { (title(found)) } (said(found)) }
        (body(found, &charts))
        @if !asked.is_empty() { section { h2 { "Repeat" } pre { (asked) } } }
    };
    page(&format!("Plimsoll plan: {}", found.engine), CSS, Some(&charts), &content)
}

/// The plan as a part of a run's report; its charts are [`charts`].
pub(super) fn section(found: &PlanFinding, charts: &Charts) -> Markup {
    html! {
        section { h2 { (title(found)) } (said(found)) }
        (body(found, charts))
    }
}

fn body(found: &PlanFinding, charts: &Charts) -> Markup {
    html! {
        (cards(found))
        (curve_section(found, charts))
        (assumptions(found))
        (table_section("Expected at the peak", None, &plan::expected_table(found)))
        (table_section("Replicas tried", Some("The same schedules for each number, so that they differ by what is compared and not by luck."), &plan::tried_table(found)))
        @for line in plan::undecided(found) { p.small.soft { (line) } }
        (table_section("Formula against simulation", Some("Formulas answer at once; simulation sees percentiles, bursts and routing. Where they differ, simulation is what the plan goes by."), &plan::disagreement_table(found)))
        (slots(found))
        (cost(found))
        (scaling(found))
        (options(found, charts))
        (notes(found))
    }
}

/// What it plans for, and how sure it is of it.
fn title(found: &PlanFinding) -> Markup {
    let (word, class) = match found.chosen.as_ref().map(|chosen| chosen.held) {
        _ if found.simulated.is_none() => ("not simulated", "suspect"),
        Some(Held::Pass) => ("holds, simulated", "valid"),
        Some(Held::Inconclusive) => ("cannot tell", "suspect"),
        Some(Held::Fail) | None => ("does not hold", "invalid"),
    };
    html! { "Capacity plan for " (found.engine) " " span.badge.(class) { (word) } }
}

fn said(found: &PlanFinding) -> Markup {
    html! {
        p.soft {
            (crate::plan_envelope::load(found.load.rate_per_s, found.rules.peak)) " · " (plan::promise(&found.slo))
        }
        div.verdict { @for sentence in plan::headline(found) { p { (sentence) } } }
    }
}

fn cards(found: &PlanFinding) -> Markup {
    let Some(chosen) = &found.chosen else { return html! {} };
    let value = |reading: &Reading, spell: fn(f64) -> String| reading.value().map_or("–".to_owned(), spell);
    html! {
        div.cards {
            (card("replicas", &chosen_figure(chosen), &fleet(chosen.replicas, chosen.spare)))
            @if let Some(gpus) = chosen.gpus {
                (card("GPUs", &gpus.to_string(), &chosen.slots.map_or(String::new(), |n| format!("{} requests at once", figure::number(n)))))
            }
            (card("breaks at", &value(&chosen.breaks_at, figure::per_second), chosen.breaks_by.as_deref().unwrap_or_default()))
            (card("headroom over the peak", &value(&chosen.headroom, figure::percent), &format!("busy {} at the peak", figure::percent(chosen.utilisation))))
            @if let Some(cost) = &found.cost {
                @if let Some(hour) = cost.per_hour {
                    (card(&format!("{} an hour", cost.bill.currency), &figure::number(hour), &format!("{} a month of 730 h", figure::number(hour * 730.0))))
                }
                (card(&format!("{} per request", cost.bill.currency), &value(&cost.at_mean.per_request, figure::number), "at the mean load"))
            }
            @if let Some(chance) = &found.probability {
                (card("chance that it holds", &figure::chance(chance.held), &chance.weakest))
            }
        }
    }
}

fn chosen_figure(chosen: &Chosen) -> String {
    chosen.replicas.saturating_add(chosen.spare).to_string()
}

fn card(name: &str, value: &str, why: &str) -> Markup {
    html! { div.card { div.name { (name) } div.figure { (value) } p.small.soft { (why) } } }
}

fn table_section(title: &str, why: Option<&str>, table: &Table) -> Markup {
    html! { @if !table.is_empty() { section {
        h2 { (title) }
        @if let Some(why) = why { p.small.soft { (why) } }
        (table_of(table))
    } } }
}

fn curve_section(found: &PlanFinding, charts: &Charts) -> Markup {
    html! { @if charts.contains_key("curve") { section {
        h2 { "Latency against load" }
        p {
            "Simulated with the replicas that carry the load, spares not counted; bands are 95 % intervals. From the peak to where it breaks is headroom; right of that the promise is broken."
        }
        div.chart { div.title { "What requests meet, ms" } div id="curve" role="img" aria-label="What requests meet against load, ms" {} }
        details {
            summary { "The figures" }
            (table_of(&curve_table(found)))
        }
    } } }
}

fn curve_table(found: &PlanFinding) -> Table {
    let names: Vec<String> =
        found.curve.first().map_or_else(Vec::new, |point| point.figures.iter().map(name).collect());
    let columns: Vec<&str> = std::iter::once("requests/s").chain(names.iter().map(String::as_str)).collect();
    let mut table = Table::new(&columns);
    for point in &found.curve {
        let cells = point.figures.iter().map(|figure| plan::latency(&figure.value));
        table.row(std::iter::once(figure::number(point.rate_per_s)).chain(cells));
    }
    table
}

fn name(expected: &Expected) -> String {
    let metric = expected.metric.name();
    expected.percentile.map_or_else(|| format!("{metric} mean"), |p| format!("{metric} p{}", centile(p)))
}

fn assumptions(found: &PlanFinding) -> Markup {
    html! { @if !found.assumptions.is_empty() { section {
        h2 { "Taken for granted, and what would change the answer" }
        ul { @for line in &found.assumptions { li { (words::sentence(line)) } } }
    } } }
}

fn slots(found: &PlanFinding) -> Markup {
    html! {
        @if let Some(bounds) = &found.bounds { section { h2 { "At least" } p { (plan::bounds_words(bounds)) } } }
        @if let Some(slots) = &found.slots { section { h2 { "Slots" } p { (plan::slots_words(slots)) } } }
        (table_section("An isolated request", None, &plan::floor_table(&found.floor)))
    }
}

fn cost(found: &PlanFinding) -> Markup {
    html! { @if found.cost.is_some() { section {
        h2 { (plan::cost_title(found)) }
        (table_of(&plan::cost_table(found)))
        p.small.soft { "Paid by the hour, the whole price falls once on the requests, once on the input tokens and once on the output tokens: views of one sum, not parts of it." }
    } } }
}

/// Bars to one scale, worse to the left and better to the right.
fn scaling(found: &PlanFinding) -> Markup {
    html! { @if let Some(scaling) = &found.scaling { section {
        h2 { (plan::scaling_title(scaling)) }
        p { (words::sentence(&scaling.says)) }
        (table_of(&plan::scaling_table(scaling)))
    } } }
}

fn options(found: &PlanFinding, charts: &Charts) -> Markup {
    html! { @if !found.options.is_empty() { section {
        h2 { "Options" }
        p.small.soft { "* no other is both cheaper and faster; + no other has both more tokens per user and more per GPU." }
        div.pair {
            @for (key, title) in [("pareto-cost", "Cost against latency"), ("pareto-tokens", "Tokens per user against tokens per GPU")] {
                @if charts.contains_key(key) { div.chart { div.title { (title) } div id=(key) role="img" aria-label=(title) {} } }
            }
        }
        (table_of(&plan::options_table(found, usize::MAX)))
    } } }
}

fn notes(found: &PlanFinding) -> Markup {
    let notes = &found.notes;
    html! { @if !notes.is_empty() { section {
        h2 { "What to know" }
        ul { @for note in notes { li { (words::sentence(note)) } } }
    } } }
}

/// The plan's charts, by the names that its sections look for.
pub(super) fn charts(found: &PlanFinding) -> Charts {
    let mut charts = Charts::new();
    if found.curve.len() > 1 {
        charts.insert("curve".to_owned(), curve(found));
    }
    let cost = pareto(found, |o| Some((o.per_hour?, o.latency_s? * 1e3)), |o| o.on_cost_front);
    if let Some((all, front)) = cost {
        let currency = found.cost.as_ref().map_or("cost", |cost| cost.bill.currency.as_str());
        let label = found
            .slo
            .latency
            .first()
            .map_or("latency".to_owned(), |c| format!("{} p{}", c.metric.name(), centile(c.percentile)));
        let axes =
            (format!("{currency} an hour"), ChartAxis { label, unit: "ms".into(), ..ChartAxis::default() });
        charts.insert("pareto-cost".to_owned(), points(axes, all, front));
    }
    let tokens = pareto(found, |o| Some((o.tokens_per_user?, o.tokens_per_gpu?)), |o| o.on_token_front);
    if let Some((all, front)) = tokens {
        let y = ChartAxis { label: "output tokens/s per GPU".into(), ..ChartAxis::default() };
        charts.insert(
            "pareto-tokens".to_owned(),
            points(("output tokens/s per user".to_owned(), y), all, front),
        );
    }
    charts
}

fn curve(found: &PlanFinding) -> Chart {
    let first = found.curve.first().map_or(&[][..], |point| &point.figures);
    let ends = |i: usize, end: fn(&Estimate) -> f64| {
        let at = |point: &PlanPoint| {
            point
                .figures
                .get(i)
                .and_then(|f| f.value.estimate())
                .map(|e| end(e) * 1e3)
                .filter(|ms| ms.is_finite())
        };
        found.curve.iter().map(at).collect::<Vec<_>>()
    };
    let series = first.iter().enumerate().zip(COLORS).map(|((i, figure), color)| Series {
        x: found.curve.iter().map(|point| point.rate_per_s).collect(),
        y: ends(i, |e| e.value),
        low: Some(ends(i, |e| e.lower)),
        high: Some(ends(i, |e| e.upper)),
        ..Series::line(name(figure), color)
    });
    let mut marks = vec![ChartMark {
        x: found.load.peak_per_s,
        label: format!("planned {}", figure::per_second(found.load.peak_per_s)),
        color: "--s3",
    }];
    if found.rules.peak != 1.0 {
        marks.push(ChartMark {
            x: found.load.rate_per_s,
            label: format!("mean {}", figure::per_second(found.load.rate_per_s)),
            color: "--s4",
        });
    }
    let breaks =
        found.chosen.as_ref().and_then(|chosen| chosen.breaks_at.value()).filter(|at| at.is_finite());
    marks.extend(breaks.map(|x| ChartMark {
        x,
        label: format!("breaks {}", figure::per_second(x)),
        color: "--s2",
    }));
    let ceilings = first.iter().filter_map(|figure| {
        let limit_s = figure.limit_s?;
        Some(CeilingLine {
            y: 1e3 * limit_s, label: format!("{} ≤ {}", name(figure), words::time(limit_s))
        })
    });
    let ceilings = ceilings.collect();
    let mut shades = Vec::new();
    if let Some(breaks) = breaks {
        shades.push(Shade {
            from: Some(found.load.peak_per_s),
            to: Some(breaks),
            kind: "interval",
            color: "--s3",
            label: "headroom between the peak and where the promise breaks",
        });
        shades.push(Shade {
            from: Some(breaks),
            to: None,
            kind: "borrowed",
            color: "--s2",
            label: "past where the promise breaks",
        });
    }
    Chart {
        x: ChartAxis { label: "load (requests/s)".into(), ..ChartAxis::default() },
        y: ChartAxis { label: "latency".into(), unit: "ms".into(), log: true, range: None },
        series: series.collect(),
        marks,
        ceilings,
        shades,
        sync: None,
    }
}

type Points = Vec<(f64, f64)>;

/// All options that hold and those on the front, by x.
fn pareto(
    found: &PlanFinding,
    at: impl Fn(&PlanOption) -> Option<(f64, f64)>,
    on_front: impl Fn(&PlanOption) -> bool,
) -> Option<(Points, Points)> {
    let held = || found.options.iter().filter(|option| option.refused.is_none());
    let finite = |(x, y): &(f64, f64)| x.is_finite() && y.is_finite();
    let sorted = |mut points: Points| {
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    let all = sorted(held().filter_map(&at).filter(finite).collect());
    let front = sorted(held().filter(|option| on_front(option)).filter_map(&at).filter(finite).collect());
    (all.len() > 1).then_some((all, front))
}

fn points((label, y): (String, ChartAxis), all: Points, front: Points) -> Chart {
    let series = |points: &Points| Series {
        x: points.iter().map(|point| point.0).collect(),
        y: points.iter().map(|point| Some(point.1)).collect(),
        ..Series::default()
    };
    Chart {
        x: ChartAxis { label, ..ChartAxis::default() },
        y,
        series: vec![
            Series { label: "options".into(), color: "--s4", points: true, line: false, ..series(&all) },
            Series { label: "front".into(), color: "--s0", points: true, line: true, ..series(&front) },
        ],
        marks: Vec::new(),
        ceilings: Vec::new(),
        shades: Vec::new(),
        sync: None,
    }
}
