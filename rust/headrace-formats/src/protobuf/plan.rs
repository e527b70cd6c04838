//! What the decoder and the encoder do with each field of a message, compiled once from its descriptor.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, TimeUnit};
use prost_reflect::{Cardinality, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use super::error::SchemaError;
use super::wire::{MAX_DEPTH, WireType};

/// A schema has at most so many columns, counted with those of nested messages. Recursion and messages within messages
/// multiply: a schema of a few lines can ask for more columns than any machine has memory for.
const MAX_COLUMNS: usize = 10_000;
/// Numbers below are looked up in a table.
const DENSE: u32 = 1024;

/// How Protobuf's types become Arrow's.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Unsigned integers stay unsigned. Otherwise uint32 becomes Int64 and uint64 Decimal128(20, 0).
    pub unsigned: bool,
    /// How many times a message may be nested in itself. With 0, recursive messages are refused.
    pub recursion: usize,
}

impl Default for Options {
    fn default() -> Self {
        Self { unsigned: true, recursion: 0 }
    }
}

#[derive(Debug)]
pub struct MessagePlan {
    pub name: String,
    /// In the order of the schema: that of the columns.
    pub fields: Vec<FieldPlan>,
    /// The slots of `fields` by their numbers: the order in which they are encoded.
    pub by_number: Vec<usize>,
    /// The slots of proto2's required fields.
    pub required: Vec<usize>,
    /// The bytes that a row takes in the columns, at least.
    pub width: usize,
    /// The same with one element in each repeated field: see [`crate::budget`].
    pub free_width: usize,
    /// The longest name that a row can have in the column of an enum.
    pub longest_name: usize,
    dense: Vec<u16>,
    sparse: HashMap<u32, u16>,
}

#[derive(Debug)]
pub struct FieldPlan {
    pub name: String,
    pub number: u32,
    pub shape: Shape,
    pub value: ValueType,
    /// The wire type of one value.
    pub wire: WireType,
    /// Whether the column is null where the field is absent. Otherwise it has the default of its type.
    pub presence: bool,
    pub required: bool,
    /// How a repeated field is encoded. Decoding accepts both.
    pub packed: bool,
    /// The slots of the other fields of the same oneof.
    pub alternatives: Vec<usize>,
    pub data_type: DataType,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Shape {
    Singular,
    Repeated,
    /// Repeated messages with the fields key (1) and value (2).
    Map,
}

#[derive(Debug, Clone)]
pub enum ValueType {
    Scalar(Scalar),
    Enum(Arc<EnumPlan>),
    Message(Arc<MessagePlan>),
    /// A message whose only field is a scalar: google.protobuf.Int32Value and the like.
    Wrapper(Scalar),
    Timestamp,
    Duration,
    Json(JsonType),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scalar {
    Bool,
    Int32,
    Sint32,
    Sfixed32,
    Int64,
    Sint64,
    Sfixed64,
    Uint32,
    Fixed32,
    Uint64,
    Fixed64,
    Float,
    Double,
    String,
    Bytes,
}

/// The messages of google/protobuf/struct.proto, which become JSON text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JsonType {
    Struct,
    Value,
    ListValue,
}

#[derive(Debug)]
pub struct EnumPlan {
    pub name: String,
    /// Several names may share a number: the first one is used.
    pub names: HashMap<i32, String>,
    pub numbers: HashMap<String, i32>,
    pub longest: usize,
}

/// What a field number means for a message.
pub enum Slot {
    Known(usize),
    /// A field of a recursive message that is nested deeper than `Options::recursion` allows.
    TooDeep,
    Unknown,
}

const UNKNOWN: u16 = u16::MAX;
const TOO_DEEP: u16 = u16::MAX - 1;

impl MessagePlan {
    pub fn new(message: &MessageDescriptor, options: Options) -> Result<Self, SchemaError> {
        Compiler { options, columns: 0, open: Vec::new(), enums: HashMap::new() }.message(message)
    }

