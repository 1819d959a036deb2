//! A connection's bytes: hyper's read and write on a socket, stamped.
//!
//! Reads take the kernel's receive stamp along (SO_TIMESTAMPING through recvmsg); writes read the clock immediately
//! before the system call. A stamp taken where the frame is handed to hyper is early by milliseconds at two
//! thousand streams, so the write stamp lives here, and [`Conn`] carries it to the stream whose token was written.
//!
//! One frame at a time is let out ([`Conn::may_pop`]): the next is handed over only when hyper has flushed the one
//! before. Otherwise tokens that are due together would leave in one write, and a client could not tell their times
//! apart. Vectored writes lost: a chunk is some two hundred bytes, and copying it is cheaper than three io-vectors.

use std::cell::{Cell, RefCell};
use std::io;
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use hyper::rt::{Read, ReadBufCursor, Write};
use nix::sys::socket::MsgFlags;
use nix::sys::time::TimeSpec;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::clock;
use crate::frames::{FrameWatch, Reached};
use crate::records::RecordWatch;
use crate::stream::Stream;

/// Bytes one read may bring; a request head with its prompt fits most of the time.
const READ_BYTES: usize = 32 * 1024;
/// Room for the three time stamps of one control message.
const CONTROL_BYTES: usize = 128;
/// Tries, a millisecond apart, before it is taken that the kernel does not stamp.
const STAMP_TRIES: u32 = 50;

/// What reads of one server share: they never overlap, so one buffer serves all connections.
pub struct Scratch {
    bytes: Box<[u8]>,
    control: Box<[u8]>,
}

impl Scratch {
    /// Buffers for the reads of one runtime.
    pub fn new() -> Rc<RefCell<Scratch>> {
        Rc::new(RefCell::new(Scratch {
            bytes: vec![0; READ_BYTES].into_boxed_slice(),
            control: vec![0; CONTROL_BYTES].into_boxed_slice(),
        }))
    }
}

/// When bytes of a request arrived.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct Arrival {
    /// CLOCK_MONOTONIC, ns.
    pub monotonic_ns: i64,
    /// True when the kernel stamped it, false when it is the clock after the read.
    pub kernel: bool,
}

/// What a popped frame carries, which decides where its write stamp goes.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum Popped {
    /// No frame is on its way.
    #[default]
    Nothing,
    /// A frame without tokens: the role, the end of the stream.
    Plain,
    /// Tokens whose step ended at this instant, CLOCK_MONOTONIC ns.
    Tokens(i64),
    /// The last frame of an answer.
    Tail,
}

/// What the socket side and the answer side of one connection know of each other.
#[derive(Default)]
pub struct Conn {
    raw_stamp: Cell<Option<TimeSpec>>,
    read_ns: Cell<i64>,
    reading_since: Cell<i64>,
    blocked_since: Cell<i64>,
    active_ns: Cell<i64>,
    busy: Cell<bool>,
    popped: Cell<Popped>,
    stamped: Cell<bool>,
    current: RefCell<Option<Rc<Stream>>>,
    task: RefCell<Option<Waker>>,
    killed: Cell<bool>,
    resets: Cell<bool>,
    /// Where the client's frames stand, if it is HTTP/2: what is read may be no request's.
    frames: RefCell<Option<FrameWatch>>,
    /// Where its records stand, if it speaks TLS: what is read may be nothing yet.
    records: RefCell<RecordWatch>,
    record_since: Cell<i64>,
    /// The connection, where this is one of its streams.
    lead: Option<Rc<Conn>>,
    /// Is this stream over? What it had sent before that may still be read by who answers it.
    over: Cell<bool>,
    open: RefCell<Vec<Rc<Conn>>>,
    /// Since when what was handed to hyper of this stream's answer waits for the client's window.
    handed_since: Cell<i64>,
    /// Streams whose request is not whole.
    reading: RefCell<Vec<Rc<Conn>>>,
    /// Streams of which something is on its way to the kernel.
    on_way: RefCell<Vec<Rc<Conn>>>,
}

impl Conn {
    /// It carries streams of HTTP/2.
    pub(crate) fn carries_streams(&self) {
        *self.frames.borrow_mut() = Some(FrameWatch::default());
    }

