//! Decompression into a reused buffer of limited size.

use std::io::Read;

use crate::error::Cause;

/// The compression codec of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Codec {
    None,
    Gzip,
    Snappy,
    Lz4,
    Zstd,
}

impl Codec {
    pub fn from_attributes(attributes: u16) -> Result<Self, Cause> {
        match attributes & 0b111 {
            0 => Ok(Self::None),
            1 => Ok(Self::Gzip),
            2 => Ok(Self::Snappy),
            3 => Ok(Self::Lz4),
            4 => Ok(Self::Zstd),
            unknown => Err(Cause::UnknownCodec(unknown as u8)),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::None => "uncompressed",
            Self::Gzip => "gzip",
            Self::Snappy => "snappy",
            Self::Lz4 => "lz4",
            Self::Zstd => "zstd",
        }
    }

    fn error(self, reason: impl ToString) -> Cause {
        Cause::Compression { codec: self.name(), reason: reason.to_string() }
    }
}

/// Decompresses batches into a buffer that it reuses.
pub struct Decompressor {
    limit: usize,
    /// At most as long as the limit. It keeps its length between batches, so that only new bytes are zeroed.
    buffer: Vec<u8>,
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// `limit` is the maximum decompressed size of a batch, in bytes.
    pub fn new(limit: usize) -> Self {
        Self { limit, buffer: Vec::new(), zstd: None }
    }

    /// Returns the decompressed `body`, or `body` itself if it is not compressed.
    pub fn decompress<'a>(&'a mut self, codec: Codec, body: &'a [u8]) -> Result<&'a [u8], Cause> {
        let length = match codec {
            Codec::None => return Ok(body),
            // Compaction keeps empty batches, with the codec in their attributes.
            _ if body.is_empty() => 0,
            Codec::Gzip => self.stream(codec, flate2::bufread::MultiGzDecoder::new(body), body.len())?,
            Codec::Lz4 => self.stream(codec, lz4_flex::frame::FrameDecoder::new(body), body.len())?,
            Codec::Snappy => self.snappy(body)?,
            Codec::Zstd => self.zstd(body)?,
        };
        Ok(&self.buffer[..length])
    }

    fn too_large(&self) -> Cause {
        Cause::TooLarge { limit: self.limit }
    }

    /// Grows the buffer to at least `length` bytes and keeps its first `filled` bytes.
    fn grow(&mut self, filled: usize, length: usize) {
        if self.buffer.len() >= length {
            return;
        }
        if filled == 0 {
            // The operating system provides zeroed pages at no cost; `resize` would write the zeros.
            self.buffer = vec![0; length];
        } else {
            self.buffer.resize(length, 0);
        }
    }

    /// Reads `reader` to its end.
    fn stream(&mut self, codec: Codec, mut reader: impl Read, compressed: usize) -> Result<usize, Cause> {
        let mut filled = 0;
        let mut wanted = compressed.saturating_mul(4).clamp(4096, 1 << 20);
        loop {
            if filled == self.buffer.len() {
                self.grow(filled, wanted.min(self.limit));
                wanted = wanted.saturating_mul(2);
            }
            let full = filled == self.buffer.len();
            // The decompressed data may fill the limit exactly, but not exceed it.
            let mut beyond = [0];
            let room = if full { &mut beyond[..] } else { &mut self.buffer[filled..] };
            match reader.read(room) {
                Ok(0) => return Ok(filled),
                Ok(_) if full => return Err(self.too_large()),
                Ok(count) => filled += count,
                Err(error) => return Err(codec.error(error)),
            }
        }
    }

    /// Decompresses all frames with one call. Producers do not write the decompressed size into the frame, but the
    /// number of blocks gives an upper bound. A stream would have to allocate and copy a window.
    fn zstd(&mut self, body: &[u8]) -> Result<usize, Cause> {
        let codec = Codec::Zstd;
        let Some(bound) = zstd::bulk::Decompressor::upper_bound(body) else {
            return Err(codec.error("not a zstd frame"));
        };
        self.grow(0, bound.min(self.limit));
        let decoder = match &mut self.zstd {
            Some(decoder) => decoder,
            none => none.insert(zstd::bulk::Decompressor::new().map_err(|error| codec.error(error))?),
        };
        decoder.decompress_to_buffer(body, &mut self.buffer[..]).map_err(|error| {
            // The bound is valid for every frame, so the buffer is too small only if the limit is below the bound.
            if bound > self.limit { Cause::TooLarge { limit: self.limit } } else { codec.error(error) }
        })
    }

    /// Java's producer writes snappy blocks in the framing of the xerial library; other producers write one raw block.
    fn snappy(&mut self, body: &[u8]) -> Result<usize, Cause> {
        const MAGIC: &[u8] = b"\x82SNAPPY\0";
        /// The magic bytes and two version fields.
        const STREAM_HEADER: usize = 16;
        let codec = Codec::Snappy;
        if !body.starts_with(MAGIC) {
            return self.snappy_block(body, 0);
        }
        let mut rest = body;
        let mut filled = 0;
        while !rest.is_empty() {
            // Several streams may be concatenated, each with its own header.
            if rest.starts_with(MAGIC) {
                rest = rest.get(STREAM_HEADER..).ok_or_else(|| codec.error("the header is cut off"))?;
                continue;
            }
            let (length, blocks) =
                rest.split_first_chunk().ok_or_else(|| codec.error("a length is cut off"))?;
            let split =
                usize::try_from(i32::from_be_bytes(*length)).ok().and_then(|at| blocks.split_at_checked(at));
            let (block, following) = split.ok_or_else(|| codec.error("a block is longer than the data"))?;
            filled = self.snappy_block(block, filled)?;
            rest = following;
        }
        Ok(filled)
    }

    /// Decompresses a block after the first `filled` bytes of the buffer and returns the new number of filled bytes.
    fn snappy_block(&mut self, block: &[u8], filled: usize) -> Result<usize, Cause> {
        /// The best possible ratio: an element of three bytes copies 64 bytes.
        const BEST_RATIO: usize = 22;
        let codec = Codec::Snappy;
        let length = snap::raw::decompress_len(block).map_err(|error| codec.error(error))?;
        if length / BEST_RATIO > block.len() {
            return Err(codec.error("a block announces more data than its bytes can contain"));
        }
        let end = filled + length;
        if end > self.limit {
            return Err(self.too_large());
        }
        if end > self.buffer.len() {
            self.grow(filled, end.max(filled.saturating_mul(2)).min(self.limit));
        }
        snap::raw::Decoder::new()
            .decompress(block, &mut self.buffer[filled..end])
            .map(|written| filled + written)
            .map_err(|error| codec.error(error))
    }
}
