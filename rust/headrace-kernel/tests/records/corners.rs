//! Corner cases of the log of a partition.

use headrace_kernel::{AbortedTransaction, Decoded, Fetched, decode, next_offset};

use crate::support::invariants::rows;
use crate::support::{Batch, CODECS, Codec, Entry, LOG_APPEND_TIME, TRANSACTIONAL, compress, marker};

fn decode_at(data: &[u8], position: i64) -> Decoded {
    let decoded = decode(data, &Fetched::at(position)).unwrap();
    assert_eq!(decoded.next_offset, next_offset(data, position), "from the headers");
    decoded
}

fn offsets_at(data: &[u8], position: i64) -> Vec<i64> {
    decode_at(data, position).columns.offsets
}

#[test]
fn no_data() {
    let decoded = decode_at(&[], 42);
    assert_eq!((decoded.columns.rows(), decoded.next_offset, decoded.leader_epoch), (0, 42, -1));
}

#[test]
fn null_and_empty_are_different() {
    let entries = [
        (None, None),
        (Some(vec![]), Some(vec![])),
        (None, Some(b"v".to_vec())),
        (Some(b"k".to_vec()), None),
    ];
    let batch = Batch::new(
        0,
        entries
            .iter()
            .enumerate()
            .map(|(delta, (key, value))| Entry {
                offset_delta: delta as i32,
                key: key.clone(),
                value: value.clone(),
                ..Entry::default()
            })
            .collect(),
    );
    for codec in CODECS {
        let decoded = decode_at(&batch.clone().codec(codec).encode(), 0);
        let found: Vec<_> = rows(&decoded.columns).into_iter().map(|row| (row.2, row.3)).collect();
        assert_eq!(found, entries, "{codec:?}");
    }
}

#[test]
fn headers_repeat_are_null_and_need_not_be_utf8() {
    let headers = vec![
        (b"a".to_vec(), Some(b"1".to_vec())),
        (b"a".to_vec(), None),
        (b"".to_vec(), Some(vec![])),
        (b"ok\xff\xfe!".to_vec(), Some(vec![0xff])),
    ];
    let batch = Batch::new(
        0,
        vec![
            Entry::at(0),
            Entry { offset_delta: 1, headers, ..Entry::default() },
            Entry::at(2),
            Entry { offset_delta: 3, headers: vec![(b"z".to_vec(), None)], ..Entry::default() },
        ],
    );
    let decoded = decode_at(&[batch.encode(), Batch::of(4, 2).encode()].concat(), 0);
    let found: Vec<_> = rows(&decoded.columns).into_iter().map(|row| row.4).collect();
    assert_eq!(found[0], []);
    assert_eq!(
        found[1],
        [
            ("a".to_owned(), Some(b"1".to_vec())),
            ("a".to_owned(), None),
            (String::new(), Some(vec![])),
            ("ok\u{fffd}\u{fffd}!".to_owned(), Some(vec![0xff])),
        ]
    );
    assert_eq!(found[2], []);
    assert_eq!(found[3], [("z".to_owned(), None)]);
    assert_eq!(found[4..], [[], []]);
}

#[test]
fn no_header_columns_without_headers() {
    assert!(decode_at(&Batch::of(0, 3).encode(), 0).columns.headers.is_none());
}

#[test]
fn the_position_passes_what_compaction_removed() {
    let entries = [2, 3, 7].map(Entry::at).to_vec();
    let data = Batch::new(100, entries).last_offset_delta(9).encode();
    let decoded = decode_at(&data, 0);
    assert_eq!(decoded.columns.offsets, [102, 103, 107]);
    assert_eq!(decoded.next_offset, 110);
    // No record remains after the position, but the position advances.
    let decoded = decode_at(&data, 108);
    assert_eq!((decoded.columns.rows(), decoded.next_offset), (0, 110));
}

#[test]
fn empty_batches_in_any_codec_move_the_position() {
    for codec in CODECS {
        let empty = Batch::new(10, vec![]).last_offset_delta(9).body(vec![]).codec(codec).encode();
        assert_eq!(decode_at(&empty, 10).next_offset, 20);
        assert_eq!(offsets_at(&[empty, Batch::of(20, 1).encode()].concat(), 10), [20]);
    }
}

#[test]
fn records_below_the_position_are_cut_off() {
    let data = [Batch::of(10, 5).encode(), Batch::of(15, 5).codec(Codec::Zstd).encode()].concat();
    for position in 0..25 {
        assert_eq!(offsets_at(&data, position), (position.max(10)..20).collect::<Vec<_>>());
    }
}

