//! From bytes to columns.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::{Array, BinaryArray};
use arrow_schema::{ArrowError, DataType, TimeUnit};

use super::decimal::{parse_decimal, parse_quoted};
use super::plan::{ItemNode, Node, StructNode};
use super::scan::{Cursor, Number, unescape};
use crate::base64;
use crate::budget::{Budget, free_width, width};
use crate::column::{ByteValues, Column, MapValues, Values};
use crate::fault::{Fault, Result};
use crate::framing::Framing;
use crate::rows::{Decoded, decode_rows};
use crate::time::{in_units, parse_date, parse_time, parse_timestamp, per_second};
use crate::zone::{WrittenZone, Zone, ZoneDatabase};

/// Reads JSON as columns of one type.
pub struct Decoder {
    data_type: DataType,
    node: Node,
    framing: Framing,
    free_width: usize,
    zones: Zones,
}

/// How to read timestamps that are instants.
pub struct Zones {
    /// Of a timestamp without a zone.
    pub default: Arc<Zone>,
    /// For timestamps that name a zone.
    pub database: Arc<ZoneDatabase>,
}

impl Default for Zones {
    /// UTC, and no zones with a name.
    fn default() -> Self {
        Self { default: Arc::new(Zone::fixed(0)), database: Arc::default() }
    }
}

impl Decoder {
    /// The error names a type that cannot be read from JSON. The schema ids of a framing are skipped: the text says
    /// everything.
    pub fn new(data_type: &DataType, framing: Framing, zones: Zones) -> Result<Self, ArrowError> {
        let (node, free_width) = (Node::new(data_type)?, free_width(data_type));
        Ok(Self { data_type: data_type.clone(), node, framing, free_width, zones })
    }

    pub fn decode(&self, cells: &BinaryArray) -> Result<Decoded, ArrowError> {
        // Strings begin and end with ASCII. So if all records together are UTF-8, so is every complete string.
        let is_utf8 = std::str::from_utf8(used_bytes(cells)).is_ok();
        let mut scratch = Vec::new();
        decode_rows(cells, &self.data_type, move |bytes, column| {
            let (_, bytes) = self.framing.split(bytes)?;
            if !is_utf8 {
                check_utf8(bytes)?;
            }
            let budget = Budget::of(bytes, self.free_width);
            let mut reader =
                Reader { cursor: Cursor::new(bytes), budget, zones: &self.zones, scratch: &mut scratch };
            reader.value(&self.node, column)?;
            reader.cursor.end()
        })
    }
}

/// The bytes of all rows, also of nulls.
fn used_bytes(cells: &BinaryArray) -> &[u8] {
    let offsets = cells.value_offsets();
    &cells.value_data()[offsets[0] as usize..offsets[cells.len()] as usize]
}

fn check_utf8(bytes: &[u8]) -> Result<()> {
    match std::str::from_utf8(bytes) {
        Ok(_) => Ok(()),
        Err(error) => {
            Err(Fault::new(format!("invalid JSON at byte {}: the text is not UTF-8", error.valid_up_to())))
        }
    }
}

struct Reader<'a, 's> {
    cursor: Cursor<'a>,
    budget: Budget,
    zones: &'s Zones,
    /// The text of a string with escapes.
    scratch: &'s mut Vec<u8>,
}

/// A bug: a column does not have the values of its node.
#[cold]
fn wrong_column() -> Fault {
    Fault::new("internal error: the column has another type")
}

