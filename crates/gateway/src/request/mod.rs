//! Request parsing for JSON, compressed bodies ([`packed`]), forms ([`form`]) and paths ([`target`]): finds the
//! prompt, the stream flag and the token limit.
//!
//! The gateway forwards the body unchanged. The parser walks the top level of the JSON object once and skips values
//! without building them. A prompt of 1 MB is therefore hashed but never copied. An unparsable body is not an error,
//! because the replica reports the problem. The gateway routes such a request by its length.

pub mod form;
pub mod packed;
pub mod target;

use std::borrow::Cow;
use std::hash::Hasher;
use std::ops::Range;

use http::{HeaderMap, Method};
use plimsoll_model::{Arm, Protocol};
use plimsoll_policy::{BlockEnds, QueuedRequestFacts, RequestFacts};
use siphasher::sip::SipHasher13;

use target::RequestTarget;

/// Returns the hash of a session or model name.
pub fn hash(name: &[u8]) -> u64 {
    let mut hash = SipHasher13::new();
    hash.write(name);
    hash.finish()
}

/// Path suffixes of requests without side effects, in addition to the paths of [`Protocol`].
const PURE: [&str; 16] = [
    "/generate",
    "/generate_stream",
    "/completion",
    "/infill",
    "/embed",
    "/embedding",
    "/infer",
    "/tokenize",
    "/detokenize",
    "/apply-template",
    "/count_tokens",
    "/moderations",
    "/audio/speech",
    "/audio/translations",
    "/images/generations",
    "/v1/rank",
];

/// Returns whether the gateway may resend a request that a replica has received. A request with side effects (batch,
/// file, job, message in a thread) is sent once.
pub(crate) fn may_repeat(method: &Method, path: &str) -> bool {
    let keeps = path.contains("/threads/") || path.contains("/conversations/");
    let is_pure = || Protocol::at(path).is_some() || PURE.iter().any(|end| path.ends_with(end));
    method.is_safe() || *method == Method::POST && !keeps && is_pure()
}

/// Length in bytes of the first blocks of a prompt.
const BLOCK: usize = 256;
/// Divisor of the block length: a block is at least 1/8 of the preceding prompt. A prompt of 1 MB has about 60
/// blocks, and a match ends within an eighth of the shared prefix. Blocks of doubling length lost: matches ended at
/// half, so the next turn of a long conversation seemed mostly new.
const PART: usize = 8;
/// Assumed bytes per token: English text with current vocabularies. An error scales all replicas alike.
pub const BYTES_PER_TOKEN: usize = 4;
/// Limit on the nesting depth of JSON values.
const DEEPEST: usize = 128;

/// Limit on the length in bytes of a stored model name.
const LONGEST_MODEL: usize = 256;

/// The extent to which a prompt is cut into blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PromptBlocks {
    /// Skips block hashing, because no consumer uses the blocks.
    No,
    /// Full blocks only, for the router.
    Blocks,
    /// Full blocks and the remainder, so that a recording can identify identical prompts.
    Whole,
}

/// The properties of a request that the gateway uses.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParsedRequest {
    /// Hashes of the prompt blocks. Each hash covers the model and the whole prefix.
    pub blocks: Vec<u64>,
    /// End of each block, in tokens from the start of the prompt.
    pub ends: Vec<u32>,
    /// Hash of the whole prompt; `None` unless cut with [`PromptBlocks::Whole`].
    pub whole: Option<u64>,
    /// Prompt length in tokens, estimated from its length in bytes.
    pub prompt_tokens: u32,
    /// Limit on output tokens; `None` if the request sets no limit.
    pub most_tokens: Option<u32>,
    /// Set if the response is a stream.
    pub streams: bool,
    /// Hash of the conversation; `None` if the client does not name one.
    pub session: Option<u64>,
    pub arm: Arm,
    /// Hash of the model name; `None` if the request names no model.
    pub model_hash: Option<u64>,
    /// Byte range of the model name: in the body including quotes, or in the path.
    pub model_at: Range<usize>,
    pub is_model_in_path: bool,
    /// Hash of the stored object that the request continues (`previous_response_id`) or refers to. The replica that
    /// created the object stores it.
    pub object: Option<u64>,
    /// Index of the first model tier that may serve the request.
    pub tier: u32,
    /// Allowed replicas in ascending order; `None` allows all.
    pub among: Option<Vec<u32>>,
    /// Model name, kept only with [`PromptBlocks::Whole`].
    pub model: Option<Box<str>>,
}

