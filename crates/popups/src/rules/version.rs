//! Semantic versions, as apps write them.

use std::cmp::Ordering;

/// A semantic version (semver.org 2.0.0), as apps write them: the short forms `4` and `4.2` are read as `4.0.0` and `4.2.0`,
/// a fourth number (`4.2.1.9`, as Windows and Chromium have it) comes after the third, and a `v` before the number does not
/// count. Numbers are below 2^64.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
    semver: semver::Version,
    fourth: u64,
}

impl Version {
    /// Parses a version; `None` if the text is none.
    pub fn parse(text: &str) -> Option<Version> {
        let text = text.strip_prefix(['v', 'V']).unwrap_or(text);
        if let Some((major, minor)) = short(text) {
            return Some(Version { semver: semver::Version::new(number(major)?, number(minor)?, 0), fourth: 0 });
        }
        // Nothing is allocated for the usual form.
        let numbers = text.find(['-', '+']).unwrap_or(text.len());
        let mut dots = text[..numbers].match_indices('.');
        match dots.nth(2) {
            None => Some(Version { semver: semver::Version::parse(text).ok()?, fourth: 0 }),
            Some((third, _)) => {
                let semver = format!("{}{}", &text[..third], &text[numbers..]);
                let fourth =
                    Some(&text[third + 1..numbers]).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
                Some(Version { semver: semver::Version::parse(&semver).ok()?, fourth: number(fourth?)? })
            }
        }
    }

    /// Compares by precedence (sections 10 and 11): build metadata, behind `+`, does not count.
    pub fn precedence(&self, other: &Version) -> Ordering {
        let numbers = |version: &Version| {
            let semver::Version { major, minor, patch, .. } = version.semver;
            (major, minor, patch, version.fourth)
        };
        numbers(self).cmp(&numbers(other)).then_with(|| self.semver.cmp_precedence(&other.semver))
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
            vec!["2.1.1", "v2.1.1", "V2.1.1.0"],
            vec!["2.1.1.1-beta"],
            vec!["2.1.1.1", "v2.1.1.1+9"],
            vec!["2.1.1.2"],
            vec!["2.1.1.10"],
            vec!["2.1.2-rc.1"],
            vec!["2.9"],
            vec!["2.10"],
            vec!["10", "v10"],
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
            "vv1.2.3",
            "v",
            "v 1",
            "1.2.3.",
            "1.2.3.04",
            "1.2.3.x",
            "1.2.3.4.5",
            "1.2.3.18446744073709551616",
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
