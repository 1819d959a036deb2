//! Parses a request to the engine without copying its prompt.
//!
//! Only the data that the engine uses is kept: word counts, block hashes, flags. The prompt is discarded after
//! parsing, so that thousands of waiting requests need no memory for unused text.

use std::borrow::Cow;

use plimsoll_model::{Carries, Media, MediaCounts, Protocol};
use serde::Deserialize;
use serde_json::value::RawValue;

use super::speech::AudioFormat;
use super::{images, speech};
use crate::media;

/// Words per block of [`GenerateRequest::blocks`]; the page size of vLLM's KV cache.
pub const BLOCK_WORDS: usize = 16;

/// Longest output that a request may set, in tokens.
const OUTPUT_MAX: u32 = 1 << 20;

pub type ApiEndpoint = Protocol;

/// The options and prompt statistics of a request.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct GenerateRequest {
    pub endpoint: ApiEndpoint,
    /// Unchanged model name; empty if the request has none.
    pub model: String,
    pub stream: bool,
    /// Words of the prompt: all messages, or all inputs together.
    pub prompt_tokens: u32,
    /// Limit of output tokens; `None` if the request sets none.
    pub max_tokens: Option<u32>,
    /// Whether the output has exactly `max_tokens` tokens.
    pub ignore_eos: bool,
    /// Whether the stream ends with a usage chunk.
    pub include_usage: bool,
    /// Whether every chunk contains a running total.
    pub continuous_usage: bool,
    /// Inputs of an embeddings request; 1 for other requests.
    pub inputs: u32,
    /// Numbers per embedding; `None` for the default.
    pub dimensions: Option<u32>,
    /// Whether embeddings are encoded as base64.
    pub base64: bool,
    /// Hashes of the prompt's full blocks of [`BLOCK_WORDS`] words, each chained to its predecessor. Equal hashes mean equal
    /// text up to and including that block.
    pub blocks: Vec<u64>,
    /// Numbers of pictures and audio parts in the prompt.
    pub media: MediaCounts,
    pub media_tokens: u32,
    /// Hash of the whole prompt at temperature 0, where the prompt determines the answer; `None` otherwise.
    pub greedy: Option<u64>,
    pub format: TranscriptFormat,
    pub generated: GeneratedMedia,
}

/// The audio or the images that a request generates; text is neither.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum GeneratedMedia {
    #[default]
    None,
    Speech {
        format: AudioFormat,
        /// Set if a stream consists of events with base64 instead of bytes of audio.
        events: bool,
    },
    /// Images of this size in pixels.
    Images { count: u32, width: u32, height: u32 },
}

impl GenerateRequest {
    /// Returns the request of a text without options.
    pub(super) fn of_text(model: String, words: Words) -> GenerateRequest {
        GenerateRequest {
            model,
            prompt_tokens: words.count,
            blocks: words.blocks,
            ..GenerateRequest::default()
        }
    }
}

/// The format of a transcription answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum TranscriptFormat {
    /// An object with the text.
    #[default]
    Json,
    /// JSON with the audio length and segments.
    VerboseJson,
    Text,
}

/// A request that cannot be served, with the status of its answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{message}")]
pub struct BadRequest {
    pub status: u16,
    pub message: String,
    /// Invalid field; `None` if no single field is the cause.
    pub param: Option<&'static str>,
}

pub(super) fn bad(param: &'static str, message: impl Into<String>) -> BadRequest {
    BadRequest { status: 400, message: message.into(), param: Some(param) }
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow, default)]
    model: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    messages: Option<Vec<Message<'a>>>,
    #[serde(borrow, default)]
    query: Option<&'a RawValue>,
    #[serde(borrow, default)]
    documents: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text_1: Option<&'a RawValue>,
    #[serde(borrow, default)]
    text_2: Option<&'a RawValue>,
    #[serde(borrow, default)]
    system: Option<&'a RawValue>,
    #[serde(borrow, default)]
    prompt: Option<&'a RawValue>,
    #[serde(borrow, default)]
    input: Option<&'a RawValue>,
    stream: Option<bool>,
    max_tokens: Option<i64>,
    max_completion_tokens: Option<i64>,
    max_output_tokens: Option<i64>,
    ignore_eos: Option<bool>,
    temperature: Option<f64>,
    n: Option<i64>,
    stream_options: Option<StreamOptions>,
    #[serde(borrow, default)]
    options: Option<&'a RawValue>,
    dimensions: Option<i64>,
    #[serde(borrow, default)]
    encoding_format: Option<Cow<'a, str>>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct StreamOptions {
    include_usage: Option<bool>,
    continuous_usage_stats: Option<bool>,
}

