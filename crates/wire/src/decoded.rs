//! One event of an answer, independent of its protocol.

use plimsoll_model::EventKind;

#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct DecodedEvent {
    pub kind: EventKind,
    /// Tokens in the event by the server's running total; 0 if not known (yet): see [`crate::DecodedAnswer::settle`].
    /// On an event without text: 1 if it may carry a token without text.
    pub tokens: u16,
    /// Whether the event contains text that a reader sees (content or tool call, not reasoning).
    pub visible: bool,
}

impl DecodedEvent {
    pub(crate) fn of(kind: EventKind) -> DecodedEvent {
        DecodedEvent { kind, tokens: 0, visible: false }
    }

    /// Creates the event of a choice without text, which may carry a token without text.
    pub(crate) fn silent(kind: EventKind) -> DecodedEvent {
        DecodedEvent { kind, tokens: 1, visible: false }
    }

    /// Merges two choices of one event: the more significant kind wins, and tokens add up.
    pub(crate) fn and(self, other: DecodedEvent) -> DecodedEvent {
        let rank = |kind: EventKind| match kind {
            EventKind::Content | EventKind::Body | EventKind::Error => 0,
            EventKind::Reasoning => 1,
            EventKind::ToolCall => 2,
            EventKind::Finish => 3,
            EventKind::Role => 4,
            EventKind::Usage => 5,
            _ => 6,
        };
        let tokens = match (self.kind.is_token(), other.kind.is_token()) {
            (true, false) => self.tokens,
            (false, true) => other.tokens,
            _ => self.tokens.saturating_add(other.tokens),
        };
        DecodedEvent {
            kind: if rank(other.kind) < rank(self.kind) { other.kind } else { self.kind },
            tokens,
            visible: self.visible || other.visible,
        }
    }
}
