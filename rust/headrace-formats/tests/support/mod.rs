//! What holds for any bytes: decoding does not panic, a bad record is null with a reason, and its neighbours are not
//! affected. The fuzz targets check the same.

#![allow(dead_code)] // Not every test uses all of it.

use std::sync::{Arc, LazyLock};

use arrow_array::{Array, BinaryArray};
use arrow_schema::{DataType, Field, TimeUnit};
use headrace_formats::avro::{self, Plan, Plans, Schema};
use headrace_formats::{Decoded, Framing, json};

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn list(item: DataType) -> DataType {
    DataType::List(Arc::new(field("item", item)))
}

fn map(value: DataType) -> DataType {
    let entries = vec![Field::new("key", DataType::Utf8, false), field("value", value)];
    DataType::Map(Arc::new(Field::new("entries", DataType::Struct(entries.into()), false)), false)
}

/// A struct with all types.
pub static JSON_TYPE: LazyLock<DataType> = LazyLock::new(|| {
    let inner = DataType::Struct(vec![field("x", DataType::Int8), field("y", list(DataType::Utf8))].into());
    let types = [
        DataType::Boolean,
        DataType::Int32,
        DataType::UInt64,
        DataType::Float32,
        DataType::Float64,
        DataType::Decimal128(20, 3),
        DataType::Utf8,
        DataType::Binary,
        DataType::Date32,
        DataType::Time64(TimeUnit::Microsecond),
        DataType::Timestamp(TimeUnit::Nanosecond, Some("UTC".into())),
        DataType::Timestamp(TimeUnit::Second, None),
        map(list(DataType::Float64)),
        list(inner.clone()),
        inner,
        DataType::Null,
    ];
    let fields = types.into_iter().enumerate();
    DataType::Struct(fields.map(|(index, each)| field(&format!("f{index}"), each)).collect())
});

static JSON_FIELD: LazyLock<Field> = LazyLock::new(|| field("", JSON_TYPE.clone()));

pub const GOOD_JSON: &[u8] = br#"{"f0":true,"f1":-7,"f2":18446744073709551615,"f3":0.1,"f4":1e-7,"f5":12.3456,
"f6":"\u00e4\ud83d\ude80 text","f7":"AAEC","f8":"2024-02-29","f9":"01:02:03.5","f10":"2026-03-02T06:00:00.125+01:00",
"f11":"2026-03-02","f12":{"k":[1,2],"l":[],"k":[3.5]},"f13":[{"x":1,"y":["a",null]},null],"f14":{"y":[]},"f15":null,
"other":[{"deep":[[1]]}]}"#;

static JSON: LazyLock<json::Decoder> =
    LazyLock::new(|| json::Decoder::new(&JSON_TYPE, Framing::None, json::Zones::default()).unwrap());

pub fn check_json(data: &[u8]) {
    let cells = BinaryArray::from_opt_vec(vec![Some(GOOD_JSON), Some(data), None, Some(GOOD_JSON)]);
    let decoded = JSON.decode(&cells).unwrap();
    check(&decoded);
    if decoded.errors.is_empty() && decoded.column.is_valid(1) {
        // What was read can be written, and is read again.
        let Ok(written) = json::encode(&decoded.column, &JSON_FIELD, Framing::None, 0) else { return };
        let again = JSON.decode(&written).unwrap();
        assert!(again.errors.is_empty(), "{:?}", again.errors);
        assert_eq!(json::encode(&again.column, &JSON_FIELD, Framing::None, 0).unwrap(), written);
    }
}

pub const WRITER: &str = r#"{"type": "record", "name": "R", "fields": [
    {"name": "a", "type": ["null", "long", "string", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "int"}]}]},
    {"name": "skipped", "type": {"type": "map", "values": {"type": "array", "items": ["null", "bytes"]}}},
    {"name": "list", "type": {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}},
    {"name": "nulls", "type": {"type": "array", "items": "null"}},
    {"name": "m", "type": {"type": "map", "values": "float"}},
    {"name": "e", "type": {"type": "enum", "name": "S", "symbols": ["A", "B", "C"]}},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
    {"name": "u", "type": {"type": "fixed", "size": 16, "name": "U", "logicalType": "uuid"}},
    {"name": "t", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "b", "type": "bytes"},
    {"name": "z", "type": "boolean"}]}"#;

