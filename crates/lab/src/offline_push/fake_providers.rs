//! The services of all providers for the lab: their addresses and keys as settings of the server under test, and tokens at them.

use super::{
    fake_apns::FakeApns,
    fake_fcm::FakeFcm,
    fake_web_push::{BrowserKeys, ENDPOINT_PATH, FakeWebPush},
    http1::HttpServer,
    notice::{NoticeSink, OfflineChannel},
    provider_state::ProviderStates,
    token_book::{TokenBook, TokenOwner},
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
    pub(crate) states: Arc<ProviderStates>,
    book: Arc<TokenBook>,
    apns: FakeApns,
    fcm: HttpServer,
    web_push: HttpServer,
    /// The public key and the secret of subscriptions.
    subscription_keys: (String, String),
    /// The files of the keys.
    folder: tempfile::TempDir,
}

impl FakeProviders {
    pub(crate) fn start(sink: Arc<dyn NoticeSink>) -> Result<FakeProviders, LabError> {
        let (book, states) = (Arc::new(TokenBook::default()), Arc::new(ProviderStates::default()));
        let keys = BrowserKeys::new();
        let subscription_keys = keys.subscription_keys();
        let apns = FakeApns::start(sink.clone(), book.clone(), states.clone())?;
        let fcm = FakeFcm { sink: sink.clone(), book: book.clone(), states: states.clone() };
        let web_push = FakeWebPush { sink, book: book.clone(), states: states.clone(), keys };
        let (fcm, web_push) =
            (HttpServer::start("fcm", Arc::new(fcm))?, HttpServer::start("web-push", Arc::new(web_push))?);
        let folder = tempfile::Builder::new().prefix("tidings-providers-").tempdir()?;
        let signing_key = rcgen::KeyPair::generate().map_err(|error| LabError::Environment(error.to_string()))?;
        std::fs::write(folder.path().join("apns.p8"), signing_key.serialize_pem())?;
        let account = json!({
            "type": "service_account", "project_id": "lab", "private_key_id": "1", "private_key": ACCOUNT_KEY,
            "client_email": "lab@example.com", "token_uri": format!("http://{}/token", fcm.address),
        });
        std::fs::write(folder.path().join("account.json"), account.to_string())?;
        Ok(FakeProviders { states, book, apns, fcm, web_push, subscription_keys, folder })
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
        let token = self.book.add(provider, TokenOwner { user: user.to_owned(), device: device.to_owned() });
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
