//! Numbers to decimals, exactly.

/// The value of a JSON number (its grammar is checked) times 10^scale, rounded half up. None if it has more than
/// `precision` digits.
pub fn parse_decimal(text: &[u8], precision: u8, scale: i8) -> Option<i128> {
    let (is_negative, text) = match text.strip_prefix(b"-") {
        Some(rest) => (true, rest),
        None => (false, text),
    };
    let end = text.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(text.len());
    let exponent: i64 = match text.get(end + 1..) {
        // An exponent that does not fit is far from every limit.
        Some(digits) => {
            let text = std::str::from_utf8(digits).ok()?;
            text.trim_start_matches('+').parse().unwrap_or(if text.starts_with('-') {
                i64::MIN / 4
            } else {
                i64::MAX / 4
            })
        }
        None => 0,
    };
    let point = text[..end].iter().position(|&byte| byte == b'.').unwrap_or(end);
    // The number of digits, from the first one on, that come before the point of the result.
    let kept = (point as i64).checked_add(exponent)?.checked_add(i64::from(scale))?;
    let digits = text[..end].iter().filter(|&&byte| byte != b'.').map(|byte| i128::from(byte - b'0'));
    let limit = 10_i128.checked_pow(u32::from(precision))?;
    let (mut value, mut seen) = (0_i128, 0_i64);
    for digit in digits {
        if seen < kept {
            value = value.checked_mul(10)?.checked_add(digit)?;
            if value >= limit {
                return None;
            }
        } else if seen == kept {
            value += i128::from(digit >= 5);
            break;
        } else {
            break;
        }
        seen += 1;
    }
    if value != 0 {
        // Zeros that are not written.
        for _ in seen..kept {
            value = value.checked_mul(10)?;
            if value >= limit {
                return None;
            }
        }
    }
    if value >= limit {
        return None;
    }
    Some(if is_negative { -value } else { value })
}

/// A number in quotes, in JSON's grammar. As Spark (Java's `BigDecimal`), it may begin with `+` or zeros, have no digits
/// before or after the point, and commas between thousands. None if it is not a number.
pub fn parse_quoted(text: &[u8]) -> Option<Vec<u8>> {
    let mut number = Vec::with_capacity(text.len());
    let unsigned = match text {
        [b'-', rest @ ..] => {
            number.push(b'-');
            rest
        }
        [b'+', rest @ ..] => rest,
        _ => text,
    };
    let end = unsigned.iter().position(|byte| matches!(byte, b'e' | b'E')).unwrap_or(unsigned.len());
    let (mantissa, exponent) = unsigned.split_at(end);
    let point = mantissa.iter().position(|&byte| byte == b'.').unwrap_or(mantissa.len());
    let (whole, fraction) = (&mantissa[..point], mantissa.get(point + 1..).unwrap_or_default());
    if whole.len() + fraction.len() == 0 || !fraction.iter().all(u8::is_ascii_digit) {
        return None;
    }
    for (index, group) in whole.split(|&byte| byte == b',').enumerate() {
        // "1,5" may be a decimal comma: only groups of thousands are certain.
        let is_group = if index == 0 { group.len() <= 3 || !whole.contains(&b',') } else { group.len() == 3 };
        let is_empty = group.is_empty() && whole.contains(&b',');
        if !is_group || is_empty || !group.iter().all(u8::is_ascii_digit) {
            return None;
        }
        number.extend_from_slice(group);
    }
    number.push(b'.');
    number.extend_from_slice(fraction);
    if let [letter, digits @ ..] = exponent {
        let unsigned = digits.strip_prefix(b"+").or_else(|| digits.strip_prefix(b"-")).unwrap_or(digits);
        if unsigned.is_empty() || !unsigned.iter().all(u8::is_ascii_digit) {
            return None;
        }
        number.push(*letter);
        number.extend_from_slice(digits);
    }
    Some(number)
}

#[cfg(test)]
mod tests {
    use super::{parse_decimal, parse_quoted};

    #[test]
    fn decimals_in_quotes_are_those_of_java() {
        let parse = |text: &str| parse_decimal(&parse_quoted(text.as_bytes())?, 12, 2);
        for (text, hundredths) in [
            ("1.5", 150),
            ("+1.5", 150),
            ("-.5", -50),
            ("1.", 100),
            ("007.5", 750),
            ("1,000", 100_000),
            ("-12,345,678.505", -1_234_567_851),
            ("1E+2", 10_000),
            (".5e1", 500),
            ("00000000000000000000000000000000000000000001", 100),
        ] {
            assert_eq!(parse(text), Some(hundredths), "{text}");
        }
        for wrong in [
            "", ".", "+", "-", "1,5", "1,00", "1,0000", ",100", "1000,000", "1,", "1.000,5", "1,000,", "--1",
            "1.5.5", "e5", "1e", "1e+", "1e5.0", " 1", "1 ", "0x10", "1d", "NaN", "\u{663}",
        ] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn decimals_are_exact() {
        let parse = |text: &str, precision, scale| parse_decimal(text.as_bytes(), precision, scale);
        assert_eq!(parse("12.34", 10, 2), Some(1234));
        assert_eq!(parse("-0.005", 10, 2), Some(-1));
        assert_eq!(parse("0.004", 10, 2), Some(0));
        assert_eq!(parse("0.0049999999", 10, 2), Some(0));
        assert_eq!(parse("99.995", 4, 2), None);
        assert_eq!(parse("99.994", 4, 2), Some(9999));
        assert_eq!(parse("1e2", 5, 2), Some(10_000));
        assert_eq!(parse("1e3", 5, 2), None);
        assert_eq!(parse("123e-4", 5, 3), Some(12));
        assert_eq!(parse("125e-4", 5, 3), Some(13));
        assert_eq!(parse("5e-3", 5, 2), Some(1));
        assert_eq!(parse("5e-4", 5, 2), Some(0));
        assert_eq!(parse("1500", 3, -2), Some(15));
        assert_eq!(parse("0e999999999999999999999", 3, 0), Some(0));
        assert_eq!(parse("1e999999999999999999999", 3, 0), None);
        assert_eq!(parse("1e-999999999999999999999", 3, 0), Some(0));
        assert_eq!(parse("99999999999999999999999999999999999999", 38, 0), Some(10_i128.pow(38) - 1));
        assert_eq!(parse("100000000000000000000000000000000000000", 38, 0), None);
        // The largest number of 128 bits, and one more.
        assert_eq!(parse("170141183460469231731687303715884105727", 38, 0), None);
        assert_eq!(parse("170141183460469231731687303715884105728", 38, 0), None);
        assert_eq!(parse("-170141183460469231731687303715884105729", 38, 0), None);
    }
}
