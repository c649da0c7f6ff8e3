//! Sessions over server-sent events that ended for good, for clients that ask before they have read why.
//!
//! A client's request and its stream are two connections: the answer to the one may come before the last event of the other,
//! or the stream may break before that event has passed. A client that then took its session for lost would open another,
//! and end the session that had replaced it.

use std::collections::VecDeque;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    event_stream::{StreamPost, StreamSecret},
};

/// How many endings a shard keeps, 32 bytes each. A client's next request comes within its heartbeat.
const ENDINGS_MAX: usize = 1_024;

#[derive(Default)]
pub(crate) struct EndedStreams {
    newest_last: VecDeque<(u64, StreamSecret, ErrorCode)>,
}

impl EndedStreams {
    /// Keeps why a session ended, if its client must not come back by itself. After any other ending it opens another stream
    /// and gets there what it has to know.
    pub(crate) fn put(&mut self, session: u64, secret: StreamSecret, refusal: &Refusal) {
        if !matches!(refusal.code, ErrorCode::Replaced | ErrorCode::Kicked | ErrorCode::UserSuspended) {
            return;
        }
        if self.newest_last.len() == ENDINGS_MAX {
            self.newest_last.pop_front();
        }
        self.newest_last.push_back((session, secret, refusal.code));
    }

    /// What a request to a session that is no more is answered with.
    pub(crate) fn ending_of(&self, post: &StreamPost) -> Refusal {
        let of_post = |(session, secret, _): &&(u64, StreamSecret, ErrorCode)| {
            *session == post.stream.session && *secret == post.secret
        };
        match self.newest_last.iter().rev().find(of_post).map(|(.., code)| *code) {
            Some(ErrorCode::Replaced) => {
                Refusal::new(ErrorCode::Replaced, "a newer session took the place of this one")
            }
            Some(code) => {
                Refusal::new(code, "the session was ended by the app's server; do not connect again by itself")
            }
            None => session_gone(),
        }
    }
}

pub(crate) fn session_gone() -> Refusal {
    Refusal::new(ErrorCode::SessionGone, "no session with this stream and secret; open another and resume")
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_protocol::event_stream::StreamId;

    fn ending(ended: &EndedStreams, session: u64, secret: u128) -> ErrorCode {
        let stream = StreamId { node: 0, shard: 0, session };
        ended.ending_of(&StreamPost { stream, secret: StreamSecret(secret), number: 1, lines: Vec::new() }).code
    }

    #[test]
    fn only_who_knows_the_secret_learns_why_a_session_ended_and_only_if_it_ended_for_good() {
        let mut ended = EndedStreams::default();
        for (session, code) in [(1, ErrorCode::Replaced), (2, ErrorCode::Kicked), (3, ErrorCode::SlowReader)] {
            ended.put(session, StreamSecret(u128::from(session) * 10), &Refusal::new(code, ""));
        }
        assert_eq!(ending(&ended, 1, 10), ErrorCode::Replaced);
        assert_eq!(ending(&ended, 2, 20), ErrorCode::Kicked);
        assert_eq!(ending(&ended, 3, 30), ErrorCode::SessionGone);
        assert_eq!(ending(&ended, 1, 20), ErrorCode::SessionGone);
    }

    #[test]
    fn the_oldest_endings_are_forgotten() {
        let mut ended = EndedStreams::default();
        for session in 0..=ENDINGS_MAX as u64 {
            ended.put(session, StreamSecret(7), &Refusal::new(ErrorCode::Replaced, ""));
        }
        assert_eq!(ended.newest_last.len(), ENDINGS_MAX);
        assert_eq!(ending(&ended, 0, 7), ErrorCode::SessionGone);
        assert_eq!(ending(&ended, 1, 7), ErrorCode::Replaced);
    }
}