    /// A handshake has the time that a request has.
    pub(crate) fn handshake_begins(&self) {
        self.reading_since.set(clock::monotonic_ns());
    }

    /// It succeeded or failed.
    pub(crate) fn handshake_is_over(&self) {
        self.reading_since.set(0);
    }

    /// The client sent this.
    pub fn received(&self, bytes: &[u8]) {
        let mut frames = self.frames.borrow_mut();
        // Where a request of HTTP/1.1 ends, says who reads it.
        let reached = frames.as_mut().map_or(Reached::Within, |frames| frames.follow(bytes));
        self.reached(reached, &self.reading_since);
    }

    /// The client sent this, and TLS has to open it.
    fn received_sealed(&self, bytes: &[u8]) {
        let reached = self.records.borrow_mut().follow(bytes);
        self.reached(reached, &self.record_since);
    }

    /// Notes since when a piece lacks its end, after the last read.
    fn reached(&self, how_far: Reached, since: &Cell<i64>) {
        match how_far {
            Reached::End => since.set(0),
            Reached::Within if since.get() != 0 => {}
            Reached::Begun | Reached::Within => since.set(self.read_ns.get()),
        }
    }

    /// What one stream of a connection is to its answer. Its stamps are those of the connection's reads and writes.
    pub fn of_stream(lead: &Rc<Conn>) -> Rc<Conn> {
        lead.busy.set(true);
        let stream = Rc::new(Conn { lead: Some(Rc::clone(lead)), ..Conn::default() });
        lead.open.borrow_mut().push(Rc::clone(&stream));
        stream.request_begins();
        stream
    }

    /// A request of this stream begins to arrive, or has begun.
    pub(crate) fn request_begins(self: &Rc<Conn>) {
        if let Some(lead) = &self.lead
            && self.reading_since.get() == 0
            && !self.over.get()
        {
            self.reading_since.set(lead.read_ns.get());
            lead.reading.borrow_mut().push(Rc::clone(self));
        }
    }

    /// Nothing of a request is being waited for any more.
    fn is_read(&self) {
        if self.reading_since.replace(0) != 0
            && let Some(lead) = &self.lead
        {
            lead.reading.borrow_mut().retain(|stream| !std::ptr::eq(&**stream, self));
        }
    }

    /// Streams whose request began to arrive before this instant and is not whole.
    pub(crate) fn late_streams(&self, before_ns: i64) -> Vec<Rc<Conn>> {
        let reading = self.reading.borrow();
        reading.iter().filter(|stream| stream.reading_since.get() < before_ns).cloned().collect()
    }

    pub(crate) fn stream_over(&self) {
        let Some(lead) = &self.lead else { return };
        self.over.set(true);
        self.is_read();
        let mut open = lead.open.borrow_mut();
        open.retain(|stream| !std::ptr::eq(&**stream, self));
        if open.is_empty() {
            lead.busy.set(false);
        }
    }

    /// A piece of this stream's answer was handed to hyper, which keeps it until the client's window has room.
    pub fn handed(&self, monotonic_ns: i64) {
        self.handed_since.set(monotonic_ns);
    }

    /// It has left, for hyper asks for the next.
    pub(crate) fn handed_on(&self) {
        self.handed_since.set(0);
    }

    /// Arrival of the last bytes that were read.
    pub fn arrival(&self) -> Arrival {
        match self.raw_stamp.get() {
            Some(t) => {
                let realtime = t.tv_sec() * 1_000_000_000 + t.tv_nsec();
                Arrival { monotonic_ns: clock::realtime_to_monotonic(realtime), kernel: true }
            }
            None => Arrival { monotonic_ns: self.read_ns.get(), kernel: false },
        }
    }

    /// The request was read whole: it is the server's turn, and the limit on slow senders is off.
    pub fn request_read(&self) {
        if let Some(lead) = &self.lead {
            self.raw_stamp.set(lead.raw_stamp.get());
            self.read_ns.set(lead.read_ns.get());
        }
        self.is_read();
        self.busy.set(true);
    }

