//! Reads Parquet files: row groups in parallel, all columns of a row group in step, one batch of rows at a time.
//!
//! A batch fits into the cache while its columns are filled in sequence. Complete rows therefore cost about as much as
//! columns, and no column is ever in memory as a whole.
//!
//! Foreign files are supported, because pandas, Polars and DuckDB rewrite files differently. Integers may be INT32 or
//! INT64, lists and elements nullable, and columns in any order with additional ones. A requested column that is missing,
//! null where null is not allowed, or out of its field's range is an error with its name. A remaining panic of the decoder
//! (see [`guard`](super::guard)) becomes an error too, because the file is malformed and not this program.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::ByteArray;
use parquet::errors::ParquetError;
use parquet::file::metadata::{ColumnChunkMetaData, RowGroupMetaData};
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};
use parquet::file::statistics::Statistics;

use super::column::Column;
use super::feed::{Batch, FoundColumn, Levels, ParquetResult, alike, converted, fault, out_of_range, same};
use super::guard::{ENDLESS, GROUP_VALUES_MAX, GuardedFile, PageGuard};
use super::{MAKER, Whole};
use crate::error::{Result, StoreError};

/// Rows per batch; with their events they fit a second-level cache.
const BATCH: usize = 512;

/// Reads these columns of all rows of the file at `path`, in order. `blank` creates the rows to fill.
pub(crate) fn read_rows<W: 'static, R: Send + 'static>(
    path: &Path,
    blank: impl Fn() -> R + Sync,
    columns: &[Column<W, R>],
) -> Result<Vec<R>> {
    let broken = |error| StoreError::parquet(path, "read", error);
    let reader = opened(path)?;
    let groups = reader.num_row_groups();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(groups);
    let read = |index: usize| shielded(|| read_group(&reader, index, &blank, columns));
    if threads < 2 {
        let mut rows = Vec::new();
        for index in 0..groups {
            rows.append(&mut read(index).map_err(broken)?);
        }
        return Ok(rows);
    }
    let rows = reader.metadata().file_metadata().num_rows();
    in_order(threads, groups, usize::try_from(rows).unwrap_or(0), read).map_err(broken)
}

/// Reads the rows like [`read_rows`] and passes them to `each` in batches.
///
/// Rows are refilled for every batch. Fields that a batch does not contain (a column that is not read, or is missing) keep
/// the value of `blank`.
pub(crate) fn each_batch<W: 'static, R: 'static>(
    path: &Path,
    blank: impl Fn() -> R,
    columns: &[Column<W, R>],
    mut each: impl FnMut(&[R]),
) -> Result<()> {
    let reader = opened(path)?;
    let mut rows: Vec<R> = std::iter::repeat_with(blank).take(BATCH).collect();
    let broken = |error| StoreError::parquet(path, "read", error);
    for index in 0..reader.num_row_groups() {
        let group = shielded(|| reader.get_row_group(index)).map_err(broken)?;
        let mut filling = shielded(|| RowGroupRows::begin(&reader, &*group, columns)).map_err(broken)?;
        while filling.left > 0 {
            let batch = BATCH.min(filling.left);
            shielded(|| filling.again(&mut rows[..batch])).map_err(broken)?;
            each(&rows[..batch]);
        }
    }
    Ok(())
}

