//! The thread that keeps messages that grow durable, and ends those whose beginner is gone: a session that ended, a caller
//! that fell silent, a node that crashed.

use super::{Checkpoint, DueWork, Interruption, StreamKey, Streams};
use crate::{Core, worker_thread::WorkerThread};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rustc_hash::FxHashSet;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::{stream_key, stream_of},
    function::Function,
    model::{self, *},
    refusals::store_refusal,
    store::*,
};
use tidings_protocol::error::Refusal;

/// The pause between rounds while messages grow. A checkpoint is late by this at most.
const ROUND: Duration = Duration::from_millis(100);
/// The pause while none does.
const IDLE_ROUND: Duration = Duration::from_secs(1);
/// Checkpoints and ends that wait for their commits at once: far fewer than the committer's queues hold.
const COMMITS_AT_ONCE: usize = 256;
/// How often the stored list of streams is compared with those that are there, in milliseconds. One that nobody holds is
/// ended the second time that it is found so: by then a node that has just begun has been heard of.
const SEARCH_EVERY_MS: u64 = 10_000;
/// Rows of the list in one read.
const ROWS_AT_ONCE: usize = 500;

/// What [`StreamWorker::start`] needs.
pub(crate) struct StreamWorkerParts {
    pub core: Core,
    pub streams: Arc<Streams>,
    /// Whether the node of a boot id is in the cluster.
    pub is_alive: Box<dyn Fn(u64) -> bool + Send + Sync>,
}

enum Order {
    /// Something is due.
    Look,
    /// Do all that is due, then answer.
    Settle(Sender<()>),
}

/// The engine's handle of the thread.
pub(crate) struct StreamWorker(WorkerThread<Order>);

impl StreamWorker {
    pub(crate) fn start(parts: StreamWorkerParts) -> StreamWorker {
        let worker = Worker { parts, searched_at: None, suspects: FxHashSet::default() };
        StreamWorker(WorkerThread::start("streams", 16, move |inbox| worker.run(&inbox)))
    }

    /// Has the thread look now whether something is due.
    pub(crate) fn look(&self) {
        // Too many wait: it looks soon anyway.
        self.0.try_order(Order::Look);
    }

    /// Does all that is due, and waits until that is done.
    pub(crate) fn settle(&self) {
        self.0.order_and_wait(Order::Settle);
    }

    /// Ends all streams of this node as interrupted, then the thread.
    pub(crate) fn stop(&self) {
        self.0.stop();
    }
}

struct Worker {
    parts: StreamWorkerParts,
    searched_at: Option<u64>,
    /// Listed streams that nobody held when the list was read last.
    suspects: FxHashSet<StreamKey>,
}

