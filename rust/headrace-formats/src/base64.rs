//! Base64 (RFC 4648), as JSON has binary data.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the bytes of `text`. None if it is not base64. The padding of the last group may be missing, and the alphabet
/// be that for URLs. As in Jackson, there may be blanks and line ends between groups of four letters, a padded group may
/// be followed by others, and the bits that no byte of a padded group uses have no meaning.
pub fn decode(text: &[u8], bytes: &mut Vec<u8>) -> Option<()> {
    let mut rest = text;
    loop {
        let blanks = rest.iter().take_while(|&&byte| byte <= b' ').count();
        rest = &rest[blanks..];
        if rest.is_empty() {
            return Some(());
        }
        let (group, after) = rest.split_at(rest.len().min(4));
        rest = after;
        let letters = match group {
            [letters @ .., b'=', b'='] | [letters @ .., b'='] if group.len() == 4 => letters,
            _ => group,
        };
        if letters.len() < 2 {
            return None;
        }
        let mut bits = 0_u32;
        for &letter in letters {
            bits = bits << 6 | value_of(letter)?;
        }
        bits <<= 6 * (4 - letters.len());
        let [_, found @ ..] = bits.to_be_bytes();
        let (used, unused) = found.split_at(letters.len() - 1);
        if group.len() < 4 && unused.iter().any(|&byte| byte != 0) {
            return None; // neither padding nor the last bits say that this is base64
        }
        bytes.extend_from_slice(used);
    }
}

fn value_of(letter: u8) -> Option<u32> {
    Some(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
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
        for wrong in
            ["Z", "Zg=", "Z===", "=", "====", "Zm9v=", "Zm 9v", "Zm9\n", "Zm9vZ", "Zg==Z", "Zh", "Zm9vZm9"]
        {
            assert_eq!(decode(wrong.as_bytes(), &mut Vec::new()), None, "{wrong}");
        }
    }

    #[test]
    fn groups_may_be_apart_and_padded() {
        for (text, bytes) in
            [("Zm9v\r\n YmFy ", "foobar"), ("Zg==Zg==", "ff"), (" ", ""), ("Zh==", "f"), ("Zm9-", "fo~")]
        {
            let mut read = Vec::new();
            assert_eq!(decode(text.as_bytes(), &mut read), Some(()), "{text}");
            assert_eq!(read, bytes.as_bytes(), "{text}");
        }
    }
}
