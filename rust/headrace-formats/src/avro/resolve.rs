//! From a writer's and a reader's schema to what to do for each record (the specification's *schema resolution*).
//!
//! Two rules go beyond the specification: times and decimals of other units or scales are converted, because reading
//! them as they are would be wrong by powers of ten; and the names of records need not match outside of unions, as in
//! Java.

use arrow_schema::DataType;
use serde_json::Value;

use super::binary::ItemSize;
use super::decode::default_cost;
use super::defaults::{DefaultsBudget, encode_default};
use super::schema::{Enum, Kind, Logical, Record, Result, Schema, SchemaError, error};
use super::skip::Skip;
use super::types::{UnionShape, arrow_type, union_shape};
use crate::budget::width;

/// How to read a writer's value into a column of the reader's type.
pub enum Read {
    /// Nothing is written. The value is null.
    Null,
    Boolean,
    /// Into 32 bits.
    Int,
    /// Into 64 bits. An int is written in the same way, and must fit into 32 bits.
    Long {
        is_int: bool,
    },
    /// A time in another unit: multiplied by `factor`, or divided by it if it is negative.
    Scaled {
        factor: i64,
        is_int: bool,
    },
    /// A time of a day, as `read` reads it, which is not negative and less than `end`.
    TimeOfDay {
        read: Box<Read>,
        end: i64,
    },
    Float,
    Double,
    FloatToDouble,
    /// An int or a long.
    IntegerToFloat,
    IntegerToDouble,
    /// Also strings as bytes.
    Bytes,
    String,
    FixedBytes(usize),
    /// As text with hyphens.
    UuidBytes,
    Duration,
    Decimal {
        fixed: Option<usize>,
        precision: u8,
        factor: i128,
    },
    /// The reader's symbol for each of the writer's, or None.
    Enum {
        symbols: Vec<Option<String>>,
        written: Vec<String>,
    },
    Array {
        item: Box<Read>,
        size: ItemSize,
    },
    Map {
        value: Box<Read>,
        size: ItemSize,
    },
    Record(Box<RecordRead>),
    /// One for each branch of the writer's union, or why the reader cannot have it.
    Union(Vec<Result<Read>>),
    /// A branch of a union that has several: the field of the struct, and how to read it.
    Member {
        index: usize,
        read: Box<Read>,
    },
}

pub struct RecordRead {
    /// In the writer's order.
    pub steps: Vec<Step>,
    /// Fields of the reader that the writer does not have: column, name, a value as Avro, and how to read that.
    pub defaults: Vec<DefaultField>,
}

pub enum Step {
    Field { column: usize, name: String, read: Read },
    Skip { name: String, skip: Skip },
}

pub struct DefaultField {
    pub column: usize,
    pub bytes: Vec<u8>,
    pub read: Read,
    /// What it takes of a record's budget.
    pub cost: usize,
}

impl Read {
    /// What the defaults of a record with one item in each array and map take of its budget.
    pub fn cost_of_defaults(&self) -> usize {
        match self {
            Self::Record(record) => {
                let steps = record.steps.iter().map(|step| match step {
                    Step::Field { read, .. } => read.cost_of_defaults(),
                    Step::Skip { .. } => 0,
                });
                steps.chain(record.defaults.iter().map(|default| default.cost)).sum()
            }
            Self::Union(branches) => branches.iter().flatten().map(Self::cost_of_defaults).max().unwrap_or(0),
            Self::Array { item: read, .. } | Self::Map { value: read, .. } | Self::Member { read, .. } => {
                read.cost_of_defaults()
            }
            _ => 0,
        }
    }
}

/// The error says why no value of the writer can be read.
pub fn resolve(writer: &Schema, reader: &Schema) -> Result<Read> {
    Resolver { defaults: DefaultsBudget::new() }.resolve(writer, reader)
}

struct Resolver {
    defaults: DefaultsBudget,
}

