//! `Column`: values of one Arrow type that are appended one by one, and can be dropped again from the end.
//!
//! A decoder appends to the parts of a value in any order, as long as each part has one more value in the end. So for
//! a struct, the children that have as many values as the struct are those that are missing.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::types::*;
use arrow_array::{
    ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, FixedSizeBinaryArray, GenericListArray,
    LargeBinaryArray, LargeStringArray, MapArray, NullArray, PrimitiveArray, StringArray, StructArray,
};
use arrow_buffer::{
    BooleanBufferBuilder, Buffer, IntervalMonthDayNano, NullBuffer, NullBufferBuilder, OffsetBuffer,
    ScalarBuffer,
};
use arrow_schema::{ArrowError, DataType, FieldRef, IntervalUnit, TimeUnit};

use crate::fault::{Fault, Result};

/// A column under construction.
pub struct Column {
    data_type: DataType,
    nulls: NullBufferBuilder,
    pub values: Values,
}

/// The values. A null has a value as well, which does not matter.
///
/// Types of the same representation share a variant: dates, times and timestamps are numbers.
pub enum Values {
    Null,
    Boolean(BooleanBufferBuilder),
    Int8(Vec<i8>),
    Int16(Vec<i16>),
    /// Also date32 and time32.
    Int32(Vec<i32>),
    /// Also date64, time64, timestamps and durations.
    Int64(Vec<i64>),
    UInt8(Vec<u8>),
    UInt16(Vec<u16>),
    UInt32(Vec<u32>),
    UInt64(Vec<u64>),
    Float32(Vec<f32>),
    Float64(Vec<f64>),
    Decimal128(Vec<i128>),
    Interval(Vec<IntervalMonthDayNano>),
    /// Text or bytes. Whoever appends text has checked that it is UTF-8; `finish` checks it again.
    Bytes(ByteValues),
    FixedSizeBinary {
        width: usize,
        data: Vec<u8>,
    },
    Struct(Vec<Column>),
    List(ListValues),
    Map(Box<MapValues>),
}

pub struct ByteValues {
    offsets: Vec<i32>,
    data: Vec<u8>,
}

pub struct ListValues {
    offsets: Vec<i32>,
    pub item: Box<Column>,
}

pub struct MapValues {
    offsets: Vec<i32>,
    pub keys: Column,
    pub values: Column,
}

/// The largest offset of text, bytes and items in an Arrow column. Unit tests have a smaller one.
const LARGEST_OFFSET: usize = if cfg!(test) { 1 << 16 } else { i32::MAX as usize };

/// An offset in a column. The error is one of the record that does not fit into the column any more.
#[inline(always)]
pub fn offset_of(len: usize) -> Result<i32> {
    if len <= LARGEST_OFFSET { Ok(len as i32) } else { Err(too_large()) }
}

#[cold]
fn too_large() -> Fault {
    Fault::new("the records of this batch have more than 2 GiB of text, bytes or items in one column")
}

impl ByteValues {
    /// Appends bytes, which must be UTF-8 if the column is text.
    #[inline]
    pub fn push(&mut self, bytes: &[u8]) -> Result<()> {
        self.data.extend_from_slice(bytes);
        self.end_value()
    }

    /// Where to append a value piece by piece. `end_value` ends it.
    #[inline]
    pub fn buffer(&mut self) -> &mut Vec<u8> {
        &mut self.data
    }

    #[inline]
    pub fn end_value(&mut self) -> Result<()> {
        self.offsets.push(offset_of(self.data.len())?);
        Ok(())
    }

    /// A value that is complete.
    pub fn get(&self, index: usize) -> &[u8] {
        &self.data[self.offsets[index] as usize..self.offsets[index + 1] as usize]
    }
}

impl ListValues {
    /// Ends a list with all items that were appended since the last one.
    #[inline]
    pub fn end_list(&mut self) -> Result<()> {
        self.offsets.push(offset_of(self.item.len())?);
        Ok(())
    }
}

impl MapValues {
    /// Ends a map with all entries that were appended since the last one.
    #[inline]
    pub fn end_map(&mut self) -> Result<()> {
        self.offsets.push(offset_of(self.keys.len())?);
        Ok(())
    }

    /// The first entry of the map that is being appended.
    pub fn first_entry(&self) -> usize {
        self.offsets[self.offsets.len() - 1] as usize
    }

