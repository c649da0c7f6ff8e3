//! Huawei Push Kit, by the REST API of HMS Core (version 1).
//!
//! The sender is known by an access token that an app id and its secret are exchanged for (client credentials of OAuth 2.0). Fields, codes and
//! limits are those of Huawei's documentation ("Downlink message sending", "Result codes", "OAuth 2.0-based authentication"). Most refusals come with status
//! 200 or 400 and a code in the body, which is what decides.

use crate::{
    SetupError,
    access_token::AccessTokens,
    base_url,
    pool::{Answer, ClientKind, Pool, PoolConfig},
    with_subject, without_nulls,
};
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    clock::Clock,
    providers::{Notification, Provider, ProviderAnswer, Retry, Shipment},
};
use tidings_protocol::http::{PushProvider, PushToken};

/// The longest time for which Push Kit keeps a message, in seconds.
const TTL_S_MAX: u64 = 15 * 24 * 60 * 60;
/// The largest number that an app's icon shows.
const BADGE_MAX: u64 = 99;
/// The code of an answer that says that the message was taken.
const SUCCESS: &str = "80000000";
/// The pause after traffic control (503) without a `Retry-After`: quotas are by the second.
const QUOTA_PAUSE: Duration = Duration::from_secs(2);

/// How devices of Huawei are reached.
#[derive(Clone)]
pub struct HuaweiConfig {
    /// `https://push-api.cloud.huawei.com`.
    pub url: String,
    /// `https://oauth-login.cloud.huawei.com/oauth2/v3/token`.
    pub token_url: String,
    /// The app's id, which is its OAuth 2.0 client id, too.
    pub app_id: String,
    /// The app's secret.
    pub app_secret: String,
    /// The category of messages that the app has applied for, such as `IM`; absent: Huawei classifies them.
    pub category: Option<String>,
    /// The class of the app's entry activity, without which devices show no badge.
    pub badge_class: Option<String>,
    /// The bounds.
    pub pool: PoolConfig,
}

/// Huawei's push service.
pub struct Huawei {
    pool: Pool,
    send_url: Url,
    token_url: Url,
    form: String,
    category: Option<String>,
    badge_class: Option<String>,
    tokens: AccessTokens,
}

