//! What engines publish of their caches, as vLLM's own publisher put it on the wire through libzmq (`fixtures/kv_events`), in whatever pieces it comes.

use bytes::Bytes;
use plimsoll_model::KvEvent;
use plimsoll_wire::kv_events::{self, KvBatchError};
use plimsoll_wire::zmtp::{self, SocketKind, ZmtpError, ZmtpReader, ZmtpReceived};

const PUBLISHED: &[u8] = include_bytes!("../../fixtures/kv_events/vllm-0.32-pub.bin");
const REPLAYED: &[u8] = include_bytes!("../../fixtures/kv_events/vllm-0.32-replay.bin");
const ARRAYS: &[u8] = include_bytes!("../../fixtures/kv_events/sglang-arrays.msgpack");
const MAPS: &[u8] = include_bytes!("../../fixtures/kv_events/maps.msgpack");

fn reader(own: SocketKind) -> ZmtpReader {
    ZmtpReader::new(own, 1 << 20)
}

fn said(reader: &mut ZmtpReader) -> Result<Vec<ZmtpReceived>, ZmtpError> {
    let mut all = Vec::new();
    while let Some(received) = reader.take()? {
        all.push(received);
    }
    Ok(all)
}

fn whole(own: SocketKind, bytes: &[u8]) -> Result<Vec<ZmtpReceived>, ZmtpError> {
    let mut reader = reader(own);
    reader.push(bytes);
    said(&mut reader)
}

fn messages(own: SocketKind, bytes: &[u8]) -> Vec<Vec<Bytes>> {
    let said = whole(own, bytes).expect("a real socket's bytes");
    assert_eq!(said[..2], [ZmtpReceived::Greeting, ZmtpReceived::Ready]);
    let message = |received| match received {
        ZmtpReceived::Message(parts) => parts,
        other => panic!("{other:?} is no message"),
    };
    said.into_iter().skip(2).map(message).collect()
}

/// The name of a block whose hash is 32 times this byte: the last eight of them.
fn name(byte: u8) -> u64 {
    u64::from_be_bytes([byte; 8])
}

/// The three batches that were published: what was put into vLLM's structs.
fn published() -> [Vec<KvEvent>; 3] {
    let stored =
        |parent, blocks: &[u64]| KvEvent::Stored { parent, block_tokens: 16, blocks: blocks.to_vec() };
    [
        vec![stored(None, &[name(1), name(2), name(3)])],
        // The event of a block in the CPU's memory between them is passed over.
        vec![stored(Some(name(3)), &[11_223_344_556_677_889_900]), KvEvent::Removed(vec![name(2), name(3)])],
        vec![KvEvent::Cleared],
    ]
}

#[test]
fn what_vllm_publishes_is_what_was_put_in() {
    let messages = messages(SocketKind::Subscriber, PUBLISHED);
    assert_eq!(messages.len(), 3);
    for ((number, message), events) in (0u64..).zip(&messages).zip(published()) {
        let [topic, sequence, payload] = &message[..] else { panic!("{message:?}") };
        assert_eq!((&topic[..], &sequence[..]), (&b"kv"[..], &number.to_be_bytes()[..]));
        let batch = kv_events::read(payload).expect("a batch");
        assert_eq!((batch.ts, batch.rank), (1_795_800_000.25, Some(0)));
        assert_eq!((batch.events, batch.passed_over), (events, u32::from(number == 1)));
    }
}

#[test]
fn what_vllm_sends_again_ends_with_no_number() {
    let messages = messages(SocketKind::Dealer, REPLAYED);
    let numbers: Vec<u64> = messages
        .iter()
        .map(|parts| u64::from_be_bytes(parts[parts.len() - 2][..].try_into().expect("eight bytes")))
        .collect();
    assert_eq!(numbers, [1, 2, u64::MAX]);
    let batch = kv_events::read(messages[0].last().expect("a payload")).expect("a batch");
    assert_eq!(batch.events, published()[1]);
}

#[test]
fn wherever_the_bytes_are_cut_the_same_is_read() {
    for (own, bytes) in [(SocketKind::Subscriber, PUBLISHED), (SocketKind::Dealer, REPLAYED)] {
        let all = whole(own, bytes).expect("a real socket's bytes");
        for cut in 0..=bytes.len() {
            let mut reader = reader(own);
            reader.push(&bytes[..cut]);
            let mut said_so_far = said(&mut reader).expect("the beginning of them");
            reader.push(&bytes[cut..]);
            said_so_far.extend(said(&mut reader).expect("the rest of them"));
            assert_eq!(said_so_far, all, "cut at {cut}");
        }
    }
}

#[test]
fn other_shapes_of_the_same_events_are_read_too() {
    let arrays = kv_events::read(ARRAYS).expect("a batch");
    let stored = KvEvent::Stored { parent: None, block_tokens: 1, blocks: vec![-5i64 as u64, 6] };
    assert_eq!(arrays.events, [stored, KvEvent::Removed(vec![-5i64 as u64]), KvEvent::Cleared]);
    assert_eq!(arrays.rank, None);
    let maps = kv_events::read(MAPS).expect("a batch");
    let stored = KvEvent::Stored { parent: Some(6), block_tokens: 16, blocks: vec![7] };
    assert_eq!((maps.events, maps.rank), (vec![stored, KvEvent::Cleared], Some(3)));
}

