//! Small records that ask for much memory or time are errors; so are such schemas. Wide and sparse records are not.

use std::fmt::Write;
use std::sync::Arc;

use arrow_array::{Array, BinaryArray};
use arrow_schema::{DataType, Field};
use headrace_formats::avro::{self, Plan, Plans, Schema};
use headrace_formats::{Decoded, Framing, json};

const OVER: &str = "more than 1024 times the memory";

fn avro(writer: &str, reader: &str, records: &[&[u8]]) -> Decoded {
    let (writer, reader) = (Schema::parse(writer, &[]).unwrap(), Schema::parse(reader, &[]).unwrap());
    let plans = Plans::from([(0, Ok(Arc::new(Plan::new(&writer, &reader).unwrap())))]);
    let cells = BinaryArray::from_iter_values(records);
    avro::Decoder::new(&reader, Framing::None).decode(&cells, &plans).unwrap()
}

fn json(data_type: DataType, records: &[&[u8]]) -> Decoded {
    let cells = BinaryArray::from_iter_values(records);
    json::Decoder::new(&data_type, Framing::None, json::Zones::default()).unwrap().decode(&cells).unwrap()
}

fn assert_over(decoded: &Decoded) {
    assert_eq!(decoded.errors.len(), 1, "{:?}", decoded.errors);
    assert!(decoded.errors[0].1.contains(OVER), "{:?}", decoded.errors);
    assert!(decoded.column.is_null(0));
}

