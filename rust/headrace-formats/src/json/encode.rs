//! From columns to text: compact, with the fields in the order of the type.
//!
//! A field of the type says what is written:
//!
//! | field | null |
//! |---|---|
//! | nullable | `null` |
//! | not nullable, with the metadata `OPTIONAL` | is left out |
//! | not nullable | is an error |
//!
//! Text of a field with the metadata `JSON_TEXT` is JSON already.

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, BinaryArray, BooleanArray, FixedSizeBinaryArray, ListArray, MapArray, PrimitiveArray, StringArray,
};
use arrow_schema::{DataType, Field, TimeUnit};

use super::scan::Cursor;
use crate::base64;
use crate::fault::{Fault, Result};
use crate::framing::Framing;
use crate::rows::{EncodeError, encode_rows};
use crate::time::{write_date, write_time, write_timestamp};

/// Keys of a field's metadata.
pub const OPTIONAL: &str = "headrace.json.optional";
pub const JSON_TEXT: &str = "headrace.json.text";

/// Encodes a column by the rules of `field`, whose type has the layout of the column's. Every value begins with the
/// framing and the schema's id.
pub fn encode(
    values: &dyn Array,
    field: &Field,
    framing: Framing,
    id: i64,
) -> std::result::Result<BinaryArray, EncodeError> {
    let write = Write::new(values, field).map_err(|fault| EncodeError::Column(fault.to_string()))?;
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
    null: OnNull,
}

#[derive(Clone, Copy, PartialEq)]
enum OnNull {
    Write,
    /// Of the field of an object. A value that is not a field cannot be left out, and is refused.
    Omit,
    Refuse,
}

impl OnNull {
    fn of(field: &Field) -> Self {
        if field.is_nullable() {
            Self::Write
        } else if field.metadata().contains_key(OPTIONAL) {
            Self::Omit
        } else {
            Self::Refuse
        }
    }
}

struct WriteField<'a> {
    name: &'a str,
    /// In quotes, with a colon after it.
    quoted: Vec<u8>,
    write: Write<'a>,
}

enum WriteKind<'a> {
    Null,
    Boolean(&'a BooleanArray),
    Integer(Integers<'a>),
    Float32(&'a [f32]),
    Float64(&'a [f64]),
    Decimal(&'a [i128], i8),
    Text(&'a StringArray),
    JsonText(&'a StringArray),
    Binary(&'a BinaryArray),
    FixedSizeBinary(&'a FixedSizeBinaryArray),
    /// Days.
    Date(Integers<'a>),
    Time(Integers<'a>, TimeUnit),
    Timestamp(Integers<'a>, TimeUnit, bool),
    Struct(Vec<WriteField<'a>>),
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
    fn new(array: &'a dyn Array, field: &'a Field) -> Result<Self> {
        use DataType as T;
        let unsupported = || Fault::new(format!("the type {} cannot be written as JSON", array.data_type()));
        let kind = match array.data_type() {
            T::Null => WriteKind::Null,
            T::Boolean => WriteKind::Boolean(array.as_boolean()),
            T::Float32 => WriteKind::Float32(array.as_primitive::<Float32Type>().values()),
            T::Float64 => WriteKind::Float64(array.as_primitive::<Float64Type>().values()),
            T::Decimal128(_, scale) => {
                WriteKind::Decimal(array.as_primitive::<Decimal128Type>().values(), *scale)
            }
            T::Utf8 if field.metadata().contains_key(JSON_TEXT) => WriteKind::JsonText(array.as_string()),
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
            T::Struct(_) => {
                let T::Struct(fields) = field.data_type() else { return Err(unsupported()) };
                let columns = array.as_struct().columns();
                if columns.len() != fields.len() {
                    return Err(unsupported());
                }
                let children = fields.iter().zip(columns).map(|(field, child)| {
                    let mut quoted = Vec::new();
                    write_text(field.name(), &mut quoted);
                    quoted.push(b':');
                    let write = Self::new(child, field).map_err(|fault| fault.in_field(field.name()))?;
                    Ok(WriteField { name: field.name(), quoted, write })
                });
                WriteKind::Struct(children.collect::<Result<_>>()?)
            }
            T::List(_) => {
                let T::List(item) = field.data_type() else { return Err(unsupported()) };
                let lists = array.as_list::<i32>();
                WriteKind::List(lists, Box::new(Self::new(lists.values(), item)?))
            }
            T::Map(_, _) => {
                let T::Map(entries, _) = field.data_type() else { return Err(unsupported()) };
                let T::Struct(entry) = entries.data_type() else { return Err(unsupported()) };
                let maps = array.as_map();
                let keys = maps.keys().as_string_opt::<i32>().ok_or_else(unsupported)?;
                let value = entry.get(1).ok_or_else(unsupported)?;
                WriteKind::Map(maps, keys, Box::new(Self::new(maps.values(), value)?))
            }
            _ => WriteKind::Integer(numbers(array).ok_or_else(unsupported)?),
        };
        Ok(Self { array, kind, null: OnNull::of(field) })
    }

    fn value(&self, row: usize, bytes: &mut Vec<u8>) -> Result<()> {
        use std::io::Write as _;
        if self.array.is_null(row) {
            if self.null != OnNull::Write {
                return Err(Fault::new("the value is null, and the schema does not allow null"));
            }
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
            WriteKind::JsonText(values) => {
                let text = values.value(row).as_bytes();
                let mut cursor = Cursor::new(text);
                cursor.skip_value()?;
                cursor.end()?;
                bytes.extend_from_slice(text);
            }
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
                let mut is_first = true;
                for WriteField { name, quoted, write } in fields {
                    if write.null == OnNull::Omit && write.array.is_null(row) {
                        continue;
                    }
                    if !is_first {
                        bytes.push(b',');
                    }
                    is_first = false;
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
