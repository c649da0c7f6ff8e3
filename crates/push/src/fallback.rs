//! Devices that have not acknowledged a push in time, for those who notify them by providers: who they are, what they are shown, and
//! for which of them a provider has taken the notification.
//!
//! The pages of [`PushHandle::due_fallback`] are handed out again until [`PushHandle::fallback_taken`] says that they are stored elsewhere.
//! What becomes of a device is looked at once more before each attempt ([`PushHandle::push_notification`]), so that a page that was handed
//! out twice notifies nobody twice.

use crate::PushHandle;
use roaring::RoaringBitmap;
use std::collections::BTreeMap;
use tidings_domain::{
    model::UserNo,
    push_store::{DeviceNo, FallbackPart, PushKey, PushRow, StoredFallbackTimer},
    refusals::store_refusal,
    store::{Store, StoreError, StoreResult},
};
use tidings_protocol::{
    error::Refusal,
    http::{PushFallback, PushFallbackStatus, PushProvider},
};

/// A device of a user.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct FallbackDevice {
    pub user: UserNo,
    pub device_id: String,
}

/// Some devices that have not acknowledged a push in time.
#[derive(Debug)]
pub struct DueFallback {
    pub push: u64,
    /// Until when the push lives, in milliseconds since 1970 UTC.
    pub expires_at: u64,
    pub devices: Vec<FallbackDevice>,
    pub(crate) timer: StoredFallbackTimer,
    /// When the first devices of the push fell back.
    pub(crate) began_at: u64,
    /// Devices that are connected, and are given a little longer.
    pub(crate) connected: Vec<DeviceNo>,
    /// Where the next page begins; `None`: this one was the last.
    pub(crate) next: Option<u32>,
}

/// What the devices of a push are shown in its place.
#[derive(Debug, Clone)]
pub struct PushNotification {
    pub fallback: PushFallback,
    pub content_type: String,
    /// That of the fallback, else that of the push.
    pub collapse_key: Option<String>,
    pub high: bool,
    /// Until when it may be shown, if it is sent in time, in milliseconds since 1970 UTC.
    pub expires_at: u64,
    /// Until when the push lives.
    pub push_expires_at: u64,
    /// Of each device that was asked about.
    pub states: Vec<FallbackState>,
}

/// Whether a device is to be notified in place of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FallbackState {
    /// It has not acknowledged the push.
    Wanted,
    /// A provider has taken its notification.
    Sent,
    Acknowledged,
    /// A newer push took the place.
    Collapsed,
    Cancelled,
    Expired,
    /// The device is not there any more, or is no target of the push.
    NoDevice,
}

impl PushHandle {
    /// The next devices that have not acknowledged a push in time; `None`: there are none now. Asked often: it costs nothing until a time
    /// has come. Blocks.
    ///
    /// # Errors
    /// As [`Self::settle`], and those of the store.
    pub fn due_fallback(&self) -> Result<Option<DueFallback>, Refusal> {
        if self.clock.now_ms() < self.inbox.next_fallback() {
            return Ok(None);
        }
        self.ask(|worker| worker.due_fallback())?.map_err(store_refusal)
    }

    /// What becomes of these devices is stored: they are not handed out again. Blocks.
    ///
    /// # Errors
    /// As [`Self::due_fallback`]: they are handed out again.
    pub fn fallback_taken(&self, due: DueFallback) -> Result<(), Refusal> {
        self.ask(move |worker| worker.fallback_taken(&due))?.map_err(store_refusal)
    }

    /// What devices are shown in place of a push, and whether each of these is to be shown it now; `None`: the push is purged, or never had
    /// a fallback. Blocks.
    ///
    /// # Errors
    /// As [`Self::due_fallback`].
    pub fn push_notification(
        &self,
        push: u64,
        devices: Vec<FallbackDevice>,
    ) -> Result<Option<PushNotification>, Refusal> {
        self.ask(move |worker| worker.push_notification(push, &devices))?.map_err(store_refusal)
    }

    /// A provider has taken the notifications of these pushes for these devices. Stored when it returns. Blocks.
    ///
    /// # Errors
    /// As [`Self::due_fallback`].
    pub fn fallback_sent(&self, provider: PushProvider, sent: Vec<(u64, FallbackDevice)>) -> Result<(), Refusal> {
        self.ask(move |worker| worker.fallback_sent(provider, &sent))?.map_err(store_refusal)
    }

    /// How far the fallback of a push has come; `None`: it has none.
    pub(crate) fn fallback_status(&self, push: u64) -> StoreResult<Option<PushFallbackStatus>> {
        let Some(PushFallback { after_s, .. }) = read_fallback(&*self.store, push)? else { return Ok(None) };
        let sent = self.sent_by_providers(push)?;
        let sent = sent.into_iter().map(|(provider, devices)| (provider, devices.len())).collect();
        Ok(Some(PushFallbackStatus { after_s, sent }))
    }

    /// The devices for which each provider has taken the notification of a push.
    pub(crate) fn sent_by_providers(&self, push: u64) -> StoreResult<BTreeMap<PushProvider, RoaringBitmap>> {
        let (first, last) = PushKey::sent_by_providers(push);
        let mut sent = BTreeMap::<PushProvider, RoaringBitmap>::new();
        for row in self.store.push_rows(&first, &last, usize::MAX)? {
            if let PushRow::Fallback { part: FallbackPart::Sent(provider), chunk, bytes, .. } = row {
                crate::audience::add_chunk(sent.entry(provider).or_default(), chunk, &bytes);
            }
        }
        Ok(sent)
    }
}

/// The provider that has taken a device's notification.
pub(crate) fn sent_by(sent: &BTreeMap<PushProvider, RoaringBitmap>, device: DeviceNo) -> Option<PushProvider> {
    sent.iter().find(|(_, devices)| devices.contains(device.0)).map(|(provider, _)| *provider)
}

/// The fallback that a push was accepted with.
pub(crate) fn read_fallback(store: &dyn Store, push: u64) -> StoreResult<Option<PushFallback>> {
    let key = |chunk| PushKey::Fallback(push, FallbackPart::Request, chunk);
    let mut whole = Vec::new();
    for row in store.push_rows(&key(0), &key(u32::MAX), usize::MAX)? {
        if let PushRow::Fallback { bytes, .. } = row {
            whole.extend(bytes);
        }
    }
    if whole.is_empty() {
        return Ok(None);
    }
    let fallback = serde_json::from_slice(&whole);
    fallback.map(Some).map_err(|error| StoreError::Damaged(format!("the fallback of push {push}: {error}")))
}