impl Huawei {
    /// Call within the runtime that is to do the requests.
    ///
    /// # Errors
    /// An address or the app's id cannot be used.
    pub fn new(config: HuaweiConfig, clock: Arc<dyn Clock>) -> Result<Huawei, SetupError> {
        let HuaweiConfig { url, token_url, app_id, app_secret, category, badge_class, pool } = config;
        if app_id.is_empty() || !app_id.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(SetupError::Credentials("the app id of Huawei is a number".into()));
        }
        let send_url = base_url::below(&base_url::parse(&url)?, &format!("/v1/{app_id}/messages:send"));
        let form =
            format!("grant_type=client_credentials&client_id={app_id}&client_secret={}", form_encoded(&app_secret));
        Ok(Huawei {
            pool: Pool::new(pool, ClientKind::default(), clock)?,
            send_url,
            token_url: base_url::parse(&token_url)?,
            form,
            category,
            badge_class,
            tokens: AccessTokens::default(),
        })
    }

    async fn send(&self, shipment: Shipment) -> ProviderAnswer {
        let Shipment { notification, token: PushToken::Huawei { token } } = shipment else {
            return ProviderAnswer::Refused { code: "NotHuawei".into(), retry: Retry::Never };
        };
        let access_token = match self.tokens.get(&self.pool, &self.token_url, || Ok(self.form.clone())).await {
            Ok(access_token) => access_token,
            Err(unreachable) => return unreachable,
        };
        let request = self
            .pool
            .post(self.send_url.clone())
            .header("authorization", format!("Bearer {access_token}"))
            .header("content-type", "application/json; charset=utf-8")
            .body(if notification.removes {
                self.removal(&notification, &token)
            } else {
                self.message(&notification, &token)
            });
        let answer = match self.pool.request(&self.send_url, request).await {
            Ok(answer) => answer,
            Err(unreachable) => return unreachable,
        };
        let result = SendResult::of(&answer);
        if answer.status == StatusCode::UNAUTHORIZED || result.blames_access_token() {
            self.tokens.forget(&access_token).await;
        }
        judge(&answer, result)
    }

    /// How long Push Kit keeps a message.
    fn ttl(&self, notification: &Notification) -> String {
        let seconds_left = notification.expires_at.saturating_sub(self.pool.clock.now_ms()) / 1_000;
        format!("{}s", seconds_left.clamp(1, TTL_S_MAX))
    }

    /// A data message, which shows nothing: the app removes the notification with this tag.
    fn removal(&self, notification: &Notification, token: &str) -> Vec<u8> {
        let Notification { subject, collapse_key, badge, .. } = notification;
        let data = without_nulls(json!({ "removed": true, "tag": collapse_key, "badge": badge }));
        let data = with_subject(data, subject);
        let android = json!({ "ttl": self.ttl(notification), "urgency": "NORMAL" });
        let message = json!({ "data": data.to_string(), "android": android, "token": [token] });
        json!({ "validate_only": false, "message": message }).to_string().into_bytes()
    }

    fn message(&self, notification: &Notification, token: &str) -> Vec<u8> {
        #[derive(Serialize)]
        struct Body<'a> {
            validate_only: bool,
            message: Message<'a>,
        }
        #[derive(Serialize)]
        struct Message<'a> {
            notification: Shown<'a>,
            android: Android<'a>,
            token: [&'a str; 1],
        }
        #[derive(Serialize)]
        struct Shown<'a> {
            title: &'a str,
            body: &'a str,
            #[serde(skip_serializing_if = "Option::is_none")]
            image: Option<&'a str>,
        }
        #[derive(Serialize)]
        struct Android<'a> {
            #[serde(skip_serializing_if = "Option::is_none")]
            category: Option<&'a str>,
            ttl: String,
            /// Our name for it, which a receipt of Huawei's has.
            bi_tag: String,
            /// JSON, which the app gets with the tap.
            data: String,
            notification: AndroidShown<'a>,
        }
        #[derive(Serialize)]
        struct AndroidShown<'a> {
            /// The newest one with a tag takes the place of the one before.
            tag: &'a str,
            click_action: ClickAction,
            importance: &'static str,
            #[serde(skip_serializing_if = "Option::is_none")]
            sound: Option<&'a str>,
            #[serde(skip_serializing_if = "Option::is_none")]
            badge: Option<Badge<'a>>,
        }
        #[derive(Serialize)]
        struct ClickAction {
            r#type: u8,
        }
        #[derive(Serialize)]
        struct Badge<'a> {
            class: &'a str,
            set_num: u64,
        }
        /// The app is opened.
        const OPENS_APP: u8 = 3;
        let Notification { title, body, subject, .. } = notification;
        let badge = self.badge_class.as_deref().zip(notification.badge);
        let android = Android {
            category: self.category.as_deref(),
            ttl: self.ttl(notification),
            bi_tag: notification.id.iter().map(|byte| format!("{byte:02x}")).collect(),
            data: serde_json::to_string(subject).unwrap_or_default(),
            notification: AndroidShown {
                tag: &notification.collapse_key,
                click_action: ClickAction { r#type: OPENS_APP },
                importance: if notification.urgent { "NORMAL" } else { "LOW" },
                sound: notification.sound.as_deref().filter(|sound| !sound.is_empty()),
                badge: badge.map(|(class, count)| Badge { class, set_num: count.min(BADGE_MAX) }),
            },
        };
        let message = Message {
            notification: Shown { title, body, image: notification.image.as_deref() },
            android,
            token: [token],
        };
        serde_json::to_vec(&Body { validate_only: false, message }).unwrap_or_default()
    }
}

impl Provider for Huawei {
    fn provider(&self) -> PushProvider {
        PushProvider::Huawei
    }

    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<ProviderAnswer> {
        self.pool.for_all(shipments, |_, shipment| self.send(shipment))
    }

    fn stop(&self) {
        self.pool.stop();
    }
}

