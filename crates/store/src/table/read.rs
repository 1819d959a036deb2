//! The reading half: row groups in parallel, all columns of a row group in step, a batch of rows at a time.
//!
//! A batch is small enough to stay in the cache while its columns are filled in one after the other, so whole rows
//! come out at about the price of columns, and nothing but the rows themselves is ever held in full.
//!
//! Foreign files are read too: integers may be INT32 or INT64, lists and their elements nullable, columns in any
//! order and more than are asked for (pandas, Polars and DuckDB rewrite files their own way). What is asked for and
//! missing, null where it may not be, or out of its field's range is an error that names the column. A panic that
//! is still left in the decoder (see [`guard`](super::guard)) becomes an error as well: the file is broken, not
//! this program.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use parquet::basic::Type as Physical;
use parquet::column::reader::{ColumnReader, ColumnReaderImpl};
use parquet::data_type::{ByteArray, DataType};
use parquet::errors::ParquetError;
use parquet::file::reader::{FileReader, RowGroupReader, SerializedFileReader};

use super::Stored;
use super::guard::{GROUP_VALUES_MAX, Guard, Source};
use crate::error::{Result, StoreError};

/// Rows decoded at a time: with their events they fit a second-level cache.
const BATCH: usize = 512;

pub(crate) type Got<T> = std::result::Result<T, ParquetError>;

