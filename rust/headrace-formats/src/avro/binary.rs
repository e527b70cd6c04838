//! The binary encoding of Avro: numbers, lengths and blocks.

use crate::budget::Budget;
use crate::fault::{Fault, Result};

/// The bytes of a value that are not read yet.
pub struct Cursor<'a> {
    rest: &'a [u8],
    size: usize,
    pub budget: Budget,
}

impl<'a> Cursor<'a> {
    pub fn new(bytes: &'a [u8], budget: Budget) -> Self {
        Self { rest: bytes, size: bytes.len(), budget }
    }

    pub fn remaining(&self) -> usize {
        self.rest.len()
    }

    #[cold]
    pub fn fault(&self, reason: &str) -> Fault {
        Fault::new(format!("invalid Avro at byte {}: {reason}", self.size - self.rest.len()))
    }

    #[inline(always)]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        match self.rest.split_at_checked(count) {
            Some((found, rest)) => {
                self.rest = rest;
                Ok(found)
            }
            None => Err(self.fault(&format!("expected {count} bytes, found {}", self.rest.len()))),
        }
    }

    #[inline(always)]
    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().unwrap_or([0; N]))
    }

    #[inline(always)]
    pub fn long(&mut self) -> Result<i64> {
        // One byte is enough for most lengths and small numbers.
        if let [first @ 0..0x80, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(i64::from(first >> 1) ^ -i64::from(first & 1));
        }
        self.long_number()
    }

    fn long_number(&mut self) -> Result<i64> {
        let mut value = 0_u64;
        for (index, &byte) in self.rest.iter().take(10).enumerate() {
            value |= u64::from(byte & 0x7F) << (7 * index);
            if byte < 0x80 {
                if index == 9 && byte > 1 {
                    break;
                }
                self.rest = &self.rest[index + 1..];
                return Ok((value >> 1) as i64 ^ -((value & 1) as i64));
            }
        }
        Err(self.fault(if self.rest.len() < 10 {
            "a number is cut off"
        } else {
            "a number has more than 64 bits"
        }))
    }

    #[inline(always)]
    pub fn int(&mut self) -> Result<i32> {
        let value = self.long()?;
        i32::try_from(value).map_err(|_| self.fault(&format!("the int {value} has more than 32 bits")))
    }

    pub fn boolean(&mut self) -> Result<bool> {
        match self.array::<1>()? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.fault(&format!("a boolean is 0 or 1, not {other}"))),
        }
    }

    /// Bytes or text, after their length.
    #[inline(always)]
    pub fn bytes(&mut self) -> Result<&'a [u8]> {
        let length = self.long()?;
        match usize::try_from(length) {
            Ok(length) => self.take(length),
            Err(_) => Err(self.fault(&format!("the length {length} is negative"))),
        }
    }

    #[inline(always)]
    pub fn text(&mut self) -> Result<&'a [u8]> {
        let bytes = self.bytes()?;
        match std::str::from_utf8(bytes) {
            Ok(_) => Ok(bytes),
            Err(_) => Err(self.fault("a string is not UTF-8")),
        }
    }

    /// The number of items in the next block of an array or a map; 0 after the last one. A number that cannot be true
    /// is found before memory is used for it.
    pub fn block(&mut self, item: ItemSize) -> Result<usize> {
        let count = self.long()?;
        if count < 0 {
            // The size of the block in bytes, for those who skip it.
            let size = self.long()?;
            if size < 0 || size as u64 > self.rest.len() as u64 {
                return Err(self.fault(&format!("a block has the invalid size {size}")));
            }
        }
        let count = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        if self.rest.len().checked_div(item.written).is_some_and(|most| count > most) {
            return Err(self.fault(&format!("a block cannot have {count} items")));
        }
        self.budget.charge(count.saturating_mul(item.cost)).map_err(|over| self.fault(over.reason()))?;
        Ok(count)
    }
}

/// The size of an item of an array, or of an entry of a map.
#[derive(Clone, Copy)]
pub struct ItemSize {
    /// Its bytes, at least. None are written for null.
    pub written: usize,
    /// What it takes of the record's budget.
    pub cost: usize,
}

pub fn put_long(value: i64, bytes: &mut Vec<u8>) {
    let mut rest = (value << 1 ^ value >> 63) as u64;
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
}

pub fn put_bytes(value: &[u8], bytes: &mut Vec<u8>) {
    put_long(value.len() as i64, bytes);
    bytes.extend_from_slice(value);
}
