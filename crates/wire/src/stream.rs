//! Parses the events of a streamed answer one at a time.
//!
//! Chunks that fit the stream's learnt form (see `form`) need no parsing. serde parses other chunks into borrowed
//! structs. Under an OpenAI protocol, a chunk that is not its JSON stops the decoding. Under
//! [`Protocol::Http`], every event counts as generated unless it reports otherwise, because its protocol is unknown.

use std::borrow::Cow;

use plimsoll_model::{EventKind, Protocol};

use crate::audio;
use crate::chunk::{Chunk, Other, RawUsage, Response, ResponseEvent, Text, Usage, is_error};
use crate::decoded::DecodedEvent;
use crate::fault::{Fault, ProtocolFault};
use crate::form::StreamForm;
use crate::sse::SseItem;
use crate::tally::{Tally, View};
use crate::{messages, ollama, transcriptions, whole};

/// The state of a stream so far.
#[derive(Debug)]
pub(crate) struct Stream {
    protocol: Protocol,
    pub tally: Tally,
    forms: StreamForm,
    form_of: FormOf,
    account: messages::Account,
    /// Number of events with data so far.
    pub events: u64,
    /// First error of the bytes; `None` before one.
    pub malformed: Option<ProtocolFault>,
    /// Whether the bytes are markup: a web page, not the beginning of an event.
    pub is_markup: bool,
}

/// The fixed facts of the chunks that fit the form.
#[derive(Debug, Default)]
struct FormOf {
    index: u32,
    kind: Option<EventKind>,
    usage: Option<Usage>,
}

impl Stream {
    pub fn new(protocol: Protocol, keep_text: bool) -> Stream {
        let mut tally = Tally::new(keep_text);
        tally.prompts_add = protocol == Protocol::Completions;
        Stream {
            protocol,
            tally,
            forms: StreamForm::default(),
            form_of: FormOf::default(),
            account: messages::Account::default(),
            events: 0,
            malformed: None,
            is_markup: false,
        }
    }

    /// Decodes the next item and appends its events to `out`. Items after `[DONE]` are ignored.
    pub fn item(&mut self, item: SseItem<'_>, out: &mut Vec<DecodedEvent>) {
        if self.malformed.is_some() || self.tally.done {
            return;
        }
        let decoded = match item {
            SseItem::Comment => Ok(DecodedEvent::of(EventKind::Empty)),
            SseItem::Event { name, data } => {
                self.events += 1;
                self.event(name, data)
            }
            SseItem::Stray(line) if line[0] == b'<' => {
                self.is_markup = true;
                Err("markup inside an event stream".into())
            }
            SseItem::Stray(line) => {
                self.events += 1;
                self.event(b"", line)
            }
        };
        match decoded {
            Ok(decoded) => out.push(decoded),
            Err(why) => self.malformed = Some(why),
        }
    }

    fn event(&mut self, name: &[u8], data: &[u8]) -> Result<DecodedEvent, ProtocolFault> {
        if let Some(filled) = self.forms.fill(data) {
            let mut usage = self.form_of.usage;
            if let Some(usage) = &mut usage {
                usage.output = filled.output.or(usage.output);
                usage.reasoning = filled.reasoning.or(usage.reasoning);
                usage.total = filled.total.or(usage.total);
            }
            let view = View { kind: self.form_of.kind, text: &filled.text, ..View::default() };
            return Ok(self.tally.choice(self.form_of.index, &view, usage));
        }
        self.read(name, data)
    }

