//! From columns to bytes. The columns have the types that [`super::arrow_type`] gives to the schema.

use std::collections::HashMap;

use arrow_array::cast::AsArray;
use arrow_array::types::*;
use arrow_array::{
    Array, BinaryArray, BooleanArray, ListArray, MapArray, PrimitiveArray, StringArray, StructArray,
};
use arrow_buffer::ScalarBuffer;

use super::binary::{put_bytes, put_long};
use super::decode::out_of_day;
use super::schema::{Kind, Logical, Schema};
use super::types::{UnionShape, arrow_type, union_shape};
use crate::fault::{Fault, Result};
use crate::framing::Framing;
use crate::rows::{EncodeError, encode_rows};

/// Encodes a column. Every value begins with the framing and the schema's id.
pub fn encode(
    schema: &Schema,
    values: &dyn Array,
    framing: Framing,
    id: i64,
) -> std::result::Result<BinaryArray, EncodeError> {
    let expected = arrow_type(schema);
    if !values.data_type().equals_datatype(&expected) {
        let text = format!("expected a column of {expected}, not {}", values.data_type());
        return Err(EncodeError::Column(text));
    }
    let write = Write::new(schema, values).map_err(|fault| EncodeError::Column(fault.to_string()))?;
    encode_rows(values, |row, bytes| {
        framing.write(id, bytes);
        write.value(row, bytes)
    })
}

/// How to write the values of an array.
struct Write<'a> {
    array: &'a dyn Array,
    kind: WriteKind<'a>,
}

