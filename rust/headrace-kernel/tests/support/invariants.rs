//! Invariants that hold for every input. Shared by the tests and the fuzz target.

use headrace_kernel::{AbortedTransaction, BinaryColumn, Columns, Decoded, Fetched, decode, next_offset};

/// Small, so that decompression bombs in the input exceed it.
pub const MAX_BATCH_BYTES: usize = 1 << 20;

/// Decodes `data` in all modes and panics if an invariant is violated.
pub fn check(data: &[u8]) {
    let aborted: Vec<_> =
        [0, 4001, 77].map(|producer_id| AbortedTransaction { producer_id, first_offset: 0 }).to_vec();
    for check_crcs in [true, false] {
        for read_committed in [true, false] {
            let fetched = Fetched {
                aborted: &aborted,
                read_committed,
                check_crcs,
                max_batch_bytes: MAX_BATCH_BYTES,
                ..Fetched::at(0)
            };
            if let Ok(decoded) = decode(data, &fetched) {
                check_decoded(data, &fetched, &decoded);
                check_suffix(data, &fetched, &decoded);
            }
        }
    }
}

fn check_decoded(data: &[u8], fetched: &Fetched<'_>, decoded: &Decoded) {
    let Decoded { columns, next_offset: next, .. } = decoded;
    let rows = columns.rows();
    assert!(*next >= fetched.position);
    assert!(next_offset(data, fetched.position) >= *next, "the headers give a smaller offset than decoding");
    assert!(columns.offsets.is_sorted_by(|a, b| a < b), "offsets ascend");
    assert!(columns.offsets.first().is_none_or(|first| *first >= fetched.position));
    assert!(columns.offsets.last().is_none_or(|last| last < next));
    assert_eq!(columns.timestamps.len(), rows);
    check_binary(&columns.keys, rows);
    check_binary(&columns.values, rows);
    if let Some(headers) = &columns.headers {
        check_offsets(&headers.offsets, rows, headers.keys.offsets.len() - 1);
        let entries = headers.keys.offsets.len() - 1;
        check_offsets(&headers.keys.offsets, entries, headers.keys.data.len());
        check_binary(&headers.values, entries);
        let text = std::str::from_utf8(&headers.keys.data).expect("names are UTF-8");
        assert!(headers.keys.offsets.iter().all(|&at| text.is_char_boundary(at as usize)));
    }
    assert!(columns.runs.is_sorted_by(|a, b| a.end < b.end));
    assert_eq!(columns.runs.last().map_or(0, |run| run.end), rows, "runs cover the rows");
    // In columns, a record of 7 bytes needs 28 bytes, and an invalid header name of 1 byte needs 11.
    let batches = data.len() / 61;
    assert!(columns.bytes() <= 64 + 6 * data.len() + 6 * MAX_BATCH_BYTES * batches);
}

/// Decoding from a record in the middle returns the same records from there.
fn check_suffix(data: &[u8], fetched: &Fetched<'_>, decoded: &Decoded) {
    let columns = &decoded.columns;
    let middle = columns.rows() / 2;
    let Some(&position) = columns.offsets.get(middle) else { return };
    let suffix =
        decode(data, &Fetched { position, ..fetched.clone() }).expect("a suffix of valid data is valid");
    assert_eq!(suffix.next_offset, decoded.next_offset);
    assert_eq!(rows(&suffix.columns), rows(columns)[middle..]);
}

/// The fields of a record.
pub type Row = (i64, i64, Option<Vec<u8>>, Option<Vec<u8>>, Vec<(String, Option<Vec<u8>>)>);

pub fn rows(columns: &Columns) -> Vec<Row> {
    (0..columns.rows())
        .map(|row| {
            let headers = columns.headers.as_ref().map_or(Vec::new(), |headers| {
                (headers.offsets[row] as usize..headers.offsets[row + 1] as usize)
                    .map(|entry| {
                        let (start, end) = (headers.keys.offsets[entry], headers.keys.offsets[entry + 1]);
                        let name = headers.keys.data[start as usize..end as usize].to_vec();
                        (String::from_utf8(name).unwrap(), headers.values.get(entry).map(<[u8]>::to_vec))
                    })
                    .collect()
            });
            (
                columns.offsets[row],
                columns.timestamps[row],
                columns.keys.get(row).map(<[u8]>::to_vec),
                columns.values.get(row).map(<[u8]>::to_vec),
                headers,
            )
        })
        .collect()
}

fn check_binary(column: &BinaryColumn, rows: usize) {
    check_offsets(&column.offsets, rows, column.data.len());
    assert!(column.validity.null_count() <= rows);
    let nulls = (0..rows).filter(|&row| column.get(row).is_none()).count();
    assert_eq!(column.validity.null_count(), nulls);
}

fn check_offsets(offsets: &[i32], rows: usize, end: usize) {
    assert_eq!(offsets.len(), rows + 1);
    assert_eq!(offsets[0], 0);
    assert!(offsets.is_sorted());
    assert_eq!(offsets[rows] as usize, end);
}
