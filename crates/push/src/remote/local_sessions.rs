//! The sessions of this node, where there are others, with ids that hold while the lead moves. The push thread owns
//! them: its worker while this node leads, its remote client else.

use crate::Register;
use rustc_hash::FxHashMap;
use tidings_domain::push_store::DeviceNo;
use tidings_protocol::error::{ErrorCode, Refusal};

/// About 200 bytes. In a cluster only.
struct Session {
    register: Register,
    /// The device's number as the session got it.
    device: Option<DeviceNo>,
    /// The session has had its first answer: it is live, or about to be.
    is_answered: bool,
}

/// What follows from the answer to a registration.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum AfterRegister {
    /// Tell the session: its shard, and its number there.
    Tell(usize, u64),
    /// Nothing: the session has ended, or knows its device.
    Nothing,
    /// The session is live without a device: register it again.
    Retry,
    /// Both: it goes live without its device, which is registered later.
    TellAndRetry(usize, u64),
}

#[derive(Default)]
pub(crate) struct LocalSessions {
    last_id: u64,
    /// By shard, and session there.
    ids: FxHashMap<(usize, u64), u64>,
    sessions: FxHashMap<u64, Session>,
}

impl LocalSessions {
    /// Adds a session that asks to be registered; answers its id.
    pub(crate) fn put(&mut self, register: Register) -> u64 {
        self.last_id += 1;
        self.ids.insert((register.shard, register.session), self.last_id);
        self.sessions.insert(self.last_id, Session { register, device: None, is_answered: false });
        self.last_id
    }

    /// A session has ended; answers its id and device, if it was known.
    pub(crate) fn remove(&mut self, shard: usize, session: u64) -> Option<(u64, Option<DeviceNo>)> {
        let id = self.ids.remove(&(shard, session))?;
        let device = self.sessions.remove(&id).and_then(|session| session.device);
        Some((id, device))
    }

    pub(crate) fn register(&self, id: u64) -> Option<&Register> {
        self.sessions.get(&id).map(|session| &session.register)
    }

    /// A session's shard, and its number there.
    pub(crate) fn shard_session(&self, id: u64) -> Option<(usize, u64)> {
        self.register(id).map(|register| (register.shard, register.session))
    }

    pub(crate) fn id(&self, shard: usize, session: u64) -> Option<u64> {
        self.ids.get(&(shard, session)).copied()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys().copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// Notes that the session is notified that pushes come later. Answers its shard and number there, unless it has had an
    /// answer.
    pub(crate) fn answer_later(&mut self, id: u64) -> Option<(usize, u64)> {
        let session = self.sessions.get_mut(&id).filter(|session| !session.is_answered)?;
        session.is_answered = true;
        Some((session.register.shard, session.register.session))
    }

    /// A registration was answered. A session whose first answer is a refusal ends, and is forgotten, unless it was refused
    /// because the lead moves: such a session goes live.
    pub(crate) fn answered(&mut self, id: u64, result: &Result<DeviceNo, Refusal>) -> AfterRegister {
        let Some(session) = self.sessions.get_mut(&id) else { return AfterRegister::Nothing };
        let (shard, number) = (session.register.shard, session.register.session);
        let was_answered = std::mem::replace(&mut session.is_answered, true);
        match result {
            Ok(device) if session.device == Some(*device) => AfterRegister::Nothing,
            Ok(device) => {
                session.device = Some(*device);
                AfterRegister::Tell(shard, number)
            }
            Err(_) if was_answered => AfterRegister::Retry,
            Err(refusal) if refusal.code == ErrorCode::NodeUnavailable => AfterRegister::TellAndRetry(shard, number),
            Err(_) => {
                self.remove(shard, number);
                AfterRegister::Tell(shard, number)
            }
        }
    }
}
