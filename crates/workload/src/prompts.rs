//! Generates the text of a request, as a function of only spec, seed, nonce and arrival.
//!
//! **Salt.** A server's prefix cache may contain the previous run. Every text therefore begins differently in every run.
//! The key of each root (a shared-prefix group, a trace's first block, a separate prompt) is hashed with the nonce. The
//! words follow from the key. This salt costs no token, because it *is* the requested text. Prompts from a file can't be
//! redrawn, so four salt words precede each. They are equal for all prompts of a level, so that shared parts stay shared,
//! and they count as requested tokens.
//!
//! **Sharing.** Groups keep their text for the whole run, as system prompts do. All other text differs between levels too;
//! otherwise the second level would find the first one's prompts in the cache. For trace blocks, equal ids after equal
//! chains of ids give equal text, and all others give different text.
//!
//! **Sessions.** The assistant's part of the history is synthetic text of the requested length, not the server's answer.
//! Otherwise prompts would depend on the tested server, and two runs would not be comparable. The real answers are an
//! option ([`crate::AnswerText::Real`], passed to [`Prompts::render_with`]). A turn of a trace's session without block ids
//! begins with the longest fitting prompt and answer of an ancestor ([`crate::graph`]).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::hash::Hasher;
use std::sync::Arc;

use plimsoll_math::rng::Stream;
use plimsoll_model::{Carries, Media, Message, Payload, Role, WrittenMessage};
use serde_json::Value;
use siphasher::sip::SipHasher24;

use crate::documents::DrawnDocuments;
use crate::draw::{Arrival, Drawer};
use crate::graph::Graph;
use crate::scenario::AnswerText;
use crate::{Scenario, SpecError, words};

/// Tokens per hashed block, as in the engines' caches.
pub const BLOCK_TOKENS: usize = 16;

/// Salt words in front of a prompt from a file.
pub(crate) const SALT_WORDS: usize = 4;

/// The generator of payloads and the keyed hashes of their blocks.
#[derive(Debug)]
pub struct Prompts {
    pub(crate) scenario: Arc<Scenario>,
    drawer: Drawer,
    hash_key: u64,
}

/// Returns the key of a run's block hashes. It is equal for equal seed, nonce and prompt files, so that a repeated schedule
/// has equal block names. Other runs have other names, because their nonce differs.
///
/// For the user's prompts the key also covers their text. A reader of the run folder without the file can then not test
/// guessed lines against the hashes. A random key in the run folder was rejected, because it would permit that.
pub fn block_key(scenario: &Scenario) -> u64 {
    let mut hasher = SipHasher24::new_with_keys(scenario.seed, scenario.nonce.unwrap_or(0));
    for class in 0..scenario.class_count() as u16 {
        let file = scenario.prompts_of(class).file.as_ref();
        let entries = file.and_then(|file| scenario.material.prompts(file).ok()).unwrap_or_default();
        for message in entries.iter().flat_map(|entry| &entry.messages) {
            hasher.write(message.content.as_bytes());
            hasher.write(&[0]);
        }
    }
    hasher.finish()
}

/// The server's answers in a session, by turn.
pub type SessionAnswerTexts = BTreeMap<u16, String>;

/// A message of a synthetic prompt.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Part {
    pub role: Role,
    pub pieces: Vec<Piece>,
    /// Turn whose question or answer the message is.
    pub turn: u16,
}

/// The first `count` words of the text named `key`.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub key: u64,
    pub count: usize,
}

/// The conversion from tokens to words: a factor, and the tokens that the server's template adds to each prompt.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Length {
    pub factor: f64,
    pub template: u32,
}

fn plain(key: u64, tokens: u32, factor: f64) -> Piece {
    Piece { key, count: words(u64::from(tokens), factor).max(1) }
}

fn words(tokens: u64, factor: f64) -> usize {
    (tokens as f64 * factor).round() as usize
}

/// The kind of text that a key names; its number is hashed.
#[derive(Copy, Clone)]
pub(crate) enum Root {
    Own = 1,
    Group = 2,
    Trace = 3,
    Block = 4,
    Asked = 5,
    Answered = 6,
    Salt = 7,
    Media = 8,
}

impl Prompts {
    /// Returns the generator for a scenario. `hash_key` keys the block hashes, so that hashes of two runs are unrelated
    /// unless intended.
    ///
    /// # Errors
    /// Fails with a [`SpecError`] if the scenario is inconsistent or its files are not attached.
    pub fn new(scenario: &Scenario, hash_key: u64) -> Result<Prompts, SpecError> {
        let scenario = Arc::new(scenario.clone());
        let drawer = Drawer::new(scenario.clone(), 0)?;
        Ok(Prompts { scenario, drawer, hash_key })
    }