    /// Parses an event in full.
    fn read(&mut self, name: &[u8], data: &[u8]) -> Result<DecodedEvent, ProtocolFault> {
        let data =
            std::str::from_utf8(data).map_err(|_| ProtocolFault::from("an event that is not UTF-8"))?;
        match data.trim() {
            // llama.cpp sends a single null between the events of completions that it batches.
            "" | "null" => return Ok(DecodedEvent::of(EventKind::Empty)),
            // Some gateways write the end as a JSON text, or in lower case.
            data if data.trim_matches(['"', '\'', ' ']).eq_ignore_ascii_case("[DONE]") => {
                self.tally.done = true;
                return Ok(DecodedEvent::of(EventKind::Done));
            }
            _ => {}
        }
        if name == b"error" {
            return Ok(self.error(data));
        }
        match self.protocol {
            Protocol::Chat | Protocol::Completions | Protocol::Embeddings => self.chunk(data),
            Protocol::Responses => self.response_event(data),
            Protocol::Messages => self.message_event(data),
            Protocol::OllamaChat | Protocol::OllamaGenerate => {
                ollama::line(data, &mut self.tally).map_err(|why| not_json(data, &why))
            }
            Protocol::Transcriptions => {
                transcriptions::event(data, &mut self.tally).map_err(|why| not_json(data, &why))
            }
            Protocol::Speech => audio::event(data, &mut self.tally).map_err(|why| not_json(data, &why)),
            // These answers are always whole; the format of a stream of them is unknown.
            Protocol::Rerank
            | Protocol::Score
            | Protocol::Pooling
            | Protocol::Classify
            | Protocol::Images
            | Protocol::Kserve
            | Protocol::KserveGrpc
            | Protocol::Http => Ok(self.other(data)),
        }
    }

    fn error(&mut self, json: &str) -> DecodedEvent {
        self.tally.error.get_or_insert_with(|| Fault::from_json(json));
        DecodedEvent::of(EventKind::Error)
    }

    fn chunk(&mut self, data: &str) -> Result<DecodedEvent, ProtocolFault> {
        let chunk: Chunk<'_> = serde_json::from_str(data).map_err(|why| not_json(data, &why))?;
        if chunk.complaint().is_some() {
            return Ok(self.error(data));
        }
        let decoded = self.tally.chunk(&chunk);
        if self.forms.learns()
            && chunk.choices.more.is_empty()
            && matches!(decoded.kind, EventKind::Content | EventKind::Reasoning)
        {
            self.learn(data, &chunk, decoded.kind);
        }
        Ok(decoded)
    }

    /// Learns the form of a chunk that contains only one text (and counts).
    fn learn(&mut self, data: &str, chunk: &Chunk<'_>, kind: EventKind) {
        let Some(choice) = &chunk.choices.first else { return };
        let tells_times = chunk.timings.is_some() || chunk.time_info.is_some() || chunk.metrics.is_some();
        if !choice.finish_reason.is_empty() || tells_times || chunk.nests_usage() {
            return;
        }
        let mut texts = Vec::with_capacity(1);
        texts.push(&choice.text);
        if let Some(delta) = &choice.delta {
            if delta.role.is_named() || delta.functions().next().is_some() {
                return;
            }
            texts.extend(delta.texts());
        }
        texts.retain(|text| !text.is_empty());
        // A text with escapes is not borrowed, so its position is unknown; a later chunk will have one.
        let [Text(Some(Cow::Borrowed(only)))] = texts[..] else { return };
        let usage = chunk.usage();
        if usage.is_some_and(|usage| usage.stages().next().is_some()) || choice.message.is_some() {
            return;
        }
        if self.forms.learn(data, only) {
            self.form_of = FormOf {
                index: choice.index.0.unwrap_or(0),
                kind: Some(kind),
                usage: usage.map(RawUsage::usage),
            };
        }
    }

    /// Parses a whole answer under the media type of a stream.
    fn whole(&mut self, data: &str) -> Result<DecodedEvent, ProtocolFault> {
        whole::read(self.protocol, data.as_bytes(), (true, 0), &mut self.tally)?;
        self.tally.done = true;
        if self.tally.error.is_some() {
            return Ok(DecodedEvent::of(EventKind::Error));
        }
        let tokens = self.tally.tokens().0.output.and_then(|n| u16::try_from(n).ok());
        Ok(DecodedEvent { kind: EventKind::Body, tokens: tokens.unwrap_or(0), visible: self.tally.generated })
    }

    fn message_event(&mut self, data: &str) -> Result<DecodedEvent, ProtocolFault> {
        let (decoded, text) =
            messages::event(data, &mut self.account, &mut self.tally).map_err(|why| not_json(data, &why))?;
        if decoded.kind == EventKind::Body {
            return self.whole(data);
        }
        if let Some(text) = text
            && matches!(decoded.kind, EventKind::Content | EventKind::Reasoning)
            && self.forms.learns()
            && self.forms.learn(data, text)
        {
            self.form_of = FormOf { index: 0, kind: Some(decoded.kind), usage: None };
        }
        Ok(decoded)
    }

