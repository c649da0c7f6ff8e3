//! Apple Push Notification service, over HTTP/2.
//!
//! The sender is known by a signed token or by a certificate. Codes and limits are those of Apple's documentation ("Sending
//! notification requests to APNs", "Handling notification responses from APNs", "Establishing a token-based connection to APNs").

use crate::{
    SetupError, base_url,
    jwt::SigningKey,
    pool::{Answer, ClientKind, Pool, PoolConfig},
    with_subject, without_nulls,
};
use parking_lot::Mutex;
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tidings_domain::{
    clock::Clock,
    providers::{Notification, NotificationSubject, Provider, ProviderAnswer, Retry, Shipment},
};
use tidings_protocol::http::{PushProvider, PushToken};

/// A token is refused when it is older than an hour, by APNs' clock.
const TOKEN_RENEWED_AFTER: Duration = Duration::from_secs(50 * 60);
/// APNs refuses a sender whose token changes more often than every 20 minutes.
const TOKEN_KEPT_FOR: Duration = Duration::from_secs(20 * 60);
/// A token that APNs calls expired is replaced after this time at the earliest.
const TOKEN_KEPT_AT_LEAST: Duration = Duration::from_secs(60);

/// How the sender is known.
#[derive(Clone)]
pub enum ApnsCredentials {
    /// By tokens that this key signs.
    Token {
        /// The key as Apple hands it out: PKCS#8 in PEM.
        key: Vec<u8>,
        /// The key's id.
        key_id: String,
        /// The id of the developer's team.
        team_id: String,
    },
    /// By a certificate.
    Certificate {
        /// The certificate and its private key, in PEM.
        pem: Vec<u8>,
    },
}

/// How devices of Apple are reached.
#[derive(Clone)]
pub struct ApnsConfig {
    /// `https://api.push.apple.com`, or that of the development environment.
    pub url: String,
    /// How the sender is known.
    pub credentials: ApnsCredentials,
    /// The app's bundle id.
    pub topic: String,
    /// The bounds.
    pub pool: PoolConfig,
}

/// Apple's push service.
pub struct Apns {
    pool: Pool,
    url: Url,
    topic: String,
    /// Absent: the certificate says who sends.
    tokens: Option<ProviderTokens>,
}

/// The token by which APNs knows the sender, and the key that signs it.
struct ProviderTokens {
    key: SigningKey,
    key_id: String,
    team_id: String,
    present: Mutex<Option<ProviderToken>>,
}

#[derive(Clone)]
struct ProviderToken {
    token: String,
    /// By the clock that does not jump.
    signed_at: Instant,
    /// In seconds since 1970 UTC, as the token says.
    issued_at: u64,
}

impl ProviderTokens {
    /// The header `authorization`. `None`: the system has no randomness.
    fn header(&self, clock: &dyn Clock) -> Option<String> {
        let (now, now_s) = (clock.monotonic(), clock.now_ms() / 1_000);
        let mut present = self.present.lock();
        if let Some(token) = &*present {
            let age = now.saturating_duration_since(token.signed_at);
            // After a jump of the clock the token's time is wrong, but a new one too soon would be refused, too.
            let drift = (token.issued_at + age.as_secs()).abs_diff(now_s);
            let renews = age >= TOKEN_RENEWED_AFTER || (drift > 60 && age >= TOKEN_KEPT_FOR);
            if !renews {
                return Some(format!("bearer {}", token.token));
            }
        }
        #[derive(Serialize)]
        struct Claims<'a> {
            iss: &'a str,
            iat: u64,
        }
        let token = self.key.sign(Some(&self.key_id), &Claims { iss: &self.team_id, iat: now_s })?;
        *present = Some(ProviderToken { token: token.clone(), signed_at: now, issued_at: now_s });
        Some(format!("bearer {token}"))
    }

    /// Forgets the token that APNs called expired in a request with this header, so that it is not sent again; answers whether there is
    /// another one to send. The next one follows a minute later at the earliest: what is wrong then is the clock, and APNs refuses tokens that change too often.
    fn expire(&self, header: &str, clock: &dyn Clock) -> bool {
        let mut present = self.present.lock();
        let now = clock.monotonic();
        let Some(token) = &*present else { return true };
        if header.strip_prefix("bearer ") != Some(token.token.as_str()) {
            return true;
        }
        let may_renew = now.saturating_duration_since(token.signed_at) >= TOKEN_KEPT_AT_LEAST;
        if may_renew {
            *present = None;
        }
        may_renew
    }
}

