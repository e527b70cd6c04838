//! How to skip a writer's value that the reader does not have.

use super::binary::{Cursor, ItemSize};
use super::schema::{Kind, Schema};
use crate::fault::Result;

pub enum Skip {
    Nothing,
    Boolean,
    Int,
    Long,
    Bytes,
    Fixed(usize),
    Array(Box<Skip>, ItemSize),
    Map(Box<Skip>, ItemSize),
    Union(Vec<Skip>),
    Record(Vec<Skip>),
}

impl Skip {
    pub fn new(schema: &Schema) -> Self {
        match &schema.kind {
            Kind::Null => Self::Nothing,
            Kind::Boolean => Self::Boolean,
            Kind::Int | Kind::Enum(_) => Self::Int,
            Kind::Long => Self::Long,
            Kind::Float => Self::Fixed(4),
            Kind::Double => Self::Fixed(8),
            Kind::Bytes | Kind::String => Self::Bytes,
            Kind::Fixed(fixed) => Self::Fixed(fixed.size),
            Kind::Array(item) => {
                let size = ItemSize { written: item.min_size(), cost: item.steps() };
                Self::Array(Box::new(Self::new(item)), size)
            }
            Kind::Map(value) => {
                let size = ItemSize { written: 1 + value.min_size(), cost: 1 + value.steps() };
                Self::Map(Box::new(Self::new(value)), size)
            }
            Kind::Union(branches) => Self::Union(branches.iter().map(Self::new).collect()),
            Kind::Record(record) => {
                Self::Record(record.fields.iter().map(|field| Self::new(&field.schema)).collect())
            }
        }
    }

    pub fn value(&self, cursor: &mut Cursor<'_>) -> Result<()> {
        match self {
            Self::Nothing => {}
            Self::Boolean => cursor.boolean().map(drop)?,
            Self::Int => cursor.int().map(drop)?,
            Self::Long => cursor.long().map(drop)?,
            Self::Bytes => cursor.bytes().map(drop)?,
            Self::Fixed(size) => cursor.take(*size).map(drop)?,
            Self::Array(item, size) => loop {
                match cursor.block(*size)? {
                    0 => break,
                    count => (0..count).try_for_each(|_| item.value(cursor))?,
                }
            },
            Self::Map(value, size) => loop {
                match cursor.block(*size)? {
                    0 => break,
                    count => (0..count).try_for_each(|_| {
                        cursor.bytes()?;
                        value.value(cursor)
                    })?,
                }
            },
            Self::Union(branches) => {
                let index = cursor.long()?;
                match usize::try_from(index).ok().and_then(|index| branches.get(index)) {
                    Some(branch) => branch.value(cursor)?,
                    None => {
                        return Err(cursor.fault(&format!("a union has no type with the number {index}")));
                    }
                }
            }
            Self::Record(fields) => fields.iter().try_for_each(|field| field.value(cursor))?,
        }
        Ok(())
    }
}
