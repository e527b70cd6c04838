//! The partition of a key, as Java's producer and librdkafka compute it.

/// The hash of Java's default partitioner.
pub fn murmur2(key: &[u8]) -> i32 {
    const SEED: u32 = 0x9747_b28c;
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut hash = SEED ^ key.len() as u32;
    let (words, rest) = key.as_chunks::<4>();
    for word in words {
        let mut word = u32::from_le_bytes(*word).wrapping_mul(M);
        word = (word ^ word >> R).wrapping_mul(M);
        hash = hash.wrapping_mul(M) ^ word;
    }
    if !rest.is_empty() {
        for (index, &byte) in rest.iter().enumerate() {
            hash ^= u32::from(byte) << (8 * index);
        }
        hash = hash.wrapping_mul(M);
    }
    hash = (hash ^ hash >> 13).wrapping_mul(M);
    (hash ^ hash >> 15).cast_signed()
}

/// The hash of librdkafka's default partitioner (`consistent_random`).
pub fn crc32(key: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32IsoHdlc, key) as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn murmur2_is_that_of_java() {
        // Utils.murmur2 of Kafka 4.3.1.
        let known: [(&[u8], i32); 8] = [
            (b"", 275_646_681),
            (b"a", -1_563_381_124),
            (b"ab", 316_155_434),
            (b"abc", 479_470_107),
            (b"abcd", -1_323_649_548),
            (b"21", -973_932_308),
            (b"foobar", -790_332_482),
            (b"\xff\xfe\xfd", 998_637_092),
        ];
        for (key, hash) in known {
            assert_eq!(murmur2(key), hash, "{key:?}");
        }
    }

    #[test]
    fn crc32_is_that_of_zlib() {
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }
}
