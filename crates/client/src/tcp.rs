//! A TCP stream that takes the kernel's receive stamp with every read.
//!
//! Reads go through `recvmsg` with SO_TIMESTAMPING (software, receive) into one scratch buffer per thread and are copied
//! out: two hundred bytes of copying cost less than zeroing eight kilobytes of the caller's fresh buffer on every read,
//! which is what reading in place would need without unsafe code. A short read clears readiness at once (the socket is
//! empty: epoll(7), "edge-triggered"), which saves the system call that would only say so.
//! Elsewhere than on Linux reads are stamped by the clock after they return, and every run says so.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, Interest, ReadBuf};
use tokio::net::{TcpSocket, TcpStream};

use crate::stamp::{Meter, Stamps};

/// Most bytes one read takes. Larger reads would blur more events into one stamp and save nothing.
const READ_MAX: usize = 16 * 1024;

/// Parts of a write up to this are joined and written as one: `send` of one buffer takes less than `writev` of two.
const JOIN_MAX: usize = 4096;

/// The stream.
#[derive(Debug)]
pub struct StampedStream {
    stream: TcpStream,
    stamps: Rc<Stamps>,
}

impl StampedStream {
    /// Connects to `addr` without delay (Nagle's algorithm off) and with stamps on, where the kernel has them.
    pub async fn connect(addr: SocketAddr, meter: &Rc<Meter>) -> io::Result<StampedStream> {
        let socket = if addr.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
        socket.set_nodelay(true)?;
        // A kernel without stamps is no error: the reads carry none, and the run says so.
        let _ = enable_stamps(&socket);
        let stream = socket.connect(addr).await?;
        meter.opened();
        Ok(StampedStream { stream, stamps: Stamps::new(Rc::clone(meter)) })
    }

    /// What the socket has seen.
    pub fn stamps(&self) -> &Rc<Stamps> {
        &self.stamps
    }

