//! What an entry of the timeline does to the message that it changes. A store does so at the commit; a node that holds the
//! message in memory does the same when it learns of the entry.
//!
//! A body is stored once: in its message while it is the newest one, and besides in the entry of the newest edit, from
//! which a client that has the message learns of it. So a recall finds all of it.

use crate::model::*;

/// Applies the change of an entry to the message that is its target. Entries that change no message do nothing.
pub fn apply(message: &mut StoredEntry, change: &StoredEntry) {
    let Some(of_change) = change.content.details.as_deref() else { return };
    match &of_change.of_kind {
        KindDetails::Edit(of_edit) => edit(message, change, of_edit),
        KindDetails::Recall { expired, .. } => recall(message, change, *expired),
        KindDetails::Pins { pinned, .. } => {
            if let Some(details) = message.content.message_details_mut() {
                details.pinned = pinned.clone();
            }
        }
        KindDetails::Reactions(changes) => {
            let of_message = changes.iter().find(|(seq, _)| *seq == message.seq);
            if let Some((_, reactions)) = of_message.filter(|_| !message.content.is_recalled())
                && let Some(details) = message.content.message_details_mut()
            {
                details.reactions = reactions.clone();
            }
        }
        KindDetails::Message(_) | KindDetails::Assignment { .. } | KindDetails::Notice | KindDetails::Opaque(_) => {}
    }
}

/// The body of the message, as the next edit will replace it.
pub fn body_to_be_replaced(message: &StoredEntry) -> ReplacedBody {
    let content = &message.content;
    let (at, by) = match &content.message_details().edited {
        None => (message.at, &content.sender),
        Some(edited) => (edited.at, &edited.by),
    };
    ReplacedBody { content_type: content.content_type.clone(), body: content.body.clone(), at, by: by.clone() }
}

/// Removes the body of an entry by which a message was edited, and with `replaced` also the body that the edit replaced.
/// Answers whether there was anything to remove.
pub fn remove_body(edit: &mut StoredEntry, replaced: bool) -> bool {
    let has_replaced = replaced && edit.content.edit_details().is_some_and(|edit| edit.replaced.is_some());
    if &*edit.content.body == NO_BODY && !has_replaced {
        return false;
    }
    clear(&mut edit.content);
    if has_replaced && let KindDetails::Edit(details) = &mut edit.content.details_mut().of_kind {
        details.replaced = None;
    }
    true
}

fn edit(message: &mut StoredEntry, change: &StoredEntry, of_edit: &EditDetails) {
    message.content.content_type = change.content.content_type.clone();
    message.content.body = change.content.body.clone();
    let mentions = change.content.mentions.clone();
    let kept: Vec<String> = mentions.iter().filter(|id| message.content.mentioned().contains(id)).cloned().collect();
    let added_mentions = kept.len() < mentions.len();
    message.content.mentions = mentions;
    let Some(details) = message.content.message_details_mut() else { return };
    details.mentioned = added_mentions.then_some(kept);
    details.version = of_edit.version;
    details.edits.push(change.seq);
    // Edits of a message that grows are rejected: this one is its end. A message that grew is not shown as edited.
    if details.stream.is_open() {
        details.stream_end = Some(change.seq)
    } else {
        details.edited = Some(Edited { at: change.at, by: change.content.sender.clone() })
    }
    // An edit of an interrupted message makes it whole.
    details.stream = if of_edit.interrupted { StreamState::Interrupted } else { StreamState::Whole };
}

/// Leaves of the message who sent it when, and who recalled it when.
fn recall(message: &mut StoredEntry, change: &StoredEntry, expired: bool) {
    clear(&mut message.content);
    // A later version may have kept a part of the body there.
    message.content.details_mut().unknown = None;
    let Some(details) = message.content.message_details_mut() else { return };
    details.mentioned = None;
    let by = change.content.sender.clone();
    details.recalled = Some(Recalled { at: change.at, by, entry: change.seq, expired });
    details.expires = None;
    details.reactions = Vec::new();
    details.pinned = None;
    details.stream = StreamState::Whole;
}

fn clear(content: &mut NewEntry) {
    content.body = NO_BODY.into();
    content.mentions = Vec::new();
}
