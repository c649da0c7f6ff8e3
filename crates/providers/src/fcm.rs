//! Firebase Cloud Messaging by its HTTP v1 API.
//!
//! The sender is a service account: a token that its key signs is exchanged for one that is valid for an hour (RFC 7523). Codes are
//! those of Google's documentation ("FCM error codes", "Scale FCM: retries").

use crate::{
    SetupError,
    access_token::AccessTokens,
    base_url,
    jwt::SigningKey,
    pool::{Answer, ClientKind, Pool, PoolConfig},
};
use reqwest::{StatusCode, Url};
use serde::{Deserialize, Serialize};
use serde_json::json;
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidings_domain::{
    clock::Clock,
    providers::{Notification, NotificationSubject, Provider, ProviderAnswer, Retry, Shipment},
};
use tidings_protocol::http::{PushProvider, PushToken};

/// What the token allows.
const SCOPE: &str = "https://www.googleapis.com/auth/firebase.messaging";
/// How long a signed token is valid, in seconds: Google allows an hour.
const ASSERTION_VALID_S: u64 = 60 * 60;
/// The pause when the quota is used up and the answer names none: quotas are by the minute.
const QUOTA_PAUSE: Duration = Duration::from_secs(60);

/// How devices are reached by Firebase.
#[derive(Clone)]
pub struct FcmConfig {
    /// `https://fcm.googleapis.com`.
    pub url: String,
    /// The file of the service account, as Google hands it out.
    pub service_account: Vec<u8>,
    /// The bounds.
    pub pool: PoolConfig,
}

/// Firebase Cloud Messaging.
pub struct Fcm {
    pool: Pool,
    send_url: Url,
    account: ServiceAccount,
    tokens: AccessTokens,
}

struct ServiceAccount {
    key: SigningKey,
    key_id: Option<String>,
    email: String,
    token_url: Url,
}

impl Fcm {
    /// Call within the runtime that is to do the requests.
    ///
    /// # Errors
    /// The service account or an address cannot be used.
    pub fn new(config: FcmConfig, clock: Arc<dyn Clock>) -> Result<Fcm, SetupError> {
        #[derive(Deserialize)]
        struct File {
            project_id: String,
            #[serde(default)]
            private_key_id: Option<String>,
            private_key: String,
            client_email: String,
            token_uri: String,
        }
        // The error of the parser may have a chunk of the file.
        let file: File = serde_json::from_slice(&config.service_account).map_err(|_| {
            SetupError::Credentials("the file of the service account is not the JSON that Google hands out".into())
        })?;
        let key = SigningKey::rs256_from_pem(file.private_key.as_bytes(), "the key of the service account")?;
        let path = format!("/v1/projects/{}/messages:send", file.project_id);
        let send_url = base_url::below(&base_url::parse(&config.url)?, &path);
        let token_url = base_url::parse(&file.token_uri)?;
        let account = ServiceAccount { key, key_id: file.private_key_id, email: file.client_email, token_url };
        let pool = Pool::new(config.pool, ClientKind::default(), clock)?;
        Ok(Fcm { pool, send_url, account, tokens: AccessTokens::default() })
    }

    /// The form that asks for an access token: a signed one is exchanged for it.
    fn form(&self) -> Result<String, ProviderAnswer> {
        #[derive(Serialize)]
        struct Claims<'a> {
            iss: &'a str,
            scope: &'a str,
            aud: &'a str,
            iat: u64,
            exp: u64,
        }
        let ServiceAccount { key, key_id, email, token_url } = &self.account;
        let iat = self.pool.clock.now_ms() / 1_000;
        let claims = Claims { iss: email, scope: SCOPE, aud: token_url.as_str(), iat, exp: iat + ASSERTION_VALID_S };
        let unreachable = || ProviderAnswer::Unreachable { reason: "no randomness".into(), retry_after: None };
        let assertion = key.sign(key_id.as_deref(), &claims).ok_or_else(unreachable)?;
        // A signed token has no character that a form would escape, and of the grant type only the colons.
        Ok(format!("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={assertion}"))
    }

    async fn send(&self, shipment: Shipment) -> ProviderAnswer {
        let Shipment { notification, token: PushToken::Fcm { token } } = shipment else {
            return ProviderAnswer::Refused { code: "NotFcm".into(), retry: Retry::Never };
        };
        let access_token = match self.tokens.get(&self.pool, &self.account.token_url, || self.form()).await {
            Ok(access_token) => access_token,
            Err(unreachable) => return unreachable,
        };
        let request = self
            .pool
            .post(self.send_url.clone())
            .header("authorization", format!("Bearer {access_token}"))
            .header("content-type", "application/json")
            .body(if notification.removes {
                removal(&notification, &token, self.pool.clock.now_ms())
            } else {
                message(&notification, &token, self.pool.clock.now_ms())
            });
        let answer = match self.pool.request(&self.send_url, request).await {
            Ok(answer) => answer,
            Err(unreachable) => return unreachable,
        };
        if answer.status == StatusCode::UNAUTHORIZED {
            self.tokens.forget(&access_token).await;
        }
        judge(&answer)
    }
}

