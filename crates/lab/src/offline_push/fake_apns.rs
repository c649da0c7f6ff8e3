//! Apple's service for the lab, over HTTP/2 in the clear.

use super::{
    fake_provider::{Notification, ProviderProtocol},
    http_server::Request,
    notice::OfflineChannel,
};
use http::StatusCode;
use serde::Deserialize;

/// A notification holds at most 4 KiB.
const BODY_BYTES_MAX: usize = 4 * 1024;

pub(super) struct Apns;

/// What the fake reads of a notification.
#[derive(Deserialize)]
struct Payload {
    conversation: String,
    seq: u64,
    #[serde(default)]
    removed: bool,
}

impl ProviderProtocol for Apns {
    const CHANNEL: OfflineChannel = OfflineChannel::Apns;
    const TAKES: (StatusCode, &'static str) = (StatusCode::OK, "");
    const REFUSES: &'static str = r#"{"reason":"ServiceUnavailable"}"#;

    fn read(&self, request: &Request) -> Result<Notification, String> {
        let headers = request.headers();
        let token = request.uri().path().strip_prefix("/3/device/").ok_or("a path of no device")?;
        for needed in ["apns-id", "apns-topic", "apns-collapse-id", "authorization"] {
            if !headers.contains_key(needed) {
                return Err(format!("no header {needed}"));
            }
        }
        if request.body().len() > BODY_BYTES_MAX {
            return Err("a notification that is too large".into());
        }
        let Payload { conversation, seq, removed } =
            serde_json::from_slice(request.body()).map_err(|error| error.to_string())?;
        let kind = if removed { "background" } else { "alert" };
        if headers.get("apns-push-type").is_none_or(|said| said != kind) {
            return Err(format!("a notification of another kind than {kind}"));
        }
        let id = headers.get("apns-id").map(|id| xxhash_rust::xxh3::xxh3_64(id.as_bytes()));
        Ok(Notification { token: token.into(), conversation, seq, id, removed })
    }
}
