//! Columns that are filled value by value.
//!
//! A column gets the row of each value. Rows without one are filled in when a later row gets a value, or at the end:
//! an absent field costs nothing while a record is decoded, and no list of seen fields is needed. A value for the row
//! that was filled last replaces it, because the last value of a singular field wins. Nothing is undone when a record
//! turns out to be bad: its row becomes null, which hides everything below it.

use arrow_buffer::NullBufferBuilder;

use super::plan::{FieldPlan, MessagePlan, Scalar, Shape, ValueType};

pub enum Column {
    Bool(Fixed<bool>),
    Int32(Fixed<i32>),
    Sint32(Fixed<i32>),
    Sfixed32(Fixed<i32>),
    Int64(Fixed<i64>),
    Sint64(Fixed<i64>),
    Sfixed64(Fixed<i64>),
    Uint32(Fixed<u32>),
    Fixed32(Fixed<u32>),
    Uint64(Fixed<u64>),
    Fixed64(Fixed<u64>),
    Float(Fixed<f32>),
    Double(Fixed<f64>),
    Text(Variable),
    Binary(Variable),
    Enum(Fixed<i32>),
    Instant(Fixed<Instant>),
    Json(JsonText),
    Struct(StructColumn),
    List(Box<ListColumn>),
}

/// google.protobuf.Timestamp or Duration. Kept as it is encoded, since each part may come alone.
#[derive(Clone, Copy, Default)]
pub struct Instant {
    pub seconds: i64,
    pub nanos: i32,
}

macro_rules! each {
    ($column:expr, $inner:ident => $result:expr) => {
        match $column {
            Column::Bool($inner) => $result,
            Column::Int32($inner)
            | Column::Sint32($inner)
            | Column::Sfixed32($inner)
            | Column::Enum($inner) => $result,
            Column::Int64($inner) | Column::Sint64($inner) | Column::Sfixed64($inner) => $result,
            Column::Uint32($inner) | Column::Fixed32($inner) => $result,
            Column::Uint64($inner) | Column::Fixed64($inner) => $result,
            Column::Float($inner) => $result,
            Column::Double($inner) => $result,
            Column::Text($inner) | Column::Binary($inner) => $result,
            Column::Instant($inner) => $result,
            Column::Json($inner) => $result,
            Column::Struct($inner) => $result,
            Column::List($inner) => $result,
        }
    };
}

impl Column {
    pub fn new(field: &FieldPlan) -> Self {
        match field.shape {
            Shape::Singular => Self::of(&field.value, field.presence),
            Shape::Repeated | Shape::Map => {
                Self::List(Box::new(ListColumn { offsets: vec![0], item: Self::of(&field.value, false) }))
            }
        }
    }

    fn of(value: &ValueType, nullable: bool) -> Self {
        match value {
            ValueType::Scalar(scalar) | ValueType::Wrapper(scalar) => Self::scalar(*scalar, nullable),
            ValueType::Enum(_) => Self::Enum(Fixed::new(nullable)),
            ValueType::Message(plan) => Self::Struct(StructColumn::new(plan)),
            ValueType::Timestamp | ValueType::Duration => Self::Instant(Fixed::new(nullable)),
            ValueType::Json(_) => Self::Json(JsonText { text: Variable::new(nullable), encoded: Vec::new() }),
        }
    }

    fn scalar(scalar: Scalar, nullable: bool) -> Self {
        match scalar {
            Scalar::Bool => Self::Bool(Fixed::new(nullable)),
            Scalar::Int32 => Self::Int32(Fixed::new(nullable)),
            Scalar::Sint32 => Self::Sint32(Fixed::new(nullable)),
            Scalar::Sfixed32 => Self::Sfixed32(Fixed::new(nullable)),
            Scalar::Int64 => Self::Int64(Fixed::new(nullable)),
            Scalar::Sint64 => Self::Sint64(Fixed::new(nullable)),
            Scalar::Sfixed64 => Self::Sfixed64(Fixed::new(nullable)),
            Scalar::Uint32 => Self::Uint32(Fixed::new(nullable)),
            Scalar::Fixed32 => Self::Fixed32(Fixed::new(nullable)),
            Scalar::Uint64 => Self::Uint64(Fixed::new(nullable)),
            Scalar::Fixed64 => Self::Fixed64(Fixed::new(nullable)),
            Scalar::Float => Self::Float(Fixed::new(nullable)),
            Scalar::Double => Self::Double(Fixed::new(nullable)),
            Scalar::String => Self::Text(Variable::new(nullable)),
            Scalar::Bytes => Self::Binary(Variable::new(nullable)),
        }
    }

    /// The number of rows that have a value or were filled in. Above `row`, the row has a value.
    #[inline]
    pub fn len(&self) -> usize {
        each!(self, inner => inner.len())
    }

    /// Removes the values from `row` on: another field of the oneof was set.
    pub fn truncate(&mut self, row: usize) {
        each!(self, inner => inner.truncate(row));
    }

    /// Fills in the rows before `rows`.
    pub fn pad(&mut self, rows: usize) {
        each!(self, inner => inner.pad(rows));
    }
}

/// Values of one size. Without `nulls`, absent values are the default.
pub struct Fixed<T> {
    pub values: Vec<T>,
    pub nulls: Option<NullBufferBuilder>,
}

