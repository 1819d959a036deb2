//! The bytes of a connection as HTTP/1.1 answers in sequence, in pieces of any size.

use plimsoll_wire::http1::{Reader, ResponsePart};

/// Returns the result: the data together, and how it ended.
fn read<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<u8>, String) {
    let mut reader = Reader::default();
    let (mut data, mut answers) = (Vec::new(), 0);
    for mut piece in pieces {
        loop {
            match reader.next(&mut piece, || 1_700_000_000) {
                Ok(Some(ResponsePart::Data(bytes))) => data.extend_from_slice(bytes),
                Ok(Some(ResponsePart::End)) if reader.is_reusable() && answers < 100 => {
                    answers += 1;
                    reader.begin();
                }
                Ok(Some(_)) => {}
                Ok(None) => break,
                Err(fault) => return (data, format!("{fault:?}")),
            }
        }
    }
    // An error in a head without an end is detected immediately or when the connection ends: both are equal.
    let ended =
        reader.ended().map_or_else(|fault| format!("{fault:?}"), |whole| format!("{answers} {whole}"));
    (data, ended)
}

pub fn check(bytes: &[u8]) {
    let whole = read([bytes].into_iter());
    assert_eq!(read(bytes.chunks(1)), whole);
}
