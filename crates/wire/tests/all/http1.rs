//! Answers off a connection: the framing rules of RFC 9112, and bytes in any pieces.

use plimsoll_wire::Head;
use plimsoll_wire::http1::{HEAD_MAX, HttpFault, Reader, ResponsePart};
use proptest::prelude::*;

/// The parsed content of one connection's bytes, up to the end of its answer or of the bytes.
#[derive(Clone, PartialEq, Debug, Default)]
struct Got {
    heads: Vec<Head>,
    body: Vec<u8>,
    /// It ended; by its framing, or with the connection.
    whole: bool,
    fault: Option<HttpFault>,
    reusable: bool,
    /// Bytes after the end.
    left: usize,
}

impl Got {
    fn status(&self) -> Option<u16> {
        self.heads.first().map(|head| head.status)
    }
}

/// Feeds the pieces, then ends the connection.
fn read(pieces: &[&[u8]]) -> Got {
    let (mut reader, mut got) = (Reader::default(), Got::default());
    for piece in pieces {
        let mut rest = *piece;
        while !got.whole && got.fault.is_none() {
            match reader.next(&mut rest, || 0) {
                Ok(None) => break,
                Ok(Some(ResponsePart::Head(head))) => got.heads.push(head),
                Ok(Some(ResponsePart::Data(data))) => got.body.extend_from_slice(data),
                Ok(Some(ResponsePart::End)) => got.whole = true,
                Err(fault) => got.fault = Some(fault),
            }
            assert!(reader.held() <= HEAD_MAX);
        }
        if got.whole || got.fault.is_some() {
            got.left += rest.len();
        } else {
            assert!(rest.is_empty(), "what is not understood yet is kept by the reader");
        }
    }
    got.reusable = reader.is_reusable();
    if got.fault.is_some() {
        got.left = 0;
    } else if !got.whole {
        match reader.ended() {
            Ok(whole) => got.whole = whole,
            Err(fault) => got.fault = Some(fault),
        }
    }
    got
}

fn cut<'a>(bytes: &'a [u8], at: &[usize]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = at.iter().map(|at| at % (bytes.len() + 1)).collect();
    ends.extend([0, bytes.len()]);
    ends.sort_unstable();
    ends.windows(2).map(|pair| &bytes[pair[0]..pair[1]]).collect()
}

/// Checks an answer in one piece and byte by byte.
#[track_caller]
fn check(text: &str, status: u16, body: &str, whole: bool, reusable: bool) {
    let got = read(&[text.as_bytes()]);
    let told = (got.status(), String::from_utf8_lossy(&got.body).into_owned(), got.whole, got.reusable);
    assert_eq!(told, (Some(status), body.to_owned(), whole, reusable), "{got:?}");
    assert_eq!(read(&text.as_bytes().chunks(1).collect::<Vec<_>>()), got);
}

