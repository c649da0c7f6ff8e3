//! What the store's tests share: a store in a folder of its own, a room, and messages for it.

pub(crate) mod cuttable_link;
pub(crate) mod freezable_link;
pub(crate) mod plans;
pub(crate) mod postgres;
pub(crate) mod small_disk;

use std::{fs, path::Path};
use tidings_domain::{model::*, store::*};
use tidings_store::{EmbeddedOptions, EmbeddedStore};

pub(crate) const NOON: u64 = 1_780_056_000_000;
pub(crate) const DAY: u64 = 24 * 60 * 60 * 1_000;

/// Small enough for tests that open many stores.
pub(crate) fn options(path: &Path) -> EmbeddedOptions {
    EmbeddedOptions { outbox: true, disk_reserve_bytes: 0, cache_bytes: 4 << 20, ..EmbeddedOptions::new(path) }
}

pub(crate) fn open(path: &Path) -> EmbeddedStore {
    EmbeddedStore::open(options(path)).unwrap()
}

/// A folder that is removed after the test. In memory where possible: tests open many stores, and they test the written
/// bytes, not the disk.
pub(crate) fn scratch() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap()
}

/// Users `u1` to `u3` and a group of them.
pub(crate) fn populate(store: &dyn Store) -> ConversationNo {
    let users = (1..=3).map(|n| UserPatch { id: format!("u{n}"), ..UserPatch::default() }).collect();
    store.commit(&[Proposal::PutUsers(users)], NOON).unwrap();
    group(store, "g")
}

pub(crate) fn group(store: &dyn Store, id: &str) -> ConversationNo {
    let member = |n| Some((store.user_no(&format!("u{n}")).unwrap()?, Role::Member));
    let members = (1..=3).filter_map(member).collect();
    let new = NewConversation {
        id: id.into(),
        kind: ConversationKind::Group,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        members,
        settings: ConversationSettings::default(),
    };
    store.commit(&[Proposal::CreateConversation(new)], NOON).unwrap();
    store.conversation_no(id).unwrap().unwrap()
}

/// A message of `u1` with this id.
pub(crate) fn message(client_msg_id: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Message,
        sender: Some(Sender { no: UserNo(1), id: "u1".into() }),
        client_msg_id: Some(client_msg_id.into()),
        content_type: "text".into(),
        body: format!("\"{client_msg_id} says hello\"").into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    }
}

pub(crate) fn append(conversation: ConversationNo, id: &str) -> Proposal {
    Proposal::Append { conversation, entry: message(id) }
}

/// One batch of messages with these ids.
pub(crate) fn say<I: AsRef<str>>(
    store: &dyn Store,
    conversation: ConversationNo,
    ids: impl IntoIterator<Item = I>,
    at: u64,
) {
    let batch: Vec<_> = ids.into_iter().map(|id| append(conversation, id.as_ref())).collect();
    for outcome in store.commit(&batch, at).unwrap() {
        assert!(matches!(outcome, Outcome::Appended(_)), "{outcome:?}");
    }
}

/// The client message ids of a timeline, oldest first.
pub(crate) fn stored_ids(store: &dyn Store, conversation: ConversationNo) -> Vec<String> {
    let entries = store.entries(conversation, 0, u64::MAX, usize::MAX, End::Oldest).unwrap();
    entries.into_iter().map(|entry| entry.content.client_msg_id.unwrap()).collect()
}

/// Copies a folder as it is at this moment, as a crash would leave it (but for bytes that the operating system had not
/// written yet, which never belong to an acknowledged batch).
pub(crate) fn copy_folder(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy_folder(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

/// The written length of a journal; the preallocated rest of the file is zeros. They are compared by the block, which is quick
/// without optimisation, too.
pub(crate) fn written(bytes: &[u8]) -> usize {
    const ZEROS: [u8; 4_096] = [0; 4_096];
    let is_written = |block: &[u8]| *block != ZEROS[..block.len()];
    let Some(last) = bytes.chunks(ZEROS.len()).rposition(is_written) else { return 0 };
    let end = bytes.len().min((last + 1) * ZEROS.len());
    bytes[..end].iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1)
}