#[test]
fn any_position_will_do() {
    let data = Batch::of(10, 5).encode();
    assert_eq!(offsets_at(&data, i64::MIN).len(), 5);
    assert_eq!(offsets_at(&data, -1).len(), 5);
    assert_eq!(offsets_at(&data, i64::MAX).len(), 0);
}

#[test]
fn batches_that_overlap_give_no_record_twice() {
    let data = [Batch::of(0, 10).encode(), Batch::of(5, 10).encode(), Batch::of(3, 4).encode()].concat();
    assert_eq!(offsets_at(&data, 0), (0..15).collect::<Vec<_>>());
}

#[test]
fn timestamps_and_their_types() {
    let entry = |offset_delta, timestamp_delta| Entry { timestamp_delta, ..Entry::at(offset_delta) };
    let mut without = Batch::new(2, vec![entry(0, 0)]);
    without.base_timestamp = -1;
    let mut wrapping = Batch::new(3, vec![entry(0, i64::MAX)]);
    wrapping.base_timestamp = 2;
    let data = [
        Batch::new(0, vec![entry(0, -400), entry(1, 70_000_000_000)]).encode(),
        without.encode(),
        wrapping.encode(),
        Batch::new(4, vec![entry(0, 5), entry(1, 6)]).attributes(LOG_APPEND_TIME).encode(),
        Batch::of(6, 1).encode(),
    ]
    .concat();
    let columns = decode_at(&data, 0).columns;
    assert_eq!(columns.timestamps, [600, 70_000_001_000, -1, i64::MIN + 1, 9_000, 9_000, 1_000]);
    let runs: Vec<_> = columns.runs.iter().map(|run| (run.end, run.log_append_time)).collect();
    assert_eq!(runs, [(4, false), (6, true), (7, false)]);
}

#[test]
fn leader_epochs_are_kept_by_batch() {
    let epoch = |base_offset, leader_epoch| Batch { leader_epoch, ..Batch::of(base_offset, 2) }.encode();
    let data = [epoch(0, 3), epoch(2, 3), epoch(4, 4), marker(6, 1, true)].concat();
    let decoded = decode_at(&data, 0);
    let runs: Vec<_> = decoded.columns.runs.iter().map(|run| (run.end, run.leader_epoch)).collect();
    assert_eq!(runs, [(4, 3), (6, 4)]);
    assert_eq!(decoded.leader_epoch, 5, "the marker's");
}

#[test]
fn records_of_ten_megabytes() {
    let value: Vec<u8> = (0..10_000_000u32).map(|i| (i.wrapping_mul(i) >> 7) as u8).collect();
    let batch = Batch::new(0, vec![Entry { value: Some(value.clone()), ..Entry::default() }, Entry::at(1)]);
    for codec in CODECS {
        let decoded = decode_at(&batch.clone().codec(codec).encode(), 0);
        assert!(decoded.columns.values.get(0) == Some(&value), "{codec:?}");
        assert_eq!(decoded.columns.values.get(1), Some(&b"value-1"[..]));
    }
}

#[test]
fn streams_of_several_parts() {
    let records: Vec<u8> = (0..4000).flat_map(|delta| Entry::at(delta).encode()).collect();
    let (first, second) = records.split_at(records.len() / 2);
    for codec in [Codec::Gzip, Codec::Xerial, Codec::Zstd] {
        let body = [compress(codec, first), compress(codec, second)].concat();
        let batch = Batch::of(0, 4000).codec(codec).body(body);
        assert_eq!(decode_at(&batch.encode(), 0).columns.rows(), 4000, "{codec:?}");
    }
}

#[test]
fn a_cut_at_any_byte_leaves_the_whole_batches() {
    let batches = [Batch::of(0, 3), Batch::of(3, 2).codec(Codec::Lz4), Batch::of(5, 4)].map(|b| b.encode());
    let data = batches.concat();
    let (one, two) = (batches[0].len(), batches[0].len() + batches[1].len());
    for cut in 0..data.len() {
        let expected = if cut < one {
            0
        } else if cut < two {
            3
        } else {
            5
        };
        let decoded = decode_at(&data[..cut], 0);
        assert_eq!(decoded.columns.rows() as i64, expected, "cut at {cut}");
        assert_eq!(decoded.next_offset, expected);
    }
}

