//! What an entry of the timeline does to the message that it changes. A store does so at the commit; a node that holds the
//! message in memory does the same when it learns of the entry.
//!
//! A body is stored once: in its message while it is the newest one, and besides in the entry of the newest edit, from
//! which a client that has the message learns of it. So a recall finds all of it.

use crate::model::*;

/// The body of an entry whose body was removed.
pub const NO_BODY: &str = "null";

/// Applies the change of an entry to the message that is its target. Entries that change no message do nothing.
pub fn apply(message: &mut StoredEntry, change: &StoredEntry) {
    match change.content.kind {
        EntryKind::Edit => edit(message, change),
        EntryKind::Recall => recall(message, change),
        EntryKind::Pins => message.content.details_mut().pinned = change.content.details().pinned.clone(),
        EntryKind::Reactions => {
            let changes = &change.content.details().reaction_changes;
            let of_message = changes.iter().find(|(seq, _)| *seq == message.seq);
            if let Some((_, reactions)) = of_message.filter(|_| message.content.details().recalled.is_none()) {
                message.content.details_mut().reactions = reactions.clone();
            }
        }
        EntryKind::Message | EntryKind::MemberChange | EntryKind::ConversationChange | EntryKind::Assignment => {}
    }
}

/// The body of the message, as the next edit will replace it.
pub fn body_to_be_replaced(message: &StoredEntry) -> ReplacedBody {
    let content = &message.content;
    let details = content.details();
    let (at, by) = match details.edited_at {
        0 => (message.at, &content.sender),
        edited_at => (edited_at, &details.edited_by),
    };
    ReplacedBody { content_type: content.content_type.clone(), body: content.body.clone(), at, by: by.clone() }
}

/// Removes the body of an entry by which a message was edited, and with `replaced` also the body that the edit replaced.
/// Answers whether there was anything to remove.
pub fn remove_body(edit: &mut StoredEntry, replaced: bool) -> bool {
    let has_replaced = replaced && edit.content.details().replaced.is_some();
    if &*edit.content.body == NO_BODY && !has_replaced {
        return false;
    }
    clear(&mut edit.content);
    if has_replaced {
        edit.content.details_mut().replaced = None;
    }
    true
}

fn edit(message: &mut StoredEntry, change: &StoredEntry) {
    message.content.content_type = change.content.content_type.clone();
    message.content.body = change.content.body.clone();
    message.content.mentions = change.content.mentions.clone();
    let details = message.content.details_mut();
    details.version = change.content.details().version;
    details.edits.push(change.seq);
    // Edits of a message that grows are rejected: this one is its end. A message that grew is not shown as edited.
    if details.stream == StreamState::Open {
        details.stream_end = change.seq;
        details.stream_node = 0;
    } else {
        details.edited_at = change.at;
        details.edited_by = change.content.sender.clone();
    }
    // An edit of an interrupted message makes it whole.
    details.stream = change.content.details().stream;
}

/// Leaves of the message who sent it when, and who recalled it when.
fn recall(message: &mut StoredEntry, change: &StoredEntry) {
    clear(&mut message.content);
    let details = message.content.details_mut();
    details.recalled = Some(Recalled { at: change.at, by: change.content.sender.clone(), entry: change.seq });
    details.reactions = Vec::new();
    details.pinned = None;
    details.stream = StreamState::Whole;
    details.stream_node = 0;
}

fn clear(content: &mut NewEntry) {
    content.body = NO_BODY.into();
    content.mentions = Vec::new();
}