    #[inline]
    pub fn slot(&self, number: u32) -> Slot {
        let slot = match self.dense.get(number as usize) {
            Some(slot) => *slot,
            None if self.sparse.is_empty() => return Slot::Unknown,
            None => self.sparse.get(&number).copied().unwrap_or(UNKNOWN),
        };
        match slot {
            UNKNOWN => Slot::Unknown,
            TOO_DEEP => Slot::TooDeep,
            slot => Slot::Known(slot as usize),
        }
    }

    pub fn arrow_fields(&self) -> Fields {
        self.fields.iter().map(|field| Field::new(&field.name, field.data_type.clone(), true)).collect()
    }
}

struct Compiler {
    options: Options,
    columns: usize,
    /// The messages that contain the current one, outermost first.
    open: Vec<String>,
    enums: HashMap<String, Arc<EnumPlan>>,
}

impl Compiler {
    fn message(&mut self, message: &MessageDescriptor) -> Result<MessagePlan, SchemaError> {
        if self.open.len() == MAX_DEPTH {
            return Err(SchemaError(format!(
                "the messages of {} are nested more than {MAX_DEPTH} deep",
                self.open[0]
            )));
        }
        self.open.push(message.full_name().to_owned());
        let mut fields = Vec::new();
        let mut oneofs: HashMap<String, Vec<usize>> = HashMap::new();
        let (mut dense, mut sparse) = (Vec::new(), HashMap::new());
        let mut note = |number: u32, slot: u16| {
            if number < DENSE {
                if dense.len() <= number as usize {
                    dense.resize(number as usize + 1, UNKNOWN);
                }
                dense[number as usize] = slot;
            } else {
                sparse.insert(number, slot);
            }
        };
        // The pool iterates by number. Columns are in the order of the schema.
        for declared in &message.descriptor_proto().field {
            let field = message.get_field(declared.number() as u32).ok_or_else(|| {
                SchemaError(format!("{} has no field {}", message.full_name(), declared.name()))
            })?;
            let Some(plan) = self.field(&field)? else {
                note(field.number(), TOO_DEEP);
                continue;
            };
            note(field.number(), fields.len() as u16);
            if let Some(oneof) = field.containing_oneof().filter(|oneof| !oneof.is_synthetic()) {
                oneofs.entry(oneof.name().to_owned()).or_default().push(fields.len());
            }
            fields.push(plan);
        }
        for members in oneofs.values() {
            for slot in members {
                fields[*slot].alternatives = members.iter().copied().filter(|other| other != slot).collect();
            }
        }
        self.open.pop();
        let mut by_number: Vec<usize> = (0..fields.len()).collect();
        by_number.sort_by_key(|slot| fields[*slot].number);
        let slots = || fields.iter().enumerate();
        Ok(MessagePlan {
            name: message.full_name().to_owned(),
            required: slots().filter(|(_, field)| field.required).map(|(slot, _)| slot).collect(),
            width: 1 + fields.iter().map(FieldPlan::width).sum::<usize>(),
            longest_name: fields.iter().map(FieldPlan::longest_name).max().unwrap_or(0),
            free_width: 1 + fields.iter().map(FieldPlan::free_width).sum::<usize>(),
            by_number,
            fields,
            dense,
            sparse,
        })
    }

    /// None for a field of a recursive message that is nested too deep.
    fn field(&mut self, field: &FieldDescriptor) -> Result<Option<FieldPlan>, SchemaError> {
        let Some(value) = self.value(field)? else { return Ok(None) };
        self.columns += 1;
        if self.columns > MAX_COLUMNS {
            return Err(SchemaError(format!(
                "{} has more than {MAX_COLUMNS} columns, counted with those of nested messages: choose a message \
                 with fewer, or a smaller recursion",
                self.open[0]
            )));
        }
        let shape = match field.cardinality() {
            Cardinality::Repeated if field.is_map() => Shape::Map,
            Cardinality::Repeated => Shape::Repeated,
            _ => Shape::Singular,
        };
        let item = value.arrow_type(self.options.unsigned);
        Ok(Some(FieldPlan {
            name: field.name().to_owned(),
            number: field.number(),
            shape,
            wire: if field.is_group() { WireType::StartGroup } else { value.wire_type() },
            // Keys and values of maps always have a value, also in proto2.
            presence: shape == Shape::Singular
                && field.supports_presence()
                && !field.parent_message().is_map_entry(),
            required: field.cardinality() == Cardinality::Required,
            packed: field.is_packed(),
            alternatives: Vec::new(),
            data_type: match shape {
                Shape::Singular => item,
                Shape::Repeated => DataType::List(Arc::new(Field::new("item", item, true))),
                Shape::Map => DataType::Map(Arc::new(Field::new("entries", map_entries(item), false)), false),
            },
            value,
        }))
    }

