//! Connects hyper to a socket and stamps reads and writes.
//!
//! Reads take the kernel's receive stamp (SO_TIMESTAMPING through recvmsg). Writes read the clock immediately before the
//! system call. A stamp taken when hyper receives the frame is early by milliseconds at two thousand streams. The write
//! stamp is therefore taken here, and [`Conn`] carries it to the stream of the written token.
//!
//! One frame at a time is released ([`Conn::may_pop`]): the next is passed on only when hyper has flushed the previous one.
//! Otherwise tokens that are due together would leave in one write, and a client could not distinguish their times.
//! Vectored writes were rejected: a chunk has about two hundred bytes, and copying it is cheaper than three io-vectors.

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
use plimsoll_client::clock;
use tokio::io::Interest;
use tokio::net::TcpStream;

use crate::clock::realtime_to_monotonic;
use crate::frames::{FrameProgress, FrameWatch};
use crate::records::RecordWatch;
use crate::stream::EngineStream;

/// Most bytes of one read; a request head with its prompt usually fits.
const READ_BYTES: usize = 32 * 1024;
/// Bytes for the three time stamps of one control message.
const CONTROL_BYTES: usize = 128;
/// Tries, a millisecond apart, after which the kernel is assumed not to stamp.
const STAMP_TRIES: u32 = 50;

/// The read buffers of one server. Reads never overlap, so one buffer serves all connections.
pub struct ReadScratch {
    bytes: Box<[u8]>,
    control: Box<[u8]>,
}

impl ReadScratch {
    /// Returns the buffers of one runtime.
    pub fn new() -> Rc<RefCell<ReadScratch>> {
        Rc::new(RefCell::new(ReadScratch {
            bytes: vec![0; READ_BYTES].into_boxed_slice(),
            control: vec![0; CONTROL_BYTES].into_boxed_slice(),
        }))
    }
}

/// The arrival time of a request's bytes.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct ReceiveTimestamp {
    /// Arrival in ns of CLOCK_MONOTONIC.
    pub monotonic_ns: i64,
    /// Set if the kernel stamped the arrival; otherwise the clock was read after the read.
    pub kernel: bool,
}

/// The content of the frame on its way to the kernel, which decides the use of its write stamp.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub(crate) enum FrameContent {
    /// There is no frame on its way.
    #[default]
    Nothing,
    /// A frame without tokens: the role, or the end of the stream.
    Plain,
    /// Tokens whose step ended at this time (CLOCK_MONOTONIC ns).
    Tokens(i64),
    /// The last frame of a response.
    Tail,
}

/// The state of one connection or stream that the socket side and the response side share.
#[derive(Default)]
pub struct Conn {
    raw_stamp: Cell<Option<TimeSpec>>,
    read_ns: Cell<i64>,
    reading_since: Cell<i64>,
    blocked_since: Cell<i64>,
    active_ns: Cell<i64>,
    busy: Cell<bool>,
    popped: Cell<FrameContent>,
    stamped: Cell<bool>,
    current: RefCell<Option<Rc<EngineStream>>>,
    task: RefCell<Option<Waker>>,
    killed: Cell<bool>,
    resets: Cell<bool>,
    /// Frame position of an HTTP/2 client, because the bytes read may belong to no request.
    frames: RefCell<Option<FrameWatch>>,
    /// Record position of a TLS client, because the bytes read may be an incomplete record.
    records: RefCell<RecordWatch>,
    record_since: Cell<i64>,
    /// Connection of a stream; `None` for a connection.
    lead: Option<Rc<Conn>>,
    /// Set after the end of the stream. Its handler may still read bytes that were sent earlier.
    over: Cell<bool>,
    open: RefCell<Vec<Rc<Conn>>>,
    /// Time since which bytes of this stream's response wait for the client's window; 0 = none.
    handed_since: Cell<i64>,
    /// Streams whose request is incomplete.
    reading: RefCell<Vec<Rc<Conn>>>,
    /// Streams with bytes on their way to the kernel.
    on_way: RefCell<Vec<Rc<Conn>>>,
}

impl Conn {
    /// Marks the connection as HTTP/2.
    pub(crate) fn carries_streams(&self) {
        *self.frames.borrow_mut() = Some(FrameWatch::default());
    }

    /// Starts the read limit for a handshake, which is the limit of a request.
    pub(crate) fn handshake_begins(&self) {
        self.reading_since.set(clock::monotonic_ns());
    }

    /// Ends the read limit after the handshake succeeded or failed.
    pub(crate) fn handshake_is_over(&self) {
        self.reading_since.set(0);
    }

    pub fn received(&self, bytes: &[u8]) {
        let mut frames = self.frames.borrow_mut();
        // Over HTTP/1.1 the parser determines the end of a request.
        let reached = frames.as_mut().map_or(FrameProgress::Within, |frames| frames.follow(bytes));
        self.reached(reached, &self.reading_since);
    }

