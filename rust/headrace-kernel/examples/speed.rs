//! Measures the speed of the kernel: `cargo run --release -p headrace-kernel --example speed`.
//!
//! One thread decodes a response of 1 MB repeatedly; the best of several rounds is printed.

use std::hint::black_box;
use std::time::{Duration, Instant};

use headrace_kernel::{Fetched, decode, next_offset};

#[path = "../tests/support/mod.rs"]
mod support;
use support::{Batch, Codec, Entry};

const RESPONSE: usize = 1_000_000;
/// The batch size of a producer, in bytes.
const BATCH: usize = 16_000;

fn response(value: usize, key: usize, headers: usize, codec: Codec) -> Vec<u8> {
    let per_batch = (BATCH / (value + key)).max(1);
    let mut data = Vec::new();
    let mut seed = 1u64;
    while data.len() < RESPONSE {
        let base_offset = next_offset(&data, 0);
        let entries = (0..per_batch as i32).map(|offset_delta| {
            // Text with few distinct letters, which compresses about as well as JSON.
            let mut text = |length| {
                (0..length)
                    .map(|_| {
                        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                        b"aaaaeeeinorst 01"[(seed >> 60) as usize]
                    })
                    .collect()
            };
            Entry {
                offset_delta,
                timestamp_delta: i64::from(offset_delta) / 8,
                key: (key > 0).then(|| text(key)),
                value: Some(text(value)),
                headers: (0..headers).map(|_| (b"trace-id".to_vec(), Some(text(16)))).collect(),
            }
        });
        data.extend(Batch::new(base_offset, entries.collect()).codec(codec).encode());
    }
    data
}

fn best<T>(mut run: impl FnMut() -> T) -> Duration {
    let rounds = (0..10).map(|_| {
        let start = Instant::now();
        (0..20).for_each(|_| drop(black_box(run())));
        start.elapsed() / 20
    });
    rounds.min().unwrap_or_default()
}

fn main() {
    println!("{:28} {:>12} {:>10} {:>12}", "", "M records/s", "GB/s", "without CRC");
    for (name, value, key, headers, codec) in [
        ("100 B", 100, 0, 0, Codec::None),
        ("100 B, 16 B keys", 100, 16, 0, Codec::None),
        ("100 B, 2 headers", 100, 0, 2, Codec::None),
        ("1 KB", 1000, 0, 0, Codec::None),
        ("100 B, gzip", 100, 0, 0, Codec::Gzip),
        ("100 B, snappy", 100, 0, 0, Codec::Xerial),
        ("100 B, lz4", 100, 0, 0, Codec::Lz4),
        ("100 B, zstd", 100, 0, 0, Codec::Zstd),
        ("1 KB, zstd", 1000, 0, 0, Codec::Zstd),
    ] {
        let data = response(value, key, headers, codec);
        let decoded = decode(&data, &Fetched::at(0)).expect("a good response");
        let rows = decoded.columns.rows() as f64;
        let payload = rows * (value + key) as f64;
        let checked = best(|| decode(&data, &Fetched::at(0))).as_secs_f64();
        let unchecked =
            best(|| decode(&data, &Fetched { check_crcs: false, ..Fetched::at(0) })).as_secs_f64();
        println!(
            "{name:28} {:12.1} {:10.2} {:12.1}",
            rows / checked / 1e6,
            payload / checked / 1e9,
            rows / unchecked / 1e6
        );
    }
}
