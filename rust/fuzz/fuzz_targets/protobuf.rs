//! Fuzz target: decodes arbitrary bytes as Protobuf records. See `rust/fuzz/README.md`.
//!
//! The first byte chooses the schema and the framing, and the second one how the rest is divided into records.

#![no_main]

use std::sync::LazyLock;

use headrace_formats::protobuf::{MessagePlan, Writers};
use libfuzzer_sys::fuzz_target;

#[path = "../../headrace-formats/tests/support/protobuf.rs"]
mod support;

static CASES: LazyLock<[(MessagePlan, Writers); 3]> = LazyLock::new(|| {
    let everything = || support::plan(support::EVERYTHING);
    [
        (everything(), Writers::none()),
        (support::plan(support::GROUPS), Writers::none()),
        (everything(), support::framed(support::EVERYTHING)),
    ]
});

fuzz_target!(|data: &[u8]| {
    let [case, at, records @ ..] = data else { return };
    let (plan, writers) = &CASES[usize::from(*case) % CASES.len()];
    let (first, second) = records.split_at(usize::from(*at).min(records.len()));
    support::check(plan, writers, &[first, second, b"", first]);
});
