//! Encoded messages to columns, along the plan, without a message in between.

use arrow_array::{Array, BinaryArray};
use arrow_schema::ArrowError;

use crate::budget::Budget;
use crate::column::offset_of;
use crate::fault::{Fault, Result};
use crate::rows::Decoded;

use super::column::{Column, Fixed, Instant, JsonText, ListColumn, StructColumn};
use super::finish;
use super::frame::{Frames, Writers};
use super::json;
use super::plan::{FieldPlan, JsonType, MessagePlan, Scalar, Shape, Slot, ValueType};
use super::wire::{Reader, WireType, fault, no_group, zigzag};

/// What it takes of a record's budget to read a byte of JSON again, because a further part of its message follows. Otherwise
/// the time would grow with the square of the number of parts.
const MERGING: usize = 16;
/// The limits of google.protobuf.Timestamp: the years 1 to 9999.
const TIMESTAMPS: std::ops::RangeInclusive<i64> = -62_135_596_800..=253_402_300_799;
/// The limit of google.protobuf.Duration: about 10,000 years.
const DURATION: i64 = 315_576_000_000;

/// Decodes each value of `cells`. Null values stay null.
pub fn decode(plan: &MessagePlan, cells: &BinaryArray, writers: &Writers) -> Result<Decoded, ArrowError> {
    let mut rows = StructColumn::new(plan);
    let mut errors = Vec::new();
    let mut frames = Frames::new(plan, writers);
    for row in 0..cells.len() {
        if cells.is_null(row) {
            rows.set_null(row);
            continue;
        }
        let cell = cells.value(row);
        let mut record = Record { budget: Budget::of(cell, plan.free_width) };
        rows.begin(row);
        let outcome = check_names(row, plan.longest_name)
            .and_then(|()| frames.open(cell))
            .and_then(|mut reader| record.message(plan, &mut rows, row, &mut reader, None));
        if let Err(fault) = outcome {
            rows.set_null(row);
            errors.push((row, fault.to_string()));
        }
    }
    Ok(Decoded { column: finish::rows(rows, plan, cells.len())?, errors })
}

/// The record that is being decoded.
struct Record {
    budget: Budget,
}

impl Record {
    /// Decodes to the end of `reader`, or of the group with this number.
    fn message(
        &mut self,
        plan: &MessagePlan,
        to: &mut StructColumn,
        row: usize,
        reader: &mut Reader<'_>,
        group: Option<u32>,
    ) -> Result<()> {
        loop {
            if reader.is_empty() {
                if group.is_some() {
                    return Err(fault(reader.offset(), "the record ends within a group"));
                }
                break;
            }
            let start = reader.offset();
            let (number, wire) = reader.tag()?;
            if wire == WireType::EndGroup {
                if group != Some(number) {
                    return Err(no_group(start, number));
                }
                break;
            }
            match plan.slot(number) {
                Slot::Known(slot) => {
                    let field = &plan.fields[slot];
                    if !field.alternatives.is_empty() && to.columns[slot].len() <= row {
                        for other in &field.alternatives {
                            if to.columns[*other].len() > row {
                                to.columns[*other].truncate(row);
                            }
                        }
                    }
                    self.field(field, &mut to.columns[slot], row, reader, wire)
                        .map_err(|fault: Fault| fault.in_field(&field.name))?;
                }
                Slot::Unknown => reader.skip(number, wire)?,
                Slot::TooDeep => {
                    return Err(fault(
                        start,
                        format!(
                            "field {number} of {} is nested deeper than the columns: raise recursion",
                            plan.name
                        ),
                    ));
                }
            }
        }
        for slot in &plan.required {
            if to.columns[*slot].len() <= row {
                let name = &plan.fields[*slot].name;
                return Err(fault(reader.offset(), "the required field is missing").in_field(name));
            }
        }
        Ok(())
    }

    #[inline]
    fn field(
        &mut self,
        field: &FieldPlan,
        column: &mut Column,
        row: usize,
        reader: &mut Reader<'_>,
        wire: WireType,
    ) -> Result<()> {
        match column {
            Column::List(list) => {
                list.open(row);
                if wire == field.wire {
                    self.element(field, list, reader)?;
                } else if wire == WireType::Length && field.wire != WireType::StartGroup {
                    let packed = reader.delimited()?;
                    self.packed(field, list, packed)?;
                } else {
                    return Err(mismatch(field, reader, wire));
                }
                list.close(row);
                Ok(())
            }
            _ if wire == field.wire => self.value(field, column, row, reader),
            _ => Err(mismatch(field, reader, wire)),
        }
    }