impl<'a> Reader<'a, '_> {
    /// Reads one value and appends it.
    #[inline]
    fn value(&mut self, node: &Node, column: &mut Column) -> Result<()> {
        self.cursor.skip_space();
        if self.cursor.peek() == Some(b'n') && self.cursor.take_text(b"null") {
            column.push_null();
            return Ok(());
        }
        let before = column.len();
        match (node, &mut column.values) {
            (Node::Float64, Values::Float64(values)) => values.push(self.float()?),
            (Node::Text, Values::Bytes(values)) => self.text(values)?,
            (Node::Int8, Values::Int8(values)) => values.push(self.integer("8 bits")?),
            (Node::Int16, Values::Int16(values)) => values.push(self.integer("16 bits")?),
            (Node::Int32, Values::Int32(values)) => values.push(self.integer("32 bits")?),
            (Node::Int64, Values::Int64(values)) => values.push(self.integer("64 bits")?),
            (Node::UInt8, Values::UInt8(values)) => values.push(self.integer("8 bits without a sign")?),
            (Node::UInt16, Values::UInt16(values)) => values.push(self.integer("16 bits without a sign")?),
            (Node::UInt32, Values::UInt32(values)) => values.push(self.integer("32 bits without a sign")?),
            (Node::UInt64, Values::UInt64(values)) => values.push(self.integer("64 bits without a sign")?),
            (Node::Float32, Values::Float32(values)) => values.push(self.float32()?),
            (Node::Boolean, Values::Boolean(values)) => values.append(self.boolean()?),
            (Node::Decimal { precision, scale }, Values::Decimal128(values)) => {
                values.push(self.decimal(*precision, *scale)?);
            }
            (Node::Timestamp { unit, has_zone }, Values::Int64(values)) => {
                values.push(self.timestamp(*unit, *has_zone)?);
            }
            (Node::Date32, Values::Int32(values)) => values.push(self.date()?),
            (Node::Date64, Values::Int64(values)) => values.push(i64::from(self.date()?) * 86_400_000),
            (Node::Time32(unit), Values::Int32(values)) => values.push(self.time(*unit)? as i32),
            (Node::Time64(unit), Values::Int64(values)) => values.push(self.time(*unit)?),
            (Node::Binary, Values::Bytes(values)) => {
                let text = self.plain_string("a string with base64")?;
                base64::decode(text, values.buffer()).ok_or_else(invalid_base64)?;
                values.end_value()?;
            }
            (Node::FixedSizeBinary(width), Values::FixedSizeBinary { data, .. }) => {
                let text = self.plain_string("a string with base64")?;
                let begin = data.len();
                base64::decode(text, data).ok_or_else(invalid_base64)?;
                let found = data.len() - begin;
                if found != *width {
                    return Err(Fault::new(format!("expected {width} bytes, found {found}")));
                }
            }
            (Node::Struct(fields), Values::Struct(children)) => self.object(fields, children, before)?,
            (Node::List(item), Values::List(lists)) => {
                self.array(item, &mut lists.item)?;
                lists.end_list()?;
            }
            (Node::Map(value), Values::Map(maps)) => {
                self.map(value, maps)?;
                maps.end_map()?;
            }
            (Node::Null, Values::Null) => return Err(self.cursor.mismatch("null")),
            _ => return Err(wrong_column()),
        }
        column.end_value();
        Ok(())
    }

    /// `before` is the number of objects before this one. Every child has as many values, or one more after its field.
    fn object(&mut self, node: &StructNode, children: &mut [Column], before: usize) -> Result<()> {
        if !self.cursor.take(b'{') {
            return Err(self.cursor.mismatch("an object"));
        }
        let fields = &node.fields[..];
        let (mut next, mut in_order) = (0, true);
        if !self.cursor.take(b'}') {
            loop {
                self.cursor.skip_space();
                let index = match fields.get(next) {
                    Some(field) if self.cursor.take_text(&field.quoted) => Some(next),
                    _ => {
                        in_order = false;
                        let name = self.name()?;
                        node.find(name)
                    }
                };
                self.cursor.colon()?;
                match index {
                    Some(index) => {
                        let (field, child) = (&fields[index], &mut children[index]);
                        if child.len() > before {
                            // The field occurs again.
                            self.budget.charge(width(child.data_type()))?;
                            child.truncate(before);
                        }
                        self.value(&field.node, child).map_err(|fault| fault.in_field(&field.name))?;
                        next = index + 1;
                    }
                    None => self.cursor.skip_value()?,
                }
                if !self.cursor.comma(b'}')? {
                    break;
                }
            }
        }
        if !in_order || next != fields.len() {
            for child in children.iter_mut().filter(|child| child.len() == before) {
                child.push_null();
            }
        }
        Ok(())
    }

    /// The name of a field, without quotes and escapes.
    fn name(&mut self) -> Result<&[u8]> {
        if !self.cursor.is_at_string() {
            return Err(self.cursor.invalid("a name in quotes"));
        }
        let quoted = self.cursor.string()?;
        if !quoted.has_escapes {
            return Ok(quoted.raw);
        }
        self.scratch.clear();
        unescape(quoted.raw, self.scratch)?;
        Ok(self.scratch)
    }

    fn array(&mut self, item: &ItemNode, items: &mut Column) -> Result<()> {
        if !self.cursor.take(b'[') {
            return Err(self.cursor.mismatch("an array"));
        }
        if self.cursor.take(b']') {
            return Ok(());
        }
        let mut index = 0;
        loop {
            self.budget.charge(item.width)?;
            self.value(&item.node, items).map_err(|fault| fault.in_item(index))?;
            index += 1;
            if !self.cursor.comma(b']')? {
                return Ok(());
            }
        }
    }

    fn map(&mut self, value: &ItemNode, maps: &mut MapValues) -> Result<()> {
        let begin = self.cursor.position();
        let first = maps.first_entry();
        self.map_entries(value, maps, None)?;
        if let Some(mut counts) = repeated_keys(maps) {
            // Once more, without the entries that a later one replaces.
            self.cursor.rewind(begin);
            maps.keys.truncate(first);
            maps.values.truncate(first);
            self.map_entries(value, maps, Some(&mut counts))?;
        }
        Ok(())
    }

    /// Appends the entries. `counts` says how often each key occurs: only the last entry of a key is appended then.
    fn map_entries(
        &mut self,
        value: &ItemNode,
        maps: &mut MapValues,
        mut counts: Option<&mut HashMap<Vec<u8>, usize>>,
    ) -> Result<()> {
        if !self.cursor.take(b'{') {
            return Err(self.cursor.mismatch("an object"));
        }
        if self.cursor.take(b'}') {
            return Ok(());
        }
        loop {
            self.cursor.skip_space();
            let Values::Bytes(keys) = &mut maps.keys.values else { return Err(wrong_column()) };
            let name = self.name()?;
            let mut is_replaced = false;
            if let Some(count) = counts.as_mut().and_then(|counts| counts.get_mut(name)) {
                *count -= 1;
                is_replaced = *count > 0;
            }
            if is_replaced {
                self.cursor.colon()?;
                self.cursor.skip_value()?;
            } else {
                keys.push(name)?;
                maps.keys.end_value();
                self.budget.charge(value.width)?;
                self.cursor.colon()?;
                self.value(&value.node, &mut maps.values)
                    .map_err(|fault| fault.in_field(&last_key(&maps.keys)))?;
            }
            if !self.cursor.comma(b'}')? {
                return Ok(());
            }
        }
    }

    #[inline]
    fn text(&mut self, values: &mut ByteValues) -> Result<()> {
        if !self.cursor.is_at_string() {
            let begin = self.cursor.position();
            self.cursor.skip_value()?;
            return values.push(self.cursor.since(begin));
        }
        let quoted = self.cursor.string()?;
        if !quoted.has_escapes {
            return values.push(quoted.raw);
        }
        unescape(quoted.raw, values.buffer())?;
        values.end_value()
    }

    /// A string as it is, or without its escapes.
    #[inline]
    fn plain_string(&mut self, expected: &str) -> Result<&[u8]> {
        if !self.cursor.is_at_string() {
            return Err(self.cursor.mismatch(expected));
        }
        self.name()
    }

    fn boolean(&mut self) -> Result<bool> {
        if self.cursor.take_text(b"true") {
            Ok(true)
        } else if self.cursor.take_text(b"false") {
            Ok(false)
        } else {
            Err(self.cursor.mismatch("true or false"))
        }
    }

    #[inline]
    fn integer<T: TryFrom<i128>>(&mut self, size: &str) -> Result<T> {
        let Some(b'-' | b'0'..=b'9') = self.cursor.peek() else {
            return Err(self.cursor.mismatch("an integer"));
        };
        let number = self.cursor.number()?;
        if !number.is_integer {
            return Err(Fault::new(format!("expected an integer, found {}", shown(&number))));
        }
        let value = i128::from(number.mantissa);
        // Twenty digits may fit into 64 bits without a sign. Such numbers are rare.
        let value =
            if number.is_exact { Some(value) } else { parse_decimal(number.text, 38, 0).map(i128::abs) };
        value
            .and_then(|value| T::try_from(if number.is_negative { -value } else { value }).ok())
            .ok_or_else(|| Fault::new(format!("{} does not fit into {size}", shown(&number))))
    }

    #[inline]
    fn float(&mut self) -> Result<f64> {
        match self.cursor.peek() {
            Some(b'0'..=b'9') => Ok(float_of(&self.cursor.number()?)),
            Some(b'-' | b'+' | b'N' | b'I') => match self.cursor.non_finite() {
                Some(value) => Ok(value),
                None if self.cursor.peek() == Some(b'-') => Ok(float_of(&self.cursor.number()?)),
                None => Err(self.cursor.mismatch("a number")),
            },
            Some(b'"' | b'\'') => self.quoted_float(),
            _ => Err(self.cursor.mismatch("a number")),
        }
    }

    fn quoted_float(&mut self) -> Result<f64> {
        let begin = self.cursor.position();
        match self.name()? {
            b"NaN" => Ok(f64::NAN),
            b"Infinity" | b"+Infinity" | b"INF" | b"+INF" => Ok(f64::INFINITY),
            b"-Infinity" | b"-INF" => Ok(f64::NEG_INFINITY),
            _ => {
                self.cursor.rewind(begin);
                Err(self.cursor.mismatch("a number"))
            }
        }
    }

    fn float32(&mut self) -> Result<f32> {
        let begin = self.cursor.position();
        let value = self.float()?;
        // Rounded once, from the text: twice, by way of 64 bits, may give another number.
        let text = std::str::from_utf8(self.cursor.since(begin)).ok();
        Ok(text
            .and_then(|text| text.parse().ok())
            .filter(|_| value.is_finite() && value != 0.0)
            .unwrap_or(value as f32))
    }

    fn decimal(&mut self, precision: u8, scale: i8) -> Result<i128> {
        let found: &[u8] = match self.cursor.peek() {
            Some(b'-' | b'0'..=b'9') => self.cursor.number()?.text,
            Some(b'"' | b'\'') => return self.quoted_decimal(precision, scale),
            _ => return Err(self.cursor.mismatch("a number")),
        };
        parse_decimal(found, precision, scale).ok_or_else(|| misfit(found, precision, scale))
    }

    fn quoted_decimal(&mut self, precision: u8, scale: i8) -> Result<i128> {
        let text = self.name()?;
        let Some(number) = parse_quoted(text) else {
            let shown = abbreviated(text);
            return Err(Fault::new(format!("expected a number, found the string {shown}")));
        };
        parse_decimal(&number, precision, scale).ok_or_else(|| misfit(text, precision, scale))
    }

    fn timestamp(&mut self, unit: TimeUnit, has_zone: bool) -> Result<i64> {
        let zones = self.zones;
        let text = self.plain_string("a string with a timestamp")?;
        let Some(written) = parse_timestamp(text) else {
            return Err(Fault::new(format!("{} is not a timestamp in ISO 8601", abbreviated(text))));
        };
        let seconds = match written.zone {
            _ if !has_zone => written.seconds,
            None => zones.default.to_utc(written.seconds),
            Some(WrittenZone::Offset(offset)) => written.seconds - i64::from(offset),
            Some(WrittenZone::Name(name)) => match zones.database.find(name) {
                Some(zone) => zone.to_utc(written.seconds),
                None => {
                    let shown = abbreviated(text);
                    return Err(Fault::new(format!("{shown} has the time zone {name:?}, which is unknown")));
                }
            },
        };
        if written.zone.is_some() && !has_zone {
            let reason = "has a time zone, and the timestamps of this column have none";
            return Err(Fault::new(format!("{} {reason}", abbreviated(text))));
        }
        in_units(seconds, written.nanoseconds, unit)
            .ok_or_else(|| Fault::new(format!("{} is out of range of the timestamp", abbreviated(text))))
    }

    fn date(&mut self) -> Result<i32> {
        let text = self.plain_string("a string with a date")?;
        parse_date(text)
            .ok_or_else(|| Fault::new(format!("{} is not a date as 2026-03-02", abbreviated(text))))
    }

    fn time(&mut self, unit: TimeUnit) -> Result<i64> {
        let text = self.plain_string("a string with a time")?;
        let (seconds, nanoseconds) = parse_time(text)
            .ok_or_else(|| Fault::new(format!("{} is not a time as 06:00:00.125", abbreviated(text))))?;
        let factor = per_second(unit);
        Ok(i64::from(seconds) * factor + i64::from(nanoseconds) / (1_000_000_000 / factor))
    }
}

