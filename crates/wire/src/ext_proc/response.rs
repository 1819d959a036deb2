//! A `ProcessingResponse`: what Envoy is told → bytes.

use super::{ENDPOINT, NAMESPACE};
use crate::protobuf::Pen;

/// Which message is answered: each one by its own kind of answer.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(u32)]
pub enum Answers {
    /// The request's headers.
    RequestHeaders = 1,
    /// The response's headers.
    ResponseHeaders = 2,
    /// A piece of the request's body.
    RequestBody = 3,
    /// A piece of the response's body.
    ResponseBody = 4,
    /// The request's trailers.
    RequestTrailers = 5,
    /// The response's trailers.
    ResponseTrailers = 6,
}

/// Headers that are set, whatever was there, and headers that are taken out.
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

    fn write(&self, pen: &mut Pen<'_>) {
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

/// `HeaderAppendAction` of `HeaderValueOption`.
const OVERWRITE_OR_ADD: u64 = 2;

/// What becomes of the piece of a body that is answered.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum BodyChange<'a> {
    /// It goes on as it came, or it is no body that is answered.
    #[default]
    Keep,
    /// These bytes go on for it.
    Replace(&'a [u8]),
    /// In a full-duplex stream, where nothing goes on by itself: these bytes, and whether they are the last.
    Stream(&'a [u8], bool),
}

/// Envoy may go on. `endpoints`: where the request goes, in the metadata of this answer; headers say it too, where the caller sets them.
pub fn go_on(to: Answers, mutation: &Mutation, body: BodyChange<'_>, endpoints: Option<&str>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut pen = Pen(&mut bytes);
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
                // Routes may go by the headers that are set here.
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

/// A field of a `google.protobuf.Struct`.
fn field(pen: &mut Pen<'_>, key: &str, value: impl FnOnce(&mut Pen<'_>)) {
    pen.message(1, |pen| {
        pen.bytes(1, key.as_bytes());
        pen.message(2, value);
    });
}

/// Envoy answers the client by itself, with this. `details`: one word for Envoy's access log.
pub fn immediate(status: u16, headers: &Mutation, body: &[u8], details: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    Pen(&mut bytes).message(7, |pen| {
        pen.message(1, |pen| pen.number(1, u64::from(status)));
        if !headers.is_empty() {
            pen.message(2, |pen| headers.write(pen));
        }
        pen.bytes(3, body);
        pen.bytes(5, details.as_bytes());
    });
    bytes
}
