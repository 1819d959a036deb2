//! Stacked bars: rows of boxes with widths. A chart library was rejected, because boxes need no script and print.

use maud::{Markup, html};

/// Style of a page with bars.
pub(crate) const BARS_CSS: &str = include_str!("bars.css");

pub(crate) struct Piece {
    /// Tooltip of the piece.
    pub(crate) says: String,
    pub(crate) colour: &'static str,
    /// Share of the bar's whole width.
    pub(crate) share: f64,
    /// Whether the piece is hatched because it was inferred: an estimate must not resemble a measurement.
    pub(crate) inferred: bool,
}

/// Returns a bar: its name, its pieces, and the figure at its end.
pub(crate) fn bar(name: &str, pieces: impl IntoIterator<Item = Piece>, figure: &str) -> Markup {
    html! { div.band {
        span.name { (name) }
        div.track { @for piece in pieces.into_iter().filter(|piece| piece.share > 0.0) {
            div.inferred[piece.inferred] style=(format!("width:{:.3}%;background-color:{}", 100.0 * piece.share, piece.colour)) title=(piece.says) {}
        } }
        span.value { (figure) }
    } }
}

/// Returns a square of this colour, for a legend or a name.
pub(crate) fn swatch(colour: &str) -> Markup {
    html! { i.swatch style=(format!("background-color:{colour}")) {} }
}