    fn element(&mut self, field: &FieldPlan, list: &mut ListColumn, reader: &mut Reader<'_>) -> Result<()> {
        self.charge(field.value.width(), reader)?;
        let row = list.item.len();
        check_names(row, field.value.longest_name())?;
        self.value(field, &mut list.item, row, reader)?;
        if field.shape == Shape::Map
            && let Column::Struct(entry) = &mut list.item
            && let ValueType::Message(plan) = &field.value
        {
            // A key or value that is absent is the default of its type. For messages, that is an empty message.
            for (column, field) in entry.columns.iter_mut().zip(&plan.fields) {
                if column.len() <= row {
                    set_default(column, &field.value, row)?;
                }
            }
        }
        Ok(())
    }

    /// The elements of a packed field: values without tags.
    fn packed(&mut self, field: &FieldPlan, list: &mut ListColumn, mut reader: Reader<'_>) -> Result<()> {
        let (width, longest_name) = (field.value.width(), field.value.longest_name());
        while !reader.is_empty() {
            self.charge(width, &reader)?;
            let row = list.item.len();
            check_names(row, longest_name)?;
            self.value(field, &mut list.item, row, &mut reader)?;
        }
        Ok(())
    }

    #[inline]
    fn value(
        &mut self,
        field: &FieldPlan,
        column: &mut Column,
        row: usize,
        reader: &mut Reader<'_>,
    ) -> Result<()> {
        match (&field.value, column) {
            (ValueType::Scalar(_) | ValueType::Enum(_), column) => plain(column, row, reader),
            (ValueType::Message(plan), Column::Struct(inner)) => {
                inner.begin(row);
                if field.wire == WireType::StartGroup {
                    self.message(plan, inner, row, reader, Some(field.number))
                } else {
                    self.message(plan, inner, row, &mut reader.delimited()?, None)
                }
            }
            (ValueType::Timestamp | ValueType::Duration, Column::Instant(inner)) => {
                instant(inner, &field.value, row, reader.delimited()?)
            }
            (ValueType::Wrapper(scalar), column) => wrapper(field, *scalar, column, row, reader.delimited()?),
            (ValueType::Json(kind), Column::Json(inner)) => self.json(inner, *kind, row, reader.delimited()?),
            _ => unreachable!("Column::new has made a column for the type"),
        }
    }

    fn json(&mut self, to: &mut JsonText, kind: JsonType, row: usize, reader: Reader<'_>) -> Result<()> {
        let merge = to.text.len() > row;
        if !merge {
            to.encoded.clear();
        }
        to.encoded.extend_from_slice(reader.rest());
        if merge {
            self.charge(to.encoded.len().saturating_mul(MERGING), &reader)
                .map_err(|_| fault(reader.offset(), format!("the {kind:?} has too many parts")))?;
        }
        let mut text = Vec::new();
        json::write(kind, &to.encoded, &mut text, self.budget.left())
            .map_err(|reason| fault(reader.offset(), format!("not a {kind:?}: {reason}")))?;
        self.charge(text.len(), &reader)?;
        offset_of(to.text.data.len() + text.len())?;
        to.text.set(row, &text);
        Ok(())
    }

    #[inline]
    fn charge(&mut self, bytes: usize, reader: &Reader<'_>) -> Result<()> {
        self.budget.charge(bytes).map_err(|over| fault(reader.offset(), over.reason()))
    }
}

/// Whether the names of an enum fit into a column up to this row. They are written at the end, when a record cannot be an
/// error any more; so all of them are taken for the longest one.
#[inline]
fn check_names(row: usize, longest: usize) -> Result<()> {
    offset_of((row + 1).saturating_mul(longest)).map(drop)
}

/// One value of a scalar or an enum.
#[inline]
fn plain(column: &mut Column, row: usize, reader: &mut Reader<'_>) -> Result<()> {
    match column {
        Column::Bool(to) => to.set(row, reader.varint()? != 0),
        // Longer varints than the type has bits are cut, as Google's parsers do.
        Column::Int32(to) | Column::Enum(to) => to.set(row, reader.varint()? as i32),
        Column::Sint32(to) => to.set(row, zigzag(reader.varint()? & u64::from(u32::MAX)) as i32),
        Column::Sfixed32(to) => to.set(row, i32::from_le_bytes(reader.fixed()?)),
        Column::Int64(to) => to.set(row, reader.varint()? as i64),
        Column::Sint64(to) => to.set(row, zigzag(reader.varint()?)),
        Column::Sfixed64(to) => to.set(row, i64::from_le_bytes(reader.fixed()?)),
        Column::Uint32(to) => to.set(row, reader.varint()? as u32),
        Column::Fixed32(to) => to.set(row, u32::from_le_bytes(reader.fixed()?)),
        Column::Uint64(to) => to.set(row, reader.varint()?),
        Column::Fixed64(to) => to.set(row, u64::from_le_bytes(reader.fixed()?)),
        Column::Float(to) => to.set(row, f32::from_le_bytes(reader.fixed()?)),
        Column::Double(to) => to.set(row, f64::from_le_bytes(reader.fixed()?)),
        Column::Text(to) => to.set(row, reader.text()?.as_bytes()),
        Column::Binary(to) => to.set(row, reader.bytes()?),
        Column::Instant(_) | Column::Json(_) | Column::Struct(_) | Column::List(_) => {
            unreachable!("messages and lists are decoded by Record")
        }
    }
    Ok(())
}

