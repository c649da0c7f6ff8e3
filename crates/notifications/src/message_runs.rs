//! Several messages of a conversation in one row: the newest by its `seq`, and the older ones, the newest of these first, each as
//! what its `seq` is less than the one before. Most follow each other, so that each takes two bytes of the row.

use crate::json_len::digits;

/// How far the oldest of a row's messages is from the newest, at most, by position; by `seq` it is no farther.
pub(crate) const SPAN_OF_MESSAGES_MAX: u64 = 1_000;
/// Bytes of the list of older messages in a row.
pub(crate) const OLDER_BYTES_MAX: usize = 512;

/// The `seq` of each of the older messages.
pub(crate) fn seqs_before(newest: u64, older: &[u64]) -> impl Iterator<Item = u64> {
    older.iter().scan(newest, |last, less| {
        *last = last.saturating_sub(*less);
        Some(*last)
    })
}

/// These messages, the oldest first, as the newest and the list of the older ones.
pub(crate) fn newest_and_older(seqs: &[u64]) -> (u64, Vec<u64>) {
    let older = seqs.windows(2).rev().map(|pair| pair[1].saturating_sub(pair[0])).collect();
    (seqs.last().copied().unwrap_or_default(), older)
}

/// How many of these messages one row has room for, from the first on: at least one, if there are any, and none that is not newer than
/// the one before.
pub(crate) fn fitting(seqs: &[u64]) -> usize {
    let mut bytes = 0;
    let fits = |pair: &&[u64]| {
        bytes += digits(pair[1].saturating_sub(pair[0])) + 1;
        pair[0] < pair[1] && bytes <= OLDER_BYTES_MAX && pair[1] - seqs[0] <= SPAN_OF_MESSAGES_MAX
    };
    seqs.len().min(1 + seqs.windows(2).take_while(fits).count())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_no_more_messages_than_fit() {
        let fit = |seqs: Vec<u64>| fitting(&seqs);
        assert_eq!(
            (fit(vec![]), fit(vec![9]), fit(vec![9, 9]), fit(vec![9, 8]), fit(vec![1, 2, 2, 3])),
            (0, 1, 1, 1, 2)
        );
        assert_eq!((fit(vec![5, 1_005]), fit(vec![5, 1_006])), (2, 1));
        assert_eq!(fit((1..=500).collect()), 1 + OLDER_BYTES_MAX / 2);
    }

    #[test]
    fn messages_come_out_as_they_went_in() {
        for seqs in [&[1, 2, 3, 7, 1_000][..], &[5], &[]] {
            let (newest, older) = newest_and_older(seqs);
            let mut found: Vec<u64> = seqs_before(newest, &older).collect();
            found.reverse();
            found.extend((!seqs.is_empty()).then_some(newest));
            assert_eq!(found, seqs);
        }
    }
}
