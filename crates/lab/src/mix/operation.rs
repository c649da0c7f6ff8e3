//! One operation of the mix, and its frames.

use super::model::Answer;
use serde_json::value::RawValue;
use tidings_protocol::frames::{ClientFrame, Edit};

/// References of operations begin here, above those of plain messages and of ranges of history.
pub(crate) const REFERENCE_BASE: u64 = 1 << 40;

#[derive(Debug)]
pub(crate) enum Kind {
    /// `number`: that of the edit in the message's model.
    Edit {
        seq: u64,
        number: usize,
        body: String,
    },
    Recall {
        seq: u64,
    },
    React {
        seq: u64,
        key: &'static str,
        remove: bool,
    },
    Read {
        seq: u64,
    },
}

impl Kind {
    pub(crate) fn seq(&self) -> u64 {
        match self {
            Kind::Edit { seq, .. } | Kind::Recall { seq } | Kind::React { seq, .. } | Kind::Read { seq } => *seq,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) kind: Kind,
    /// The receiver on whose session it is sent.
    pub(crate) actor: usize,
    pub(crate) due: u64,
    pub(crate) sends: u32,
    pub(crate) answer: Answer,
    /// The `seq` at which its own entry was delivered first; 0: not yet.
    pub(crate) delivered_seq: u64,
}

impl Operation {
    pub(crate) fn new(kind: Kind, actor: usize, due: u64) -> Self {
        Operation { kind, actor, due, sends: 0, answer: Answer::Unknown, delivered_seq: 0 }
    }

    /// The frame of operation `number`. Repeated frames are the same, so that the operation is done once: edits and recalls by
    /// their `client_msg_id`, reactions and read marks because they say what shall be, not what to add.
    pub(crate) fn frame(&self, number: u32, tag: &str, conversation: &str) -> Vec<u8> {
        let reference = Some(REFERENCE_BASE + u64::from(number));
        let client_msg_id = Some(format!("{tag}-x{number}"));
        let (conversation, seq) = (conversation.to_owned(), self.kind.seq());
        let frame = match &self.kind {
            Kind::Edit { body, .. } => ClientFrame::Edit(Edit {
                reference,
                conversation,
                seq,
                client_msg_id,
                content_type: None,
                // The lab makes bodies of valid JSON.
                body: RawValue::from_string(body.clone()).unwrap_or_default(),
                mentions: Vec::new(),
                if_version: None,
            }),
            Kind::Recall { .. } => ClientFrame::Recall { reference, conversation, seq, client_msg_id },
            Kind::React { key, remove, .. } => {
                ClientFrame::React { reference, conversation, seq, key: (*key).to_owned(), remove: *remove }
            }
            Kind::Read { .. } => ClientFrame::Read { reference, conversation, seq },
        };
        // Our own frames always serialize.
        serde_json::to_vec(&frame).unwrap_or_default()
    }

    /// The `stored` frame that goes with a read mark: what was read is stored, too.
    pub(crate) fn stored_frame(&self, cursor: &[u8]) -> Option<Vec<u8>> {
        let is_read = matches!(self.kind, Kind::Read { .. }) && !cursor.is_empty();
        let stored = || ClientFrame::Stored { cursor: String::from_utf8_lossy(cursor).into_owned() };
        is_read.then(|| serde_json::to_vec(&stored()).unwrap_or_default())
    }
}
