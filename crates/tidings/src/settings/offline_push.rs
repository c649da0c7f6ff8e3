//! The settings of offline push: by which way users are notified, what they are shown, and the providers.

use super::{
    Settings,
    macros::{one_of, settings},
};
use anyhow::{Context, Result, bail};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{
    clock::{Clock, SystemClock},
    providers::Provider,
};
use tidings_gateway::SessionConfig;
use tidings_notifications::{
    NotificationsConfig, QuietHours,
    channel_plan::{ChannelPlan, PlannedChannel},
    internal_channels::InternalChannelsConfig,
    provider_push::{ProviderPushConfig, ProviderPushParts, Template, Templates},
};
use tidings_protocol::http::PolicyChannel;
use tidings_providers::{
    PoolConfig,
    apns::{Apns, ApnsConfig, ApnsCredentials},
    fcm::{Fcm, FcmConfig},
    huawei::{Huawei, HuaweiConfig},
    web_push::{WebPush, WebPushConfig},
};

/// The longest time for which the webhook waits.
const WEBHOOK_AFTER_S_MAX: u64 = 30 * 24 * 60 * 60;

settings! {
    /// Reaching users who are not connected. The templates say what a device shows: `{sender}`, `{conversation}` and `{text}` stand for the names
    /// and the text of the message.
    Notifications {
        /// Who notifies them: `webhook`, `providers`, or `both`. Those whose settings are missing notify nobody.
        via: Via = Via::Both,
        /// Seconds after a message before the webhook is notified of it, at most 30 days; by then it is notified of those alone whom providers did not reach
        /// and who have not read it. 0: at once, and of all.
        webhook_after_s: u64 = 0,
        /// Whether the notification policy may notify users by pushes to their devices (`device_push`), which hold a connection to this server or come back.
        device_push: bool = false,
        /// Whether the notification policy may notify users by popups at their next visit (`popup`): by an event of the user on which popups and journeys react.
        popup: bool = false,
        /// Messages that a client has not stored by then go out by offline push though its session lives, if the client says what it has
        /// stored. 0: they do not.
        ack_timeout_ms: u64 = SessionConfig::default().ack_timeout.as_millis() as u64,
        /// Whether devices show `no_text` in place of a message's text, so that providers do not get it.
        hide_text: bool = false,
        /// What is shown in place of the text of a message that has none.
        no_text: String = Templates::default().no_text,
        /// What browsers show in place of a message that was recalled; other devices take its notification away.
        recalled_text: String = Templates::default().recalled_text,
        /// The title of a direct message.
        direct_title: String = Templates::default().direct.title,
        /// The text of a direct message.
        direct_body: String = Templates::default().direct.body,
        /// The title of a group's message.
        group_title: String = Templates::default().group.title,
        /// The text of a group's message.
        group_body: String = Templates::default().group.body,
        /// The title of an official account's message.
        official_title: String = Templates::default().official.title,
        /// The text of an official account's message.
        official_body: String = Templates::default().official.body,
        /// Whether devices get the number of the user's unread messages, those of muted conversations not counted.
        badge: bool = true,
        /// A device that was notified of a conversation is notified of it again after this time at the earliest, of the newest message then, which
        /// takes the place of those before it; 0: at once. In a busy group a phone would show dozens a second.
        repeat_after_ms: u64 = 1_000,
        /// From the message on, in seconds. A notification that no provider took by then is given up, and providers give up one that no device took.
        time_to_live_s: u64 = 86_400,
        /// Requests of one provider that wait for their answers at the same time. Full: the next ones wait for these.
        in_flight_max: usize = 100,
        /// Requests to one provider in a second; 0: no limit. Full: the next ones wait.
        requests_per_second: u32 = 0,
        /// A request that takes longer has failed.
        timeout_ms: u64 = 10_000,
        /// The first wait after a failed attempt; it doubles each time, with jitter. A provider may ask for a longer one.
        backoff_min_ms: u64 = 1_000,
        /// The longest wait between attempts.
        backoff_max_ms: u64 = 300_000,
        /// Messages of which conversations are told when do-not-disturb or a snooze ends, if these hold them back: `direct`, `all`, or `none`. Of each conversation
        /// the newest is told; its time to live counts from then on.
        quiet_hours_defer: Deferred = Deferred::Direct,
        /// For how many days it is recorded who was notified of a message, and why others were not, and how often each channel was tried; 0: it is not. A record names users and devices
        /// and no texts. Of conversations with more than 1,000 members, who was left out is not recorded.
        log_days: u32 = NotificationsConfig::default().notification_log_days,
        /// For how many days notifications are kept that providers did not take, at most 10,000 of them; 0: they are not.
        dead_letter_days: u32 = 7,
        /// A file of certificate authorities in PEM that are trusted beside those of the system, as for a proxy.
        ca_file: Option<PathBuf> = None,
    }
}