impl Provider for Fcm {
    fn provider(&self) -> PushProvider {
        PushProvider::Fcm
    }

    fn send_all(&self, shipments: Vec<Shipment>) -> Vec<ProviderAnswer> {
        self.pool.for_all(shipments, |_, shipment| self.send(shipment))
    }

    fn stop(&self) {
        self.pool.stop();
    }
}

/// A data message, which shows nothing: the app removes the notification with this tag.
fn removal(notification: &Notification, token: &str, now_ms: u64) -> Vec<u8> {
    let Notification { subject, collapse_key, expires_at, badge, .. } = notification;
    let mut data = data_of(subject);
    data.extend([("removed", "true".to_owned()), ("tag", collapse_key.clone())]);
    data.extend(badge.map(|badge| ("badge", badge.to_string())));
    let ttl = format!("{}s", expires_at.saturating_sub(now_ms) / 1_000);
    let android = json!({ "collapse_key": collapse_key, "priority": "NORMAL", "ttl": ttl });
    let apns = json!({
        "headers": { "apns-push-type": "background", "apns-priority": "5", "apns-collapse-id": collapse_key,
            "apns-expiration": (expires_at / 1_000).to_string() },
        "payload": { "aps": { "content-available": 1 } },
    });
    json!({ "message": { "token": token, "data": data, "android": android, "apns": apns } }).to_string().into_bytes()
}

/// What the app gets as data. All values are strings.
fn data_of(subject: &NotificationSubject) -> BTreeMap<&'static str, String> {
    match subject {
        NotificationSubject::Message { conversation, seq } => {
            BTreeMap::from([("conversation", conversation.clone()), ("seq", seq.to_string())])
        }
        NotificationSubject::Push { push, content_type } => {
            BTreeMap::from([("push", push.to_string()), ("type", content_type.clone())])
        }
    }
}

