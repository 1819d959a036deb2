//! Renders a trade-off: the verdict, one table of speed, cost and accuracy, and on a page a chart of cost against accuracy.

use plimsoll_judge::quality::QualityFigure;
use plimsoll_judge::tradeoff::{PointPrice, TradeoffFinding, TradeoffRange, TradeoffVerdict};

use crate::document::{Document, Phrase};
use crate::html::chart::{Chart, ChartAxis, ChartSeries, Charts, place};
use crate::table::TextTable;
use crate::{figure, words};

/// Rows of tasks that a terminal shows.
const TASKS: usize = 8;

/// Returns the verdict in one sentence.
pub fn headline(found: &TradeoffFinding) -> String {
    let verdict = match found.verdict {
        TradeoffVerdict::Pays => "The change pays",
        TradeoffVerdict::DoesNotPay => "The change does not pay",
        TradeoffVerdict::CannotTell => "Whether the change pays cannot be told",
    };
    format!("{verdict}: {}.", found.why)
}

/// Returns the trade-off for a terminal or a pipe.
pub fn render(names: (&str, &str), found: &TradeoffFinding) -> String {
    let mut page = Document::default();
    page.verdict(&[headline(found)]);
    fill(&mut page, found);
    page.text(&title(names))
}

/// Returns the trade-off as a page.
pub fn page(names: (&str, &str), found: &TradeoffFinding) -> String {
    let charts = Charts::from([("tradeoff".to_owned(), chart(found))]);
    let mut page = Document::default();
    let class = match found.verdict {
        TradeoffVerdict::Pays => "pass",
        TradeoffVerdict::DoesNotPay => "fail",
        TradeoffVerdict::CannotTell => "inconclusive",
    };
    page.coloured_verdict(class, &[headline(found)]);
    page.drawn(place(&charts, "tradeoff", "Cost against accuracy, with 95 % intervals"));
    fill(&mut page, found);
    page.charted("Plimsoll: trade-off", &Phrase::from(title(names)), &charts)
}

fn title((base, candidate): (&str, &str)) -> String {
    format!("Trade-off of {candidate} against {base}")
}

fn fill(page: &mut Document, found: &TradeoffFinding) {
    let mut table = TextTable::new(&["<", "base", "candidate", "<change [95 %]", "<"]);
    for row in &found.speed {
        let (value, change) = match row.name.starts_with("throughput") || row.name.ends_with("rate") {
            true => ([row.base, row.candidate].map(|v| v.map(figure::per_second)), &row.effect),
            false => ([row.base, row.candidate].map(|v| v.map(words::time)), &row.effect),
        };
        let [base, candidate] = value.map(|v| v.unwrap_or("–".to_owned()));
        let change = change.as_ref().map(|e| {
            let range = TradeoffRange { value: e.value, lower: e.lower, upper: e.upper };
            ranged(&range, |v| format!("× {v:.3}"), |v| format!("{v:.3}"))
        });
        table.row([
            row.name.clone(),
            base,
            candidate,
            change.unwrap_or_default(),
            row.verdict.words().to_owned(),
        ]);
    }
    let cost = &found.cost;
    let money = |value: f64| format!("{} {}", figure::number(value), cost.currency);
    table.row([
        "cost per M tokens".to_owned(),
        money(cost.base.value),
        money(cost.candidate.value),
        ranged(&cost.ratio, |v| format!("× {v:.3}"), |v| format!("{v:.3}")),
        String::new(),
    ]);
    let accuracy = &found.accuracy;
    let row = |name: String, base: f64, candidate: f64, d: &QualityFigure| {
        let range = TradeoffRange { value: d.value, lower: d.lower, upper: d.upper };
        let change =
            ranged(&range, |v| format!("{v:+.2}").replace('-', "−"), |v| format!("{v:.2}").replace('-', "−"));
        let items = figure::counted(d.n, "item");
        [name, format!("{base:.2} %"), format!("{candidate:.2} %"), change, items]
    };
    table.row(row("accuracy, points".to_owned(), accuracy.base, accuracy.candidate, &accuracy.difference));
    let mut tasks: Vec<_> = accuracy.tasks.iter().collect();
    tasks.sort_by(|a, b| a.difference.value.total_cmp(&b.difference.value));
    let several = tasks.len() > 1;
    for (i, task) in tasks.iter().filter(|_| several).enumerate() {
        let cells = row(format!("  {}", task.name), task.base, task.candidate, &task.difference);
        if i < TASKS { table.row(cells) } else { table.page_row(cells) }
    }
    page.table(table);
    page.list(notes(found, several));
}