    /// Records encrypted bytes from the client.
    fn received_sealed(&self, bytes: &[u8]) {
        let reached = self.records.borrow_mut().follow(bytes);
        self.reached(reached, &self.record_since);
    }

    /// Updates the start time of an incomplete piece after a read.
    fn reached(&self, how_far: FrameProgress, since: &Cell<i64>) {
        match how_far {
            FrameProgress::End => since.set(0),
            FrameProgress::Within if since.get() != 0 => {}
            FrameProgress::Begun | FrameProgress::Within => since.set(self.read_ns.get()),
        }
    }

    /// Returns the state of a new stream. Its stamps come from the connection's reads and writes.
    pub fn of_stream(lead: &Rc<Conn>) -> Rc<Conn> {
        lead.busy.set(true);
        let stream = Rc::new(Conn { lead: Some(Rc::clone(lead)), ..Conn::default() });
        lead.open.borrow_mut().push(Rc::clone(&stream));
        stream.request_begins();
        stream
    }

    /// Starts the read limit for a request of this stream, unless it runs already.
    pub(crate) fn request_begins(self: &Rc<Conn>) {
        if let Some(lead) = &self.lead
            && self.reading_since.get() == 0
            && !self.over.get()
        {
            self.reading_since.set(lead.read_ns.get());
            lead.reading.borrow_mut().push(Rc::clone(self));
        }
    }

    /// Ends the read limit of this stream's request.
    fn is_read(&self) {
        if self.reading_since.replace(0) != 0
            && let Some(lead) = &self.lead
        {
            lead.reading.borrow_mut().retain(|stream| !std::ptr::eq(&**stream, self));
        }
    }

    /// Returns the streams with an incomplete request that began to arrive before `before_ns`.
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

    /// Records that hyper received bytes of this stream's response, which it keeps until the client's window has room.
    pub fn handed(&self, monotonic_ns: i64) {
        self.handed_since.set(monotonic_ns);
    }

    /// Records that these bytes have left, because hyper polls for the next.
    pub(crate) fn handed_on(&self) {
        self.handed_since.set(0);
    }

    /// Returns the arrival of the last bytes that were read.
    pub fn arrival(&self) -> ReceiveTimestamp {
        match self.raw_stamp.get() {
            Some(t) => {
                let realtime = t.tv_sec() * 1_000_000_000 + t.tv_nsec();
                ReceiveTimestamp { monotonic_ns: realtime_to_monotonic(realtime), kernel: true }
            }
            None => ReceiveTimestamp { monotonic_ns: self.read_ns.get(), kernel: false },
        }
    }

    /// Records that the request is complete, which ends the limit on slow senders.
    pub fn request_read(&self) {
        if let Some(lead) = &self.lead {
            self.raw_stamp.set(lead.raw_stamp.get());
            self.read_ns.set(lead.read_ns.get());
        }
        self.is_read();
        self.busy.set(true);
    }

    /// Returns the start times of the connection's waits, in ns of CLOCK_MONOTONIC.
    pub fn waits(&self) -> ConnectionWaits {
        let some = |ns: i64| (ns != 0).then_some(ns);
        let idle = !self.busy.get();
        // A pipelined request may wait for its turn, but an incomplete HTTP/2 piece blocks all streams.
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

    /// Records activity, which restarts the idle limit.
    pub fn touch(&self, monotonic_ns: i64) {
        self.active_ns.set(monotonic_ns);
    }

    /// Returns whether the next frame may be passed to hyper.
    pub(crate) fn may_pop(&self) -> bool {
        self.popped.get() == FrameContent::Nothing
    }

    /// Records that a frame was passed to hyper, with its stream if it has one.
    pub(crate) fn popped(self: &Rc<Conn>, what: FrameContent, stream: Option<&Rc<EngineStream>>) {
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

    /// Stores the waker of the connection's task, for shutdown and expired limits.
    pub fn remember(&self, cx: &Context<'_>) {
        let mut task = self.task.borrow_mut();
        if task.as_ref().is_none_or(|known| !known.will_wake(cx.waker())) {
            *task = Some(cx.waker().clone());
        }
    }

    pub fn wake(&self) {
        if let Some(task) = self.task.borrow().as_ref() {
            task.wake_by_ref();
        }
    }

    /// Records that the response was dropped unsent (a HEAD request), so no flush will follow.
    pub(crate) fn not_busy(&self) {
        self.busy.set(false);
    }

    /// Releases the streams after the connection has closed.
    pub fn let_go(&self) {
        let stream = self.current.borrow_mut().take();
        drop(stream);
        // Streams and connection refer to each other, so the cycle must be broken.
        let on_way = std::mem::take(&mut *self.on_way.borrow_mut());
        let reading = std::mem::take(&mut *self.reading.borrow_mut());
        let open = std::mem::take(&mut *self.open.borrow_mut());
        drop((on_way, reading, open));
    }

    /// Closes the connection at its next poll.
    pub fn kill(&self) {
        self.killed.set(true);
        self.wake();
    }

    /// Resets the connection at its next poll; bytes on their way to the client are discarded.
    pub fn reset(&self) {
        self.resets.set(true);
        self.kill();
    }

    /// Returns whether a close was requested.
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
            (FrameContent::Tokens(due_ns), Some(stream)) => stream.wrote_tokens(before_ns, due_ns),
            (FrameContent::Tail, Some(stream)) => stream.wrote_tail(before_ns),
            _ => {}
        }
    }

