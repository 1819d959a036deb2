//! Parquet by typed columns, without arrow: what the two files of a run share.
//!
//! A file is a schema and, per row group, one closure per column that copies a field out of or into plain structs.
//! So a column is one line where its file is described, for writing and for reading. The arrow integration was the
//! alternative: three times the compile time and the binary, for the same bytes on disk at the same speed.

mod feed;
mod guard;
mod read;
mod write;

pub(crate) use read::{ColumnReading, Got, each_batch, each_fact, each_group, read_rows};

/// What the footer's maker begins with.
const MAKER: &str = "plimsoll ";
pub(crate) use write::{
    Column, Table, flag, flag_list, int, int_list, maybe_int, maybe_text, real, text, text_list,
};

use parquet::data_type::{DataType, Int32Type, Int64Type};

/// An integer and the Parquet column that holds it. Unsigned ones are stored as the signed bits of their width.
pub(crate) trait Stored: Copy + Default + Send + 'static {
    /// INT32 up to 32 bits, INT64 beyond.
    type Column: DataType;
    /// The same in a schema, and what it says besides.
    const SCHEMA: (&'static str, &'static str);
    /// As its column holds it.
    fn store(self) -> <Self::Column as DataType>::T;
    /// From an INT32 column. `None` = out of range.
    fn from_narrow(value: i32) -> Option<Self>;
    /// From an INT64 column. `None` = out of range.
    fn from_wide(value: i64) -> Option<Self>;
}

macro_rules! stored {
    ($($t:ty: $column:ty, $schema:expr, $physical:ty, $narrow:expr, $wide:expr;)*) => {$(
        impl Stored for $t {
            type Column = $column;
            const SCHEMA: (&'static str, &'static str) = $schema;
            #[inline]
            fn store(self) -> $physical { self as $physical }
            #[inline]
            fn from_narrow(value: i32) -> Option<Self> { ($narrow)(value) }
            #[inline]
            fn from_wide(value: i64) -> Option<Self> { ($wide)(value) }
        }
    )*};
}

stored! {
    u8: Int32Type, ("int32", " (INTEGER(8, false))"), i32, |v| u8::try_from(v).ok(), |v| u8::try_from(v).ok();
    u16: Int32Type, ("int32", " (INTEGER(16, false))"), i32, |v| u16::try_from(v).ok(), |v| u16::try_from(v).ok();
    u32: Int32Type, ("int32", " (INTEGER(32, false))"), i32, |v: i32| Some(v as u32), |v| u32::try_from(v).ok();
    u64: Int64Type, ("int64", " (INTEGER(64, false))"), i64, |v: i32| Some(u64::from(v as u32)), |v: i64| Some(v as u64);
    i64: Int64Type, ("int64", ""), i64, |v: i32| Some(i64::from(v)), |v: i64| Some(v);
}
