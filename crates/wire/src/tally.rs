//! Accumulates the events of one answer: tokens, finish reason, text, repetition.
//!
//! **Tokens.** [`crate::tokens`] decides from the counts of this module. Servers report usage in four ways, which all occur in practice:
//!
//! - One total at the end.
//! - A running total in every chunk; the last one counts.
//! - One total per choice, each in a chunk without choices (llama.cpp with n = 2); they add up.
//! - One total per prompt of a batch, in that prompt's finish chunk (llama.cpp); they add up.
//!
//! So usage is kept per choice, where a later one replaces an earlier one, and separately for chunks without choices. The latter
//! are added only if there are as many of them as choices, and more than one.
//!
//! **Growth without text.** If the running total grows on a chunk with an empty delta, the chunk carried a token with delayed or
//! invisible text. Examples are vLLM's `reasoning: ""` and an end-of-text token on the finish chunk. It is a token event of the kind that its
//! delta names, or of the kind before. This applies only while every token event so far had a running total and
//! the choice has not finished. A single total at the end never makes its chunk a token event.

use plimsoll_model::{EventKind, MediaCounts, ServerStage, Tokens};

use crate::audio::AudioReader;
use crate::chunk::{Choice, Chunk, Delta, RawUsage, Usage};
use crate::decoded::DecodedEvent;
use crate::failed::is_failure;
use crate::fault::Fault;
use crate::head::{bounded, push_stage};
use crate::tokens::{Evidence, SilentTokens, decide};

/// Limit of separate choices; further choices share the last entry.
const CHOICES_MAX: usize = 128;
/// Longest text kept, in bytes.
const TEXT_MAX: usize = 16 << 20;
/// Longest piece that is checked for repetition, in bytes.
const PIECE_MAX: usize = 256;
/// Number of equal pieces, without any other, that are a loop.
const REPEATS: u32 = 16;

/// One choice in one event.
#[derive(Debug, Default)]
pub(crate) struct View<'a> {
    /// Kind of the generated part; `None` without one.
    pub kind: Option<EventKind>,
    pub text: &'a str,
    /// Kind of the field in the delta, possibly empty.
    pub named: Option<EventKind>,
    pub role: bool,
    pub finish: &'a str,
}

#[derive(Debug, Default)]
struct ChoiceState {
    index: u32,
    /// Tokens assigned to events so far.
    counted: u32,
    /// Whether a running total arrived before the end.
    running: bool,
    /// Whether a token event arrived without a running total.
    unaccounted: bool,
    /// Token events whose running total had not grown.
    flat: u32,
    finished: bool,
    last_kind: Option<EventKind>,
    usage: Option<Usage>,
    /// Whether the choice had an event.
    begun: bool,
}

/// The sums over one answer.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    choices: Vec<ChoiceState>,
    bare: Vec<Usage>,
    /// Whether the prompts of a batch have separate usage, which adds up.
    pub prompts_add: bool,
    pub token_events: u64,
    /// Number of reasoning events among them.
    reasoning_events: u64,
    /// Events of a choice without text; of these, before the first text, and after the newest.
    empties: u64,
    leading: u64,
    trailing: u64,
    /// Events that closed a choice without text.
    closing: u64,
    pub generated: bool,
    /// Number of results; `None` if the answer does not have one per document.
    pub results: Option<u32>,
    /// Length of the audio as the server reports it, ms.
    pub heard_ms: Option<u64>,
    /// Audio of a speech response.
    pub audio: AudioReader,
    /// Generated images.
    pub images: MediaCounts,
    pub finish_reason: Option<String>,
    pub done: bool,
    pub error: Option<Fault>,
    /// A finish reason that reports a failure; an error message of the server takes precedence.
    failure: Option<Fault>,
    pub stages: Vec<ServerStage>,
    pub text: Option<String>,
    timings: Option<Usage>,
    repeat: Repeat,
}

