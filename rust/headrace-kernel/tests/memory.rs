//! Hostile input does not make the kernel allocate more than its limits allow.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};

use headrace_kernel::{Fetched, decode};

mod support;
use support::{Batch, CODECS, Codec, Entry};

/// Counts what is allocated, and the most there ever was.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(now, Ordering::Relaxed);
        // SAFETY: the caller's promises are ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const MIB: usize = 1 << 20;
const LIMIT: usize = 2 * MIB;
/// lz4 takes the most: a block of up to 4 MiB before it is decompressed, and the same after.
const CODEC_BUFFERS: usize = 10 * MIB;

/// The memory that decoding takes at most, beyond what was there before.
fn peak(data: &[u8]) -> usize {
    let before = NOW.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let _ = decode(data, &Fetched { max_batch_bytes: LIMIT, check_crcs: false, ..Fetched::at(0) });
    PEAK.load(Ordering::Relaxed) - before
}

// One test, because the counters are the process's.
#[test]
fn memory_is_bounded() {
    // Counts that the bytes cannot hold.
    for codec in CODECS {
        let lying = Batch::of(0, 3).codec(codec).count(i32::MAX).last_offset_delta(i32::MAX - 1).encode();
        assert!(peak(&lying) < CODEC_BUFFERS + LIMIT, "{codec:?}: {}", peak(&lying));
    }

    // Bombs: 64 MiB of one byte.
    let bomb = Entry { value: Some(vec![0; 64 * MIB]), ..Entry::default() };
    for codec in CODECS.into_iter().filter(|&codec| codec != Codec::None) {
        let data = Batch::new(0, vec![bomb.clone()]).codec(codec).encode();
        assert!(peak(&data) < CODEC_BUFFERS + LIMIT, "{codec:?}: {}", peak(&data));
    }

    // A snappy block that says it is 4 GiB.
    let block = [0xff, 0xff, 0xff, 0xff, 0x0f, 0, 0];
    assert!(peak(&Batch::of(0, 1).codec(Codec::RawSnappy).body(block.to_vec()).encode()) < MIB);

    // The densest records there can be take four times their bytes in columns, and twice that while growing.
    let dense: Vec<_> = (0..200_000).map(|offset_delta| Entry { offset_delta, ..Entry::default() }).collect();
    let data = Batch::new(0, dense).encode();
    assert!(peak(&data) < 8 * data.len(), "{} for {}", peak(&data), data.len());

    // The same for headers.
    let headers = vec![(vec![], None); 300_000];
    let data = Batch::new(0, vec![Entry { headers, ..Entry::default() }]).encode();
    assert!(peak(&data) < 20 * data.len(), "{} for {}", peak(&data), data.len());
}
