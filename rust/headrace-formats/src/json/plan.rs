//! What to read for each Arrow type.

use std::collections::HashMap;

use arrow_schema::{ArrowError, DataType, Fields, TimeUnit};

use crate::budget::width;

/// The expected JSON of a column.
pub enum Node {
    Null,
    Boolean,
    Int8,
    Int16,
    Int32,
    Int64,
    UInt8,
    UInt16,
    UInt32,
    UInt64,
    Float32,
    Float64,
    Decimal { precision: u8, scale: i8 },
    Text,
    Binary,
    FixedSizeBinary(usize),
    Date32,
    Date64,
    Time32(TimeUnit),
    Time64(TimeUnit),
    Timestamp { unit: TimeUnit, has_zone: bool },
    Struct(StructNode),
    List(Box<ItemNode>),
    Map(Box<ItemNode>),
}

/// The items of a list, or the values of a map.
pub struct ItemNode {
    pub node: Node,
    /// What an item, or an entry of a map with its key, takes of the record's budget.
    pub width: usize,
}

pub struct StructNode {
    pub fields: Vec<FieldNode>,
    by_name: HashMap<Box<[u8]>, usize>,
}

pub struct FieldNode {
    pub name: Box<str>,
    /// The name as most writers write it: in quotes, with the escapes that it needs.
    pub quoted: Box<[u8]>,
    pub node: Node,
}

impl StructNode {
    #[inline]
    pub fn find(&self, name: &[u8]) -> Option<usize> {
        if self.fields.len() <= 8 {
            return self.fields.iter().position(|field| field.name.as_bytes() == name);
        }
        self.by_name.get(name).copied()
    }
}

impl Node {
    /// The error names a type that cannot be read from JSON.
    pub fn new(data_type: &DataType) -> Result<Self, ArrowError> {
        use DataType as T;
        Ok(match data_type {
            T::Null => Self::Null,
            T::Boolean => Self::Boolean,
            T::Int8 => Self::Int8,
            T::Int16 => Self::Int16,
            T::Int32 => Self::Int32,
            T::Int64 => Self::Int64,
            T::UInt8 => Self::UInt8,
            T::UInt16 => Self::UInt16,
            T::UInt32 => Self::UInt32,
            T::UInt64 => Self::UInt64,
            T::Float32 => Self::Float32,
            T::Float64 => Self::Float64,
            T::Decimal128(precision, scale) => Self::Decimal { precision: *precision, scale: *scale },
            T::Utf8 | T::LargeUtf8 => Self::Text,
            T::Binary | T::LargeBinary => Self::Binary,
            T::FixedSizeBinary(width) => Self::FixedSizeBinary(usize::try_from(*width).unwrap_or(0)),
            T::Date32 => Self::Date32,
            T::Date64 => Self::Date64,
            T::Time32(unit) => Self::Time32(*unit),
            T::Time64(unit) => Self::Time64(*unit),
            T::Timestamp(unit, zone) => Self::Timestamp { unit: *unit, has_zone: zone.is_some() },
            T::Struct(fields) => Self::Struct(StructNode::new(fields)?),
            T::List(item) | T::LargeList(item) => {
                let node = Self::new(item.data_type())?;
                Self::List(Box::new(ItemNode { node, width: width(item.data_type()) }))
            }
            T::Map(entries, _) => match entries.data_type() {
                T::Struct(fields) if fields.len() == 2 && *fields[0].data_type() == T::Utf8 => {
                    let node = Self::new(fields[1].data_type())?;
                    Self::Map(Box::new(ItemNode { node, width: width(entries.data_type()) }))
                }
                _ => {
                    let text =
                        format!("the keys of a map are strings in JSON, but not in the type {data_type}");
                    return Err(ArrowError::NotYetImplemented(text));
                }
            },
            other => {
                return Err(ArrowError::NotYetImplemented(format!(
                    "JSON cannot be read as the type {other}"
                )));
            }
        })
    }
}

impl StructNode {
    fn new(fields: &Fields) -> Result<Self, ArrowError> {
        let mut by_name = HashMap::new();
        let mut nodes = Vec::new();
        for (index, field) in fields.iter().enumerate() {
            let name = field.name().as_str();
            if by_name.insert(name.as_bytes().into(), index).is_some() {
                return Err(ArrowError::SchemaError(format!("the schema has two fields {name:?}")));
            }
            let quoted = serde_json::Value::from(name).to_string().into_bytes().into();
            nodes.push(FieldNode { name: name.into(), quoted, node: Node::new(field.data_type())? });
        }
        Ok(Self { fields: nodes, by_name })
    }
}