impl Tally {
    pub fn new(keep_text: bool) -> Tally {
        Tally { text: keep_text.then(String::new), ..Tally::default() }
    }

    /// Adds a chunk of chat completions or completions.
    pub fn chunk(&mut self, chunk: &Chunk<'_>) -> DecodedEvent {
        self.side_facts(chunk);
        let mut usage = chunk.usage().map(RawUsage::usage);
        if chunk.choices.first.is_none() {
            return match usage {
                Some(usage) => {
                    self.bare_usage(usage);
                    DecodedEvent::of(EventKind::Usage)
                }
                None => DecodedEvent::of(EventKind::Empty),
            };
        }
        let mut event: Option<DecodedEvent> = None;
        for choice in chunk.choices.iter() {
            let own = usage.take().or(choice.usage.as_deref().map(RawUsage::usage));
            let one = match choice.closes_whole() {
                true => self.whole_choice(choice, own),
                false => self.choice(choice.index.0.unwrap_or(0), &view(choice), own),
            };
            event = Some(event.map_or(one, |event| event.and(one)));
        }
        event.unwrap_or(DecodedEvent::of(EventKind::Empty))
    }

    /// Adds a chunk with a complete message and no delta: the whole answer in one event, or a repetition of the streamed text.
    fn whole_choice(&mut self, choice: &Choice<'_>, usage: Option<Usage>) -> DecodedEvent {
        let repeats = self.token_events > 0;
        let whole = view(choice);
        let closing = View { finish: whole.finish, ..View::default() };
        let decoded = self.choice(choice.index.0.unwrap_or(0), &closing, usage);
        if repeats || decoded.kind == EventKind::Error {
            return decoded;
        }
        self.take_text(choice.index.0.unwrap_or(0), &whole);
        let tokens = usage.and_then(|usage| usage.output).and_then(|n| u16::try_from(n).ok());
        DecodedEvent { kind: EventKind::Body, tokens: tokens.unwrap_or(0), visible: self.generated }
    }

    /// Adds one choice of one event, with its usage.
    pub fn choice(&mut self, index: u32, view: &View<'_>, usage: Option<Usage>) -> DecodedEvent {
        let state = self.state(index);
        let opens = view.role && !state.begun;
        state.begun = true;
        let mut kind = view.kind;
        let mut tokens = 0;
        match usage.and_then(|usage| usage.output) {
            Some(total) => {
                let grown = total.saturating_sub(state.counted);
                if kind.is_none() && grown > 0 && state.running && !state.unaccounted && !state.finished {
                    kind = Some(view.named.or(state.last_kind).unwrap_or(EventKind::Content));
                }
                // A total of zero next to a text is a placeholder.
                state.unaccounted |= kind.is_some() && total == 0;
                if kind.is_some() && !state.unaccounted {
                    state.flat += u32::from(grown == 0);
                    state.counted = state.counted.max(total);
                    match u16::try_from(grown) {
                        Ok(n) => tokens = n,
                        Err(_) => state.unaccounted = true,
                    }
                }
                state.running |= !state.finished && view.finish.is_empty() && !state.unaccounted;
            }
            None => state.unaccounted |= kind.is_some(),
        }
        if usage.is_some() {
            state.usage = usage;
        }
        state.finished |= !view.finish.is_empty();
        state.last_kind = kind.or(state.last_kind);
        let failed = self.finish(view.finish);
        if let Some(kind) = kind {
            self.token_events += 1;
            self.reasoning_events += u64::from(kind == EventKind::Reasoning);
            self.trailing = 0;
            self.generated = true;
            let visible = !view.text.is_empty() && kind != EventKind::Reasoning;
            if !view.text.is_empty() {
                self.repeat.piece(view.text);
            }
            if kind == EventKind::Content && index == 0 {
                self.keep(view.text);
            }
            return DecodedEvent { kind, tokens, visible };
        }
        if failed {
            return DecodedEvent::of(EventKind::Error);
        }
        if !view.finish.is_empty() {
            self.closing += 1;
            return DecodedEvent::silent(EventKind::Finish);
        }
        if opens {
            return DecodedEvent::of(EventKind::Role);
        }
        if usage.is_some() && view.named.is_none() {
            return DecodedEvent::of(EventKind::Usage);
        }
        self.empties += 1;
        self.leading += u64::from(self.token_events == 0);
        self.trailing += u64::from(self.token_events > 0);
        DecodedEvent::silent(EventKind::Empty)
    }

