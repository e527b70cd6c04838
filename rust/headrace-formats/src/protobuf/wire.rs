//! Protobuf's wire format: tags, varints, lengths, and skipping what the plan does not know.
//!
//! A `Reader` never leaves its range and never allocates. Limits are those of Google's own parsers: a tag and a length
//! have at most five bytes, a varint at most ten, and groups nest at most `MAX_DEPTH` deep.

use std::fmt;

use crate::fault::{Fault, Result};

/// The deepest nesting that is decoded, in messages, groups and JSON values. Google's parsers have the same limit.
pub const MAX_DEPTH: usize = 100;

/// The reason, and the offset in the record's bytes.
#[cold]
pub fn fault(offset: usize, reason: impl fmt::Display) -> Fault {
    Fault::new(format!("{reason} (at byte {offset})"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WireType {
    Varint,
    Fixed64,
    Length,
    StartGroup,
    EndGroup,
    Fixed32,
}

impl WireType {
    /// The lowest three bits of a tag.
    pub fn code(self) -> u64 {
        match self {
            Self::Varint => 0,
            Self::Fixed64 => 1,
            Self::Length => 2,
            Self::StartGroup => 3,
            Self::EndGroup => 4,
            Self::Fixed32 => 5,
        }
    }
}

impl fmt::Display for WireType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Varint => "a varint",
            Self::Fixed64 => "8 bytes",
            Self::Length => "a length and bytes",
            Self::StartGroup => "the start of a group",
            Self::EndGroup => "the end of a group",
            Self::Fixed32 => "4 bytes",
        })
    }
}

/// Reads a range of a record. `at` is the offset in the whole record, which is what faults name.
#[derive(Clone)]
pub struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    /// Reads `data` from `at` to its end.
    pub fn new(data: &'a [u8], at: usize) -> Self {
        Self { data, at }
    }

    #[inline]
    pub fn offset(&self) -> usize {
        self.at
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.at >= self.data.len()
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        &self.data[self.at.min(self.data.len())..]
    }

    #[inline]
    pub fn varint(&mut self) -> Result<u64> {
        match self.data.get(self.at) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(byte))
            }
            _ => self.long_varint(10),
        }
    }

    fn long_varint(&mut self, most: usize) -> Result<u64> {
        let start = self.at;
        let mut value = 0_u64;
        for (place, &byte) in self.data[start.min(self.data.len())..].iter().take(most).enumerate() {
            // The tenth byte has one bit left.
            if place == 9 && byte > 1 {
                return Err(fault(start, "the varint has more than 64 bits"));
            }
            value |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.at = start + place + 1;
                return Ok(value);
            }
        }
        if self.data.len().saturating_sub(start) < most {
            Err(fault(start, "the record ends within a varint"))
        } else {
            Err(fault(start, format!("the varint has more than {most} bytes")))
        }
    }

    /// The number of the next field, and how it is encoded.
    #[inline]
    pub fn tag(&mut self) -> Result<(u32, WireType)> {
        let start = self.at;
        let tag = match self.data.get(start) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                u64::from(byte)
            }
            _ => self.long_varint(5)?,
        };
        let wire_type = match tag & 7 {
            0 => WireType::Varint,
            1 => WireType::Fixed64,
            2 => WireType::Length,
            3 => WireType::StartGroup,
            4 => WireType::EndGroup,
            5 => WireType::Fixed32,
            other => return Err(fault(start, format!("{other} is not a wire type"))),
        };
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 != 0 => Ok((tag >> 3, wire_type)),
            _ => Err(fault(start, format!("{} is not a field number", tag >> 3))),
        }
    }

    #[inline]
    pub fn fixed<const N: usize>(&mut self) -> Result<[u8; N]> {
        match self.data.get(self.at..).and_then(<[u8]>::first_chunk) {
            Some(bytes) => {
                self.at += N;
                Ok(*bytes)
            }
            None => Err(fault(self.at, format!("the record ends within {N} bytes"))),
        }
    }

    /// A length, and a reader of as many bytes.
    #[inline]
    pub fn delimited(&mut self) -> Result<Reader<'a>> {
        let start = self.at;
        let len = match self.data.get(start) {
            Some(&byte) if byte < 0x80 => {
                self.at += 1;
                u64::from(byte)
            }
            _ => self.long_varint(5)?,
        };
        let left = self.data.len() - self.at;
        if len > left as u64 {
            return Err(fault(start, format!("a length of {len}, but {left} bytes are left")));
        }
        let end = self.at + len as usize;
        let inner = Reader { data: &self.data[..end], at: self.at };
        self.at = end;
        Ok(inner)
    }

    #[inline]
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        self.delimited().map(|inner| inner.rest())
    }

    #[inline]
    pub fn text(&mut self) -> Result<&'a str> {
        let inner = self.delimited()?;
        let bytes = inner.rest();
        std::str::from_utf8(bytes)
            .map_err(|error| fault(inner.at + error.valid_up_to(), "the text is not UTF-8"))
    }

    /// Skips the value of a field that the plan does not know. Groups are skipped without recursion.
    pub fn skip(&mut self, number: u32, wire_type: WireType) -> Result<()> {
        let mut open = Vec::new();
        let (mut number, mut wire_type) = (number, wire_type);
        loop {
            match wire_type {
                WireType::Varint => drop(self.varint()?),
                WireType::Fixed64 => drop(self.fixed::<8>()?),
                WireType::Fixed32 => drop(self.fixed::<4>()?),
                WireType::Length => drop(self.bytes()?),
                WireType::StartGroup if open.len() == MAX_DEPTH => return Err(too_deep(self.at)),
                WireType::StartGroup => open.push(number),
                WireType::EndGroup => match open.pop() {
                    Some(started) if started == number => {}
                    _ => return Err(no_group(self.at, number)),
                },
            }
            if open.is_empty() {
                return Ok(());
            }
            if self.is_empty() {
                return Err(fault(self.at, "the record ends within a group"));
            }
            (number, wire_type) = self.tag()?;
        }
    }
}

#[cold]
pub fn too_deep(offset: usize) -> Fault {
    fault(offset, format!("more than {MAX_DEPTH} levels of nesting"))
}

#[cold]
pub fn no_group(offset: usize, number: u32) -> Fault {
    fault(offset, format!("the end of group {number}, which did not start"))
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[inline]
pub fn zigzag(value: u64) -> i64 {
    (value >> 1) as i64 ^ -((value & 1) as i64)
}

#[inline]
pub fn to_zigzag(value: i64) -> u64 {
    ((value << 1) ^ (value >> 63)) as u64
}