impl Worker {
    fn run(mut self, inbox: &Receiver<Order>) {
        loop {
            self.search_orphans();
            let pause = if self.parts.streams.depth().0 > 0 { ROUND } else { IDLE_ROUND };
            let order = inbox.recv_timeout(pause);
            let is_stopping = matches!(order, Err(RecvTimeoutError::Disconnected));
            self.round(is_stopping);
            match order {
                Ok(Order::Settle(done)) => {
                    self.search_orphans();
                    let _ = done.send(());
                }
                Ok(Order::Look) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn round(&self, is_stopping: bool) {
        let DueWork { mut checkpoints, mut interruptions } = self.parts.streams.take_due(is_stopping);
        while !checkpoints.is_empty() {
            let rest = checkpoints.split_off(checkpoints.len().min(COMMITS_AT_ONCE));
            self.save(std::mem::replace(&mut checkpoints, rest));
        }
        while !interruptions.is_empty() {
            let rest = interruptions.split_off(interruptions.len().min(COMMITS_AT_ONCE));
            self.interrupt(std::mem::replace(&mut interruptions, rest));
        }
    }

    fn save(&self, checkpoints: Vec<Checkpoint>) {
        let Parts { core, streams, .. } = &self.parts;
        let begun: Vec<_> = checkpoints
            .into_iter()
            .map(|Checkpoint { key: StreamKey { conversation, seq }, body }| {
                let proposal = Proposal::CheckpointStream { conversation, target: seq, body };
                (StreamKey { conversation, seq }, core.committer.begin(None, proposal))
            })
            .collect();
        for (key, begun) in begun {
            match begun.and_then(|begun| begun.wait()) {
                Ok(Outcome::Rejected(rejection)) => {
                    tracing::debug!(?rejection, "a message that grew has ended meanwhile");
                    streams.close(key);
                }
                Ok(_) => streams.tell_length(key),
                Err(refusal) => {
                    tracing::debug!(%refusal, "the text of a message that grows was not stored");
                    streams.checkpoint_failed(key);
                }
            }
        }
    }

    /// Ends streams. The committer tells the streams of the outcomes; one whose end was refused is found again in the next
    /// round.
    fn interrupt(&self, interruptions: Vec<Interruption>) {
        let Parts { core, streams, .. } = &self.parts;
        let begun: Vec<_> = interruptions
            .into_iter()
            .map(|Interruption { key, conversation, sender, body }| {
                let begun = core.committer.begin(Some(&conversation), interruption(key, sender, body));
                if begun.is_err() {
                    streams.resume(key);
                }
                begun
            })
            .collect();
        for begun in begun {
            if let Err(refusal) = begun.and_then(|begun| begun.wait()) {
                tracing::debug!(%refusal, "a message that grew was not ended");
            }
        }
    }

    /// Ends the streams that are listed in the store and that no process holds: their node has crashed, or the commit that
    /// began them was stored although its answer was lost.
    fn search_orphans(&mut self) {
        let now = self.parts.core.clock.now_ms();
        if self.searched_at.is_some_and(|at| now < at.saturating_add(SEARCH_EVERY_MS)) {
            return;
        }
        self.searched_at = Some(now);
        match self.listed_orphans() {
            Ok(orphans) => {
                let is_known = |(key, is_certain): &(StreamKey, bool)| *is_certain || self.suspects.contains(key);
                let (ended, suspects): (Vec<_>, Vec<_>) = orphans.into_iter().partition(is_known);
                for (key, _) in ended {
                    if let Err(refusal) = self.end_orphan(key) {
                        tracing::debug!(%refusal, "a message whose node is gone was not ended");
                    }
                }
                self.suspects = suspects.into_iter().map(|(key, _)| key).collect();
            }
            Err(error) => tracing::debug!(%error, "the messages that grow could not be listed"),
        }
    }

    /// The listed streams that nobody seems to hold, each with whether that is certain.
    fn listed_orphans(&self) -> StoreResult<Vec<(StreamKey, bool)>> {
        let Parts { core: Core { store, leads, .. }, streams, is_alive } = &self.parts;
        let lead = leads.of(Function::Housekeeping);
        let mut orphans = Vec::new();
        let (mut from, to) = (stream_key(ConversationNo(0), 0), stream_key(ConversationNo(u64::MAX), u64::MAX));
        loop {
            let rows = store.rows(RowSpace::Chat, &from, &to, ROWS_AT_ONCE)?;
            for (key, node) in &rows {
                let Some((conversation, seq)) = stream_of(key) else { continue };
                let key = StreamKey { conversation, seq };
                let node = <[u8; 8]>::try_from(node.as_slice()).map_or(0, u64::from_be_bytes);
                if node == streams.node() {
                    if streams.owner(key) != Some(node) {
                        orphans.push((key, false));
                    }
                } else if lead.leads() && !is_alive(node) {
                    orphans.push((key, !lead.is_clustered()));
                }
            }
            match rows.last() {
                Some((last, _)) if rows.len() == ROWS_AT_ONCE => from = [last.as_slice(), &[0]].concat(),
                _ => return Ok(orphans),
            }
        }
    }

    fn end_orphan(&self, key: StreamKey) -> Result<(), Refusal> {
        let Core { committer, directory, store, .. } = &self.parts.core;
        let conversation = directory.conversation(key.conversation).map_err(store_refusal)?;
        let found = store.entries(key.conversation, key.seq, key.seq, 1, End::Oldest).map_err(store_refusal)?;
        let content = found.into_iter().next().map(|message| message.content);
        let (sender, body) = content.map_or((None, NO_BODY.into()), |content| (content.sender, content.body));
        committer.begin(conversation.as_ref(), interruption(key, sender, body))?.wait().map(drop)
    }
}

use StreamWorkerParts as Parts;

fn interruption(key: StreamKey, sender: Option<model::Sender>, body: Box<str>) -> Proposal {
    Proposal::ChangeMessage {
        conversation: key.conversation,
        target: key.seq,
        change: MessageChange::EndStream { interrupted: true },
        entry: end_entry(sender, body),
    }
}

/// The entry that ends a message that grew. The store gives it the message's kind of content and mentions.
pub(crate) fn end_entry(sender: Option<model::Sender>, body: Box<str>) -> NewEntry {
    NewEntry {
        kind: EntryKind::Edit,
        sender,
        client_msg_id: None,
        content_type: String::new(),
        body,
        mentions: vec![],
        silent: true,
        skip_push: true,
        details: None,
        request: EntryRequest::default(),
    }
}