fn notes(found: &TradeoffFinding, several: bool) -> Vec<String> {
    let (cost, accuracy) = (&found.cost, &found.accuracy);
    let money = |value: f64| format!("{} {}", figure::number(value), cost.currency);
    let mut notes = vec![match &found.point {
        PointPrice::Known { price } => {
            let gained = if cost.saving.value > 0.0 { "given up returns" } else { "gained costs" };
            format!(
                "A point of accuracy {gained} {} per million output tokens.",
                ranged(price, money, figure::number)
            )
        }
        PointPrice::AtLeast { price } => format!(
            "A point of accuracy given up returns at least {} per million output tokens; the loss may be zero.",
            money(*price)
        ),
        PointPrice::None { why } => format!("A point of accuracy has no price: {why}."),
    }];
    notes.push(format!(
        "Saving: {} per million output tokens at {}.",
        ranged(&cost.saving, money, figure::number),
        cost.at
    ));
    let paired =
        if accuracy.is_paired { "item by item" } else { "by standard errors, because items are missing" };
    notes.push(format!(
        "Accuracy by {}, compared {paired}; tolerated loss {} points.",
        accuracy.source, found.max_loss
    ));
    if several {
        notes.push(
            "Accuracy weights tasks by their items. Intervals of tasks share the error of 5 %.".to_owned(),
        );
    }
    notes
}

fn ranged(range: &TradeoffRange, spell: impl Fn(f64) -> String, end: impl Fn(f64) -> String) -> String {
    format!("{} {}", spell(range.value), figure::interval(&end(range.lower), &end(range.upper)))
}

/// Returns cost over accuracy: a point for each side, and the candidate's intervals as a cross.
fn chart(found: &TradeoffFinding) -> Chart {
    let (cost, accuracy) = (&found.cost, &found.accuracy);
    let point = |label: &str, color, x: f64, y: f64| ChartSeries {
        x: vec![x],
        y: vec![Some(y)],
        line: false,
        labels: vec![label.to_owned()],
        ..ChartSeries::line(label, color)
    };
    let line = |label: &str, x: [f64; 2], y: [f64; 2]| ChartSeries {
        x: x.to_vec(),
        y: y.map(Some).to_vec(),
        points: false,
        ..ChartSeries::line(label, "--s1")
    };
    let d = &accuracy.difference;
    let (x, y) = (accuracy.candidate, cost.candidate.value);
    let ends = [accuracy.base + d.lower, accuracy.base + d.upper];
    // A drawing has one height per x.
    let upright = [x, x + 1e-6];
    let all = [ends[0], ends[1], accuracy.base, x];
    let (low, high) = all.iter().fold((f64::MAX, f64::MIN), |(low, high), v| (low.min(*v), high.max(*v)));
    let room = 0.15 * (high - low).max(0.5);
    Chart {
        x: ChartAxis {
            label: "accuracy (points)".into(),
            range: Some([low - room, high + room]),
            ..ChartAxis::default()
        },
        y: ChartAxis {
            label: format!("{} per million output tokens", cost.currency),
            ..ChartAxis::default()
        },
        series: vec![
            point("base", "--s0", accuracy.base, cost.base.value),
            point("candidate", "--s1", x, y),
            line("95 % of the difference of accuracy", ends, [y, y]),
            line("95 % of the candidate's cost", upright, [cost.candidate.lower, cost.candidate.upper]),
        ],
        marks: Vec::new(),
        ceilings: Vec::new(),
        shades: Vec::new(),
        sync: None,
    }
}
