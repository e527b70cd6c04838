//! Fuzz target: decodes arbitrary bytes as the records of a partition. See `rust/fuzz/README.md`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../headrace-kernel/tests/support/mod.rs"]
mod support;

fuzz_target!(|data: &[u8]| support::invariants::check(data));