impl<T: Copy + Default> Fixed<T> {
    fn new(nullable: bool) -> Self {
        Self { values: Vec::new(), nulls: nullable.then(|| NullBufferBuilder::new(0)) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.values.len()
    }

    #[inline]
    pub fn set(&mut self, row: usize, value: T) {
        if self.values.len() > row {
            self.values[row] = value;
            return;
        }
        if self.values.len() < row {
            self.pad(row);
        }
        self.values.push(value);
        if let Some(nulls) = &mut self.nulls {
            nulls.append_non_null();
        }
    }

    /// The value of `row`, which is the default if it has none yet.
    pub fn value_mut(&mut self, row: usize) -> &mut T {
        if self.values.len() <= row {
            self.set(row, T::default());
        }
        &mut self.values[row]
    }

    fn truncate(&mut self, row: usize) {
        self.values.truncate(row);
        if let Some(nulls) = &mut self.nulls {
            nulls.truncate(row);
        }
    }

    fn pad(&mut self, rows: usize) {
        let missing = rows.saturating_sub(self.values.len());
        self.values.resize(self.values.len() + missing, T::default());
        if let Some(nulls) = &mut self.nulls {
            nulls.append_n_nulls(missing);
        }
    }
}

/// Values of different sizes, one after the other. Together they are shorter than the 2 GiB that Arrow's offsets reach,
/// because the records are (and the callers check what is longer than its bytes in the record).
pub struct Variable {
    pub data: Vec<u8>,
    pub offsets: Vec<i32>,
    pub nulls: Option<NullBufferBuilder>,
}

impl Variable {
    pub fn new(nullable: bool) -> Self {
        Self { data: Vec::new(), offsets: vec![0], nulls: nullable.then(|| NullBufferBuilder::new(0)) }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    #[inline]
    pub fn set(&mut self, row: usize, value: &[u8]) {
        if self.len() != row {
            if self.len() > row {
                self.truncate(row);
            } else {
                self.pad(row);
            }
        }
        self.data.extend_from_slice(value);
        self.offsets.push(self.data.len() as i32);
        if let Some(nulls) = &mut self.nulls {
            nulls.append_non_null();
        }
    }

    fn truncate(&mut self, row: usize) {
        if row < self.len() {
            self.offsets.truncate(row + 1);
            self.data.truncate(self.offsets[row] as usize);
            if let Some(nulls) = &mut self.nulls {
                nulls.truncate(row);
            }
        }
    }

    fn pad(&mut self, rows: usize) {
        let missing = rows.saturating_sub(self.len());
        self.offsets.resize(self.offsets.len() + missing, self.data.len() as i32);
        if let Some(nulls) = &mut self.nulls {
            nulls.append_n_nulls(missing);
        }
    }
}

/// A google.protobuf.Struct, Value or ListValue as JSON text.
pub struct JsonText {
    pub text: Variable,
    /// The encoded message of the last row. A second occurrence of the field is appended: that merges messages.
    pub encoded: Vec<u8>,
}

impl JsonText {
    #[inline]
    fn len(&self) -> usize {
        self.text.len()
    }

    fn truncate(&mut self, row: usize) {
        self.text.truncate(row);
    }

    fn pad(&mut self, rows: usize) {
        self.text.pad(rows);
    }
}

/// A nested message. Rows without one are null.
pub struct StructColumn {
    len: usize,
    pub nulls: NullBufferBuilder,
    pub columns: Vec<Column>,
}

impl StructColumn {
    pub fn new(plan: &MessagePlan) -> Self {
        Self {
            len: 0,
            nulls: NullBufferBuilder::new(0),
            columns: plan.fields.iter().map(Column::new).collect(),
        }
    }

    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Notes that `row` has a message. A second occurrence is merged into the first one.
    #[inline]
    pub fn begin(&mut self, row: usize) {
        if self.len <= row {
            self.pad(row);
            self.nulls.append_non_null();
            self.len = row + 1;
        }
    }

    /// Notes that `row` has no message, or a bad one.
    pub fn set_null(&mut self, row: usize) {
        if self.len > row {
            self.nulls.truncate(row);
            self.len = row;
        }
        self.pad(row + 1);
    }

    fn truncate(&mut self, row: usize) {
        if row < self.len {
            self.nulls.truncate(row);
            self.len = row;
        }
        for column in &mut self.columns {
            if column.len() > row {
                column.truncate(row);
            }
        }
    }

    pub fn pad(&mut self, rows: usize) {
        if self.len < rows {
            self.nulls.append_n_nulls(rows - self.len);
            self.len = rows;
        }
    }
}

/// A repeated field or a map. Rows without an element are empty, not null.
pub struct ListColumn {
    pub offsets: Vec<i32>,
    pub item: Column,
}

impl ListColumn {
    #[inline]
    fn len(&self) -> usize {
        self.offsets.len() - 1
    }

    /// Prepares `row` for further elements. `close` follows.
    #[inline]
    pub fn open(&mut self, row: usize) {
        if self.len() <= row {
            self.pad(row + 1);
        }
    }

    /// Ends `row` behind the last element of `item`.
    #[inline]
    pub fn close(&mut self, row: usize) {
        self.offsets[row + 1] = self.item.len() as i32;
    }

    fn truncate(&mut self, row: usize) {
        if row < self.len() {
            self.offsets.truncate(row + 1);
            self.item.truncate(self.offsets[row] as usize);
        }
    }

    fn pad(&mut self, rows: usize) {
        let end = self.item.len() as i32;
        // A bad record leaves elements behind its row's end. They stay in its row, which is null.
        if let [_, .., last] = &mut self.offsets[..] {
            *last = end;
        }
        let missing = rows.saturating_sub(self.len());
        self.offsets.resize(self.offsets.len() + missing, end);
    }
}
