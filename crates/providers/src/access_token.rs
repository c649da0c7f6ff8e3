//! Access tokens of OAuth 2.0: fetched when one is needed, kept until shortly before their end, and fetched by one request for all that wait.

use crate::pool::{Answer, Pool};
use reqwest::{Url, header::CONTENT_TYPE};
use serde::Deserialize;
use std::time::{Duration, Instant};
use tidings_domain::providers::ProviderAnswer;
use tokio::sync::Mutex;

/// An access token is renewed so long before its end, so that none ends on its way.
const RENEWED_BEFORE: Duration = Duration::from_secs(5 * 60);
/// The longest that a token is kept, whatever the answer says.
const KEPT_MAX: Duration = Duration::from_secs(24 * 60 * 60);
/// No token is fetched for so long after one could not be.
const FETCH_PAUSE: Duration = Duration::from_secs(1);

/// The access token of one provider. Locked while a token is fetched: others wait for the same one.
#[derive(Default)]
pub(crate) struct AccessTokens(Mutex<State>);

#[derive(Default)]
struct State {
    present: Option<AccessToken>,
    /// When the last fetch failed, and how: others of the same burst need not find out for themselves.
    failed: Option<(Instant, ProviderAnswer)>,
}

struct AccessToken {
    text: String,
    renewed_at: Instant,
}

impl AccessTokens {
    /// The present token, or one that the authorization server grants for this form.
    ///
    /// # Errors
    /// No token was granted: [`ProviderAnswer::Unreachable`].
    pub(crate) async fn get(
        &self,
        pool: &Pool,
        url: &Url,
        form: impl FnOnce() -> Result<String, ProviderAnswer>,
    ) -> Result<String, ProviderAnswer> {
        let mut state = self.0.lock().await;
        let now = pool.clock.monotonic();
        if let Some(token) = state.present.as_ref().filter(|token| now < token.renewed_at) {
            return Ok(token.text.clone());
        }
        if let Some((at, failure)) = &state.failed
            && now.saturating_duration_since(*at) < FETCH_PAUSE
        {
            return Err(failure.clone());
        }
        match fetch(pool, url, form).await {
            Ok(token) => {
                let text = token.text.clone();
                *state = State { present: Some(token), failed: None };
                Ok(text)
            }
            Err(failure) => {
                state.failed = Some((pool.clock.monotonic(), failure.clone()));
                Err(failure)
            }
        }
    }

    /// Forgets the token that was refused, unless another one has taken its place.
    pub(crate) async fn forget(&self, refused: &str) {
        let mut state = self.0.lock().await;
        if state.present.as_ref().is_some_and(|token| token.text == refused) {
            state.present = None;
        }
    }
}

async fn fetch(
    pool: &Pool,
    url: &Url,
    form: impl FnOnce() -> Result<String, ProviderAnswer>,
) -> Result<AccessToken, ProviderAnswer> {
    #[derive(Deserialize)]
    struct Granted {
        access_token: String,
        expires_in: u64,
    }
    let request = pool.post(url.clone()).header(CONTENT_TYPE, "application/x-www-form-urlencoded").body(form()?);
    let asked_at = pool.clock.monotonic();
    let Answer { status, body, retry_after, .. } = pool.request(url, request).await?;
    let granted: Option<Granted> = status.is_success().then(|| serde_json::from_slice(&body).ok()).flatten();
    let Some(Granted { access_token: text, expires_in }) = granted else {
        let reason = format!("no access token was granted: {status}");
        return Err(ProviderAnswer::Unreachable { reason, retry_after });
    };
    let valid_for = Duration::from_secs(expires_in).min(KEPT_MAX);
    Ok(AccessToken { text, renewed_at: asked_at + valid_for.saturating_sub(RENEWED_BEFORE) })
}