#[test]
fn collecting_ends_before_a_batch_that_would_be_too_much() {
    let data: Vec<u8> = (0..10).flat_map(|n| Batch::of(n * 10, 10).codec(Codec::Zstd).encode()).collect();
    let decoded = decode(&data, &Fetched { max_total_bytes: 2_000, ..Fetched::at(0) }).unwrap();
    assert!((10..90).contains(&decoded.columns.rows()));
    assert_eq!(decoded.next_offset, decoded.columns.rows() as i64);
    // One batch is always decoded, even above the limit: otherwise the consumer would be stuck.
    let decoded = decode(&data, &Fetched { max_total_bytes: 1, ..Fetched::at(0) }).unwrap();
    assert_eq!((decoded.columns.rows(), decoded.next_offset), (10, 10));
}

mod transactions {
    use super::*;

    fn committed(data: &[u8], aborted: &[(i64, i64)]) -> Vec<i64> {
        let aborted: Vec<_> = aborted
            .iter()
            .map(|&(producer_id, first_offset)| AbortedTransaction { producer_id, first_offset })
            .collect();
        let fetched = Fetched { aborted: &aborted, read_committed: true, ..Fetched::at(0) };
        let decoded = decode(data, &fetched).unwrap();
        assert_eq!(decoded.next_offset, next_offset(data, 0));
        decoded.columns.offsets
    }

    fn of(base_offset: i64, producer_id: i64) -> Vec<u8> {
        Batch::of(base_offset, 2).transactional(producer_id).encode()
    }

    #[test]
    fn interleaved_producers() {
        let data = [
            of(0, 1),
            of(2, 2),
            Batch::of(4, 1).encode(),
            of(5, 1),
            marker(7, 2, true),
            marker(8, 1, false),
            of(9, 1),
            marker(11, 1, true),
        ]
        .concat();
        assert_eq!(committed(&data, &[(1, 0)]), [2, 3, 4, 9, 10]);
    }

    #[test]
    fn the_list_need_not_be_sorted() {
        let data = [
            of(0, 1),
            marker(2, 1, false),
            of(3, 2),
            marker(5, 2, false),
            of(6, 1),
            marker(8, 1, false),
            of(9, 1),
        ]
        .concat();
        assert_eq!(committed(&data, &[(1, 6), (2, 3), (1, 0)]), [9, 10]);
    }

    #[test]
    fn a_transaction_listed_for_later_is_not_yet_aborted() {
        let data = [of(0, 1), marker(2, 1, true), of(3, 1), marker(5, 1, false)].concat();
        assert_eq!(committed(&data, &[(1, 3)]), [0, 1]);
    }

    #[test]
    fn a_commit_marker_of_another_producer_ends_nothing() {
        let data = [of(0, 1), marker(2, 2, true), of(3, 1)].concat();
        assert_eq!(committed(&data, &[(1, 0)]), []);
    }

    #[test]
    fn idempotent_batches_are_in_no_transaction() {
        let idempotent = Batch { producer_id: 1, ..Batch::of(0, 2) }.encode();
        assert_eq!(committed(&idempotent, &[(1, 0)]), [0, 1]);
    }

    #[test]
    fn the_end_of_an_aborted_transaction_moves_the_position() {
        let data = [of(0, 1), of(2, 1)].concat();
        let aborted = [AbortedTransaction { producer_id: 1, first_offset: 0 }];
        let decoded =
            decode(&data, &Fetched { aborted: &aborted, read_committed: true, ..Fetched::at(1) }).unwrap();
        assert_eq!((decoded.columns.rows(), decoded.next_offset), (0, 4));
    }

    #[test]
    fn markers_of_unknown_kind_or_emptied_by_compaction_are_passed_over() {
        let control = TRANSACTIONAL | crate::support::CONTROL;
        let unknown = Entry { key: Some(vec![0, 0, 0, 9]), ..Entry::default() };
        let data = [
            of(0, 1),
            Batch { producer_id: 1, ..Batch::new(2, vec![unknown]).attributes(control) }.encode(),
            Batch { producer_id: 1, ..Batch::new(3, vec![]).attributes(control) }.encode(),
            of(4, 1),
            marker(6, 1, false),
            of(7, 1),
        ]
        .concat();
        assert_eq!(committed(&data, &[(1, 0)]), [7, 8]);
    }

    #[test]
    fn aborted_records_are_seen_without_read_committed() {
        let data = [of(0, 1), marker(2, 1, false)].concat();
        assert_eq!(offsets_at(&data, 0), [0, 1]);
        assert_eq!(decode_at(&data, 0).next_offset, 3);
    }
}
