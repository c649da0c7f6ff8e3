//! Web Push (RFC 8030): notifications for browsers, by the push service that the browser's maker runs.
//!
//! The address of a subscription comes from a client. So that nobody has this server call addresses of their choice, only the
//! services that the settings name are called. What the service worker gets is JSON:
//! `{"title": …, "body": …, "badge": 3, "conversation": "house-7", "seq": 12, "tag": …}`.

mod encryption;
mod vapid;

use crate::{
    SetupError, base_url,
    pool::{Answer, ClientKind, Pool, PoolConfig},
    with_subject, without_nulls,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use reqwest::{StatusCode, Url};
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use tidings_domain::{
    clock::Clock,
    providers::{Notification, NotificationSubject, Provider, ProviderAnswer, Retry, Shipment},
};
use tidings_protocol::{
    error::Refusal,
    http::{PushProvider, PushToken, WebPushSubscription},
};
use vapid::Vapid;

/// How browsers are reached.
#[derive(Clone)]
pub struct WebPushConfig {
    /// The private key of the sender, in base64url.
    pub private_key: String,
    /// The public key, in base64url, which apps give to the browser.
    pub public_key: String,
    /// How a push service reaches the sender: a `mailto:` or `https:` address.
    pub subject: String,
    /// The services that may be called, such as `https://*.push.apple.com`.
    pub services: Vec<String>,
    /// Whether Apple's service gets pushes that show nothing: Safari ends a subscription that has had some.
    pub silent_to_apple: bool,
    /// The bounds.
    pub pool: PoolConfig,
}

/// The push services of browsers.
pub struct WebPush {
    pool: Pool,
    vapid: Vapid,
    services: Vec<Service>,
    silent_to_apple: bool,
}

/// What may be called: an origin, or all below a host.
struct Service {
    url: Url,
    /// The end of hosts, with its dot; absent: the origin alone.
    suffix: Option<String>,
}

impl Service {
    fn parse(text: &str) -> Result<Service, SetupError> {
        let (plain, is_wildcard) = match text.split_once("://*.") {
            Some((scheme, rest)) => (format!("{scheme}://{rest}"), true),
            None => (text.to_owned(), false),
        };
        let url = base_url::parse(&plain)?;
        let suffix = url.host_str().filter(|_| is_wildcard).map(|host| format!(".{host}"));
        Ok(Service { url, suffix })
    }

    fn has(&self, url: &Url) -> bool {
        let fits = match (&self.suffix, url.host_str()) {
            (Some(suffix), Some(host)) => host.ends_with(suffix.as_str()),
            (_, host) => host == self.url.host_str(),
        };
        // A name and a password in the address would be sent as credentials.
        let is_plain = url.username().is_empty() && url.password().is_none();
        fits && is_plain
            && url.scheme() == self.url.scheme()
            && url.port_or_known_default() == self.url.port_or_known_default()
    }
}

impl WebPush {
    /// Call within the runtime that is to do the requests.
    ///
    /// # Errors
    /// The keys are no pair, or an address cannot be used.
    pub fn new(config: WebPushConfig, clock: Arc<dyn Clock>) -> Result<WebPush, SetupError> {
        let vapid = Vapid::new(&config.private_key, &config.public_key, config.subject)?;
        let services = config.services.iter().map(|service| Service::parse(service)).collect::<Result<_, _>>()?;
        let pool = Pool::new(config.pool, ClientKind::default(), clock)?;
        Ok(WebPush { pool, vapid, services, silent_to_apple: config.silent_to_apple })
    }

    fn endpoint(&self, subscription: &WebPushSubscription) -> Option<Url> {
        let url = base_url::parse(&subscription.endpoint).ok()?;
        self.services.iter().any(|service| service.has(&url)).then_some(url)
    }

    async fn send(&self, shipment: Shipment) -> ProviderAnswer {
        let Shipment { notification, token: PushToken::WebPush { subscription } } = shipment else {
            return never("NotWebPush");
        };
        // The settings may have named its service when the token was registered.
        let Some(url) = self.endpoint(&subscription) else { return never("ServiceNotNamed") };
        let key = |text: &str| URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).unwrap_or_default();
        let (public, auth) = (key(&subscription.keys.p256dh), key(&subscription.keys.auth));
        let Ok(body) = encryption::encrypt(&payload(&notification), &public, &auth) else {
            // No browser has such a key: the subscription is not one.
            return ProviderAnswer::TokenGone { since: None };
        };
        let now_ms = self.pool.clock.now_ms();
        let Some(authorization) = self.vapid.authorization(&base_url::origin(&url), now_ms) else {
            return ProviderAnswer::Unreachable { reason: "no randomness".into(), retry_after: None };
        };
        let request = self
            .pool
            .post(url.clone())
            .header("authorization", authorization)
            .header("content-encoding", "aes128gcm")
            .header("content-type", "application/octet-stream")
            .header("ttl", notification.expires_at.saturating_sub(now_ms) / 1_000)
            .header("urgency", if notification.urgent { "high" } else { "normal" })
            .header("topic", &notification.collapse_key)
            .body(body);
        match self.pool.request(&url, request).await {
            Ok(answer) => judge(&answer),
            Err(unreachable) => unreachable,
        }
    }
}

impl Provider for WebPush {
    fn provider(&self) -> PushProvider {
        PushProvider::WebPush
    }

    fn check_token(&self, token: &PushToken) -> Result<(), Refusal> {
        match token {
            PushToken::WebPush { subscription } if self.endpoint(subscription).is_some() => Ok(()),
            _ => Err(Refusal::field(
                "subscription.endpoint",
                "is not at one of the push services that the server's settings name",
            )),
        }
    }

