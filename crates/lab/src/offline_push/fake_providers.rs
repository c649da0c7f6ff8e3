//! The services of all providers for the lab: their addresses and keys as settings of the server under test, and tokens at them.

use super::{
    fake_apns::Apns,
    fake_fcm::Fcm,
    fake_provider::Providers,
    fake_web_push::{BrowserKeys, ENDPOINT_PATH, WebPush},
    http_server::HttpServer,
    notice::{NoticeSink, OfflineChannel},
    provider_state::ProviderStates,
    token_book::TokenOwner,
};
use crate::LabError;
use serde_json::json;
use std::sync::Arc;
use tidings_protocol::http::{PushToken, WebPushKeys, WebPushSubscription};

/// The key of a service account that only the fake knows: it opens nothing.
const ACCOUNT_KEY: &str = include_str!("fake_account.pem");

/// A pair of keys for VAPID, private and public: those of an example in RFC 8291.
const VAPID_PAIR: [&str; 2] = [
    "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94",
    "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4",
];

/// The fakes. They end with this handle.
pub(crate) struct FakeProviders {
    all: Providers,
    apns: HttpServer,
    fcm: HttpServer,
    web_push: HttpServer,
    /// The public key and the secret of subscriptions.
    subscription_keys: (String, String),
    /// The files of the keys.
    folder: tempfile::TempDir,
}

impl FakeProviders {
    pub(crate) fn start(sink: Arc<dyn NoticeSink>) -> Result<FakeProviders, LabError> {
        let all = Providers { sink, book: Arc::default(), states: Arc::default() };
        let keys = BrowserKeys::new();
        let subscription_keys = keys.subscription_keys();
        let (apns, fcm, web_push) = (all.start(Apns)?, all.start(Fcm)?, all.start(WebPush { keys })?);
        let folder = tempfile::Builder::new().prefix("tidings-providers-").tempdir()?;
        let signing_key = rcgen::KeyPair::generate().map_err(|error| LabError::Environment(error.to_string()))?;
        std::fs::write(folder.path().join("apns.p8"), signing_key.serialize_pem())?;
        let account = json!({
            "type": "service_account", "project_id": "lab", "private_key_id": "1", "private_key": ACCOUNT_KEY,
            "client_email": "lab@example.com", "token_uri": format!("http://{}/token", fcm.address),
        });
        std::fs::write(folder.path().join("account.json"), account.to_string())?;
        Ok(FakeProviders { all, apns, fcm, web_push, subscription_keys, folder })
    }

    /// How the services answer.
    pub(crate) fn states(&self) -> Arc<ProviderStates> {
        self.all.states.clone()
    }

    /// The settings that have a server notify by these fakes.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let file = |name: &str| self.folder.path().join(name).display().to_string();
        let url = |address: std::net::SocketAddr| format!("http://{address}");
        [
            ("TIDINGS_APNS_URL", url(self.apns.address)),
            ("TIDINGS_APNS_TOPIC", "com.example.lab".into()),
            ("TIDINGS_APNS_KEY_FILE", file("apns.p8")),
            ("TIDINGS_APNS_KEY_ID", "LABKEY1234".into()),
            ("TIDINGS_APNS_TEAM_ID", "LABTEAM123".into()),
            ("TIDINGS_FCM_URL", url(self.fcm.address)),
            ("TIDINGS_FCM_SERVICE_ACCOUNT_FILE", file("account.json")),
            ("TIDINGS_WEB_PUSH_PRIVATE_KEY", VAPID_PAIR[0].into()),
            ("TIDINGS_WEB_PUSH_PUBLIC_KEY", VAPID_PAIR[1].into()),
            ("TIDINGS_WEB_PUSH_SUBJECT", "mailto:lab@example.com".into()),
            ("TIDINGS_WEB_PUSH_SERVICES", url(self.web_push.address)),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .to_vec()
    }

    /// A new token of this provider for a user's device.
    pub(crate) fn token(&self, provider: OfflineChannel, user: &str, device: &str) -> PushToken {
        let token = self.all.book.add(provider, TokenOwner { user: user.to_owned(), device: device.to_owned() });
        match provider {
            OfflineChannel::Apns => PushToken::Apns { token },
            OfflineChannel::Fcm | OfflineChannel::Webhook => PushToken::Fcm { token },
            OfflineChannel::WebPush => {
                let (p256dh, auth) = self.subscription_keys.clone();
                let endpoint = format!("http://{}{ENDPOINT_PATH}{token}", self.web_push.address);
                let keys = WebPushKeys { p256dh, auth };
                let subscription = WebPushSubscription { endpoint, expiration_time: Default::default(), keys };
                PushToken::WebPush { subscription }
            }
        }
    }
}
