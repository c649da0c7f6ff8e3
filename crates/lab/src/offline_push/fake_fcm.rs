//! Firebase's service for the lab: grants an access token to whoever asks, and takes messages (HTTP v1).

use super::{
    fake_provider::{Notification, ProviderProtocol},
    http_server::Request,
    notice::OfflineChannel,
};
use http::StatusCode;
use serde::Deserialize;

pub(super) struct Fcm;

#[derive(Deserialize)]
struct Body {
    message: Message,
}

#[derive(Deserialize)]
struct Message {
    token: String,
    data: MessageData,
}

/// All values are strings.
#[derive(Deserialize)]
struct MessageData {
    conversation: String,
    seq: String,
    removed: Option<String>,
}

impl ProviderProtocol for Fcm {
    const CHANNEL: OfflineChannel = OfflineChannel::Fcm;
    const TAKES: (StatusCode, &'static str) = (StatusCode::OK, r#"{"name":"projects/lab/messages/1"}"#);
    const REFUSES: &'static str = r#"{"error":{"code":503,"status":"UNAVAILABLE"}}"#;

    fn read(&self, request: &Request) -> Result<Notification, String> {
        let Body { message: Message { token, data } } =
            serde_json::from_slice(request.body()).map_err(|error| error.to_string())?;
        let seq = data.seq.parse().map_err(|_| "a seq that is not a number")?;
        let removed = data.removed.as_deref() == Some("true");
        Ok(Notification { token, conversation: data.conversation, seq, id: None, removed })
    }

    fn grants(request: &Request) -> Option<&'static str> {
        let granted = r#"{"access_token":"lab","token_type":"Bearer","expires_in":3600}"#;
        (request.uri().path() == "/token").then_some(granted)
    }
}