    /// Returns the words per token of a class.
    pub fn words_per_token(&self, class: u16) -> f64 {
        self.scenario.prompts_of(class).words_per_token
    }

    /// Returns the payload of a request: messages for chat and responses, tensors for KServe, one text for other protocols.
    pub fn payload(&self, arrival: &Arrival) -> Payload {
        self.payload_with(arrival, None)
    }

    fn payload_with(&self, arrival: &Arrival, said: Option<&SessionAnswerTexts>) -> Payload {
        let target = self.scenario.requests_of(arrival.class);
        if target.protocol.carries() == Carries::Tensors {
            // A user's body template contains the tensors itself.
            let own = target.body_template.is_some();
            let key = self.key(arrival, Root::Own, arrival.id, 0);
            return Payload::Tensors(match own {
                true => Vec::new(),
                false => target.tensors.draw(arrival.prompt_tokens, key),
            });
        }
        if target.protocol.carries() == Carries::Sound
            && let Some(sound) = self.media(arrival, 0).pop()
        {
            return Payload::Sound(sound);
        }
        let messages = self.messages(arrival, said);
        if target.protocol.carries() == Carries::Messages {
            return Payload::Messages(messages);
        }
        let start = arrival.session.unwrap_or(arrival.id);
        if let Some(drawn) = self.drawer.documents(arrival.class, arrival.level, start) {
            let words: Vec<&str> = messages.iter().flat_map(|m| words_of(&m.content)).collect();
            return self.documents(arrival, &words, &drawn);
        }
        let texts: Vec<String> = messages.into_iter().map(|m| m.content).collect();
        Payload::Text(texts.join("\n"))
    }

    /// Returns a query and documents of these words, or texts without a query.
    ///
    /// If their length is not configured, the query is an eighth of a document. A server that reads it with each document
    /// then reads all `words`, if there are enough for one word each.
    fn documents(&self, arrival: &Arrival, words: &[&str], drawn: &DrawnDocuments) -> Payload {
        let asks = self.scenario.requests_of(arrival.class).protocol.carries() == Carries::Documents;
        let count = drawn.count as usize;
        let Some(lengths) = &drawn.lengths else {
            let query = if asks { (words.len() / (9 * count)).max(1).min(words.len()) } else { 0 };
            let left = words.len().saturating_sub(query * count);
            return cut(words, query, (1..=count).map(|n| left * n / count - left * (n - 1) / count));
        };
        let factor = self.words_per_token(arrival.class);
        let template = self.scenario.prompts_of(arrival.class).template_tokens;
        let own: u32 = lengths.iter().sum();
        let query = if asks { arrival.prompt_tokens.saturating_sub(own) / drawn.count } else { 0 };
        let as_words = |tokens: u32| self::words(u64::from(tokens), factor).max(1);
        let query = if asks { as_words(query) } else { 0 };
        cut(words, query, lengths.iter().map(|tokens| as_words(tokens.saturating_sub(template))))
    }

    /// Returns the keyed hashes of the prompt's full blocks of [`BLOCK_TOKENS`] words.
    pub fn blocks(&self, arrival: &Arrival) -> Vec<u64> {
        hash_blocks(&self.payload(arrival), self.hash_key)
    }

    /// Returns payload and block hashes; the text is generated once.
    pub fn render(&self, arrival: &Arrival) -> (Payload, Vec<u64>) {
        self.render_with(arrival, None)
    }

    /// Returns payload and block hashes, with the real answers of the session if the scenario uses them.
    pub fn render_with(&self, arrival: &Arrival, said: Option<&SessionAnswerTexts>) -> (Payload, Vec<u64>) {
        let payload = self.payload_with(arrival, said);
        let blocks = hash_blocks(&payload, self.hash_key);
        (payload, blocks)
    }

    /// Returns whether prompts of this class contain the server's earlier answers.
    pub fn wants_answers(&self, class: u16) -> bool {
        self.scenario.prompts_of(class).answers == AnswerText::Real
    }