/// A value of a form, with what is not a letter, a digit or one of `-._~` escaped.
fn form_encoded(text: &str) -> String {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~');
    text.bytes()
        .map(|byte| if is_plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") })
        .collect()
}

/// The body of an answer.
#[derive(Default, Deserialize)]
#[serde(default)]
struct SendResult {
    code: String,
    msg: String,
    #[serde(rename = "requestId")]
    request_id: Option<String>,
}

impl SendResult {
    fn of(answer: &Answer) -> SendResult {
        serde_json::from_slice(&answer.body).unwrap_or_default()
    }

    /// Whether the access token is wrong (80200001) or expired (80200003, 80200005).
    fn blames_access_token(&self) -> bool {
        matches!(self.code.as_str(), "80200001" | "80200003" | "80200005")
    }

    /// Of an answer for some tokens (80100000), whether the one that was asked for is among those that are wrong.
    fn has_illegal_tokens(&self) -> bool {
        #[derive(Default, Deserialize)]
        #[serde(default)]
        struct Partial {
            success: u64,
            illegal_tokens: Vec<String>,
        }
        let partial: Partial = serde_json::from_str(&self.msg).unwrap_or_default();
        partial.success == 0 && !partial.illegal_tokens.is_empty()
    }
}

/// What Push Kit's answer means.
fn judge(answer: &Answer, result: SendResult) -> ProviderAnswer {
    let later = Retry::After(answer.retry_after);
    let retry = match (answer.status, result.code.as_str()) {
        (status, SUCCESS) if status.is_success() => return ProviderAnswer::Accepted { id: result.request_id },
        (_, "80300007") => return ProviderAnswer::TokenGone { since: None },
        (_, "80100000") if result.has_illegal_tokens() => return ProviderAnswer::TokenGone { since: None },
        // The access token, the app's rights or its secret are wrong, which an operator mends; 81000001 is Huawei's own failure.
        (_, "80200001" | "80200003" | "80200005" | "80300002" | "80300011" | "80600003" | "81000001") => later,
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND, "") => later,
        (StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS, _) => {
            Retry::After(answer.retry_after.or(Some(QUOTA_PAUSE)))
        }
        (status, _) if status.is_server_error() => later,
        // The message itself: too large, not well-formed, or not to be said.
        _ => Retry::Never,
    };
    let code =
        if matches!(result.code.as_str(), "" | SUCCESS) { answer.status.as_str().to_owned() } else { result.code };
    ProviderAnswer::Refused { code, retry }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use tidings_domain::providers::NotificationSubject;
    use tidings_testkit::ManualClock;

    fn huawei() -> Huawei {
        let pool =
            PoolConfig { in_flight_max: 1, requests_per_second: 0, timeout: Duration::from_secs(1), authorities: None };
        let config = HuaweiConfig {
            url: "http://127.0.0.1:9".into(),
            token_url: "http://127.0.0.1:9/token".into(),
            app_id: "100123456".into(),
            app_secret: "a+b/c=&d".into(),
            category: Some("IM".into()),
            badge_class: Some("com.example.app.MainActivity".into()),
            pool,
        };
        Huawei::new(config, Arc::new(ManualClock::default())).unwrap()
    }

    fn notification() -> Notification {
        Notification {
            id: [0xab; 16],
            collapse_key: "k".repeat(32),
            title: "\"".repeat(200),
            body: "\n".repeat(1_300),
            badge: Some(u64::MAX),
            expires_at: u64::MAX,
            urgent: true,
            image: None,
            sound: None,
            subject: NotificationSubject::Message { conversation: "\"".repeat(129), seq: u64::MAX },
            removes: false,
        }
    }

    #[tokio::test]
    async fn the_longest_notification_fits_into_what_push_kit_takes() {
        assert!(huawei().message(&notification(), "").len() <= 4_096);
    }

    #[tokio::test]
    async fn what_is_sent_is_within_the_documented_limits() {
        let body: serde_json::Value = serde_json::from_slice(&huawei().message(&notification(), "token")).unwrap();
        let android = &body["message"]["android"];
        assert_eq!(android["ttl"], "1296000s");
        assert_eq!(android["notification"]["badge"]["set_num"], 99);
        assert_eq!(android["notification"]["click_action"]["type"], 3);
        assert_eq!(body["message"]["token"], serde_json::json!(["token"]));
        let past = Notification { expires_at: 0, badge: None, ..notification() };
        let body: serde_json::Value = serde_json::from_slice(&huawei().message(&past, "token")).unwrap();
        assert_eq!(body["message"]["android"]["ttl"], "1s");
        assert_eq!(body["message"]["android"]["notification"].get("badge"), None);
    }

    #[tokio::test]
    async fn a_removal_is_a_data_message_that_shows_nothing() {
        let removal = huawei().removal(&Notification { removes: true, ..notification() }, "token");
        let message = &serde_json::from_slice::<serde_json::Value>(&removal).unwrap()["message"];
        assert_eq!((message.get("notification"), message["android"].get("notification")), (None, None));
        let data: serde_json::Value = serde_json::from_str(message["data"].as_str().unwrap()).unwrap();
        assert_eq!((&data["removed"], &data["tag"]), (&json!(true), &json!("k".repeat(32))));
    }

    #[tokio::test]
    async fn a_secret_is_escaped_in_the_form_and_an_app_id_is_a_number() {
        let form = "grant_type=client_credentials&client_id=100123456&client_secret=a%2Bb%2Fc%3D%26d";
        assert_eq!(huawei().form, form);
        let pool =
            PoolConfig { in_flight_max: 1, requests_per_second: 0, timeout: Duration::from_secs(1), authorities: None };
        for app_id in ["", "../1", "com.example.app"] {
            let config = HuaweiConfig {
                url: "http://127.0.0.1:9".into(),
                token_url: "http://127.0.0.1:9/token".into(),
                app_id: app_id.into(),
                app_secret: "secret".into(),
                category: None,
                badge_class: None,
                pool: pool.clone(),
            };
            assert!(Huawei::new(config, Arc::new(ManualClock::default())).is_err(), "{app_id}");
        }
    }

    #[test]
    fn answers_are_judged_as_huawei_documents_them() {
        let check = |status: u16, code: &str, msg: &str, expected: ProviderAnswer| {
            let body = serde_json::json!({ "code": code, "msg": msg, "requestId": "157" }).to_string();
            let answer = Answer {
                status: StatusCode::from_u16(status).unwrap(),
                headers: Default::default(),
                body: if code.is_empty() { "<html>".into() } else { body.into_bytes() },
                retry_after: Some(Duration::from_secs(7)),
            };
            let result = SendResult::of(&answer);
            assert_eq!(judge(&answer, result), expected, "{status} {code} {msg}");
        };
        let refused = |code: &str, retry| ProviderAnswer::Refused { code: code.into(), retry };
        let (later, gone) = (Retry::After(Some(Duration::from_secs(7))), ProviderAnswer::TokenGone { since: None });
        check(200, "80000000", "Success", ProviderAnswer::Accepted { id: Some("157".into()) });
        check(200, "80300007", "All the tokens are invalid", gone.clone());
        check(200, "80100000", r#"{"success":0,"failure":1,"illegal_tokens":["x"]}"#, gone);
        check(200, "80100000", r#"{"success":0,"failure":1}"#, refused("80100000", Retry::Never));
        for code in ["80200001", "80200003", "80200005", "80300002", "80300011", "80600003", "81000001"] {
            check(400, code, "", refused(code, later));
            check(200, code, "", refused(code, later));
        }
        for code in ["80100001", "80100003", "80100004", "80100013", "80100016", "80100018", "80300008", "80300010"] {
            check(400, code, "", refused(code, Retry::Never));
            check(200, code, "", refused(code, Retry::Never));
        }
        check(401, "", "", refused("401", later));
        check(404, "", "", refused("404", later));
        check(500, "", "", refused("500", later));
        check(502, "", "", refused("502", later));
        // A proxy in between may put its status on an answer.
        check(502, "80000000", "Success", refused("502", later));
        check(503, "", "", refused("503", later));
        check(400, "", "", refused("400", Retry::Never));
    }
}
