//! Filled columns to Arrow arrays.
//!
//! A value below a null message is null as well, so that fields can be taken out of a struct without its nulls.

use std::collections::HashSet;
use std::sync::Arc;

use arrow_array::builder::StringBuilder;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BinaryArray, BooleanArray, Decimal128Array,
    DurationMicrosecondArray, ListArray, MapArray, PrimitiveArray, StringArray, StructArray,
    TimestampMicrosecondArray, UInt32Array, types,
};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field};

use super::column::{Column, Fixed, Instant, ListColumn, StructColumn, Variable};
use super::plan::{EnumPlan, FieldPlan, MessagePlan, ValueType};

pub fn rows(column: StructColumn, plan: &MessagePlan, rows: usize) -> Result<ArrayRef, ArrowError> {
    structs(column, plan, rows, None, None)
}

/// `hidden` has the nulls of the message that contains the column. `fields` is the type if it differs from the plan's.
fn structs(
    mut column: StructColumn,
    plan: &MessagePlan,
    rows: usize,
    hidden: Option<&NullBuffer>,
    fields: Option<arrow_schema::Fields>,
) -> Result<ArrayRef, ArrowError> {
    column.pad(rows);
    let nulls = NullBuffer::union(column.nulls.build().as_ref(), hidden);
    let columns = column.columns.into_iter().zip(&plan.fields);
    let columns: Vec<ArrayRef> = columns
        .map(|(column, field)| array(column, field, rows, nulls.as_ref()))
        .collect::<Result<_, _>>()?;
    let fields = fields.unwrap_or_else(|| plan.arrow_fields());
    Ok(Arc::new(StructArray::try_new_with_length(fields, columns, nulls, rows)?))
}

fn array(
    mut column: Column,
    field: &FieldPlan,
    rows: usize,
    hidden: Option<&NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    column.pad(rows);
    match column {
        Column::List(list) => lists(*list, field, hidden),
        column => values(column, field, &field.data_type, rows, hidden),
    }
}

fn lists(column: ListColumn, field: &FieldPlan, nulls: Option<&NullBuffer>) -> Result<ArrayRef, ArrowError> {
    let offsets = OffsetBuffer::new(column.offsets.into());
    let rows = column.item.len();
    match &field.data_type {
        DataType::Map(entries, _) => {
            let item = values(column.item, field, entries.data_type(), rows, None)?;
            let item = item.as_any().downcast_ref::<StructArray>().expect("entries are structs").clone();
            let map = MapArray::try_new(Arc::clone(entries), offsets, item, nulls.cloned(), false)?;
            Ok(Arc::new(without_duplicates(map, entries)?))
        }
        DataType::List(item) => {
            let values = values(column.item, field, item.data_type(), rows, None)?;
            Ok(Arc::new(ListArray::try_new(Arc::clone(item), offsets, values, nulls.cloned())?))
        }
        other => unreachable!("{other} is no type of a list"),
    }
}