    fn messages(&self, arrival: &Arrival, said: Option<&SessionAnswerTexts>) -> Vec<Message> {
        let spec = self.scenario.prompts_of(arrival.class);
        if let Some(file) = &spec.file {
            return self.entry_messages(file, arrival);
        }
        let said = said.filter(|_| spec.answers == AnswerText::Real);
        let of = |Part { role, pieces, turn }: Part| {
            if let (Role::Assistant, Some(answer)) = (role, said.and_then(|said| said.get(&turn))) {
                return Message::text(role, answer.clone());
            }
            let mut content = String::new();
            for piece in pieces {
                words::write(&mut content, piece.key, piece.count);
            }
            let media = if role == Role::User { self.media(arrival, turn) } else { Vec::new() };
            Message { role, content, media, written: None }
        };
        // The template surrounds every document.
        let template = spec.template_tokens.saturating_mul(arrival.documents.max(1));
        let length = Length { factor: self.words_per_token(arrival.class), template };
        self.parts(arrival, length).into_iter().map(of).collect()
    }

    /// Returns the messages of a synthetic prompt as pieces.
    pub(crate) fn parts(&self, arrival: &Arrival, length: Length) -> Vec<Part> {
        let alone = |own: u64| {
            let pieces = self.pieces(arrival, arrival.prompt_tokens, own, length);
            vec![Part { role: Role::User, pieces, turn: arrival.turn }]
        };
        match (arrival.session, self.drawer.graph()) {
            (Some(session), Some(graph)) => self.branch(graph, session, arrival, length),
            (Some(session), None) if self.scenario.chain => {
                alone(self.key(arrival, Root::Asked, session, u64::from(arrival.turn)))
            }
            (Some(session), None) => self.conversation(session, arrival, length),
            (None, _) => alone(self.key(arrival, Root::Own, arrival.id, 0)),
        }
    }

    fn entry_messages(&self, file: &str, arrival: &Arrival) -> Vec<Message> {
        let entries = self.scenario.material.prompts(file).unwrap_or_default();
        let index = arrival.blocks.first().copied().unwrap_or(0) as usize;
        let mut messages = entries.get(index).map(|entry| entry.messages.clone()).unwrap_or_default();
        if let (true, Some(first)) = (self.scenario.prompts_of(arrival.class).salt, messages.first_mut()) {
            let mut text = String::new();
            words::write(&mut text, self.key(arrival, Root::Salt, 0, 0), SALT_WORDS);
            text.push('\n');
            if let Some(written) = &mut first.written {
                salt_written(written, &text);
            }
            text.push_str(&first.content);
            first.content = text;
        }
        if let Some(last) = messages.iter_mut().rfind(|message| message.role == Role::User) {
            last.media = self.media(arrival, 0);
        }
        messages
    }

    /// Returns the images and audio of a turn, equal whenever the turn is repeated.
    fn media(&self, arrival: &Arrival, turn: u16) -> Vec<Media> {
        let spec = self.scenario.prompts_of(arrival.class);
        if spec.images.is_none() && spec.audio.is_none() {
            return Vec::new();
        }
        let whose = arrival.session.unwrap_or(arrival.id);
        let key = self.key(arrival, Root::Media, whose, u64::from(turn));
        let mut all = Vec::new();
        if let Some(images) = &spec.images {
            all.extend(images.draw(&mut Stream::new(key, "images", 0), &self.scenario.material));
        }
        if let Some(audio) = &spec.audio {
            all.extend(audio.draw(&mut Stream::new(key, "audio", 0), &self.scenario.material));
        }
        all
    }

    /// Returns the conversation up to and including this turn. Lengths of earlier turns are redrawn, because they are a
    /// function of the session's number.
    fn conversation(&self, session: u64, arrival: &Arrival, length: Length) -> Vec<Part> {
        let plan = self.drawer.plan_at(arrival.level, session);
        let mut out = Vec::new();
        for (i, turn) in plan.turns.iter().take(usize::from(arrival.turn) + 1).enumerate() {
            let asked = self.key(arrival, Root::Asked, session, i as u64);
            let pieces = match i {
                0 => self.pieces(arrival, turn.asked, asked, length),
                _ => vec![plain(asked, turn.asked, length.factor)],
            };
            let number = i as u16;
            out.push(Part { role: Role::User, pieces, turn: number });
            if number < arrival.turn {
                let key = self.key(arrival, Root::Answered, session, i as u64);
                let pieces = vec![plain(key, turn.output, length.factor)];
                out.push(Part { role: Role::Assistant, pieces, turn: number });
            }
        }
        out
    }

