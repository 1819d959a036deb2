//! Defines the events and the input of an exchange, for every version of HTTP.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plimsoll_model::{At, By, How};
use plimsoll_wire::Head;
use plimsoll_wire::unpack::Unpacker;

use crate::driver::recording::AttemptEnding;
use crate::http1::link::{ConnectError, TakeError};
use crate::http1::request::RequestWriter;
use crate::http1::stamp::Stamps;

/// The receiver of an exchange's events, as they happen.
pub trait ExchangeWatch {
    /// A connection, or a stream on one, is ready.
    fn connected(&self, held: &ConnectionInfo<'_>);
    /// The kernel accepted the request's bytes.
    fn sent(&self);
    fn head(&self, head: Head);
    /// Bytes of the body arrived. Returns false to stop reading.
    fn data(&self, bytes: &[u8]) -> bool;
    /// Trailer fields arrived after the body (HTTP/2).
    fn trailers(&self, _: Head) {}
}

#[derive(Copy, Clone, Debug)]
pub struct ConnectionInfo<'a> {
    pub number: u32,
    pub reused: bool,
    /// Set if the connection existed before this request.
    pub kept: bool,
    /// Set if the request waited for a place in a bounded pool or on a connection.
    pub waited: bool,
    /// Time at which the connection was established (TLS included).
    pub at: At,
    pub stamps: &'a Rc<Stamps>,
}

/// A complete response, for callers that need no stream.
#[derive(Debug)]
pub(crate) struct WholeAnswer {
    /// Most bytes of the body that are read.
    most: usize,
    pub(crate) head: RefCell<Option<Head>>,
    pub(crate) body: RefCell<Vec<u8>>,
    pub(crate) trailers: RefCell<Option<Head>>,
    unpacker: RefCell<Option<Unpacker>>,
}

impl WholeAnswer {
    pub(crate) fn to(most: usize) -> WholeAnswer {
        WholeAnswer {
            most,
            head: RefCell::default(),
            body: RefCell::default(),
            trailers: RefCell::default(),
            unpacker: RefCell::default(),
        }
    }
}

impl ExchangeWatch for WholeAnswer {
    fn connected(&self, _: &ConnectionInfo<'_>) {}
    fn sent(&self) {}

    fn head(&self, head: Head) {
        *self.unpacker.borrow_mut() = Some(Unpacker::new(head.content_encoding.as_deref()));
        *self.head.borrow_mut() = Some(head);
    }

    fn trailers(&self, trailers: Head) {
        *self.trailers.borrow_mut() = Some(trailers);
    }

    /// One chunk over the limit proves that the body is longer. Bytes that can't be unpacked stay packed, and their parser
    /// reports it.
    fn data(&self, bytes: &[u8]) -> bool {
        let (mut body, mut unpacker) = (self.body.borrow_mut(), self.unpacker.borrow_mut());
        let unpacked = unpacker.as_mut().is_some_and(|unpacker| {
            unpacker
                .push(bytes, &mut |bytes| {
                    if body.len() <= self.most {
                        body.extend_from_slice(bytes);
                    }
                })
                .is_ok()
        });
        if !unpacked {
            *unpacker = None;
            body.extend_from_slice(bytes);
        }
        body.len() <= self.most
    }
}

/// The request until it is written. A cell keeps it out of the future, because async functions copy their arguments into
/// each nested future.
pub type OutgoingRequest = Cell<Option<RequestWriter>>;

/// Returns the ending of an attempt that got no connection.
pub(crate) fn not_connected(error: &TakeError) -> AttemptEnding {
    match error {
        TakeError::Timeout(_) => AttemptEnding::told(How::Timeout, By::Client, true, error.to_string()),
        TakeError::Connect(ConnectError::Local(_)) => {
            AttemptEnding::told(How::Refused, By::Client, false, error.to_string())
        }
        TakeError::Connect(ConnectError::Name(..)) => {
            AttemptEnding::told(How::Refused, By::Network, false, error.to_string())
        }
        TakeError::Gone(of_another) => not_connected(of_another),
        TakeError::Connect(_) => AttemptEnding::told(How::Refused, By::Network, true, error.to_string()),
    }
}
