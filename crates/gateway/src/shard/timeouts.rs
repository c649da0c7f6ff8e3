//! The time-outs of connections: binds that do not come, silence, probes, tokens that expire, and closes that hang.

use super::Shard;
use crate::{connection::Phase, session_config::silence_max, timer_wheel::ticks};
use tidings_protocol::error::{ErrorCode, Refusal};

impl Shard {
    /// Has the connection's time-outs checked at `tick` or earlier, unless a relay holds the connection: the relay checks
    /// them.
    pub(super) fn arm_timeout(&mut self, key: usize, tick: u32) {
        if !self.connections.get(key).is_some_and(|connection| connection.transport.is_virtual()) {
            self.arm_timer(key, tick);
        }
    }

    /// The same for what a relay does not check: tokens and probes.
    pub(super) fn arm_timer(&mut self, key: usize, tick: u32) {
        if let Some(connection) = self.connections.get_mut(key) {
            connection.arm(key, tick, &mut self.timers);
        }
    }

    pub(super) fn check_timeouts(&mut self) {
        let tick = self.tick();
        for (due, key) in self.timers.advance(tick) {
            let Some(connection) = self.connections.get_mut(key).filter(|c| c.timer_due == due) else { continue };
            connection.timer_due = u32::MAX;
            let is_bound = matches!(connection.phase, Phase::Binding | Phase::Live);
            let (limit, code) = match connection.phase {
                Phase::Unbound => (ticks(self.parts.config.bind_timeout), Some(ErrorCode::BindTimeout)),
                Phase::Binding | Phase::Live => {
                    (silence_max(connection.heartbeat_ms), Some(ErrorCode::HeartbeatTimeout))
                }
                Phase::Closing => (ticks(self.parts.config.closing_timeout), None),
            };
            if is_bound && tick >= connection.token_expires {
                let why = "the token has expired (`exp`); bind again with a new one";
                self.close(key, Refusal::new(ErrorCode::TokenExpired, why));
                continue;
            }
            let keep_alive = connection.event_stream().map(|stream| stream.keep_alive_due);
            let probe = connection.unconfirmed.as_ref().map(|unconfirmed| unconfirmed.next_tick);
            let ack_due = connection.unacknowledged.as_ref().map(|unacknowledged| unacknowledged.due);
            if tick < connection.last_heard + limit || connection.transport.is_virtual() {
                let again = connection.last_heard + limit;
                let expires = if is_bound { connection.token_expires } else { u32::MAX };
                match probe {
                    Some(next) if next <= tick => self.probe(key, tick),
                    Some(next) => self.arm_timer(key, next),
                    None => {}
                }
                match ack_due {
                    Some(due) if due <= tick => self.push_unacknowledged(key, tick),
                    Some(due) => self.arm_timer(key, due),
                    None => {}
                }
                if let Some(due) = keep_alive {
                    self.keep_alive(key, due, tick);
                }
                self.arm_timeout(key, again);
                self.arm_timer(key, expires);
                continue;
            }
            match code {
                None => self.remove(key),
                Some(code) => {
                    let counter = &self.parts.engine.metrics;
                    if code == ErrorCode::BindTimeout { &counter.bind_timeouts } else { &counter.heartbeat_timeouts }
                        .inc();
                    self.close_unconfirmed(key, Refusal::new(code, "the client sent nothing in time"));
                }
            }
        }
    }
}
