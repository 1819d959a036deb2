//! Batches of KV cache events, as vLLM and SGLang publish them: MessagePack, of which versions differ.
//!
//! Source: `vllm/distributed/kv_events.py` (its structs are arrays up to 0.11 and maps in what came after; fields are appended from version to version),
//! `sglang/srt/disaggregation/kv_events.py`, and what those who read both do (ai-dynamo/dynamo: kv router's `zmq_wire`). A field that is not where it is
//! expected, or of another kind, is one that is not said; an event of a kind that is not known is passed over.

use plimsoll_model::KvEvent;

use crate::msgpack::{Value, Values, Writer};

/// Events of a batch, and blocks of one, that are taken: an engine's step has a hundredth of them. So a batch of some megabytes can't become a hundred.
const MOST_EVENTS: usize = 1 << 16;
const MOST_BLOCKS: usize = 1 << 18;

/// A batch: what one step of an engine changed.
#[derive(Clone, PartialEq, Debug)]
pub struct KvBatch {
    /// When it was made, by the engine's clock, seconds since 1970.
    pub ts: f64,
    /// Which of the engine's data-parallel ranks, where it says.
    pub rank: Option<u32>,
    /// What changed in the GPU's memory, in order.
    pub events: Vec<KvEvent>,
    /// Events that are none of that: of other memory, of layers that keep a window only, of kinds that are not known.
    pub passed_over: u32,
}

/// Why bytes are no batch.
#[derive(Copy, Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum KvBatchError {
    /// They end too soon, or hold something else.
    #[error("no batch of KV cache events in MessagePack")]
    Broken,
    /// More than is taken.
    #[error("a batch of more than {MOST_EVENTS} events or {MOST_BLOCKS} blocks")]
    TooLarge,
}

/// Tokens that what we write ourselves may have.
const VOCABULARY: u64 = 32_000;

/// Names of the fields by their places in an array.
const BATCH: [&str; 3] = ["ts", "events", "data_parallel_rank"];
const STORED: [&str; 10] = [
    "block_hashes",
    "parent_block_hash",
    "token_ids",
    "block_size",
    "lora_id",
    "medium",
    "lora_name",
    "extra_keys",
    "group_idx",
    "kv_cache_spec_kind",
];
const REMOVED: [&str; 3] = ["block_hashes", "medium", "group_idx"];

/// Reads a batch.
///
/// # Errors
/// See [`KvBatchError`].
pub fn read(payload: &[u8]) -> Result<KvBatch, KvBatchError> {
    let fields = Fields::read(&mut Values(payload), &BATCH).ok_or(KvBatchError::Broken)?;
    let mut batch = KvBatch {
        ts: fields.float("ts").ok_or(KvBatchError::Broken)?,
        rank: fields.integer("data_parallel_rank").and_then(|rank| u32::try_from(rank).ok()),
        events: Vec::new(),
        passed_over: 0,
    };
    let (mut events, mut blocks) = (Values(fields.of("events").ok_or(KvBatchError::Broken)?), 0);
    let Some(Value::Array(count)) = events.next() else { return Err(KvBatchError::Broken) };
    if count as usize > MOST_EVENTS {
        return Err(KvBatchError::TooLarge);
    }
    for _ in 0..count {
        let event = Values(events.whole().ok_or(KvBatchError::Broken)?);
        match event_of(event, MOST_BLOCKS - blocks)? {
            Some(event) => {
                blocks += match &event {
                    KvEvent::Stored { blocks, .. } => blocks.len(),
                    KvEvent::Removed(names) => names.len(),
                    KvEvent::Cleared => 0,
                };
                batch.events.push(event);
            }
            None => batch.passed_over += 1,
        }
    }
    Ok(batch)
}

fn event_of(mut event: Values<'_>, most: usize) -> Result<Option<KvEvent>, KvBatchError> {
    let kind = kind(event).ok_or(KvBatchError::Broken)?;
    let fields = match kind {
        b"BlockStored" => Fields::read(&mut event, &STORED),
        b"BlockRemoved" => Fields::read(&mut event, &REMOVED),
        b"AllBlocksCleared" => return Ok(Some(KvEvent::Cleared)),
        _ => return Ok(None),
    };
    let fields = fields.ok_or(KvBatchError::Broken)?;
    if !fields.is_whole_cache() {
        return Ok(None);
    }
    let mut names = fields.list("block_hashes").ok_or(KvBatchError::Broken)?;
    if names.1 as usize > most {
        return Err(KvBatchError::TooLarge);
    }
    let names: Option<Vec<u64>> = (0..names.1).map(|_| names.0.next().and_then(name)).collect();
    let names = names.ok_or(KvBatchError::Broken)?;
    if kind == b"BlockRemoved" {
        return Ok(Some(KvEvent::Removed(names)));
    }
    let parent = fields.of("parent_block_hash").and_then(|raw| Values(raw).next()).and_then(name);
    let block_tokens = fields.integer("block_size").and_then(|size| u32::try_from(size).ok()).unwrap_or(0);
    Ok(Some(KvEvent::Stored { parent, block_tokens, blocks: names }))
}

