//! Invalid batches: an error if they come first, otherwise the valid batches before them.

use headrace_kernel::{Cause, Fetched, decode, next_offset};

use crate::support::{Batch, CODECS, Codec, Entry, compress, put_varint, repair_checksum};

const BASE: i64 = 300;

/// The error for `bad`. Also checks that a valid batch before it is decoded.
fn cause_of(bad: &[u8]) -> Cause {
    let good = Batch::of(BASE - 5, 5).encode();
    for following in [vec![], Batch::of(BASE + 100, 5).encode()] {
        let data = [&good[..], bad, &following].concat();
        let decoded = decode(&data, &Fetched::at(BASE - 5)).unwrap();
        assert_eq!(decoded.columns.offsets, (BASE - 5..BASE).collect::<Vec<_>>());
        assert_eq!(decoded.next_offset, BASE, "the next fetch starts with the invalid batch");
        assert_eq!(decoded.columns.runs.last().unwrap().end, 5);
        assert_eq!(decoded.columns.values.offsets.len(), 6);

        // A batch below the position does not advance it, so the invalid batch is the first one.
        assert!(decode(&data, &Fetched::at(BASE)).is_err());
    }
    decode(bad, &Fetched::at(BASE)).unwrap_err().cause
}

fn malformed(batch: Batch) -> &'static str {
    match cause_of(&batch.encode()) {
        Cause::Malformed(what) => what,
        other => panic!("{other}"),
    }
}

fn batch() -> Batch {
    Batch::of(BASE, 4)
}

fn records() -> Vec<u8> {
    batch().entries.iter().flat_map(Entry::encode).collect()
}

#[test]
fn a_wrong_checksum() {
    let good = batch().encode();
    for at in 21..good.len() {
        let mut bad = good.clone();
        bad[at] ^= 0x10;
        match cause_of(&bad) {
            Cause::Checksum { .. } => {}
            // The record count is invalid, which is checked before the checksum.
            Cause::Malformed(_) if (57..61).contains(&at) => {}
            other => panic!("byte {at}: {other}"),
        }
    }
    let mut bad = good;
    bad[17] ^= 1;
    assert!(matches!(cause_of(&bad), Cause::Checksum { .. }));
    let unchecked = decode(&bad, &Fetched { check_crcs: false, ..Fetched::at(BASE) }).unwrap();
    assert_eq!(unchecked.columns.rows(), 4);
}

#[test]
fn the_error_says_where() {
    let mut bad = batch().encode();
    bad[40] ^= 1;
    let error = decode(&bad, &Fetched::at(BASE + 2)).unwrap_err();
    assert_eq!(error.offset, BASE);
    assert!(error.to_string().starts_with("offset 300: CRC-32C mismatch: the batch says 0x"), "{error}");
}

#[test]
fn old_and_unknown_formats() {
    for magic in [0u8, 1, 3, 0xff] {
        let mut bad = batch().encode();
        bad[16] = magic;
        let expected = match magic {
            0 | 1 => Cause::OldFormat(magic as i8),
            _ => Cause::UnknownFormat(magic as i8),
        };
        assert_eq!(cause_of(&bad), expected);
        // Even if truncated, it is not considered the beginning of a valid batch.
        assert_eq!(decode(&bad[..30], &Fetched::at(0)).unwrap_err().cause, expected);
    }
    let text = Cause::OldFormat(1).to_string();
    assert!(text.contains("message format v1 is not supported"), "{text}");
}

#[test]
fn lengths_that_cannot_be() {
    for length in [i32::MIN, -1, 0, 13, 14, 48] {
        let mut bad = batch().encode();
        bad[8..12].copy_from_slice(&length.to_be_bytes());
        assert_eq!(cause_of(&bad), Cause::Length(length));
    }
}

#[test]
fn a_length_that_cuts_records_off_or_adds_bytes() {
    let good = batch().encode();
    for difference in [-3, 3] {
        let mut bad = good.clone();
        bad.extend([0; 3]);
        let length = good.len() as i32 - 12 + difference;
        bad[8..12].copy_from_slice(&length.to_be_bytes());
        repair_checksum(&mut bad);
        assert!(matches!(cause_of(&bad), Cause::Malformed(_)));
    }
}

#[test]
fn a_length_beyond_the_data_is_a_cut_off_batch() {
    let mut data = batch().encode();
    data[8..12].copy_from_slice(&i32::MAX.to_be_bytes());
    let decoded = decode(&data, &Fetched::at(BASE)).unwrap();
    assert_eq!((decoded.columns.rows(), decoded.next_offset), (0, BASE));
    assert_eq!(next_offset(&data, BASE), BASE);
}