    /// Records the finish reason of a choice; returns whether it reports a failure. An empty reason is ignored.
    pub fn finish(&mut self, reason: &str) -> bool {
        if reason.is_empty() {
            return false;
        }
        let failed = is_failure(reason);
        if self.finish_reason.is_none() || failed {
            self.finish_reason = Some(bounded(reason, 64));
        }
        if failed {
            let text = format!("the answer ended with the finish reason {:?}", bounded(reason, 64));
            self.failure.get_or_insert(Fault { text, code: None });
        }
        failed
    }

    /// Returns the error under a success status: a message, or a finish reason.
    pub fn fault(&self) -> Option<&Fault> {
        self.error.as_ref().or(self.failure.as_ref())
    }

    /// Adds the choices of a whole answer.
    pub fn whole(&mut self, chunk: &Chunk<'_>) {
        self.side_facts(chunk);
        for choice in chunk.choices.iter() {
            let view = view(choice);
            let index = choice.index.0.unwrap_or(0);
            self.state(index).finished = true;
            self.finish(view.finish);
            self.take_text(index, &view);
            if let Some(usage) = &choice.usage {
                self.state(index).usage = Some(usage.usage());
            }
        }
        if let Some(usage) = chunk.usage() {
            self.bare_usage(usage.usage());
        }
    }

    /// Adds the text of a whole choice.
    fn take_text(&mut self, index: u32, view: &View<'_>) {
        if view.kind.is_some() {
            self.generated = true;
            self.words(view.text);
        }
        if index == 0 && view.kind == Some(EventKind::Content) {
            self.keep(view.text);
        }
    }

    /// Adds a whole text word by word, for the repetition check.
    pub fn words(&mut self, text: &str) {
        for word in text.split_whitespace() {
            self.repeat.piece(word);
        }
    }

    pub fn keep(&mut self, text: &str) {
        if let Some(kept) = &mut self.text
            && kept.len() + text.len() <= TEXT_MAX
        {
            kept.push_str(text);
        }
    }

    pub(crate) fn bare_usage(&mut self, usage: Usage) {
        if self.bare.len() == CHOICES_MAX {
            self.bare.pop();
        }
        self.bare.push(usage);
    }

    /// Sets the usage of an answer that reports it more than once: the latest counts.
    pub(crate) fn only_usage(&mut self, usage: Usage) {
        self.bare.clear();
        self.bare.push(usage);
    }

    /// Adds a response of a stream, which counts as one token: see `kserve::call`.
    pub(crate) fn responded(&mut self) {
        self.token_events += 1;
        let output = u32::try_from(self.token_events).ok();
        self.only_usage(Usage { output, ..Usage::default() });
    }

    fn side_facts(&mut self, chunk: &Chunk<'_>) {
        if let Some(usage) = chunk.usage() {
            for (name, ms) in usage.stages() {
                push_stage(&mut self.stages, name, ms);
            }
        }
        if let Some(raw) = chunk.timings {
            self.timings(raw.get());
        }
        if let Some(raw) = chunk.time_info {
            self.stage_fields(raw.get(), "_time", 1e3);
        }
        if let Some(raw) = chunk.metrics {
            self.metrics(raw.get());
        }
    }