/// Reads the rows like [`read_rows`] and passes them to `each` in row groups, with one group in memory. Groups that
/// `wanted` rejects are skipped.
pub(crate) fn each_group<W: 'static, R: 'static>(
    path: &Path,
    blank: impl Fn() -> R,
    columns: &[Column<W, R>],
    wanted: impl Fn(&GroupFacts<'_>) -> bool,
    mut each: impl FnMut(Vec<R>),
) -> Result<()> {
    let reader = opened(path)?;
    let ours = is_ours(&reader);
    for index in 0..reader.num_row_groups() {
        let group = reader.metadata().row_group(index);
        if !wanted(&GroupFacts { group, ours }) {
            continue;
        }
        let rows = shielded(|| read_group(&reader, index, &blank, columns));
        each(rows.map_err(|error| StoreError::parquet(path, "read", error))?);
    }
    Ok(())
}

/// Passes the footer's facts of each row group to `each`.
pub(crate) fn each_fact(path: &Path, mut each: impl FnMut(&GroupFacts<'_>)) -> Result<()> {
    let reader = opened(path)?;
    let ours = is_ours(&reader);
    reader.metadata().row_groups().iter().for_each(|group| each(&GroupFacts { group, ours }));
    Ok(())
}

/// The footer's facts of a row group.
pub(crate) struct GroupFacts<'g> {
    group: &'g RowGroupMetaData,
    ours: bool,
}

impl GroupFacts<'_> {
    pub(crate) fn rows(&self) -> u64 {
        self.group.num_rows().max(0) as u64
    }

    /// Returns the number of values of a column (an empty list counts as one) and their uncompressed bytes; zeros for a
    /// missing column.
    pub(crate) fn values(&self, name: &str) -> (u64, u64) {
        let found = self.column(name);
        found.map_or((0, 0), |c| (c.num_values().max(0) as u64, c.uncompressed_size().max(0) as u64))
    }

    /// Returns minimum and maximum of a column of 64-bit integers; `None` without trustworthy statistics.
    pub(crate) fn between(&self, name: &str) -> Option<(i64, i64)> {
        match self.column(name).filter(|_| self.ours)?.statistics()? {
            Statistics::Int64(seen) => seen.min_opt().copied().zip(seen.max_opt().copied()),
            _ => None,
        }
    }

    fn column(&self, name: &str) -> Option<&ColumnChunkMetaData> {
        let named =
            |c: &&ColumnChunkMetaData| c.column_path().parts().first().is_some_and(|part| part == name);
        self.group.columns().iter().find(named)
    }
}

/// Returns whether this program wrote the file.
fn is_ours(reader: &SerializedFileReader<GuardedFile>) -> bool {
    let maker = reader.metadata().file_metadata().created_by();
    maker.is_some_and(|maker| maker.starts_with(MAKER))
}

fn opened(path: &Path) -> Result<SerializedFileReader<GuardedFile>> {
    let io = |source| StoreError::io(path, "read", source);
    let source = GuardedFile::new(File::open(path).map_err(io)?).map_err(io)?;
    let read = || match source.has_sound_footer() {
        true => SerializedFileReader::new(source),
        false => Err(fault(ENDLESS)),
    };
    shielded(read).map_err(|error| StoreError::parquet(path, "read", error))
}

/// Runs `read` for `0..groups` on several threads and concatenates the results in order. `hint` is the expected number of
/// rows.
fn in_order<R: Send>(
    threads: usize,
    groups: usize,
    hint: usize,
    read: impl Fn(usize) -> ParquetResult<Vec<R>> + Sync,
) -> ParquetResult<Vec<R>> {
    let next = AtomicUsize::new(0);
    let (give, take) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (give, next, read) = (give.clone(), &next, &read);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    // A closed receiver has met an error, so the remaining results are not needed.
                    if index >= groups || give.send((index, read(index))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(give);
        let mut rows = Vec::new();
        // This reserves address space only, until rows arrive. A number that is too large even for that is ignored.
        let _ = rows.try_reserve_exact(hint);
        let mut early: Vec<Option<Vec<R>>> = (0..groups).map(|_| None).collect();
        let mut due = 0;
        for (index, group) in &take {
            early[index] = Some(group?);
            while let Some(mut group) = early.get_mut(due).and_then(Option::take) {
                rows.append(&mut group);
                due += 1;
            }
        }
        Ok(rows)
    })
}

/// Converts a panic of the decoder to an error.
fn shielded<T>(act: impl FnOnce() -> ParquetResult<T>) -> ParquetResult<T> {
    // The state that `act` touches is discarded on failure.
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|what| (*what).to_owned()));
        Err(fault(format!("not readable as Parquet: {}", what.unwrap_or_default())))
    })
}

fn read_group<W: 'static, R: 'static>(
    reader: &SerializedFileReader<GuardedFile>,
    index: usize,
    blank: &impl Fn() -> R,
    columns: &[Column<W, R>],
) -> ParquetResult<Vec<R>> {
    let group = reader.get_row_group(index)?;
    let mut filling = RowGroupRows::begin(reader, &*group, columns)?;
    let mut rows: Vec<R> = Vec::new();
    while filling.left > 0 {
        let from = rows.len();
        rows.extend(std::iter::repeat_with(blank).take(BATCH.min(filling.left)));
        filling.fresh(&mut rows[from..])?;
    }
    Ok(rows)
}

/// A row group that is being read into rows.
struct RowGroupRows<'g, R> {
    jobs: Vec<Job<'g, R>>,
    left: usize,
    begun: bool,
}

