//! Avro schemas as the specification has them (1.12), parsed from JSON.

use std::collections::HashMap;
use std::sync::Arc;

use serde_json::{Map, Value};

/// Why a schema cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SchemaError(pub String);

pub type Result<T, E = SchemaError> = std::result::Result<T, E>;

pub fn error<T>(reason: impl Into<String>) -> Result<T> {
    Err(SchemaError(reason.into()))
}

/// A schema without references: named types stand where they are used.
#[derive(Debug, Clone)]
pub struct Schema {
    pub kind: Kind,
    /// None also if the logical type is unknown, or does not fit its type: the specification says to ignore it.
    pub logical: Option<Logical>,
}

#[derive(Debug, Clone)]
pub enum Kind {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
    Array(Arc<Schema>),
    Map(Arc<Schema>),
    Union(Arc<[Schema]>),
    Record(Arc<Record>),
    Enum(Arc<Enum>),
    Fixed(Arc<Fixed>),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Logical {
    Decimal {
        precision: u8,
        scale: u8,
    },
    /// More than 38 digits, which no column of decimals has, as in Spark. The column has the bytes.
    LargeDecimal {
        scale: u64,
    },
    Uuid,
    Date,
    /// Units in a second.
    Time(i64),
    Timestamp {
        per_second: i64,
        is_local: bool,
    },
    Duration,
}

#[derive(Debug)]
pub struct Names {
    pub full: String,
    /// With namespaces.
    pub aliases: Vec<String>,
}

#[derive(Debug)]
pub struct Record {
    pub names: Names,
    pub fields: Vec<Field>,
}

#[derive(Debug)]
pub struct Field {
    pub name: String,
    pub aliases: Vec<String>,
    pub schema: Schema,
    pub default: Option<Value>,
}

#[derive(Debug)]
pub struct Enum {
    pub names: Names,
    pub symbols: Vec<String>,
    pub default: Option<String>,
}

#[derive(Debug)]
pub struct Fixed {
    pub names: Names,
    pub size: usize,
}

impl Names {
    pub fn simple(&self) -> &str {
        self.full.rsplit('.').next().unwrap_or_default()
    }
}

impl Schema {
    /// Parses a schema. `references` are the schemas of named types that it uses, each after those that it uses itself.
    pub fn parse(text: &str, references: &[&str]) -> Result<Self> {
        let mut parser = Parser::default();
        for text in references {
            parser.parse(text)?;
        }
        parser.parse(text)
    }

    pub fn plain(kind: Kind) -> Self {
        Self { kind, logical: None }
    }

    pub fn names(&self) -> Option<&Names> {
        match &self.kind {
            Kind::Record(record) => Some(&record.names),
            Kind::Enum(symbols) => Some(&symbols.names),
            Kind::Fixed(fixed) => Some(&fixed.names),
            _ => None,
        }
    }

    /// What a user calls this type.
    pub fn title(&self) -> String {
        let kind = match &self.kind {
            Kind::Null => "null",
            Kind::Boolean => "boolean",
            Kind::Int => "int",
            Kind::Long => "long",
            Kind::Float => "float",
            Kind::Double => "double",
            Kind::Bytes => "bytes",
            Kind::String => "string",
            Kind::Array(_) => "array",
            Kind::Map(_) => "map",
            Kind::Union(branches) => {
                let titles: Vec<_> = branches.iter().map(Self::title).collect();
                return format!("[{}]", titles.join(", "));
            }
            Kind::Record(_) => "record",
            Kind::Enum(_) => "enum",
            Kind::Fixed(_) => "fixed",
        };
        match self.names() {
            Some(names) => format!("{kind} {}", names.full),
            None => kind.to_owned(),
        }
    }

    /// The smallest number of bytes that a value has.
    pub fn min_size(&self) -> usize {
        match &self.kind {
            Kind::Null => 0,
            Kind::Boolean | Kind::Int | Kind::Long | Kind::Bytes | Kind::String => 1,
            Kind::Enum(_) | Kind::Array(_) | Kind::Map(_) => 1,
            Kind::Float => 4,
            Kind::Double => 8,
            Kind::Union(branches) => {
                1_usize.saturating_add(branches.iter().map(Self::min_size).min().unwrap_or(0))
            }
            Kind::Record(record) => {
                record.fields.iter().map(|field| field.schema.min_size()).fold(0, usize::saturating_add)
            }
            Kind::Fixed(fixed) => fixed.size,
        }
    }

