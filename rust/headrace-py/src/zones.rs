//! Time zones, from the files that Python's `zoneinfo` reads.

use std::collections::HashSet;
use std::sync::{Arc, OnceLock};

use headrace_formats::{ZoneDatabase, ZoneSource};
use pyo3::prelude::*;

/// `headrace.formats._zones`.
struct PythonFiles;

impl ZoneSource for PythonFiles {
    fn names(&self) -> Option<HashSet<String>> {
        Python::attach(|py| call(py, "names", ()).and_then(|found| found.extract()).ok())
    }

    fn file(&self, name: &str) -> Option<Vec<u8>> {
        Python::attach(|py| call(py, "file", (name,)).and_then(|found| found.extract()).ok().flatten())
    }
}

fn call<'py>(
    py: Python<'py>,
    function: &str,
    arguments: impl pyo3::call::PyCallArgs<'py>,
) -> PyResult<Bound<'py, PyAny>> {
    py.import("headrace.formats._zones")?.getattr(function)?.call1(arguments)
}

/// That of this process.
pub fn database() -> Arc<ZoneDatabase> {
    static DATABASE: OnceLock<Arc<ZoneDatabase>> = OnceLock::new();
    DATABASE.get_or_init(|| Arc::new(ZoneDatabase::new(Box::new(PythonFiles)))).clone()
}
