//! One event of an answer, whatever protocol it came by.

use plimsoll_model::EventKind;

/// One event of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    pub kind: EventKind,
    /// Tokens in it by the server's running total; 0 = not known (yet): see [`crate::AnswerVerdict::settle`]. On an event without text:
    /// 1 where a token without text may have come with it.
    pub tokens: u16,
    /// Does it hold text that a reader sees (content or tool call, not reasoning)?
    pub visible: bool,
}

impl Decoded {
    pub(crate) fn of(kind: EventKind) -> Decoded {
        Decoded { kind, tokens: 0, visible: false }
    }

    /// An event of a choice without text, which may hold a token that has none.
    pub(crate) fn silent(kind: EventKind) -> Decoded {
        Decoded { kind, tokens: 1, visible: false }
    }

    /// Two choices in one event: the more telling kind stands, tokens add.
    pub(crate) fn and(self, other: Decoded) -> Decoded {
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
        Decoded {
            kind: if rank(other.kind) < rank(self.kind) { other.kind } else { self.kind },
            tokens,
            visible: self.visible || other.visible,
        }
    }
}