#[test]
fn what_is_written_is_what_is_read() {
    let events = published().concat();
    let batch = kv_events::read(&kv_events::write(7.5, &events)).expect("a batch");
    assert_eq!((batch.ts, batch.events, batch.passed_over), (7.5, events, 0));
}

#[test]
fn a_batch_that_is_cut_or_too_large_is_none() {
    for batch in [ARRAYS, MAPS, &kv_events::write(1.0, &published().concat())] {
        for len in 0..batch.len() {
            // The last field of a batch is one that it may lack, but a list says how many follow.
            assert_eq!(kv_events::read(&batch[..len]), Err(KvBatchError::Broken), "{len} bytes");
        }
    }
    let many = kv_events::write(1.0, &vec![KvEvent::Cleared; 1 + (1 << 16)]);
    assert_eq!(kv_events::read(&many), Err(KvBatchError::TooLarge));
    let many = kv_events::write(1.0, &[KvEvent::Removed(vec![1; 1 + (1 << 18)])]);
    assert_eq!(kv_events::read(&many), Err(KvBatchError::TooLarge));
    // A list that claims more than there are bytes, and one list in another as deep as it goes.
    assert_eq!(kv_events::read(b"\xdd\xff\xff\xff\xff\x00"), Err(KvBatchError::Broken));
    let deep = [&b"\x92\xcb\0\0\0\0\0\0\0\0"[..], &vec![0x91; 1 << 20][..], b"\xc0"].concat();
    assert_eq!(kv_events::read(&deep), Err(KvBatchError::Broken));
}

#[test]
fn a_peer_that_is_none_is_told_from_its_first_bytes() {
    let said = |bytes: &[u8]| whole(SocketKind::Subscriber, bytes);
    assert_eq!(said(b"HTTP/1.1 400 Bad Request\r\n\r\n"), Err(ZmtpError::Foreign));
    assert_eq!(said(b"\xff\0\0\0\0\0\0\0\x01\x7f\x01"), Err(ZmtpError::Version(1)), "libzmq 3");
    let with = |mechanism: &[u8]| {
        let mut greeting = zmtp::greeting();
        greeting[12..12 + mechanism.len()].copy_from_slice(mechanism);
        greeting
    };
    assert_eq!(said(&with(b"CURVE")), Err(ZmtpError::Mechanism("CURVE".to_owned())));
    let behind = |frames: &[u8]| said(&[&zmtp::greeting(), frames].concat());
    let wrong = behind(&zmtp::ready(SocketKind::Subscriber)).expect_err("a subscriber publishes nothing");
    assert_eq!(wrong, ZmtpError::Kind("SUB".to_owned(), "SUB"));
    assert_eq!(behind(b"\x04\x0c\x05ERROR\x05wrong"), Err(ZmtpError::Refused("wrong".to_owned())));
    assert_eq!(behind(b"\x08\x00"), Err(ZmtpError::Broken));
    assert_eq!(
        behind(b"\x02\xff\xff\xff\xff\xff\xff\xff\xff"),
        Err(ZmtpError::TooLarge(1 << 20)),
        "before it came"
    );
    assert_eq!(behind(&b"\x01\x00".repeat(20)), Err(ZmtpError::TooLarge(1 << 20)), "parts without end");
    let halves = [&b"\x03"[..], &(600u64 << 10).to_be_bytes(), &vec![0; 600 << 10]].concat();
    assert_eq!(behind(&halves.repeat(2)), Err(ZmtpError::TooLarge(1 << 20)), "in parts");
    let ping = behind(b"\x04\x0b\x04PING\x00\x0aabcd").expect("a command");
    assert_eq!(ping, [ZmtpReceived::Greeting, ZmtpReceived::Ping(Bytes::from_static(b"abcd"))]);
    assert_eq!(zmtp::pong(b"abcd"), b"\x04\x09\x04PONGabcd");
}

#[test]
fn what_we_say_is_what_the_protocol_has() {
    // ZMTP 3.0, 2.2 (greeting) and 2.3.1 (NULL).
    let greeting = zmtp::greeting();
    assert_eq!(greeting[..16], *b"\xff\0\0\0\0\0\0\0\0\x7f\x03\x00NULL");
    assert!(greeting[16..].iter().all(|byte| *byte == 0));
    assert_eq!(zmtp::ready(SocketKind::Subscriber), b"\x04\x19\x05READY\x0bSocket-Type\0\0\0\x03SUB");
    assert_eq!(zmtp::subscription(b"kv"), b"\x00\x03\x01kv");
    assert_eq!(zmtp::message(&[b"", b"abc"]), b"\x01\x00\x00\x03abc");
    let long = zmtp::message(&[&[7; 256]]);
    assert_eq!((&long[..9], long.len()), (&b"\x02\0\0\0\0\0\0\x01\0"[..], 265));
}
