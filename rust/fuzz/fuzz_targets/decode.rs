//! Any bytes as a partition's records. See `rust/fuzz/README.md`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../headrace-kernel/tests/support/mod.rs"]
mod support;

fuzz_target!(|data: &[u8]| support::invariants::check(data));