    fn value(&mut self, field: &FieldDescriptor) -> Result<Option<ValueType>, SchemaError> {
        Ok(Some(match field.kind() {
            Kind::Enum(descriptor) => {
                let known = self.enums.entry(descriptor.full_name().to_owned());
                ValueType::Enum(Arc::clone(known.or_insert_with(|| Arc::new(EnumPlan::new(&descriptor)))))
            }
            Kind::Message(message) => match well_known(message.full_name()) {
                Some(value) => value,
                None => {
                    let nested = self.open.iter().filter(|name| *name == message.full_name()).count();
                    if nested > self.options.recursion {
                        return if self.options.recursion > 0 {
                            Ok(None)
                        } else {
                            Err(SchemaError(format!(
                                "the message {} is recursive: its field {} contains it again, and columns have a fixed depth. Set \
                                 recursion to the number of levels that are decoded",
                                message.full_name(),
                                field.full_name()
                            )))
                        };
                    }
                    ValueType::Message(Arc::new(self.message(&message)?))
                }
            },
            kind => ValueType::Scalar(Scalar::new(&kind)),
        }))
    }
}

fn well_known(name: &str) -> Option<ValueType> {
    Some(match name.strip_prefix("google.protobuf.")? {
        "Timestamp" => ValueType::Timestamp,
        "Duration" => ValueType::Duration,
        "BoolValue" => ValueType::Wrapper(Scalar::Bool),
        "Int32Value" => ValueType::Wrapper(Scalar::Int32),
        "Int64Value" => ValueType::Wrapper(Scalar::Int64),
        "UInt32Value" => ValueType::Wrapper(Scalar::Uint32),
        "UInt64Value" => ValueType::Wrapper(Scalar::Uint64),
        "FloatValue" => ValueType::Wrapper(Scalar::Float),
        "DoubleValue" => ValueType::Wrapper(Scalar::Double),
        "StringValue" => ValueType::Wrapper(Scalar::String),
        "BytesValue" => ValueType::Wrapper(Scalar::Bytes),
        "Struct" => ValueType::Json(JsonType::Struct),
        "Value" => ValueType::Json(JsonType::Value),
        "ListValue" => ValueType::Json(JsonType::ListValue),
        _ => return None,
    })
}

/// Arrow's keys of a map are never null.
fn map_entries(entry: DataType) -> DataType {
    match entry {
        DataType::Struct(fields) => DataType::Struct(
            fields.iter().map(|field| field.as_ref().clone().with_nullable(field.name() != "key")).collect(),
        ),
        other => other,
    }
}

impl FieldPlan {
    fn width(&self) -> usize {
        match self.shape {
            Shape::Singular => self.value.width(),
            Shape::Repeated | Shape::Map => 4,
        }
    }

    fn longest_name(&self) -> usize {
        if self.shape == Shape::Singular { self.value.longest_name() } else { 0 }
    }

    fn free_width(&self) -> usize {
        let offset = if self.shape == Shape::Singular { 0 } else { 4 };
        match &self.value {
            ValueType::Message(plan) => offset + plan.free_width,
            other => offset + other.width(),
        }
    }
}

impl ValueType {
    /// The bytes that one value takes in its column, at least. Names of enums count, because the bytes do not have them.
    pub fn width(&self) -> usize {
        match self {
            Self::Scalar(scalar) | Self::Wrapper(scalar) => scalar.width(),
            Self::Enum(plan) => 4 + plan.longest,
            Self::Message(plan) => plan.width,
            Self::Timestamp | Self::Duration => 16,
            Self::Json(_) => 4,
        }
    }