#[test]
fn counts_that_are_not_those_of_the_records() {
    assert_eq!(malformed(batch().count(-1)), "the record count is negative");
    assert_eq!(malformed(batch().count(5)), "there are more records than offsets");
    assert_eq!(malformed(batch().count(5).last_offset_delta(9)), "a record ends before its fields do");
    assert_eq!(malformed(batch().count(3)), "the batch has bytes after its last record");
    assert_eq!(malformed(batch().count(0)), "the batch has bytes after its last record");
    let huge = batch().count(i32::MAX).last_offset_delta(i32::MAX - 1);
    for codec in CODECS {
        assert_eq!(malformed(huge.clone().codec(codec)), "there are fewer bytes than the records need");
    }
    assert_eq!(malformed(batch().body(vec![])), "there are fewer bytes than the records need");
}

#[test]
fn offsets_that_cannot_be() {
    assert_eq!(malformed(batch().last_offset_delta(-1)), "the last offset is below the base offset");
    let ascend = "the offsets of the records do not ascend within the batch";
    let of = |deltas: &[i32]| Batch::new(BASE, deltas.iter().map(|&delta| Entry::at(delta)).collect());
    assert_eq!(malformed(of(&[0, 1, 1, 3])), ascend);
    assert_eq!(malformed(of(&[0, 2, 1, 3])), ascend);
    assert_eq!(malformed(of(&[-1, 3])), ascend);
    assert_eq!(malformed(of(&[0, 4]).last_offset_delta(3)), ascend);
    for base_offset in [-1, i64::MIN, i64::MAX, i64::MAX - 10] {
        let mut bad = batch().encode();
        bad[..8].copy_from_slice(&base_offset.to_be_bytes());
        assert_eq!(cause_of(&bad), Cause::Malformed("the base offset is out of range"));
    }
}

#[test]
fn fields_that_do_not_fit_their_record() {
    /// A record with attributes, deltas and the given fields.
    fn record(fields: &[i64]) -> Vec<u8> {
        let mut body = vec![0, 0, 0];
        fields.iter().for_each(|&field| put_varint(&mut body, field));
        let mut record = Vec::new();
        put_varint(&mut record, body.len() as i64);
        [record, body].concat()
    }
    let cases: [(&[i64], &str); 9] = [
        (&[-1, -1, 0, 7], "a record has bytes after its last field"),
        (&[-1, -1, 1, -1], "there are fewer bytes than the headers need"),
        (&[-1, -1, -1, 0], "there are fewer bytes than the headers need"),
        (&[-1, -1, i32::MAX as i64], "there are fewer bytes than the headers need"),
        (&[-1, -1, 1, -1, -1], "a header has no name"),
        (&[-2, -1, 0, 0], "a length is negative"),
        (&[1_000_000_000, -1, 0], "a key, value or header is longer than its record"),
        (&[-1, 1_000_000_000, 0], "a key, value or header is longer than its record"),
        (&[1 << 40, -1, 0], "a record ends before its fields do"),
    ];
    for (fields, expected) in cases {
        let bad = Batch::of(BASE, 1).body(record(fields));
        assert_eq!(malformed(bad), expected, "{fields:?}");
    }
}

#[test]
fn record_lengths_that_cannot_be() {
    for length in [-1, 1 << 30, 40] {
        let mut body = Vec::new();
        put_varint(&mut body, length);
        body.extend([0; 20]);
        assert_eq!(malformed(Batch::of(BASE, 1).body(body)), "a record is longer than its batch");
    }
    let cut_off = Batch::of(BASE, 1).body([&[2, 0][..], &[0x80; 6]].concat());
    assert_eq!(malformed(cut_off), "a record ends before its fields do");
}

#[test]
fn codecs_that_do_not_exist() {
    for codec in 5..=7u16 {
        assert_eq!(cause_of(&batch().attributes(codec).encode()), Cause::UnknownCodec(codec as u8));
    }
}

#[test]
fn compressed_data_that_is_not() {
    for codec in CODECS.into_iter().filter(|&codec| codec != Codec::None) {
        for body in [vec![0xa5; 100], compress(codec, &records())[..12].to_vec()] {
            let bad = batch().codec(codec).body(body);
            match cause_of(&bad.encode()) {
                Cause::Compression { .. } | Cause::Malformed(_) => {}
                other => panic!("{codec:?}: {other}"),
            }
        }
    }
}

#[test]
fn decompressed_sizes_up_to_the_limit() {
    let entry = Entry { value: Some(vec![b'x'; 500_000]), ..Entry::default() };
    let size = entry.encode().len();
    for codec in CODECS {
        let data = Batch::new(BASE, vec![entry.clone()]).codec(codec).encode();
        let with = |max_batch_bytes| decode(&data, &Fetched { max_batch_bytes, ..Fetched::at(BASE) });
        assert_eq!(with(size).unwrap().columns.rows(), 1, "{codec:?}");
        match (codec, with(size - 1)) {
            // The limit does not apply: the records are in memory already.
            (Codec::None, found) => assert_eq!(found.unwrap().columns.rows(), 1),
            (_, found) => {
                assert_eq!(found.unwrap_err().cause, Cause::TooLarge { limit: size - 1 }, "{codec:?}");
            }
        }
        if codec != Codec::None {
            assert_eq!(with(0).unwrap_err().cause, Cause::TooLarge { limit: 0 }, "{codec:?}");
        }
    }
}