    fn poll_recv(&self, cx: &mut Context<'_>, want: usize, out: impl FnOnce(&[u8])) -> Poll<io::Result<()>> {
        loop {
            ready!(self.stream.poll_read_ready(cx))?;
            let mut got = None;
            let attempt = self.stream.try_io(Interest::READABLE, || {
                let (n, kernel) = recv(&self.stream, want.min(READ_MAX))?;
                got = Some((n, kernel));
                // A short read emptied the socket: "would block" makes tokio forget the readiness now.
                // (End of stream stays known: it is a readiness of its own that is never cleared.)
                if n < want.min(READ_MAX) { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
            });
            match (attempt, got) {
                (_, Some((0, _))) => return Poll::Ready(Ok(())),
                (_, Some((n, kernel))) => {
                    self.stamps.read(n, kernel);
                    SCRATCH.with_borrow(|scratch| out(&scratch.bytes[..n]));
                    return Poll::Ready(Ok(()));
                }
                (Err(e), None) if e.kind() == io::ErrorKind::WouldBlock => continue,
                (Err(e), None) => return Poll::Ready(Err(e)),
                (Ok(()), None) => continue,
            }
        }
    }
}

impl Drop for StampedStream {
    fn drop(&mut self) {
        self.stamps.meter().closed();
    }
}

/// One read's landing place.
#[repr(align(16))]
struct Scratch {
    control: Control,
    bytes: [u8; READ_MAX],
}

/// Control messages are read as structures: the buffer must be aligned as they are.
#[repr(align(16))]
struct Control([u8; 256]);

thread_local! {
    static SCRATCH: std::cell::RefCell<Box<Scratch>> =
        std::cell::RefCell::new(Box::new(Scratch { control: Control([0; 256]), bytes: [0; READ_MAX] }));
}

#[cfg(target_os = "linux")]
fn enable_stamps(socket: &impl std::os::fd::AsFd) -> io::Result<()> {
    use nix::sys::socket::{TimestampingFlag, setsockopt, sockopt};
    let flags = TimestampingFlag::SOF_TIMESTAMPING_RX_SOFTWARE | TimestampingFlag::SOF_TIMESTAMPING_SOFTWARE;
    Ok(setsockopt(socket, sockopt::Timestamping, &flags)?)
}

/// Bytes into the scratch buffer: how many, and the kernel's stamp of the last (CLOCK_REALTIME ns).
#[cfg(target_os = "linux")]
fn recv(stream: &TcpStream, want: usize) -> io::Result<(usize, Option<i64>)> {
    use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
    use std::os::fd::AsRawFd;
    SCRATCH.with_borrow_mut(|scratch| {
        let Scratch { control, bytes } = &mut **scratch;
        let mut iov = [io::IoSliceMut::new(&mut bytes[..want])];
        let message =
            recvmsg::<()>(stream.as_raw_fd(), &mut iov, Some(&mut control.0), MsgFlags::MSG_DONTWAIT)?;
        let stamp = message.cmsgs().ok().and_then(|mut all| {
            all.find_map(|one| match one {
                ControlMessageOwned::ScmTimestampsns(stamps) => {
                    Some(stamps.system.tv_sec() * 1_000_000_000 + stamps.system.tv_nsec())
                }
                _ => None,
            })
        });
        Ok((message.bytes, stamp.filter(|&ns| ns > 0)))
    })
}

#[cfg(not(target_os = "linux"))]
fn enable_stamps(_: &TcpSocket) -> io::Result<()> {
    Ok(())
}

#[cfg(not(target_os = "linux"))]
fn recv(stream: &TcpStream, want: usize) -> io::Result<(usize, Option<i64>)> {
    use std::io::Read;
    SCRATCH.with_borrow_mut(|scratch| {
        let n = socket2::SockRef::from(stream).read(&mut scratch.bytes[..want])?;
        Ok((n, None))
    })
}

/// A socket that asks for stamps and does nothing else. The kernel begins to stamp some time after the first socket has
/// asked (it patches its receive path in the background) and stops with the last: whoever measures holds one of these
/// from before the first connection to after the last, or the first packets come without a stamp.
#[derive(Debug)]
pub struct StampingOn(#[expect(dead_code, reason = "held, not used")] Option<socket2::Socket>);

impl StampingOn {
    /// Asks now.
    pub fn ask() -> StampingOn {
        StampingOn(stamping_socket())
    }
}

fn stamping_socket() -> Option<socket2::Socket> {
    #[cfg(target_os = "linux")]
    {
        let socket = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).ok()?;
        enable_stamps(&socket).ok()?;
        Some(socket)
    }
    #[cfg(not(target_os = "linux"))]
    {
        None
    }
}

/// Can this kernel stamp arrivals? Makes a socket and asks; nothing is sent.
pub fn kernel_stamps_available() -> bool {
    stamping_socket().is_some()
}

impl StampedStream {
    /// Has the peer closed its side, as far as the event loop knows? Costs no system call.
    pub fn peer_closed(&self) -> bool {
        let mut ready = std::pin::pin!(self.stream.ready(Interest::READABLE));
        let mut cx = Context::from_waker(std::task::Waker::noop());
        match ready.as_mut().poll(&mut cx) {
            Poll::Ready(Ok(ready)) => ready.is_read_closed() || ready.is_error(),
            Poll::Ready(Err(_)) => true,
            Poll::Pending => false,
        }
    }
}

impl AsyncRead for StampedStream {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let want = buf.remaining();
        if want == 0 {
            return Poll::Ready(Ok(()));
        }
        self.poll_recv(cx, want, |bytes| buf.put_slice(bytes))
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
        let length: usize = bufs.iter().map(|buf| buf.len()).sum();
        let join = bufs.len() > 1 && length <= JOIN_MAX;
        let (before, polled) = SCRATCH.with_borrow_mut(|scratch| {
            if join {
                let mut rest = &mut scratch.bytes[..];
                for buf in bufs {
                    let (part, after) = rest.split_at_mut(buf.len());
                    part.copy_from_slice(buf);
                    rest = after;
                }
            }
            let before = self.stamps.meter().clock.now();
            let stream = Pin::new(&mut self.stream);
            let polled = match join {
                true => stream.poll_write(cx, &scratch.bytes[..length]),
                false => stream.poll_write_vectored(cx, bufs),
            };
            (before, polled)
        });
        let n = ready!(polled)?;
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
