//! Chunks of messages that grow which a session cannot take now. Only where they begin is kept: when the session can take
//! them, all that the text has grown by since is one chunk. So a slow session holds one number for each such message, and
//! costs nobody else anything.

use tidings_domain::model::ConversationNo;
use tidings_engine::delivery::{Chunk, Recipients};

/// Where the text that a session lacks begins.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PendingChunk {
    pub conversation: ConversationNo,
    pub seq: u64,
    pub recipients: Recipients,
    /// The bytes of the text that the session has.
    pub offset: u64,
}

/// One for each message that grows. Their number is limited as that of those messages is.
#[derive(Debug, Default)]
pub(crate) struct PendingChunks(Vec<PendingChunk>);

impl PendingChunks {
    /// Adds a chunk. One that follows another pending chunk of its message is joined to it.
    pub(crate) fn add(&mut self, chunk: &Chunk) {
        if !self.has(chunk) {
            let Chunk { conversation, seq, offset, .. } = *chunk;
            let recipients = chunk.recipients.clone();
            self.0.push(PendingChunk { conversation, seq, recipients, offset });
        }
    }

    /// Whether an earlier chunk of the message is pending.
    pub(crate) fn has(&self, chunk: &Chunk) -> bool {
        self.0.iter().any(|pending| (pending.conversation, pending.seq) == (chunk.conversation, chunk.seq))
    }

    pub(crate) fn pop(&mut self) -> Option<PendingChunk> {
        self.0.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;

    #[test]
    fn chunks_of_one_message_are_joined() {
        let chunk = |seq, offset| {
            let (conversation, recipients) = (ConversationNo(1), Recipients::Audience);
            Chunk { conversation, seq, recipients, offset, json: Bytes::new(), floors: None }
        };
        let mut pending = PendingChunks::default();
        [chunk(1, 5), chunk(2, 0), chunk(1, 9), chunk(1, 12)].iter().for_each(|chunk| pending.add(chunk));
        let mut offsets: Vec<_> = std::iter::from_fn(|| pending.pop()).map(|p| (p.seq, p.offset)).collect();
        offsets.sort_unstable();
        assert_eq!(offsets, [(1, 5), (2, 0)]);
    }
}
