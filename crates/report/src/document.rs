//! A document of sections, sentences, tables and drawings, shown at a terminal as text and as an HTML page.
//!
//! Each output shows it differently. The terminal indents and omits drawings; a page sets headings and may show more columns and rows.
//! An empty section is omitted, so that callers need no check.

use maud::{Markup, html};
use plimsoll_measure::findings::Reading;

use crate::html::chart::Charts;
use crate::html::page::page;
use crate::table::TextTable;
use crate::words;

/// A text, optionally with a page's markup for it: a badge, code, soft type. The terminal shows only the text.
#[derive(Clone, Debug, Default)]
pub struct Phrase {
    pub(crate) text: String,
    pub(crate) page: Option<Markup>,
    is_sentence: bool,
}

/// Length in characters above which a text counts as a sentence.
const SENTENCE: usize = 40;

impl Phrase {
    /// Creates a phrase with different markup on a page.
    pub fn drawn(text: impl Into<String>, page: Markup) -> Phrase {
        Phrase { text: text.into(), page: Some(page), is_sentence: false }
    }

    /// Shows the phrase in a page's soft type: an explanation of a figure, not a result.
    pub fn soft(self) -> Phrase {
        self.class("soft")
    }

    /// Shows the phrase with a class of the pages' style.
    pub fn class(self, class: &str) -> Phrase {
        let page = Some(html! { span.(class) { (self.markup()) } });
        Phrase { page, ..self }
    }

    /// Marks the phrase as a sentence, which a page may wrap, because the length of its markup is unknown.
    pub fn sentence(self) -> Phrase {
        Phrase { is_sentence: true, ..self }
    }

    /// Returns whether a page may wrap the phrase; a figure must not wrap.
    pub(crate) fn wraps(&self) -> bool {
        self.is_sentence || self.text.chars().count() > SENTENCE
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.text.is_empty() && self.page.is_none()
    }

    pub(crate) fn markup(&self) -> Markup {
        self.page.clone().unwrap_or_else(|| html! { (self.text) })
    }
}

impl From<String> for Phrase {
    fn from(text: String) -> Phrase {
        Phrase { text, page: None, is_sentence: false }
    }
}

impl From<&str> for Phrase {
    fn from(text: &str) -> Phrase {
        Phrase::from(text.to_owned())
    }
}

/// Formats a latency in ms. On a page its interval is below it, and the reason for a missing interval is a tooltip.
pub(crate) fn latency(reading: &Reading) -> Phrase {
    let (value, interval) = words::latency_cell(reading);
    let why = match reading {
        Reading::Refused { why, .. } => Some(why.as_str()),
        Reading::Estimate(_) => None,
    };
    let drawn =
        html! { span title=[why] { (value) } @if let Some(interval) = interval { span.ci { (interval) } } };
    Phrase::drawn(value, drawn)
}

#[derive(Clone, Debug)]
enum Block {
    Section(Phrase, Vec<Block>),
    Apart(Vec<Block>),
    Says(Phrase),
    List(Vec<Phrase>),
    Notes(Vec<String>),
    Table(TextTable),
    Small(String),
    Drawn(Markup),
    Terminal(Vec<Block>),
}

/// A document, or the inside of a section, under construction.
#[derive(Clone, Debug, Default)]
pub struct Document {
    blocks: Vec<Block>,
}

impl Document {
    /// Adds a section with this heading and the content that `fill` adds.
    pub fn section(&mut self, heading: impl Into<Phrase>, fill: impl FnOnce(&mut Document)) {
        let mut inside = Document::default();
        fill(&mut inside);
        self.blocks.push(Block::Section(heading.into(), inside.blocks));
    }

    /// Adds a sentence or a phrase.
    pub fn says(&mut self, sentence: impl Into<Phrase>) {
        self.blocks.push(Block::Says(sentence.into()));
    }

    /// Adds the sentences of the verdict: the first card of a page.
    pub fn verdict(&mut self, sentences: &[String]) {
        self.coloured_verdict("", sentences);
    }

    /// Adds the sentences of a verdict. `class` is `pass`, `inconclusive` or `broken` and sets the colour of the card.
    pub fn coloured_verdict(&mut self, class: &str, sentences: &[String]) {
        let drawn = html! { div.verdict.(class) { @for sentence in sentences { p { (sentence.replace(" %", "\u{a0}%")) } } } };
        self.drawn(drawn);
        self.terminal(|page| sentences.iter().for_each(|sentence| page.says(sentence.as_str())));
    }

    pub fn list<T: Into<Phrase>>(&mut self, items: impl IntoIterator<Item = T>) {
        self.blocks.push(Block::List(items.into_iter().map(Into::into).collect()));
    }

