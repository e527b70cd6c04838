//! Hostile input does not make the kernel exceed its memory limits.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use headrace_kernel::{Fetched, decode};

mod support;
use support::{Batch, CODECS, Codec, Entry};

/// Counts the allocated bytes and their peak.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: all calls are forwarded to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;
const LIMIT: usize = 2 * MIB;
/// lz4 needs the most memory: a block of up to 4 MiB, compressed and decompressed.
const CODEC_BUFFERS: usize = 10 * MIB;

/// The peak of the memory that decoding allocates.
fn peak(data: &[u8]) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let _ = decode(data, &Fetched { max_batch_bytes: LIMIT, check_crcs: false, ..Fetched::at(0) });
    PEAK.load(Ordering::Relaxed) - before
}

// A single test, because the counters are global.
#[test]
fn memory_is_bounded() {
    // Record counts that do not fit into the data.
    for codec in CODECS {
        let lying = Batch::of(0, 3).codec(codec).count(i32::MAX).last_offset_delta(i32::MAX - 1).encode();
        assert!(peak(&lying) < CODEC_BUFFERS + LIMIT, "{codec:?}: {}", peak(&lying));
    }

    // Decompression bombs: 64 MiB of zeros.
    let bomb = Entry { value: Some(vec![0; 64 * MIB]), ..Entry::default() };
    for codec in CODECS.into_iter().filter(|&codec| codec != Codec::None) {
        let data = Batch::new(0, vec![bomb.clone()]).codec(codec).encode();
        assert!(peak(&data) < CODEC_BUFFERS + LIMIT, "{codec:?}: {}", peak(&data));
    }

    // A snappy block that claims to have 4 GiB.
    let block = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0];
    assert!(peak(&Batch::of(0, 1).codec(Codec::RawSnappy).body(block.to_vec()).encode()) < MIB);

    // The smallest records need four times their size in columns, and twice that while the columns grow.
    let dense: Vec<_> = (0..200_000).map(|offset_delta| Entry { offset_delta, ..Entry::default() }).collect();
    let data = Batch::new(0, dense).encode();
    assert!(peak(&data) < 8 * data.len(), "{} for {}", peak(&data), data.len());

    // The smallest headers.
    let headers = vec![(vec![], None); 300_000];
    let data = Batch::new(0, vec![Entry { headers, ..Entry::default() }]).encode();
    assert!(peak(&data) < 20 * data.len(), "{} for {}", peak(&data), data.len());
}
