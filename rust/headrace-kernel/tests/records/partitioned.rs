//! Property test: every record is in the batches of its partition, in order, and no batch exceeds its size.

use headrace_kernel::{
    Compression, Fetched, Fields, FinishedBatch, KeyHash, Limits, PartitionedBatches, Routing, RowError,
    crc32, decode, murmur2,
};
use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

const LIMITS: Limits = Limits { batch_size: 300, max_record_size: 100_000 };

fn routing(sticky: &[u32]) -> Routing<'_> {
    Routing { partition_count: 7, key_hash: KeyHash::Murmur2, ignores_empty_key: false, sticky }
}

type NoHeaders<'a> = std::iter::Empty<(&'a [u8], Option<&'a [u8]>)>;

fn fields<'a>(key: Option<&'a [u8]>, value: &'a [u8]) -> Fields<'a, NoHeaders<'a>> {
    Fields { timestamp: 5, key, value: Some(value), headers: std::iter::empty() }
}

/// The values of a batch, which the tests use as row numbers.
fn rows(batch: &FinishedBatch) -> Vec<u64> {
    let decoded = decode(&batch.data, &Fetched::at(0)).unwrap();
    let values = &decoded.columns.values;
    let number = |range: &[i32]| {
        let bytes = &values.data[range[0] as usize..range[0] as usize + 8];
        u64::from_le_bytes(bytes.try_into().unwrap())
    };
    values.offsets.windows(2).map(number).collect()
}

fn numbered(row: u64, padding: usize) -> Vec<u8> {
    let mut value = row.to_le_bytes().to_vec();
    value.resize(8 + padding, 0);
    value
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn every_record_is_in_its_partition_in_order(
        records in vec((option::weighted(0.3, 0..7i64), option::of(vec(any::<u8>(), 0..3)), 0..400usize), 0..60),
        key_hash in prop::sample::select(&[KeyHash::Murmur2, KeyHash::Crc32, KeyHash::Ignored][..]),
        ignores_empty_key in any::<bool>(),
        compression in prop::sample::select(&[Compression::None, Compression::Lz4, Compression::Zstd(1)][..]),
        flushed_every in 1..20usize,
    ) {
        let sticky = [6, 1];
        let routing = Routing { partition_count: 7, key_hash, ignores_empty_key, sticky: &sticky };
        let mut batches = PartitionedBatches::default();
        batches.set_compression(compression);
        let mut bytes = 0;
        let mut found = Vec::new();
        for (row, (partition, key, padding)) in records.iter().enumerate() {
            let value = numbered(row as u64, *padding);
            bytes += batches.push(row as u64, *partition, &fields(key.as_deref(), &value), &routing, &LIMITS).unwrap();
            if row % flushed_every == 0 {
                batches.finish_all().unwrap();
                prop_assert_eq!(batches.open_bytes(), 0);
                found.append(&mut batches.take_finished());
                prop_assert!(batches.is_empty());
            }
        }
        batches.finish_all().unwrap();
        found.append(&mut batches.take_finished());

        prop_assert_eq!(found.iter().map(|batch| batch.size).sum::<usize>(), bytes);
        let mut partitions = vec![Vec::new(); 7];
        for batch in &found {
            let rows = rows(batch);
            prop_assert_eq!(rows.len(), batch.count);
            prop_assert_eq!(rows[0], batch.first_row);
            prop_assert!(batch.count == 1 || batch.size <= LIMITS.batch_size);
            partitions[batch.partition as usize].extend(rows);
        }
        for (partition, rows) in partitions.iter().enumerate() {
            prop_assert!(rows.is_sorted_by(|a, b| a < b));
            for &row in rows {
                let (explicit, key, _) = &records[row as usize];
                let hashed = key.as_ref().filter(|key| !(key.is_empty() && ignores_empty_key));
                let partition = partition as u32;
                match (explicit, hashed, key_hash) {
                    (Some(explicit), _, _) => prop_assert_eq!(i64::from(partition), *explicit),
                    (None, Some(key), KeyHash::Murmur2) => {
                        prop_assert_eq!(partition, (murmur2(key) & i32::MAX) as u32 % 7);
                    }
                    (None, Some(key), KeyHash::Crc32) => prop_assert_eq!(partition, crc32(key) % 7),
                    _ => prop_assert!(sticky.contains(&partition)),
                }
            }
        }
        prop_assert_eq!(partitions.concat().len(), records.len());
    }
}

#[test]
fn sticky_partitions_take_turns_with_full_batches() {
    let mut batches = PartitionedBatches::default();
    let sticky = [3, 0, 3, 5];
    for row in 0..100 {
        batches.push(row, None, &fields(None, &numbered(row, 92)), &routing(&sticky), &LIMITS).unwrap();
    }
    batches.finish_all().unwrap();
    let partitions: Vec<_> = batches.take_finished().iter().map(|batch| batch.partition).collect();
    assert_eq!(partitions, [3, 0, 3, 5].repeat(13)[..50]);
    assert_eq!(batches.sticky_batches(), 50);
    batches.begin_topic(1);
    batches.push(0, None, &fields(None, b"x"), &routing(&sticky), &LIMITS).unwrap();
    batches.finish_all().unwrap();
    assert_eq!(batches.take_finished()[0].partition, 0);
}

#[test]
fn a_record_that_cannot_be_encoded_changes_nothing() {
    let mut batches = PartitionedBatches::default();
    let limits = Limits { max_record_size: 1086, ..LIMITS };
    let routing = routing(&[0]);
    // The header of the batch, Java's overhead of a record, and 1 + (2 + 1001) + 1.
    let too_large = batches.push(0, None, &fields(None, &[0; 1001]), &routing, &limits);
    assert_eq!(too_large, Err(RowError::TooLarge { size: 1087, limit: 1086 }));
    for partition in [-1, 7, i64::MAX, i64::MIN] {
        let missing = batches.push(0, Some(partition), &fields(None, b""), &routing, &limits);
        assert_eq!(missing, Err(RowError::Partition { partition, count: 7 }));
    }
    assert!(batches.is_empty());
    batches.push(0, None, &fields(None, &[0; 1000]), &routing, &limits).unwrap();
    assert!(batches.open_bytes() <= 1086);
}
