//! Offline push as a bench sees it: fakes of the app's webhook and of providers' services, which the server under test is set to
//! call, and the counts of what they are notified of messages to members who are offline.
//!
//! [`notice`] is what a fake is notified, [`tally`] counts it; `fake_webhook`, `fake_apns`, `fake_fcm` and `fake_web_push`
//! each speak one protocol over the one `http_server`, and know nothing of who is to be notified of what. `fake_hook` is asked before, and allows everything; `fake_consumer`
//! follows the feed.

mod fake_apns;
pub(crate) mod fake_consumer;
mod fake_fcm;
pub(crate) mod fake_hook;
mod fake_provider;
pub(crate) mod fake_providers;
mod fake_web_push;
pub(crate) mod fake_webhook;
mod http_server;
pub(crate) mod notice;
pub(crate) mod provider_state;
pub(crate) mod tally;
mod token_book;

use crate::{
    LabError,
    lock::lock,
    options::{parse_share, value_name},
    result::RunResult,
    server::Target,
    timeline::read_timeline,
    worker_protocol::Conversation,
};
use clap::{Args, ValueEnum};
use fake_providers::FakeProviders;
use fake_webhook::FakeWebhook;
use notice::OfflineChannel;
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tally::{Expectation, NoticeTally, OfflineCounts};
use tidings_client::http::{HttpClient, path_segment};
use tidings_protocol::entry::EntryKind;

/// The options of benches with members who are offline.
#[derive(Debug, Clone, Copy, Default, Args)]
pub struct OfflinePushArgs {
    /// This share of the members is offline, and fakes of the lab's own, which the server is set to call, count what they are notified of
    /// their messages, such as 50%
    #[arg(long, value_parser = parse_share)]
    pub offline_share: Option<f64>,
    /// Who is notified of messages to members who are offline: the app's webhook, providers (APNs, FCM and Web Push by turns), or both
    #[arg(long, value_enum, default_value_t = OfflineVia::Webhook, requires = "offline_share")]
    pub offline_via: OfflineVia,
}

/// Who is notified of messages to members who are offline.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OfflineVia {
    #[default]
    Webhook,
    #[value(alias = "vendors")]
    Providers,
    Both,
}

impl OfflinePushArgs {
    /// How many of so many are offline.
    ///
    /// # Errors
    /// Nobody would be, or all.
    pub(crate) fn offline_of(self, members: usize) -> Result<usize, LabError> {
        let Some(share) = self.offline_share else { return Ok(0) };
        let offline = (members as f64 * share).round() as usize;
        if (1..members).contains(&offline) {
            Ok(offline)
        } else {
            Err(LabError::Usage("--offline-share must leave members online and members offline".into()))
        }
    }

    /// What a run's title says of it.
    pub(crate) fn suffix(self) -> String {
        match self.offline_share {
            None => String::new(),
            Some(share) => format!(", {:.0}% offline, notified via {}", 100.0 * share, value_name(&self.offline_via)),
        }
    }
}

/// The fakes of a run, and what they count.
pub(crate) struct OfflinePush {
    via: OfflineVia,
    tally: Arc<NoticeTally>,
    webhook: Option<FakeWebhook>,
    providers: Option<FakeProviders>,
    /// What is to be notified.
    watched: Mutex<Vec<WatchedConversation>>,
}

/// A conversation with members who are offline.
struct WatchedConversation {
    conversation: Conversation,
    members: Vec<(String, Vec<(OfflineChannel, String)>)>,
}

impl OfflinePush {
    pub(crate) fn start(via: OfflineVia) -> Result<OfflinePush, LabError> {
        let tally = Arc::new(NoticeTally::default());
        let webhook = (via != OfflineVia::Providers).then(|| FakeWebhook::start(tally.clone())).transpose()?;
        let providers = (via != OfflineVia::Webhook).then(|| FakeProviders::start(tally.clone())).transpose()?;
        Ok(OfflinePush { via, tally, webhook, providers, watched: Mutex::default() })
    }

    /// The settings that have a server call the fakes.
    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        let webhook = self.webhook.as_ref().map(FakeWebhook::settings);
        let providers = self.providers.as_ref().map(FakeProviders::settings);
        webhook.into_iter().chain(providers).flatten().collect()
    }

    /// Counts what these members of a conversation, who are offline, are notified of its messages from now on; by providers each of them
    /// has one device.
    pub(crate) fn watch(
        &self,
        http: &mut HttpClient,
        conversation: &Conversation,
        offline: &[String],
    ) -> Result<(), LabError> {
        let mut members = Vec::with_capacity(offline.len());
        let turn = lock(&self.watched).len();
        for (number, user) in offline.iter().enumerate() {
            let mut devices = Vec::new();
            if let Some(providers) = &self.providers {
                let provider = OfflineChannel::PROVIDERS[(turn + number) % OfflineChannel::PROVIDERS.len()];
                register(http, providers, provider, user, DEVICE)?;
                devices.push((provider, DEVICE.to_owned()));
            }
            members.push((user.clone(), devices));
        }
        lock(&self.watched).push(WatchedConversation { conversation: conversation.clone(), members });
        Ok(())
    }

    /// Reads back what was sent, waits until the members who are offline were notified of it, or nothing came for `patience`, and counts.
    pub(crate) fn finish(&self, http: &mut HttpClient, patience: Duration) -> Result<OfflineCounts, LabError> {
        let watched = lock(&self.watched);
        let expectations = watched.iter().map(|watched| {
            let WatchedConversation { conversation, members } = watched;
            let entries = read_timeline(http, &conversation.id)?.into_iter();
            let notified = entries
                .filter(|entry| entry.seq > conversation.base_seq && entry.kind == EntryKind::Message && !entry.silent);
            let messages = notified.map(|entry| (entry.seq, entry.from)).collect();
            Ok(Expectation { conversation: conversation.id.clone(), members: members.clone(), messages })
        });
        let expectations = expectations.collect::<Result<Vec<_>, LabError>>()?;
        let mut channels = Vec::new();
        if self.webhook.is_some() {
            channels.push(OfflineChannel::Webhook);
        }
        if self.providers.is_some() {
            channels.extend(OfflineChannel::PROVIDERS);
        }
        let counts = self.tally.finish(&channels, &expectations, patience);
        Ok(OfflineCounts { via: value_name(&self.via), ..counts })
    }
}

/// Counts what the members who are offline were notified, if there are any. Call it while the server runs.
pub(crate) fn conclude(
    push: Option<&OfflinePush>,
    target: &Target,
    patience: Duration,
    result: &mut RunResult,
) -> Result<(), LabError> {
    let counts = push.map(|push| push.finish(&mut target.http(), patience)).transpose()?;
    counts.iter().for_each(|counts| counts.record(result));
    result.set("offline_push", counts);
    Ok(())
}

/// The device of a member who has one.
const DEVICE: &str = "phone";

/// Registers a device of the user with a provider.
pub(crate) fn register(
    http: &mut HttpClient,
    providers: &FakeProviders,
    provider: OfflineChannel,
    user: &str,
    device: &str,
) -> Result<(), LabError> {
    let token = providers.token(provider, user, device);
    let path = format!("/v1/users/{}/devices/{}/push_token", path_segment(user), path_segment(device));
    Ok(http.put::<serde_json::Value>(&path, &token).map(drop)?)
}
