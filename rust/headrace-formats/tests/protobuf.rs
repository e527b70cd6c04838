//! Protobuf: bytes that are easy to get wrong, and bytes that are hostile.

#[path = "support/protobuf.rs"]
mod support;

use arrow_array::cast::AsArray;
use arrow_array::types::Int32Type;
use arrow_array::{Array, BinaryArray, StructArray};
use headrace_formats::protobuf::{MessagePlan, Options, Schema, Writers, decode};
use proptest::prelude::*;
use support::{EVERYTHING, GROUPS, check, framed, plan};

/// A field with a length and bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    [&tag(number, 2)[..], &[bytes.len() as u8], bytes].concat()
}

fn tag(number: u8, wire: u8) -> Vec<u8> {
    if number < 16 { vec![number << 3 | wire] } else { vec![(number & 15) << 3 | wire | 0x80, number >> 4] }
}

fn one(text: &str, record: &[u8]) -> Result<StructArray, String> {
    let decoded = check(&plan(text), &Writers::none(), &[record]);
    match decoded.errors.first() {
        None => Ok(decoded.column.as_struct().clone()),
        Some((_, reason)) => Err(reason.clone()),
    }
}

fn int(row: &StructArray, name: &str) -> Option<i32> {
    let column = row.column_by_name(name).unwrap().as_primitive::<Int32Type>();
    column.is_valid(0).then(|| column.value(0))
}

#[test]
fn the_last_value_wins() {
    let row = one(EVERYTHING, &[0x10, 1, 0x10, 5, 0x72, 1, b'a', 0x72, 2, b'b', b'c']).unwrap();
    assert_eq!(int(&row, "i32"), Some(5));
    assert_eq!(row.column_by_name("text").unwrap().as_string::<i32>().value(0), "bc");
}

#[test]
fn messages_are_merged() {
    let record = [field(17, &[0x08, 1, 0x12, 1, b'a']), field(17, &[0x08, 2])].concat();
    let row = one(EVERYTHING, &record).unwrap();
    let inner = row.column_by_name("inner").unwrap().as_struct();
    assert_eq!(int(inner, "x"), Some(2));
    assert_eq!(inner.column_by_name("y").unwrap().as_string::<i32>().value(0), "a");
}

#[test]
fn a_oneof_has_its_last_field() {
    let set_message = field(26, &[0x08, 9, 0x1a, 0]);
    let set_number = [tag(24, 0), vec![3]].concat();
    let row = one(EVERYTHING, &[&set_message[..], &set_number].concat()).unwrap();
    assert_eq!(int(&row, "number"), Some(3));
    assert!(row.column_by_name("message").unwrap().is_null(0));
    // The message that was replaced is gone, also if there is another one.
    let row =
        one(EVERYTHING, &[&set_message[..], &set_number, &field(26, &[0x12, 1, b'y'])].concat()).unwrap();
    let message = row.column_by_name("message").unwrap().as_struct();
    assert!(message.is_valid(0));
    assert_eq!(int(message, "x"), Some(0));
    assert_eq!(message.column_by_name("deep").unwrap().as_list::<i32>().value(0).len(), 0);
    assert_eq!(int(&row, "number"), None);
}

#[test]
fn packed_and_unpacked_are_both_read() {
    let record =
        [field(18, &[1, 2]), [tag(18, 0), vec![3]].concat(), field(19, &[4]), [tag(19, 0), vec![5]].concat()];
    let row = one(EVERYTHING, &record.concat()).unwrap();
    let list = |name: &str| row.column_by_name(name).unwrap().as_list::<i32>().value(0);
    assert_eq!(list("packed").as_primitive::<Int32Type>().values(), &[1, 2, 3]);
    assert_eq!(list("unpacked").as_primitive::<Int32Type>().values(), &[4, 5]);
}

#[test]
fn the_last_entry_of_a_key_wins() {
    let entry = |value: u8| field(22, &[0x0a, 1, b'k', 0x10, value]);
    let row = one(EVERYTHING, &[entry(1), field(22, &[]), entry(2)].concat()).unwrap();
    let map = row.column_by_name("counts").unwrap().as_map();
    assert_eq!(map.keys().as_string::<i32>().iter().flatten().collect::<Vec<_>>(), ["", "k"]);
    assert_eq!(map.values().as_primitive::<Int32Type>().values(), &[0, 2]);
}

#[test]
fn absent_fields_are_defaults_or_null() {
    let row = one(EVERYTHING, &[]).unwrap();
    assert_eq!(int(&row, "i32"), Some(0));
    assert_eq!(int(&row, "maybe"), None);
    for name in ["inner", "at", "boxed", "json", "number", "name"] {
        assert!(row.column_by_name(name).unwrap().is_null(0), "{name}");
    }
    assert_eq!(row.column_by_name("color").unwrap().as_string::<i32>().value(0), "RED");
    assert_eq!(row.column_by_name("counts").unwrap().as_map().value_length(0), 0);
}

