//! How far a client has got, in one opaque string.
//!
//! Every entry has a position in the store's one commit order. The three lanes do not wait for each
//! other, so a session that was handed position 100 by the direct lane may still lack 99 from the
//! group lane: one number would skip it. A cursor therefore holds a position per lane, and the
//! epoch of the store that counted them, so that a restored backup is noticed instead of trusted.

use std::{fmt, str::FromStr};

/// The number of lanes: direct, group, broadcast, in this order.
pub const LANES: usize = 3;

/// How far a client has got. Clients keep its text form and hand it back when they bind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Cursor {
    /// Names the store's history; a restore from a backup starts a new one.
    pub epoch: u64,
    /// Per lane: every entry up to and including this position was handed to the client.
    pub positions: [u64; LANES],
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [direct, group, broadcast] = self.positions;
        write!(f, "{:x}.{direct}.{group}.{broadcast}", self.epoch)
    }
}

/// The text is not a cursor's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("not a cursor")]
pub struct InvalidCursor;

impl FromStr for Cursor {
    type Err = InvalidCursor;

    fn from_str(text: &str) -> Result<Self, InvalidCursor> {
        let mut parts = text.split('.');
        let mut next = || parts.next().filter(|p| !p.is_empty() && !p.starts_with('+')).ok_or(InvalidCursor);
        let epoch = u64::from_str_radix(next()?, 16).map_err(|_| InvalidCursor)?;
        let mut positions = [0; LANES];
        for position in &mut positions {
            *position = next()?.parse().map_err(|_| InvalidCursor)?;
        }
        match parts.next() {
            None => Ok(Cursor { epoch, positions }),
            Some(_) => Err(InvalidCursor),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_form() {
        let cursor = Cursor { epoch: 0xab12, positions: [1, u64::MAX, 0] };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
    }

    #[test]
    fn invalid_cursors_are_refused() {
        for bad in
            ["", "1", "1.2.3", "1.2.3.4.5", "x.1.2.3", "1.-1.2.3", "1.+1.2.3", "1.2.3.99999999999999999999", "1. 2.3.4"]
        {
            assert_eq!(bad.parse::<Cursor>(), Err(InvalidCursor), "{bad:?}");
        }
    }
}
