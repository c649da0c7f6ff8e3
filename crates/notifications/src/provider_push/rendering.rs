//! What a device shows of a message: two short texts by the templates of its kind of conversation.

use crate::{offline_recipients::OfflineRecipients, policy::Shown};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use tidings_domain::{
    model::*,
    providers::{Notification, NotificationSubject},
    push_tokens::TokenDigest,
};
use tidings_protocol::http::{NotificationCollapse, NotificationPriority, NotificationTemplate};
use tidings_push::PushNotification;

/// Bytes of a title and of a text. With both full of characters that JSON escapes, a notification still fits into the 4,096
/// bytes that providers take, of which encryption needs 103.
const TITLE_BYTES_MAX: usize = 200;
const BODY_BYTES_MAX: usize = 1_300;

/// The texts by kind of conversation. `{sender}`, `{conversation}` and `{text}` stand for what the message has.
#[derive(Debug, Clone)]
pub struct Templates {
    pub direct: Template,
    pub group: Template,
    pub official: Template,
    /// In place of the text of a message, if that is to be hidden.
    pub hidden_text: Option<String>,
    /// In place of the text of a message that has none.
    pub no_text: String,
    /// In place of the text of a message that was recalled, where something must be shown.
    pub recalled_text: String,
}

/// The template of a title and of a text.
#[derive(Debug, Clone)]
pub struct Template {
    pub title: String,
    pub body: String,
}

impl Default for Templates {
    fn default() -> Self {
        let template = |title: &str, body: &str| Template { title: title.into(), body: body.into() };
        Templates {
            direct: template("{sender}", "{text}"),
            group: template("{conversation}", "{sender}: {text}"),
            official: template("{conversation}", "{text}"),
            hidden_text: None,
            no_text: "New message".into(),
            recalled_text: "Message deleted".into(),
        }
    }
}

/// What the notifications of one message have in common.
pub(crate) struct MessageText {
    /// The template of the settings.
    template: Template,
    sender: String,
    name: String,
    text: String,
    conversation: String,
    conversation_no: ConversationNo,
    seq: u64,
    expires_at: u64,
    epoch: u64,
}

impl MessageText {
    pub(crate) fn of(
        templates: &Templates,
        found: &OfflineRecipients,
        sender: Option<&User>,
        epoch: u64,
        time_to_live_ms: u64,
    ) -> MessageText {
        let OfflineRecipients { conversation, entry, .. } = found;
        let template = match conversation.kind {
            ConversationKind::Direct => &templates.direct,
            ConversationKind::Group => &templates.group,
            ConversationKind::Official => &templates.official,
        };
        let name = conversation.name.as_deref().unwrap_or(&conversation.id);
        let sender = sender.map_or(name, |sender| sender.name.as_deref().unwrap_or(&sender.id));
        let text = match &templates.hidden_text {
            Some(hidden) => hidden.clone(),
            None => text_of(&entry.content.body).unwrap_or_else(|| templates.no_text.clone()),
        };
        MessageText {
            template: template.clone(),
            sender: sender.to_owned(),
            name: name.to_owned(),
            text,
            conversation: conversation.id.clone(),
            conversation_no: conversation.no,
            seq: entry.seq,
            expires_at: entry.at.saturating_add(time_to_live_ms),
            epoch,
        }
    }

    /// With the time to live counted from here on.
    pub(crate) fn expiring_at(self, expires_at: u64) -> MessageText {
        MessageText { expires_at, ..self }
    }

    pub(super) fn expires_at(&self) -> u64 {
        self.expires_at
    }

    /// Title and text, by the template of the policy or else of the settings.
    fn texts(&self, template: Option<&NotificationTemplate>, unread: u64) -> (String, String) {
        let unread = unread.to_string();
        let values = [
            ("{sender}", self.sender.as_str()),
            ("{conversation}", &self.name),
            ("{text}", &self.text),
            (UNREAD, &unread),
        ];
        let fill = |template: &str, bytes_max| shorten(&printable(&filled(template, &values)), bytes_max);
        let (title, body) = template.map_or((&self.template.title, &self.template.body), |own| (&own.title, &own.body));
        (fill(title, TITLE_BYTES_MAX), fill(body, BODY_BYTES_MAX))
    }