impl QueuedRequestFacts for ParsedRequest {
    fn facts(&self) -> RequestFacts<'_> {
        RequestFacts {
            session: self.session,
            blocks: &self.blocks,
            ends: BlockEnds::At(&self.ends),
            prompt_tokens: self.prompt_tokens,
            most_tokens: self.most_tokens,
            streams: self.streams,
            arm: self.arm,
            model: self.model_hash,
            tier: self.tier,
            among: self.among.as_deref(),
        }
    }
}

impl ParsedRequest {
    /// Parses a request. `text` is the decompressed body.
    pub fn of(
        (method, path): (&Method, &str),
        headers: &HeaderMap,
        text: &[u8],
        cut: PromptBlocks,
    ) -> ParsedRequest {
        let mut asked = match (*method == Method::POST, form::boundary(headers)) {
            (false, _) => ParsedRequest::default(),
            (true, Some(boundary)) => ParsedRequest::read_form(text, boundary, cut),
            (true, None) => ParsedRequest::read_as(text, cut, streams_unasked(path)),
        };
        let target = RequestTarget::read(method, path);
        asked.streams |= target.streams;
        if let Some(model) = &target.model {
            asked.names(model, cut);
            (asked.model_at, asked.is_model_in_path) = (target.model_at, true);
        }
        asked.object = asked.object.or_else(|| target.object.map(|id| hash(id.as_bytes())));
        asked
    }

    pub fn read(body: &[u8], cut: PromptBlocks) -> ParsedRequest {
        ParsedRequest::read_as(body, cut, false)
    }

    /// Parses a JSON body. `streams` is the default if the body has no `stream` member.
    fn read_as(body: &[u8], cut: PromptBlocks, streams: bool) -> ParsedRequest {
        let mut asked = ParsedRequest { prompt_tokens: tokens(body.len()), ..ParsedRequest::default() };
        let Some(fields) = Fields::read(body) else { return asked };
        asked.streams = fields.stream.map_or(streams, |text| text == b"true");
        asked.most_tokens = fields.most_tokens.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok());
        asked.object = fields.object.map(|id| hash(&plain(id)));
        if let Some(model) = fields.model {
            asked.names(&plain(model), cut);
            asked.model_at = fields.model_at.clone();
        }
        let Some(prompt) = fields.prompt else { return asked };
        asked.prompt_tokens = tokens(prompt.len() + fields.before());
        if cut != PromptBlocks::No {
            asked.cut(&fields, prompt, cut);
        }
        asked
    }

    fn read_form(body: &[u8], boundary: &str, cut: PromptBlocks) -> ParsedRequest {
        let mut asked = ParsedRequest { prompt_tokens: tokens(body.len()), ..ParsedRequest::default() };
        for (name, at) in form::fields(body, boundary) {
            let value = body[at.clone()].trim_ascii();
            match name {
                "model" => {
                    asked.names(value, cut);
                    asked.model_at = at;
                }
                "stream" => asked.streams = value.eq_ignore_ascii_case(b"true") || value == b"1",
                _ => {}
            }
        }
        asked
    }

    /// Sets the model of the request.
    fn names(&mut self, model: &[u8], cut: PromptBlocks) {
        self.model_hash = Some(hash(model));
        let is_kept = cut == PromptBlocks::Whole && model.len() <= LONGEST_MODEL;
        self.model = is_kept.then(|| std::str::from_utf8(model).ok().map(Box::from)).flatten();
    }

    /// Cuts tools and prompt into blocks. Equal bytes after an equal prefix are equal tokens, independent of the
    /// vocabulary.
    fn cut(&mut self, fields: &Fields<'_>, prompt: &[u8], cut: PromptBlocks) {
        let mut chain = SipHasher13::new();
        chain.write(fields.model.unwrap_or_default());
        chain.write_u8(0);
        chain.write(fields.tools.unwrap_or_default());
        chain.write_u8(0);
        if let Some(system) = fields.system {
            chain.write(system);
            chain.write_u8(0);
        }
        let before = fields.before();
        let mut at = 0;
        loop {
            let next = at + (at / PART).max(BLOCK);
            let Some(block) = prompt.get(at..next) else {
                self.whole = (cut == PromptBlocks::Whole).then(|| {
                    chain.write(&prompt[at..]);
                    chain.finish()
                });
                return;
            };
            chain.write(block);
            self.blocks.push(chain.finish());
            self.ends.push(tokens(before + next));
            at = next;
        }
    }
}

