//! Desks: official accounts that answer by their agents. A direct conversation with an account's user is one of the account's:
//! its entries and signals go to the sessions of the agents, who take part in it as the account.
//!
//! A request in such a conversation first passes `acting`, which makes the account of the agent who asks. Who the agents are,
//! and which of them has a conversation, is asked and changed by `requests`, and committed. The thread of [`worker`] unassigns
//! the conversations of agents who were removed. The list of an account's conversations is in [`crate::lists`].
//!
//! This file has the desks of all accounts in memory: few accounts, tens of agents each.
//!
//! A commit that changes a desk is known here before anything of a later commit is handed out, on this node as on others: a
//! removed agent gets nothing of it.

mod acting;
mod requests;
pub(crate) mod worker;

use parking_lot::{Mutex, RwLock};
use rustc_hash::{FxHashMap, FxHashSet};
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use tidings_domain::{
    chat_rows,
    desks::*,
    failure_log::FailureLog,
    model::*,
    store::{RowSpace, Store, StoreResult},
};

/// Desks that are read at once.
const DESKS_AT_ONCE: usize = 1_000;

/// The desk of an account, as far as it is in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AccountDesk {
    pub account: ConversationNo,
    pub desk: Desk,
    /// In the order of their ids.
    pub agents: Vec<Sender>,
    /// Removed agents with conversations that are yet to be unassigned.
    pub leaving: Vec<Sender>,
}

impl AccountDesk {
    pub fn has_agent(&self, user: UserNo) -> bool {
        self.agents.iter().any(|agent| agent.no == user)
    }

    /// Those who act for the account: its own user, whose token a program may have, and the agents, but for `except`.
    fn insiders(&self, except: UserNo) -> impl Iterator<Item = UserNo> {
        let agents = self.agents.iter().map(|agent| agent.no);
        agents.chain([self.desk.user.no]).filter(move |user| *user != except)
    }
}

/// The sides of a conversation with an account.
pub struct Sides {
    /// The user who has it with the account.
    pub customer: UserNo,
    pub desk: Arc<AccountDesk>,
}

impl Sides {
    pub(crate) fn insiders(&self) -> Vec<UserNo> {
        self.desk.insiders(self.customer).collect()
    }
}

#[derive(Default)]
struct Known {
    by_user: FxHashMap<UserNo, Arc<AccountDesk>>,
    by_account: FxHashMap<ConversationNo, UserNo>,
    /// The users of the accounts for which an agent answers.
    by_agent: FxHashMap<UserNo, Vec<UserNo>>,
}

impl Known {
    fn put(&mut self, account: ConversationNo, new: Option<AccountDesk>) {
        if let Some(user) = self.by_account.remove(&account)
            && let Some(before) = self.by_user.remove(&user)
        {
            for agent in &before.agents {
                if let Some(served) = self.by_agent.get_mut(&agent.no) {
                    served.retain(|served| *served != user);
                }
            }
        }
        self.by_agent.retain(|_, served| !served.is_empty());
        let Some(new) = new else { return };
        let user = new.desk.user.no;
        for agent in &new.agents {
            self.by_agent.entry(agent.no).or_default().push(user);
        }
        self.by_account.insert(account, user);
        self.by_user.insert(user, Arc::new(new));
    }
}

pub struct Desks {
    store: Arc<dyn Store>,
    known: RwLock<Known>,
    count: AtomicUsize,
    stale: Mutex<Stale>,
    failures: FailureLog,
}

/// What is yet to be read.
#[derive(Default)]
struct Stale {
    /// Whether all desks have been read once.
    is_loaded: bool,
    /// Accounts whose desks have changed and could not be read then.
    accounts: FxHashSet<ConversationNo>,
}

impl Desks {
    /// Without any desk until [`Desks::read_changed`] is called.
    pub(crate) fn new(store: Arc<dyn Store>) -> Arc<Desks> {
        let (known, count, stale) = (RwLock::default(), AtomicUsize::new(0), Mutex::default());
        let failures = FailureLog::new("who answers for which account could not be read");
        Arc::new(Desks { store, known, count, stale, failures })
    }

    /// Reads all desks.
    ///
    /// # Errors
    /// Those of the store's reads.
    fn load(&self) -> StoreResult<()> {
        let (mut from, to) = (desk_key(ConversationNo(0)), desk_key(ConversationNo(u64::MAX)));
        loop {
            let rows = self.store.rows(RowSpace::Chat, &from, &to, DESKS_AT_ONCE)?;
            for account in rows.iter().filter_map(|(key, _)| desk_of(key)) {
                self.read(account)?;
            }
            match rows.last() {
                Some((last, _)) if rows.len() == DESKS_AT_ONCE => from = [&last[..], &[0]].concat(),
                _ => return Ok(()),
            }
        }
    }

