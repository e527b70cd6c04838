//! The messages of google/protobuf/struct.proto as JSON text, and back.

use std::borrow::Cow;
use std::collections::HashMap;
use std::io::Write;

use serde_json::Value;

use crate::fault::Result;

use super::plan::JsonType;
use super::wire::{MAX_DEPTH, Reader, WireType, fault, put_varint, too_deep};

/// The text of a message without fields.
pub fn empty(kind: JsonType) -> &'static [u8] {
    match kind {
        JsonType::Struct => b"{}",
        JsonType::Value => b"null",
        JsonType::ListValue => b"[]",
    }
}

/// Appends the JSON text of an encoded message, which may have up to `limit` bytes.
pub fn write(kind: JsonType, encoded: &[u8], out: &mut Vec<u8>, limit: usize) -> Result<()> {
    Writer { out, limit }.message(kind, encoded, 0)
}

struct Writer<'a> {
    out: &'a mut Vec<u8>,
    limit: usize,
}

/// The last value of google.protobuf.Value's oneof.
enum Last<'a> {
    Null,
    Number(f64),
    Text(&'a str),
    Bool(bool),
    Message(JsonType, Cow<'a, [u8]>),
}

impl Writer<'_> {
    fn message(&mut self, kind: JsonType, encoded: &[u8], depth: usize) -> Result<()> {
        if depth > MAX_DEPTH {
            return Err(too_deep(0));
        }
        if self.out.len() > self.limit {
            return Err(fault(0, "the JSON text is much longer than the record"));
        }
        let reader = Reader::new(encoded, 0);
        match kind {
            JsonType::Struct => self.object(reader, depth),
            JsonType::Value => self.value(reader, depth),
            JsonType::ListValue => self.array(reader, depth),
        }
    }

    fn object(&mut self, mut reader: Reader<'_>, depth: usize) -> Result<()> {
        let mut entries: Vec<(&str, Cow<'_, [u8]>)> = Vec::new();
        let mut places = HashMap::new();
        while !reader.is_empty() {
            let (1, wire) = reader.tag().and_then(|tag| unknown(tag, &[1], &mut reader))? else { continue };
            expect(wire, WireType::Length, &reader)?;
            let (key, value) = entry(reader.delimited()?)?;
            // The last entry of a key wins, at the place of the first one.
            let place = *places.entry(key).or_insert(entries.len());
            match entries.get_mut(place) {
                Some(known) => known.1 = value,
                None => entries.push((key, value)),
            }
        }
        self.out.push(b'{');
        for (place, (key, value)) in entries.iter().enumerate() {
            if place > 0 {
                self.out.push(b',');
            }
            self.text(key);
            self.out.push(b':');
            self.message(JsonType::Value, value, depth + 1)?;
        }
        self.out.push(b'}');
        Ok(())
    }

    fn array(&mut self, mut reader: Reader<'_>, depth: usize) -> Result<()> {
        self.out.push(b'[');
        let mut first = true;
        while !reader.is_empty() {
            let (1, wire) = reader.tag().and_then(|tag| unknown(tag, &[1], &mut reader))? else { continue };
            expect(wire, WireType::Length, &reader)?;
            if !std::mem::take(&mut first) {
                self.out.push(b',');
            }
            self.message(JsonType::Value, reader.bytes()?, depth + 1)?;
        }
        self.out.push(b']');
        Ok(())
    }

    fn value(&mut self, mut reader: Reader<'_>, depth: usize) -> Result<()> {
        let mut last = Last::Null;
        while !reader.is_empty() {
            let (number, wire) =
                reader.tag().and_then(|tag| unknown(tag, &[1, 2, 3, 4, 5, 6], &mut reader))?;
            let needed = match number {
                0 => continue,
                1 | 4 => WireType::Varint,
                2 => WireType::Fixed64,
                _ => WireType::Length,
            };
            expect(wire, needed, &reader)?;
            last = match number {
                1 => {
                    reader.varint()?;
                    Last::Null
                }
                2 => Last::Number(f64::from_le_bytes(reader.fixed()?)),
                3 => Last::Text(reader.text()?),
                4 => Last::Bool(reader.varint()? != 0),
                _ => {
                    let kind = if number == 5 { JsonType::Struct } else { JsonType::ListValue };
                    merged(last, kind, reader.bytes()?)
                }
            };
        }
        match last {
            Last::Null => self.out.extend_from_slice(b"null"),
            Last::Number(number) => self.number(number)?,
            Last::Text(text) => self.text(text),
            Last::Bool(true) => self.out.extend_from_slice(b"true"),
            Last::Bool(false) => self.out.extend_from_slice(b"false"),
            Last::Message(kind, encoded) => self.message(kind, &encoded, depth + 1)?,
        }
        Ok(())
    }

    fn number(&mut self, number: f64) -> Result<()> {
        if !number.is_finite() {
            return Err(fault(0, format!("JSON has no number {number}")));
        }
        // Whole numbers have no fraction, and zero keeps its sign.
        let whole =
            number.fract() == 0.0 && number.abs() < 9.0e15 && !(number == 0.0 && number.is_sign_negative());
        let written =
            if whole { write!(self.out, "{}", number as i64) } else { write!(self.out, "{number:?}") };
        written.map_err(|error| fault(0, error))
    }

    fn text(&mut self, text: &str) {
        self.out.push(b'"');
        for byte in text.bytes() {
            match byte {
                b'"' => self.out.extend_from_slice(b"\\\""),
                b'\\' => self.out.extend_from_slice(b"\\\\"),
                b'\n' => self.out.extend_from_slice(b"\\n"),
                b'\r' => self.out.extend_from_slice(b"\\r"),
                b'\t' => self.out.extend_from_slice(b"\\t"),
                0..0x20 => self.out.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                _ => self.out.push(byte),
            }
        }
        self.out.push(b'"');
    }
}

/// Passes the tag of a known field on. The others are skipped, and their number is 0.
fn unknown(tag: (u32, WireType), known: &[u32], reader: &mut Reader<'_>) -> Result<(u32, WireType)> {
    if known.contains(&tag.0) {
        return Ok(tag);
    }
    reader.skip(tag.0, tag.1)?;
    Ok((0, tag.1))
}

fn expect(wire: WireType, needed: WireType, reader: &Reader<'_>) -> Result<()> {
    if wire == needed {
        return Ok(());
    }
    Err(fault(reader.offset(), format!("expected {needed}, found {wire}")))
}

/// A second message of the same kind is merged with the first one, which appending does.
fn merged<'a>(last: Last<'a>, kind: JsonType, encoded: &'a [u8]) -> Last<'a> {
    match last {
        Last::Message(before, bytes) if before == kind => {
            let mut bytes = bytes.into_owned();
            bytes.extend_from_slice(encoded);
            Last::Message(kind, Cow::Owned(bytes))
        }
        _ => Last::Message(kind, Cow::Borrowed(encoded)),
    }
}

/// The key and value of an entry of google.protobuf.Struct.
fn entry(mut reader: Reader<'_>) -> Result<(&str, Cow<'_, [u8]>)> {
    let (mut key, mut value) = ("", Cow::Borrowed(&[][..]));
    while !reader.is_empty() {
        let (number, wire) = reader.tag().and_then(|tag| unknown(tag, &[1, 2], &mut reader))?;
        if number == 0 {
            continue;
        }
        expect(wire, WireType::Length, &reader)?;
        if number == 1 {
            key = reader.text()?;
        } else if value.is_empty() {
            value = Cow::Borrowed(reader.bytes()?);
        } else {
            value.to_mut().extend_from_slice(reader.bytes()?);
        }
    }
    Ok((key, value))
}

/// Appends the message of a JSON text.
pub fn read(kind: JsonType, text: &str, out: &mut Vec<u8>) -> std::result::Result<(), String> {
    let value: Value = serde_json::from_str(text).map_err(|error| format!("invalid JSON: {error}"))?;
    match (kind, &value) {
        (JsonType::Value, value) => encode_value(value, out),
        (JsonType::Struct, Value::Object(entries)) => encode_object(entries, out),
        (JsonType::ListValue, Value::Array(items)) => encode_array(items, out),
        (JsonType::Struct, _) => return Err("a Struct is a JSON object".to_owned()),
        (JsonType::ListValue, _) => return Err("a ListValue is a JSON array".to_owned()),
    }
    Ok(())
}

fn encode_object(entries: &serde_json::Map<String, Value>, out: &mut Vec<u8>) {
    for (key, value) in entries {
        delimited(1, out, |out| {
            delimited(1, out, |out| out.extend_from_slice(key.as_bytes()));
            delimited(2, out, |out| encode_value(value, out));
        });
    }
}

fn encode_array(items: &[Value], out: &mut Vec<u8>) {
    for item in items {
        delimited(1, out, |out| encode_value(item, out));
    }
}

fn encode_value(value: &Value, out: &mut Vec<u8>) {
    match value {
        Value::Null => out.extend_from_slice(&[0x08, 0]),
        Value::Number(number) => {
            out.push(0x11);
            out.extend_from_slice(&number.as_f64().unwrap_or(f64::NAN).to_le_bytes());
        }
        Value::String(text) => delimited(3, out, |out| out.extend_from_slice(text.as_bytes())),
        Value::Bool(value) => out.extend_from_slice(&[0x20, u8::from(*value)]),
        Value::Object(entries) => delimited(5, out, |out| encode_object(entries, out)),
        Value::Array(items) => delimited(6, out, |out| encode_array(items, out)),
    }
}

fn delimited(number: u8, out: &mut Vec<u8>, write: impl FnOnce(&mut Vec<u8>)) {
    out.push(number << 3 | 2);
    let mut inner = Vec::new();
    write(&mut inner);
    put_varint(out, inner.len() as u64);
    out.append(&mut inner);
}
