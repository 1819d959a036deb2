//! Records the reads and writes of a socket for the task that uses it: number of reads, bytes, and times.
//!
//! The event loop's clock is late by the other work of the thread; the kernel's receive stamp is not. The stamp belongs to
//! the *last byte* of a read. A read with two events therefore times the second and only bounds the first.
//! [`Stamps::reads`] shows which events shared a read. It is counted at the socket, because a read contains many chunks of
//! a response: counted by chunks, a flood would seem perfectly separate. A task processes all bytes of a read before the
//! next one, so the newest read always carried the current bytes.

use std::cell::{Cell, RefCell};
use std::os::fd::RawFd;
use std::rc::Rc;

use plimsoll_model::{At, Span, TcpFacts};

use crate::clock::{Clock, ClockTie};
use crate::histogram::LogHistogram;
use crate::http1::tcp_info::{self, TcpInfo};

/// The measurements of all sockets of one worker thread.
#[derive(Debug)]
pub struct SocketMeter {
    pub clock: Clock,
    /// Tie between the realtime clock and the run's axis.
    pub ties: ClockTie,
    /// User stamp minus kernel stamp of every read with a kernel stamp.
    pub user_delay: RefCell<LogHistogram>,
    pub kernel_reads: Cell<u64>,
    pub user_reads: Cell<u64>,
    pub sockets: Cell<u32>,
    /// Most sockets open since the last `clear`.
    pub sockets_max: Cell<u32>,
    pub connects: Cell<u32>,
}

impl SocketMeter {
    pub fn new(clock: Clock) -> Rc<SocketMeter> {
        Rc::new(SocketMeter {
            clock,
            ties: ClockTie::new(clock),
            user_delay: RefCell::default(),
            kernel_reads: Cell::new(0),
            user_reads: Cell::new(0),
            sockets: Cell::new(0),
            sockets_max: Cell::new(0),
            connects: Cell::new(0),
        })
    }

    /// Resets the counts; open sockets stay counted.
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

/// The newest stamps and counts of one socket or stream.
#[derive(Debug)]
pub struct Stamps {
    meter: Rc<SocketMeter>,
    reads: Cell<u64>,
    arrival: Cell<At>,
    user: Cell<At>,
    kernel: Cell<bool>,
    all_kernel: Cell<bool>,
    first_read: Cell<Option<At>>,
    last_write: Cell<Option<At>>,
    bytes_in: Cell<u64>,
    bytes_out: Cell<u64>,
    /// The socket; `None` after it was closed.
    socket: Cell<Option<RawFd>>,
    /// Kernel facts of the connection when it was closed.
    tcp: Cell<Option<TcpInfo>>,
    /// Kernel facts at the end of the previous exchange.
    tcp_before: Cell<TcpInfo>,
    /// Stamps of the connection, if these belong to one of its streams.
    connection: Option<Rc<Stamps>>,
}

impl Stamps {
    /// Returns the stamps of an unused socket. The caller must report its end with [closed](Stamps::closed).
    pub fn new(meter: Rc<SocketMeter>, socket: RawFd) -> Rc<Stamps> {
        Rc::new(Stamps::with(meter, Some(socket), None))
    }

    /// Returns the stamps of one stream on a shared connection.
    ///
    /// Times come from the connection's reads and writes; bytes come from the stream's messages, because frames and
    /// compressed headers belong to no single stream.
    pub fn of_stream(connection: &Rc<Stamps>) -> Rc<Stamps> {
        Rc::new(Stamps::with(Rc::clone(&connection.meter), None, Some(Rc::clone(connection))))
    }

    fn with(meter: Rc<SocketMeter>, socket: Option<RawFd>, connection: Option<Rc<Stamps>>) -> Stamps {
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

    /// Records that the connection's newest read carried `bytes` of the stream's response.
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

    /// Records that the connection's newest write completed the stream's request, with `bytes` since the last call.
    pub(crate) fn spoke(&self, bytes: usize) {
        let Some(at) = self.connection.as_ref().and_then(|connection| connection.last_write.get()) else {
            return;
        };
        self.wrote(bytes, at);
    }

    /// Records a read of `bytes`, with its kernel stamp `kernel_realtime_ns` if there is one.
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

    /// Records that the newest read contained bytes of the response. Under TLS the first read may contain only session
    /// tickets that precede the request.
    pub fn answered(&self) {
        if self.first_read.get().is_none() {
            self.first_read.set(Some(self.arrival.get()));
        }
    }

    /// Records a write of `bytes` that began at `at`.
    pub fn wrote(&self, bytes: usize, at: At) {
        self.bytes_out.set(self.bytes_out.get() + bytes as u64);
        self.last_write.set(Some(at));
    }

    /// Begins an exchange: resets first read, last write, byte counts and the kernel-stamp flag.
    pub fn begin(&self) {
        self.first_read.set(None);
        self.last_write.set(None);
        self.all_kernel.set(true);
        self.bytes_in.set(0);
        self.bytes_out.set(0);
    }

    /// Returns the time just before the newest write call of this exchange, at which its bytes went to the kernel.
    pub(crate) fn last_write(&self) -> Option<At> {
        self.last_write.get()
    }

    /// Returns the arrival of the first response bytes of this exchange.
    pub(crate) fn first_read(&self) -> Option<At> {
        self.first_read.get()
    }

    /// Returns the arrival of the newest read's last byte: the kernel stamp if there is one.
    pub fn arrival(&self) -> At {
        self.arrival.get()
    }

    /// Returns the user-space stamp of the newest read.
    pub fn user(&self) -> At {
        self.user.get()
    }

    /// Returns user-space minus kernel stamp of the newest read; zero without a kernel stamp.
    pub fn user_delay(&self) -> Span {
        self.user.get() - self.arrival.get()
    }

    /// Returns whether the kernel stamped every read of this exchange.
    pub(crate) fn all_kernel(&self) -> bool {
        self.all_kernel.get()
    }

    /// Returns the number of reads of the socket; two events with equal numbers arrived together.
    pub fn reads(&self) -> u64 {
        self.reads.get()
    }

    /// Returns the bytes read in this exchange at the socket, including TLS overhead.
    pub fn bytes_in(&self) -> u64 {
        self.bytes_in.get()
    }

    /// Returns the bytes written in this exchange at the socket.
    pub fn bytes_out(&self) -> u64 {
        self.bytes_out.get()
    }

    /// Reads the kernel facts a last time before the socket is closed. Its descriptor may be reused afterwards.
    pub(crate) fn closed(&self) {
        if let Some(socket) = self.socket.take() {
            self.tcp.set(tcp_info::read(socket));
            self.meter.closed();
        }
    }

    /// Ends an exchange and returns the kernel facts of the connection, with the counts since the previous exchange.
    ///
    /// On a shared connection each count goes to the next exchange that ends, so that none is counted twice. Costs one
    /// system call.
    pub fn tcp(&self) -> TcpFacts {
        if let Some(connection) = &self.connection {
            return connection.tcp();
        }
        let Some(now) = self.socket.get().map_or_else(|| self.tcp.take(), tcp_info::read) else {
            return TcpFacts::default();
        };
        now.since(&self.tcp_before.replace(now))
    }

    pub(crate) fn meter(&self) -> &Rc<SocketMeter> {
        &self.meter
    }
}
