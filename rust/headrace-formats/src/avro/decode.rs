//! From bytes to columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::BinaryArray;
use arrow_buffer::IntervalMonthDayNano;
use arrow_schema::{ArrowError, DataType};

use super::binary::Cursor;
use super::resolve::{Read, RecordRead, Step, resolve};
use super::schema::{Result as SchemaResult, Schema, SchemaError};
use super::types::arrow_type;
use crate::budget::{Budget, free_width};
use crate::column::{Column, Values};
use crate::fault::{Fault, Result};
use crate::framing::Framing;
use crate::rows::{Decoded, decode_rows};

/// How to read what one writer has written.
pub struct Plan {
    read: Read,
    /// What the reader's schema takes of a record's budget.
    free: usize,
}

impl Plan {
    /// The error says why no record of the writer can be read with the reader's schema.
    pub fn new(writer: &Schema, reader: &Schema) -> SchemaResult<Self> {
        let read = resolve(writer, reader)?;
        Ok(Self { free: free_width(&arrow_type(reader)) + read.cost_of_defaults(), read })
    }
}

/// A plan for each schema id, or the reason why its records cannot be decoded. Without framing, the id is 0.
pub type Plans = HashMap<i64, std::result::Result<Arc<Plan>, String>>;

pub struct Decoder {
    data_type: DataType,
    framing: Framing,
}

impl Decoder {
    pub fn new(reader: &Schema, framing: Framing) -> Self {
        Self { data_type: arrow_type(reader), framing }
    }

    pub fn data_type(&self) -> &DataType {
        &self.data_type
    }

    pub fn decode(&self, cells: &BinaryArray, plans: &Plans) -> std::result::Result<Decoded, ArrowError> {
        let mut last: Option<(i64, &Plan)> = None;
        decode_rows(cells, &self.data_type, |bytes, column| {
            let (id, bytes) = self.framing.split(bytes)?;
            let plan = match last {
                Some((same, plan)) if same == id => plan,
                _ => match plans.get(&id) {
                    Some(Ok(plan)) => plan.as_ref(),
                    Some(Err(reason)) => return Err(Fault::new(reason.as_str())),
                    None => return Err(Fault::new(format!("the schema with id {id} is not known"))),
                },
            };
            last = Some((id, plan));
            let mut cursor = Cursor::new(bytes, Budget::of(bytes, plan.free));
            value(&plan.read, &mut cursor, column)?;
            match cursor.remaining() {
                0 => Ok(()),
                count => Err(cursor.fault(&format!("{count} bytes follow the value"))),
            }
        })
    }
}

/// A bug: a column does not have the values of its schema.
#[cold]
fn wrong_column() -> Fault {
    Fault::new("internal error: the column has another type")
}