fn values(
    column: Column,
    field: &FieldPlan,
    data_type: &DataType,
    rows: usize,
    hidden: Option<&NullBuffer>,
) -> Result<ArrayRef, ArrowError> {
    Ok(match column {
        Column::Bool(column) => {
            let bits = BooleanBuffer::collect_bool(column.values.len(), |row| column.values[row]);
            Arc::new(BooleanArray::new(bits, nulls(column.nulls, hidden)))
        }
        Column::Int32(column) | Column::Sint32(column) | Column::Sfixed32(column) => {
            primitive::<types::Int32Type>(column, hidden)
        }
        Column::Int64(column) | Column::Sint64(column) | Column::Sfixed64(column) => {
            primitive::<types::Int64Type>(column, hidden)
        }
        Column::Uint32(column) | Column::Fixed32(column) if *data_type == DataType::UInt32 => {
            primitive::<types::UInt32Type>(column, hidden)
        }
        Column::Uint32(column) | Column::Fixed32(column) => {
            primitive::<types::Int64Type>(widened(column, i64::from), hidden)
        }
        Column::Uint64(column) | Column::Fixed64(column) if *data_type == DataType::UInt64 => {
            primitive::<types::UInt64Type>(column, hidden)
        }
        Column::Uint64(column) | Column::Fixed64(column) => {
            let column = widened(column, i128::from);
            let values = Decimal128Array::new(column.values.into(), nulls(column.nulls, hidden));
            Arc::new(values.with_precision_and_scale(20, 0)?)
        }
        Column::Float(column) => primitive::<types::Float32Type>(column, hidden),
        Column::Double(column) => primitive::<types::Float64Type>(column, hidden),
        Column::Text(column) => Arc::new(text(column, hidden)),
        Column::Json(column) => Arc::new(text(column.text, hidden)),
        Column::Binary(column) => Arc::new(BinaryArray::try_new(
            OffsetBuffer::new(column.offsets.into()),
            Buffer::from_vec(column.data),
            nulls(column.nulls, hidden),
        )?),
        Column::Enum(column) => {
            let ValueType::Enum(plan) = &field.value else { unreachable!("the plan of an enum") };
            Arc::new(names(column, plan, hidden)?)
        }
        Column::Instant(column) => instants(column, &field.value, hidden),
        Column::Struct(column) => {
            let ValueType::Message(plan) = &field.value else { unreachable!("the plan of a message") };
            let fields = if let DataType::Struct(fields) = data_type { Some(fields.clone()) } else { None };
            structs(column, plan, rows, hidden, fields)?
        }
        Column::List(_) => unreachable!("a value is no list"),
    })
}

fn nulls(column: Option<arrow_buffer::NullBufferBuilder>, hidden: Option<&NullBuffer>) -> Option<NullBuffer> {
    NullBuffer::union(column.and_then(|nulls| nulls.build()).as_ref(), hidden)
}

fn primitive<T: ArrowPrimitiveType>(column: Fixed<T::Native>, hidden: Option<&NullBuffer>) -> ArrayRef {
    Arc::new(PrimitiveArray::<T>::new(ScalarBuffer::from(column.values), nulls(column.nulls, hidden)))
}

fn widened<T, U>(column: Fixed<T>, wider: impl Fn(T) -> U) -> Fixed<U> {
    Fixed { values: column.values.into_iter().map(wider).collect(), nulls: column.nulls }
}

fn text(column: Variable, hidden: Option<&NullBuffer>) -> StringArray {
    // SAFETY: the offsets grow and end at the end of the data, and each value is text: the decoder stores nothing else,
    // and values are appended and removed as a whole.
    unsafe {
        StringArray::new_unchecked(
            OffsetBuffer::new_unchecked(column.offsets.into()),
            Buffer::from_vec(column.data),
            nulls(column.nulls, hidden),
        )
    }
}

/// Numbers to names. A number without a name is written in digits: it comes from a newer schema.
fn names(
    column: Fixed<i32>,
    plan: &EnumPlan,
    hidden: Option<&NullBuffer>,
) -> Result<StringArray, ArrowError> {
    let nulls = nulls(column.nulls, hidden);
    let mut builder = StringBuilder::with_capacity(column.values.len(), column.values.len() * 8);
    let few: Vec<Option<&str>> = (0..256).map(|number| plan.names.get(&number).map(String::as_str)).collect();
    for (row, number) in column.values.iter().enumerate() {
        if nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            builder.append_null();
            continue;
        }
        let name = match usize::try_from(*number).ok().and_then(|number| few.get(number)) {
            Some(name) => *name,
            None => plan.names.get(number).map(String::as_str),
        };
        let digits;
        let name = match name {
            Some(name) => name,
            None => {
                digits = number.to_string();
                &digits
            }
        };
        if builder.values_slice().len() + name.len() > i32::MAX as usize {
            return Err(ArrowError::OffsetOverflowError(builder.values_slice().len() + name.len()));
        }
        builder.append_value(name);
    }
    Ok(builder.finish())
}