/// The default of a column that has no value for `row` yet.
fn set_default(column: &mut Column, value: &ValueType, row: usize) -> Result<()> {
    match column {
        Column::Struct(inner) => inner.begin(row),
        Column::Json(inner) => {
            inner.encoded.clear();
            let text = if let ValueType::Json(kind) = value { json::empty(*kind) } else { b"null" };
            offset_of(inner.text.data.len() + text.len())?;
            inner.text.set(row, text);
        }
        Column::Text(inner) | Column::Binary(inner) => inner.set(row, b""),
        Column::Instant(inner) => inner.set(row, Instant::default()),
        Column::Bool(inner) => inner.set(row, false),
        Column::Int32(inner) | Column::Sint32(inner) | Column::Sfixed32(inner) | Column::Enum(inner) => {
            inner.set(row, 0);
        }
        Column::Int64(inner) | Column::Sint64(inner) | Column::Sfixed64(inner) => inner.set(row, 0),
        Column::Uint32(inner) | Column::Fixed32(inner) => inner.set(row, 0),
        Column::Uint64(inner) | Column::Fixed64(inner) => inner.set(row, 0),
        Column::Float(inner) => inner.set(row, 0.0),
        Column::Double(inner) => inner.set(row, 0.0),
        Column::List(_) => unreachable!("a value is no list"),
    }
    Ok(())
}

/// A message whose only field is the value.
fn wrapper(
    field: &FieldPlan,
    scalar: Scalar,
    column: &mut Column,
    row: usize,
    mut reader: Reader<'_>,
) -> Result<()> {
    if column.len() <= row {
        set_default(column, &field.value, row)?;
    }
    while !reader.is_empty() {
        match reader.tag()? {
            (1, wire) if wire == scalar.wire_type() => plain(column, row, &mut reader)?,
            (1, wire) => {
                return Err(fault(reader.offset(), format!("expected {}, found {wire}", scalar.wire_type())));
            }
            (number, wire) => reader.skip(number, wire)?,
        }
    }
    Ok(())
}

/// A google.protobuf.Timestamp or Duration.
fn instant(to: &mut Fixed<Instant>, kind: &ValueType, row: usize, mut reader: Reader<'_>) -> Result<()> {
    let start = reader.offset();
    let value = to.value_mut(row);
    while !reader.is_empty() {
        match reader.tag()? {
            (1, WireType::Varint) => value.seconds = reader.varint()? as i64,
            (2, WireType::Varint) => value.nanos = reader.varint()? as i32,
            (number @ (1 | 2), wire) => {
                return Err(fault(
                    reader.offset(),
                    format!("expected a varint in field {number}, found {wire}"),
                ));
            }
            (number, wire) => reader.skip(number, wire)?,
        }
    }
    let Instant { seconds, nanos } = *value;
    check_time(kind, seconds, nanos).map_err(|reason| fault(start, reason))
}

/// The limits that Google has set. All that is within them is a number of microseconds.
pub fn check_time(kind: &ValueType, seconds: i64, nanos: i32) -> std::result::Result<(), String> {
    let is_timestamp = matches!(kind, ValueType::Timestamp);
    let is_valid = if is_timestamp {
        TIMESTAMPS.contains(&seconds) && (0..1_000_000_000).contains(&nanos)
    } else {
        (-DURATION..=DURATION).contains(&seconds)
            && nanos.unsigned_abs() < 1_000_000_000
            && seconds.signum() * i64::from(nanos.signum()) >= 0
    };
    if is_valid {
        return Ok(());
    }
    let kind = if is_timestamp { "Timestamp" } else { "Duration" };
    Err(format!("seconds {seconds} and nanos {nanos} are not a valid {kind}"))
}

#[cold]
fn mismatch(field: &FieldPlan, reader: &Reader<'_>, wire: WireType) -> Fault {
    fault(reader.offset(), format!("expected {}, found {wire}", field.wire))
}
