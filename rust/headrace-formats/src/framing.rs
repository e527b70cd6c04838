//! The schema ids that serializers write before a record's key or value.

use std::collections::HashSet;

use arrow_array::{Array, BinaryArray};

use crate::fault::{Fault, Result};

/// How a key or value begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// There is no id: the bytes are the value.
    None,
    /// A zero byte and an id of 4 bytes: Confluent's serializers, and Apicurio's since version 3.
    Id4,
    /// A zero byte and an id of 8 bytes: Apicurio's serializers before version 3.
    Id8,
}

impl Framing {
    /// The number of bytes before the value.
    pub fn size(self) -> usize {
        match self {
            Self::None => 0,
            Self::Id4 => 5,
            Self::Id8 => 9,
        }
    }

    /// The schema id, and the bytes after it. Without framing, the id is 0.
    #[inline]
    pub fn split(self, bytes: &[u8]) -> Result<(i64, &[u8])> {
        match (self, bytes) {
            (Self::None, _) => Ok((0, bytes)),
            (Self::Id4, [0, a, b, c, d, rest @ ..]) => {
                Ok((i64::from(u32::from_be_bytes([*a, *b, *c, *d])), rest))
            }
            (Self::Id8, [0, a, b, c, d, e, f, g, h, rest @ ..]) => {
                Ok((i64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), rest))
            }
            _ => Err(self.refusal(bytes)),
        }
    }

    #[cold]
    fn refusal(self, bytes: &[u8]) -> Fault {
        let size = self.size();
        match bytes.first() {
            Some(0) | None => Fault::new(format!(
                "expected a zero byte and a schema id of {} bytes, found {} bytes",
                size - 1,
                bytes.len()
            )),
            Some(first) => Fault::new(format!(
                "expected a schema id after a zero byte, found the byte 0x{first:02x}: the record was not written by \
                 a serializer of a schema registry"
            )),
        }
    }

    /// Appends the bytes that come before a value.
    pub fn write(self, id: i64, bytes: &mut Vec<u8>) {
        match self {
            Self::None => {}
            Self::Id4 => {
                bytes.push(0);
                bytes.extend_from_slice(&(id as u32).to_be_bytes());
            }
            Self::Id8 => {
                bytes.push(0);
                bytes.extend_from_slice(&id.to_be_bytes());
            }
        }
    }
}

/// The different ids of a column, in the order of appearance. Nulls and rows without an id are left out: decoding
/// reports them.
pub fn schema_ids(cells: &BinaryArray, framing: Framing) -> Vec<i64> {
    let mut found = Vec::new();
    let mut seen = HashSet::new();
    let mut last = None;
    if framing == Framing::None {
        return found;
    }
    for row in 0..cells.len() {
        if cells.is_null(row) {
            continue;
        }
        let Ok((id, _)) = framing.split(cells.value(row)) else { continue };
        // Most records have the id of the record before.
        if last != Some(id) {
            last = Some(id);
            if seen.insert(id) {
                found.push(id);
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_found_once_in_order() {
        let cells = BinaryArray::from_opt_vec(vec![
            Some(b"\0\0\0\0\x07a"),
            Some(b"\0\0\0\0\x03b"),
            None,
            Some(b"\0\0\0\0\x07"),
            Some(b"\0\0\0\0"),
            Some(b"{}"),
        ]);
        assert_eq!(schema_ids(&cells, Framing::Id4), [7, 3]);
        assert_eq!(schema_ids(&cells, Framing::None), [0_i64; 0]);
    }

    #[test]
    fn what_is_written_is_read() {
        for framing in [Framing::Id4, Framing::Id8] {
            let mut bytes = Vec::new();
            framing.write(4_000_000_000, &mut bytes);
            assert_eq!(bytes.len(), framing.size());
            assert_eq!(framing.split(&bytes).unwrap(), (4_000_000_000, &[][..]));
        }
    }
}