    /// Adds notes on the whole document.
    pub fn notes(&mut self, notes: impl IntoIterator<Item = String>) {
        self.blocks.push(Block::Notes(notes.into_iter().collect()));
    }

    pub fn table(&mut self, table: TextTable) {
        self.blocks.push(Block::Table(table));
    }

    /// Adds a table under a separate heading.
    pub(crate) fn titled(&mut self, heading: impl Into<Phrase>, table: TextTable) {
        self.section(heading, |inside| inside.table(table));
    }

    /// Adds an explanation of the neighbouring element: in small type, on pages only.
    pub fn small(&mut self, says: impl Into<String>) {
        self.blocks.push(Block::Small(says.into()));
    }

    /// Adds markup that only HTML pages contain.
    pub fn drawn(&mut self, markup: Markup) {
        self.blocks.push(Block::Drawn(markup));
    }

    /// Adds content for the terminal only, because a page draws it.
    pub fn terminal(&mut self, fill: impl FnOnce(&mut Document)) {
        let mut inside = Document::default();
        fill(&mut inside);
        self.blocks.push(Block::Terminal(inside.blocks));
    }

    /// Adds content separated from its neighbours, without a heading.
    pub fn apart(&mut self, fill: impl FnOnce(&mut Document)) {
        let mut inside = Document::default();
        fill(&mut inside);
        self.blocks.push(Block::Apart(inside.blocks));
    }

    pub fn append(&mut self, other: Document) {
        self.blocks.extend(other.blocks);
    }

    /// Returns the document as text under its title.
    pub fn text(&self, title: &str) -> String {
        let mut out = words::wrap(0, title);
        text_of(&self.blocks, 0, &mut out);
        out.truncate(out.trim_end().len());
        out
    }

    /// Returns the document as Markdown under its title, which is Markdown itself, for a pull request.
    pub fn markdown(&self, title: &str) -> String {
        let mut out = format!("### {title}\n");
        markdown_of(&self.blocks, 3, &mut out);
        out
    }

    /// Returns the document as the inside of a page.
    pub fn markup(&self) -> Markup {
        html! { @for block in &self.blocks { (markup_of(block, 0)) } }
    }

    /// Returns the document as a separate page. `css` is for its drawings.
    pub fn page(&self, name: &str, heading: &Phrase, css: &str) -> String {
        page(name, css, None, &self.under(heading))
    }

    pub fn charted(&self, name: &str, heading: &Phrase, charts: &Charts) -> String {
        page(name, "", Some(charts), &self.under(heading))
    }

    fn under(&self, heading: &Phrase) -> Markup {
        html! { header { h1 { (heading.markup()) } } (self.markup()) }
    }
}

/// Returns whether a block has no content for a terminal.
fn is_silent(block: &Block) -> bool {
    match block {
        Block::Section(_, inside) | Block::Apart(inside) | Block::Terminal(inside) => {
            inside.iter().all(is_silent)
        }
        Block::Says(says) => says.text.is_empty(),
        Block::List(items) => items.is_empty(),
        Block::Notes(notes) => notes.is_empty(),
        Block::Table(table) => table.is_silent(),
        Block::Drawn(_) | Block::Small(_) => true,
    }
}

fn text_of(blocks: &[Block], depth: usize, out: &mut String) {
    // Content under the title has the depth of content under a section's heading.
    let indent = 2 * depth.max(1);
    let mut after_section = false;
    for block in blocks.iter().filter(|block| !is_silent(block)) {
        let stands_apart = matches!(block, Block::Section(..) | Block::Apart(_) | Block::Notes(_));
        if stands_apart || after_section {
            gap(out);
        }
        after_section = stands_apart;
        match block {
            Block::Section(heading, inside) => {
                out.push_str(&words::wrap(indent * usize::from(depth > 0), &heading.text));
                text_of(inside, depth + 1, out);
            }
            Block::Says(says) => out.push_str(&words::wrap(indent, &says.text)),
            Block::List(items) => out.extend(items.iter().map(|item| hanging(indent, &item.text))),
            Block::Notes(notes) => {
                let note = |note: &String| format!("Note: {}.", note.trim_end_matches('.'));
                out.extend(notes.iter().map(|text| hanging(indent, &note(text))));
            }
            Block::Table(table) => out.push_str(&table.render(indent)),
            Block::Apart(inside) | Block::Terminal(inside) => text_of(inside, depth, out),
            Block::Drawn(_) | Block::Small(_) => {}
        }
    }
}

/// Indents an item, with two more columns for its continuation lines.
fn hanging(indent: usize, text: &str) -> String {
    let wrapped = words::wrap(indent + 2, text);
    wrapped.strip_prefix("  ").map(str::to_owned).unwrap_or(wrapped)
}