    fn response_event(&mut self, data: &str) -> Result<DecodedEvent, ProtocolFault> {
        let event: ResponseEvent<'_> = serde_json::from_str(data).map_err(|why| not_json(data, &why))?;
        let kind = event.kind.get();
        let token = match kind {
            "response.output_text.delta" | "response.refusal.delta" => Some(EventKind::Content),
            "response.function_call_arguments.delta"
            | "response.mcp_call_arguments.delta"
            | "response.custom_tool_call_input.delta" => Some(EventKind::ToolCall),
            _ if kind.starts_with("response.reasoning") && kind.ends_with(".delta") => {
                Some(EventKind::Reasoning)
            }
            _ => None,
        };
        if let Some(token) = token {
            let text = event.delta.get();
            let view = View {
                kind: (!text.is_empty()).then_some(token),
                text,
                named: Some(token),
                ..View::default()
            };
            return Ok(self.tally.choice(0, &view, None));
        }
        match kind {
            "response.completed" | "response.incomplete" | "response.failed" | "response.cancelled" => {
                let raw = event.response.map_or("{}", |raw| raw.get());
                let response: Response<'_> = serde_json::from_str(raw).map_err(|why| not_json(raw, &why))?;
                if kind == "response.failed" || is_error(response.error) {
                    self.tally.done = true;
                    return Ok(self.error(response.error.map_or(data, |error| error.get())));
                }
                whole::close_response(&response, &mut self.tally);
                self.tally.done = true;
                Ok(DecodedEvent::of(EventKind::Finish))
            }
            "error" => Ok(self.error(data)),
            _ if is_error(event.error) && event.response.is_none() => Ok(self.error(data)),
            "" if event.output.is_some() => self.whole(data),
            "response.created"
            | "response.in_progress"
            | "response.queued"
            | "response.output_item.added" => Ok(DecodedEvent::of(EventKind::Role)),
            _ => Ok(DecodedEvent::of(EventKind::Empty)),
        }
    }

    /// Decodes an event of an unknown protocol: generated, unless it reports otherwise.
    fn other(&mut self, data: &str) -> DecodedEvent {
        let Ok(chunk) = serde_json::from_str::<Chunk<'_>>(data) else {
            let view = View { kind: Some(EventKind::Content), text: data, ..View::default() };
            return self.tally.choice(0, &view, None);
        };
        if is_error(chunk.error) {
            return self.error(data);
        }
        if chunk.choices.named {
            return self.tally.chunk(&chunk);
        }
        let other: Other<'_> = serde_json::from_str(data).unwrap_or_default();
        if let Some(raw) = chunk.timings {
            self.tally.timings(raw.get());
        }
        let usage = whole::other_usage(&other, chunk.usage().map(RawUsage::usage));
        let text = whole::other_text(&other);
        let details = other.details.as_ref().map(|details| details.finish_reason.get()).unwrap_or_default();
        let ended = !details.is_empty() || [other.done, other.stop].into_iter().flatten().any(|flag| flag.0);
        let reason =
            [details, other.done_reason.get(), other.stop_type.get()].into_iter().find(|r| !r.is_empty());
        let known = text.is_some() || ended || usage.is_some();
        let kind = match text {
            Some("") => None,
            Some(_) => Some(EventKind::Content),
            None => (!known).then_some(EventKind::Content),
        };
        let view = View {
            kind,
            text: text.unwrap_or_default(),
            named: text.map(|_| EventKind::Content),
            role: false,
            finish: if ended { reason.unwrap_or("stop") } else { "" },
        };
        self.tally.choice(0, &view, usage)
    }
}

