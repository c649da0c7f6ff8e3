//! Pieces of messages that grow which a session cannot take now. Only where they begin is kept: when the session can take
//! them, all that the text has grown by since is one piece. So a slow session holds one number for each such message, and
//! costs nobody else anything.

use tidings_domain::model::ConversationNo;
use tidings_engine::delivery::{Piece, Recipients};

/// Where the text that a session lacks begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingPiece {
    pub conversation: ConversationNo,
    pub seq: u64,
    pub recipients: Recipients,
    /// The bytes of the text that the session has.
    pub offset: u64,
}

/// One for each message that grows. Their number is limited as that of those messages is.
#[derive(Debug, Default)]
pub(crate) struct PendingPieces(Vec<PendingPiece>);

impl PendingPieces {
    /// Adds a piece. One that follows another pending piece of its message is joined to it.
    pub(crate) fn add(&mut self, piece: &Piece) {
        if !self.has(piece) {
            let Piece { conversation, seq, offset, .. } = *piece;
            let recipients = piece.recipients.clone();
            self.0.push(PendingPiece { conversation, seq, recipients, offset });
        }
    }

    /// Whether an earlier piece of the message is pending.
    pub(crate) fn has(&self, piece: &Piece) -> bool {
        self.0.iter().any(|pending| (pending.conversation, pending.seq) == (piece.conversation, piece.seq))
    }

    pub(crate) fn pop(&mut self) -> Option<PendingPiece> {
        self.0.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn pieces_of_one_message_are_joined() {
        let piece = |seq, offset| {
            let (conversation, recipients) = (ConversationNo(1), Recipients::Audience);
            Piece { conversation, seq, recipients, offset, json: Bytes::new() }
        };
        let mut pending = PendingPieces::default();
        [piece(1, 5), piece(2, 0), piece(1, 9), piece(1, 12)].iter().for_each(|piece| pending.add(piece));
        let mut offsets: Vec<_> = std::iter::from_fn(|| pending.pop()).map(|p| (p.seq, p.offset)).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [(1, 5), (2, 0)]);
    }
}