#[test]
fn where_a_body_ends_and_what_that_means_for_the_connection() {
    // RFC 9112, 6.3: in its order.
    check("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true, true);
    check("HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n", 304, "", true, true);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, Chunked\r\n\r\n";
    check(
        &format!("{chunked}3\r\nabc\r\n0A ;x=y\r\n0123456789\r\n0\r\n\r\n"),
        200,
        "abc0123456789",
        true,
        true,
    );
    check(&format!("{chunked}1\r\na\r\n0\r\nage: 3\r\nx: y\r\n\r\n"), 200, "a", true, true);
    check(&format!("{chunked}5\r\nabc"), 200, "abc", false, false);
    // Transfer-Encoding overrides Content-Length.
    let both =
        "HTTP/1.1 200 OK\r\ncontent-length: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\na\r\n0\r\n\r\n";
    check(both, 200, "a", true, true);
    check("HTTP/1.1 200 OK\r\ntransfer-encoding: gzip\r\n\r\nabc", 200, "abc", true, false);
    check("HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nabc", 200, "abc", true, true);
    check("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", 200, "", true, true);
    check("HTTP/1.1 200 OK\r\ncontent-length: 3, 3\r\ncontent-length: 3\r\n\r\nabc", 200, "abc", true, true);
    check("HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nabc", 200, "abc", false, false);
    check("HTTP/1.1 200 OK\r\n\r\nabc", 200, "abc", true, false);
    check("HTTP/1.1 200 OK\r\n\r\n", 200, "", true, false);
}

#[test]
fn who_keeps_a_connection() {
    // RFC 9112, 9.3.
    let head =
        |version: &str, line: &str| format!("HTTP/{version} 200 OK\r\n{line}content-length: 1\r\n\r\na");
    check(&head("1.1", "connection: Close\r\n"), 200, "a", true, false);
    check(&head("1.1", "connection: x, close\r\nconnection: keep-alive\r\n"), 200, "a", true, false);
    check(&head("1.0", ""), 200, "a", true, false);
    check(&head("1.0", "Connection: Keep-Alive\r\n"), 200, "a", true, true);
    // Another protocol from here on.
    check("HTTP/1.1 101 Switching Protocols\r\n\r\n", 101, "", true, false);
}

#[test]
fn interim_answers_are_passed_over() {
    let answer = "HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\na";
    check(&format!("HTTP/1.1 100 Continue\r\n\r\n{answer}"), 200, "a", true, true);
    let hints = "HTTP/1.1 103 Early Hints\r\nlink: </s>\r\n\r\n";
    check(&format!("{hints}{hints}{answer}"), 200, "a", true, true);
    let got = read(&[hints.as_bytes()]);
    assert_eq!((got.status(), got.whole, got.fault), (None, false, None));
}

#[track_caller]
fn broken(bytes: &str) -> HttpFault {
    let got = read(&[bytes.as_bytes()]);
    assert_eq!(read(&bytes.as_bytes().chunks(1).collect::<Vec<_>>()), got);
    got.fault.unwrap_or_else(|| panic!("{bytes:?} was taken: {got:?}"))
}

#[test]
fn what_is_no_answer_is_told() {
    use HttpFault::{Chunk, Coding, Endless, Head as Bad, Length};
    assert!(matches!(broken("SSH-2.0-OpenSSH_9.2\r\n\r\n"), Bad(_)));
    assert!(matches!(broken("<html>"), Bad(_)));
    assert_eq!(broken("\u{15}\u{3}\u{3}\0\u{2}\u{2}F"), HttpFault::Tls);
    assert!(matches!(broken("HTTP/1.1 20 OK\r\n\r\n"), Bad(_)));
    assert!(matches!(broken("HTTP/2.0 200 OK\r\n\r\n"), Bad(_)));
    assert!(matches!(broken("HTTP/1.1 200 OK\r\na b: c\r\n\r\n"), Bad(_)));
    assert!(matches!(broken("HTTP/1.1 200 OK\r\na b"), Bad(_)), "cut off, and no head before that");
    let many = (0..101).map(|i| format!("x-{i}: y\r\n")).collect::<String>();
    assert_eq!(broken(&format!("HTTP/1.1 200 OK\r\n{many}\r\n")), Bad(httparse::Error::TooManyHeaders));
    for length in ["x", "", "-1", "+1", "1 2", "3, 4", "3,", "3\r\ncontent-length: 4", "9999999999999999999"]
    {
        assert_eq!(
            broken(&format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n")),
            Length,
            "{length}"
        );
    }
    assert_eq!(broken("HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"), Coding);
    let bad =
        ["zz\r\n", "\r\n", "1\n", "1 1\r\n", "1\r\nab\r\n", "1;\n", "0\r\nx\ry", "11111111111111111\r\n"];
    for chunk in bad {
        let text = format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{chunk}");
        assert!(matches!(broken(&text), Chunk(_)), "{chunk:?}");
    }
    let long = format!("HTTP/1.1 200 OK\r\nx: {}", "y".repeat(HEAD_MAX));
    assert_eq!(read(&[long.as_bytes()]).fault, Some(Endless));
    assert_eq!(read(&long.as_bytes().chunks(1000).collect::<Vec<_>>()).fault, Some(Endless));
}

#[test]
fn nothing_goes_on_for_ever() {
    let chunked = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let endless = [
        format!("{chunked}1;{}", "x".repeat(20_000)),
        format!("{chunked}0\r\n{}", "x: y\r\n".repeat(20_000)),
    ];
    for text in endless {
        assert!(matches!(read(&[text.as_bytes()]).fault, Some(HttpFault::Chunk(_))));
    }
}

#[test]
fn one_answer_after_another() {
    let mut reader = Reader::default();
    let bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\naHTTP/1.1 429 No\r\nretry-after: 2\r\ncontent-length: 1\r\n\r\nb";
    let (mut input, mut told) = (&bytes[..], Vec::new());
    for _ in 0..2 {
        reader.begin();
        loop {
            match reader.next(&mut input, || 0).expect("an answer").expect("all there") {
                ResponsePart::Head(head) => told.push(head.status.to_string()),
                ResponsePart::Data(data) => told.push(String::from_utf8_lossy(data).into_owned()),
                ResponsePart::End => break,
            }
        }
        assert!(reader.is_reusable());
    }
    assert_eq!(told, ["200", "a", "429", "b"]);
    assert!(input.is_empty());
}

/// An answer with its body, coded one of three ways.
fn answer() -> impl Strategy<Value = (Vec<u8>, Vec<u8>)> {
    let body = proptest::collection::vec(any::<u8>(), 0..200);
    let cuts = proptest::collection::vec(0..200_usize, 0..5);
    (body, cuts, 0..3_u8, "(x-[a-z]{1,9}: [ -~]{0,20}\r\n){0,4}").prop_map(|(body, cuts, way, lines)| {
        let head = |framing: &str| format!("HTTP/1.1 200 OK\r\n{lines}{framing}\r\n").into_bytes();
        let bytes = match way {
            0 => [head(&format!("content-length: {}\r\n", body.len())), body.clone()].concat(),
            1 => [head(""), body.clone()].concat(),
            _ => {
                let mut bytes = head("transfer-encoding: chunked\r\n");
                for chunk in cut(&body, &cuts).into_iter().filter(|chunk| !chunk.is_empty()) {
                    bytes.extend(format!("{:x}\r\n", chunk.len()).bytes());
                    bytes.extend([chunk, b"\r\n"].concat());
                }
                bytes.extend(b"0\r\n\r\n");
                bytes
            }
        };
        (bytes, body)
    })
}

proptest! {
    #[test]
    fn a_body_comes_out_as_it_went_in((bytes, body) in answer(), at in proptest::collection::vec(any::<usize>(), 0..8)) {
        let got = read(&cut(&bytes, &at));
        prop_assert_eq!((got.status(), got.whole, got.fault), (Some(200), true, None));
        prop_assert_eq!(got.body, body);
    }

    #[test]
    fn pieces_make_no_difference_even_to_broken_answers(
        (bytes, _) in answer(),
        hurt in proptest::collection::vec((any::<usize>(), any::<u8>()), 0..4),
        at in proptest::collection::vec(any::<usize>(), 0..12),
    ) {
        let mut bytes = bytes;
        for (place, byte) in hurt {
            let place = place % bytes.len();
            bytes[place] = byte;
        }
        let whole = read(&[&bytes]);
        prop_assert_eq!(&read(&cut(&bytes, &at)), &whole);
        prop_assert_eq!(&read(&bytes.chunks(1).collect::<Vec<_>>()), &whole);
    }

    #[test]
    fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..400), at in proptest::collection::vec(any::<usize>(), 0..12)) {
        prop_assert_eq!(read(&cut(&bytes, &at)), read(&[&bytes]));
        let chunked = [&b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"[..], &bytes].concat();
        prop_assert_eq!(read(&cut(&chunked, &at)), read(&[&chunked]));
    }
}