fn not_json(data: &str, why: &serde_json::Error) -> ProtocolFault {
    ProtocolFault::json("an event", data, why)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Chunks in the formats of servers, with texts and counts that fit the learnt form, nearly fit it, or do not.
    fn chunks() -> impl Strategy<Value = Vec<String>> {
        let text = prop_oneof![
            8 => "[a-z ]{1,6}",
            1 => Just(String::new()),
            1 => Just("ä → 字".to_owned()),
            1 => Just(r"a\nb".to_owned()),
            1 => Just(r#"\"q\""#.to_owned()),
            1 => Just(r#"x","role":"y"#.to_owned()),
            1 => Just(r#"x"},"finish_reason":"stop","d":{"e":""#.to_owned()),
            1 => Just("a\tb".to_owned()),
            1 => Just("a\u{7f}b".to_owned()),
        ];
        let count = prop_oneof![
            6 => (0..40_u32).prop_map(|n| n.to_string()),
            1 => prop::sample::select(vec![
                "007", "1e3", "-1", "null", "4294967296", "999999999", "1234567890", "1.5", "0"])
                .prop_map(str::to_owned),
        ];
        // Runs of one format, as in practice, and mixtures.
        (0..12_usize).prop_flat_map(move |run| {
            let shape = if run < 6 { run..run + 1 } else { 0..6 };
            let one = (shape, text.clone(), count.clone(), count.clone());
            prop::collection::vec(one.prop_map(|(shape, text, a, b)| chunk(shape, &text, &a, &b)), 1..30)
        })
    }

    fn chunk(shape: usize, text: &str, a: &str, b: &str) -> String {
        let usage = format!(
            "\"usage\":{{\"prompt_tokens\":7,\"total_tokens\":{b},\"completion_tokens\":{a},\
             \"completion_tokens_details\":{{\"reasoning_tokens\":{b}}}}}"
        );
        let choice = match shape {
            0 => format!("{{\"index\":0,\"delta\":{{\"content\":\"{text}\"}},\"finish_reason\":null}}"),
            1 => format!("{{\"index\":0,\"delta\":{{\"reasoning\":\"{text}\"}}}}"),
            2 => format!("{{\"index\":{a},\"delta\":{{\"content\":\"{text}\"}}}}"),
            3 => format!("{{\"index\":0,\"text\":\"{text}\",\"finish_reason\":null}}"),
            4 => format!("{{\"index\":0,\"delta\":{{\"role\":\"assistant\",\"content\":\"{text}\"}}}}"),
            _ => String::new(),
        };
        match shape {
            0 => format!("{{\"choices\":[{choice}]}}"),
            2 => format!("{{{usage},\"choices\":[{choice}]}}"),
            _ => format!("{{\"choices\":[{choice}],{usage}}}"),
        }
    }

    /// Parses every chunk in full; with `forms`, by the learnt form if it fits.
    fn all(
        chunks: &[String],
        forms: bool,
    ) -> (Vec<Result<DecodedEvent, ProtocolFault>>, plimsoll_model::Tokens, Option<String>, bool) {
        let mut stream = Stream::new(Protocol::Chat, true);
        let mut filled = false;
        let read = chunks
            .iter()
            .map(|chunk| {
                if !forms {
                    stream.forms = StreamForm::default();
                }
                filled |= stream.forms.fill(chunk.as_bytes()).is_some();
                stream.event(b"", chunk.as_bytes())
            })
            .collect();
        (read, stream.tally.tokens().0, stream.tally.text.clone(), filled)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]

        #[test]
        fn forms_change_nothing(chunks in chunks()) {
            let (fast, slow) = (all(&chunks, true), all(&chunks, false));
            prop_assert!(!slow.3);
            prop_assert_eq!(fast.0, slow.0);
            prop_assert_eq!(fast.1, slow.1);
            prop_assert_eq!(fast.2, slow.2);
        }
    }

    #[test]
    fn usual_streams_fit_their_form() {
        let chunks: Vec<String> = (1..=50)
            .map(|n| {
                format!(
                    "{{\"id\":\"x\",\"choices\":[{{\"index\":0,\"delta\":{{\"content\":\" w{n}\"}}}}],\
                     \"usage\":{{\"prompt_tokens\":3,\"total_tokens\":{},\"completion_tokens\":{n}}}}}",
                    n + 3
                )
            })
            .collect();
        let mut stream = Stream::new(Protocol::Chat, false);
        let fits = chunks.iter().filter(|chunk| {
            let fits = stream.forms.fill(chunk.as_bytes()).is_some();
            stream.event(b"", chunk.as_bytes()).unwrap();
            fits
        });
        assert_eq!(fits.count(), 49);
        assert_eq!(stream.tally.tokens().0.rule, plimsoll_model::TokensRule::UsageRunning);
    }
}