    /// How many values a value consists of, at most. Those of arrays and maps are not counted.
    pub fn steps(&self) -> usize {
        match &self.kind {
            Kind::Union(branches) => 1 + branches.iter().map(Self::steps).max().unwrap_or(0),
            Kind::Record(record) => 1 + record.fields.iter().map(|field| field.schema.steps()).sum::<usize>(),
            _ => 1,
        }
    }
}

/// The deepest nesting, and the most values, of a schema in which named types stand where they are used. Types that use
/// others twice can be larger by far than their text.
const MAX_DEPTH: usize = 64;
const MAX_PARTS: usize = 50_000;

#[derive(Default)]
struct Parser {
    /// Named types by full name, with the number of their parts. None while one is being parsed.
    named: HashMap<String, Option<(Schema, usize)>>,
    depth: usize,
    parts: usize,
}

impl Parser {
    fn parse(&mut self, text: &str) -> Result<Schema> {
        let value = match serde_json::from_str(text) {
            Ok(value) => value,
            // The registry returns the names of primitive types with quotes; people leave them out.
            Err(_) if is_word(text.trim()) => Value::String(text.trim().to_owned()),
            Err(problem) => return error(format!("the Avro schema is not valid JSON: {problem}")),
        };
        self.schema(&value, "")
    }

    fn schema(&mut self, value: &Value, namespace: &str) -> Result<Schema> {
        self.parts += 1;
        if self.parts > MAX_PARTS {
            return error(format!("the Avro schema has more than {MAX_PARTS} types"));
        }
        if self.depth >= MAX_DEPTH {
            return error(format!("the Avro schema is nested deeper than {MAX_DEPTH} levels"));
        }
        self.depth += 1;
        let found = match value {
            Value::String(name) => self.by_name(name, namespace),
            Value::Array(branches) => self.union(branches, namespace),
            Value::Object(object) => self.object(object, namespace),
            other => error(format!("expected an Avro schema, found {other}")),
        };
        self.depth -= 1;
        found
    }

    fn by_name(&mut self, name: &str, namespace: &str) -> Result<Schema> {
        if let Some(kind) = primitive(name) {
            return Ok(Schema::plain(kind));
        }
        let full = full_name(name, namespace);
        // A name without a namespace may also be one of the null namespace.
        let found = self.named.get(&full).or_else(|| self.named.get(name));
        match found {
            Some(Some((schema, parts))) => {
                self.parts += parts;
                if self.parts > MAX_PARTS {
                    return error(format!("the Avro schema has more than {MAX_PARTS} types"));
                }
                Ok(schema.clone())
            }
            Some(None) => error(format!(
                "the Avro schema is recursive: {full} contains itself. A column cannot have such a type"
            )),
            None => error(format!("the Avro schema uses the type {name}, which it does not define")),
        }
    }

    fn union(&mut self, branches: &[Value], namespace: &str) -> Result<Schema> {
        if branches.is_empty() {
            return error("the Avro schema has a union without types");
        }
        let mut found: Vec<Schema> = Vec::new();
        for branch in branches {
            let schema = self.schema(branch, namespace)?;
            if matches!(schema.kind, Kind::Union(_)) {
                return error("the Avro schema has a union directly in a union");
            }
            if found.iter().any(|other| is_same_branch(other, &schema)) {
                return error(format!("the Avro schema has a union with two types {}", schema.title()));
            }
            found.push(schema);
        }
        Ok(Schema::plain(Kind::Union(found.into())))
    }

    fn object(&mut self, object: &Map<String, Value>, namespace: &str) -> Result<Schema> {
        let Some(kind) = object.get("type") else { return error("an Avro schema has no type") };
        let Value::String(kind) = kind else {
            // {"type": {"type": "long", …}}
            return self.schema(kind, namespace);
        };
        let kind = match kind.as_str() {
            "array" => {
                let items = object.get("items").ok_or_else(|| SchemaError("an array has no items".into()))?;
                Kind::Array(self.schema(items, namespace)?.into())
            }
            "map" => {
                let values = object.get("values").ok_or_else(|| SchemaError("a map has no values".into()))?;
                Kind::Map(self.schema(values, namespace)?.into())
            }
            "record" | "error" | "enum" | "fixed" => return self.named(kind, object, namespace),
            name => match primitive(name) {
                Some(kind) => kind,
                None => return self.by_name(name, namespace),
            },
        };
        let logical = logical(&kind, object);
        Ok(Schema { kind, logical })
    }

