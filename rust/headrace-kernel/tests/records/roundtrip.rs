//! Property test: decoding returns the encoded records, for any log and any position.

use headrace_kernel::{Fetched, decode, next_offset};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use crate::support::invariants::{Row, check, rows};
use crate::support::{Batch, CODECS, Entry, LOG_APPEND_TIME};

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..20), 1 => vec(any::<u8>(), 60..300)]
}

fn entry() -> impl Strategy<Value = Entry> {
    let headers = prop_oneof![
        3 => Just(vec![]),
        1 => vec(("[a-zé]{0,3}".prop_map(String::into_bytes), option::of(bytes())), 0..4),
    ];
    let timestamp_delta = prop_oneof![0..100i64, any::<i32>().prop_map(i64::from)];
    (1..4i32, timestamp_delta, option::of(bytes()), option::of(bytes()), headers).prop_map(
        // Here the offset delta is relative to the previous record; `batch()` makes it relative to the base offset.
        |(offset_delta, timestamp_delta, key, value, headers)| Entry {
            offset_delta,
            timestamp_delta,
            key,
            value,
            headers,
        },
    )
}

fn batch() -> impl Strategy<Value = Batch> {
    (vec(entry(), 0..30), 0..4i32, prop::sample::select(&CODECS[..]), any::<bool>()).prop_map(
        |(mut entries, gap_after, codec, log_append_time)| {
            let mut delta = -1;
            for entry in &mut entries {
                delta += entry.offset_delta;
                entry.offset_delta = delta;
            }
            let batch = Batch::new(0, entries).codec(codec).last_offset_delta(delta.max(0) + gap_after);
            batch.attributes(if log_append_time { LOG_APPEND_TIME } else { 0 })
        },
    )
}

fn log() -> impl Strategy<Value = Vec<Batch>> {
    (vec((batch(), 0..5i64), 0..6), 0..1_000_000i64).prop_map(|(batches, mut offset)| {
        batches
            .into_iter()
            .map(|(batch, gap_before)| {
                let base_offset = offset + gap_before;
                offset = base_offset + i64::from(batch.last_offset_delta.unwrap()) + 1;
                Batch { base_offset, ..batch }
            })
            .collect()
    })
}

fn expected(log: &[Batch], position: i64) -> Vec<Row> {
    let rows = log.iter().flat_map(|batch| {
        batch.entries.iter().map(|entry| {
            let timestamp = if batch.attributes & LOG_APPEND_TIME != 0 {
                batch.max_timestamp
            } else {
                batch.base_timestamp + entry.timestamp_delta
            };
            let headers = entry.headers.iter();
            (
                batch.base_offset + i64::from(entry.offset_delta),
                timestamp,
                entry.key.clone(),
                entry.value.clone(),
                headers
                    .map(|(name, value)| (String::from_utf8(name.clone()).unwrap(), value.clone()))
                    .collect(),
            )
        })
    });
    rows.filter(|row| row.0 >= position).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_is_encoded_comes_back(log in log(), cut in 0..400usize, from in 0..60i64) {
        let mut data: Vec<u8> = log.iter().flat_map(Batch::encode).collect();
        let start = log.first().map_or(0, |batch| batch.base_offset);
        let position = start + from;
        // A truncated batch at the end, as in real responses.
        let end = log.last().map_or(start, |b| b.base_offset + i64::from(b.last_offset_delta.unwrap()) + 1);
        let further = Batch::of(end, 40).encode();
        data.extend(&further[..cut.min(further.len() - 1)]);

        let decoded = decode(&data, &Fetched::at(position)).unwrap();
        prop_assert_eq!(rows(&decoded.columns), expected(&log, position));
        prop_assert_eq!(decoded.next_offset, end.max(position));
        prop_assert_eq!(next_offset(&data, position), end.max(position));
        check(&data);
    }
}
