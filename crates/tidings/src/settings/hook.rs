//! The settings of the hook.

use super::{Settings, macros::settings};
use crate::webhook::HttpHook;
use anyhow::{Context, Result, bail};
use std::{sync::Arc, time::Duration};
use tidings_engine::hook::{HookConfig, HookOperation, HookScope};
use tidings_notifications::webhook::WebhookSecret;

settings! {
    /// The hook: a server of yours that is asked before what a user does is committed.
    Hook {
        /// The address that questions are posted to. Unset: nobody is asked.
        url: Option<String> = None,
        /// Signs every request as Standard Webhooks have it: `whsec_` and Base64 of 24 to 64 bytes.
        secret: Option<String> = None,
        /// What is asked about: send, edit, react, create, members, profile; or one of them in one kind of conversation, such as
        /// `send:group` (direct, group, official).
        on: Vec<String> = vec![HookOperation::Send.name().to_owned(), HookOperation::Edit.name().to_owned()],
        /// What of this is refused with `hook_unavailable` when the hook fails, in the same words. Everything else is allowed then.
        closed: Vec<String> = Vec::new(),
        /// Whether what app servers do is asked about, too.
        app_servers: bool = false,
        /// A request that takes longer has failed, and so has a question that has waited for longer before it was sent.
        timeout_ms: u64 = 1_000,
        /// Questions of each lane that wait; one user may have at most as many waiting as there are free places. Full: the hook has
        /// failed for the next.
        waiting_max: usize = 2_000,
        /// Questions in one request.
        batch_max: usize = 100,
        /// Requests under way at once. Meanwhile questions gather for the next.
        requests_max: usize = 8,
    }
}

impl Settings {
    /// Refuses a hook that could not be called, or words that name nothing.
    pub(super) fn check_hook(&self) -> Result<()> {
        self.hook_scopes()?;
        if self.hook.url.is_some() {
            self.hook_secret()?;
        }
        Ok(())
    }

    fn hook_secret(&self) -> Result<WebhookSecret> {
        let Some(secret) = self.hook.secret.as_deref().filter(|secret| !secret.is_empty()) else {
            bail!("[hook] url needs a secret: without one your server could not verify that a request is ours");
        };
        WebhookSecret::parse(secret).context(
            "[hook] secret must be whsec_ and Base64 of 24 to 64 random bytes, such as what \
             `echo whsec_$(head -c 32 /dev/urandom | base64)` prints",
        )
    }

    /// What is asked about, and what of it is refused when the hook fails.
    fn hook_scopes(&self) -> Result<(HookScope, HookScope)> {
        let scope = |words: &[String], name| -> Result<HookScope> {
            let scopes = words.iter().map(|word| word.parse::<HookScope>());
            scopes.into_iter().try_fold(HookScope::default(), |all, one| Ok(all.and(one.context(name)?)))
        };
        Ok((scope(&self.hook.on, "[hook] on")?, scope(&self.hook.closed, "[hook] closed")?))
    }

    /// The hook, if the settings name one. Call within the runtime that is to do the requests.
    pub(crate) fn hook_config(&self) -> Result<Option<HookConfig>> {
        let Some(url) = &self.hook.url else { return Ok(None) };
        let time_limit = Duration::from_millis(self.hook.timeout_ms);
        let transport = HttpHook::new(url.clone(), self.hook_secret()?, time_limit)?;
        let (on, closed) = self.hook_scopes()?;
        Ok(Some(HookConfig {
            transport: Arc::new(transport),
            on,
            closed,
            app_servers: self.hook.app_servers,
            time_limit,
            waiting_max: self.hook.waiting_max,
            batch_max: self.hook.batch_max,
            requests_max: self.hook.requests_max,
        }))
    }
}