fn message(notification: &Notification, token: &str, now_ms: u64) -> Vec<u8> {
    #[derive(Serialize)]
    struct Body<'a> {
        message: Message<'a>,
    }
    #[derive(Serialize)]
    struct Message<'a> {
        token: &'a str,
        notification: Shown<'a>,
        /// All values are strings.
        data: BTreeMap<&'static str, String>,
        android: Android<'a>,
        /// For iPhones that are registered by Firebase.
        apns: Apns<'a>,
    }
    #[derive(Serialize)]
    struct Apns<'a> {
        headers: ApnsHeaders<'a>,
        payload: ApnsPayload<'a>,
    }
    #[derive(Serialize)]
    struct ApnsHeaders<'a> {
        #[serde(rename = "apns-collapse-id")]
        collapse_id: &'a str,
        #[serde(rename = "apns-expiration")]
        expiration: String,
        #[serde(rename = "apns-priority")]
        priority: &'static str,
    }
    #[derive(Serialize)]
    struct ApnsPayload<'a> {
        aps: Aps<'a>,
    }
    #[derive(Serialize)]
    struct Aps<'a> {
        #[serde(skip_serializing_if = "Option::is_none")]
        badge: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sound: Option<&'a str>,
        #[serde(rename = "thread-id", skip_serializing_if = "Option::is_none")]
        thread_id: Option<&'a str>,
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
        collapse_key: &'a str,
        priority: &'static str,
        ttl: String,
        notification: AndroidShown<'a>,
    }
    #[derive(Serialize)]
    struct AndroidShown<'a> {
        /// A notification that is still shown is replaced by the next one with the same tag.
        tag: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        notification_count: Option<u64>,
        #[serde(skip_serializing_if = "Option::is_none")]
        sound: Option<&'a str>,
    }
    let Notification { title, body, badge, subject, collapse_key, expires_at, urgent, .. } = notification;
    let android = Android {
        collapse_key,
        priority: if *urgent { "HIGH" } else { "NORMAL" },
        ttl: format!("{}s", expires_at.saturating_sub(now_ms) / 1_000),
        notification: AndroidShown {
            tag: collapse_key,
            notification_count: *badge,
            sound: notification.sound.as_deref().filter(|sound| !sound.is_empty()),
        },
    };
    let apns = Apns {
        headers: ApnsHeaders {
            collapse_id: collapse_key,
            expiration: (expires_at / 1_000).to_string(),
            priority: if *urgent { "10" } else { "5" },
        },
        payload: ApnsPayload {
            aps: Aps {
                badge: *badge,
                sound: Some(notification.sound.as_deref().unwrap_or("default")).filter(|sound| !sound.is_empty()),
                thread_id: subject.thread(),
            },
        },
    };
    let message = Message {
        token,
        notification: Shown { title, body, image: notification.image.as_deref() },
        data: data_of(subject),
        android,
        apns,
    };
    serde_json::to_vec(&Body { message }).unwrap_or_default()
}

