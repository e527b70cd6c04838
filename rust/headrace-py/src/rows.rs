//! The columns of an Arrow batch whose rows become records.

use std::collections::HashMap;

use arrow_array::{Array, ArrayRef, StructArray, new_empty_array};
use arrow_schema::Fields;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

use crate::cells::{Cells, HeaderLists, Integers, Times};

/// The columns that are read.
const COLUMNS: [&str; 6] = ["key", "value", "headers", "timestamp", "partition", "topic"];
/// The other columns of `headrace.Records`, so that these can be sent without a selection of columns.
const IGNORED: [&str; 3] = ["offset", "timestampType", "lane"];

/// The columns in a batch.
pub struct Layout {
    /// Their indices, in the order of [`COLUMNS`].
    indices: [Option<usize>; COLUMNS.len()],
    /// Whether the records were read from Kafka.
    is_of_kafka: bool,
}

impl Layout {
    /// Checks the names and types of all columns except for those that are `ignored`.
    pub fn new(
        fields: &Fields,
        ignored: &[String],
        ignores_other_columns: bool,
        is_of_kafka: bool,
    ) -> PyResult<Self> {
        let mut indices = [None; COLUMNS.len()];
        for (index, field) in fields.iter().enumerate() {
            let name = field.name().as_str();
            if ignored.iter().any(|each| each == name) {
                continue;
            }
            if let Some(column) = COLUMNS.iter().position(|&known| known == name) {
                if indices[column].replace(index).is_some() {
                    return Err(PyValueError::new_err(format!("there are two columns '{name}'")));
                }
            } else if !ignores_other_columns && !IGNORED.contains(&name) {
                return Err(PyValueError::new_err(format!(
                    "unknown column '{name}'. Records are made from the columns {}; the columns {} are ignored",
                    COLUMNS.join(", "),
                    IGNORED.join(", "),
                )));
            }
        }
        if indices[1].is_none() {
            return Err(PyValueError::new_err("the column 'value' is missing"));
        }
        Rows::read(0, is_of_kafka, |column| Some(new_empty_array(fields[indices[column]?].data_type())))?;
        Ok(Self { indices, is_of_kafka })
    }
}

/// The rows of one Arrow batch.
pub struct Rows {
    pub len: usize,
    pub keys: Cells,
    pub values: Cells,
    pub headers: Option<HeaderLists>,
    pub timestamps: Option<Times>,
    pub partitions: Option<Integers>,
    topics: Option<Cells>,
}

impl Rows {
    pub fn new(batch: &StructArray, layout: &Layout) -> PyResult<Self> {
        let array = |column: usize| Some(ArrayRef::clone(batch.column(layout.indices[column]?)));
        Self::read(batch.len(), layout.is_of_kafka, array)
    }

    fn read(len: usize, is_of_kafka: bool, array: impl Fn(usize) -> Option<ArrayRef>) -> PyResult<Self> {
        let times = |array: &dyn Array| Times::new(array, is_of_kafka);
        Ok(Self {
            len,
            keys: column(&array, 0, Cells::bytes, Cells::BYTES)?.unwrap_or(Cells::MISSING),
            values: column(&array, 1, Cells::bytes, Cells::BYTES)?.unwrap_or(Cells::MISSING),
            headers: column(&array, 2, HeaderLists::new, HeaderLists::TYPES)?,
            timestamps: column(&array, 3, times, Times::TYPES)?,
            partitions: column(&array, 4, Integers::new, Integers::TYPES)?,
            topics: column(&array, 5, Cells::text, Cells::TEXT)?,
        })
    }

    /// The rows of each topic, in the order of appearance.
    ///
    /// The error is a row with an invalid topic, and the reason.
    pub fn topics(&self) -> Result<Vec<TopicRows>, (usize, &'static str)> {
        let Some(column) = &self.topics else { return Ok(vec![TopicRows::all(String::new(), self.len)]) };
        let mut topics: Vec<(Option<&[u8]>, Vec<usize>)> = Vec::new();
        let mut found: HashMap<Option<&[u8]>, usize> = HashMap::new();
        let mut last = usize::MAX;
        for row in 0..self.len {
            let topic = column.get(row);
            // Most rows have the topic of the previous row.
            if topics.get(last).is_none_or(|(other, _)| *other != topic) {
                if topic.is_some_and(<[u8]>::is_empty) {
                    return Err((row, "the topic is empty"));
                }
                last = *found.entry(topic).or_insert(topics.len());
                if last == topics.len() {
                    topics.push((topic, Vec::new()));
                }
            }
            topics[last].1.push(row);
        }
        let is_only = topics.len() == 1;
        let named = |(topic, rows): (Option<&[u8]>, Vec<usize>)| {
            let name = String::from_utf8(topic.unwrap_or_default().to_vec())
                .map_err(|_| (rows[0], "the topic is not valid UTF-8"))?;
            Ok(if is_only { TopicRows::all(name, self.len) } else { TopicRows::some(name, rows) })
        };
        topics.into_iter().map(named).collect()
    }
}

fn column<T>(
    array: &impl Fn(usize) -> Option<ArrayRef>,
    index: usize,
    read: impl Fn(&dyn Array) -> Option<T>,
    expected: &str,
) -> PyResult<Option<T>> {
    let Some(array) = array(index) else { return Ok(None) };
    match read(&array) {
        Some(column) => Ok(Some(column)),
        None => Err(PyTypeError::new_err(format!(
            "the column '{}' has the type {}; expected {expected}",
            COLUMNS[index],
            array.data_type(),
        ))),
    }
}

/// The rows of one topic in an Arrow batch, and how many of them are encoded.
pub struct TopicRows {
    /// Empty for rows without a topic.
    pub topic: String,
    /// None for all rows of the Arrow batch.
    rows: Option<Vec<usize>>,
    len: usize,
    pub encoded: usize,
}

impl TopicRows {
    fn all(topic: String, len: usize) -> Self {
        Self { topic, rows: None, len, encoded: 0 }
    }

    fn some(topic: String, rows: Vec<usize>) -> Self {
        let len = rows.len();
        Self { topic, rows: Some(rows), len, encoded: 0 }
    }

    /// The next row that is not encoded.
    #[inline]
    pub fn next(&self) -> Option<usize> {
        match &self.rows {
            None => (self.encoded < self.len).then_some(self.encoded),
            Some(rows) => rows.get(self.encoded).copied(),
        }
    }
}
