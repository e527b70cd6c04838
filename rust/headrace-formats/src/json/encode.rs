//! From columns to text: compact, with every field, in the order of the type.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, MapArray, PrimitiveArray, StringArray,
};
use arrow_schema::{DataType, TimeUnit};

use crate::base64;
use crate::fault::{Fault, Result};
use crate::framing::Framing;
use crate::rows::{EncodeError, encode_rows};
use crate::time::{write_date, write_time, write_timestamp};

/// Encodes a column. Every value begins with the framing and the schema's id.
pub fn encode(
    values: &dyn Array,
    framing: Framing,
    id: i64,
) -> std::result::Result<BinaryArray, EncodeError> {
    let write = Write::new(values).map_err(|fault| EncodeError::Column(fault.to_string()))?;
    encode_rows(values, |row, bytes| {
        framing.write(id, bytes);
        write.value(row, bytes)
    })
}

type Integers<'a> = Box<dyn Fn(usize) -> i128 + 'a>;

/// How to write the values of an array.
struct Write<'a> {
    array: &'a dyn Array,
    kind: WriteKind<'a>,
}

enum WriteKind<'a> {
    Null,
    Boolean(&'a BooleanArray),
    Integer(Integers<'a>),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    Decimal(&'a [i128], i8),
    Text(&'a StringArray),
    Binary(&'a BinaryArray),
    FixedSizeBinary(&'a FixedSizeBinaryArray),
    /// Days.
    Date(Integers<'a>),
    Time(Integers<'a>, TimeUnit),
    Timestamp(Integers<'a>, TimeUnit, bool),
    /// Every name in quotes, with a colon after it.
    Struct(Vec<(String, Vec<u8>, Write<'a>)>),
    List(&'a ListArray, Box<Write<'a>>),
    Map(&'a MapArray, &'a StringArray, Box<Write<'a>>),
}

fn integers<T: ArrowPrimitiveType<Native: Into<i128>>>(array: &dyn Array) -> Option<Integers<'_>> {
    let values = array.as_any().downcast_ref::<PrimitiveArray<T>>()?.values();
    Some(Box::new(|row| values[row].into()))
}

fn numbers(array: &dyn Array) -> Option<Integers<'_>> {
    use DataType as T;
    match array.data_type() {
        T::Int8 => integers::<Int8Type>(array),
        T::Int16 => integers::<Int16Type>(array),
        T::Int32 => integers::<Int32Type>(array),
        T::Int64 => integers::<Int64Type>(array),
        T::UInt8 => integers::<UInt8Type>(array),
        T::UInt16 => integers::<UInt16Type>(array),
        T::UInt32 => integers::<UInt32Type>(array),
        T::UInt64 => integers::<UInt64Type>(array),
        T::Date32 => integers::<Date32Type>(array),
        T::Date64 => integers::<Date64Type>(array),
        T::Time32(TimeUnit::Second) => integers::<Time32SecondType>(array),
        T::Time32(_) => integers::<Time32MillisecondType>(array),
        T::Time64(TimeUnit::Microsecond) => integers::<Time64MicrosecondType>(array),
        T::Time64(_) => integers::<Time64NanosecondType>(array),
        T::Timestamp(TimeUnit::Second, _) => integers::<TimestampSecondType>(array),
        T::Timestamp(TimeUnit::Millisecond, _) => integers::<TimestampMillisecondType>(array),
        T::Timestamp(TimeUnit::Microsecond, _) => integers::<TimestampMicrosecondType>(array),
        T::Timestamp(TimeUnit::Nanosecond, _) => integers::<TimestampNanosecondType>(array),
        _ => None,
    }
}

impl<'a> Write<'a> {
    fn new(array: &'a dyn Array) -> Result<Self> {
        use DataType as T;
        let unsupported =
            || Fault::new(format!("JSON cannot be written from the type {}", array.data_type()));
        let kind = match array.data_type() {
            T::Null => WriteKind::Null,
            T::Boolean => WriteKind::Boolean(array.as_boolean()),
            T::Float32 => WriteKind::Float32(array.as_primitive::<Float32Type>().values()),
            T::Float64 => WriteKind::Float64(array.as_primitive::<Float64Type>().values()),
            T::Decimal128(_, scale) => {
                WriteKind::Decimal(array.as_primitive::<Decimal128Type>().values(), *scale)
            }
            T::Utf8 => WriteKind::Text(array.as_string()),
            T::Binary => WriteKind::Binary(array.as_binary()),
            T::FixedSizeBinary(_) => WriteKind::FixedSizeBinary(array.as_fixed_size_binary()),
            T::Date32 => WriteKind::Date(numbers(array).ok_or_else(unsupported)?),
            T::Date64 => {
                let milliseconds = numbers(array).ok_or_else(unsupported)?;
                WriteKind::Date(Box::new(move |row| milliseconds(row).div_euclid(86_400_000)))
            }
            T::Time32(unit) | T::Time64(unit) => {
                WriteKind::Time(numbers(array).ok_or_else(unsupported)?, *unit)
            }
            T::Timestamp(unit, zone) => {
                WriteKind::Timestamp(numbers(array).ok_or_else(unsupported)?, *unit, zone.is_some())
            }
            T::Struct(fields) => {
                let children = fields.iter().zip(array.as_struct().columns());
                let children = children.map(|(field, child)| {
                    let mut quoted = Vec::new();
                    write_text(field.name(), &mut quoted);
                    quoted.push(b':');
                    let write = Self::new(child).map_err(|fault| fault.in_field(field.name()))?;
                    Ok((field.name().clone(), quoted, write))
                });
                WriteKind::Struct(children.collect::<Result<_>>()?)
            }
            T::List(_) => {
                let lists = array.as_list::<i32>();
                WriteKind::List(lists, Box::new(Self::new(lists.values())?))
            }
            T::Map(_, _) => {
                let maps = array.as_map();
                let keys = maps.keys().as_string_opt::<i32>().ok_or_else(unsupported)?;
                WriteKind::Map(maps, keys, Box::new(Self::new(maps.values())?))
            }
            _ => WriteKind::Integer(numbers(array).ok_or_else(unsupported)?),
        };
        Ok(Self { array, kind })
    }

    fn value(&self, row: usize, bytes: &mut Vec<u8>) -> Result<()> {
        use std::io::Write as _;
        if self.array.is_null(row) {
            bytes.extend_from_slice(b"null");
            return Ok(());
        }
        match &self.kind {
            WriteKind::Null => bytes.extend_from_slice(b"null"),
            WriteKind::Boolean(values) => {
                bytes.extend_from_slice(if values.value(row) { b"true" } else { b"false" });
            }
            // Writing to a vector cannot fail.
            WriteKind::Integer(values) => drop(write!(bytes, "{}", values(row))),
            WriteKind::Float32(values) => write_float(f64::from(values[row]), &values[row], bytes),
            WriteKind::Float64(values) => write_float(values[row], &values[row], bytes),
            WriteKind::Decimal(values, scale) => write_decimal(values[row], *scale, bytes),
            WriteKind::Text(values) => write_text(values.value(row), bytes),
            WriteKind::Binary(values) => write_base64(values.value(row), bytes),
            WriteKind::FixedSizeBinary(values) => write_base64(values.value(row), bytes),
            WriteKind::Date(days) => {
                quoted(bytes, |bytes| write_date(days(row) as i64, bytes)).ok_or_else(out_of_range)?;
            }
            WriteKind::Time(values, unit) => {
                let value = values(row) as i64;
                if !(0..86_400 * crate::time::per_second(*unit)).contains(&value) {
                    return Err(out_of_range());
                }
                bytes.push(b'"');
                write_time(value, *unit, bytes);
                bytes.push(b'"');
            }
            WriteKind::Timestamp(values, unit, has_zone) => {
                quoted(bytes, |bytes| write_timestamp(values(row) as i64, *unit, *has_zone, bytes))
                    .ok_or_else(out_of_range)?;
            }
            WriteKind::Struct(fields) => {
                bytes.push(b'{');
                for (index, (name, quoted, write)) in fields.iter().enumerate() {
                    if index > 0 {
                        bytes.push(b',');
                    }
                    bytes.extend_from_slice(quoted);
                    write.value(row, bytes).map_err(|fault| fault.in_field(name))?;
                }
                bytes.push(b'}');
            }
            WriteKind::List(lists, item) => {
                let offsets = lists.value_offsets();
                let begin = offsets[row] as usize;
                bytes.push(b'[');
                for index in begin..offsets[row + 1] as usize {
                    if index > begin {
                        bytes.push(b',');
                    }
                    item.value(index, bytes).map_err(|fault| fault.in_item(index - begin))?;
                }
                bytes.push(b']');
            }
            WriteKind::Map(maps, keys, value) => {
                let offsets = maps.value_offsets();
                let begin = offsets[row] as usize;
                bytes.push(b'{');
                for index in begin..offsets[row + 1] as usize {
                    if index > begin {
                        bytes.push(b',');
                    }
                    write_text(keys.value(index), bytes);
                    bytes.push(b':');
                    value.value(index, bytes).map_err(|fault| fault.in_field(keys.value(index)))?;
                }
                bytes.push(b'}');
            }
        }
        Ok(())
    }
}

/// None if `write` returns false.
fn quoted(bytes: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> bool) -> Option<()> {
    bytes.push(b'"');
    let is_written = write(bytes);
    bytes.push(b'"');
    is_written.then_some(())
}

#[cold]
fn out_of_range() -> Fault {
    Fault::new("the date or time is out of range of ISO 8601")
}

/// The shortest text that is read as the same number. Numbers that JSON does not have are strings, as in Spark.
fn write_float(value: f64, shown: &dyn std::fmt::Debug, bytes: &mut Vec<u8>) {
    use std::io::Write as _;
    let text: &[u8] = match value {
        _ if value.is_nan() => b"\"NaN\"",
        f64::INFINITY => b"\"Infinity\"",
        f64::NEG_INFINITY => b"\"-Infinity\"",
        _ => return drop(write!(bytes, "{shown:?}")),
    };
    bytes.extend_from_slice(text);
}

fn write_decimal(value: i128, scale: i8, bytes: &mut Vec<u8>) {
    use std::io::Write as _;
    if value < 0 {
        bytes.push(b'-');
    }
    let digits = value.unsigned_abs();
    if scale <= 0 {
        let zeros = if digits == 0 { 0 } else { usize::from(scale.unsigned_abs()) };
        return drop(write!(bytes, "{digits}{:0<zeros$}", ""));
    }
    let (scale, power) = (usize::from(scale.unsigned_abs()), 10_u128.pow(u32::from(scale.unsigned_abs())));
    drop(write!(bytes, "{}.{:0scale$}", digits / power, digits % power));
}

fn write_base64(value: &[u8], bytes: &mut Vec<u8>) {
    bytes.push(b'"');
    base64::encode(value, bytes);
    bytes.push(b'"');
}

fn write_text(text: &str, bytes: &mut Vec<u8>) {
    bytes.push(b'"');
    let mut plain = 0;
    for (index, &byte) in text.as_bytes().iter().enumerate() {
        let escaped: &[u8] = match byte {
            b'"' => b"\\\"",
            b'\\' => b"\\\\",
            b'\n' => b"\\n",
            b'\r' => b"\\r",
            b'\t' => b"\\t",
            0..0x20 => b"",
            _ => continue,
        };
        bytes.extend_from_slice(&text.as_bytes()[plain..index]);
        plain = index + 1;
        if escaped.is_empty() {
            const DIGITS: &[u8; 16] = b"0123456789abcdef";
            bytes.extend_from_slice(b"\\u00");
            bytes.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
        } else {
            bytes.extend_from_slice(escaped);
        }
    }
    bytes.extend_from_slice(&text.as_bytes()[plain..]);
    bytes.push(b'"');
}
