//! One event of an answer, whatever protocol it came by.

use plimsoll_model::EventKind;

/// One event of an answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Decoded {
    /// What it carries.
    pub kind: EventKind,
    /// Tokens in it by the server's running total; 0 = not known (yet): see [`crate::AnswerVerdict::settle`].
    pub tokens: u16,
    /// Does it hold text that a reader sees (content or tool call, not reasoning)?
    pub visible: bool,
}

impl Decoded {
    pub(crate) fn of(kind: EventKind) -> Decoded {
        Decoded { kind, tokens: 0, visible: false }
    }

    /// Two choices in one event: the more telling kind stands, tokens add.
    pub(crate) fn and(self, other: Decoded) -> Decoded {
        let rank = |kind: EventKind| match kind {
            EventKind::Content => 0,
            EventKind::Reasoning => 1,
            EventKind::ToolCall => 2,
            EventKind::Finish => 3,
            EventKind::Role => 4,
            EventKind::Usage => 5,
            _ => 6,
        };
        Decoded {
            kind: if rank(other.kind) < rank(self.kind) { other.kind } else { self.kind },
            tokens: self.tokens.saturating_add(other.tokens),
            visible: self.visible || other.visible,
        }
    }
}