/// How often each key of the map that is being appended occurs, if one occurs more than once.
fn repeated_keys(maps: &MapValues) -> Option<HashMap<Vec<u8>, usize>> {
    maps.repeated_key()?;
    let Values::Bytes(keys) = &maps.keys.values else { return None };
    let mut counts = HashMap::new();
    for entry in maps.first_entry()..maps.keys.len() {
        *counts.entry(keys.get(entry).to_vec()).or_insert(0) += 1;
    }
    Some(counts)
}

fn last_key(keys: &Column) -> String {
    match &keys.values {
        Values::Bytes(values) => String::from_utf8_lossy(values.get(keys.len() - 1)).into_owned(),
        _ => String::new(),
    }
}

#[inline(always)]
fn float_of(number: &Number<'_>) -> f64 {
    if number.is_integer && number.mantissa == 0 && number.is_exact {
        return 0.0; // -0 is an integer, and so is not the negative zero -0.0; as in Spark, and in Python
    }
    const POWERS: [f64; 23] = [
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17,
        1e18, 1e19, 1e20, 1e21, 1e22,
    ];
    // Both are exact as floats, so one operation rounds correctly.
    if number.is_exact && number.mantissa <= 1 << 53 && number.exponent.unsigned_abs() <= 22 {
        let (mantissa, power) = (number.mantissa as f64, POWERS[number.exponent.unsigned_abs() as usize]);
        let value = if number.exponent < 0 { mantissa / power } else { mantissa * power };
        return if number.is_negative { -value } else { value };
    }
    std::str::from_utf8(number.text).ok().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

#[cold]
fn misfit(text: &[u8], precision: u8, scale: i8) -> Fault {
    Fault::new(format!("{} does not fit into decimal({precision},{scale})", abbreviated(text)))
}

#[cold]
fn invalid_base64() -> Fault {
    Fault::new("expected a string with base64")
}

fn shown(number: &Number<'_>) -> String {
    abbreviated(number.text)
}

fn abbreviated(text: &[u8]) -> String {
    const LONGEST: usize = 40;
    let text = String::from_utf8_lossy(text);
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}
