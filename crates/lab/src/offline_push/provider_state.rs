//! How the fakes of providers answer: they accept, refuse, or keep requests waiting, each until it is notified otherwise.

use super::notice::OfflineChannel;
use std::sync::atomic::{AtomicU8, Ordering};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ProviderState {
    Accepts,
    /// 503.
    Refuses,
    /// Requests get no answer.
    Hangs,
}

/// The state of each provider.
#[derive(Debug, Default)]
pub(crate) struct ProviderStates([AtomicU8; 3]);

impl ProviderStates {
    fn of(&self, provider: OfflineChannel) -> Option<&AtomicU8> {
        let place = OfflineChannel::PROVIDERS.iter().position(|known| *known == provider)?;
        self.0.get(place)
    }

    pub(crate) fn set(&self, provider: OfflineChannel, state: ProviderState) {
        let code = match state {
            ProviderState::Accepts => 0,
            ProviderState::Refuses => 1,
            ProviderState::Hangs => 2,
        };
        if let Some(place) = self.of(provider) {
            place.store(code, Ordering::Release);
        }
    }

    pub(crate) fn get(&self, provider: OfflineChannel) -> ProviderState {
        match self.of(provider).map(|place| place.load(Ordering::Acquire)) {
            Some(1) => ProviderState::Refuses,
            Some(2) => ProviderState::Hangs,
            _ => ProviderState::Accepts,
        }
    }
}
