//! Columns to encoded messages.
//!
//! Fields are written in the order of their numbers, as Google's libraries do. The columns have the types of the plan;
//! columns may be missing, which is as if they were null.

use arrow_array::cast::AsArray;
use arrow_array::{Array, ArrayRef, BinaryArray, BooleanArray, StringArray, types};
use arrow_buffer::NullBuffer;
use arrow_schema::DataType;

use crate::fault::{Fault, Result};
use crate::rows::{EncodeError, encode_rows};

use super::decode::check_time;
use super::error::SchemaError;
use super::json;
use super::plan::{FieldPlan, MessagePlan, Scalar, Shape, ValueType};
use super::wire::{WireType, put_varint, to_zigzag};

/// Encodes each row of a struct column, after `header`. Null rows stay null.
pub fn encode(
    plan: &MessagePlan,
    array: &ArrayRef,
    header: &[u8],
) -> std::result::Result<BinaryArray, EncodeError> {
    let message = Message::new(plan, array).map_err(|error| EncodeError::Column(error.0))?;
    encode_rows(array, |row, out| {
        out.extend_from_slice(header);
        message.write(row, out)
    })
}

/// The columns of a message.
struct Message<'a> {
    /// By number.
    fields: Vec<FieldColumn<'a>>,
}

struct FieldColumn<'a> {
    plan: &'a FieldPlan,
    nulls: Option<&'a NullBuffer>,
    values: Values<'a>,
    /// Indexes of `Message::fields`: the fields of the same oneof that come later.
    exclusive: Vec<usize>,
}