    /// Reads a desk that may have changed. One that cannot be read now is read later.
    pub(crate) fn note_change(&self, account: ConversationNo) {
        let mut stale = self.stale.lock();
        stale.accounts.insert(account);
        self.read_stale(&mut stale);
    }

    /// Any desk may have changed.
    pub(crate) fn note_all_changed(&self) {
        let mut stale = self.stale.lock();
        stale.is_loaded = false;
        self.read_stale(&mut stale);
    }

    /// Reads the desks that could not be read when they changed; at first all of them.
    pub(crate) fn read_changed(&self) {
        self.read_stale(&mut self.stale.lock());
    }

    /// Under the lock, so that of two reads of one desk the later one stays.
    fn read_stale(&self, stale: &mut Stale) {
        if !stale.is_loaded {
            let loaded = self.load();
            self.failures.note(&loaded);
            if loaded.is_ok() {
                *stale = Stale { is_loaded: true, accounts: FxHashSet::default() };
            }
        }
        stale.accounts.retain(|account| {
            let read = self.read(*account);
            self.failures.note(&read);
            read.is_err()
        });
    }

    fn read(&self, account: ConversationNo) -> StoreResult<()> {
        let row = self.store.row(RowSpace::Chat, &desk_key(account))?;
        let desk: Option<Desk> = chat_rows::decode(row.as_deref())?;
        let found = match desk {
            Some(desk) => Some(self.with_agents(account, desk)?),
            None => None,
        };
        let mut known = self.known.write();
        known.put(account, found);
        self.count.store(known.by_user.len(), Ordering::Release);
        Ok(())
    }

    fn with_agents(&self, account: ConversationNo, desk: Desk) -> StoreResult<AccountDesk> {
        let (from, to) = (agent_key(account, UserNo(0)), agent_key(account, UserNo(u64::MAX)));
        let (mut agents, mut leaving) = (Vec::new(), Vec::new());
        for (key, row) in self.store.rows(RowSpace::Chat, &from, &to, usize::MAX)? {
            let row: Option<AgentRow> = chat_rows::decode(Some(&row))?;
            if let (Some(no), Some(row)) = (agent_of(&key), row) {
                let list = if row.is_leaving { &mut leaving } else { &mut agents };
                list.push(Sender { no, id: row.id });
            }
        }
        agents.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(AccountDesk { account, desk, agents, leaving })
    }

    /// Whether no account answers: then every other question has the same answer.
    pub(crate) fn is_empty(&self) -> bool {
        self.count.load(Ordering::Acquire) == 0
    }

    /// The desk whose account speaks as this user.
    pub fn of_user(&self, user: UserNo) -> Option<Arc<AccountDesk>> {
        if self.is_empty() {
            return None;
        }
        self.known.read().by_user.get(&user).cloned()
    }

    pub(crate) fn of_account(&self, account: ConversationNo) -> Option<Arc<AccountDesk>> {
        let known = self.known.read();
        known.by_user.get(known.by_account.get(&account)?).cloned()
    }

    /// The desks of the accounts for which a user answers.
    pub(crate) fn served_by(&self, agent: UserNo) -> Vec<Arc<AccountDesk>> {
        if self.is_empty() {
            return Vec::new();
        }
        let known = self.known.read();
        let served = known.by_agent.get(&agent).into_iter().flatten();
        served.filter_map(|user| known.by_user.get(user).cloned()).collect()
    }

    /// Whose conversation it is, if it is one with an account.
    pub fn sides(&self, pair: Option<(UserNo, UserNo)>) -> Option<Sides> {
        if self.is_empty() {
            return None;
        }
        let (a, b) = pair?;
        let known = self.known.read();
        let of = |user, customer| known.by_user.get(&user).map(|desk| Sides { customer, desk: desk.clone() });
        of(a, b).or_else(|| of(b, a))
    }

    /// The users whose sessions learn what concerns this user: of an account those of its agents, too.
    pub(crate) fn people_of(&self, user: UserNo) -> Vec<UserNo> {
        match self.of_user(user) {
            Some(desk) => desk.insiders(UserNo(0)).collect(),
            None => vec![user],
        }
    }

    /// Desks with removed agents whose conversations are yet to be unassigned.
    pub(crate) fn with_leaving_agents(&self) -> Vec<Arc<AccountDesk>> {
        if self.is_empty() {
            return Vec::new();
        }
        self.known.read().by_user.values().filter(|desk| !desk.leaving.is_empty()).cloned().collect()
    }
}
