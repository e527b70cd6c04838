//! Compression of the records of a batch, in the forms that Java's producer writes.

use std::io::{self, Write};

use crate::error::EncodeError;

/// The size of the blocks in snappy's xerial framing, as in Java.
const XERIAL_BLOCK: usize = 32 * 1024;
const XERIAL_HEADER: &[u8] = b"\x82SNAPPY\0\0\0\0\x01\0\0\0\x01";
/// Below this level, liblz4 uses the fast compressor.
const LOWEST_LZ4_HIGH: u32 = 2;

/// A codec with its level.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed.
    None,
    /// 1 (fast) to 9 (small).
    Gzip(u32),
    /// Blocks in the framing of the xerial library.
    Snappy,
    /// The frame format with independent blocks of 64 KiB. Java's default, level 9.
    Lz4,
    /// The same with the high compressor: 1 to 17, as in Java. Levels above 12 compress like 12.
    Lz4High(u32),
    /// −131072 (fast) to 22 (small).
    Zstd(i32),
}

impl Compression {
    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Gzip(_) => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 | Self::Lz4High(_) => "lz4",
            Self::Zstd(_) => "zstd",
        }
    }
}

/// Compresses batches. It keeps zstd's working memory from batch to batch.
pub struct Compressor {
    compression: Compression,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Compressor {
    /// Creates a compressor. Levels outside of a codec's range are errors when something is compressed.
    pub fn new(compression: Compression) -> Self {
        Self { compression, zstd: None }
    }

    /// The codec's bits in the attributes of a batch.
    pub(crate) fn attributes(&self) -> u16 {
        match self.compression {
            Compression::None => 0,
            Compression::Gzip(_) => 1,
            Compression::Snappy => 2,
            Compression::Lz4 | Compression::Lz4High(_) => 3,
            Compression::Zstd(_) => 4,
        }
    }

    /// Compresses `buffer` except for its first `skipped` bytes, which stay in front.
    pub(crate) fn compress(&mut self, buffer: Vec<u8>, skipped: usize) -> Result<Vec<u8>, EncodeError> {
        if self.compression == Compression::None {
            return Ok(buffer);
        }
        let (head, records) = buffer.split_at(skipped);
        let mut out = Vec::with_capacity(skipped + records.len() / 2);
        out.extend_from_slice(head);
        let failed = |error: io::Error| EncodeError::Compression {
            codec: self.compression.name(),
            reason: error.to_string(),
        };
        match self.compression {
            Compression::None => {}
            Compression::Gzip(level) => {
                let mut encoder = flate2::write::GzEncoder::new(out, flate2::Compression::new(level));
                encoder.write_all(records).map_err(failed)?;
                out = encoder.finish().map_err(failed)?;
            }
            Compression::Snappy => {
                out.extend_from_slice(XERIAL_HEADER);
                let mut encoder = snap::raw::Encoder::new();
                for block in records.chunks(XERIAL_BLOCK) {
                    let at = out.len();
                    out.resize(at + 4 + snap::raw::max_compress_len(block.len()), 0);
                    let written = encoder
                        .compress(block, &mut out[at + 4..])
                        .map_err(|error| failed(io::Error::other(error)))?;
                    out[at..at + 4].copy_from_slice(&(written as i32).to_be_bytes());
                    out.truncate(at + 4 + written);
                }
            }
            Compression::Lz4 => {
                let info = lz4_flex::frame::FrameInfo::new()
                    .block_size(lz4_flex::frame::BlockSize::Max64KB)
                    .block_mode(lz4_flex::frame::BlockMode::Independent);
                let mut encoder = lz4_flex::frame::FrameEncoder::with_frame_info(info, out);
                encoder.write_all(records).map_err(failed)?;
                out = encoder.finish().map_err(|error| failed(io::Error::other(error)))?;
            }
            Compression::Lz4High(level) => {
                let mut encoder = lz4::EncoderBuilder::new()
                    .block_size(lz4::BlockSize::Max64KB)
                    .block_mode(lz4::BlockMode::Independent)
                    .block_checksum(lz4::liblz4::BlockChecksum::NoBlockChecksum)
                    .checksum(lz4::ContentChecksum::NoChecksum)
                    .level(level.max(LOWEST_LZ4_HIGH))
                    .build(out)
                    .map_err(failed)?;
                encoder.write_all(records).map_err(failed)?;
                let (written, result) = encoder.finish();
                result.map_err(failed)?;
                out = written;
            }
            Compression::Zstd(level) => {
                let encoder = match &mut self.zstd {
                    Some(encoder) => encoder,
                    none => none.insert(zstd::bulk::Compressor::new(level).map_err(failed)?),
                };
                let at = out.len();
                out.resize(at + zstd::zstd_safe::compress_bound(records.len()), 0);
                let written = encoder.compress_to_buffer(records, &mut out[at..]).map_err(failed)?;
                out.truncate(at + written);
            }
        }
        Ok(out)
    }
}
