//! The Arrow type of an Avro schema. The types are those that Spark has as well.

use std::sync::Arc;

use arrow_schema::{DataType, Field, Fields, IntervalUnit, TimeUnit};

use super::schema::{Kind, Logical, Schema};

/// How a column represents a union.
pub enum UnionShape<'a> {
    /// All branches are null.
    Null,
    /// One branch besides null: its type, which may be null.
    Nullable(&'a Schema),
    /// int and long: long. float and double: double. As in Spark.
    Widened(Schema),
    /// A struct with a field for each branch but null: member0, member1 and so on, as in Spark. All but one are null.
    Members(Vec<&'a Schema>),
}

pub fn union_shape(branches: &[Schema]) -> UnionShape<'_> {
    let members: Vec<_> = branches.iter().filter(|branch| !matches!(branch.kind, Kind::Null)).collect();
    match members[..] {
        [] => UnionShape::Null,
        [only] => UnionShape::Nullable(only),
        [one, other] => match (&one.kind, &other.kind) {
            _ if one.logical.is_some() || other.logical.is_some() => UnionShape::Members(members),
            (Kind::Int, Kind::Long) | (Kind::Long, Kind::Int) => {
                UnionShape::Widened(Schema::plain(Kind::Long))
            }
            (Kind::Float, Kind::Double) | (Kind::Double, Kind::Float) => {
                UnionShape::Widened(Schema::plain(Kind::Double))
            }
            _ => UnionShape::Members(members),
        },
        _ => UnionShape::Members(members),
    }
}

pub fn unit_of(per_second: i64) -> TimeUnit {
    match per_second {
        1_000 => TimeUnit::Millisecond,
        1_000_000 => TimeUnit::Microsecond,
        _ => TimeUnit::Nanosecond,
    }
}

pub fn arrow_type(schema: &Schema) -> DataType {
    match schema.logical {
        Some(Logical::Decimal { precision, scale }) => return DataType::Decimal128(precision, scale as i8),
        Some(Logical::Uuid) => return DataType::Utf8,
        Some(Logical::Date) => return DataType::Date32,
        Some(Logical::Time(1_000)) => return DataType::Time32(TimeUnit::Millisecond),
        Some(Logical::Time(_)) => return DataType::Time64(TimeUnit::Microsecond),
        Some(Logical::Timestamp { per_second, is_local }) => {
            return DataType::Timestamp(unit_of(per_second), (!is_local).then(|| "UTC".into()));
        }
        Some(Logical::Duration) => return DataType::Interval(IntervalUnit::MonthDayNano),
        Some(Logical::LargeDecimal { .. }) | None => {}
    }
    match &schema.kind {
        Kind::Null => DataType::Null,
        Kind::Boolean => DataType::Boolean,
        Kind::Int => DataType::Int32,
        Kind::Long => DataType::Int64,
        Kind::Float => DataType::Float32,
        Kind::Double => DataType::Float64,
        Kind::Bytes | Kind::Fixed(_) => DataType::Binary,
        Kind::String | Kind::Enum(_) => DataType::Utf8,
        Kind::Array(item) => DataType::List(Arc::new(Field::new("item", arrow_type(item), true))),
        Kind::Map(value) => {
            let fields =
                vec![Field::new("key", DataType::Utf8, false), Field::new("value", arrow_type(value), true)];
            let entries = Field::new("entries", DataType::Struct(fields.into()), false);
            DataType::Map(Arc::new(entries), false)
        }
        Kind::Union(branches) => match union_shape(branches) {
            UnionShape::Null => DataType::Null,
            UnionShape::Nullable(only) => arrow_type(only),
            UnionShape::Widened(wide) => arrow_type(&wide),
            UnionShape::Members(members) => {
                let fields = members.iter().enumerate();
                let fields = fields.map(|(index, each)| (format!("member{index}"), arrow_type(each)));
                DataType::Struct(fields.map(|(name, each)| Field::new(name, each, true)).collect())
            }
        },
        Kind::Record(record) => {
            let fields: Fields = record
                .fields
                .iter()
                .map(|field| Field::new(&field.name, arrow_type(&field.schema), true))
                .collect();
            DataType::Struct(fields)
        }
    }
}
