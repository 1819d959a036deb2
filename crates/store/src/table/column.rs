//! Defines a column of a file in one place: name, type, and conversion from and to a row.
//!
//! The schema of a file follows from its columns, so writing and reading can't diverge. Rows may be written as one type and
//! read as another, if the written form must be formatted first. A column that may be null may also be missing in files of
//! an older version; its field is then not set.

use std::collections::{HashMap, HashSet};
use std::fs::File;

use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, ByteArrayType, DataType};
use parquet::file::writer::SerializedRowGroupWriter;
use plimsoll_model::{AttributeValue, SharedText};

use super::ColumnValue;
use super::feed::{ParquetResult, fault};
use super::read::{Chunks, Job, Words, every, lists, some, utf8};
use super::write::{Cells, WriteResult, write_cells};

/// A function of a column, which several threads use once per row group.
pub(crate) trait ColumnFn: Copy + Send + Sync + 'static {}
impl<T: Copy + Send + Sync + 'static> ColumnFn for T {}

/// The result of storing a value, with the reason of a failure.
pub(crate) type StoreResult = Result<(), String>;

/// A function that writes one column of a row group.
type Write<W> = Box<dyn Fn(&mut SerializedRowGroupWriter<'_, File>, &[W]) -> WriteResult + Send + Sync>;

/// A function that creates the reader of one column of a row group; `None` = an optional column is missing.
type ColumnReaderFn<R> = Box<dyn for<'g> Fn(&Chunks<'g>) -> ParquetResult<Option<Job<'g, R>>> + Send + Sync>;

/// One column of rows that are written as `W` and read as `R`.
pub(crate) struct Column<W, R = W> {
    pub(super) schema: String,
    /// Set to encode values as differences. Other columns use a dictionary if possible.
    pub(super) deltas: bool,
    pub(super) write: Write<W>,
    pub(super) read: ColumnReaderFn<R>,
}

/// The number of values per row.
enum Many {
    One,
    OneOrNone,
    List,
}

impl<W: 'static, R: 'static> Column<W, R> {
    fn new<T: DataType>(
        (many, name, logical): (Many, &'static str, &str),
        fill: impl Fn(&W, &mut Cells<T::T>) + ColumnFn,
        read: impl for<'g> Fn(&Chunks<'g>) -> ParquetResult<Option<Job<'g, R>>> + ColumnFn,
    ) -> Column<W, R> {
        let physical = match T::get_physical_type() {
            Physical::BYTE_ARRAY => "binary".to_owned(),
            other => other.to_string(),
        };
        let logical = if logical.is_empty() { String::new() } else { format!(" ({logical})") };
        let schema = match many {
            Many::One => format!("required {physical} {name}{logical};"),
            Many::OneOrNone => format!("optional {physical} {name}{logical};"),
            Many::List => format!(
                "required group {name} (LIST) {{ repeated group list {{ required {physical} element{logical}; }} }}"
            ),
        };
        let write = move |group: &mut SerializedRowGroupWriter<'_, File>, rows: &[W]| {
            write_cells::<W, T>(group, rows, fill)
        };
        Column { schema, deltas: false, write: Box::new(write), read: Box::new(read) }
    }

    /// Encodes values as differences, for growing or clustered integers.
    pub(crate) fn deltas(self) -> Column<W, R> {
        Column { deltas: true, ..self }
    }
}

/// Returns a column with a value in every row.
pub(crate) fn one<W: 'static, R: 'static, T: ColumnValue>(
    name: &'static str,
    get: impl Fn(&W) -> T + ColumnFn,
    set: impl Fn(&mut R, T) + ColumnFn,
) -> Column<W, R> {
    Column::new::<T::Column>(
        (Many::One, name, T::LOGICAL),
        move |row, cells| cells.values.push(get(row).store()),
        move |chunks| {
            every(name, T::find(chunks, name, 0)?, move |row, value| {
                set(row, *value);
                Ok(())
            })
        },
    )
}

