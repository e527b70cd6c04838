//! JSON with the defaults of a schema for fields that are absent.
//!
//! The JSON is that of [`crate::json`] for the schema's Arrow type: bytes are base64, times are ISO 8601, and a union of
//! several types is an object. Defaults are converted to it, because Avro's own JSON is another one.

use std::collections::BTreeMap;

use arrow_array::Array;
use arrow_schema::Field;
use serde_json::Value;
use serde_json::value::{RawValue, to_raw_value};

use super::binary::Cursor;
use super::decode::value;
use super::defaults::{DefaultsBudget, encode_default};
use super::resolve::resolve;
use super::schema::{Kind, Record, Schema, SchemaError};
use super::types::{UnionShape, arrow_type, union_shape};
use crate::budget::Budget;
use crate::column::Column;
use crate::fault::{Fault, Result};
use crate::framing::Framing;
use crate::json;

type Object = BTreeMap<String, Box<RawValue>>;

/// The text with defaults. The error names a field that is absent and has neither a default nor null. Any other
/// mistake stays as it is: the reader of the text reports it.
pub fn fill_defaults(schema: &Schema, text: &str) -> Result<String> {
    let Ok(raw) = serde_json::from_str::<&RawValue>(text) else { return Ok(text.to_owned()) };
    Ok(fill(schema, raw)?.map_or_else(|| text.to_owned(), |filled| filled.get().to_owned()))
}

/// None if nothing is absent. The numbers of other values keep all their digits.
fn fill(schema: &Schema, raw: &RawValue) -> Result<Option<Box<RawValue>>> {
    match &schema.kind {
        Kind::Record(record) => match object(raw) {
            Some(fields) => fill_record(record, fields),
            None => Ok(None),
        },
        Kind::Array(item) => {
            let Ok(mut items) = serde_json::from_str::<Vec<Box<RawValue>>>(raw.get()) else {
                return Ok(None);
            };
            let mut is_changed = false;
            for (index, each) in items.iter_mut().enumerate() {
                is_changed |= replace(item, each).map_err(|fault| fault.in_item(index))?;
            }
            if is_changed { changed(to_raw_value(&items)) } else { Ok(None) }
        }
        Kind::Map(item) => fill_members(raw, |_| Some(item.as_ref())),
        Kind::Union(branches) => match union_shape(branches) {
            UnionShape::Nullable(only) => fill(only, raw),
            UnionShape::Members(members) => fill_members(raw, |name| {
                name.strip_prefix("member")
                    .and_then(|index| members.get(index.parse::<usize>().ok()?).copied())
            }),
            UnionShape::Null | UnionShape::Widened(_) => Ok(None),
        },
        _ => Ok(None),
    }
}

fn fill_record(record: &Record, mut fields: Object) -> Result<Option<Box<RawValue>>> {
    let mut is_changed = false;
    for field in &record.fields {
        let in_field = |fault: Fault| fault.in_field(&field.name);
        match (fields.get_mut(&field.name), &field.default) {
            (Some(found), _) => is_changed |= replace(&field.schema, found).map_err(in_field)?,
            (None, Some(default)) => {
                let default = default_text(&field.schema, default).map_err(in_field)?;
                fields.insert(field.name.clone(), default);
                is_changed = true;
            }
            (None, None) if allows_null(&field.schema) => {}
            (None, None) => return Err(in_field(Fault::new("is absent, and has no default"))),
        }
    }
    if is_changed { changed(to_raw_value(&fields)) } else { Ok(None) }
}

/// Fills the values of an object. `schema_of` has the schema of a name.
fn fill_members<'a>(
    raw: &RawValue,
    schema_of: impl Fn(&str) -> Option<&'a Schema>,
) -> Result<Option<Box<RawValue>>> {
    let Some(mut members) = object(raw) else { return Ok(None) };
    let mut is_changed = false;
    for (name, each) in &mut members {
        if let Some(schema) = schema_of(name) {
            is_changed |= replace(schema, each).map_err(|fault| fault.in_field(name))?;
        }
    }
    if is_changed { changed(to_raw_value(&members)) } else { Ok(None) }
}

/// Whether something was absent.
fn replace(schema: &Schema, raw: &mut Box<RawValue>) -> Result<bool> {
    match fill(schema, raw)? {
        Some(filled) => {
            *raw = filled;
            Ok(true)
        }
        None => Ok(false),
    }
}

fn allows_null(schema: &Schema) -> bool {
    match &schema.kind {
        Kind::Null => true,
        Kind::Union(branches) => branches.iter().any(allows_null),
        _ => false,
    }
}

fn object(raw: &RawValue) -> Option<Object> {
    serde_json::from_str(raw.get()).ok()
}

fn changed(value: serde_json::Result<Box<RawValue>>) -> Result<Option<Box<RawValue>>> {
    value.map(Some).map_err(|error| Fault::new(error.to_string()))
}

fn default_text(schema: &Schema, default: &Value) -> Result<Box<RawValue>> {
    let invalid = |reason: &str| Fault::new(format!("the default cannot be used: {reason}"));
    let mut bytes = Vec::new();
    let encoded = encode_default(schema, default, &mut bytes, &DefaultsBudget::new());
    encoded.map_err(|SchemaError(reason)| invalid(&reason))?;
    let read = resolve(schema, schema).map_err(|SchemaError(reason)| invalid(&reason))?;
    let data_type = arrow_type(schema);
    let mut column = Column::new(&data_type, 1).map_err(|error| invalid(&error.to_string()))?;
    value(&read, &mut Cursor::new(&bytes, Budget::of(&bytes, 0)), &mut column)?;
    let column = column.finish().map_err(|error| invalid(&error.to_string()))?;
    if column.is_null(0) || column.data_type().is_null() {
        return Ok(RawValue::NULL.to_owned());
    }
    let cells = json::encode(&column, &Field::new("", data_type, true), Framing::None, 0);
    let cells = cells.map_err(|error| invalid(&format!("{error:?}")))?;
    let text = String::from_utf8_lossy(cells.value(0)).into_owned();
    RawValue::from_string(text).map_err(|error| invalid(&error.to_string()))
}
