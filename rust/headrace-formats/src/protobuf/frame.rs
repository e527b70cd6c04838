//! Between the schema id and the message, serializers name the message, because a schema can have several.
//!
//! Confluent's write the path of the message in its file, as indexes: a count and as many numbers, all as zigzag varints.
//! The path `[0]`, the first message of the file, is written as a count of zero. Apicurio's write a message with the name
//! in its field 1, after its length.

use std::collections::HashMap;
use std::sync::Arc;

use crate::fault::Result;
use crate::framing::Framing;

use super::error::SchemaError;
use super::plan::MessagePlan;
use super::schema::Schema;
use super::wire::{MAX_DEPTH, Reader, WireType, fault, put_varint, to_zigzag, zigzag};

/// How the message is named after the schema id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageName {
    /// Confluent's serializers, and Apicurio's if they are configured to.
    Indexes,
    /// Apicurio's serializers.
    Reference,
}

/// The schemas of the records. The message's fields are identified by their numbers, so that a writer's schema is needed
/// for one thing only: which message its indexes are.
pub struct Writers {
    pub framing: Framing,
    pub name: MessageName,
    /// By id. A schema that the registry does not have or that cannot be parsed is the reason of the records that name it.
    pub schemas: HashMap<i64, std::result::Result<Arc<Schema>, String>>,
}

impl Writers {
    /// The records contain nothing but the message.
    pub fn none() -> Self {
        Self { framing: Framing::None, name: MessageName::Indexes, schemas: HashMap::new() }
    }
}

/// Finds the messages in the records, and checks that they are the expected ones.
pub struct Frames<'a> {
    plan: &'a MessagePlan,
    writers: &'a Writers,
    /// The last id, and the bytes that named the message. Almost every record has those of the record before.
    last: Option<(i64, Vec<u8>)>,
}

impl<'a> Frames<'a> {
    pub fn new(plan: &'a MessagePlan, writers: &'a Writers) -> Self {
        Self { plan, writers, last: None }
    }

    /// A reader of the message in `cell`.
    #[inline]
    pub fn open<'c>(&mut self, cell: &'c [u8]) -> Result<Reader<'c>> {
        let framing = self.writers.framing;
        if framing == Framing::None {
            return Ok(Reader::new(cell, 0));
        }
        let (id, rest) = framing.split(cell)?;
        match &self.last {
            Some((last, name)) if *last == id && rest.starts_with(name) => {
                Ok(Reader::new(cell, framing.size() + name.len()))
            }
            _ => self.check(id, Reader::new(cell, framing.size())),
        }
    }

    fn check<'c>(&mut self, id: i64, mut reader: Reader<'c>) -> Result<Reader<'c>> {
        let start = reader.offset();
        let before = reader.rest();
        let expected = &self.plan.name;
        match self.writers.name {
            MessageName::Indexes => {
                let indexes = read_indexes(&mut reader)?;
                let schema = match self.writers.schemas.get(&id) {
                    Some(Ok(schema)) => schema,
                    Some(Err(reason)) => return Err(fault(0, reason)),
                    None => return Err(fault(0, format!("there is no schema {id}"))),
                };
                match schema.message_at(&indexes) {
                    Some(message) if message.full_name() == expected => {}
                    Some(message) => {
                        return Err(fault(
                            start,
                            format!("the record is a {}, but {expected} was expected", message.full_name()),
                        ));
                    }
                    None => return Err(fault(start, format!("schema {id} has no message {indexes:?}"))),
                }
            }
            MessageName::Reference => {
                let name = read_reference(&mut reader)?;
                // Apicurio's serializers write the name without the package.
                let simple = expected.rsplit('.').next();
                if name != expected && Some(name) != simple {
                    return Err(fault(start, format!("the record is a {name}, but {expected} was expected")));
                }
            }
        }
        self.last = Some((id, before[..reader.offset() - start].to_vec()));
        Ok(reader)
    }
}

fn read_indexes(reader: &mut Reader<'_>) -> Result<Vec<usize>> {
    let start = reader.offset();
    let index =
        |value: u64| usize::try_from(zigzag(value)).map_err(|_| fault(start, "a negative message index"));
    let count = index(reader.varint()?)?;
    if count > MAX_DEPTH {
        return Err(fault(start, format!("a path of {count} message indexes")));
    }
    match count {
        0 => Ok(vec![0]),
        count => (0..count).map(|_| index(reader.varint()?)).collect(),
    }
}

fn read_reference<'c>(reader: &mut Reader<'c>) -> Result<&'c str> {
    let mut inner = reader.delimited()?;
    let mut name = "";
    while !inner.is_empty() {
        match inner.tag()? {
            (1, WireType::Length) => name = inner.text()?,
            (number, wire) => inner.skip(number, wire)?,
        }
    }
    Ok(name)
}

/// The bytes that name a message after the schema id.
pub fn write_name(
    name: MessageName,
    schema: &Schema,
    message: &str,
) -> std::result::Result<Vec<u8>, SchemaError> {
    let mut out = Vec::new();
    match name {
        MessageName::Indexes => match &schema.indexes(message)?[..] {
            [0] => out.push(0),
            indexes => {
                put_varint(&mut out, to_zigzag(indexes.len() as i64));
                for index in indexes {
                    put_varint(&mut out, to_zigzag(*index as i64));
                }
            }
        },
        MessageName::Reference => {
            let simple = message.rsplit('.').next().unwrap_or(message);
            let mut inner = vec![0x0a];
            put_varint(&mut inner, simple.len() as u64);
            inner.extend_from_slice(simple.as_bytes());
            put_varint(&mut out, inner.len() as u64);
            out.append(&mut inner);
        }
    }
    Ok(out)
}
