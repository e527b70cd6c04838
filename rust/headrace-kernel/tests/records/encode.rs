//! Property test: the decoder returns the encoded records, in every codec, with and without a producer's stamp.

use headrace_kernel::{
    BatchBuilder, Compression, Compressor, EncodeError, Fetched, Fields, Stamp, decode, stamp,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::support::invariants::{check, rows};
use crate::support::{Entry, crc32c};

const COMPRESSIONS: [Compression; 11] = [
    Compression::None,
    Compression::Gzip(1),
    Compression::Gzip(9),
    Compression::Snappy,
    Compression::Lz4,
    Compression::Lz4High(1),
    Compression::Lz4High(10),
    Compression::Lz4High(17),
    Compression::Zstd(-5),
    Compression::Zstd(3),
    Compression::Zstd(19),
];

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => vec(any::<u8>(), 0..20),
        1 => vec(any::<u8>(), 60..300),
        1 => (any::<u8>(), 60_000..70_000usize).prop_map(|(byte, length)| vec![byte; length]),
    ]
}

fn record() -> impl Strategy<Value = (i64, Entry)> {
    let headers = prop_oneof![
        3 => Just(vec![]),
        1 => vec(("[a-zé]{0,3}".prop_map(String::into_bytes), option::of(bytes())), 0..4),
    ];
    let timestamp = prop_oneof![3 => 1_700_000_000_000..1_700_000_100_000i64, 1 => -1..i64::MAX];
    (timestamp, option::of(bytes()), option::of(bytes()), headers).prop_map(
        |(timestamp, key, value, headers)| (timestamp, Entry { key, value, headers, ..Entry::default() }),
    )
}

fn fields(
    timestamp: i64,
    entry: &Entry,
) -> Fields<'_, impl Iterator<Item = (&'_ [u8], Option<&'_ [u8]>)> + Clone> {
    Fields {
        timestamp,
        key: entry.key.as_deref(),
        value: entry.value.as_deref(),
        headers: entry.headers.iter().map(|(name, value)| (&name[..], value.as_deref())),
    }
}

fn built(records: &[(i64, Entry)]) -> BatchBuilder {
    let mut builder = BatchBuilder::new(0);
    for (timestamp, entry) in records {
        let fields = fields(*timestamp, entry);
        let expected = builder.size_with(&fields);
        builder.push(&fields).unwrap();
        assert_eq!(builder.size(), expected);
    }
    builder
}

fn stored_checksum(batch: &[u8]) -> u32 {
    u32::from_be_bytes(batch[17..21].try_into().unwrap())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn decoding_returns_what_was_encoded(
        records in vec(record(), 1..40),
        compression in prop::sample::select(&COMPRESSIONS[..]),
        producer_id in -1..i64::MAX,
        sequence in any::<i32>(),
        is_transactional in any::<bool>(),
    ) {
        let first = Stamp { producer_id: 7, epoch: 1, sequence: 0, is_transactional: !is_transactional };
        let mut batch = built(&records).finish(&mut Compressor::new(compression), &first).unwrap();
        let second = Stamp { producer_id, epoch: 3, sequence, is_transactional };
        stamp(&mut batch, &second).unwrap();

        prop_assert_eq!(stored_checksum(&batch), crc32c(&batch[21..]));
        prop_assert_eq!(&batch[43..51], &producer_id.to_be_bytes());
        prop_assert_eq!(&batch[51..53], &3i16.to_be_bytes());
        prop_assert_eq!(&batch[53..57], &sequence.to_be_bytes());
        prop_assert_eq!(batch[22] & 1 << 4 != 0, is_transactional);
        let decoded = decode(&batch, &Fetched::at(0)).unwrap();
        check(&batch);
        let expected: Vec<_> = records
            .iter()
            .enumerate()
            .map(|(row, (timestamp, entry))| {
                let headers = entry.headers.iter().map(|(name, value)| {
                    (String::from_utf8(name.clone()).unwrap(), value.clone())
                });
                (row as i64, *timestamp, entry.key.clone(), entry.value.clone(), headers.collect::<Vec<_>>())
            })
            .collect();
        prop_assert_eq!(rows(&decoded.columns), expected);
        prop_assert_eq!(decoded.next_offset, records.len() as i64);
    }
}

#[test]
fn the_header_is_that_of_a_producer() {
    let records = [(50, Entry::at(0)), (90, Entry::at(1)), (70, Entry::at(2))];
    let batch = built(&records).finish(&mut Compressor::new(Compression::None), &Stamp::default()).unwrap();
    assert_eq!(batch[0..8], 0i64.to_be_bytes(), "the base offset");
    assert_eq!(batch[8..12], (batch.len() as i32 - 12).to_be_bytes(), "the length");
    assert_eq!(batch[12..16], (-1i32).to_be_bytes(), "the leader epoch");
    assert_eq!(batch[21..23], [0, 0], "the attributes");
    assert_eq!(batch[23..27], 2i32.to_be_bytes(), "the last offset delta");
    assert_eq!(batch[27..35], 50i64.to_be_bytes(), "the base timestamp");
    assert_eq!(batch[35..43], 90i64.to_be_bytes(), "the largest timestamp");
    assert_eq!(batch[43..57], [0xff; 14], "no producer id, epoch and sequence number");
    assert_eq!(batch[57..61], 3i32.to_be_bytes(), "the count");
}

#[test]
fn a_batch_without_records_is_refused() {
    let finished = BatchBuilder::new(100).finish(&mut Compressor::new(Compression::Lz4), &Stamp::default());
    assert_eq!(finished, Err(EncodeError::Empty));
    assert_eq!(stamp(&mut [0; 60], &Stamp::default()), Err(EncodeError::Empty));
}

#[test]
fn a_compressor_serves_many_batches() {
    for compression in COMPRESSIONS {
        let mut compressor = Compressor::new(compression);
        for count in 1..5 {
            let records: Vec<_> = (0..count).map(|index| (i64::from(index), Entry::at(index))).collect();
            let batch = built(&records).finish(&mut compressor, &Stamp::default()).unwrap();
            assert_eq!(decode(&batch, &Fetched::at(0)).unwrap().columns.rows(), count as usize);
        }
    }
}

#[test]
fn frames_of_lz4_are_those_of_java_at_every_level() {
    let records: Vec<_> = (0..20_000).map(|index| (i64::from(index), Entry::at(index))).collect();
    let mut sizes = Vec::new();
    for compression in
        [Compression::Lz4, Compression::Lz4High(1), Compression::Lz4High(12), Compression::Lz4High(17)]
    {
        let batch = built(&records).finish(&mut Compressor::new(compression), &Stamp::default()).unwrap();
        assert_eq!(batch[22] & 7, 3, "the codec");
        // The magic number; version 1 with independent blocks and no checksums; blocks of 64 KiB.
        assert_eq!(batch[61..67], [0x04, 0x22, 0x4d, 0x18, 0x60, 0x40], "{compression:?}");
        assert_eq!(decode(&batch, &Fetched::at(0)).unwrap().columns.rows(), records.len());
        sizes.push(batch.len());
    }
    assert!(sizes[1] < sizes[0] && sizes[2] < sizes[1], "{sizes:?}");
    assert_eq!(sizes[2], sizes[3]);
}
