//! An encoder of record batches that can also write invalid fields.

#![allow(dead_code)] // Each test uses only a part of it.

use std::io::Write;

pub mod invariants;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    None = 0,
    Gzip = 1,
    Xerial = 2,
    /// Snappy without the framing; it has the same codec number.
    RawSnappy = 0x102,
    Lz4 = 3,
    Zstd = 4,
}

pub const CODECS: [Codec; 6] =
    [Codec::None, Codec::Gzip, Codec::Xerial, Codec::RawSnappy, Codec::Lz4, Codec::Zstd];

pub const LOG_APPEND_TIME: u16 = 1 << 3;
pub const TRANSACTIONAL: u16 = 1 << 4;
pub const CONTROL: u16 = 1 << 5;

#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Entry {
    pub offset_delta: i32,
    pub timestamp_delta: i64,
    pub key: Option<Vec<u8>>,
    pub value: Option<Vec<u8>>,
    pub headers: Vec<(Vec<u8>, Option<Vec<u8>>)>,
}

impl Entry {
    pub fn at(offset_delta: i32) -> Self {
        Self { offset_delta, value: Some(format!("value-{offset_delta}").into_bytes()), ..Self::default() }
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut fields = vec![0];
        put_varint(&mut fields, self.timestamp_delta);
        put_varint(&mut fields, self.offset_delta.into());
        put_bytes(&mut fields, self.key.as_deref());
        put_bytes(&mut fields, self.value.as_deref());
        put_varint(&mut fields, self.headers.len() as i64);
        for (key, value) in &self.headers {
            put_bytes(&mut fields, Some(key));
            put_bytes(&mut fields, value.as_deref());
        }
        let mut record = Vec::new();
        put_varint(&mut record, fields.len() as i64);
        record.extend(fields);
        record
    }
}

/// A batch to encode. Fields that are not set are derived from the entries.
#[derive(Debug, Clone)]
pub struct Batch {
    pub base_offset: i64,
    pub leader_epoch: i32,
    pub codec: Codec,
    pub attributes: u16,
    pub base_timestamp: i64,
    pub max_timestamp: i64,
    pub producer_id: i64,
    pub entries: Vec<Entry>,
    pub last_offset_delta: Option<i32>,
    pub count: Option<i32>,
    /// The body as it is sent, instead of the encoded entries.
    pub body: Option<Vec<u8>>,
}

impl Batch {
    pub fn new(base_offset: i64, entries: Vec<Entry>) -> Self {
        Self {
            base_offset,
            leader_epoch: 5,
            codec: Codec::None,
            attributes: 0,
            base_timestamp: 1_000,
            max_timestamp: 9_000,
            producer_id: -1,
            entries,
            last_offset_delta: None,
            count: None,
            body: None,
        }
    }

    /// `count` records without gaps.
    pub fn of(base_offset: i64, count: i32) -> Self {
        Self::new(base_offset, (0..count).map(Entry::at).collect())
    }

    pub fn codec(self, codec: Codec) -> Self {
        Self { codec, ..self }
    }

    pub fn attributes(self, attributes: u16) -> Self {
        Self { attributes, ..self }
    }

    pub fn transactional(self, producer_id: i64) -> Self {
        Self { producer_id, ..self.attributes(TRANSACTIONAL) }
    }

    pub fn last_offset_delta(self, delta: i32) -> Self {
        Self { last_offset_delta: Some(delta), ..self }
    }

    pub fn count(self, count: i32) -> Self {
        Self { count: Some(count), ..self }
    }

    pub fn body(self, body: Vec<u8>) -> Self {
        Self { body: Some(body), ..self }
    }

    pub fn encode(&self) -> Vec<u8> {
        let records: Vec<u8> = self.entries.iter().flat_map(Entry::encode).collect();
        let body = self.body.clone().unwrap_or_else(|| compress(self.codec, &records));
        let last_delta = self.entries.last().map_or(0, |entry| entry.offset_delta);
        let mut checked = Vec::new();
        checked.extend((self.codec as u16 & 7 | self.attributes).to_be_bytes());
        checked.extend(self.last_offset_delta.unwrap_or(last_delta).to_be_bytes());
        checked.extend(self.base_timestamp.to_be_bytes());
        checked.extend(self.max_timestamp.to_be_bytes());
        checked.extend(self.producer_id.to_be_bytes());
        checked.extend(0i16.to_be_bytes());
        checked.extend(0i32.to_be_bytes());
        checked.extend(self.count.unwrap_or(self.entries.len() as i32).to_be_bytes());
        checked.extend(body);

        let mut batch = Vec::new();
        batch.extend(self.base_offset.to_be_bytes());
        batch.extend((checked.len() as i32 + 9).to_be_bytes());
        batch.extend(self.leader_epoch.to_be_bytes());
        batch.push(2);
        batch.extend(crc32c(&checked).to_be_bytes());
        batch.extend(checked);
        batch
    }
}

/// The control batch that ends a transaction.
pub fn marker(base_offset: i64, producer_id: i64, commit: bool) -> Vec<u8> {
    let entry =
        Entry { key: Some(vec![0, 0, 0, commit.into()]), value: Some(vec![0; 6]), ..Entry::default() };
    Batch { producer_id, ..Batch::new(base_offset, vec![entry]).attributes(TRANSACTIONAL | CONTROL) }.encode()
}

/// Corrects the checksum of the first batch in `data` after a change.
pub fn repair_checksum(data: &mut [u8]) {
    let length = i32::from_be_bytes(data[8..12].try_into().unwrap());
    let end = (12 + length.max(9) as usize).min(data.len());
    let checksum = crc32c(&data[21..end]);
    data[17..21].copy_from_slice(&checksum.to_be_bytes());
}

pub fn put_varint(out: &mut Vec<u8>, value: i64) {
    let mut raw = ((value << 1) ^ (value >> 63)).cast_unsigned();
    while raw >= 0x80 {
        out.push((raw & 0x7f) as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

fn put_bytes(out: &mut Vec<u8>, bytes: Option<&[u8]>) {
    put_varint(out, bytes.map_or(-1, |bytes| bytes.len() as i64));
    out.extend(bytes.unwrap_or_default());
}

pub fn compress(codec: Codec, raw: &[u8]) -> Vec<u8> {
    match codec {
        Codec::None => raw.to_vec(),
        Codec::Gzip => {
            let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
        Codec::RawSnappy => snap::raw::Encoder::new().compress_vec(raw).unwrap(),
        Codec::Xerial => {
            let mut out = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01".to_vec();
            for chunk in raw.chunks(32 << 10) {
                let block = compress(Codec::RawSnappy, chunk);
                out.extend((block.len() as i32).to_be_bytes());
                out.extend(block);
            }
            out
        }
        Codec::Lz4 => {
            let mut encoder = lz4_flex::frame::FrameEncoder::new(Vec::new());
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
        Codec::Zstd => {
            // A frame without the content size, as Java writes it.
            let mut encoder = zstd::stream::write::Encoder::new(Vec::new(), 3).unwrap();
            encoder.write_all(raw).unwrap();
            encoder.finish().unwrap()
        }
    }
}

/// Bit by bit, so that it is independent of the implementation under test.
pub fn crc32c(data: &[u8]) -> u32 {
    !data.iter().fold(!0u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| crc >> 1 ^ (0x82f6_3b78 & (crc & 1).wrapping_neg()))
    })
}
