//! What is asked of an endpoint, before any protocol has turned it into bytes.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the size of a request counts.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SizeUnit {
    /// Tokens of a prompt and of its answer.
    #[default]
    Tokens,
    /// Rows of a batch of tensors: the items of one request, each an inference.
    Items,
}

crate::named! {
    /// The type of a tensor's elements, as KServe v2 names them.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum Datatype {
        /// True or false.
        Bool => "BOOL",
        /// Unsigned, one byte.
        Uint8 => "UINT8",
        /// Unsigned, two bytes.
        Uint16 => "UINT16",
        /// Unsigned, four bytes.
        Uint32 => "UINT32",
        /// Unsigned, eight bytes.
        Uint64 => "UINT64",
        /// Signed, one byte.
        Int8 => "INT8",
        /// Signed, two bytes.
        Int16 => "INT16",
        /// Signed, four bytes.
        Int32 => "INT32",
        /// Signed, eight bytes.
        Int64 => "INT64",
        /// IEEE half precision.
        Fp16 => "FP16",
        /// IEEE single precision.
        Fp32 => "FP32",
        /// IEEE double precision.
        Fp64 => "FP64",
        /// The upper half of single precision.
        Bf16 => "BF16",
        /// Strings of bytes.
        Bytes => "BYTES",
    }
}

impl Datatype {
    /// The type with this [`name`](Datatype::name).
    pub fn from_name(name: &str) -> Option<Datatype> {
        Datatype::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Bytes of one element; `None` for strings, which have a length each.
    pub fn size(self) -> Option<usize> {
        match self {
            Datatype::Bool | Datatype::Uint8 | Datatype::Int8 => Some(1),
            Datatype::Uint16 | Datatype::Int16 | Datatype::Fp16 | Datatype::Bf16 => Some(2),
            Datatype::Uint32 | Datatype::Int32 | Datatype::Fp32 => Some(4),
            Datatype::Uint64 | Datatype::Int64 | Datatype::Fp64 => Some(8),
            Datatype::Bytes => None,
        }
    }
}

/// One tensor of a request.
///
/// An element is one drawn byte `b`: the fraction b/256 (exact in every float type), the number b mod 128, b odd, or a
/// common word. Real pictures lost: what they hold changes no model's time, and they would have to come from somewhere.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// The input's name.
    pub name: String,
    /// The type of its elements.
    pub datatype: Datatype,
    /// Its shape, the batch first where there is one.
    pub shape: Vec<u32>,
    /// One byte per element, in row-major order.
    pub drawn: Vec<u8>,
}

/// Who speaks a [`Message`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// The operator's instructions.
    System,
    /// The person.
    User,
    /// The model, in an earlier turn.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: String,
    /// What is shown or played with it.
    #[serde(skip)]
    #[schemars(skip)]
    pub media: Vec<Media>,
    /// The message as the user's file has it, where it is more than a role and a text.
    #[serde(skip)]
    #[schemars(skip)]
    pub written: Option<Box<WrittenMessage>>,
}

/// A message in OpenAI's form as a user's file has it: another role, parts, tool calls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WrittenMessage {
    pub json: String,
    /// On the first message: names and JSON of the request's fields beside its messages, such as `tools`.
    pub fields: Vec<(String, String)>,
}

impl Message {
    pub fn text(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), media: Vec::new(), written: None }
    }
}

/// A picture or a sound of a message, by what it is made from. Its bytes are made where they are sent: a payload stays small.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Media {
    /// A picture of noise.
    Image {
        /// Pixels.
        width: u32,
        /// Pixels.
        height: u32,
        /// Bits of a pixel: 1, 2, 4 or 8 in grey, 24 in colour.
        bits: u8,
        /// What its noise follows from.
        key: u64,
    },
    /// A sound of noise, one channel of 16 bits.
    Audio {
        /// Samples.
        samples: u32,
        /// Samples per second.
        rate: u32,
        /// What its noise follows from.
        key: u64,
    },
}

/// What a request carries beside its text: pictures and sounds, those of earlier turns included, and documents.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MediaCounts {
    /// Pictures.
    pub images: u32,
    /// Their pixels.
    pub pixels: u64,
    /// How long the sounds last, ms.
    pub audio_ms: u64,
    /// Documents, or texts of which each has a result of its own.
    #[serde(default)]
    pub documents: u32,
}

impl MediaCounts {
    pub fn is_none(&self) -> bool {
        *self == MediaCounts::default()
    }

    /// Counts one in.
    pub fn add(&mut self, media: &Media) {
        match *media {
            Media::Image { width, height, .. } => {
                self.images += 1;
                self.pixels += u64::from(width) * u64::from(height);
            }
            Media::Audio { samples, rate, .. } => {
                self.audio_ms += u64::from(samples) * 1000 / u64::from(rate.max(1));
            }
        }
    }
}

/// What one request carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A conversation: chat and responses.
    Messages(Vec<Message>),
    /// A plain text: completions, embeddings, the `{{prompt}}` of a template.
    Text(String),
    /// Input tensors: KServe v2.
    Tensors(Vec<Tensor>),
    /// A query, and what is held against it: rerank and score. Without a query, texts that are read each by itself: pooling and others.
    Documents {
        /// The question.
        query: String,
        /// The texts.
        documents: Vec<String>,
    },
    /// A sound: transcriptions.
    Sound(Media),
}

impl Payload {
    /// Its pictures, sounds and documents.
    pub fn media(&self) -> MediaCounts {
        let mut counts = MediaCounts::default();
        match self {
            Payload::Messages(messages) => {
                messages.iter().flat_map(|message| &message.media).for_each(|media| counts.add(media));
            }
            Payload::Documents { documents, .. } => {
                counts.documents = u32::try_from(documents.len()).unwrap_or(u32::MAX);
            }
            Payload::Sound(sound) => counts.add(sound),
            Payload::Text(_) | Payload::Tensors(_) => {}
        }
        counts
    }
}