settings! {
    /// Apple Push Notification service. It is used when `topic` is set, with either a key or a certificate.
    ApnsSettings {
        /// The address; that of the development environment is `https://api.sandbox.push.apple.com`.
        url: String = "https://api.push.apple.com".into(),
        /// The app's bundle id.
        topic: Option<String> = None,
        /// The file of the signing key, as Apple hands it out (`.p8`).
        key_file: Option<PathBuf> = None,
        /// The id of the signing key.
        key_id: Option<String> = None,
        /// The id of the team that the signing key is of.
        team_id: Option<String> = None,
        /// In place of a signing key: a file with a certificate and its private key in PEM.
        certificate_file: Option<PathBuf> = None,
    }
}

settings! {
    /// Firebase Cloud Messaging. It is used when `service_account_file` is set.
    FcmSettings {
        /// The address.
        url: String = "https://fcm.googleapis.com".into(),
        /// The JSON file of a service account, as Google hands it out.
        service_account_file: Option<PathBuf> = None,
    }
}

settings! {
    /// Huawei Push Kit. It is used when `app_id` is set.
    HuaweiSettings {
        /// The address.
        url: String = "https://push-api.cloud.huawei.com".into(),
        /// Where the app's secret is exchanged for an access token.
        token_url: String = "https://oauth-login.cloud.huawei.com/oauth2/v3/token".into(),
        /// The app's id in AppGallery Connect, a number.
        app_id: Option<String> = None,
        /// The app's secret.
        app_secret: Option<String> = None,
        /// The category that the app has applied for, such as `IM`. Without it Huawei classifies messages, and may show them silently.
        category: Option<String> = None,
        /// The class of the app's entry activity; without it devices show no badge.
        badge_class: Option<String> = None,
    }
}

settings! {
    /// The push services of browsers. They are used when the keys are set; `npx web-push generate-vapid-keys` makes a pair.
    WebPushSettings {
        /// The private key, in base64url.
        private_key: Option<String> = None,
        /// The public key, in base64url: the `applicationServerKey` of the page that subscribes.
        public_key: Option<String> = None,
        /// How the push services' operators reach you: a `mailto:` or `https:` address.
        subject: Option<String> = None,
        /// The push services that subscriptions may name, so that nobody has the server call other addresses.
        services: Vec<String> = [
            "https://fcm.googleapis.com", "https://updates.push.services.mozilla.com", "https://*.push.apple.com",
            "https://*.notify.windows.com",
        ].map(String::from).to_vec(),
        /// Whether Safari gets pushes that show nothing, which have it take away what was read on another device: it ends the subscription after a few of them.
        silent_to_apple: bool = false,
    }
}

/// Who notifies users that are not connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Via {
    Webhook,
    Providers,
    Both,
}

/// Which conversations' messages wait for the end of quiet hours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Deferred {
    None,
    Direct,
    All,
}

one_of!(Deferred { "none": Deferred::None, "direct": Deferred::Direct, "all": Deferred::All });

one_of!(Via { "webhook": Via::Webhook, "providers": Via::Providers, "both": Via::Both });

impl Settings {
    /// Whether the store keeps the list of entries that await offline push.
    pub(super) fn has_offline_push(&self) -> bool {
        self.webhook_tells() || self.has_providers() || self.notifications.device_push || self.notifications.popup
    }

    /// Whether the webhook is notified of messages.
    pub(crate) fn webhook_tells(&self) -> bool {
        self.webhook.url.is_some() && self.notifications.via != Via::Providers
    }

    /// By which channels, and when.
    pub(super) fn channel_plan(&self) -> ChannelPlan {
        let after_s = self.notifications.webhook_after_s.min(WEBHOOK_AFTER_S_MAX);
        if after_s == 0 {
            return ChannelPlan::default();
        }
        let planned = |channel, after_ms, stops_others| PlannedChannel { channel, after_ms, stops_others };
        let providers = planned(PolicyChannel::Providers, 0, true);
        ChannelPlan { channels: vec![providers, planned(PolicyChannel::Webhook, after_s * 1_000, false)] }
    }

    fn has_providers(&self) -> bool {
        let is_any = self.apns.topic.is_some()
            || self.fcm.service_account_file.is_some()
            || self.huawei.app_id.is_some()
            || self.web_push.private_key.is_some()
            || self.web_push.public_key.is_some();
        is_any && self.notifications.via != Via::Webhook
    }