    fn services(&self) -> usize {
        self.services.len()
    }

    fn service_of(&self, token: &PushToken) -> u64 {
        let PushToken::WebPush { subscription } = token else { return 0 };
        let Ok(url) = base_url::parse(&subscription.endpoint) else { return 0 };
        self.services.iter().position(|service| service.has(&url)).unwrap_or_default() as u64
    }

    fn takes_silent(&self, token: &PushToken) -> bool {
        let PushToken::WebPush { subscription } = token else { return true };
        self.silent_to_apple || !is_of_apple(&subscription.endpoint)
    }

    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<ProviderAnswer> {
        self.pool.for_all(shipments, |_, shipment| self.send(shipment))
    }

    fn stop(&self) {
        self.pool.stop();
    }
}

/// Whether a subscription is one of Safari's.
fn is_of_apple(endpoint: &str) -> bool {
    let url: Option<Url> = endpoint.parse().ok();
    url.as_ref().and_then(Url::host_str).is_some_and(|host| host.ends_with(".push.apple.com"))
}

/// What the service worker gets.
fn payload(notification: &Notification) -> Vec<u8> {
    if notification.removes {
        let Notification { subject, collapse_key, badge, .. } = notification;
        let payload = json!({ "removed": true, "tag": collapse_key, "badge": badge });
        return with_subject(without_nulls(payload), subject).to_string().into_bytes();
    }
    #[derive(Serialize)]
    struct Payload<'a> {
        title: &'a str,
        body: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        badge: Option<u64>,
        #[serde(flatten)]
        subject: &'a NotificationSubject,
        tag: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        image: Option<&'a str>,
        /// The notification makes no sound.
        #[serde(skip_serializing_if = "std::ops::Not::not")]
        silent: bool,
    }
    let Notification { title, body, badge, subject, collapse_key, .. } = notification;
    let image = notification.image.as_deref();
    let silent = notification.sound.as_deref() == Some("");
    let payload = Payload { title, body, badge: *badge, subject, tag: collapse_key, image, silent };
    serde_json::to_vec(&payload).unwrap_or_default()
}

/// What a push service's answer means (RFC 8030, 5 and 8.4).
fn judge(answer: &Answer) -> ProviderAnswer {
    match answer.status {
        status if status.is_success() => ProviderAnswer::Accepted { id: None },
        StatusCode::NOT_FOUND | StatusCode::GONE => ProviderAnswer::TokenGone { since: None },
        StatusCode::UNAUTHORIZED | StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => later(answer),
        status if status.is_server_error() => later(answer),
        status => never(status.as_str()),
    }
}

fn later(answer: &Answer) -> ProviderAnswer {
    ProviderAnswer::Refused { code: answer.status.as_str().to_owned(), retry: Retry::After(answer.retry_after) }
}

fn never(code: &str) -> ProviderAnswer {
    ProviderAnswer::Refused { code: code.to_owned(), retry: Retry::Never }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tidings_protocol::limits::NOTIFICATION_IMAGE_BYTES_MAX;

    #[test]
    fn a_subscription_of_safari_is_known_by_its_host() {
        for (endpoint, expected) in [
            ("https://web.push.apple.com/QGuQyavXutnMH", true),
            ("https://fcm.googleapis.com/web.push.apple.com", false),
            ("https://web.push.apple.com.example/x", false),
        ] {
            assert_eq!(is_of_apple(endpoint), expected, "{endpoint}");
        }
    }

    #[test]
    fn only_the_services_that_are_named_are_called() {
        let check = |service: &str, url: &str, expected: bool| {
            let has = Service::parse(service).unwrap().has(&url.parse().unwrap());
            assert_eq!(has, expected, "{service} {url}");
        };
        check("https://fcm.googleapis.com", "https://fcm.googleapis.com/fcm/send/x", true);
        check("https://fcm.googleapis.com", "https://fcm.googleapis.com:444/x", false);
        check("https://fcm.googleapis.com", "https://other.googleapis.com/x", false);
        check("https://*.push.apple.com", "https://web.push.apple.com/x", true);
        check("https://*.push.apple.com", "https://push.apple.com/x", false);
        check("https://*.push.apple.com", "https://webpush.apple.com/x", false);
        check("https://*.push.apple.com", "https://web.push.apple.com.example/x", false);
        check("https://*.push.apple.com", "https://user@web.push.apple.com/x", false);
        check("http://127.0.0.1:9", "http://127.0.0.1:9/x", true);
        check("http://127.0.0.1:9", "http://127.0.0.1:22/x", false);
        check("http://127.0.0.1:9", "https://127.0.0.1:9/x", false);
        assert!(Service::parse("http://push.example.com").is_err());
        assert!(Service::parse("*").is_err());
    }

    #[test]
    fn the_longest_notification_fits_into_what_push_services_take() {
        let notification = Notification {
            removes: false,
            id: [0; 16],
            collapse_key: "k".repeat(32),
            title: "\"".repeat(200),
            body: "\n".repeat(1_300),
            badge: Some(u64::MAX),
            expires_at: u64::MAX,
            urgent: true,
            subject: NotificationSubject::Message { conversation: "\"".repeat(129), seq: u64::MAX },
            image: Some("x".repeat(NOTIFICATION_IMAGE_BYTES_MAX)),
            sound: Some(String::new()),
        };
        assert!(payload(&notification).len() + encryption::OVERHEAD <= 4_096);
    }
}
