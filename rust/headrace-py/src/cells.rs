//! Arrow columns that are read as the fields of records.
//!
//! A column's type is resolved once per Arrow batch. Text is read as bytes: nothing here relies on valid UTF-8.
//!
//! The arrays own their buffers (through the release callback of the Arrow C data interface), so they are read without
//! the GIL, also after the Python object that exported them is gone.

use std::ops::Range;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    ByteArrayType, Date64Type, Int8Type, Int16Type, Int32Type, Int64Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, TimestampSecondType, UInt8Type, UInt16Type,
    UInt32Type, UInt64Type,
};
use arrow_array::{
    Array, ArrowPrimitiveType, BinaryViewArray, FixedSizeBinaryArray, GenericByteArray, StructArray,
};
use arrow_buffer::{Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{DataType, TimeUnit};

/// Bytes or text.
pub struct Cells {
    layout: CellLayout,
    nulls: Option<NullBuffer>,
}

enum CellLayout {
    AllNull,
    Offsets32(OffsetBuffer<i32>, Buffer),
    Offsets64(OffsetBuffer<i64>, Buffer),
    Views(BinaryViewArray),
    FixedSize(FixedSizeBinaryArray),
    Dictionary { indices: Vec<usize>, values: Box<Cells> },
}

impl Cells {
    /// A column that does not exist.
    pub const MISSING: Self = Self { layout: CellLayout::AllNull, nulls: None };
    pub const BYTES: &str = "binary, large_binary, binary_view, fixed_size_binary, string, large_string, \
                             string_view, null, or a dictionary of these";
    pub const TEXT: &str = "string, large_string, string_view, null, or a dictionary of these";

    /// Returns None if the column is neither bytes nor text.
    pub fn bytes(array: &dyn Array) -> Option<Self> {
        let layout = match array.data_type() {
            DataType::Binary => offsets32(array.as_binary::<i32>()),
            DataType::LargeBinary => offsets64(array.as_binary::<i64>()),
            DataType::BinaryView => CellLayout::Views(array.as_binary_view().clone()),
            DataType::FixedSizeBinary(_) => CellLayout::FixedSize(array.as_fixed_size_binary().clone()),
            DataType::Dictionary(_, _) => Self::dictionary(array, Self::bytes)?,
            _ => return Self::text(array),
        };
        Some(Self { layout, nulls: array.nulls().cloned() })
    }

    /// Returns None if the column is not text.
    pub fn text(array: &dyn Array) -> Option<Self> {
        let layout = match array.data_type() {
            DataType::Null => CellLayout::AllNull,
            DataType::Utf8 => offsets32(array.as_string::<i32>()),
            DataType::LargeUtf8 => offsets64(array.as_string::<i64>()),
            DataType::Utf8View => CellLayout::Views(array.as_string_view().clone().to_binary_view()),
            DataType::Dictionary(_, _) => Self::dictionary(array, Self::text)?,
            _ => return None,
        };
        Some(Self { layout, nulls: array.nulls().cloned() })
    }

    fn dictionary(array: &dyn Array, read: fn(&dyn Array) -> Option<Self>) -> Option<CellLayout> {
        let dictionary = array.as_any_dictionary_opt()?;
        let values = Box::new(read(dictionary.values().as_ref())?);
        if dictionary.values().is_empty() {
            return Some(CellLayout::AllNull);
        }
        Some(CellLayout::Dictionary { indices: dictionary.normalized_keys(), values })
    }

    /// The bytes of `row`, or None if it is null.
    #[inline(always)]
    pub fn get(&self, row: usize) -> Option<&[u8]> {
        if self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            return None;
        }
        match &self.layout {
            CellLayout::Offsets32(offsets, data) => {
                Some(&data[offsets[row] as usize..offsets[row + 1] as usize])
            }
            CellLayout::Offsets64(offsets, data) => {
                Some(&data[offsets[row] as usize..offsets[row + 1] as usize])
            }
            CellLayout::Views(array) => Some(array.value(row)),
            CellLayout::FixedSize(array) => Some(array.value(row)),
            CellLayout::AllNull => None,
            CellLayout::Dictionary { indices, values } => values.of_dictionary(indices[row]),
        }
    }

    #[inline(never)] // `get` is recursive because of dictionaries, and could not be inlined otherwise.
    fn of_dictionary(&self, index: usize) -> Option<&[u8]> {
        self.get(index)
    }
}

fn offsets32<T: ByteArrayType<Offset = i32>>(array: &GenericByteArray<T>) -> CellLayout {
    CellLayout::Offsets32(array.offsets().clone(), array.values().clone())
}

