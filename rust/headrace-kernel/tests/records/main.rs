//! All tests but those of memory, which need an allocator of their own, are one program: linking it takes half a minute.

mod corners;
mod corrupt;
mod encode;
mod hostile;
mod java;
mod partitioned;
mod roundtrip;
#[path = "../support/mod.rs"]
mod support;
