//! The writing half: one row group at a time, each column copied out of the rows in chunks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType};
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::{MAKER, Stored};
use crate::error::{Result, StoreError};

/// Rows copied out of their structs at a time, so that the copy stays in the cache.
const CHUNK: usize = 1024;

type Done = std::result::Result<(), ParquetError>;

/// Writes one column of a row group.
type Write<R> = Box<dyn Fn(&mut SerializedRowGroupWriter<'_, File>, &[R]) -> Done + Send>;

/// A column of a file.
pub(crate) struct Column<R> {
    /// Its line of the schema.
    schema: String,
    is_packed: bool,
    write: Write<R>,
}

impl<R> Column<R> {
    /// Of growing or clustered integers, which are packed as differences; the others try a dictionary first.
    pub(crate) fn packed(self) -> Column<R> {
        Column { is_packed: true, ..self }
    }
}

/// What a column holds in each row.
enum Cell {
    One,
    Maybe,
    List,
}

impl Cell {
    fn schema(self, name: &str, (physical, logical): (&str, &str)) -> String {
        match self {
            Cell::One => format!("required {physical} {name}{logical};"),
            Cell::Maybe => format!("optional {physical} {name}{logical};"),
            Cell::List => format!(
                "required group {name} (LIST) {{ repeated group list {{ required {physical} element{logical}; }} }}"
            ),
        }
    }
}

const FLAG: (&str, &str) = ("boolean", "");
const REAL: (&str, &str) = ("double", "");
const TEXT: (&str, &str) = ("binary", " (STRING)");

/// A file being written.
pub(crate) struct Table<R> {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    columns: Vec<Column<R>>,
}

impl<R> Table<R> {
    /// Begins a file at `path`. `notes` goes into the footer.
    pub(crate) fn create(
        path: &Path,
        name: &str,
        notes: &[(&str, String)],
        columns: Vec<Column<R>>,
    ) -> Result<Table<R>> {
        let lines: String = columns.iter().map(|column| column.schema.as_str()).collect();
        let schema = parse_message_type(&format!("message {name} {{ {lines} }}"))
            .expect("columns are constants of this crate");
        let notes =
            notes.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone())).collect();
        let mut properties = WriterProperties::builder()
            // Numbers that are packed already: higher levels take longer and save next to nothing.
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).expect("zstd has a level 1")))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_data_page_row_count_limit(usize::MAX)
            .set_write_batch_size(8192)
            .set_created_by(format!("{MAKER}{}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(notes));
        for (field, _) in schema.get_fields().iter().zip(&columns).filter(|(_, column)| column.is_packed) {
            let mut parts = vec![field.name().to_owned()];
            if field.is_group() {
                parts.extend(["list".to_owned(), "element".to_owned()]);
            }
            let column = ColumnPath::new(parts);
            properties = properties
                .set_column_dictionary_enabled(column.clone(), false)
                .set_column_encoding(column, Encoding::DELTA_BINARY_PACKED);
        }
        let file = File::create(path).map_err(|source| StoreError::io(path, "create", source))?;
        let file = SerializedFileWriter::new(file, Arc::new(schema), Arc::new(properties.build()))
            .map_err(|error| StoreError::parquet(path, "write", error))?;
        Ok(Table { path: path.to_path_buf(), file, columns })
    }

    /// Writes these rows as one row group.
    pub(crate) fn group(&mut self, rows: &[R]) -> Result<()> {
        let mut write = || -> Done {
            let mut group = self.file.next_row_group()?;
            for column in &self.columns {
                (column.write)(&mut group, rows)?;
            }
            group.close().map(|_| ())
        };
        write().map_err(|error| StoreError::parquet(&self.path, "write", error))
    }

    /// Writes the footer and waits until the file is on the disk.
    pub(crate) fn close(mut self) -> Result<()> {
        self.file.finish().map_err(|error| StoreError::parquet(&self.path, "write", error))?;
        self.file.inner().sync_all().map_err(|source| StoreError::io(&self.path, "sync", source))
    }
}

/// Values of a chunk with their levels, as Parquet wants them.
struct Cells<T> {
    values: Vec<T>,
    def: Vec<i16>,
    rep: Vec<i16>,
}

