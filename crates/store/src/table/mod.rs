//! Implements Parquet files with typed columns, without arrow.
//!
//! A file is a list of columns that each copy a field from plain structs and back. One line per column therefore defines
//! schema, writing and reading. The arrow integration was rejected: three times the compile time and binary size, for equal
//! bytes on disk at equal speed.

mod column;
mod feed;
mod guard;
mod read;
mod thrift;
mod write;

pub(crate) use column::{
    Column, ColumnFn, StoreResult, cell, list, maybe, maybe_text, maybe_word, not_zero, one, shared_text,
    text, texts, word,
};
pub(crate) use read::{each_batch, each_fact, each_group, read_rows};
pub(crate) use write::Table;

use feed::{FoundColumn, ParquetResult};
use parquet::data_type::{BoolType, DataType, DoubleType, Int32Type, Int64Type};
use plimsoll_model::{At, Span};
use read::Chunks;

/// Prefix of the writer's name in the footer.
const MAKER: &str = "plimsoll ";

/// A value type and its Parquet column. Unsigned numbers are stored as the signed bits of their width.
pub(crate) trait ColumnValue: Copy + Default + 'static {
    /// Physical type: INT32 for integers up to 32 bits, INT64 for larger ones.
    type Column: DataType;
    const LOGICAL: &'static str;
    /// Converts the value to its stored form.
    fn store(self) -> <Self::Column as DataType>::T;
    /// Returns the column with this name, if it exists.
    fn find<'g>(
        chunks: &Chunks<'g>,
        name: &'static str,
        nesting: i16,
    ) -> ParquetResult<Option<FoundColumn<'g, Self>>>;
}

/// An integer type, which other programs may have stored with another width.
trait Whole: ColumnValue {
    /// Converts a value of an INT32 column. `None` = out of range.
    fn from_narrow(value: i32) -> Option<Self>;
    /// Converts a value of an INT64 column. `None` = out of range.
    fn from_wide(value: i64) -> Option<Self>;
}

macro_rules! stored {
    ($($t:ty: $logical:literal, $column:ty, $find:expr, $store:expr $(, $narrow:expr, $wide:expr)?;)*) => {$(
        impl ColumnValue for $t {
            type Column = $column;
            const LOGICAL: &'static str = $logical;
            #[inline]
            fn store(self) -> <$column as DataType>::T { ($store)(self) }
            fn find<'g>(chunks: &Chunks<'g>, name: &'static str, nesting: i16) -> ParquetResult<Option<FoundColumn<'g, Self>>> {
                $find(chunks, name, nesting)
            }
        }
        $(impl Whole for $t {
            #[inline]
            fn from_narrow(value: i32) -> Option<Self> { ($narrow)(value) }
            #[inline]
            fn from_wide(value: i64) -> Option<Self> { ($wide)(value) }
        })?
    )*};
}

stored! {
    u8: "INTEGER(8, false)", Int32Type, Chunks::ints, i32::from, |v| u8::try_from(v).ok(), |v| u8::try_from(v).ok();
    u16: "INTEGER(16, false)", Int32Type, Chunks::ints, i32::from, |v| u16::try_from(v).ok(), |v| u16::try_from(v).ok();
    u32: "INTEGER(32, false)", Int32Type, Chunks::ints, |v| v as i32, |v: i32| Some(v as u32), |v| u32::try_from(v).ok();
    u64: "INTEGER(64, false)", Int64Type, Chunks::ints, |v| v as i64, |v: i32| Some(u64::from(v as u32)), |v: i64| Some(v as u64);
    i64: "", Int64Type, Chunks::ints, |v| v, |v: i32| Some(i64::from(v)), Some;
    At: "", Int64Type, Chunks::ints, |v: At| v.0, |v: i32| Some(At(i64::from(v))), |v| Some(At(v));
    Span: "", Int64Type, Chunks::ints, |v: Span| v.0, |v: i32| Some(Span(i64::from(v))), |v| Some(Span(v));
    bool: "", BoolType, Chunks::flags, |v| v;
    f64: "", DoubleType, Chunks::reals, |v| v;
}