/// Returns whether responses of this path stream by default, as Ollama's do.
fn streams_unasked(path: &str) -> bool {
    matches!(Protocol::at(path), Some(Protocol::OllamaChat | Protocol::OllamaGenerate))
}

/// Returns a JSON string without quotes and escapes, so that `org\/m` becomes `org/m`. Other values stay unchanged.
fn plain(text: &[u8]) -> Cow<'_, [u8]> {
    let bare = text.strip_prefix(b"\"").and_then(|text| text.strip_suffix(b"\"")).unwrap_or(text);
    match memchr::memchr(b'\\', bare).and_then(|_| serde_json::from_slice::<String>(text).ok()) {
        Some(plain) => Cow::Owned(plain.into_bytes()),
        None => Cow::Borrowed(bare),
    }
}

fn tokens(bytes: usize) -> u32 {
    u32::try_from(bytes / BYTES_PER_TOKEN).unwrap_or(u32::MAX).max(1)
}

/// The JSON values that the parser needs, as raw text.
#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a [u8]>,
    model_at: Range<usize>,
    tools: Option<&'a [u8]>,
    /// The system prompt of Anthropic's protocol, which precedes the messages.
    system: Option<&'a [u8]>,
    prompt: Option<&'a [u8]>,
    stream: Option<&'a [u8]>,
    most_tokens: Option<&'a [u8]>,
    /// Identifier of the stored object that the request continues.
    object: Option<&'a [u8]>,
}

impl<'a> Fields<'a> {
    fn read(body: &'a [u8]) -> Option<Fields<'a>> {
        let mut fields = Fields::default();
        for member in members(body) {
            let (key, at) = member?;
            let text = &body[at.clone()];
            match key {
                b"model" => (fields.model, fields.model_at) = (Some(text), at),
                b"tools" => fields.tools = Some(text),
                b"system" | b"systemInstruction" | b"system_instruction" => fields.system = Some(text),
                b"messages" | b"prompt" | b"input" => fields.prompt = Some(text),
                // Member names of TGI, Triton, Gemini and SGLang. OpenAI's `text` is an object with output options.
                b"inputs" | b"text_input" | b"contents" | b"text"
                    if fields.prompt.is_none() && !text.starts_with(b"{") =>
                {
                    fields.prompt = Some(text);
                }
                b"stream" => fields.stream = Some(text),
                b"parameters" | b"options" | b"sampling_params" | b"generationConfig"
                | b"generation_config" => {
                    for (key, at) in members(text).map_while(|member| member) {
                        fields.takes_most(key, &text[at]);
                    }
                }
                b"previous_response_id" if text != b"null" => fields.object = Some(text),
                b"conversation" | b"input_file_id" if text != b"null" && fields.object.is_none() => {
                    fields.object = Some(id(text));
                }
                _ => fields.takes_most(key, text),
            }
        }
        Some(fields)
    }

    /// Reads the output token limit under the names that engines use.
    fn takes_most(&mut self, key: &[u8], text: &'a [u8]) {
        let is_most = matches!(
            key,
            b"max_tokens"
                | b"max_completion_tokens"
                | b"max_output_tokens"
                | b"max_new_tokens"
                | b"maxOutputTokens"
                | b"num_predict"
                | b"n_predict"
        );
        if is_most {
            self.most_tokens = Some(text);
        }
    }

    /// Returns the bytes that a chat template puts before the prompt: tools and system prompt.
    fn before(&self) -> usize {
        [self.tools, self.system].into_iter().flatten().map(<[u8]>::len).sum()
    }
}

/// Returns the identifier of an object that is given as a string or as an object with an `id`.
fn id(text: &[u8]) -> &[u8] {
    let inside = members(text).map_while(|member| member).find(|(key, _)| *key == b"id");
    inside.map_or(text, |(_, at)| &text[at])
}

/// A member of a JSON object: its raw name without quotes, and the byte range of its value.
pub(crate) type Member<'a> = (&'a [u8], Range<usize>);