#[test]
fn struct_becomes_json() {
    let value = |bytes: &[u8]| field(1, &[&field(1, b"k\""), &field(2, bytes)[..]].concat());
    let list = field(6, &[field(1, &[0x20, 1]), field(1, &[0x08, 0]), field(1, &field(3, b"t\n"))].concat());
    let row = one(EVERYTHING, &field(31, &value(&list))).unwrap();
    let text = row.column_by_name("json").unwrap().as_string::<i32>().value(0).to_owned();
    assert_eq!(text, r#"{"k\"":[true,null,"t\n"]}"#);
}

#[test]
fn groups_and_required_fields() {
    let single = [0x13, 0x08, 5, 0x14];
    let row = one(GROUPS, &[&[0x08, 1], &single[..], &[0x1b, 0x08, 6, 0x1c]].concat()).unwrap();
    assert_eq!(int(row.column_by_name("single").unwrap().as_struct(), "x"), Some(5));
    assert_eq!(row.column_by_name("many").unwrap().as_list::<i32>().value_length(0), 1);
    assert_eq!(int(&row, "preset"), None);
    assert_eq!(one(GROUPS, &single).unwrap_err(), "$.id: the required field is missing (at byte 4)");
}

#[test]
fn unknown_fields_are_skipped() {
    let mut record = vec![0x10, 7];
    record.extend(field(120, b"new"));
    record.extend([
        0xfb, 0x3f, 0x08, 1, 0xfc, 0x3f, 0xfd, 0x3f, 1, 2, 3, 4, 0xf9, 0x3f, 1, 2, 3, 4, 5, 6, 7, 8,
    ]);
    assert_eq!(int(&one(EVERYTHING, &record).unwrap(), "i32"), Some(7));
}

#[test]
fn hostile_bytes_are_errors_of_their_record() {
    let deep_groups: Vec<u8> = [0xfb, 0x3f].repeat(5_000);
    let cases: [(&str, &[u8], &str); 15] = [
        (EVERYTHING, &[0x10], "$.i32: the record ends within a varint (at byte 1)"),
        (EVERYTHING, &[0x10, 0x80], "$.i32: the record ends within a varint (at byte 1)"),
        (
            EVERYTHING,
            &[&[0x10][..], &[0x80; 11]].concat(),
            "$.i32: the varint has more than 64 bits (at byte 1)",
        ),
        (
            EVERYTHING,
            &[0x72, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
            "$.text: the varint has more than 5 bytes (at byte 1)",
        ),
        (
            EVERYTHING,
            &[&[0x28][..], &[0xff; 9], &[2]].concat(),
            "$.i64: the varint has more than 64 bits (at byte 1)",
        ),
        (
            EVERYTHING,
            &[0x72, 0xff, 0xff, 0xff, 0xff, 7, 1],
            "$.text: a length of 2147483647, but 1 bytes are left (at byte 1)",
        ),
        (EVERYTHING, &[0x72, 1, 0xff], "$.text: the text is not UTF-8 (at byte 2)"),
        (EVERYTHING, &[0x12, 1, 0], "$.i32: expected a varint, found a length and bytes (at byte 1)"),
        (EVERYTHING, &[0x00, 0], "0 is not a field number (at byte 0)"),
        (EVERYTHING, &[0x17], "7 is not a wire type (at byte 0)"),
        (EVERYTHING, &[0x14], "the end of group 2, which did not start (at byte 0)"),
        (EVERYTHING, &[0xfb, 0x3f, 0x08, 1], "the record ends within a group (at byte 4)"),
        (EVERYTHING, &deep_groups, "more than 100 levels of nesting (at byte 202)"),
        (GROUPS, &[0x08, 1, 0x13, 0x08, 1], "$.single: the record ends within a group (at byte 5)"),
        (EVERYTHING, &[0x69, 1, 2, 3], "$.double: the record ends within 8 bytes (at byte 1)"),
    ];
    for (schema, record, reason) in cases {
        assert_eq!(one(schema, record).unwrap_err(), reason);
    }
    // seconds = 2^63 - 1
    let far = field(28, &[&[0x08][..], &[0xff; 8], &[0x7f]].concat());
    assert!(one(EVERYTHING, &far).unwrap_err().contains("are not a valid Timestamp"));
}

#[test]
fn deep_json_is_an_error() {
    let mut value = vec![0x08, 0];
    for _ in 0..200 {
        let mut list = vec![0x0a];
        put_varint(&mut list, value.len());
        list.extend(&value);
        value = vec![0x32];
        put_varint(&mut value, list.len());
        value.extend(&list);
    }
    let mut record = tag(32, 2);
    put_varint(&mut record, value.len());
    record.extend(&value);
    assert!(one(EVERYTHING, &record).unwrap_err().contains("more than 100 levels"));
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[test]
fn json_of_many_parts_does_not_take_long() {
    let text = r#"syntax = "proto3"; import "google/protobuf/struct.proto"; message M { google.protobuf.Value v = 1; }"#;
    let part = field(1, &[0x20, 1]);
    assert!(one(text, &part.repeat(100)).is_ok());
    // A megabyte took minutes.
    assert!(one(text, &part.repeat(250_000)).unwrap_err().contains("too many parts"));
}

#[test]
fn a_record_that_is_nested_deeper_than_the_columns_is_an_error() {
    let mut node = vec![0x08, 1];
    let mut results = Vec::new();
    for _ in 0..6 {
        results.push(one(EVERYTHING, &field(36, &node)).is_ok());
        node = field(2, &node);
    }
    assert_eq!(results, [true, true, true, true, false, false]);
}

#[test]
fn empty_elements_of_wide_messages_do_not_fill_the_memory() {
    let fields: String = (1..2000).map(|number| format!("int64 f{number} = {number};")).collect();
    let text = format!("syntax = \"proto3\"; message A {{ repeated B b = 1; }} message B {{ {fields} }}");
    let schema = Schema::from_text(&text, []).unwrap();
    let plan = MessagePlan::new(&schema.message(None).unwrap(), Options::default()).unwrap();
    let record = [0x0a, 0].repeat(500_000);
    let decoded = decode(&plan, &BinaryArray::from_iter_values([record]), &Writers::none()).unwrap();
    assert!(decoded.errors[0].1.contains("more than 1024 times the memory"), "{:?}", decoded.errors);
}

#[test]
fn schemas_that_cannot_be_columns_are_refused() {
    let plan = |text: &str, recursion: usize| {
        let schema = Schema::from_text(text, []).unwrap();
        let options = Options { recursion, ..Options::default() };
        MessagePlan::new(&schema.message(None).unwrap(), options).map(|_| ()).unwrap_err().0
    };
    let tree = "syntax = \"proto3\"; message T { T a = 1; T b = 2; T c = 3; map<string, T> d = 4; }";
    assert!(plan(tree, 0).starts_with("the message T is recursive: its field T.a contains it again"));
    assert!(plan(tree, 12).contains("more than 10000 columns"));
}

#[test]
fn the_frame_names_the_message() {
    let text = "syntax = \"proto3\"; package p; message A { int32 x = 1; message N { int32 x = 1; } } message B { int32 x = 1; }";
    let schema = Schema::from_text(text, []).unwrap();
    let writers = framed(text);
    let cells: [&[u8]; 7] = [
        b"\0\0\0\0\x01\x00\x08\x07",         // A, short
        b"\0\0\0\0\x01\x02\x00\x08\x07",     // A, long
        b"\0\0\0\0\x01\x02\x02\x08\x07",     // B
        b"\0\0\0\0\x01\x04\x00\x00\x08\x07", // A.N
        b"\0\0\0\0\x01\x02\x06\x08\x07",     // none
        b"\0\0\0\0\x02\x00\x08\x07",         // another schema
        b"\x08\x07",
    ];
    let read = |name: &str| {
        let plan = MessagePlan::new(&schema.message(Some(name)).unwrap(), Options::default()).unwrap();
        let decoded = decode(&plan, &BinaryArray::from_iter_values(cells), &writers).unwrap();
        let x = decoded.column.as_struct().column(0).as_primitive::<Int32Type>().clone();
        (x.iter().map(|x| x == Some(7)).collect::<Vec<_>>(), decoded.errors)
    };
    assert_eq!(read("p.A").0, [true, true, false, false, false, false, false]);
    assert_eq!(read("p.B").0, [false, false, true, false, false, false, false]);
    let (found, errors) = read("p.A.N");
    assert_eq!(found, [false, false, false, true, false, false, false]);
    assert_eq!(errors[0], (0, "the record is a p.A, but p.A.N was expected (at byte 5)".to_owned()));
    assert_eq!(errors[3].1, "schema 1 has no message [3] (at byte 5)");
    assert_eq!(errors[4].1, "there is no schema 2 (at byte 0)");
}

/// Bytes that look like fields of the schema, so that more than the first tag is reached.
fn fields() -> impl Strategy<Value = Vec<u8>> {
    let number = prop_oneof![1_u8..37, 1_u8..6];
    let one =
        (number, 0_u8..6, prop::collection::vec(any::<u8>(), 0..12)).prop_map(|(number, wire, bytes)| {
            match wire {
                2 => field(number, &bytes),
                wire => [tag(number, wire), bytes].concat(),
            }
        });
    prop::collection::vec(one, 0..8).prop_map(|fields| fields.concat())
}

/// Fields whose bytes are fields.
fn nested() -> impl Strategy<Value = Vec<u8>> {
    let outer = prop_oneof![
        Just(17_u8),
        Just(21),
        Just(22),
        Just(23),
        Just(26),
        Just(28),
        Just(31),
        Just(32),
        Just(36)
    ];
    prop::collection::vec((outer, fields()), 0..6).prop_map(|all| {
        all.into_iter().flat_map(|(number, bytes)| field(number, &bytes[..bytes.len().min(120)])).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn arbitrary_records_do_not_affect_each_other(
        records in prop::collection::vec(prop_oneof![prop::collection::vec(any::<u8>(), 0..40), fields(), nested()], 1..6),
        groups in any::<bool>(),
    ) {
        thread_local! {
            static PLANS: [MessagePlan; 2] = [plan(EVERYTHING), plan(GROUPS)];
        }
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        PLANS.with(|plans| check(&plans[usize::from(groups)], &Writers::none(), &records));
    }
}
