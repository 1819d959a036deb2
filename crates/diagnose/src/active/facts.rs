//! All facts that blocks show, each from the file of its experiments.

use super::before::Before;
use super::block::Block;
use super::fact::{Fact, Shown, State, concurrency, isolated, settings, without_tokens};
use super::plan::ActiveSpec;
use super::{failed, promise, rhythm};

/// Everything that the blocks show, beside an earlier run where there is one.
pub fn read(blocks: &[Block], spec: &ActiveSpec, before: Option<&Before>) -> Vec<Shown> {
    let mut shown = failed::read(blocks);
    shown.extend(isolated::coalesced(blocks));
    shown.extend(rhythm::read(blocks));
    shown.extend(promise::alone(blocks, spec));
    shown.extend(isolated::isolated(blocks));
    shown.extend(concurrency::concurrency(blocks));
    shown.extend(promise::together(blocks, spec));
    shown.extend(settings::settings(blocks));
    shown.extend(settings::replicas(blocks));
    shown.extend(before.into_iter().flat_map(|before| before.read(blocks)));
    if shown.iter().any(|shown| shown.fact == Fact::FasterTogether && shown.state == State::Yes) {
        // A window that the first request opens has no clock, and all who are alone wait as long: that neither shows says nothing.
        let clock = |shown: &&mut Shown| matches!(shown.fact, Fact::Lattice | Fact::SpreadWait);
        shown
            .iter_mut()
            .filter(clock)
            .filter(|of| of.state == State::No)
            .for_each(|of| of.state = State::Unclear);
    }
    if blocks.iter().any(without_tokens) {
        shown.iter_mut().for_each(|shown| shown.says = of_answers(&shown.says));
    }
    shown
}

/// What is said of first tokens, where what comes first is the answer: the stamps are those of its first byte.
fn of_answers(says: &str) -> String {
    says.replace("first tokens", "answers").replace("first token", "answer")
}

#[cfg(test)]
mod tests {
    use super::of_answers;

    #[test]
    fn answers_that_come_whole_have_no_first_token() {
        assert_eq!(of_answers("isolated, first tokens follow no clock"), "isolated, answers follow no clock");
        assert_eq!(of_answers("in all 8 the first token waits"), "in all 8 the answer waits");
    }
}
