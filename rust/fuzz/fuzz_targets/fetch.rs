//! Fuzz target: reads arbitrary bytes as the usual response to a fetch. See `rust/fuzz/README.md`.

#![no_main]

use headrace_kernel::usual_response;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((id, _)) = data.split_first_chunk::<4>() else { return };
    let Some(response) = usual_response(data, i32::from_be_bytes(*id)) else { return };
    let records: usize = response.partitions.iter().map(|each| each.records.len()).sum();
    // A partition has 37 bytes besides its records, so hostile counts allocate little.
    assert!(records + 37 * response.partitions.len() <= data.len());
    assert!(response.partitions.capacity() <= 2 * data.len());
    // It has one form, except for empty and null lists: a cut is another response.
    assert!(usual_response(&data[..data.len() - 1], i32::from_be_bytes(*id)).is_none());
});