    /// A key that is text, and that the map which is being appended has more than once.
    pub fn repeated_key(&self) -> Option<&[u8]> {
        let Values::Bytes(keys) = &self.keys.values else { return None };
        let (first, mut all) = (self.first_entry(), self.first_entry()..self.keys.len());
        let repeated = if all.len() <= 16 {
            all.find(|&one| (first..one).any(|other| keys.get(one) == keys.get(other)))
        } else {
            let mut seen = HashSet::with_capacity(all.len());
            all.find(|&one| !seen.insert(keys.get(one)))
        };
        repeated.map(|one| keys.get(one))
    }
}

impl Column {
    /// An empty column with memory for `rows` values of fixed size. The error names a type that is not supported.
    pub fn new(data_type: &DataType, rows: usize) -> std::result::Result<Self, ArrowError> {
        use DataType as T;
        let offsets = || {
            let mut offsets = Vec::with_capacity(rows + 1);
            offsets.push(0);
            offsets
        };
        let values = match data_type {
            T::Null => Values::Null,
            T::Boolean => Values::Boolean(BooleanBufferBuilder::new(rows)),
            T::Int8 => Values::Int8(Vec::with_capacity(rows)),
            T::Int16 => Values::Int16(Vec::with_capacity(rows)),
            T::Int32 | T::Date32 | T::Time32(_) => Values::Int32(Vec::with_capacity(rows)),
            T::Int64 | T::Date64 | T::Time64(_) | T::Timestamp(_, _) | T::Duration(_) => {
                Values::Int64(Vec::with_capacity(rows))
            }
            T::UInt8 => Values::UInt8(Vec::with_capacity(rows)),
            T::UInt16 => Values::UInt16(Vec::with_capacity(rows)),
            T::UInt32 => Values::UInt32(Vec::with_capacity(rows)),
            T::UInt64 => Values::UInt64(Vec::with_capacity(rows)),
            T::Float32 => Values::Float32(Vec::with_capacity(rows)),
            T::Float64 => Values::Float64(Vec::with_capacity(rows)),
            T::Decimal128(_, _) => Values::Decimal128(Vec::with_capacity(rows)),
            T::Interval(IntervalUnit::MonthDayNano) => Values::Interval(Vec::with_capacity(rows)),
            T::Utf8 | T::LargeUtf8 | T::Binary | T::LargeBinary => {
                Values::Bytes(ByteValues { offsets: offsets(), data: Vec::new() })
            }
            T::FixedSizeBinary(width) => {
                Values::FixedSizeBinary { width: usize::try_from(*width).unwrap_or(0), data: Vec::new() }
            }
            T::Struct(fields) => {
                let children = fields.iter().map(|field| Self::new(field.data_type(), rows));
                Values::Struct(children.collect::<std::result::Result<_, _>>()?)
            }
            T::List(item) | T::LargeList(item) => Values::List(ListValues {
                offsets: offsets(),
                item: Box::new(Self::new(item.data_type(), 0)?),
            }),
            T::Map(entries, _) => match entries.data_type() {
                T::Struct(fields) if fields.len() == 2 => Values::Map(Box::new(MapValues {
                    offsets: offsets(),
                    keys: Self::new(fields[0].data_type(), 0)?,
                    values: Self::new(fields[1].data_type(), 0)?,
                })),
                _ => return Err(unsupported(data_type)),
            },
            _ => return Err(unsupported(data_type)),
        };
        Ok(Self { data_type: data_type.clone(), nulls: NullBufferBuilder::new(rows), values })
    }

    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    /// The number of values. A value that is appended in parts counts when `end_value` has ended it.
    #[inline]
    pub fn len(&self) -> usize {
        self.nulls.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says that the value which was appended to `values` is complete, and not null.
    #[inline]
    pub fn end_value(&mut self) {
        self.nulls.append_non_null();
    }

    pub fn push_null(&mut self) {
        match &mut self.values {
            Values::Null => {}
            Values::Boolean(values) => values.append(false),
            Values::Int8(values) => values.push(0),
            Values::Int16(values) => values.push(0),
            Values::Int32(values) => values.push(0),
            Values::Int64(values) => values.push(0),
            Values::UInt8(values) => values.push(0),
            Values::UInt16(values) => values.push(0),
            Values::UInt32(values) => values.push(0),
            Values::UInt64(values) => values.push(0),
            Values::Float32(values) => values.push(0.0),
            Values::Float64(values) => values.push(0.0),
            Values::Decimal128(values) => values.push(0),
            Values::Interval(values) => values.push(IntervalMonthDayNano::ZERO),
            Values::Bytes(values) => repeat_last(&mut values.offsets),
            Values::FixedSizeBinary { width, data } => data.resize(data.len() + *width, 0),
            Values::Struct(children) => children.iter_mut().for_each(Self::push_null),
            Values::List(lists) => repeat_last(&mut lists.offsets),
            Values::Map(maps) => repeat_last(&mut maps.offsets),
        }
        self.nulls.append_null();
    }

    /// Drops all values from `len` on, complete or not.
    pub fn truncate(&mut self, len: usize) {
        if len < self.nulls.len() {
            self.nulls.truncate(len);
        }
        match &mut self.values {
            Values::Null => {}
            Values::Boolean(values) => values.truncate(len),
            Values::Int8(values) => values.truncate(len),
            Values::Int16(values) => values.truncate(len),
            Values::Int32(values) => values.truncate(len),
            Values::Int64(values) => values.truncate(len),
            Values::UInt8(values) => values.truncate(len),
            Values::UInt16(values) => values.truncate(len),
            Values::UInt32(values) => values.truncate(len),
            Values::UInt64(values) => values.truncate(len),
            Values::Float32(values) => values.truncate(len),
            Values::Float64(values) => values.truncate(len),
            Values::Decimal128(values) => values.truncate(len),
            Values::Interval(values) => values.truncate(len),
            Values::Bytes(ByteValues { offsets, data }) => data.truncate(truncate_offsets(offsets, len)),
            Values::FixedSizeBinary { width, data } => data.truncate(*width * len),
            Values::Struct(children) => children.iter_mut().for_each(|child| child.truncate(len)),
            Values::List(lists) => lists.item.truncate(truncate_offsets(&mut lists.offsets, len)),
            Values::Map(maps) => {
                let entries = truncate_offsets(&mut maps.offsets, len);
                maps.keys.truncate(entries);
                maps.values.truncate(entries);
            }
        }
    }

    /// The Arrow array. Text that is not UTF-8, or parts of different lengths, are an error: a bug of a decoder.
    pub fn finish(mut self) -> std::result::Result<ArrayRef, ArrowError> {
        use DataType as T;
        let rows = self.len();
        let nulls = self.nulls.finish();
        Ok(match (self.values, &self.data_type) {
            (Values::Null, _) => Arc::new(NullArray::new(rows)),
            (Values::Boolean(mut values), _) => Arc::new(BooleanArray::new(values.finish(), nulls)),
            (Values::Int8(values), _) => numbers::<Int8Type>(values, nulls)?,
            (Values::Int16(values), _) => numbers::<Int16Type>(values, nulls)?,
            (Values::Int32(values), T::Date32) => numbers::<Date32Type>(values, nulls)?,
            (Values::Int32(values), T::Time32(TimeUnit::Second)) => {
                numbers::<Time32SecondType>(values, nulls)?
            }
            (Values::Int32(values), T::Time32(_)) => numbers::<Time32MillisecondType>(values, nulls)?,
            (Values::Int32(values), _) => numbers::<Int32Type>(values, nulls)?,
            (Values::Int64(values), data_type) => numbers64(values, data_type, nulls)?,
            (Values::UInt8(values), _) => numbers::<UInt8Type>(values, nulls)?,
            (Values::UInt16(values), _) => numbers::<UInt16Type>(values, nulls)?,
            (Values::UInt32(values), _) => numbers::<UInt32Type>(values, nulls)?,
            (Values::UInt64(values), _) => numbers::<UInt64Type>(values, nulls)?,
            (Values::Float32(values), _) => numbers::<Float32Type>(values, nulls)?,
            (Values::Float64(values), _) => numbers::<Float64Type>(values, nulls)?,
            (Values::Decimal128(values), data_type) => Arc::new(
                PrimitiveArray::<Decimal128Type>::try_new(values.into(), nulls)?
                    .with_data_type(data_type.clone()),
            ),
            (Values::Interval(values), _) => numbers::<IntervalMonthDayNanoType>(values, nulls)?,
            (Values::Bytes(ByteValues { offsets, data }), data_type) => {
                let data = Buffer::from_vec(data);
                match data_type {
                    T::Utf8 => Arc::new(StringArray::try_new(small(offsets), data, nulls)?),
                    T::LargeUtf8 => Arc::new(LargeStringArray::try_new(large(&offsets), data, nulls)?),
                    T::LargeBinary => Arc::new(LargeBinaryArray::try_new(large(&offsets), data, nulls)?),
                    _ => Arc::new(BinaryArray::try_new(small(offsets), data, nulls)?),
                }
            }
            (Values::FixedSizeBinary { width, data }, _) => {
                Arc::new(FixedSizeBinaryArray::try_new(width as i32, data.into(), nulls)?)
            }
            (Values::Struct(children), T::Struct(fields)) => {
                if fields.is_empty() {
                    return Ok(Arc::new(StructArray::new_empty_fields(rows, nulls)));
                }
                let children = children.into_iter().map(Self::finish).collect::<Result<_, _>>()?;
                Arc::new(StructArray::try_new(fields.clone(), children, nulls)?)
            }
            (Values::List(ListValues { offsets, item }), T::LargeList(field)) => {
                let items = item.finish()?;
                Arc::new(GenericListArray::<i64>::try_new(field.clone(), large(&offsets), items, nulls)?)
            }
            (Values::List(ListValues { offsets, item }), T::List(field)) => {
                let items = item.finish()?;
                Arc::new(GenericListArray::<i32>::try_new(field.clone(), small(offsets), items, nulls)?)
            }
            (Values::Map(maps), T::Map(field, is_sorted)) => finish_map(*maps, field, *is_sorted, nulls)?,
            (_, data_type) => return Err(unsupported(data_type)),
        })
    }
}

fn finish_map(
    maps: MapValues,
    field: &FieldRef,
    is_sorted: bool,
    nulls: Option<NullBuffer>,
) -> std::result::Result<ArrayRef, ArrowError> {
    let DataType::Struct(fields) = field.data_type() else { return Err(unsupported(field.data_type())) };
    let columns = vec![maps.keys.finish()?, maps.values.finish()?];
    let entries = StructArray::try_new(fields.clone(), columns, None)?;
    Ok(Arc::new(MapArray::try_new(field.clone(), small(maps.offsets), entries, nulls, is_sorted)?))
}

#[inline]
fn repeat_last(offsets: &mut Vec<i32>) {
    offsets.push(offsets[offsets.len() - 1]);
}

/// Returns the number of bytes or items that remain.
fn truncate_offsets(offsets: &mut Vec<i32>, len: usize) -> usize {
    offsets.truncate(len + 1);
    offsets[offsets.len() - 1] as usize
}

fn small(offsets: Vec<i32>) -> OffsetBuffer<i32> {
    OffsetBuffer::new(offsets.into())
}

fn large(offsets: &[i32]) -> OffsetBuffer<i64> {
    OffsetBuffer::new(offsets.iter().map(|&offset| i64::from(offset)).collect())
}

fn numbers<T: ArrowPrimitiveType>(
    values: Vec<T::Native>,
    nulls: Option<NullBuffer>,
) -> std::result::Result<ArrayRef, ArrowError> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(ScalarBuffer::from(values), nulls)?))
}

