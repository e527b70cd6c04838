//! Zigzag variable-length integers, as in Protocol Buffers.

/// Reads an `int` (at most five bytes) from the front of `input`.
///
/// Returns None if the input is too short or the number exceeds 32 bits.
#[inline(always)]
pub fn take_i32(input: &mut &[u8]) -> Option<i32> {
    let raw = match **input {
        // Most numbers have one or two bytes: lengths below 8 KiB, small deltas.
        [a, ref rest @ ..] if a < 0x80 => {
            *input = rest;
            u32::from(a)
        }
        [a, b, ref rest @ ..] if b < 0x80 => {
            *input = rest;
            u32::from(a & 0x7f) | u32::from(b) << 7
        }
        _ => u32::try_from(take_raw(input, 5)?).ok()?,
    };
    Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

/// Reads a `long` (at most ten bytes) from the front of `input`.
///
/// Returns None if the input is too short or the number exceeds 64 bits.
#[inline(always)]
pub fn take_i64(input: &mut &[u8]) -> Option<i64> {
    let raw = match **input {
        [a, ref rest @ ..] if a < 0x80 => {
            *input = rest;
            u64::from(a)
        }
        [a, b, ref rest @ ..] if b < 0x80 => {
            *input = rest;
            u64::from(a & 0x7f) | u64::from(b) << 7
        }
        _ => take_raw(input, 10)?,
    };
    Some((raw >> 1).cast_signed() ^ -(raw & 1).cast_signed())
}

#[inline(never)]
fn take_raw(input: &mut &[u8], max_bytes: usize) -> Option<u64> {
    let mut raw = 0u64;
    for (index, &byte) in input.iter().take(max_bytes).enumerate() {
        let shift = 7 * index;
        let bits = u64::from(byte & 0x7f);
        // The tenth byte has room for one bit.
        if shift == 63 && bits > 1 {
            return None;
        }
        raw |= bits << shift;
        if byte < 0x80 {
            *input = &input[index + 1..];
            return Some(raw);
        }
    }
    None
}

/// Appends an `int` to `out`.
#[inline(always)]
pub fn put_i32(out: &mut Vec<u8>, value: i32) {
    put_raw(out, u64::from(((value << 1) ^ (value >> 31)).cast_unsigned()));
}

/// Appends a `long` to `out`.
#[inline(always)]
pub fn put_i64(out: &mut Vec<u8>, value: i64) {
    put_raw(out, ((value << 1) ^ (value >> 63)).cast_unsigned());
}

#[inline(always)]
fn put_raw(out: &mut Vec<u8>, mut raw: u64) {
    while raw >= 0x80 {
        out.push((raw & 0x7f) as u8 | 0x80);
        raw >>= 7;
    }
    out.push(raw as u8);
}

/// The number of bytes of an `int`.
#[inline(always)]
pub fn size_i32(value: i32) -> usize {
    size_i64(value.into())
}

/// The number of bytes of a `long`.
#[inline(always)]
pub fn size_i64(value: i64) -> usize {
    let bits = 64 - ((value << 1) ^ (value >> 63)).cast_unsigned().leading_zeros();
    bits.max(1).div_ceil(7) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn zigzag(value: i64) -> Vec<u8> {
        let mut out = Vec::new();
        put_i64(&mut out, value);
        assert_eq!(out.len(), size_i64(value));
        if let Ok(narrow) = i32::try_from(value) {
            let mut same = Vec::new();
            put_i32(&mut same, narrow);
            assert_eq!(same, out);
        }
        out
    }

    #[test]
    fn numbers_of_every_length_come_back() {
        for shift in 0..64 {
            for value in [1i64 << shift, -(1i64 << shift.min(62)), (1i64 << shift).wrapping_sub(1)] {
                let bytes = zigzag(value);
                let mut input = [&bytes[..], &[0xaa]].concat();
                input.push(0xbb);
                let mut rest = &input[..];
                assert_eq!(take_i64(&mut rest), Some(value));
                assert_eq!(rest, [0xaa, 0xbb]);

                let mut rest = &input[..];
                match i32::try_from(value) {
                    Ok(value) => assert_eq!(take_i32(&mut rest), Some(value)),
                    Err(_) => assert_eq!(take_i32(&mut rest), None),
                }
            }
        }
    }

    #[test]
    fn the_ends_of_the_ranges_come_back() {
        for value in [i64::MIN, i64::MAX] {
            assert_eq!(take_i64(&mut &zigzag(value)[..]), Some(value));
        }
        for value in [i32::MIN, i32::MAX] {
            assert_eq!(take_i32(&mut &zigzag(value.into())[..]), Some(value));
        }
    }

    #[test]
    fn cut_off_and_overlong_numbers_are_refused() {
        for length in 0..12 {
            let endless = vec![0x80; length];
            assert_eq!(take_i32(&mut &endless[..]), None);
            assert_eq!(take_i64(&mut &endless[..]), None);
        }
        // 33 and 65 bits.
        assert_eq!(take_i32(&mut &[0xff, 0xff, 0xff, 0xff, 0x1f][..]), None);
        let mut too_wide = [0xff; 10];
        too_wide[9] = 0x02;
        assert_eq!(take_i64(&mut &too_wide[..]), None);
    }
}