    /// Records llama.cpp's `timings`: stage times in ms, and counts that replace a missing usage.
    pub(crate) fn timings(&mut self, json: &str) {
        self.stage_fields(json, "_ms", 1.0);
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Timings {
            cache_n: crate::chunk::Count,
            prompt_n: crate::chunk::Count,
            predicted_n: crate::chunk::Count,
        }
        if let Ok(timings) = serde_json::from_str::<Timings>(json)
            && timings.predicted_n.0.is_some()
        {
            self.timings = Some(Usage {
                prompt: timings.prompt_n.0.map(|n| n.saturating_add(timings.cache_n.0.unwrap_or(0))),
                output: timings.predicted_n.0,
                cached: timings.cache_n.0,
                ..Usage::default()
            });
        }
    }

    /// Records vLLM's `metrics`, in ms: the queue, from there to the first token, from there to the last. (Its mean gap and its
    /// tokens per second are not stages, and follow from these.)
    fn metrics(&mut self, json: &str) {
        #[derive(serde::Deserialize, Default)]
        #[serde(default)]
        struct Metrics {
            queue_time_ms: Option<f64>,
            time_to_first_token_ms: Option<f64>,
            generation_time_ms: Option<f64>,
        }
        let Ok(metrics) = serde_json::from_str::<Metrics>(json) else { return };
        let told = [
            ("queue", metrics.queue_time_ms),
            ("prefill", metrics.time_to_first_token_ms),
            ("decode", metrics.generation_time_ms),
        ];
        for (name, ms) in told {
            if let Some(ms) = ms {
                push_stage(&mut self.stages, name, ms);
            }
        }
    }

    /// Records every number of a flat object whose name ends in `suffix` as a stage; `scale` converts it to ms.
    fn stage_fields(&mut self, json: &str, suffix: &str, scale: f64) {
        let Ok(serde_json::Value::Object(fields)) = serde_json::from_str(json) else { return };
        for (name, value) in &fields {
            let Some(stage) = name.strip_suffix(suffix) else { continue };
            if let Some(n) = value.as_f64().filter(|_| !stage.contains("_per_")) {
                push_stage(&mut self.stages, stage, n * scale);
            }
        }
    }

    fn state(&mut self, index: u32) -> &mut ChoiceState {
        let at = match self.choices.iter().position(|state| state.index == index) {
            Some(at) => at,
            None if self.choices.len() == CHOICES_MAX => CHOICES_MAX - 1,
            None => {
                self.choices.push(ChoiceState { index, ..ChoiceState::default() });
                self.choices.len() - 1
            }
        };
        &mut self.choices[at]
    }

    /// Returns whether every seen choice has a finish reason.
    pub(crate) fn all_finished(&self) -> bool {
        !self.choices.is_empty() && self.choices.iter().all(|state| state.finished)
    }

    /// Returns the number of choices, at least one.
    pub(crate) fn choice_count(&self) -> u32 {
        self.choices.len().max(1) as u32
    }

    pub(crate) fn is_repeated(&self) -> bool {
        self.repeat.uniform && self.repeat.count >= REPEATS
    }

    /// Returns the counts of the whole answer, and the assignment of tokens to its events.
    pub fn tokens(&self) -> (Tokens, SilentTokens) {
        let accounted = |state: &ChoiceState| !state.unaccounted && state.flat <= 1 + state.counted / 20;
        let counted: u64 = self.choices.iter().map(|state| u64::from(state.counted)).sum();
        decide(&Evidence {
            usage: self.usage(),
            texts: self.token_events,
            reasoning: self.reasoning_events,
            empties: self.empties,
            at_edges: self.leading + self.trailing,
            closing: self.closing,
            running: (counted > 0 && self.choices.iter().all(accounted)).then_some(counted),
        })
    }

    fn usage(&self) -> Usage {
        if self.bare.len() > 1 && self.bare.len() == self.choices.len() && !self.repeats_usage() {
            // Each choice has separate usage of one prompt.
            return sum(self.bare.iter(), false);
        }
        if let Some(last) = self.bare.last() {
            return *last;
        }
        let own = || self.choices.iter().filter_map(|state| state.usage.as_ref());
        if own().next().is_some() {
            return sum(own(), self.prompts_add);
        }
        self.timings.unwrap_or_default()
    }