    /// Returns the branch of a session that leads to this turn: each extended prompt with its answer. Block ids, if
    /// present, define a prompt's content instead.
    fn branch(&self, graph: &Graph, session: u64, arrival: &Arrival, length: Length) -> Vec<Part> {
        let turns = &graph.sessions[(session % graph.sessions.len() as u64) as usize].turns;
        let own = |turn: u16| self.key(arrival, Root::Asked, session, u64::from(turn));
        let rows = self.drawer.trace().map_or(&[][..], |trace| &trace.rows);
        let row = |turn: u16| turns.get(usize::from(turn)).and_then(|turn| rows.get(turn.row));
        let mut path = vec![arrival.turn];
        while let Some(before) = path.last().and_then(|turn| turns.get(usize::from(*turn))?.extends)
            && row(path[path.len() - 1]).is_some_and(|row| row.blocks.is_empty())
        {
            path.push(before);
        }
        let (mut out, mut held) = (Vec::with_capacity(2 * path.len()), 0u32);
        for (place, turn) in path.into_iter().rev().enumerate() {
            let Some(row) = row(turn) else { continue };
            let tokens = row.prompt_tokens.max(1);
            let pieces = match place {
                0 => {
                    let blocks = self.drawer.blocks_of(row, session, &arrival.blocks);
                    self.pieces(&Arrival { blocks, ..arrival.clone() }, tokens, own(turn), length)
                }
                _ => vec![plain(own(turn), tokens.saturating_sub(held), length.factor)],
            };
            out.push(Part { role: Role::User, pieces, turn });
            if turn != arrival.turn {
                let key = self.key(arrival, Root::Answered, session, u64::from(turn));
                let answer = row.output_tokens.max(1);
                let pieces = vec![plain(key, answer, length.factor)];
                out.push(Part { role: Role::Assistant, pieces, turn });
                held = tokens.saturating_add(answer);
            }
        }
        out
    }

    /// Returns a prompt of `tokens` tokens: the shared part, then its unique text.
    fn pieces(&self, arrival: &Arrival, tokens: u32, own: u64, length: Length) -> Vec<Piece> {
        let Length { factor, template } = length;
        let total = words(u64::from(tokens.saturating_sub(template)), factor).max(1);
        let mut out = Vec::with_capacity(2 + arrival.blocks.len());
        let mut written = 0;
        if let Some(shared) = &self.scenario.prompts_of(arrival.class).shared_prefix {
            let group = arrival.blocks.first().copied().unwrap_or(0);
            written = ((total as f64 * shared.share).round() as usize).min(total);
            out.push(Piece { key: self.run_key(arrival.class, Root::Group, group), count: written });
        } else if let Some(block_tokens) = self.trace_block_tokens().filter(|_| !arrival.blocks.is_empty()) {
            let mut chain = self.key(arrival, Root::Trace, 0, 0);
            for (i, id) in arrival.blocks.iter().enumerate() {
                chain = self.hash(arrival.class, &[Root::Block as u64, chain, *id]);
                let end = ((i as u64 + 1) * u64::from(block_tokens)).min(u64::from(tokens));
                let end = words(end, factor).min(total);
                out.push(Piece { key: chain, count: end - written });
                written = end;
            }
        }
        out.push(Piece { key: own, count: total - written });
        out
    }

    fn trace_block_tokens(&self) -> Option<u32> {
        match &self.scenario.arrivals {
            crate::ArrivalSpec::Trace { file, sizes: crate::TraceSizes::Own, .. } => {
                self.scenario.material.trace(file).ok().map(|t| t.block_tokens).filter(|b| *b > 0)
            }
            _ => None,
        }
    }

    pub(crate) fn key(&self, arrival: &Arrival, root: Root, a: u64, b: u64) -> u64 {
        self.hash(arrival.class, &[root as u64, u64::from(arrival.level), a, b])
    }

    fn run_key(&self, class: u16, root: Root, a: u64) -> u64 {
        self.hash(class, &[root as u64, u64::from(class), a])
    }

    fn hash(&self, class: u16, parts: &[u64]) -> u64 {
        let salt = self.scenario.prompts_of(class).salt;
        let nonce = if salt { self.scenario.nonce.unwrap_or(0) } else { 0 };
        let mut hasher = SipHasher24::new_with_keys(self.scenario.seed, nonce);
        for part in parts {
            hasher.write(&part.to_le_bytes());
        }
        hasher.finish()
    }
}

/// Splits words into a query and documents of these lengths.
fn cut(words: &[&str], query: usize, lengths: impl Iterator<Item = usize>) -> Payload {
    let query = query.min(words.len());
    let mut from = query;
    let texts = lengths.map(|length| {
        let to = (from + length).min(words.len());
        let text = words[from..to].join(" ");
        from = to;
        // Some servers reject an empty document.
        if text.is_empty() { words.first().copied().unwrap_or_default().to_owned() } else { text }
    });
    let documents = texts.collect();
    Payload::Documents { query: words[..query].join(" "), documents }
}

