//! Writes Parquet files: one row group at a time, each column copied from the rows in chunks.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::{Compression, Encoding, ZstdLevel};
use parquet::data_type::DataType;
use parquet::errors::ParquetError;
use parquet::file::metadata::KeyValue;
use parquet::file::properties::{EnabledStatistics, WriterProperties};
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::parser::parse_message_type;
use parquet::schema::types::ColumnPath;

use super::MAKER;
use super::column::Column;
use crate::error::{Result, StoreError};

/// Rows per chunk, so that the copy stays in the cache.
const CHUNK: usize = 1024;

pub(super) type WriteResult = std::result::Result<(), ParquetError>;

pub(crate) struct Table<W, R = W> {
    path: PathBuf,
    file: SerializedFileWriter<File>,
    columns: Vec<Column<W, R>>,
}

impl<W, R> Table<W, R> {
    /// Creates a file with these columns at `path`. `notes` is written to the footer.
    pub(crate) fn create(
        path: &Path,
        name: &str,
        notes: &[(&str, String)],
        columns: Vec<Column<W, R>>,
    ) -> Result<Table<W, R>> {
        let lines: String = columns.iter().map(|column| column.schema.as_str()).collect();
        let schema = parse_message_type(&format!("message {name} {{ {lines} }}"));
        let schema = schema.expect("the column descriptions form a schema");
        let notes =
            notes.iter().map(|(key, value)| KeyValue::new((*key).to_owned(), value.clone())).collect();
        let mut properties = WriterProperties::builder()
            // The numbers are encoded already, so higher levels take longer for almost no gain.
            .set_compression(Compression::ZSTD(ZstdLevel::try_new(1).expect("zstd has a level 1")))
            .set_statistics_enabled(EnabledStatistics::Chunk)
            .set_offset_index_disabled(true)
            .set_data_page_row_count_limit(usize::MAX)
            .set_write_batch_size(8192)
            .set_created_by(format!("{MAKER}{}", env!("CARGO_PKG_VERSION")))
            .set_key_value_metadata(Some(notes));
        for (field, _) in schema.get_fields().iter().zip(&columns).filter(|(_, column)| column.deltas) {
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
    pub(crate) fn group(&mut self, rows: &[W]) -> Result<()> {
        let mut write = || -> WriteResult {
            let mut group = self.file.next_row_group()?;
            for column in &self.columns {
                (column.write)(&mut group, rows)?;
            }
            group.close().map(|_| ())
        };
        write().map_err(|error| StoreError::parquet(&self.path, "write", error))
    }

    /// Writes the footer and syncs the file to disk.
    pub(crate) fn close(mut self) -> Result<()> {
        self.file.finish().map_err(|error| StoreError::parquet(&self.path, "write", error))?;
        self.file.inner().sync_all().map_err(|source| StoreError::io(&self.path, "sync", source))
    }
}

/// The values of a chunk with their levels, in Parquet's form.
pub(super) struct Cells<T> {
    pub(super) values: Vec<T>,
    def: Vec<i16>,
    rep: Vec<i16>,
}

impl<T> Cells<T> {
    pub(super) fn maybe(&mut self, value: Option<T>) {
        self.def.push(i16::from(value.is_some()));
        self.values.extend(value);
    }

    pub(super) fn list(&mut self, values: impl Iterator<Item = T>) {
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

/// Writes the next column of a row group; `fill` converts a row to cells.
pub(super) fn write_cells<W, T: DataType>(
    group: &mut SerializedRowGroupWriter<'_, File>,
    rows: &[W],
    fill: impl Fn(&W, &mut Cells<T::T>),
) -> WriteResult {
    let mut column = group.next_column()?.expect("the schema has a line per column");
    let mut cells = Cells { values: Vec::new(), def: Vec::new(), rep: Vec::new() };
    for chunk in rows.chunks(CHUNK) {
        cells.values.clear();
        cells.def.clear();
        cells.rep.clear();
        chunk.iter().for_each(|row| fill(row, &mut cells));
        column.typed::<T>().write_batch(
            &cells.values,
            (!cells.def.is_empty()).then_some(&cells.def),
            (!cells.rep.is_empty()).then_some(&cells.rep),
        )?;
    }
    column.close()
}
