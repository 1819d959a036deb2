//! Describes the content of an unexpected file for the user.
//!
//! The usual mistakes have names: a compressed file, a table, a text that is not UTF-8. Of any other file the beginning is shown, as
//! text if it is text and otherwise with its unprintable bytes escaped.

/// Number of shown characters of a text, and of bytes of other content.
const SHOWN: (usize, usize) = (40, 16);

/// Beginnings of known formats.
const KNOWN: [(&[u8], &str); 14] = [
    (b"\x1f\x8b", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"BZh", "bzip2"),
    (b"\xfd7zXZ\0", "xz"),
    (b"PK\x03\x04", "a ZIP archive"),
    (b"PAR1", "Parquet"),
    (b"SQLite format 3\0", "an SQLite database (an export of Nsight Systems must be uncompressed)"),
    (b"NVIDIA Tegra Profiler Report", "a report of Nsight Systems: run nsys export --type sqlite"),
    (b"ARROW1", "an Arrow file"),
    (b"\x89HDF", "an HDF5 file"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"%PDF-", "a PDF"),
    (b"\xff\xfe", "UTF-16 text: save it as UTF-8"),
    (b"\xfe\xff", "UTF-16 text: save it as UTF-8"),
];

/// Returns a description of these bytes.
pub(super) fn like(bytes: &[u8]) -> String {
    if bytes.is_empty() {
        return "nothing: it is empty".into();
    }
    if let Some((_, name)) = KNOWN.iter().find(|(magic, _)| bytes.starts_with(magic)) {
        return (*name).to_owned();
    }
    // Protocols 2 to 5 of pickle begin with these two bytes.
    if let [0x80, 2..=5, ..] = bytes {
        return "a Python pickle".into();
    }
    if bytes.get(257..262) == Some(b"ustar") {
        return "a tar archive".into();
    }
    match text(bytes) {
        Some((head, more)) => format!("text that begins with {head:?}{}", if more { " …" } else { "" }),
        None => {
            let head = &bytes[..bytes.len().min(SHOWN.1)];
            let more = if bytes.len() > head.len() { " …" } else { "" };
            format!("bytes that begin with {}{more}", head.escape_ascii())
        }
    }
}

/// Returns the first characters, and whether there are more; `None` if the bytes are not text.
fn text(bytes: &[u8]) -> Option<(String, bool)> {
    // Four bytes per character at most; the last one may be cut.
    let head = &bytes[..bytes.len().min(4 * SHOWN.0)];
    let valid = match std::str::from_utf8(head) {
        Ok(text) => text,
        Err(e) if e.error_len().is_none() && e.valid_up_to() > 0 => {
            std::str::from_utf8(&head[..e.valid_up_to()]).ok()?
        }
        Err(_) => return None,
    };
    let odd = |c: char| c.is_control() && !matches!(c, '\t' | '\r' | '\n');
    let shown: String = valid.chars().take(SHOWN.0).collect();
    (!shown.contains(odd)).then(|| {
        let more = shown.len() < bytes.len();
        (shown, more)
    })
}

#[cfg(test)]
mod tests {
    use super::like;

    #[test]
    fn the_usual_mistakes_are_named_and_the_rest_can_be_read() {
        let check = |bytes: &[u8], says: &str| assert_eq!(like(bytes), says, "{bytes:?}");
        check(b"", "nothing: it is empty");
        check(b"\x1f\x8b\x08\0", "gzip");
        check(b"\xff\xfeZ\0e\0i\0t\0", "UTF-16 text: save it as UTF-8");
        check(b"\x80\x04\x95\x12", "a Python pickle");
        check(b"\x7fELF\x02\x01", "a program or library (ELF)");
        check(b"a;b\n1;2\n", r#"text that begins with "a;b\n1;2\n""#);
        // A character of two bytes at the cut remains text.
        let umlauts = "ä".repeat(100);
        check(umlauts.as_bytes(), &format!("text that begins with {:?} …", "ä".repeat(40)));
        check(&umlauts.as_bytes()[..159], &format!("text that begins with {:?} …", "ä".repeat(40)));
        check(b"\0\x01ab\"\xff", r#"bytes that begin with \x00\x01ab\"\xff"#);
        check(&[0x1b; 20], &format!("bytes that begin with {} …", r"\x1b".repeat(16)));
    }
}
