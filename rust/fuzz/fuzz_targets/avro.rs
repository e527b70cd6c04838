//! Fuzz target: decodes arbitrary bytes as a record in Avro. See `rust/fuzz/README.md`.

#![no_main]

use libfuzzer_sys::fuzz_target;

#[path = "../../headrace-formats/tests/support/mod.rs"]
mod support;

fuzz_target!(|data: &[u8]| support::check_avro(data));
