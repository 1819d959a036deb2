//! Defines the content of requests, independent of the protocol that encodes it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Unit of a request's size.
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum SizeUnit {
    /// Tokens of the prompt and of the output.
    #[default]
    Tokens,
    /// Rows of a tensor batch: the items of a request, each an inference.
    Items,
}

crate::named! {
    /// Element type of a tensor, as named by KServe v2.
    #[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
    #[serde(rename_all = "UPPERCASE")]
    pub enum Datatype {
        /// Boolean, one byte.
        Bool => "BOOL",
        /// Unsigned integer of one byte.
        Uint8 => "UINT8",
        /// Unsigned integer of two bytes.
        Uint16 => "UINT16",
        /// Unsigned integer of four bytes.
        Uint32 => "UINT32",
        /// Unsigned integer of eight bytes.
        Uint64 => "UINT64",
        /// Signed integer of one byte.
        Int8 => "INT8",
        /// Signed integer of two bytes.
        Int16 => "INT16",
        /// Signed integer of four bytes.
        Int32 => "INT32",
        /// Signed integer of eight bytes.
        Int64 => "INT64",
        /// IEEE 754 half precision, two bytes.
        Fp16 => "FP16",
        /// IEEE 754 single precision, four bytes.
        Fp32 => "FP32",
        /// IEEE 754 double precision, eight bytes.
        Fp64 => "FP64",
        /// bfloat16: upper half of IEEE single precision.
        Bf16 => "BF16",
        /// Byte strings of individual length.
        Bytes => "BYTES",
    }
}

impl Datatype {
    /// Returns the type with this [`name`](Datatype::name).
    pub fn from_name(name: &str) -> Option<Datatype> {
        Datatype::ALL.into_iter().find(|known| known.name() == name)
    }

    /// Returns the bytes of one element; `None` for strings, whose lengths vary.
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
/// An element is one drawn byte `b`: the fraction b/256 (exact in every float type), b mod 128, b odd, or a common word.
/// Real images were rejected, because their content changes no model's time and they would need a source.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Tensor {
    pub name: String,
    pub datatype: Datatype,
    /// Shape, with the batch first if there is one.
    pub shape: Vec<u32>,
    /// One byte per element, in row-major order.
    pub drawn: Vec<u8>,
}

/// Author of a [`Message`].
#[derive(Copy, Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Operator's instructions.
    System,
    /// User.
    User,
    /// Model, in an earlier turn.
    Assistant,
}

/// One message of a conversation.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize, JsonSchema)]
pub struct Message {
    /// Author of the message.
    pub role: Role,
    /// Text of the message.
    pub content: String,
    /// Images and audio of the message.
    #[serde(skip)]
    #[schemars(skip)]
    pub media: Vec<Media>,
    /// Message in the format of the user's file, if it has more than a role and a text.
    #[serde(skip)]
    #[schemars(skip)]
    pub written: Option<Box<WrittenMessage>>,
}

/// A message in OpenAI's format from a user's file: another role, parts, tool calls.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WrittenMessage {
    pub json: String,
    /// Additional fields of the request as name and JSON, such as `tools`. Set on the first message only.
    pub fields: Vec<(String, String)>,
}

impl Message {
    pub fn text(role: Role, content: impl Into<String>) -> Message {
        Message { role, content: content.into(), media: Vec::new(), written: None }
    }
}

/// An image or audio clip, as the parameters of its content. Its bytes are generated on sending, so that a payload stays
/// small.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Media {
    /// An image of noise.
    Image {
        width: u32,
        height: u32,
        /// Bits per pixel: 1, 2, 4 or 8 in grey, 24 in colour.
        bits: u8,
        /// Seed of the noise.
        key: u64,
    },
    /// An audio clip of noise, one channel of 16 bits.
    Audio {
        samples: u32,
        /// Samples per second.
        rate: u32,
        /// Seed of the noise.
        key: u64,
    },
}

/// Images, audio and documents of a request, including earlier turns. For speech and images, those of the response.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize, JsonSchema)]
pub struct MediaCounts {
    /// Number of images.
    pub images: u32,
    /// Total pixels of the images.
    pub pixels: u64,
    /// Total duration of the audio in ms.
    pub audio_ms: u64,
    /// Number of documents, or of texts with a result each.
    #[serde(default)]
    pub documents: u32,
}

impl MediaCounts {
    pub fn is_none(&self) -> bool {
        *self == MediaCounts::default()
    }

    /// Adds an image or audio clip to the counts.
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

#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Payload {
    /// A conversation, for chat and responses.
    Messages(Vec<Message>),
    /// A single text, for completions, embeddings, and `{{prompt}}` of a template.
    Text(String),
    /// Input tensors, for KServe v2.
    Tensors(Vec<Tensor>),
    /// A query and the documents to compare with it, for rerank and score. Without a query, separate texts, for pooling and
    /// others.
    Documents {
        /// Text of the query; empty for separate texts.
        query: String,
        documents: Vec<String>,
    },
    /// An audio clip, for transcriptions.
    Sound(Media),
}

impl Payload {
    /// Returns the counts of images, audio and documents.
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