/// A number as Avro writes it.
fn long(value: i64) -> Vec<u8> {
    let mut rest = (value << 1) as u64;
    let mut bytes = Vec::new();
    while rest >= 0x80 {
        bytes.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    bytes.push(rest as u8);
    bytes
}

/// A block with so many items, of which none has bytes.
fn empty_items(count: i64) -> Vec<u8> {
    [long(count), vec![0]].concat()
}

fn record(name: &str, fields: &str) -> String {
    format!(r#"{{"type":"record","name":"{name}","fields":[{fields}]}}"#)
}

fn array(items: &str) -> String {
    format!(r#"{{"type":"array","items":{items}}}"#)
}

/// Fields with this type and default.
fn fields(count: usize, kind: &str, default: &str) -> String {
    let mut text = String::new();
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(text, r#"{comma}{{"name":"f{number}","type":{kind},"default":{default}}}"#).unwrap();
    }
    text
}

fn wide(count: usize) -> DataType {
    DataType::Struct(
        (0..count).map(|number| Field::new(format!("f{number}"), DataType::Int64, true)).collect(),
    )
}

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(Field::new("item", item, true)))
}

#[test]
fn avro_items_without_bytes_are_counted() {
    let nulls = array(r#""null""#);
    assert!(avro(&nulls, &nulls, &[&empty_items(10_000)]).errors.is_empty());
    let records = array(&record("E", ""));
    for schema in [&nulls, &records] {
        for count in [1_000_000, 1 << 40, i64::MAX >> 1] {
            assert_over(&avro(schema, schema, &[&empty_items(count)]));
        }
        // In many blocks.
        assert_over(&avro(schema, schema, &[&[long(10_000).repeat(100), vec![0]].concat()]));
        // In an array of arrays, each of which is small enough.
        let nested = array(schema);
        let record = [long(100), empty_items(60_000).repeat(100), vec![0]].concat();
        assert_over(&avro(&nested, &nested, &[&record]));
    }
}

#[test]
fn avro_items_that_are_skipped_are_counted() {
    let item = record("N", &fields(1000, r#""null""#, "null"));
    let writer = record("R", &format!(r#"{{"name":"skipped","type":{}}}"#, array(&item)));
    let reader = record("R", "");
    assert!(avro(&writer, &reader, &[&empty_items(50)]).errors.is_empty());
    // Each takes a thousand steps.
    assert_over(&avro(&writer, &reader, &[&empty_items(1000)]));
    assert_over(&avro(&writer, &reader, &[&empty_items(1 << 40)]));
}

#[test]
fn avro_defaults_in_items_are_counted() {
    let writer = array(&record("E", ""));
    for fields in [
        fields(5000, r#""long""#, "0"),
        fields(1, r#""string""#, &format!(r#""{}""#, "x".repeat(40_000))),
        fields(1, &array(r#""long""#), &format!("[0{}]", ",0".repeat(10_000))),
    ] {
        let reader = array(&record("E", &fields));
        assert!(avro(&writer, &reader, &[&empty_items(1)]).errors.is_empty());
        assert_over(&avro(&writer, &reader, &[&empty_items(1000)]));
    }
}

#[test]
fn avro_enums_with_long_names_are_counted() {
    let symbols = format!(r#"{{"type":"enum","name":"S","symbols":["{}"]}}"#, "x".repeat(30_000));
    let schema = array(&symbols);
    let record = |count: usize| [long(count as i64), vec![0; count], vec![0]].concat();
    assert!(avro(&schema, &schema, &[&record(2)]).errors.is_empty());
    assert_over(&avro(&schema, &schema, &[&record(1000)]));
}

#[test]
fn one_item_of_each_list_is_free() {
    let nested = list(list(wide(10_000)));
    assert!(json(nested.clone(), &[b"[[{}]]"]).errors.is_empty());
    let many = format!("[{}]", ["[{}]"; 100].join(","));
    assert_over(&json(nested, &[many.as_bytes()]));
    let item = record("E", &fields(1, r#""string""#, &format!(r#""{}""#, "x".repeat(200_000))));
    assert!(avro(&array(&record("E", "")), &array(&item), &[&empty_items(1)]).errors.is_empty());
}

#[test]
fn the_defaults_of_an_avro_record_itself_are_free() {
    let text = format!(r#""{}""#, "x".repeat(200_000));
    let reader = record("R", &[fields(2, r#""string""#, &text)].concat());
    let decoded = avro(&record("R", ""), &reader, &[b"", b""]);
    assert!(decoded.errors.is_empty(), "{:?}", decoded.errors);
    assert!(decoded.column.get_buffer_memory_size() >= 800_000);
}

/// The text has a kilobyte for each level, and the default of the last one two to the power of its levels.
#[test]
fn avro_defaults_that_multiply_are_refused() {
    let mut reader = record("T0", &fields(1, r#""string""#, &format!(r#""{}""#, "x".repeat(1000))));
    for level in 1..14 {
        let inner = format!(r#"{{"name":"x","type":{reader},"default":{{}}}}"#);
        let name = level - 1;
        reader = record(
            &format!("T{level}"),
            &format!(r#"{inner},{{"name":"y","type":"T{name}","default":{{}}}}"#),
        );
    }
    let (writer, reader) =
        (Schema::parse(&record("T13", ""), &[]).unwrap(), Schema::parse(&reader, &[]).unwrap());
    let error = Plan::new(&writer, &reader).err().unwrap().0;
    assert!(error.contains("the defaults of the schema are larger than 1024 KiB"), "{error}");
    // An array of empty records, each of which has defaults.
    let item = record("E", &fields(1000, r#""long""#, "0"));
    let many = format!("[{{}}{}]", ",{}".repeat(5000));
    let reader = record("R", &format!(r#"{{"name":"a","type":{},"default":{many}}}"#, array(&item)));
    let (writer, reader) =
        (Schema::parse(&record("R", ""), &[]).unwrap(), Schema::parse(&reader, &[]).unwrap());
    assert!(Plan::new(&writer, &reader).is_err());
}

#[test]
fn json_items_of_wide_types_are_counted() {
    let objects = |count: usize| format!("[{{}}{}]", ",{}".repeat(count - 1));
    assert!(json(list(wide(10_000)), &[objects(1).as_bytes()]).errors.is_empty());
    assert_over(&json(list(wide(10_000)), &[objects(1000).as_bytes()]));
    assert!(json(list(wide(10)), &[objects(100_000).as_bytes()]).errors.is_empty());
    let nulls = format!("[null{}]", ",null".repeat(999));
    assert_over(&json(list(wide(10_000)), &[nulls.as_bytes()]));
    let entries = vec![Field::new("key", DataType::Utf8, false), Field::new("value", wide(10_000), true)];
    let map = DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries.into()), false)), false);
    let mut text = "{".to_owned();
    for number in 0..1000 {
        write!(text, "\"{number}\":{{}},").unwrap();
    }
    assert_over(&json(map, &[format!("{}}}", text.trim_end_matches(',')).as_bytes()]));
    // Memory is not used here, but time.
    let repeated = format!("{{{}}}", vec![r#""a":{}"#; 1000].join(","));
    assert_over(&json(
        DataType::Struct(vec![Field::new("a", wide(10_000), true)].into()),
        &[repeated.as_bytes()],
    ));
}

#[test]
fn sparse_json_of_a_wide_type_is_not_an_error() {
    let decoded = json(wide(20_000), &[b"{}", br#"{"f19999":1}"#, b"null", b"{}"]);
    assert!(decoded.errors.is_empty(), "{:?}", decoded.errors);
}
