//! Whom a user blocks.

use super::{Decider, ProposalError, StagedRows};
use crate::{chat_rows::*, model::*, store::*};

impl<'a, R: StagedRows<'a>> Decider<'_, R> {
    pub(super) fn set_block(
        &mut self,
        user: UserNo,
        other: UserNo,
        blocked: bool,
        blocks_max: u32,
    ) -> Result<Outcome, ProposalError> {
        let key = block_key(user, other);
        let moved = self.rows.chat_row(&key)?.is_some() != blocked;
        let settings = UserSettings::decode(self.rows.chat_row(&settings_key(user))?.as_deref())?;
        if moved && blocked && settings.blocks >= blocks_max {
            return Err(Rejection::TooManyBlocks { limit: blocks_max.into() }.into());
        }
        // The number of blocks is with the user, so that those who block nobody cost no look for a row.
        self.change_settings(user, |settings| match (moved, blocked) {
            (false, _) => {}
            (true, true) => settings.blocks += 1,
            (true, false) => settings.blocks = settings.blocks.saturating_sub(1),
        })?;
        if moved {
            self.rows.put_chat_row(key, blocked.then(|| encode(&self.now_ms)));
        }
        Ok(Outcome::Block { moved })
    }
}