impl Apns {
    /// Call within the runtime that is to do the requests.
    ///
    /// # Errors
    /// The key, the certificate or the address cannot be used.
    pub fn new(config: ApnsConfig, clock: Arc<dyn Clock>) -> Result<Apns, SetupError> {
        let url = base_url::parse(&config.url)?;
        let mut kind = ClientKind { http2_only: true, identity: None };
        let tokens = match config.credentials {
            ApnsCredentials::Token { key, key_id, team_id } => {
                let key = SigningKey::es256_from_pem(&key, "the key file of APNs")?;
                Some(ProviderTokens { key, key_id, team_id, present: Mutex::default() })
            }
            ApnsCredentials::Certificate { pem } => {
                kind.identity = Some(pem);
                None
            }
        };
        Ok(Apns { pool: Pool::new(config.pool, kind, clock)?, url, topic: config.topic, tokens })
    }

    async fn send(&self, shipment: Shipment) -> ProviderAnswer {
        let Shipment { notification, token: PushToken::Apns { token } } = shipment else {
            return ProviderAnswer::Refused { code: "NotApns".into(), retry: Retry::Never };
        };
        let mut is_renewed = false;
        loop {
            let header = match &self.tokens {
                Some(tokens) => match tokens.header(&*self.pool.clock) {
                    Some(header) => Some(header),
                    None => return ProviderAnswer::Unreachable { reason: "no randomness".into(), retry_after: None },
                },
                None => None,
            };
            let answer = match self.request(&notification, &token, header.as_deref()).await {
                Ok(answer) => answer,
                Err(unreachable) => return unreachable,
            };
            let reason = Reason::of(&answer);
            // The other token is tried at once, and once.
            if let (Some(tokens), Some(header), "ExpiredProviderToken") = (&self.tokens, &header, &*reason.reason)
                && tokens.expire(header, &*self.pool.clock)
                && !std::mem::replace(&mut is_renewed, true)
            {
                continue;
            }
            return judge(&answer, reason);
        }
    }

    async fn request(
        &self,
        notification: &Notification,
        token: &str,
        header: Option<&str>,
    ) -> Result<Answer, ProviderAnswer> {
        let url = base_url::below(&self.url, &format!("/3/device/{token}"));
        let mut request = self
            .pool
            .post(url.clone())
            .header("apns-id", uuid(&notification.id))
            .header("apns-topic", &self.topic)
            .header("apns-push-type", if notification.removes { "background" } else { "alert" })
            .header("apns-priority", if notification.urgent { "10" } else { "5" })
            .header("apns-expiration", notification.expires_at / 1_000)
            .header("apns-collapse-id", &notification.collapse_key)
            .header("content-type", "application/json")
            .body(if notification.removes { removal(notification) } else { payload(notification) });
        if let Some(header) = header {
            request = request.header("authorization", header);
        }
        self.pool.request(&url, request).await
    }
}

impl Provider for Apns {
    fn provider(&self) -> PushProvider {
        PushProvider::Apns
    }

    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<ProviderAnswer> {
        self.pool.for_all(shipments, |_, shipment| self.send(shipment))
    }

    fn stop(&self) {
        self.pool.stop();
    }
}

/// What wakes the app in the background, so that it removes the notifications with this thread id.
fn removal(notification: &Notification) -> Vec<u8> {
    // Of a background push Apple does not show the badge in `aps`: the app sets it.
    let removal = json!({ "aps": { "content-available": 1 }, "removed": true, "badge": notification.badge });
    with_subject(without_nulls(removal), &notification.subject).to_string().into_bytes()
}

