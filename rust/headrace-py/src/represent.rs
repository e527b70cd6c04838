//! Converts columns to other Arrow types at the request of a consumer.
//!
//! | column | types besides the default |
//! |---|---|
//! | key, value | large_binary, binary_view |
//! | topic, lane | large_string, string_view, dictionary<int32, string> |
//! | timestamp | milliseconds, nanoseconds |
//!
//! For any other requested type, the column keeps its default type, as the PyCapsule interface allows. A request with
//! other column names, or another number of columns, is rejected.

use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::types::{
    BinaryType, ByteArrayType, Int32Type, LargeBinaryType, LargeUtf8Type, TimestampMicrosecondType,
    TimestampMillisecondType, TimestampNanosecondType, Utf8Type,
};
use arrow_array::{
    Array, ArrayRef, BinaryViewArray, DictionaryArray, GenericByteArray, Int32Array, StringViewArray,
};
use arrow_buffer::{OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Schema, TimeUnit};

/// The schema `own` with the types of `requested`, where a conversion exists.
pub fn negotiate(own: &Schema, requested: &Schema) -> Result<Schema, ArrowError> {
    if !own.fields().iter().map(|field| field.name()).eq(requested.fields().iter().map(|field| field.name()))
    {
        let names: Vec<_> = own.fields().iter().map(|field| field.name().as_str()).collect();
        return Err(ArrowError::SchemaError(format!("the columns are {}", names.join(", "))));
    }
    let fields = own.fields().iter().zip(requested.fields()).map(|(own, requested)| {
        let to = requested.data_type();
        let data_type = if converts(own.data_type(), to) { to } else { own.data_type() };
        Field::new(own.name(), data_type.clone(), true)
    });
    Ok(Schema::new(fields.collect::<Vec<_>>()))
}

fn converts(from: &DataType, to: &DataType) -> bool {
    match (from, to) {
        (DataType::Binary, DataType::LargeBinary | DataType::BinaryView) => true,
        (DataType::Utf8, DataType::LargeUtf8 | DataType::Utf8View) => true,
        (DataType::Utf8, DataType::Dictionary(index, value)) => {
            **index == DataType::Int32 && **value == DataType::Utf8
        }
        (
            DataType::Timestamp(_, zone),
            DataType::Timestamp(TimeUnit::Millisecond | TimeUnit::Nanosecond, other),
        ) => zone == other,
        _ => false,
    }
}

/// Converts `array` to the type `to`, which [`negotiate`] has chosen.
pub fn convert(array: ArrayRef, to: &DataType) -> ArrayRef {
    match (array.data_type(), to) {
        (DataType::Binary, DataType::LargeBinary) => {
            Arc::new(widen::<BinaryType, LargeBinaryType>(array.as_bytes()))
        }
        (DataType::Binary, DataType::BinaryView) => {
            Arc::new(BinaryViewArray::from(array.as_bytes::<BinaryType>()))
        }
        (DataType::Utf8, DataType::LargeUtf8) => Arc::new(widen::<Utf8Type, LargeUtf8Type>(array.as_bytes())),
        (DataType::Utf8, DataType::Utf8View) => Arc::new(StringViewArray::from(array.as_bytes::<Utf8Type>())),
        // String columns have the same value in every row of a batch.
        (DataType::Utf8, DataType::Dictionary(..)) => {
            let keys = Int32Array::new(vec![0; array.len()].into(), array.nulls().cloned());
            Arc::new(DictionaryArray::<Int32Type>::new(keys, array.slice(0, array.len().min(1))))
        }
        (DataType::Timestamp(_, zone), DataType::Timestamp(unit, _)) => {
            let times = array.as_primitive::<TimestampMicrosecondType>();
            let zone = zone.clone();
            match unit {
                TimeUnit::Millisecond => Arc::new(
                    times.unary::<_, TimestampMillisecondType>(|time| time / 1000).with_timezone_opt(zone),
                ),
                TimeUnit::Nanosecond => Arc::new(
                    times
                        .unary::<_, TimestampNanosecondType>(|time| time.saturating_mul(1000))
                        .with_timezone_opt(zone),
                ),
                _ => array,
            }
        }
        _ => array,
    }
}

/// The same bytes with 64-bit offsets.
fn widen<From, To>(array: &GenericByteArray<From>) -> GenericByteArray<To>
where
    From: ByteArrayType<Offset = i32>,
    To: ByteArrayType<Offset = i64>,
{
    let offsets: ScalarBuffer<i64> = array.value_offsets().iter().map(|&offset| offset.into()).collect();
    GenericByteArray::new(OffsetBuffer::new(offsets), array.values().clone(), array.nulls().cloned())
}