    /// What a device of a user with so many unread messages shows.
    pub(crate) fn on_device(&self, appearance: &Appearance, unread: u64) -> DeviceText {
        let (title, body) = self.texts(appearance.template.as_ref(), unread);
        let image = appearance.template.as_ref().and_then(|template| template.image.clone());
        DeviceText { title, body, image, badge: appearance.badge.then_some(unread) }
    }

    /// The notification for the device with this token, of a user with so many unread messages.
    pub(super) fn notification(&self, token: TokenDigest, appearance: &Appearance, unread: u64) -> Notification {
        let DeviceText { title, body, image, badge } = self.on_device(appearance, unread);
        let id = notification_id(self.epoch, self.conversation_no, self.seq, token, b"");
        Notification {
            id,
            collapse_key: appearance.collapse_key(&self.conversation, self.seq),
            title,
            body,
            image,
            sound: appearance.sound.clone(),
            badge,
            expires_at: self.expires_at,
            urgent: appearance.is_urgent(),
            subject: NotificationSubject::Message { conversation: self.conversation.clone(), seq: self.seq },
            removes: false,
        }
    }
}

/// What a device shows.
pub(crate) struct DeviceText {
    pub(crate) title: String,
    pub(crate) body: String,
    pub(crate) image: Option<String>,
    pub(crate) badge: Option<u64>,
}

/// The placeholder for the number of unread messages.
const UNREAD: &str = "{unread}";

/// How a notification looks to one user.
#[derive(Debug, Clone)]
pub(crate) struct Appearance {
    template: Option<NotificationTemplate>,
    sound: Option<String>,
    badge: bool,
    priority: NotificationPriority,
    pub(super) collapse: NotificationCollapse,
}

impl Appearance {
    /// What the policy says for a language; without a channel of the policy what the settings say.
    pub(crate) fn of(shown: Option<&Shown>, language: Option<&str>, badge_default: bool) -> Appearance {
        let template = shown.and_then(|shown| shown.template(language)).cloned();
        let sound = shown.and_then(|shown| shown.sound.clone());
        let badge = shown.and_then(|shown| shown.badge).unwrap_or(badge_default);
        let priority = shown.map(|shown| shown.priority).unwrap_or_default();
        let collapse = shown.map(|shown| shown.collapse).unwrap_or_default();
        Appearance { template, sound, badge, priority, collapse }
    }

    /// Whether it wakes the device.
    pub(crate) fn is_urgent(&self) -> bool {
        self.priority == NotificationPriority::High
    }

    /// The key of which a device shows the newest alone.
    pub(crate) fn collapse_key(&self, conversation: &str, seq: u64) -> String {
        match self.collapse {
            NotificationCollapse::Conversation => collapse_key(conversation),
            NotificationCollapse::Message => collapse_key(&format!("{conversation} {seq}")),
        }
    }

    /// Whether the number of the user's unread messages is shown.
    pub(crate) fn needs_unread(&self) -> bool {
        let names = |template: &NotificationTemplate| template.title.contains(UNREAD) || template.body.contains(UNREAD);
        self.badge || self.template.as_ref().is_some_and(names)
    }
}

/// The same for each attempt at the same notification.
fn notification_id(epoch: u64, conversation: ConversationNo, seq: u64, token: TokenDigest, kind: &[u8]) -> [u8; 16] {
    id_of([&epoch.to_be_bytes(), &conversation.0.to_be_bytes(), &seq.to_be_bytes(), token.bytes(), kind])
}

fn id_of<const PARTS: usize>(parts: [&[u8]; PARTS]) -> [u8; 16] {
    let mut hash = Sha256::new();
    parts.into_iter().for_each(|part| hash.update(part));
    let mut id = [0; 16];
    id.copy_from_slice(&hash.finalize()[..16]);
    // A UUID of version 8, whose other bits are ours to choose (RFC 9562).
    id[6] = id[6] & 0x0f | 0x80;
    id[8] = id[8] & 0x3f | 0x80;
    id
}

