//! The cursors of pages of history.

use tidings_domain::store::End;
use tidings_protocol::error::{ErrorCode, Refusal};
use xxhash_rust::xxh3::xxh3_64;

/// The range of a first page, through which its cursors lead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct HistoryRange {
    pub(super) from_seq: u64,
    /// `u64::MAX`: open, so that entries sent meanwhile belong to the range.
    pub(super) to_seq: u64,
    /// Kept as a time and not as a `seq`, for it may be in the future.
    pub(super) to_time: Option<u64>,
}

/// The cursor of a page that follows another one, in one of the two directions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct PageCursor {
    /// `Oldest`: the page has the oldest entries from `seq` on; `Newest`: the newest entries up to `seq`.
    pub(super) towards: End,
    pub(super) seq: u64,
    pub(super) range: HistoryRange,
}

impl PageCursor {
    /// Opaque to clients. The checksum detects the cursor of another conversation; it keeps nothing secret.
    pub(super) fn format(self, conversation: &str) -> String {
        let HistoryRange { from_seq, to_seq, to_time } = self.range;
        let towards = if self.towards == End::Oldest { 'n' } else { 'p' };
        let to_seq = if to_seq == u64::MAX { String::new() } else { to_seq.to_string() };
        let to_time = to_time.map_or_else(String::new, |time| time.to_string());
        let text = format!("{towards}{}.{from_seq}.{to_seq}.{to_time}", self.seq);
        format!("{text}.{:08x}", checksum(conversation, &text))
    }

    pub(super) fn parse(text: &str, conversation: &str) -> Result<Self, Refusal> {
        let read = || {
            let (fields, given) = text.rsplit_once('.')?;
            let is_ours = given == format!("{:08x}", checksum(conversation, fields));
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
            is_ours.then_some(PageCursor { towards, seq, range: HistoryRange { from_seq, to_seq, to_time } })
        };
        read().ok_or_else(|| {
            let why = "cursor: is not the next or previous of a page of this conversation";
            Refusal::new(ErrorCode::CursorInvalid, why)
        })
    }
}

fn checksum(conversation: &str, text: &str) -> u32 {
    xxh3_64(format!("{conversation} {text}").as_bytes()) as u32
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_cursor_is_parsed_from_its_text_and_refused_for_another_conversation() {
        for towards in [End::Oldest, End::Newest] {
            for (to_seq, to_time) in [(u64::MAX, None), (70, Some(1_000)), (70, None), (u64::MAX, Some(u64::MAX))] {
                let cursor = PageCursor { towards, seq: 51, range: HistoryRange { from_seq: 1, to_seq, to_time } };
                let text = cursor.format("house-7");
                assert_eq!(PageCursor::parse(&text, "house-7").unwrap(), cursor, "{text}");
                assert_eq!(PageCursor::parse(&text, "house-8").unwrap_err().code, ErrorCode::CursorInvalid);
            }
        }
    }

    #[test]
    fn a_text_that_is_no_cursor_is_refused() {
        let good = PageCursor {
            towards: End::Oldest,
            seq: 51,
            range: HistoryRange { from_seq: 1, to_seq: u64::MAX, to_time: None },
        };
        let good = good.format("g");
        for bad in ["", ".", "51", "n51", "é.1...", &good[1..], &good.replace("n51", "n52"), &format!("{good}0")] {
            assert_eq!(PageCursor::parse(bad, "g").unwrap_err().code, ErrorCode::CursorInvalid, "{bad}");
        }
    }
}