/// Reads one value and appends it.
pub fn value(read: &Read, cursor: &mut Cursor<'_>, column: &mut Column) -> Result<()> {
    let before = column.len();
    match (read, &mut column.values) {
        (Read::Long { is_int: false }, Values::Int64(values)) => values.push(cursor.long()?),
        (Read::Double, Values::Float64(values)) => values.push(f64::from_le_bytes(cursor.array()?)),
        (Read::String, Values::Bytes(values)) => values.push(cursor.text()?)?,
        (Read::Int, Values::Int32(values)) => values.push(cursor.int()?),
        (Read::Union(branches), _) => return union(branches, cursor, column),
        (Read::Null, _) => {
            column.push_null();
            return Ok(());
        }
        (Read::Record(plan), Values::Struct(children)) => record(plan, cursor, children)?,
        (Read::Boolean, Values::Boolean(values)) => values.append(cursor.boolean()?),
        (Read::Long { is_int: true }, Values::Int64(values)) => values.push(i64::from(cursor.int()?)),
        (Read::Scaled { factor, is_int }, Values::Int32(values)) => {
            let scaled = scaled(cursor, *factor, *is_int)?;
            values.push(i32::try_from(scaled).map_err(|_| out_of_range(scaled))?);
        }
        (Read::Scaled { factor, is_int }, Values::Int64(values)) => {
            values.push(scaled(cursor, *factor, *is_int)?);
        }
        (Read::TimeOfDay { read, end }, _) => {
            value(read, cursor, column)?;
            return check_time(column, *end);
        }
        (Read::Float, Values::Float32(values)) => values.push(f32::from_le_bytes(cursor.array()?)),
        (Read::FloatToDouble, Values::Float64(values)) => {
            values.push(f64::from(f32::from_le_bytes(cursor.array()?)));
        }
        (Read::IntegerToFloat, Values::Float32(values)) => values.push(cursor.long()? as f32),
        (Read::IntegerToDouble, Values::Float64(values)) => values.push(cursor.long()? as f64),
        (Read::Bytes, Values::Bytes(values)) => values.push(cursor.bytes()?)?,
        (Read::FixedBytes(size), Values::Bytes(values)) => values.push(cursor.take(*size)?)?,
        (Read::UuidBytes, Values::Bytes(values)) => {
            write_uuid(cursor.array()?, values.buffer());
            values.end_value()?;
        }
        (Read::Duration, Values::Interval(values)) => values.push(duration(cursor)?),
        (Read::Decimal { fixed, precision, factor }, Values::Decimal128(values)) => {
            let bytes = match fixed {
                Some(size) => cursor.take(*size)?,
                None => cursor.bytes()?,
            };
            values.push(decimal(bytes, *precision, *factor)?);
        }
        (Read::Enum { symbols, written }, Values::Bytes(values)) => {
            let index = cursor.int()?;
            let symbol = usize::try_from(index).ok().and_then(|index| symbols.get(index));
            match symbol {
                Some(Some(symbol)) => {
                    cursor.budget.charge(symbol.len())?;
                    values.push(symbol.as_bytes())?;
                }
                Some(None) => {
                    let name = &written[index as usize];
                    return Err(Fault::new(format!(
                        "the reader's enum has no symbol {name}, and no default"
                    )));
                }
                None => return Err(cursor.fault(&format!("an enum has no symbol with the number {index}"))),
            }
        }
        (Read::Array { item, size }, Values::List(lists)) => {
            let begin = lists.item.len();
            loop {
                let count = cursor.block(*size)?;
                if count == 0 {
                    break;
                }
                for _ in 0..count {
                    let index = lists.item.len() - begin;
                    value(item, cursor, &mut lists.item).map_err(|fault| fault.in_item(index))?;
                }
            }
            lists.end_list()?;
        }
        (Read::Map { value: read, size }, Values::Map(maps)) => {
            loop {
                let count = cursor.block(*size)?;
                if count == 0 {
                    break;
                }
                for _ in 0..count {
                    let key = cursor.text()?;
                    let Values::Bytes(keys) = &mut maps.keys.values else { return Err(wrong_column()) };
                    keys.push(key)?;
                    maps.keys.end_value();
                    value(read, cursor, &mut maps.values)
                        .map_err(|fault| fault.in_field(&String::from_utf8_lossy(key)))?;
                }
            }
            // No writer's map has such entries, and no Python dictionary can.
            if let Some(key) = maps.repeated_key() {
                let key = String::from_utf8_lossy(key);
                return Err(cursor.fault(&format!("a map has the key {key:?} twice")));
            }
            maps.end_map()?;
        }
        (Read::Member { index, read }, Values::Struct(children)) => {
            value(read, cursor, &mut children[*index])?;
            for child in children.iter_mut().filter(|child| child.len() == before) {
                child.push_null();
            }
        }
        _ => return Err(wrong_column()),
    }
    column.end_value();
    Ok(())
}

fn union(branches: &[SchemaResult<Read>], cursor: &mut Cursor<'_>, column: &mut Column) -> Result<()> {
    let index = cursor.long()?;
    match usize::try_from(index).ok().and_then(|index| branches.get(index)) {
        Some(Ok(read)) => value(read, cursor, column),
        Some(Err(reason)) => Err(Fault::new(reason.0.as_str())),
        None => Err(cursor.fault(&format!("a union has no type with the number {index}"))),
    }
}

