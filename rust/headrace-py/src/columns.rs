//! The kernel's columns as Arrow arrays.

use std::sync::{Arc, LazyLock};

use arrow_array::{Array, BinaryArray, ListArray, StringArray, StructArray};
use arrow_buffer::{BooleanBuffer, Buffer, NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow_schema::{ArrowError, DataType, Field, Fields};
use headrace_kernel::{BinaryColumn, HeaderColumns, Run, StringColumn, Validity};

/// The records of one partition. Cloning is cheap, because the arrays are shared.
pub struct Columns {
    pub offsets: ScalarBuffer<i64>,
    /// Milliseconds; −1 where there is none.
    pub timestamps: ScalarBuffer<i64>,
    pub keys: BinaryArray,
    pub values: BinaryArray,
    /// None where no record has a header.
    pub headers: Option<Headers>,
    pub runs: Vec<Run>,
}

/// The headers of all records: one list per record, null if the record has none.
pub struct Headers {
    pub lists: ListArray,
    pub keys: StringArray,
    pub values: BinaryArray,
}

impl Columns {
    /// Converts the kernel's vectors without a copy. Arrow validates them; this cannot fail for the kernel's output.
    pub fn new(columns: headrace_kernel::Columns) -> Result<Self, ArrowError> {
        Ok(Self {
            offsets: ScalarBuffer::from(columns.offsets),
            timestamps: ScalarBuffer::from(columns.timestamps),
            keys: binary_array(columns.keys)?,
            values: binary_array(columns.values)?,
            headers: columns.headers.map(Headers::new).transpose()?,
            runs: columns.runs,
        })
    }

    /// The run that `row` belongs to.
    pub fn run(&self, row: usize) -> Option<&Run> {
        match &self.runs[..] {
            [only] => Some(only),
            runs => runs.get(runs.partition_point(|run| run.end <= row)),
        }
    }
}

impl Headers {
    pub fn new(columns: HeaderColumns) -> Result<Self, ArrowError> {
        let offsets = columns.offsets;
        let present = BooleanBuffer::collect_bool(offsets.len() - 1, |row| offsets[row] != offsets[row + 1]);
        let keys = string_array(columns.keys)?;
        let values = binary_array(columns.values)?;
        let entries = StructArray::try_new(
            header_fields(),
            vec![Arc::new(keys.clone()), Arc::new(values.clone())],
            None,
        )?;
        let lists = ListArray::try_new(
            header_item(),
            OffsetBuffer::new(offsets.into()),
            Arc::new(entries),
            Some(NullBuffer::new(present)),
        )?;
        Ok(Self { lists, keys, values })
    }
}

static HEADER_FIELDS: LazyLock<Fields> = LazyLock::new(|| {
    Fields::from(vec![Field::new("key", DataType::Utf8, true), Field::new("value", DataType::Binary, true)])
});
static HEADER_ITEM: LazyLock<Arc<Field>> =
    LazyLock::new(|| Arc::new(Field::new("item", DataType::Struct(header_fields()), true)));

pub fn header_fields() -> Fields {
    HEADER_FIELDS.clone()
}

pub fn header_item() -> Arc<Field> {
    Arc::clone(&HEADER_ITEM)
}

fn binary_array(column: BinaryColumn) -> Result<BinaryArray, ArrowError> {
    let rows = column.offsets.len() - 1;
    BinaryArray::try_new(
        OffsetBuffer::new(column.offsets.into()),
        Buffer::from_vec(column.data),
        null_buffer(column.validity, rows),
    )
}

fn string_array(column: StringColumn) -> Result<StringArray, ArrowError> {
    StringArray::try_new(OffsetBuffer::new(column.offsets.into()), Buffer::from_vec(column.data), None)
}

fn null_buffer(validity: Validity, rows: usize) -> Option<NullBuffer> {
    let bits = validity.into_bits(rows)?;
    Some(NullBuffer::new(BooleanBuffer::new(Buffer::from_vec(bits), 0, rows)))
}

/// The bytes of `row`, or None if it is null.
#[inline]
pub fn get(array: &BinaryArray, row: usize) -> Option<&[u8]> {
    array.is_valid(row).then(|| array.value(row))
}
