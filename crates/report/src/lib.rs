//! Findings → bytes: the terminal's text and the page.
//!
//! Nothing is computed here: a figure that is not in [`plimsoll_analysis::Findings`] or the manifest is not shown. What this
//! crate decides is order, wording and drawing. JSON output needs nothing from here: the findings serialise as they
//! are.
//!
//! Reading order: [`figure`] (how numbers look), [`table`] (plain text tables), [`headline`] (the verdict in
//! sentences), [`text`] (the terminal), [`html`].

pub mod figure;
pub mod headline;
pub mod html;
pub mod table;
pub mod text;
mod words;
