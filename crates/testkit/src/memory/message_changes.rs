//! Changes of messages, as plainly as possible: which entries have a body is recomputed from the whole timeline after
//! each change.

use super::{State, index, numbers};
use tidings_domain::{model::*, store::*};

impl State {
    pub(super) fn change_message(
        &mut self,
        conversation: ConversationNo,
        target: u64,
        change: &MessageChange,
        entry: &NewEntry,
        now_ms: u64,
    ) -> Result<Outcome, Rejection> {
        let stored = self.timelines.get(&conversation).and_then(|timeline| timeline.get(&target)).cloned();
        let version = stored.as_ref().map_or(1, |stored| stored.content.details().body_version());
        let send = entry.sender.as_ref().zip(entry.client_msg_id.as_ref()).map(|(s, id)| (s.no, id.clone()));
        if let Some(first) = send.and_then(|send| self.first_results.get(&send)) {
            return match first.conversation == conversation {
                true => Ok(Outcome::MessageChanged {
                    appended: Appended { duplicate: true, ..*first },
                    entry: None,
                    version,
                }),
                false => Err(Rejection::ClientMsgIdReused),
            };
        }
        if let Some(sender) = &entry.sender
            && self.log.is_some()
            && self.left.contains(&conversation)
            && !self.members.contains_key(&(conversation, sender.no))
        {
            return Err(Rejection::NotAMember);
        }
        if index(conversation.0) >= self.conversations.len() {
            return Err(Rejection::NoSuchConversation);
        }
        let Some(mut message) = stored else { return Err(Rejection::NoSuchEntry(target)) };
        if message.content.kind != EntryKind::Message {
            return Err(Rejection::NotAMessage(target));
        }
        let head = self.head(conversation);
        let (seq, at) = (head.last_seq + 1, now_ms.max(head.last_at));
        let mut appended = entry.clone();
        let mut of_entry = EntryDetails { target, ..appended.details().clone() };
        let mut details = message.content.details().clone();
        match change {
            MessageChange::Edit { .. } if details.recalled.is_some() => return Err(Rejection::MessageRecalled(target)),
            MessageChange::Edit { if_version: Some(expected), .. } if *expected != version => {
                return Err(Rejection::VersionConflict { expected: *expected, actual: version });
            }
            MessageChange::Edit { edits_max, .. } if details.edits.len() >= *edits_max => {
                return Err(Rejection::TooManyEdits { limit: *edits_max as u64 });
            }
            MessageChange::Edit { keep_replaced, .. } => {
                let (made_at, by) = match version {
                    1 => (message.at, message.content.sender.clone()),
                    _ => (details.edited_at, details.edited_by.clone()),
                };
                let NewEntry { content_type, body, .. } = message.content.clone();
                of_entry.replaced = keep_replaced.then_some(ReplacedBody { content_type, body, at: made_at, by });
                of_entry.version = version + 1;
                details.version = version + 1;
                details.edited_at = at;
                details.edited_by = entry.sender.clone();
                details.edits.push(seq);
                message.content.content_type = entry.content_type.clone();
                message.content.body = entry.body.clone();
                message.content.mentions = entry.mentions.clone();
            }
            MessageChange::Pin { .. } if details.recalled.is_some() => return Err(Rejection::MessageRecalled(target)),
            MessageChange::Pin { pinned, .. } if *pinned == details.pinned.is_some() => return Ok(Outcome::Done),
            MessageChange::Pin { pinned, pins_max } => {
                let pins = self.pins.entry(conversation).or_default();
                if *pinned && pins.len() >= *pins_max {
                    return Err(Rejection::TooManyPins { limit: *pins_max as u64 });
                }
                details.pinned = pinned.then(|| Pinned { at, by: entry.sender.clone() });
                of_entry.pinned = details.pinned.clone();
                self.put_pins(conversation, target, *pinned);
            }
            MessageChange::Recall => {
                if let Some(Recalled { at, entry, .. }) = details.recalled {
                    let appended = Appended { conversation, seq: entry, at, position: 0, duplicate: true };
                    return Ok(Outcome::MessageChanged { appended, entry: None, version });
                }
                details.recalled = Some(Recalled { at, by: entry.sender.clone(), entry: seq });
                details.reactions.clear();
                if details.pinned.take().is_some() {
                    self.put_pins(conversation, target, false);
                }
                details.stream = StreamState::Whole;
                message.content.body = "null".into();
                message.content.mentions.clear();
            }
        }
        let version = details.version.max(1);
        let is_recalled = details.recalled.is_some();
        let is_edit = matches!(change, MessageChange::Edit { .. });
        message.content.details = Some(Box::new(details));
        appended.details = Some(Box::new(of_entry));
        let place = self.append(conversation, &appended, now_ms)?;
        let timeline = self.timelines.entry(conversation).or_default();
        timeline.insert(target, message);
        for (seq, other) in timeline.iter_mut() {
            if other.content.kind == EntryKind::Edit && other.content.details().target == target {
                if is_recalled || (is_edit && *seq < place.seq) {
                    other.content.body = "null".into();
                    other.content.mentions.clear();
                }
                if is_recalled {
                    other.content.details_mut().replaced = None;
                }
            }
        }
        Ok(Outcome::MessageChanged { appended: place, entry: Some(Box::new(appended)), version })
    }

    fn put_pins(&mut self, conversation: ConversationNo, seq: u64, pinned: bool) {
        let pins = self.pins.entry(conversation).or_default();
        pins.retain(|known| *known != seq);
        if pinned {
            pins.push(seq);
        }
        let row = (RowSpace::Chat, [b"P".to_vec(), numbers(&[conversation.0])].concat());
        match pins.is_empty() {
            true => drop(self.rows.remove(&row)),
            false => drop(self.rows.insert(row, serde_json::to_vec(pins).unwrap_or_default())),
        }
    }
}