/// Adds one empty line, unless there is one.
fn gap(out: &mut String) {
    if !out.is_empty() && !out.ends_with("\n\n") {
        out.push('\n');
    }
}

fn markdown_of(blocks: &[Block], depth: usize, out: &mut String) {
    for block in blocks.iter().filter(|block| !is_silent(block)) {
        gap(out);
        match block {
            Block::Section(heading, inside) => {
                out.push_str(&format!("{} {}\n", "#".repeat(depth + 1), escaped(&heading.text)));
                markdown_of(inside, depth + 1, out);
            }
            Block::Says(says) => out.push_str(&format!("{}\n", escaped(&says.text))),
            Block::List(items) => {
                out.extend(items.iter().map(|item| format!("- {}\n", escaped(&item.text))));
            }
            Block::Notes(notes) => {
                out.extend(notes.iter().map(|note| format!("- {}\n", escaped(&words::sentence(note)))));
            }
            Block::Table(table) => out.push_str(&table.markdown()),
            Block::Apart(inside) | Block::Terminal(inside) => markdown_of(inside, depth, out),
            Block::Drawn(_) | Block::Small(_) => {}
        }
    }
}

/// Escapes text within a line of Markdown or a table cell, so that it can't end the cell or begin markup.
pub(crate) fn escaped(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars() {
        match c {
            '\n' | '\r' => out.push(' '),
            '|' | '*' | '_' | '`' | '[' | ']' | '\\' | '@' | '#' => out.extend(['\\', c]),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            c => out.push(c),
        }
    }
    out
}

/// Returns whether a block has no content on a page.
fn is_blank(block: &Block) -> bool {
    match block {
        Block::Section(_, inside) | Block::Apart(inside) => inside.iter().all(is_blank),
        Block::Drawn(markup) => markup.0.is_empty(),
        // Explanations don't count as content.
        Block::Terminal(_) | Block::Small(_) => true,
        Block::Table(table) => table.is_empty(),
        other => is_silent(other),
    }
}

fn markup_of(block: &Block, depth: usize) -> Markup {
    if is_blank(block) && !matches!(block, Block::Small(_)) {
        return html! {};
    }
    let inside =
        |blocks: &[Block], depth: usize| html! { @for block in blocks { (markup_of(block, depth)) } };
    match block {
        Block::Section(heading, blocks) => match depth {
            0 => html! { section { h2 { (heading.markup()) } (inside(blocks, depth + 1)) } },
            1 => html! { h3 { (heading.markup()) } (inside(blocks, depth + 1)) },
            _ => html! { h4 { (heading.markup()) } (inside(blocks, depth + 1)) },
        },
        Block::Apart(blocks) => inside(blocks, depth),
        Block::Says(says) => html! { p { (says.markup()) } },
        Block::List(items) => html! { ul { @for item in items { li { (item.markup()) } } } },
        Block::Notes(notes) => {
            let list = html! { ul { @for note in notes { li { (words::sentence(note)) } } } };
            if depth == 0 {
                html! { section { h2 { "What to know" } (list) } }
            } else {
                html! { h3 { "What to know" } (list) }
            }
        }
        Block::Table(table) => table.markup(),
        Block::Small(says) => html! { p.small.soft { (says) } },
        Block::Drawn(markup) => markup.clone(),
        Block::Terminal(_) => html! {},
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_place_shows_what_it_can_and_nothing_that_is_empty() {
        let mut document = Document::default();
        document.verdict(&["It holds at 5 %.".into()]);
        document.section("Figures", |section| {
            section.drawn(html! { p.legend { "drawn" } });
            let mut table = TextTable::new(&["<name", "value", "+n"]);
            table.row(["ttft".into(), Phrase::drawn("12 ms", html! { code { "12 ms" } }), "40".into()]);
            section.table(table);
            section.titled("Nothing", TextTable::new(&["never"]));
        });
        document.section("Only drawn", |section| section.drawn(html! { p { "a bar" } }));
        document.notes(["<mind> this".into()]);
        assert_eq!(
            document.text("Title"),
            "Title\n  It holds at 5 %.\n\nFigures\n  name  value\n  ttft  12 ms\n\n  Note: <mind> this."
        );
        let page = document.markup().into_string();
        for shown in [
            "<h2>Figures</h2>",
            "<code>12 ms</code>",
            ">n<",
            "<h2>Only drawn</h2>",
            "<li>&lt;mind&gt; this.</li>",
        ] {
            assert!(page.contains(shown), "{shown} is not in {page}");
        }
        assert!(!page.contains("Nothing"), "{page}");
    }
}
