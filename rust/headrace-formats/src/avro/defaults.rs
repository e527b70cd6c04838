//! The default of a field, which is JSON in its schema, as Avro. So a default is read as if it had been written.

use std::cell::Cell;

use serde_json::Value;

use super::binary::{put_bytes, put_long};
use super::schema::{Kind, Result, Schema, SchemaError, error};

/// What all defaults of a schema may take together: bytes in columns, and steps to encode them. Types that have defaults
/// themselves can make a default larger by far than its text.
const MOST: usize = 1024 * 1024;

pub struct DefaultsBudget(Cell<usize>);

impl DefaultsBudget {
    pub fn new() -> Self {
        Self(Cell::new(MOST))
    }

    pub fn left(&self) -> usize {
        self.0.get()
    }

    pub fn charge(&self, cost: usize) -> Result<()> {
        match self.left().checked_sub(cost) {
            Some(left) => {
                self.0.set(left);
                Ok(())
            }
            None => error(format!("the defaults of the schema are larger than {} KiB", MOST / 1024)),
        }
    }
}

/// The error says why the JSON is not a value of the schema.
pub fn encode_default(
    schema: &Schema,
    value: &Value,
    bytes: &mut Vec<u8>,
    budget: &DefaultsBudget,
) -> Result<()> {
    let wrong = || SchemaError(format!("{} is not a value of the type {}", shown(value), schema.title()));
    budget.charge(1 + value.as_str().map_or(0, str::len))?;
    match (&schema.kind, value) {
        (Kind::Null, Value::Null) => {}
        (Kind::Boolean, Value::Bool(value)) => bytes.push(u8::from(*value)),
        (Kind::Int, Value::Number(number)) => {
            let number = number.as_i64().and_then(|number| i32::try_from(number).ok()).ok_or_else(wrong)?;
            put_long(i64::from(number), bytes);
        }
        (Kind::Long, Value::Number(number)) => put_long(number.as_i64().ok_or_else(wrong)?, bytes),
        (Kind::Float, _) => bytes.extend((float(value).ok_or_else(wrong)? as f32).to_le_bytes()),
        (Kind::Double, _) => bytes.extend(float(value).ok_or_else(wrong)?.to_le_bytes()),
        (Kind::String, Value::String(text)) => put_bytes(text.as_bytes(), bytes),
        (Kind::Bytes, Value::String(text)) => put_bytes(&latin1(text).ok_or_else(wrong)?, bytes),
        (Kind::Fixed(fixed), Value::String(text)) => {
            let value = latin1(text).filter(|value| value.len() == fixed.size).ok_or_else(wrong)?;
            bytes.extend(value);
        }
        (Kind::Enum(symbols), Value::String(text)) => {
            let index = symbols.symbols.iter().position(|symbol| symbol == text).ok_or_else(wrong)?;
            put_long(index as i64, bytes);
        }
        (Kind::Array(item), Value::Array(items)) => {
            if !items.is_empty() {
                put_long(items.len() as i64, bytes);
            }
            items.iter().try_for_each(|each| encode_default(item, each, bytes, budget))?;
            bytes.push(0);
        }
        (Kind::Map(schema), Value::Object(entries)) => {
            if !entries.is_empty() {
                put_long(entries.len() as i64, bytes);
            }
            for (key, each) in entries {
                budget.charge(key.len())?;
                put_bytes(key.as_bytes(), bytes);
                encode_default(schema, each, bytes, budget)?;
            }
            bytes.push(0);
        }
        (Kind::Record(record), Value::Object(entries)) => {
            for field in &record.fields {
                match entries.get(&field.name).or(field.default.as_ref()) {
                    Some(value) => encode_default(&field.schema, value, bytes, budget)?,
                    None => return error(format!("{} has no field {}", shown(value), field.name)),
                }
            }
        }
        // The specification had the first branch only, until version 1.12.
        (Kind::Union(branches), _) => {
            let begin = bytes.len();
            for (index, branch) in branches.iter().enumerate() {
                put_long(index as i64, bytes);
                if encode_default(branch, value, bytes, budget).is_ok() {
                    return Ok(());
                }
                bytes.truncate(begin);
            }
            return Err(wrong());
        }
        _ => return Err(wrong()),
    }
    Ok(())
}

fn shown(value: &Value) -> String {
    match value {
        Value::Array(_) => "an array".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.len() > 100 => "a long string".into(),
        other => other.to_string(),
    }
}

fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" | "INF" => Some(f64::INFINITY),
            "-Infinity" | "-INF" => Some(f64::NEG_INFINITY),
            _ => None,
        },
        _ => None,
    }
}

/// Bytes are text in which each character is a byte.
fn latin1(text: &str) -> Option<Vec<u8>> {
    text.chars().map(|each| u8::try_from(u32::from(each)).ok()).collect()
}
