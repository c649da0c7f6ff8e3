//! How connections come in: the settings of all doors together.

use super::{Settings, macros::settings};
use std::sync::Arc;
use tidings_gateway::door::MiopDoorConfig;
use tidings_listen::{Admission, Descriptors, admission::AdmissionConfig, socket::BACKLOG};

settings! {
    /// How fast connections are taken. Above the rate accept pauses and the kernel's backlog holds who waits.
    Admitting {
        /// Connections accepted in a second, by all doors together; 0: no limit.
        rate: u32 = AdmissionConfig::default().rate,
        /// Connections accepted at once after a quiet time.
        burst: u32 = AdmissionConfig::default().burst,
        /// Connections that have not bound yet. Above: devices wait in the backlog.
        unbound_max: usize = AdmissionConfig::default().unbound_max,
        /// Connections that the kernel holds until they are accepted; `net.core.somaxconn` bounds it.
        backlog: u32 = BACKLOG,
        /// File descriptors that are not for devices: the store, HTTP connections at the limit, the log, outgoing calls.
        descriptors_reserved: u64 = 256,
    }
}

impl Settings {
    pub(crate) fn admission(&self) -> Arc<Admission> {
        let Admitting { rate, burst, unbound_max, .. } = self.admission;
        Arc::new(Admission::new(AdmissionConfig { rate, burst, unbound_max }))
    }

    pub(crate) fn miop_door_config(&self, admission: Arc<Admission>, descriptors: Arc<Descriptors>) -> MiopDoorConfig {
        MiopDoorConfig { listen: self.miop_listen.clone(), backlog: self.admission.backlog, admission, descriptors }
    }
}