impl<T> Cells<T> {
    fn maybe(&mut self, value: Option<T>) {
        self.def.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    fn list(&mut self, values: impl Iterator<Item = T>) {
        let before = self.values.len();
        self.values.extend(values);
        let len = self.values.len() - before;
        self.rep.push(0);
        if len == 0 {
            self.def.push(0);
            return;
        }
        self.rep.resize(self.rep.len() + len - 1, 1);
        self.def.resize(self.def.len() + len, 1);
    }
}

/// A column whose cells `fill` makes from a row.
fn column<R: 'static, T: DataType>(
    name: &'static str,
    (cell, kind): (Cell, (&str, &str)),
    fill: impl Fn(&R, &mut Cells<T::T>) + Send + 'static,
) -> Column<R> {
    let write: Write<R> = Box::new(move |group, rows| {
        let mut column =
            group.next_column()?.ok_or_else(|| ParquetError::General(format!("no column {name}")))?;
        let writer = column.typed::<T>();
        let mut cells = Cells { values: Vec::new(), def: Vec::new(), rep: Vec::new() };
        for chunk in rows.chunks(CHUNK) {
            cells.values.clear();
            cells.def.clear();
            cells.rep.clear();
            chunk.iter().for_each(|row| fill(row, &mut cells));
            writer.write_batch(
                &cells.values,
                (!cells.def.is_empty()).then_some(&cells.def),
                (!cells.rep.is_empty()).then_some(&cells.rep),
            )?;
        }
        column.close()
    });
    Column { schema: cell.schema(name, kind), is_packed: false, write }
}

/// An integer in every row.
pub(crate) fn int<R: 'static, T: Stored>(
    name: &'static str,
    get: impl Fn(&R) -> T + Send + 'static,
) -> Column<R> {
    column::<R, T::Column>(name, (Cell::One, T::SCHEMA), move |row, cells| {
        cells.values.push(get(row).store())
    })
}

/// An integer, or null where it is unknown.
pub(crate) fn maybe_int<R: 'static, T: Stored>(
    name: &'static str,
    get: impl Fn(&R) -> Option<T> + Send + 'static,
) -> Column<R> {
    column::<R, T::Column>(name, (Cell::Maybe, T::SCHEMA), move |row, cells| {
        cells.maybe(get(row).map(T::store))
    })
}

/// A list of integers, empty where there are none.
pub(crate) fn int_list<R: 'static, E: 'static, T: Stored>(
    name: &'static str,
    list: impl Fn(&R) -> &[E] + Send + 'static,
    get: impl Fn(&E) -> T + Send + 'static,
) -> Column<R> {
    column::<R, T::Column>(name, (Cell::List, T::SCHEMA), move |row, cells| {
        cells.list(list(row).iter().map(|e| get(e).store()))
    })
}

/// A boolean in every row.
pub(crate) fn flag<R: 'static>(name: &'static str, get: impl Fn(&R) -> bool + Send + 'static) -> Column<R> {
    column::<R, BoolType>(name, (Cell::One, FLAG), move |row, cells| cells.values.push(get(row)))
}

/// A list of booleans.
pub(crate) fn flag_list<R: 'static, E: 'static>(
    name: &'static str,
    list: impl Fn(&R) -> &[E] + Send + 'static,
    get: impl Fn(&E) -> bool + Send + 'static,
) -> Column<R> {
    column::<R, BoolType>(name, (Cell::List, FLAG), move |row, cells| cells.list(list(row).iter().map(&get)))
}

/// A double in every row.
pub(crate) fn real<R: 'static>(name: &'static str, get: impl Fn(&R) -> f64 + Send + 'static) -> Column<R> {
    column::<R, DoubleType>(name, (Cell::One, REAL), move |row, cells| cells.values.push(get(row)))
}

/// A text in every row.
pub(crate) fn text<R: 'static>(name: &'static str, get: impl Fn(&R) -> &str + Send + 'static) -> Column<R> {
    column::<R, ByteArrayType>(name, (Cell::One, TEXT), move |row, cells| {
        cells.values.push(same_or_new(&cells.values, get(row)))
    })
}

/// A text, or null where there is none.
pub(crate) fn maybe_text<R: 'static>(
    name: &'static str,
    get: impl Fn(&R) -> Option<&str> + Send + 'static,
) -> Column<R> {
    column::<R, ByteArrayType>(name, (Cell::Maybe, TEXT), move |row, cells| {
        let value = get(row).map(|text| same_or_new(&cells.values, text));
        cells.maybe(value);
    })
}

/// A list of texts.
pub(crate) fn text_list<R: 'static, E: 'static>(
    name: &'static str,
    list: impl Fn(&R) -> &[E] + Send + 'static,
    get: impl Fn(&E) -> &str + Send + 'static,
) -> Column<R> {
    column::<R, ByteArrayType>(name, (Cell::List, TEXT), move |row, cells| {
        cells.list(list(row).iter().map(|e| ByteArray::from(get(e))));
    })
}

/// Texts repeat themselves row after row: the one before is shared instead of copied.
fn same_or_new(values: &[ByteArray], text: &str) -> ByteArray {
    match values.last() {
        Some(last) if last.data() == text.as_bytes() => last.clone(),
        _ => ByteArray::from(text),
    }
}