fn collapse_key(conversation: &str) -> String {
    let key = Sha256::new().chain_update(conversation.as_bytes()).finalize();
    hex(&key[..16])
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What has the device with this token take away what it shows of a conversation.
pub(super) fn removal(
    conversation: &Conversation,
    seq: u64,
    expires_at: u64,
    epoch: u64,
    token: TokenDigest,
    badge: Option<u64>,
) -> Notification {
    Notification {
        id: notification_id(epoch, conversation.no, seq, token, b"removal"),
        collapse_key: collapse_key(&conversation.id),
        title: String::new(),
        body: String::new(),
        image: None,
        sound: None,
        badge,
        expires_at,
        urgent: false,
        subject: NotificationSubject::Message { conversation: conversation.id.clone(), seq },
        removes: true,
    }
}

/// Title and text in place of a recalled message: of the message nothing but who sent it where.
pub(super) fn recalled_texts(
    templates: &Templates,
    found: &OfflineRecipients,
    sender: Option<&User>,
) -> (String, String) {
    let templates = Templates { hidden_text: Some(templates.recalled_text.clone()), ..templates.clone() };
    MessageText::of(&templates, found, sender, 0, 0).texts(None, 0)
}

/// The same removal as a notification that is shown in place of what it removes, without a sound.
pub(super) fn replacing(removal: Notification, title: String, body: String) -> Notification {
    Notification { title, body, sound: Some(String::new()), removes: false, ..removal }
}

/// The text of a body that has one, as those of type `text` do.
fn text_of(body: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Body {
        text: String,
    }
    serde_json::from_str::<Body>(body).ok().map(|body| body.text).filter(|text| !text.trim().is_empty())
}

/// The template with its values, each put in once: what a value contains is no template.
fn filled(template: &str, values: &[(&str, &str)]) -> String {
    let mut text = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let (name, value) = values.iter().find(|(name, _)| rest.starts_with(name)).copied().unwrap_or(("{", "{"));
        text.push_str(value);
        rest = &rest[name.len()..];
    }
    text + rest
}

/// What a device is shown in place of a push, in a language.
pub(super) fn of_push(
    push: u64,
    found: &PushNotification,
    expires_at: u64,
    language: Option<&str>,
    epoch: u64,
    token: TokenDigest,
) -> Notification {
    let template = found.fallback.template(language);
    // A key of a push is never that of a conversation: no id has a line break.
    let key = found.collapse_key.as_ref().map_or_else(|| format!("push\n\n{push}"), |key| format!("push\n{key}"));
    Notification {
        id: id_of([&epoch.to_be_bytes(), b"push", &push.to_be_bytes(), token.bytes()]),
        collapse_key: collapse_key(&key),
        title: printable(&template.title),
        body: printable(&template.body),
        image: template.image.clone(),
        sound: found.fallback.sound.clone(),
        badge: None,
        expires_at,
        urgent: found.high,
        subject: NotificationSubject::Push { push, content_type: found.content_type.clone() },
        removes: false,
    }
}

/// Without control characters, which JSON writes as six characters.
fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() && c != '\n' { ' ' } else { c }).collect()
}

/// The beginning of a text, with an ellipsis if that is not all.
fn shorten(text: &str, bytes_max: usize) -> String {
    if text.len() <= bytes_max {
        return text.to_owned();
    }
    let end = text.floor_char_boundary(bytes_max - '…'.len_utf8());
    format!("{}…", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_look_like_templates_are_shown_as_they_are() {
        let check = |template: &str, sender: &str, text: &str, expected: &str| {
            assert_eq!(filled(template, &[("{sender}", sender), ("{text}", text)]), expected);
        };
        check("{sender}: {text}", "Ada", "hello", "Ada: hello");
        check("{sender}: {text}", "{text}", "hello", "{text}: hello");
        check("{ {text} } {unknown}", "Ada", "{sender}", "{ {sender} } {unknown}");
        check("", "Ada", "hello", "");
    }

    #[test]
    fn long_texts_are_cut_between_characters() {
        assert_eq!(shorten("hello", 5), "hello");
        assert_eq!(shorten("hello!", 5), "he…");
        let cut = shorten(&"ä".repeat(100), 10);
        assert_eq!(cut, "äää…");
        assert!(shorten(&"😀".repeat(1_000), BODY_BYTES_MAX).len() <= BODY_BYTES_MAX);
    }

    #[test]
    fn only_a_text_that_is_there_is_shown() {
        assert_eq!(text_of(r#"{"text":"hi","more":1}"#).as_deref(), Some("hi"));
        for body in [r#"{"text":"  "}"#, r#"{"text":5}"#, r#"{"url":"x"}"#, "[1]", "null"] {
            assert_eq!(text_of(body), None, "{body}");
        }
    }
}
