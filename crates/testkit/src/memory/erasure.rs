//! Erasing a person: the same rules as other stores ask for what of an entry and of a row is the person's, over plain maps.

use super::State;
use tidings_domain::{
    erasure::{EraseStep, Fate, StoredErasure, blank, fate_of_row, fate_of_row_in, redact_entry},
    model::*,
    store::*,
};

impl State {
    pub(super) fn erase(&mut self, step: &EraseStep, now_ms: u64) -> Result<Outcome, Rejection> {
        match step {
            EraseStep::Begin { user, key, row, by } => {
                let key = (RowSpace::Chat, key.clone());
                let before = self.rows.get(&key).and_then(|row| StoredErasure::decode(row).ok());
                if before.is_some_and(|before| before.is_running() && before.no == *user) {
                    return Ok(Outcome::Done);
                }
                let reason = "the account is erased".to_owned();
                self.set_suspension(*user, Some(Suspension { until: None, reason, by: by.clone(), at: now_ms }))?;
                self.rows.insert(key, row.clone());
            }
            EraseStep::Entries { person, conversation, seqs } => {
                for seq in seqs {
                    let found = self.timelines.get_mut(conversation).and_then(|timeline| timeline.get_mut(seq));
                    let Some(entry) = found else { continue };
                    let send = super::send_of(*conversation, &entry.content);
                    redact_entry(person, &mut entry.content);
                    if let Some(send) = send.filter(|(_, author, _)| *author == Some(person.no)) {
                        self.first_results.remove(&send);
                    }
                    for (by, _) in self.reactions.entry((*conversation, *seq)).or_default() {
                        if by.no == person.no {
                            by.id.clone_from(&person.alias);
                        }
                    }
                }
                if let Some(agent) = self.assigned.get_mut(conversation).filter(|agent| agent.no == person.no) {
                    agent.id.clone_from(&person.alias);
                }
            }
            EraseStep::Rows { person, keys } => {
                for key in keys {
                    let place = (RowSpace::Chat, key.clone());
                    let Some(row) = self.rows.get(&place) else { continue };
                    match fate_of_row(person, key, row) {
                        Fate::Keep => {}
                        Fate::Remove => drop(self.rows.remove(&place)),
                        Fate::Rewrite(row) => drop(self.rows.insert(place, row)),
                    }
                }
                if let Some(user) = self.users.get_mut(super::index(person.no.0)) {
                    let key = (RowSpace::Chat, tidings_domain::chat_rows::settings_key(person.no));
                    if keys.contains(&key.1) {
                        (user.receipts_off, user.blocks) = (false, 0);
                        user.change_extras(|extras| extras.notifications = None);
                    }
                }
            }
            EraseStep::Rename { conversation, id } => {
                let details = self.conversations.get_mut(super::index(conversation.0));
                let details = details.ok_or(Rejection::NoSuchConversation)?;
                self.conversation_nos.remove(&details.id);
                details.id.clone_from(id);
                self.conversation_nos.insert(id.clone(), *conversation);
            }
            EraseStep::BeginConversation { key, row } => {
                let key = (RowSpace::Chat, key.clone());
                let before = self.rows.get(&key).and_then(|row| StoredErasure::decode(row).ok());
                if before.is_none_or(|before| !before.is_running()) {
                    self.rows.insert(key, row.clone());
                }
            }
            EraseStep::Blank { conversation, seqs } => {
                for seq in seqs {
                    let found = self.timelines.get_mut(conversation).and_then(|timeline| timeline.get_mut(seq));
                    let Some(entry) = found else { continue };
                    let send = super::send_of(*conversation, &entry.content);
                    blank(entry);
                    send.map(|send| self.first_results.remove(&send));
                    self.reactions.remove(&(*conversation, *seq));
                }
            }
            EraseStep::RowsIn { conversation, keys } => {
                for key in keys {
                    let place = (RowSpace::Chat, key.clone());
                    let Some(row) = self.rows.get(&place) else { continue };
                    match fate_of_row_in(conversation, key, row) {
                        Fate::Keep => {}
                        Fate::Remove => drop(self.rows.remove(&place)),
                        Fate::Rewrite(row) => drop(self.rows.insert(place, row)),
                    }
                }
            }
            EraseStep::Details { conversation, .. } => {
                let details = self.conversations.get_mut(super::index(conversation.no.0));
                let details = details.ok_or(Rejection::NoSuchConversation)?;
                self.conversation_nos.remove(&details.id);
                self.conversation_nos.insert(conversation.alias.clone(), conversation.no);
                *details = conversation.left_of(details.clone());
                self.pins.remove(&conversation.no);
                self.untold.remove(&conversation.no);
                self.invites.remove(&conversation.no);
                self.requests.retain(|(of, _), _| *of != conversation.no);
            }
            EraseStep::Profile { person, .. } => {
                let user = self.users.get_mut(super::index(person.no.0)).ok_or(Rejection::NoSuchUser(person.no))?;
                self.user_nos.remove(&user.id);
                self.user_nos.insert(person.alias.clone(), person.no);
                let suspension = user.suspension().cloned().map(Box::new);
                *user = User::new(user.no, person.alias.clone(), user.created_at)
                    .with_extras(UserExtras { suspension, ..UserExtras::default() });
                self.last_seen.remove(&person.no);
                self.first_results.retain(|(_, author, _), _| *author != Some(person.no));
            }
        }
        Ok(Outcome::Done)
    }
}