    /// The longest name of an enum that one value adds to a column.
    #[inline]
    pub fn longest_name(&self) -> usize {
        match self {
            Self::Enum(plan) => plan.longest,
            Self::Message(plan) => plan.longest_name,
            _ => 0,
        }
    }

    fn wire_type(&self) -> WireType {
        match self {
            Self::Scalar(scalar) => scalar.wire_type(),
            Self::Enum(_) => WireType::Varint,
            _ => WireType::Length,
        }
    }

    pub fn arrow_type(&self, unsigned: bool) -> DataType {
        match self {
            Self::Scalar(scalar) | Self::Wrapper(scalar) => scalar.arrow_type(unsigned),
            Self::Enum(_) | Self::Json(_) => DataType::Utf8,
            Self::Message(plan) => DataType::Struct(plan.arrow_fields()),
            Self::Timestamp => DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
            Self::Duration => DataType::Duration(TimeUnit::Microsecond),
        }
    }
}

impl Scalar {
    fn new(kind: &Kind) -> Self {
        match kind {
            Kind::Bool => Self::Bool,
            Kind::Int32 => Self::Int32,
            Kind::Sint32 => Self::Sint32,
            Kind::Sfixed32 => Self::Sfixed32,
            Kind::Int64 => Self::Int64,
            Kind::Sint64 => Self::Sint64,
            Kind::Sfixed64 => Self::Sfixed64,
            Kind::Uint32 => Self::Uint32,
            Kind::Fixed32 => Self::Fixed32,
            Kind::Uint64 => Self::Uint64,
            Kind::Fixed64 => Self::Fixed64,
            Kind::Float => Self::Float,
            Kind::Double => Self::Double,
            Kind::String => Self::String,
            Kind::Bytes => Self::Bytes,
            Kind::Message(_) | Kind::Enum(_) => unreachable!("messages and enums are no scalars"),
        }
    }

    fn width(self) -> usize {
        match self {
            Self::Bool => 1,
            Self::Int64 | Self::Sint64 | Self::Sfixed64 | Self::Double => 8,
            Self::Uint64 | Self::Fixed64 => 16, // as a decimal
            _ => 4,
        }
    }

    pub fn wire_type(self) -> WireType {
        match self {
            Self::Sfixed32 | Self::Fixed32 | Self::Float => WireType::Fixed32,
            Self::Sfixed64 | Self::Fixed64 | Self::Double => WireType::Fixed64,
            Self::String | Self::Bytes => WireType::Length,
            _ => WireType::Varint,
        }
    }

    fn arrow_type(self, unsigned: bool) -> DataType {
        match self {
            Self::Bool => DataType::Boolean,
            Self::Int32 | Self::Sint32 | Self::Sfixed32 => DataType::Int32,
            Self::Int64 | Self::Sint64 | Self::Sfixed64 => DataType::Int64,
            Self::Uint32 | Self::Fixed32 if unsigned => DataType::UInt32,
            Self::Uint32 | Self::Fixed32 => DataType::Int64,
            Self::Uint64 | Self::Fixed64 if unsigned => DataType::UInt64,
            Self::Uint64 | Self::Fixed64 => DataType::Decimal128(20, 0),
            Self::Float => DataType::Float32,
            Self::Double => DataType::Float64,
            Self::String => DataType::Utf8,
            Self::Bytes => DataType::Binary,
        }
    }
}

impl EnumPlan {
    fn new(descriptor: &EnumDescriptor) -> Self {
        let mut names = HashMap::new();
        let mut numbers = HashMap::new();
        for value in &descriptor.enum_descriptor_proto().value {
            names.entry(value.number()).or_insert_with(|| value.name().to_owned());
            numbers.insert(value.name().to_owned(), value.number());
        }
        // A number without a name has up to eleven characters.
        let longest = names.values().map(String::len).max().unwrap_or(0).max(11);
        Self { name: descriptor.full_name().to_owned(), names, numbers, longest }
    }
}
