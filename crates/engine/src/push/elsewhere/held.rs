//! The sessions of this node that want pushes for as long as they live, whoever leads. Kept by whoever does the
//! work of this node's push thread: the outpost, or the worker.

use crate::push::{DeviceNo, Register};
use rustc_hash::FxHashMap;

/// About 200 bytes a session, in a cluster only.
struct Session {
    register: Register,
    /// As the session was told.
    device: Option<DeviceNo>,
    /// The session has had an answer, and is live or about to be.
    is_answered: bool,
}

/// What is to be done with the answer to a registration.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::push) enum Answer {
    /// Tell the session, at this shard and by this name there.
    Tell(usize, u64),
    /// It knows, or is gone.
    Nothing,
    /// It lives on without: to be registered again.
    Again,
}

#[derive(Default)]
pub(in crate::push) struct Held {
    last: u64,
    /// By shard, and session there.
    names: FxHashMap<(usize, u64), u64>,
    sessions: FxHashMap<u64, Session>,
}

impl Held {
    /// Names a session that asks for the first time.
    pub(in crate::push) fn put(&mut self, register: Register) -> u64 {
        self.last += 1;
        self.names.insert((register.shard, register.session), self.last);
        self.sessions.insert(self.last, Session { register, device: None, is_answered: false });
        self.last
    }

    /// A session has ended; its name and device, if it was held.
    pub(in crate::push) fn remove(&mut self, shard: usize, session: u64) -> Option<(u64, Option<DeviceNo>)> {
        let name = self.names.remove(&(shard, session))?;
        let device = self.sessions.remove(&name).and_then(|session| session.device);
        Some((name, device))
    }

    pub(in crate::push) fn register(&self, name: u64) -> Option<&Register> {
        self.sessions.get(&name).map(|session| &session.register)
    }

    /// Shard, and session there.
    pub(in crate::push) fn place(&self, name: u64) -> Option<(usize, u64)> {
        self.register(name).map(|register| (register.shard, register.session))
    }

    pub(in crate::push) fn name(&self, shard: usize, session: u64) -> Option<u64> {
        self.names.get(&(shard, session)).copied()
    }

    pub(in crate::push) fn names(&self) -> impl Iterator<Item = u64> {
        self.sessions.keys().copied()
    }

    pub(in crate::push) fn len(&self) -> usize {
        self.sessions.len()
    }

    /// The session is told that pushes come later. Answers where it is, unless it has had an answer.
    pub(in crate::push) fn later(&mut self, name: u64) -> Option<(usize, u64)> {
        let session = self.sessions.get_mut(&name).filter(|session| !session.is_answered)?;
        session.is_answered = true;
        Some((session.register.shard, session.register.session))
    }

    /// A registration was answered. A session that is refused at its bind is held no more.
    pub(in crate::push) fn answered(&mut self, name: u64, device: Option<DeviceNo>) -> Answer {
        let Some(session) = self.sessions.get_mut(&name) else { return Answer::Nothing };
        let (shard, number) = (session.register.shard, session.register.session);
        let was_answered = std::mem::replace(&mut session.is_answered, true);
        match device {
            Some(_) if session.device == device => Answer::Nothing,
            Some(_) => {
                session.device = device;
                Answer::Tell(shard, number)
            }
            None if was_answered => Answer::Again,
            None => {
                self.remove(shard, number);
                Answer::Tell(shard, number)
            }
        }
    }
}
