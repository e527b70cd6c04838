//! Hostile input: mutated records, and random bytes.

use proptest::collection::vec;
use proptest::prelude::*;

mod support;
use headrace_formats::avro::{Plan, Schema};
use support::{GOOD_AVRO, GOOD_JSON, WRITER, check_avro, check_avro_schema, check_json};

/// Bytes that mean something in JSON or Avro, and any others.
fn piece() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 0..4),
        proptest::sample::select(vec![
            &b"\""[..],
            b"\\",
            b"{",
            b"}",
            b"[",
            b"]",
            b",",
            b":",
            b"null",
            b"-",
            b"1e999",
            b"\\u",
            b"\\ud800",
            b"\xff",
            b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01",
            b"\x80\x80\x80\x80\x10",
            b"\x01",
            b"\x00",
        ])
        .prop_map(<[u8]>::to_vec),
    ]
}

fn mutated(seed: &[u8], changes: &[(usize, usize, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for (at, removed, inserted) in changes {
        let at = at % (bytes.len() + 1);
        let end = (at + removed).min(bytes.len());
        bytes.splice(at..end, inserted.iter().copied());
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(20_000))]

    #[test]
    fn mutated_json(changes in vec((any::<usize>(), 0..8_usize, piece()), 1..4)) {
        check_json(&mutated(GOOD_JSON, &changes));
    }

    #[test]
    fn mutated_avro(changes in vec((any::<usize>(), 0..8_usize, piece()), 1..4)) {
        check_avro(&mutated(&GOOD_AVRO, &changes));
    }

    #[test]
    fn mutated_schemas(changes in vec((any::<usize>(), 0..20_usize, piece()), 1..3)) {
        check_avro_schema(&String::from_utf8_lossy(&mutated(WRITER.as_bytes(), &changes)));
    }

    #[test]
    fn random_bytes(data in vec(any::<u8>(), 0..200)) {
        check_json(&data);
        check_avro(&data);
    }
}

#[test]
fn the_good_records_are_good() {
    check_json(GOOD_JSON);
    check_avro(&GOOD_AVRO);
}

/// Each level is resolved once. Twice would be 2^30 times the work here.
#[test]
fn nested_unions_are_resolved_at_once() {
    let mut text = r#""int""#.to_owned();
    for _ in 0..30 {
        text = format!(r#"["null",{{"type":"array","items":{text}}}]"#);
    }
    let schema = Schema::parse(&text, &[]).unwrap();
    assert!(Plan::new(&schema, &schema).is_ok());
}

#[test]
fn every_prefix() {
    for end in 0..GOOD_JSON.len() {
        check_json(&GOOD_JSON[..end]);
    }
    for end in 0..GOOD_AVRO.len() {
        check_avro(&GOOD_AVRO[..end]);
    }
}

/// Found by fuzzing: it is just within its limit of memory. Written again, it is shorter, and beyond its limit.
#[test]
fn a_record_of_nulls_at_its_limit() {
    let data = b"\x02\xa4\xb0\x00\x00\x00\xde\xf2\x04\xda\x23\xff\x7a\x00\x00\x00\x00\x00\x00\x00\
        \x00\x00\x02\x00\x00\x47\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00";
    check_avro(data);
}
