//! How the fakes of providers answer: they accept, refuse, or keep requests waiting, each until it is notified otherwise.

use super::notice::OfflineChannel;
use crate::lock::lock;
use std::{collections::BTreeMap, sync::Mutex};

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProviderState {
    #[default]
    Accepts,
    /// 503.
    Refuses,
    /// Requests get no answer.
    Hangs,
}

/// The state of each provider.
#[derive(Debug, Default)]
pub(crate) struct ProviderStates(Mutex<BTreeMap<OfflineChannel, ProviderState>>);

impl ProviderStates {
    pub(crate) fn set(&self, provider: OfflineChannel, state: ProviderState) {
        lock(&self.0).insert(provider, state);
    }

    pub(crate) fn get(&self, provider: OfflineChannel) -> ProviderState {
        lock(&self.0).get(&provider).copied().unwrap_or_default()
    }
}
