//! Finds the end of a JSON document by its brackets. So a file of many documents is parsed one at a time as its bytes arrive.
//!
//! The parser decides later whether it is valid JSON: brackets of the wrong kind close as well, and a scalar has no end.

/// A walk along one document that can pause at the end of the bytes and continue with more.
#[derive(Default, Debug)]
pub(crate) struct Scan {
    at: usize,
    depth: u64,
    in_text: bool,
    /// Whether the next byte of a text is escaped.
    escaped: bool,
}

impl Scan {
    /// Returns the end of the document at the front of `bytes` (the previous bytes, and more). `None` if the end is not there yet, or does not exist.
    pub(crate) fn end(&mut self, bytes: &[u8]) -> Option<usize> {
        while let Some(rest) = bytes.get(self.at..).filter(|rest| !rest.is_empty()) {
            if self.in_text {
                if std::mem::take(&mut self.escaped) {
                    self.at += 1;
                    continue;
                }
                // Most bytes are in texts.
                let Some(stop) = rest.iter().position(|b| matches!(b, b'"' | b'\\')) else {
                    self.at = bytes.len();
                    return None;
                };
                self.escaped = rest[stop] == b'\\';
                self.in_text = self.escaped;
                self.at += stop + 1;
                continue;
            }
            self.at += 1;
            match rest[0] {
                b'"' => self.in_text = true,
                b'{' | b'[' => self.depth += 1,
                b'}' | b']' => {
                    self.depth = self.depth.saturating_sub(1);
                    if self.depth == 0 {
                        return Some(self.at);
                    }
                }
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::Scan;

    #[test]
    fn a_document_ends_where_its_first_bracket_is_closed() {
        for (text, end) in [
            (r#"{} {}"#, Some(2)),
            (r#"{"a":[1,{"b":"}]\"{"}]}, x"#, Some(23)),
            (r#"["\\"]["#, Some(6)),
            (r#"{"a":"b"#, None),
            (r#"{"a":{}"#, None),
            ("", None),
        ] {
            assert_eq!(Scan::default().end(text.as_bytes()), end, "{text}");
            // The equivalent, a byte at a time.
            let mut scan = Scan::default();
            let ends = (0..=text.len()).find_map(|n| scan.end(&text.as_bytes()[..n]));
            assert_eq!(ends, end, "{text}");
        }
    }
}
