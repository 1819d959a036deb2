//! Decides the number of tokens of an answer, and the events that carried them, from all evidence.
//!
//! The evidence is the events with text, the events without, and the server's usage, in any rhythm. Usage may exclude the
//! reasoning, be zero, or count fewer tokens than events with text. If the evidence is consistent, it decides. Otherwise
//! the count is unknown and the server's figure is kept separately ([`Tokens::claimed`]), because a per-token figure from
//! inconsistent evidence would be a guess.
//!
//! - `total = prompt + completion + reasoning`, or more reasoning than completion: the completion excludes the reasoning, which is added.
//! - Counted reasoning that was never streamed precedes the first event: it is not part of the streamed tokens.
//! - One token each, if the streamed tokens equal the events with text, optionally plus the empty events, or plus these and the last one.
//! - Fewer tokens than events with text: unknown, because each of these contains at least one token.
//! - More tokens than events with text: events contain several, and the total is valid. With empty events before the first or after the
//!   last text the count is unknown. Tokens without text (special ones) may have come in these, outside of the measured time.

use plimsoll_model::{Tokens, TokensRule};

use crate::chunk::Usage;

/// The token evidence of an answer.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct Evidence {
    pub usage: Usage,
    /// Events that carry generated text, or a token by a running total.
    pub texts: u64,
    /// Reasoning events among `texts`.
    pub reasoning: u64,
    /// Events of a choice without text.
    pub empties: u64,
    /// Empty events before the first or after the last text.
    pub at_edges: u64,
    /// Events that close a choice without text.
    pub closing: u64,
    /// Tokens by a running total that came with every token event.
    pub running: Option<u64>,
}

/// Events without text that carry a token each.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub(crate) enum SilentTokens {
    #[default]
    None,
    Empty,
    EmptyAndClosing,
}

/// Returns whether two counts differ by more than servers round: a delayed token, or a twentieth.
fn differ(a: u64, b: u64) -> bool {
    a.abs_diff(b) > 1.max(a.max(b) / 20)
}

/// Decides the counts, and the events without text that carry tokens.
pub(crate) fn decide(e: &Evidence) -> (Tokens, SilentTokens) {
    let output = output(e);
    let tokens = Tokens {
        prompt: e.usage.prompt,
        output,
        reasoning: e.usage.reasoning,
        cached: e.usage.cached,
        rule: TokensRule::Unknown,
        claimed: None,
    };
    let known = |rule| Tokens { rule, ..tokens };
    let Some(total) = output.map(u64::from).filter(|_| e.texts + e.empties > 0) else {
        return (tokens, SilentTokens::None);
    };
    let hidden = if e.reasoning == 0 { u64::from(e.usage.reasoning.unwrap_or(0)) } else { 0 };
    let streamed = total.saturating_sub(hidden);
    if e.texts > 0 && e.running == Some(total) {
        return (known(TokensRule::UsageRunning), SilentTokens::None);
    }
    if e.texts > 0 && streamed == e.texts {
        return (known(TokensRule::UsageTotal), SilentTokens::None);
    }
    if e.empties > 0 && streamed == e.texts + e.empties {
        return (known(TokensRule::UsageTotal), SilentTokens::Empty);
    }
    if e.empties > 0 && streamed == e.texts + e.empties + e.closing {
        return (known(TokensRule::UsageTotal), SilentTokens::EmptyAndClosing);
    }
    let fewer = streamed < e.texts && differ(streamed, e.texts);
    // Number of tokens that the empty events at the edges may have carried.
    let outside = e.at_edges.min(streamed.saturating_sub(e.texts));
    let elsewhere = e.texts > 0 && e.at_edges > 1 && differ(streamed, streamed - outside);
    let contradicts = e.running.is_some_and(|running| differ(running, total) && differ(running, streamed));
    match fewer || elsewhere || contradicts {
        true => (Tokens { output: None, claimed: output, ..tokens }, SilentTokens::None),
        false => (tokens, SilentTokens::None),
    }
}

