//! The body of a push of the lab: whose run, which push, and when it was asked for.

/// `at_us` is the monotonic clock's, which all processes of a machine share.
pub(crate) fn write(tag: &str, number: usize, at_us: u64) -> String {
    format!(r#"{{"run":"{tag}","n":{number},"at":{at_us}}}"#)
}

/// The number and the time of a body that is one of this run's to the letter.
pub(crate) fn read(tag: &str, body: &[u8]) -> Option<(usize, u64)> {
    let text = std::str::from_utf8(body).ok()?;
    let rest = text.strip_prefix(r#"{"run":""#)?.strip_prefix(tag)?.strip_prefix(r#"","n":"#)?;
    let (number, rest) = rest.split_once(r#","at":"#)?;
    Some((number.parse().ok()?, rest.strip_suffix('}')?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_was_written_is_read() {
        let body = write("run", 7, 99);
        assert_eq!(read("run", body.as_bytes()), Some((7, 99)));
        assert_eq!(read("ru", body.as_bytes()), None);
        assert_eq!(read("run", &body.as_bytes()[..body.len() - 1]), None);
        assert_eq!(read("run", body.replace("99", "9.9").as_bytes()), None);
    }
}