impl<'g, R: 'static> RowGroupRows<'g, R> {
    fn begin<W: 'static>(
        reader: &SerializedFileReader<GuardedFile>,
        group: &'g dyn RowGroupReader,
        columns: &[Column<W, R>],
    ) -> ParquetResult<RowGroupRows<'g, R>> {
        let left = match u64::try_from(group.metadata().num_rows()) {
            Ok(count) if count <= GROUP_VALUES_MAX => count as usize,
            _ => return Err(fault(format!("a row group of {} rows", group.metadata().num_rows()))),
        };
        // The library asserts facts that a footer may violate, such as positive positions. Columns that are not read are
        // checked too, because a footer with one wrong entry is damaged.
        for chunk in group.metadata().columns() {
            let dictionary = chunk.dictionary_page_offset().unwrap_or(0);
            if [chunk.data_page_offset(), dictionary, chunk.compressed_size()].iter().any(|place| *place < 0)
            {
                let name = chunk.column_path().parts().first().map_or("", String::as_str);
                return Err(fault(format!("column {name} is outside the file")));
            }
        }
        let chunks = Chunks { group, ours: is_ours(reader) };
        let jobs = columns.iter().filter_map(|column| (column.read)(&chunks).transpose());
        Ok(RowGroupRows { jobs: jobs.collect::<ParquetResult<_>>()?, left, begun: false })
    }

    /// Fills rows that are blank.
    fn fresh(&mut self, rows: &mut [R]) -> ParquetResult<()> {
        self.left -= rows.len();
        self.jobs.iter_mut().try_for_each(|job| (job.act)(rows))
    }

    /// Refills rows. The first batch sets all columns; later ones skip columns with one value for the whole group.
    fn again(&mut self, rows: &mut [R]) -> ParquetResult<()> {
        self.left -= rows.len();
        let begun = std::mem::replace(&mut self.begun, true);
        self.jobs.iter_mut().filter(|job| !(begun && job.once)).try_for_each(|job| (job.act)(rows))
    }
}

/// A function that fills one column of a batch of rows.
type Fill<'g, R> = Box<dyn FnMut(&mut [R]) -> ParquetResult<()> + 'g>;

pub(super) struct Job<'g, R> {
    /// Set if all rows of the group are equal in this column, so that refilled rows keep the value.
    once: bool,
    act: Fill<'g, R>,
}

impl<'g, R: 'g> Job<'g, R> {
    fn new(once: bool, act: impl FnMut(&mut [R]) -> ParquetResult<()> + 'g) -> Job<'g, R> {
        Job { once, act: Box::new(act) }
    }
}

/// Returns the filling of a required column without nulls.
pub(super) fn every<'g, R: 'g, T: 'g>(
    name: &'static str,
    found: Option<FoundColumn<'g, T>>,
    mut set: impl FnMut(&mut R, &T) -> ParquetResult<()> + 'g,
) -> ParquetResult<Option<Job<'g, R>>> {
    let null = move || fault(format!("{name}: null where a value must be"));
    Ok(Some(match found.ok_or_else(|| fault(format!("column {name} is missing")))? {
        FoundColumn::Same(None) => {
            Job::new(true, move |rows| if rows.is_empty() { Ok(()) } else { Err(null()) })
        }
        FoundColumn::Same(Some(value)) => {
            Job::new(true, move |rows| rows.iter_mut().try_for_each(|row| set(row, &value)))
        }
        FoundColumn::Fed(mut feed) => {
            let mut batch = Batch::default();
            Job::new(false, move |rows| {
                feed(rows.len(), &mut batch)?;
                if batch.values.len() != rows.len() {
                    return Err(null());
                }
                rows.iter_mut().zip(&batch.values).try_for_each(|(row, value)| set(row, value))
            })
        }
    }))
}

/// Returns the filling of an optional column. If it is missing, `set` is not called.
pub(super) fn some<'g, R: 'g, T: 'g>(
    found: Option<FoundColumn<'g, T>>,
    mut set: impl FnMut(&mut R, Option<&T>) -> ParquetResult<()> + 'g,
) -> ParquetResult<Option<Job<'g, R>>> {
    Ok(found.map(|found| match found {
        FoundColumn::Same(value) => {
            Job::new(true, move |rows| rows.iter_mut().try_for_each(|row| set(row, value.as_ref())))
        }
        FoundColumn::Fed(mut feed) => {
            let mut batch = Batch::default();
            Job::new(false, move |rows| {
                feed(rows.len(), &mut batch)?;
                if batch.values.len() == rows.len() {
                    return rows
                        .iter_mut()
                        .zip(&batch.values)
                        .try_for_each(|(row, value)| set(row, Some(value)));
                }
                let (there, mut values) = (batch.levels.value, batch.values.iter());
                rows.iter_mut()
                    .zip(&batch.def)
                    .try_for_each(|(row, def)| set(row, if *def == there { values.next() } else { None }))
            })
        }
    }))
}

