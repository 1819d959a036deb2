//! Reads tables that another tool exported, by name: a folder with one Parquet file per table, or an SQLite database.
//!
//! A table or column may be missing, because tools add both over the years. A reader per tool was rejected: the tool's
//! schema belongs to the format (`wire`), and this module only reads cells. SQLite needs the feature `sqlite`.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use plimsoll_model::AttributeValue;

use crate::error::{Result, StoreError};
use crate::table::{Column, cell, each_batch};

/// First bytes of an SQLite database.
const SQLITE: &[u8] = b"SQLite format 3\0";
/// Extension of a table in a folder.
const PARQUET: &str = "parquet";

/// One row of a table: a cell per requested column; `None` for null, a missing column, or bytes that are no text.
pub type Cells<'r> = &'r [Option<AttributeValue>];

/// The tables of an export.
#[derive(Debug)]
pub enum ExportedTables {
    /// A folder with `NAME.parquet` for each table.
    Folder(PathBuf),
    #[cfg(feature = "sqlite")]
    Sqlite(sqlite::Database),
}

impl ExportedTables {
    /// Returns whether the path is a folder with this table, or an SQLite database with any tables.
    pub fn is_at(path: &Path, table: &str) -> bool {
        if path.is_dir() {
            return file_of(path, table).is_file();
        }
        let mut magic = [0; SQLITE.len()];
        File::open(path).and_then(|mut file| file.read_exact(&mut magic)).is_ok() && magic == SQLITE
    }

    /// Opens the export.
    ///
    /// # Errors
    /// Fails if the database is damaged, or if this build does not read SQLite.
    pub fn open(path: &Path) -> Result<ExportedTables> {
        if path.is_dir() {
            return Ok(ExportedTables::Folder(path.to_path_buf()));
        }
        database(path)
    }

    /// Passes these columns of each row to `each`. Returns false if the table is missing.
    ///
    /// # Errors
    /// Fails if the table can't be read.
    pub fn each_row(
        &self,
        table: &str,
        columns: &[&'static str],
        each: &mut dyn FnMut(Cells<'_>),
    ) -> Result<bool> {
        match self {
            ExportedTables::Folder(folder) => parquet(&file_of(folder, table), columns, each),
            #[cfg(feature = "sqlite")]
            ExportedTables::Sqlite(database) => database.each_row(table, columns, each),
        }
    }
}

#[cfg(feature = "sqlite")]
fn database(path: &Path) -> Result<ExportedTables> {
    Ok(ExportedTables::Sqlite(sqlite::Database::open(path)?))
}

#[cfg(not(feature = "sqlite"))]
fn database(path: &Path) -> Result<ExportedTables> {
    let why = "this build does not read SQLite; export with `nsys export --type parquetdir`, or build with --features sqlite";
    Err(StoreError::broken(path, why))
}

fn file_of(folder: &Path, table: &str) -> PathBuf {
    folder.join(table).with_extension(PARQUET)
}

fn parquet(path: &Path, columns: &[&'static str], each: &mut dyn FnMut(Cells<'_>)) -> Result<bool> {
    if !path.is_file() {
        return Ok(false);
    }
    let columns: Vec<Column<(), Vec<Option<AttributeValue>>>> =
        columns.iter().enumerate().map(|(at, name)| cell(name, at)).collect();
    let blank = || vec![None; columns.len()];
    each_batch(path, blank, &columns, |rows| rows.iter().for_each(|row| each(row)))?;
    Ok(true)
}

#[cfg(feature = "sqlite")]
mod sqlite {
    //! The SQLite form of an export.

    use std::collections::HashSet;

    use plimsoll_model::AttributeValue;
    use rusqlite::types::ValueRef;
    use rusqlite::{Connection, OpenFlags};

    use super::{Cells, Path, PathBuf, Result, StoreError};

    /// An open database.
    #[derive(Debug)]
    pub struct Database {
        path: PathBuf,
        connection: Connection,
    }

    impl Database {
        pub(super) fn open(path: &Path) -> Result<Database> {
            let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let path = path.to_path_buf();
            match Connection::open_with_flags(&path, flags) {
                Ok(connection) => Ok(Database { path, connection }),
                Err(e) => Err(broken(&path, &e)),
            }
        }

        pub(super) fn each_row(
            &self,
            table: &str,
            columns: &[&str],
            each: &mut dyn FnMut(Cells<'_>),
        ) -> Result<bool> {
            self.read(table, columns, each).map_err(|e| broken(&self.path, &e))
        }

        fn read(
            &self,
            table: &str,
            columns: &[&str],
            each: &mut dyn FnMut(Cells<'_>),
        ) -> rusqlite::Result<bool> {
            let known = "SELECT name FROM pragma_table_info(?1)";
            let mut known = self.connection.prepare(known)?;
            let known: HashSet<String> =
                known.query_map([table], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
            if known.is_empty() {
                return Ok(false);
            }
            let cell =
                |name: &&str| if known.contains(*name) { format!("\"{name}\"") } else { "NULL".into() };
            let cells: Vec<String> = columns.iter().map(cell).collect();
            let mut rows =
                self.connection.prepare(&format!("SELECT {} FROM \"{table}\"", cells.join(", ")))?;
            let mut rows = rows.query([])?;
            let mut held: Vec<Option<AttributeValue>> = vec![None; columns.len()];
            while let Some(row) = rows.next()? {
                for (at, cell) in held.iter_mut().enumerate() {
                    *cell = value(row.get_ref(at)?);
                }
                each(&held);
            }
            Ok(true)
        }
    }

    fn value(value: ValueRef<'_>) -> Option<AttributeValue> {
        match value {
            ValueRef::Null | ValueRef::Blob(_) => None,
            ValueRef::Integer(n) => Some(AttributeValue::Int(n)),
            ValueRef::Real(n) => Some(AttributeValue::Real(n)),
            ValueRef::Text(text) => Some(AttributeValue::Text(String::from_utf8_lossy(text).into_owned())),
        }
    }

    fn broken(path: &Path, error: &rusqlite::Error) -> StoreError {
        StoreError::broken(path, format!("can't be read as SQLite ({error}); export it again"))
    }
}
