//! Lists and corrects the sessions of all shards.

use super::SessionServer;
use crate::commands::Command;
use crossbeam_channel::{RecvTimeoutError, bounded};
use std::time::{Duration, Instant};
use tidings_domain::model::UserNo;
use tidings_engine::{
    presence::compare::{Correction, LiveSession, SessionSource},
    shards::shard_of,
};
use tidings_protocol::error::{ErrorCode, Refusal};

/// A listing that takes longer is given up: a relay may hang.
const LISTING_TIMEOUT: Duration = Duration::from_secs(30);

impl SessionSource for SessionServer {
    fn sessions(&self, user: Option<UserNo>) -> Result<Vec<LiveSession>, Refusal> {
        let shards = match user {
            None => 0..self.shard_count(),
            Some(user) => {
                let shard = shard_of(user, self.shard_count());
                shard..shard + 1
            }
        };
        let end = Instant::now() + LISTING_TIMEOUT;
        let answers: Vec<_> = shards
            .map(|shard| {
                let (reply, answer) = bounded(1);
                self.send(shard, Command::List { user, reply });
                answer
            })
            .collect();
        let mut sessions = Vec::new();
        for answer in answers {
            let listed = answer.recv_deadline(end).map_err(|_| {
                let why = "not every process that holds connections listed them in time, or too many lists are made";
                Refusal::new(ErrorCode::NodeUnavailable, why).retry_after(1_000)
            });
            sessions.extend(listed?);
        }
        Ok(sessions)
    }

    fn correct(&self, corrections: Vec<Correction>) -> Result<(), Refusal> {
        let mut by_shard: Vec<Vec<Correction>> = vec![Vec::new(); self.shard_count()];
        for correction in corrections {
            if let Some(shard) = by_shard.get_mut(usize::from(correction.shard)) {
                shard.push(correction);
            }
        }
        let (reply, done) = bounded(1);
        for (shard, corrections) in by_shard.into_iter().enumerate().filter(|(_, part)| !part.is_empty()) {
            self.send(shard, Command::Correct { corrections, reply: reply.clone() });
        }
        drop(reply);
        match done.recv_timeout(LISTING_TIMEOUT) {
            // Every shard has dropped its sender.
            Err(RecvTimeoutError::Disconnected) | Ok(()) => Ok(()),
            Err(RecvTimeoutError::Timeout) => {
                Err(Refusal::new(ErrorCode::NodeUnavailable, "the repair took too long").retry_after(1_000))
            }
        }
    }
}
