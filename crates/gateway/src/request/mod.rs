//! What a request asks for, whatever carries it: JSON, a compressed body ([`packed`]), a form ([`form`]) or a path ([`target`]). Where the prompt is, whether it streams, how long it may become.
//!
//! The body is passed on as it came; this only looks. It walks the top level of the JSON object once and skips values without building them: a
//! prompt of a megabyte is looked at and never copied. A body that it can't follow is no error: the replica says what is wrong with it, and the
//! request is routed by its length.

pub mod form;
pub mod packed;
pub mod target;

use std::borrow::Cow;
use std::hash::Hasher;
use std::ops::Range;

use http::{HeaderMap, Method};
use plimsoll_model::{Arm, Protocol};
use siphasher::sip::SipHasher13;

use target::Target;

/// A session's number, or a model's, by its name.
pub fn hash(name: &[u8]) -> u64 {
    let mut hash = SipHasher13::new();
    hash.write(name);
    hash.finish()
}

/// Ends of paths whose requests change nothing on a replica, beside those of [`Protocol`]s.
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

/// Returns whether a request may be sent again after a replica has got it. One that may have changed something there (a batch, a file, a job, a thread's
/// next message) is sent once.
pub(crate) fn may_repeat(method: &Method, path: &str) -> bool {
    let keeps = path.contains("/threads/") || path.contains("/conversations/");
    let is_pure = || Protocol::at(path).is_some() || PURE.iter().any(|end| path.ends_with(end));
    method.is_safe() || *method == Method::POST && !keeps && is_pure()
}

/// Bytes of a prompt's first blocks.
const BLOCK: usize = 256;
/// A block is as long as this share of all before it, where that is more: a megabyte has some sixty, and what is matched ends within an eighth of what
/// is shared. With blocks that double it ended at half, and a long conversation's next turn looked as if much of it were new.
const PART: usize = 8;
/// Bytes that a token is taken to have: English text under today's vocabularies. It scales all replicas alike.
pub const BYTES_PER_TOKEN: usize = 4;
/// How deep values may be nested before the walk gives up.
const DEEPEST: usize = 128;

/// Bytes of the longest name of a model that is kept.
const LONGEST_MODEL: usize = 256;

/// How far a prompt is cut into blocks.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PromptBlocks {
    /// Not at all: nobody looks at them.
    No,
    /// Its full blocks: what a router looks at.
    Blocks,
    /// And what follows the last of them: a record tells whether two prompts were the same to their ends.
    Whole,
}

/// What was read.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct ParsedRequest {
    /// Names of the prompt's blocks, each chained to the one before, and to the model.
    pub blocks: Vec<u64>,
    /// Where they end, in tokens from the start.
    pub ends: Vec<u32>,
    /// Name of all of it, where it was cut to its end ([`PromptBlocks::Whole`]).
    pub whole: Option<u64>,
    /// Tokens of the prompt, by its length.
    pub prompt_tokens: u32,
    /// Most tokens of the answer, where it says so.
    pub most_tokens: Option<u32>,
    /// Is the answer to be streamed?
    pub streams: bool,
    /// The conversation it belongs to, where its client names one.
    pub session: Option<u64>,
    /// Whose it is, where a version is on trial.
    pub arm: Arm,
    /// The model that it names, by a hash of its name.
    pub model_hash: Option<u64>,
    /// Where that is written: in the body, quotes included, or in the path.
    pub model_at: Range<usize>,
    pub is_model_in_path: bool,
    /// The stored object that it goes on with (`previous_response_id`) or is about, by a hash of its name: the replica that made it has it.
    pub object: Option<u64>,
    /// Of the models that it stands for, those from this one on.
    pub tier: u32,
    /// The replicas that may get it, in ascending order; none = any.
    pub among: Option<Vec<u32>>,
    /// Its name, where all of it is read ([`PromptBlocks::Whole`]).
    pub model: Option<Box<str>>,
}

impl ParsedRequest {
    /// Reads a request. `text`: its body, unpacked.
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
        let target = Target::read(method, path);
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

    /// Reads a body of JSON. `streams`: what holds where the body does not say it.
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

    /// The model is this one.
    fn names(&mut self, model: &[u8], cut: PromptBlocks) {
        self.model_hash = Some(hash(model));
        let is_kept = cut == PromptBlocks::Whole && model.len() <= LONGEST_MODEL;
        self.model = is_kept.then(|| std::str::from_utf8(model).ok().map(Box::from)).flatten();
    }

    /// Cuts tools and prompt into blocks. Equal bytes after an equal beginning are equal tokens, whatever the vocabulary.
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

/// Returns whether answers of this path stream unless a request says otherwise, as Ollama's do.
fn streams_unasked(path: &str) -> bool {
    matches!(Protocol::at(path), Some(Protocol::OllamaChat | Protocol::OllamaGenerate))
}

/// A string of JSON without its quotes and escapes, so that `org\/m` is `org/m`; what is none stays.
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

/// The values of interest, as they are written.
#[derive(Default)]
struct Fields<'a> {
    model: Option<&'a [u8]>,
    model_at: Range<usize>,
    tools: Option<&'a [u8]>,
    /// What stands before the messages under Anthropic's protocol.
    system: Option<&'a [u8]>,
    prompt: Option<&'a [u8]>,
    stream: Option<&'a [u8]>,
    most_tokens: Option<&'a [u8]>,
    /// Name of the stored object that it goes on with.
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
                // Names of TGI, Triton, Gemini and SGLang. OpenAI's `text` is an object that says how to write.
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

    /// The longest answer, by the names that engines have for it.
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

    /// Bytes of what a template puts before the prompt.
    fn before(&self) -> usize {
        [self.tools, self.system].into_iter().flatten().map(<[u8]>::len).sum()
    }
}

/// The name of an object that is named by it, or by an object with its `id`.
fn id(text: &[u8]) -> &[u8] {
    let inside = members(text).map_while(|member| member).find(|(key, _)| *key == b"id");
    inside.map_or(text, |(_, at)| &text[at])
}

/// A member of an object: its name as it is written, without quotes, and where its value is.
pub(crate) type Member<'a> = (&'a [u8], Range<usize>);

/// The members of the object that a body is, in their order, behind a byte order mark where there is one; `None` in place of one that can't be followed, and of all after it.
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

/// The member that begins at `at`, and where the next one does.
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

/// The first place from `at` that is no white space.
fn space(body: &[u8], at: usize) -> usize {
    let rest = body.get(at..).unwrap_or_default();
    at + rest.iter().position(|byte| !byte.is_ascii_whitespace()).unwrap_or(rest.len())
}

/// The place after the string that begins at `at`.
pub(crate) fn string(body: &[u8], at: usize) -> Option<usize> {
    if body.get(at) != Some(&b'"') {
        return None;
    }
    let mut at = at + 1;
    loop {
        at += memchr::memchr2(b'"', b'\\', body.get(at..)?)?;
        match body[at] {
            b'"' => return Some(at + 1),
            // Whatever is escaped, it is not the end.
            _ => at += 2,
        }
    }
}

/// The place after the value that begins at `at`.
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

/// The place after the object or list that begins at `at`.
fn nested(body: &[u8], mut at: usize) -> Option<usize> {
    let mut open = [0u8; DEEPEST];
    let mut depth = 0;
    loop {
        // What lies between is numbers, words and commas.
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