/// Returns the filling of an optional list column. `set` returns the error of an invalid list.
pub(super) fn lists<'g, R: 'g, T: 'g>(
    name: &'static str,
    found: Option<FoundColumn<'g, T>>,
    set: impl Fn(&mut R, &[T]) -> ParquetResult<()> + 'g,
) -> ParquetResult<Option<Job<'g, R>>> {
    Ok(found.map(|found| {
        let FoundColumn::Fed(mut feed) = found else {
            return Job::new(true, move |rows| rows.iter_mut().try_for_each(|row| set(row, &[])));
        };
        let (mut batch, mut ends) = (Batch::default(), Vec::new());
        Job::new(false, move |rows| {
            feed(rows.len(), &mut batch)?;
            batch.ends(&mut ends).map_err(|what| fault(format!("{name}: {what}")))?;
            if ends.len() != rows.len() || batch.values.len() != ends.last().copied().unwrap_or(0) {
                return Err(fault(format!("{name}: lists and rows don't match")));
            }
            let mut from = 0;
            for (row, to) in rows.iter_mut().zip(&ends) {
                set(row, &batch.values[from..*to])?;
                from = *to;
            }
            Ok(())
        })
    }))
}

/// The columns of one row group.
pub(crate) struct Chunks<'g> {
    group: &'g dyn RowGroupReader,
    /// Set if the statistics are trusted, which is the case for files of this program.
    ours: bool,
}