impl Resolver {
    fn resolve(&self, writer: &Schema, reader: &Schema) -> Result<Read> {
        if let Kind::Union(branches) = &writer.kind {
            let found: Vec<_> = branches.iter().map(|branch| self.resolve(branch, reader)).collect();
            // All fail: report the reason of the last one, which is seldom null.
            if let (true, Some(Err(last))) = (found.iter().all(Result::is_err), found.last()) {
                return Err(last.clone());
            }
            return Ok(Read::Union(found));
        }
        if let Kind::Union(branches) = &reader.kind {
            return self.resolve_to_union(writer, reader, branches);
        }
        match (&writer.kind, &reader.kind) {
            (Kind::Null, Kind::Null) => Ok(Read::Null),
            (Kind::Boolean, Kind::Boolean) => Ok(Read::Boolean),
            (Kind::Int | Kind::Long, Kind::Int | Kind::Long) => integers(writer, reader),
            (Kind::Int | Kind::Long, Kind::Float) => Ok(Read::IntegerToFloat),
            (Kind::Int | Kind::Long, Kind::Double) => Ok(Read::IntegerToDouble),
            (Kind::Float, Kind::Float) => Ok(Read::Float),
            (Kind::Float, Kind::Double) => Ok(Read::FloatToDouble),
            (Kind::Double, Kind::Double) => Ok(Read::Double),
            (Kind::Bytes | Kind::String, Kind::Bytes | Kind::String) => bytes(writer, reader, None),
            (Kind::Fixed(written), Kind::Fixed(read)) if written.size == read.size => {
                bytes(writer, reader, Some(written.size))
            }
            (Kind::Array(written), Kind::Array(read)) => {
                let item = Box::new(self.resolve(written, read)?);
                let cost = written.steps() + width(&arrow_type(read));
                Ok(Read::Array { item, size: ItemSize { written: written.min_size(), cost } })
            }
            (Kind::Map(written), Kind::Map(read)) => {
                let value = Box::new(self.resolve(written, read)?);
                // The key has at least a length.
                let cost = written.steps() + width(&DataType::Utf8) + width(&arrow_type(read));
                Ok(Read::Map { value, size: ItemSize { written: 1 + written.min_size(), cost } })
            }
            (Kind::Enum(written), Kind::Enum(read)) => Ok(symbols(written, read)),
            (Kind::Record(written), Kind::Record(read)) => self.records(written, read),
            _ => mismatch(writer, reader),
        }
    }

    fn records(&self, writer: &Record, reader: &Record) -> Result<Read> {
        let mut column_of: Vec<Option<usize>> = vec![None; writer.fields.len()];
        let mut defaults = Vec::new();
        for (column, field) in reader.fields.iter().enumerate() {
            let by_name = |name: &String| writer.fields.iter().position(|written| written.name == *name);
            let found = by_name(&field.name).or_else(|| field.aliases.iter().find_map(by_name));
            match (found, &field.default) {
                (Some(index), _) if column_of[index].is_none() => column_of[index] = Some(column),
                (Some(index), _) => {
                    let name = &writer.fields[index].name;
                    return error(format!("two fields of the reader are the writer's field {name}"));
                }
                (None, Some(default)) => defaults.push(
                    self.default_field(column, &field.schema, default).map_err(|SchemaError(reason)| {
                        SchemaError(format!("the default of the field {}: {reason}", field.name))
                    })?,
                ),
                (None, None) => {
                    return error(format!(
                        "the field {} is missing in the writer's {}, and has no default",
                        field.name, writer.names.full
                    ));
                }
            }
        }
        let steps = writer.fields.iter().zip(column_of).map(|(written, column)| {
            let name = written.name.clone();
            Ok(match column {
                None => Step::Skip { name, skip: Skip::new(&written.schema) },
                Some(column) => {
                    let read = self
                        .resolve(&written.schema, &reader.fields[column].schema)
                        .map_err(|SchemaError(reason)| SchemaError(format!("{name}: {reason}")))?;
                    Step::Field { column, name, read }
                }
            })
        });
        Ok(Read::Record(Box::new(RecordRead { steps: steps.collect::<Result<_>>()?, defaults })))
    }

    fn default_field(&self, column: usize, schema: &Schema, default: &Value) -> Result<DefaultField> {
        let mut bytes = Vec::new();
        encode_default(schema, default, &mut bytes, &self.defaults)?;
        let read = self.resolve(schema, schema)?;
        let cost = default_cost(&read, &bytes, schema, self.defaults.left())?;
        self.defaults.charge(cost)?;
        Ok(DefaultField { column, bytes, read, cost })
    }

    fn resolve_to_union(&self, writer: &Schema, reader: &Schema, branches: &[Schema]) -> Result<Read> {
        let Some((branch, read)) = self.best_branch(writer, branches) else {
            return mismatch(writer, reader);
        };
        match union_shape(branches) {
            _ if matches!(writer.kind, Kind::Null) => Ok(Read::Null),
            UnionShape::Null => mismatch(writer, reader),
            UnionShape::Nullable(_) => read,
            UnionShape::Widened(wide) => self.resolve(writer, &wide),
            UnionShape::Members(members) => {
                match members.iter().position(|member| std::ptr::eq(*member, branch)) {
                    Some(index) => Ok(Read::Member { index, read: Box::new(read?) }),
                    None => mismatch(writer, reader),
                }
            }
        }
    }

