//! Decoding of a column, record by record.

use arrow_array::{Array, ArrayRef, BinaryArray};
use arrow_buffer::OffsetBuffer;
use arrow_schema::{ArrowError, DataType};

use crate::column::{Column, offset_of};
use crate::fault::Result;

/// A decoded column, and why some of its rows are null.
pub struct Decoded {
    pub column: ArrayRef,
    /// Row and reason, in order.
    pub errors: Vec<(usize, String)>,
}

/// Decodes every row with `read`, which appends one value to the column. Null stays null. After an error, whatever
/// `read` has appended is dropped, and the row becomes null.
///
/// The error of this function is a type that a column cannot have.
pub fn decode_rows(
    cells: &BinaryArray,
    data_type: &DataType,
    mut read: impl FnMut(&[u8], &mut Column) -> Result<()>,
) -> std::result::Result<Decoded, ArrowError> {
    let mut column = Column::new(data_type, cells.len())?;
    let mut errors = Vec::new();
    for row in 0..cells.len() {
        if cells.is_null(row) {
            column.push_null();
            continue;
        }
        if let Err(fault) = read(cells.value(row), &mut column) {
            column.truncate(row);
            column.push_null();
            errors.push((row, fault.to_string()));
        }
        debug_assert_eq!(column.len(), row + 1);
    }
    Ok(Decoded { column: column.finish()?, errors })
}

/// A row that cannot be encoded, and why.
#[derive(Debug)]
pub enum EncodeError {
    Row(usize, String),
    /// The column has another type than the encoder's, or all rows together are too large.
    Column(String),
}

/// Encodes every row of `values` with `write`, which appends bytes. Null stays null.
pub fn encode_rows(
    values: &dyn Array,
    mut write: impl FnMut(usize, &mut Vec<u8>) -> Result<()>,
) -> std::result::Result<BinaryArray, EncodeError> {
    let mut offsets = Vec::with_capacity(values.len() + 1);
    offsets.push(0_i32);
    let mut bytes = Vec::new();
    let nulls = values.logical_nulls();
    for row in 0..values.len() {
        if !nulls.as_ref().is_some_and(|nulls| nulls.is_null(row)) {
            write(row, &mut bytes).map_err(|fault| EncodeError::Row(row, fault.to_string()))?;
        }
        let Ok(end) = offset_of(bytes.len()) else {
            return Err(EncodeError::Column("the encoded records have more than 2 GiB".into()));
        };
        offsets.push(end);
    }
    BinaryArray::try_new(OffsetBuffer::new(offsets.into()), bytes.into(), nulls)
        .map_err(|error| EncodeError::Column(error.to_string()))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use arrow_array::StringArray;
    use arrow_array::cast::AsArray;
    use arrow_schema::Field;

    use super::*;
    use crate::{Framing, avro, json, protobuf};

    const TOO_LARGE: &str = "more than 2 GiB of text, bytes or items in one column";

    /// In unit tests, a column has room for 64 KiB. The records that do not fit are errors, and the others are not.
    fn check(decoded: &Decoded, fits: usize, records: usize) {
        decoded.column.to_data().validate_full().unwrap();
        let bad: Vec<usize> = decoded.errors.iter().map(|(row, _)| *row).collect();
        assert_eq!(bad, (fits..records).collect::<Vec<_>>());
        assert!(decoded.errors.iter().all(|(_, reason)| reason.contains(TOO_LARGE)));
        assert_eq!(decoded.column.null_count(), records - fits);
    }

    #[test]
    fn json_that_does_not_fit_into_a_column_is_an_error_of_its_record() {
        let text = format!("\"{}\"", "x".repeat(20_000));
        let cells = BinaryArray::from_iter_values([&text, &text, &text, &text, "\"small\""]);
        let decoded = json::Decoder::new(&DataType::Utf8, Framing::None, json::Zones::default())
            .unwrap()
            .decode(&cells)
            .unwrap();
        assert_eq!(decoded.errors.iter().map(|(row, _)| *row).collect::<Vec<_>>(), [3]);
        assert_eq!(decoded.column.as_string::<i32>().value(4), "small");
        let items = format!("[{}]", vec!["null"; 40_000].join(","));
        let cells = BinaryArray::from_iter_values([&items, &items]);
        let list = DataType::new_list(DataType::Null, true);
        check(
            &json::Decoder::new(&list, Framing::None, json::Zones::default())
                .unwrap()
                .decode(&cells)
                .unwrap(),
            1,
            2,
        );
    }

    #[test]
    fn avro_that_becomes_longer_than_its_bytes_may_not_fit() {
        let schema = r#"{"type":"fixed","name":"U","size":16,"logicalType":"uuid"}"#;
        let schema = avro::Schema::parse(schema, &[]).unwrap();
        let plans = avro::Plans::from([(0, Ok(Arc::new(avro::Plan::new(&schema, &schema).unwrap())))]);
        let cells = BinaryArray::from_iter_values(vec![[7; 16]; 2000]);
        let decoded = avro::Decoder::new(&schema, Framing::None).decode(&cells, &plans).unwrap();
        check(&decoded, (1 << 16) / 36, 2000);
    }

    #[test]
    fn names_of_protobuf_enums_may_not_fit() {
        // No name is longer than the eleven characters of a number.
        let fits = (1 << 16) / 11;
        for (fields, record) in [
            ("E e = 1;", vec![]),
            ("M m = 1; message M { E e = 1; }", vec![0x0a, 0]),
            ("repeated E e = 1;", vec![0x0a, 1, 1]),
            ("map<string, E> e = 1;", vec![0x0a, 0]),
        ] {
            let text =
                format!("syntax = \"proto3\"; message A {{ {fields} }} enum E {{ ZERO = 0; ONE = 1; }}");
            let schema = protobuf::Schema::from_text(&text, []).unwrap();
            let plan =
                protobuf::MessagePlan::new(&schema.message(None).unwrap(), Default::default()).unwrap();
            let cells = BinaryArray::from_iter_values(vec![record; 10_000]);
            check(&protobuf::decode(&plan, &cells, &protobuf::Writers::none()).unwrap(), fits, 10_000);
        }
    }

    #[test]
    fn defaults_of_protobuf_maps_may_not_fit() {
        let text = "syntax = \"proto3\"; import \"google/protobuf/struct.proto\";
            message A { map<string, google.protobuf.Value> m = 1; }";
        let schema = protobuf::Schema::from_text(text, []).unwrap();
        let plan = protobuf::MessagePlan::new(&schema.message(None).unwrap(), Default::default()).unwrap();
        let cells = BinaryArray::from_iter_values(vec![[0x0a, 0]; 20_000]);
        // Each is null, in two bytes.
        check(&protobuf::decode(&plan, &cells, &protobuf::Writers::none()).unwrap(), (1 << 16) / 4, 20_000);
    }

    #[test]
    fn columns_that_are_too_large_to_encode_are_refused() {
        let values = StringArray::from(vec!["x".repeat(30_000); 3]);
        let field = Field::new("", DataType::Utf8, true);
        let error = json::encode(&values, &field, Framing::None, 0).unwrap_err();
        assert!(matches!(error, EncodeError::Column(reason) if reason.contains("more than 2 GiB")));
    }
}
