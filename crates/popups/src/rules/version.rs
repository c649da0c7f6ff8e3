//! Semantic versions, as apps write them.

use std::cmp::Ordering;

/// A semantic version (semver.org 2.0.0). The short forms `4` and `4.2` are read as `4.0.0` and `4.2.0`; numbers are
/// below 2^64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version(semver::Version);

impl Version {
    /// Parses a version; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Version> {
        if let Some((major, minor)) = short(text) {
            return Some(Version(semver::Version::new(number(major)?, number(minor)?, 0)));
        }
        semver::Version::parse(text).ok().map(Version)
    }

    /// Compares by precedence (sections 10 and 11): build metadata, behind `+`, does not count.
    pub fn precedence(&self, other: &Version) -> Ordering {
        self.0.cmp_precedence(&other.0)
    }
}

/// Major and minor of a short form.
fn short(text: &str) -> Option<(&str, &str)> {
    if text.len() > 41 || !text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return None;
    }
    match text.split_once('.') {
        None => Some((text, "0")),
        Some((major, minor)) if !minor.contains('.') => Some((major, minor)),
        Some(_) => None,
    }
}

/// Digits without leading zeroes (section 2).
fn number(digits: &str) -> Option<u64> {
    if digits.len() > 1 && digits.starts_with('0') {
        return None;
    }
    digits.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precedence_follows_the_examples_of_the_specification() {
        // Sections 10 and 11, with the short forms among them; `=` are of equal precedence.
        let ascending = [
            vec!["0", "0.0", "0.0.0"],
            vec!["0.9.9"],
            vec!["1.0.0-alpha"],
            vec!["1.0.0-alpha.1"],
            vec!["1.0.0-alpha.beta"],
            vec!["1.0.0-beta"],
            vec!["1.0.0-beta.2"],
            vec!["1.0.0-beta.11"],
            vec!["1.0.0-rc.1", "1.0.0-rc.1+exp.sha.5114f85"],
            vec!["1.0.0", "1", "1.0", "1.0.0+20130313144700"],
            vec!["2.0.0"],
            vec!["2.1.0", "2.1"],
            vec!["2.1.1"],
            vec!["2.9"],
            vec!["2.10"],
            vec!["10"],
            vec!["18446744073709551615.0.0"],
        ];
        for (left, lefts) in ascending.iter().enumerate() {
            for (right, rights) in ascending.iter().enumerate() {
                for (a, b) in lefts.iter().flat_map(|a| rights.iter().map(move |b| (a, b))) {
                    let order = Version::parse(a).unwrap().precedence(&Version::parse(b).unwrap());
                    assert_eq!(order, left.cmp(&right), "{a} and {b}");
                }
            }
        }
    }

    #[test]
    fn parse_returns_none_for_text_that_is_no_version() {
        for text in [
            "",
            ".",
            "1.",
            ".1",
            "01",
            "1.02",
            "1.2.03",
            "v1.2.3",
            "1.2.3.4",
            "1.2-beta",
            "1-beta",
            "1.2.3-",
            "1.2.3-01",
            "1.2.3+",
            " 1.2.3",
            "1.2.3 ",
            "-1",
            "+1",
            "1,2",
            "latest",
            "18446744073709551616",
            "1.1e3",
        ] {
            assert!(Version::parse(text).is_none(), "{text:?}");
        }
    }
}