    /// The branch for a writer's value, and how to read it: of the same type and name, or of the same type, or one that the
    /// type can be promoted to. Nothing is resolved twice: in nested unions, that would double the time with each level.
    fn best_branch<'a>(&self, writer: &Schema, branches: &'a [Schema]) -> Option<(&'a Schema, Result<Read>)> {
        let is_same_type =
            |branch: &&Schema| std::mem::discriminant(&branch.kind) == std::mem::discriminant(&writer.kind);
        let readable = |branch: &'a Schema| Some((branch, Ok(self.resolve(writer, branch).ok()?)));
        let Some(names) = writer.names() else {
            let same = branches.iter().filter(is_same_type).find_map(readable);
            return same
                .or_else(|| branches.iter().filter(|branch| !is_same_type(branch)).find_map(readable));
        };
        let named = |matches: &dyn Fn(&super::schema::Names) -> bool| {
            branches.iter().filter(is_same_type).find(|branch| branch.names().is_some_and(matches))
        };
        named(&|other| other.full == names.full)
            .or_else(|| named(&|other| other.simple() == names.simple()))
            .or_else(|| named(&|other| other.aliases.contains(&names.full)))
            .map(|branch| (branch, self.resolve(writer, branch)))
            .or_else(|| branches.iter().filter(is_same_type).find_map(readable))
    }
}

fn mismatch<T>(writer: &Schema, reader: &Schema) -> Result<T> {
    error(format!("the writer's {} cannot be read as {}", writer.title(), reader.title()))
}

fn integers(writer: &Schema, reader: &Schema) -> Result<Read> {
    let read = Box::new(plain_integers(writer, reader)?);
    Ok(match reader.logical {
        Some(Logical::Time(per_second)) => Read::TimeOfDay { read, end: 86_400 * per_second },
        _ => *read,
    })
}

fn plain_integers(writer: &Schema, reader: &Schema) -> Result<Read> {
    let is_int = matches!(writer.kind, Kind::Int);
    let to_int = matches!(reader.kind, Kind::Int);
    let times = |schema: &Schema| match schema.logical {
        Some(Logical::Time(per_second)) => Some((per_second, 0)),
        Some(Logical::Timestamp { per_second, .. }) => Some((per_second, 1)),
        _ => None,
    };
    if let (Some((written, a)), Some((read, b))) = (times(writer), times(reader))
        && a == b
        && written != read
    {
        let factor = if read > written { read / written } else { -(written / read) };
        return Ok(Read::Scaled { factor, is_int });
    }
    match (is_int, to_int) {
        (true, true) => Ok(Read::Int),
        (_, false) => Ok(Read::Long { is_int }),
        (false, true) => mismatch(writer, reader),
    }
}

fn bytes(writer: &Schema, reader: &Schema, fixed: Option<usize>) -> Result<Read> {
    let scale_of = |schema: &Schema| match schema.logical {
        Some(Logical::Decimal { scale, .. }) => Some(u64::from(scale)),
        Some(Logical::LargeDecimal { scale }) => Some(scale),
        _ => None,
    };
    let (written, read) = (scale_of(writer), scale_of(reader));
    // Bytes that are no decimal are one of the reader's scale.
    let zeros = match (written, read) {
        (Some(written), Some(read)) => read.checked_sub(written),
        _ => Some(0),
    };
    let other_scale = |limit: &str| {
        let (written, read) = (written.unwrap_or(0), read.unwrap_or(0));
        error(format!("decimals with scale {written} cannot be read with scale {read}{limit}"))
    };
    match reader.logical {
        Some(Logical::Decimal { precision, .. }) => match zeros {
            Some(zeros @ 0..=38) => Ok(Read::Decimal { fixed, precision, factor: 10_i128.pow(zeros as u32) }),
            _ => other_scale(""),
        },
        Some(Logical::LargeDecimal { .. }) if zeros != Some(0) => {
            other_scale(", because its column has the bytes of more than 38 digits")
        }
        Some(Logical::Uuid) if fixed.is_some() => Ok(Read::UuidBytes),
        Some(Logical::Duration) => Ok(Read::Duration),
        _ => Ok(match (fixed, &reader.kind) {
            (Some(size), _) => Read::FixedBytes(size),
            (None, Kind::String) => Read::String,
            (None, _) => Read::Bytes,
        }),
    }
}

fn symbols(writer: &Enum, reader: &Enum) -> Read {
    let read = |symbol: &String| {
        if reader.symbols.contains(symbol) { Some(symbol.clone()) } else { reader.default.clone() }
    };
    Read::Enum { symbols: writer.symbols.iter().map(read).collect(), written: writer.symbols.clone() }
}