pub const READER: &str = r#"{"type": "record", "name": "R", "fields": [
    {"name": "b", "type": ["null", "string"]},
    {"name": "list", "type": {"type": "array", "items": {"type": "record", "name": "E", "fields": [
        {"name": "added", "type": "string", "default": "here"}]}}},
    {"name": "nulls", "type": {"type": "array", "items": "null"}},
    {"name": "a", "type": ["null", "string", "double", {"type": "record", "name": "I", "fields": [{"name": "x", "type": "long"}]}]},
    {"name": "m", "type": {"type": "map", "values": "double"}},
    {"name": "e", "type": {"type": "enum", "name": "S", "symbols": ["A", "C"], "default": "A"}},
    {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 12, "scale": 4}},
    {"name": "u", "type": {"type": "fixed", "size": 16, "name": "U", "logicalType": "uuid"}},
    {"name": "renamed", "aliases": ["t"], "type": {"type": "long", "logicalType": "timestamp-micros"}}]}"#;

pub static GOOD_AVRO: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut bytes = b"\x06\x0e".to_vec(); // a: I {x: 7}
    bytes.extend(b"\x02\x02k\x04\x00\x02\x02v\x00\x00"); // skipped: {k: [null, v]}
    bytes.extend(b"\x06\x00\x04\x00"); // three records, two nulls
    bytes.extend(b"\x01\x0c\x02k\x00\x00\x80\x3f\x00"); // m: a block with its size
    bytes.extend(b"\x02\x04\xff\x85"); // e: B, d: -1.23
    bytes.extend([7; 16]);
    bytes.extend(b"\x80\x80\x01\x04ok\x01");
    bytes
});

struct Avro {
    decoder: avro::Decoder,
    same: avro::Decoder,
    plans: Plans,
    same_plans: Plans,
    writer: Schema,
}

static AVRO: LazyLock<Avro> = LazyLock::new(|| {
    let (writer, reader) = (Schema::parse(WRITER, &[]).unwrap(), Schema::parse(READER, &[]).unwrap());
    let plans = |reader| Plans::from([(0, Ok(Arc::new(Plan::new(&writer, reader).unwrap())))]);
    Avro {
        decoder: avro::Decoder::new(&reader, Framing::None),
        same: avro::Decoder::new(&writer, Framing::None),
        plans: plans(&reader),
        same_plans: plans(&writer),
        writer,
    }
});

pub fn check_avro(data: &[u8]) {
    let avro = &*AVRO;
    let cells = BinaryArray::from_opt_vec(vec![Some(&GOOD_AVRO), Some(data), None, Some(&GOOD_AVRO)]);
    check(&avro.decoder.decode(&cells, &avro.plans).unwrap());
    let decoded = avro.same.decode(&cells, &avro.same_plans).unwrap();
    check(&decoded);
    if decoded.errors.is_empty() {
        let written = avro::encode(&avro.writer, &decoded.column, Framing::None, 0).unwrap();
        let again = avro.same.decode(&written, &avro.same_plans).unwrap();
        if let [(1, reason)] = &again.errors[..] {
            // Lists in several blocks, and numbers in more bytes than they need: what was written is shorter. So it may
            // ask for fewer items without bytes.
            assert!(written.value(1).len() < data.len() && reason.contains("times the memory"), "{reason}");
            return;
        }
        assert!(again.errors.is_empty(), "{:?}", again.errors);
        assert_eq!(&again.column, &decoded.column);
    }
}

pub fn check_avro_schema(text: &str) {
    if let Ok(schema) = Schema::parse(text, &[]) {
        let _ = avro::arrow_type(&schema);
        let _ = Plan::new(&schema, &schema);
    }
}

fn check(decoded: &Decoded) {
    let column = &decoded.column;
    assert_eq!(column.len(), 4);
    assert!(column.is_valid(0) && column.is_null(2) && column.is_valid(3));
    assert_eq!(column.slice(0, 1).to_data(), column.slice(3, 1).to_data());
    match &decoded.errors[..] {
        [] => {}
        [(1, reason)] => assert!(column.is_null(1) && !reason.is_empty()),
        other => panic!("{other:?}"),
    }
}
