//! What the kernel knows of an attempt's connection, as bytes inside its record.

use plimsoll_model::{Span, TcpFacts};

use super::{CodeError, Eye, Pen, has};

/// Which of its figures are there.
pub fn bits(tcp: &TcpFacts) -> u64 {
    let bit = |on: bool, bit: u64| if on { bit } else { 0 };
    bit(tcp.rtt.is_some(), has::TCP_RTT)
        | bit(tcp.rtt_var.is_some(), has::TCP_RTT_VAR)
        | bit(tcp.rtt_min.is_some(), has::TCP_RTT_MIN)
        | bit(tcp.retransmits.is_some(), has::TCP_RETRANSMITS)
        | bit(tcp.segments_out.is_some(), has::TCP_SEGMENTS_OUT)
        | bit(tcp.segments_in.is_some(), has::TCP_SEGMENTS_IN)
        | bit(tcp.out_of_order.is_some(), has::TCP_OUT_OF_ORDER)
}

/// Writes those that are.
pub fn put(pen: &mut Pen<'_>, tcp: &TcpFacts) {
    for time in [tcp.rtt, tcp.rtt_var, tcp.rtt_min].into_iter().flatten() {
        pen.signed(time.0);
    }
    for count in [tcp.retransmits, tcp.segments_out, tcp.segments_in, tcp.out_of_order] {
        pen.maybe(count.map(u64::from));
    }
}

/// Reads those that `bits` announces.
pub fn get(eye: &mut Eye<'_>, bits: u64) -> Result<TcpFacts, CodeError> {
    let mut time = |bit: u64| -> Result<Option<Span>, CodeError> {
        if bits & bit != 0 { Ok(Some(Span(eye.signed()?))) } else { Ok(None) }
    };
    let (rtt, rtt_var, rtt_min) = (time(has::TCP_RTT)?, time(has::TCP_RTT_VAR)?, time(has::TCP_RTT_MIN)?);
    let mut count = |bit: u64| -> Result<Option<u32>, CodeError> {
        if bits & bit != 0 { Ok(Some(eye.narrow("count of segments")?)) } else { Ok(None) }
    };
    Ok(TcpFacts {
        rtt,
        rtt_var,
        rtt_min,
        retransmits: count(has::TCP_RETRANSMITS)?,
        segments_out: count(has::TCP_SEGMENTS_OUT)?,
        segments_in: count(has::TCP_SEGMENTS_IN)?,
        out_of_order: count(has::TCP_OUT_OF_ORDER)?,
    })
}
