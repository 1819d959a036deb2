//! A column of a file in one place: its name and type, how it comes out of a row and how it goes back into one.
//!
//! So a file's schema is made from its columns, and what is written and what is read cannot come apart. Rows may be written as one type and
//! read as another, where what is written has to be spelt out first. What may be null may be missing too, in files of an older version; it is then
//! not set.

use std::collections::HashSet;
use std::fs::File;

use parquet::basic::Type as Physical;
use parquet::data_type::{ByteArray, ByteArrayType, DataType};
use parquet::file::writer::SerializedRowGroupWriter;
use plimsoll_model::SharedText;

use super::Stored;
use super::feed::{Got, fault};
use super::read::{Chunks, Job, Words, every, lists, some, utf8};
use super::write::{Cells, Done, write_cells};

/// A function of a column: used once per row group, by several threads.
pub(crate) trait Part: Copy + Send + Sync + 'static {}
impl<T: Copy + Send + Sync + 'static> Part for T {}

/// Whether a value could be taken; if not, why.
pub(crate) type Taken = Result<(), String>;

/// Writes one column of a row group.
type Write<W> = Box<dyn Fn(&mut SerializedRowGroupWriter<'_, File>, &[W]) -> Done + Send + Sync>;

/// Makes what reads one column of a row group; nothing where the group is without it and may be.
type Read<R> = Box<dyn for<'g> Fn(&Chunks<'g>) -> Got<Option<Job<'g, R>>> + Send + Sync>;

/// One column of rows that are written as `W` and read as `R`.
pub(crate) struct Column<W, R = W> {
    pub(super) schema: String,
    /// Is it packed as differences? The others try a dictionary first.
    pub(super) deltas: bool,
    pub(super) write: Write<W>,
    pub(super) read: Read<R>,
}

/// How many values a row has.
enum Many {
    One,
    OneOrNone,
    List,
}

impl<W: 'static, R: 'static> Column<W, R> {
    fn new<T: DataType>(
        (many, name, logical): (Many, &'static str, &str),
        fill: impl Fn(&W, &mut Cells<T::T>) + Part,
        read: impl for<'g> Fn(&Chunks<'g>) -> Got<Option<Job<'g, R>>> + Part,
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

    /// The same, packed as differences: for growing or clustered integers.
    pub(crate) fn deltas(self) -> Column<W, R> {
        Column { deltas: true, ..self }
    }
}

/// A value in every row.
pub(crate) fn one<W: 'static, R: 'static, T: Stored>(
    name: &'static str,
    get: impl Fn(&W) -> T + Part,
    set: impl Fn(&mut R, T) + Part,
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

/// A value, or null where it is unknown.
pub(crate) fn maybe<W: 'static, R: 'static, T: Stored>(
    name: &'static str,
    get: impl Fn(&W) -> Option<T> + Part,
    set: impl Fn(&mut R, Option<T>) + Part,
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

/// A count, null where it is zero.
pub(crate) fn not_zero<W: 'static, R: 'static, T: Stored + PartialEq>(
    name: &'static str,
    get: impl Fn(&W) -> T + Part,
    set: impl Fn(&mut R, T) + Part,
) -> Column<W, R> {
    maybe(
        name,
        move |row| Some(get(row)).filter(|count| *count != T::default()),
        move |row, count| set(row, count.unwrap_or_default()),
    )
}

pub(crate) fn list<W: 'static, R: 'static, E: 'static, T: Stored>(
    name: &'static str,
    list: impl Fn(&W) -> &[E] + Part,
    get: impl Fn(&E) -> T + Part,
    set: impl Fn(&mut R, &[T]) -> Taken + Part,
) -> Column<W, R> {
    Column::new::<T::Column>(
        (Many::List, name, T::LOGICAL),
        move |row, cells| cells.list(list(row).iter().map(|e| get(e).store())),
        move |chunks| {
            lists(name, T::find(chunks, name, 1)?, move |row, values| set(row, values).map_err(fault))
        },
    )
}

/// A text in every row.
pub(crate) fn text<W: 'static, R: 'static>(
    name: &'static str,
    get: impl Fn(&W) -> &str + Part,
    set: impl Fn(&mut R, &str) -> Taken + Part,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::One, name, "STRING"),
        move |row, cells| cells.values.push(same_or_new(&cells.values, get(row))),
        move |chunks| {
            every(name, chunks.texts(name, 0)?, move |row, value| set(row, utf8(name, value)?).map_err(fault))
        },
    )
}

/// A text in every row that stands in many: of a row group each is in memory once.
pub(crate) fn shared_text<W: 'static, R: 'static>(
    name: &'static str,
    get: impl Fn(&W) -> &SharedText + Part,
    set: impl Fn(&mut R, SharedText) + Part,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::One, name, "STRING"),
        move |row, cells| cells.values.push(same_or_new(&cells.values, get(row))),
        move |chunks| {
            let mut known: HashSet<SharedText> = HashSet::new();
            every(name, chunks.texts(name, 0)?, move |row, value| {
                let text = utf8(name, value)?;
                set(
                    row,
                    known.get(text).cloned().unwrap_or_else(|| {
                        let new = SharedText::from(text);
                        known.insert(new.clone());
                        new
                    }),
                );
                Ok(())
            })
        },
    )
}

/// A text, or null where there is none.
pub(crate) fn maybe_text<W: 'static, R: 'static>(
    name: &'static str,
    get: impl Fn(&W) -> Option<&str> + Part,
    set: impl Fn(&mut R, Option<&str>) -> Taken + Part,
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

/// What words are written as, and read from.
type Names<V> = (fn(V) -> &'static str, fn(&str) -> Option<V>);

pub(crate) fn word<W: 'static, R: 'static, V: Copy + 'static>(
    name: &'static str,
    get: impl Fn(&W) -> V + Part,
    (spelt, known): Names<V>,
    set: impl Fn(&mut R, V) + Part,
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

/// One of few words, or null where there is none.
pub(crate) fn maybe_word<W: 'static, R: 'static, V: Copy + 'static>(
    name: &'static str,
    get: impl Fn(&W) -> Option<V> + Part,
    (spelt, known): Names<V>,
    set: impl Fn(&mut R, Option<V>) + Part,
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
    list: impl Fn(&W) -> &[E] + Part,
    get: impl Fn(&E) -> &str + Part,
    set: impl Fn(&mut R, Vec<String>) -> Taken + Part,
) -> Column<W, R> {
    Column::new::<ByteArrayType>(
        (Many::List, name, "STRING"),
        move |row, cells| cells.list(list(row).iter().map(|e| ByteArray::from(get(e)))),
        move |chunks| {
            lists(name, chunks.texts(name, 1)?, move |row, values| {
                let texts = values.iter().map(|text| utf8(name, text).map(str::to_owned));
                set(row, texts.collect::<Got<_>>()?).map_err(fault)
            })
        },
    )
}

/// Texts repeat themselves row after row: the one before is shared instead of copied.
fn same_or_new(values: &[ByteArray], text: &str) -> ByteArray {
    match values.last() {
        Some(last) if last.data() == text.as_bytes() => last.clone(),
        _ => ByteArray::from(text),
    }
}
