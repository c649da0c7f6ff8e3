//! The thread that has members told of reactions when their interval has ended. What is yet to be told is in the store: a
//! teller that ends before its time loses nothing, since the leader looks for what is left now and then.

use crate::{
    commit::{Committer, PendingOutcome},
    directory::Directory,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use std::{
    sync::Arc,
    thread::JoinHandle,
    time::{Duration, Instant},
};
use tidings_domain::{
    chat_rows,
    clock::Clock,
    leadership::Leadership,
    model::ConversationNo,
    store::{Proposal, RowSpace, Store, StoreResult},
};

/// How often the thread looks whether something is due.
const ROUND: Duration = Duration::from_millis(50);
/// How often the leader looks in the store for what no node has told.
const SEARCH_INTERVAL: Duration = Duration::from_secs(2);
/// Conversations in one search.
const FOUND_MAX: usize = 1_000;
/// Conversations that wait in memory. More of them are found in the store.
const DUE_MAX: usize = 100_000;

type Due = Arc<Mutex<FxHashMap<ConversationNo, u64>>>;

/// What [`ReactionTeller::start`] needs.
pub(crate) struct ReactionTellerParts {
    pub store: Arc<dyn Store>,
    pub clock: Arc<dyn Clock>,
    pub directory: Arc<Directory>,
    pub committer: Arc<Committer>,
    pub lead: Leadership,
}

/// The engine's handle of the thread.
pub(crate) struct ReactionTeller {
    due: Due,
    stop: Mutex<Option<Sender<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ReactionTeller {
    pub(crate) fn start(parts: ReactionTellerParts) -> ReactionTeller {
        let due = Due::default();
        let (stop, stopped) = bounded(1);
        let worker = Worker { parts, due: due.clone() };
        let thread = std::thread::Builder::new().name("reactions".into()).spawn(move || worker.run(&stopped));
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no thread for reactions")).ok();
        ReactionTeller { due, stop: Mutex::new(Some(stop)), thread: Mutex::new(thread) }
    }

    /// Has the members of a conversation told of reactions at this time, in milliseconds since 1970 UTC.
    pub(crate) fn tell_at(&self, conversation: ConversationNo, at: u64) {
        let mut due = self.due.lock();
        if due.len() < DUE_MAX {
            due.entry(conversation).or_insert(at);
        }
    }

    pub(crate) fn stop(&self) {
        self.stop.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

struct Worker {
    parts: ReactionTellerParts,
    due: Due,
}

impl Worker {
    fn run(self, stopped: &Receiver<()>) {
        let mut searched_at: Option<Instant> = None;
        while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
            let now_ms = self.parts.clock.now_ms();
            let mut is_due = Vec::new();
            self.due.lock().retain(|conversation, at| {
                if *at <= now_ms {
                    is_due.push(*conversation);
                }
                *at > now_ms
            });
            is_due.into_iter().for_each(|conversation| self.tell(conversation));
            if searched_at.is_none_or(|at| at.elapsed() >= SEARCH_INTERVAL) && self.parts.lead.leads() {
                searched_at = Some(Instant::now());
                match self.search() {
                    Ok(found) => found.into_iter().for_each(|conversation| self.tell(conversation)),
                    Err(error) => tracing::debug!(%error, "reactions to be told could not be looked for"),
                }
            }
        }
    }

    /// The conversations with reactions that no node has told, but for those that this node will.
    fn search(&self) -> StoreResult<Vec<ConversationNo>> {
        let (from, to) = (ConversationNo(0), ConversationNo(u64::MAX));
        let (from, to) = (chat_rows::untold_key(from), chat_rows::untold_key(to));
        let rows = self.parts.store.rows(RowSpace::Chat, &from, &to, FOUND_MAX)?;
        let due = self.due.lock();
        let found = rows.iter().filter_map(|(key, _)| chat_rows::number_in(key, 0)).map(ConversationNo);
        Ok(found.filter(|conversation| !due.contains_key(conversation)).collect())
    }

    fn tell(&self, conversation: ConversationNo) {
        let Ok(Some(card)) = self.parts.directory.conversation(conversation) else { return };
        let begun = self.parts.committer.begin(Some(&card), Proposal::TellReactions { conversation });
        if let Err(refusal) = begun.and_then(PendingOutcome::wait) {
            tracing::debug!(%refusal, "reactions are told later");
        }
    }
}
