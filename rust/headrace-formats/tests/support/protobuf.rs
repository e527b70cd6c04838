//! A schema with every kind of field, and what holds for all bytes that are decoded with it.

use arrow_array::{Array, BinaryArray};
use headrace_formats::Decoded;
use headrace_formats::framing::Framing;
use headrace_formats::protobuf::{MessageName, MessagePlan, Options, Schema, Writers, decode, encode};
use std::collections::HashMap;
use std::sync::Arc;

pub const EVERYTHING: &str = r#"
syntax = "proto3";
package test;
import "google/protobuf/duration.proto";
import "google/protobuf/struct.proto";
import "google/protobuf/timestamp.proto";
import "google/protobuf/wrappers.proto";

message Everything {
  bool b = 1;
  int32 i32 = 2;
  sint32 s32 = 3;
  sfixed32 sf32 = 4;
  int64 i64 = 5;
  sint64 s64 = 6;
  sfixed64 sf64 = 7;
  uint32 u32 = 8;
  fixed32 f32 = 9;
  uint64 u64 = 10;
  fixed64 f64 = 11;
  float float = 12;
  double double = 13;
  string text = 14;
  bytes data = 15;
  Color color = 16;
  Inner inner = 17;
  repeated int32 packed = 18;
  repeated int32 unpacked = 19 [packed = false];
  repeated string texts = 20;
  repeated Inner inners = 21;
  map<string, int32> counts = 22;
  map<int64, Inner> by_id = 23;
  oneof choice {
    int32 number = 24;
    string name = 25;
    Inner message = 26;
  }
  optional int32 maybe = 27;
  google.protobuf.Timestamp at = 28;
  google.protobuf.Duration took = 29;
  google.protobuf.Int64Value boxed = 30;
  google.protobuf.Struct json = 31;
  repeated google.protobuf.Value values = 32;
  repeated Color colors = 33;
  repeated google.protobuf.Timestamp times = 34;
  map<string, google.protobuf.StringValue> boxes = 35;
  Node node = 36;
  int32 far = 100000;
  enum Color { RED = 0; GREEN = 1; }
  message Inner { int32 x = 1; string y = 2; repeated Inner2 deep = 3; optional bool z = 4; }
  message Inner2 { bytes raw = 1; repeated double d = 2; }
  message Node { int32 x = 1; Node next = 2; }
}
"#;

pub const GROUPS: &str = r#"
syntax = "proto2";
package test;
message Groups {
  required int32 id = 1;
  optional group Single = 2 { optional int32 x = 1; optional string y = 2; }
  repeated group Many = 3 { required int32 x = 1; }
  repeated int32 old = 4;
  optional int32 preset = 5 [default = 7];
}
"#;

pub fn plan(text: &str) -> MessagePlan {
    let schema = Schema::from_text(text, []).expect("the schema is valid");
    let options = Options { recursion: 3, ..Options::default() };
    MessagePlan::new(&schema.message(None).expect("it has a message"), options)
        .expect("it can become columns")
}

pub fn framed(text: &str) -> Writers {
    let schema = Arc::new(Schema::from_text(text, []).expect("the schema is valid"));
    Writers { framing: Framing::Id4, name: MessageName::Indexes, schemas: HashMap::from([(1, Ok(schema))]) }
}

/// Whatever the bytes are, the result is a valid column, and records do not affect each other.
pub fn check(plan: &MessagePlan, writers: &Writers, records: &[&[u8]]) -> Decoded {
    let cells = BinaryArray::from_iter_values(records);
    let decoded = decode(plan, &cells, writers).expect("the columns are valid");
    decoded.column.to_data().validate_full().expect("the column is valid");
    assert_eq!(decoded.column.len(), records.len());
    let bad: Vec<usize> = decoded.errors.iter().map(|(row, _)| *row).collect();
    let null: Vec<usize> = (0..records.len()).filter(|row| decoded.column.is_null(*row)).collect();
    assert_eq!(bad, null);
    for (row, record) in records.iter().enumerate() {
        let alone =
            decode(plan, &BinaryArray::from_iter_values([record]), writers).expect("the columns are valid");
        assert_eq!(decoded.column.slice(row, 1).to_data(), alone.column.to_data(), "row {row}");
    }
    // What was decoded can be encoded, and means the same.
    if let Ok(cells) = encode(plan, &decoded.column, b"") {
        let again = decode(plan, &cells, &Writers::none()).expect("the columns are valid");
        assert_eq!(again.errors, []);
        assert_eq!(again.column.to_data(), decoded.column.to_data());
    }
    decoded
}
