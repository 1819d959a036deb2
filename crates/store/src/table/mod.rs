//! Parquet by typed columns, without arrow: what the two files of a run share.
//!
//! A file is a list of columns, each of which copies a field out of plain structs and back into them. So a column is one line where its
//! file is described: for the schema, for writing and for reading. The arrow integration was the
//! alternative: three times the compile time and the binary, for the same bytes on disk at the same speed.

mod column;
mod feed;
mod guard;
mod read;
mod thrift;
mod write;

pub(crate) use column::{
    Column, Part, Taken, list, maybe, maybe_text, maybe_word, not_zero, one, shared_text, text, texts, word,
};
pub(crate) use read::{each_batch, each_fact, each_group, read_rows};
pub(crate) use write::Table;

use feed::{FoundColumn, Got};
use parquet::data_type::{BoolType, DataType, DoubleType, Int32Type, Int64Type};
use plimsoll_model::{At, Span};
use read::Chunks;

/// What the footer's maker begins with.
const MAKER: &str = "plimsoll ";

/// A value and the Parquet column that holds it. Unsigned numbers are stored as the signed bits of their width.
pub(crate) trait Stored: Copy + Default + 'static {
    /// INT32 for integers up to 32 bits, INT64 beyond.
    type Column: DataType;
    /// What the column's type means, as the schema says it.
    const LOGICAL: &'static str;
    /// As its column holds it.
    fn store(self) -> <Self::Column as DataType>::T;
    /// The column of this name, if it is there.
    fn find<'g>(chunks: &Chunks<'g>, name: &'static str, nesting: i16) -> Got<Option<FoundColumn<'g, Self>>>;
}

/// An integer, which other programs may have put into a column of another width.
trait Whole: Stored {
    /// From an INT32 column. `None` = out of range.
    fn from_narrow(value: i32) -> Option<Self>;
    /// From an INT64 column. `None` = out of range.
    fn from_wide(value: i64) -> Option<Self>;
}

macro_rules! stored {
    ($($t:ty: $logical:literal, $column:ty, $find:expr, $store:expr $(, $narrow:expr, $wide:expr)?;)*) => {$(
        impl Stored for $t {
            type Column = $column;
            const LOGICAL: &'static str = $logical;
            #[inline]
            fn store(self) -> <$column as DataType>::T { ($store)(self) }
            fn find<'g>(chunks: &Chunks<'g>, name: &'static str, nesting: i16) -> Got<Option<FoundColumn<'g, Self>>> {
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
