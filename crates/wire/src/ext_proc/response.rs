//! Encodes a `ProcessingResponse` for Envoy.

use super::{ENDPOINT, NAMESPACE};
use crate::protobuf::ProtobufWriter;

/// The message that is answered; each has its own kind of reply.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Answers {
    RequestHeaders = 1,
    ResponseHeaders = 2,
    /// A chunk of the request's body.
    RequestBody = 3,
    /// A chunk of the response's body.
    ResponseBody = 4,
    RequestTrailers = 5,
    ResponseTrailers = 6,
}

/// Headers to set, with or without a previous value, and headers to remove.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Mutation {
    /// Names in lower case, and values.
    pub set: Vec<(String, Vec<u8>)>,
    pub remove: Vec<String>,
}

impl Mutation {
    pub fn set(&mut self, name: &str, value: &[u8]) {
        self.set.push((name.to_owned(), value.to_owned()));
    }

    fn is_empty(&self) -> bool {
        self.set.is_empty() && self.remove.is_empty()
    }

    fn write(&self, pen: &mut ProtobufWriter<'_>) {
        for (name, value) in &self.set {
            pen.message(1, |pen| {
                pen.message(1, |pen| {
                    pen.bytes(1, name.as_bytes());
                    pen.bytes(3, value);
                });
                pen.number(3, OVERWRITE_OR_ADD);
            });
        }
        self.remove.iter().for_each(|name| pen.bytes(2, name.as_bytes()));
    }
}

/// Value of `HeaderAppendAction` in `HeaderValueOption`.
const OVERWRITE_OR_ADD: u64 = 2;

/// The change of the answered body chunk.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum BodyChange<'a> {
    /// The chunk is forwarded unchanged, or the message is not a body.
    #[default]
    Keep,
    /// These bytes replace the chunk.
    Replace(&'a [u8]),
    /// In a full-duplex stream, which forwards nothing automatically: these bytes, and whether they are the last.
    Stream(&'a [u8], bool),
}

/// Encodes the reply that lets Envoy continue. `endpoints` is the destination in the reply's metadata; headers contain it too if the caller sets them.
pub fn go_on(to: Answers, mutation: &Mutation, body: BodyChange<'_>, endpoints: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = ProtobufWriter(&mut bytes);
    pen.message(to as u32, |pen| match to {
        Answers::RequestTrailers | Answers::ResponseTrailers => {}
        _ => pen.message(1, |pen| {
            if !mutation.is_empty() {
                pen.message(2, |pen| mutation.write(pen));
            }
            match body {
                BodyChange::Keep => {}
                BodyChange::Replace(body) => pen.message(3, |pen| pen.bytes(1, body)),
                BodyChange::Stream(body, is_end) => pen.message(3, |pen| {
                    pen.message(3, |pen| {
                        pen.bytes(1, body);
                        if is_end {
                            pen.number(2, 1);
                        }
                    });
                }),
            }
            if endpoints.is_some() {
                // Envoy must clear its route cache, because routes may depend on headers that are set here.
                pen.number(5, 1);
            }
        }),
    });
    if let Some(endpoints) = endpoints {
        pen.message(8, |pen| {
            field(pen, NAMESPACE, |pen| {
                pen.message(5, |pen| field(pen, ENDPOINT, |pen| pen.bytes(3, endpoints.as_bytes())));
            });
        });
    }
    bytes
}

/// Writes a field of a `google.protobuf.Struct`.
fn field(pen: &mut ProtobufWriter<'_>, key: &str, value: impl FnOnce(&mut ProtobufWriter<'_>)) {
    pen.message(1, |pen| {
        pen.bytes(1, key.as_bytes());
        pen.message(2, value);
    });
}

/// Encodes the reply that makes Envoy answer the client itself. `details` is one word for Envoy's access log.
pub fn immediate(status: u16, headers: &Mutation, body: &[u8], details: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    ProtobufWriter(&mut bytes).message(7, |pen| {
        pen.message(1, |pen| pen.number(1, u64::from(status)));
        if !headers.is_empty() {
            pen.message(2, |pen| headers.write(pen));
        }
        pen.bytes(3, body);
        pen.bytes(5, details.as_bytes());
    });
    bytes
}
