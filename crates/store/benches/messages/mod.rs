//! What the benchmarks of the stores commit: messages of 220 bytes, each with its dedupe entry.

use tidings_domain::{model::*, store::*};

pub(crate) const BODY_BYTES: usize = 220;
pub(crate) const NOW: u64 = 1_780_056_000_000;

/// A group of these members, with the id `gN`.
pub(crate) fn group(n: u64, members: impl IntoIterator<Item = u64>) -> Proposal {
    Proposal::CreateConversation(NewConversation {
        id: format!("g{n}"),
        kind: ConversationKind::Group,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        members: members.into_iter().map(|no| (UserNo(no), Role::Member)).collect(),
        settings: ConversationSettings::default(),
    })
}

/// A message of the first user; those of different numbers have different ids.
pub(crate) fn message(conversation: ConversationNo, n: u64) -> Proposal {
    let entry = NewEntry {
        kind: EntryKind::Message,
        sender: Some(Sender { no: UserNo(1), id: "u1".into() }),
        client_msg_id: Some(format!("{:016x}", n.wrapping_mul(0x9E37_79B9_7F4A_7C15))),
        content_type: "text".into(),
        body: format!("\"{n:x>width$}\"", width = BODY_BYTES - 2).into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    };
    Proposal::Append { conversation, entry }
}