/// Returns a column with a value or null in every row.
pub(crate) fn maybe<W: 'static, R: 'static, T: ColumnValue>(
    name: &'static str,
    get: impl Fn(&W) -> Option<T> + ColumnFn,
    set: impl Fn(&mut R, Option<T>) + ColumnFn,
) -> Column<W, R> {
    Column::new::<T::Column>(
        (Many::OneOrNone, name, T::LOGICAL),
        move |row, cells| cells.maybe(get(row).map(T::store)),
        move |chunks| {
            some(T::find(chunks, name, 0)?, move |row, value| {
                set(row, value.copied());
                Ok(())
            })
        },
    )
}

/// Returns a column of counts, with null for zero.
pub(crate) fn not_zero<W: 'static, R: 'static, T: ColumnValue + PartialEq>(
    name: &'static str,
    get: impl Fn(&W) -> T + ColumnFn,
    set: impl Fn(&mut R, T) + ColumnFn,
) -> Column<W, R> {
    maybe(
        name,
        move |row| Some(get(row)).filter(|count| *count != T::default()),
        move |row, count| set(row, count.unwrap_or_default()),
    )
}

pub(crate) fn list<W: 'static, R: 'static, E: 'static, T: ColumnValue>(
    name: &'static str,
    list: impl Fn(&W) -> &[E] + ColumnFn,
    get: impl Fn(&E) -> T + ColumnFn,
    set: impl Fn(&mut R, &[T]) -> StoreResult + ColumnFn,
) -> Column<W, R> {
    Column::new::<T::Column>(
        (Many::List, name, T::LOGICAL),
        move |row, cells| cells.list(list(row).iter().map(|e| get(e).store())),
        move |chunks| {
            lists(name, T::find(chunks, name, 1)?, move |row, values| set(row, values).map_err(fault))
        },
    )
}

/// Returns a column with a text in every row.
pub(crate) fn text<W: 'static, R: 'static>(
    name: &'static str,
    get: impl Fn(&W) -> &str + ColumnFn,
    set: impl Fn(&mut R, &str) -> StoreResult + ColumnFn,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::One, name, "STRING"),
        move |row, cells| cells.values.push(same_or_new(&cells.values, get(row))),
        move |chunks| {
            every(name, chunks.texts(name, 0)?, move |row, value| set(row, utf8(name, value)?).map_err(fault))
        },
    )
}

/// Number of addresses of texts that a column remembers while it is read. A page without a dictionary has a new one per cell.
const MOST_ADDRESSES: usize = 1 << 16;

/// Returns a column of texts that repeat in many rows; each row group has one copy in memory.
pub(crate) fn shared_text<W: 'static, R: 'static>(
    name: &'static str,
    get: impl Fn(&W) -> &SharedText + ColumnFn,
    set: impl Fn(&mut R, SharedText) + ColumnFn,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::One, name, "STRING"),
        move |row, cells| cells.values.push(same_or_new(&cells.values, get(row))),
        move |chunks| {
            let mut known: HashSet<SharedText> = HashSet::new();
            // The cells of a dictionary page repeat the address of their entry. The bytes are compared too, because the next
            // page may be at the same address.
            let mut seen: HashMap<usize, SharedText> = HashMap::new();
            every(name, chunks.texts(name, 0)?, move |row, value| {
                let address = value.data().as_ptr().addr();
                if let Some(text) = seen.get(&address)
                    && text.as_bytes() == value.data()
                {
                    set(row, text.clone());
                    return Ok(());
                }
                let text = utf8(name, value)?;
                let text = known.get(text).cloned().unwrap_or_else(|| {
                    let new = SharedText::from(text);
                    known.insert(new.clone());
                    new
                });
                if seen.len() >= MOST_ADDRESSES {
                    seen.clear();
                }
                seen.insert(address, text.clone());
                set(row, text);
                Ok(())
            })
        },
    )
}