enum Values<'a> {
    Bool(&'a BooleanArray),
    Int32(&'a [i32]),
    Int64(&'a [i64]),
    Uint32(&'a [u32]),
    Uint64(&'a [u64]),
    Decimal(&'a [i128]),
    Float(&'a [f32]),
    Double(&'a [f64]),
    Text(&'a StringArray),
    Binary(&'a BinaryArray),
    Message(Message<'a>),
    List { offsets: &'a [i32], item: Box<Values<'a>>, nulls: Option<&'a NullBuffer> },
}

impl<'a> Message<'a> {
    fn new(plan: &'a MessagePlan, array: &'a ArrayRef) -> std::result::Result<Self, SchemaError> {
        let Some(columns) = array.as_struct_opt() else {
            return Err(SchemaError(format!(
                "{} is encoded from a struct, not from {}",
                plan.name,
                array.data_type()
            )));
        };
        for name in columns.column_names() {
            if !plan.fields.iter().any(|field| field.name == name) {
                return Err(SchemaError(format!("the message {} has no field {name}", plan.name)));
            }
        }
        let mut fields = Vec::new();
        let mut places = vec![None; plan.fields.len()];
        for slot in &plan.by_number {
            let field = &plan.fields[*slot];
            let Some(column) = columns.column_by_name(&field.name) else {
                if field.required {
                    return Err(SchemaError(format!(
                        "the required field {} of {} is missing",
                        field.name, plan.name
                    )));
                }
                continue;
            };
            let values = match field.shape {
                Shape::Singular => Values::new(field, column)?,
                Shape::Repeated => match column.as_list_opt::<i32>() {
                    Some(list) => Values::List {
                        offsets: list.offsets(),
                        item: Box::new(Values::new(field, list.values())?),
                        nulls: list.values().nulls(),
                    },
                    None => return Err(misfit(field, column)),
                },
                Shape::Map => match column.as_map_opt() {
                    Some(map) => Values::List {
                        offsets: map.offsets(),
                        item: Box::new(Values::entries(field, map)?),
                        nulls: None,
                    },
                    None => return Err(misfit(field, column)),
                },
            };
            places[*slot] = Some(fields.len());
            let exclusive = field.alternatives.iter().filter_map(|other| places[*other]).collect();
            fields.push(FieldColumn { plan: field, nulls: column.nulls(), values, exclusive });
        }
        Ok(Self { fields })
    }

    fn write(&self, row: usize, out: &mut Vec<u8>) -> Result<()> {
        for field in &self.fields {
            field.write(self, row, out).map_err(|fault| fault.in_field(&field.plan.name))?;
        }
        Ok(())
    }
}

impl FieldColumn<'_> {
    fn is_null(&self, row: usize) -> bool {
        self.nulls.is_some_and(|nulls| nulls.is_null(row))
    }

    fn write(&self, message: &Message<'_>, row: usize, out: &mut Vec<u8>) -> Result<()> {
        let plan = self.plan;
        if self.is_null(row) {
            return if plan.required { Err(Fault::new("the required field is null")) } else { Ok(()) };
        }
        if let Some(other) =
            self.exclusive.iter().map(|at| &message.fields[*at]).find(|other| !other.is_null(row))
        {
            return Err(Fault::new(format!(
                "the field {} of the same oneof is set as well: one of them has to be null",
                other.plan.name
            )));
        }
        let Values::List { offsets, item, nulls } = &self.values else {
            if !plan.presence && !plan.required && self.values.is_default(&plan.value, row)? {
                return Ok(());
            }
            put_tag(out, plan.number, plan.wire);
            return put_value(plan, &self.values, row, out);
        };
        let items = offsets[row] as usize..offsets[row + 1] as usize;
        if let Some(nulls) = nulls
            && let Some(null) = items.clone().find(|at| nulls.is_null(*at))
        {
            return Err(
                Fault::new("an element is null, which Protobuf does not have").in_item(null - items.start)
            );
        }
        if plan.packed {
            if !items.is_empty() {
                put_tag(out, plan.number, WireType::Length);
                delimited(out, |out| items.clone().try_for_each(|at| put_value(plan, item, at, out)))?;
            }
            return Ok(());
        }
        for at in items.clone() {
            put_tag(out, plan.number, plan.wire);
            put_value(plan, item, at, out).map_err(|fault| fault.in_item(at - items.start))?;
        }
        Ok(())
    }
}

impl<'a> Values<'a> {
    fn new(field: &'a FieldPlan, array: &'a ArrayRef) -> std::result::Result<Self, SchemaError> {
        use DataType as T;
        let wanted = match &field.data_type {
            T::List(item) => item.data_type(),
            other => other,
        };
        if let ValueType::Message(plan) = &field.value {
            return Ok(Self::Message(Message::new(plan, array)?));
        }
        if array.data_type() != wanted {
            return Err(misfit(field, array));
        }
        Ok(match wanted {
            T::Boolean => Self::Bool(array.as_boolean()),
            T::Int32 => Self::Int32(array.as_primitive::<types::Int32Type>().values()),
            T::Int64 => Self::Int64(array.as_primitive::<types::Int64Type>().values()),
            T::UInt32 => Self::Uint32(array.as_primitive::<types::UInt32Type>().values()),
            T::UInt64 => Self::Uint64(array.as_primitive::<types::UInt64Type>().values()),
            T::Decimal128(..) => Self::Decimal(array.as_primitive::<types::Decimal128Type>().values()),
            T::Float32 => Self::Float(array.as_primitive::<types::Float32Type>().values()),
            T::Float64 => Self::Double(array.as_primitive::<types::Float64Type>().values()),
            T::Utf8 => Self::Text(array.as_string()),
            T::Binary => Self::Binary(array.as_binary()),
            T::Timestamp(..) => Self::Int64(array.as_primitive::<types::TimestampMicrosecondType>().values()),
            T::Duration(..) => Self::Int64(array.as_primitive::<types::DurationMicrosecondType>().values()),
            other => unreachable!("{other} is no type of a value"),
        })
    }

    /// The entries of a map are messages with a key and a value, whatever Arrow calls them.
    fn entries(
        field: &'a FieldPlan,
        map: &'a arrow_array::MapArray,
    ) -> std::result::Result<Self, SchemaError> {
        let ValueType::Message(plan) = &field.value else { unreachable!("an entry is a message") };
        let column =
            |slot: usize, array: &'a ArrayRef| -> std::result::Result<FieldColumn<'a>, SchemaError> {
                let plan = &plan.fields[slot];
                Ok(FieldColumn {
                    plan,
                    nulls: array.nulls(),
                    values: Values::new(plan, array)?,
                    exclusive: Vec::new(),
                })
            };
        Ok(Self::Message(Message { fields: vec![column(0, map.keys())?, column(1, map.values())?] }))
    }

    /// Whether a value is the default of its type. A field without presence is not written then.
    fn is_default(&self, value: &ValueType, row: usize) -> Result<bool> {
        Ok(match self {
            Self::Bool(values) => !values.value(row),
            Self::Int32(values) => values[row] == 0,
            Self::Int64(values) => values[row] == 0,
            Self::Uint32(values) => values[row] == 0,
            Self::Uint64(values) => values[row] == 0,
            Self::Decimal(values) => values[row] == 0,
            // A negative zero is not the default.
            Self::Float(values) => values[row].to_bits() == 0,
            Self::Double(values) => values[row].to_bits() == 0,
            Self::Text(values) => match value {
                ValueType::Enum(_) => enum_number(value, values.value(row))? == 0,
                _ => values.value(row).is_empty(),
            },
            Self::Binary(values) => values.value(row).is_empty(),
            Self::Message(_) | Self::List { .. } => false,
        })
    }
}

/// One value without its tag.
fn put_value(field: &FieldPlan, values: &Values<'_>, row: usize, out: &mut Vec<u8>) -> Result<()> {
    match &field.value {
        ValueType::Scalar(scalar) => put_scalar(*scalar, values, row, out),
        ValueType::Enum(_) => {
            let Values::Text(names) = values else { unreachable!("an enum is text") };
            put_varint(out, i64::from(enum_number(&field.value, names.value(row))?) as u64);
            Ok(())
        }
        ValueType::Wrapper(scalar) => delimited(out, |out| {
            if values.is_default(&field.value, row)? {
                return Ok(());
            }
            put_tag(out, 1, scalar.wire_type());
            put_scalar(*scalar, values, row, out)
        }),
        ValueType::Timestamp | ValueType::Duration => {
            let Values::Int64(micros) = values else { unreachable!("a time is a number") };
            let micros = micros[row];
            let (seconds, rest) = match field.value {
                ValueType::Timestamp => (micros.div_euclid(1_000_000), micros.rem_euclid(1_000_000)),
                _ => (micros / 1_000_000, micros % 1_000_000),
            };
            check_time(&field.value, seconds, (rest * 1_000) as i32).map_err(Fault::new)?;
            delimited(out, |out| {
                for (number, part) in [(1, seconds), (2, rest * 1_000)] {
                    if part != 0 {
                        put_tag(out, number, WireType::Varint);
                        put_varint(out, part as u64);
                    }
                }
                Ok(())
            })
        }
        ValueType::Json(kind) => {
            let Values::Text(texts) = values else { unreachable!("JSON is text") };
            delimited(out, |out| json::read(*kind, texts.value(row), out).map_err(Fault::new))
        }
        ValueType::Message(_) => {
            let Values::Message(message) = values else { unreachable!("a message is a struct") };
            if field.shape == Shape::Map {
                return delimited(out, |out| put_entry(message, row, out));
            }
            if field.wire == WireType::StartGroup {
                message.write(row, out)?;
                put_tag(out, field.number, WireType::EndGroup);
                return Ok(());
            }
            delimited(out, |out| message.write(row, out))
        }
    }
}

/// An entry of a map has its key and its value, also if they are defaults.
fn put_entry(message: &Message<'_>, row: usize, out: &mut Vec<u8>) -> Result<()> {
    for field in &message.fields {
        if field.is_null(row) {
            return Err(Fault::new(format!(
                "the {} of an entry is null, which Protobuf does not have",
                field.plan.name
            )));
        }
        put_tag(out, field.plan.number, field.plan.wire);
        put_value(field.plan, &field.values, row, out)?;
    }
    Ok(())
}

fn put_scalar(scalar: Scalar, values: &Values<'_>, row: usize, out: &mut Vec<u8>) -> Result<()> {
    match (scalar, values) {
        (Scalar::Bool, Values::Bool(values)) => out.push(u8::from(values.value(row))),
        (Scalar::Int32, Values::Int32(values)) => put_varint(out, i64::from(values[row]) as u64),
        (Scalar::Sint32, Values::Int32(values)) => put_varint(out, to_zigzag(i64::from(values[row]))),
        (Scalar::Sfixed32, Values::Int32(values)) => out.extend_from_slice(&values[row].to_le_bytes()),
        (Scalar::Int64, Values::Int64(values)) => put_varint(out, values[row] as u64),
        (Scalar::Sint64, Values::Int64(values)) => put_varint(out, to_zigzag(values[row])),
        (Scalar::Sfixed64, Values::Int64(values)) => out.extend_from_slice(&values[row].to_le_bytes()),
        (Scalar::Float, Values::Float(values)) => out.extend_from_slice(&values[row].to_le_bytes()),
        (Scalar::Double, Values::Double(values)) => out.extend_from_slice(&values[row].to_le_bytes()),
        (Scalar::String, Values::Text(values)) => put_bytes(values.value(row).as_bytes(), out),
        (Scalar::Bytes, Values::Binary(values)) => put_bytes(values.value(row), out),
        (Scalar::Uint32 | Scalar::Fixed32, values) => {
            let value = match values {
                Values::Uint32(values) => values[row],
                Values::Int64(values) => {
                    u32::try_from(values[row]).map_err(|_| out_of_range(values[row], "uint32"))?
                }
                _ => unreachable!("the type of a uint32"),
            };
            match scalar {
                Scalar::Uint32 => put_varint(out, value.into()),
                _ => out.extend_from_slice(&value.to_le_bytes()),
            }
        }
        (Scalar::Uint64 | Scalar::Fixed64, values) => {
            let value = match values {
                Values::Uint64(values) => values[row],
                Values::Decimal(values) => {
                    u64::try_from(values[row]).map_err(|_| out_of_range(values[row], "uint64"))?
                }
                _ => unreachable!("the type of a uint64"),
            };
            match scalar {
                Scalar::Uint64 => put_varint(out, value),
                _ => out.extend_from_slice(&value.to_le_bytes()),
            }
        }
        _ => unreachable!("Values::new has checked the type"),
    }
    Ok(())
}

fn put_tag(out: &mut Vec<u8>, number: u32, wire: WireType) {
    put_varint(out, u64::from(number) << 3 | wire.code());
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Writes a length, and what `write` appends. Most lengths have one byte: others move the bytes.
fn delimited(out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>) -> Result<()>) -> Result<()> {
    let at = out.len();
    out.push(0);
    write(out)?;
    let len = out.len() - at - 1;
    if len < 0x80 {
        out[at] = len as u8;
    } else {
        let mut prefix = Vec::with_capacity(5);
        put_varint(&mut prefix, len as u64);
        out.splice(at..=at, prefix);
    }
    Ok(())
}

/// The number of a name, or of a number in digits: decoding writes it where a number has no name.
fn enum_number(value: &ValueType, name: &str) -> Result<i32> {
    let ValueType::Enum(plan) = value else { unreachable!("the plan of an enum") };
    match plan.numbers.get(name) {
        Some(number) => Ok(*number),
        None => name.parse().map_err(|_| Fault::new(format!("the enum {} has no value {name:?}", plan.name))),
    }
}

#[cold]
fn out_of_range(value: impl std::fmt::Display, name: &str) -> Fault {
    Fault::new(format!("{value} is out of range for {name}"))
}

#[cold]
fn misfit(field: &FieldPlan, array: &ArrayRef) -> SchemaError {
    SchemaError(format!("the field {} has to be {}, not {}", field.name, field.data_type, array.data_type()))
}
