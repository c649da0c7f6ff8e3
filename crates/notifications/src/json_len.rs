//! How many bytes JSON takes, without writing it.

/// Bytes of a text with its quotes, at most.
pub(crate) fn json_len(text: &str) -> usize {
    let escaped = text.bytes().filter(|byte| matches!(byte, b'"' | b'\\' | 0..=31)).count();
    text.len() + escaped * 5 + 2
}

/// Bytes of a number.
pub(crate) fn digits(number: u64) -> usize {
    number.checked_ilog10().unwrap_or(0) as usize + 1
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn no_text_takes_more_and_plain_ones_take_so_much() {
        for text in ["", "plain", "ä€😀", "\"quoted\" and \\", "\u{0}\u{1f}\n"] {
            let written = serde_json::to_string(text).unwrap().len();
            assert!(json_len(text) >= written, "{text:?}");
            assert!(text.contains(['"', '\\', '\n']) || json_len(text) == written, "{text:?}");
        }
        for number in [0, 9, 10, u64::MAX] {
            assert_eq!(digits(number), number.to_string().len());
        }
    }
}
