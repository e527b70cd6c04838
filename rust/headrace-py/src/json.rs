//! The Python classes for JSON.

use headrace_formats::json::{self, Decoder, Zones};
use pyo3::exceptions::{PyLookupError, PyRuntimeError, PyTypeError};
use pyo3::prelude::*;

use crate::arrow_source::{import_array, import_field, import_type};
use crate::formats::{PyDecoded, PyEncoded, decoded, encoded, framing_of, import_cells, text_of};
use crate::zones;

#[pyclass(frozen, module = "headrace._native")]
pub struct JsonDecoder(Decoder);

#[pymethods]
impl JsonDecoder {
    #[new]
    #[pyo3(signature = (schema, *, id_size=0, timezone="UTC"))]
    fn new(schema: &Bound<'_, PyAny>, id_size: usize, timezone: &str) -> PyResult<Self> {
        let data_type = import_type(schema)?;
        let framing = framing_of(id_size)?;
        let database = zones::database();
        let Some(default) = database.parse(timezone) else {
            return Err(PyLookupError::new_err(timezone.to_owned()));
        };
        Decoder::new(&data_type, framing, Zones { default, database })
            .map(Self)
            .map_err(|error| PyTypeError::new_err(text_of(error)))
    }

    fn decode(&self, py: Python<'_>, cells: &Bound<'_, PyAny>) -> PyResult<PyDecoded> {
        let cells = import_cells(cells)?;
        let result = py.detach(|| self.0.decode(&cells));
        result.map(decoded).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

#[pyfunction]
#[pyo3(signature = (values, field, *, id_size=0, schema_id=0))]
pub fn encode_json(
    py: Python<'_>,
    values: &Bound<'_, PyAny>,
    field: &Bound<'_, PyAny>,
    id_size: usize,
    schema_id: i64,
) -> PyResult<PyEncoded> {
    let framing = framing_of(id_size)?;
    let values = import_array(values)?;
    let field = import_field(field)?;
    encoded(py.detach(|| json::encode(&values, &field, framing, schema_id)))
}
