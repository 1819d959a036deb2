//! Keeps the answers that later turns of a session repeat, in memory only and until the session ends.
//!
//! A session stays with one worker, so each worker has a separate store. Turns times [`ANSWER_MAX`] bound the memory of a
//! session, because a server may stream without end.

use std::collections::HashMap;

use plimsoll_model::Attempt;
use plimsoll_workload::SessionAnswerTexts;

/// Most bytes of an answer that are kept: some hundred thousand tokens.
const ANSWER_MAX: usize = 1 << 20;

/// The answers of the sessions in progress.
#[derive(Debug, Default)]
pub struct AnswerStore(HashMap<u64, SessionAnswers>);

#[derive(Debug, Default)]
struct SessionAnswers {
    said: SessionAnswerTexts,
    over: u16,
}

impl AnswerStore {
    /// Returns the answers so far of a session; `None` without a session or an answer.
    pub fn of(&self, session: Option<u64>) -> Option<&SessionAnswerTexts> {
        self.0.get(&session?).map(|one| &one.said)
    }

    /// Records the end of a turn and its answer, if the answer is complete. The last turn removes its session.
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
        let mut answers = AnswerStore::default();
        answers.over(&row(0, How::Finished), Some("é".repeat(ANSWER_MAX)));
        answers.over(&row(1, How::ServerError), Some("half a".into()));
        let said = answers.of(Some(4)).expect("a session under way");
        assert_eq!((said.len(), said[&0].len()), (1, ANSWER_MAX));
        assert!(answers.of(Some(5)).is_none() && answers.of(None).is_none());
        answers.over(&row(2, How::NeverSent), None);
        assert_eq!(answers.len(), 0);
    }
}
