//! Guards the decoder against foreign bytes: bounded reads, and checks of pages before decoding.
//!
//! The decoder partly trusts page headers: it sizes buffers by their counts and asserts that a dictionary comes first.
//! Headers are foreign bytes, so a page's counts are checked against its column's, and the column's against a bound.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use parquet::basic::Encoding;
use parquet::column::page::{Page, PageMetadata, PageReader};
use parquet::errors::{ParquetError, Result};
use parquet::file::reader::{ChunkReader, Length};

use super::thrift;

/// Most values of a column in one row group. This program writes two million and a row; pandas' default is a million rows,
/// so lists of 64 still pass.
pub(super) const GROUP_VALUES_MAX: u64 = 64 << 20;

/// Bytes at the end of a file: footer length and four letters.
const END: u64 = 8;

/// Error of a structure that [`thrift`] rejects.
pub(super) const ENDLESS: &str = "a list of more booleans than it has bytes for";

/// A file with positional reads, which threads can share, and which never reads past the end.
#[derive(Clone)]
pub(super) struct GuardedFile {
    file: Arc<File>,
    len: u64,
}

impl GuardedFile {
    pub(super) fn new(file: File) -> io::Result<GuardedFile> {
        let len = file.metadata()?.len();
        Ok(GuardedFile { file: Arc::new(file), len })
    }

    /// Reads bytes at `at`; 0 at the end, `None` = the read failed.
    pub(super) fn read_some(&self, into: &mut [u8], at: u64) -> Option<usize> {
        self.file.read_at(into, at).ok()
    }

    /// Returns whether the decoder can skip through the footer quickly. A malformed footer passes, because the decoder
    /// rejects it.
    pub(super) fn has_sound_footer(&self) -> bool {
        let mut end = [0; END as usize];
        let Some(at) = self.len.checked_sub(END) else { return true };
        if self.file.read_exact_at(&mut end, at).is_err() || end[4..] != *b"PAR1" {
            return true;
        }
        let length = u64::from(u32::from_le_bytes([end[0], end[1], end[2], end[3]]));
        at.checked_sub(length).is_none_or(|start| thrift::is_passable(self, start, length))
    }
}

impl Length for GuardedFile {
    fn len(&self) -> u64 {
        self.len
    }
}

impl ChunkReader for GuardedFile {
    type T = io::BufReader<At>;

    fn get_read(&self, start: u64) -> Result<Self::T> {
        // The decoder reads page headers of some forty bytes through this, and the end of the file, which is no structure.
        let is_header = start.checked_add(END) != Some(self.len);
        Ok(io::BufReader::with_capacity(512, At { source: self.clone(), at: start, is_header }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> Result<Bytes> {
        if start.checked_add(length as u64).is_none_or(|end| end > self.len) {
            return Err(ParquetError::EOF(format!(
                "{length} bytes at {start} are past the end ({})",
                self.len
            )));
        }
        let mut bytes = vec![0; length];
        self.file.read_exact_at(&mut bytes, start)?;
        Ok(bytes.into())
    }
}

/// A read position in a [`GuardedFile`].
pub(super) struct At {
    source: GuardedFile,
    at: u64,
    /// Set if a page header begins here. It is checked on the first read, because the decoder also creates readers for
    /// headers that it already has.
    is_header: bool,
}

impl Read for At {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        // A page header contains no list of booleans.
        if std::mem::take(&mut self.is_header) && !thrift::is_passable(&self.source, self.at, 0) {
            return Err(io::Error::other(ENDLESS));
        }
        let n = self.source.file.read_at(buf, self.at)?;
        self.at += n as u64;
        Ok(n)
    }
}

/// A page reader that checks the counts of each page of a column chunk.
pub(super) struct PageGuard {
    pages: Box<dyn PageReader>,
    /// Number of values that may still follow; a page with more is an error.
    left: u64,
    dictionary: bool,
}

impl PageGuard {
    /// Returns the checked reader of a chunk with `values` values by its footer.
    pub(super) fn new(pages: Box<dyn PageReader>, values: i64) -> Result<PageGuard> {
        match u64::try_from(values) {
            Ok(left) if left <= GROUP_VALUES_MAX => Ok(PageGuard { pages, left, dictionary: false }),
            _ => Err(ParquetError::General(format!(
                "a row group with {values} values in a column; this reader's bound is {GROUP_VALUES_MAX}"
            ))),
        }
    }

    fn check(&mut self, page: &Page) -> Result<()> {
        let values = u64::from(page.num_values());
        let fault = match page {
            Page::DictionaryPage { buf, .. } => {
                self.dictionary = true;
                // A plain value takes at least four bytes.
                (values * 4 > buf.len() as u64).then_some("a dictionary with more values than bytes")
            }
            _ if values > self.left => Some("a page with more values than its column"),
            _ if !self.dictionary && dictionary_encoded(page.encoding()) => {
                Some("a page without its dictionary")
            }
            Page::DataPageV2 { buf, def_levels_byte_len, rep_levels_byte_len, .. }
                if u64::from(*def_levels_byte_len) + u64::from(*rep_levels_byte_len) > buf.len() as u64 =>
            {
                Some("a page with more levels than bytes")
            }
            _ => {
                self.left -= values;
                None
            }
        };
        match fault {
            Some(fault) => Err(ParquetError::General(fault.into())),
            None => Ok(()),
        }
    }
}

fn dictionary_encoded(encoding: Encoding) -> bool {
    matches!(encoding, Encoding::PLAIN_DICTIONARY | Encoding::RLE_DICTIONARY)
}

impl Iterator for PageGuard {
    type Item = Result<Page>;
    fn next(&mut self) -> Option<Result<Page>> {
        self.get_next_page().transpose()
    }
}

impl PageReader for PageGuard {
    fn get_next_page(&mut self) -> Result<Option<Page>> {
        let page = self.pages.get_next_page()?;
        if let Some(page) = &page {
            self.check(page)?;
        }
        Ok(page)
    }

    fn peek_next_page(&mut self) -> Result<Option<PageMetadata>> {
        self.pages.peek_next_page()
    }

    fn skip_next_page(&mut self) -> Result<()> {
        self.pages.skip_next_page()
    }

    fn at_record_boundary(&mut self) -> Result<bool> {
        self.pages.at_record_boundary()
    }
}
