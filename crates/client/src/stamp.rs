//! What the socket tells the task that reads from it: how many reads there were, when the newest one's bytes arrived,
//! how much went out and when.
//!
//! The event loop's clock is late by whatever else the thread had to do; the kernel's receive stamp is not. The stamp
//! belongs to the *last byte* a read returned, so a read that carries two events times the second and only bounds the
//! first. Which events shared a read is told by [`Stamps::reads`], counted here at the socket: a read holds many chunks of
//! an answer, and counted by chunks a flood would look perfectly separate. A task looks at all that a read brought before
//! it reads again, so the newest read is always the one that carried the bytes in hand.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;

use plimsoll_model::{At, Span, TcpFacts};

use crate::clock::{Clock, Ties};
use crate::histogram::LogHistogram;
use crate::tcp_info::{self, TcpInfo};

/// What one worker thread measures of all its sockets.
#[derive(Debug)]
pub struct Meter {
    /// The run's axis.
    pub clock: Clock,
    /// Realtime tied to it.
    pub ties: Ties,
    /// User stamp − kernel stamp of every read that had one.
    pub user_delay: RefCell<LogHistogram>,
    /// Reads with the kernel's stamp.
    pub kernel_reads: Cell<u64>,
    pub user_reads: Cell<u64>,
    pub sockets: Cell<u32>,
    /// The most of them since last asked.
    pub sockets_max: Cell<u32>,
    pub connects: Cell<u32>,
}

impl Meter {
    pub fn new(clock: Clock) -> Rc<Meter> {
        Rc::new(Meter {
            clock,
            ties: Ties::new(clock),
            user_delay: RefCell::default(),
            kernel_reads: Cell::new(0),
            user_reads: Cell::new(0),
            sockets: Cell::new(0),
            sockets_max: Cell::new(0),
            connects: Cell::new(0),
        })
    }

    /// Forgets what was counted; open sockets stay counted.
    pub fn clear(&self) {
        self.user_delay.borrow_mut().clear();
        self.kernel_reads.set(0);
        self.user_reads.set(0);
        self.sockets_max.set(self.sockets.get());
        self.connects.set(0);
    }

    pub(crate) fn opened(&self) {
        self.connects.set(self.connects.get() + 1);
        self.sockets.set(self.sockets.get() + 1);
        self.sockets_max.set(self.sockets_max.get().max(self.sockets.get()));
    }

    pub(crate) fn closed(&self) {
        self.sockets.set(self.sockets.get().saturating_sub(1));
    }
}

/// One socket's newest stamps and counts.
#[derive(Debug)]
pub struct Stamps {
    meter: Rc<Meter>,
    reads: Cell<u64>,
    arrival: Cell<At>,
    user: Cell<At>,
    kernel: Cell<bool>,
    all_kernel: Cell<bool>,
    first_read: Cell<Option<At>>,
    last_write: Cell<Option<At>>,
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    /// The socket while it is open.
    socket: Cell<Option<RawFd>>,
    /// What the kernel knew of it when it was closed.
    tcp: Cell<Option<TcpInfo>>,
    /// What it had counted when the exchange before this one ended.
    tcp_before: Cell<TcpInfo>,
    /// The connection's own, where these are of one stream on it.
    connection: Option<Rc<Stamps>>,
}

impl Stamps {
    /// A socket that has neither read nor written. Whoever opened it says when it is [closed](Stamps::closed).
    pub fn new(meter: Rc<Meter>, socket: RawFd) -> Rc<Stamps> {
        Rc::new(Stamps::with(meter, Some(socket), None))
    }

    /// Those of one stream on a connection that carries several. *When* is the connection's, *what* the stream's: its reads are those of
    /// the connection that brought it something, and its bytes those of its messages, because frames and compressed headers are nobody's alone.
    pub fn of_stream(connection: &Rc<Stamps>) -> Rc<Stamps> {
        Rc::new(Stamps::with(Rc::clone(&connection.meter), None, Some(Rc::clone(connection))))
    }

    fn with(meter: Rc<Meter>, socket: Option<RawFd>, connection: Option<Rc<Stamps>>) -> Stamps {
        Stamps {
            meter,
            reads: Cell::new(0),
            arrival: Cell::new(At::ZERO),
            user: Cell::new(At::ZERO),
            kernel: Cell::new(false),
            all_kernel: Cell::new(true),
            first_read: Cell::new(None),
            last_write: Cell::new(None),
            bytes_in: Cell::new(0),
            bytes_out: Cell::new(0),
            socket: Cell::new(socket),
            tcp: Cell::new(None),
            tcp_before: Cell::new(TcpInfo::default()),
            connection,
        }
    }