fn numbers64(
    values: Vec<i64>,
    data_type: &DataType,
    nulls: Option<NullBuffer>,
) -> std::result::Result<ArrayRef, ArrowError> {
    use DataType as T;
    match data_type {
        T::Date64 => numbers::<Date64Type>(values, nulls),
        T::Time64(TimeUnit::Microsecond) => numbers::<Time64MicrosecondType>(values, nulls),
        T::Time64(_) => numbers::<Time64NanosecondType>(values, nulls),
        T::Timestamp(unit, zone) => {
            let (values, zone) = (ScalarBuffer::from(values), zone.clone());
            Ok(match unit {
                TimeUnit::Second => in_zone::<TimestampSecondType>(values, nulls, zone)?,
                TimeUnit::Millisecond => in_zone::<TimestampMillisecondType>(values, nulls, zone)?,
                TimeUnit::Microsecond => in_zone::<TimestampMicrosecondType>(values, nulls, zone)?,
                TimeUnit::Nanosecond => in_zone::<TimestampNanosecondType>(values, nulls, zone)?,
            })
        }
        T::Duration(TimeUnit::Second) => numbers::<DurationSecondType>(values, nulls),
        T::Duration(TimeUnit::Millisecond) => numbers::<DurationMillisecondType>(values, nulls),
        T::Duration(TimeUnit::Microsecond) => numbers::<DurationMicrosecondType>(values, nulls),
        T::Duration(TimeUnit::Nanosecond) => numbers::<DurationNanosecondType>(values, nulls),
        _ => numbers::<Int64Type>(values, nulls),
    }
}

fn in_zone<T: ArrowTimestampType>(
    values: ScalarBuffer<i64>,
    nulls: Option<NullBuffer>,
    zone: Option<Arc<str>>,
) -> std::result::Result<ArrayRef, ArrowError> {
    Ok(Arc::new(PrimitiveArray::<T>::try_new(values, nulls)?.with_timezone_opt(zone)))
}

fn unsupported(data_type: &DataType) -> ArrowError {
    ArrowError::NotYetImplemented(format!("the type {data_type} is not supported"))
}