/// Length and temperature in Ollama's requests.
#[derive(Deserialize, Default)]
#[serde(default)]
struct OllamaOptions {
    num_predict: Option<i64>,
    temperature: Option<f64>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow, default)]
    content: Option<&'a RawValue>,
    /// Images in the field that Ollama uses.
    #[serde(borrow, default)]
    images: Option<Vec<Cow<'a, str>>>,
}

#[derive(Deserialize)]
struct TextPart<'a> {
    #[serde(borrow, default)]
    text: Option<Cow<'a, str>>,
    /// A URL, or an object with a URL.
    #[serde(borrow, default)]
    image_url: Option<&'a RawValue>,
    #[serde(borrow, default)]
    source: Option<EncodedFile<'a>>,
    #[serde(borrow, default)]
    input_audio: Option<EncodedFile<'a>>,
}

/// The place of a file's bytes, as base64.
#[derive(Deserialize)]
struct EncodedFile<'a> {
    #[serde(borrow, default)]
    url: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    data: Option<Cow<'a, str>>,
}

/// Parses a request body of at most `body_max` bytes.
pub fn parse(endpoint: ApiEndpoint, body: &[u8], body_max: usize) -> Result<GenerateRequest, BadRequest> {
    if body.len() > body_max {
        let message = format!("request body of {} bytes is over the limit of {body_max}", body.len());
        return Err(BadRequest { status: 413, message, param: None });
    }
    match endpoint {
        Protocol::Speech => return speech::parse(body),
        Protocol::Images => return images::parse(body),
        _ => {}
    }
    let body: Body<'_> = parse_json(body)?;
    let mut words = Words::default();
    let mut inputs = 1;
    match endpoint {
        Protocol::Chat | Protocol::Messages | Protocol::OllamaChat => {
            if let Some(system) = body.system.filter(|_| endpoint == Protocol::Messages) {
                words.content("system", system)?;
            }
            if endpoint == Protocol::Messages && body.max_tokens.is_none() {
                return Err(bad("max_tokens", "max_tokens is required"));
            }
            let messages = body.messages.as_ref().filter(|messages| !messages.is_empty());
            for message in
                messages.ok_or_else(|| bad("messages", "messages is required and must not be empty"))?
            {
                for image in message.images.iter().flatten() {
                    words.media("messages", image)?;
                }
                if let Some(content) = message.content {
                    words.content("messages", content)?;
                }
            }
        }
        Protocol::Completions | Protocol::OllamaGenerate => {
            if let Some(system) = body.system.filter(|_| endpoint == Protocol::OllamaGenerate) {
                words.content("system", system)?;
            }
            let prompt = body.prompt.ok_or_else(|| bad("prompt", "prompt is required"))?;
            words.texts("prompt", prompt)?;
        }
        Protocol::Responses => {
            let input = body.input.ok_or_else(|| bad("input", "input is required"))?;
            words.response_input(input)?;
        }
        Protocol::Transcriptions => return Err(bad("body", "a transcription needs a multipart form")),
        Protocol::Rerank => inputs = words.pairs(("query", body.query), ("documents", body.documents))?,
        Protocol::Score => inputs = words.pairs(("text_1", body.text_1), ("text_2", body.text_2))?,
        Protocol::Embeddings
        | Protocol::Pooling
        | Protocol::Classify
        | Protocol::Speech
        | Protocol::Images
        | Protocol::Kserve
        | Protocol::KserveGrpc
        | Protocol::Http => {
            let input = body.input.ok_or_else(|| bad("input", "input is required"))?;
            inputs = words.texts("input", input)?;
        }
    }
    if body.n.is_some_and(|n| n != 1) {
        return Err(bad("n", "only n = 1 is served"));
    }
    if endpoint.takes_texts() && (inputs > 1 || endpoint.carries() == Carries::Documents) {
        words.media.documents = inputs;
    }
    let options = body.stream_options.unwrap_or_default();
    let ollama: OllamaOptions = match body.options.filter(|_| endpoint.sends_lines()) {
        Some(options) => read("options", options)?,
        None => OllamaOptions::default(),
    };
    // In Ollama's API, -1 and -2 mean no limit.
    let num_predict = ollama.num_predict.filter(|n| *n >= 0);
    Ok(GenerateRequest {
        endpoint,
        model: body.model.unwrap_or_default().into_owned(),
        stream: body.stream.unwrap_or(endpoint.sends_lines()),
        prompt_tokens: words.count,
        max_tokens: positive(
            "max_tokens",
            body.max_completion_tokens.or(body.max_tokens).or(body.max_output_tokens).or(num_predict),
        )?,
        ignore_eos: body.ignore_eos.unwrap_or(false),
        include_usage: options.include_usage.unwrap_or(false),
        continuous_usage: options.continuous_usage_stats.unwrap_or(false),
        inputs,
        media: words.media,
        media_tokens: words.media_tokens,
        dimensions: positive("dimensions", body.dimensions)?,
        base64: match body.encoding_format.as_deref() {
            None | Some("float") => false,
            Some("base64") => true,
            Some(_) => return Err(bad("encoding_format", "encoding_format must be float or base64")),
        },
        greedy: (body.temperature.or(ollama.temperature) == Some(0.0)).then_some(words.hash),
        blocks: words.blocks,
        format: TranscriptFormat::default(),
        generated: GeneratedMedia::default(),
    })
}

