//! Decodes batches that Kafka's Java code wrote, in every codec. See `data/README.md` for the content of the files.

use headrace_kernel::{AbortedTransaction, Decoded, Fetched, decode, next_offset};

use crate::support::invariants::{Row, rows};

fn read(name: &str) -> Vec<u8> {
    std::fs::read(format!("{}/tests/data/java/{name}.bin", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

fn expected(index: i64, first_offset: i64) -> Row {
    let headers = if index % 4 == 0 {
        vec![("trace".to_owned(), Some(format!("t{index}").into_bytes())), ("trace".to_owned(), None)]
    } else {
        Vec::new()
    };
    (
        first_offset + index,
        1_700_000_000_000 + index,
        (index % 3 != 0).then(|| format!("key-{index}").into_bytes()),
        (index % 7 != 6).then(|| format!("value-{index}").repeat(index as usize % 5).into_bytes()),
        headers,
    )
}

fn decode_all(data: &[u8], position: i64) -> Decoded {
    let decoded = decode(data, &Fetched::at(position)).unwrap();
    assert_eq!(decoded.next_offset, next_offset(data, position));
    decoded
}

#[test]
fn every_codec() {
    let expected: Vec<_> = (0..4000).map(|index| expected(index, 500)).collect();
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        let decoded = decode_all(&read(codec), 0);
        assert!(rows(&decoded.columns) == expected, "{codec}");
        assert_eq!(decoded.next_offset, 4500);
        assert_eq!(decoded.leader_epoch, 12);
        let runs: Vec<_> = decoded.columns.runs.iter().map(|run| (run.end, run.leader_epoch)).collect();
        assert_eq!(runs, [(2000, 11), (4000, 12)]);
    }
}

#[test]
fn from_the_middle_of_a_batch() {
    for codec in ["none", "gzip", "snappy", "lz4", "zstd"] {
        for position in [500, 501, 1234, 2499, 2500, 2501, 4499] {
            let decoded = decode_all(&read(codec), position);
            let expected: Vec<_> = (position - 500..4000).map(|index| expected(index, 500)).collect();
            assert!(rows(&decoded.columns) == expected, "{codec} from {position}");
        }
    }
}

#[test]
fn log_append_time_is_that_of_the_batch() {
    let decoded = decode_all(&read("log-append-time"), 0);
    assert_eq!(decoded.columns.timestamps, [1_700_000_999_000; 40]);
    assert!(decoded.columns.runs.iter().all(|run| run.log_append_time));
}

#[test]
fn a_batch_cut_off_at_the_end_is_left_for_the_next_fetch() {
    let decoded = decode_all(&read("cut-off"), 0);
    assert_eq!(decoded.columns.rows(), 20);
    assert_eq!(decoded.next_offset, 520);
}

#[test]
fn transactions_by_isolation_level() {
    let data = read("transactions");
    let offsets = |read_committed, aborted: &[AbortedTransaction]| {
        let decoded = decode(&data, &Fetched { read_committed, aborted, ..Fetched::at(0) }).unwrap();
        assert_eq!(decoded.next_offset, 7);
        decoded.columns.offsets
    };
    let aborted = [AbortedTransaction { producer_id: 4001, first_offset: 0 }];
    assert_eq!(offsets(true, &aborted), [3, 4, 6]);
    assert_eq!(offsets(false, &aborted), [0, 1, 3, 4, 6], "markers are never returned");
}

#[test]
fn an_empty_batch_moves_the_position() {
    let decoded = decode_all(&read("empty"), 12);
    assert_eq!(decoded.columns.rows(), 0);
    assert_eq!(decoded.next_offset, 20);
    assert_eq!(decoded.leader_epoch, 11);
}
