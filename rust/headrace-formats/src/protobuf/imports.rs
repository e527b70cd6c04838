//! Files that schemas import from their registry's and Google's libraries, so that no network is needed. Those of
//! google/protobuf are in the compiler.

/// The text of a file that is built in.
pub fn get(name: &str) -> Option<&'static str> {
    Some(match name {
        "confluent/meta.proto" => include_str!("imports/confluent_meta.proto"),
        "confluent/type/decimal.proto" => include_str!("imports/confluent_decimal.proto"),
        "google/type/calendar_period.proto" => include_str!("imports/calendar_period.proto"),
        "google/type/color.proto" => include_str!("imports/color.proto"),
        "google/type/date.proto" => include_str!("imports/date.proto"),
        "google/type/datetime.proto" => include_str!("imports/datetime.proto"),
        "google/type/dayofweek.proto" => include_str!("imports/dayofweek.proto"),
        "google/type/decimal.proto" => include_str!("imports/decimal.proto"),
        "google/type/expr.proto" => include_str!("imports/expr.proto"),
        "google/type/fraction.proto" => include_str!("imports/fraction.proto"),
        "google/type/interval.proto" => include_str!("imports/interval.proto"),
        "google/type/latlng.proto" => include_str!("imports/latlng.proto"),
        "google/type/localized_text.proto" => include_str!("imports/localized_text.proto"),
        "google/type/money.proto" => include_str!("imports/money.proto"),
        "google/type/month.proto" => include_str!("imports/month.proto"),
        "google/type/phone_number.proto" => include_str!("imports/phone_number.proto"),
        "google/type/postal_address.proto" => include_str!("imports/postal_address.proto"),
        "google/type/quaternion.proto" => include_str!("imports/quaternion.proto"),
        "google/type/timeofday.proto" => include_str!("imports/timeofday.proto"),
        _ => return None,
    })
}