    fn named(&mut self, kind: &str, object: &Map<String, Value>, namespace: &str) -> Result<Schema> {
        let text = |name: &str| object.get(name).and_then(Value::as_str);
        let Some(name) = text("name") else { return error(format!("an Avro {kind} has no name")) };
        let full = match text("namespace") {
            Some(own) if !name.contains('.') => full_name(name, own),
            _ => full_name(name, namespace),
        };
        let namespace = full.rfind('.').map_or("", |dot| &full[..dot]).to_owned();
        if self.named.insert(full.clone(), None).is_some() {
            return error(format!("the Avro schema defines {full} twice"));
        }
        let aliases = strings(object.get("aliases"));
        let aliases = aliases.iter().map(|alias| full_name(alias, &namespace)).collect();
        let names = Names { full: full.clone(), aliases };
        let before = self.parts;
        let kind = match kind {
            "enum" => {
                let symbols = strings(object.get("symbols"));
                let default = text("default").map(str::to_owned);
                if default.as_ref().is_some_and(|symbol| !symbols.contains(symbol)) {
                    return error(format!("the default of the enum {full} is not one of its symbols"));
                }
                Kind::Enum(Arc::new(Enum { names, symbols, default }))
            }
            "fixed" => {
                let size =
                    object.get("size").and_then(Value::as_u64).and_then(|size| i32::try_from(size).ok());
                let Some(size) = size else { return error(format!("the fixed {full} has no valid size")) };
                Kind::Fixed(Arc::new(Fixed { names, size: size as usize }))
            }
            _ => {
                let fields = self.fields(object, &namespace, &full)?;
                Kind::Record(Arc::new(Record { names, fields }))
            }
        };
        let logical = logical(&kind, object);
        let schema = Schema { kind, logical };
        self.named.insert(full, Some((schema.clone(), self.parts - before)));
        Ok(schema)
    }

    fn fields(&mut self, object: &Map<String, Value>, namespace: &str, full: &str) -> Result<Vec<Field>> {
        let Some(Value::Array(fields)) = object.get("fields") else {
            return error(format!("the record {full} has no fields"));
        };
        let mut found: Vec<Field> = Vec::new();
        for field in fields {
            let (Some(name), Some(schema)) = (field.get("name").and_then(Value::as_str), field.get("type"))
            else {
                return error(format!("a field of the record {full} has no name or no type"));
            };
            if found.iter().any(|other| other.name == name) {
                return error(format!("the record {full} has two fields {name}"));
            }
            found.push(Field {
                name: name.to_owned(),
                aliases: strings(field.get("aliases")),
                schema: self.schema(schema, namespace)?,
                default: field.get("default").cloned(),
            });
        }
        Ok(found)
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_lowercase())
}

fn is_same_branch(one: &Schema, other: &Schema) -> bool {
    match (one.names(), other.names()) {
        (Some(one), Some(other)) => one.full == other.full,
        (None, None) => std::mem::discriminant(&one.kind) == std::mem::discriminant(&other.kind),
        _ => false,
    }
}

fn primitive(name: &str) -> Option<Kind> {
    Some(match name {
        "null" => Kind::Null,
        "boolean" => Kind::Boolean,
        "int" => Kind::Int,
        "long" => Kind::Long,
        "float" => Kind::Float,
        "double" => Kind::Double,
        "bytes" => Kind::Bytes,
        "string" => Kind::String,
        _ => return None,
    })
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn strings(value: Option<&Value>) -> Vec<String> {
    let items = value.and_then(Value::as_array).map_or(&[][..], |items| &items[..]);
    items.iter().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn logical(kind: &Kind, object: &Map<String, Value>) -> Option<Logical> {
    let (millis, micros, nanos) = (1_000, 1_000_000, 1_000_000_000);
    let timestamp = |per_second, is_local| Some(Logical::Timestamp { per_second, is_local });
    match (object.get("logicalType")?.as_str()?, kind) {
        ("decimal", Kind::Bytes | Kind::Fixed(_)) => {
            let precision = object.get("precision")?.as_u64()?;
            let scale = object.get("scale").map_or(Some(0), Value::as_u64)?;
            match precision {
                _ if scale > precision => None,
                0 => None,
                1..=38 => Some(Logical::Decimal { precision: precision as u8, scale: scale as u8 }),
                _ => Some(Logical::LargeDecimal { scale }),
            }
        }
        ("uuid", Kind::String) => Some(Logical::Uuid),
        ("uuid", Kind::Fixed(fixed)) if fixed.size == 16 => Some(Logical::Uuid),
        ("date", Kind::Int) => Some(Logical::Date),
        ("time-millis", Kind::Int) => Some(Logical::Time(millis)),
        ("time-micros", Kind::Long) => Some(Logical::Time(micros)),
        ("timestamp-millis", Kind::Long) => timestamp(millis, false),
        ("timestamp-micros", Kind::Long) => timestamp(micros, false),
        ("timestamp-nanos", Kind::Long) => timestamp(nanos, false),
        ("local-timestamp-millis", Kind::Long) => timestamp(millis, true),
        ("local-timestamp-micros", Kind::Long) => timestamp(micros, true),
        ("local-timestamp-nanos", Kind::Long) => timestamp(nanos, true),
        ("duration", Kind::Fixed(fixed)) if fixed.size == 12 => Some(Logical::Duration),
        _ => None,
    }
}