    /// The connection's newest read brought the stream so many bytes of its answer.
    pub fn heard(&self, bytes: usize) {
        let Some(connection) = &self.connection else { return };
        self.arrival.set(connection.arrival.get());
        self.user.set(connection.user.get());
        self.kernel.set(connection.kernel.get());
        self.all_kernel.set(self.all_kernel.get() && connection.kernel.get());
        self.reads.set(connection.reads.get());
        self.bytes_in.set(self.bytes_in.get() + bytes as u64);
        self.answered();
    }

    /// The connection's newest write took what was left of the stream's request, `bytes` since last said.
    pub(crate) fn spoke(&self, bytes: usize) {
        let Some(at) = self.connection.as_ref().and_then(|connection| connection.last_write.get()) else {
            return;
        };
        self.wrote(bytes, at);
    }

    /// A read returned `bytes`, stamped by the kernel at `kernel_realtime_ns`, if it was.
    pub fn read(&self, bytes: usize, kernel_realtime_ns: Option<i64>) {
        let user = self.meter.clock.now();
        let placed = kernel_realtime_ns.and_then(|ns| self.meter.ties.place(ns, user));
        match placed {
            Some(at) => {
                self.meter.kernel_reads.set(self.meter.kernel_reads.get() + 1);
                self.meter.user_delay.borrow_mut().record((user - at).0);
            }
            None => {
                self.meter.user_reads.set(self.meter.user_reads.get() + 1);
                self.all_kernel.set(false);
            }
        }
        let arrival = placed.unwrap_or(user);
        self.kernel.set(placed.is_some());
        self.user.set(user);
        self.arrival.set(arrival);
        self.reads.set(self.reads.get() + 1);
        self.bytes_in.set(self.bytes_in.get() + bytes as u64);
    }

    /// Bytes of the answer came out of the newest read. Not every read holds some: under TLS the first may bring
    /// session tickets, sent before the request was.
    pub fn answered(&self) {
        if self.first_read.get().is_none() {
            self.first_read.set(Some(self.arrival.get()));
        }
    }

    /// A write that was begun at `at` took `bytes`.
    pub fn wrote(&self, bytes: usize, at: At) {
        self.bytes_out.set(self.bytes_out.get() + bytes as u64);
        self.last_write.set(Some(at));
    }

    /// Begins a new exchange: first read, last write, byte counts and the kernel's share start again.
    pub fn begin(&self) {
        self.first_read.set(None);
        self.last_write.set(None);
        self.all_kernel.set(true);
        self.bytes_in.set(0);
        self.bytes_out.set(0);
    }

    /// The instant just before the newest write call of this exchange: when its bytes were handed to the kernel.
    pub(crate) fn last_write(&self) -> Option<At> {
        self.last_write.get()
    }

    /// Arrival of the first bytes of the answer in this exchange.
    pub(crate) fn first_read(&self) -> Option<At> {
        self.first_read.get()
    }

    /// Arrival of the newest read's last byte: the kernel's stamp where there is one.
    pub fn arrival(&self) -> At {
        self.arrival.get()
    }

    /// The newest read's stamp in user space.
    pub fn user(&self) -> At {
        self.user.get()
    }

    /// User-space minus kernel stamp of the newest read; zero where the kernel gave none.
    pub fn user_delay(&self) -> Span {
        self.user.get() - self.arrival.get()
    }

    /// Did the kernel stamp every read of this exchange?
    pub(crate) fn all_kernel(&self) -> bool {
        self.all_kernel.get()
    }

    /// Reads since the socket was made: two events with the same number arrived together.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Bytes read in this exchange, at the socket (under TLS: with its overhead).
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in.get()
    }

    /// Bytes written in this exchange, at the socket.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out.get()
    }

    /// The socket is about to be closed: what the kernel knows of it is asked for the last time, for the exchange that it ends
    /// with. Its number is another's from here on.
    pub(crate) fn closed(&self) {
        if let Some(socket) = self.socket.take() {
            self.tcp.set(tcp_info::read(socket));
            self.meter.closed();
        }
    }

    /// Ends an exchange: what the kernel knows of the connection, and what it counted since the exchange before: on a connection that several
    /// share each count goes to the one that ends next, so that none is told twice. One system call.
    pub fn tcp(&self) -> TcpFacts {
        if let Some(connection) = &self.connection {
            return connection.tcp();
        }
        let Some(now) = self.socket.get().map_or_else(|| self.tcp.take(), tcp_info::read) else {
            return TcpFacts::default();
        };
        now.since(&self.tcp_before.replace(now))
    }

    pub(crate) fn meter(&self) -> &Rc<Meter> {
        &self.meter
    }
}