pub(super) fn parse_json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, BadRequest> {
    serde_json::from_slice(body).map_err(|why| BadRequest {
        status: 400,
        message: format!("request body is not valid: {why}"),
        param: None,
    })
}

pub(super) fn positive(param: &'static str, value: Option<i64>) -> Result<Option<u32>, BadRequest> {
    match value.map(u32::try_from) {
        None => Ok(None),
        Some(Ok(n)) if (1..=OUTPUT_MAX).contains(&n) => Ok(Some(n)),
        Some(_) => Err(bad(param, format!("{param} must be between 1 and {OUTPUT_MAX}"))),
    }
}

/// Counts words and hashes blocks of them.
#[derive(Default)]
pub(super) struct Words {
    count: u32,
    blocks: Vec<u64>,
    hash: u64,
    in_block: usize,
    media: MediaCounts,
    media_tokens: u32,
}

/// Pixels of a patch's side, each patch a token: Qwen2-VL's 14 pixels, merged two by two.
pub const PATCH: u32 = 28;

/// Tokens per second of audio: Qwen2-Audio's 40 ms per frame.
pub(crate) const AUDIO_TOKENS_PER_S: u64 = 25;

/// Returns the prompt tokens of a picture or of audio.
pub(super) fn media_tokens(media: &Media) -> u32 {
    match *media {
        Media::Image { width, height, .. } => width.div_ceil(PATCH).saturating_mul(height.div_ceil(PATCH)),
        Media::Audio { samples, rate, .. } => {
            let tokens = (u64::from(samples) * AUDIO_TOKENS_PER_S).div_ceil(u64::from(rate.max(1)));
            u32::try_from(tokens).unwrap_or(u32::MAX)
        }
    }
}

impl Words {
    pub fn of(text: &str) -> Words {
        let mut words = Words::default();
        words.text(text);
        words
    }

    /// Adds a text: FNV-1a over the words with separators; a block's hash continues from its predecessor.
    fn text(&mut self, text: &str) {
        for word in text.split_ascii_whitespace() {
            self.word(word.as_bytes());
        }
    }

