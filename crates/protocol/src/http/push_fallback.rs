//! What becomes of a push that a device does not acknowledge in time: a notification by the device's provider.

use super::{NotificationTemplate, PushPriority, PushProvider};
use crate::{
    error::Refusal,
    ids::{check_id, check_language},
    limits::*,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use utoipa::ToSchema;

/// Bytes of a sound's name.
const SOUND_BYTES_MAX: usize = 64;

/// A notification for each device that has not acknowledged the push in time, by the provider with which its push token is registered.
/// The push goes on waiting for the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({ "after_s": 30, "template": { "title": "Half price", "body": "Today only" } }))]
pub struct PushFallback {
    /// Seconds after the start of the push. 0: at once to devices that are not connected, and to the others after ten seconds.
    pub after_s: u64,
    /// What is shown, as it stands here: nothing in braces is replaced.
    pub template: NotificationTemplate,
    /// The same by language, such as `de`, for users whose language is known.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub templates: BTreeMap<String, NotificationTemplate>,
    /// A sound that the app knows, or empty for none; the provider's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sound: Option<String>,
    /// On each device the newest notification with the same key takes the place of the one before; that of the push when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub collapse_key: Option<String>,
    /// For how long it may be shown from then on, in seconds; as long as the push lives when absent, and never longer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ttl_s: Option<u64>,
    /// `high` wakes a device; that of the push when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<PushPriority>,
}

impl PushFallback {
    /// Checks it as a part of a push that lives for so long; `field` is its path in the request.
    ///
    /// # Errors
    /// `invalid_field`, `limit_exceeded`: the detail begins with the path of the wrong part.
    pub fn check(&self, field: &str, push_ttl_s: u64) -> Result<(), Refusal> {
        if self.after_s >= push_ttl_s {
            let why = format!("must be below the push's ttl_s, {push_ttl_s}");
            return Err(Refusal::field(&format!("{field}.after_s"), why));
        }
        check_template(&format!("{field}.template"), &self.template)?;
        check_length(&format!("{field}.templates"), self.templates.len(), NOTIFICATION_LANGUAGES_MAX)?;
        for (language, template) in &self.templates {
            let path = format!("{field}.templates.{language}");
            check_language(&path, language)?;
            if self.templates.keys().any(|other| other < language && other.eq_ignore_ascii_case(language)) {
                return Err(Refusal::field(&path, "the language appears twice"));
            }
            check_template(&path, template)?;
        }
        let bytes = serde_json::to_vec(self).map_or(0, |json| json.len());
        check_length(&format!("{field} (bytes)"), bytes, PUSH_FALLBACK_BYTES_MAX)?;
        if let Some(sound) = &self.sound {
            check_length(&format!("{field}.sound (bytes)"), sound.len(), SOUND_BYTES_MAX)?;
            if sound.chars().any(char::is_control) {
                return Err(Refusal::field(&format!("{field}.sound"), "control characters are not allowed"));
            }
        }
        if self.ttl_s == Some(0) {
            return Err(Refusal::field(&format!("{field}.ttl_s"), "must be at least 1"));
        }
        if let Some(ttl_s) = self.ttl_s.filter(|ttl_s| *ttl_s > PUSH_TTL_S_MAX) {
            return Err(Refusal::limit(&format!("{field}.ttl_s"), PUSH_TTL_S_MAX, ttl_s));
        }
        self.collapse_key.as_ref().map_or(Ok(()), |key| check_id(&format!("{field}.collapse_key"), key))
    }

    /// The texts for a language: of `de-AT` those of `de-AT`, else of `de`, else those of all languages.
    pub fn template(&self, language: Option<&str>) -> &NotificationTemplate {
        let mut tag = language.unwrap_or_default();
        while !tag.is_empty() {
            if let Some((_, template)) = self.templates.iter().find(|(own, _)| own.eq_ignore_ascii_case(tag)) {
                return template;
            }
            tag = tag.rfind('-').map_or("", |end| &tag[..end]);
        }
        &self.template
    }
}

fn check_template(field: &str, template: &NotificationTemplate) -> Result<(), Refusal> {
    let NotificationTemplate { title, body, image } = template;
    for (part, text, bytes_max) in
        [("title", title, PUSH_FALLBACK_TITLE_BYTES_MAX), ("body", body, PUSH_FALLBACK_BODY_BYTES_MAX)]
    {
        check_length(&format!("{field}.{part} (bytes)"), text.len(), bytes_max)?;
        if let Some(placeholder) = NotificationTemplate::PLACEHOLDERS.into_iter().find(|known| text.contains(known)) {
            let why = format!("{placeholder} stands for nothing: a push is of no message");
            return Err(Refusal::field(&format!("{field}.{part}"), why));
        }
    }
    if title.trim().is_empty() && body.trim().is_empty() {
        return Err(Refusal::field(field, "title and body are both empty"));
    }
    image.as_ref().map_or(Ok(()), |image| NotificationTemplate::check_image(&format!("{field}.image"), image))
}

fn check_length(what: &str, length: usize, max: usize) -> Result<(), Refusal> {
    if length <= max { Ok(()) } else { Err(Refusal::limit(what, max as u64, length as u64)) }
}

/// How far the fallback of a push has come.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PushFallbackStatus {
    /// As it was asked for.
    pub after_s: u64,
    /// Devices for which a provider took the notification, by provider, whatever became of the push afterwards.
    pub sent: BTreeMap<PushProvider, u64>,
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::ErrorCode;
    use serde_json::{Value, json};

    fn parsed(change: Value) -> PushFallback {
        let mut fallback = json!({ "after_s": 30, "template": { "title": "T", "body": "B" } });
        let fields = change.as_object().unwrap().clone();
        fallback.as_object_mut().unwrap().extend(fields);
        serde_json::from_value(fallback).unwrap()
    }

    #[test]
    fn a_wrong_part_is_named() {
        let check = |change: Value, code: ErrorCode, detail: &str| {
            let refusal = parsed(change.clone()).check("fallback", 60).unwrap_err();
            assert_eq!((refusal.code, refusal.detail.as_str()), (code, detail), "{change}");
        };
        let (field, limit) = (ErrorCode::InvalidField, ErrorCode::LimitExceeded);
        let texts = |title: &str, body: &str| json!({ "title": title, "body": body });
        check(json!({ "after_s": 60 }), field, "fallback.after_s: must be below the push's ttl_s, 60");
        check(
            json!({ "template": texts(&"t".repeat(201), "") }),
            limit,
            "fallback.template.title (bytes) is limited to 200, got 201",
        );
        check(
            json!({ "templates": { "de": texts("", &"b".repeat(1_301)) } }),
            limit,
            "fallback.templates.de.body (bytes) is limited to 1300, got 1301",
        );
        check(json!({ "template": texts("", " ") }), field, "fallback.template: title and body are both empty");
        check(
            json!({ "template": texts("{sender}", "") }),
            field,
            "fallback.template.title: {sender} stands for nothing: a push is of no message",
        );
        check(
            json!({ "templates": { "x": texts("T", "") } }),
            field,
            r#"fallback.templates.x: "x" is not a BCP 47 language tag, such as "de-AT""#,
        );
        check(json!({ "ttl_s": 0 }), field, "fallback.ttl_s: must be at least 1");
        check(json!({ "collapse_key": "a b" }), field, "fallback.collapse_key: must not contain ' '");
        check(json!({ "sound": "s".repeat(65) }), limit, "fallback.sound (bytes) is limited to 64, got 65");
        let languages: Vec<String> = ('a'..='z').map(|letter| format!("d{letter}")).collect();
        let all: BTreeMap<_, _> = languages.into_iter().map(|tag| (tag, texts("", &"b".repeat(1_300)))).collect();
        let refusal = parsed(json!({ "templates": all })).check("fallback", 60).unwrap_err();
        assert!(refusal.detail.starts_with("fallback (bytes) is limited to 16384, got "), "{}", refusal.detail);
    }

    #[test]
    fn the_texts_are_those_of_the_nearest_language() {
        let text = |title: &str| json!({ "title": title, "body": "" });
        let fallback = parsed(json!({ "templates": { "de": text("de"), "pt-BR": text("pt-BR") } }));
        for (language, title) in
            [(None, "T"), (Some("de-AT"), "de"), (Some("PT-br"), "pt-BR"), (Some("pt"), "T"), (Some("fr"), "T")]
        {
            assert_eq!(fallback.template(language).title, title, "{language:?}");
        }
    }
}