fn record(plan: &RecordRead, cursor: &mut Cursor<'_>, children: &mut [Column]) -> Result<()> {
    for step in &plan.steps {
        match step {
            Step::Field { column, name, read } => {
                value(read, cursor, &mut children[*column]).map_err(|fault| fault.in_field(name))?;
            }
            Step::Skip { name, skip } => skip.value(cursor).map_err(|fault| fault.in_field(name))?,
        }
    }
    for default in &plan.defaults {
        cursor.budget.charge(default.cost)?;
        let budget = Budget::of_bytes(default.cost);
        value(&default.read, &mut Cursor::new(&default.bytes, budget), &mut children[default.column])?;
    }
    Ok(())
}

/// What a default takes of a record's budget, at most `limit`: its bytes, and its items.
pub fn default_cost(read: &Read, bytes: &[u8], schema: &Schema, limit: usize) -> SchemaResult<usize> {
    let column = Column::new(&arrow_type(schema), 1);
    let mut column = column.map_err(|error| SchemaError(error.to_string()))?;
    let mut cursor = Cursor::new(bytes, Budget::of_bytes(limit));
    value(read, &mut cursor, &mut column).map_err(|fault| SchemaError(fault.reason().to_owned()))?;
    Ok(bytes.len() + limit - cursor.budget.left())
}

/// A time in the reader's unit, rounded down.
fn scaled(cursor: &mut Cursor<'_>, factor: i64, is_int: bool) -> Result<i64> {
    let value = if is_int { i64::from(cursor.int()?) } else { cursor.long()? };
    if factor < 0 {
        return Ok(value.div_euclid(-factor));
    }
    value.checked_mul(factor).ok_or_else(|| out_of_range(value))
}

/// Arrow, Python and Spark have no other times of a day. One such value would be an error of the whole column.
fn check_time(column: &Column, end: i64) -> Result<()> {
    let found = match &column.values {
        Values::Int32(values) => values.last().map(|&value| i64::from(value)),
        Values::Int64(values) => values.last().copied(),
        _ => None,
    };
    match found {
        Some(value) if (0..end).contains(&value) => Ok(()),
        Some(value) => Err(out_of_day(value)),
        None => Err(wrong_column()),
    }
}

#[cold]
pub fn out_of_day(value: i64) -> Fault {
    Fault::new(format!("the time {value} is not within a day"))
}

#[cold]
fn out_of_range(value: i64) -> Fault {
    Fault::new(format!("the time {value} is out of range"))
}

fn decimal(bytes: &[u8], precision: u8, factor: i128) -> Result<i128> {
    let too_large = || Fault::new(format!("a decimal has more than {precision} digits"));
    let sign = bytes.first().map_or(0, |first| (*first as i8 >> 7) as u8);
    // Bytes before the last 16 must be nothing but the sign.
    let (extra, used) = bytes.split_at(bytes.len().saturating_sub(16));
    if extra.iter().any(|&byte| byte != sign) {
        return Err(too_large());
    }
    let mut all = [sign; 16];
    all[16 - used.len()..].copy_from_slice(used);
    if !extra.is_empty() && (all[0] as i8 >> 7) as u8 != sign {
        return Err(too_large());
    }
    let value = i128::from_be_bytes(all).checked_mul(factor).ok_or_else(too_large)?;
    let limit = 10_u128.pow(u32::from(precision));
    if value.unsigned_abs() < limit { Ok(value) } else { Err(too_large()) }
}

fn duration(cursor: &mut Cursor<'_>) -> Result<IntervalMonthDayNano> {
    let months = u32::from_le_bytes(cursor.array()?);
    let days = u32::from_le_bytes(cursor.array()?);
    let milliseconds = u32::from_le_bytes(cursor.array()?);
    match (i32::try_from(months), i32::try_from(days)) {
        (Ok(months), Ok(days)) => {
            Ok(IntervalMonthDayNano::new(months, days, i64::from(milliseconds) * 1_000_000))
        }
        _ => Err(Fault::new(format!("a duration of {months} months and {days} days is out of range"))),
    }
}

fn write_uuid(bytes: [u8; 16], text: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push(b'-');
        }
        text.extend([DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]]);
    }
}
