//! The thread that unassigns the conversations of agents who were removed, a few at a time. Who has left is in the store: the
//! leader goes on where another node, or an earlier process, ended.

use super::AccountDesk;
use crate::{Core, worker_thread::WorkerThread};
use crossbeam_channel::RecvTimeoutError;
use std::time::Duration;
use tidings_domain::{
    desks::{DeskPatch, Whose, index_key, indexed},
    function::Function,
    model::*,
    refusals::store_refusal,
    store::{Proposal, RowSpace},
};
use tidings_protocol::{error::Refusal, limits::AGENTS_MAX};

/// The pause between two rounds.
const ROUND: Duration = Duration::from_millis(100);
/// Conversations that are unassigned in one round, of each removed agent.
const UNASSIGNED_PER_ROUND: usize = 200;

/// Starts the thread.
pub(crate) fn start(core: Core) -> WorkerThread {
    WorkerThread::start("desks", 0, move |stopped| {
        let worker = Worker(core);
        while stopped.recv_timeout(ROUND) == Err(RecvTimeoutError::Timeout) {
            worker.0.directory.desks.read_changed();
            if worker.0.leads.of(Function::Housekeeping).leads() {
                worker.round();
            }
        }
    })
}

struct Worker(Core);

impl Worker {
    fn round(&self) {
        for desk in self.0.directory.desks.with_leaving_agents() {
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
        let rows = self.0.store.rows(RowSpace::Chat, &from, &to, UNASSIGNED_PER_ROUND).map_err(store_refusal)?;
        let mut begun = Vec::with_capacity(rows.len());
        for conversation in rows.iter().filter_map(|(key, _)| indexed(key)).map(|(_, no)| no) {
            let Some(details) = self.0.directory.conversation(conversation).map_err(store_refusal)? else { continue };
            let proposal = Proposal::Assign {
                conversation,
                account: desk.account,
                to: None,
                expected: Some(Some(agent.no)),
                entry: entry_of_server(desk.account),
            };
            begun.push(self.0.committer.begin(Some(&details), proposal)?);
        }
        for outcome in begun {
            outcome.wait()?;
        }
        if rows.len() == UNASSIGNED_PER_ROUND {
            return Ok(());
        }
        let Some(details) = self.0.directory.conversation(desk.account).map_err(store_refusal)? else { return Ok(()) };
        let patch = DeskPatch { forget: vec![agent.no], ..DeskPatch::default() };
        let id = desk.desk.user.id.clone();
        let (account, agents_max, adopts_user) = (desk.account, AGENTS_MAX, false);
        let proposal = Proposal::SetDesk { account, id, patch, agents_max, adopts_user };
        self.0.committer.begin(Some(&details), proposal)?.wait().map(drop)
    }
}

fn entry_of_server(account: ConversationNo) -> NewEntry {
    let kind = EntryKind::Assignment;
    let details = EntryDetails { desk: Some(EntryDesk::of(account)), ..EntryDetails::of(kind) };
    NewEntry {
        kind,
        sender: None,
        client_msg_id: None,
        content_type: "assignment".into(),
        body: NO_BODY.into(),
        mentions: vec![],
        silent: true,
        skip_push: true,
        details: Some(Box::new(details)),
        request: EntryRequest::default(),
    }
}
