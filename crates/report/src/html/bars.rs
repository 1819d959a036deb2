//! Stacked bars: rows of boxes with widths, not a chart library's, because they need no script and print.

use maud::{Markup, html};

/// What a page with bars needs.
pub(crate) const BARS_CSS: &str = include_str!("bars.css");

pub(crate) struct Piece {
    /// What it says under the pointer.
    pub(crate) says: String,
    pub(crate) colour: &'static str,
    /// Its share of the bar's whole width.
    pub(crate) share: f64,
    /// Hatched, because it was inferred: a page that draws a guess as it draws a measurement would be read as one.
    pub(crate) inferred: bool,
}

/// A bar: its name, its pieces, and the figure at its end.
pub(crate) fn bar(name: &str, pieces: impl IntoIterator<Item = Piece>, figure: &str) -> Markup {
    html! { div.band {
        span.name { (name) }
        div.track { @for piece in pieces.into_iter().filter(|piece| piece.share > 0.0) {
            div.inferred[piece.inferred] style=(format!("width:{:.3}%;background-color:{}", 100.0 * piece.share, piece.colour)) title=(piece.says) {}
        } }
        span.value { (figure) }
    } }
}

/// A colour's square, in a legend or before a name.
pub(crate) fn swatch(colour: &str) -> Markup {
    html! { i.swatch style=(format!("background-color:{colour}")) {} }
}
