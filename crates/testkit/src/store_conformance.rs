//! The conformance suite: what every implementation of `Store` must do.
//!
//! Each check gets a fresh, empty store, opened with an outbox, and panics where the store differs from what the port
//! promises.
#![doc(hidden)]
#![allow(clippy::unwrap_used)]

mod appends;
mod batch_reads;
mod byte_rows;
mod desks;
mod erasure;
mod imports;
mod member_rights;
mod message_changes;
mod opaque;
mod openings;
mod outbox;
mod preferences;
mod push;
mod push_tokens;
mod reactions;
mod reads;
mod receipts;
mod streams;
mod users_and_conversations;

use tidings_domain::{model::*, store::*};

/// A named check of one behaviour.
pub type Check = (&'static str, fn(&dyn Store));

/// All checks. The caller makes a fresh store for each.
pub fn all() -> Vec<Check> {
    [
        appends::CHECKS,
        imports::CHECKS,
        users_and_conversations::CHECKS,
        member_rights::CHECKS,
        reads::CHECKS,
        batch_reads::CHECKS,
        outbox::CHECKS,
        push::CHECKS,
        push_tokens::CHECKS,
        byte_rows::CHECKS,
        message_changes::CHECKS,
        opaque::CHECKS,
        openings::CHECKS,
        reactions::CHECKS,
        receipts::CHECKS,
        streams::CHECKS,
        preferences::CHECKS,
        desks::CHECKS,
        erasure::CHECKS,
    ]
    .concat()
}

/// Noon of a day in 2026: the time from which checks count.
pub(crate) const NOON: u64 = 1_780_056_000_000;

/// Commits one proposal in a batch of its own.
fn commit(store: &dyn Store, proposal: Proposal) -> Outcome {
    commit_at(store, proposal, NOON)
}

fn commit_at(store: &dyn Store, proposal: Proposal, now_ms: u64) -> Outcome {
    let mut outcomes = store.commit(&[proposal], now_ms).unwrap();
    assert_eq!(outcomes.len(), 1, "one outcome for one proposal");
    outcomes.remove(0)
}

/// Creates users `u1`, `u2`, …; answers their numbers.
fn users(store: &dyn Store, count: usize) -> Vec<UserNo> {
    let patches = (1..=count).map(|n| UserPatch { id: format!("u{n}"), ..UserPatch::default() }).collect();
    assert_eq!(commit(store, Proposal::PutUsers(patches)), Outcome::Users { created: count, updated: 0 });
    (1..=count).map(|n| store.user_no(&format!("u{n}")).unwrap().unwrap()).collect()
}

fn new_conversation(id: &str, kind: ConversationKind, members: &[UserNo]) -> NewConversation {
    NewConversation {
        id: id.into(),
        kind,
        pair: match (kind, members) {
            (ConversationKind::Direct, [a, b]) => Some((*a, *b)),
            _ => None,
        },
        name: Some(format!("{id}'s name")),
        avatar: None,
        attributes: None,
        members: members.iter().map(|user| (*user, Role::Member)).collect(),
        settings: ConversationSettings::default(),
    }
}

fn create(store: &dyn Store, id: &str, kind: ConversationKind, members: &[UserNo]) -> ConversationNo {
    match commit(store, Proposal::CreateConversation(new_conversation(id, kind, members))) {
        Outcome::Conversation { conversation, created: true } => conversation.no,
        other => panic!("{id} was not created: {other:?}"),
    }
}

fn group(store: &dyn Store, id: &str, members: &[UserNo]) -> ConversationNo {
    create(store, id, ConversationKind::Group, members)
}

/// A message of this sender, with a body that contains its id.
fn message(sender: UserNo, client_msg_id: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Message,
        sender: Some(Sender { no: sender, id: format!("u{}", sender.0) }),
        client_msg_id: Some(client_msg_id.into()),
        content_type: "text".into(),
        body: format!("{{\"text\":\"{client_msg_id}\"}}").into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    }
}

/// An entry that the app server appends.
fn notice(kind: EntryKind) -> NewEntry {
    NewEntry {
        kind,
        sender: None,
        client_msg_id: None,
        content_type: "notice".into(),
        body: "{}".into(),
        mentions: vec![],
        silent: true,
        skip_push: true,
        details: None,
        request: EntryRequest::default(),
    }
}

fn append(conversation: ConversationNo, entry: NewEntry) -> Proposal {
    Proposal::Append { conversation, entry }
}

fn appended(outcome: &Outcome) -> Appended {
    match outcome {
        Outcome::Appended(appended) => *appended,
        other => panic!("not appended: {other:?}"),
    }
}

/// Appends `count` messages in batches of seven, a second apart.
fn fill(store: &dyn Store, conversation: ConversationNo, sender: UserNo, count: u64) {
    let all: Vec<_> =
        (1..=count).map(|n| append(conversation, message(sender, &format!("fill-{}-{n}", conversation.0)))).collect();
    for (n, batch) in all.chunks(7).enumerate() {
        let outcomes = store.commit(batch, NOON + n as u64 * 1_000).unwrap();
        outcomes.iter().for_each(|outcome| assert!(!appended(outcome).duplicate));
    }
}

fn seqs(entries: &[StoredEntry]) -> Vec<u64> {
    entries.iter().map(|entry| entry.seq).collect()
}