/// Reads all rows of the file at `path`, in order. `columns` says which columns go where in a row; `blank` makes the
/// row they are put into.
pub(crate) fn read_rows<R: Send>(
    path: &Path,
    blank: impl Fn() -> R + Sync,
    columns: impl Fn(&mut ColumnReading<'_, R>) -> Got<()> + Sync,
) -> Result<Vec<R>> {
    let broken = |error| StoreError::parquet(path, "read", error);
    let reader = opened(path)?;
    let groups = reader.num_row_groups();
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(groups);
    let read = |index: usize| shielded(|| read_group(&reader, index, &blank, &columns));
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

/// Reads the rows as [`read_rows`] does and hands them on a group at a time: no more than one is held.
pub(crate) fn each_group<R: Send>(
    path: &Path,
    blank: impl Fn() -> R + Sync,
    columns: impl Fn(&mut ColumnReading<'_, R>) -> Got<()> + Sync,
    mut each: impl FnMut(Vec<R>),
) -> Result<()> {
    let reader = opened(path)?;
    for index in 0..reader.num_row_groups() {
        let rows = shielded(|| read_group(&reader, index, &blank, &columns));
        each(rows.map_err(|error| StoreError::parquet(path, "read", error))?);
    }
    Ok(())
}

fn opened(path: &Path) -> Result<SerializedFileReader<Source>> {
    let io = |source| StoreError::io(path, "read", source);
    let source = Source::new(File::open(path).map_err(io)?).map_err(io)?;
    shielded(|| SerializedFileReader::new(source)).map_err(|error| StoreError::parquet(path, "read", error))
}

/// Runs `read` for `0..groups` on some threads and joins what they give in order; `hint` rows, if that is true.
fn in_order<R: Send>(
    threads: usize,
    groups: usize,
    hint: usize,
    read: impl Fn(usize) -> Got<Vec<R>> + Sync,
) -> Got<Vec<R>> {
    let next = AtomicUsize::new(0);
    let (give, take) = mpsc::channel();
    std::thread::scope(|scope| {
        for _ in 0..threads {
            let (give, next, read) = (give.clone(), &next, &read);
            scope.spawn(move || {
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    // A receiver that is gone has met an error: nobody wants the rest.
                    if index >= groups || give.send((index, read(index))).is_err() {
                        return;
                    }
                }
            });
        }
        drop(give);
        let mut rows = Vec::new();
        // Address space, not memory, until rows really come; a number that is too large even for that is ignored.
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

/// Turns a panic of the decoder into an error.
fn shielded<T>(act: impl FnOnce() -> Got<T>) -> Got<T> {
    // What `act` touches is given up when it fails.
    catch_unwind(AssertUnwindSafe(act)).unwrap_or_else(|panic| {
        let what = panic.downcast_ref::<String>().cloned();
        let what = what.or_else(|| panic.downcast_ref::<&str>().map(|what| (*what).to_owned()));
        Err(fault(format!("not readable as Parquet: {}", what.unwrap_or_default())))
    })
}

fn read_group<R>(
    reader: &SerializedFileReader<Source>,
    index: usize,
    blank: &impl Fn() -> R,
    columns: &impl Fn(&mut ColumnReading<'_, R>) -> Got<()>,
) -> Got<Vec<R>> {
    let group = reader.get_row_group(index)?;
    let count = match u64::try_from(group.metadata().num_rows()) {
        Ok(count) if count <= GROUP_VALUES_MAX => count as usize,
        _ => return Err(fault(format!("a row group of {} rows", group.metadata().num_rows()))),
    };
    let mut reading = ColumnReading { group: &*group, jobs: Vec::new() };
    columns(&mut reading)?;
    let mut jobs = reading.jobs;
    let mut rows: Vec<R> = Vec::new();
    while rows.len() < count {
        let from = rows.len();
        rows.extend(std::iter::repeat_with(blank).take(BATCH.min(count - from)));
        for job in &mut jobs {
            job(&mut rows[from..])?;
        }
    }
    Ok(rows)
}

fn fault(what: impl Into<String>) -> ParquetError {
    ParquetError::General(what.into())
}

type Job<'g, R> = Box<dyn FnMut(&mut [R]) -> Got<()> + 'g>;
type Feed<'g, T> = Box<dyn FnMut(usize, &mut Batch<T>) -> Got<()> + 'g>;

/// The columns of one row group and where they go.
pub(crate) struct ColumnReading<'g, R> {
    group: &'g dyn RowGroupReader,
    jobs: Vec<Job<'g, R>>,
}

impl<'g, R: 'g> ColumnReading<'g, R> {
    /// An integer column that must be there, without nulls.
    pub(crate) fn int<T: Stored>(&mut self, name: &'static str, set: impl Fn(&mut R, T) + 'g) -> Got<()> {
        let feed = self.ints::<T>(name, 0)?.ok_or_else(|| missing(name))?;
        self.every(name, feed, move |row, value| {
            set(row, value);
            Ok(())
        });
        Ok(())
    }

    /// An integer column that may be missing or null.
    pub(crate) fn maybe_int<T: Stored>(
        &mut self,
        name: &'static str,
        set: impl Fn(&mut R, T) + 'g,
    ) -> Got<()> {
        if let Some(feed) = self.ints::<T>(name, 0)? {
            self.some(feed, move |row, value| {
                set(row, value);
                Ok(())
            });
        }
        Ok(())
    }

    /// A boolean column that must be there, without nulls.
    pub(crate) fn flag(&mut self, name: &'static str, set: impl Fn(&mut R, bool) + 'g) -> Got<()> {
        let feed = self.flags(name, 0)?.ok_or_else(|| missing(name))?;
        self.every(name, feed, move |row, value| {
            set(row, value);
            Ok(())
        });
        Ok(())
    }

    /// A column of doubles that must be there, without nulls.
    pub(crate) fn real(&mut self, name: &'static str, set: impl Fn(&mut R, f64) + 'g) -> Got<()> {
        let feed = match self.column(name, 0)? {
            Some((ColumnReader::DoubleColumnReader(reader), levels)) => same(reader, levels),
            Some(_) => return Err(wrong_type(name)),
            None => return Err(missing(name)),
        };
        self.every(name, feed, move |row, value| {
            set(row, value);
            Ok(())
        });
        Ok(())
    }

    /// A text column that must be there, without nulls. `set` says what is wrong with a text it can't take.
    pub(crate) fn text(
        &mut self,
        name: &'static str,
        set: impl Fn(&mut R, &str) -> std::result::Result<(), String> + 'g,
    ) -> Got<()> {
        let feed = self.texts(name, 0)?.ok_or_else(|| missing(name))?;
        self.every(name, feed, move |row, value| set(row, utf8(name, &value)?).map_err(fault));
        Ok(())
    }

    /// A text column that may be missing or null.
    pub(crate) fn maybe_text(
        &mut self,
        name: &'static str,
        set: impl Fn(&mut R, &str) -> std::result::Result<(), String> + 'g,
    ) -> Got<()> {
        if let Some(feed) = self.texts(name, 0)? {
            self.some(feed, move |row, value| set(row, utf8(name, &value)?).map_err(fault));
        }
        Ok(())
    }

    /// A list of integers, which may be missing (`set` is then not called).
    pub(crate) fn int_list<T: Stored>(
        &mut self,
        name: &'static str,
        set: impl Fn(&mut R, &[T]) -> std::result::Result<(), String> + 'g,
    ) -> Got<()> {
        if let Some(feed) = self.ints::<T>(name, 1)? {
            self.lists(name, feed, move |row, values| set(row, values).map_err(fault));
        }
        Ok(())
    }

    /// A list of booleans, which may be missing.
    pub(crate) fn flag_list(
        &mut self,
        name: &'static str,
        set: impl Fn(&mut R, &[bool]) -> std::result::Result<(), String> + 'g,
    ) -> Got<()> {
        if let Some(feed) = self.flags(name, 1)? {
            self.lists(name, feed, move |row, values| set(row, values).map_err(fault));
        }
        Ok(())
    }

    /// A list of texts, which may be missing.
    pub(crate) fn text_list(
        &mut self,
        name: &'static str,
        set: impl Fn(&mut R, Vec<String>) -> std::result::Result<(), String> + 'g,
    ) -> Got<()> {
        if let Some(feed) = self.texts(name, 1)? {
            self.lists(name, feed, move |row, values| {
                let texts = values.iter().map(|text| utf8(name, text).map(str::to_owned));
                set(row, texts.collect::<Got<_>>()?).map_err(fault)
            });
        }
        Ok(())
    }

    /// One value for every row.
    fn every<T: Clone + 'g>(
        &mut self,
        name: &'static str,
        mut feed: Feed<'g, T>,
        set: impl Fn(&mut R, T) -> Got<()> + 'g,
    ) {
        let mut batch = Batch::default();
        self.jobs.push(Box::new(move |rows| {
            feed(rows.len(), &mut batch)?;
            if batch.values.len() != rows.len() {
                return Err(fault(format!("{name}: null where a value must be")));
            }
            rows.iter_mut().zip(batch.values.drain(..)).try_for_each(|(row, value)| set(row, value))
        }));
    }

    /// A value for some rows.
    fn some<T: Clone + 'g>(&mut self, mut feed: Feed<'g, T>, set: impl Fn(&mut R, T) -> Got<()> + 'g) {
        let mut batch = Batch::default();
        self.jobs.push(Box::new(move |rows| {
            feed(rows.len(), &mut batch)?;
            let mut values = batch.values.drain(..);
            if batch.def.is_empty() {
                return rows.iter_mut().zip(values).try_for_each(|(row, value)| set(row, value));
            }
            for (row, def) in rows.iter_mut().zip(&batch.def) {
                if *def == batch.levels.value
                    && let Some(value) = values.next()
                {
                    set(row, value)?;
                }
            }
            Ok(())
        }));
    }

    /// A list for every row.
    fn lists<T: 'g>(
        &mut self,
        name: &'static str,
        mut feed: Feed<'g, T>,
        set: impl Fn(&mut R, &[T]) -> Got<()> + 'g,
    ) {
        let mut batch = Batch::default();
        let mut ends = Vec::new();
        self.jobs.push(Box::new(move |rows| {
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
        }));
    }

    fn ints<T: Stored>(&self, name: &'static str, nesting: i16) -> Got<Option<Feed<'g, T>>> {
        Ok(match self.column(name, nesting)? {
            None => None,
            Some((ColumnReader::Int32ColumnReader(reader), levels)) => {
                Some(converted(reader, levels, name, |value| T::from_narrow(*value)))
            }
            Some((ColumnReader::Int64ColumnReader(reader), levels)) => {
                Some(converted(reader, levels, name, |value| T::from_wide(*value)))
            }
            Some(_) => return Err(wrong_type(name)),
        })
    }

    fn flags(&self, name: &'static str, nesting: i16) -> Got<Option<Feed<'g, bool>>> {
        Ok(match self.column(name, nesting)? {
            None => None,
            Some((ColumnReader::BoolColumnReader(reader), levels)) => Some(same(reader, levels)),
            Some(_) => return Err(wrong_type(name)),
        })
    }

    fn texts(&self, name: &'static str, nesting: i16) -> Got<Option<Feed<'g, ByteArray>>> {
        Ok(match self.column(name, nesting)? {
            None => None,
            Some((ColumnReader::ByteArrayColumnReader(reader), levels)) => Some(same(reader, levels)),
            Some(_) => return Err(wrong_type(name)),
        })
    }

    /// The column of this name (a list's element counts as its list), if it is there, and its levels.
    fn column(&self, name: &'static str, nesting: i16) -> Got<Option<(ColumnReader, Levels)>> {
        let metadata = self.group.metadata();
        let schema = metadata.schema_descr();
        let named = |i: &usize| schema.column(*i).path().parts().first().is_some_and(|part| part == name);
        let Some(index) = (0..schema.num_columns()).find(named) else {
            return Ok(None);
        };
        let descr = schema.column(index);
        if descr.max_rep_level() != nesting {
            return Err(wrong_type(name));
        }
        let value = descr.max_def_level();
        let levels = Levels { value, element: value - i16::from(descr.self_type().is_optional()) };
        let chunk = metadata.column(index);
        // The library asserts what a footer need not keep: that a column lies somewhere in the file.
        let places =
            [chunk.data_page_offset(), chunk.dictionary_page_offset().unwrap_or(0), chunk.compressed_size()];
        if places.iter().any(|place| *place < 0) {
            return Err(fault(format!("column {name} lies outside the file")));
        }
        let values = chunk.num_values();
        let pages = Box::new(Guard::new(self.group.get_column_page_reader(index)?, values)?);
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

/// What the definition levels of a column mean.
#[derive(Copy, Clone, Default)]
struct Levels {
    /// A value is there.
    value: i16,
    /// A list's element is there, though it may be null.
    element: i16,
}

/// A batch of one column.
struct Batch<T> {
    levels: Levels,
    values: Vec<T>,
    def: Vec<i16>,
    rep: Vec<i16>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch { levels: Levels::default(), values: Vec::new(), def: Vec::new(), rep: Vec::new() }
    }
}

impl<T> Batch<T> {
    /// Where each row's list ends in `values`.
    fn ends(&self, ends: &mut Vec<usize>) -> std::result::Result<(), &'static str> {
        ends.clear();
        let mut end = 0;
        for (at, (def, rep)) in self.def.iter().zip(&self.rep).enumerate() {
            if *rep == 0 && at > 0 {
                ends.push(end);
            }
            if *def == self.levels.value {
                end += 1;
            } else if *def >= self.levels.element {
                return Err("null in a list");
            }
        }
        if !self.def.is_empty() {
            ends.push(end);
        }
        Ok(())
    }
}

/// A feed of values that are stored as they are.
fn same<'g, D: DataType>(reader: ColumnReaderImpl<D>, levels: Levels) -> Feed<'g, D::T>
where
    ColumnReaderImpl<D>: 'g,
{
    let mut reader = reader;
    Box::new(move |rows, batch| {
        batch.levels = levels;
        next(&mut reader, rows, &mut batch.def, &mut batch.rep, &mut batch.values)
    })
}

/// A feed of integers of another type than the column's.
fn converted<'g, D: DataType, T: Stored>(
    reader: ColumnReaderImpl<D>,
    levels: Levels,
    name: &'static str,
    convert: impl Fn(&D::T) -> Option<T> + 'g,
) -> Feed<'g, T>
where
    ColumnReaderImpl<D>: 'g,
{
    let mut reader = reader;
    let mut stored = Vec::new();
    Box::new(move |rows, batch| {
        batch.levels = levels;
        next(&mut reader, rows, &mut batch.def, &mut batch.rep, &mut stored)?;
        batch.values.clear();
        batch.values.reserve(stored.len());
        for value in &stored {
            batch.values.push(convert(value).ok_or_else(|| fault(format!("{name}: a number out of range")))?);
        }
        Ok(())
    })
}

fn next<D: DataType>(
    reader: &mut ColumnReaderImpl<D>,
    rows: usize,
    def: &mut Vec<i16>,
    rep: &mut Vec<i16>,
    values: &mut Vec<D::T>,
) -> Got<()> {
    def.clear();
    rep.clear();
    values.clear();
    let (records, _, _) = reader.read_records(rows, Some(def), Some(rep), values)?;
    if records == rows { Ok(()) } else { Err(fault("a column ends before its row group does")) }
}

fn utf8<'t>(name: &'static str, text: &'t ByteArray) -> Got<&'t str> {
    std::str::from_utf8(text.data()).map_err(|_| fault(format!("{name}: text that is not UTF-8")))
}

fn missing(name: &str) -> ParquetError {
    fault(format!("column {name} is missing"))
}

fn wrong_type(name: &str) -> ParquetError {
    fault(format!("column {name} has another type than it must have"))
}