enum WriteKind<'a> {
    Null,
    Boolean(&'a BooleanArray),
    Int(&'a [i32]),
    Long(&'a [i64]),
    /// Times of a day, and the end of the day.
    Time32(&'a [i32], i64),
    Time64(&'a [i64], i64),
    Float(&'a [f32]),
    Double(&'a [f64]),
    Bytes(&'a BinaryArray),
    String(&'a StringArray),
    Fixed(&'a BinaryArray, usize),
    Uuid(&'a StringArray),
    Duration(&'a PrimitiveArray<IntervalMonthDayNanoType>),
    Decimal(&'a [i128], Option<usize>),
    Enum(&'a StringArray, HashMap<&'a str, usize>),
    Array(&'a ListArray, Box<Write<'a>>),
    Map(&'a MapArray, &'a StringArray, Box<Write<'a>>),
    Record(Vec<(&'a str, Write<'a>)>),
    /// The branch of null, if there is one, and that of all other values.
    Nullable {
        null: Option<usize>,
        branch: usize,
        write: Box<Write<'a>>,
    },
    /// A struct with one field for each branch but null.
    Members {
        null: Option<usize>,
        members: Vec<(usize, Write<'a>)>,
    },
}

fn primitive<T: ArrowPrimitiveType>(values: &ScalarBuffer<T::Native>) -> &[T::Native] {
    values
}

/// The numbers of a column of dates, times or timestamps.
fn numbers64(array: &dyn Array) -> Option<&[i64]> {
    let found = array.as_any();
    macro_rules! first_of {
        ($($kind:ty),*) => {
            $(if let Some(array) = found.downcast_ref::<PrimitiveArray<$kind>>() {
                return Some(primitive::<$kind>(array.values()));
            })*
        };
    }
    first_of!(
        Int64Type,
        Time64MicrosecondType,
        TimestampMillisecondType,
        TimestampMicrosecondType,
        TimestampNanosecondType
    );
    None
}

fn numbers32(array: &dyn Array) -> Option<&[i32]> {
    let found = array.as_any();
    macro_rules! first_of {
        ($($kind:ty),*) => {
            $(if let Some(array) = found.downcast_ref::<PrimitiveArray<$kind>>() {
                return Some(primitive::<$kind>(array.values()));
            })*
        };
    }
    first_of!(Int32Type, Date32Type, Time32MillisecondType);
    None
}

impl<'a> Write<'a> {
    fn new(schema: &'a Schema, array: &'a dyn Array) -> Result<Self> {
        let wrong =
            || Fault::new(format!("expected {}, found a column of {}", schema.title(), array.data_type()));
        let kind = match (&schema.kind, schema.logical) {
            (Kind::Null, _) => WriteKind::Null,
            (Kind::Boolean, _) => WriteKind::Boolean(array.as_boolean_opt().ok_or_else(wrong)?),
            (Kind::Int, Some(Logical::Time(per_second))) => {
                WriteKind::Time32(numbers32(array).ok_or_else(wrong)?, 86_400 * per_second)
            }
            (Kind::Long, Some(Logical::Time(per_second))) => {
                WriteKind::Time64(numbers64(array).ok_or_else(wrong)?, 86_400 * per_second)
            }
            (Kind::Int, _) => WriteKind::Int(numbers32(array).ok_or_else(wrong)?),
            (Kind::Long, _) => WriteKind::Long(numbers64(array).ok_or_else(wrong)?),
            (Kind::Float, _) => {
                WriteKind::Float(array.as_primitive_opt::<Float32Type>().ok_or_else(wrong)?.values())
            }
            (Kind::Double, _) => {
                WriteKind::Double(array.as_primitive_opt::<Float64Type>().ok_or_else(wrong)?.values())
            }
            (Kind::Bytes | Kind::Fixed(_), Some(Logical::Decimal { .. })) => {
                let values = array.as_primitive_opt::<Decimal128Type>().ok_or_else(wrong)?.values();
                let size = if let Kind::Fixed(fixed) = &schema.kind { Some(fixed.size) } else { None };
                WriteKind::Decimal(values, size)
            }
            (Kind::Fixed(_), Some(Logical::Uuid)) => {
                WriteKind::Uuid(array.as_string_opt::<i32>().ok_or_else(wrong)?)
            }
            (Kind::Fixed(_), Some(Logical::Duration)) => {
                WriteKind::Duration(array.as_primitive_opt().ok_or_else(wrong)?)
            }
            (Kind::Bytes, _) => WriteKind::Bytes(array.as_binary_opt::<i32>().ok_or_else(wrong)?),
            (Kind::Fixed(fixed), _) => {
                WriteKind::Fixed(array.as_binary_opt::<i32>().ok_or_else(wrong)?, fixed.size)
            }
            (Kind::String, _) => WriteKind::String(array.as_string_opt::<i32>().ok_or_else(wrong)?),
            (Kind::Enum(symbols), _) => {
                let numbers = symbols.symbols.iter().enumerate().map(|(index, name)| (name.as_str(), index));
                WriteKind::Enum(array.as_string_opt::<i32>().ok_or_else(wrong)?, numbers.collect())
            }
            (Kind::Array(item), _) => {
                let lists = array.as_list_opt::<i32>().ok_or_else(wrong)?;
                WriteKind::Array(lists, Box::new(Self::new(item, lists.values())?))
            }
            (Kind::Map(value), _) => {
                let maps = array.as_map_opt().ok_or_else(wrong)?;
                let keys = maps.keys().as_string_opt::<i32>().ok_or_else(wrong)?;
                WriteKind::Map(maps, keys, Box::new(Self::new(value, maps.values())?))
            }
            (Kind::Record(record), _) => {
                let children = fields_of(array, record.fields.len()).ok_or_else(wrong)?;
                let fields = record.fields.iter().zip(children);
                let fields = fields.map(|(field, child)| {
                    let write = Self::new(&field.schema, child).map_err(|fault| fault.in_field(&field.name));
                    Ok((field.name.as_str(), write?))
                });
                WriteKind::Record(fields.collect::<Result<_>>()?)
            }
            (Kind::Union(branches), _) => Self::union(schema, branches, array)?,
        };
        Ok(Self { array, kind })
    }

    fn union(schema: &'a Schema, branches: &'a [Schema], array: &'a dyn Array) -> Result<WriteKind<'a>> {
        let wrong =
            || Fault::new(format!("expected {}, found a column of {}", schema.title(), array.data_type()));
        let null = branches.iter().position(|branch| matches!(branch.kind, Kind::Null));
        let position = |wanted: &Schema| {
            branches.iter().position(|branch| std::ptr::eq(branch, wanted)).unwrap_or_default()
        };
        Ok(match union_shape(branches) {
            UnionShape::Null => {
                let write = Box::new(Self { array, kind: WriteKind::Null });
                WriteKind::Nullable { null, branch: 0, write }
            }
            UnionShape::Nullable(only) => {
                let write = Box::new(Self::new(only, array)?);
                WriteKind::Nullable { null, branch: position(only), write }
            }
            UnionShape::Widened(wide) => {
                let is_wide = |branch: &&Schema| {
                    std::mem::discriminant(&branch.kind) == std::mem::discriminant(&wide.kind)
                };
                let widest = branches.iter().find(is_wide).ok_or_else(wrong)?;
                let write = Box::new(Self::new(widest, array)?);
                WriteKind::Nullable { null, branch: position(widest), write }
            }
            UnionShape::Members(members) => {
                let children = fields_of(array, members.len()).ok_or_else(wrong)?;
                let members = members.into_iter().zip(children);
                let members =
                    members.map(|(member, child)| Ok((position(member), Self::new(member, child)?)));
                WriteKind::Members { null, members: members.collect::<Result<_>>()? }
            }
        })
    }

    fn value(&self, row: usize, bytes: &mut Vec<u8>) -> Result<()> {
        match &self.kind {
            WriteKind::Null => return Ok(()),
            WriteKind::Nullable { null, branch, write } => {
                return match (self.array.is_null(row) || matches!(write.kind, WriteKind::Null), null) {
                    (false, _) => {
                        put_long(*branch as i64, bytes);
                        write.value(row, bytes)
                    }
                    (true, Some(null)) => {
                        put_long(*null as i64, bytes);
                        Ok(())
                    }
                    (true, None) => Err(unexpected_null()),
                };
            }
            WriteKind::Members { null: Some(null), .. } if self.array.is_null(row) => {
                put_long(*null as i64, bytes);
                return Ok(());
            }
            _ if self.array.is_null(row) => return Err(unexpected_null()),
            _ => {}
        }
        match &self.kind {
            WriteKind::Null | WriteKind::Nullable { .. } => {}
            WriteKind::Boolean(values) => bytes.push(u8::from(values.value(row))),
            WriteKind::Int(values) => put_long(i64::from(values[row]), bytes),
            WriteKind::Long(values) => put_long(values[row], bytes),
            WriteKind::Time32(values, end) => put_time(i64::from(values[row]), *end, bytes)?,
            WriteKind::Time64(values, end) => put_time(values[row], *end, bytes)?,
            WriteKind::Float(values) => bytes.extend(values[row].to_le_bytes()),
            WriteKind::Double(values) => bytes.extend(values[row].to_le_bytes()),
            WriteKind::Bytes(values) => put_bytes(values.value(row), bytes),
            WriteKind::String(values) => put_bytes(values.value(row).as_bytes(), bytes),
            WriteKind::Fixed(values, size) => {
                let value = values.value(row);
                if value.len() != *size {
                    return Err(Fault::new(format!("expected {size} bytes, found {}", value.len())));
                }
                bytes.extend_from_slice(value);
            }
            WriteKind::Uuid(values) => {
                let text = values.value(row);
                let found = uuid(text).ok_or_else(|| Fault::new(format!("{text:?} is not a UUID")))?;
                bytes.extend(found);
            }
            WriteKind::Duration(values) => write_duration(values.value(row), bytes)?,
            WriteKind::Decimal(values, size) => write_decimal(values[row], *size, bytes)?,
            WriteKind::Enum(values, symbols) => {
                let symbol = values.value(row);
                match symbols.get(symbol) {
                    Some(index) => put_long(*index as i64, bytes),
                    None => return Err(Fault::new(format!("{symbol:?} is not a symbol of the enum"))),
                }
            }
            WriteKind::Array(lists, item) => {
                let offsets = lists.value_offsets();
                let (begin, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                if begin < end {
                    put_long((end - begin) as i64, bytes);
                }
                for index in begin..end {
                    item.value(index, bytes).map_err(|fault| fault.in_item(index - begin))?;
                }
                bytes.push(0);
            }
            WriteKind::Map(maps, keys, value) => {
                let offsets = maps.value_offsets();
                let (begin, end) = (offsets[row] as usize, offsets[row + 1] as usize);
                if begin < end {
                    put_long((end - begin) as i64, bytes);
                }
                for index in begin..end {
                    let key = keys.value(index);
                    put_bytes(key.as_bytes(), bytes);
                    value.value(index, bytes).map_err(|fault| fault.in_field(key))?;
                }
                bytes.push(0);
            }
            WriteKind::Record(fields) => {
                for (name, write) in fields {
                    write.value(row, bytes).map_err(|fault| fault.in_field(name))?;
                }
            }
            WriteKind::Members { members, .. } => {
                let mut given = members.iter().filter(|(_, write)| write.array.is_valid(row));
                let (Some((branch, write)), None) = (given.next(), given.next()) else {
                    return Err(Fault::new("a union needs exactly one field that is not null"));
                };
                put_long(*branch as i64, bytes);
                write.value(row, bytes)?;
            }
        }
        Ok(())
    }
}

/// The children of a struct, if there are as many.
fn fields_of(array: &dyn Array, count: usize) -> Option<impl Iterator<Item = &dyn Array>> {
    let array: &StructArray = array.as_struct_opt()?;
    (array.num_columns() == count).then(|| array.columns().iter().map(|child| child.as_ref()))
}

#[cold]
fn unexpected_null() -> Fault {
    Fault::new("the value is null, and the schema does not allow null")
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let digits = text.as_bytes();
    let has_hyphens = digits.len() == 36 && [8, 13, 18, 23].iter().all(|&at| digits[at] == b'-');
    let mut found = [0; 16];
    let mut count = 0;
    for &digit in digits.iter().filter(|&&digit| !(has_hyphens && digit == b'-')) {
        let value = char::from(digit).to_digit(16)? as u8;
        *found.get_mut(count / 2)? |= if count.is_multiple_of(2) { value << 4 } else { value };
        count += 1;
    }
    (count == 32).then_some(found)
}

fn put_time(value: i64, end: i64, bytes: &mut Vec<u8>) -> Result<()> {
    if !(0..end).contains(&value) {
        return Err(out_of_day(value));
    }
    put_long(value, bytes);
    Ok(())
}

fn write_duration(value: arrow_buffer::IntervalMonthDayNano, bytes: &mut Vec<u8>) -> Result<()> {
    let (months, days) = (u32::try_from(value.months), u32::try_from(value.days));
    let milliseconds = u32::try_from(value.nanoseconds / 1_000_000);
    match (months, days, milliseconds) {
        (Ok(months), Ok(days), Ok(milliseconds)) if value.nanoseconds % 1_000_000 == 0 => {
            for part in [months, days, milliseconds] {
                bytes.extend(part.to_le_bytes());
            }
            Ok(())
        }
        _ => Err(Fault::new("a duration of Avro is not negative, and in milliseconds")),
    }
}

fn write_decimal(value: i128, size: Option<usize>, bytes: &mut Vec<u8>) -> Result<()> {
    let all = value.to_be_bytes();
    let sign = if value < 0 { 0xFF } else { 0 };
    // As few bytes as keep the sign.
    let extra = all.windows(2).take_while(|pair| pair[0] == sign && (pair[1] ^ sign) < 0x80).count();
    let needed = &all[extra..];
    match size {
        None => put_bytes(needed, bytes),
        Some(size) if needed.len() <= size => {
            bytes.extend(std::iter::repeat_n(sign, size - needed.len()));
            bytes.extend_from_slice(needed);
        }
        Some(size) => return Err(Fault::new(format!("the decimal does not fit into {size} bytes"))),
    }
    Ok(())
}