/// Returns a column with a text or null in every row.
pub(crate) fn maybe_text<W: 'static, R: 'static>(
    name: &'static str,
    get: impl Fn(&W) -> Option<&str> + ColumnFn,
    set: impl Fn(&mut R, Option<&str>) -> StoreResult + ColumnFn,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::OneOrNone, name, "STRING"),
        move |row, cells| cells.maybe(get(row).map(|text| same_or_new(&cells.values, text))),
        move |chunks| {
            some(chunks.texts(name, 0)?, move |row, value| {
                set(row, value.map(|value| utf8(name, value)).transpose()?).map_err(fault)
            })
        },
    )
}

/// The conversion from an enum to its name, and back.
type Names<V> = (fn(V) -> &'static str, fn(&str) -> Option<V>);

pub(crate) fn word<W: 'static, R: 'static, V: Copy + 'static>(
    name: &'static str,
    get: impl Fn(&W) -> V + ColumnFn,
    (spelt, known): Names<V>,
    set: impl Fn(&mut R, V) + ColumnFn,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::One, name, "STRING"),
        move |row, cells| cells.values.push(same_or_new(&cells.values, spelt(get(row)))),
        move |chunks| {
            let mut words = Words::new(name, known);
            every(name, chunks.texts(name, 0)?, move |row, value| {
                set(row, words.read(value)?);
                Ok(())
            })
        },
    )
}

/// Returns a column with an enum, stored by name, or null.
pub(crate) fn maybe_word<W: 'static, R: 'static, V: Copy + 'static>(
    name: &'static str,
    get: impl Fn(&W) -> Option<V> + ColumnFn,
    (spelt, known): Names<V>,
    set: impl Fn(&mut R, Option<V>) + ColumnFn,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::OneOrNone, name, "STRING"),
        move |row, cells| cells.maybe(get(row).map(|word| same_or_new(&cells.values, spelt(word)))),
        move |chunks| {
            let mut words = Words::new(name, known);
            some(chunks.texts(name, 0)?, move |row, value| {
                set(row, value.map(|value| words.read(value)).transpose()?);
                Ok(())
            })
        },
    )
}

pub(crate) fn texts<W: 'static, R: 'static, E: 'static>(
    name: &'static str,
    list: impl Fn(&W) -> &[E] + ColumnFn,
    get: impl Fn(&E) -> &str + ColumnFn,
    set: impl Fn(&mut R, Vec<String>) -> StoreResult + ColumnFn,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::List, name, "STRING"),
        move |row, cells| cells.list(list(row).iter().map(|e| ByteArray::from(get(e)))),
        move |chunks| {
            lists(name, chunks.texts(name, 1)?, move |row, values| {
                let texts = values.iter().map(|text| utf8(name, text).map(str::to_owned));
                set(row, texts.collect::<ParquetResult<_>>()?).map_err(fault)
            })
        },
    )
}

/// Returns a column with any value, which is read into cell `at` of a row: a text, a whole number, or null.
pub(crate) fn cell(name: &'static str, at: usize) -> Column<(), Vec<Option<AttributeValue>>> {
    Column::new::<ByteArrayType>(
        (Many::OneOrNone, name, "STRING"),
        |_: &(), cells| cells.maybe(None),
        move |chunks| {
            let set = move |row: &mut Vec<Option<AttributeValue>>, value: Option<AttributeValue>| {
                if let Some(cell) = row.get_mut(at) {
                    *cell = value;
                }
            };
            if chunks.is_text(name) {
                let text = move |value: &ByteArray| {
                    ParquetResult::Ok(AttributeValue::Text(utf8(name, value)?.to_owned()))
                };
                return some(chunks.texts(name, 0)?, move |row, value| {
                    set(row, value.map(text).transpose()?);
                    Ok(())
                });
            }
            some(i64::find(chunks, name, 0)?, move |row, value| {
                set(row, value.copied().map(AttributeValue::Int));
                Ok(())
            })
        },
    )
}

/// Returns the previous text if it is equal, because repeated texts are shared instead of copied.
fn same_or_new(values: &[ByteArray], text: &str) -> ByteArray {
    match values.last() {
        Some(last) if last.data() == text.as_bytes() => last.clone(),
        _ => ByteArray::from(text),
    }
}
