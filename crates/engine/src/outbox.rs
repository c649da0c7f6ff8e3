//! Offline push (stub until its file is written).
use crate::engine::Engine;
use std::sync::Arc;
pub trait Webhook: Send + Sync + 'static {}
#[derive(Default)]
pub struct Outbox {}
impl Outbox {
    pub(crate) fn start(_engine: &Arc<Engine>, _webhook: Arc<dyn Webhook>) {}
    pub(crate) fn stop(&self) {}
}