    /// Since when a request is being received, a write is blocked, or nothing moved at all. CLOCK_MONOTONIC ns.
    pub fn waits(&self) -> ConnectionWaits {
        let some = |ns: i64| (ns != 0).then_some(ns);
        let idle = !self.busy.get();
        // While one request is answered another may wait its turn; a piece of HTTP/2 holds all others up.
        let counts = idle || self.frames.borrow().is_some();
        let pieces = [some(self.reading_since.get()), some(self.record_since.get())];
        let open = self.open.borrow();
        let handed = open.iter().filter_map(|stream| some(stream.handed_since.get()));
        ConnectionWaits {
            reading_since: pieces.into_iter().flatten().min().filter(|_| counts),
            blocked_since: some(self.blocked_since.get()).into_iter().chain(handed).min(),
            idle_since: idle.then_some(self.active_ns.get()),
        }
    }

    /// Something happened at this instant.
    pub fn touch(&self, monotonic_ns: i64) {
        self.active_ns.set(monotonic_ns);
    }

    /// May the next frame be handed to hyper?
    pub(crate) fn may_pop(&self) -> bool {
        self.popped.get() == Popped::Nothing
    }

    /// A frame was handed to hyper, of this stream if of any.
    pub(crate) fn popped(self: &Rc<Conn>, what: Popped, stream: Option<&Rc<Stream>>) {
        if let Some(lead) = &self.lead {
            lead.on_way.borrow_mut().push(Rc::clone(self));
        }
        self.popped.set(what);
        self.stamped.set(false);
        let Some(stream) = stream else { return };
        let mut current = self.current.borrow_mut();
        if current.as_ref().is_none_or(|known| !Rc::ptr_eq(known, stream)) {
            *current = Some(stream.clone());
        }
    }

    /// The task of the connection, to be woken for shutdown or when its time is up.
    pub fn remember(&self, cx: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        if task.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
    }

    /// Wakes the connection's task.
    pub fn wake(&self) {
        if let Some(task) = self.task.borrow().as_ref() {
            task.wake_by_ref();
        }
    }

    /// The answer was dropped unsent (a HEAD request): nothing will be flushed for it.
    pub(crate) fn not_busy(&self) {
        self.busy.set(false);
    }

    /// The connection is gone, and with it its hold on what it was answering.
    pub fn let_go(&self) {
        let stream = self.current.borrow_mut().take();
        drop(stream);
        // Streams hold their connection, and it those of which something is on its way.
        let on_way = std::mem::take(&mut *self.on_way.borrow_mut());
        let reading = std::mem::take(&mut *self.reading.borrow_mut());
        let open = std::mem::take(&mut *self.open.borrow_mut());
        drop((on_way, reading, open));
    }

    /// Ends the connection at its next turn.
    pub fn kill(&self) {
        self.killed.set(true);
        self.wake();
    }

    /// Ends the connection at its next turn with a reset: what is on its way to the client is thrown away.
    pub fn reset(&self) {
        self.resets.set(true);
        self.kill();
    }

    /// Was it asked to end?
    pub(crate) fn is_killed(&self) -> bool {
        self.killed.get()
    }

    fn wrote(&self, before_ns: i64) {
        self.active_ns.set(before_ns);
        self.blocked_since.set(0);
        self.on_way.borrow().iter().for_each(|stream| stream.wrote(before_ns));
        if self.stamped.replace(true) {
            return;
        }
        let current = self.current.borrow();
        match (self.popped.get(), current.as_ref()) {
            (Popped::Tokens(due_ns), Some(stream)) => stream.wrote_tokens(before_ns, due_ns),
            (Popped::Tail, Some(stream)) => stream.wrote_tail(before_ns),
            _ => {}
        }
    }

    fn flushed(&self) {
        // What has not been in a write yet still waits among the frames of other streams.
        let gone: Vec<Rc<Conn>> = {
            let mut on_way = self.on_way.borrow_mut();
            let (gone, stays) = on_way.drain(..).partition(|stream| stream.stamped.get());
            *on_way = stays;
            gone
        };
        gone.iter().for_each(|stream| stream.flushed());
        match self.popped.replace(Popped::Nothing) {
            Popped::Nothing => {}
            Popped::Tail => {
                self.busy.set(false);
                // The stream's record is written when the last hold on it is gone.
                let done = self.current.borrow_mut().take();
                drop(done);
            }
            _ => {
                if let Some(stream) = self.current.borrow().as_ref() {
                    stream.wake_if_ready();
                }
            }
        }
    }
}

