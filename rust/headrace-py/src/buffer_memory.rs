//! The memory of a producer's records that are not delivered yet: buffer.memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pyo3::prelude::*;

/// The bytes of records that are not delivered yet. All batches of a producer share this counter.
#[pyclass(module = "headrace._native", frozen)]
pub struct BufferMemory {
    #[pyo3(get)]
    pub limit: usize,
    used: Arc<AtomicUsize>,
}

impl BufferMemory {
    pub fn counter(&self) -> Arc<AtomicUsize> {
        self.used.clone()
    }
}

#[pymethods]
impl BufferMemory {
    #[new]
    fn new(limit: usize) -> Self {
        Self { limit, used: Arc::default() }
    }

    #[getter]
    fn used(&self) -> usize {
        self.used.load(Ordering::Relaxed)
    }

    fn take(&self, size: usize) {
        self.used.fetch_add(size, Ordering::Relaxed);
    }

    fn release(&self, size: usize) {
        self.used.fetch_sub(size, Ordering::Relaxed);
    }

    /// A reservation of nothing, which can grow.
    fn reservation(&self) -> MemoryReservation {
        MemoryReservation { used: self.counter(), limit: self.limit, held: 0 }
    }
}

/// Memory for records that are about to be encoded. What is left of it when the object ends is released: an interrupt
/// (Ctrl-C) between any two steps of Python must not take memory away forever.
#[pyclass(module = "headrace._native")]
pub struct MemoryReservation {
    used: Arc<AtomicUsize>,
    limit: usize,
    #[pyo3(get)]
    held: usize,
}

/// Each method is one step for all threads: they run with the GIL.
#[pymethods]
impl MemoryReservation {
    fn grow(&mut self, least: usize, most: usize) -> bool {
        let free = self.limit.saturating_sub(self.used.load(Ordering::Relaxed));
        let (needed, wanted) = (least.saturating_sub(self.held), most.saturating_sub(self.held));
        if free < needed {
            return false;
        }
        let taken = wanted.max(needed).min(free);
        self.used.fetch_add(taken, Ordering::Relaxed);
        self.held += taken;
        true
    }

    fn hand_over(&mut self, size: usize) {
        let own = size.min(self.held);
        self.held -= own;
        self.used.fetch_add(size - own, Ordering::Relaxed);
    }

    fn release(&mut self) {
        self.used.fetch_sub(std::mem::take(&mut self.held), Ordering::Relaxed);
    }
}

impl Drop for MemoryReservation {
    fn drop(&mut self) {
        self.release();
    }
}