/// What an event is: the first element of an array, or what a map has under `type`.
fn kind(mut event: Values<'_>) -> Option<&[u8]> {
    let is_map = match event.next()? {
        Value::Array(1..) => false,
        Value::Map(_) => true,
        _ => return None,
    };
    loop {
        match (event.next()?, is_map) {
            (Value::Bytes(b"type"), true) => {}
            (Value::Bytes(kind), false) => return Some(kind),
            (_, false) => return None,
            (_, true) => {
                event.whole()?;
                continue;
            }
        }
        return match event.next()? {
            Value::Bytes(kind) => Some(kind),
            _ => None,
        };
    }
}

/// A block's name. One in bytes is shortened to its last eight, as vLLM does where it is told to publish numbers.
fn name(value: Value<'_>) -> Option<u64> {
    match value {
        Value::Integer(number) => Some(number),
        Value::Bytes(bytes) => Some(bytes.iter().fold(0, |name, byte| name << 8 | u64::from(*byte))),
        _ => None,
    }
}

/// The values of a struct, as they are written.
struct Fields<'a> {
    names: &'static [&'static str],
    values: Vec<Option<&'a [u8]>>,
}

impl<'a> Fields<'a> {
    /// Reads an array, behind its kind where there is one, or a map.
    fn read(from: &mut Values<'a>, names: &'static [&'static str]) -> Option<Fields<'a>> {
        let mut values = vec![None; names.len()];
        match from.next()? {
            Value::Array(count) => {
                let is_batch = names[0] == BATCH[0];
                for place in 0..count as usize {
                    let raw = from.whole()?;
                    let place = if is_batch { Some(place) } else { place.checked_sub(1) };
                    if let Some(value) = place.and_then(|place| values.get_mut(place)) {
                        *value = Some(raw);
                    }
                }
            }
            Value::Map(count) => {
                for _ in 0..count {
                    let key = Values(from.whole()?).next();
                    let raw = from.whole()?;
                    let place = names.iter().position(|name| key == Some(Value::Bytes(name.as_bytes())));
                    if let Some(place) = place {
                        values[place] = Some(raw);
                    }
                }
            }
            _ => return None,
        }
        Some(Fields { names, values })
    }

    fn of(&self, name: &str) -> Option<&'a [u8]> {
        self.values[self.names.iter().position(|own| *own == name)?]
    }

    fn value(&self, name: &str) -> Option<Value<'a>> {
        Values(self.of(name)?).next()
    }

    fn integer(&self, name: &str) -> Option<u64> {
        match self.value(name)? {
            Value::Integer(number) => Some(number),
            _ => None,
        }
    }

    fn float(&self, name: &str) -> Option<f64> {
        match self.value(name)? {
            Value::Float(number) => Some(number),
            Value::Integer(number) => Some(number as f64),
            _ => None,
        }
    }

    /// A list's elements, and how many there are.
    fn list(&self, name: &str) -> Option<(Values<'a>, u32)> {
        let mut values = Values(self.of(name)?);
        match values.next()? {
            Value::Array(count) => Some((values, count)),
            _ => None,
        }
    }

    /// Is it of the GPU's memory, and of layers that keep all of a prompt? What other memory holds costs time to fetch, and a window's blocks go while the prompt is
    /// still found.
    fn is_whole_cache(&self) -> bool {
        let is = |name: &str, wanted: &[u8]| match self.names.contains(&name).then(|| self.value(name)) {
            Some(Some(Value::Bytes(said))) => said.eq_ignore_ascii_case(wanted),
            _ => true,
        };
        is("medium", b"GPU") && is("kv_cache_spec_kind", b"full_attention") && {
            self.integer("group_idx").is_none_or(|group| group == 0)
        }
    }
}

/// A batch as vLLM 0.11 and SGLang write it (arrays). A block's tokens are numbers that are made of its name, so that equal names are equal tokens.
pub fn write(ts: f64, events: &[KvEvent]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut out = Writer(&mut bytes);
    out.array(3);
    out.float(ts);
    out.array(events.len() as u32);
    for event in events {
        match event {
            KvEvent::Stored { parent, block_tokens, blocks } => {
                out.array(7);
                out.text("BlockStored");
                out.array(blocks.len() as u32);
                blocks.iter().for_each(|name| out.integer(*name));
                match parent {
                    Some(parent) => out.integer(*parent),
                    None => out.nil(),
                }
                out.array(blocks.len() as u32 * block_tokens);
                let token =
                    |name: u64, place: u32| name.rotate_left(7 * (place % 9)).wrapping_add(u64::from(place));
                let each =
                    blocks.iter().flat_map(|&name| (0..*block_tokens).map(move |place| token(name, place)));
                each.for_each(|token| out.integer(token % VOCABULARY));
                out.integer(u64::from(*block_tokens));
                out.nil();
                out.text("GPU");
            }
            KvEvent::Removed(names) => {
                out.array(3);
                out.text("BlockRemoved");
                out.array(names.len() as u32);
                names.iter().for_each(|name| out.integer(*name));
                out.text("GPU");
            }
            KvEvent::Cleared => {
                out.array(1);
                out.text("AllBlocksCleared");
            }
        }
    }
    out.integer(0);
    bytes
}
