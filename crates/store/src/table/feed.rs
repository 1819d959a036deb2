//! Provides the values of one column of a row group, one batch of rows at a time.

use parquet::column::reader::ColumnReaderImpl;
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::ColumnChunkMetaData;

use super::ColumnValue;

pub(crate) type ParquetResult<T> = std::result::Result<T, ParquetError>;

pub(super) fn fault(what: impl Into<String>) -> ParquetError {
    ParquetError::General(what.into())
}

pub(super) fn out_of_range(name: &str) -> ParquetError {
    fault(format!("{name}: a number out of range"))
}

/// A function that reads the next rows of a column into a batch.
pub(crate) type ColumnFeed<'g, T> = Box<dyn FnMut(usize, &mut Batch<T>) -> ParquetResult<()> + 'g>;

pub(crate) enum FoundColumn<'g, T> {
    /// One value for all rows, or no value in any row, known from the statistics without decoding.
    Same(Option<T>),
    Fed(ColumnFeed<'g, T>),
}

/// Returns the value that all rows of a column chunk share, or `Some(None)` if all are null. `None` if the statistics do
/// not show equal rows.
pub(super) fn alike(chunk: &ColumnChunkMetaData, rows: i64) -> Option<Option<&[u8]>> {
    let seen = chunk.statistics()?;
    let nulls = seen.null_count_opt()?;
    if chunk.num_values() != rows {
        return None;
    }
    if nulls == rows as u64 {
        return Some(None);
    }
    let (least, greatest) = (seen.min_bytes_opt()?, seen.max_bytes_opt()?);
    // Statistics truncate long texts.
    (nulls == 0 && seen.min_is_exact() && seen.max_is_exact() && least == greatest).then_some(Some(least))
}

/// The meaning of a column's definition levels.
#[derive(Copy, Clone, Default)]
pub(crate) struct Levels {
    pub value: i16,
    /// Level at which a list's element is present, possibly null.
    pub element: i16,
}

pub(crate) struct Batch<T> {
    pub levels: Levels,
    pub values: Vec<T>,
    pub def: Vec<i16>,
    pub rep: Vec<i16>,
}

impl<T> Default for Batch<T> {
    fn default() -> Self {
        Batch { levels: Levels::default(), values: Vec::new(), def: Vec::new(), rep: Vec::new() }
    }
}

impl<T> Batch<T> {
    /// Writes the end of each row's list in `values` to `ends`.
    pub fn ends(&self, ends: &mut Vec<usize>) -> std::result::Result<(), &'static str> {
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

/// Returns a feed of values in the type of the column.
pub(super) fn same<'g, D: DataType>(reader: ColumnReaderImpl<D>, levels: Levels) -> ColumnFeed<'g, D::T>
where
    ColumnReaderImpl<D>: 'g,
{
    let mut reader = reader;
    Box::new(move |rows, batch| {
        batch.levels = levels;
        next(&mut reader, rows, &mut batch.def, &mut batch.rep, &mut batch.values)
    })
}

/// Returns a feed of integers that are converted from the column's type.
pub(super) fn converted<'g, D: DataType, T: ColumnValue>(
    reader: ColumnReaderImpl<D>,
    levels: Levels,
    name: &'static str,
    convert: impl Fn(&D::T) -> Option<T> + 'g,
) -> ColumnFeed<'g, T>
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
            batch.values.push(convert(value).ok_or_else(|| out_of_range(name))?);
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
) -> ParquetResult<()> {
    def.clear();
    rep.clear();
    values.clear();
    let (records, _, _) = reader.read_records(rows, Some(def), Some(rep), values)?;
    if records == rows { Ok(()) } else { Err(fault("a column ends before its row group does")) }
}
