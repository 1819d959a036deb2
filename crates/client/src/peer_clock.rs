//! This machine's clock against another's, over UDP: what NTP does in its four stamps (RFC 5905, section 8), between the machines of one load.
//!
//! Four times are known of each exchange: asked and answered by each of the two clocks. The offset lies within half the round trip of what
//! they say, whatever the network did, so that the shortest of many round trips bounds it: some ten microseconds in one cluster.
//! Reading the kernel's own word on its clock (`adjtimex`) lost: it says how far NTP believes to be from its server, which no other
//! machine here has measured.

use std::io::{self, ErrorKind};
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use plimsoll_model::ClockOffset;

use crate::clock::realtime_ns;

/// What every question and answer begins with.
const MAGIC: [u8; 8] = *b"plimsclk";
/// Both have this size, so that whoever asks in another's name makes that one receive no more than was sent.
const SIZE: usize = 32;
/// How long an answer is waited for. A round trip longer than this bounds nothing that matters.
const WAIT: Duration = Duration::from_millis(200);
/// How often the answering thread looks whether it is over.
const POLL: Duration = Duration::from_millis(100);
/// Between two comparisons while a load runs.
const EVERY: Duration = Duration::from_secs(1);

/// A clock as it is told: CLOCK_REALTIME and, where it is known to be wrong, by how much.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct WallClock {
    /// Added to every reading, ns.
    pub ahead_ns: i64,
}

impl WallClock {
    /// ns of the Unix epoch.
    pub fn now_ns(self) -> i64 {
        realtime_ns() + self.ahead_ns
    }
}

/// The address of this machine's that leads to another.
///
/// # Errors
/// There is no way to it.
pub fn address_towards(peer: SocketAddr) -> io::Result<IpAddr> {
    let any: IpAddr = match peer {
        SocketAddr::V4(_) => std::net::Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => std::net::Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0))?;
    socket.connect(peer)?;
    Ok(socket.local_addr()?.ip())
}