/// The body of a refusal (`google.rpc.Status`).
#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorBody {
    error: ErrorStatus,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ErrorStatus {
    status: String,
    details: Vec<ErrorDetail>,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct ErrorDetail {
    /// Of an `FcmError`.
    error_code: String,
    /// Of a `BadRequest`.
    field_violations: Vec<FieldViolation>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct FieldViolation {
    field: String,
}

/// What FCM's answer means.
fn judge(answer: &Answer) -> ProviderAnswer {
    if answer.status.is_success() {
        #[derive(Deserialize)]
        struct Sent {
            name: String,
        }
        return ProviderAnswer::Accepted { id: serde_json::from_slice(&answer.body).ok().map(|sent: Sent| sent.name) };
    }
    let ErrorBody { error } = serde_json::from_slice(&answer.body).unwrap_or_default();
    let code = error.details.iter().map(|detail| detail.error_code.as_str()).find(|code| !code.is_empty());
    let code = code.unwrap_or(error.status.as_str());
    let blames_token = || {
        let fields = error.details.iter().flat_map(|detail| &detail.field_violations);
        fields.into_iter().any(|violation| violation.field == "message.token")
    };
    let retry = match (answer.status, code) {
        (_, "UNREGISTERED") => return ProviderAnswer::TokenGone { since: None },
        // Other fields may be wrong, too, which is no reason to forget a token.
        (_, "INVALID_ARGUMENT") if blames_token() => return ProviderAnswer::TokenGone { since: None },
        (StatusCode::TOO_MANY_REQUESTS, _) => Retry::After(answer.retry_after.or(Some(QUOTA_PAUSE))),
        // The token is of another project's app.
        (_, "SENDER_ID_MISMATCH") => Retry::Never,
        // The account or its rights are wrong, which an operator mends.
        (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, _) => Retry::After(answer.retry_after),
        (status, _) if status.is_server_error() => Retry::After(answer.retry_after),
        _ => Retry::Never,
    };
    let code = if code.is_empty() { answer.status.as_str().to_owned() } else { code.to_owned() };
    ProviderAnswer::Refused { code, retry }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn an_iphone_of_firebase_gets_what_one_of_apple_would() {
        let notification = Notification {
            id: [0; 16],
            collapse_key: "key".into(),
            title: "Ada".into(),
            body: "hello".into(),
            image: None,
            sound: None,
            badge: Some(3),
            expires_at: 90_000,
            urgent: true,
            subject: NotificationSubject::Message { conversation: "house-7".into(), seq: 12 },
            removes: false,
        };
        let apns =
            |body: Vec<u8>| serde_json::from_slice::<serde_json::Value>(&body).unwrap()["message"]["apns"].clone();
        let headers = json!({ "apns-collapse-id": "key", "apns-expiration": "90", "apns-priority": "10" });
        let aps = json!({ "badge": 3, "sound": "default", "thread-id": "house-7" });
        assert_eq!(apns(message(&notification, "t", 0)), json!({ "headers": headers, "payload": { "aps": aps } }));
        let silent = Notification { sound: Some(String::new()), badge: None, ..notification.clone() };
        let aps = json!({ "thread-id": "house-7" });
        assert_eq!(apns(message(&silent, "t", 0))["payload"], json!({ "aps": aps }));
        let removed = removal(&Notification { removes: true, ..notification }, "t", 0);
        assert_eq!(apns(removed.clone())["payload"]["aps"], json!({ "content-available": 1 }));
        assert_eq!(apns(removed)["headers"]["apns-push-type"], "background");
    }

    #[test]
    fn answers_are_judged_as_google_documents_them() {
        let fcm_error = |status: &str, code: &str| {
            let kind = "type.googleapis.com/google.firebase.fcm.v1.FcmError";
            let details = serde_json::json!([{ "@type": kind, "errorCode": code }]);
            serde_json::json!({ "error": { "code": 0, "status": status, "details": details } }).to_string()
        };
        let check = |status: u16, body: &str, retry_after: Option<u64>, expected: ProviderAnswer| {
            let answer = Answer {
                status: StatusCode::from_u16(status).unwrap(),
                headers: Default::default(),
                body: body.into(),
                retry_after: retry_after.map(Duration::from_secs),
            };
            assert_eq!(judge(&answer), expected, "{status} {body}");
        };
        let refused = |code: &str, retry| ProviderAnswer::Refused { code: code.into(), retry };
        let after = |seconds| Retry::After(Some(Duration::from_secs(seconds)));
        let gone = ProviderAnswer::TokenGone { since: None };
        check(
            200,
            r#"{"name":"projects/p/messages/1"}"#,
            None,
            ProviderAnswer::Accepted { id: Some("projects/p/messages/1".into()) },
        );
        check(404, &fcm_error("NOT_FOUND", "UNREGISTERED"), None, gone.clone());
        check(400, &fcm_error("INVALID_ARGUMENT", "INVALID_ARGUMENT"), None, refused("INVALID_ARGUMENT", Retry::Never));
        let blames = |field: &str| {
            let violation = serde_json::json!([{ "@type": "type.googleapis.com/google.rpc.BadRequest",
                "fieldViolations": [{ "field": field, "description": "…" }] }]);
            serde_json::json!({ "error": { "status": "INVALID_ARGUMENT", "details": violation } }).to_string()
        };
        check(400, &blames("message.token"), None, gone);
        check(400, &blames("message.android.ttl"), None, refused("INVALID_ARGUMENT", Retry::Never));
        check(
            401,
            &fcm_error("UNAUTHENTICATED", "THIRD_PARTY_AUTH_ERROR"),
            None,
            refused("THIRD_PARTY_AUTH_ERROR", Retry::After(None)),
        );
        check(
            403,
            &fcm_error("PERMISSION_DENIED", "SENDER_ID_MISMATCH"),
            None,
            refused("SENDER_ID_MISMATCH", Retry::Never),
        );
        let no_rights = serde_json::json!({ "error": { "code": 403, "status": "PERMISSION_DENIED" } }).to_string();
        check(403, &no_rights, None, refused("PERMISSION_DENIED", Retry::After(None)));
        check(429, &fcm_error("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), None, refused("QUOTA_EXCEEDED", after(60)));
        check(429, &fcm_error("RESOURCE_EXHAUSTED", "QUOTA_EXCEEDED"), Some(9), refused("QUOTA_EXCEEDED", after(9)));
        check(500, &fcm_error("INTERNAL", "INTERNAL"), None, refused("INTERNAL", Retry::After(None)));
        check(503, &fcm_error("UNAVAILABLE", "UNAVAILABLE"), Some(3), refused("UNAVAILABLE", after(3)));
        check(502, "<html>", None, refused("502", Retry::After(None)));
    }
}