/// What a connection may be waiting for, each since an instant of CLOCK_MONOTONIC, ns.
#[derive(Copy, Clone, Default, Debug)]
pub struct ConnectionWaits {
    /// A handshake, a record of TLS, a request or a frame has begun to arrive and is not whole.
    pub reading_since: Option<i64>,
    /// The client does not take what it asked for, be it of one stream.
    pub blocked_since: Option<i64>,
    pub idle_since: Option<i64>,
}

/// A socket for hyper.
pub struct Io {
    socket: TcpStream,
    conn: Rc<Conn>,
    scratch: Rc<RefCell<Scratch>>,
    /// Are its bytes those of TLS?
    sealed: bool,
}

/// How HTTP/2 begins where it is known that it is spoken (RFC 9113, 3.4): no method of HTTP/1.1 has this name.
const PREFACE: &[u8] = b"PRI";

/// Does the client speak HTTP/2? Looks at its first bytes without taking them.
pub(crate) fn poll_speaks_http2(socket: &TcpStream, cx: &mut Context<'_>) -> Poll<bool> {
    let mut bytes = [0; PREFACE.len()];
    let seen = ready!(socket.poll_peek(cx, &mut tokio::io::ReadBuf::new(&mut bytes)));
    Poll::Ready(seen.is_ok() && bytes == PREFACE)
}

impl Io {
    /// Wraps an accepted socket whose stamping is already on.
    pub fn new(socket: TcpStream, conn: Rc<Conn>, scratch: Rc<RefCell<Scratch>>) -> Io {
        conn.touch(clock::monotonic_ns());
        Io { socket, conn, scratch, sealed: false }
    }

    /// What it carries is read and written by TLS.
    pub(crate) fn sealed(mut self) -> Io {
        self.sealed = true;
        self
    }

    fn receive(&self, limit: usize) -> io::Result<(usize, Option<TimeSpec>)> {
        let mut scratch = self.scratch.borrow_mut();
        let Scratch { bytes, control } = &mut *scratch;
        self.socket.try_io(Interest::READABLE, || {
            receive_stamped(self.socket.as_raw_fd(), &mut bytes[..limit], control)
        })
    }
}