fn payload(notification: &Notification) -> Vec<u8> {
    #[derive(Serialize)]
    struct Payload<'a> {
        aps: Aps<'a>,
        #[serde(flatten)]
        subject: &'a NotificationSubject,
        /// For the app's notification service extension, which shows it.
        #[serde(skip_serializing_if = "Option::is_none")]
        image: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Aps<'a> {
        alert: Alert<'a>,
        #[serde(skip_serializing_if = "Option::is_none")]
        badge: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sound: Option<&'a str>,
        #[serde(rename = "thread-id", skip_serializing_if = "Option::is_none")]
        thread_id: Option<&'a str>,
        /// Has the device run the extension.
        #[serde(rename = "mutable-content", skip_serializing_if = "Option::is_none")]
        mutable_content: Option<u8>,
    }
    #[derive(Serialize)]
    struct Alert<'a> {
        title: &'a str,
        body: &'a str,
    }
    let Notification { title, body, badge, subject, .. } = notification;
    let image = notification.image.as_deref();
    let sound = Some(notification.sound.as_deref().unwrap_or("default")).filter(|sound| !sound.is_empty());
    let mutable_content = image.map(|_| 1);
    let aps = Aps { alert: Alert { title, body }, badge: *badge, sound, thread_id: subject.thread(), mutable_content };
    serde_json::to_vec(&Payload { aps, subject, image }).unwrap_or_default()
}

/// The body of a refusal.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Reason {
    reason: String,
    /// Since when the token is invalid, in milliseconds since 1970 UTC.
    timestamp: Option<u64>,
}

impl Reason {
    fn of(answer: &Answer) -> Reason {
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }
}

/// What APNs' answer means.
fn judge(answer: &Answer, Reason { reason, timestamp }: Reason) -> ProviderAnswer {
    if answer.status == StatusCode::OK {
        return ProviderAnswer::Accepted { id: answer.header("apns-id") };
    }
    let retry = match (answer.status, reason.as_str()) {
        (StatusCode::GONE, _) => return ProviderAnswer::TokenGone { since: timestamp },
        (_, "BadDeviceToken") => return ProviderAnswer::TokenGone { since: None },
        // The key, the certificate or the clock is wrong, which an operator mends; the notification is not to blame.
        (StatusCode::FORBIDDEN, _) => Retry::After(answer.retry_after),
        (StatusCode::TOO_MANY_REQUESTS, _) => Retry::After(answer.retry_after),
        (_, "IdleTimeout") => Retry::After(None),
        (status, _) if status.is_server_error() => Retry::After(answer.retry_after),
        _ => Retry::Never,
    };
    let code = if reason.is_empty() { answer.status.as_str().to_owned() } else { reason };
    ProviderAnswer::Refused { code, retry }
}

