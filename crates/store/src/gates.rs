//! Which gates are open in a data folder: a row for each, by which a program that does not know one refuses the folder.

use crate::{
    embedded::EmbeddedStore,
    errors::{OpenError, open_error, store_error},
    kv::*,
    rows::{MetaKind, id_key},
};
use tidings_domain::{gates::Gate, store::StoreResult};

impl EmbeddedStore {
    /// Opens all gates that this program knows: from now on it may write what earlier programs cannot read. It also begins the
    /// log of events, or drops it. A server does so when it starts; a command that only looks at the folder does not.
    ///
    /// # Errors
    /// The rows cannot be written now.
    pub fn open_gates(&self) -> StoreResult<()> {
        let kv = self.kv()?;
        let mut batch = Batch::default();
        for gate in Gate::ALL {
            let key = id_key(MetaKind::Gate, gate.name());
            if kv.get(Space::Meta, &key).map_err(store_error)?.is_none() {
                batch.put(Space::Meta, key, Vec::new());
            }
        }
        drop(kv);
        if !batch.writes.is_empty() {
            self.write_rows_batch(batch)?;
        }
        self.open_event_log()
    }
}

/// Refuses a folder in which a gate is open that this program does not know.
pub(crate) fn check_gates(kv: &dyn KvRead) -> Result<(), OpenError> {
    let mut unknown = None;
    let kind = MetaKind::Gate.byte();
    let scanned = kv.scan(Space::Meta, &[kind], &[kind + 1], Order::Ascending, &mut |key, _| {
        let name = String::from_utf8_lossy(key.get(1..).unwrap_or_default());
        if key.first() == Some(&kind) && Gate::of_name(&name).is_none() {
            unknown = Some(name.into_owned());
        }
        unknown.is_none()
    });
    scanned.map_err(open_error)?;
    unknown.map_or(Ok(()), |name| Err(OpenError::UnknownGate(name)))
}