/// Returns the output tokens by usage, including reasoning.
fn output(e: &Evidence) -> Option<u32> {
    let Usage { prompt, output, reasoning, total, .. } = e.usage;
    let (output, reasoning) = (output?, reasoning.unwrap_or(0));
    let both = output.saturating_add(reasoning);
    let beside = total.zip(prompt).is_some_and(|(total, prompt)| total == prompt.saturating_add(both));
    let shown = u64::from(output) < e.texts && u64::from(both) == e.texts;
    Some(if reasoning > 0 && (beside || reasoning > output || shown) { both } else { output })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usage(output: u32) -> Usage {
        Usage { prompt: Some(7), output: Some(output), ..Usage::default() }
    }

    fn seen(texts: u64, empties: u64, at_edges: u64, output: u32) -> Evidence {
        Evidence { usage: usage(output), texts, empties, at_edges, closing: 1, ..Evidence::default() }
    }

    /// Returns output, claim and rule.
    fn of(e: Evidence) -> (Option<u32>, Option<u32>, TokensRule) {
        let tokens = decide(&e).0;
        (tokens.output, tokens.claimed, tokens.rule)
    }

    use TokensRule::{Unknown, UsageRunning, UsageTotal};

    #[test]
    fn empty_events_are_tokens_where_they_make_the_total() {
        assert_eq!(decide(&seen(8, 56, 56, 64)).1, SilentTokens::Empty);
        // The last token comes with the finish reason.
        assert_eq!(decide(&seen(8, 55, 55, 64)).1, SilentTokens::EmptyAndClosing);
        assert_eq!(of(seen(8, 56, 56, 64)), (Some(64), None, UsageTotal));
        // During a prefill they carry none: the texts are the total.
        assert_eq!(decide(&seen(64, 20, 20, 64)), (decide(&seen(64, 0, 0, 64)).0, SilentTokens::None));
    }

    #[test]
    fn empty_events_at_the_edges_that_fit_nothing_leave_the_count_unknown() {
        assert_eq!(of(seen(8, 40, 40, 64)), (None, Some(64), Unknown));
        assert_eq!(of(seen(8, 100, 100, 64)), (None, Some(64), Unknown));
        // Between texts they can't move the span, and a single one opens many streams.
        assert_eq!(of(seen(8, 40, 0, 64)), (Some(64), None, Unknown));
        assert_eq!(of(seen(16, 1, 1, 64)), (Some(64), None, Unknown));
        // Two of 60 events are within the rounding.
        assert_eq!(of(seen(60, 2, 2, 66)), (Some(66), None, Unknown));
    }

    #[test]
    fn several_tokens_an_event_are_the_total() {
        assert_eq!(of(seen(16, 0, 0, 64)), (Some(64), None, Unknown));
    }

    #[test]
    fn fewer_tokens_than_texts_are_unknown() {
        for claimed in [0, 1, 9, 30] {
            assert_eq!(of(seen(39, 0, 0, claimed)), (None, Some(claimed), Unknown), "{claimed}");
        }
        // A tokeniser splits a piece differently.
        assert_eq!(of(seen(39, 0, 0, 38)), (Some(38), None, Unknown));
        assert_eq!(of(Evidence { texts: 39, ..Evidence::default() }), (None, None, Unknown));
    }

    #[test]
    fn reasoning_is_added_where_the_completion_leaves_it_out() {
        let with = |texts, reasoning_events, reasoning, total| Evidence {
            usage: Usage { reasoning: Some(reasoning), total, ..usage(9) },
            texts,
            reasoning: reasoning_events,
            ..Evidence::default()
        };
        // The sum shows it, the size shows it, or the events do.
        assert_eq!(of(with(39, 30, 30, Some(46))), (Some(39), None, UsageTotal));
        assert_eq!(of(with(39, 30, 30, None)), (Some(39), None, UsageTotal));
        assert_eq!(of(with(39, 30, 30, Some(16))), (Some(39), None, UsageTotal));
        assert_eq!(of(with(14, 5, 5, None)), (Some(14), None, UsageTotal));
        // Not streamed: the nine events have one token each.
        assert_eq!(of(with(9, 0, 30, Some(46))), (Some(39), None, UsageTotal));
        // A part of the completion, as OpenAI counts: not streamed, streamed.
        assert_eq!(of(with(4, 0, 5, Some(16))), (Some(9), None, UsageTotal));
        assert_eq!(of(with(9, 5, 5, Some(16))), (Some(9), None, UsageTotal));
    }

    #[test]
    fn a_running_total_that_the_end_contradicts_is_unknown() {
        let running = |running| Evidence { running: Some(running), ..seen(30, 0, 0, 64) };
        assert_eq!(of(running(64)), (Some(64), None, UsageRunning));
        assert_eq!(of(running(63)), (Some(64), None, Unknown));
        assert_eq!(of(running(40)), (None, Some(64), Unknown));
    }
}
