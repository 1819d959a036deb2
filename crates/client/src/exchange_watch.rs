//! What an exchange tells of itself while it goes on, and what it is given: the same over every version of HTTP.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use plimsoll_model::{At, By, How};
use plimsoll_wire::Head;
use plimsoll_wire::unpack::Unpacker;

use crate::link::{ConnectError, TakeError};
use crate::recording::Ending;
use crate::request::Request;
use crate::stamp::Stamps;

/// What an exchange tells whoever records it, as it happens.
pub trait ExchangeWatch {
    /// A connection is in hand, or a place on one.
    fn connected(&self, held: &Connected<'_>);
    /// The request's bytes were handed to the kernel.
    fn sent(&self);
    fn head(&self, head: Head);
    /// Bytes of the body arrived. False: reading on is of no use.
    fn data(&self, bytes: &[u8]) -> bool;
    /// Fields came behind the body (HTTP/2).
    fn trailers(&self, _: Head) {}
}

/// The connection that an exchange has.
#[derive(Copy, Clone, Debug)]
pub struct Connected<'a> {
    pub number: u32,
    pub reused: bool,
    /// Was it there before this one asked for it?
    pub kept: bool,
    /// Had a place in a bounded pool, or on a connection, to be waited for?
    pub waited: bool,
    /// When it stood (TLS included).
    pub at: At,
    /// What its socket sees of this exchange.
    pub stamps: &'a Rc<Stamps>,
}

/// An answer kept whole, for whoever asks one thing and looks at what came.
#[derive(Debug)]
pub(crate) struct WholeAnswer {
    /// Its body is read this far.
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
    fn connected(&self, _: &Connected<'_>) {}
    fn sent(&self) {}

    fn head(&self, head: Head) {
        *self.unpacker.borrow_mut() = Some(Unpacker::new(head.content_encoding.as_deref()));
        *self.head.borrow_mut() = Some(head);
    }

    fn trailers(&self, trailers: Head) {
        *self.trailers.borrow_mut() = Some(trailers);
    }

    /// A piece more than its bound tells that there is more. Bytes that can't be unpacked stay as they are: who reads them says so.
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

/// The request until it is written. It stays where it is instead of in the future: an async function keeps an argument, and
/// every function that it hands it on to keeps it again.
pub type Outgoing = Cell<Option<Request>>;

/// The ending of an attempt that got no connection.
pub(crate) fn not_connected(error: &TakeError) -> Ending {
    match error {
        TakeError::Timeout(_) => Ending::told(How::Timeout, By::Client, true, error.to_string()),
        TakeError::Connect(ConnectError::Local(_)) => {
            Ending::told(How::Refused, By::Client, false, error.to_string())
        }
        TakeError::Connect(ConnectError::Name(..)) => {
            Ending::told(How::Refused, By::Network, false, error.to_string())
        }
        TakeError::Gone(of_another) => not_connected(of_another),
        TakeError::Connect(_) => Ending::told(How::Refused, By::Network, true, error.to_string()),
    }
}
