//! Represents a TCP stream that takes the kernel's receive stamp with every read.
//!
//! Reads use `recvmsg` with SO_TIMESTAMPING (software, receive). They go into the reader's own buffer if it has one, or
//! else into a [`ReadBuffer`]. Copying two hundred bytes costs less than zeroing eight kilobytes of a caller's fresh buffer on
//! every read. A short read clears readiness immediately (the socket is empty: epoll(7), "edge-triggered"), which saves a
//! system call. On systems other than Linux the clock stamps reads after they return, and every run reports that.

use std::cell::Cell;
use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use nix::errno::Errno;
use nix::sys::socket::MsgFlags;
use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::http1::landing::{READ_MAX, ReadBuffer};
use crate::http1::stamp::{SocketMeter, Stamps};

#[derive(Debug)]
pub struct StampedStream {
    stream: TcpStream,
    stamps: Rc<Stamps>,
    /// Set to read the socket even if the event loop reports no data.
    looking: Cell<bool>,
}

impl StampedStream {
    /// Connects to `addr` with Nagle's algorithm off, and with kernel stamps if available.
    pub async fn connect(addr: SocketAddr, meter: &Rc<SocketMeter>) -> io::Result<StampedStream> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_nodelay(true)?;
        // A kernel without stamps is no error, because the reads carry none and the run reports it.
        let _ = enable_stamps(&socket);
        let stream = socket.connect(addr).await?;
        meter.opened();
        let stamps = Stamps::new(Rc::clone(meter), stream.as_raw_fd());
        Ok(StampedStream { stream, stamps, looking: Cell::new(false) })
    }

    /// Returns the stamps of the socket.
    pub fn stamps(&self) -> &Rc<Stamps> {
        &self.stamps
    }

    /// Reads and stamps the available bytes, at most [`READ_MAX`]. 0 = the peer has closed its side.
    pub fn poll_recv(&self, cx: &mut Context<'_>, out: &mut [u8]) -> Poll<io::Result<usize>> {
        let want = out.len().min(READ_MAX);
        let out = &mut out[..want];
        if self.looking.get() {
            return match recv(&self.stream, out) {
                Ok((n, kernel)) => {
                    self.stamps.read(n, kernel);
                    Poll::Ready(Ok(n))
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => Poll::Pending,
                Err(e) => Poll::Ready(Err(e)),
            };
        }
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let mut got = None;
            let attempt = self.stream.try_io(Interest::READABLE, || {
                let (n, kernel) = recv(&self.stream, out)?;
                got = Some((n, kernel));
                // A short read emptied the socket; "would block" makes tokio clear the readiness now. (End of stream is a
                // separate readiness that is never cleared.)
                if n < want { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (attempt, got) {
                (_, Some((0, _))) => return Poll::Ready(Ok(0)),
                (_, Some((n, kernel))) => {
                    self.stamps.read(n, kernel);
                    return Poll::Ready(Ok(n));
                }
                (Err(e), None) if e.kind() == io::ErrorKind::WouldBlock => continue,
                (Err(e), None) => return Poll::Ready(Err(e)),
                (Ok(()), None) => continue,
            }
        }
    }

    /// Returns whether the peer closed its side or sent unsolicited bytes.
    ///
    /// This queries the socket, because the event loop's state dates from its last poll and a reused connection is checked
    /// before that.
    pub(crate) fn is_disturbed(&self) -> bool {
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        nix::sys::socket::recv(self.stream.as_raw_fd(), &mut [0], flags) != Err(Errno::EWOULDBLOCK)
    }

    /// Makes reads query the socket directly and register no waker.
    pub fn look(&self, on: bool) {
        self.looking.set(on);
    }
}

impl Drop for StampedStream {
    fn drop(&mut self) {
        self.stamps.closed();
    }
}

/// Buffer for the kernel's stamps of a read. The kernel writes structures, so it must be aligned like them.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[repr(align(16))]
struct Control([u8; 128]);

#[cfg(all(target_os = "linux", not(feature = "portable")))]
fn enable_stamps(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    use nix::sys::socket::{TimestampingFlag, setsockopt, sockopt};
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// Reads into `out`; returns the number of bytes and the kernel stamp of the last byte (CLOCK_REALTIME ns).
#[cfg(all(target_os = "linux", not(feature = "portable")))]
fn recv(stream: &TcpStream, out: &mut [u8]) -> io::Result<(usize, Option<i64>)> {
    use nix::sys::socket::{ControlMessageOwned, recvmsg};
    let mut control = Control([0; 128]);
    let mut iov = [io::IoSliceMut::new(out)];
    let message = recvmsg::<()>(stream.as_raw_fd(), &mut iov, Some(&mut control.0), MsgFlags::MSG_DONTWAIT)?;
    let stamp = message.cmsgs().ok().and_then(|mut all| {
        all.find_map(|one| match one {
            ControlMessageOwned::ScmTimestampsns(stamps) => {
                Some(stamps.system.tv_sec() * 1_000_000_000 + stamps.system.tv_nsec())
            }
            _ => None,
        })
    });
    Ok((message.bytes, stamp.filter(|&ns| ns > 0)))
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
fn enable_stamps(_: &TcpSocket) -> io::Result<()> {
    Ok(())
}

#[cfg(any(not(target_os = "linux"), feature = "portable"))]
fn recv(stream: &TcpStream, out: &mut [u8]) -> io::Result<(usize, Option<i64>)> {
    use std::io::Read;
    let socket = socket2::SockRef::from(stream);
    Ok(((&*socket).read(out)?, None))
}

/// A socket that only enables kernel stamps.
#[derive(Debug)]
pub struct StampingOn(#[expect(dead_code, reason = "kept open, not used")] Option<socket2::Socket>);

impl StampingOn {
    pub fn ask() -> StampingOn {
        StampingOn(stamping_socket())
    }
}

fn stamping_socket() -> Option<socket2::Socket> {
    #[cfg(all(target_os = "linux", not(feature = "portable")))]
    {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
        enable_stamps(&socket).ok()?;
        Some(socket)
    }
    #[cfg(any(not(target_os = "linux"), feature = "portable"))]
    {
        None
    }
}

/// Returns whether this kernel can stamp arrivals. Creates a socket and sends no data.
pub fn kernel_stamps_available() -> bool {
    stamping_socket().is_some()
}

/// Used by TLS, which reads into its own buffers.
impl AsyncRead for StampedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut landing = ReadBuffer::take();
        let want = buf.remaining().min(READ_MAX);
        if want > 0 {
            let n = ready!(self.poll_recv(cx, &mut landing.room()[..want]))?;
            buf.put_slice(landing.read(n));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for StampedStream {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(buf)])
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let mut parts = bufs.iter().filter(|part| !part.is_empty());
        let only = match (parts.next(), parts.next()) {
            (only, None) => Some(only.map_or(&[][..], |part| &**part)),
            _ => None,
        };
        let before = self.stamps.meter().clock.now();
        let stream = Pin::new(&mut self.stream);
        let n = ready!(match only {
            // `send` of one buffer is faster than `writev` of one.
            Some(buf) => stream.poll_write(cx, buf),
            None => stream.poll_write_vectored(cx, bufs),
        })?;
        if n > 0 {
            self.stamps.wrote(n, before);
        }
        Poll::Ready(Ok(n))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