/// Microseconds. Timestamps are rounded down, durations towards zero, as Google's libraries do.
fn instants(column: Fixed<Instant>, kind: &ValueType, hidden: Option<&NullBuffer>) -> ArrayRef {
    // Bad records may have left values out of range: their rows are null.
    let micros =
        |value: Instant| value.seconds.wrapping_mul(1_000_000).wrapping_add(i64::from(value.nanos / 1_000));
    let column = widened(column, micros);
    let nulls = nulls(column.nulls, hidden);
    match kind {
        ValueType::Timestamp => {
            Arc::new(TimestampMicrosecondArray::new(column.values.into(), nulls).with_timezone("UTC"))
        }
        _ => Arc::new(DurationMicrosecondArray::new(column.values.into(), nulls)),
    }
}

/// Up to so many, comparing all keys with each other is faster than hashing them.
const FEW_ENTRIES: usize = 8;

/// Keeps the last entry of each key, as every Protobuf library does. Few maps have duplicates: those are copied.
fn without_duplicates(map: MapArray, entries: &Arc<Field>) -> Result<MapArray, ArrowError> {
    let keys = map.keys();
    let key = |at: usize| key_bytes(keys, at);
    let mut dropped = HashSet::new();
    for row in map.offsets().windows(2) {
        let (start, end) = (row[0] as usize, row[1] as usize);
        if end - start < 2 {
            continue;
        }
        if end - start <= FEW_ENTRIES {
            dropped.extend((start..end).filter(|at| (at + 1..end).any(|later| key(later) == key(*at))));
        } else {
            let mut seen = HashSet::with_capacity(end - start);
            dropped.extend((start..end).rev().filter(|at| !seen.insert(key(*at))));
        }
    }
    if dropped.is_empty() {
        return Ok(map);
    }
    let kept: Vec<u32> =
        (0..map.entries().len()).filter(|at| !dropped.contains(at)).map(|at| at as u32).collect();
    let mut offsets = vec![0_i32];
    for row in map.offsets().windows(2) {
        let here = (row[0] as usize..row[1] as usize).filter(|at| !dropped.contains(at)).count();
        offsets.push(offsets.last().copied().unwrap_or(0) + here as i32);
    }
    // Entries before the first row and behind the last one do not exist: the columns are not slices.
    let entries_kept = arrow_select::take::take(map.entries(), &UInt32Array::from(kept), None)?;
    let entries_kept =
        entries_kept.as_any().downcast_ref::<StructArray>().expect("entries are structs").clone();
    MapArray::try_new(
        Arc::clone(entries),
        OffsetBuffer::new(offsets.into()),
        entries_kept,
        map.nulls().cloned(),
        false,
    )
}

#[derive(PartialEq, Eq, Hash)]
enum Key<'a> {
    Text(&'a [u8]),
    Number(i128),
}

fn key_bytes(keys: &ArrayRef, at: usize) -> Key<'_> {
    use arrow_array::cast::AsArray;
    match keys.data_type() {
        DataType::Utf8 => Key::Text(keys.as_string::<i32>().value(at).as_bytes()),
        DataType::Boolean => Key::Number(keys.as_boolean().value(at).into()),
        DataType::Int32 => Key::Number(keys.as_primitive::<types::Int32Type>().value(at).into()),
        DataType::Int64 => Key::Number(keys.as_primitive::<types::Int64Type>().value(at).into()),
        DataType::UInt32 => Key::Number(keys.as_primitive::<types::UInt32Type>().value(at).into()),
        DataType::UInt64 => Key::Number(keys.as_primitive::<types::UInt64Type>().value(at).into()),
        DataType::Decimal128(..) => Key::Number(keys.as_primitive::<types::Decimal128Type>().value(at)),
        other => unreachable!("{other} is no type of a key"),
    }
}