fn offsets64<T: ByteArrayType<Offset = i64>>(array: &GenericByteArray<T>) -> CellLayout {
    CellLayout::Offsets64(array.offsets().clone(), array.values().clone())
}

/// Whole numbers.
pub struct Integers {
    /// None if all are null.
    values: Option<ScalarBuffer<i64>>,
    nulls: Option<NullBuffer>,
}

impl Integers {
    pub const TYPES: &str = "an integer type or null";

    /// Returns None if the column does not contain integers. Numbers above the range of `i64` become the largest one.
    pub fn new(array: &dyn Array) -> Option<Self> {
        let values = match array.data_type() {
            DataType::Null => None,
            DataType::Int8 => Some(widened::<Int8Type>(array, i64::from)),
            DataType::Int16 => Some(widened::<Int16Type>(array, i64::from)),
            DataType::Int32 => Some(widened::<Int32Type>(array, i64::from)),
            DataType::Int64 => Some(array.as_primitive::<Int64Type>().values().clone()),
            DataType::UInt8 => Some(widened::<UInt8Type>(array, i64::from)),
            DataType::UInt16 => Some(widened::<UInt16Type>(array, i64::from)),
            DataType::UInt32 => Some(widened::<UInt32Type>(array, i64::from)),
            DataType::UInt64 => {
                Some(widened::<UInt64Type>(array, |value| i64::try_from(value).unwrap_or(i64::MAX)))
            }
            _ => return None,
        };
        Some(Self { values, nulls: array.nulls().cloned() })
    }

    #[inline(always)]
    pub fn get(&self, row: usize) -> Option<i64> {
        let values = self.values.as_ref()?;
        let is_null = self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        (!is_null).then(|| values[row])
    }
}

fn widened<T: ArrowPrimitiveType>(array: &dyn Array, widen: impl Fn(T::Native) -> i64) -> ScalarBuffer<i64> {
    array.as_primitive::<T>().values().iter().map(|&value| widen(value)).collect::<Vec<_>>().into()
}

/// Points in time.
pub struct Times {
    values: Integers,
    unit: TimeUnit,
    /// Kafka's "no timestamp" (−1 ms) in this unit, if the column may have it.
    missing: Option<i64>,
}

/// A time before 1970, in the unit of its column.
pub struct BeforeEpoch {
    pub value: i64,
    pub unit: &'static str,
}

impl Times {
    pub const TYPES: &str = "timestamp, date64, int64 (milliseconds since 1970) or null";

    /// Returns None if the column does not contain timestamps. `is_of_kafka`: they were read from Kafka, where −1 ms is
    /// "no timestamp".
    pub fn new(array: &dyn Array, is_of_kafka: bool) -> Option<Self> {
        let (values, unit) = match array.data_type() {
            DataType::Null => {
                let values = Integers::new(array)?;
                return Some(Self { values, unit: TimeUnit::Millisecond, missing: None });
            }
            DataType::Int64 => (array.as_primitive::<Int64Type>().values(), TimeUnit::Millisecond),
            DataType::Date64 => (array.as_primitive::<Date64Type>().values(), TimeUnit::Millisecond),
            DataType::Timestamp(unit, _) => {
                let values = match unit {
                    TimeUnit::Second => array.as_primitive::<TimestampSecondType>().values(),
                    TimeUnit::Millisecond => array.as_primitive::<TimestampMillisecondType>().values(),
                    TimeUnit::Microsecond => array.as_primitive::<TimestampMicrosecondType>().values(),
                    TimeUnit::Nanosecond => array.as_primitive::<TimestampNanosecondType>().values(),
                };
                (values, *unit)
            }
            _ => return None,
        };
        let missing = match unit {
            TimeUnit::Second => None,
            TimeUnit::Millisecond => Some(-1),
            TimeUnit::Microsecond => Some(-1000),
            TimeUnit::Nanosecond => Some(-1_000_000),
        };
        let values = Integers { values: Some(values.clone()), nulls: array.nulls().cloned() };
        Some(Self { values, unit, missing: missing.filter(|_| is_of_kafka) })
    }

    /// Milliseconds since 1970, rounded down, or None if it is null. Times out of range become the largest number.
    ///
    /// The error is a time before 1970, however short: it must not become 1970 or "no timestamp" by rounding.
    #[inline(always)]
    pub fn get(&self, row: usize) -> Result<Option<i64>, BeforeEpoch> {
        let Some(value) = self.values.get(row) else { return Ok(None) };
        if value < 0 {
            return if Some(value) == self.missing { Ok(None) } else { Err(self.before_epoch(value)) };
        }
        Ok(Some(match self.unit {
            TimeUnit::Second => value.saturating_mul(1000),
            TimeUnit::Millisecond => value,
            TimeUnit::Microsecond => value / 1000,
            TimeUnit::Nanosecond => value / 1_000_000,
        }))
    }

