//! Hostile input: mutated batches, and inputs that failed in the past.
//!
//! The checksum is corrected after most mutations: otherwise the code after the checksum check would not be tested.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::invariants::check;
use crate::support::{Batch, CODECS, Entry, marker, repair_checksum};

fn files(directory: &str) -> Vec<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(directory);
    let mut files: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|file| file.extension().is_none_or(|extension| extension != "md"));
    files.sort();
    files
}

#[test]
fn inputs_that_once_failed() {
    for file in files("regressions").into_iter().chain(files("java")) {
        println!("{}", file.display());
        check(&fs::read(file).unwrap());
    }
}

/// Small batches of every kind: their mutations cover more code than those of large batches.
fn seeds() -> Vec<Vec<u8>> {
    let entries: Vec<_> = (0..12)
        .map(|delta| Entry {
            key: (delta % 3 != 0).then(|| vec![b'k'; delta as usize]),
            headers: vec![
                (b"name".to_vec(), (delta % 2 == 0).then(|| b"value".to_vec()));
                (delta % 4) as usize
            ],
            timestamp_delta: i64::from(delta) * 1000,
            ..Entry::at(delta)
        })
        .collect();
    let batch = Batch::new(40, entries);
    let mut seeds: Vec<_> = CODECS.map(|codec| batch.clone().codec(codec).encode()).to_vec();
    seeds.push([Batch::of(0, 3).transactional(77).encode(), marker(3, 77, false)].concat());
    seeds.extend(files("java").iter().map(|file| fs::read(file).unwrap()).filter(|data| data.len() < 2000));
    seeds
}

/// A xorshift generator with a fixed seed: each run has the same mutations.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % below as u64) as usize
    }
}

const TELLING: [u8; 8] = [0, 1, 2, 0x7f, 0x80, 0x81, 0xfe, 0xff];

fn mutate(data: &mut Vec<u8>, other: &[u8], dice: &mut Dice) {
    let at = dice.roll(data.len());
    match dice.roll(8) {
        0 => data[at] ^= 1 << dice.roll(8),
        1 => data[at] = TELLING[dice.roll(TELLING.len())],
        2 => data.truncate(at.max(1)),
        3 => data.insert(at, TELLING[dice.roll(TELLING.len())]),
        4 => drop(data.remove(at)),
        // Overwrite a field of the header: a length, a count, a delta or the attributes.
        5 => {
            let at = [8, 12, 21, 23, 43, 57][dice.roll(6)];
            let value = [0, 1, -1, i32::MIN, i32::MAX, 0x0100_0000][dice.roll(6)];
            if let Some(field) = data.get_mut(at..at + 4) {
                field.copy_from_slice(&i32::to_be_bytes(value));
            }
        }
        6 => {
            let from = dice.roll(other.len());
            let length = dice.roll(64).min(other.len() - from);
            data.splice(at..at, other[from..from + length].iter().copied());
        }
        _ => {
            let length = dice.roll(32).min(data.len() - at);
            let copy = data[at..at + length].to_vec();
            data.splice(at..at, copy);
        }
    }
    if data.is_empty() {
        data.push(0);
    }
}

#[test]
fn mutated_batches() {
    let seeds = seeds();
    let mut dice = Dice(0x9e37_79b9_7f4a_7c15);
    for round in 0..30_000 {
        let mut data = seeds[round % seeds.len()].clone();
        let other = &seeds[dice.roll(seeds.len())];
        for _ in 0..=dice.roll(3) {
            mutate(&mut data, other, &mut dice);
        }
        if data.len() > 61 && dice.roll(4) > 0 {
            // Usually correct the length too: the records of a truncated batch are not decoded.
            if dice.roll(4) > 0 {
                let length = data.len() as i32 - 12;
                data[8..12].copy_from_slice(&length.to_be_bytes());
            }
            repair_checksum(&mut data);
        }
        check(&data);
    }
}

#[test]
fn random_bytes() {
    let mut dice = Dice(7);
    for _ in 0..5_000 {
        let length = 1 + dice.roll(400);
        let mut data: Vec<u8> = (0..length).map(|_| dice.roll(256) as u8).collect();
        check(&data);
        // Random records in an otherwise valid batch.
        let count = dice.roll(4) as i32;
        data = Batch::of(0, 4).codec(CODECS[dice.roll(CODECS.len())]).count(count).body(data).encode();
        check(&data);
    }
}
