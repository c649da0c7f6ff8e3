//! What receipts are derived from: how far clients have stored what they were handed, and what users have set for
//! all conversations: who sends read receipts, and who is notified by which channels.

use super::{Decider, ProposalError, StagedRows};
use crate::{chat_rows::*, model::*, store::*};

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn set_stored(&mut self, told: &[(UserNo, [Position; LANES])]) -> Result<Outcome, ProposalError> {
        let mut moved = Vec::new();
        for (user, told) in told {
            let key = stored_key(*user);
            let before = decode_stored(self.rows.chat_row(&key)?.as_deref())?;
            let mut now = before;
            now.iter_mut().zip(told).for_each(|(now, told)| *now = (*now).max(*told));
            if now != before {
                self.rows.put_chat_row(key, Some(encode_stored(now)));
                moved.push(StoredMove { user: *user, before, now });
            }
        }
        Ok(Outcome::Stored(moved))
    }

    pub(super) fn change_settings(
        &mut self,
        user: UserNo,
        change: impl FnOnce(&mut UserSettings),
    ) -> Result<Outcome, ProposalError> {
        self.rows.user(user)?.ok_or(Rejection::NoSuchUser(user))?;
        let key = settings_key(user);
        let mut settings = UserSettings::decode(self.rows.chat_row(&key)?.as_deref())?;
        change(&mut settings);
        self.rows.put_chat_row(key, settings.encode());
        Ok(Outcome::Done)
    }
}