    fn word(&mut self, word: &[u8]) {
        if self.count == 0 {
            self.hash = 0xcbf2_9ce4_8422_2325;
        }
        for byte in word.iter().chain(b" ") {
            self.hash = (self.hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
        }
        self.count = self.count.saturating_add(1);
        self.in_block += 1;
        if self.in_block == BLOCK_WORDS {
            self.in_block = 0;
            self.blocks.push(self.hash);
        }
    }

    /// Adds a file as base64, or a `data:` URL: as many words as it has tokens, all with the hash of the whole file.
    fn media(&mut self, param: &'static str, text: &str) -> Result<(), BadRequest> {
        let data = text.rsplit_once("base64,").map_or(text, |(_, data)| data);
        // Other formats, and URLs that are not fetched here, do not count.
        let Some(media) = media::read_head(data) else { return Ok(()) };
        let whole = data.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        let tokens = media_tokens(&media);
        // A body of this length can't contain a picture with that many patches: its header is wrong.
        if u64::from(tokens) > u64::from(u16::MAX) * 16 {
            return Err(bad(param, "the file is too large"));
        }
        (0..tokens).for_each(|_| self.word(&whole.to_le_bytes()));
        self.media_tokens = self.media_tokens.saturating_add(tokens);
        self.media.add(&media);
        Ok(())
    }

    fn part(&mut self, param: &'static str, part: &TextPart<'_>) -> Result<(), BadRequest> {
        if let Some(raw) = part.image_url {
            let url = match raw.get().starts_with('{') {
                true => read::<EncodedFile<'_>>(param, raw)?.url,
                false => Some(read(param, raw)?),
            };
            self.media(param, &url.unwrap_or_default())?;
        }
        for held in [&part.source, &part.input_audio].into_iter().flatten() {
            self.media(param, held.data.as_deref().unwrap_or_default())?;
        }
        self.text(part.text.as_deref().unwrap_or_default());
        Ok(())
    }

    /// Adds the content of a message: a text, a list of parts, or null.
    fn content(&mut self, param: &'static str, raw: &RawValue) -> Result<(), BadRequest> {
        if raw.get().starts_with('[') {
            let parts: Vec<TextPart<'_>> = read(param, raw)?;
            return parts.iter().try_for_each(|part| self.part(param, part));
        }
        let text: Option<Cow<'_, str>> = read(param, raw)?;
        self.text(&text.unwrap_or_default());
        Ok(())
    }

    /// Adds a text or a list of texts; returns their number.
    fn texts(&mut self, param: &'static str, raw: &RawValue) -> Result<u32, BadRequest> {
        if !raw.get().starts_with('[') {
            let text: Cow<'_, str> = read(param, raw)?;
            self.text(&text);
            return Ok(1);
        }
        let texts: Vec<Cow<'_, str>> = read(param, raw)?;
        if texts.is_empty() {
            return Err(bad(param, format!("{param} must not be empty")));
        }
        texts.iter().for_each(|text| self.text(text));
        Ok(u32::try_from(texts.len()).unwrap_or(u32::MAX))
    }

    /// Adds a query with each of the documents, as a cross-encoder reads them; returns their number.
    fn pairs(
        &mut self,
        (one, query): (&'static str, Option<&RawValue>),
        (many, documents): (&'static str, Option<&RawValue>),
    ) -> Result<u32, BadRequest> {
        let query = query.ok_or_else(|| bad(one, format!("{one} is required")))?;
        let documents = documents.ok_or_else(|| bad(many, format!("{many} is required")))?;
        let query: Cow<'_, str> = read(one, query)?;
        let all: Vec<&RawValue> =
            if documents.get().starts_with('[') { read(many, documents)? } else { vec![documents] };
        if all.is_empty() {
            return Err(bad(many, format!("{many} must not be empty")));
        }
        for document in &all {
            self.text(&query);
            if document.get().starts_with('{') {
                self.text(&read::<TextPart<'_>>(many, document)?.text.unwrap_or_default());
            } else {
                self.text(&read::<Cow<'_, str>>(many, document)?);
            }
        }
        Ok(u32::try_from(all.len()).unwrap_or(u32::MAX))
    }

    fn response_input(&mut self, raw: &RawValue) -> Result<(), BadRequest> {
        if !raw.get().starts_with('[') {
            return self.texts("input", raw).map(|_| ());
        }
        let messages: Vec<Message<'_>> = read("input", raw)?;
        messages
            .iter()
            .filter_map(|message| message.content)
            .try_for_each(|content| self.content("input", content))
    }
}

fn read<'a, T: Deserialize<'a>>(param: &'static str, raw: &'a RawValue) -> Result<T, BadRequest> {
    serde_json::from_str(raw.get()).map_err(|_| bad(param, format!("{param} has a type that is not served")))
}