    /// Refuses providers that are set up halfway.
    pub(super) fn check_providers(&self) -> Result<()> {
        let (apns, web_push) = (&self.apns, &self.web_push);
        if apns.topic.is_some() {
            match (&apns.key_file, &apns.certificate_file) {
                (Some(_), None) if apns.key_id.is_some() && apns.team_id.is_some() => {}
                (Some(_), None) => bail!("[apns] key_file needs key_id and team_id"),
                (None, Some(_)) => {}
                (Some(_), Some(_)) => bail!("[apns] has both key_file and certificate_file: one of them is enough"),
                (None, None) => bail!("[apns] topic needs key_file, or certificate_file"),
            }
        } else if apns.key_file.is_some() || apns.certificate_file.is_some() {
            bail!("[apns] needs topic, the app's bundle id");
        }
        match (&self.huawei.app_id, &self.huawei.app_secret) {
            (Some(_), None) => bail!("[huawei] app_id needs app_secret"),
            (None, Some(_)) => bail!("[huawei] app_secret needs app_id"),
            _ => {}
        }
        let parts = [&web_push.private_key, &web_push.public_key, &web_push.subject];
        let missing = parts.iter().filter(|part| part.is_none()).count();
        if missing != 0 && missing != parts.len() {
            bail!("[web_push] needs private_key, public_key and subject");
        }
        if let Some(subject) = &web_push.subject
            && !subject.starts_with("mailto:")
            && !subject.starts_with("https://")
        {
            bail!("[web_push] subject must be a mailto: or https: address");
        }
        Ok(())
    }

    /// The providers that the settings name, if users are notified by them. Call within the runtime that is to do the requests.
    pub(crate) fn providers(&self) -> Result<Option<ProviderPushParts>> {
        if !self.has_providers() {
            return Ok(None);
        }
        let (notifications, clock) = (&self.notifications, Arc::new(SystemClock) as Arc<dyn Clock>);
        let pool = PoolConfig {
            in_flight_max: notifications.in_flight_max,
            requests_per_second: notifications.requests_per_second,
            timeout: Duration::from_millis(notifications.timeout_ms),
            authorities: notifications.ca_file.as_deref().map(read).transpose()?,
        };
        let mut providers: Vec<Arc<dyn Provider>> = Vec::new();
        let apns = &self.apns;
        if let Some(topic) = &apns.topic {
            let credentials = match (&apns.key_file, &apns.certificate_file) {
                (Some(file), _) => ApnsCredentials::Token {
                    key: read(file)?,
                    key_id: apns.key_id.clone().unwrap_or_default(),
                    team_id: apns.team_id.clone().unwrap_or_default(),
                },
                (None, Some(file)) => ApnsCredentials::Certificate { pem: read(file)? },
                (None, None) => bail!("[apns] topic needs key_file, or certificate_file"),
            };
            let (url, topic, pool) = (apns.url.clone(), topic.clone(), pool.clone());
            let config = ApnsConfig { url, credentials, topic, pool };
            providers.push(Arc::new(Apns::new(config, clock.clone()).context("[apns]")?));
        }
        if let Some(file) = &self.fcm.service_account_file {
            let config = FcmConfig { url: self.fcm.url.clone(), service_account: read(file)?, pool: pool.clone() };
            providers.push(Arc::new(Fcm::new(config, clock.clone()).context("[fcm]")?));
        }
        let huawei = &self.huawei;
        if let (Some(app_id), Some(app_secret)) = (huawei.app_id.clone(), huawei.app_secret.clone()) {
            let config = HuaweiConfig {
                url: huawei.url.clone(),
                token_url: huawei.token_url.clone(),
                app_id,
                app_secret,
                category: huawei.category.clone(),
                badge_class: huawei.badge_class.clone(),
                pool: pool.clone(),
            };
            providers.push(Arc::new(Huawei::new(config, clock.clone()).context("[huawei]")?));
        }
        let web_push = &self.web_push;
        if let (Some(private_key), Some(public_key), Some(subject)) =
            (web_push.private_key.clone(), web_push.public_key.clone(), web_push.subject.clone())
        {
            let services = web_push.services.clone();
            let silent_to_apple = web_push.silent_to_apple;
            let config = WebPushConfig { private_key, public_key, subject, services, silent_to_apple, pool };
            providers.push(Arc::new(WebPush::new(config, clock).context("[web_push]")?));
        }
        Ok(Some(ProviderPushParts { providers, config: self.provider_push_config() }))
    }

    fn provider_push_config(&self) -> ProviderPushConfig {
        let notifications = &self.notifications;
        ProviderPushConfig {
            templates: self.templates(),
            time_to_live: Duration::from_secs(notifications.time_to_live_s),
            badge: notifications.badge,
            repeat_after: Duration::from_millis(notifications.repeat_after_ms),
            backoff_min: Duration::from_millis(notifications.backoff_min_ms),
            backoff_max: Duration::from_millis(notifications.backoff_max_ms),
            dead_letters_kept: Duration::from_secs(u64::from(notifications.dead_letter_days) * 24 * 60 * 60),
        }
    }