/// Returns the hashes of the full blocks of a payload's words, chained to the parent.
///
/// Hash i is SipHash-2-4 under the key of (hash i − 1, the block's words each followed by a blank). Message boundaries are
/// not hashed, because they are tokens of an unknown template.
pub fn hash_blocks(payload: &Payload, key: u64) -> Vec<u64> {
    if words_at_most(payload) < BLOCK_TOKENS {
        return Vec::new();
    }
    match payload {
        Payload::Text(text) => chain(words_of(text), key),
        // Prefix caches do not cover a query in front of each document.
        Payload::Tensors(_) | Payload::Documents { .. } | Payload::Sound(_) => Vec::new(),
        Payload::Messages(messages) if messages.iter().any(|m| !m.media.is_empty()) => {
            // An image or sound counts as one word, whose text is its parameters: equal blocks have equal media.
            let named: Vec<Cow<'_, str>> = messages
                .iter()
                .flat_map(|m| {
                    let media = m.media.iter().map(|media| Cow::Owned(format!("{media:?}")));
                    media.chain(words_of(&m.content).map(Cow::Borrowed))
                })
                .collect();
            chain(named.iter().map(AsRef::as_ref), key)
        }
        Payload::Messages(messages) => chain(messages.iter().flat_map(|m| words_of(&m.content)), key),
    }
}

/// Inserts the salt before the first text of a message in OpenAI's format.
fn salt_written(written: &mut WrittenMessage, salt: &str) {
    let Ok(mut message) = serde_json::from_str::<Value>(&written.json) else { return };
    match &mut message["content"] {
        Value::String(text) => text.insert_str(0, salt),
        Value::Array(parts) => {
            let text = parts.iter_mut().find_map(|part| match part.get_mut("text") {
                Some(Value::String(text)) => Some(text),
                _ => None,
            });
            match text {
                Some(text) => text.insert_str(0, salt),
                None => parts.insert(0, serde_json::json!({"type": "text", "text": salt})),
            }
        }
        // A message without text, such as a tool call, stays unchanged.
        _ => return,
    }
    written.json = message.to_string();
}

/// Returns an upper bound on the number of words: for ASCII, the blanks plus one. Counting blanks is many times faster than
/// finding words.
fn words_at_most(payload: &Payload) -> usize {
    let most = |text: &str| match text.is_ascii() {
        // Includes 0x0b, because `split_whitespace` splits there too.
        true => 1 + text.bytes().map(|b| usize::from(b == b' ' || (0x09..=0x0d).contains(&b))).sum::<usize>(),
        false => usize::MAX / 2,
    };
    match payload {
        Payload::Text(text) => most(text),
        Payload::Tensors(_) | Payload::Documents { .. } | Payload::Sound(_) => 0,
        Payload::Messages(messages) => messages
            .iter()
            .fold(0, |sum, m| usize::saturating_add(sum, most(&m.content)).saturating_add(m.media.len())),
    }
}

/// Returns the words like `split_whitespace`, but without decoding characters if the text is ASCII, as nearly all texts
/// are.
pub(crate) fn words_of(text: &str) -> impl Iterator<Item = &str> {
    // Within ASCII, the two functions differ only in the vertical tab.
    let simple = text.is_ascii() && !text.as_bytes().contains(&0x0b);
    let fast = simple.then(|| text.split_ascii_whitespace()).into_iter().flatten();
    let full = (!simple).then(|| text.split_whitespace()).into_iter().flatten();
    fast.chain(full)
}

fn chain<'a>(words: impl Iterator<Item = &'a str>, key: u64) -> Vec<u64> {
    // The second half of the 128-bit key names this use of the key.
    let hasher = SipHasher24::new_with_keys(key, u64::from_le_bytes(*b"pl-block"));
    let mut out = Vec::new();
    // One write per block, because a SipHash call costs as much as a word of input.
    let mut block = Vec::with_capacity(8 * BLOCK_TOKENS);
    block.extend_from_slice(&0u64.to_le_bytes());
    for (i, word) in words.enumerate() {
        block.extend_from_slice(word.as_bytes());
        block.push(b' ');
        if (i + 1) % BLOCK_TOKENS == 0 {
            let hash = hasher.hash(&block);
            out.push(hash);
            block.clear();
            block.extend_from_slice(&hash.to_le_bytes());
        }
    }
    out
}
