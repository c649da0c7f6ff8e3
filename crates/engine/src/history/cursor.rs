//! Where a page of history begins, as clients hand it back.

use crate::store::End;
use tidings_protocol::error::{ErrorCode, Refusal};
use xxhash_rust::xxh3::xxh3_64;

/// What is paged through: what the first page was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Range {
    pub(super) from_seq: u64,
    /// `u64::MAX`: open, so that what is sent meanwhile belongs to it.
    pub(super) to_seq: u64,
    /// A time of its own, for it may be one that has not come yet.
    pub(super) to_time: Option<u64>,
}

/// The page after another, or before it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PageCursor {
    /// `Oldest`: the page is the oldest entries from `seq` on; `Newest`: the newest up to it.
    pub(super) towards: End,
    pub(super) seq: u64,
    pub(super) range: Range,
}

impl PageCursor {
    /// Opaque to clients. The check is there to notice the cursor of another conversation; it keeps nothing secret.
    pub(super) fn to_text(self, conversation: &str) -> String {
        let Range { from_seq, to_seq, to_time } = self.range;
        let towards = if self.towards == End::Oldest { 'n' } else { 'p' };
        let to_seq = if to_seq == u64::MAX { String::new() } else { to_seq.to_string() };
        let to_time = to_time.map_or_else(String::new, |time| time.to_string());
        let text = format!("{towards}{}.{from_seq}.{to_seq}.{to_time}", self.seq);
        format!("{text}.{:08x}", check(conversation, &text))
    }

    pub(super) fn of_text(text: &str, conversation: &str) -> Result<Self, Refusal> {
        let read = || {
            let (fields, given) = text.rsplit_once('.')?;
            let is_ours = given == format!("{:08x}", check(conversation, fields));
            let mut parts = fields.get(1..)?.split('.');
            let mut next = || parts.next();
            let seq = next()?.parse().ok()?;
            let from_seq = next()?.parse().ok()?;
            let to_seq = match next()? {
                "" => u64::MAX,
                number => number.parse().ok()?,
            };
            let to_time = match next()? {
                "" => None,
                number => Some(number.parse().ok()?),
            };
            let towards = if fields.starts_with('n') { End::Oldest } else { End::Newest };
            is_ours.then_some(PageCursor { towards, seq, range: Range { from_seq, to_seq, to_time } })
        };
        read().ok_or_else(|| {
            let why = "cursor: is not the next or previous of a page of this conversation";
            Refusal::new(ErrorCode::CursorInvalid, why)
        })
    }
}

fn check(conversation: &str, text: &str) -> u32 {
    xxh3_64(format!("{conversation} {text}").as_bytes()) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_survives_its_text_form_and_is_of_one_conversation() {
        for towards in [End::Oldest, End::Newest] {
            for (to_seq, to_time) in [(u64::MAX, None), (70, Some(1_000)), (70, None), (u64::MAX, Some(u64::MAX))] {
                let cursor = PageCursor { towards, seq: 51, range: Range { from_seq: 1, to_seq, to_time } };
                let text = cursor.to_text("house-7");
                assert_eq!(PageCursor::of_text(&text, "house-7").unwrap(), cursor, "{text}");
                assert_eq!(PageCursor::of_text(&text, "house-8").unwrap_err().code, ErrorCode::CursorInvalid);
            }
        }
    }

    #[test]
    fn what_is_not_a_cursor_is_refused() {
        let good =
            PageCursor { towards: End::Oldest, seq: 51, range: Range { from_seq: 1, to_seq: u64::MAX, to_time: None } };
        let good = good.to_text("g");
        for bad in ["", ".", "51", "n51", "é.1...", &good[1..], &good.replace("n51", "n52"), &format!("{good}0")] {
            assert_eq!(PageCursor::of_text(bad, "g").unwrap_err().code, ErrorCode::CursorInvalid, "{bad}");
        }
    }
}