    /// Of which conversations messages wait for the end of quiet hours.
    pub(super) fn quiet_hours(&self) -> QuietHours {
        match self.notifications.quiet_hours_defer {
            Deferred::None => QuietHours::DeferNone,
            Deferred::Direct => QuietHours::DeferDirect,
            Deferred::All => QuietHours::DeferAll,
        }
    }

    /// The channels that need no service elsewhere.
    pub(super) fn internal_channels_config(&self) -> InternalChannelsConfig {
        let notifications = &self.notifications;
        InternalChannelsConfig {
            device_push: notifications.device_push,
            popup: notifications.popup,
            templates: self.templates(),
            badge: notifications.badge,
            time_to_live: Duration::from_secs(notifications.time_to_live_s),
        }
    }

    fn templates(&self) -> Templates {
        let notifications = &self.notifications;
        let template = |title: &str, body: &str| Template { title: title.to_owned(), body: body.to_owned() };
        Templates {
            direct: template(&notifications.direct_title, &notifications.direct_body),
            group: template(&notifications.group_title, &notifications.group_body),
            official: template(&notifications.official_title, &notifications.official_body),
            hidden_text: notifications.hide_text.then(|| notifications.no_text.clone()),
            no_text: notifications.no_text.clone(),
            recalled_text: notifications.recalled_text.clone(),
        }
    }
}

fn read(file: &Path) -> Result<Vec<u8>> {
    std::fs::read(file).with_context(|| format!("reading {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(set: &[(&str, &str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (table, name, text) in set {
            settings.set_any(table, name, text).expect(name);
        }
        settings
    }

    const PRIVATE: &str = "q1dXpw3UpT5VOmu_cf_v6ih07Aems3njxI-JWgLcM94";
    const PUBLIC: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";

    #[test]
    fn providers_that_are_set_up_halfway_are_refused() {
        let check = |set: &[(&str, &str, &str)], expected: Option<&str>| {
            let refusal = settings(set).check_providers().err().map(|why| why.to_string());
            match expected {
                None => assert_eq!(refusal, None, "{set:?}"),
                Some(expected) => {
                    assert!(refusal.as_ref().is_some_and(|why| why.contains(expected)), "{refusal:?} {set:?}")
                }
            }
        };
        let (topic, key) = (("apns", "topic", "app"), ("apns", "key_file", "key.p8"));
        let (id, team, certificate) =
            (("apns", "key_id", "K"), ("apns", "team_id", "T"), ("apns", "certificate_file", "c.pem"));
        check(&[], None);
        check(&[topic], Some("needs key_file"));
        check(&[key, id, team], Some("needs topic"));
        check(&[topic, key, id], Some("key_id and team_id"));
        check(&[topic, key, id, team], None);
        check(&[topic, certificate], None);
        check(&[topic, key, id, team, certificate], Some("both key_file and certificate_file"));
        let (app, secret) = (("huawei", "app_id", "100"), ("huawei", "app_secret", "s"));
        check(&[app], Some("app_id needs app_secret"));
        check(&[secret], Some("app_secret needs app_id"));
        check(&[app, secret], None);
        let (private, public) = (("web_push", "private_key", PRIVATE), ("web_push", "public_key", PUBLIC));
        check(&[private, public], Some("private_key, public_key and subject"));
        check(&[private, public, ("web_push", "subject", "me")], Some("mailto:"));
        check(&[private, public, ("web_push", "subject", "mailto:ops@example.com")], None);
    }

    #[tokio::test]
    async fn who_tells_is_what_is_set_up_and_chosen() {
        let webhook = ("webhook", "url", "http://127.0.0.1:9/");
        let keys = [
            ("web_push", "private_key", PRIVATE),
            ("web_push", "public_key", PUBLIC),
            ("web_push", "subject", "mailto:ops@example.com"),
        ];
        let check = |set: &[(&str, &str, &str)], expected: (bool, usize, bool)| {
            let settings = settings(set);
            let providers = settings.providers().expect("they are sound").map_or(0, |parts| parts.providers.len());
            assert_eq!((settings.webhook_tells(), providers, settings.has_offline_push()), expected, "{set:?}");
        };
        check(&[], (false, 0, false));
        check(&[webhook], (true, 0, true));
        check(&keys, (false, 1, true));
        let both = [&keys[..], &[webhook]].concat();
        check(&both, (true, 1, true));
        check(&[&both[..], &[("notifications", "via", "webhook")]].concat(), (true, 0, true));
        check(&[&both[..], &[("notifications", "via", "providers")]].concat(), (false, 1, true));
        check(&[&keys[..], &[("notifications", "via", "webhook")]].concat(), (false, 0, false));
        let wrong = [&keys[..1], &[("web_push", "public_key", PRIVATE)], &keys[2..]].concat();
        let why = settings(&wrong).providers().err().expect("no pair");
        assert!(!format!("{why:#}").contains(PRIVATE), "{why:#}");
    }
}
