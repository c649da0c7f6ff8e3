//! Firebase's service for the lab: grants an access token to whoever asks, and takes messages (HTTP v1).

use super::{
    http1::{Answer, Handler, Request},
    notice::{Notice, NoticeSink, OfflineChannel},
    provider_state::{ProviderState, ProviderStates},
    token_book::TokenBook,
};
use serde::Deserialize;
use std::{borrow::Cow, sync::Arc, time::Duration};

/// How often a request that is kept waiting looks whether the provider answers again.
pub(super) const HANG_POLL: Duration = Duration::from_millis(50);

pub(super) struct FakeFcm {
    pub(super) sink: Arc<dyn NoticeSink>,
    pub(super) book: Arc<TokenBook>,
    pub(super) states: Arc<ProviderStates>,
}

#[derive(Deserialize)]
struct Body<'a> {
    #[serde(borrow)]
    message: Message<'a>,
}

#[derive(Deserialize)]
struct Message<'a> {
    token: &'a str,
    #[serde(borrow)]
    data: MessageData<'a>,
}

/// All values are strings.
#[derive(Deserialize)]
struct MessageData<'a> {
    #[serde(borrow)]
    conversation: Cow<'a, str>,
    seq: &'a str,
    removed: Option<&'a str>,
}

impl Handler for FakeFcm {
    fn answer(&self, request: Request<'_>) -> Result<Option<Answer>, String> {
        if request.path == "/token" {
            let body = r#"{"access_token":"lab","token_type":"Bearer","expires_in":3600}"#.to_owned();
            return Ok(Some(Answer { status: 200, body }));
        }
        let Body { message } = serde_json::from_slice(request.body).map_err(|error| error.to_string())?;
        match self.states.get(OfflineChannel::Fcm) {
            ProviderState::Accepts => {}
            ProviderState::Refuses => {
                let body = r#"{"error":{"code":503,"status":"UNAVAILABLE"}}"#.to_owned();
                return Ok(Some(Answer { status: 503, body }));
            }
            ProviderState::Hangs => {
                while self.states.get(OfflineChannel::Fcm) == ProviderState::Hangs {
                    std::thread::sleep(HANG_POLL);
                }
                return Ok(None);
            }
        }
        let owner = self.book.owner(message.token)?;
        self.sink.note(&[Notice {
            channel: OfflineChannel::Fcm,
            user: &owner.user,
            device: &owner.device,
            conversation: &message.data.conversation,
            seq: message.data.seq.parse().map_err(|_| "a seq that is not a number".to_owned())?,
            id: None,
            removed: message.data.removed == Some("true"),
            sent_at_ms: None,
        }]);
        Ok(Some(Answer { status: 200, body: r#"{"name":"projects/lab/messages/1"}"#.into() }))
    }

    fn sink(&self) -> &dyn NoticeSink {
        &*self.sink
    }
}