impl<'g> Chunks<'g> {
    pub(super) fn ints<T: Whole>(
        &self,
        name: &'static str,
        nesting: i16,
    ) -> ParquetResult<Option<FoundColumn<'g, T>>> {
        if let Some(same) = self.same(name, nesting)? {
            let value = |stored: &[u8]| match stored.len() {
                4 => T::from_narrow(i32::from_le_bytes(stored.try_into().ok()?)),
                _ => T::from_wide(i64::from_le_bytes(stored.try_into().ok()?)),
            };
            let value = same.map(|stored| value(stored).ok_or_else(|| out_of_range(name))).transpose()?;
            return Ok(Some(FoundColumn::Same(value)));
        }
        Ok(match self.column(name, nesting)? {
            None => None,
            Some((ColumnReader::Int32ColumnReader(reader), levels)) => {
                Some(FoundColumn::Fed(converted(reader, levels, name, |value| T::from_narrow(*value))))
            }
            Some((ColumnReader::Int64ColumnReader(reader), levels)) => {
                Some(FoundColumn::Fed(converted(reader, levels, name, |value| T::from_wide(*value))))
            }
            Some(_) => return Err(wrong_type(name)),
        })
    }

    pub(super) fn flags(
        &self,
        name: &'static str,
        nesting: i16,
    ) -> ParquetResult<Option<FoundColumn<'g, bool>>> {
        if let Some(same) = self.same(name, nesting)? {
            return Ok(Some(FoundColumn::Same(same.map(|stored| stored.first() == Some(&1)))));
        }
        Ok(match self.column(name, nesting)? {
            None => None,
            Some((ColumnReader::BoolColumnReader(reader), levels)) => {
                Some(FoundColumn::Fed(same(reader, levels)))
            }
            Some(_) => return Err(wrong_type(name)),
        })
    }

    pub(super) fn texts(
        &self,
        name: &'static str,
        nesting: i16,
    ) -> ParquetResult<Option<FoundColumn<'g, ByteArray>>> {
        if let Some(same) = self.same(name, nesting)? {
            return Ok(Some(FoundColumn::Same(same.map(|stored| ByteArray::from(stored.to_vec())))));
        }
        Ok(match self.column(name, nesting)? {
            None => None,
            Some((ColumnReader::ByteArrayColumnReader(reader), levels)) => {
                Some(FoundColumn::Fed(same(reader, levels)))
            }
            Some(_) => return Err(wrong_type(name)),
        })
    }

    pub(super) fn reals(
        &self,
        name: &'static str,
        nesting: i16,
    ) -> ParquetResult<Option<FoundColumn<'g, f64>>> {
        match self.column(name, nesting)? {
            None => Ok(None),
            Some((ColumnReader::DoubleColumnReader(reader), levels)) => {
                Ok(Some(FoundColumn::Fed(same(reader, levels))))
            }
            Some(_) => Err(wrong_type(name)),
        }
    }

    /// Returns the stored value that the whole group shares, or `Some(None)` if all are null.
    fn same(&self, name: &'static str, nesting: i16) -> ParquetResult<Option<Option<&'g [u8]>>> {
        let Some(index) = self.index(name, nesting)?.filter(|_| self.ours) else { return Ok(None) };
        let group = self.group.metadata();
        let same = alike(group.column(index), group.num_rows());
        // Statistics do not describe whole lists, so only an absence of values is conclusive.
        Ok(same.filter(|value| nesting == 0 || value.is_none()))
    }

    /// Returns whether the column exists and contains texts.
    pub(super) fn is_text(&self, name: &str) -> bool {
        let columns = self.group.metadata().columns();
        let named =
            |c: &&ColumnChunkMetaData| c.column_path().parts().first().is_some_and(|part| part == name);
        columns.iter().find(named).is_some_and(|c| c.column_type() == Physical::BYTE_ARRAY)
    }

    /// Returns the index of the column with this name, if it exists. A list's element counts as its list.
    fn index(&self, name: &'static str, nesting: i16) -> ParquetResult<Option<usize>> {
        let schema = self.group.metadata().schema_descr();
        let named = |i: &usize| schema.column(*i).path().parts().first().is_some_and(|part| part == name);
        match (0..schema.num_columns()).find(named) {
            Some(index) if schema.column(index).max_rep_level() != nesting => Err(wrong_type(name)),
            index => Ok(index),
        }
    }

    /// Returns the column with this name and its levels, if it exists.
    fn column(&self, name: &'static str, nesting: i16) -> ParquetResult<Option<(ColumnReader, Levels)>> {
        let Some(index) = self.index(name, nesting)? else { return Ok(None) };
        let metadata = self.group.metadata();
        let descr = metadata.schema_descr().column(index);
        let value = descr.max_def_level();
        let levels = Levels { value, element: value - i16::from(descr.self_type().is_optional()) };
        let values = metadata.column(index).num_values();
        let pages = Box::new(PageGuard::new(self.group.get_column_page_reader(index)?, values)?);
        Ok(match descr.physical_type() {
            Physical::BOOLEAN => {
                Some((ColumnReader::BoolColumnReader(ColumnReaderImpl::new(descr, pages)), levels))
            }
            Physical::INT32 => {
                Some((ColumnReader::Int32ColumnReader(ColumnReaderImpl::new(descr, pages)), levels))
            }
            Physical::INT64 => {
                Some((ColumnReader::Int64ColumnReader(ColumnReaderImpl::new(descr, pages)), levels))
            }
            Physical::DOUBLE => {
                Some((ColumnReader::DoubleColumnReader(ColumnReaderImpl::new(descr, pages)), levels))
            }
            Physical::BYTE_ARRAY => {
                Some((ColumnReader::ByteArrayColumnReader(ColumnReaderImpl::new(descr, pages)), levels))
            }
            Physical::INT96 | Physical::FLOAT | Physical::FIXED_LEN_BYTE_ARRAY => {
                return Err(wrong_type(name));
            }
        })
    }
}

/// A reader of enum names. Equal texts of a dictionary share memory, so a pointer comparison detects a repeated name.
pub(super) struct Words<V> {
    name: &'static str,
    from_name: fn(&str) -> Option<V>,
    last: Option<(ByteArray, V)>,
}

impl<V: Copy> Words<V> {
    pub(super) fn new(name: &'static str, from_name: fn(&str) -> Option<V>) -> Words<V> {
        Words { name, from_name, last: None }
    }

    pub(super) fn read(&mut self, text: &ByteArray) -> ParquetResult<V> {
        match &self.last {
            Some((last, word)) if std::ptr::eq(last.data(), text.data()) => Ok(*word),
            _ => {
                let written = utf8(self.name, text)?;
                let word = (self.from_name)(written).ok_or_else(|| {
                    let start = written.chars().take(40).collect::<String>();
                    fault(format!("{}: {start:?} is none", self.name))
                })?;
                self.last = Some((text.clone(), word));
                Ok(word)
            }
        }
    }
}

pub(super) fn utf8<'t>(name: &'static str, text: &'t ByteArray) -> ParquetResult<&'t str> {
    std::str::from_utf8(text.data()).map_err(|_| fault(format!("{name}: text that is not UTF-8")))
}

fn wrong_type(name: &str) -> ParquetError {
    fault(format!("column {name} has another type than it must have"))
}
