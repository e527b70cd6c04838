//! The Python classes for Avro.

use std::collections::HashMap;
use std::sync::Arc;

use ::arrow_schema::ffi::FFI_ArrowSchema;
use headrace_formats::avro::{self, Decoder, Plan, Plans, Schema, SchemaError};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use crate::arrow_source::import_array;
use crate::formats::{PyDecoded, PyEncoded, decoded, encoded, framing_of, import_cells};

#[pyclass(frozen, module = "headrace._native")]
pub struct AvroSchema(Schema);

#[pymethods]
impl AvroSchema {
    #[new]
    #[pyo3(signature = (text, references=Vec::new()))]
    fn new(text: &str, references: Vec<String>) -> PyResult<Self> {
        let references: Vec<&str> = references.iter().map(String::as_str).collect();
        Schema::parse(text, &references).map(Self).map_err(invalid)
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let schema = FFI_ArrowSchema::try_from(avro::arrow_type(&self.0));
        let schema = schema.map_err(|error| PyRuntimeError::new_err(error.to_string()))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }

    fn fill_defaults(&self, text: &str) -> PyResult<String> {
        avro::fill_defaults(&self.0, text).map_err(|fault| PyValueError::new_err(fault.to_string()))
    }
}

fn invalid(SchemaError(reason): SchemaError) -> PyErr {
    PyValueError::new_err(reason)
}

#[pyclass(frozen, module = "headrace._native")]
pub struct AvroPlan(Arc<Plan>);

#[pymethods]
impl AvroPlan {
    #[new]
    fn new(writer: &AvroSchema, reader: &AvroSchema) -> PyResult<Self> {
        Plan::new(&writer.0, &reader.0).map(|plan| Self(Arc::new(plan))).map_err(invalid)
    }
}

#[pyclass(frozen, module = "headrace._native")]
pub struct AvroDecoder(Decoder);

#[derive(FromPyObject)]
enum PlanOrReason<'py> {
    Plan(Bound<'py, AvroPlan>),
    Reason(String),
}

#[pymethods]
impl AvroDecoder {
    #[new]
    #[pyo3(signature = (reader, *, id_size=0))]
    fn new(reader: &AvroSchema, id_size: usize) -> PyResult<Self> {
        Ok(Self(Decoder::new(&reader.0, framing_of(id_size)?)))
    }

    fn decode(
        &self,
        py: Python<'_>,
        cells: &Bound<'_, PyAny>,
        plans: HashMap<i64, PlanOrReason<'_>>,
    ) -> PyResult<PyDecoded> {
        let cells = import_cells(cells)?;
        let plans: Plans = plans
            .into_iter()
            .map(|(id, found)| match found {
                PlanOrReason::Plan(plan) => (id, Ok(Arc::clone(&plan.get().0))),
                PlanOrReason::Reason(reason) => (id, Err(reason)),
            })
            .collect();
        let result = py.detach(|| self.0.decode(&cells, &plans));
        result.map(decoded).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }
}

#[pyfunction]
#[pyo3(signature = (schema, values, *, id_size=0, schema_id=0))]
pub fn encode_avro(
    py: Python<'_>,
    schema: &Bound<'_, AvroSchema>,
    values: &Bound<'_, PyAny>,
    id_size: usize,
    schema_id: i64,
) -> PyResult<PyEncoded> {
    let framing = framing_of(id_size)?;
    let values = import_array(values)?;
    let schema = &schema.get().0;
    encoded(py.detach(|| avro::encode(schema, &values, framing, schema_id)))
}