    #[cold]
    fn before_epoch(&self, value: i64) -> BeforeEpoch {
        let unit = match self.unit {
            TimeUnit::Second => "s",
            TimeUnit::Millisecond => "ms",
            TimeUnit::Microsecond => "µs",
            TimeUnit::Nanosecond => "ns",
        };
        BeforeEpoch { value, unit }
    }
}

/// Lists of headers.
pub struct HeaderLists {
    lists: ListOffsets,
    nulls: Option<NullBuffer>,
    names: Cells,
    values: Cells,
    /// None if all entries are complete; otherwise those that are not null.
    complete: Option<NullBuffer>,
}

enum ListOffsets {
    AllNull,
    Small(OffsetBuffer<i32>),
    Large(OffsetBuffer<i64>),
}

impl HeaderLists {
    pub const TYPES: &str = "list or large_list of struct<key: string, value: binary>, map<string, binary> or null \
                             (the struct's first field may also be called name; a value may also be a string)";

    /// Returns None if the column does not contain lists of names and values.
    pub fn new(array: &dyn Array) -> Option<Self> {
        let (lists, entries): (_, &dyn Array) = match array.data_type() {
            DataType::Null => {
                let (names, values) = (Cells::MISSING, Cells::MISSING);
                return Some(Self {
                    lists: ListOffsets::AllNull,
                    nulls: None,
                    names,
                    values,
                    complete: None,
                });
            }
            DataType::List(_) => {
                let lists = array.as_list::<i32>();
                (ListOffsets::Small(lists.offsets().clone()), lists.values())
            }
            DataType::LargeList(_) => {
                let lists = array.as_list::<i64>();
                (ListOffsets::Large(lists.offsets().clone()), lists.values())
            }
            DataType::Map(_, _) => {
                let map = array.as_map();
                (ListOffsets::Small(map.offsets().clone()), map.entries())
            }
            _ => return None,
        };
        let is_map = matches!(array.data_type(), DataType::Map(_, _));
        let (names, values, complete) = match entries.data_type() {
            // An empty list in Python becomes a list of nulls.
            DataType::Null => (Cells::MISSING, Cells::MISSING, Some(NullBuffer::new_null(entries.len()))),
            DataType::Struct(_) => {
                let entries = entries.as_struct();
                let (names, values) = Self::names_and_values(entries, is_map)?;
                let complete = NullBuffer::union(entries.nulls(), names.logical_nulls().as_ref());
                let complete = complete.filter(|nulls| nulls.null_count() > 0);
                (Cells::text(names)?, Cells::bytes(values)?, complete)
            }
            _ => return None,
        };
        Some(Self { lists, nulls: array.nulls().cloned(), names, values, complete })
    }

    fn names_and_values(entries: &StructArray, is_map: bool) -> Option<(&dyn Array, &dyn Array)> {
        if entries.num_columns() != 2 {
            return None;
        }
        if is_map {
            return Some((entries.column(0), entries.column(1)));
        }
        let names = entries.column_by_name("key").or_else(|| entries.column_by_name("name"))?;
        Some((names, entries.column_by_name("value")?))
    }

    /// The headers of `row`, or None if one of them is null or has no name.
    #[inline]
    pub fn get(&self, row: usize) -> Option<Headers<'_>> {
        let is_null = self.nulls.as_ref().is_some_and(|nulls| nulls.is_null(row));
        let entries = match &self.lists {
            _ if is_null => 0..0,
            ListOffsets::AllNull => 0..0,
            ListOffsets::Small(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
            ListOffsets::Large(offsets) => offsets[row] as usize..offsets[row + 1] as usize,
        };
        if self.complete.as_ref().is_some_and(|nulls| entries.clone().any(|entry| nulls.is_null(entry))) {
            return None;
        }
        Some(Headers { lists: self, entries })
    }
}

/// The headers of a row.
#[derive(Clone)]
pub struct Headers<'a> {
    lists: &'a HeaderLists,
    entries: Range<usize>,
}

impl<'a> Iterator for Headers<'a> {
    type Item = (&'a [u8], Option<&'a [u8]>);

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?;
        Some((self.lists.names.get(entry).unwrap_or_default(), self.lists.values.get(entry)))
    }
}
