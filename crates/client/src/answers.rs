//! Answers that later turns of their session repeat: kept until the session is over, in memory and nowhere else.
//!
//! A session stays with one worker, so that each worker has its own. What a session may hold is bounded by its turns times
//! [`ANSWER_MAX`]: a server that never stops talking does not fill the memory.

use std::collections::HashMap;

use plimsoll_model::Attempt;
use plimsoll_workload::Said;

/// Most bytes of an answer that are kept: some hundred thousand tokens.
const ANSWER_MAX: usize = 1 << 20;

/// Those of the sessions under way.
#[derive(Debug, Default)]
pub struct Answers(HashMap<u64, SessionAnswers>);

#[derive(Debug, Default)]
struct SessionAnswers {
    said: Said,
    over: u16,
}

impl Answers {
    /// What was said so far in a session.
    pub fn of(&self, session: Option<u64>) -> Option<&Said> {
        self.0.get(&session?).map(|one| &one.said)
    }

    /// A turn is over, and this was its answer, if it had a whole one. With the last of its turns a session is forgotten.
    pub fn over(&mut self, row: &Attempt, text: Option<String>) {
        let Some(session) = row.session.filter(|_| row.turns > 0) else { return };
        let one = self.0.entry(session).or_default();
        one.over += 1;
        if one.over >= row.turns {
            self.0.remove(&session);
        } else if let Some(mut text) = text.filter(|_| row.outcome.is_finished()) {
            if text.len() > ANSWER_MAX {
                text.truncate(text.floor_char_boundary(ANSWER_MAX));
            }
            one.said.insert(row.turn, text);
        }
    }

    /// Sessions that are held.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use plimsoll_model::{At, By, How, Outcome};

    use super::*;

    fn row(turn: u16, how: How) -> Attempt {
        Attempt {
            session: Some(4),
            turn,
            turns: 3,
            outcome: Outcome::new(how, By::Server, false),
            ..Attempt::new(0, 0, 0, At::ZERO)
        }
    }

    #[test]
    fn answers_are_kept_to_the_end_of_their_session() {
        let mut answers = Answers::default();
        answers.over(&row(0, How::Finished), Some("é".repeat(ANSWER_MAX)));
        answers.over(&row(1, How::ServerError), Some("half a".into()));
        let said = answers.of(Some(4)).expect("a session under way");
        assert_eq!((said.len(), said[&0].len()), (1, ANSWER_MAX));
        assert!(answers.of(Some(5)).is_none() && answers.of(None).is_none());
        answers.over(&row(2, How::NeverSent), None);
        assert_eq!(answers.len(), 0);
    }
}
