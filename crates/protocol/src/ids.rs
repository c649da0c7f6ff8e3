//! Which ids users, conversations and devices may have. The app chooses them; Tidings only requires that an id fits into a
//! URL and a log line.

use crate::{
    error::Refusal,
    limits::{ID_BYTES_MAX, NAME_BYTES_MAX},
};

/// Joins the two user ids of a direct conversation, which no user id may contain.
pub const DIRECT_SEPARATOR: char = '~';

/// Checks a user, device or group id: 1 to 64 bytes of UTF-8 without white space, control
/// characters, `/` or `~`.
///
/// # Errors
/// `invalid_field` or `limit_exceeded`, naming `field`.
pub fn check_id(field: &str, id: &str) -> Result<(), Refusal> {
    if id.is_empty() {
        return Err(Refusal::field(field, "must not be empty"));
    }
    if id.len() > ID_BYTES_MAX {
        return Err(Refusal::limit(&format!("{field} (bytes)"), ID_BYTES_MAX as u64, id.len() as u64));
    }
    if let Some(bad) = id.chars().find(|c| c.is_whitespace() || c.is_control() || matches!(*c, '/' | DIRECT_SEPARATOR))
    {
        return Err(Refusal::field(field, format!("must not contain {bad:?}")));
    }
    Ok(())
}

/// Ids with a meaning of their own: steps of a path, the caller, all members.
const RESERVED: [&str; 4] = [".", "..", "me", "@all"];

/// Checks the id of a new user, conversation or device: as [`check_id`], and not one of the reserved words. Reserved ids
/// that were given before they were reserved stay valid.
///
/// # Errors
/// `invalid_field` or `limit_exceeded`, naming `field`.
pub fn check_new_id(field: &str, id: &str) -> Result<(), Refusal> {
    check_id(field, id)?;
    if RESERVED.contains(&id) {
        Err(Refusal::field(field, format!("{id:?} is reserved; choose another id")))
    } else {
        Ok(())
    }
}

/// Checks a display name or an avatar's address.
///
/// # Errors
/// `limit_exceeded`, naming `field`.
pub fn check_name(field: &str, name: Option<&str>) -> Result<(), Refusal> {
    match name.map_or(0, str::len) {
        0..=NAME_BYTES_MAX => Ok(()),
        length => Err(Refusal::limit(&format!("{field} (bytes)"), NAME_BYTES_MAX as u64, length as u64)),
    }
}

/// The longest language tag. RFC 5646 advises to make room for this many characters.
const LANGUAGE_BYTES_MAX: usize = 35;

/// Checks a language tag: the form of BCP 47, without looking the subtags up.
///
/// # Errors
/// `invalid_field`, naming `field`.
pub fn check_language(field: &str, language: &str) -> Result<(), Refusal> {
    let mut subtags = language.split('-');
    let is_language = |tag: &str| (2..=8).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_subtag = |tag: &str| (1..=8).contains(&tag.len()) && tag.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let fits =
        language.len() <= LANGUAGE_BYTES_MAX && subtags.next().is_some_and(is_language) && subtags.all(is_subtag);
    if fits {
        Ok(())
    } else {
        Err(Refusal::field(field, format!("{language:?} is not a BCP 47 language tag, such as \"de-AT\"")))
    }
}

/// The id of the direct conversation of two users, in whichever order they are named.
pub fn direct_id(a: &str, b: &str) -> String {
    let (first, second) = if a <= b { (a, b) } else { (b, a) };
    format!("{first}{DIRECT_SEPARATOR}{second}")
}

/// The two users of a direct conversation's id, if it is one.
pub fn direct_pair(id: &str) -> Option<(&str, &str)> {
    id.split_once(DIRECT_SEPARATOR)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_direct_id_is_the_same_from_both_sides() {
        assert_eq!(direct_id("bob", "alice"), "alice~bob");
        assert_eq!(direct_id("alice", "bob"), "alice~bob");
        assert_eq!(direct_pair("alice~bob"), Some(("alice", "bob")));
    }

    #[test]
    fn reserved_ids_are_refused() {
        for bad in [".", "..", "me", "@all", "\0", "a\0b", "\u{7f}", "\u{85}", ""] {
            assert!(check_new_id("id", bad).is_err(), "{bad:?}");
        }
        for good in ["...", "Me", "@bob", "a.b", "all"] {
            assert!(check_new_id("id", good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn a_language_is_a_well_formed_tag() {
        for bad in ["", "d", "de_AT", "-de", "de-", "de--AT", "1e", "deutschland", "de-oesterreich", "dé", "de AT"] {
            assert!(check_language("language", bad).is_err(), "{bad:?}");
        }
        assert!(check_language("language", &format!("de{}", "-abcdefgh".repeat(4))).is_err(), "too long");
        for good in ["de", "de-AT", "zh-Hant-TW", "sr-Latn", "gsw", "es-419", "en-a-bbb-x-a-ccc"] {
            assert!(check_language("language", good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn ids_that_break_a_url_or_a_log_line_are_refused() {
        for bad in ["", "a b", "a/b", "a~b", "a\nb", &"x".repeat(65)] {
            assert!(check_id("user", bad).is_err(), "{bad:?}");
        }
        for good in ["a", "alice@example.com", "名前", "[nick]^", &"x".repeat(64)] {
            assert!(check_id("user", good).is_ok(), "{good:?}");
        }
    }
}
