//! The thread that unassigns the conversations of agents who were removed, a few at a time. Who has left is in the store: the
//! leader goes on where another node, or an earlier process, ended.

use crate::{commit::Committer, desks::AccountDesk, directory::Directory};
use crossbeam_channel::{RecvTimeoutError, Sender as Stop, bounded};
use parking_lot::Mutex;
use std::{sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{
    desks::{DeskPatch, Whose, index_key, indexed},
    leadership::Leadership,
    message_changes::NO_BODY,
    model::*,
    refusals::store_refusal,
    store::{Proposal, RowSpace, Store},
};
use tidings_protocol::{error::Refusal, limits::AGENTS_MAX};

/// The pause between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// Conversations that are unassigned in one round, of each removed agent.
const UNASSIGNED_PER_ROUND: usize = 200;

/// What [`DeskWorker::start`] needs.
pub(crate) struct DeskWorkerParts {
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub committer: Arc<Committer>,
    pub lead: Leadership,
}

/// The engine's handle of the thread.
pub(crate) struct DeskWorker {
    stop: Mutex<Option<Stop<()>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl DeskWorker {
    pub(crate) fn start(parts: DeskWorkerParts) -> DeskWorker {
        let (stop, stopped) = bounded(0);
        let run = move || {
            while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
                parts.directory.desks.read_changed();
                if parts.lead.leads() {
                    parts.round();
                }
            }
        };
        let thread = std::thread::Builder::new().name("desks".into()).spawn(run);
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no thread for desks")).ok();
        DeskWorker { stop: Mutex::new(Some(stop)), thread: Mutex::new(thread) }
    }

    pub(crate) fn stop(&self) {
        self.stop.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

impl DeskWorkerParts {
    fn round(&self) {
        for desk in self.directory.desks.with_leaving_agents() {
            for agent in &desk.leaving {
                if let Err(refusal) = self.unassign(&desk, agent) {
                    tracing::debug!(%refusal, "conversations of a removed agent are unassigned later");
                }
            }
        }
    }

    /// Unassigns some of a removed agent's conversations. The agent is forgotten once there are none.
    fn unassign(&self, desk: &AccountDesk, agent: &Sender) -> Result<(), Refusal> {
        let place = |newest, no| index_key(desk.account, Whose::Agents(agent.no), newest, ConversationNo(no));
        let (from, to) = (place(Position::MAX, 0), place(0, u64::MAX));
        let rows = self.store.rows(RowSpace::Chat, &from, &to, UNASSIGNED_PER_ROUND).map_err(store_refusal)?;
        let mut begun = Vec::with_capacity(rows.len());
        for conversation in rows.iter().filter_map(|(key, _)| indexed(key)).map(|(_, no)| no) {
            let Some(card) = self.directory.conversation(conversation).map_err(store_refusal)? else { continue };
            let proposal = Proposal::Assign {
                conversation,
                account: desk.account,
                to: None,
                expected: Some(Some(agent.no)),
                entry: entry_of_server(desk.account),
            };
            begun.push(self.committer.begin(Some(&card), proposal)?);
        }
        for outcome in begun {
            outcome.wait()?;
        }
        if rows.len() == UNASSIGNED_PER_ROUND {
            return Ok(());
        }
        let Some(card) = self.directory.conversation(desk.account).map_err(store_refusal)? else { return Ok(()) };
        let patch = DeskPatch { forget: vec![agent.no], ..DeskPatch::default() };
        let id = desk.desk.user.id.clone();
        let (account, agents_max, adopts_user) = (desk.account, AGENTS_MAX, false);
        let proposal = Proposal::SetDesk { account, id, patch, agents_max, adopts_user };
        self.committer.begin(Some(&card), proposal)?.wait().map(drop)
    }
}

fn entry_of_server(account: ConversationNo) -> NewEntry {
    NewEntry {
        kind: EntryKind::Assignment,
        sender: None,
        client_msg_id: None,
        content_type: "assignment".into(),
        body: NO_BODY.into(),
        mentions: vec![],
        silent: true,
        skip_push: true,
        details: Some(Box::new(EntryDetails { desk: Some(account), ..EntryDetails::NONE })),
    }
}