    /// Returns whether one usage of all choices was sent several times. Then each is at least the number of token events.
    fn repeats_usage(&self) -> bool {
        self.bare.windows(2).all(|pair| pair[0] == pair[1])
            && self.bare[0].output.is_some_and(|n| u64::from(n) >= self.token_events)
    }
}

/// Adds usages. The prompt of several choices counts once, with its smallest cached count.
fn sum<'a>(parts: impl Iterator<Item = &'a Usage>, prompts_add: bool) -> Usage {
    fn join(a: Option<u32>, b: Option<u32>, with: fn(u32, u32) -> u32) -> Option<u32> {
        match (a, b) {
            (Some(a), Some(b)) => Some(with(a, b)),
            (a, b) => a.or(b),
        }
    }
    parts.fold(Usage::default(), |a, b| Usage {
        prompt: join(a.prompt, b.prompt, if prompts_add { u32::saturating_add } else { u32::max }),
        output: join(a.output, b.output, u32::saturating_add),
        cached: join(a.cached, b.cached, if prompts_add { u32::saturating_add } else { u32::min }),
        reasoning: join(a.reasoning, b.reasoning, u32::saturating_add),
        // The totals of choices share their prompt.
        total: None,
    })
}

/// Returns the view of one choice.
fn view<'a>(choice: &'a Choice<'a>) -> View<'a> {
    let mut view = View { finish: choice.finish_reason.get(), ..View::default() };
    if let Some(delta) = choice.delta.as_ref().or(choice.message.as_deref()) {
        look(delta, &mut view);
    }
    if view.kind.is_none() && choice.text.is_named() {
        view.text = choice.text.get();
        view.named = Some(EventKind::Content);
        view.kind = (!view.text.is_empty()).then_some(EventKind::Content);
    }
    view
}

/// Determines the kind: content before reasoning before tool calls if one delta has several, because a reader sees content first.
fn look<'a>(delta: &'a Delta<'a>, view: &mut View<'a>) {
    view.role = delta.role.is_named();
    let call = delta.functions().find(|function| !function.is_empty());
    if !delta.says().is_empty() {
        view.text = delta.says();
        view.kind = Some(EventKind::Content);
    } else if !delta.reasons().is_empty() {
        view.text = delta.reasons();
        view.kind = Some(EventKind::Reasoning);
    } else if let Some(call) = call {
        view.text = if call.arguments.is_empty() { call.name.get() } else { call.arguments.get() };
        view.kind = Some(EventKind::ToolCall);
    } else if delta.names_reasoning() {
        view.named = Some(EventKind::Reasoning);
    } else if delta.tool_calls.is_some() {
        view.named = Some(EventKind::ToolCall);
    } else if delta.content.text.is_named() {
        view.named = Some(EventKind::Content);
    }
}

/// Detects an answer that repeats a single piece.
///
/// Pieces are the texts of token events (of a whole answer: its words), without surrounding blanks. An answer counts as repeated
/// only if it consists of *one* piece from start to end, 16 times or more. Models repeat themselves legitimately
/// for a while, and random weights and synthetic engines cycle through small vocabularies. A false alarm on a healthy server
/// is worse than none. Two different pieces anywhere clear the answer permanently, so the check costs nothing afterwards.
#[derive(Debug)]
struct Repeat {
    piece: Vec<u8>,
    count: u32,
    uniform: bool,
}

impl Default for Repeat {
    fn default() -> Repeat {
        Repeat { piece: Vec::new(), count: 0, uniform: true }
    }
}

impl Repeat {
    fn piece(&mut self, text: &str) {
        if !self.uniform {
            return;
        }
        let text = text.trim().as_bytes();
        if self.count == 0 && text.len() <= PIECE_MAX {
            self.piece = text.to_vec();
        } else if self.piece != text {
            self.uniform = false;
        }
        self.count = self.count.saturating_add(1);
    }
}