/// Returns the members of a JSON object in order; a byte order mark may precede the object. Yields only `None` from
/// the first malformed member on.
pub(crate) fn members(body: &[u8]) -> impl Iterator<Item = Option<Member<'_>>> {
    let mark = if body.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    let open = space(body, mark);
    let mut next = (body.get(open) == Some(&b'{')).then(|| space(body, open + 1));
    std::iter::from_fn(move || {
        let found = match next {
            Some(at) if body.get(at) == Some(&b'}') => return None,
            Some(at) => member(body, at),
            None => None,
        };
        next = found.as_ref().map(|(_, after)| *after);
        Some(found.map(|(member, _)| member))
    })
}

/// Parses the member at `at`. Also returns the start of the next member.
fn member(body: &[u8], at: usize) -> Option<(Member<'_>, usize)> {
    let key_end = string(body, at)?;
    let key = &body[at + 1..key_end - 1];
    let colon = space(body, key_end);
    if body.get(colon) != Some(&b':') {
        return None;
    }
    let from = space(body, colon + 1);
    let to = value(body, from)?;
    let after = space(body, to);
    match body.get(after)? {
        b',' => Some(((key, from..to), space(body, after + 1))),
        b'}' => Some(((key, from..to), after)),
        _ => None,
    }
}

/// Returns the first position from `at` that is not white space.
fn space(body: &[u8], at: usize) -> usize {
    let rest = body.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len())
}

/// Returns the position after the string at `at`.
pub(crate) fn string(body: &[u8], at: usize) -> Option<usize> {
    if body.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', body.get(at..)?)?;
        match body[at] {
            b'"' => return Some(at + 1),
            // An escaped character never ends the string.
            _ => at += 2,
        }
    }
}

/// Returns the position after the value at `at`.
fn value(body: &[u8], at: usize) -> Option<usize> {
    match body.get(at)? {
        b'"' => string(body, at),
        b'{' | b'[' => nested(body, at),
        _ => {
            let rest = &body[at..];
            let end = rest.iter().position(|byte| {
                matches!(byte, b',' | b'}' | b']' | b'"' | b'{' | b'[' | b':') || byte.is_ascii_whitespace()
            });
            end.filter(|&end| end > 0).map(|end| at + end)
        }
    }
}

/// Returns the position after the object or list at `at`.
fn nested(body: &[u8], mut at: usize) -> Option<usize> {
    let mut open = [0u8; DEEPEST];
    let mut depth = 0;
    loop {
        // Only numbers, literals and commas are between these bytes.
        at += body.get(at..)?.iter().position(|byte| matches!(byte, b'"' | b'{' | b'[' | b'}' | b']'))?;
        match body[at] {
            b'"' => {
                at = string(body, at)?;
                continue;
            }
            byte @ (b'{' | b'[') => {
                *open.get_mut(depth)? = byte + 2;
                depth += 1;
            }
            byte => {
                depth = depth.checked_sub(1)?;
                if open[depth] != byte {
                    return None;
                }
            }
        }
        at += 1;
        if depth == 0 {
            return Some(at);
        }
    }
}
