//! The Python classes for Protobuf.

use std::collections::HashMap;
use std::sync::Arc;

use headrace_formats::protobuf::{
    MessageName, MessagePlan, Options, Schema, SchemaError, Writers, decode, encode, write_name,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::arrow_source::import_array;
use crate::formats::{PyDecoded, PyEncoded, decoded, encoded, framing_of, import_cells};

#[pyclass(frozen, module = "headrace._native")]
pub struct ProtobufSchema(Arc<Schema>);

#[pymethods]
impl ProtobufSchema {
    #[staticmethod]
    fn from_text(py: Python<'_>, text: &str, references: Vec<(String, String)>) -> PyResult<Self> {
        let references = references.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        py.detach(|| Schema::from_text(text, references)).map(Self::new).map_err(invalid)
    }

    #[staticmethod]
    fn from_descriptors(py: Python<'_>, descriptors: &[u8]) -> PyResult<Self> {
        py.detach(|| Schema::from_descriptors(descriptors)).map(Self::new).map_err(invalid)
    }

    fn files<'py>(&self, py: Python<'py>) -> Vec<(String, Bound<'py, PyBytes>)> {
        let files = self.0.files().into_iter();
        files.map(|(name, bytes)| (name, PyBytes::new(py, &bytes))).collect()
    }
}

impl ProtobufSchema {
    fn new(schema: Schema) -> Self {
        Self(Arc::new(schema))
    }
}

#[pyclass(frozen, module = "headrace._native")]
pub struct ProtobufMessage {
    plan: MessagePlan,
}

#[pymethods]
impl ProtobufMessage {
    #[new]
    #[pyo3(signature = (schema, name, *, unsigned, recursion))]
    fn new(schema: &ProtobufSchema, name: Option<&str>, unsigned: bool, recursion: usize) -> PyResult<Self> {
        let message = schema.0.message(name).map_err(invalid)?;
        let plan = MessagePlan::new(&message, Options { unsigned, recursion }).map_err(invalid)?;
        Ok(Self { plan })
    }

    #[getter]
    fn name(&self) -> &str {
        &self.plan.name
    }

    #[pyo3(signature = (cells, *, id_size, type_reference, schemas))]
    fn decode(
        &self,
        py: Python<'_>,
        cells: &Bound<'_, PyAny>,
        id_size: usize,
        type_reference: bool,
        schemas: HashMap<i64, Bound<'_, PyAny>>,
    ) -> PyResult<PyDecoded> {
        let cells = import_cells(cells)?;
        let schemas = schemas.into_iter().map(|(id, schema)| Ok((id, schema_or_reason(&schema)?)));
        let writers = Writers {
            framing: framing_of(id_size)?,
            name: message_name(type_reference),
            schemas: schemas.collect::<PyResult<_>>()?,
        };
        let result = py.detach(|| decode(&self.plan, &cells, &writers));
        result.map(decoded).map_err(|error| PyRuntimeError::new_err(error.to_string()))
    }

    #[pyo3(signature = (values, *, id_size, schema_id, type_reference, schema))]
    fn encode(
        &self,
        py: Python<'_>,
        values: &Bound<'_, PyAny>,
        id_size: usize,
        schema_id: i64,
        type_reference: bool,
        schema: &ProtobufSchema,
    ) -> PyResult<PyEncoded> {
        let values = import_array(values)?;
        let mut header = Vec::new();
        if id_size > 0 {
            framing_of(id_size)?.write(schema_id, &mut header);
            let name = write_name(message_name(type_reference), &schema.0, &self.plan.name);
            header.append(&mut name.map_err(invalid)?);
        }
        encoded(py.detach(|| encode(&self.plan, &values, &header)))
    }
}

fn message_name(type_reference: bool) -> MessageName {
    if type_reference { MessageName::Reference } else { MessageName::Indexes }
}

fn schema_or_reason(given: &Bound<'_, PyAny>) -> PyResult<Result<Arc<Schema>, String>> {
    match given.cast::<PyString>() {
        Ok(reason) => Ok(Err(reason.to_str()?.to_owned())),
        Err(_) => Ok(Ok(Arc::clone(&given.cast::<ProtobufSchema>()?.get().0))),
    }
}

fn invalid(error: SchemaError) -> PyErr {
    PyValueError::new_err(error.0)
}
