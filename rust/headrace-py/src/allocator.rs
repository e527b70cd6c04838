//! The allocator of the module: mimalloc for columns, that of the C library for everything else.
//!
//! Columns have megabytes; one thread allocates them and another one drops them. The allocator of the C library returns
//! such memory to the operating system, and the next allocation causes a page fault for every 4 KiB. With ten responses
//! of 1 MB in flight, two threads decoded 36 to 42 M records/s with it (250,000 faults per second) and 56 to 86 M with
//! mimalloc (2,000 faults per second), which uses 10 MB more memory.
//!
//! But mimalloc gives each thread that allocates anything a heap of its own, with pages for each size. Consumers have
//! several threads, and most of them only allocate small objects.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::c_long;

use libmimalloc_sys::{mi_option_set_default, mi_option_t};
use mimalloc::MiMalloc;

/// Larger objects are columns, frames, or buffers for them.
const LARGEST_SMALL: usize = 16 * 1024;

/// `mi_option_purge_delay` of mimalloc 3. The crate has no constant for it.
const PURGE_DELAY: mi_option_t = 15;
/// Milliseconds after which freed memory is returned to the operating system if it was not reused. A consumer at full
/// speed reuses it within a few milliseconds. With mimalloc's default of 1,000, it used 20 MB more.
const SOON: c_long = 100;

#[global_allocator]
static ALLOCATOR: BySize = BySize;

struct BySize;

impl BySize {
    fn is_small(size: usize) -> bool {
        size <= LARGEST_SMALL
    }
}

// SAFETY: the size of an object tells which of two correct allocators it belongs to. `realloc` moves an object whose new
// size belongs to the other one, as its default implementation does.
unsafe impl GlobalAlloc for BySize {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller guarantees what both need.
        unsafe { if Self::is_small(layout.size()) { System.alloc(layout) } else { MiMalloc.alloc(layout) } }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        let is_small = Self::is_small(layout.size());
        // SAFETY: as above.
        unsafe { if is_small { System.alloc_zeroed(layout) } else { MiMalloc.alloc_zeroed(layout) } }
    }

    unsafe fn dealloc(&self, object: *mut u8, layout: Layout) {
        let is_small = Self::is_small(layout.size());
        // SAFETY: as above, and the layout is the one with which the object was allocated.
        unsafe { if is_small { System.dealloc(object, layout) } else { MiMalloc.dealloc(object, layout) } }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: as above. The new layout is valid because the caller guarantees that for `size`. The two objects do not
        // overlap, and both have the bytes that are copied.
        unsafe {
            match (Self::is_small(layout.size()), Self::is_small(size)) {
                (true, true) => System.realloc(object, layout, size),
                (false, false) => MiMalloc.realloc(object, layout, size),
                _ => {
                    let moved = self.alloc(Layout::from_size_align_unchecked(size, layout.align()));
                    if !moved.is_null() {
                        moved.copy_from_nonoverlapping(object, layout.size().min(size));
                        self.dealloc(object, layout);
                    }
                    moved
                }
            }
        }
    }
}

/// Sets the options of mimalloc. (MIMALLOC_PURGE_DELAY in the environment takes precedence.)
pub fn configure() {
    // SAFETY: two threads must not set options at the same time. Python loads a module once, and no other code uses this
    // copy of mimalloc.
    unsafe { mi_option_set_default(PURGE_DELAY, SOON) };
}