/// Reads once, with the kernel's receive stamp (CLOCK_REALTIME) where there is one. Does not block.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
fn receive_stamped(fd: RawFd, bytes: &mut [u8], control: &mut [u8]) -> io::Result<(usize, Option<TimeSpec>)> {
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    let mut slices = [io::IoSliceMut::new(bytes)];
    let message = recvmsg::<()>(fd, &mut slices, Some(control), MsgFlags::MSG_DONTWAIT)?;
    let mut stamp = None;
    if message.bytes > 0 {
        for control in message.cmsgs().into_iter().flatten() {
            if let ControlMessageOwned::ScmTimestampsns(stamps) = control {
                stamp = Some(stamps.system).filter(|t| t.tv_sec() != 0);
            }
        }
    }
    Ok((message.bytes, stamp))
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
fn receive_stamped(fd: RawFd, bytes: &mut [u8], _: &mut [u8]) -> io::Result<(usize, Option<TimeSpec>)> {
    Ok((nix::sys::socket::recv(fd, bytes, MsgFlags::MSG_DONTWAIT)?, None))
}

/// Asks for receive stamps on a socket; sockets that a listening one accepts have them too. A kernel that gives none
/// is no error: arrivals then say that they are the clock's.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub(crate) fn ask_for_stamps(socket: &impl AsFd) {
    use nix::sys::socket::{TimestampingFlag, setsockopt, sockopt};
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    let _ = setsockopt(socket, sockopt::Timestamping, &flags);
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub(crate) fn ask_for_stamps(_: &impl AsFd) {}

/// Waits until the kernel does stamp. It begins some milliseconds after the first socket of the machine asked for it,
/// and the first requests would go without; a datagram to oneself shows when.
pub(crate) fn wait_for_stamps() -> io::Result<bool> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    ask_for_stamps(&socket);
    let (mut bytes, mut control) = ([0; 8], [0; CONTROL_BYTES]);
    for _ in 0..STAMP_TRIES {
        socket.send(b"stamp")?;
        if let Ok((_, Some(_))) = receive_stamped(socket.as_raw_fd(), &mut bytes, &mut control) {
            return Ok(true);
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(false)
}

impl Drop for Io {
    fn drop(&mut self) {
        if self.conn.resets.get() {
            // To linger for no time makes the kernel send RST in place of FIN. Where it can't, the client sees a close.
            let _ = socket2::SockRef::from(&self.socket).set_linger(Some(Duration::ZERO));
        }
    }
}

impl Read for Io {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        mut buf: ReadBufCursor<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &*self;
        loop {
            ready!(this.socket.poll_read_ready(cx))?;
            let limit = buf.remaining().min(READ_BYTES);
            match this.receive(limit) {
                Ok((n, stamp)) => {
                    let now = clock::monotonic_ns();
                    if n > 0 {
                        if n < limit {
                            // The socket is empty: to believe so saves the read that would find nothing. What comes
                            // later, an end included, is a new edge for the runtime.
                            let _ = this.socket.try_io(Interest::READABLE, || {
                                Err::<(), _>(io::ErrorKind::WouldBlock.into())
                            });
                        }
                        this.conn.raw_stamp.set(stamp);
                        this.conn.read_ns.set(now);
                        this.conn.touch(now);
                        let bytes = &this.scratch.borrow().bytes[..n];
                        match this.sealed {
                            true => this.conn.received_sealed(bytes),
                            false => this.conn.received(bytes),
                        }
                        buf.put_slice(bytes);
                    }
                    return Poll::Ready(Ok(()));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }
}

impl Write for Io {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let this = &*self;
        loop {
            if this.socket.poll_write_ready(cx)?.is_pending() {
                if this.conn.blocked_since.get() == 0 {
                    this.conn.blocked_since.set(clock::monotonic_ns());
                }
                return Poll::Pending;
            }
            let before = clock::monotonic_ns();
            match this.socket.try_write(bytes) {
                Ok(n) => {
                    this.conn.wrote(before);
                    return Poll::Ready(Ok(n));
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Poll::Ready(Err(e)),
            }
        }
    }

    fn poll_flush(self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // hyper flushes only when its buffer is empty: all that was popped is with the kernel.
        self.conn.flushed();
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        tokio::io::AsyncWrite::poll_shutdown(Pin::new(&mut self.socket), cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A connection that read something at this instant.
    fn lead() -> Rc<Conn> {
        let lead = Rc::new(Conn::default());
        lead.read_ns.set(1);
        lead
    }

    /// Who answers a call reads what its stream had sent when that was reset already, and finds the beginning of a message. It was waited for until
    /// the connection's end, and counted as late at each look.
    #[test]
    fn nothing_is_waited_for_of_a_stream_that_is_over() {
        let lead = lead();
        let stream = Conn::of_stream(&lead);
        stream.request_read();
        stream.request_begins();
        assert_eq!(lead.late_streams(2).len(), 1);
        stream.stream_over();
        stream.request_begins();
        assert!(lead.late_streams(2).is_empty());
    }

    /// What is drawn over several records is one request, and has the time of one, though each record comes soon enough.
    #[test]
    fn a_request_and_a_record_are_late_each_by_itself() {
        let conn = lead();
        let since = || conn.waits().reading_since;
        let record = [23, 3, 3, 0, 2, 9, 9];
        conn.received_sealed(&record[..5]);
        assert_eq!(since(), Some(1));
        conn.read_ns.set(2);
        conn.received_sealed(&record[5..]);
        assert_eq!(since(), None);
        conn.received(b"GE");
        conn.read_ns.set(3);
        conn.received_sealed(&record[..6]);
        assert_eq!(since(), Some(2));
        conn.read_ns.set(4);
        conn.received_sealed(&record[6..]);
        conn.received(b"T ");
        assert_eq!(since(), Some(2));
        conn.request_read();
        conn.not_busy();
        assert_eq!(since(), None);
    }
}