/// Answers whoever asks for the time, until it is dropped.
#[derive(Debug)]
pub struct ClockServer {
    address: SocketAddr,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ClockServer {
    /// Listens on a free port of this address.
    ///
    /// # Errors
    /// The machine gives no socket or no thread.
    pub fn start(address: IpAddr, clock: WallClock) -> io::Result<ClockServer> {
        let socket = UdpSocket::bind((address, 0))?;
        socket.set_read_timeout(Some(POLL))?;
        let address = socket.local_addr()?;
        let over = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("clock".into()).spawn(move || {
            while !told.load(Ordering::Relaxed) {
                answer(&socket, clock);
            }
        })?;
        Ok(ClockServer { address, over, thread: Some(thread) })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for ClockServer {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// One question, if one comes. What is no question gets no answer.
fn answer(socket: &UdpSocket, clock: WallClock) {
    let mut packet = [0; SIZE + 1];
    let Ok((SIZE, from)) = socket.recv_from(&mut packet) else { return };
    let asked_ns = clock.now_ns();
    if packet[..8] != MAGIC {
        return;
    }
    packet[16..24].copy_from_slice(&asked_ns.to_le_bytes());
    packet[24..32].copy_from_slice(&clock.now_ns().to_le_bytes());
    // An answer that is lost costs its question alone.
    let _ = socket.send_to(&packet[..SIZE], from);
}

/// How this machine's clock stands against a peer's: the closest of so many exchanges; `None` = none was answered.
///
/// # Errors
/// The machine gives no socket, or there is no way to the peer.
pub fn compare(peer: SocketAddr, clock: WallClock, exchanges: u64) -> io::Result<Option<ClockOffset>> {
    let socket = UdpSocket::bind((address_towards(peer)?, 0))?;
    socket.connect(peer)?;
    socket.set_read_timeout(Some(WAIT))?;
    let mut best: Option<ClockOffset> = None;
    let mut silent = 0;
    for number in 0..exchanges {
        match exchange(&socket, clock, number)? {
            Some(one) if best.is_none_or(|best| one.bound_ns < best.bound_ns) => best = Some(one),
            Some(_) => {}
            None => silent += 1,
        }
        // Nobody is there: no reason to wait for each of twenty.
        if silent >= 3 && best.is_none() {
            break;
        }
    }
    Ok(best)
}

fn exchange(socket: &UdpSocket, clock: WallClock, number: u64) -> io::Result<Option<ClockOffset>> {
    let mut packet = [0; SIZE];
    packet[..8].copy_from_slice(&MAGIC);
    packet[8..16].copy_from_slice(&number.to_le_bytes());
    let question = packet;
    let sent_ns = clock.now_ns();
    match socket.send(&question) {
        // What an earlier question met (nobody listens) is said at the next one.
        Err(e) if e.kind() == ErrorKind::ConnectionRefused => return Ok(None),
        other => drop(other?),
    }
    loop {
        match socket.recv(&mut packet) {
            // The late answer to another question.
            Ok(n) if n != SIZE || packet[..16] != question[..16] => {}
            Ok(_) => break,
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::ConnectionRefused
                ) =>
            {
                return Ok(None);
            }
            Err(e) => return Err(e),
        }
    }
    let back_ns = clock.now_ns();
    let told = |at: usize| i64::from_le_bytes(packet[at..at + 8].try_into().unwrap_or_default());
    Ok(Some(of_stamps(sent_ns, told(16), told(24), back_ns)))
}

/// The offset that four stamps tell, and how far from it the true one may be.
fn of_stamps(sent_ns: i64, asked_ns: i64, answered_ns: i64, back_ns: i64) -> ClockOffset {
    let there = asked_ns.saturating_sub(sent_ns);
    let back = answered_ns.saturating_sub(back_ns);
    let offset_ns = there / 2 + back / 2;
    // A nanosecond for the halves that were cut off.
    ClockOffset { offset_ns, bound_ns: (there.saturating_sub(back) / 2).max(0) + 1 }
}

/// Compares with a peer again and again while a load runs: a clock that was right at the start may drift.
#[derive(Debug)]
pub struct ClockWatch {
    last: Arc<Mutex<Option<ClockOffset>>>,
    over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ClockWatch {
    /// Begins.
    ///
    /// # Errors
    /// The machine gives no thread.
    pub fn start(peer: SocketAddr, clock: WallClock) -> io::Result<ClockWatch> {
        let (last, over) = (Arc::<Mutex<_>>::default(), Arc::new(AtomicBool::new(false)));
        let (kept, told) = (Arc::clone(&last), Arc::clone(&over));
        let thread = std::thread::Builder::new().name("clock".into()).spawn(move || {
            while !told.load(Ordering::Relaxed) {
                std::thread::park_timeout(EVERY);
                if let Ok(Some(seen)) = compare(peer, clock, 4) {
                    *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(seen);
                }
            }
        })?;
        Ok(ClockWatch { last, over, thread: Some(thread) })
    }

    /// Ends; what was seen last.
    pub fn end(mut self) -> Option<ClockOffset> {
        self.stop();
        *self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join();
        }
    }
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        self.stop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    /// RFC 5905's four stamps by hand: the peer is 1000 ahead, 30 there, 10 at the peer, 70 back.
    #[test]
    fn four_stamps_bound_the_offset_whatever_the_way_took() {
        let found = of_stamps(0, 1_030, 1_040, 110);
        assert_eq!(found, ClockOffset { offset_ns: 980, bound_ns: 51 });
        assert!((found.offset_ns - 1_000).abs() <= found.bound_ns);
    }

    #[test]
    fn a_clock_that_is_wrong_by_so_much_is_found_to_be() {
        for ahead_ns in [0, 50_000_000, -3_000_000_000] {
            let server = ClockServer::start(HERE, WallClock { ahead_ns }).expect("loopback");
            let found = compare(server.address(), WallClock::default(), 20).expect("loopback");
            let found = found.expect("answered");
            assert!((found.offset_ns - ahead_ns).abs() <= found.bound_ns, "{found:?} for {ahead_ns}");
        }
    }

    #[test]
    fn nobody_there_is_nothing_known() {
        let gone = ClockServer::start(HERE, WallClock::default()).expect("loopback").address();
        assert_eq!(compare(gone, WallClock::default(), 20).expect("loopback"), None);
    }

    #[test]
    fn what_is_no_question_gets_no_answer() {
        let server = ClockServer::start(HERE, WallClock::default()).expect("loopback");
        let socket = UdpSocket::bind((HERE, 0)).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_millis(300))).expect("a socket");
        for wrong in [&b"plimsclk"[..], &[0; SIZE], &[b'p'; 500]] {
            socket.send_to(wrong, server.address()).expect("loopback");
        }
        let mut packet = [0; 64];
        assert!(socket.recv(&mut packet).is_err());
        // And it still answers what is one.
        assert!(compare(server.address(), WallClock::default(), 3).expect("loopback").is_some());
    }
}