/// The canonical form of a UUID.
fn uuid(id: &[u8; 16]) -> String {
    let hex: Vec<String> = id.iter().map(|byte| format!("{byte:02x}")).collect();
    [&hex[..4], &hex[4..6], &hex[6..8], &hex[8..10], &hex[10..]].map(|part| part.concat()).join("-")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tidings_testkit::ManualClock;

    fn tokens() -> ProviderTokens {
        let random = ring::rand::SystemRandom::new();
        let algorithm = &ring::signature::ECDSA_P256_SHA256_FIXED_SIGNING;
        let key = ring::signature::EcdsaKeyPair::generate_pkcs8(algorithm, &random).unwrap();
        let key = ring::signature::EcdsaKeyPair::from_pkcs8(algorithm, key.as_ref(), &random).unwrap();
        let (key_id, team_id) = ("KEY".into(), "TEAM".into());
        ProviderTokens { key: SigningKey::Es256(key), key_id, team_id, present: Mutex::default() }
    }

    #[test]
    fn a_token_is_used_for_fifty_minutes_and_renewed_within_the_hour() {
        let (tokens, clock) = (tokens(), ManualClock::default());
        clock.set(1_772_366_400_000);
        let first = tokens.header(&clock).unwrap();
        clock.advance(TOKEN_RENEWED_AFTER - Duration::from_secs(1));
        assert_eq!(tokens.header(&clock).unwrap(), first);
        clock.advance(Duration::from_secs(1));
        assert_ne!(tokens.header(&clock).unwrap(), first);
    }

    #[test]
    fn a_token_that_apns_calls_expired_is_replaced_but_not_too_often() {
        let (tokens, clock) = (tokens(), ManualClock::default());
        clock.set(1_772_366_400_000);
        let first = tokens.header(&clock).unwrap();
        assert!(!tokens.expire(&first, &clock));
        assert_eq!(tokens.header(&clock).unwrap(), first, "it is seconds old: the clock is wrong");
        clock.advance(TOKEN_KEPT_AT_LEAST);
        assert!(tokens.expire(&first, &clock));
        let second = tokens.header(&clock).unwrap();
        assert_ne!(second, first);
        assert!(tokens.expire(&first, &clock), "a late answer to the former one");
        assert_eq!(tokens.header(&clock).unwrap(), second);
    }

    #[test]
    fn a_token_from_before_a_jump_of_the_clock_is_replaced() {
        let (tokens, clock) = (tokens(), ManualClock::default());
        clock.set(1_772_366_400_000);
        let first = tokens.header(&clock).unwrap();
        clock.advance(TOKEN_KEPT_FOR);
        assert_eq!(tokens.header(&clock).unwrap(), first);
        clock.set(1_772_366_400_000 - 24 * 60 * 60 * 1_000);
        assert_ne!(tokens.header(&clock).unwrap(), first);
    }

    #[test]
    fn answers_are_judged_as_apple_documents_them() {
        let check = |status: u16, body: &str, expected: ProviderAnswer| {
            let answer = Answer {
                status: StatusCode::from_u16(status).unwrap(),
                headers: Default::default(),
                body: body.into(),
                retry_after: Some(Duration::from_secs(7)),
            };
            assert_eq!(judge(&answer, Reason::of(&answer)), expected, "{status} {body}");
        };
        let refused = |code: &str, retry| ProviderAnswer::Refused { code: code.into(), retry };
        let later = Retry::After(Some(Duration::from_secs(7)));
        check(200, "", ProviderAnswer::Accepted { id: None });
        check(400, r#"{"reason":"BadDeviceToken"}"#, ProviderAnswer::TokenGone { since: None });
        check(400, r#"{"reason":"BadTopic"}"#, refused("BadTopic", Retry::Never));
        check(400, r#"{"reason":"DeviceTokenNotForTopic"}"#, refused("DeviceTokenNotForTopic", Retry::Never));
        check(400, r#"{"reason":"IdleTimeout"}"#, refused("IdleTimeout", Retry::After(None)));
        check(403, r#"{"reason":"ExpiredProviderToken"}"#, refused("ExpiredProviderToken", later));
        check(403, r#"{"reason":"InvalidProviderToken"}"#, refused("InvalidProviderToken", later));
        check(404, r#"{"reason":"BadPath"}"#, refused("BadPath", Retry::Never));
        check(405, r#"{"reason":"MethodNotAllowed"}"#, refused("MethodNotAllowed", Retry::Never));
        check(410, r#"{"reason":"Unregistered","timestamp":1}"#, ProviderAnswer::TokenGone { since: Some(1) });
        check(410, r#"{"reason":"ExpiredToken"}"#, ProviderAnswer::TokenGone { since: None });
        check(413, r#"{"reason":"PayloadTooLarge"}"#, refused("PayloadTooLarge", Retry::Never));
        check(429, r#"{"reason":"TooManyRequests"}"#, refused("TooManyRequests", later));
        check(429, r#"{"reason":"TooManyProviderTokenUpdates"}"#, refused("TooManyProviderTokenUpdates", later));
        check(500, r#"{"reason":"InternalServerError"}"#, refused("InternalServerError", later));
        check(503, r#"{"reason":"Shutdown"}"#, refused("Shutdown", later));
        check(502, "<html>", refused("502", later));
    }

    #[test]
    fn an_id_is_a_uuid() {
        let id = [0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x55, 0x44, 0, 1];
        assert_eq!(uuid(&id), "123e4567-e89b-12d3-a456-426655440001");
    }
}