    fn flushed(&self) {
        // A frame that was in no write yet still waits among the frames of other streams.
        let gone: Vec<Rc<Conn>> = {
            let mut on_way = self.on_way.borrow_mut();
            let (gone, stays) = on_way.drain(..).partition(|stream| stream.stamped.get());
            *on_way = stays;
            gone
        };
        gone.iter().for_each(|stream| stream.flushed());
        match self.popped.replace(FrameContent::Nothing) {
            FrameContent::Nothing => {}
            FrameContent::Tail => {
                self.busy.set(false);
                // The stream's truth record is written when its last reference is dropped.
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

/// The start times of a connection's waits, in ns of CLOCK_MONOTONIC; `None` = no wait.
#[derive(Copy, Clone, Default, Debug)]
pub struct ConnectionWaits {
    /// Start of an incomplete handshake, TLS record, request or frame.
    pub reading_since: Option<i64>,
    /// Start of a write that the client blocks, on the connection or one of its streams.
    pub blocked_since: Option<i64>,
    pub idle_since: Option<i64>,
}

/// A socket with the interface that hyper needs.
pub struct Io {
    socket: TcpStream,
    conn: Rc<Conn>,
    scratch: Rc<RefCell<ReadScratch>>,
    /// Set if the bytes are encrypted by TLS.
    sealed: bool,
}

/// Start of the HTTP/2 preface with prior knowledge (RFC 9113, 3.4); no HTTP/1.1 method has this name.
const PREFACE: &[u8] = b"PRI";

/// Returns whether the client uses HTTP/2, by peeking at its first bytes.
pub(crate) fn poll_speaks_http2(socket: &TcpStream, cx: &mut Context<'_>) -> Poll<bool> {
    let mut bytes = [0; PREFACE.len()];
    let seen = ready!(socket.poll_peek(cx, &mut tokio::io::ReadBuf::new(&mut bytes)));
    Poll::Ready(seen.is_ok() && bytes == PREFACE)
}

impl Io {
    /// Wraps an accepted socket whose stamping is already on.
    pub fn new(socket: TcpStream, conn: Rc<Conn>, scratch: Rc<RefCell<ReadScratch>>) -> Io {
        conn.touch(clock::monotonic_ns());
        Io { socket, conn, scratch, sealed: false }
    }

    /// Marks the bytes as encrypted by TLS.
    pub(crate) fn sealed(mut self) -> Io {
        self.sealed = true;
        self
    }

    fn receive(&self, limit: usize) -> io::Result<(usize, Option<TimeSpec>)> {
        let mut scratch = self.scratch.borrow_mut();
        let ReadScratch { bytes, control } = &mut *scratch;
        self.socket.try_io(Interest::READABLE, || {
            receive_stamped(self.socket.as_raw_fd(), &mut bytes[..limit], control)
        })
    }
}

/// Reads once without blocking, with the kernel's receive stamp (CLOCK_REALTIME) if there is one.
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

/// Enables receive stamps on a socket; sockets accepted from a listening socket inherit the option.
///
/// A kernel without stamps is no error, because arrivals then report the clock as their source.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
pub(crate) fn ask_for_stamps(socket: &impl AsFd) {
    use nix::sys::socket::{TimestampingFlag, setsockopt, sockopt};
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    let _ = setsockopt(socket, sockopt::Timestamping, &flags);
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub(crate) fn ask_for_stamps(_: &impl AsFd) {}

/// Waits until the kernel stamps arrivals; returns false if it does not.
///
/// Stamping begins some milliseconds after the first socket of the machine enables it, and the first requests would have no
/// stamp. A datagram to this process shows when it works.
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
            // Zero linger makes the kernel send RST in place of FIN. On failure the client sees a close.
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
                            // A short read emptied the socket, so clearing readiness saves the read that would find no
                            // data. Later data, an end included, is a new edge for the runtime.
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
        // hyper flushes only when its buffer is empty, so the kernel has every released frame.
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

    /// Returns a connection whose last read was at 1 ns.
    fn lead() -> Rc<Conn> {
        let lead = Rc::new(Conn::default());
        lead.read_ns.set(1);
        lead
    }

    /// A reset stream may still have a partial message in its buffer, and reading it starts the read limit again. Without
    /// the check the stream would count as late until the connection's end.
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

    /// A request over several records has one limit, even if each record arrives in time.
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
