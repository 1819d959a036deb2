//! Reads the kernel's facts of a TCP connection (Linux: TCP_INFO; elsewhere none).

use std::os::fd::RawFd;

use plimsoll_model::{Span, TcpFacts};

/// Number of bytes of the kernel's result that are parsed.
#[cfg_attr(any(not(target_os = "linux"), feature = "portable"), allow(dead_code))]
const LEN: usize = 228;

/// The kernel's state of a connection, and counts since its start. `None` = the kernel does not report the field.
#[derive(Copy, Clone, PartialEq, Eq, Default, Debug)]
pub struct TcpInfo {
    /// Smoothed round-trip time in µs.
    rtt_us: Option<u32>,
    /// Mean deviation of the round-trip time in µs.
    rtt_var_us: Option<u32>,
    rtt_min_us: Option<u32>,
    retransmits: Option<u32>,
    /// Segments with data that were sent.
    segments_out: Option<u32>,
    /// Segments with data that were received.
    segments_in: Option<u32>,
    /// Segments received out of order.
    out_of_order: Option<u32>,
}

/// Returns the kernel's facts of this socket.
#[cfg(all(target_os = "linux", not(feature = "portable")))]
#[expect(
    unsafe_code,
    reason = "no safe crate reads TCP_INFO; the kernel writes at most `len` bytes into `bytes`"
)]
pub fn read(socket: RawFd) -> Option<TcpInfo> {
    use nix::libc;
    let mut bytes = [0u8; LEN];
    let mut len = LEN as libc::socklen_t;
    let room = bytes.as_mut_ptr().cast();
    // SAFETY: `room` and `len` point to a buffer and its length, both of this frame; a number that is no socket is an error.
    let asked = unsafe { libc::getsockopt(socket, libc::IPPROTO_TCP, libc::TCP_INFO, room, &mut len) };
    (asked == 0).then(|| TcpInfo::decode(bytes.get(..len as usize).unwrap_or(&bytes)))
}

/// Returns `None`, because this system has no TCP_INFO.
#[cfg(any(not(target_os = "linux"), feature = "portable"))]
pub fn read(_: RawFd) -> Option<TcpInfo> {
    None
}

impl TcpInfo {
    #[cfg_attr(any(not(target_os = "linux"), feature = "portable"), allow(dead_code))]
    fn decode(bytes: &[u8]) -> TcpInfo {
        let word = |at: usize| {
            let four = bytes.get(at..)?.first_chunk::<4>()?;
            Some(u32::from_ne_bytes(*four))
        };
        // Before the first round trip the smoothed value is 0 and the smallest is all ones.
        let rtt_us = word(68).filter(|us| *us > 0);
        TcpInfo {
            rtt_us,
            rtt_var_us: word(72).filter(|_| rtt_us.is_some()),
            rtt_min_us: word(148).filter(|us| *us > 0 && *us < u32::MAX),
            retransmits: word(100),
            segments_out: word(156),
            segments_in: word(152),
            out_of_order: word(224),
        }
    }

    /// Returns the facts of an attempt that ends now and began with the counts `before`.
    pub fn since(&self, before: &TcpInfo) -> TcpFacts {
        let time = |us: Option<u32>| us.map(|us| Span::from_micros(i64::from(us)));
        // The counts of a first attempt include the connection's handshake. The kernel's counters wrap.
        let count = |now: Option<u32>, was: Option<u32>| Some(now?.wrapping_sub(was.unwrap_or(0)));
        TcpFacts {
            rtt: time(self.rtt_us),
            rtt_var: time(self.rtt_var_us),
            rtt_min: time(self.rtt_min_us),
            retransmits: count(self.retransmits, before.retransmits),
            segments_out: count(self.segments_out, before.segments_out),
            segments_in: count(self.segments_in, before.segments_in),
            out_of_order: count(self.out_of_order, before.out_of_order),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Little-endian words at their offsets in `struct tcp_info` of Linux 6.18.
    fn kernel(len: usize, words: &[(usize, u32)]) -> Vec<u8> {
        let mut bytes = vec![0; len];
        for (at, word) in words {
            bytes[*at..at + 4].copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn what_an_older_kernel_does_not_send_is_unknown_and_no_round_trip_is_none() {
        let words = [(68, 11_159), (72, 444), (100, 9), (148, 10_111), (152, 4_225), (156, 391), (224, 467)];
        let whole = TcpInfo::decode(&kernel(LEN, &words));
        assert_eq!(whole.rtt_us.zip(whole.rtt_var_us).zip(whole.rtt_min_us), Some(((11_159, 444), 10_111)));
        let counts = (whole.retransmits, whole.segments_out, whole.segments_in, whole.out_of_order);
        assert_eq!(counts, (Some(9), Some(391), Some(4_225), Some(467)));
        // Linux 4.9 ends after the delivery rate, 2.6 after the retransmits.
        let shorter = TcpInfo::decode(&kernel(168, &words[..6]));
        assert_eq!(shorter, TcpInfo { out_of_order: None, ..whole });
        let oldest = TcpInfo::decode(&kernel(104, &words[..3]));
        assert_eq!((oldest.retransmits, oldest.segments_out, oldest.rtt_min_us), (Some(9), None, None));
        assert_eq!(TcpInfo::decode(&[]), TcpInfo::default());
        let nothing_yet = TcpInfo::decode(&kernel(LEN, &[(72, 250_000), (148, u32::MAX)]));
        assert_eq!((nothing_yet.rtt_us, nothing_yet.rtt_var_us, nothing_yet.rtt_min_us), (None, None, None));
    }

    #[test]
    fn an_attempt_is_told_what_passed_during_it() {
        let at =
            |again, out| TcpInfo { retransmits: Some(again), segments_out: Some(out), ..TcpInfo::default() };
        let during = at(7, 30).since(&at(5, 26));
        assert_eq!((during.retransmits, during.segments_out, during.rtt), (Some(2), Some(4), None));
        let first = at(1, 3).since(&TcpInfo::default());
        assert_eq!(
            (first.retransmits, first.segments_out),
            (Some(1), Some(3)),
            "a lost SYN is the first attempt's"
        );
        let wrapped = at(3, 1).since(&at(u32::MAX, 1));
        assert_eq!(wrapped.retransmits, Some(4));
    }
}
