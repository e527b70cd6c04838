//! Base64 (RFC 4648), as JSON has binary data.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the bytes of `text`. None if it is not base64. The padding may be missing, and the alphabet be that for URLs.
pub fn decode(text: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    let text = match text {
        [rest @ .., b'=', b'='] | [rest @ .., b'='] if text.len().is_multiple_of(4) => rest,
        _ => text,
    };
    if text.len() % 4 == 1 {
        return None;
    }
    let (mut pending, mut bits) = (0_u32, 0);
    for &letter in text {
        let value = match letter {
            b'A'..=b'Z' => letter - b'A',
            b'a'..=b'z' => letter - b'a' + 26,
            b'0'..=b'9' => letter - b'0' + 52,
            b'+' | b'-' => 62,
            b'/' | b'_' => 63,
            _ => return None,
        };
        pending = pending << 6 | u32::from(value);
        bits += 6;
        if bits >= 8 {
            bits -= 8;
            bytes.push((pending >> bits) as u8);
            pending &= (1 << bits) - 1;
        }
    }
    // The bits that no byte uses.
    (pending == 0).then_some(())
}

/// Appends the base64 of `bytes`, with padding.
pub fn encode(bytes: &[u8], text: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let byte = |index: usize| u32::from(chunk.get(index).copied().unwrap_or(0));
        let bits = byte(0) << 16 | byte(1) << 8 | byte(2);
        for place in 0..4 {
            let is_used = place <= chunk.len();
            let letter = ALPHABET[(bits >> (18 - 6 * place) & 63) as usize];
            text.push(if is_used { letter } else { b'=' });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for (bytes, text) in
            [("", ""), ("f", "Zg=="), ("fo", "Zm8="), ("foo", "Zm9v"), ("foobar", "Zm9vYmFy")]
        {
            let mut written = Vec::new();
            encode(bytes.as_bytes(), &mut written);
            assert_eq!(written, text.as_bytes());
            for form in [text, text.trim_end_matches('=')] {
                let mut read = Vec::new();
                assert_eq!(decode(form.as_bytes(), &mut read), Some(()));
                assert_eq!(read, bytes.as_bytes());
            }
        }
        for wrong in ["Z", "Zg=", "Zh==", "Z===", "=", "Zm9v=", "Zm 9v", "Zm9\n"] {
            assert_eq!(decode(wrong.as_bytes(), &mut Vec::new()), None, "{wrong}");
        }
    }
}
